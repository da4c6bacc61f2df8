//! The parts of holds: a sorted set, whose members [`redis_cell_core::hold`] describes.

use std::borrow::Cow;
use std::collections::BTreeMap;

use redis_cell_core::Instant;
use redis_cell_core::hold::member::{self, Member};
use redis_cell_core::hold::{FOREIGN, IN_RECORD, Origin, Part};

use smallvec::SmallVec;

use crate::error::Error;
use crate::faults;
use crate::ffi::{self, Access, Announcement, Arg, Call, Handles, Key, Lives, SharedString, Side, ValueType};

static PARTS: SharedString = SharedString::new(c"parts");
static TOTALS: SharedString = SharedString::new(c"totals");
static UNTIL: SharedString = SharedString::new(c"until");

/// Members of the set; most owners have two.
type Members = SmallVec<[Member; 2]>;

/// The open key of holds.
pub struct Book<'k, 'c> {
    key: Key<'k, 'c>,
    parts: u64,
}

/// The parts of an owner that a call reads, before and after the call.
pub struct Owner<'n> {
    pub id: Cow<'n, [u8]>,
    /// The score of its record.
    score: u64,
    /// The parts in its record, at most [`IN_RECORD`], by the keys of the limiters.
    record: Vec<(Cow<'n, [u8]>, Slot)>,
    /// The other parts.
    further: BTreeMap<Cow<'n, [u8]>, Slot>,
    /// Whether the owner held anything before the call.
    pub is_known: bool,
    /// Whether units of a window have run out.
    pub has_run_out: bool,
}

/// A part before and after the call.
#[derive(Default)]
struct Slot {
    before: Option<Part>,
    after: Option<Part>,
    /// Whether the call names the limiter's key.
    is_named: bool,
}

/// The content of the ends of a limiter's key.
#[derive(Default)]
pub struct Ends {
    /// The owners of parts that have run out.
    pub ended: Vec<Vec<u8>>,
    /// The instant at which the next part runs out; now, if more parts have run out than the call brings
    /// back.
    pub next: Option<Instant>,
    /// Whether there are any parts.
    pub are_some: bool,
    /// Whether a part is left when the call has removed those that have run out and that of its owner.
    pub are_left: bool,
}

impl Ends {
    /// Adds the owner of a part that has run out, unless there are `most`. Returns whether it has.
    fn add(&mut self, id: &[u8], now: Instant, most: usize) -> bool {
        let has_room = self.ended.len() < most;
        if has_room {
            self.ended.push(id.to_vec());
        } else {
            (self.next, self.are_left) = (Some(now), true);
        }
        has_room
    }
}

/// The time until which the key has to live for the parts that a call adds.
#[derive(Clone, Copy, Default)]
pub struct Lasting {
    /// The latest millisecond at which units of one of them can still come back.
    pub until: i64,
    /// Whether units of one of them can come back at any time.
    pub always: bool,
}

impl Lasting {
    /// Counts a part of a limiter whose own key expires at the millisecond `expiry`.
    pub fn add(&mut self, part: &Part, expiry: Option<i64>) {
        let window = match part.origin {
            Origin::Window { end } => end.as_millis_ceil().cast_signed(),
            Origin::Rate { .. } => 0,
            Origin::Total { idles: true } => expiry.unwrap_or_default(),
            Origin::Total { idles: false } => {
                self.always = true;
                return;
            }
        };
        self.until = self.until.max(ffi::expiry_at(part.end)).max(window);
    }
}

impl<'n> Owner<'n> {
    fn slots(&self) -> impl Iterator<Item = &Slot> {
        self.record.iter().map(|(_, slot)| slot).chain(self.further.values())
    }

    fn slot(&mut self, key: &[u8]) -> Option<&mut Slot> {
        match self.record.iter_mut().find(|(own, _)| **own == *key) {
            Some((_, slot)) => Some(slot),
            None => self.further.get_mut(key),
        }
    }

    /// The part of the limiter `key`, which the call names.
    pub fn named(&mut self, key: &[u8]) -> Option<Part> {
        let slot = self.slot(key)?;
        slot.is_named = true;
        slot.after
    }

    /// Whether it holds something of the limiter `key` after the call.
    pub fn holds(&mut self, key: &[u8]) -> bool {
        self.slot(key).is_some_and(|slot| slot.after.is_some())
    }

