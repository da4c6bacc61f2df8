//! The program behind the playground: runs traffic through limiters, and returns the contents of a picture.
//!
//! The core makes every decision. The traffic depends only on the request, including its seed, so the same
//! address shows everybody the same picture.

#![forbid(unsafe_code)]

mod copy;
mod run;
mod traffic;
pub mod words;

use redis_cell_policy::{Fields, Policy};
use serde::{Deserialize, Serialize};

pub use run::Picture;
pub use traffic::{Pattern, Retry};

/// The request of the page.
#[derive(Clone, Debug, Deserialize)]
pub struct Request {
    /// Keys and limiters as in `CL.MTAKE`, with `<name>` for a field of the call.
    pub policy: String,
    /// The pattern of the calls.
    pub pattern: Pattern,
    /// Calls per minute, for `steady` and `random`.
    pub rate: u32,
    /// Calls per burst, for `bursts`.
    pub burst: u32,
    /// Seconds between bursts.
    pub gap: u32,
    /// The number of clients, which call in turn. With `storm`, each calls once.
    pub clients: u32,
    /// How long new calls arrive, in seconds.
    pub seconds: u32,
    /// The behaviour of clients after a refusal.
    pub retry: Retry,
    /// The seed of the random numbers.
    pub seed: u64,
    /// The client, or the line of the log, whose limiters are drawn. Counts from 1.
    pub watch: u32,
    /// The call to explain, counted from 1. The last call if there are fewer.
    pub call: u32,
    /// An access log, for `log`.
    #[serde(default)]
    pub log: String,
}

/// The answer to a request.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Answer {
    Error { error: String },
    Picture(Box<Picture>),
}

/// Answers a request. Both are JSON, and an error is `{"error": ...}`.
///
/// Cost: O(n log n) for n calls, of which there are at most 100,000.
pub fn answer(request: &str) -> String {
    let answer =
        match serde_json::from_str(request).map_err(|error| error.to_string()).and_then(|it| picture(&it)) {
            Ok(picture) => Answer::Picture(Box::new(picture)),
            Err(error) => Answer::Error { error },
        };
    serde_json::to_string(&answer).unwrap_or_default()
}

/// Runs the traffic of a request through its policy.
///
/// # Errors
/// Returns an error in the policy, in the log, or in a field of a key, as text for users.
pub fn picture(request: &Request) -> Result<Picture, String> {
    let mut fields = Fields::default();
    let policy = Policy::parse(&request.policy, &mut fields).map_err(|error| error.to_string())?;
    let traffic = traffic::Traffic::new(request, &fields)?;
    Ok(run::run(request, &policy, &traffic))
}
