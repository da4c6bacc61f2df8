//! How the server sees a command: the one description from which it is registered, documented and counted.

use core::ffi::CStr;
use core::ops::Range;

use redis_cell_core::parse_integer;

use crate::ffi::Call;
use crate::info::Tally;

/// How the server sees a command.
#[derive(Clone, Copy, Debug)]
pub struct Spec {
    /// Its name, in lower case.
    pub name: &'static CStr,
    /// What it does, in a sentence.
    pub summary: &'static str,
    /// What it answers, in a sentence: the server has no other place for it.
    pub reply: &'static str,
    /// What it costs.
    pub complexity: &'static CStr,
    /// The version of the module that brought it.
    pub since: &'static CStr,
    /// What stands behind its name, in the order of its synopsis.
    pub arguments: &'static [Argument],
    /// What it does and when it may run.
    pub flags: &'static [Flag],
    /// Where its keys stand.
    pub keys: Keys,
    /// What it does with them.
    pub uses: Use,
    /// What clients and proxies should know, in the server's words.
    pub tips: &'static CStr,
    /// How often it has answered what.
    pub tally: &'static Tally,
}

impl Spec {
    /// How many words a call has at the least, the name included. What may follow is up to the command.
    pub const fn least_words(&self) -> usize {
        least_words(self.arguments, 1)
    }
}

/// `sum` and the words that `arguments` take at the least.
const fn least_words(arguments: &[Argument], sum: usize) -> usize {
    let Some((first, rest)) = arguments.split_first() else { return sum };
    let words = match first.kind {
        _ if first.optional => 0,
        Kind::Block(inner) => least_words(inner, 0),
        _ if first.token.is_some() => 2,
        _ => 1,
    };
    least_words(rest, sum.saturating_add(words))
}

/// The server's words for what a command does and when it may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flag {
    /// It may write; not on replicas.
    Write,
    /// It never writes.
    ReadOnly,
    /// It may need memory: not when the server is out of it.
    DenyOom,
    /// It takes constant time.
    Fast,
    /// It may keep the client waiting.
    Blocking,
    /// It is for those who run the server.
    Admin,
    /// It may run while the server loads its data.
    Loading,
    /// It may run on a replica that has lost its primary.
    Stale,
}

impl Flag {
    /// The word.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::ReadOnly => "readonly",
            Self::DenyOom => "deny-oom",
            Self::Fast => "fast",
            Self::Blocking => "blocking",
            Self::Admin => "admin",
            Self::Loading => "allow-loading",
            Self::Stale => "allow-stale",
        }
    }

    /// The categories of the ACL that follow from it.
    pub const fn categories(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::ReadOnly => "read",
            Self::Fast => "fast",
            Self::Blocking => "blocking",
            Self::Admin => "admin dangerous",
            Self::DenyOom | Self::Loading | Self::Stale => "",
        }
    }
}

/// Where a command's keys stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keys {
    /// Nowhere.
    None,
    /// One, behind the command's name.
    First,
    /// As many as the word behind the command's name says, behind that word.
    Counted,
}

impl Keys {
    /// The positions of a call's keys; none in a call that has fewer words than it counts.
    pub fn positions(self, call: &Call) -> Range<usize> {
        match self {
            Self::None => 0..0,
            Self::First => 1..call.len().min(2),
            Self::Counted => {
                let count = call.positional::<1>().ok().and_then(|[count]| parse_integer(call.bytes(count)));
                let count = count.and_then(|count| usize::try_from(count).ok());
                let end = count.and_then(|count| count.checked_add(2));
                2..end.filter(|&end| end <= call.len()).unwrap_or(2)
            }
        }
    }
}

/// What a command does with what its keys hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// It has none.
    Nothing,
    /// It answers what it reads.
    Look,
    /// It answers what it reads, and may change it.
    Take,
    /// It may change it, and answers only whether it has.
    Change,
    /// It may delete from it, and answers only whether it has.
    Delete,
}