    /// Whether the call has removed the part of the limiter `key`.
    pub fn has_removed(&mut self, key: &[u8]) -> bool {
        self.slot(key).is_some_and(|slot| slot.after.is_none())
    }

    /// How many of its parts are removed.
    pub fn removed(&self) -> u64 {
        self.slots().map(|slot| u64::from(slot.before.is_some() && slot.after.is_none())).sum()
    }

    /// Replaces the part of the limiter `key`.
    pub fn set(&mut self, key: &'n [u8], part: Part) {
        let after = Some(part);
        if let Some(slot) = self.slot(key) {
            slot.after = after;
        } else if self.record.len() < IN_RECORD {
            self.record.push((Cow::Borrowed(key), Slot { after, ..Slot::default() }));
        } else {
            self.further.insert(Cow::Borrowed(key), Slot { after, ..Slot::default() });
        }
    }

    /// Removes a part of the limiter `key`.
    pub fn remove(&mut self, key: &[u8]) {
        if let Some(slot) = self.slot(key) {
            slot.after = None;
        }
    }

    /// Lets the parts of limiters that the call does not name run out at `now`, and forgets those of rates.
    /// Returns whether there were any.
    pub fn end_unnamed(&mut self, now: Instant) -> bool {
        let mut are_some = false;
        let slots = self.record.iter_mut().map(|(_, slot)| slot).chain(self.further.values_mut());
        for slot in slots.filter(|slot| !slot.is_named) {
            if let Some(part) = slot.after.filter(|part| !part.has_ended(now)) {
                are_some = true;
                slot.after = Some(part.ended(now)).filter(|part| !part.is_of_rate());
            }
        }
        are_some
    }

    /// Removes a part that has run out, and with it the parts of rates in the record that have ended, which
    /// no call would find.
    pub fn remove_ended(&mut self, key: &[u8], now: Instant) {
        if faults::keeps_holds() {
            return;
        }
        let has_ended = |slot: &Slot| slot.after.is_some_and(|part| part.is_of_rate() && part.has_ended(now));
        for (_, slot) in self.record.iter_mut().filter(|(_, slot)| has_ended(slot)) {
            slot.after = None;
        }
        if let Some(part) = self.slot(key).and_then(|slot| slot.after.take()) {
            self.has_run_out |= !part.is_of_rate();
        }
    }

    /// The members of its record before the call, or after it.
    fn record(&self, part: impl Fn(&Slot) -> Option<Part> + Copy) -> Members {
        let parts = self.record.iter().filter_map(|(key, slot)| Some((&**key, part(slot)?)));
        let mut members = Members::new();
        let Some((key, first)) = parts.clone().next() else { return members };
        members.push((self.score, member::record(&self.id, parts.clone())));
        let windows = parts.filter(|(_, part)| !part.is_of_rate());
        members.extend(windows.map(|(key, part)| member::end(&self.id, key, &part)));
        if members.len() == 1 {
            members.push(member::end(&self.id, key, &first));
        }
        members
    }
}

impl From<Part> for Slot {
    /// A part that exists before the call.
    fn from(part: Part) -> Self {
        Self { before: Some(part), after: Some(part), is_named: false }
    }
}

impl<'k, 'c> Book<'k, 'c> {
    /// Opens the key `name`.
    ///
    /// # Errors
    /// [`Error::WrongType`] and [`FOREIGN`] when it holds something else, and [`Error::Busy`].
    pub fn open(
        call: &'k Call<'c>,
        handles: &'k Handles,
        name: Arg<'c>,
        access: Access,
    ) -> Result<Self, Error> {
        let key = handles.open(call, name, access)?;
        let parts = match key.value_type() {
            ValueType::Empty => 0,
            ValueType::ZSet => key.score_of(&PARTS).flatten().filter(|&parts| parts > 0).ok_or(FOREIGN)?,
            _ => return Err(Error::WrongType),
        };
        Ok(Self { key, parts })
    }

    /// The number of parts.
    pub const fn parts(&self) -> u64 {
        self.parts
    }

