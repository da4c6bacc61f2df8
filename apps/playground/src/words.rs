//! Limits and replies in words.

use redis_cell_core::{Answer, Unit, Verdict};

const NANOS: u64 = 1_000_000_000;

/// Returns the name of a unit as an argument of a call.
pub const fn unit(unit: Unit) -> &'static str {
    match unit {
        Unit::Seconds => "S",
        Unit::Milliseconds => "MS",
        Unit::Microseconds => "US",
    }
}

/// Describes a limit. `text` is the word for the kind and its arguments, as in a policy.
pub fn limit(text: &str, unit: Unit) -> String {
    let words: Vec<&str> = text.split(' ').collect();
    let (kind, arguments) = words.split_first().map_or(("", &[][..]), |(kind, rest)| (*kind, rest));
    let number = |at: usize| arguments.get(at).and_then(|word| word.parse::<u64>().ok()).unwrap_or_default();
    let period = |at: usize| span(number(at).saturating_mul(unit.nanos().get()));
    let every =
        || span(number(2).saturating_mul(unit.nanos().get()).checked_div(number(1)).unwrap_or_default());
    let text = match kind.to_ascii_uppercase().as_str() {
        "THROTTLE" => {
            let at_once = number(0).saturating_add(1);
            format!(
                "{at_once} at once after a pause (one, and a burst of {}), then one every {}. Never more than {} in any {}.",
                number(0),
                every(),
                at_once.saturating_add(number(1)),
                period(2)
            )
        }
        "FUNNEL" | "BUCKET" => format!(
            "{} at once after a pause, then one every {}. Never more than {} in any {}.",
            number(0),
            every(),
            number(0).saturating_add(number(1)),
            period(2)
        ),
        "FIXED" => match arguments.get(1).map(|word| word.to_ascii_lowercase()) {
            Some(window) if window == "until" => format!("{} until that instant.", number(0)),
            Some(window) if window == "total" => match arguments.get(3) {
                Some(_) => format!("{} in all, forgotten after {} without a take.", number(0), period(3)),
                None => format!("{} in all.", number(0)),
            },
            Some(window) if window.parse::<u64>().is_err() => {
                format!("{} in each {window} of the calendar.", number(0))
            }
            _ => format!(
                "{} in each window of {}, which opens with its first call; up to twice that around the end of a window.",
                number(0),
                period(1)
            ),
        },
        "WINDOW" => format!(
            "About {} in any {}: estimated from the counts of this window and of the one before.",
            number(0),
            period(1)
        ),
        "LOG" => format!("Never more than {} in any {}.", number(0), period(1)),
        "LEASE" => format!(
            "At most {} at the same time. Each holds its place for {}, or until it gives it back.",
            number(0),
            arguments
                .get(1)
                .filter(|word| word.starts_with('<'))
                .map_or_else(|| period(1), |word| (*word).to_owned())
        ),
        _ => String::new(),
    };
    match arguments.last() {
        Some(quantity) if !kind.eq_ignore_ascii_case("LEASE") && *quantity != "1" => {
            format!("{text} A call takes {quantity}.")
        }
        _ => text,
    }
}

/// Describes each of the five integers of a reply. `text` is the limit's text, or empty for the combined row.
pub fn five(answer: &Answer, text: &str, unit: Unit) -> [String; 5] {
    let [_, limit, remaining, retry_after, reset_after] = answer.reply(unit).five;
    let time = |units: i64| span(units.unsigned_abs().saturating_mul(unit.nanos().get()));
    let places = text.get(..5).is_some_and(|kind| kind.eq_ignore_ascii_case("LEASE"));
    [
        if answer.limited() { "refused" } else { "admitted" }.to_owned(),
        if places { format!("at most {limit} at the same time") } else { format!("at most {limit} at once") },
        match remaining {
            ..0 => format!("{} owed", remaining.unsigned_abs()),
            0 => "nothing more right now".to_owned(),
            _ => format!("{remaining} more right now"),
        },
        match answer.verdict {
            Verdict::Admitted => "no need to wait".to_owned(),
            Verdict::Never => "no wait helps: the call takes more than there will be".to_owned(),
            Verdict::Booked(_) | Verdict::Later(_) => {
                format!("the same call is admitted in {}", time(retry_after))
            }
        },
        match reset_after {
            0 => "nothing is taken".to_owned(),
            ..0 => "never replenished by itself".to_owned(),
            _ if places => format!("all places are free in {}, if nobody calls", time(reset_after)),
            _ => format!("fully replenished in {}, if nobody calls", time(reset_after)),
        },
    ]
}

/// Describes what was taken from a limiter of a call with a chain.
pub fn taken(units: i64, text: &str) -> String {
    match units {
        _ if text.is_empty() => "shown for each limiter".to_owned(),
        0 => "nothing taken from this key".to_owned(),
        _ => format!("{units} taken from this key"),
    }
}

/// Formats a span of time in its two largest units.
pub fn span(nanos: u64) -> String {
    if nanos < NANOS.saturating_mul(60) {
        let (unit, name) = [(NANOS, "s"), (1_000_000, "ms"), (1_000, "µs"), (1, "ns")]
            .into_iter()
            .find(|(unit, _)| nanos >= *unit)
            .unwrap_or((NANOS, "s"));
        let (whole, rest) = divided(nanos, unit);
        let (thousandths, _) = divided(rest.saturating_mul(1_000), unit);
        let digits = format!("{whole}.{thousandths:03}");
        return format!("{} {name}", digits.trim_end_matches('0').trim_end_matches('.'));
    }
    let mut rest = nanos / NANOS;
    let mut parts = Vec::new();
    for (unit, name) in [(86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")] {
        let (whole, left) = divided(rest, unit);
        if whole > 0 && parts.len() < 2 {
            parts.push(format!("{whole} {name}"));
        } else if !parts.is_empty() {
            break; // shows 1 d 30 s as 1 d
        }
        rest = left;
    }
    parts.join(" ")
}

/// Returns the quotient and the remainder, or 0 for a division by 0.
pub fn divided(number: u64, by: u64) -> (u64, u64) {
    (number.checked_div(by).unwrap_or_default(), number.checked_rem(by).unwrap_or_default())
}
