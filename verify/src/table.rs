//! The results of the core's formulas, as rows of numbers: `verify/proofs/arithmetic.py` compares its own
//! formulas with them.
//!
//! A row is the name of a function, its arguments, an arrow, and its results. Times are in nanoseconds, and
//! -1 stands for nothing. The only result of an error is -1.

use redis_cell_core::calendar::{Calendar, Cycle};
use redis_cell_core::fixed;
use redis_cell_core::gcra::{self, Limit};
use redis_cell_core::window::{self, Sliding};
use redis_cell_core::{Answer, Change, Instant, Rate, Span, Unit, Verdict};

use crate::{after, span};

/// Reproducible random numbers: splitmix64.
struct Numbers(u64);

impl Numbers {
    /// A number from 0 to 2^63 - 1 with any number of digits, often near a power of two.
    fn next(&mut self) -> i64 {
        let mut draw = || {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        };
        let (value, bits, edge) = (draw(), draw() % 63, draw() % 4);
        let power = 1_u64 << bits;
        let number = match edge {
            0 => power - 1,
            1 => power,
            _ => value & (power | (power - 1)),
        };
        number.cast_signed()
    }

    /// The same, from `least` to `most`.
    fn within(&mut self, least: i64, most: i64) -> i64 {
        least + self.next() % (most - least + 1).max(1)
    }
}

/// The rows: each function gets edge cases and numbers of all sizes.
pub fn rows() -> Vec<String> {
    let (mut numbers, mut rows) = (Numbers(1), Vec::new());
    for i in 0..10_000 {
        let micros = numbers.within(1, Unit::Microseconds.max());
        let period = micros * 1_000;
        let count = numbers.within(1, period);
        let rate = Rate::new(count, micros, Unit::Microseconds).unwrap();
        let units = numbers.next();
        rows.push(format!("time {count} {period} {units} -> {}", rate.time(units).map_or(-1, nanos)));
        let time = numbers.next();
        let in_time = rate.units(span(time.unsigned_abs()));
        rows.push(format!("units {count} {period} {time} -> {in_time}"));
        // The same, where a quantity just fits or just does not.
        if let Some(cost) = rate.time(in_time) {
            for nearby in [nanos(cost), nanos(cost).saturating_sub(1).max(0)] {
                let fits = rate.units(span(nearby.unsigned_abs()));
                rows.push(format!("units {count} {period} {nearby} -> {fits}"));
            }
        }
        for unit in [Unit::Seconds, Unit::Milliseconds, Unit::Microseconds] {
            let ceil = span(time.unsigned_abs()).ceil_to(unit);
            rows.push(format!("ceil {time} {} -> {ceil}", unit.nanos()));
        }
        if i % 2 == 0 {
            throttled(&mut numbers, rate, (count, micros), &mut rows);
        }
    }
    windows(&mut numbers, &mut rows);
    fixed_windows(&mut numbers, &mut rows);
    rows
}

/// The rows of GCRA: a verdict, its wait, what remains, the debt, and the state, -1 if it is kept. No
/// state is a TAT of -1.
fn throttled(numbers: &mut Numbers, rate: Rate, (count, micros): (i64, i64), rows: &mut Vec<String>) {
    // At any instant of all time, or of about our time.
    let now = if numbers.within(0, 1) == 0 { numbers.next() } else { numbers.within(1 << 60, 7 << 60) };
    let burst = if numbers.within(0, 3) == 0 { numbers.next() } else { numbers.within(0, 1_000) };
    let limit = Limit::new(burst, count, micros, Unit::Microseconds);
    // Around the border between admitted and refused, and beyond the limit.
    let tolerance = limit.map_or(i64::MAX, |limit| nanos(limit.tolerance()));
    let capacity = burst.saturating_add(1);
    let quantity = numbers.within(1, capacity);
    let edge = tolerance.saturating_sub(rate.time(quantity).map_or(0, nanos)).max(0);
    let (some, any) = (numbers.within(0, tolerance.min(i64::MAX - 1)), numbers.next());
    // A debt below 0 is a TAT that has passed.
    for (debt, quantity) in [
        (0, quantity),
        (-1, quantity),
        (-any, capacity),
        (-some, 0),
        (edge, quantity),
        (edge.saturating_add(1), quantity),
        (tolerance, quantity),
        (some, quantity),
        (any, quantity),
        (any, 0),
        (tolerance.saturating_add(1), 0),
        (some, capacity.saturating_add(1)),
    ] {
        let tat = if numbers.within(0, 15) == 0 { -1 } else { now.saturating_add(debt).max(0) };
        let state = u64::try_from(tat).ok().and_then(Instant::from_nanos);
        let at = Instant::from_nanos(now.unsigned_abs()).unwrap();
        let decision = limit.and_then(|limit| gcra::throttle(state, &limit, at, quantity));
        let result = decision.map_or("-1".to_owned(), |decision| {
            let (verdict, wait) = verdict(decision.answer.verdict);
            let stored = after(&decision, None).map_or(-1, |tat| tat.as_nanos().cast_signed());
            let Answer { remaining, reset_after, .. } = decision.answer;
            format!("{verdict} {wait} {remaining} {} {stored}", nanos(reset_after))
        });
        let period = micros * 1_000;
        rows.push(format!("throttle {count} {period} {burst} {now} {tat} {quantity} -> {result}"));
    }
}

fn nanos(span: Span) -> i64 {
    span.as_nanos().cast_signed()
}

