//! Seeded faults, by which the tests of the planner are tested: they must fail when it has one of them.
//!
//! A build with the feature `faults` has the fault that the environment variable `CELL_PLAN_FAULT` names;
//! `tests/cli.rs` lists the tests that must fail then. In any other build nothing is left of them.

/// Whether the program has this fault.
#[cfg(feature = "faults")]
pub fn has(fault: &str) -> bool {
    use std::sync::LazyLock;

    static SEEDED: LazyLock<String> = LazyLock::new(|| std::env::var("CELL_PLAN_FAULT").unwrap_or_default());
    *SEEDED == fault
}

/// Whether the program has this fault: never.
#[cfg(not(feature = "faults"))]
pub const fn has(_fault: &str) -> bool {
    false
}
