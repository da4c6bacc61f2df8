//! Merged calls: calls of several callers for one key that are sent as a single call.
//!
//! While a call for a key is on its way, further callers of the same process form a *row*. Then one call,
//! `... SATURATE` for the sum of their quantities, is sent for them. The units that it takes are granted in
//! the order of the row, and each caller gets the answer that its own call would have got at its place. The
//! process holds no unit at any time. [`tail`] returns the callers that can be sent as one call, and
//! [`Grants`] computes the answers.
//!
//! # Which callers
//! One after the other, all or nothing, callers for `q1, q2, ...` leave units behind if none of the rest is
//! small enough for them. A call with SATURATE leaves none. So both take the same number of available units
//! if and only if the row is *complete*:
//!
//! ```text
//! each quantity is at most one more than the sum of the quantities behind it in the row
//! ```
//!
//! Why: by induction from the end of the row, a complete row for the sum `c` takes exactly `min(r, c)` of `r`
//! available units. The empty row takes `min(r, 0)`. Put a quantity `q <= c + 1` before it. If `r >= q`, it
//! is taken, and the rest takes `min(r - q, c)`: together `min(r, c + q)`. If `r < q`, then `r <= c`, and the
//! rest takes all `r`. And if `q > c + 1`, one call leaves a unit behind when `q - 1` are available: the rest
//! takes `c` of them. So a row of single units is always complete, and a quantity above 1 needs smaller ones
//! behind it; it is sent by itself otherwise.
//!
//! # Which limits
//! Calls can be merged if a reply determines the reply after fewer units: for GCRA, funnels and buckets,
//! where each unit adds one emission interval to `reset_after`, and for fixed windows, whose end does not
//! depend on the units. The replies of sliding windows and logs depend on more than a reply says, and each
//! unit of a total can move the expiry of its key, so their calls are sent one by one.
//!
//! # What differs from calls of their own
//! All callers of a row are decided at the same instant. Beyond that:
//!
//! - If the emission interval is a whole number of microseconds, nothing differs.
//! - If it is not, times are up to a microsecond longer, never shorter: replies have whole microseconds.
//! - If it is not even a whole number of nanoseconds, the sum is rounded once instead of each quantity: each
//!   caller is forgiven less than a nanosecond less. One call never takes more than calls of their own would.
//! - An error of the call, such as a key of another type, is the error of each caller.
//!
//! Clients that wait in the queue of the key leave nothing to a call with SATURATE, so a refusal of the row
//! has the wait behind them.
//!
//! # Mixes of several limiters
//! `CL.MTAKE` takes from all limiters or from none, and has no SATURATE: a call for a sum that does not fit
//! takes nothing. But each row of its reply says what `remaining` there is. So the callers of a mix (the same
//! keys and limits in the same order) are in one [`Line`], and a reply decides, in the order of the line, all
//! callers that came before its call was sent:
//!
//! - If the call was admitted, so are the callers that it was for.
//! - A caller behind them is *next* if its quantities fit what remains after the callers before it: the
//!   following call is for the sum of these callers, and of newer callers while they fit.
//! - A caller that does not fit is refused behind those that are next. It gets its refusal when their call is
//!   admitted. If that call is refused, because another process has taken the units, its reply decides all of
//!   them again.
//!
//! So every refusal is that of a call of its own at the instant of the reply, at the caller's place, and
//! every admission is the server's. There is at most one call at a time; without calls of others, a caller
//! takes part in at most two, or three if a fixed window was not open, whose end only an admitted call can
//! tell. A caller whose call was refused twice in this way sends a call of its own.
//!
//! What differs from calls of their own, beyond what is said above: those that are next take their units one
//! round trip after the reply that decided them, so what others do between the two comes before it, and a
//! refusal is one round trip old when it is told. No client can avoid this: a sum that is all or nothing must
//! be known before it is sent, and a unit may become available after that. Then a caller behind the sum was
//! refused, although its own call, a moment later, would have been admitted. With a larger sum, all callers
//! would have been refused if that unit had not become available.
//!
//! Only limits that can be merged separately can be merged in a mix, and only quantities of at least 1,
//! because a call for 0 reports debts, which `remaining` does not. A place has a holder of its own; a limiter
//! in shadow takes all or nothing of a sum; pools in order divide a sum differently from separate calls; a
//! hold, and a reply that is stored for repetitions, belong to one caller.
//!
//! Source: `CL.THROTTLE ... SATURATE`; the rule for complete rows is that of complete sequences of numbers
//! (Brown, "Note on complete sequences of integers", 1961).

