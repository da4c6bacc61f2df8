//! Durations in the notation of configuration files.

use std::time::Duration;

/// Reads a duration such as `500ms`, `10s`, `1h30m` or `7d`: whole numbers, each with a unit, which is `us`,
/// `ms`, `s`, `m`, `h` or `d`. Returns `None` for any other text.
///
/// # Example
/// ```
/// use redis_cell_envoy::duration;
/// use std::time::Duration;
/// assert_eq!(duration::parse("1m30s"), Some(Duration::from_secs(90)));
/// assert_eq!(duration::parse("90"), None);
/// ```
pub fn parse(text: &str) -> Option<Duration> {
    let (mut total, mut rest) = (Duration::ZERO, text);
    loop {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let (number, behind) = rest.split_at_checked(digits)?;
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
        let micros = number.parse::<u64>().ok()?.checked_mul(unit)?;
        total = total.checked_add(Duration::from_micros(micros))?;
        if behind.is_empty() {
            return Some(total);
        }
        rest = behind;
    }
}
