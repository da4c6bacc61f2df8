//! Waiting for a condition instead of for a time.

use std::time::{Duration, Instant};

/// What was seen instead of the awaited thing.
pub type LastSeen = String;

const DEADLINE: Duration = Duration::from_secs(180);
const BETWEEN_LOOKS: Duration = Duration::from_millis(2);

/// Looks until `look` succeeds; panics with the last value seen when that takes longer than any honest
/// machine needs.
pub fn wait_until<T>(what: &str, mut look: impl FnMut() -> Result<T, LastSeen>) -> T {
    let begun = Instant::now();
    loop {
        match look() {
            Ok(found) => return found,
            Err(seen) if begun.elapsed() > DEADLINE => {
                panic!("waited {DEADLINE:?} for {what}; last seen: {seen}")
            }
            Err(_) => std::thread::sleep(BETWEEN_LOOKS),
        }
    }
}