    /// The parts of `id` of the limiters `keys`, the other parts in its record, and at most `unnamed` further
    /// parts.
    ///
    /// # Errors
    /// [`FOREIGN`] for members that are no part.
    pub fn owner<'n, 'i>(
        &self,
        name: Cow<'i, [u8]>,
        keys: impl Iterator<Item = &'n [u8]>,
        unnamed: usize,
    ) -> Result<Owner<'i>, Error> {
        let (score, record, further) = (member::of_owner(&name), Vec::new(), BTreeMap::new());
        let mut owner = Owner { id: name, score, record, further, is_known: false, has_run_out: false };
        if self.parts == 0 {
            return Ok(owner);
        }
        let (id, slots) = (&*owner.id, &mut owner.record);
        let (mut further, mut has_further, mut is_broken) = (Vec::new(), false, false);
        self.key.at_score(score, Side::First, |member| {
            if let Some(record) = member::read_record(member, id) {
                is_broken |= record.is_err();
                let parts = record.unwrap_or_default().into_iter();
                slots.extend(parts.map(|(key, part)| (Cow::Owned(key.to_vec()), part.into())));
            } else if let Some(key) = member::read_more(member, id) {
                has_further = true;
                if further.len() == unnamed {
                    return false;
                }
                further.push(key.to_vec());
            }
            true
        });
        if is_broken {
            return Err(FOREIGN.into());
        }
        owner.is_known = has_further || !owner.record.is_empty();
        if has_further {
            keys.for_each(|key| self.find(&mut owner, key));
        }
        for key in further {
            self.find(&mut owner, &key);
            owner.slot(&key).ok_or(FOREIGN)?;
        }
        Ok(owner)
    }

    /// Looks for the owner's part of the limiter `key` outside of its record.
    pub fn find(&self, owner: &mut Owner<'_>, key: &[u8]) {
        if owner.slot(key).is_none()
            && let Some(part) = self.further(&owner.id, key)
        {
            owner.further.insert(key.to_vec().into(), part.into());
        }
    }

    /// A part of `id` that is not in its record.
    fn further(&self, id: &[u8], key: &[u8]) -> Option<Part> {
        let mut found = None;
        self.key.at_score(member::of_further(id, key), Side::First, |member| {
            found = member::read_further(member, id, key);
            found.is_none()
        });
        found
    }

    /// The content of the ends of the limiter `key`, with the owners of at most `most` parts that have run
    /// out, for a call of the owner `own`.
    ///
    /// # Errors
    /// [`FOREIGN`] for members that are no end of a part.
    pub fn ends(&self, key: &[u8], own: Option<&[u8]>, now: Instant, most: usize) -> Result<Ends, Error> {
        let (mut ends, mut is_broken) = (Ends::default(), false);
        if self.parts == 0 {
            return Ok(ends);
        }
        let score = member::of_key(key);
        // Parts that were taken before the clock was set back are behind all others.
        self.key.at_score(score, Side::Last, |member| match member::read_end(member) {
            Some(end) if end.key != key => true,
            Some(end) => {
                ends.are_some = true;
                end.is_ahead(now) && ends.add(end.id, now, most)
            }
            None => {
                is_broken = true;
                false
            }
        });
        if ends.are_some && ends.next.is_none() {
            self.key.at_score(score, Side::First, |member| match member::read_end(member) {
                Some(end) if end.key != key || end.is_ahead(now) => true,
                Some(end) if end.end <= now => ends.add(end.id, now, most),
                end => {
                    ends.next = ends.next.or(end.map(|end| end.end));
                    (ends.are_left, is_broken) = (end.is_none_or(|end| own != Some(end.id)), end.is_none());
                    !ends.are_left
                }
            });
        }
        if is_broken { Err(FOREIGN.into()) } else { Ok(ends) }
    }

    /// The instant at which the key expires.
    pub fn lives_until(&self) -> Option<Instant> {
        if self.parts == 0 { None } else { self.key.lives_until() }
    }

    /// Whether a total that is forgotten when it is idle has lived until `now` without a break, as far as the
    /// calls that named this key know.
    pub fn has_lived(&self, key: &[u8], now: Instant) -> bool {
        let until = self.key.score_of_bytes(&member::idle(key)).flatten();
        until.is_some_and(|until| now.as_nanos() < until.saturating_mul(1_000_000))
    }

    /// Writes the parts of these owners after the call, and the expiries of `idle` totals; `None` for a total
    /// without parts.
    pub fn write<'o>(
        &mut self,
        owners: impl Iterator<Item = &'o Owner<'o>>,
        idle: &[(&[u8], Option<u64>)],
        lasting: Lasting,
    ) -> Option<Announcement<'c>> {
        let (mut added, mut removed, mut parts) = (Members::new(), Members::new(), self.parts);
        let mut exchange = |before: Members, after: Members| {
            if before.is_empty() && added.is_empty() {
                added = after;
                return;
            }
            added.extend(after.iter().filter(|member| !before.contains(member)).cloned());
            removed.extend(before.into_iter().filter(|member| !after.contains(member)));
        };
        let (mut totals_before, mut totals_after) = (0_u64, 0_u64);
        for owner in owners {
            for Slot { before, after, .. } in owner.slots() {
                let count = |part: &Option<Part>| u64::from(part.is_some());
                parts = parts.saturating_add(count(after)).saturating_sub(count(before));
                let count = |part: &Option<Part>| u64::from(part.is_some_and(|part| part.is_permanent()));
                totals_before = totals_before.saturating_add(count(before));
                totals_after = totals_after.saturating_add(count(after));
            }
            if owner.record.iter().any(|(_, slot)| slot.before != slot.after) {
                exchange(owner.record(|slot| slot.before), owner.record(|slot| slot.after));
            }
            for (key, Slot { before, after, .. }) in &owner.further {
                if before != after {
                    let members = |part: &Option<Part>| {
                        part.iter().flat_map(|part| member::further(&owner.id, key, part)).collect()
                    };
                    exchange(members(before), members(after));
                }
            }
        }
        for (key, expiry) in idle {
            let member = member::idle(key);
            match expiry {
                Some(expiry) => added.push((*expiry, member)),
                None => removed.push((0, member)),
            }
        }
        let (kind, expiry) = self.key.type_and_expiry();
        let expiry = expiry.map(|at| at.as_millis_ceil().cast_signed());
        let is_new = kind == ValueType::Empty;
        let is_endless = !is_new && expiry.is_none();
        let stored = if is_endless { self.key.score_of(&UNTIL).flatten() } else { None };
        let until =
            lasting.until.max(expiry.unwrap_or_default()).max(stored.unwrap_or_default().cast_signed());
        let counts_totals = is_endless || totals_before != totals_after;
        let held = if counts_totals { self.key.score_of(&TOTALS).flatten() } else { None };
        let totals = held.unwrap_or_default().saturating_sub(totals_before).saturating_add(totals_after);
        let mut known = SmallVec::<[_; 2]>::new();
        let mut left = Vec::new();
        let mut gone = SmallVec::<[&[u8]; 2]>::new();
        let lives = if lasting.always || is_endless && totals > 0 {
            if until > stored.unwrap_or_default().cast_signed() {
                known.push((&UNTIL, until.unsigned_abs()));
            }
            if expiry.is_some() { Lives::Always } else { Lives::AsBefore }
        } else {
            gone.extend(stored.map(|_| member::UNTIL));
            match expiry {
                Some(expiry) if expiry == until => Lives::AsBefore,
                // A user may have run PERSIST. While only totals were held, no expiry was stored either.
                None if is_endless && stored.is_none() && (held.is_none() || until == 0) => Lives::AsBefore,
                _ => Lives::Until(until),
            }
        };
        if totals_before != totals_after {
            if totals > 0 {
                known.push((&TOTALS, totals));
            } else {
                gone.extend(held.map(|_| member::TOTALS));
            }
        }
        if parts == 0 {
            known.clear();
            gone.extend(Some(member::PARTS).filter(|_| !is_new));
        } else if parts != self.parts {
            known.push((&PARTS, parts));
        }
        if parts == 0
            && self.key.members() > u64::try_from(gone.len().saturating_add(removed.len())).unwrap_or(0)
        {
            // Where a key was a total once, and parts of another limiter have taken the place of its parts.
            self.key.up_to(member::HIGHEST_NUMBER, |member| {
                left.extend(member.starts_with(b"idle ").then(|| member.to_vec()));
            });
            left.retain(|member| removed.iter().all(|(_, gone)| gone != member));
        }
        gone.extend(removed.iter().map(|(_, member)| &**member));
        if !left.is_empty() {
            gone.extend(left.iter().map(Vec::as_slice));
        }
        if added.is_empty() && gone.is_empty() && known.is_empty() && lives == Lives::AsBefore
            || parts == 0 && is_new
        {
            return None;
        }
        Some(self.key.exchange(&known, &added, &gone, lives))
    }
}
