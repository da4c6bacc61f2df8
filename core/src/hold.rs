//! Holds: units of a quota that come back when their owner neither settles nor renews.
//!
//! An owner takes units before it knows how many it needs, and may crash. Units of a rate come back by
//! themselves; those of a [fixed window](crate::fixed) would be lost until the window ends. So a call may
//! record the units that it takes, under the name of its owner. There is one part for each limiter's key, and
//! each part has its own end:
//!
//! ```text
//! taken        the part lasts for a period; units taken later are added, and the period begins again
//! renewed      the period begins again
//! settled      the difference between the units used and the units held is charged or given back
//! run out      the period is over: the units come back before the next decision on the limiter's key
//! settled late the part has run out, so that all units used are charged
//! ```
//!
//! # What comes back, and where to
//! A part records the window of its units, by the window's end, which may change a little when keys are moved
//! to another server. Units of a window that has ended do not come back. If the same owner has taken units of
//! two windows, `earlier` are those of the ended window, and `last` are those of the present one; only `last`
//! comes back. So of `used` units, `max(0, used - earlier)` are charged to the present window.
//!
//! A total that is forgotten when it is idle lives at least as long as its parts. They come back only while
//! the key has lived without a break: until the expiry that the last call with the key of holds has given it.
//! Later, other calls may have kept it, or it has expired and begun again; nobody can say which.
//!
//! Of a rate, `last` are the units of the last take, and `earlier` those of all takes before it. A settlement
//! gives back no more than `last`, and only what is [still owed](Taken::still_owed) for them.
//!
//! A part never gives back more units than it holds, and is removed when its units come back. So a history of
//! calls spends no unit twice, and when every part has ended, a window has exactly the units that were used
//! in it. `core/tests/hold.rs` has both as properties.
//!
//! # The sorted set
//! An owner has one member for all its parts, its *record*, and one for each part that can run out, its
//! *end*. The score of a record is the hash of the owner's name, and the score of an end is the hash of the
//! limiter's key. Members with the same score are in the order of their bytes, so the ends of a key are in
//! the order of time, and a score finds the first and the last one in logarithmic time. The text of a member
//! distinguishes names that have the same hash.
//!
//! ```text
//! score            member
//! OWNERS + hash    id <length> <id> <part> <part> ...
//! OWNERS + hash    more <length> <id> <length> <key>             of a further part
//! FURTHER + hash   part <length> <id> <part>                     the further part, at the hash of both names
//! ENDS + hash      end <end> <period> <length> <id> <length> <key>
//! the number       parts                                         how many there are
//! the number       totals                                        how many are of permanent totals
//! a millisecond    until                                         the expiry that the other parts need, while
//!                                                                the key has none because of a total
//! a millisecond    idle <length> <key>                           the expiry that the last call with the key
//!                                                                of holds gave to a total with an idle time
//! ```
//!
//! A part is `<length> <key> <end> <period>` and one of the following. `-` stands in place of the end and the
//! period if they are those of the part before it, and in place of the instant at which the period began.
//! Each name is preceded by its length, so that no name is read as another. Instants and spans are in
//! nanoseconds, and the end in `end` has 19 digits.
//!
//! ```text
//! window <earlier> <last> <end of the window>
//! total <earlier> <last>
//! idle <earlier> <last>                  of a total that is forgotten when it is idle
//! rate <earlier> <last> <instant> <reset_after>
//! ```
//!
//! Units of a rate come back by themselves, so only the owner needs their parts, which have no end. If an
//! owner holds only parts of rates, the first part of its record has an end, by which the record is removed.
//! A record has at most [`IN_RECORD`] parts, so that the cost of a call does not grow with the parts of its
//! owner; each further part has three members of its own.
//!
//! Other forms were tried. A hash needs a scan to find the parts that have ended. A sorted set by the end of
//! the parts also finds the parts of keys that the call does not name. Two members for each part, found by
//! their first bytes, cost 2.5 times as much: comparing names takes longer than comparing scores.

use crate::fixed::{Counter, is_window};
use crate::{Error, Instant, Range, Span, Taken, Unit};

/// The most parts under one key. An owner that has parts may exceed it.
pub const MOST_PARTS: u64 = 100_000;

/// The most parts in the record of an owner.
pub const IN_RECORD: usize = 16;

/// The most parts whose units one call brings back. The rest count as taken until a later call.
pub const MOST_ENDED: usize = 1_000;

