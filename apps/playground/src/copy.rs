//! A call to be copied: as a command, and for the clients in Python and Rust.

use redis_cell_core::Unit;
use redis_cell_core::several::Join;
use redis_cell_policy::{Limiter, Policy};
use serde::Serialize;

use crate::words;

/// The same call in three languages.
#[derive(Debug, Default, Serialize)]
pub struct Copied {
    /// The command for `redis-cli`.
    pub command: String,
    /// The call for the package `redis_cell`.
    pub python: String,
    /// The call for the crate `redis-cell-client`.
    pub rust: String,
}

/// A limiter of a policy, with its fields filled in.
struct Part {
    /// How it is joined to the limiter before it.
    join: Join,
    key: String,
    shadow: bool,
    kind: String,
    /// The arguments, without the last one.
    arguments: Vec<String>,
    /// The quantity, or the holder of a lease.
    last: String,
}

/// Returns the call with these values of the fields.
pub fn copied(policy: &Policy, values: &[&[u8]]) -> Copied {
    let mut parts: Vec<Part> =
        policy.limiters.iter().filter_map(|limiter| Part::new(limiter, values)).collect();
    if let Some(first) = parts.first_mut() {
        first.join = Join::None; // the limiter before it may be omitted
    }
    let unit = policy.unit;
    let several = || {
        let rows = parts.iter().map(|part| {
            let shadow = if part.shadow { "SHADOW " } else { "" };
            let (key, last) = (quoted(&part.key), quoted(&part.last));
            let join = part.join();
            format!("{join}{key} {shadow}{} {} {last}", part.kind, part.arguments.join(" "))
        });
        let rows: Vec<_> = rows.collect();
        format!("CL.MTAKE {}{}", rows.join(" "), suffix(unit))
    };
    match parts.as_slice() {
        [] => Copied::default(),
        [part] if !part.shadow => {
            Copied { command: part.command(unit), python: part.python(unit), rust: part.rust(unit) }
        }
        parts if parts.iter().any(|part| part.join != Join::None) => chained(parts, unit, several()),
        parts => Copied { command: several(), python: python(parts, unit), rust: rust(parts, unit) },
    }
}

/// Returns a call with a chain, for which the clients have no types: its words.
fn chained(parts: &[Part], unit: Unit, command: String) -> Copied {
    let mut words = Vec::new();
    for part in parts {
        let shadow = if part.shadow { "SHADOW" } else { "" };
        words.extend([part.join().trim_end(), &part.key, shadow, &part.kind].map(str::to_owned));
        words.extend(part.arguments.iter().chain([&part.last]).cloned());
    }
    words.push(suffix(unit).trim_start().to_owned());
    let words: Vec<String> = words.iter().filter(|word| !word.is_empty()).map(|word| text(word)).collect();
    let words = words.join(", ");
    Copied {
        command,
        python: format!("rows = connection.execute_command(\"CL.MTAKE\", {words})"),
        rust: format!(
            "let rows: Vec<[i64; 6]> = redis::cmd(\"CL.MTAKE\").arg(&[{words}]).query(&mut connection)?;"
        ),
    }
}

fn suffix(unit: Unit) -> String {
    if unit == Unit::Seconds { String::new() } else { format!(" {}", words::unit(unit)) }
}

fn python(parts: &[Part], unit: Unit) -> String {
    let rows = parts.iter().map(|part| {
        let shadow = if part.shadow { ", shadow=True" } else { "" };
        format!("    Take({}{shadow}),\n", part.python_arguments(unit))
    });
    format!("answer = cell.mtake(\n{})", rows.collect::<String>())
}

fn rust(parts: &[Part], unit: Unit) -> String {
    let rows = parts.iter().map(|part| {
        let (name, arguments) = (part.kind.to_lowercase(), part.rust_arguments(unit));
        if part.shadow {
            format!("\n    .shadow(|take| take.{name}({arguments}))")
        } else {
            format!("\n    .{name}({arguments})")
        }
    });
    format!("let take = MTake::new(){};\nlet answer = connection.cl_mtake(take)?;", rows.collect::<String>())
}

