//! Histories: the settings of a world and what happens in it, as lines of text that a person can read and
//! keep. A history without its seed is the same history.

use std::fmt::{self, Display};
use std::rc::Rc;

use crate::world::Words;

/// The settings of a world: the first line of a history.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The server: `7.0.15`, `6.2.6` (no expiries as instants), `8.6.3`, or `valkey-9.1.0`.
    pub version: String,
    /// Who listens to the effects from the start: `none`, `replica` or `aof`.
    pub listeners: String,
    /// Whether another module is loaded.
    pub beside: bool,
    /// Whether the cron deletes keys that have expired.
    pub active: bool,
    /// Whether the server is a node of a cluster.
    pub cluster: bool,
    /// Whether the server may evict keys.
    pub evicts: bool,
    /// The nanoseconds that pass with each reading of a clock and each call of the module API.
    pub tick: i64,
    /// The wall clock at the beginning, in nanoseconds.
    pub wall: i64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            version: "7.0.15".into(),
            listeners: "replica".into(),
            beside: false,
            active: true,
            cluster: false,
            evicts: false,
            tick: 0,
            wall: 1_800_000_000_123_456_789,
        }
    }
}

/// Something that happens.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// A client sends a command.
    Call(u64, Rc<Words>),
    /// A client closes its connection.
    Close(u64),
    /// Time passes, in nanoseconds, while the server works.
    Pass(i64),
    /// Time passes while the server does nothing: the process is stopped, or a script runs.
    Hang(i64),
    /// The wall clock is set by this.
    Set(i64),
    /// The same, after this many more readings of a clock.
    SetWithin(i64, i64),
    /// Another module runs a command in the events of a key, this number of times.
    Reacts(u32, Vec<u8>, Words),
    /// The user of a client.
    User(u64, Vec<u8>),
    /// A user loses its permissions, of all keys or of one, or has them again.
    Denied(bool, Vec<u8>, Option<Vec<u8>>),
    /// A key moves to another node of the cluster, or back.
    Moved(bool, Vec<u8>),
    /// The slot of a key leaves for another node at once, without an event, or comes back without the key.
    Left(bool, Vec<u8>),
    /// The server evicts a key.
    Evict(Vec<u8>),
    /// What happens to the replicas of the server: `comes`, `goes`, `returns`, `ends`.
    Replica(String),
    /// The server becomes a replica, or a primary.
    Role(bool),
    /// Writes are paused for this time.
    Pause(i64),
    /// The memory is used up, or not any more.
    Full(bool),
    /// The server, which saves without a fork, does not open a key for writing once in this number of times;
    /// 0 for never.
    Busy(u64),
}

/// A history.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct History {
    /// The settings.
    pub settings: Settings,
    /// The steps.
    pub steps: Vec<Step>,
}

/// A time with the unit that makes it shortest.
pub fn time(nanos: i64) -> String {
    for (unit, name) in [(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us")] {
        if nanos % unit == 0 {
            return format!("{}{name}", nanos / unit);
        }
    }
    format!("{nanos}ns")
}

fn parse_time(text: &str) -> Option<i64> {
    let digits = text.trim_end_matches(char::is_alphabetic);
    let unit = match &text[digits.len()..] {
        "s" => 1_000_000_000,
        "ms" => 1_000_000,
        "us" => 1_000,
        "ns" => 1,
        _ => return None,
    };
    digits.parse::<i64>().ok()?.checked_mul(unit)
}

fn word(bytes: &[u8]) -> String {
    let plain =
        !bytes.is_empty() && bytes.iter().all(|byte| byte.is_ascii_graphic() && !b"\"\\".contains(byte));
    if plain { String::from_utf8_lossy(bytes).into_owned() } else { format!("\"{}\"", bytes.escape_ascii()) }
}

/// Words as redis-cli takes them.
pub fn line(words: &[Vec<u8>]) -> String {
    words.iter().map(|bytes| word(bytes)).collect::<Vec<_>>().join(" ")
}

/// The words of a line.
pub fn words(line: &str) -> Option<Words> {
    if !line.contains('"') {
        return Some(line.split_ascii_whitespace().map(Into::into).collect());
    }
    let (mut words, mut rest) = (Words::new(), line.trim_start());
    while !rest.is_empty() {
        let Some(quoted) = rest.strip_prefix('"') else {
            let end = rest.find(' ').unwrap_or(rest.len());
            words.push(rest[..end].into());
            rest = rest[end..].trim_start();
            continue;
        };
        let (mut bytes, mut chars) = (Vec::new(), quoted.char_indices());
        let end = loop {
            match chars.next()? {
                (at, '"') => break at + 1,
                (_, '\\') => match chars.next()?.1 {
                    'x' => {
                        let hex: String = [chars.next()?.1, chars.next()?.1].iter().collect();
                        bytes.push(u8::from_str_radix(&hex, 16).ok()?);
                    }
                    'n' => bytes.push(b'\n'),
                    'r' => bytes.push(b'\r'),
                    't' => bytes.push(b'\t'),
                    other => bytes.push(other as u8),
                },
                (_, other) => bytes.push(other as u8),
            }
        };
        words.push(bytes);
        rest = quoted[end..].trim_start();
    }
    Some(words)
}

impl Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { version, listeners, beside, active, cluster, evicts, tick, wall } = self;
        write!(f, "server version={version} listeners={listeners} beside={beside} active={active} ")?;
        write!(f, "cluster={cluster} evicts={evicts} tick={tick} wall={wall}")
    }
}

