//! From the bytes of a call to typed arguments, or to the error that the caller reads.

use core::iter::Peekable;
use core::time::Duration;

use crate::error::Error;
use crate::time::{Instant, Span, Unit};

/// An integer argument: its name in the synopsis and the values it may have on its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The argument's name in the command's synopsis.
    pub name: &'static str,
    /// The smallest value it may have.
    pub min: i64,
    /// The largest value it may have.
    pub max: i64,
}

/// A kind of limiter, as far as its arguments are concerned.
#[derive(Clone, Copy, Debug)]
pub struct Grammar {
    /// The word that begins it, in upper case.
    pub word: &'static [u8],
    /// The number of arguments after that word.
    pub arguments: Arity,
}

/// A number of arguments.
#[derive(Clone, Copy, Debug)]
pub enum Arity {
    /// Always this number.
    Always(usize),
    /// A number that depends on the first arguments; `None` if some of these are missing.
    Counted(fn(&mut dyn Iterator<Item = &[u8]>) -> Option<usize>),
}

/// How far local time is ahead of UTC, in minutes, for windows by the calendar.
pub const UTC: Range = Range { name: "UTC", min: -840, max: 840 };

/// The optional quantity of nearly every command; 1 if it is omitted.
pub const QUANTITY: Range = Range { name: "quantity", min: 0, max: i64::MAX };

/// The quantity of a settlement: charged if it is positive, given back if it is negative.
pub const DIFFERENCE: Range = Range { name: "quantity", min: -i64::MAX, max: i64::MAX };

impl Range {
    /// The integer in `bytes`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] when `bytes` are not an integer, or the integer is outside the range.
    #[inline(always)]
    pub fn parse(&self, bytes: &[u8]) -> Result<i64, Error> {
        match parse_integer(bytes) {
            Some(value) if (self.min..=self.max).contains(&value) => Ok(value),
            _ => Err(self.error()),
        }
    }

    /// The integer `value`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] when it is outside the range.
    pub fn check(&self, value: i64) -> Result<i64, Error> {
        if (self.min..=self.max).contains(&value) { Ok(value) } else { Err(self.error()) }
    }

    /// The span of time in `bytes`, an integer in `unit`s.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] when `bytes` are not an integer, or the integer is outside the range or above
    /// 292 years.
    pub fn parse_span(&self, bytes: &[u8], unit: Unit) -> Result<Span, Error> {
        let range = self.up_to(self.max.min(unit.max()));
        let units = range.parse(bytes)?;
        u64::try_from(units).ok().and_then(|units| Span::from_units(units, unit)).ok_or_else(|| range.error())
    }

    /// The instant at which a `period` of this argument that begins now is over.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] with the longest possible period, past the year 2262.
    pub(crate) fn end(&self, now: Instant, period: Span, unit: Unit) -> Result<Instant, Error> {
        now.checked_add(period).ok_or_else(|| {
            let left = now.left().as_nanos() / unit.nanos();
            self.up_to(i64::try_from(left).unwrap_or(i64::MAX)).error()
        })
    }

    /// The error that names this argument and its range.
    pub const fn error(&self) -> Error {
        Error::OutOfRange { name: self.name, min: self.min, max: self.max }
    }

    /// The same argument with a smaller maximum, as the other arguments of the call demand.
    #[must_use]
    pub const fn up_to(self, max: i64) -> Self {
        Self { max, ..self }
    }
}

/// The integer that `bytes` spell, parsed as strictly as the server's own commands do.
///
/// An optional minus sign and decimal digits without leading zeros, from -2^63 to 2^63 - 1; no spaces, no
/// plus sign. `None` for anything else.
///
/// Every call reads three arguments of a few digits and a TAT of nineteen. Without a fast path for the
/// arguments, or without [`eight_digits`] for the TAT, a call takes 2 % more instructions, twice the
/// tolerance of the check of `bench/instructions.tsv`.
///
/// Cost: one pass, at most 20 bytes are read.
#[inline]
pub fn parse_integer(bytes: &[u8]) -> Option<i64> {
    match bytes {
        // Seven digits are a number of 24 bits.
        [b'1'..=b'9', ..] if bytes.len() < 8 => {
            let mut number: i32 = 0;
            for byte in bytes {
                let digit = byte.wrapping_sub(b'0');
                if digit > 9 {
                    return None;
                }
                number = number.wrapping_mul(10).wrapping_add(digit.into());
            }
            Some(number.into())
        }
        _ => parse_long(bytes),
    }
}

