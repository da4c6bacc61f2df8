//! Prints random calls of a [`Holding`] with their results, for clients in other languages that have one of
//! their own. The tests of the Python client replay them.
//!
//! A line contains the instant in nanoseconds, the function, its arguments and its result, separated by tabs.
//! The output is always the same.

#![allow(
    clippy::unwrap_used,
    clippy::arithmetic_side_effects,
    reason = "a program that fails makes the tests that read its output fail"
)]

use std::fmt::Write as _;

use redis_cell_core::holding::{Holding, Spend, Terms};
use redis_cell_core::{Instant, Rate, Span, Unit};

/// A millisecond in nanoseconds.
const MS: i64 = 1_000_000;

/// Numbers that repeat from their seed: splitmix64.
struct Random(u64);

impl Random {
    fn below(&mut self, end: i64) -> i64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        i64::try_from((z ^ (z >> 31)) % u64::try_from(end).unwrap()).unwrap()
    }
}

fn span(nanos: i64) -> Span {
    Span::from_nanos(u64::try_from(nanos).unwrap()).unwrap()
}

fn main() {
    print!("{}", transcript());
}

/// The calls of 150 holdings, 80 each.
fn transcript() -> String {
    let mut random = Random(7);
    let mut text = String::new();
    for round in 0..150 {
        let (count, period_us) = (random.below(50) + 1, (random.below(40) + 1) * 10_000);
        let least = random.below(5) + 1;
        let most = least + random.below(120);
        let (hold, reply) = (random.below(300) + 1, random.below(50));
        let rate = (round % 5 > 0).then(|| Rate::new(count, period_us, Unit::Microseconds).unwrap());
        let terms = Terms { rate, least, most, hold: span(hold * MS), reply: span(reply * MS) };
        let quota = if rate.is_some() { "rate" } else { "quota" };
        writeln!(text, "0\tnew\t{quota} {count} {period_us} {least} {most} {hold} {reply}\t").unwrap();
        let (mut holding, mut now) = (Holding::default(), 0_i64);
        for _ in 0..80 {
            // Half of the time, calls follow each other at once.
            now += random.below(2) * random.below(hold * MS / 3);
            let instant = Instant::from_nanos(u64::try_from(now).unwrap()).unwrap();
            let (name, arguments, result) = match random.below(14) {
                0..=4 => {
                    let units = random.below(2) * random.below(most / 3 + 1) + random.below(2);
                    let spent = match holding.spend(&terms, instant, units) {
                        Spend::Spent => String::from("spent"),
                        Spend::Refused(wait) => wait.as_nanos().to_string(),
                        Spend::Short => String::from("short"),
                    };
                    ("spend", units.to_string(), spent)
                }
                5..=7 => {
                    let wanted = random.below(most + 1);
                    let asked = holding.ask(&terms, instant, wanted).unwrap_or_default();
                    ("ask", wanted.to_string(), asked.to_string())
                }
                8..=10 => {
                    let (taken, wait) =
                        (random.below(most + 1), random.below(2) * random.below(hold * MS / 8 + 1));
                    let retry_after = (wait > 0).then(|| span(wait));
                    // A server never hands out more than was requested.
                    let taken = if random.below(3) == 0 { taken } else { most };
                    let reset = random.below(2 * hold * MS);
                    holding.answered(&terms, instant, taken, retry_after, Some(span(reset)));
                    ("answered", format!("{taken} {wait} {reset}"), holding.held().to_string())
                }
                11 => {
                    let back = holding.give_back(&terms, instant);
                    let back = back.map(|(units, age)| format!("{units} {}", age.as_nanos()));
                    ("give_back", String::new(), back.unwrap_or_default())
                }
                12 => {
                    holding.returned();
                    ("returned", String::new(), u8::from(holding.is_idle(instant)).to_string())
                }
                _ if random.below(4) == 0 => {
                    holding.end(&terms, instant);
                    ("end", String::new(), holding.held().to_string())
                }
                _ => {
                    holding.lost(&terms, instant);
                    ("lost", String::new(), holding.held().to_string())
                }
            };
            writeln!(text, "{now}\t{name}\t{arguments}\t{result}").unwrap();
        }
    }
    text
}
