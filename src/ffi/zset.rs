//! A sorted set, seen as the instants that its scores are, and changed entry by entry.
//!
//! Its ends come from the module API. Ranks and counts do not: for those the server runs its own `ZRANGE` and `ZCOUNT`,
//! which take logarithmic time. Most calls need neither, because a set without expired entries, or without others, is
//! told by its ends.

use core::ffi::{CStr, c_int};

use redis_cell_core::timeline::{self, FOREIGN, Timeline};
use redis_cell_core::{Error, Instant};
use redis_module::raw::{self, RedisModuleString};

use super::key::{Key, Kind};
use super::native::{Strings, failed};
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
                // SAFETY: the key is open, on a sorted set.
                let len = unsafe { (key.call.api.value_length)(key.ptr) };
                let first = end(key, End::First)?;
                let last = if len == 1 { first } else { end(key, End::Last)? };
                Self { key, len: u64::try_from(len).unwrap_or(u64::MAX), ends: Some((first, last)) }
            }
            _ => return Err(Error::WrongType),
        };
        timeline::check(&state, now, || key.expiry())?;
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

impl Key<'_> {
    /// Gives the member `id` of the sorted set that the key holds the score `at`, whether it is there or not.
    ///
    /// Nobody is told before [`finish`](Self::finish).
    pub fn put(&self, id: Arg, at: Instant) {
        self.zset_add(id.ptr.as_ptr(), at, 0);
    }

    /// Adds a member of our own naming with the score `at`; false when there is one of that name.
    ///
    /// Nobody is told before [`finish`](Self::finish).
    pub fn add(&self, name: &[u8], at: Instant) -> bool {
        let name = Strings::new(self.call, &[name]);
        name.0.first().is_some_and(|&name| self.zset_add(name, at, raw::REDISMODULE_ZADD_NX) & ADDED != 0)
    }

    /// Removes the member `id`.
    ///
    /// Nobody is told before [`finish`](Self::finish).
    pub fn remove(&self, id: Arg) {
        let deleted: *mut c_int = core::ptr::null_mut();
        // SAFETY: the key is open; what is no sorted set, or not open for writing, the server leaves alone.
        unsafe { (self.call.api.zset_rem)(self.ptr, id.ptr.as_ptr(), deleted) };
    }

    /// Ends a change to the sorted set that the key holds: removes the `pruned` earliest entries, and lets it live until
    /// `until`. Whoever watches is told; replicas and the AOF get `command` with `words`, and the rest.
    ///
    /// # Errors
    /// [`Error::Server`] when the server has renamed one of its own commands.
    pub fn finish(
        self,
        command: &'static CStr,
        words: &[&[u8]],
        pruned: u64,
        until: Instant,
    ) -> Result<(), Error> {
        let until = until.as_millis_ceil().cast_signed();
        #[cfg(feature = "faults")]
        let until = crate::faults::expiry(until);
        let event = if command == c"ZREM" { c"zrem" } else { c"zadd" };
        self.announce(raw::REDISMODULE_NOTIFY_ZSET, event);
        let in_place = self.can_expire_in_place();
        let expires_anew = self.expire_in_place(until);
        let (call, name) = self.close_modified();
        call.propagate(command, name, words);
        if let Some(last) = pruned.checked_sub(1) {
            let mut digits = itoa::Buffer::new();
            let words: &[&[u8]] = &[b"0", digits.format(last).as_bytes()];
            call.query(c"ZREMRANGEBYRANK", name, words)?;
            call.propagate(c"ZREMRANGEBYRANK", name, words);
        }
        let mut digits = itoa::Buffer::new();
        let words: &[&[u8]] = &[digits.format(until).as_bytes()];
        if !in_place {
            call.query(c"PEXPIREAT", name, words)?;
        }
        if expires_anew {
            call.propagate(c"PEXPIREAT", name, words);
        }
        Ok(())
    }

    /// Adds a member as `flags` say, and returns what has become of it.
    fn zset_add(&self, member: *mut RedisModuleString, at: Instant, flags: u32) -> u32 {
        let mut flags = c_int::try_from(flags).unwrap_or_default();
        // SAFETY: the key is open, the member is a string; what is no sorted set, or not open for writing, the server
        // leaves alone.
        unsafe { (self.call.api.zset_add)(self.ptr, score(at), member, &raw mut flags) };
        flags.cast_unsigned()
    }
}

const ADDED: u32 = raw::REDISMODULE_ZADD_ADDED;

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

/// The score of an instant, in microseconds since the epoch.
#[allow(clippy::as_conversions, clippy::cast_precision_loss)] // the core keeps instants below 2^53 us (timeline::LAST)
fn score(instant: Instant) -> f64 {
    instant.as_micros() as f64
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
