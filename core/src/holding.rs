//! Leased units: a client holds units of a limit, and spends them without a call for each unit.
//!
//! A client of a busy key takes units from the server in *batches* (`CL.THROTTLE ... SATURATE`), spends them
//! by itself, and gives back or drops the units left when the *hold* of the batch is over. It remembers when
//! it was refused, and does not call before the wait is over. [`Holding`] is the state of one client for one
//! key. It has no clock and does no I/O: the caller passes the instants of a clock that never goes back,
//! makes the calls, and reports the answers.
//!
//! # The bound
//! Take a limit of `L = max_burst + 1` units at the rate `r`, `N` clients, a hold `h`, and at most `b` units
//! held by each client. In any stretch of time `W`, all clients together spend at most
//!
//! ```text
//! L + W * r + min(h * r, N * b)
//! ```
//!
//! units, where `N` counts the clients that hold units when the stretch begins. Write `x` for the level of
//! the server's limiter: the server grants units while `x` stays at or below `L`, and `x` leaks at `r` or not
//! at all.
//!
//! - `N * b`: During the stretch, the server hands out at most `L - x + W * r + R` units, where `x` is the
//!   level at the beginning of the stretch, and `R` is the number of units that come back to the server. A
//!   unit that is spent was handed out in the stretch, or held at its beginning (at most `N * b`); units that
//!   came back were not spent.
//! - `h * r`: A unit that is spent in the stretch was handed out in it or less than `h` before it, because
//!   the hold starts when the call is *sent*. During that longer time the server hands out at most
//!   `L - x + (W + h) * r + R` units. Of the units that come back, those handed out during that time were not
//!   spent. The older ones are at most `x`, by the rule of [`give_back`](Holding::give_back): of a batch, no
//!   more comes back than would not yet have leaked, had the batch been alone. The level leaks at `r` in
//!   total, and each of these allowances shrinks at `r`, so their sum never exceeds the level.
//!
//! A fixed window of `L` units has no rate. A batch ends with the window from which it was taken, which ends
//! later than the call was *sent* plus the time that the answer says is left of it. So every unit is spent in
//! its own window, and all clients together spend at most `L` units in each.
//!
//! The same holds for the windows of `CL.WINDOW`, by [`window::Limit::lasts`](crate::window::Limit::lasts).
//! Any period has at most `L + previous - weight` units, as with direct calls: those of the present window
//! that are spent were handed out in it, and those of the window before were handed out and spent in that.
//!
//! Units whose answer was lost, and units of a client that crashed, were handed out and are not spent. Units
//! that the server takes back more than [`Terms::reply`] after the client sent them can be spent a second
//! time, once.
//!
//! Source: leases of capacity as in Google's Doorman; the bound is our own.

use crate::{Instant, Rate, Span};

/// How many units a client may hold, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// The rate of the limit, or `None` for a window, whose units do not leak while it lasts.
    pub rate: Option<Rate>,
    /// The size of the smallest batch, at least 1.
    pub least: i64,
    /// The most units that the client holds: in its batches, requested, and on their way back.
    pub most: i64,
    /// How long a batch stays valid, from the moment at which the call for it was sent.
    pub hold: Span,
    /// How long the client waits for an answer. A later one is lost.
    pub reply: Span,
}

/// Units from one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Batch {
    taken: i64,
    left: i64,
    sent: Instant,
    /// The first instant at which the units cannot be spent: when the hold is over, or the window ends.
    ends: Instant,
    /// When the answer came, if the units are from a window that is certain to outlast a call.
    answered: Option<Instant>,
}

/// Units that were spent and may come back: see [`Holding::part`].
#[derive(Clone, Copy, Debug)]
pub struct Part {
    batch: Batch,
    /// The calls for units before they were spent.
    calls: u64,
}

/// The result of a request to spend a quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spend {
    /// It was spent.
    Spent,
    /// The server has refused, and it is too early for another call; with the wait until the next one.
    Refused(Span),
    /// The client holds too few units, and needs the answer of a call.
    Short,
}