/// [`parse_integer`] for integers that are long, negative or zero, and for bytes that are not an integer.
#[inline(never)]
fn parse_long(bytes: &[u8]) -> Option<i64> {
    let (negative, digits) = match bytes {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    match digits {
        [b'0'] if !negative => return Some(0),
        [b'1'..=b'9', ..] if digits.len() <= 19 => {}
        _ => return None,
    }
    let (eights, rest) = digits.as_chunks();
    let mut magnitude: u64 = 0;
    for eight in eights {
        magnitude = magnitude.wrapping_mul(100_000_000).wrapping_add(eight_digits(*eight)?);
    }
    // 19 digits stay below 2^64: nothing wraps.
    for &byte in rest {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        magnitude = magnitude.wrapping_mul(10).wrapping_add(u64::from(digit));
    }
    if negative { 0_i64.checked_sub_unsigned(magnitude) } else { i64::try_from(magnitude).ok() }
}

/// The number that eight digits spell, read as one word whose bytes are joined to pairs, then fours, then
/// eight.
fn eight_digits(bytes: [u8; 8]) -> Option<u64> {
    const ALL: u64 = 0x0101_0101_0101_0101;
    const EVERY_FOURTH: u64 = 0x0000_00ff_0000_00ff;
    // The top bit of a byte, and the number that sets it when added to a byte above 9.
    const TOP: u8 = 0x80;
    const TO_THE_TOP: u8 = TOP - 10;
    let each = |byte: u8| ALL.wrapping_mul(byte.into());
    // In memory order, so that the first digit is the lowest byte.
    let digits = u64::from_le_bytes(bytes) ^ each(b'0');
    // A byte that was not a digit is above 9 now: it has the top bit, or gets it here.
    if (digits | digits.wrapping_add(each(TO_THE_TOP))) & each(TOP) != 0 {
        return None;
    }
    let pairs = digits.wrapping_mul(10).wrapping_add(digits >> 8);
    // The upper half of each product is the sum of two pairs, each with its power of a hundred.
    let upper = (pairs & EVERY_FOURTH).wrapping_mul(100 + (1_000_000 << 32));
    let lower = ((pairs >> 16) & EVERY_FOURTH).wrapping_mul(1 + (10_000 << 32));
    Some(upper.wrapping_add(lower) >> 32)
}

/// The integer of a stored field, if the field is there and its integer is from 0 to 2^63 - 1.
pub(crate) fn parse_field(field: Option<&[u8]>) -> Option<i64> {
    field.and_then(parse_integer).filter(|&number| number >= 0)
}

/// The timeout in `bytes`, in seconds, as for the server's blocking commands: a decimal number, 0 (`None`)
/// for no limit.
///
/// A timeout is the only argument that may be a fraction, because it does not affect the limit. A timeout
/// above 0 is never read as 0, even if it is 0 as a double.
///
/// # Errors
/// [`Error::Timeout`] when `bytes` are not such a number.
pub fn parse_timeout(bytes: &[u8]) -> Result<Option<Span>, Error> {
    let text = core::str::from_utf8(bytes).map_err(|_| Error::Timeout)?;
    let seconds: f64 = text.parse().map_err(|_| Error::Timeout)?;
    let mut digits = text.bytes().take_while(|byte| !byte.eq_ignore_ascii_case(&b'e'));
    if seconds == 0.0 && !digits.any(|byte| matches!(byte, b'1'..=b'9')) {
        return Ok(None);
    }
    let timeout = Duration::try_from_secs_f64(seconds).ok().filter(|_| seconds.is_sign_positive());
    let nanos = timeout.and_then(|timeout| u64::try_from(timeout.as_nanos()).ok());
    nanos.and_then(|nanos| Span::from_nanos(nanos.max(1))).map(Some).ok_or(Error::Timeout)
}

/// A word that a command may accept after its positional arguments, in addition to the unit of time, which
/// all of them accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TailOption {
    /// `SATURATE`: take as many units as fit.
    Saturate,
    /// `PREPAY`: let the next caller wait for this call's cost.
    Prepay,
    /// `MAXWAIT wait`: refuse a longer wait.
    MaxWait,
    /// `UTC minutes`: the offset of a calendar.
    Utc,
    /// `FROM day`: the day on which a calendar's weeks or months begin, and its range.
    From(Range),
    /// A word that the command accepts, but not together with the other arguments of this call.
    Excluded(&'static [u8]),
}

/// The arguments after the positional ones: the quantity and the options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tail {
    /// The quantity to take; 1 if it is omitted.
    pub quantity: i64,
    /// The unit of every time in the call and in its reply.
    pub unit: Unit,
    /// `SATURATE` was given.
    pub saturate: bool,
    /// `PREPAY` was given.
    pub prepay: bool,
    /// The minutes of `UTC`.
    pub utc: Option<i64>,
    /// The day of `FROM`.
    pub from: Option<i64>,
    /// The longest acceptable wait, in units.
    max_wait: Option<i64>,
}

const MAX_WAIT: Range = Range { name: "MAXWAIT", min: 0, max: i64::MAX };

