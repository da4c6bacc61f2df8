//! A sorted set, seen as the instants that its scores are.
//!
//! Its ends come from the module API. Ranks and counts do not: for those the server runs its own `ZRANGE` and `ZCOUNT`,
//! which take logarithmic time. Most calls need neither, because a set without expired entries, or without others, is
//! told by its ends.

use core::ffi::c_int;

use redis_cell_core::timeline::{self, FOREIGN, Timeline};
use redis_cell_core::{Error, Instant};

use super::key::{Key, Kind};
use super::native::failed;
use super::{Arg, Call};

/// The sorted set that an open key holds.
pub struct Scores<'k, 'c> {
    key: &'k Key<'c>,
    len: u64,
    /// The first and the last, when there are any.
    ends: Option<(Instant, Instant)>,
}

impl<'k, 'c> Scores<'k, 'c> {
    /// The sorted set of `key`, empty when there is no such key.
    ///
    /// # Errors
    /// [`Error::WrongType`] and [`Error::Foreign`] when the key holds something else.
    pub fn load(key: &'k Key<'c>, now: Instant) -> Result<Self, Error> {
        let state = match key.kind() {
            Kind::Empty => return Ok(Self { key, len: 0, ends: None }),
            Kind::ZSet => {
                let ends = (end(key, End::First)?, end(key, End::Last)?);
                // SAFETY: the key is open, on a sorted set.
                let len = unsafe { (key.call.api.value_length)(key.ptr) };
                Self { key, len: u64::try_from(len).unwrap_or(u64::MAX), ends: Some(ends) }
            }
            _ => return Err(Error::WrongType),
        };
        timeline::check(&state, now, key.expiry())?;
        Ok(state)
    }

    /// The instant that is the score of `member`.
    ///
    /// # Errors
    /// [`Error::Foreign`] when the score is no instant.
    pub fn of(&self, member: Arg) -> Result<Option<Instant>, Error> {
        if self.ends.is_none() {
            return Ok(None);
        }
        let mut score = 0.0;
        // SAFETY: the key is open, on a sorted set; the member is a string of the call.
        let found =
            unsafe { (self.key.call.api.zset_score)(self.key.ptr, member.ptr.as_ptr(), &raw mut score) } == 0;
        if found { instant(score).map(Some) } else { Ok(None) }
    }
}

impl Timeline for Scores<'_, '_> {
    fn len(&self) -> u64 {
        self.len
    }

    fn at(&self, rank: u64) -> Result<Option<Instant>, Error> {
        match self.ends {
            Some((first, _)) if rank == 0 => Ok(Some(first)),
            Some((_, last)) if rank == self.len.saturating_sub(1) => Ok(Some(last)),
            Some(_) if rank < self.len => {
                let mut digits = itoa::Buffer::new();
                let rank = digits.format(rank).as_bytes();
                let Key { call, name, .. } = self.key;
                let reply = call.query(c"ZRANGE", *name, &[rank, rank, b"WITHSCORES"])?;
                let score = reply.text(1).ok_or_else(|| failed(c"ZRANGE"))?;
                instant(score.parse().unwrap_or(f64::NAN)).map(Some)
            }
            _ => Ok(None),
        }
    }

    fn later_than(&self, instant: Instant) -> Result<u64, Error> {
        match self.ends {
            Some((first, _)) if first > instant => Ok(self.len),
            Some((_, last)) if last > instant => {
                // Scores are whole microseconds: one is later than an instant if it is than that rounded down.
                let above = format!("({}", instant.as_micros());
                let Key { call, name, .. } = self.key;
                let count = call.query(c"ZCOUNT", *name, &[above.as_bytes(), b"+inf"])?.integer();
                count.and_then(|count| u64::try_from(count).ok()).ok_or_else(|| failed(c"ZCOUNT"))
            }
            _ => Ok(0),
        }
    }
}

/// An end of a sorted set.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    First,
    Last,
}

/// The instant at an end of the sorted set that `key` holds.
fn end(key: &Key, end: End) -> Result<Instant, Error> {
    const INCLUDED: c_int = 0;
    let Key { call: Call { api, ctx, .. }, ptr, .. } = key;
    let seek = if end == End::First { api.zset_first } else { api.zset_last };
    let mut score = f64::NAN;
    // SAFETY: the key is open, on a sorted set; the member that stands there is ours to free.
    unsafe {
        seek(*ptr, f64::NEG_INFINITY, f64::INFINITY, INCLUDED, INCLUDED);
        let member = (api.zset_current)(*ptr, &raw mut score);
        if !member.is_null() {
            (api.free_string)(ctx.as_ptr(), member);
        }
        (api.zset_stop)(*ptr);
    }
    instant(score)
}

/// The instant that a score is, in microseconds since the epoch.
fn instant(score: f64) -> Result<Instant, Error> {
    // 2^53, up to which a double holds every whole number.
    if !(0.0..=9_007_199_254_740_992.0).contains(&score) || score.fract() != 0.0 {
        return Err(FOREIGN);
    }
    // SAFETY: a whole number from 0 to 2^53, as just checked.
    let micros = unsafe { score.to_int_unchecked::<u64>() };
    Instant::from_micros(micros).ok_or(FOREIGN)
}