use crate::{Answer, Rate, Span, Verdict};

/// A limit whose calls can be merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// GCRA, a funnel or a bucket: `capacity` units at once, and one more each emission interval.
    Rated {
        /// The rate.
        rate: Rate,
        /// The most units at once: `max_burst + 1` for GCRA.
        capacity: i64,
    },
    /// A fixed window of this many units.
    Counted(i64),
}

/// One limiter in the reply to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The units taken.
    pub taken: i64,
    /// The units still available.
    pub remaining: i64,
    /// If the limiter refuses, the wait, and the quantity for which it is: 1 with SATURATE.
    pub retry_after: Option<(Span, i64)>,
    /// The time until the limiter is fully replenished.
    pub reset_after: Span,
}

/// Returns how many callers at the end of a row can be sent as one call: at least one, unless the row is
/// empty.
///
/// `quantities` are those of the row, from its end to its beginning; `None` is a caller that sends its own
/// call, such as a caller that takes nothing or more than the limit.
///
/// Cost: O(callers), no allocation.
///
/// # Example
/// ```
/// # use redis_cell_core::merged::tail;
/// assert_eq!(tail([1, 1, 1].map(Some)), 3);
/// assert_eq!(tail([1, 1, 3, 9].map(Some)), 3); // the row is 9, 3, 1, 1
/// assert_eq!(tail([5, 1].map(Some)), 1);
/// ```
pub fn tail(quantities: impl IntoIterator<Item = Option<i64>>) -> usize {
    let (mut callers, mut sum) = (0_usize, 0_i64);
    for quantity in quantities {
        let fits = quantity.filter(|&quantity| quantity.saturating_sub(1) <= sum);
        match fits.and_then(|quantity| sum.checked_add(quantity)) {
            Some(more) => sum = more,
            None => return callers.max(1),
        }
        callers = callers.saturating_add(1);
    }
    callers
}

/// The answers of the callers of a complete row, from the reply to the call for their sum.
///
/// Cost: O(1) for each caller, no allocation.
///
/// # Example
/// ```
/// # use redis_cell_core::merged::{Grants, Limit, Reply};
/// # use redis_cell_core::{Rate, Span, Unit};
/// let rate = Rate::new(1, 1, Unit::Seconds)?;
/// let full = Span::from_units(10, Unit::Seconds).unwrap();
/// let reply = Reply { taken: 2, remaining: 0, retry_after: None, reset_after: full };
/// let mut grants = Grants::new(Limit::Rated { rate, capacity: 10 }, reply);
/// assert_eq!(grants.next(1).reply(Unit::Seconds).five, [0, 10, 1, -1, 9]);
/// assert_eq!(grants.next(1).reply(Unit::Seconds).five, [0, 10, 0, -1, 10]);
/// assert_eq!(grants.next(1).reply(Unit::Seconds).five, [1, 10, 0, 1, 10]);
/// # Ok::<(), redis_cell_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Grants(Place);

impl Grants {
    /// Begins with the first caller of the row.
    pub const fn new(limit: Limit, reply: Reply) -> Self {
        Self(Place::new(limit, reply))
    }

    /// Returns the answer of the next caller, which wants `quantity` units: from 1 to the limit.
    pub fn next(&mut self, quantity: i64) -> Answer {
        let Self(place) = self;
        let admits = quantity.checked_add(place.ahead).is_some_and(|ahead| ahead <= 0);
        if admits {
            place.advance(quantity);
        }
        let wait = place.wait(quantity);
        place.answer(if admits { Verdict::Admitted } else { Verdict::Later(wait) })
    }
}

/// A limiter at the place of one of the callers that a reply decides.
#[derive(Clone, Copy, Debug)]
struct Place {
    limit: Limit,
    reply: Reply,
    /// The units of the callers before this place, less those that were taken when the reply was made.
    ahead: i64,
}

impl Place {
    const fn new(limit: Limit, reply: Reply) -> Self {
        Self { limit, reply, ahead: 0_i64.saturating_sub(reply.taken) }
    }

    /// A limiter of which nothing is known.
    const fn unknown(limit: Limit) -> Self {
        let reply = Reply { taken: 0, remaining: limit.most(), retry_after: None, reset_after: Span::ZERO };
        Self { limit, reply, ahead: 0 }
    }

    const fn remaining(&self) -> i64 {
        self.reply.remaining.saturating_sub(self.ahead)
    }

    const fn advance(&mut self, quantity: i64) {
        self.ahead = self.ahead.saturating_add(quantity);
    }