/// The most further parts that a settlement ends although it does not name them. The others end by
/// themselves.
pub const MOST_UNNAMED: usize = 2_000;

/// Calls look for parts of rates that have ended when the number of parts passes a multiple of this.
pub const RATES_EACH: u64 = 32;

/// How long a hold lasts, in the unit of the call.
pub const HOLD: Range = Range { name: "HOLD", min: 1, max: i64::MAX };

/// The quantity of a settlement with `HOLD`: the units that were used.
pub const USED: Range = Range { name: "quantity", min: 0, max: i64::MAX };

/// The error for a key that holds something else.
pub const FOREIGN: Error = Error::Foreign { expected: "the parts of holds, stored by HOLD" };

/// Where the units of a part were taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// In the fixed window that ends at this instant.
    Window {
        /// A whole millisecond, at which the window's key expires.
        end: Instant,
    },
    /// In a window without end.
    Total {
        /// Whether it is forgotten when it is idle.
        idles: bool,
    },
    /// Of a limiter whose units come back by themselves.
    Rate {
        /// The instant of the last take.
        at: Instant,
        /// The time until the limiter was fully replenished, after that take.
        reset_after: Span,
    },
}

/// The units of one limiter that an owner holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Part {
    /// Units of windows that have ended, or of takes before the last one.
    pub earlier: i64,
    /// Units of the present window, or of the last take.
    pub last: i64,
    /// Where these last units were taken.
    pub origin: Origin,
    /// The instant at which the part runs out.
    pub end: Instant,
    /// The time from the call that took or renewed it to its end.
    pub period: Span,
}

impl Part {
    /// The part of an owner after a call that has taken `quantity` units, at least 0, and had the part
    /// `before`. The part then lasts for `period`. `None` when nothing is held.
    ///
    /// Cost: O(1), no allocation.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] naming `HOLD` when the part would end past the year 2262.
    ///
    /// # Example
    /// ```
    /// # use redis_cell_core::{Instant, Span, hold::{Origin, Part}};
    /// let now = Instant::from_nanos(1_700_000_000_000_000_000).unwrap();
    /// let minute = Span::from_nanos(60_000_000_000).unwrap();
    /// let total = Origin::Total { idles: false };
    /// let held = Part::taken(None, 5, total, now, minute)?.unwrap();
    /// assert_eq!(Part::taken(Some(held), 3, total, now, minute)?.unwrap().held(), 8);
    /// # Ok::<(), redis_cell_core::Error>(())
    /// ```
    pub fn taken(
        before: Option<Self>,
        quantity: i64,
        origin: Origin,
        now: Instant,
        period: Span,
    ) -> Result<Option<Self>, Error> {
        let end = now.checked_add(period).ok_or_else(|| HOLD.error())?;
        let renewed = before.map(|part| Self { end, period, ..part });
        if quantity <= 0 {
            return Ok(renewed);
        }
        let new = Self { earlier: 0, last: quantity, origin, end, period };
        // Units of another kind of limiter are forgotten.
        Ok(Some(match renewed.filter(|part| part.is_of_rate() == new.is_of_rate()) {
            None => new,
            Some(part) if part.is_of_same_window(&new, now) => {
                Self { last: part.last.saturating_add(quantity), origin, ..part }
            }
            Some(part) => Self { earlier: part.held(), ..new },
        }))
    }

    /// The units held.
    pub const fn held(&self) -> i64 {
        self.earlier.saturating_add(self.last)
    }

    /// Whether the part has run out at `now`. A part that seems to have more left than its period was taken
    /// before the clock was set back.
    pub fn has_ended(&self, now: Instant) -> bool {
        self.end <= now || self.end.since(now) > self.period
    }

    /// The same part, which runs out at `now`.
    #[must_use]
    pub const fn ended(self, now: Instant) -> Self {
        Self { end: now, ..self }
    }

    /// Whether both parts are of one window, that of the other one being open. A total is one, whether the
    /// calls name IDLE or not.
    fn is_of_same_window(&self, other: &Self, now: Instant) -> bool {
        match (self.origin, other.origin) {
            (Origin::Total { .. }, Origin::Total { .. }) => true,
            (Origin::Window { end }, Origin::Window { end: other }) => is_window(end, other, now),
            _ => false,
        }
    }

    /// Whether its units can come back at any time.
    pub fn is_permanent(&self) -> bool {
        self.origin == Origin::Total { idles: false }
    }

    /// Whether its units come back by themselves.
    pub const fn is_of_rate(&self) -> bool {
        matches!(self.origin, Origin::Rate { .. })
    }

