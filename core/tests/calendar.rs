//! The calendar, compared with one that counts day by day.

#![allow(clippy::restriction, reason = "a test that panics is a test that fails")]

mod common;

use common::{NOW, S, instant};
use proptest::prelude::*;
use redis_cell_core::calendar::{Calendar, Cycle};
use redis_cell_core::{Error, Instant};

const CYCLES: [Cycle; 5] = [Cycle::Hour, Cycle::Day, Cycle::Week, Cycle::Month, Cycle::Year];

/// The days on which windows of a cycle may begin.
fn days(cycle: Cycle) -> std::ops::RangeInclusive<i64> {
    match cycle {
        Cycle::Week => 1..=7,
        Cycle::Month => 1..=31,
        _ => 1..=1,
    }
}

fn calendar(cycle: Cycle, utc: i64, from: i64) -> Calendar {
    let has_days = matches!(cycle, Cycle::Week | Cycle::Month);
    Calendar::new(cycle, utc, has_days.then_some(from)).unwrap()
}

/// A date of the naive calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Date {
    /// Days since 1970-01-01.
    number: i64,
    year: i64,
    month: i64,
    day: i64,
    /// From 1 for Monday.
    weekday: i64,
}

fn is_leap(year: i64) -> bool {
    if year % 400 == 0 {
        true
    } else if year % 100 == 0 {
        false
    } else {
        year % 4 == 0
    }
}

fn length(year: i64, month: i64) -> i64 {
    match month {
        4 | 6 | 9 | 11 => 30,
        2 if is_leap(year) => 29,
        2 => 28,
        _ => 31,
    }
}

/// Every day from 1969-12-01 to the end of 2262, each from the one before.
fn all_days() -> Vec<Date> {
    // 31 days before a Thursday.
    let mut today = Date { number: -31, year: 1969, month: 12, day: 1, weekday: 1 };
    let mut all = Vec::new();
    while today.year < 2263 {
        all.push(today);
        today.number += 1;
        today.weekday = today.weekday % 7 + 1;
        today.day += 1;
        if today.day > length(today.year, today.month) {
            (today.day, today.month) = (1, today.month + 1);
        }
        if today.month > 12 {
            (today.month, today.year) = (1, today.year + 1);
        }
    }
    all
}

/// The numbers of the days on which windows begin.
fn beginnings(all: &[Date], cycle: Cycle, from: i64) -> Vec<i64> {
    let begins = |day: &&Date| match cycle {
        Cycle::Hour | Cycle::Day => true,
        Cycle::Week => day.weekday == from,
        Cycle::Month => day.day == from.min(length(day.year, day.month)),
        Cycle::Year => day.month == 1 && day.day == 1,
    };
    all.iter().filter(begins).map(|day| day.number).collect()
}

/// The window that an instant lies in, in nanoseconds, the epoch at the earliest.
fn window_of(calendar: &Calendar, now: i64) -> (i64, i64) {
    let (start, end) = calendar.window_of(instant(now.into())).unwrap();
    (start.as_nanos().cast_signed(), end.as_nanos().cast_signed())
}

#[test]
fn every_boundary_of_three_centuries() {
    let all = all_days();
    for cycle in [Cycle::Day, Cycle::Week, Cycle::Month, Cycle::Year] {
        for from in days(cycle) {
            let begins = beginnings(&all, cycle, from);
            for utc in [-840, -210, -1, 0, 1, 345, 840] {
                let calendar = calendar(cycle, utc, from);
                let boundaries = begins.iter().map(|number| number * 86_400 - utc * 60);
                let boundaries: Vec<i64> = boundaries.filter(|at| *at < i64::MAX / S).collect();
                for pair in boundaries.windows(2) {
                    let [start, end] = [pair[0] * S, pair[1] * S];
                    if end <= 0 {
                        continue;
                    }
                    let expected = (start.max(0), end);
                    // The boundary itself belongs to the window that it begins; a nanosecond earlier does
                    // not.
                    assert_eq!(window_of(&calendar, expected.0), expected, "{calendar:?}");
                    assert_eq!(window_of(&calendar, end - 1), expected, "{calendar:?}");
                }
            }
        }
    }
}

