//! What the core computes, in rows of numbers: `verify/proofs/arithmetic.py` holds its formulas to them.
//!
//! A row is the name of a function, what it is given, an arrow, and what it returns. Times are in
//! nanoseconds, and -1 stands for nothing.

use redis_cell_core::gcra::{self, Limit};
use redis_cell_core::{Rate, Span, Unit, Verdict};

use crate::{after, at};

/// Numbers that repeat: splitmix64.
struct Numbers(u64);

impl Numbers {
    /// A number from 0 to 2^63 - 1 with any number of digits, often at the edge of them.
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

/// The rows: a function is given edges and numbers of all sizes.
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
        // The same where a quantity just fits, or just does not.
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
        // Around what is just admitted and just not.
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
    rows
}
