//! A decision allocates nothing, nor does reading its arguments, its state or writing its answer.

#![allow(unsafe_code, reason = "an allocator cannot be written without; this one only counts and hands on")]
#![allow(clippy::restriction, reason = "a test that panics is a test that fails")]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::hint::black_box;

use common::{DAY, S, at};
use redis_cell_core::calendar::{Calendar, Cycle};
use redis_cell_core::gcra::{Booking, Limit, charge, decode, refund, reserve, saturate};
use redis_cell_core::limiter::Limiter;
use redis_cell_core::top::Top;
use redis_cell_core::{Tail, TailOption, Unit, bucket, fixed, parse_integer, window};

thread_local! {
    /// Allocations of this thread: the harness has threads of its own.
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

fn count() {
    ALLOCATIONS.with(|allocations| allocations.set(allocations.get() + 1));
}

// SAFETY: every method hands its arguments unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the contract of `alloc`, which is the system's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as in `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as in `alloc`; `block` came from the system.
        unsafe { System.realloc(block, layout, size) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: `block` came from the system.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// How often `work` allocates.
fn allocations<T>(work: impl FnOnce() -> T) -> usize {
    let before = ALLOCATIONS.get();
    black_box(work());
    ALLOCATIONS.get() - before
}

#[test]
fn the_counter_counts() {
    assert_eq!(allocations(|| Box::new(1)), 1);
    assert_eq!(allocations(|| black_box(vec![0_u8; 64])), 1);
    assert_eq!(allocations(|| 1 + 1), 0);
}

/// All verbs of a limiter, fresh and in some states: a check, admitted, refused, never admitted, errors.
fn assert_none<L: Limiter>(limit: &L, states: &[L::State]) {
    for state in states.iter().copied().map(Some).chain([None]) {
        for quantity in [0, 1, 16, 17, 4_611_686_018, i64::MAX, -1] {
            let count = allocations(|| {
                let (state, quantity) = black_box((state, quantity));
                black_box(limit.take(state, at(0), quantity)).ok();
                black_box(limit.saturate(state, at(0), quantity)).ok();
                black_box(limit.peek(state, at(0), quantity)).ok();
                black_box(limit.settle(state, at(0), quantity, None)).ok();
            });
            assert_eq!(count, 0, "{quantity}");
        }
    }
}

#[test]
fn decisions() {
    let limit = Limit::new(15, 30, 60, Unit::Seconds).unwrap();
    // Drained, partly used, full, in debt.
    let tats = [at(-1), at(10 * S), at(32 * S), at(40 * S)];
    assert_none(&limit, &tats);
    let states = tats.into_iter().map(Some).chain([None]);
    for (state, max_wait) in states.flat_map(|state| [(state, None), (state, Some(common::span(S)))]) {
        for quantity in [0, 1, 16, 17, i64::MAX, -1] {
            let count = allocations(|| {
                let (state, quantity) = black_box((state, quantity));
                black_box(refund(state, &limit, at(0), quantity)).ok();
                black_box(charge(state, &limit, at(0), quantity)).ok();
                for prepay in [false, true] {
                    black_box(reserve(state, &limit, at(0), quantity, Booking { max_wait, prepay })).ok();
                }
            });
            assert_eq!(count, 0, "{quantity} of {state:?}");
        }
    }
    let monthly = Calendar::new(Cycle::Month, 60, Some(31)).unwrap();
    for (units, instant) in [(0, at(-S)), (7, at(0)), (15, at(30 * S)), (i64::MAX, at(DAY))] {
        let limit = bucket::Limit::new(16, 30, 60, Unit::Seconds).unwrap();
        assert_none(&limit, &[bucket::Level { free: units, since: instant }]);
        for limit in [fixed::Limit::new(16, 60, Unit::Seconds), fixed::Limit::by_calendar(16, monthly)] {
            assert_none(&limit.unwrap(), &[fixed::Counter { count: units, end: instant }]);
        }
        let limit = window::Limit::new(16, 60, Unit::Seconds).unwrap();
        assert_none(&limit, &[window::Sliding { start: instant, current: units, previous: 5 }]);
    }
}

#[test]
fn states() {
    let tat = common::NOW.to_string();
    let megabyte = vec![b'1'; 1 << 20];
    for bytes in [tat.as_bytes(), b"42", b"foo", b"", &megabyte] {
        for expiry in [None, Some(at(DAY))] {
            assert_eq!(allocations(|| decode(black_box(bytes), at(0), || expiry)), 0);
        }
    }
}

#[test]
fn arguments() {
    let limits: [[&[u8]; 3]; 4] = [
        [b"15", b"30", b"60"],
        [b"x", b"30", b"60"],
        [b"15", b"0", b"60"],
        [b"9223372036854775806", b"1", b"9223372036"],
    ];
    for limit in limits {
        assert_eq!(allocations(|| Limit::parse(black_box(limit), Unit::Seconds)), 0);
    }
    let known = [TailOption::Saturate, TailOption::Prepay, TailOption::MaxWait];
    let tails: [&[&[u8]]; 5] =
        [&[], &[b"5"], &[b"5", b"prepay", b"MAXWAIT", b"7", b"ms", b"SATURATE"], &[b"x"], &[b"5", b"5"]];
    for tail in tails {
        let parse = || Tail::parse(black_box(tail).iter().copied(), &known).map(|tail| tail.max_wait());
        assert_eq!(allocations(parse), 0);
    }
    assert_eq!(allocations(|| parse_integer(black_box(b"-9223372036854775808"))), 0);
}

#[test]
fn answers() {
    let limit = Limit::new(15, 30, 60, Unit::Seconds).unwrap();
    for unit in [Unit::Seconds, Unit::Milliseconds, Unit::Microseconds] {
        for state in [None, Some(at(32 * S))] {
            let answer = saturate(state, &limit, at(0), 1).unwrap().answer;
            assert_eq!(allocations(|| black_box(answer).reply(unit)), 0);
        }
    }
}

#[test]
fn the_most_refused_keys() {
    for size in [0, 1, 2, 7, 128, 1_000] {
        let mut top = Top::new(size);
        // Keys that never repeat, so that rows change hands at every call, and one that does.
        let count = allocations(|| {
            for key in 0..100_000_u64 {
                top.note(0, &key.to_le_bytes(), at(0));
                top.note(0, b"hammered", at(0));
            }
        });
        assert_eq!(count, 0, "{size} rows");
        assert_eq!(allocations(|| top.reset()), 0);
    }
}
