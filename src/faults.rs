//! Seeded faults, for the test suite to prove at any time that it would see them.
//!
//! Compiled with the feature `faults` only, so a release has none of this. The server's environment variable
//! `REDIS_CELL_FAULT` says which one strikes; `tests/reliability/faults.rs` says which tests have to fail then.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::ffi::Key;

/// What can be made to go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// `panic`: every call panics.
    Panic,
    /// `verbatim`: replicas and the AOF are told of the call, to decide it again by their own clocks.
    Verbatim,
    /// `raw-clock`: the module's clock is the wall, wherever that is set.
    RawClock,
    /// `write-on-refusal`: a refusal and a look set the key's expiry anew.
    WriteOnRefusal,
    /// `round-down`: keys expire a millisecond before they are as good as new.
    RoundDown,
    /// `no-expiry`: keys stay for ever.
    NoExpiry,
    /// `lose`: every sixteenth admitted call is answered and not written.
    Lose,
    /// `leak`: each call leaves a block of memory behind.
    Leak,
}

/// The fault that the server's environment asks for.
static SEEDED: LazyLock<Option<Fault>> = LazyLock::new(|| {
    Some(match std::env::var("REDIS_CELL_FAULT").ok()?.as_str() {
        "panic" => Fault::Panic,
        "verbatim" => Fault::Verbatim,
        "raw-clock" => Fault::RawClock,
        "write-on-refusal" => Fault::WriteOnRefusal,
        "round-down" => Fault::RoundDown,
        "no-expiry" => Fault::NoExpiry,
        "lose" => Fault::Lose,
        "leak" => Fault::Leak,
        _ => return None,
    })
});

/// Whether this is the fault that strikes.
pub fn is(fault: Fault) -> bool {
    *SEEDED == Some(fault)
}

/// What goes wrong at the beginning of each call.
#[allow(clippy::panic)] // the fault itself
pub fn strike() {
    match *SEEDED {
        Some(Fault::Panic) => panic!("seeded fault"),
        Some(Fault::Leak) => core::mem::forget(vec![0_u8; 128]),
        _ => {}
    }
}

/// The millisecond at which a key is made to expire in place of `at`.
pub fn expiry(at: i64) -> i64 {
    match *SEEDED {
        Some(Fault::RoundDown) => at.saturating_sub(1),
        Some(Fault::NoExpiry) => -1, // the server's word for never
        _ => at,
    }
}

/// Writes where nothing should be written.
pub fn write(key: Key) {
    let (call, name) = key.close();
    let _ = call.effect(c"PEXPIRE", name, &[b"3600000"]);
}

/// Whether this admitted call is one of those that are forgotten.
pub fn loses() -> bool {
    static ADMITTED: AtomicU64 = AtomicU64::new(1);
    is(Fault::Lose) && ADMITTED.fetch_add(1, Relaxed).is_multiple_of(16)
}
