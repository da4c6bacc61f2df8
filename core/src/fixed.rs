//! The fixed window: a count of units until an instant.
//!
//! A window opens with the first call that takes units, and admits `limit` units until it ends. The state is
//! a count and the end:
//!
//! ```text
//! used = count, or 0 when no window is open
//! admitted, count := used + quantity,   when used + quantity <= limit
//! refused until the window ends,        otherwise
//! ```
//!
//! The end is computed when the window opens, and never again: it lies a period later, at the next boundary
//! of a [calendar](crate::calendar), or at the instant that the caller names. So an open window is neither
//! moved, reset nor doubled by a wrong clock, another time zone or another period.
//!
//! Keys expire at whole milliseconds, and so do windows: a period, also an idle one, begins at the start of
//! the millisecond in which its window is first used, and a period or an instant that is not a whole number
//! of milliseconds is rounded up to one. Proved for all inputs in `verify/proofs`, of periods:
//! `a_fixed_window_is_as_long_as_it_says`.
//!
//! A window may also have no end. Such a total counts forever, and admits `limit` units in all: the budget of
//! a run, or units that were bought. Its key keeps the expiry that it has, if any. If the limit names an idle
//! time, the key expires when nothing was taken for that long.
//!
//! Nothing is carried over: a caller that spends the units of one window at its end and the units of the next
//! one at its start gets `2 * limit` within a short time.
//!
//! # Counts and the states of GCRA
//! Both are integers in a string that expires. A TAT is an instant, and its key expires at that very instant.
//! So a count that is, as nanoseconds since the epoch, within a [minute](NEAR_EXPIRY) of its key's expiry is
//! taken for a TAT. No such count is ever written: it would have to be above 10^18 and in that minute by
//! chance, and a call that would write it is an error. The minute is for a TAT whose expiry another server
//! has computed by another clock. A count whose key does not expire is taken for a TAT from
//! [10^18](LEAST_TAT) on, which was an instant in the year 2001.

use core::num::NonZeroU64;

use crate::args::{Arity, Grammar, Range, TailOption, parse_integer};
use crate::calendar::{Calendar, Cycle, DAY_OF_MONTH, WEEKDAY};
use crate::limiter::limiter;
use crate::rate::period_of;
use crate::window::{LAST_MILLISECOND, fits};
use crate::{
    Answer, DIFFERENCE, Decision, Error, Instant, PERIOD, QUANTITY, Span, Stretch, Taken, Unit, Verdict,
};

/// The syntax among several limiters: `FIXED limit window [UTC minutes] [FROM day] quantity`, where the
/// window may be `TOTAL [IDLE period]`.
pub const GRAMMAR: Grammar = Grammar { word: b"FIXED", arguments: Arity::Counted(arguments) };

/// The first number of a limit: units per window.
pub const LIMIT: Range = Range { name: "limit", min: 1, max: i64::MAX };

/// The end of a window in units of time since the epoch.
pub const UNTIL: Range = Range { name: "UNTIL", min: 0, max: i64::MAX };

/// The time for which a total must be idle to be forgotten, in units of time.
const IDLE: Range = Range { name: "IDLE", ..PERIOD };

