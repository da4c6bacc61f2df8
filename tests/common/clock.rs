//! Clocks of a server that a test controls: `clock_shim.c` replaces the clocks of libc.

use super::{Options, Server, compile_library, wall_ns};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::LazyLock;
use tempfile::NamedTempFile;

/// In nanoseconds.
pub const SECOND: i64 = 1_000_000_000;

/// The wall and the monotonic clock of a server.
pub struct Clock {
    file: NamedTempFile,
    wall: i64,
    monotonic: i64,
}

impl Clock {
    /// Stopped clocks. The wall clock is a second into a minute, so that windows are the same in every run.
    pub fn stopped() -> Self {
        let minute = 60 * SECOND;
        Self::stopped_at((wall_ns() / minute + 1) * minute + SECOND)
    }

    /// Stopped clocks, with the wall clock at an instant in nanoseconds since the epoch.
    pub fn stopped_at(wall: i64) -> Self {
        Self::new(wall, 1000 * SECOND, false)
    }

    /// Running clocks, with the wall clock ahead of the clock of the tests, which scripts/test-hours.sh sets
    /// ahead of the true one.
    pub fn ahead_by(wall: i64) -> Self {
        let run = std::env::var("REDIS_CELL_CLOCK_AHEAD").map_or(0, |nanos| nanos.parse().unwrap());
        Self::new(wall + run, 0, true)
    }

    fn new(wall: i64, monotonic: i64, running: bool) -> Self {
        // Below the build directory, so that `make clean` removes everything that is left behind.
        let file = NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        file.as_file().set_len(56).unwrap();
        let clock = Self { file, wall, monotonic };
        clock.write(16, running.into());
        clock.show();
        clock
    }

    fn show(&self) {
        self.write(0, self.wall);
        self.write(8, self.monotonic);
    }

    /// A number in the file of the shim.
    fn read(&self, at: u64) -> i64 {
        let mut bytes = [0; 8];
        self.file.as_file().read_exact_at(&mut bytes, at).unwrap();
        i64::from_ne_bytes(bytes)
    }

    fn write(&self, at: u64, number: i64) {
        self.file.as_file().write_all_at(&number.to_ne_bytes(), at).unwrap();
    }

    /// Sets the wall clock forward or back.
    pub fn step(&mut self, by: i64) {
        self.wall += by;
        self.show();
    }

    /// From now on, each reading of a clock lets a nanosecond pass. Sets the wall clock forward at the
    /// reading after `readings` more of them.
    pub fn step_within(&mut self, readings: i64, by: i64) {
        self.write(24, 1);
        self.write(40, self.read(32) + readings);
        self.write(48, by);
    }

    /// Whether the step has been made.
    pub fn has_stepped(&self) -> bool {
        self.read(48) == 0
    }

    /// Lets time pass, on both clocks.
    pub fn pass(&mut self, time: i64) {
        self.pass_unevenly(time, time);
    }

    pub fn pass_unevenly(&mut self, wall: i64, monotonic: i64) {
        self.wall = self.read(0) + wall; // which may have stepped
        self.monotonic += monotonic;
        self.show();
    }

    /// The time on the wall clock.
    pub fn wall(&self) -> i64 {
        self.wall
    }

    /// Starts a server on these clocks.
    pub fn start(&self, options: Options) -> Server {
        static SHIM: LazyLock<PathBuf> = LazyLock::new(|| compile_library("common/clock_shim"));
        options
            .environment("LD_PRELOAD", &SHIM.display().to_string())
            .environment("REDIS_CELL_CLOCK", &self.file.path().display().to_string())
            .start()
    }
}
