//! The clocks of the simulated machine, which the module reads through libc's symbol.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed};

static IS_ON: AtomicBool = AtomicBool::new(false);
static WALL: AtomicI64 = AtomicI64::new(0);
static MONOTONIC: AtomicI64 = AtomicI64::new(0);
static TICK: AtomicI64 = AtomicI64::new(0);
/// The wall clock is set at the reading before which this many others are made; below 0 for never.
static STEP_IN: AtomicI64 = AtomicI64::new(-1);
static STEP_BY: AtomicI64 = AtomicI64::new(0);

/// The module's clock by its page, and the wall clock, when it was last read; the same, with the monotonic
/// clock, when that one was last read, too.
static MODULE: AtomicI64 = AtomicI64::new(0);
static MODULE_WALL: AtomicI64 = AtomicI64::new(0);
static ANCHOR: AtomicI64 = AtomicI64::new(0);
static ANCHOR_MONOTONIC: AtomicI64 = AtomicI64::new(0);

/// Whether the wall clock shows less than 20 microseconds after its last reading: by the page, the monotonic
/// clock is not read then, whatever happened to the clocks in between.
fn is_fresh() -> bool {
    (1..20_000).contains(&(wall() - MODULE_WALL.load(Relaxed)))
}

/// The module reads the wall clock: its clock is that one, but never moves back.
pub fn module_reads() {
    let now = module();
    if !is_fresh() {
        ANCHOR.store(now, Relaxed);
        ANCHOR_MONOTONIC.store(monotonic(), Relaxed);
    }
    MODULE.store(now, Relaxed);
    MODULE_WALL.store(wall(), Relaxed);
}

/// The expected reading of the module's clock.
pub fn module() -> i64 {
    let last = MODULE.load(Relaxed);
    if last == 0 {
        wall()
    } else if is_fresh() {
        last + wall() - MODULE_WALL.load(Relaxed)
    } else {
        wall().max(last).max(ANCHOR.load(Relaxed) + monotonic() - ANCHOR_MONOTONIC.load(Relaxed))
    }
}

/// Starts the simulated clocks. With each reading, and with each call of the server, `tick` nanoseconds pass.
pub fn start(wall: i64, tick: i64) {
    WALL.store(wall, Relaxed);
    MONOTONIC.store(1_000_000_000_000, Relaxed);
    TICK.store(tick, Relaxed);
    STEP_IN.store(-1, Relaxed);
    MODULE.store(0, Relaxed);
    IS_ON.store(true, Relaxed);
}

/// Whether the simulated clocks run.
pub fn is_on() -> bool {
    IS_ON.load(Relaxed)
}

/// The wall clock, in nanoseconds since the epoch, without letting time pass.
pub fn wall() -> i64 {
    WALL.load(Relaxed)
}

/// The monotonic clock, in nanoseconds.
pub fn monotonic() -> i64 {
    MONOTONIC.load(Relaxed)
}

/// Lets time pass.
pub fn pass(nanos: i64) {
    WALL.fetch_add(nanos, Relaxed);
    MONOTONIC.fetch_add(nanos, Relaxed);
}

/// Sets the wall clock forward or back.
pub fn step(by: i64) {
    WALL.fetch_add(by, Relaxed);
}

/// Sets the wall clock by this after some more readings.
pub fn step_within(readings: i64, by: i64) {
    STEP_BY.store(by, Relaxed);
    STEP_IN.store(readings, Relaxed);
}

/// Lets the time of one reading or one call pass.
pub fn tick() {
    let tick = TICK.load(Relaxed);
    if tick != 0 {
        pass(tick);
    }
}

/// A reading of the wall clock, or of the monotonic clock.
pub fn read(is_wall: bool) -> i64 {
    tick();
    let left = STEP_IN.load(Relaxed);
    if left >= 0 {
        STEP_IN.store(left - 1, Relaxed);
        if left == 0 {
            step(STEP_BY.load(Relaxed));
        }
    }
    if is_wall { wall() } else { monotonic() }
}
