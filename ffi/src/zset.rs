//! Sorted sets: reading their ends, scores, ranks and counts, and changing them entry by entry.
//!
//! The ends come from the module API. Ranks and counts do not: for these, the module has the server run
//! `ZRANGE` and `ZCOUNT`, which take logarithmic time and publish no events.

use core::ffi::{CStr, c_int};
use core::ptr::NonNull;

use redis_module::raw::{self, RedisModuleKey, RedisModuleString};

use super::announcement::{Announcement, Event};
use super::call::Arg;
use super::events;
use super::key::{Access, Ahead, Handles, Key, ValueType};
use super::needs::failed;
use super::rm_call::Reply;
use super::string::{self, SharedString, Strings};
use crate::error::Error;
use crate::faults;

/// The function of the module API that begins a range of scores at its lower or its upper end.
type Seek = unsafe extern "C" fn(*mut RedisModuleKey, f64, f64, c_int, c_int) -> c_int;

/// A score, if it is a whole number from 0 to 2^53 - 1. A double holds each of these exactly.
pub type Score = Option<u64>;

/// A change to a sorted set that has been made here, for replicas and for keyspace events.
#[derive(Clone, Copy, Debug)]
pub struct Changed<'a> {
    /// The keyspace event.
    pub event: Event,
    /// The command that makes the same change on replicas and in the AOF.
    pub command: &'static CStr,
    /// Its arguments after the key.
    pub words: &'a [&'a [u8]],
}

/// Entries to be removed from a sorted set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removed {
    /// This many entries with the lowest scores.
    Lowest(u64),
    /// `count` entries with the highest scores, not counting the `newer` entries above them.
    Below {
        /// How many are removed.
        count: u64,
        /// The number of entries that stay above them.
        newer: u64,
        /// All of these have scores above this one.
        score: u64,
    },
}

/// An end of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The first members come first.
    First,
    /// The last members come first.
    Last,
}

/// The expiry of a key that is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lives {
    /// It stays as it is.
    AsBefore,
    /// Until this Unix time in milliseconds.
    Until(i64),
    /// Without an expiry.
    Always,
}