impl Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Call(client, words) => write!(f, "{client}> {}", line(words)),
            Self::Close(client) => write!(f, "close {client}"),
            Self::Pass(nanos) => write!(f, "pass {}", time(*nanos)),
            Self::Hang(nanos) => write!(f, "hang {}", time(*nanos)),
            Self::Set(nanos) => write!(f, "set {}", time(*nanos)),
            Self::SetWithin(readings, nanos) => write!(f, "set {} within {readings}", time(*nanos)),
            Self::Reacts(times, key, words) => write!(f, "reacts {times} {} {}", word(key), line(words)),
            Self::User(client, name) => write!(f, "user {client} {}", word(name)),
            Self::Denied(yes, name, key) => {
                let name = [Some(name.clone()), key.clone()].into_iter().flatten().collect::<Vec<_>>();
                write!(f, "{} {}", if *yes { "deny" } else { "allow" }, line(&name))
            }
            Self::Moved(yes, key) => write!(f, "{} {}", if *yes { "moved" } else { "back" }, word(key)),
            Self::Left(yes, key) => write!(f, "{} {}", if *yes { "leaves" } else { "enters" }, word(key)),
            Self::Evict(key) => write!(f, "evict {}", word(key)),
            Self::Replica(what) => write!(f, "replica {what}"),
            Self::Role(replica) => write!(f, "{}", if *replica { "demote" } else { "promote" }),
            Self::Pause(nanos) => write!(f, "pause {}", time(*nanos)),
            Self::Full(yes) => write!(f, "memory {}", if *yes { "full" } else { "free" }),
            Self::Busy(times) => write!(f, "busy {times}"),
        }
    }
}

impl Step {
    /// The step of a line.
    pub fn parse(line: &str) -> Option<Self> {
        let (first, rest) = line.trim().split_once(' ').unwrap_or((line.trim(), ""));
        if let Some(client) = first.strip_suffix('>') {
            return Some(Self::Call(client.parse().ok()?, Rc::new(words(rest)?)));
        }
        let mut args = words(rest)?.into_iter();
        let text = |args: &mut dyn Iterator<Item = Vec<u8>>| String::from_utf8(args.next()?).ok();
        Some(match first {
            "close" => Self::Close(text(&mut args)?.parse().ok()?),
            "pass" => Self::Pass(parse_time(&text(&mut args)?)?),
            "hang" => Self::Hang(parse_time(&text(&mut args)?)?),
            "pause" => Self::Pause(parse_time(&text(&mut args)?)?),
            "set" => {
                let by = parse_time(&text(&mut args)?)?;
                match args.nth(1) {
                    None => Self::Set(by),
                    Some(readings) => Self::SetWithin(String::from_utf8(readings).ok()?.parse().ok()?, by),
                }
            }
            "reacts" => {
                let times = text(&mut args)?.parse().ok()?;
                Self::Reacts(times, args.next()?, args.collect())
            }
            "user" => Self::User(text(&mut args)?.parse().ok()?, args.next()?),
            "deny" | "allow" => Self::Denied(first == "deny", args.next()?, args.next()),
            "moved" | "back" => Self::Moved(first == "moved", args.next()?),
            "leaves" | "enters" => Self::Left(first == "leaves", args.next()?),
            "evict" => Self::Evict(args.next()?),
            "replica" => Self::Replica(text(&mut args)?),
            "demote" | "promote" => Self::Role(first == "demote"),
            "memory" => Self::Full(text(&mut args)? == "full"),
            "busy" => Self::Busy(text(&mut args)?.parse().ok()?),
            _ => return None,
        })
    }
}

impl Display for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.settings)?;
        self.steps.iter().try_for_each(|step| writeln!(f, "{step}"))
    }
}

impl History {
    /// The history of some lines. Lines that begin with `#` and empty lines are left out, and so is what
    /// stands before a bar: the clock of a report.
    ///
    /// # Errors
    /// The first line that means nothing.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut history = Self::default();
        for line in text.lines() {
            let line = line
                .split_once('|')
                .filter(|(clock, _)| clock.trim().starts_with('+'))
                .map_or(line, |(_, line)| line);
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let wrong = || format!("no step: {line}");
            if let Some(settings) = line.strip_prefix("server ") {
                for pair in settings.split(' ') {
                    let (name, value) = pair.split_once('=').ok_or_else(wrong)?;
                    let (settings, number) =
                        (&mut history.settings, || value.parse::<i64>().map_err(|_| wrong()));
                    match name {
                        "version" => settings.version = value.into(),
                        "listeners" => settings.listeners = value.into(),
                        "beside" => settings.beside = value == "true",
                        "active" => settings.active = value == "true",
                        "cluster" => settings.cluster = value == "true",
                        "evicts" => settings.evicts = value == "true",
                        "tick" => settings.tick = number()?,
                        "wall" => settings.wall = number()?,
                        _ => return Err(wrong()),
                    }
                }
            } else {
                history.steps.push(Step::parse(line).ok_or_else(wrong)?);
            }
        }
        Ok(history)
    }
}
