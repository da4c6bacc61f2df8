//! The sliding-window log: a sorted set with a member for each unit, `<score>-<k>`, where k counts the
//! members with the same score.

use redis_cell_core::log::{Edit, Entries};

use super::Save;
use crate::ffi::{self, Announcement, Changed, Event, Key, Removed, Write};

impl Save for Entries {
    const WRITE: Write = Write::SortedSet;
    const DELETE: Write = Write::Unlink;

    fn save<'c>(&self, key: &mut Key<'_, 'c>) -> Announcement<'c> {
        let at = self.at.as_micros();
        let mut digits = itoa::Buffer::new();
        let score = digits.format(at).as_bytes();
        let mut members = Vec::new();
        // A name may exist already if a user has removed or added entries with this score. One of the next
        // names is free, because no more names than members can exist.
        let end = self.there.saturating_add(self.count).saturating_add(key.members());
        for k in self.there..end {
            if self.count == u64::try_from(members.len()).unwrap_or(u64::MAX) {
                break;
            }
            let member = [score, b"-", itoa::Buffer::new().format(k).as_bytes()].concat();
            if key.add(&member, at) {
                members.push(member);
            }
        }
        let mut words: Vec<&[u8]> = vec![b"NX"];
        words.extend(members.iter().flat_map(|member| [score, member]));
        let changed = Changed { event: Event::Zadd, command: c"ZADD", words: &words };
        key.finish(Some(changed), Removed::Lowest(self.pruned), ffi::expiry_at(self.until))
    }
}

impl Save for Edit {
    const WRITE: Write = Write::SortedSet;
    const DELETE: Write = Write::Unlink;

    fn save<'c>(&self, key: &mut Key<'_, 'c>) -> Announcement<'c> {
        match *self {
            Self::Add(entries) => entries.save(key),
            Self::Remove { count, newer, then, until } => key.finish(
                None,
                Removed::Below { count, newer, score: then.as_micros() },
                ffi::expiry_at(until),
            ),
        }
    }
}
