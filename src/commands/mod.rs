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
mod spec;
mod throttle;
mod top;
mod window;

use redis_cell_core::{Error, Keyword, Tail, gcra};

use crate::ffi::{Arg, Call};
use crate::info::tally;
use crate::outcome::Outcome;

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
pub use spec::{Argument, Flag, Keys, Kind, Spec, Use};
pub use throttle::Throttle;
pub use top::MostRefused;
pub use window::Window;

/// A command of the server.
pub trait Command {
    /// How the server sees it.
    const SPEC: Spec;

    /// Decides a call; what is to be answered comes back.
    ///
    /// # Errors
    /// What the caller is told instead of an answer. Nothing has been written then.
    fn run(call: &Call) -> Result<Outcome, Error>;
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
