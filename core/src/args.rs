//! From the bytes of a call to typed arguments, or to the error that the caller reads.

use core::iter::Peekable;
use core::time::Duration;

use crate::{Error, Span, Unit};

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

/// The optional quantity of nearly every command; 1 when the call names none.
pub const QUANTITY: Range = Range { name: "quantity", min: 0, max: i64::MAX };

impl Range {
    /// The integer in `bytes`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] when `bytes` are no integer or the integer is outside the range.
    pub fn parse(&self, bytes: &[u8]) -> Result<i64, Error> {
        match parse_integer(bytes) {
            Some(value) if (self.min..=self.max).contains(&value) => Ok(value),
            _ => Err(self.error()),
        }
    }

    /// The error that names this argument and its range.
    pub const fn error(&self) -> Error {
        Error::OutOfRange { name: self.name, min: self.min, max: self.max }
    }

    /// The same argument with a smaller largest value, as its neighbours in the call demand.
    #[must_use]
    pub const fn up_to(self, max: i64) -> Self {
        Self { max, ..self }
    }
}

/// The integer that `bytes` spell, as strictly as the server's own commands read one.
///
/// An optional minus sign and decimal digits without leading zeros, from -2^63 to 2^63 - 1; nothing else, no blanks,
/// no plus sign. `None` for everything else.
///
/// Cost: one pass, at most 20 bytes are looked at.
#[inline]
pub fn parse_integer(bytes: &[u8]) -> Option<i64> {
    match bytes {
        // Nearly every argument; seven digits are a number of 24 bits.
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

/// [`parse_integer`] for those that are long, negative, zero, or none.
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
    // 19 digits stay below 2^64: wrapping cannot happen, and costs less than a check on each digit.
    let (eights, rest) = digits.as_chunks();
    let mut magnitude: u64 = 0;
    for eight in eights {
        magnitude = magnitude.wrapping_mul(100_000_000).wrapping_add(eight_digits(*eight)?);
    }
    for &byte in rest {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        magnitude = magnitude.wrapping_mul(10).wrapping_add(u64::from(digit));
    }
    if negative { 0_i64.checked_sub_unsigned(magnitude) } else { i64::try_from(magnitude).ok() }
}

/// The number that eight digits are, read as one word: neighbours are joined to pairs, pairs to fours, fours to eight. A
/// TAT has nineteen digits and is read by every call, so a step for each of them would show.
fn eight_digits(bytes: [u8; 8]) -> Option<u64> {
    const ALL: u64 = 0x0101_0101_0101_0101;
    const EVERY_FOURTH: u64 = 0x0000_00ff_0000_00ff;
    // In memory order, so that the first digit is the lowest byte.
    let digits = u64::from_le_bytes(bytes) ^ (ALL.wrapping_mul(0x30));
    // What was no digit is above 9 now: it has the top bit, or gets it when 0x76 is added.
    if (digits | digits.wrapping_add(ALL.wrapping_mul(0x76))) & ALL.wrapping_mul(0x80) != 0 {
        return None;
    }
    let pairs = digits.wrapping_mul(10).wrapping_add(digits >> 8);
    // Multiplied so, the upper half holds the first pair of each four a hundred times, and the fours as they add up.
    let upper = (pairs & EVERY_FOURTH).wrapping_mul(100 + (1_000_000 << 32));
    let lower = ((pairs >> 16) & EVERY_FOURTH).wrapping_mul(1 + (10_000 << 32));
    Some(upper.wrapping_add(lower) >> 32)
}

/// The integer of a stored field, if the field is there and its integer is from 0 to 2^63 - 1.
pub(crate) fn parse_field(field: Option<&[u8]>) -> Option<i64> {
    field.and_then(parse_integer).filter(|&number| number >= 0)
}

/// The timeout in `bytes`, in seconds as blocking commands have it: a decimal number, 0 (`None`) for no limit.
///
/// The one place where a fraction is read: how long a caller is ready to wait decides nothing about its limit.
///
/// # Errors
/// [`Error::Timeout`] when `bytes` are no such number.
pub fn parse_timeout(bytes: &[u8]) -> Result<Option<Span>, Error> {
    let seconds = core::str::from_utf8(bytes).ok().and_then(|text| text.parse::<f64>().ok());
    let timeout = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).and_then(|timeout| {
        // However short, a timeout is not none.
        let least = u64::from(seconds.is_some_and(|seconds| seconds > 0.0));
        Span::from_nanos(u64::try_from(timeout.as_nanos()).ok()?.max(least))
    });
    let timeout = timeout.ok_or(Error::Timeout)?;
    Ok(Some(timeout).filter(|&timeout| timeout > Span::ZERO))
}

