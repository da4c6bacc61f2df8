//! Lines of access logs: the formats of common servers, JSON and CSV; the fields that policies name; times.

#![forbid(unsafe_code)]

pub mod format;
pub mod time;
