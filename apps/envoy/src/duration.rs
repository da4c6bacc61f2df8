//! Durations in the notation of configuration files.

use std::time::Duration;

/// Reads a duration such as `500ms`, `1.5s`, `1h30m` or `7d`: numbers, each with a unit, which is `us`, `ms`,
/// `s`, `m`, `h` or `d`. Zero needs no unit. Returns `None` for any other text, and for parts of a
/// microsecond.
///
/// # Example
/// ```
/// use redis_cell_envoy::duration;
/// use std::time::Duration;
/// assert_eq!(duration::parse("1m30s"), Some(Duration::from_secs(90)));
/// assert_eq!(duration::parse("0.25s"), Some(Duration::from_millis(250)));
/// assert_eq!(duration::parse("90"), None);
/// ```
pub fn parse(text: &str) -> Option<Duration> {
    let (mut total, mut rest) = (Duration::ZERO, text);
    if text == "0" {
        return Some(total);
    }
    loop {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let (number, mut behind) = rest.split_at_checked(digits)?;
        let mut part = "";
        if let Some(rest) = behind.strip_prefix('.') {
            (part, behind) = rest.split_at_checked(rest.find(|c: char| !c.is_ascii_digit())?)?;
            part.parse::<u64>().ok()?;
        }
        let end = behind.find(|c: char| c.is_ascii_digit()).unwrap_or(behind.len());
        let (unit, behind) = behind.split_at_checked(end)?;
        let unit: u64 = match unit {
            "us" | "µs" => 1,
            "ms" => 1_000,
            "s" => 1_000_000,
            "m" => 60_000_000,
            "h" => 3_600_000_000,
            "d" => 86_400_000_000,
            _ => return None,
        };
        let whole = 10_u64.checked_pow(u32::try_from(part.len()).ok()?)?;
        let parts = format!("{number}{part}").parse::<u64>().ok().filter(|_| !number.is_empty())?;
        let parts = parts.checked_mul(unit)?;
        let micros = parts.checked_div(whole).filter(|micros| micros.checked_mul(whole) == Some(parts))?;
        total = total.checked_add(Duration::from_micros(micros))?;
        if behind.is_empty() {
            return Some(total);
        }
        rest = behind;
    }
}
