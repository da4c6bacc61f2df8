//! The targets of `make fuzz`, on random bytes: the same in every run, and quick.

#![allow(clippy::restriction, reason = "a test that panics is a test that fails")]

#[path = "../../verify/fuzz/src/lib.rs"]
mod targets;

use proptest::prelude::Rng;
use proptest::test_runner::{RngAlgorithm, TestRng};

/// Inputs of all lengths that one call or a short story of calls can have.
fn try_many(target: fn(&[u8])) {
    let mut random = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut bytes = [0; 300];
    for round in 0..20_000_usize {
        let input = &mut bytes[..round % 300];
        random.fill_bytes(input);
        // Every other input is poor in bits, as text and small numbers are.
        if round % 2 == 0 {
            for byte in input.iter_mut() {
                *byte = b" 0123456789-SMUX"[usize::from(*byte) % 16];
            }
        }
        target(input);
    }
}

#[test]
fn arguments() {
    try_many(targets::arguments);
}

#[test]
fn states() {
    try_many(targets::states);
}

#[test]
fn decisions() {
    try_many(targets::decisions);
}

#[test]
fn queues() {
    try_many(targets::queues);
}
