//! The question to the server whether it would run a call that has waited.

use core::ffi::CStr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::queues::End;
use crate::error::Error;
use crate::ffi::{Arg, Call, Rejection};
use crate::outcome::Outcome;

/// The key of the call that asks whether a client may be admitted, while it runs; 0 at other times.
static ASKED: AtomicUsize = AtomicUsize::new(0);

/// Asks the server whether it would run a call that a client has waited with.
pub fn ask(
    call: &Call,
    command: &CStr,
    key: Arg,
    words: &[&[u8]],
    client: Option<u64>,
) -> Result<(), Rejection> {
    ASKED.store(key.address(), Relaxed);
    let answer = call.would_run(command, key, words, client);
    ASKED.store(0, Relaxed);
    answer
}

/// Whether the server runs the call with this key only because the module [asks](ask) whether it would.
pub fn is_asked(key: Arg) -> bool {
    ASKED.load(Relaxed) == key.address()
}

/// How a wait ends whose call the server would not run.
pub fn rejected(rejection: Rejection) -> End {
    match rejection {
        Rejection::Moved => End::Outcome(Err::<Outcome, _>(Error::Moved)),
        Rejection::ClusterDown => End::Outcome(Err(Error::ClusterDown)),
        Rejection::NoPermission => End::Outcome(Err(Error::NoPermission)),
        Rejection::Refused(text) => End::Rejected(text),
    }
}