impl Default for Tail {
    fn default() -> Self {
        Self {
            quantity: 1,
            unit: Unit::default(),
            saturate: false,
            prepay: false,
            utc: None,
            from: None,
            max_wait: None,
        }
    }
}

impl Tail {
    /// Reads `[quantity] [options in any order]`.
    ///
    /// Options are read in upper and lower case.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] naming the quantity or the option whose number is wrong; [`Error::Syntax`] for a
    /// word that is not in `known`, is given twice, or lacks its value.
    pub fn parse<'a>(args: impl IntoIterator<Item = &'a [u8]>, known: &[TailOption]) -> Result<Self, Error> {
        Self::parse_within(args, known, &QUANTITY)
    }

    /// [`parse`](Self::parse) for a command whose quantity has a range of its own.
    ///
    /// # Errors
    /// As [`parse`](Self::parse).
    #[inline]
    pub fn parse_within<'a>(
        args: impl IntoIterator<Item = &'a [u8]>,
        known: &[TailOption],
        range: &Range,
    ) -> Result<Self, Error> {
        let mut args = args.into_iter().peekable();
        if args.peek().is_none() {
            return Ok(Self::default()); // by far most calls
        }
        Self::parse_words(args, known, range)
    }

    /// [`parse_within`](Self::parse_within) for calls that have options; separate, so that other calls need
    /// not call it.
    #[inline(never)]
    fn parse_words<'a>(
        mut args: Peekable<impl Iterator<Item = &'a [u8]>>,
        known: &[TailOption],
        range: &Range,
    ) -> Result<Self, Error> {
        let (mut quantity, mut unit, mut max_wait) = (None, None, None);
        let (mut saturate, mut prepay) = (false, false);
        let (mut utc, mut from) = (None, None);

        let is_option =
            |word: &&[u8]| Unit::parse(word).is_some() || TailOption::parse(word, known).is_some();
        if let Some(word) = args.next_if(|word| !is_option(word)) {
            quantity = Some(range.parse(word)?);
        }
        while let Some(word) = args.next() {
            if let Some(named) = Unit::parse(word) {
                once(&mut unit, named)?;
                continue;
            }
            let mut value = |range: &Range| range.parse(args.next().ok_or(Error::Syntax)?);
            match TailOption::parse(word, known).ok_or(Error::Syntax)? {
                TailOption::Saturate => once_flag(&mut saturate)?,
                TailOption::Prepay => once_flag(&mut prepay)?,
                TailOption::MaxWait => once(&mut max_wait, value(&MAX_WAIT)?)?,
                TailOption::Utc => once(&mut utc, value(&UTC)?)?,
                TailOption::From(days) => once(&mut from, value(&days)?)?,
                TailOption::Excluded(_) => return Err(Error::Syntax),
            }
        }
        let (quantity, unit) = (quantity.unwrap_or(1), unit.unwrap_or_default());
        Ok(Self { quantity, unit, saturate, prepay, utc, from, max_wait })
    }

    /// Reads `[unit]`, the only word that may follow the arguments of a command whose quantity is not
    /// optional.
    ///
    /// # Errors
    /// [`Error::Syntax`] for anything else.
    pub fn parse_unit<'a>(args: impl IntoIterator<Item = &'a [u8]>) -> Result<Unit, Error> {
        let mut args = args.into_iter();
        let unit = args.next().map_or(Some(Unit::default()), Unit::parse);
        unit.filter(|_| args.next().is_none()).ok_or(Error::Syntax)
    }

    /// The longest acceptable wait, `None` for any.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] when it is longer than 292 years.
    pub fn max_wait(&self) -> Result<Option<Span>, Error> {
        let Some(units) = self.max_wait else {
            return Ok(None);
        };
        let span = u64::try_from(units).ok().and_then(|units| Span::from_units(units, self.unit));
        span.map(Some).ok_or_else(|| MAX_WAIT.up_to(self.unit.max()).error())
    }
}

impl TailOption {
    pub(crate) fn parse(word: &[u8], known: &[Self]) -> Option<Self> {
        known.iter().copied().find(|keyword| word.eq_ignore_ascii_case(keyword.token()))
    }

    const fn token(self) -> &'static [u8] {
        match self {
            Self::Saturate => b"SATURATE",
            Self::Prepay => b"PREPAY",
            Self::MaxWait => b"MAXWAIT",
            Self::Utc => b"UTC",
            Self::From(_) => b"FROM",
            Self::Excluded(token) => token,
        }
    }
}

pub(crate) fn once<T>(place: &mut Option<T>, value: T) -> Result<(), Error> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(Error::Syntax),
    }
}

fn once_flag(place: &mut bool) -> Result<(), Error> {
    if core::mem::replace(place, true) { Err(Error::Syntax) } else { Ok(()) }
}
