//! The commands, one file each, and the table of them.

mod acquire;
mod arguments;
mod bmtake;
mod bthrottle;
mod bucket;
mod charge;
mod fixed;
mod funnel;
mod log;
mod mpeek;
mod msettle;
mod mtake;
mod pause;
mod peek;
mod refund;
mod release;
mod renew;
mod reserve;
mod throttle;
mod top;
mod window;

use crate::outcome::{CommandRow, row};

/// The table of commands: the description of each for the server, and its counts.
pub static COMMANDS: &[CommandRow] = &[
    row::<throttle::Throttle>(),
    row::<peek::Peek>(),
    row::<refund::Refund>(),
    row::<charge::Charge>(),
    row::<reserve::Reserve>(),
    row::<bthrottle::Bthrottle>(),
    row::<pause::Pause>(),
    row::<mtake::Mtake>(),
    row::<bmtake::Bmtake>(),
    row::<mpeek::Mpeek>(),
    row::<msettle::Msettle>(),
    row::<funnel::Funnel>(),
    row::<bucket::Bucket>(),
    row::<fixed::Fixed>(),
    row::<window::Window>(),
    row::<log::Log>(),
    row::<acquire::Acquire>(),
    row::<renew::Renew>(),
    row::<release::Release>(),
    row::<top::Top>(),
];
