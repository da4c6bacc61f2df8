//! Seeded faults that test the planner's tests: the tests must fail with each of them.
//!
//! A build with the feature `faults` has the fault that the environment variable `CELL_PLAN_FAULT` names.
//! `tests/cli.rs` lists the tests that must then fail. Other builds contain none of this.

/// Returns whether the program has this fault.
#[cfg(feature = "faults")]
pub fn has(fault: &str) -> bool {
    use std::sync::LazyLock;

    static SEEDED: LazyLock<String> = LazyLock::new(|| std::env::var("CELL_PLAN_FAULT").unwrap_or_default());
    *SEEDED == fault
}

/// Returns `false`: the program has no faults.
#[cfg(not(feature = "faults"))]
pub const fn has(_fault: &str) -> bool {
    false
}