/// A word that a command may know behind its positional arguments, beside the unit of time that all of them know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keyword {
    /// `SATURATE`: take what fits.
    Saturate,
    /// `PREPAY`: let the next caller wait for this call's cost.
    Prepay,
    /// `MAXWAIT wait`: refuse a longer wait.
    MaxWait,
    /// `QUANTITY n`, where the quantity is not positional.
    Quantity,
}

/// What stands behind the positional arguments: the quantity and the options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tail {
    /// What to take, 1 when the call names nothing.
    pub quantity: i64,
    /// The unit of every time in the call and in its reply.
    pub unit: Unit,
    /// `SATURATE` was given.
    pub saturate: bool,
    /// `PREPAY` was given.
    pub prepay: bool,
    /// The longest acceptable wait, in units.
    max_wait: Option<i64>,
}

const MAX_WAIT: Range = Range { name: "MAXWAIT", min: 0, max: i64::MAX };

impl Default for Tail {
    fn default() -> Self {
        Self { quantity: 1, unit: Unit::default(), saturate: false, prepay: false, max_wait: None }
    }
}

impl Tail {
    /// Reads `[quantity] [options in any order]`, where a command with the keyword [`Keyword::Quantity`] has no
    /// positional quantity.
    ///
    /// Keywords are read in upper and lower case.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] naming the quantity or the option whose number is wrong; [`Error::Syntax`] for a word
    /// that is not in `known`, is given twice, or lacks its value.
    pub fn parse<'a>(args: impl IntoIterator<Item = &'a [u8]>, known: &[Keyword]) -> Result<Self, Error> {
        Self::parse_within(args, known, &QUANTITY)
    }

    /// [`parse`](Self::parse) for a command whose quantity has a range of its own.
    ///
    /// # Errors
    /// As [`parse`](Self::parse).
    #[inline]
    pub fn parse_within<'a>(
        args: impl IntoIterator<Item = &'a [u8]>,
        known: &[Keyword],
        range: &Range,
    ) -> Result<Self, Error> {
        let mut args = args.into_iter().peekable();
        if args.peek().is_none() {
            return Ok(Self::default()); // by far most calls
        }
        Self::parse_words(args, known, range)
    }

    /// [`parse_within`](Self::parse_within) for those who have words there; apart, so that the others need not call it.
    #[inline(never)]
    fn parse_words<'a>(
        mut args: Peekable<impl Iterator<Item = &'a [u8]>>,
        known: &[Keyword],
        range: &Range,
    ) -> Result<Self, Error> {
        let (mut quantity, mut unit, mut max_wait) = (None, None, None);
        let (mut saturate, mut prepay) = (false, false);

        let is_option = |word: &&[u8]| Unit::parse(word).is_some() || Keyword::parse(word, known).is_some();
        if !known.contains(&Keyword::Quantity)
            && let Some(word) = args.next_if(|word| !is_option(word))
        {
            quantity = Some(range.parse(word)?);
        }
        while let Some(word) = args.next() {
            if let Some(named) = Unit::parse(word) {
                once(&mut unit, named)?;
                continue;
            }
            let mut value = |range: &Range| range.parse(args.next().ok_or(Error::Syntax)?);
            match Keyword::parse(word, known).ok_or(Error::Syntax)? {
                Keyword::Saturate => once_flag(&mut saturate)?,
                Keyword::Prepay => once_flag(&mut prepay)?,
                Keyword::MaxWait => once(&mut max_wait, value(&MAX_WAIT)?)?,
                Keyword::Quantity => once(&mut quantity, value(range)?)?,
            }
        }
        let (quantity, unit) = (quantity.unwrap_or(1), unit.unwrap_or_default());
        Ok(Self { quantity, unit, saturate, prepay, max_wait })
    }

    /// Reads `[unit]`, all that may stand behind the arguments of a command whose quantity is not optional.
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

impl Keyword {
    fn parse(word: &[u8], known: &[Self]) -> Option<Self> {
        known.iter().copied().find(|keyword| word.eq_ignore_ascii_case(keyword.token()))
    }

    const fn token(self) -> &'static [u8] {
        match self {
            Self::Saturate => b"SATURATE",
            Self::Prepay => b"PREPAY",
            Self::MaxWait => b"MAXWAIT",
            Self::Quantity => b"QUANTITY",
        }
    }
}

fn once<T>(place: &mut Option<T>, value: T) -> Result<(), Error> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(Error::Syntax),
    }
}

fn once_flag(place: &mut bool) -> Result<(), Error> {
    if core::mem::replace(place, true) { Err(Error::Syntax) } else { Ok(()) }
}
