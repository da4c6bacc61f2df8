//! The commands, one file each: from the words of a call to a limiter's decision and its answer.

mod acquire;
mod bthrottle;
mod bucket;
mod charge;
mod fixed;
mod funnel;
mod log;
mod mthrottle;
mod peek;
mod refund;
mod release;
mod renew;
mod reserve;
mod throttle;
mod window;

use core::ffi::CStr;
use core::ops::Range;

use redis_cell_core::{Error, Keyword, Tail, gcra, parse_integer};

use crate::ffi::{Arg, Call};

pub use acquire::Acquire;
pub use bthrottle::Bthrottle;
pub use bucket::Bucket;
pub use charge::Charge;
pub use fixed::Fixed;
pub use funnel::Funnel;
pub use log::Log;
pub use mthrottle::Mthrottle;
pub use peek::Peek;
pub use refund::Refund;
pub use release::Release;
pub use renew::Renew;
pub use reserve::Reserve;
pub use throttle::Throttle;
pub use window::Window;

/// A command of the server.
pub trait Command {
    /// How the server sees it.
    const SPEC: Spec;

    /// Decides a call and answers it.
    ///
    /// # Errors
    /// What the caller is told instead of an answer. Nothing has been written then.
    fn run(call: &Call) -> Result<(), Error>;
}

/// How the server sees a command.
#[derive(Clone, Copy, Debug)]
pub struct Spec {
    /// Its name, in lower case.
    pub name: &'static CStr,
    /// What it does, in a sentence.
    pub summary: &'static CStr,
    /// What it costs.
    pub complexity: &'static CStr,
    /// The version of the module that brought it.
    pub since: &'static CStr,
    /// How many words a call has at the least, the name included. What may follow is up to the command.
    pub least_words: usize,
    /// What it does and when it may run.
    pub flags: &'static [Flag],
    /// Where its keys stand.
    pub keys: Keys,
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
        }
    }
}

/// Where a command's keys stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keys {
    /// One, behind the command's name.
    First,
    /// As many as the word behind the command's name says, behind that word.
    Counted,
}

impl Keys {
    /// The positions of counted keys; none in a call that has fewer words than it counts.
    pub fn counted(call: &Call) -> Range<usize> {
        let count = call.positional::<1>().ok().and_then(|[count]| parse_integer(call.bytes(count)));
        let end = count.and_then(|count| usize::try_from(count).ok()).and_then(|count| count.checked_add(2));
        2..end.filter(|&end| end <= call.len()).unwrap_or(2)
    }
}

/// The arguments that all commands on GCRA's string share: `key max_burst count period [quantity] [options]`.
fn gcra_args<'c>(call: &Call<'c>, known: &[Keyword]) -> Result<(Arg<'c>, gcra::Limit, Tail), Error> {
    let [key, limit @ ..] = call.positional::<4>()?;
    let tail = Tail::parse(call.rest(5), known)?;
    let limit = gcra::Limit::parse(limit.map(|arg| call.bytes(arg)), tail.unit)?;
    Ok((key, limit, tail))
}

/// The arguments of funnel and bucket: `key capacity count period [quantity] [unit]`.
fn bucket_args<'c>(call: &Call<'c>) -> Result<(Arg<'c>, redis_cell_core::bucket::Limit, Tail), Error> {
    let [key, limit @ ..] = call.positional::<4>()?;
    let tail = Tail::parse(call.rest(5), &[])?;
    let limit = redis_cell_core::bucket::Limit::parse(limit.map(|arg| call.bytes(arg)), tail.unit)?;
    Ok((key, limit, tail))
}

/// The arguments of windows: `key limit period [quantity] [unit]`.
fn window_args<'c>(call: &Call<'c>) -> Result<(Arg<'c>, redis_cell_core::window::Limit, Tail), Error> {
    let [key, limit @ ..] = call.positional::<3>()?;
    let tail = Tail::parse(call.rest(4), &[])?;
    let limit = redis_cell_core::window::Limit::parse(limit.map(|arg| call.bytes(arg)), tail.unit)?;
    Ok((key, limit, tail))
}
