//! The section of the module in `INFO`: counts for each command, clients that wait, settings, and how effects
//! are propagated.

use crate::config;
use crate::ffi::{self, Keys, Section, Spec};
use crate::outcome::CommandRow;
use crate::{tally, waiting};

/// Fills the section. Must not wait for a lock, because the server also calls it for a crash report.
pub fn fill(section: &Section, commands: &[CommandRow]) {
    section.text("version", env!("CARGO_PKG_VERSION"));
    section.number("blocked_clients", waiting::clients());
    section.number("flows", waiting::remembered());
    for (name, count) in tally::HOLDS {
        section.number(name, count.get());
    }
    ffi::now(); // which reads the clocks
    section.number("clock_lead_ms", ffi::lead().as_nanos() / 1_000_000);
    section.text("propagation", ffi::propagation());
    section.text("propagation_listeners", if ffi::may_have_listeners() { "possible" } else { "none" });
    for (name, value) in config::values() {
        section.text(&name.replace('-', "_"), &value);
    }
    for CommandRow { command, tally } in commands {
        let Some(name) = limiter(&command.spec) else { continue };
        for (what, count) in tally.counts() {
            section.number(&format!("{name}_{what}"), count);
        }
    }
}

/// The name of a command without the `cl.`; `None` for a command that neither admits nor refuses.
fn limiter(spec: &Spec) -> Option<&'static str> {
    spec.name.to_str().ok()?.strip_prefix("cl.").filter(|_| !matches!(spec.keys, Keys::None))
}