/// The units that a client holds of one limit.
///
/// Cost: every function is O(1) and allocates nothing.
///
/// # Example
/// ```
/// # use redis_cell_core::holding::{Holding, Spend, Terms};
/// # use redis_cell_core::{Instant, Rate, Span, Unit};
/// let second = Span::from_units(1, Unit::Seconds).unwrap();
/// let rate = Rate::new(1000, 1, Unit::Seconds)?;
/// let terms = Terms { rate: Some(rate), least: 10, most: 100, hold: second, reply: second };
/// let now = Instant::from_nanos(0).unwrap();
///
/// let mut holding = Holding::default();
/// assert_eq!(holding.spend(&terms, now, 1), Spend::Short);
/// assert_eq!(holding.ask(&terms, now, 1), Some(10));
/// holding.answered(&terms, now, 10, None, None);
/// assert_eq!(holding.spend(&terms, now, 1), Spend::Spent);
/// # Ok::<(), redis_cell_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Holding {
    /// The batch that is being spent.
    current: Option<Batch>,
    /// The next batch, which was fetched before the current one is used up.
    next: Option<Batch>,
    /// The units that were requested, and the instant of the request, until its answer.
    asked: Option<Batch>,
    /// A batch whose hold is over, and of which a part may be given back.
    over: Option<Batch>,
    /// The units that are on their way back to the server.
    returning: i64,
    /// The size of the next batch, [`Terms::least`] when 0.
    size: i64,
    /// The earliest instant of the next call.
    not_before: Instant,
    /// The time between two calls, while there are fewer units than clients want.
    pause: Span,
    /// The calls for units so far.
    calls: u64,
    /// The units that may come back, beside those that the last call found and requested: at most
    /// [`Terms::most`] in all.
    spare: i64,
}

impl Holding {
    /// Spends `quantity` of the held units, all or nothing.
    ///
    /// After [`Spend::Short`] the caller waits for the answer of the call that is on its way, or makes the
    /// one that [`ask`](Self::ask) allows. A quantity above [`Terms::most`] never fits: the caller requests
    /// it from the server directly.
    #[inline]
    pub fn spend(&mut self, terms: &Terms, now: Instant, quantity: i64) -> Spend {
        if let Some(batch) = &mut self.current
            && batch.left >= quantity
            && now < batch.ends
        {
            batch.left = batch.left.saturating_sub(quantity);
            return Spend::Spent;
        }
        self.spend_across(terms, now, quantity)
    }

    /// [`spend`](Self::spend), where the current batch alone does not suffice.
    fn spend_across(&mut self, terms: &Terms, now: Instant, quantity: i64) -> Spend {
        self.expire(terms, now);
        if self.held() >= quantity {
            let mut wanted = quantity;
            for batch in [&mut self.current, &mut self.next].into_iter().flatten() {
                let spent = wanted.min(batch.left);
                batch.left = batch.left.saturating_sub(spent);
                wanted = wanted.saturating_sub(spent);
            }
            self.advance(terms, now);
            return Spend::Spent;
        }
        match self.not_before.since(now) {
            Span::ZERO => Spend::Short,
            wait if self.asked.is_none() => Spend::Refused(wait),
            _ => Spend::Short,
        }
    }

    /// What [`spend`](Self::spend) would spend now, for [`unspend`](Self::unspend): a batch with the earliest
    /// end of its units, and as old as the oldest. `None` if nothing is held.
    pub fn part(&mut self, terms: &Terms, now: Instant, quantity: i64) -> Option<Part> {
        self.expire(terms, now);
        let first = self.current?;
        let ends = self.next.map_or(first.ends, |next| next.ends.min(first.ends));
        Some(Part { batch: Batch { taken: quantity, left: quantity, ends, ..first }, calls: self.calls })
    }

