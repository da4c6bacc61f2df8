//! Chains of limiters in a call for several: pools in order, joined by `ELSE` and `SPILL`.
//!
//! The decision is that of [`redis_cell_core::chain`]. A chain decides by the states before the call, and
//! returns the share that each of its limiters has to give; a limiter that is passed over keeps its state.

use core::cell::Cell;

use redis_cell_core::chain::{self, Pool, Share};
use redis_cell_core::fixed::Counter;
use redis_cell_core::several::{Join, Role, Row, combine_chain};
use redis_cell_core::{Answer, Error as CoreError, Instant, Span, Verdict};
use redis_cell_core::{hold, log};

use smallvec::SmallVec;

use super::holds::Seen;
use crate::error::Error;
use crate::ffi::{self, Access, Arg, Call, Handles, Key};
use crate::limiters::{Limiter, Pending, Target, Verb, WholeCall};
use crate::outcome::{FEW, Rows};

/// A limiter and its key.
pub struct Named<'c> {
    pub key: Arg<'c>,
    pub name: &'c [u8],
    /// How the limiter is joined to the one before it.
    pub join: Join,
    /// Whether the limiter belongs to a chain.
    pub is_pool: bool,
    pub shadow: bool,
    /// The `reset_after` of the call that took the units that a settlement gives back.
    pub reset_after: Option<Span>,
    pub limiter: Limiter<'c>,
}

impl Named<'_> {
    /// Whether a word precedes its kind, which is possible only outside of chains.
    fn has_prefix(&self) -> bool {
        self.shadow || self.reset_after.is_some()
    }
}

/// Checks the limiter that was read last, and joins it to the one before it.
///
/// # Errors
/// [`Error::SYNTAX`] for a limiter that cannot be in a chain, and the errors of limiters that `SPILL` joins.
pub fn join_last(limiters: &mut [Named], verb: Verb) -> Result<(), Error> {
    // A client waits for its first limiter only, which therefore cannot be in a chain.
    let is_first = verb == Verb::Wait && limiters.len() == 2;
    let [.., before, last] = limiters else { return Err(Error::SYNTAX) };
    if is_first || before.has_prefix() || last.has_prefix() {
        return Err(Error::SYNTAX);
    }
    if last.join == Join::Spill {
        if before.limiter.releases() || last.limiter.releases() {
            return Err(CoreError::SpiltLease.into());
        }
        if before.limiter.units() != last.limiter.units() {
            return Err(CoreError::Quantities.into());
        }
    }
    (before.is_pool, last.is_pool) = (true, true);
    Ok(())
}

/// The open keys of a chain. They are passed by reference, because they are large.
pub type Keys<'k, 'c> = SmallVec<[Key<'k, 'c>; FEW]>;

/// Opens the keys of these limiters.
///
/// # Errors
/// As [`Handles::open`].
pub fn open<'k, 'c>(
    call: &'k Call<'c>,
    handles: &'k Handles,
    limiters: &[Named<'c>],
    access: Access,
    keys: &mut Keys<'k, 'c>,
) -> Result<(), Error> {
    for named in limiters {
        keys.push(handles.open(call, named.key, access)?);
    }
    Ok(())
}

/// What a call with chains takes from each of its limiters.
#[derive(Default)]
pub struct Plan {
    /// The position of the first limiter that has a share.
    behind: usize,
    /// The shares of the limiters from that position on.
    shares: SmallVec<[Share; FEW]>,
    /// The position of the first limiter of each chain, and the verdict on it.
    verdicts: SmallVec<[(usize, Verdict); 1]>,
    /// The states of the fixed windows of the chain that was decided last.
    pub loaded: SmallVec<[Option<Loaded>; FEW]>,
}

/// A limiter of a chain, as an argument of the decision.
struct Asked<'k, 's, 'c> {
    named: &'k Named<'c>,
    at: Target<'k, 'c>,
    /// The key of `HOLD`, and the position of the limiter.
    seen: Option<(&'k Seen<'s, 's, 'c>, usize)>,
    /// The state of a fixed window, if it was read.
    counter: Cell<Option<Loaded>>,
}

/// The state of a fixed window, and the instant at which it is decided. It is kept because reading it takes
/// two lookups in the server, and a chain needs it several times.
pub type Loaded = (Option<Counter>, Instant);

impl Pool for Asked<'_, '_, '_> {
    type Error = Error;

    fn join(&self) -> Join {
        self.named.join
    }

    fn quantity(&self) -> i64 {
        self.named.limiter.units()
    }

    fn is_held(&self) -> Result<bool, Error> {
        self.named.limiter.is_held(&self.at)
    }

    fn peek(&self, after: Span, quantity: i64) -> Result<Answer, Error> {
        if let (Limiter::Fixed(window), None, false) = (&self.named.limiter, self.seen, ffi::is_ahead()) {
            let loaded = match self.counter.get() {
                Some(loaded) => loaded,
                None => window.seen(&self.at, Verb::Peek)?,
            };
            self.counter.set(Some(loaded));
            let (counter, now) = loaded;
            let now = now.checked_add(after).unwrap_or(Instant::MAX);
            return Ok(WholeCall { units: quantity, ..*window }.peek_on(counter, now, self.at.ahead)?);
        }
        let now = self.at.now.checked_add(after).unwrap_or(Instant::MAX);
        let (limiter, at) = (self.named.limiter.with_units(quantity), Target { now, ..self.at });
        match self.seen {
            Some((seen, index)) => seen.peek(index, &limiter, &at),
            None => limiter.peek(&at),
        }
    }
}