/// The window of a limit as given in the arguments of a call, before the unit of the call is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window<'a> {
    /// `period`
    Period(&'a [u8]),
    /// `HOUR`, `DAY`, `WEEK`, `MONTH` or `YEAR`
    Calendar(Cycle),
    /// `UNTIL instant`
    Until(&'a [u8]),
    /// `TOTAL [IDLE period]`
    Total {
        /// The period of `IDLE`.
        idle: Option<&'a [u8]>,
    },
}

impl<'a> Window<'a> {
    /// Reads `period | HOUR | DAY | WEEK | MONTH | YEAR | UNTIL instant | TOTAL [IDLE period]`, and no
    /// argument after it.
    ///
    /// Options are matched in upper and lower case; any other word is a period.
    ///
    /// # Errors
    /// [`Error::Syntax`] when an argument is missing.
    #[inline]
    pub fn parse(words: &mut (impl Iterator<Item = &'a [u8]> + Clone)) -> Result<Self, Error> {
        match words.next().ok_or(Error::Syntax)? {
            period @ [b'0'..=b'9', ..] => Ok(Self::Period(period)), // by far most calls
            word => Self::parse_word(word, words),
        }
    }

    #[inline(never)]
    fn parse_word(
        word: &'a [u8],
        words: &mut (impl Iterator<Item = &'a [u8]> + Clone),
    ) -> Result<Self, Error> {
        const CYCLES: [(&[u8], Cycle); 5] = [
            (b"HOUR", Cycle::Hour),
            (b"DAY", Cycle::Day),
            (b"WEEK", Cycle::Week),
            (b"MONTH", Cycle::Month),
            (b"YEAR", Cycle::Year),
        ];
        if let Some(&(_, cycle)) = CYCLES.iter().find(|(name, _)| word.eq_ignore_ascii_case(name)) {
            return Ok(Self::Calendar(cycle));
        }
        Self::parse_rare_word(word, words)
    }

    #[inline(never)]
    fn parse_rare_word(
        word: &'a [u8],
        words: &mut (impl Iterator<Item = &'a [u8]> + Clone),
    ) -> Result<Self, Error> {
        if word.eq_ignore_ascii_case(b"UNTIL") {
            return words.next().map(Self::Until).ok_or(Error::Syntax);
        }
        if word.eq_ignore_ascii_case(b"TOTAL") {
            let has_idle = words.clone().next().is_some_and(|word| word.eq_ignore_ascii_case(b"IDLE"));
            let idle = has_idle.then(|| words.nth(1).ok_or(Error::Syntax)).transpose()?;
            return Ok(Self::Total { idle });
        }
        Ok(Self::Period(word))
    }

    /// The keywords that `CL.FIXED` accepts with this window.
    pub const fn keywords(&self) -> &'static [TailOption] {
        use TailOption::{Excluded, From, Saturate, Utc};
        const NO_FROM: TailOption = Excluded(b"FROM");
        const NO_IDLE: TailOption = Excluded(b"IDLE"); // of TOTAL, it was read already
        match self {
            Self::Calendar(Cycle::Week) => &[Saturate, Utc, From(WEEKDAY), NO_IDLE],
            Self::Calendar(Cycle::Month) => &[Saturate, Utc, From(DAY_OF_MONTH), NO_IDLE],
            Self::Calendar(_) => &[Saturate, Utc, NO_FROM, NO_IDLE],
            Self::Period(_) | Self::Until(_) | Self::Total { .. } => {
                &[Saturate, Excluded(b"UTC"), NO_FROM, NO_IDLE]
            }
        }
    }

    /// Reads `[UTC minutes] [FROM day]`, in any order, and no argument after them.
    fn parse_options(
        &self,
        words: &mut (impl Iterator<Item = &'a [u8]> + Clone),
    ) -> Result<[Option<i64>; 2], Error> {
        let (mut utc, mut from) = (None, None);
        while let Some(word) = words.clone().next().filter(is_option) {
            words.next();
            let (place, range) = match TailOption::parse(word, self.keywords()) {
                Some(TailOption::Utc) => (&mut utc, crate::calendar::UTC),
                Some(TailOption::From(days)) => (&mut from, days),
                _ => return Err(Error::Syntax),
            };
            if place.replace(range.parse(words.next().ok_or(Error::Syntax)?)?).is_some() {
                return Err(Error::Syntax);
            }
        }
        Ok([utc, from])
    }
}

fn is_option(word: &&[u8]) -> bool {
    // Most words are quantities.
    word.first().is_some_and(u8::is_ascii_alphabetic)
        && [&b"UTC"[..], b"FROM", b"IDLE"].iter().any(|option| word.eq_ignore_ascii_case(option))
}

/// The number of arguments that a fixed window has among several limiters,
/// `limit window [UTC minutes] [FROM day] quantity`, when the first of these are `words`; `None` when some
/// are missing.
pub fn arguments(words: &mut dyn Iterator<Item = &[u8]>) -> Option<usize> {
    words.next()?;
    let mut count: usize = 3; // the limit, the window and the quantity
    if words.next()?.eq_ignore_ascii_case(b"UNTIL") {
        words.next()?;
        count = 4;
    }
    while is_option(&words.next()?) && words.next().is_some() {
        count = count.checked_add(2)?;
    }
    Some(count)
}

/// The end of a window that opens now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// This many nanoseconds later.
    After(NonZeroU64),
    /// At the next boundary of a calendar.
    Boundary(Calendar),
    /// At this instant.
    At(Instant),
    /// Never. With a span, the key expires when nothing has been taken for that long.
    Never(Option<Span>),
}

/// A limit: a number of units per window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    most: i64,
    end: End,
    unit: Unit,
}

impl Limit {
    /// The limit given by the arguments of a call: `limit`, its window, and the numbers of `UTC` and `FROM`.
    /// The period of the window, or its end, is in `unit`s.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] naming the argument that is not an integer or is out of range, [`Error::Window`]
    /// for a window that is an unknown word, [`Error::Syntax`] for an option that the window does not have.
    ///
    /// # Example
    /// ```
    /// # use redis_cell_core::Unit;
    /// # use redis_cell_core::calendar::Cycle;
    /// # use redis_cell_core::fixed::{Limit, Window};
    /// let parse = |limit, window| Limit::parse(limit, window, [None, None], Unit::Seconds);
    /// assert!(parse(b"5", Window::Period(b"60")).is_ok());
    /// assert!(parse(b"5", Window::Calendar(Cycle::Month)).is_ok());
    /// assert!(parse(b"0", Window::Period(b"60")).is_err());
    /// ```
    #[inline(always)]
    pub fn parse(limit: &[u8], window: Window, options: [Option<i64>; 2], unit: Unit) -> Result<Self, Error> {
        let most = LIMIT.parse(limit)?;
        match (window, options) {
            (Window::Period(period), [None, None]) => match PERIOD.up_to(unit.max()).parse(period) {
                Ok(period) => Self::new(most, period, unit),
                Err(error) => Err(no_period(period, unit).unwrap_or(error)),
            },
            _ => Self::parse_other(most, window, options, unit),
        }
    }

    #[inline(never)]
    fn parse_other(
        most: i64,
        window: Window,
        [utc, from]: [Option<i64>; 2],
        unit: Unit,
    ) -> Result<Self, Error> {
        match window {
            Window::Calendar(cycle) => {
                Self::by_calendar(most, Calendar::new(cycle, utc.unwrap_or_default(), from)?)
            }
            other => Self::parse_rare(most, other, utc.or(from), unit),
        }
    }

    #[inline(never)]
    fn parse_rare(most: i64, window: Window, option: Option<i64>, unit: Unit) -> Result<Self, Error> {
        match window {
            _ if option.is_some() => Err(Error::Syntax),
            Window::Until(instant) => Self::until(most, until(unit).parse(instant)?, unit),
            Window::Total { idle } => {
                let idle = idle.map(|period| IDLE.parse_span(period, unit)).transpose()?;
                Ok(Self { most, end: End::Never(idle), unit })
            }
            Window::Calendar(_) | Window::Period(_) => Err(Error::Syntax),
        }
    }

    /// Reads `limit window [UTC minutes] [FROM day]`, the arguments of a fixed window among several limiters,
    /// and stops before the quantity.
    ///
    /// # Errors
    /// As [`Limit::parse`], and [`Error::Syntax`] when an argument is missing.
    pub fn parse_words<'a>(
        words: &mut (impl Iterator<Item = &'a [u8]> + Clone),
        unit: Unit,
    ) -> Result<Self, Error> {
        let limit = words.next().ok_or(Error::Syntax)?;
        let window = Window::parse(words)?;
        let options = window.parse_options(words)?;
        Self::parse(limit, window, options, unit)
    }

    /// The limit of `limit` units per window of `period` units of time.
    ///
    /// # Errors
    /// As [`Limit::parse`].
    pub fn new(limit: i64, period: i64, unit: Unit) -> Result<Self, Error> {
        Ok(Self { most: LIMIT.check(limit)?, end: End::After(period_of(period, unit)?), unit })
    }

    /// The limit of `limit` units per window of the calendar.
    ///
    /// # Errors
    /// As [`Limit::parse`].
    pub fn by_calendar(limit: i64, calendar: Calendar) -> Result<Self, Error> {
        Ok(Self { most: LIMIT.check(limit)?, end: End::Boundary(calendar), unit: Unit::default() })
    }

    /// The limit of `limit` units until `instant`, in units of time since the epoch.
    ///
    /// # Errors
    /// As [`Limit::parse`].
    pub fn until(limit: i64, instant: i64, unit: Unit) -> Result<Self, Error> {
        let range = until(unit);
        let units = u64::try_from(range.check(instant)?).ok();
        let end = units.and_then(|units| Span::from_units(units, unit));
        let end = end.and_then(|end| Instant::from_nanos(end.as_nanos())).ok_or_else(|| range.error())?;
        Ok(Self { most: LIMIT.check(limit)?, end: End::At(end), unit })
    }

    /// The limit of `limit` units in all. If a period of `idle` units of time is given, the count is
    /// forgotten when nothing was taken for that long.
    ///
    /// # Errors
    /// As [`Limit::parse`].
    pub fn total(limit: i64, idle: Option<i64>, unit: Unit) -> Result<Self, Error> {
        let idle = idle.map(|idle| {
            let range = IDLE.up_to(unit.max());
            let units = u64::try_from(range.check(idle)?).ok();
            units.and_then(|units| Span::from_units(units, unit)).ok_or_else(|| range.error())
        });
        Ok(Self { most: LIMIT.check(limit)?, end: End::Never(idle.transpose()?), unit })
    }

    /// Whether the window has no end.
    pub const fn is_total(&self) -> bool {
        matches!(self.end, End::Never(_))
    }

    /// Whether the window has no end, but is forgotten when it is idle.
    pub const fn idles(&self) -> bool {
        matches!(self.end, End::Never(Some(_)))
    }

    /// The instant at which the key of a total expires after a take, when it would expire at `end`.
    fn renewed(&self, idle: Option<Span>, end: Instant, now: Instant) -> Result<Instant, Error> {
        let Some(idle) = idle else { return Ok(end) };
        let renewed =
            now.floor_to_millis().checked_add(idle).and_then(Instant::ceil_to_millis).ok_or_else(|| {
                let left = LAST_MILLISECOND.since(now).as_nanos() / self.unit.nanos();
                IDLE.up_to(left.cast_signed()).error()
            })?;
        Ok(if end == Instant::MAX { renewed } else { end.max(renewed) })
    }

    /// The state of a total with an idle time, if units of it are held until the millisecond `end`; any other
    /// state unchanged.
    pub fn lasts(&self, counter: Counter, end: Instant) -> Counter {
        Counter { end: if self.idles() { counter.end.max(end) } else { counter.end }, ..counter }
    }

    /// Whether this is a total whose key does not expire by itself.
    pub fn never_expires(&self) -> bool {
        self.end == End::Never(None)
    }

    /// Checks that a period ends before the year 2262, whether a window opens or not.
    fn check(&self, now: Instant) -> Result<(), Error> {
        if let End::After(period) = self.end { fits(period, self.unit, now, 1) } else { Ok(()) }
    }

    /// The end of a window that opens at `now`: a whole millisecond after it.
    #[inline(never)]
    fn end_from(&self, now: Instant) -> Result<Instant, Error> {
        let end = match self.end {
            End::After(period) => {
                Span::from_nanos(period.get()).and_then(|period| now.floor_to_millis().checked_add(period))
            }
            End::Boundary(calendar) => Some(calendar.window_of(now)?.1),
            End::At(_) if self.has_passed(now) => {
                let passed = (now.as_nanos() / self.unit.nanos()).cast_signed();
                return Err(Range { min: passed.saturating_add(1), ..until(self.unit) }.error());
            }
            End::At(end) => Some(end),
            End::Never(_) => return Ok(Instant::MAX),
        };
        end.and_then(Instant::ceil_to_millis).ok_or(Error::BeyondTime)
    }

    /// Whether the window that this limit names has ended, so that no window opens.
    fn has_passed(&self, now: Instant) -> bool {
        matches!(self.end, End::At(end) if end <= now)
    }

    /// Whether the units may have been `taken` from the window that ends at `end`.
    fn covers(&self, end: Instant, now: Instant, taken: &Taken) -> bool {
        // The window from which they were taken ended later than this.
        let lasted = |reset_after: Span| reset_after.saturating_sub(taken.unit_span());
        let (start, slack) = match self.end {
            End::After(period) => {
                // A period of a window begins and ends at whole milliseconds.
                let period = Span::from_nanos(period.get().div_ceil(1_000_000).saturating_mul(1_000_000));
                // The call that opened the window is as old as the window, and its age is rounded up.
                let slack = taken.reset_after.map_or(taken.unit_span(), lasted);
                (end.saturating_sub(period.unwrap_or(Span::MAX)), slack)
            }
            End::Boundary(calendar) => {
                let start_of = |end: Instant| {
                    let window = calendar.window_of(end.saturating_sub(Span::NANOSECOND));
                    window.ok().map(|(start, _)| start)
                };
                // A window whose key was moved may end after the boundary at which it was to end.
                let start = start_of(end).and_then(|boundary| {
                    if is_window(boundary, end, now) { start_of(boundary) } else { Some(boundary) }
                });
                let Some(start) = start else { return false };
                (start, taken.reset_after.map_or(Span::ZERO, lasted))
            }
            End::At(own) => return own.ceil_to_millis().is_some_and(|own| is_window(own, end, now)),
            End::Never(_) => return true,
        };
        start.since(now.saturating_sub(taken.age)) <= slack
    }

    /// The answer of a call that is served, with the count `used` after it and the time `left` until the
    /// window ends.
    fn admitted(&self, used: i64, left: Span) -> Answer {
        Answer {
            verdict: Verdict::Admitted,
            limit: self.most,
            remaining: self.most.saturating_sub(used).max(0),
            reset_after: left,
            taken: None,
        }
    }

    /// The answer of a call for `quantity` that is not served.
    fn refused(&self, used: i64, left: Span, quantity: i64) -> Answer {
        let verdict = if quantity > self.most { Verdict::Never } else { Verdict::Later(left) };
        Answer { verdict, ..self.admitted(used, left) }
    }

    /// The answer that describes a state: limited while more than the limit is used.
    fn standing(&self, used: i64, left: Span) -> Answer {
        if used > self.most { self.refused(used, left, 1) } else { self.admitted(used, left) }
    }
}

/// The error for a period that is a word, and so was meant for another kind of window.
#[cold]
fn no_period(period: &[u8], unit: Unit) -> Option<Error> {
    period.first().filter(|byte| byte.is_ascii_alphabetic()).map(|_| Error::Window { longest: unit.max() })
}

/// The instants that a window may end at in this unit: those at which a key can expire.
fn until(unit: Unit) -> Range {
    UNTIL.up_to((LAST_MILLISECOND.as_nanos() / unit.nanos()).cast_signed())
}

limiter!(Counter, take);

/// The state: the units admitted in the window, and the instant at which it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Counter {
    /// Units admitted.
    pub count: i64,
    /// The first instant after the window: a whole millisecond, at which its key expires. [`Instant::MAX`]
    /// for a total whose key does not expire.
    pub end: Instant,
}

/// How close a count may be to its key's expiry, in nanoseconds since the epoch, without being taken for a
/// TAT.
pub const NEAR_EXPIRY: Span = Span::from_nanos(60_000_000_000).unwrap();

/// The end of a total whose key expires after the last instant, which is not the same as never.
const FAR_END: Instant = Instant::MAX.saturating_sub(Span::NANOSECOND);

/// The smallest count that is taken for a TAT if its key does not expire.
pub const LEAST_TAT: i64 = 1_000_000_000_000_000_000;

impl Counter {
    /// The content of a key of this limiter, for the error of a key that holds something else.
    pub const EXPECTED: &str = "a count that expires with its window";

    /// The same for a total.
    pub const EXPECTED_OF_TOTAL: &str = "a count, below 10^18 if it does not expire";

    /// Reads the stored bytes of a key that expires at `expiry`.
    ///
    /// # Errors
    /// [`Error::Foreign`] when they are not a decimal integer from 0 to 2^63 - 1, when the key does not
    /// expire, or when they are the state of GCRA.
    pub fn decode(bytes: &[u8], expiry: Option<Instant>) -> Result<Self, Error> {
        let count = parse_integer(bytes).filter(|&count| count >= 0);
        count
            .zip(expiry)
            .map(|(count, end)| Self { count, end })
            .filter(|counter| !counter.reads_as_tat())
            .ok_or(Error::Foreign { expected: Self::EXPECTED })
    }

    /// This window, and the present instant on the clock that opened it, when `now` was read from a clock
    /// that was set back; `past` has the latest stretch first. `None` for a window that has ended.
    ///
    /// A window with a period was opened in the latest stretch in which that was possible, and follows the
    /// clock of that stretch. A calendar window follows the present clock: if more is left of it than such a
    /// window can have, it ends at the first boundary after its end without the step, or after now if the
    /// clock was wrong by more than such a window.
    pub fn after_steps(
        self,
        limit: &Limit,
        now: Instant,
        mut past: impl Iterator<Item = Stretch>,
    ) -> (Option<Self>, Instant) {
        let ends_with = |stretch: &Stretch| self.end.saturating_sub(stretch.step);
        let (end, now) = match limit.end {
            End::After(period) => {
                let stretch = past.find(|stretch| {
                    let opened = ends_with(stretch).as_nanos().saturating_sub(period.get());
                    (stretch.from.floor_to_millis().as_nanos()..=stretch.until.as_nanos()).contains(&opened)
                });
                let step = stretch.map_or(Span::ZERO, |stretch| stretch.step);
                match now.checked_add(step) {
                    Some(then) if then < self.end => (self.end, then),
                    _ => return (None, now),
                }
            }
            End::Boundary(calendar) => {
                let longest = calendar.longest();
                let stretch = past.find(|stretch| ends_with(stretch).since(now) <= longest);
                let boundary = match stretch {
                    Some(stretch) if stretch.step == Span::ZERO => None,
                    Some(stretch) if stretch.step <= longest => Some(ends_with(&stretch)),
                    _ => now.checked_add(Span::NANOSECOND),
                };
                let before = boundary.map(|boundary| boundary.saturating_sub(Span::NANOSECOND));
                let window = before.and_then(|before| calendar.window_of(before.max(now)).ok());
                (window.map_or(self.end, |(_, end)| end), now)
            }
            End::At(_) | End::Never(_) => (self.end, now),
        };
        (Some(Self { end, ..self }), now)
    }

    /// Reads the stored bytes of the key of a total, which expires at `expiry`, if it does.
    ///
    /// # Errors
    /// [`Error::Foreign`] when they are not a decimal integer from 0 to 2^63 - 1, or when they are the
    /// state of GCRA.
    pub fn decode_total(bytes: &[u8], expiry: Option<Instant>) -> Result<Self, Error> {
        let end = expiry.map_or(Instant::MAX, |expiry| expiry.min(FAR_END));
        let total = Self::decode(bytes, Some(end)).ok();
        total.filter(|total| !total.is_too_high()).ok_or(Error::Foreign { expected: Self::EXPECTED_OF_TOTAL })
    }

    /// Whether the key of this counter keeps the expiry that it has, because no instant is after it.
    pub fn outlasts_time(&self) -> bool {
        self.end > LAST_MILLISECOND
    }

    /// The state after `units`, at least 0, have come back; `None` when nothing is left.
    pub fn without(self, units: i64) -> Option<Self> {
        let left = Self { count: self.count.saturating_sub(units), ..self };
        // A count that would read as the state of another limiter is not stored.
        if left.reads_as_tat() { Some(self) } else { Some(left).filter(|left| left.count > 0) }
    }

    fn reads_as_tat(&self) -> bool {
        let tat = Instant::saturating_from_nanos(self.count.unsigned_abs());
        tat.since(self.end) <= NEAR_EXPIRY && self.end.since(tat) <= NEAR_EXPIRY
    }

    /// The decision to store this counter.
    fn store(self, answer: Answer) -> Result<Decision<Self>, Error> {
        if self.reads_as_tat() { Err(Error::Ambiguous) } else { Ok(Decision::store(answer, self)) }
    }
}

/// The window that is open at `now`. A window in which nothing was admitted is not open.
fn open_at(state: Option<Counter>, now: Instant) -> Option<Counter> {
    state.filter(|window| window.count > 0 && now < window.end)
}

/// By how much the end of a window may change when its key is moved to another server: `MIGRATE` sends the
/// time that is left, which the other server adds to the time on its own clock when it arrives.
const MOVED: Span = Span::from_nanos(1_000_000_000).unwrap();

/// Whether the open window, which ends at `end`, is the one that was to end at `known`.
pub(crate) fn is_window(known: Instant, end: Instant, now: Instant) -> bool {
    now < known && known.since(end) <= MOVED && end.since(known) <= MOVED
}

/// The units used in a window, and the time until it ends.
fn usage(window: Option<Counter>, now: Instant) -> (i64, Span) {
    window.map_or((0, Span::ZERO), |window| (window.count, window.end.since(now)))
}

/// `CL.FIXED`: takes `quantity` units of a fixed window, all or nothing.
///
/// A quantity of 0 checks without taking and opens no window; it is refused while more than the limit is
/// used, as it may be after the limit was lowered. A quantity above the limit is never admitted. A new limit
/// applies at once, a new window when the present one has ended.
///
/// Cost: O(1), no allocation.
///
/// # Errors
/// [`Error::OutOfRange`] for a negative quantity, for a period that reaches past the year 2262, and for an
/// instant that has passed when a window would open; [`Error::BeyondTime`] for a calendar's window that ends
/// past the year 2262; [`Error::Ambiguous`] for a count that would read as the state of GCRA.
///
/// # Example
/// ```
/// # use redis_cell_core::{Instant, Unit, fixed};
/// let limit = fixed::Limit::new(5, 60, Unit::Seconds)?;
/// let now = Instant::from_nanos(1_700_000_000_000_000_000).unwrap();
/// let first = fixed::take(None, &limit, now, 3)?;
/// assert_eq!(first.answer.reply(Unit::Seconds).five, [0, 5, 2, -1, 60]);
/// # Ok::<(), redis_cell_core::Error>(())
/// ```
#[inline(always)]
pub fn take(
    state: Option<Counter>,
    limit: &Limit,
    now: Instant,
    quantity: i64,
) -> Result<Decision<Counter>, Error> {
    if quantity < 0 {
        return Err(QUANTITY.error());
    }
    if let End::Never(idle) = limit.end {
        return take_in_all(state, limit, idle, now, quantity);
    }
    limit.check(now)?;
    let window = open_at(state, now);
    let (used, left) = usage(window, now);
    let Some(count) = used.checked_add(quantity).filter(|&count| count <= limit.most) else {
        return Ok(Decision::keep(limit.refused(used, left, quantity)));
    };
    if quantity == 0 {
        return Ok(Decision::keep(limit.admitted(used, left)));
    }
    let end = window.map_or_else(|| limit.end_from(now), |window| Ok(window.end))?;
    Counter { count, end }.store(limit.admitted(count, end.since(now)))
}

/// `CL.FIXED ... SATURATE`: takes as much of `quantity` as fits, however large it is.
///
/// Refused only when nothing fits, until the window ends. A quantity of 0 is admitted and takes 0. The
/// answer's [`taken`](Answer::taken) is the quantity taken.
///
/// Cost: O(1), no allocation.
///
/// # Errors
/// As [`take`].
#[inline(never)]
pub fn saturate(
    state: Option<Counter>,
    limit: &Limit,
    now: Instant,
    quantity: i64,
) -> Result<Decision<Counter>, Error> {
    let used = if limit.is_total() { total_at(state, now).count } else { usage(open_at(state, now), now).0 };
    Decision::saturate(quantity, limit.most.saturating_sub(used), |fits| take(state, limit, now, fits))
}

/// `CL.MSETTLE`: settles the `difference` between the units that a call took and the units that it needed.
///
/// A positive difference is taken, above the limit if necessary, and opens a window where none is open,
/// unless the window that the limit names has ended: then nothing is charged. A negative difference is given
/// back, at most what the window has admitted; 0 changes nothing. A window with a count of 0 has no state.
/// The answer describes the state after the call: limited while more than the limit is used, until the window
/// ends.
///
/// If the caller says when the units were `taken`, a window that has begun since gets nothing back. The start
/// of a window is not stored. A window with a period begins one period before its end, and a calendar window
/// at the boundary before its end. A window with a period begins with a call, and the age of that call,
/// rounded up, exceeds the age of the window: one unit is allowed for that. Where the caller knows the
/// `reset_after` of the call that took the units, the window has not begun since if it began before that time
/// had passed, less a unit. If the caller has named the end of a window, only the end is known: the units
/// were taken from this window if it ends at the instant that this call names.
///
/// Cost: O(1), no allocation.
///
/// # Errors
/// [`Error::OutOfRange`] for -2^63 and for a count above 2^63 - 1, and the errors of [`take`], except the one
/// for an instant that has passed.
///
/// # Example
/// ```
/// # use redis_cell_core::{Instant, Unit, fixed};
/// let limit = fixed::Limit::new(5, 60, Unit::Seconds)?;
/// let now = Instant::from_nanos(1_700_000_000_000_000_000).unwrap();
/// let settled = fixed::settle(None, &limit, now, 7, None)?;
/// assert_eq!(settled.answer.reply(Unit::Seconds).five, [1, 5, 0, 60, 60]);
/// # Ok::<(), redis_cell_core::Error>(())
/// ```
pub fn settle(
    state: Option<Counter>,
    limit: &Limit,
    now: Instant,
    difference: i64,
    taken: Option<&Taken>,
) -> Result<Decision<Counter>, Error> {
    if difference < DIFFERENCE.min {
        return Err(DIFFERENCE.error());
    }
    if let End::Never(idle) = limit.end {
        return settle_in_all(state, limit, idle, now, difference);
    }
    limit.check(now)?;
    let window = open_at(state, now);
    let (used, left) = usage(window, now);
    if difference > 0 && (window.is_some() || !limit.has_passed(now)) {
        let most = i64::MAX.saturating_sub(used);
        let count = used.checked_add(difference).ok_or_else(|| DIFFERENCE.up_to(most).error())?;
        let end = window.map_or_else(|| limit.end_from(now), |window| Ok(window.end))?;
        return Counter { count, end }.store(limit.standing(count, end.since(now)));
    }
    let holds = |end| taken.is_none_or(|taken| limit.covers(end, now, taken));
    let held = window.filter(|window| difference < 0 && holds(window.end));
    let Some(Counter { end, .. }) = held else {
        return Ok(Decision::keep(limit.standing(used, left)));
    };
    let count = used.saturating_add(difference);
    if count <= 0 {
        return Ok(Decision::delete(limit.admitted(0, Span::ZERO)));
    }
    Counter { count, end }.store(limit.standing(count, left))
}

/// The total that is counted at `now`. A count of 0 keeps the expiry of its key.
fn total_at(state: Option<Counter>, now: Instant) -> Counter {
    state.filter(|total| now < total.end).unwrap_or(Counter { count: 0, end: Instant::MAX })
}

impl Counter {
    /// The time until this total is forgotten: [`Span::MAX`] for never, and zero if nothing was taken.
    fn left_of_total(&self, now: Instant) -> Span {
        match self.end {
            _ if self.count == 0 => Span::ZERO,
            Instant::MAX => Span::MAX,
            end => end.since(now),
        }
    }

    /// Whether this total could be the state of GCRA, because its key does not expire.
    fn is_too_high(&self) -> bool {
        self.end == Instant::MAX && self.count >= LEAST_TAT
    }

    /// The decision to store this total.
    fn store_total(self, answer: Answer, quantity: Range) -> Result<Decision<Self>, Error> {
        if self.is_too_high() {
            let above = self.count.saturating_sub(LEAST_TAT).saturating_add(1);
            return Err(quantity.up_to(quantity.max.saturating_sub(above)).error());
        }
        self.store(answer)
    }
}

/// A refusal that would last until the end of time is permanent.
fn without_end(answer: Answer) -> Answer {
    let verdict = if answer.verdict == Verdict::Later(Span::MAX) { Verdict::Never } else { answer.verdict };
    Answer { verdict, ..answer }
}

/// [`take`] from a total.
#[inline(never)]
fn take_in_all(
    state: Option<Counter>,
    limit: &Limit,
    idle: Option<Span>,
    now: Instant,
    quantity: i64,
) -> Result<Decision<Counter>, Error> {
    let total @ Counter { count: used, end } = total_at(state, now);
    let end = limit.renewed(idle, end, now)?;
    let Some(count) = used.checked_add(quantity).filter(|&count| count <= limit.most) else {
        return Ok(Decision::keep(without_end(limit.refused(used, total.left_of_total(now), quantity))));
    };
    if quantity == 0 {
        return Ok(Decision::keep(limit.admitted(used, total.left_of_total(now))));
    }
    let taken = Counter { count, end };
    taken.store_total(limit.admitted(count, taken.left_of_total(now)), QUANTITY.up_to(quantity))
}

/// [`settle`] for a total. It does not matter when the units were taken.
#[inline(never)]
fn settle_in_all(
    state: Option<Counter>,
    limit: &Limit,
    idle: Option<Span>,
    now: Instant,
    difference: i64,
) -> Result<Decision<Counter>, Error> {
    let total @ Counter { count: used, end } = total_at(state, now);
    let renewed = limit.renewed(idle, end, now)?;
    let standing = |total: Counter| without_end(limit.standing(total.count, total.left_of_total(now)));
    if difference > 0 {
        let most = i64::MAX.saturating_sub(used);
        let count = used.checked_add(difference).ok_or_else(|| DIFFERENCE.up_to(most).error())?;
        let charged = Counter { count, end: renewed };
        return charged.store_total(standing(charged), DIFFERENCE.up_to(difference));
    }
    if difference == 0 || used == 0 {
        return Ok(Decision::keep(standing(total)));
    }
    let count = used.saturating_add(difference);
    if count <= 0 {
        return Ok(Decision::delete(limit.admitted(0, Span::ZERO)));
    }
    let left = Counter { count, end };
    left.store_total(standing(left), DIFFERENCE)
}
