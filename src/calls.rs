//! How a call becomes decisions: for [one](one) limiter, and for [many](many), with the same verbs of the
//! same kinds.

mod chains;
mod holds;
pub mod many;
mod once;
pub mod one;
