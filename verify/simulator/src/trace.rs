//! Whether replies are shown.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

static IS_ON: AtomicBool = AtomicBool::new(false);

/// From now on, they are.
pub fn start() {
    IS_ON.store(true, Relaxed);
}

/// Whether they are.
pub fn is_on() -> bool {
    IS_ON.load(Relaxed)
}
