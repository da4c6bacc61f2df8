//! Places held by name: the limiter of `CL.ACQUIRE`, `CL.RENEW` and `CL.RELEASE`.

use redis_cell_core::lease::{self, Edit, Lease, Limit, Places};
use redis_cell_core::several::Grammar;
use redis_cell_core::timeline::tick;
use redis_cell_core::{Answer, Decision, Taken, Unit};

use super::arguments::kind;
use super::kind::{Arguments, Kind, Target, Verb};
use crate::error::Error;
use crate::ffi::{Arg, Argument, Call, Type};
use crate::store::lease::{Holder, leases};
use crate::store::timeline::Scores;

/// The number of places.
pub const PLACES: Argument = Argument::new(c"limit", Type::Integer, c"Holders allowed at once, at least 1.");

/// The holder of a lease.
pub const ID: Argument = Argument::new(c"id", Type::String, c"Name of the holder.");

/// The length of a lease.
pub const LEASE: Argument =
    Argument::new(c"lease", Type::Integer, c"Time until the lease ends, in units of time, at least 1.");

/// A set of places and a holder: `LEASE limit lease id`.
#[derive(Clone, Copy)]
pub struct LeaseCall<'c> {
    pub limit: Limit,
    /// `None` for a settlement that gives the place back.
    pub lease: Option<Lease>,
    pub id: Arg<'c>,
}

impl<'c> LeaseCall<'c> {
    /// The lease of a call that takes or checks, which always has one.
    fn lease(&self) -> Result<&Lease, Error> {
        self.lease.as_ref().ok_or(Error::SYNTAX)
    }

    #[inline]
    fn with_places<T>(
        &self,
        at: &Target<'_, 'c>,
        decide: impl FnOnce(&Places<Scores>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let ends = Scores::load(at.key, leases(self.lease.as_ref()), at.now)?;
        decide(&Places { ends: &ends, own: ends.of(self.id)? })
    }
}

impl<'c> Kind<'c> for LeaseCall<'c> {
    const GRAMMAR: Grammar = lease::GRAMMAR;
    const DOCUMENTED: Argument = kind(c"LEASE", c"lease", c"As CL.ACQUIRE.", &[PLACES, LEASE, ID]);

    type Change = Edit;
    type Stored = Holder<'c, Edit>;

    fn parse(arguments: &Arguments<'c>, verb: Verb, unit: Unit) -> Result<Self, Error> {
        let (limit, id) = arguments.split_last()?;
        let [limit, lease] = limit.words()?;
        let lease = match verb {
            Verb::Settle => Lease::parse_settlement(lease, unit)?,
            Verb::Take | Verb::Wait | Verb::Peek => Some(Lease::parse(lease, unit)?),
        };
        Ok(Self { limit: Limit::parse(limit)?, lease, id })
    }

    #[inline(always)]
    fn take(&self, at: &Target<'_, 'c>) -> Result<Decision<Edit>, Error> {
        let lease = self.lease()?;
        let decision = self.with_places(at, |places| match at.ahead {
            0 => lease::acquire(places, &self.limit, at.now, lease),
            ahead => lease::acquire_behind(places, &self.limit, at.now, lease, ahead),
        })?;
        Ok(decision.map(Edit::Hold))
    }

    const RELEASES: bool = true;

    fn units(&self) -> i64 {
        1
    }

    fn with_units(&self, _: i64) -> Self {
        *self
    }

    fn is_held(&self, at: &Target<'_, 'c>) -> Result<bool, Error> {
        let now = tick(at.now)?;
        self.with_places(at, |places| Ok(places.holds(now)))
    }

    fn cost(&self) -> Result<u64, Error> {
        Ok(1)
    }

    fn peek(&self, at: &Target<'_, 'c>) -> Result<Answer, Error> {
        let lease = self.lease()?;
        self.with_places(at, |places| {
            let seen = lease::peek(places, &self.limit, at.now, lease)?;
            if at.ahead == 0 {
                return Ok(seen);
            }
            let own = lease::acquire_behind(places, &self.limit, at.now, lease, at.ahead)?.answer;
            let ahead = i64::try_from(at.ahead).unwrap_or(i64::MAX);
            Ok(Answer {
                verdict: own.verdict,
                remaining: seen.remaining.saturating_sub(ahead).max(0),
                ..seen
            })
        })
    }

    /// Renews the lease, or gives the place back. It does not matter when the place was taken.
    fn settle(&self, at: &Target<'_, 'c>, _: Option<&Taken>) -> Result<Decision<Edit>, Error> {
        let lease = self.lease.as_ref();
        self.with_places(at, |places| lease::settle(places, &self.limit, at.now, lease))
    }

    fn give_back(&self, at: &Target<'_, 'c>) -> Result<Decision<Edit>, Error> {
        self.with_places(at, |places| lease::settle(places, &self.limit, at.now, None))
    }

    #[inline]
    fn stored(&self, change: Edit, call: &Call<'c>) -> Holder<'c, Edit> {
        Holder { call: *call, id: self.id, change }
    }
}
