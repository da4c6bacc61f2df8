//! The planner of `cell-plan`: runs an access log through rate limits, and reports which calls would have
//! been refused.

#![forbid(unsafe_code)]

pub mod faults;
pub mod html;
pub mod input;
pub mod log;
pub mod plan;
pub mod report;
pub mod series;
pub mod table;
pub mod tally;