    /// Whether its units come back only while the total has lived without a break.
    pub fn is_idle(&self) -> bool {
        self.origin == Origin::Total { idles: true }
    }

    /// The units that come back to the open window `counter` when the part runs out, if it is of the present
    /// life of its key.
    pub fn comes_back(&self, counter: &Counter, now: Instant) -> i64 {
        match self.origin {
            Origin::Window { end } if is_window(end, counter.end, now) => self.last,
            Origin::Total { .. } => self.last,
            Origin::Window { .. } | Origin::Rate { .. } => 0,
        }
    }
}

/// The end of a hold that begins now.
///
/// # Errors
/// [`Error::OutOfRange`] past the year 2262.
pub fn end_of(now: Instant, period: Span, unit: Unit) -> Result<Instant, Error> {
    HOLD.end(now, period, unit)
}

/// The difference by which a settlement of `used` units changes the fixed window `counter`, of which `part`
/// is held: charged if above 0, given back if below 0.
///
/// An owner that holds nothing is charged all used units. If the window of the part has ended, only units
/// beyond the part are charged.
///
/// Cost: O(1), no allocation.
pub fn settles_window(part: Option<&Part>, counter: Option<&Counter>, now: Instant, used: i64) -> i64 {
    let Some(part) = part.filter(|part| !part.is_of_rate()) else { return used };
    let present = used.saturating_sub(part.earlier).max(0);
    if counter.is_some_and(|counter| part.comes_back(counter, now) == part.last) {
        present.saturating_sub(part.last)
    } else {
        present.saturating_sub(part.last).max(0)
    }
}

/// The difference by which a settlement of `used` units at `now` changes a rate or a log of which `part` is
/// held, and the age and the `reset_after` of the last take. An owner that holds nothing changes nothing.
///
/// Cost: O(1), no allocation.
pub fn settles_rate(part: Option<&Part>, now: Instant, used: i64) -> (i64, Option<Taken>) {
    let Some((part, Origin::Rate { at, reset_after })) = part.map(|part| (part, part.origin)) else {
        return (0, None);
    };
    // The instant and the time are exact, so no unit is deducted from them.
    let unit = Unit::Microseconds;
    let reset_after = Span::from_units(1, unit).and_then(|unit| reset_after.checked_add(unit));
    let taken = Taken { age: now.since(at), reset_after: Some(reset_after.unwrap_or(Span::MAX)), unit };
    (used.saturating_sub(part.held()).max(part.last.saturating_neg()), Some(taken))
}

/// The part of `used` units that is charged to each limiter of a pool, for limiters that share the quantity
/// of a call. Each limiter has the part that is held of it, if any, and its room now.
///
/// Unused units are given back to the last limiter first. Units beyond the parts are taken where they fit, in
/// order, and the last limiter goes into debt. `None` for a limiter of which nothing is held, and to which
/// nothing is charged.
///
/// Cost: O(n).
///
/// # Example
/// ```
/// # use redis_cell_core::hold::spread;
/// let held = [(Some(8), 0), (Some(4), 6), (None, 5)];
/// assert_eq!(spread(9, held.into_iter()), [Some(8), Some(1), None]);
/// assert_eq!(spread(20, held.into_iter()), [Some(8), Some(10), Some(2)]);
/// assert_eq!(spread(30, held.into_iter()), [Some(8), Some(10), Some(12)]);
/// ```
pub fn spread(used: i64, limiters: impl Iterator<Item = (Option<i64>, i64)>) -> Vec<Option<i64>> {
    let limiters: Vec<_> = limiters.collect();
    let held = limiters.iter().fold(0_i64, |sum, (held, _)| sum.saturating_add(held.unwrap_or(0)));
    let mut bears: Vec<i64> = limiters.iter().map(|(held, _)| held.unwrap_or(0)).collect();
    let mut back = held.saturating_sub(used).max(0);
    for share in bears.iter_mut().rev() {
        let given = back.min(*share);
        (*share, back) = (share.saturating_sub(given), back.saturating_sub(given));
    }
    let mut beyond = used.saturating_sub(held).max(0);
    for (share, (_, room)) in bears.iter_mut().zip(&limiters) {
        let more = beyond.min(*room);
        (*share, beyond) = (share.saturating_add(more), beyond.saturating_sub(more));
    }
    if let Some(last) = bears.last_mut() {
        *last = last.saturating_add(beyond);
    }
    let is_touched =
        |(share, (held, _)): (i64, &(Option<i64>, i64))| Some(share).filter(|_| share > 0 || held.is_some());
    bears.into_iter().zip(&limiters).map(is_touched).collect()
}

