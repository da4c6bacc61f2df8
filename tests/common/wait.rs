//! Waiting for a condition, never for a fixed time.

use std::time::{Duration, Instant};

/// The state seen in place of the expected one.
pub type LastSeen = String;

const DEADLINE: Duration = Duration::from_secs(180);
const BETWEEN_LOOKS: Duration = Duration::from_millis(2);

/// Calls `look` until it succeeds. Panics with the last value seen after a deadline that is far longer than a
/// loaded machine needs.
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

/// Waits until a value is the wanted one.
pub fn until<T: PartialEq + std::fmt::Debug>(what: &str, wanted: T, mut value: impl FnMut() -> T) {
    wait_until(what, move || match value() {
        seen if seen == wanted => Ok(()),
        seen => Err(format!("{seen:?} instead of {wanted:?}")),
    });
}