#[test]
fn hours_begin_on_the_hour_of_the_place() {
    // 5:45 ahead of UTC, where hours begin at a quarter past the hours of UTC.
    let nepal = calendar(Cycle::Hour, 345, 1);
    let quarter = 1_700_000_100 * S; // 22:15 UTC, 4:00 there
    assert_eq!(window_of(&nepal, quarter), (quarter, quarter + 3_600 * S));
    assert_eq!(window_of(&nepal, quarter - 1), (quarter - 3_600 * S, quarter));
}

#[test]
fn before_the_epoch_it_was_1969() {
    // Where it was still 1969 when Unix time began, and where it was 1970 already.
    for (cycle, utc, end) in [
        (Cycle::Year, -840, 50_400),
        (Cycle::Month, -1, 60),
        (Cycle::Day, -60, 3_600),
        (Cycle::Week, 0, 4 * 86_400),
        (Cycle::Hour, 0, 3_600),
        (Cycle::Year, 840, 365 * 86_400 - 50_400),
    ] {
        assert_eq!(window_of(&calendar(cycle, utc, 1), 0), (0, end * S), "{cycle:?} {utc}");
    }
}

#[test]
fn the_last_windows_end_in_2262() {
    for cycle in CYCLES {
        let calendar = calendar(cycle, 0, 1);
        assert!(calendar.window_of(instant(NOW.into())).is_ok());
        // 2262-04-11, 23:47:16 UTC.
        assert_eq!(calendar.window_of(Instant::MAX), Err(Error::BeyondTime), "{cycle:?}");
    }
    // An hour, and a day, before that.
    let minutes = |minutes: i64| instant((i64::MAX - minutes * 60 * S).into());
    let (_, end) = calendar(Cycle::Hour, 0, 1).window_of(minutes(60)).unwrap();
    assert_eq!(end.as_nanos(), 9_223_369_200_000_000_000);
    let (_, end) = calendar(Cycle::Day, 0, 1).window_of(minutes(24 * 60)).unwrap();
    assert_eq!(end.as_nanos(), 9_223_286_400_000_000_000);
    assert!(calendar(Cycle::Hour, 13, 1).window_of(Instant::MAX).is_err());
    // Where the clock strikes a second before time ends.
    assert!(calendar(Cycle::Hour, 14, 1).window_of(minutes(2)).is_ok());
}

#[test]
fn what_is_out_of_range_is_named() {
    let utc = "ERR UTC must be an integer from -840 to 840";
    for minutes in [-841, 841, i64::MIN, i64::MAX] {
        assert_eq!(Calendar::new(Cycle::Day, minutes, None).unwrap_err().to_string(), utc);
    }
    for (cycle, wrong, text) in [
        (Cycle::Week, [0, 8, i64::MIN, i64::MAX], "ERR FROM must be an integer from 1 to 7"),
        (Cycle::Month, [0, 32, i64::MIN, i64::MAX], "ERR FROM must be an integer from 1 to 31"),
    ] {
        for from in wrong {
            assert_eq!(Calendar::new(cycle, 0, Some(from)).unwrap_err().to_string(), text);
        }
    }
    for cycle in [Cycle::Hour, Cycle::Day, Cycle::Year] {
        assert_eq!(Calendar::new(cycle, 0, Some(1)), Err(Error::Syntax));
    }
}

proptest! {
    /// Windows follow each other without a gap, and each instant lies in the window that it is given.
    #[test]
    fn windows_join(
        (cycle, utc, from) in (0..5_usize, -840..=840_i64, 1..=31_i64),
        now in prop_oneof![0..=i64::MAX, 0..200_000 * S, i64::MAX - 40_000_000 * S..=i64::MAX],
    ) {
        let cycle = CYCLES[cycle];
        let from = if cycle == Cycle::Week { (from - 1) % 7 + 1 } else { from };
        let calendar = calendar(cycle, utc, from);
        let now = instant(now.into());
        let Ok((start, end)) = calendar.window_of(now) else {
            prop_assert!(now.left().as_nanos() < 366 * 86_400 * S.unsigned_abs(), "only at the end of time");
            return Ok(());
        };
        prop_assert!(start <= now && now < end);
        prop_assert!(end.as_nanos() % S.unsigned_abs() == 0 && start.as_nanos() % S.unsigned_abs() == 0);
        prop_assert_eq!(calendar.window_of(start), Ok((start, end)));
        if let Ok((next, _)) = calendar.window_of(end) {
            prop_assert_eq!(next, end);
        }
    }
}
