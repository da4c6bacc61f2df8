//! The results of the core's formulas, as rows of numbers: `verify/proofs/arithmetic.py` compares its own
//! formulas with them.
//!
//! A row is the name of a function, its arguments, an arrow, and its results. Times are in nanoseconds, and
//! -1 stands for nothing.

use redis_cell_core::calendar::{Calendar, Cycle};
use redis_cell_core::fixed;
use redis_cell_core::gcra::{self, Limit};
use redis_cell_core::window::{self, Sliding};
use redis_cell_core::{Change, Instant, Rate, Span, Unit, Verdict};

use crate::{after, at};

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
    let nanos = |span: Span| span.as_nanos().cast_signed();
    for _ in 0..10_000 {
        let micros = numbers.within(1, Unit::Microseconds.max());
        let period = micros * 1_000;
        let count = numbers.within(1, period);
        let rate = Rate::new(count, micros, Unit::Microseconds).unwrap();
        let units = numbers.next();
        rows.push(format!("time {count} {period} {units} -> {}", rate.time(units).map_or(-1, nanos)));
        let time = numbers.next();
        let in_time = rate.units(Span::from_nanos(time.unsigned_abs()).unwrap());
        rows.push(format!("units {count} {period} {time} -> {in_time}"));
        // The same, where a quantity just fits or just does not.
        if let Some(cost) = rate.time(in_time) {
            for nearby in [nanos(cost), nanos(cost).saturating_sub(1).max(0)] {
                let fits = rate.units(Span::from_nanos(nearby.unsigned_abs()).unwrap());
                rows.push(format!("units {count} {period} {nearby} -> {fits}"));
            }
        }
        for unit in [Unit::Seconds, Unit::Milliseconds, Unit::Microseconds] {
            let ceil = Span::from_nanos(time.unsigned_abs()).unwrap().ceil_to(unit);
            rows.push(format!("ceil {time} {} -> {ceil}", unit.nanos()));
        }
        let burst = numbers.within(0, 1_000);
        let Ok(limit) = Limit::new(burst, count, micros, Unit::Microseconds) else { continue };
        // Around the border between admitted and refused.
        let (tolerance, quantity) = (nanos(limit.tolerance()), numbers.within(1, burst + 2));
        let Ok(cost) = limit.cost(quantity) else { continue };
        let edge = tolerance.saturating_sub(nanos(cost)).max(0);
        let ahead = i64::MAX - at(0).as_nanos().cast_signed();
        for debt in [0, edge, edge + 1, tolerance, numbers.within(0, tolerance)] {
            if debt.saturating_add(nanos(cost)) > ahead {
                continue;
            }
            let state = at(0).checked_add(Span::from_nanos(debt.unsigned_abs()).unwrap());
            let decision = gcra::throttle(state, &limit, at(0), quantity).unwrap();
            let (verdict, wait) = match decision.answer.verdict {
                Verdict::Admitted => (0, -1),
                Verdict::Later(wait) => (1, nanos(wait)),
                Verdict::Never | Verdict::Booked(_) => (2, -1),
            };
            let owes = after(&decision, state).map_or(0, |tat| nanos(tat.since(at(0))));
            let remaining = decision.answer.remaining;
            rows.push(format!(
                "throttle {count} {period} {burst} {debt} {quantity} -> {verdict} {wait} {remaining} {owes}"
            ));
        }
    }
    windows(&mut numbers, &mut rows);
    fixed_windows(&mut numbers, &mut rows);
    rows
}

/// The rows of fixed windows: the end of one with a period, and the beginning and the end of one by the
/// calendar.
fn fixed_windows(numbers: &mut Numbers, rows: &mut Vec<String>) {
    let at = |nanos: i64| Instant::from_nanos(nanos.unsigned_abs()).unwrap();
    for _ in 0..4_000 {
        let now = numbers.within(0, i64::MAX - 1);
        let period = numbers.within(1, Unit::Microseconds.max());
        let limit = fixed::Limit::new(1, period, Unit::Microseconds).unwrap();
        if let Ok(decision) = fixed::take(None, &limit, at(now), 1) {
            let end = after(&decision, None).unwrap().end.as_nanos();
            rows.push(format!("fixed {} {now} -> {end}", period * 1_000));
        }
        // Around the midnight of any day, and at any other time.
        let midnight = numbers.within(0, 106_751) * 86_400_000_000_000;
        let offset = numbers.within(-840, 840);
        let (week, month) = (numbers.within(1, 7), numbers.within(1, 31));
        for now in [now, midnight, midnight + numbers.within(0, 86_399_999_999_999)] {
            for (number, cycle, day) in [
                (0, Cycle::Hour, None),
                (1, Cycle::Day, None),
                (2, Cycle::Week, Some(week)),
                (3, Cycle::Month, Some(month)),
                (4, Cycle::Year, None),
            ] {
                let window = Calendar::new(cycle, offset, day).unwrap().window_of(at(now));
                let [start, end] = window.map_or([-1; 2], |(start, end)| {
                    [start, end].map(|instant| instant.as_nanos().cast_signed())
                });
                let (seconds, day) = (offset * 60, day.unwrap_or(1));
                rows.push(format!("calendar {number} {seconds} {day} {now} -> {start} {end}"));
            }
        }
    }
}

/// The rows of sliding windows. Where a call is admitted, its row ends with the state that is stored.
fn windows(numbers: &mut Numbers, rows: &mut Vec<String>) {
    for _ in 0..10_000 {
        // Two periods fit between the call and the last instant.
        let micros = numbers.within(1, Unit::Microseconds.max() / 8);
        let (period, most) = (micros * 1_000, numbers.within(1, i64::MAX));
        let limit = window::Limit::new(most, micros, Unit::Microseconds).unwrap();
        let now = numbers.within(0, i64::MAX / 2);
        // In this window, in an earlier or later one, and in one that another period has begun.
        let begun = now - now % period;
        let start = match numbers.within(0, 4) {
            0 | 1 => begun,
            2 => begun.saturating_sub(period).max(0),
            3 => begun + period,
            _ => numbers.within(0, now),
        };
        let (current, previous) = (numbers.within(0, most), numbers.within(0, most));
        let nanos = |nanos: i64| Instant::from_nanos(nanos.unsigned_abs()).unwrap();
        let state = Sliding { start: nanos(start), current, previous };
        for quantity in [1, numbers.within(1, most), most] {
            let Ok(decision) = window::take(Some(state), &limit, nanos(now), quantity) else { continue };
            let (verdict, wait) = match decision.answer.verdict {
                Verdict::Admitted => (0, -1),
                Verdict::Later(wait) => (1, wait.as_nanos().cast_signed()),
                Verdict::Never | Verdict::Booked(_) => (2, -1),
            };
            let (remaining, reset) = (decision.answer.remaining, decision.answer.reset_after.as_nanos());
            let stored = match decision.change {
                Change::Store(state) => {
                    format!(" {} {} {}", state.start.as_nanos(), state.current, state.previous)
                }
                Change::Keep | Change::Delete => String::new(),
            };
            rows.push(format!(
                "window {most} {period} {start} {current} {previous} {now} {quantity} \
                 -> {verdict} {wait} {remaining} {reset}{stored}"
            ));
        }
    }
}