    /// Takes units back that were spent for a caller that has left before it could use them. Units are lost
    /// if they have ended since, if the client may not hold them in addition to the units requested since, or
    /// if they were spent before the last two calls for units.
    pub fn unspend(&mut self, terms: &Terms, now: Instant, Part { batch: part, calls }: Part) {
        self.expire(terms, now);
        let asked = self.asked.map_or(0, |asked| asked.taken);
        let mut left = part.left.min(self.room(terms).saturating_sub(asked));
        // A call counts the units spent before it as used, and requests others in their place, which may be
        // spent by now. So only as many units may come back as could have been held in addition then.
        if calls != self.calls {
            left = left.min(if calls.checked_add(1) == Some(self.calls) { self.spare } else { 0 });
        }
        if left < 1 || part.ends <= now {
            return;
        }
        if calls != self.calls {
            self.spare = self.spare.saturating_sub(left);
        }
        self.current = Some(match self.current {
            None => Batch { left, ..part },
            // Beside a younger batch, which lasts longer.
            Some(batch) if batch.ends > part.ends && self.next.is_none() && self.asked.is_none() => {
                self.next = Some(batch);
                Batch { left, ..part }
            }
            // Spent as one, as by `merge`.
            Some(Batch { taken, left: others, ends, .. }) => {
                Batch { taken, left: others.saturating_add(left), ends: ends.min(part.ends), ..part }
            }
        });
    }

    /// How many units to request from the server now, if a call is due: for a caller that wants `wanted`
    /// units and does not have them, or for no caller yet (0), when the current batch is half used up and
    /// there is no other.
    ///
    /// `Some` means that the call is made at `now`: [`answered`](Self::answered) or [`lost`](Self::lost) must
    /// follow. There is one call at a time.
    #[inline]
    pub fn ask(&mut self, terms: &Terms, now: Instant, wanted: i64) -> Option<i64> {
        // Nearly every call ends here.
        if wanted == 0 && !self.is_half_used() {
            return None;
        }
        self.expire(terms, now);
        let half_used = self.is_half_used();
        let short = self.held() < wanted;
        if self.asked.is_some() || now < self.not_before || !(half_used || short) {
            return None;
        }
        self.merge();
        let size = self.size(terms).max(wanted.saturating_sub(self.held())).min(self.room(terms));
        if size < 1 {
            return None;
        }
        let ends = now.checked_add(terms.hold).unwrap_or(Instant::MAX);
        self.asked = Some(Batch { taken: size, left: size, sent: now, ends, answered: None });
        self.calls = self.calls.saturating_add(1);
        self.spare = self.room(terms).saturating_sub(size);
        Some(size)
    }

    /// The answer of the call: `taken` units, the server's wait where it refused, and for a window the time
    /// for which it `lasts` at least. For a fixed window, this is `reset_after` less one unit of time, as it
    /// is rounded up; for a sliding one, see [`lasts`](crate::window::Limit::lasts). The units end with their
    /// window, and can go back even if the call has opened it.
    ///
    /// Call [`lost`](Self::lost) instead when more than [`Terms::reply`] has passed since the call.
    pub fn answered(
        &mut self,
        terms: &Terms,
        now: Instant,
        taken: i64,
        retry_after: Option<Span>,
        lasts: Option<Span>,
    ) {
        let Some(asked) = self.asked.take() else { return };
        let taken = taken.clamp(0, asked.taken);
        // A call that gets less than half shows that other clients also need units. Without pauses, each of
        // many clients would make a call for every single unit. The rate of calls rises by addition and falls
        // by division, so that all clients converge to the same rate, as flows of TCP do.
        self.pause = if taken > asked.taken / 2 {
            let shorter = with_one_more_per(terms.hold, self.pause);
            if shorter < SHORTEST_PAUSE { Span::ZERO } else { shorter }
        } else {
            doubled(self.pause).max(SHORTEST_PAUSE).min(terms.hold.max(LONGEST_PAUSE))
        };
        let wait = retry_after.unwrap_or_default().max(spread(self.pause, now));
        self.not_before = now.checked_add(wait).unwrap_or(now);
        if taken > 0 {
            let on_its_way = now.since(asked.sent).checked_add(terms.reply).unwrap_or(Span::MAX);
            let lasts = lasts.filter(|_| terms.rate.is_none());
            let answered = lasts.is_some_and(|lasts| lasts > on_its_way).then_some(now);
            let window = lasts.and_then(|lasts| asked.sent.checked_add(lasts));
            let ends = window.map_or(asked.ends, |window| window.min(asked.ends));
            let batch = Some(Batch { taken, left: taken, ends, answered, ..asked });
            *(if self.current.is_none() { &mut self.current } else { &mut self.next }) = batch;
        }
        self.expire(terms, now);
    }