    fn answer(&self, verdict: Verdict) -> Answer {
        let (remaining, reset_after) = (self.remaining(), self.reset_after());
        Answer { verdict, limit: self.limit.most(), remaining, reset_after, taken: None }
    }

    /// The time until the limiter is fully replenished.
    fn reset_after(&self) -> Span {
        match self.limit {
            // If no window was open, the first caller has opened it.
            Limit::Counted(_) => self.reply.reset_after,
            Limit::Rated { rate, .. } => moved(self.reply.reset_after, rate, [self.ahead, 0, 0]),
        }
    }

    /// The wait of a caller that is refused.
    fn wait(&self, quantity: i64) -> Span {
        let Reply { retry_after, reset_after, .. } = self.reply;
        let wait = match self.limit {
            Limit::Counted(_) => retry_after.map_or(reset_after, |(wait, _)| wait),
            Limit::Rated { rate, capacity } => {
                // Clients that wait may come before: of SATURATE, `reset_after` does not count their units.
                let (wait, of) = retry_after.unwrap_or((reset_after, capacity));
                moved(wait, rate, [self.ahead, quantity, of.saturating_neg()])
            }
        };
        wait.max(Span::NANOSECOND)
    }

    /// Whether [`reset_after`](Self::reset_after) and [`wait`](Self::wait) follow from the reply. They do not
    /// if callers before this place open the window, or if clients wait in the queue of the key: an admitted
    /// call counts their units in `remaining` alone.
    fn knows_waits(&self) -> bool {
        let Reply { taken, remaining, reset_after, .. } = self.reply;
        match self.limit {
            Limit::Counted(_) => self.ahead <= 0 || reset_after > Span::ZERO,
            Limit::Rated { rate, capacity } => {
                let all = rate.time(capacity).unwrap_or(Span::MAX);
                taken == 0 || remaining >= rate.units(all.saturating_sub(reset_after))
            }
        }
    }
}

/// The time after these units more, or less.
fn moved(time: Span, rate: Rate, by: [i64; 3]) -> Span {
    let nanos = |span: Span| i128::from(span.as_nanos());
    let all = by.iter().fold(nanos(time), |all, units| {
        let of = nanos(rate.time(units.saturating_abs()).unwrap_or(Span::MAX));
        all.saturating_add(of.saturating_mul(units.signum().into()))
    });
    u64::try_from(all.max(0)).ok().and_then(Span::from_nanos).unwrap_or(Span::MAX)
}

/// Callers of one mix: several limiters, of which each caller takes units of all or of none (`CL.MTAKE`).
///
/// `C` is a caller, with its quantities in the order of the limits: at least 1, and at most the limits.
///
/// Cost: O(callers) for each call and each reply.
#[derive(Debug)]
pub struct Line<C> {
    places: Vec<Place>,
    /// The sum of the call on its way.
    sum: Vec<i64>,
    /// The callers of the call on its way, and those behind them that are refused if it is admitted.
    called: Vec<(Waiting<C>, Option<Vec<Answer>>)>,
    waiting: Vec<Waiting<C>>,
}

#[derive(Debug)]
struct Waiting<C> {
    caller: C,
    /// Whether it came before the call of the last reply was sent.
    is_decided: bool,
    /// The number of calls for it and others that were refused.
    refused: u8,
}

/// The conclusions from the replies so far.
#[derive(Debug)]
pub struct Next<C> {
    /// The quantities of the next call. Without any, there is no call.
    pub sum: Vec<i64>,
    /// Callers that are refused, each with the rows of its own reply.
    pub refused: Vec<(C, Vec<Answer>)>,
    /// Callers that send their own calls, because another caller was faster twice.
    pub alone: Vec<C>,
}
impl<C: AsRef<[i64]>> Line<C> {
    /// Creates a line for the callers of a mix of these limits.
    pub fn new(limits: impl IntoIterator<Item = Limit>) -> Self {
        let places = limits.into_iter().map(Place::unknown).collect();
        Self { places, sum: Vec::new(), called: Vec::new(), waiting: Vec::new() }
    }

    /// Appends a caller.
    pub fn push(&mut self, caller: C) {
        self.waiting.push(Waiting { caller, is_decided: false, refused: 0 });
    }

    /// Removes the callers that are not in the call on its way, and that `stays` does not keep.
    pub fn retain(&mut self, mut stays: impl FnMut(&C) -> bool) {
        self.waiting.retain(|waiting| stays(&waiting.caller));
    }

