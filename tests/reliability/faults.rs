//! The suite is tested against seeded faults of `ffi/src/faults.rs`: with each of them, the tests that guard
//! against it fail. The others are those of the simulator: `verify/simulator/tests/simulated.rs`.

use crate::common::with_fault;
use crate::{clock, crash, failover, histories, hostile};
use std::panic::catch_unwind;

/// Tests with their names.
macro_rules! tests {
    ($($module:ident::$test:ident),+ $(,)?) => { [$((stringify!($module::$test), $module::$test as fn())),+] };
}

/// Runs tests with a seeded fault. Each of them must fail.
fn must_fail<const N: usize>(fault: &'static str, tests: [(&str, fn()); N]) {
    for (name, test) in tests {
        let outcome = catch_unwind(|| with_fault(fault, test));
        assert!(outcome.is_err(), "{name} passes with the seeded fault {fault}");
    }
}

/// The build with faults works while none is chosen, so the other tests fail because of their fault alone.
#[test]
fn without_a_fault_they_pass() {
    with_fault("none", clock::a_step_back_delays_no_waiting_client);
}

#[test]
fn a_raw_wall_clock_is_seen() {
    must_fail(
        "raw-clock",
        tests![
            clock::a_step_back_makes_no_client_wait_longer_and_admits_no_more,
            clock::a_step_forward_is_an_hour_that_has_passed,
            clock::a_slow_drift_moves_limits_by_the_drift_alone,
            clock::a_pause_is_time_that_passes_on_the_faster_clock,
        ],
    );
}

#[test]
fn a_lead_that_is_ignored_is_seen() {
    must_fail(
        "no-lead",
        tests![
            clock::a_wrong_moment_lengthens_no_life,
            clock::the_calendar_is_right_as_soon_as_the_wall_clock,
            clock::after_a_restart_no_client_waits_longer_than_the_key_lives,
        ],
    );
}

#[test]
fn calls_replicated_in_place_of_effects_are_seen() {
    must_fail(
        "verbatim",
        tests![
            clock::a_failover_is_a_step_by_the_difference_of_the_clocks,
            failover::a_thousand_keys_are_the_same_on_their_replica,
            failover::a_replica_that_stands_still_for_two_seconds_invents_no_debt,
            crash::an_append_only_file_cut_anywhere_is_one_of_the_states_there_were,
            crash::a_server_without_the_module_keeps_every_kind_of_key,
        ],
    );
}

#[test]
fn keys_that_expire_too_soon_or_never_are_seen() {
    must_fail("round-down", tests![clock::a_key_lives_until_it_is_fully_replenished]);
    must_fail(
        "no-expiry",
        tests![clock::a_key_lives_until_it_is_fully_replenished, hostile::no_random_command_does_harm],
    );
}

#[test]
fn lost_admissions_are_seen() {
    must_fail(
        "lose",
        tests![
            clock::a_step_forward_forgives_the_burst_and_no_more,
            histories::a_server_that_is_killed_forgets_no_answered_call,
        ],
    );
}

#[test]
fn lost_effects_are_seen() {
    must_fail(
        "lose-effects",
        tests![
            failover::a_thousand_keys_are_the_same_on_their_replica,
            histories::a_planned_failover_forgets_nothing,
        ],
    );
}

#[test]
fn repeated_calls_that_are_charged_again_are_seen() {
    must_fail("forget-replies", tests![histories::callers_that_are_cut_off_are_charged_once_or_not_at_all]);
}

#[test]
fn leaks_and_panics_are_seen() {
    must_fail("leak", tests![hostile::no_memory_stays_behind]);
    must_fail("panic", tests![hostile::no_random_command_does_harm]);
}