/// The members of the sorted set: their scores and their bytes.
pub mod member {
    use super::{Instant, Origin, Part, Span};
    use crate::parse_integer;

    /// A score and the bytes of the member.
    pub type Member = (u64, Vec<u8>);

    /// The parts of an owner, by the keys of the limiters.
    pub type Parts<'m> = Vec<(&'m [u8], Part)>;

    /// The member whose score is the number of parts.
    pub const PARTS: &[u8] = b"parts";

    /// The member whose score is the number of parts of permanent totals; without it there are none.
    pub const TOTALS: &[u8] = b"totals";

    /// The member whose score is an expiry in milliseconds.
    pub const UNTIL: &[u8] = b"until";

    /// The member whose score is the expiry of the key of a total that is forgotten when it is idle, in
    /// milliseconds.
    pub fn idle(key: &[u8]) -> Vec<u8> {
        let mut text = b"idle ".to_vec();
        put_name(&mut text, key);
        text
    }

    /// The number of scores for each use, which is the number of values of the hash.
    const HASHES: u64 = 1 << 50;

    /// Above all numbers, and below all hashes.
    pub const HIGHEST_NUMBER: u64 = HASHES - 1;

    const OWNERS: u64 = HASHES;
    const FURTHER: u64 = 2 * HASHES;
    const ENDS: u64 = 3 * HASHES;

    /// The score of the record of `id`.
    pub fn of_owner(id: &[u8]) -> u64 {
        OWNERS.saturating_add(hash(id, &[]))
    }

    /// The score of a further part, which `id` holds of the limiter `key`.
    pub fn of_further(id: &[u8], key: &[u8]) -> u64 {
        FURTHER.saturating_add(hash(id, key))
    }

    /// The score of the ends of the limiter `key`.
    pub fn of_key(key: &[u8]) -> u64 {
        ENDS.saturating_add(hash(key, &[]))
    }

    /// The record of an owner, whose score is that [of the owner](of_owner).
    pub fn record<'p>(id: &[u8], parts: impl Iterator<Item = (&'p [u8], Part)> + Clone) -> Vec<u8> {
        let names = parts.clone().fold(id.len(), |sum, (key, _)| sum.saturating_add(key.len()));
        let mut text = Vec::with_capacity(names.saturating_add(parts.clone().count().saturating_mul(120)));
        text.extend(b"id ");
        put_name(&mut text, id);
        let mut before = None;
        for (key, part) in parts {
            text.push(b' ');
            put_part(&mut text, key, &part, before);
            before = Some(part);
        }
        text
    }

    /// The parts in a member, if it is the record of `id`; `Err` if it is broken.
    pub fn read_record<'m>(member: &'m [u8], id: &[u8]) -> Option<Result<Parts<'m>, ()>> {
        let (owner, rest) = read_name(member.strip_prefix(b"id ")?)?;
        (owner == id).then(|| read_parts(rest).ok_or(()))
    }

    /// The members of a further part.
    pub fn further(id: &[u8], key: &[u8], part: &Part) -> [Member; 3] {
        let mut text = b"part ".to_vec();
        put_name(&mut text, id);
        text.push(b' ');
        put_part(&mut text, key, part, None);
        [(of_further(id, key), text), more(id, key), end(id, key, part)]
    }

    /// The part in a member, if it is a further part of `id` of the limiter `key`.
    pub fn read_further(member: &[u8], id: &[u8], key: &[u8]) -> Option<Part> {
        let (owner, rest) = read_name(member.strip_prefix(b"part ")?)?;
        match read_parts(rest)?.as_slice() {
            [(named, part)] if (owner, *named) == (id, key) => Some(*part),
            _ => None,
        }
    }

    /// The member that says of which limiter an owner has a further part.
    fn more(id: &[u8], key: &[u8]) -> Member {
        let mut text = b"more ".to_vec();
        put_name(&mut text, id);
        text.push(b' ');
        put_name(&mut text, key);
        (of_owner(id), text)
    }

    /// The limiter's key in a member, if it says that `id` has a further part.
    pub fn read_more<'m>(member: &'m [u8], id: &[u8]) -> Option<&'m [u8]> {
        let (owner, rest) = read_name(member.strip_prefix(b"more ")?)?;
        let (key, rest) = read_name(rest.strip_prefix(b" ")?)?;
        (owner == id && rest.is_empty()).then_some(key)
    }

    /// The end of a part.
    pub fn end(id: &[u8], key: &[u8], part: &Part) -> Member {
        let mut text = Vec::with_capacity(id.len().saturating_add(key.len()).saturating_add(60));
        text.extend_from_slice(b"end ");
        let mut digits = itoa::Buffer::new();
        let end = digits.format(part.end.as_nanos()).as_bytes();
        text.extend(core::iter::repeat_n(b'0', 19_usize.saturating_sub(end.len())));
        text.extend_from_slice(end);
        text.push(b' ');
        put_number(&mut text, part.period.as_nanos());
        text.push(b' ');
        put_name(&mut text, id);
        text.push(b' ');
        put_name(&mut text, key);
        (of_key(key), text)
    }

    /// The end of a part, as its member contains it.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct End<'m> {
        /// The instant at which the part runs out.
        pub end: Instant,
        /// How long it lasts.
        pub period: Span,
        /// Its owner.
        pub id: &'m [u8],
        /// The limiter's key.
        pub key: &'m [u8],
    }

    impl End<'_> {
        /// Whether the part has more left at `now` than its period: it was taken before the clock was set
        /// back.
        pub fn is_ahead(&self, now: Instant) -> bool {
            self.end > now && self.end.since(now) > self.period
        }
    }

    /// Reads the end of a part.
    pub fn read_end(member: &[u8]) -> Option<End<'_>> {
        let (digits, rest) = member.strip_prefix(b"end ")?.split_at_checked(19)?;
        let zeros = digits.iter().take_while(|digit| **digit == b'0').count().min(18);
        let end = parse_integer(digits.get(zeros..)?)?.try_into().ok()?;
        let (period, rest) = read_number(rest.strip_prefix(b" ")?)?;
        let (id, rest) = read_name(rest.strip_prefix(b" ")?)?;
        let (key, rest) = read_name(rest.strip_prefix(b" ")?)?;
        let (end, period) = (Instant::from_nanos(end)?, Span::from_nanos(period)?);
        rest.is_empty().then_some(End { end, period, id, key })
    }

    fn put_part(text: &mut Vec<u8>, key: &[u8], part: &Part, before: Option<Part>) {
        let Part { earlier, last, origin, end, period } = *part;
        put_name(text, key);
        if before.is_some_and(|before| (before.end, before.period) == (end, period)) {
            text.extend(b" -");
        } else {
            put_numbers(text, [end.as_nanos(), period.as_nanos()]);
        }
        text.extend_from_slice(match origin {
            Origin::Window { .. } => b" window",
            Origin::Total { idles: false } => b" total",
            Origin::Total { idles: true } => b" idle",
            Origin::Rate { .. } => b" rate",
        });
        put_numbers(text, [earlier.unsigned_abs(), last.unsigned_abs()]);
        match origin {
            Origin::Window { end } => put_numbers(text, [end.as_nanos()]),
            Origin::Total { .. } => {}
            Origin::Rate { at, reset_after } if begins_at(part) == Some(at) => {
                text.extend_from_slice(b" -");
                put_numbers(text, [reset_after.as_nanos()]);
            }
            Origin::Rate { at, reset_after } => put_numbers(text, [at.as_nanos(), reset_after.as_nanos()]),
        }
    }

    /// The beginning of a part's period.
    fn begins_at(part: &Part) -> Option<Instant> {
        Instant::from_nanos(part.end.as_nanos().checked_sub(part.period.as_nanos())?)
    }

    fn read_parts(mut rest: &[u8]) -> Option<Parts<'_>> {
        let mut parts = Parts::new();
        while let Some(text) = rest.strip_prefix(b" ") {
            let (key, text) = read_name(text)?;
            let (end, period, text) = if let Some(text) = text.strip_prefix(b" -") {
                let (_, before) = parts.last()?;
                (before.end, before.period, text)
            } else {
                let ([end, period], text) = read_numbers(text)?;
                (Instant::from_nanos(end)?, Span::from_nanos(period)?, text)
            };
            let text = text.strip_prefix(b" ")?;
            let (word, text) = text.split_at_checked(text.iter().position(|byte| *byte == b' ')?)?;
            let ([earlier, last], text) = read_numbers(text)?;
            let (origin, text) = match word {
                b"window" => {
                    let ([end], text) = read_numbers(text)?;
                    (Origin::Window { end: Instant::from_nanos(end)? }, text)
                }
                b"total" => (Origin::Total { idles: false }, text),
                b"idle" => (Origin::Total { idles: true }, text),
                b"rate" => {
                    let (at, text) = if let Some(text) = text.strip_prefix(b" -") {
                        (end.as_nanos().checked_sub(period.as_nanos())?, text)
                    } else {
                        let ([at], text) = read_numbers(text)?;
                        (at, text)
                    };
                    let ([reset_after], text) = read_numbers(text)?;
                    let (at, reset_after) = (Instant::from_nanos(at)?, Span::from_nanos(reset_after)?);
                    (Origin::Rate { at, reset_after }, text)
                }
                _ => return None,
            };
            let units = |units| i64::try_from(units).ok();
            parts.push((key, Part { earlier: units(earlier)?, last: units(last)?, origin, end, period }));
            rest = text;
        }
        (rest.is_empty() && !parts.is_empty()).then_some(parts)
    }

    /// A name, with its length before it.
    fn put_name(text: &mut Vec<u8>, name: &[u8]) {
        put_number(text, u64::try_from(name.len()).unwrap_or(u64::MAX));
        text.push(b' ');
        text.extend_from_slice(name);
    }

    fn read_name(text: &[u8]) -> Option<(&[u8], &[u8])> {
        let (length, text) = read_number(text)?;
        text.strip_prefix(b" ")?.split_at_checked(usize::try_from(length).ok()?)
    }

    /// Numbers, with a space before each.
    fn put_numbers<const N: usize>(text: &mut Vec<u8>, numbers: [u64; N]) {
        for number in numbers {
            text.push(b' ');
            put_number(text, number);
        }
    }

    fn read_numbers<const N: usize>(mut text: &[u8]) -> Option<([u64; N], &[u8])> {
        let mut numbers = [0; N];
        for number in &mut numbers {
            (*number, text) = read_number(text.strip_prefix(b" ")?)?;
        }
        Some((numbers, text))
    }

    fn put_number(text: &mut Vec<u8>, number: u64) {
        match number {
            0..10 => text.push(b'0'.wrapping_add(number.to_le_bytes()[0])), // most of them
            _ => text.extend_from_slice(itoa::Buffer::new().format(number).as_bytes()),
        }
    }

    /// A number, up to the next space.
    fn read_number(text: &[u8]) -> Option<(u64, &[u8])> {
        let length = text.iter().position(|byte| *byte == b' ').unwrap_or(text.len());
        let (digits, rest) = text.split_at_checked(length)?;
        Some((parse_integer(digits)?.try_into().ok()?, rest))
    }

    /// A hash of two names, below [`HASHES`]: the rounds of HalfSipHash-1-3, in words of 32 bits, which Lua
    /// has too. It has no secret, so a client that chooses names can search for some with the same hash.
    /// These do not change a decision, because members have the whole names; but a call for one of these
    /// names also reads the members of the others.
    fn hash(one: &[u8], other: &[u8]) -> u64 {
        let mut state: [u32; 4] = [0, 0, 0x6c79_6765, 0x7465_6462];
        for name in [one, other] {
            let (words, rest) = name.as_chunks::<4>();
            for word in words {
                absorb(&mut state, u32::from_le_bytes(*word));
            }
            let mut last = [0, 0, 0, name.len().to_le_bytes()[0]];
            last.iter_mut().zip(rest).for_each(|(byte, own)| *byte = *own);
            absorb(&mut state, u32::from_le_bytes(last));
            if other.is_empty() {
                break;
            }
        }
        state[2] ^= 0xff;
        (0..3).for_each(|_| mix(&mut state));
        let [low, high] = [state[1] ^ state[3], state[0] ^ state[2]];
        (u64::from(high) << 32 | u64::from(low)) % HASHES
    }

    fn absorb(state: &mut [u32; 4], word: u32) {
        state[3] ^= word;
        mix(state);
        state[0] ^= word;
    }

    fn mix(state: &mut [u32; 4]) {
        let [mut a, mut b, mut c, mut d] = *state;
        a = a.wrapping_add(b);
        b = b.rotate_left(5) ^ a;
        a = a.rotate_left(16);
        c = c.wrapping_add(d);
        d = d.rotate_left(8) ^ c;
        a = a.wrapping_add(d);
        d = d.rotate_left(7) ^ a;
        c = c.wrapping_add(b);
        b = b.rotate_left(13) ^ c;
        c = c.rotate_left(16);
        *state = [a, b, c, d];
    }
}