    /// Whether nobody waits for the next call.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Begins the next call. Its reply, or its failure, must follow before the next one begins.
    pub fn next_call(&mut self) -> Next<C> {
        let none = || vec![0; self.places.len()];
        let mut next = Next { sum: none(), refused: Vec::new(), alone: Vec::new() };
        let mut waiting = std::mem::take(&mut self.waiting).into_iter();
        let add = |sum: &mut [i64], quantities: &[i64]| {
            for (sum, quantity) in sum.iter_mut().zip(quantities) {
                *sum = sum.saturating_add(*quantity);
            }
        };
        for caller in waiting.by_ref() {
            if self.admits(caller.caller.as_ref()) {
                if caller.refused > 1 {
                    next.alone.push(caller.caller);
                    continue;
                }
                self.advance(caller.caller.as_ref());
                add(&mut next.sum, caller.caller.as_ref());
                self.called.push((caller, None));
            } else if let Some(rows) = self.refusal(&caller) {
                if self.called.is_empty() {
                    next.refused.push((caller.caller, rows));
                } else {
                    self.called.push((caller, Some(rows)));
                }
            } else {
                self.waiting.push(caller);
                break;
            }
        }
        self.waiting.extend(waiting);
        if self.called.is_empty() && !self.waiting.is_empty() {
            let first = self.waiting.remove(0);
            add(&mut next.sum, first.caller.as_ref());
            self.called.push((first, None));
        }
        if self.called.is_empty() {
            next.sum.clear();
        }
        for caller in &mut self.waiting {
            caller.is_decided = true;
        }
        self.sum.clone_from(&next.sum);
        next
    }

    /// Returns the callers that the reply of the call decides, each with the rows of its own reply. The rows
    /// of the reply are those of all limiters, in order, with `taken` 0.
    pub fn answered(
        &mut self,
        admitted: bool,
        rows: impl IntoIterator<Item = Reply>,
    ) -> Vec<(C, Vec<Answer>)> {
        for ((place, sum), row) in self.places.iter_mut().zip(&self.sum).zip(rows) {
            let retry_after = row.retry_after.map(|(wait, _)| (wait, *sum));
            *place =
                Place::new(place.limit, Reply { taken: if admitted { *sum } else { 0 }, retry_after, ..row });
        }
        let called = std::mem::take(&mut self.called);
        if !admitted {
            let again = called.into_iter().map(|(caller, rows)| {
                let refused = caller.refused.saturating_add(u8::from(rows.is_none()));
                Waiting { is_decided: true, refused, ..caller }
            });
            self.waiting.splice(0..0, again);
            return Vec::new();
        }
        let mut decided = Vec::with_capacity(called.len());
        for (caller, rows) in called {
            let rows = rows.unwrap_or_else(|| {
                self.advance(caller.caller.as_ref());
                self.places.iter().map(|place| place.answer(Verdict::Admitted)).collect()
            });
            decided.push((caller.caller, rows));
        }
        decided
    }

    /// Returns the callers that the call was to decide, after an error: it is the error of each.
    pub fn failed(&mut self) -> Vec<C> {
        for place in &mut self.places {
            *place = Place::unknown(place.limit);
        }
        let came_before = self.waiting.iter().take_while(|caller| caller.is_decided).count();
        let called = std::mem::take(&mut self.called).into_iter().map(|(caller, _)| caller);
        called.chain(self.waiting.drain(..came_before)).map(|caller| caller.caller).collect()
    }

    fn admits(&self, quantities: &[i64]) -> bool {
        self.places.iter().zip(quantities).all(|(place, quantity)| *quantity <= place.remaining())
    }

    fn advance(&mut self, quantities: &[i64]) {
        for (place, quantity) in self.places.iter_mut().zip(quantities) {
            place.advance(*quantity);
        }
    }

    /// The rows of a caller that is refused, if they follow from a last reply that is not older than the
    /// caller.
    fn refusal(&self, caller: &Waiting<C>) -> Option<Vec<Answer>> {
        if !caller.is_decided || !self.places.iter().all(Place::knows_waits) {
            return None;
        }
        let row = |(place, quantity): (&Place, &i64)| {
            let admits = *quantity <= place.remaining();
            place.answer(if admits { Verdict::Admitted } else { Verdict::Later(place.wait(*quantity)) })
        };
        Some(self.places.iter().zip(caller.caller.as_ref()).map(row).collect())
    }
}

impl Limit {
    /// The most units that can be taken at once.
    pub const fn most(&self) -> i64 {
        match *self {
            Self::Rated { capacity, .. } | Self::Counted(capacity) => capacity,
        }
    }
}
