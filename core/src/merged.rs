//! Merged calls: calls of several callers for one key that are sent as a single call.
//!
//! While a call for a key is on its way, further callers of the same process line up in a *row*. Then one
//! call, `... SATURATE` for the sum of their quantities, is sent for them. What it takes is granted in the
//! order of the row, and each caller gets the answer that its own call would have got at its place. The
//! process holds no unit at any time. [`tail`] says which callers can go as one call, and [`Grants`] computes
//! the answers.
//!
//! # Which callers
//! One after the other, all or nothing, callers for `q1, q2, ...` leave units behind if none of the rest is
//! small enough for them. A call with SATURATE leaves none. So the two take the same, whatever is available,
//! exactly if the row is *complete*:
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
//! Those whose reply determines the reply after fewer units: GCRA, funnels and buckets, where each unit adds
//! one emission interval to `reset_after`, and fixed windows, which end when they end. The replies of sliding
//! windows and logs depend on more than a reply says, and each unit of a total can move the expiry of its
//! key, so their calls are sent one by one.
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

/// The reply to the call for a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The units taken.
    pub taken: i64,
    /// The units still available.
    pub remaining: i64,
    /// The wait for one unit, if none was taken.
    pub retry_after: Option<Span>,
    /// The time until the limiter is fully replenished.
    pub reset_after: Span,
}

/// Returns how many callers at the end of a row can be sent as one call: at least one, unless the row is
/// empty.
///
/// `quantities` are those of the row, from its end to its beginning; `None` is a caller that goes alone, such
/// as one that takes nothing or more than the limit.
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
pub struct Grants {
    limit: Limit,
    reply: Reply,
    /// The units that are taken, and not granted yet.
    left: i64,
}

impl Grants {
    /// Begins with the first caller of the row.
    pub const fn new(limit: Limit, reply: Reply) -> Self {
        Self { limit, reply, left: reply.taken }
    }

    /// Returns the answer of the next caller, which wants `quantity` units: from 1 to the limit.
    pub fn next(&mut self, quantity: i64) -> Answer {
        let admitted = quantity <= self.left;
        if admitted {
            self.left = self.left.saturating_sub(quantity);
        }
        let reset_after = self.reset_after();
        let verdict = match self.limit {
            _ if admitted => Verdict::Admitted,
            Limit::Counted(_) => Verdict::Later(self.reply.retry_after.unwrap_or(reset_after)),
            Limit::Rated { rate, capacity } => {
                let time = |units| rate.time(units).unwrap_or(Span::MAX);
                let wait = match self.reply.retry_after {
                    // Clients that wait may come before: `reset_after` does not count their units.
                    Some(wait) => wait.checked_add(time(quantity).saturating_sub(time(1))),
                    None => Some(reset_after.saturating_sub(time(capacity).saturating_sub(time(quantity)))),
                };
                // A caller that does not fit waits for a nanosecond at least.
                Verdict::Later(wait.unwrap_or(Span::MAX).max(Span::NANOSECOND))
            }
        };
        let remaining = self.left.saturating_add(self.reply.remaining);
        Answer { verdict, limit: self.limit.most(), remaining, reset_after, taken: None }
    }

    /// The time until the limiter is fully replenished, at the present place in the row.
    fn reset_after(&self) -> Span {
        let after = self.reply.reset_after;
        match self.limit {
            // If no window was open, the first caller has opened it.
            Limit::Counted(_) => after,
            Limit::Rated { rate, .. } => after.saturating_sub(rate.time(self.left).unwrap_or(Span::MAX)),
        }
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
