//! Seeded faults, which test the test suite: it must fail when the module has one of them.
//!
//! A build with the feature `faults` has the fault that the environment variable `REDIS_CELL_FAULT` of the
//! server names; `tests/reliability/faults.rs` lists the tests that must fail then. In any other build, such
//! as those for users, every function here is a constant that the compiler removes.

use redis_cell_core::Span;

pub use seeded::{
    age, begin_call, charges_refused, difference, expiry, forgets_holds, forgets_replies, has_one_flow,
    has_raw_clock, ignores_flows, ignores_lead, keeps_holds, loses_admissions, loses_effects, part,
    replicates_calls, shadow, writes_at_once, writes_refusals,
};

#[cfg(feature = "faults")]
mod seeded {
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    use super::Span;

    static SEEDED: LazyLock<String> = LazyLock::new(|| std::env::var("REDIS_CELL_FAULT").unwrap_or_default());

    fn is(fault: &str) -> bool {
        *SEEDED == fault
    }

    /// `panic`: every call panics. `leak`: every call leaks memory.
    #[allow(clippy::panic, clippy::missing_panics_doc)] // the fault itself
    pub fn begin_call() {
        if is("leak") {
            // Without the black box, the compiler removes an allocation that nothing reads.
            core::mem::forget(core::hint::black_box(vec![0_u8; 128]));
        }
        assert!(!is("panic"), "seeded fault");
    }

    /// `raw-clock`: the module's clock is the wall clock, whatever it is set to.
    pub fn has_raw_clock() -> bool {
        is("raw-clock")
    }

    /// `no-lead`: keys and calendar windows follow the module's clock, even where it is ahead.
    pub fn ignores_lead() -> bool {
        is("no-lead")
    }

    /// `verbatim`: calls are replicated in place of their effects, so that replicas decide them again.
    pub fn replicates_calls() -> bool {
        is("verbatim")
    }

    /// `write-on-refusal`: a refusal changes the expiry of the key.
    pub fn writes_refusals() -> bool {
        is("write-on-refusal")
    }

    /// `lose`: every fourth admitted call is answered but not written.
    pub fn loses_admissions() -> bool {
        static ADMITTED: AtomicU64 = AtomicU64::new(1);
        is("lose") && ADMITTED.fetch_add(1, Relaxed).is_multiple_of(4)
    }

    /// `lose-effects`: every sixteenth effect is not replicated.
    pub fn loses_effects() -> bool {
        static EFFECTS: AtomicU64 = AtomicU64::new(1);
        is("lose-effects") && EFFECTS.fetch_add(1, Relaxed).is_multiple_of(16)
    }

    /// `charge-refused`: a refused call takes from the limiters that admit it.
    pub fn charges_refused() -> bool {
        is("charge-refused")
    }

    /// `one-flow`: all clients of `CL.BMTAKE` are in one flow.
    pub fn has_one_flow() -> bool {
        is("one-flow")
    }

    /// `ignore-flows`: calls that do not wait are decided as if no client of `CL.BMTAKE` did.
    pub fn ignores_flows() -> bool {
        is("ignore-flows")
    }

    /// `forget-replies`: `ONCE` stores no reply, and finds none.
    pub fn forgets_replies() -> bool {
        is("forget-replies")
    }

    /// `forget-holds`: units of a hold that has run out do not come back.
    pub fn forgets_holds() -> bool {
        is("forget-holds")
    }

    /// `keep-holds`: a hold that has run out stays, so that its units come back again.
    pub fn keeps_holds() -> bool {
        is("keep-holds")
    }

    /// `write-at-once`: each limiter of a call is written before the next one is decided.
    pub fn writes_at_once() -> bool {
        is("write-at-once")
    }

    /// Whether a limiter is in shadow. `shadow-refuses`: none is.
    pub fn shadow(shadow: bool) -> bool {
        shadow && !is("shadow-refuses")
    }

    /// The age of a settlement. `ignore-age`: no settlement has an age.
    pub fn age(age: Option<Span>) -> Option<Span> {
        age.filter(|_| !is("ignore-age"))
    }

    /// The quantity of a settlement. `settle-takes`: units to be given back are taken, which creates states.
    pub fn difference(quantity: i64) -> i64 {
        if is("settle-takes") { quantity.saturating_abs() } else { quantity }
    }

    /// The part of a quantity that is taken from a pool. `whole-parts`: all of it, from each.
    pub fn part(part: i64, quantity: i64) -> i64 {
        if is("whole-parts") { quantity } else { part }
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
#[allow(missing_docs)] // as above
mod seeded {
    use super::Span;

    pub const fn begin_call() {}

    pub const fn has_raw_clock() -> bool {
        false
    }

    pub const fn ignores_lead() -> bool {
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

    pub const fn loses_effects() -> bool {
        false
    }

    pub const fn charges_refused() -> bool {
        false
    }

    pub const fn has_one_flow() -> bool {
        false
    }

    pub const fn ignores_flows() -> bool {
        false
    }

    pub const fn forgets_replies() -> bool {
        false
    }

    pub const fn forgets_holds() -> bool {
        false
    }

    pub const fn keeps_holds() -> bool {
        false
    }

    pub const fn writes_at_once() -> bool {
        false
    }

    pub const fn shadow(shadow: bool) -> bool {
        shadow
    }

    pub const fn age(age: Option<Span>) -> Option<Span> {
        age
    }

    pub const fn difference(quantity: i64) -> i64 {
        quantity
    }

    pub const fn part(part: i64, _: i64) -> i64 {
        part
    }
}
