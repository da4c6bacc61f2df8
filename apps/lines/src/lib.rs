//! Lines of access logs: the formats of common servers, JSON and CSV, the fields of policies, and times.

#![forbid(unsafe_code)]

pub mod format;
pub mod time;