impl<'c> Key<'_, 'c> {
    /// The number of members of the sorted set that the key holds.
    pub fn members(&self) -> u64 {
        if self.ptr.get().is_null() {
            return 0;
        }
        // SAFETY: `ptr` is not null, so it is the open key.
        let len = unsafe { (self.api.value_length)(self.ptr.get()) };
        u64::try_from(len).unwrap_or(u64::MAX)
    }

    /// The lowest score of the sorted set that the key holds; `None` when the key does not hold one.
    pub fn lowest(&self) -> Option<Score> {
        self.at_the_end(self.api.zset_first, f64::INFINITY, |_, score| score)
    }

    /// The result of `read` for the name and the score of the member with the highest score of the sorted set
    /// that the key holds; `None` when the key does not hold one.
    pub fn highest<T>(&self, read: impl FnOnce(&[u8], Score) -> T) -> Option<T> {
        self.at_the_end(self.api.zset_last, f64::INFINITY, |name, score| read(self.call.bytes(name), score))
    }

    /// The result of `read` for the member at an end of the range of scores up to `highest`.
    #[inline]
    fn at_the_end<T>(&self, seek: Seek, highest: f64, read: impl FnOnce(Arg, Score) -> T) -> Option<T> {
        const INCLUDED: c_int = 0;
        if self.ptr.get().is_null() {
            return None;
        }
        let (api, ctx) = (self.api, self.call.ctx.as_ptr());
        let mut score = f64::NAN;
        // SAFETY: `ptr` is not null, so it is the open key; for a value that is not a sorted set, the server
        // returns no member.
        let member = unsafe {
            seek(self.ptr.get(), f64::NEG_INFINITY, highest, INCLUDED, INCLUDED);
            let member = (api.zset_current)(self.ptr.get(), &raw mut score);
            (api.zset_stop)(self.ptr.get());
            member
        };
        let member = NonNull::new(member)?;
        let found = read(Arg::new(member), whole(score));
        // SAFETY: the member is ours to free, after its last use.
        unsafe { (api.free_string)(ctx, member.as_ptr()) };
        Some(found)
    }

    /// Reads the members with this score in the order of their bytes, or from the last one back, until `read`
    /// returns false.
    ///
    /// Cost: O(log n), and O(1) for each member.
    #[inline]
    pub fn at_score(&self, score: u64, side: Side, read: impl FnMut(&[u8]) -> bool) {
        let score = double(score);
        self.at_scores([score, score], side, read);
    }

    /// Reads all members with a score up to `highest`.
    ///
    /// Cost: O(log n), and O(1) for each member.
    pub fn up_to(&self, highest: u64, mut read: impl FnMut(&[u8])) {
        self.at_scores([f64::NEG_INFINITY, double(highest)], Side::First, |member| {
            read(member);
            true
        });
    }

    #[inline]
    fn at_scores(&self, [lowest, highest]: [f64; 2], side: Side, mut read: impl FnMut(&[u8]) -> bool) {
        const INCLUDED: c_int = 0;
        if self.ptr.get().is_null() {
            return;
        }
        let (api, ctx, ptr) = (self.api, self.call.ctx.as_ptr(), self.ptr.get());
        let (seek, step) = match side {
            Side::First => (api.zset_first, api.zset_next),
            Side::Last => (api.zset_last, api.zset_previous),
        };
        // SAFETY: `ptr` is not null, so it is the open key; for a value that is not a sorted set, the server
        // returns no member.
        unsafe { seek(ptr, lowest, highest, INCLUDED, INCLUDED) };
        // SAFETY: as above; a range that has ended has no member.
        while let Some(member) = NonNull::new(unsafe { (api.zset_current)(ptr, core::ptr::null_mut()) }) {
            let goes_on = read(self.call.bytes(Arg::new(member)));
            // SAFETY: the member is ours to free, after its last use; the range stays at its end.
            let has_moved = unsafe {
                (api.free_string)(ctx, member.as_ptr());
                goes_on && step(ptr) != 0
            };
            if !has_moved {
                break;
            }
        }
        // SAFETY: as above.
        unsafe { (api.zset_stop)(ptr) };
    }

    /// Sets the scores of members with known names, adds members, removes others, and sets the expiry.
    ///
    /// Replicas and the AOF get the same changes. The key of a set without members is deleted.
    ///
    /// Cost: O(log n) for each member.
    pub fn exchange(
        &mut self,
        known: &[(&'static SharedString, u64)],
        added: &[(u64, Vec<u8>)],
        removed: &[&[u8]],
        lives: Lives,
    ) -> Announcement<'c> {
        let (api, call, name) = (self.api, self.call, self.name);
        for (member, score) in known {
            self.zset_add(member.string(api), *score, 0);
        }
        for (score, member) in added {
            // SAFETY: `make` made the string, and nothing else frees it.
            unsafe {
                let member = string::make(api, member);
                self.zset_add(member, *score, 0);
                string::free(api, member);
            }
        }
        let old = Strings::new(api, removed);
        old.0.iter().for_each(|&member| self.zset_remove(member));
        let left = self.value_type() != ValueType::Empty;
        let lives = if left { lives } else { Lives::AsBefore };
        let expires_anew = match lives {
            Lives::AsBefore => false,
            Lives::Until(expire_at) if self.has_passed(expire_at) => return self.unlink(),
            Lives::Until(expire_at) => self.expire_in_place(faults::expiry(expire_at)),
            Lives::Always => self.expire_in_place(NO_EXPIRY),
        };
        let adds = !known.is_empty() || !added.is_empty();
        if adds && !call.counts_only() {
            let known = known.iter().map(|(member, score)| (score.to_string(), member.text.to_bytes()));
            let added = added.iter().map(|(score, member)| (score.to_string(), member.as_slice()));
            let all: Vec<_> = known.chain(added).collect();
            let words: Vec<&[u8]> =
                all.iter().flat_map(|(score, member)| [score.as_bytes(), member]).collect();
            call.replicate(c"ZADD", name, &words);
        }
        if !removed.is_empty() {
            call.propagate(c"ZREM", name, removed);
        }
        match lives {
            Lives::Until(expire_at) if expires_anew => {
                let expire_at = faults::expiry(expire_at);
                call.propagate(c"PEXPIREAT", name, &[itoa::Buffer::new().format(expire_at).as_bytes()]);
            }
            Lives::Always if expires_anew => call.propagate(c"PERSIST", name, &[]),
            _ => {}
        }
        let event = match (left, adds, removed.is_empty()) {
            (false, ..) => Some(Event::Del),
            (true, true, _) => Some(Event::Zadd),
            (true, false, false) => Some(Event::Zrem),
            (true, false, true) => None,
        };
        Announcement::new(name, event, matches!(lives, Lives::Until(_)) && expires_anew)
    }

    /// The score of a member with a known name.
    pub fn score_of(&self, name: &'static SharedString) -> Option<Score> {
        NonNull::new(name.string(self.api)).and_then(|name| self.score(Arg::new(name)))
    }

    /// The score of a member with these bytes.
    pub fn score_of_bytes(&self, member: &[u8]) -> Option<Score> {
        let name = Strings::new(self.api, &[member]);
        name.0.first().and_then(|&name| self.score(Arg::new(NonNull::new(name)?)))
    }

    /// The score of the member `id` of the sorted set that the key holds.
    pub fn score(&self, id: Arg) -> Option<Score> {
        if self.ptr.get().is_null() {
            return None;
        }
        let mut score = 0.0;
        // SAFETY: the key is open, the member is a string of the call; a value that is not a sorted set has
        // no members.
        let status = unsafe { (self.api.zset_score)(self.ptr.get(), id.ptr.as_ptr(), &raw mut score) };
        (status == 0).then(|| whole(score))
    }

    /// The score of the member with `rank`, counted from 0 for the lowest.
    ///
    /// Cost: O(log n), by `ZRANGE`.
    ///
    /// # Errors
    /// [`Error::Server`] when the server does not run `ZRANGE`.
    pub fn score_at(&self, rank: u64) -> Result<Score, Error> {
        let mut digits = itoa::Buffer::new();
        let rank = digits.format(rank).as_bytes();
        let reply = self.query(c"ZRANGE", &[rank, rank, b"WITHSCORES"])?;
        let Some(score) = reply.text(&[1]) else { return failed(c"ZRANGE") };
        Ok(score.parse().ok().and_then(whole))
    }

    /// How many members have a score above `score`.
    ///
    /// Cost: O(log n), by `ZCOUNT`.
    ///
    /// # Errors
    /// [`Error::Server`] when the server does not run `ZCOUNT`.
    pub fn count_above(&self, score: u64) -> Result<u64, Error> {
        let above = format!("({score}");
        let count = self.query(c"ZCOUNT", &[above.as_bytes(), b"+inf"])?.integer(&[]);
        count.and_then(|count| u64::try_from(count).ok()).map_or_else(|| failed(c"ZCOUNT"), Ok)
    }

    /// Has the server run a command that only reads the key.
    ///
    /// Outside a command the server's clock moves on, and the server may delete a key that it looks up.
    /// There, the key is closed during the command, and if it expires while other modules are loaded, all
    /// keys are lost.
    ///
    /// # Errors
    /// [`Error::Server`] when the server does not run the command, and [`Error::Busy`] if the key has
    /// expired, or is not opened again.
    fn query(&self, command: &'static CStr, words: &[&[u8]]) -> Result<Reply<'_>, Error> {
        if self.call.is_running {
            return self.call.query(command, self.name, words);
        }
        let (members, expired) = (self.members(), events::expired());
        // SAFETY: it is the open key, or null, which the server ignores. From here on it is null.
        unsafe { (self.api.close_key)(self.ptr.replace(core::ptr::null_mut())) };
        let reply = self.call.query(command, self.name, words);
        self.ptr.set(self.access.open(self.call, self.name));
        if events::expired() != expired {
            Access::close(self.call, self.ptr.replace(core::ptr::null_mut()));
            return Err(Handles::lose());
        }
        let is_in_use = self.access == Access::Write && self.ptr.get().is_null();
        if self.members() == members && !is_in_use { reply } else { Err(Error::Busy) }
    }

    /// Sets the score of the member `id`, which is added if it does not exist.
    ///
    /// Nothing is replicated before [`finish`](Self::finish).
    pub fn put(&self, id: Arg, score: u64) {
        self.settle_scores();
        self.zset_add(id.ptr.as_ptr(), score, 0);
    }

    /// Adds a member; returns false if there is one of that name already.
    ///
    /// Nothing is replicated before [`finish`](Self::finish).
    pub fn add(&self, name: &[u8], score: u64) -> bool {
        self.settle_scores();
        let name = Strings::new(self.api, &[name]);
        name.0.first().is_some_and(|&name| self.zset_add(name, score, raw::REDISMODULE_ZADD_NX) & ADDED != 0)
    }

    /// Removes the member `id`.
    ///
    /// Nothing is replicated before [`finish`](Self::finish).
    pub fn remove(&self, id: Arg) {
        self.settle_scores();
        self.zset_remove(id.ptr.as_ptr());
    }

    /// Moves back the scores that lie ahead, before anything else is written.
    #[inline]
    fn settle_scores(&self) {
        if let Some(ahead) = self.ahead.take() {
            self.move_back(ahead);
        }
    }

    /// Lets the next write move these scores back.
    pub fn will_move_back(&self, ahead: Ahead) {
        self.ahead.set(Some(ahead));
    }

    /// Moves scores back.
    #[cold]
    fn move_back(&self, Ahead { above, by }: Ahead) {
        loop {
            let moved = self.at_the_end(self.api.zset_last, f64::INFINITY, |member, score| {
                let score = score.filter(|&score| score > above)?.saturating_sub(by.get());
                self.put(member, score);
                let (mut digits, member) = (itoa::Buffer::new(), self.call.bytes(member));
                self.call.propagate(c"ZADD", self.name, &[b"XX", digits.format(score).as_bytes(), member]);
                (score <= above).then_some(())
            });
            // A score that was moved is not found again.
            if moved.flatten().is_none() {
                return;
            }
        }
    }

    /// Completes a change to the sorted set that the key holds: removes entries, lets the key expire at
    /// `expire_at`, a Unix time in milliseconds, and replicates the change.
    ///
    /// Cost: O(log n) for each entry that is removed.
    pub fn finish(&mut self, changed: Option<Changed>, removed: Removed, expire_at: i64) -> Announcement<'c> {
        if self.has_passed(expire_at) {
            return self.unlink();
        }
        let expire_at = faults::expiry(expire_at);
        self.settle_scores();
        // Not with the server's own command, which publishes its event at once.
        let (seek, count, score) = match removed {
            Removed::Lowest(count) => (self.api.zset_first, count, f64::INFINITY),
            Removed::Below { count, score, .. } => (self.api.zset_last, count, double(score)),
        };
        for _ in 0..count {
            self.at_the_end(seek, score, |member, _| self.zset_remove(member.ptr.as_ptr()));
        }
        let expires_anew = self.expire_in_place(expire_at);
        let (call, name) = (*self.call, self.name);
        if let Some(Changed { command, words, .. }) = changed {
            call.propagate(command, name, words);
        }
        let mut digits = [itoa::Buffer::new(), itoa::Buffer::new()];
        let [first, last] = &mut digits;
        let ranks: Option<[&[u8]; 2]> = match removed {
            Removed::Lowest(0) | Removed::Below { count: 0, .. } => None,
            Removed::Lowest(count) => Some([b"0", last.format(count.saturating_sub(1)).as_bytes()]),
            // Ranks below 0 count from the end, where -1 is the highest.
            Removed::Below { count, newer, .. } => {
                let highest = (-1_i64).saturating_sub_unsigned(newer);
                let lowest = 0_i64.saturating_sub_unsigned(newer).saturating_sub_unsigned(count);
                Some([first.format(lowest).as_bytes(), last.format(highest).as_bytes()])
            }
        };
        if let Some(ranks) = ranks {
            call.propagate(c"ZREMRANGEBYRANK", name, &ranks);
        }
        if expires_anew {
            call.propagate(c"PEXPIREAT", name, &[itoa::Buffer::new().format(expire_at).as_bytes()]);
        }
        let announcement = Announcement::new(name, changed.map(|changed| changed.event), expires_anew);
        if ranks.is_some() { announcement.after_removal() } else { announcement }
    }

    fn zset_remove(&self, member: *mut RedisModuleString) {
        let deleted: *mut c_int = core::ptr::null_mut();
        // SAFETY: the key is open, the member is a string; the server leaves alone what is not a sorted set
        // or not open for writing.
        unsafe { (self.api.zset_rem)(self.ptr.get(), member, deleted) };
    }

    /// Adds a member according to `flags`, and returns the flags of the result.
    fn zset_add(&self, member: *mut RedisModuleString, score: u64, flags: u32) -> u32 {
        let mut flags = c_int::try_from(flags).unwrap_or_default();
        // SAFETY: the key is open, the member is a string; the server leaves alone what is not a sorted set
        // or not open for writing.
        unsafe { (self.api.zset_add)(self.ptr.get(), double(score), member, &raw mut flags) };
        flags.cast_unsigned()
    }
}

/// The expiry of a key that does not expire.
const NO_EXPIRY: i64 = -1;

const ADDED: u32 = raw::REDISMODULE_ZADD_ADDED;

/// A score as the server keeps it.
#[allow(clippy::as_conversions, clippy::cast_precision_loss)] // below 2^53, or above every score
fn double(score: u64) -> f64 {
    score as f64
}

/// The score as a whole number.
#[allow(
    clippy::as_conversions,
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::float_cmp
)] // the comparison is the check
fn whole(score: f64) -> Score {
    const END: u64 = 1 << 53; // left out, because it may stand for 2^53 + 1
    let number = score as i64;
    // The conversion gives another number if the score is not whole, is not a number, or is out of range.
    u64::try_from(number).ok().filter(|&whole| whole < END && number as f64 == score)
}
