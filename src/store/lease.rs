//! The leases: a sorted set with a member for each holder, named by the caller, whose score is the end of its
//! lease.

use redis_cell_core::lease::{Edit, Freed, Kept, Lease, Places, score_of};
use redis_cell_core::{Change, Instant};

use super::timeline::{DAY, Owner, Scores};
use super::{Save, change};
use crate::error::Error;
use crate::ffi::{self, Announcement, Arg, Call, Changed, Event, Key, Removed, Write};

/// The change to the lease of one holder.
pub struct Holder<'a, C> {
    /// The call, one of whose arguments is the holder's name.
    pub call: Call<'a>,
    /// The holder's name.
    pub id: Arg<'a>,
    /// The change to its lease.
    pub change: C,
}

/// Decides a call of the holder `id` that may write, and carries out the decision.
///
/// # Errors
/// The errors of [`Scores::load`], of `decide` and of [`super::carry_out`].
pub fn update<'a, C, T>(
    call: &Call<'a>,
    key: Arg<'a>,
    id: Arg<'a>,
    lease: Option<&Lease>,
    decide: impl FnOnce(&Places<Scores>, Instant) -> Result<(T, Change<C>), Error>,
) -> Result<T, Error>
where
    Holder<'a, C>: Save,
{
    change(call, key, |key, now| {
        let ends = Scores::load(key, leases(lease), now)?;
        let (answer, change) = decide(&Places { ends: &ends, own: ends.of(id)? }, now)?;
        Ok((answer, change.map(|change| Holder { call: *call, id, change })))
    })
}

/// The leases for a call that requests `lease`, or none.
pub fn leases(lease: Option<&Lease>) -> Owner {
    Owner::Leases { lease: lease.map_or(DAY, Lease::span) }
}

impl Save for Holder<'_, Kept> {
    const WRITE: Write = Write::SortedSet;
    const DELETE: Write = Write::Unlink;

    fn save<'c>(&self, key: &mut Key<'_, 'c>) -> Announcement<'c> {
        let Kept { end, pruned, until } = self.change;
        let id = self.call.bytes(self.id);
        let end = score_of(id, end).as_micros();
        let mut digits = itoa::Buffer::new();
        let score = digits.format(end).as_bytes();
        key.put(self.id, end);
        let words: &[&[u8]] = &[score, id];
        let changed = Changed { event: Event::Zadd, command: c"ZADD", words };
        key.finish(Some(changed), Removed::Lowest(pruned), ffi::expiry_at(until))
    }
}

impl Save for Holder<'_, Freed> {
    const WRITE: Write = Write::SortedSet;
    const DELETE: Write = Write::Unlink;

    fn save<'c>(&self, key: &mut Key<'_, 'c>) -> Announcement<'c> {
        key.remove(self.id);
        let words: &[&[u8]] = &[self.call.bytes(self.id)];
        let changed = Changed { event: Event::Zrem, command: c"ZREM", words };
        key.finish(Some(changed), Removed::Lowest(0), ffi::expiry_at(self.change.until))
    }
}

impl Save for Holder<'_, Edit> {
    const WRITE: Write = Write::SortedSet;
    const DELETE: Write = Write::Unlink;

    fn save<'c>(&self, key: &mut Key<'_, 'c>) -> Announcement<'c> {
        let Self { call, id, change } = *self;
        match change {
            Edit::Hold(change) => Holder { call, id, change }.save(key),
            Edit::Free(change) => Holder { call, id, change }.save(key),
        }
    }
}