impl Plan {
    /// A plan for the limiters from this position on.
    pub fn behind(first: usize) -> Self {
        Self { behind: first, ..Self::default() }
    }

    /// Decides a chain, or a limiter outside of chains.
    ///
    /// # Errors
    /// The errors of any limiter.
    pub fn decide<'k, 'c>(
        &mut self,
        limiters: &'k [Named<'c>],
        targets: impl Iterator<Item = Target<'k, 'c>>,
        seen: Option<&'k Seen<'_, '_, 'c>>,
    ) -> Result<(), Error>
    where
        'c: 'k,
    {
        let first = self.shares.len();
        let mut pools = SmallVec::<[_; FEW]>::new(); // collected, they would be copied
        for (named, at) in limiters.iter().zip(targets) {
            let seen = seen.map(|seen| (seen, self.behind.saturating_add(self.shares.len())));
            pools.push(Asked { named, at, seen, counter: Cell::new(None) });
            self.shares.push(Share::of(NOTHING));
        }
        let shares = self.shares.get_mut(first..).unwrap_or_default();
        let verdict = chain::decide(&pools, shares)?;
        self.loaded.clear();
        self.loaded.extend(pools.iter().map(|pool| pool.counter.get()));
        if limiters.len() > 1 {
            self.verdicts.push((first, verdict));
        }
        Ok(())
    }

    /// Adds a limiter outside of chains that has been decided, with the units that it gives if it admits the
    /// call.
    pub fn add(&mut self, answer: Answer, units: i64) {
        let mut share = Share::of(answer);
        share.taken = Some(units).filter(|_| !answer.limited());
        self.shares.push(share);
    }

    /// Plans the settlement of a chain, or of a limiter outside of chains: the part of the used units that is
    /// charged to each limiter.
    ///
    /// # Errors
    /// The errors of any limiter.
    pub fn settle<'c>(
        &mut self,
        limiters: &[Named<'c>],
        targets: &[Target<'_, 'c>],
        seen: &Seen<'_, '_, 'c>,
    ) -> Result<(), Error> {
        let first = self.shares.len();
        let bears = if let [named] = limiters {
            vec![seen.bears(first, &named.limiter).then(|| named.limiter.units())]
        } else {
            settle_chain(first, limiters, targets, seen)?
        };
        self.shares.extend(bears.into_iter().map(|taken| {
            let mut share = Share::of(NOTHING);
            share.taken = taken;
            share
        }));
        if limiters.len() > 1 {
            self.verdicts.push((first, Verdict::Admitted));
        }
        Ok(())
    }

    /// Completes the rows of an admitted call, or of a settlement.
    pub fn complete_for(&self, verb: Verb, limiters: &[Named], rows: &mut Rows) {
        if verb != Verb::Settle {
            return self.complete(limiters, rows, false);
        }
        for ((named, row), at) in limiters.iter().zip(rows.iter_mut()).zip(0..) {
            if named.is_pool {
                row.role = Role::Pool;
            }
            row.answer.taken = Some(self.taken(at).unwrap_or(0));
        }
        for &(first, _) in &self.verdicts {
            let verdict = pools_from(first, limiters, rows).map(|(_, answer)| answer.verdict).reduce(sooner);
            add_chain(first, verdict.unwrap_or(Verdict::Admitted), limiters, rows);
        }
    }

    /// Whether a chain refuses the call.
    pub fn refuses(&self) -> bool {
        self.verdicts.iter().any(|(_, verdict)| verdict.is_limited())
    }

    /// The wait for the chain that was decided; `None` if it admits the call.
    pub fn wait(&self) -> Option<Span> {
        match self.verdicts.last()? {
            (_, Verdict::Later(wait)) => Some(*wait),
            (_, Verdict::Never) => Some(Span::MAX),
            _ => None,
        }
    }

    /// The units that are taken from the limiter at this position; `None` if it is passed over.
    pub fn taken(&self, at: usize) -> Option<i64> {
        self.shares.get(at).and_then(|share| share.taken)
    }

    /// The answer of the limiter at this position to its whole quantity, with the numbers of the state before
    /// the call.
    pub fn answer(&self, at: usize) -> Answer {
        self.shares.get(at).map_or(NOTHING, |share| share.answer)
    }

    /// Whether a limiter no longer admits its share.
    pub fn has_lost(&self, at: usize, pending: &Pending) -> bool {
        self.taken(at).is_some() && pending.answer().limited()
    }

    /// Completes the rows of a call: the answer of each limiter to its whole quantity, the units that were
    /// taken from it, and the rows of the chains.
    pub fn complete(&self, limiters: &[Named], rows: &mut Rows, is_refused: bool) {
        for ((named, row), at) in limiters.iter().zip(rows.iter_mut()).zip(0..) {
            if named.is_pool {
                row.role = Role::Pool;
                row.answer.verdict = self.answer(at).verdict;
            }
        }
        self.say_taken(rows, is_refused);
        for &(first, verdict) in &self.verdicts {
            add_chain(first, verdict, limiters, rows);
        }
    }

    /// Says in each limiter's row what was taken from it.
    pub fn say_taken(&self, rows: &mut Rows, is_refused: bool) {
        for (row, at) in rows.iter_mut().filter(|row| row.is_replied()).zip(0..) {
            row.answer.taken = Some(self.taken(at).filter(|_| !is_refused).unwrap_or(0));
        }
    }
}

