//! Chains: several limiters that count as one, because the units come from one of them or from some together.
//!
//! A chain is a list of pools in order. The first pool that admits its quantity is taken, and no other. A
//! pool is a limiter, or several limiters that are joined to one: what fits is taken from the first of
//! them, the rest from the next. So a chain with the pools `a SPILL b ELSE c` takes from a and b together,
//! or else from c.
//!
//! A place that its holder renews comes before all pools, whatever their order, so that no caller holds two
//! places.
//!
//! # The wait of a refusal
//! A chain admits its call when the first of its pools does, so its wait is the shortest of their waits. For
//! a pool of one limiter that is the limiter's own wait. Limiters that are joined admit the call when the
//! units that fit them are enough together:
//!
//! ```text
//! the least t with room(1, t) + room(2, t) + ... >= quantity
//! ```
//!
//! Nothing is taken until then, so the room of each limiter only grows, and the wait of a call for a quantity
//! says when the limiter has room for it. Suppose that `missing` units are missing, and that the sum of
//! `share(i) - 1` over all limiters is at most `missing - 1`. Until at least one limiter has its share, they
//! have at most `missing - 1` more units, so it is too early. So the search continues at the first instant at
//! which one of them has its share, and ends when nothing is missing. The shares assume that the rooms grow
//! evenly; with them, a few rounds are enough. After many rounds, the search halves the rest of the time
//! again and again.

use crate::several::Join;
use crate::{Answer, Span, Verdict};

/// The number of rounds of the search for the end of a wait before it halves the rest of the time.
const ROUNDS: u32 = 32;

/// A limiter of a chain.
pub trait Pool {
    /// The errors of the limiter.
    type Error;

    /// How it is joined to the one before it.
    fn join(&self) -> Join;

    /// The quantity of the call; 1 for a place.
    fn quantity(&self) -> i64;

    /// Whether the caller holds a place already, which the call would renew.
    ///
    /// # Errors
    /// The errors of the limiter.
    fn is_held(&self) -> Result<bool, Self::Error>;

    /// The answer to a call for `quantity` after this time, if nothing is taken until then, with the numbers
    /// of the state at that instant.
    ///
    /// # Errors
    /// The errors of the limiter.
    fn peek(&self, after: Span, quantity: i64) -> Result<Answer, Self::Error>;
}

/// The decision of a chain for one of its limiters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// The limiter's own answer to its whole quantity, with the numbers of the state before the call.
    pub answer: Answer,
    /// The units that the call takes from it. `None` if the chain passes it over or does not ask it. A place
    /// that is renewed has 0.
    pub taken: Option<i64>,
    /// The growth of its room, if the wait was computed.
    growth: Growth,
}

/// The growth of the room of a limiter if nothing is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Growth {
    /// The units that fit now.
    room: i64,
    /// The largest quantity that can ever fit.
    most: i64,
    /// Units per 2^32 nanoseconds until then, rounded up.
    speed: u64,
}

impl Share {
    /// The answer of a limiter to its whole quantity, before the decision.
    pub const fn of(answer: Answer) -> Self {
        Self { answer, taken: None, growth: Growth { room: 0, most: 0, speed: 0 } }
    }
}

/// Decides a chain: writes the share of each of its limiters, and returns the verdict on the chain.
///
/// The limiters are all those of the chain. No more shares are written than there is room for.
///
/// Cost: an answer of each limiter if the chain admits the call. A refusal of limiters that are joined takes
/// some more, to find the end of the wait. No allocation.
///
/// # Errors
/// The errors of any limiter, also of one that would be passed over.
pub fn decide<P: Pool>(pools: &[P], shares: &mut [Share]) -> Result<Verdict, P::Error> {
    let mut held = None;
    for (at, (pool, share)) in pools.iter().zip(shares.iter_mut()).enumerate() {
        *share = Share::of(pool.peek(Span::ZERO, pool.quantity())?);
        if held.is_none() && pool.is_held()? {
            held = Some(at);
        }
    }
    if let Some(held) = held.and_then(|held| shares.get_mut(held)).filter(|share| !share.answer.limited()) {
        held.taken = Some(0);
        return Ok(Verdict::Admitted);
    }
    let mut verdict = Verdict::Never;
    let (mut pools, mut shares) = (pools, shares);
    while let Some(length) = pool_length(pools) {
        let (pool, shared);
        (pool, pools) = pools.split_at(length.min(pools.len()));
        (shared, shares) = shares.split_at_mut(length.min(shares.len()));
        let own = decide_pool(pool, shared)?;
        verdict = match (verdict, own) {
            (_, Verdict::Admitted | Verdict::Booked(_)) => return Ok(Verdict::Admitted),
            (Verdict::Later(one), Verdict::Later(other)) => Verdict::Later(one.min(other)),
            (Verdict::Never, own) => own,
            (verdict, _) => verdict,
        };
    }
    Ok(verdict)
}

/// The number of limiters in the first pool; `None` without any.
fn pool_length<P: Pool>(pools: &[P]) -> Option<usize> {
    let (_, rest) = pools.split_first()?;
    let joined = rest.iter().take_while(|pool| pool.join() == Join::Spill).count();
    joined.checked_add(1)
}

