//! Several limits at once: what the combined row says.

#![allow(
    clippy::unwrap_used,
    clippy::arithmetic_side_effects,
    reason = "a test that panics is a test that fails"
)]

mod common;

use common::{S, nanos, span};
use proptest::prelude::*;
use redis_cell_core::several::combine;
use redis_cell_core::{Answer, Retry};

fn row(limited: bool, limit: i64, remaining: i64, retry: Option<i64>, reset: i64) -> Answer {
    Answer {
        limited,
        limit,
        remaining,
        retry_after: retry.map_or(Retry::Never, |wait| Retry::After(span(wait))),
        reset_after: span(reset),
        taken: None,
    }
}

fn rows() -> impl Strategy<Value = Vec<Answer>> {
    let row = (0..3, 1..50_i64, 0..5_i64, 1..9 * S, 0..9 * S).prop_map(
        |(verdict, limit, remaining, wait, reset)| match verdict {
            0 => row(false, limit, remaining, None, reset),
            1 => row(true, limit, remaining, Some(wait), reset),
            _ => row(true, limit, remaining, None, reset),
        },
    );
    prop::collection::vec(row, 1..6)
}

#[test]
fn no_rows_have_no_sum() {
    assert_eq!(combine([]), None);
}

#[test]
#[rustfmt::skip] // A table is read in columns.
fn by_example() {
    let admitted = row(false, 10, 3, None, 7 * S);
    let tight = row(false, 100, 2, None, S);
    let refused = row(true, 5, 4, Some(2 * S), 9 * S);
    let longer = row(true, 7, 4, Some(3 * S), S);
    let never = row(true, 1, 1, None, 0);
    for (shows, given, expected) in [
        ("one row stands for itself",            vec![admitted],                 admitted),
        ("the tightest, the longest reset",      vec![admitted, tight],          row(false, 100, 2, None, 7 * S)),
        ("one that refuses refuses for all",     vec![admitted, refused],        row(true, 10, 3, Some(2 * S), 9 * S)),
        ("the longer wait",                      vec![longer, refused],          row(true, 7, 4, Some(3 * S), 9 * S)),
        ("the longer wait, in any order",        vec![refused, longer],          row(true, 5, 4, Some(3 * S), 9 * S)),
        ("never outlasts any wait",              vec![refused, never, admitted], row(true, 1, 1, None, 9 * S)),
        ("never, named first",                   vec![never, refused],           row(true, 1, 1, None, 9 * S)),
        ("admitted beside never has no say",     vec![never, tight],             row(true, 1, 1, None, S)),
    ] {
        assert_eq!(combine(given), Some(expected), "{shows}");
    }
}

proptest! {
    #[test]
    fn each_column_for_itself(rows in rows()) {
        let all = combine(rows.iter().copied()).unwrap();
        prop_assert_eq!(all.limited, rows.iter().any(|row| row.limited));
        let least = rows.iter().map(|row| row.remaining).min().unwrap();
        let tightest = rows.iter().find(|row| row.remaining == least).unwrap();
        prop_assert_eq!((all.remaining, all.limit), (least, tightest.limit));
        let for_ever = rows.iter().any(|row| row.limited && row.retry_after == Retry::Never);
        let waits = rows.iter().filter_map(|row| match row.retry_after {
            Retry::After(wait) => Some(wait),
            Retry::Never => None,
        });
        let longest = if for_ever { None } else { waits.max() };
        prop_assert_eq!(all.retry_after, longest.map_or(Retry::Never, Retry::After));
        prop_assert_eq!(nanos(all.reset_after), rows.iter().map(|row| nanos(row.reset_after)).max().unwrap());
        prop_assert_eq!(all.taken, None);
    }
}
