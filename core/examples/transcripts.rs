//! Prints random calls of a [`Holding`] or a [`Line`] with their results, for clients in other languages that
//! have one of their own. The tests of the Python client replay them. The argument is `holding` or `line`.
//!
//! Of a holding, a row contains the instant in nanoseconds, the function, its arguments and its result,
//! separated by tabs; of a line, it has no instant. The output is always the same.

#![allow(clippy::restriction, reason = "a program that fails makes the tests that read its output fail")]

use std::fmt::Write as _;

use redis_cell_core::holding::{Holding, Spend, Terms};
use redis_cell_core::merged::{Limit, Line, Reply};
use redis_cell_core::{Answer, Instant, Rate, Span, Unit};

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
    let is_line = std::env::args().nth(1).is_some_and(|name| name == "line");
    print!("{}", if is_line { lines() } else { holdings() });
}

/// A caller of a line: its number, and its quantities.
struct Caller(usize, Vec<i64>);

impl AsRef<[i64]> for Caller {
    fn as_ref(&self) -> &[i64] {
        &self.1
    }
}

fn words(numbers: impl IntoIterator<Item = i64>) -> String {
    numbers.into_iter().map(|number| number.to_string()).collect::<Vec<_>>().join(" ")
}

/// Callers with their rows, in the order of their numbers.
fn decided(callers: impl IntoIterator<Item = (Caller, Vec<Answer>)>) -> String {
    let mut all: Vec<_> = callers.into_iter().map(|(caller, rows)| (caller.0, rows)).collect();
    all.sort_by_key(|(caller, _)| *caller);
    let one = |(caller, rows): (usize, Vec<Answer>)| {
        let rows = rows.iter().flat_map(|row| row.reply(Unit::Microseconds).five);
        format!("{caller}: {}", words(rows))
    };
    all.into_iter().map(one).collect::<Vec<_>>().join(", ")
}

/// The calls of 300 lines, 60 each, with replies of all kinds.
fn lines() -> String {
    let mut random = Random(11);
    let mut text = String::new();
    for _ in 0..300 {
        let (mut limits, mut new) = (Vec::new(), Vec::new());
        for _ in 0..=random.below(3) {
            let (kind, most) = (random.below(2), random.below(20) + 1);
            let (count, period) = (random.below(9) + 1, random.below(5_000) + 1);
            let rate = Rate::new(count, period, Unit::Microseconds).unwrap();
            limits.push(if kind == 0 { Limit::Counted(most) } else { Limit::Rated { rate, capacity: most } });
            new.extend([kind, most, count, period]);
        }
        writeln!(text, "new\t{}\t", words(new)).unwrap();
        let (mut line, mut is_sent) = (Line::new(limits.clone()), false);
        for number in 0..60 {
            let (name, arguments, result) = match random.below(12) {
                0..=4 => {
                    let one = |limit: &Limit| {
                        (1 + random.below(3) * random.below(2) * random.below(5)).min(limit.most())
                    };
                    let quantities: Vec<i64> = limits.iter().map(one).collect();
                    line.push(Caller(number, quantities.clone()));
                    ("push", format!("{number} {}", words(quantities)), String::new())
                }
                5..=9 if !is_sent => {
                    let next = line.next_call();
                    is_sent = !next.sum.is_empty();
                    let alone: Vec<_> = next.alone.iter().map(|caller| caller.0.to_string()).collect();
                    let result =
                        format!("{}; {}; {}", words(next.sum), alone.join(" "), decided(next.refused));
                    ("next", String::new(), result)
                }
                5..=9 => {
                    is_sent = false;
                    let admitted = random.below(2) > 0;
                    let (mut rows, mut numbers) = (Vec::new(), vec![i64::from(admitted)]);
                    for limit in &limits {
                        let remaining = random.below(limit.most() + 1) * random.below(3).min(1);
                        let (wait, reset) = (random.below(9_000), random.below(20_000) * random.below(2));
                        let limited = !admitted && random.below(2) > 0;
                        let retry_after = limited.then(|| (span(wait * 1_000), 0));
                        rows.push(Reply {
                            taken: 0,
                            remaining,
                            retry_after,
                            reset_after: span(reset * 1_000),
                        });
                        numbers.extend([remaining, if limited { wait } else { -1 }, reset]);
                    }
                    ("answered", words(numbers), decided(line.answered(admitted, rows)))
                }
                10 if is_sent => {
                    is_sent = false;
                    let mut failed: Vec<_> = line.failed().into_iter().map(|caller| caller.0).collect();
                    failed.sort_unstable();
                    (
                        "failed",
                        String::new(),
                        words(failed.into_iter().map(|caller| caller.try_into().unwrap())),
                    )
                }
                _ => {
                    let third = |caller: usize| caller.is_multiple_of(3);
                    line.retain(|caller| !third(caller.0));
                    ("leave", String::new(), line.is_empty().to_string())
                }
            };
            writeln!(text, "{name}\t{arguments}\t{result}").unwrap();
        }
    }
    text
}

/// The calls of 150 holdings, 80 each.
fn holdings() -> String {
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
        let (mut holding, mut now, mut parts) = (Holding::default(), 0_i64, Vec::new());
        for _ in 0..80 {
            // Half of the time, calls follow each other at once.
            now += random.below(2) * random.below(hold * MS / 3);
            let instant = Instant::from_nanos(u64::try_from(now).unwrap()).unwrap();
            let (name, arguments, result) = match random.below(15) {
                0..=4 => {
                    let units = random.below(2) * random.below(most / 3 + 1) + random.below(2);
                    let part = holding.part(&terms, instant, units);
                    let spent = match holding.spend(&terms, instant, units) {
                        Spend::Spent => {
                            parts.push(part);
                            String::from("spent")
                        }
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
                12 if random.below(2) == 0 => {
                    if let Some(Some(part)) = parts.pop() {
                        holding.unspend(&terms, instant, part);
                    }
                    ("unspend", String::new(), holding.held().to_string())
                }
                12 | 13 => {
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
