//! The settings: by `loadmodule` arguments on every server, by `CONFIG SET` where the server lets a module have some.

use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use redis_cell_core::parse_integer;

use crate::top;

/// A setting that is a number.
pub struct Number {
    /// Its name; `CONFIG SET` wants the module's and a dot before it.
    pub name: &'static CStr,
    /// The smallest value it may have.
    pub min: i64,
    /// The largest value it may have.
    pub max: i64,
}

/// How many keys `CL.TOP` keeps record of; 0 switches it off.
pub const TOP_SIZE: Number = Number { name: c"top-size", min: 0, max: 10_000 };

/// Whether refusals are keyspace events.
pub const NOTIFY_REFUSALS: &CStr = c"notify-refusals";

/// The settings, all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// [`TOP_SIZE`].
    pub top_size: i64,
    /// [`NOTIFY_REFUSALS`].
    pub notify_refusals: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self { top_size: 128, notify_refusals: false }
    }
}

static SIZE: AtomicUsize = AtomicUsize::new(0);
static NOTIFY: AtomicBool = AtomicBool::new(false);

impl Settings {
    /// Reads `name value` pairs.
    ///
    /// # Errors
    /// What is wrong with the first one that is.
    pub fn parse<'a>(words: impl IntoIterator<Item = &'a [u8]>) -> Result<Self, String> {
        let mut settings = Self::default();
        let (top_size, notify_refusals) = (named(TOP_SIZE.name), named(NOTIFY_REFUSALS));
        let mut words = words.into_iter();
        while let Some(name) = words.next() {
            let value = words.next();
            if name.eq_ignore_ascii_case(top_size.as_bytes()) {
                let number = value.and_then(parse_integer);
                let range = TOP_SIZE.min..=TOP_SIZE.max;
                settings.top_size = number.filter(|number| range.contains(number)).ok_or_else(|| {
                    format!("{top_size} must be an integer from {} to {}", TOP_SIZE.min, TOP_SIZE.max)
                })?;
            } else if name.eq_ignore_ascii_case(notify_refusals.as_bytes()) {
                settings.notify_refusals = match value.map(<[u8]>::to_ascii_lowercase).as_deref() {
                    Some(b"yes") => true,
                    Some(b"no") => false,
                    _ => return Err(format!("{notify_refusals} must be yes or no")),
                };
            } else {
                let name = name.escape_ascii();
                return Err(format!(
                    "there is no setting {name}; there are {top_size} and {notify_refusals}"
                ));
            }
        }
        Ok(settings)
    }

    /// Puts them into force.
    pub fn apply(self) {
        set_top_size(self.top_size);
        set_notify_refusals(self.notify_refusals);
    }

    /// Those in force.
    pub fn current() -> Self {
        Self {
            top_size: i64::try_from(SIZE.load(Relaxed)).unwrap_or(i64::MAX),
            notify_refusals: NOTIFY.load(Relaxed),
        }
    }
}

fn named(name: &'static CStr) -> &'static str {
    name.to_str().unwrap_or_default()
}

/// Has `CL.TOP` keep record of so many keys. Another number begins a new record.
pub fn set_top_size(size: i64) {
    let size = usize::try_from(size).unwrap_or_default();
    if SIZE.swap(size, Relaxed) != size {
        top::resize(size);
    }
}

/// Whether there is a record of the most refused keys.
pub fn records_refusals() -> bool {
    SIZE.load(Relaxed) > 0
}

/// Has refusals be keyspace events, or not.
pub fn set_notify_refusals(notify: bool) {
    NOTIFY.store(notify, Relaxed);
}

/// Whether refusals are keyspace events.
pub fn notifies_refusals() -> bool {
    NOTIFY.load(Relaxed)
}
