//! What `INFO redis-cell` tells: how often each command has answered what, who waits, and how effects are propagated.

use core::ffi::CStr;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::commands::{Keys, Spec};
use crate::config::Settings;
use crate::ffi::{self, Section};
use crate::waiting;

/// How often a command has answered what since the module was loaded.
#[derive(Debug)]
pub struct Tally {
    admitted: AtomicU64,
    refused: AtomicU64,
    errors: AtomicU64,
}

/// A command's own [`Tally`].
macro_rules! tally {
    () => {{
        static TALLY: $crate::info::Tally = $crate::info::Tally::new();
        &TALLY
    }};
}
pub(crate) use tally;

impl Tally {
    /// Nothing so far.
    pub const fn new() -> Self {
        Self { admitted: AtomicU64::new(0), refused: AtomicU64::new(0), errors: AtomicU64::new(0) }
    }

    /// Counts an answer.
    pub fn count(&self, refused: bool) {
        bump(if refused { &self.refused } else { &self.admitted });
    }

    /// Counts an error.
    pub fn count_error(&self) {
        bump(&self.errors);
    }

    /// Begins anew.
    pub fn reset(&self) {
        for count in [&self.admitted, &self.refused, &self.errors] {
            count.store(0, Relaxed);
        }
    }
}

/// Adds one. Commands run one after the other, so this need not be one step, as locking the bus would make it.
fn bump(count: &AtomicU64) {
    count.store(count.load(Relaxed).wrapping_add(1), Relaxed);
}

/// Fills the section. Waits for nothing, so that a crash report can have it too.
pub fn fill(section: &Section, commands: impl Iterator<Item = &'static Spec>) {
    section.text("version", env!("CARGO_PKG_VERSION"));
    section.number("blocked_clients", waiting::clients());
    section.text("propagation", ffi::propagation());
    section.text("propagation_listeners", if ffi::heard() { "possible" } else { "none" });
    let settings = Settings::current();
    section.number("top_size", settings.top_size);
    section.text("notify_refusals", if settings.notify_refusals { "yes" } else { "no" });
    for spec in commands {
        let Some(command) = answered(spec) else { continue };
        let Tally { admitted, refused, errors } = spec.tally;
        for (what, count) in [("admitted", admitted), ("refused", refused), ("errors", errors)] {
            section.number(&format!("{command}_{what}"), count.load(Relaxed));
        }
    }
}

/// The name of a command without the `cl.`; `None` for one that neither admits nor refuses.
fn answered(spec: &Spec) -> Option<&'static str> {
    let name: &'static CStr = spec.name;
    name.to_str().ok()?.strip_prefix("cl.").filter(|_| spec.keys != Keys::None)
}
