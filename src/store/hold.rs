//! The parts of holds: a sorted set, whose members [`redis_cell_core::hold`] describes.

use std::borrow::Cow;

use redis_cell_core::Instant;
use redis_cell_core::hold::member::{self, Member};
use redis_cell_core::hold::{FOREIGN, IN_RECORD, Origin, Part};

use smallvec::SmallVec;

use crate::error::Error;
use crate::faults;
use crate::ffi::{self, Access, Announcement, Arg, Call, Handles, Key, Kind, Lives, SharedString, Side};

static PARTS: SharedString = SharedString::new(c"parts");
static UNTIL: SharedString = SharedString::new(c"until");

/// Members of the set; most owners have two.
type Members = SmallVec<[Member; 2]>;

/// The open key of holds.
pub struct Book<'k, 'c> {
    key: Key<'k, 'c>,
    parts: u64,
}

/// What an owner holds, as far as a call asks for it, and what it will hold.
pub struct Owner<'n> {
    pub id: Cow<'n, [u8]>,
    slots: Vec<Slot<'n>>,
    /// Whether units of a window have run out.
    pub has_run_out: bool,
}

/// A part before and after the call.
struct Slot<'n> {
    key: Cow<'n, [u8]>,
    before: Option<Part>,
    after: Option<Part>,
    /// Whether it is not in the record.
    is_further: bool,
}

/// What the ends of a limiter's key say.
#[derive(Default)]
pub struct Ends {
    /// The owners of parts that have run out.
    pub ended: Vec<Vec<u8>>,
    /// The instant at which the next part runs out.
    pub next: Option<Instant>,
    /// Whether there are any parts.
    pub are_some: bool,
}

/// Until when the key has to live because of the parts that a call adds.
#[derive(Clone, Copy, Default)]
pub struct Lasting {
    /// The latest millisecond at which one of them can still come back.
    pub until: i64,
    /// Whether one of them can come back at any time.
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
    /// What it holds of the limiter `key`.
    pub fn part(&self, key: &[u8]) -> Option<Part> {
        self.slots.iter().find(|slot| *slot.key == *key)?.after
    }

    /// How many of its parts are removed.
    pub fn removed(&self) -> u64 {
        self.slots.iter().map(|slot| u64::from(slot.before.is_some() && slot.after.is_none())).sum()
    }

    /// Its parts, by the keys of the limiters.
    pub fn parts_mut(&mut self) -> impl Iterator<Item = (&[u8], &mut Option<Part>)> {
        self.slots.iter_mut().map(|Slot { key, after, .. }| (&**key, after))
    }

    /// Replaces what it holds of the limiter `key`.
    pub fn set(&mut self, key: &'n [u8], part: Part) {
        let after = Some(part);
        if let Some(slot) = self.slots.iter_mut().find(|slot| *slot.key == *key) {
            slot.after = after;
        } else {
            let is_further = self.slots.iter().filter(|slot| !slot.is_further).count() >= IN_RECORD;
            self.slots.push(Slot { key: Cow::Borrowed(key), before: None, after, is_further });
        }
    }

    /// Removes a part that has run out, and with it those of rates in the record that have ended, for which
    /// nobody looks.
    pub fn remove_ended(&mut self, key: &[u8], now: Instant) {
        if faults::keeps_holds() {
            return;
        }
        for slot in &mut self.slots {
            let is_own = *slot.key == *key;
            let goes = |part: &Part| is_own || part.is_of_rate() && part.has_ended(now);
            if (is_own || !slot.is_further) && slot.after.as_ref().is_some_and(goes) {
                self.has_run_out |= slot.after.is_some_and(|part| !part.is_of_rate());
                slot.after = None;
            }
        }
    }

    /// The members of its record before the call, or after it.
    fn record(&self, part: impl Fn(&Slot) -> Option<Part> + Copy) -> Members {
        let in_record = self.slots.iter().filter(|slot| !slot.is_further);
        let parts = in_record.filter_map(|slot| Some((&*slot.key, part(slot)?)));
        let mut members = Members::new();
        let Some((key, first)) = parts.clone().next() else { return members };
        members.push(member::record(&self.id, parts.clone()));
        let windows = parts.filter(|(_, part)| !part.is_of_rate());
        members.extend(windows.map(|(key, part)| member::end(&self.id, key, &part)));
        if members.len() == 1 {
            members.push(member::end(&self.id, key, &first));
        }
        members
    }
}

