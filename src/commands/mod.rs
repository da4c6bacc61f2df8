//! The commands, one file each: from the words of a call to a limiter's decision and its answer.

mod charge;
mod peek;
mod refund;
mod reserve;
mod throttle;

use core::ffi::CStr;

use redis_cell_core::{Error, Keyword, Tail, gcra};

use crate::ffi::{Arg, Call};

pub use charge::Charge;
pub use peek::Peek;
pub use refund::Refund;
pub use reserve::Reserve;
pub use throttle::Throttle;

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
    /// How many words a call has at the least, the name included. What may follow is up to the command.
    pub least_words: usize,
    /// The server's words for what it does and when it may run.
    pub flags: &'static CStr,
    /// Where its keys stand: first, last, step.
    pub keys: (i32, i32, i32),
}

/// The arguments that all commands on GCRA's string share: `key max_burst count period [quantity] [options]`.
fn gcra_args<'c>(call: &Call<'c>, known: &[Keyword]) -> Result<(Arg<'c>, gcra::Limit, Tail), Error> {
    let [key, limit @ ..] = call.positional::<4>()?;
    let tail = Tail::parse(call.rest(5), known)?;
    let limit = gcra::Limit::parse(limit.map(|arg| call.bytes(arg)), tail.unit)?;
    Ok((key, limit, tail))
}