/// The pools of the chain that begins at this position, each with the answer of its row.
fn pools_from<'a>(
    first: usize,
    limiters: &'a [Named],
    rows: &'a Rows,
) -> impl Iterator<Item = (Join, Answer)> + Clone {
    let pools = limiters.iter().zip(rows.iter()).skip(first).enumerate();
    let own = pools.take_while(|(at, (named, _))| *at == 0 || named.join != Join::None);
    own.map(|(_, (named, row))| (named.join, row.answer))
}

/// Adds the row of the chain that begins at this position.
fn add_chain(first: usize, verdict: Verdict, limiters: &[Named], rows: &mut Rows) {
    let answer = combine_chain(verdict, pools_from(first, limiters, rows));
    rows.push(Row { answer, role: Role::chain(first) });
}

/// The part of the used units that is charged to each limiter of a chain.
fn settle_chain<'c>(
    first: usize,
    limiters: &[Named<'c>],
    targets: &[Target<'_, 'c>],
    seen: &Seen<'_, '_, 'c>,
) -> Result<Vec<Option<i64>>, Error> {
    let mut bears: Vec<Option<i64>> = limiters.iter().map(|_| None).collect();
    let mut pools: Vec<Vec<Charged>> = Vec::new();
    let mut holds_any = false;
    for (own, (named, at)) in limiters.iter().zip(targets).enumerate() {
        let position = first.saturating_add(own);
        let held = seen.held_of(position);
        let has_place = named.limiter.releases() && named.limiter.is_held(at)?;
        holds_any |= held.is_some() || has_place;
        // Only the settlement of a chain needs the units that still fit in a limiter.
        let room = if named.limiter.releases() {
            0
        } else {
            seen.peek(position, &named.limiter.with_units(0), at)?.remaining.max(0)
        };
        let is_window = matches!(named.limiter, Limiter::Fixed(_));
        let room = if matches!(named.limiter, Limiter::Log(_)) { room.min(log::QUANTITY.max) } else { room };
        if named.join != Join::Spill {
            pools.push(Vec::new());
        }
        if let Some(pool) = pools.last_mut()
            && !named.limiter.releases()
        {
            pool.push(Charged { own, held, room, is_window, used: named.limiter.units() });
        }
    }
    if holds_any {
        pools.retain(|pool| pool.iter().any(|charged| charged.held.is_some()));
    } else {
        for pool in &mut pools {
            pool.retain(|charged| charged.is_window);
        }
        pools.retain(|pool| !pool.is_empty());
        let fits = |pool: &Vec<Charged>| {
            let room = pool.iter().fold(0_i64, |sum, charged| sum.saturating_add(charged.room));
            pool.first().is_some_and(|charged| charged.used <= room)
        };
        let chosen = pools.iter().position(fits).or_else(|| pools.len().checked_sub(1));
        pools = chosen.map(|at| pools.swap_remove(at)).into_iter().collect();
    }
    for pool in pools {
        let used = pool.first().map_or(0, |charged| charged.used);
        let shares = hold::spread(used, pool.iter().map(|charged| (charged.held, charged.room)));
        for (charged, share) in pool.iter().zip(shares) {
            if let Some(place) = bears.get_mut(charged.own) {
                *place = share;
            }
        }
    }
    Ok(bears)
}

/// A limiter of a chain that is settled.
struct Charged {
    /// Its position in the chain.
    own: usize,
    /// The part that the owner holds of it.
    held: Option<i64>,
    /// The units that fit in it now.
    room: i64,
    /// Whether it is a fixed window.
    is_window: bool,
    /// The units that were used.
    used: i64,
}

/// The verdict on a call for which one of two pools is enough.
fn sooner(one: Verdict, other: Verdict) -> Verdict {
    match (one, other) {
        (Verdict::Later(one), Verdict::Later(other)) => Verdict::Later(one.min(other)),
        (one, Verdict::Never) => one,
        (Verdict::Later(_) | Verdict::Never, other) => other,
        (one, _) => one,
    }
}

/// An answer that is not known yet.
const NOTHING: Answer =
    Answer { verdict: Verdict::Never, limit: 0, remaining: 0, reset_after: Span::ZERO, taken: None };