    /// The call got no answer within [`Terms::reply`], or an error. Units that the server may have granted
    /// are not spent. The client pauses as after a call that got no units.
    pub fn lost(&mut self, terms: &Terms, now: Instant) {
        self.answered(terms, now, 0, None, None);
    }

    /// The units to give back now, and the longest time since they were taken, for `AGO`.
    ///
    /// A batch whose hold is over gives back, for a limit with a rate, the units that would not have leaked
    /// by the time at which the server receives the call, if the batch were alone; for a fixed window, all
    /// units. `Some` means that the call is made at `now`: [`returned`](Self::returned) must follow, whatever
    /// its answer, and before that no other batch goes back.
    ///
    /// The call for a batch of a fixed window may have opened the window, and an age that is too long would
    /// be older than the window. So the age begins with the answer. That is too short by the time from the
    /// call to its answer, and matches a window that has opened since only if the window of the batch ended
    /// within that time and [`Terms::reply`]. If that is possible, the longer age is used.
    pub fn give_back(&mut self, terms: &Terms, now: Instant) -> Option<(i64, Span)> {
        self.expire(terms, now);
        let batch = self.over.take_if(|_| self.returning == 0)?;
        let longest = || now.since(batch.sent).checked_add(terms.reply).unwrap_or(Span::MAX);
        let age = batch.answered.map_or_else(longest, |answered| now.since(answered));
        let most = match &terms.rate {
            Some(rate) => rate.units(rate.time(batch.taken).unwrap_or_default().saturating_sub(age)),
            None => batch.left,
        };
        self.returning = batch.left.min(most);
        (self.returning > 0).then_some((self.returning, age))
    }

    /// Nothing is on its way back any more.
    pub fn returned(&mut self) {
        self.returning = 0;
    }

    /// Ends all batches, so that [`give_back`](Self::give_back) gives back units of the youngest one that has
    /// any. Those of an older one are lost until they leak, or until their window ends.
    pub fn end(&mut self, terms: &Terms, now: Instant) {
        self.expire(terms, now);
        // The younger batch has the larger allowance.
        for batch in [self.current.take(), self.next.take()].into_iter().flatten() {
            if batch.left > 0 {
                self.over = Some(batch);
            }
        }
        self.expire(terms, now);
    }

    /// The time until the first batch ends, if anything is held.
    pub fn ends_in(&self, now: Instant) -> Option<Span> {
        let batches = [self.current, self.next];
        batches.iter().flatten().map(|batch| batch.ends.since(now)).min()
    }

    /// Whether a call for units is on its way.
    pub fn is_asking(&self) -> bool {
        self.asked.is_some()
    }

    /// The units that can be spent, if no hold ends before.
    pub fn held(&self) -> i64 {
        [self.current, self.next].iter().flatten().fold(0, |sum, batch| sum.saturating_add(batch.left))
    }