/// An argument, as the synopsis shows it.
#[derive(Clone, Copy, Debug)]
pub struct Argument {
    /// Its name in the synopsis.
    pub name: &'static CStr,
    /// What it is: its type, units and range.
    pub summary: &'static CStr,
    /// What may stand there.
    pub kind: Kind,
    /// The word before it.
    pub token: Option<&'static CStr>,
    /// It may be left out.
    pub optional: bool,
    /// It may be repeated.
    pub multiple: bool,
}

/// What may stand at an argument's place.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// The name of a key.
    Key,
    /// Any bytes.
    String,
    /// An integer.
    Integer,
    /// A decimal number.
    Double,
    /// The argument's token, and nothing behind it.
    Token,
    /// One of these.
    OneOf(&'static [Argument]),
    /// All of these.
    Block(&'static [Argument]),
}

impl Argument {
    /// An argument that has to be there, once.
    pub const fn new(name: &'static CStr, kind: Kind, summary: &'static CStr) -> Self {
        Self { name, summary, kind, token: None, optional: false, multiple: false }
    }

    /// The word `token`, which may be left out.
    pub const fn word(token: &'static CStr, name: &'static CStr, summary: &'static CStr) -> Self {
        Self::new(name, Kind::Token, summary).behind(token)
    }

    /// The same, behind a word.
    pub const fn behind(self, token: &'static CStr) -> Self {
        Self { token: Some(token), ..self }
    }

    /// The same, but it may be left out.
    pub const fn optional(self) -> Self {
        Self { optional: true, ..self }
    }

    /// The same, but it may be repeated.
    pub const fn multiple(self) -> Self {
        Self { multiple: true, ..self }
    }
}

/// The reply of those that admit or refuse.
pub const FIVE: &str = "Replies five integers: limited, limit, remaining, retry_after, reset_after.";

/// The tip for replies that change with the time.
pub const TIME: &CStr = c"nondeterministic_output";

/// The key of a limiter.
pub const KEY: Argument = Argument::new(c"key", Kind::Key, c"Where the state is kept.");

/// GCRA's depth.
pub const MAX_BURST: Argument =
    Argument::new(c"max_burst", Kind::Integer, c"Units that may come at once on top of one, 0 or more.");

/// The depth of funnel and bucket.
pub const CAPACITY: Argument =
    Argument::new(c"capacity", Kind::Integer, c"Units that may come at once, 1 or more.");

/// A rate's numerator.
pub const COUNT: Argument =
    Argument::new(c"count", Kind::Integer, c"Units per period in the long run, 1 or more.");

/// A rate's denominator.
pub const PERIOD: Argument =
    Argument::new(c"period", Kind::Integer, c"Length of the period in units of time, 1 or more.");

/// The limit of windows and leases.
pub const LIMIT: Argument = Argument::new(c"limit", Kind::Integer, c"Units per period, 1 or more.");

/// What a call takes.
pub const QUANTITY: Argument =
    Argument::new(c"quantity", Kind::Integer, c"Units that this call is about, 0 or more; 1 when left out.")
        .optional();

/// A holder of a lease.
pub const ID: Argument = Argument::new(c"id", Kind::String, c"Name of the holder.");

/// How long a place is held.
pub const LEASE: Argument = Argument::new(
    c"lease",
    Kind::Integer,
    c"Time after which the place is lost, in units of time, 1 or more.",
);

/// The unit of time.
pub const UNIT: Argument = Argument::new(
    c"unit",
    Kind::OneOf(&[
        Argument::word(c"S", c"seconds", c"Seconds, the default."),
        Argument::word(c"MS", c"milliseconds", c"Milliseconds."),
        Argument::word(c"US", c"microseconds", c"Microseconds."),
    ]),
    c"Unit of every time in the call and in its reply.",
)
.optional();
