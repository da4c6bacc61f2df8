//! The conformance table of the core, through the commands and through the functions.

use crate::both::{Both, agree, is_beyond};
use crate::common::{Clock, FUNCTIONS, ceil_div};
use crate::core_common::tables::{
    CHARGE_TAKES_REGARDLESS, PEEK_SAYS_WHAT_THROTTLE_WOULD, REFUND_GIVES_BACK_UP_TO_FULL, Row,
    SATURATE_TAKES_WHAT_FITS, THROTTLE,
};
use redis_cell_core::{Change, Unit};

fn check<const N: usize>(command: &str, option: &str, rows: &[Row<N>]) {
    let mut both = Both::at(Clock::stopped().wall(), &FUNCTIONS);
    let now = both.clock.wall();
    for &(shows, before, [max_burst, count, period], unit, quantity, expected, change) in rows {
        let unit = match unit {
            Unit::Seconds => "S",
            Unit::Milliseconds => "MS",
            Unit::Microseconds => "US",
        };
        let call = format!("{command} k {max_burst} {count} {period} {quantity} {option} {unit}");
        let words: Vec<&str> = call.split_whitespace().collect();
        for function in [false, true] {
            both.client.call("DEL k");
            if let Some(before) = before {
                let tat = now + before;
                // A key that expired is gone, so what has drained is a key without an expiry.
                let expiry = if before > 0 { format!("PXAT {}", expiry_of(tat)) } else { String::new() };
                both.client.call(&format!("SET k {tat} {expiry}"));
            }
            let reply = both.call(&words, function);
            assert!(agree(&Ok(expected.to_vec()), &reply), "{shows}: {call}: {reply:?}, not {expected:?}");
            let (left, expires) = match change {
                _ if is_beyond(&reply) => continue,
                Change::Keep => (before.map(|before| now + before), None),
                Change::Store(after) => (Some(now + after), Some(expiry_of(now + after))),
                Change::Delete => (None, Some(-2)),
            };
            assert_eq!(both.client.tat("k"), left, "{shows}: {call}: the state");
            if let Some(expires) = expires {
                assert_eq!(both.client.expiry_ms("k"), expires, "{shows}: {call}: the expiry");
            }
        }
    }
}

fn expiry_of(tat: i64) -> i64 {
    ceil_div(tat.into(), 1_000_000)
}

#[test]
fn throttle() {
    for rows in THROTTLE {
        check("CL.THROTTLE", "", rows);
    }
}

#[test]
fn saturate() {
    check("CL.THROTTLE", "SATURATE", SATURATE_TAKES_WHAT_FITS);
}

#[test]
fn peek() {
    check("CL.PEEK", "", PEEK_SAYS_WHAT_THROTTLE_WOULD);
}

#[test]
fn refund() {
    check("CL.REFUND", "", REFUND_GIVES_BACK_UP_TO_FULL);
}

#[test]
fn charge() {
    check("CL.CHARGE", "", CHARGE_TAKES_REGARDLESS);
}