impl Slot<'_> {
    /// A part that is there before the call, outside of the record.
    fn further(key: &[u8], part: Part) -> Self {
        Self { key: Cow::Owned(key.to_vec()), before: Some(part), after: Some(part), is_further: true }
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
        let parts = match key.kind() {
            Kind::Empty => 0,
            Kind::ZSet => key.score_of(&PARTS).flatten().ok_or(FOREIGN)?,
            _ => return Err(Error::WrongType),
        };
        Ok(Self { key, parts })
    }

    /// The number of parts.
    pub const fn parts(&self) -> u64 {
        self.parts
    }

    /// What `id` holds of the limiters `keys`, and perhaps of others. With `others`, also at most so many
    /// parts that are not in its record.
    ///
    /// # Errors
    /// [`FOREIGN`] for members that are no part.
    pub fn owner<'n, 'i>(
        &self,
        name: Cow<'i, [u8]>,
        keys: impl Iterator<Item = &'n [u8]>,
        others: Option<usize>,
    ) -> Result<Owner<'i>, Error> {
        let mut owner = Owner { id: name, slots: Vec::new(), has_run_out: false };
        if self.parts == 0 {
            return Ok(owner);
        }
        let (id, slots) = (&*owner.id, &mut owner.slots);
        let (mut further, mut has_further, mut is_broken) = (Vec::new(), false, false);
        self.key.at_score(member::of_owner(id), Side::First, |member| {
            if let Some(record) = member::read_record(member, id) {
                is_broken = record.is_err();
                let parts = record.unwrap_or_default().into_iter();
                let slot = |(key, part)| Slot { is_further: false, ..Slot::further(key, part) };
                slots.extend(parts.map(slot));
            } else if let Some(key) = member::read_more(member, id) {
                has_further = true;
                further.push(key.to_vec());
                return others.is_some_and(|others| further.len() < others);
            }
            !is_broken
        });
        if is_broken {
            return Err(FOREIGN.into());
        }
        if !has_further {
            return Ok(owner);
        }
        if others.is_none() {
            further.clear();
        }
        for key in further {
            let part = self.further(&owner.id, &key).ok_or(FOREIGN)?;
            owner.slots.push(Slot::further(&key, part));
        }
        keys.for_each(|key| _ = self.part(&mut owner, key));
        Ok(owner)
    }

    /// What the owner holds of the limiter `key`, which is looked for if it is not known yet.
    pub fn part(&self, owner: &mut Owner<'_>, key: &[u8]) -> Option<Part> {
        if let Some(known) = owner.slots.iter().find(|slot| *slot.key == *key) {
            return known.after;
        }
        let part = self.further(&owner.id, key)?;
        owner.slots.push(Slot::further(key, part));
        Some(part)
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

    /// Whether `id` holds anything.
    pub fn knows(&self, id: &[u8]) -> bool {
        let mut is_known = false;
        self.key.at_score(member::of_owner(id), Side::First, |member| {
            is_known = member::read_record(member, id).is_some() || member::read_more(member, id).is_some();
            !is_known
        });
        is_known
    }

    /// What the ends of the limiter `key` say, with the owners of at most `most` parts that have run out.
    ///
    /// # Errors
    /// [`FOREIGN`] for members that are no end of a part.
    pub fn ends(&self, key: &[u8], is_permanent: bool, now: Instant, most: usize) -> Result<Ends, Error> {
        let mut ends = Ends::default();
        if self.parts == 0 {
            return Ok(ends);
        }
        let (score, mut is_broken) = (member::of_key(key, is_permanent), false);
        // Parts that were taken before the clock was set back are behind all others.
        let (mut is_ahead, mut latest) = (false, None);
        self.key.at_score(score, Side::Last, |member| match member::read_end(member) {
            Some(end) if end.key == key => {
                (ends.are_some, is_ahead, latest) = (true, end.is_ahead(now), Some(end.end));
                false
            }
            end => {
                is_broken |= end.is_none();
                !is_broken
            }
        });
        if is_ahead {
            self.key.at_score(score, Side::Last, |member| match member::read_end(member) {
                Some(end) if end.key != key => true,
                Some(end) if end.is_ahead(now) && ends.ended.len() < most => {
                    ends.ended.push(end.id.to_vec());
                    true
                }
                _ => false,
            });
        }
        if ends.are_some {
            self.key.at_score(score, Side::First, |member| match member::read_end(member) {
                Some(end) if end.key != key || end.is_ahead(now) => true,
                Some(end) if end.end <= now && ends.ended.len() < most => {
                    ends.ended.push(end.id.to_vec());
                    true
                }
                // What runs out before all that has run out was carried out changes nothing.
                Some(end) if end.end <= now => {
                    ends.next = latest.filter(|latest| *latest > now && !is_ahead);
                    false
                }
                end => {
                    (ends.next, is_broken) = (end.map(|end| end.end), is_broken || end.is_none());
                    false
                }
            });
        }
        if is_broken { Err(FOREIGN.into()) } else { Ok(ends) }
    }

    /// The instant at which the key expires.
    pub fn lives_until(&self) -> Option<Instant> {
        if self.parts == 0 { None } else { self.key.lives_until() }
    }

    /// Writes what these owners hold after the call.
    pub fn write<'o>(
        mut self,
        owners: impl Iterator<Item = &'o Owner<'o>>,
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
        for owner in owners {
            let mut changes_record = false;
            for Slot { key, before, after, is_further } in &owner.slots {
                parts = parts
                    .saturating_add(u64::from(after.is_some()))
                    .saturating_sub(u64::from(before.is_some()));
                if before == after {
                    continue;
                }
                if *is_further {
                    let members = |part: &Option<Part>| {
                        part.iter().flat_map(|part| member::further(&owner.id, key, part)).collect()
                    };
                    exchange(members(before), members(after));
                } else {
                    changes_record = true;
                }
            }
            if changes_record {
                exchange(owner.record(|slot| slot.before), owner.record(|slot| slot.after));
            }
        }
        let (kind, expiry) = self.key.kind_and_expiry();
        let expiry = expiry.map(|at| at.as_millis_ceil().cast_signed());
        let is_new = kind == Kind::Empty;
        let is_endless = !is_new && expiry.is_none();
        let stored = if is_endless { self.key.score_of(&UNTIL).flatten() } else { None };
        let until =
            lasting.until.max(expiry.unwrap_or_default()).max(stored.unwrap_or_default().cast_signed());
        let totals = removed.iter().filter(|(score, _)| *score >= member::TOTALS).count();
        let keeps_a_total = || {
            self.key.has_more_above(member::TOTALS, totals)
                || added.iter().any(|(score, _)| *score >= member::TOTALS)
        };
        let mut known = SmallVec::<[_; 2]>::new();
        let mut gone = SmallVec::<[&[u8]; 2]>::new();
        let lives = if lasting.always || is_endless && keeps_a_total() {
            if until > stored.unwrap_or_default().cast_signed() {
                known.push((&UNTIL, until.unsigned_abs()));
            }
            if expiry.is_some() { Lives::Always } else { Lives::AsBefore }
        } else {
            gone.extend(stored.map(|_| member::UNTIL));
            match expiry {
                Some(expiry) if expiry == until => Lives::AsBefore,
                // PERSIST by hand. While only totals were held, no expiry was stored either.
                None if is_endless && stored.is_none() && (totals == 0 || until == 0) => Lives::AsBefore,
                _ => Lives::Until(until),
            }
        };
        if parts == 0 {
            known.clear();
            gone.extend(Some(member::PARTS).filter(|_| !is_new));
        } else if parts != self.parts {
            known.push((&PARTS, parts));
        }
        gone.extend(removed.iter().map(|(_, member)| &**member));
        if added.is_empty() && gone.is_empty() && known.is_empty() && lives == Lives::AsBefore
            || parts == 0 && is_new
        {
            return None;
        }
        Some(self.key.exchange(&known, &added, &gone, lives))
    }
}
