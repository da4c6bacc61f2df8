//! Holds: units of a quota that come back when their owner neither settles nor renews.
//!
//! An owner takes units before it knows how many it needs, and dies. Units of a rate come back by themselves;
//! those of a [fixed window](crate::fixed) would be lost until the window ends. So a call may remember what
//! it has taken, under the name of its owner. There is one part for each limiter's key, and each part ends by
//! itself:
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
//! A part remembers which window has its units: its end. Units of a window that has ended stay there. If the
//! same owner has taken units of two windows, `earlier` are those of the ended one, and `last` are those of
//! the present one; only the latter come back. So of `used` units, the present window bears
//! `max(0, used - earlier)`.
//!
//! Of a rate, `last` are the units of the last take, and `earlier` those of all takes before it. A settlement
//! gives back no more than `last`, and only what is [still owed](Taken::still_owed) for them.
//!
//! Never are more units given back than the part holds, and a part is removed when its units come back. So a
//! history of calls spends no unit twice, and when every part has ended, a window has exactly the units that
//! were used in it. `core/tests/hold.rs` has both as properties.
//!
//! # The sorted set
//! All scores are 0, so the members are in the order of their bytes, and a prefix finds its first member in
//! logarithmic time. A part has two members. Lengths stand before names, so that no name is the prefix of
//! another; instants and spans are in nanoseconds, the end of a part with 19 digits:
//!
//! ```text
//! id    <length> <id>  <length> <key> <end> part|total|idle
//! part  <length> <key> <end> <length> <id> <period> <earlier> <last> window <end of the window>
//! part  <length> <key> <end> <length> <id> <period> <earlier> <last> rate <instant> <reset_after>
//! total <length> <key> <end> <length> <id> <period> <earlier> <last>
//! idle  <length> <key> <end> <length> <id> <period> <earlier> <last>
//! ```
//!
//! The first finds the parts of an owner, the others those of a limiter's key that have ended. `total` is a
//! part of a total that is permanent, `idle` one of a total that is forgotten when it is idle. A further
//! member, `until <millisecond>`, exists while the key has no expiry because of a total: it is the expiry
//! that the other parts need.
//!
//! Three other forms were tried. A hash needs a scan to find what has ended. A sorted set by the end of the
//! parts finds those of all keys, also of keys that the call does not name. One member for all parts of an
//! owner is smaller, but a call then costs as much as its owner has parts.

use crate::fixed::Counter;
use crate::{Error, Instant, Range, Span, Taken, Unit, parse_integer};

/// The most parts under one key. An owner that is there may add to its own.
pub const MOST_PARTS: u64 = 100_000;

/// The most parts that one call carries out. The rest count as taken until a later call.
pub const MOST_ENDED: usize = 1_000;

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

/// The three kinds of parts, which have different names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Of a total that is forgotten when it is idle.
    Idle,
    /// Of any other limiter.
    Part,
    /// Of a total that is permanent.
    Total,
}

impl Origin {
    /// The class of a part with this origin.
    pub const fn class(self) -> Class {
        match self {
            Self::Total { idles: true } => Class::Idle,
            Self::Total { idles: false } => Class::Total,
            Self::Window { .. } | Self::Rate { .. } => Class::Part,
        }
    }
}

