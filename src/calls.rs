//! Turns a call into decisions: for [one](one) limiter, or for [many](many), with the same verbs of the same
//! kinds.

mod chains;
mod holds;
pub mod many;
mod once;
pub mod one;