/// A verdict as a number, and its wait.
fn verdict(verdict: Verdict) -> (i64, i64) {
    match verdict {
        Verdict::Admitted => (0, -1),
        Verdict::Later(wait) => (1, nanos(wait)),
        Verdict::Never | Verdict::Booked(_) => (2, -1),
    }
}

/// The rows of fixed windows: the end of one with a period, and the beginning and the end of one by the
/// calendar.
fn fixed_windows(numbers: &mut Numbers, rows: &mut Vec<String>) {
    let at = |nanos: i64| Instant::from_nanos(nanos.unsigned_abs()).unwrap();
    for _ in 0..4_000 {
        let now = numbers.within(0, i64::MAX - 1);
        let period = numbers.within(1, Unit::Microseconds.max());
        let limit = fixed::Limit::new(1, period, Unit::Microseconds).unwrap();
        let end_of = |limit: &fixed::Limit, now: i64| {
            let decision = fixed::take(None, limit, at(now), 1);
            decision.map_or(-1, |decision| after(&decision, None).unwrap().end.as_nanos().cast_signed())
        };
        rows.push(format!("fixed {} {now} -> {}", period * 1_000, end_of(&limit, now)));
        let micros = now / 1_000;
        for (until, now) in [(micros, micros * 1_000), (micros + 1, now), (period, now)] {
            let limit = fixed::Limit::until(1, until, Unit::Microseconds);
            let end = limit.map_or(-1, |limit| end_of(&limit, now));
            rows.push(format!("until {} {now} -> {end}", until * 1_000));
        }
        // Around the midnight of any day, and at any other time.
        let midnight = numbers.within(0, 106_751) * 86_400_000_000_000;
        let offset = numbers.within(-840, 840);
        let (week, month) = (numbers.within(1, 7), numbers.within(1, 31));
        for (number, cycle, day) in [
            (0, Cycle::Hour, None),
            (1, Cycle::Day, None),
            (2, Cycle::Week, Some(week)),
            (3, Cycle::Month, Some(month)),
            (4, Cycle::Year, None),
        ] {
            let window_of = |now: i64| {
                let window = Calendar::new(cycle, offset, day).unwrap().window_of(at(now));
                window.ok().map(|(start, end)| [start, end].map(|instant| instant.as_nanos().cast_signed()))
            };
            let some = midnight + numbers.within(0, 86_399_999_999_999);
            let [start, end] = window_of(some).unwrap_or([now, i64::MAX]);
            for now in [now, midnight, some, (start - 1).max(0), start, end - 1, end] {
                let (seconds, day) = (offset * 60, day.unwrap_or(1));
                let result = window_of(now).map_or("-1".to_owned(), |[start, end]| format!("{start} {end}"));
                rows.push(format!("calendar {number} {seconds} {day} {now} -> {result}"));
            }
        }
    }
}

/// The rows of sliding windows. Where a call is admitted, its row ends with the state that is stored.
fn windows(numbers: &mut Numbers, rows: &mut Vec<String>) {
    for _ in 0..10_000 {
        // Two periods seldom end after the last instant.
        let longest = Unit::Microseconds.max() / if numbers.within(0, 7) == 0 { 1 } else { 8 };
        let micros = numbers.within(1, longest);
        let (period, most) = (micros * 1_000, numbers.within(1, i64::MAX));
        let limit = window::Limit::new(most, micros, Unit::Microseconds).unwrap();
        let now = numbers.within(0, i64::MAX / 2);
        let begun = now - now % period;
        // Also in the middle of a window, where an odd count weighs a half.
        let now = if numbers.within(0, 3) == 0 { begun + period / 2 } else { now };
        // In this window, in an earlier or later one, and in one that another period has begun.
        let start = match numbers.within(0, 5) {
            0 | 1 => begun,
            2 => begun.saturating_sub(period).max(0),
            3 => begun.saturating_add(period),
            4 => i64::MAX - numbers.next() % period.saturating_mul(2),
            _ => numbers.within(0, now),
        };
        // Counts above the limit were stored for a larger one.
        let mut count = || match numbers.within(0, 7) {
            0 => 0,
            1 | 2 => numbers.next(),
            _ => numbers.within(0, most),
        };
        let (current, previous) = (count(), count());
        let nanos = |nanos: i64| Instant::from_nanos(nanos.unsigned_abs()).unwrap();
        let stored = Sliding { start: nanos(start), current, previous };
        let state = (numbers.within(0, 9) > 0).then_some(stored);
        // No state has begun at no instant.
        let start = if state.is_some() { start } else { -1 };
        for quantity in [0, 1, numbers.within(1, most), most, most.saturating_add(1)] {
            let decision = window::take(state, &limit, nanos(now), quantity);
            let result = decision.map_or("-1".to_owned(), |decision| {
                let (verdict, wait) = verdict(decision.answer.verdict);
                let (remaining, reset) = (decision.answer.remaining, decision.answer.reset_after.as_nanos());
                let stored = match decision.change {
                    Change::Store(state) => {
                        format!(" {} {} {}", state.start.as_nanos(), state.current, state.previous)
                    }
                    Change::Keep | Change::Delete => String::new(),
                };
                format!("{verdict} {wait} {remaining} {reset}{stored}")
            });
            rows.push(format!(
                "window {most} {period} {start} {current} {previous} {now} {quantity} -> {result}"
            ));
        }
    }
}
