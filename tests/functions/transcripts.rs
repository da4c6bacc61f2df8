//! The documented transcripts (`tests/transcripts`), at exact instants, with the commands and the functions
//! taking turns on one key.

use crate::both::Both;
use crate::common::{Clock, FUNCTIONS, SECOND};

/// Where in a range `low..high` a replay makes its call: how many parts of how many, plus nanoseconds. The
/// clock of functions has microseconds.
const PLACES: [(i64, i64, i64); 5] = [(0, 1, 1000), (1, 4, 0), (1, 2, 0), (3, 4, 0), (1, 1, -1000)];

/// The nanoseconds of a number of seconds with at most one decimal.
fn nanoseconds(seconds: &str) -> i64 {
    let (whole, tenths) = seconds.split_once('.').unwrap_or((seconds, "0"));
    whole.parse::<i64>().unwrap() * SECOND + tenths.parse::<i64>().unwrap() * (SECOND / 10)
}

/// Whether a wait is what a transcript printed: rounded up, or down as the articles did.
fn is_printed(wait: i64, printed: i64) -> bool {
    wait == printed || printed >= 0 && wait == printed + 1
}

fn replay(transcript: &str) {
    for (place, (parts, of, shift)) in PLACES.into_iter().enumerate() {
        for first_by_function in [false, true] {
            let mut both = Both::at(Clock::stopped().wall(), &FUNCTIONS);
            let mut tat = both.clock.wall();
            let mut by_function = first_by_function;
            for line in transcript.lines().filter(|line| !line.starts_with('#')) {
                let [call, printed, left] = line.split('\t').collect::<Vec<_>>().try_into().expect(line);
                let words: Vec<&str> = call.split(' ').collect();
                let number = |i: usize| words.get(i).map_or(1, |word| word.parse::<i64>().unwrap());
                let printed: Vec<i64> = printed.split(' ').map(|n| n.parse().unwrap()).collect();
                let now = match left {
                    "fresh" => both.clock.wall(),
                    "drained" => tat + (SECOND + shift) * parts,
                    range => {
                        let (low, high) = range.split_once("..").expect(line);
                        let left =
                            nanoseconds(low) + (nanoseconds(high) - nanoseconds(low)) / of * parts + shift;
                        let taken = if printed[0] == 0 { number(5) } else { 0 };
                        tat + number(4) * SECOND / number(3) * taken - left
                    }
                };
                both.clock.pass(now - both.clock.wall());
                let reply = both.call(&words, by_function).unwrap();
                assert_eq!(reply[..3], printed[..3], "{line}, place {place}: {reply:?}");
                let waits = (3..5).all(|i| is_printed(reply[i], printed[i]));
                assert!(waits, "{line}, place {place}: {reply:?}");
                tat = both.client.tat(words[1]).unwrap_or(tat);
                by_function = !by_function;
            }
        }
    }
}

#[test]
fn the_documented_transcripts() {
    replay(include_str!("../transcripts/contract.tsv"));
    replay(include_str!("../transcripts/thirty-per-minute.tsv"));
    replay(include_str!("../transcripts/five-per-minute.tsv"));
    replay(include_str!("../transcripts/first-release.tsv"));
    replay(include_str!("../transcripts/leaky-bucket.tsv"));
}
