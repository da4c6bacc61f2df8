//! Seeded faults, by which the test suite is tested: it must fail when the module has one of them.
//!
//! A build with the feature `faults` has the fault that the environment variable `REDIS_CELL_FAULT` of the
//! server names; `tests/reliability/faults.rs` lists the tests that must fail then. In any other build, which
//! is what users get, every function here is a constant, and nothing is left of it.

pub use seeded::{begin_call, expiry, has_raw_clock, loses_admissions, replicates_calls, writes_refusals};

#[cfg(feature = "faults")]
mod seeded {
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    static SEEDED: LazyLock<String> = LazyLock::new(|| std::env::var("REDIS_CELL_FAULT").unwrap_or_default());

    fn is(fault: &str) -> bool {
        *SEEDED == fault
    }

    /// `panic`: every call panics. `leak`: every call leaks memory.
    #[allow(clippy::panic)] // the fault itself
    pub fn begin_call() {
        if is("leak") {
            core::mem::forget(vec![0_u8; 128]);
        }
        assert!(!is("panic"), "seeded fault");
    }

    /// `raw-clock`: the module's clock is the wall clock, wherever that is set.
    pub fn has_raw_clock() -> bool {
        is("raw-clock")
    }

    /// `verbatim`: calls are replicated in place of their effects, so that replicas decide them again.
    pub fn replicates_calls() -> bool {
        is("verbatim")
    }

    /// `write-on-refusal`: a refusal changes the expiry of the key.
    pub fn writes_refusals() -> bool {
        is("write-on-refusal")
    }

    /// `lose`: every sixteenth admitted call is replied and not written.
    pub fn loses_admissions() -> bool {
        static ADMITTED: AtomicU64 = AtomicU64::new(1);
        is("lose") && ADMITTED.fetch_add(1, Relaxed).is_multiple_of(16)
    }

    /// The expiry that is set in place of `at`. `round-down`: a millisecond too early. `no-expiry`: none.
    pub fn expiry(at: i64) -> i64 {
        match SEEDED.as_str() {
            "round-down" => at.saturating_sub(1),
            "no-expiry" => -1, // the server's value for none
            _ => at,
        }
    }
}

#[cfg(not(feature = "faults"))]
mod seeded {
    pub const fn begin_call() {}

    pub const fn has_raw_clock() -> bool {
        false
    }

    pub const fn replicates_calls() -> bool {
        false
    }

    pub const fn writes_refusals() -> bool {
        false
    }

    pub const fn loses_admissions() -> bool {
        false
    }

    pub const fn expiry(at: i64) -> i64 {
        at
    }
}