impl Part {
    /// Returns `None` if a field of the key is missing: the call then omits the limiter.
    fn new(limiter: &Limiter, values: &[&[u8]]) -> Option<Self> {
        let key = limiter
            .key
            .render(values, &mut Vec::new())
            .map(|key| String::from_utf8_lossy(key).into_owned())?;
        let mut words = limiter.text.split(' ').map(str::to_owned);
        let kind = words.next()?.to_ascii_uppercase();
        let mut arguments: Vec<String> = words.collect();
        let _ = arguments.pop();
        let (amount, holder) = limiter.kind.taken();
        let mut last = amount.of(values).map(|amount| amount.to_string()).unwrap_or_default();
        if let Some(holder) = holder {
            if let Some(lease) = arguments.last_mut() {
                *lease = last;
            }
            last = String::from_utf8_lossy(holder.render(values, &mut Vec::new()).unwrap_or_default())
                .into_owned();
        }
        Some(Self { join: limiter.join, key, shadow: limiter.shadow, kind, arguments, last })
    }

    /// Returns the word before the key, with a space.
    const fn join(&self) -> &'static str {
        match self.join {
            Join::None => "",
            Join::Else => "ELSE ",
            Join::Spill => "SPILL ",
        }
    }

    fn is_lease(&self) -> bool {
        self.kind == "LEASE"
    }

    fn number(&self, at: usize) -> &str {
        self.arguments.get(at).map_or("", String::as_str)
    }

    fn command(&self, unit: Unit) -> String {
        let name = if self.is_lease() { "ACQUIRE" } else { &self.kind };
        let mut words = self.arguments.clone();
        // The quantity precedes the options of a calendar window.
        let at = match self.kind.as_str() {
            "FIXED" if self.is_until() => 3,
            "FIXED" if self.option("IDLE").is_some() => 4,
            "FIXED" => 2,
            _ => words.len(),
        };
        if self.is_lease() || self.last != "1" {
            words.insert(at.min(words.len()), quoted(&self.last));
        }
        format!("CL.{name} {} {}{}", quoted(&self.key), words.join(" "), suffix(unit))
    }

    fn is_until(&self) -> bool {
        self.number(1).eq_ignore_ascii_case("UNTIL")
    }

    /// Returns the name of the method for this limiter alone.
    fn method(&self) -> String {
        if self.is_lease() { "acquire".to_owned() } else { self.kind.to_lowercase() }
    }

    fn python(&self, unit: Unit) -> String {
        format!("answer = cell.{}({})", self.method(), self.python_arguments(unit))
    }

    fn python_arguments(&self, unit: Unit) -> String {
        let quantity =
            if self.is_lease() || self.last == "1" { String::new() } else { format!(", {}", self.last) };
        format!("{}, {}{quantity}", text(&self.key), self.python_limit(unit))
    }

    fn python_limit(&self, unit: Unit) -> String {
        let first = self.number(0);
        let per = |at: usize| format!("per={}", seconds(self.number(at), unit));
        match self.kind.as_str() {
            "THROTTLE" => format!("Rate({}, {}, burst={first})", self.number(1), per(2)),
            "FUNNEL" => format!("Funnel({first}, count={}, {})", self.number(1), per(2)),
            "BUCKET" => format!("Bucket({first}, count={}, {})", self.number(1), per(2)),
            "WINDOW" => format!("Window({first}, {})", per(1)),
            "LOG" => format!("Log({first}, {})", per(1)),
            "LEASE" => format!(
                "Lease({first}, lease={}, holder={})",
                seconds(self.number(1), unit),
                text(&self.last)
            ),
            _ if self.is_until() => {
                let end = seconds(self.number(2), unit);
                format!("Fixed({first}, until=datetime.fromtimestamp({end}, timezone.utc))")
            }
            _ => match self.calendar() {
                None => format!("Fixed({first}, {})", per(1)),
                Some(window) if window == "total" => {
                    let idle = self.option("IDLE").map(|idle| format!(", idle={}", seconds(idle, unit)));
                    format!("Fixed.total({first}{})", idle.unwrap_or_default())
                }
                Some(window) => {
                    let day =
                        self.option("FROM").map_or_else(String::new, |day| format!(", first_day={day}"));
                    let offset = self.option("UTC");
                    let offset =
                        offset.map_or_else(String::new, |it| format!(", utc_offset=timedelta(minutes={it})"));
                    format!("Fixed.per_{window}({first}{day}{offset})")
                }
            },
        }
    }

    fn rust(&self, unit: Unit) -> String {
        format!("let answer = connection.cl_{}({})?;", self.method(), self.rust_arguments(unit))
    }

    fn rust_arguments(&self, unit: Unit) -> String {
        let quantity = if self.is_lease() { String::new() } else { format!(", Units({})", self.last) };
        format!("{}, {}{quantity}", text(&self.key), self.rust_limit(unit))
    }

    fn rust_limit(&self, unit: Unit) -> String {
        let first = self.number(0);
        let rate =
            |count: &str, at: usize| format!("Rate::new({count}, {})", duration(self.number(at), unit));
        match self.kind.as_str() {
            "THROTTLE" => format!("{}.burst({first})", rate(self.number(1), 2)),
            "FUNNEL" | "BUCKET" => format!("{}.capacity({first})", rate(self.number(1), 2)),
            "WINDOW" | "LOG" => rate(first, 1),
            "LEASE" => format!("Places({first}), {}, {}", duration(self.number(1), unit), text(&self.last)),
            _ if self.is_until() => {
                let end = duration(self.number(2), unit);
                format!("Fixed::new({first}, FixedWindow::until(UNIX_EPOCH + {end}))")
            }
            _ => match self.calendar() {
                None => {
                    format!("Fixed::new({first}, FixedWindow::period({}))", duration(self.number(1), unit))
                }
                Some(window) if window == "total" => {
                    let idle = self.option("IDLE").map(|idle| format!(".idle({})", duration(idle, unit)));
                    format!("Fixed::new({first}, FixedWindow::total(){})", idle.unwrap_or_default())
                }
                Some(window) => {
                    let window = match (window.as_str(), self.option("FROM")) {
                        ("week", Some(day)) => format!("week_from(Weekday::{})", weekday(day)),
                        ("month", Some(day)) => format!("month_from({day})"),
                        _ => format!("{window}()"),
                    };
                    let offset = self.option("UTC");
                    let offset = offset.map_or_else(String::new, |it| format!(".utc_offset_minutes({it})"));
                    format!("Fixed::new({first}, FixedWindow::{window}{offset})")
                }
            },
        }
    }

    /// Returns the word for a calendar window.
    fn calendar(&self) -> Option<String> {
        Some(self.number(1).to_lowercase()).filter(|word| word.parse::<u64>().is_err())
    }

    /// Returns the argument after a word.
    fn option(&self, name: &str) -> Option<&str> {
        let at = self.arguments.iter().position(|word| word.eq_ignore_ascii_case(name))?;
        self.arguments.get(at.saturating_add(1)).map(String::as_str)
    }
}

