//! The settings: arguments of `loadmodule` on every server, and `CONFIG SET` on servers that keep settings of
//! modules.

use core::ffi::CStr;

use redis_cell_core::parse_integer;

use crate::ffi::{Number, Setting, Switch};

/// The number of keys that `CL.TOP` records; 0 for no record. A new number starts a new record.
pub static TOP_SIZE: Number = Number::new(c"top-size", 0, 10_000, 128);

/// Whether refusals are published as keyspace events.
pub static NOTIFY_REFUSALS: Switch = Switch::new(c"notify-refusals", false);

/// All settings.
pub static SETTINGS: [Setting; 2] = [Setting::Number(&TOP_SIZE), Setting::Switch(&NOTIFY_REFUSALS)];

/// Sets all settings to the values in the `name value` pairs of the arguments, or to their defaults.
///
/// # Errors
/// A text that explains the first wrong pair.
pub fn parse<'a>(arguments: impl IntoIterator<Item = &'a [u8]>) -> Result<(), String> {
    TOP_SIZE.set(TOP_SIZE.default);
    NOTIFY_REFUSALS.set(NOTIFY_REFUSALS.default);
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        let named = |setting: &&Setting| argument.eq_ignore_ascii_case(name(setting).as_bytes());
        let setting = SETTINGS.iter().find(named).ok_or_else(|| {
            let names: Vec<&str> = SETTINGS.iter().map(name).collect();
            format!("unknown setting {}; the settings are {}", argument.escape_ascii(), names.join(" and "))
        })?;
        parse_value(setting, arguments.next())?;
    }
    Ok(())
}

/// Sets a setting to the value of its argument.
fn parse_value(setting: &Setting, value: Option<&[u8]>) -> Result<(), String> {
    match setting {
        Setting::Number(number) => {
            let Number { min, max, .. } = number;
            let value = value.and_then(parse_integer).filter(|value| (min..=max).contains(&value));
            let wrong = || format!("{} must be an integer from {min} to {max}", name(setting));
            number.set(value.ok_or_else(wrong)?);
        }
        Setting::Switch(switch) => {
            switch.set(match value {
                Some(value) if value.eq_ignore_ascii_case(b"yes") => true,
                Some(value) if value.eq_ignore_ascii_case(b"no") => false,
                _ => return Err(format!("{} must be yes or no", name(setting))),
            });
        }
    }
    Ok(())
}

/// The names and values of all settings.
pub fn values() -> impl Iterator<Item = (&'static str, String)> {
    SETTINGS.iter().map(|setting| {
        let value = match setting {
            Setting::Number(number) => number.get().to_string(),
            Setting::Switch(switch) => String::from(if switch.get() { "yes" } else { "no" }),
        };
        (name(setting), value)
    })
}

fn name(setting: &Setting) -> &'static str {
    let name: &CStr = match setting {
        Setting::Number(number) => number.name,
        Setting::Switch(switch) => switch.name,
    };
    name.to_str().unwrap_or_default()
}
