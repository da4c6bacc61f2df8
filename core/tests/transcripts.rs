//! The documented transcripts (`tests/transcripts`), replayed at exact instants inside the documented ranges.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "a test that panics is a test that fails"
)]

mod common;

use common::{MS, S, at, nanos, offset};
use redis_cell_core::gcra::{Booking, Limit, Tat, reserve, throttle};
use redis_cell_core::{Answer, Change, Tail, Unit};

const CONTRACT: &str = include_str!("../../tests/transcripts/contract.tsv");
const THIRTY_PER_MINUTE: &str = include_str!("../../tests/transcripts/thirty-per-minute.tsv");
const FIVE_PER_MINUTE: &str = include_str!("../../tests/transcripts/five-per-minute.tsv");
const FIRST_RELEASE: &str = include_str!("../../tests/transcripts/first-release.tsv");
const LEAKY_BUCKET: &str = include_str!("../../tests/transcripts/leaky-bucket.tsv");

/// Where in a range `low..high` a replay makes its call: how many parts of how many, plus nanoseconds.
const PLACES: [(i64, i64, i64); 5] = [(0, 1, 1), (1, 4, 0), (1, 2, 0), (3, 4, 0), (1, 1, -1)];

/// The nanoseconds of a number of seconds with at most one decimal.
fn seconds(text: &str) -> i64 {
    let (whole, tenths) = text.split_once('.').unwrap_or((text, "0"));
    whole.parse::<i64>().unwrap() * S + tenths.parse::<i64>().unwrap() * (S / 10)
}

/// Replays a transcript at every place of its ranges, with `check` for each call's answer and printed
/// integers.
fn replay(transcript: &str, check: impl Fn(&Answer, [i64; 5])) {
    for (parts, of, shift) in PLACES {
        let (mut state, mut now): (Option<Tat>, i64) = (None, 0);
        let mut calls = 0;
        for line in transcript.lines().filter(|line| !line.starts_with('#')) {
            let [call, printed, left] = line.split('\t').collect::<Vec<_>>().try_into().expect(line);
            let words: Vec<&[u8]> = call.split(' ').map(str::as_bytes).collect();
            let printed: [i64; 5] =
                printed.split(' ').map(|n| n.parse().unwrap()).collect::<Vec<_>>().try_into().expect(line);
            let tail = Tail::parse(words[5..].iter().copied(), &[]).unwrap();
            let limit = Limit::parse([words[2], words[3], words[4]], tail.unit).unwrap();

            // The instant at which the call leaves the state of the transcript, computed from the transcript
            // alone.
            let tat = state.map_or(now, offset);
            now = match left {
                "fresh" => now,
                "drained" => tat + (S + shift) * parts,
                range => {
                    let (low, high) = range.split_once("..").expect(line);
                    let left = seconds(low) + (seconds(high) - seconds(low)) / of * parts + shift;
                    let number = |word: &[u8]| str::from_utf8(word).unwrap().parse::<i64>().unwrap();
                    let taken = if printed[0] == 0 { tail.quantity } else { 0 };
                    let then = tat + number(words[4]) * S / number(words[3]) * taken - left;
                    assert!(then >= now, "{line}: no such instant");
                    then
                }
            };
            let decision = throttle(state, &limit, at(now), tail.quantity).unwrap();
            check(&decision.answer, printed);
            if let Change::Store(tat) = decision.change {
                state = Some(tat);
            }
            calls += 1;
        }
        assert!(calls > 0, "the transcript is empty");
    }
}

/// A wait that was printed rounded down, against ours.
fn same_wait(exact: i64, told: i64, printed: i64) {
    assert_eq!(exact / S, printed, "{exact} ns are not what was printed");
    assert_eq!(told, if exact % S == 0 { printed } else { printed + 1 });
}

/// Compares an answer with integers from a time when waits were rounded down.
fn rounded_down(answer: &Answer, printed: [i64; 5]) {
    let told = answer.reply(Unit::Seconds).five;
    assert_eq!(told[..3], printed[..3]);
    match answer.verdict.wait() {
        None => assert_eq!((told[3], printed[3]), (-1, -1)),
        Some(wait) => same_wait(nanos(wait), told[3], printed[3]),
    }
    same_wait(nanos(answer.reset_after), told[4], printed[4]);
}

#[test]
fn the_documentation_s_example() {
    replay(CONTRACT, |answer, printed| assert_eq!(answer.reply(Unit::Seconds).five, printed));
}

#[test]
fn thirty_per_minute() {
    replay(THIRTY_PER_MINUTE, rounded_down);
}

#[test]
fn five_per_minute() {
    replay(FIVE_PER_MINUTE, rounded_down);
}

#[test]
fn first_release() {
    replay(FIRST_RELEASE, rounded_down);
}

#[test]
fn the_leaky_bucket_as_a_meter() {
    replay(LEAKY_BUCKET, rounded_down);
}

/// Immediate calls of one unit each: the `remaining` of those admitted, and the number of those refused.
fn immediate(limit: &Limit, calls: i64) -> (Vec<i64>, i64) {
    let (mut state, mut remaining, mut refused) = (None, Vec::new(), 0);
    for _ in 0..calls {
        let decision = throttle(state, limit, at(0), 1).unwrap();
        match decision.change {
            Change::Store(tat) => {
                state = Some(tat);
                remaining.push(decision.answer.remaining);
            }
            _ => refused += 1,
        }
    }
    (remaining, refused)
}

/// The output of the articles' own programs: of some immediate calls, as many as the capacity pass.
#[test]
fn a_funnel_and_a_token_bucket_are_a_burst_of_one_less() {
    for (program, [max_burst, count, period], calls, admitted) in [
        ("funnel of 15, leaking 0.5 a second", [14, 30, 60], 20, 15),
        ("funnel of 6, leaking 0.1 a second", [5, 6, 60], 20, 6),
        ("token bucket of 30, 20 a second", [29, 20, 1], 50, 30),
    ] {
        let limit = Limit::new(max_burst, count, period, Unit::Seconds).unwrap();
        let countdown: Vec<i64> = (0..admitted).rev().collect();
        assert_eq!(immediate(&limit, calls), (countdown, calls - admitted), "{program}");
    }
}

/// Books reservations of `quantities`, all at one instant, and returns their waits in nanoseconds.
fn waits(limit: &Limit, quantities: &[i64], booking: Booking) -> Vec<i64> {
    let mut state = None;
    let mut wait_of = |&quantity| {
        let decision = reserve(state, limit, at(0), quantity, booking).unwrap();
        let (Change::Store(tat), Some(wait)) = (decision.change, decision.answer.verdict.wait()) else {
            panic!("not booked: {decision:?}")
        };
        state = Some(tat);
        nanos(wait)
    };
    quantities.iter().map(&mut wait_of).collect()
}

#[test]
fn the_leaky_bucket_as_a_queue() {
    let limit = Limit::new(0, 5, 1, Unit::Seconds).unwrap();
    let leaving: Vec<i64> = (0..100).map(|place| place * 200 * MS).collect();
    assert_eq!(waits(&limit, &[1; 100], Booking::default()), leaving);
}

#[test]
fn a_large_reservation_is_granted_at_once_and_the_next_caller_waits_for_it() {
    let limit = Limit::new(0, 1, 1, Unit::Seconds).unwrap();
    let prepay = Booking { max_wait: None, prepay: true };
    assert_eq!(waits(&limit, &[100, 1, 1], prepay), [0, 100 * S, 101 * S]);
}