fn weekday(day: &str) -> &'static str {
    const DAYS: [&str; 7] = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];
    let day = day.parse::<usize>().ok().and_then(|day| DAYS.get(day.checked_sub(1)?));
    day.copied().unwrap_or("Monday")
}

/// Converts a number of units to seconds, exactly.
fn seconds(number: &str, unit: Unit) -> String {
    let units: u64 = number.parse().unwrap_or_default();
    let per_second = 1_000_000_000_u64.checked_div(unit.nanos().get()).unwrap_or(1);
    let (whole, rest) = words::divided(units, per_second);
    let digits = match unit {
        Unit::Seconds => return units.to_string(),
        Unit::Milliseconds => format!("{whole}.{rest:03}"),
        Unit::Microseconds => format!("{whole}.{rest:06}"),
    };
    digits.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn duration(number: &str, unit: Unit) -> String {
    let unit = match unit {
        Unit::Seconds => "secs",
        Unit::Milliseconds => "millis",
        Unit::Microseconds => "micros",
    };
    format!("Duration::from_{unit}({number})")
}

/// Formats a string for Python and Rust.
fn text(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// Formats a word for `redis-cli`.
fn quoted(word: &str) -> String {
    let plain =
        !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_graphic() && !br#""'\"#.contains(&byte));
    if plain { word.to_owned() } else { text(word) }
}