    /// Whether there are no units, no call to wait for, and no pause to remember.
    ///
    /// A pause is remembered for its own length after its end. Otherwise the client would begin with the
    /// shortest one again.
    pub fn is_idle(&self, now: Instant) -> bool {
        self.held() == 0
            && self.asked.is_none()
            && self.over.is_none()
            && self.returning == 0
            && now >= self.not_before
            && now.since(self.not_before) >= self.pause
    }

    /// Makes room for one more batch, by spending two as one.
    fn merge(&mut self) {
        let (Some(older), Some(younger)) = (self.current, self.next) else { return };
        // It has the age of the older one, the earlier end, and the smaller allowance for units that come
        // back, so none of these becomes larger.
        let left = older.left.saturating_add(younger.left);
        self.current =
            Some(Batch { left, taken: younger.taken, ends: older.ends.min(younger.ends), ..older });
        self.next = None;
    }

    /// The units that may be held or requested, beside those held and on their way back.
    fn room(&self, terms: &Terms) -> i64 {
        let back = self.over.map_or(0, |batch| batch.left).saturating_add(self.returning);
        terms.most.saturating_sub(self.held()).saturating_sub(back)
    }

    /// Whether half of the only batch is used up.
    fn is_half_used(&self) -> bool {
        self.next.is_none() && self.current.is_some_and(|batch| batch.left <= batch.taken / 2)
    }

    /// The size of the next batch.
    fn size(&self, terms: &Terms) -> i64 {
        self.size.max(terms.least).min(terms.most)
    }

    /// Sets aside the batches whose hold is over, and forgets those whose window has ended.
    fn expire(&mut self, terms: &Terms, now: Instant) {
        for slot in [&mut self.current, &mut self.next] {
            if let Some(batch) = slot.take_if(|batch| now >= batch.ends)
                && batch.left > 0
            {
                if batch.ends.since(batch.sent) >= terms.hold {
                    self.over = Some(batch);
                }
                // The batch was too large for the traffic.
                if batch.left > batch.taken / 2 {
                    self.size /= 2;
                }
            }
        }
        self.advance(terms, now);
    }

    /// Moves on to the next batch when the current one is used up.
    fn advance(&mut self, terms: &Terms, now: Instant) {
        if let Some(batch) = self.current.take_if(|batch| batch.left == 0) {
            // A full batch was used up in less than a quarter of its hold: the traffic needs larger ones.
            let quarter = Span::from_nanos(terms.hold.as_nanos() / 4).unwrap_or_default();
            if batch.taken >= self.size(terms) && now.since(batch.sent) < quarter {
                self.size = self.size(terms).saturating_mul(2).min(terms.most);
            }
        }
        if self.current.is_none() {
            self.current = self.next.take();
        }
    }
}

/// The pause after the first call that gets few units: several round trips.
const SHORTEST_PAUSE: Span = Span::from_nanos(10_000_000).unwrap();

/// The longest pause: a second, or a hold if that is longer.
const LONGEST_PAUSE: Span = Span::from_nanos(1_000_000_000).unwrap();

/// The time between events if there is one more of them in each `hold`.
fn with_one_more_per(hold: Span, between: Span) -> Span {
    let (hold, between) = (u128::from(hold.as_nanos()), u128::from(between.as_nanos()));
    let nanos = hold.saturating_mul(between).checked_div(hold.saturating_add(between)).unwrap_or_default();
    u64::try_from(nanos).ok().and_then(Span::from_nanos).unwrap_or_default()
}

/// Between half the time and one and a half times as much, depending on the digits of the clock. Clients with
/// equal pauses would call in the same order each time, and the first one would get everything.
fn spread(time: Span, now: Instant) -> Span {
    let share = u128::from(now.as_nanos() % 1024).saturating_add(512);
    let nanos = u128::from(time.as_nanos()).saturating_mul(share) / 1024;
    u64::try_from(nanos).ok().and_then(Span::from_nanos).unwrap_or(Span::MAX)
}

fn doubled(span: Span) -> Span {
    span.checked_add(span).unwrap_or(Span::MAX)
}