/// Decides a pool: one limiter, or several that are joined. If it is admitted, sets what is taken from each.
fn decide_pool<P: Pool>(pools: &[P], shares: &mut [Share]) -> Result<Verdict, P::Error> {
    let (Some(first), [share, others @ ..]) = (pools.first(), &mut *shares) else {
        return Ok(Verdict::Never);
    };
    let quantity = first.quantity();
    if others.is_empty() || quantity == 0 {
        // At least one of them is not in debt.
        let verdict =
            others.iter().fold(share.answer.verdict, |verdict, share| earlier(verdict, share.answer.verdict));
        if !verdict.is_limited() && quantity > 0 {
            share.taken = Some(quantity);
        }
        return Ok(verdict);
    }
    let room = shares.iter().fold(0_i64, |sum, share| sum.saturating_add(room(&share.answer)));
    if room < quantity {
        return wait_for(pools, shares, quantity);
    }
    let mut left = quantity;
    for share in shares {
        let part = room_within(&share.answer, left);
        if part > 0 {
            share.taken = Some(part);
        }
        left = left.saturating_sub(part);
    }
    Ok(Verdict::Admitted)
}

/// The verdict on a call that either of two pools may admit.
fn earlier(one: Verdict, other: Verdict) -> Verdict {
    match (one, other) {
        (Verdict::Later(one), Verdict::Later(other)) => Verdict::Later(one.min(other)),
        (Verdict::Never, verdict) | (verdict, Verdict::Never) => verdict,
        _ => Verdict::Admitted,
    }
}

/// The units that fit a limiter; none if it is in debt.
const fn room(answer: &Answer) -> i64 {
    if answer.remaining > 0 { answer.remaining } else { 0 }
}

fn room_within(answer: &Answer, most: i64) -> i64 {
    room(answer).min(most)
}

/// The verdict on limiters that are joined, which together lack room for the quantity: the time until they
/// have it.
fn wait_for<P: Pool>(pools: &[P], shares: &mut [Share], quantity: i64) -> Result<Verdict, P::Error> {
    // The largest room that they ever have together, and the time until they have it.
    let (mut most, mut full) = (0_i64, Span::ZERO);
    for (pool, share) in pools.iter().zip(&mut *shares) {
        let wait = share.grow(pool, quantity)?;
        (most, full) = (most.saturating_add(share.growth.most), full.max(wait));
    }
    if most < quantity {
        return Ok(Verdict::Never);
    }
    let mut early = Span::ZERO;
    for _ in 0..ROUNDS {
        early = first_share(pools, shares, quantity)?.clamp(early, full);
        if early == full || look(pools, shares, early, quantity) >= quantity {
            return Ok(Verdict::Later(early));
        }
    }
    // It is too early at `early`, and no longer at `late`.
    let (mut early, mut late) = (early.as_nanos(), full.as_nanos());
    while late.saturating_sub(early) > 1 {
        let middle = early.midpoint(late);
        let after = Span::from_nanos(middle).unwrap_or(full);
        // The known room may be that of a later instant.
        for share in shares.iter_mut() {
            share.growth.room = 0;
        }
        if look(pools, shares, after, quantity) < quantity { early = middle } else { late = middle }
    }
    Ok(Verdict::Later(Span::from_nanos(late).unwrap_or(full)))
}

/// Finds the units that fit each limiter after this time, and returns their sum.
fn look<P: Pool>(pools: &[P], shares: &mut [Share], after: Span, quantity: i64) -> i64 {
    let mut sum = 0_i64;
    for (pool, Share { growth, .. }) in pools.iter().zip(shares) {
        if growth.room < growth.most {
            // By then, UNTIL may have passed, or a period may be out of range: the call would be an error, so
            // no longer wait helps.
            growth.room =
                pool.peek(after, quantity).map_or(growth.most, |answer| room(&answer).min(growth.most));
        }
        sum = sum.saturating_add(growth.room);
    }
    sum
}

impl Share {
    /// Determines the growth of the limiter's room, and returns the time until the room is largest.
    fn grow<P: Pool>(&mut self, pool: &P, quantity: i64) -> Result<Span, P::Error> {
        let room = room_within(&self.answer, quantity);
        let most = self.answer.limit.min(quantity);
        let verdict = match self.answer.verdict {
            verdict if most == quantity => verdict,
            _ => pool.peek(Span::ZERO, most)?.verdict,
        };
        let (most, wait) = match verdict {
            Verdict::Never => (room, Span::ZERO),
            verdict => (most, verdict.wait().unwrap_or(Span::ZERO)),
        };
        let grows = u128::from(most.saturating_sub(room).unsigned_abs());
        let speed = (grows << 32).div_ceil(u128::from(wait.as_nanos().max(1)));
        self.growth = Growth { room, most, speed: u64::try_from(speed).unwrap_or(u64::MAX) };
        Ok(wait)
    }
}

/// The first instant at which one of the limiters has its share of the units that are missing.
fn first_share<P: Pool>(pools: &[P], shares: &[Share], quantity: i64) -> Result<Span, P::Error> {
    let growing = || {
        let all = pools.iter().zip(shares).map(|(pool, share)| (pool, share.growth));
        all.filter(|(_, growth)| growth.room < growth.most)
    };
    let (mut missing, mut speeds) = (quantity, 0_u128);
    for share in shares {
        missing = missing.saturating_sub(share.growth.room);
    }
    for (_, growth) in growing() {
        speeds = speeds.saturating_add(growth.speed.into());
    }
    let divided = u128::from(missing.saturating_sub(1).max(0).unsigned_abs());
    let mut first = Span::MAX;
    for (pool, Growth { room, most, speed }) in growing() {
        let part = divided.saturating_mul(speed.into()).checked_div(speeds).unwrap_or(0);
        let part = i64::try_from(part).unwrap_or(i64::MAX).saturating_add(1);
        let wanted = room.saturating_add(part).min(most);
        let wait = pool.peek(Span::ZERO, wanted)?.verdict.wait();
        first = first.min(wait.unwrap_or(Span::MAX));
    }
    Ok(first)
}