/// What an owner holds of one limiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Part {
    /// Units of windows that have ended, or of takes before the last one.
    pub earlier: i64,
    /// Units of the present window, or of the last take.
    pub last: i64,
    /// Where the latter were taken.
    pub origin: Origin,
    /// The instant at which the part runs out.
    pub end: Instant,
    /// How long it lasts from the call that took or renewed it.
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
        let end = end_of(now, period)?;
        let renewed = before.map(|part| Self { end, period, ..part });
        if quantity <= 0 {
            return Ok(renewed);
        }
        let new = Self { earlier: 0, last: quantity, origin, end, period };
        // What was taken of another kind of limiter is void.
        Ok(Some(match renewed.filter(|part| part.is_of_rate() == new.is_of_rate()) {
            None => new,
            Some(part) if part.origin == origin && !part.is_of_rate() => {
                Self { last: part.last.saturating_add(quantity), ..part }
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

    /// Whether its units come back by themselves.
    pub const fn is_of_rate(&self) -> bool {
        matches!(self.origin, Origin::Rate { .. })
    }

    /// The units that come back to the window `counter` when the part runs out.
    pub fn comes_back(&self, counter: &Counter) -> i64 {
        match self.origin {
            Origin::Window { end } if end == counter.end => self.last,
            Origin::Total { .. } => self.last,
            Origin::Window { .. } | Origin::Rate { .. } => 0,
        }
    }
}

/// The end of a hold that begins now.
///
/// # Errors
/// [`Error::OutOfRange`] past the year 2262.
pub fn end_of(now: Instant, period: Span) -> Result<Instant, Error> {
    now.checked_add(period).ok_or_else(|| HOLD.error())
}

/// The difference by which a settlement of `used` units changes the fixed window `counter`, of which `part`
/// is held. Above 0 it is charged, below 0 it is given back.
///
/// An owner that holds nothing is charged what it used. If the window of the part has ended, only what was
/// used beyond it is charged.
///
/// Cost: O(1), no allocation.
pub fn settles_window(part: Option<&Part>, counter: Option<&Counter>, used: i64) -> i64 {
    let Some(part) = part.filter(|part| !part.is_of_rate()) else { return used };
    let present = used.saturating_sub(part.earlier).max(0);
    if counter.is_some_and(|counter| part.comes_back(counter) == part.last) {
        present.saturating_sub(part.last)
    } else {
        present.saturating_sub(part.last).max(0)
    }
}

/// The difference by which a settlement of `used` units at `now` changes a rate or a log of which `part` is
/// held, and what it knows of the last take. An owner that holds nothing changes nothing.
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

/// What each limiter of a pool bears of `used` units, for limiters that share the quantity of a call. Each
/// comes with what is held of it, if anything is, and with its room now.
///
/// What was not used goes back to the last first. What was used beyond is taken where it fits in order, and
/// the last goes into debt. `None` for a limiter of which nothing is held, and that bears nothing.
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

/// The members of the sorted set, as bytes.
pub mod member {
    use super::{Class, Instant, Origin, Part, Span, parse_integer};

    /// The first bytes of the members of all kinds, in their order.
    const KINDS: [&[u8]; 5] = [b"id ", b"idle ", b"part ", b"total ", b"until "];

    /// Whether this can be the first member of the set.
    pub fn is_first(member: &[u8]) -> bool {
        member.starts_with(KINDS[0])
    }

    /// Whether this can be the last member of the set.
    pub fn is_last(member: &[u8]) -> bool {
        let [_, rest @ ..] = KINDS;
        rest.iter().any(|kind| member.starts_with(kind))
    }

    /// Where the members with a prefix end, which itself ends with a space.
    pub fn behind(prefix: &[u8]) -> Vec<u8> {
        let mut end = prefix.to_vec();
        if let Some(last) = end.last_mut() {
            *last = b'!';
        }
        end
    }

    /// The prefix of what `id` holds.
    pub fn of_id(id: &[u8]) -> Vec<u8> {
        let mut text = with_room_for(id, &[]);
        text.extend(b"id ");
        put_name(&mut text, id);
        text
    }

    /// The prefix of what `id` holds of the limiter `key`.
    pub fn of_id_and_key(id: &[u8], key: &[u8]) -> Vec<u8> {
        let mut text = with_room_for(id, key);
        text.extend(b"id ");
        put_name(&mut text, id);
        put_name(&mut text, key);
        text
    }

    /// The prefix of the parts of the limiter `key`.
    pub fn of_key(class: Class, key: &[u8]) -> Vec<u8> {
        put_key(class, key, &[])
    }

    /// The prefix of the parts of the limiter `key` that end at `end`.
    pub fn of_key_at(class: Class, key: &[u8], end: Instant) -> Vec<u8> {
        let mut text = of_key(class, key);
        put_end(&mut text, end.as_nanos());
        text.push(b' ');
        text
    }

    /// Where the parts of the limiter `key` that end after `now` begin.
    pub fn of_key_after(class: Class, key: &[u8], now: Instant) -> Vec<u8> {
        let mut text = of_key(class, key);
        put_end(&mut text, now.as_nanos().saturating_add(1));
        text
    }

    /// The prefix of all parts of permanent totals.
    pub const TOTALS: &[u8] = b"total ";

    /// The prefix of the expiry of the others.
    pub const UNTIL: &[u8] = b"until ";

    /// The member for the expiry `millis`.
    pub fn until(millis: i64) -> Vec<u8> {
        format!("until {millis}").into_bytes()
    }

    /// The expiry in such a member.
    pub fn read_until(member: &[u8]) -> Option<i64> {
        member.strip_prefix(UNTIL).and_then(parse_integer).filter(|millis| *millis >= 0)
    }

    /// The two members of a part.
    pub fn of_part(key: &[u8], id: &[u8], part: &Part) -> [Vec<u8>; 2] {
        let Part { earlier, last, origin, end, period } = *part;
        let class = origin.class();
        let mut by_id = of_id_and_key(id, key);
        put_end(&mut by_id, end.as_nanos());
        by_id.push(b' ');
        by_id.extend(word(class));
        let mut by_key = put_key(class, key, id);
        put_end(&mut by_key, end.as_nanos());
        by_key.push(b' ');
        put_name(&mut by_key, id);
        put_number(&mut by_key, period.as_nanos());
        for units in [earlier, last] {
            by_key.push(b' ');
            put_number(&mut by_key, units.unsigned_abs());
        }
        match origin {
            Origin::Window { end } => {
                by_key.extend(b" window ");
                put_number(&mut by_key, end.as_nanos());
            }
            Origin::Total { .. } => {}
            Origin::Rate { at, reset_after } => {
                by_key.extend(b" rate ");
                put_number(&mut by_key, at.as_nanos());
                by_key.push(b' ');
                put_number(&mut by_key, reset_after.as_nanos());
            }
        }
        [by_id, by_key]
    }

    /// The prefix of the second member of a part, whose first one is `by_id`, and the limiter's key. `prefix`
    /// is that of the owner `id`.
    pub fn by_key_of<'m>(by_id: &'m [u8], prefix: &[u8], id: &[u8]) -> Option<(Vec<u8>, Class, &'m [u8])> {
        let (key, rest) = read_name(by_id.strip_prefix(prefix)?)?;
        let (end, kind) = read_end(rest)?;
        let class =
            [Class::Idle, Class::Part, Class::Total].into_iter().find(|class| word(*class) == kind)?;
        let mut by_key = put_key(class, key, id);
        put_end(&mut by_key, end.as_nanos());
        by_key.push(b' ');
        put_name(&mut by_key, id);
        Some((by_key, class, key))
    }

    /// The limiter's key that the first member of a part names.
    pub fn key_of<'m>(by_id: &'m [u8], prefix: &[u8]) -> Option<&'m [u8]> {
        Some(read_name(by_id.strip_prefix(prefix)?)?.0)
    }

    /// The owner and the part of the second member of a part of the limiter `key`.
    pub fn read<'m>(by_key: &'m [u8], class: Class, key: &[u8]) -> Option<(&'m [u8], Part)> {
        let (named, rest) = read_name(by_key.strip_prefix(word(class))?.strip_prefix(b" ")?)?;
        let (end, rest) = read_end(rest).filter(|_| named == key)?;
        let (id, rest) = read_name(rest)?;
        let mut words = rest.split(|byte| *byte == b' ');
        let mut integer = || parse_integer(words.next()?).filter(|number| *number >= 0);
        let (period, earlier, last) = (Span::from_nanos(integer()?.unsigned_abs())?, integer()?, integer()?);
        let mut rest = words;
        let kind = rest.next();
        let mut nanos = || rest.next().and_then(parse_integer).and_then(|nanos| u64::try_from(nanos).ok());
        let origin = match kind {
            None => Origin::Total { idles: class == Class::Idle },
            Some(b"window") => Origin::Window { end: Instant::from_nanos(nanos()?)? },
            Some(b"rate") => {
                Origin::Rate { at: Instant::from_nanos(nanos()?)?, reset_after: Span::from_nanos(nanos()?)? }
            }
            _ => return None,
        };
        (rest.next().is_none() && origin.class() == class)
            .then_some((id, Part { earlier, last, origin, end, period }))
    }

    const fn word(class: Class) -> &'static [u8] {
        match class {
            Class::Idle => b"idle",
            Class::Part => b"part",
            Class::Total => b"total",
        }
    }

    /// An empty text with room for a member with these names.
    fn with_room_for(one: &[u8], other: &[u8]) -> Vec<u8> {
        const NUMBERS: usize = 128;
        Vec::with_capacity(one.len().saturating_add(other.len()).saturating_add(NUMBERS))
    }

    /// The prefix of the parts of the limiter `key`, with room for a part of `id`.
    fn put_key(class: Class, key: &[u8], id: &[u8]) -> Vec<u8> {
        let mut text = with_room_for(key, id);
        text.extend(word(class));
        text.push(b' ');
        put_name(&mut text, key);
        text
    }

    /// A name, with its length before it and a space behind it.
    fn put_name(text: &mut Vec<u8>, name: &[u8]) {
        put_number(text, u64::try_from(name.len()).unwrap_or(u64::MAX));
        text.push(b' ');
        text.extend(name);
        text.push(b' ');
    }

    fn put_number(text: &mut Vec<u8>, number: u64) {
        if number < 10 {
            text.push(b'0'.saturating_add(u8::try_from(number).unwrap_or_default()));
            return;
        }
        let digits = digits(number);
        let zeros = digits.iter().position(|digit| *digit != b'0').unwrap_or_default();
        text.extend_from_slice(digits.get(zeros..).unwrap_or_default());
    }

    /// An instant with 19 digits.
    fn put_end(text: &mut Vec<u8>, nanos: u64) {
        let [_, digits @ ..] = digits(nanos);
        text.extend_from_slice(&digits);
    }

    /// The 20 digits of a number, in groups of four, which are divided as numbers of 32 bits.
    fn digits(number: u64) -> [u8; 20] {
        let mut digits = [b'0'; 20];
        let mut rest = number;
        for group in digits.as_chunks_mut::<4>().0.iter_mut().rev() {
            let four = u32::try_from(rest % 10_000).unwrap_or_default();
            let [high, low] = [four / 100, four % 100];
            for (digit, value) in group.iter_mut().zip([high / 10, high % 10, low / 10, low % 10]) {
                *digit = digit.saturating_add(u8::try_from(value).unwrap_or_default());
            }
            rest /= 10_000;
            if rest == 0 {
                break;
            }
        }
        digits
    }

    fn read_name(text: &[u8]) -> Option<(&[u8], &[u8])> {
        let space = text.iter().position(|byte| *byte == b' ')?;
        let length = usize::try_from(parse_integer(text.get(..space)?)?).ok()?;
        let (name, rest) = text.get(space.checked_add(1)?..)?.split_at_checked(length)?;
        Some((name, rest.strip_prefix(b" ")?))
    }

    /// An end of 19 digits and what follows it.
    fn read_end(text: &[u8]) -> Option<(Instant, &[u8])> {
        let (digits, rest) = text.split_at_checked(19)?;
        let mut nanos = 0_u64;
        for digit in digits {
            let value = digit.wrapping_sub(b'0');
            if value > 9 {
                return None;
            }
            nanos = nanos.checked_mul(10)?.checked_add(value.into())?;
        }
        Some((Instant::from_nanos(nanos)?, rest.strip_prefix(b" ")?))
    }
}
