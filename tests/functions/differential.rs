//! Random calls on pairs of keys. One key of each pair is served by the commands alone. On the other one,
//! commands and functions take turns at random. Replies, errors, values and expiries are equal all the time.

use crate::both::{Both, Reply, agree, is_beyond, reply};
use crate::calls::Calls;
use crate::common::{Clock, FUNCTIONS, to_function};
use redis::Value;
use std::io::Write;

/// Pairs of keys.
const KEYS: usize = 40;

/// What calls were answered, so that a test can tell that it has tested something.
#[derive(Debug, Default, PartialEq)]
pub struct Seen {
    pub calls: u32,
    pub admitted: u32,
    pub refused: u32,
    pub errors: u32,
    pub beyond: u32,
}

/// The key of a pair: the commands' own one, or the one that is shared.
fn key(pair: &[u8], shared: bool) -> Vec<u8> {
    [if shared { b"shared:".as_ref() } else { b"module:" }, pair].concat()
}

fn on_key(words: &[Vec<u8>], shared: bool) -> Vec<Vec<u8>> {
    let mut words = words.to_vec();
    words[1] = key(&words[1], shared);
    words
}

/// Makes `calls` random calls from an instant on, or returns how the two differ.
pub fn run(library: &str, wall: i64, seed: u64, calls: u32) -> Result<Seen, String> {
    let mut both = Both::at(wall, library);
    let mut random = Calls::new(seed);
    let mut seen = Seen::default();
    for _ in 0..calls {
        let pair = random.rng().usize(0..KEYS);
        let pause = random.pause();
        both.clock.pass(pause);
        let wall = both.clock.wall();
        if random.rng().u32(0..25) == 0 {
            let interference = random.interference(wall);
            for shared in [false, true] {
                let mut words: Vec<Vec<u8>> = interference.iter().map(|w| w.clone().into_bytes()).collect();
                words.insert(1, key(pair.to_string().as_bytes(), shared));
                let _ = both.client.ask(&words); // LPUSH on a string fails on both
            }
        }
        let words = random.call(pair, wall);
        let by_function = random.rng().u32(0..10) < 7;
        let command = on_key(&words, false);
        let shared = on_key(&words, true);
        let shared = if by_function { to_function(&shared) } else { shared };
        let look = |name: &str, shared| vec![name.as_bytes().to_vec(), key(&words[1], shared)];
        let batch = [
            command,
            shared,
            look("GET", false),
            look("GET", true),
            look("PEXPIRETIME", false),
            look("PEXPIRETIME", true),
        ];
        let answers: [Result<Value, String>; 6] =
            both.client.pipeline(&batch.iter().collect::<Vec<_>>()).try_into().unwrap();
        let [command, shared, value, shared_value, expiry, shared_expiry] = answers;
        let (command, shared): (Reply, Reply) = (reply(command), reply(shared));
        let beyond = by_function && is_beyond(&shared);
        let state = (&value, &expiry) == (&shared_value, &shared_expiry);
        if !agree(&command, &shared) || !beyond && !state {
            let call: Vec<String> = words.iter().map(|w| w.escape_ascii().to_string()).collect();
            return Err(format!(
                "call {} at {wall}, by a {}: {}\nmodule: {command:?}, {value:?} until {expiry:?}\nshared: \
                 {shared:?}, {shared_value:?} until {shared_expiry:?}",
                seen.calls,
                if by_function { "function" } else { "command" },
                call.join(" ")
            ));
        }
        if beyond {
            // The function has changed nothing.
            let [from, to] = [false, true].map(|shared| key(&words[1], shared));
            both.client.call(&[b"DEL".to_vec(), to.clone()]);
            both.client.call(&[b"COPY".to_vec(), from, to]);
        }
        seen.calls += 1;
        match &command {
            _ if beyond => seen.beyond += 1,
            Err(_) => seen.errors += 1,
            Ok(integers) if integers[0] == 0 => seen.admitted += 1,
            Ok(_) => seen.refused += 1,
        }
    }
    Ok(seen)
}

/// Runs with another seed each time, or with that of `REDIS_CELL_SEED`, and prints it.
fn compare(wall: i64, calls: u32) {
    let seed =
        std::env::var("REDIS_CELL_SEED").map_or_else(|_| fastrand::u64(..), |seed| seed.parse().unwrap());
    let line = format!("random calls from {wall} on: REDIS_CELL_SEED={seed}\n");
    std::io::stderr().write_all(line.as_bytes()).unwrap();
    match run(FUNCTIONS, wall, seed, calls) {
        Ok(seen) => {
            let some = [seen.admitted, seen.refused, seen.errors].iter().all(|&n| n > calls / 20);
            assert!(some, "the calls are too much alike: {seen:?}");
        }
        Err(difference) => panic!("REDIS_CELL_SEED={seed}, from {wall}: {difference}"),
    }
}

#[test]
fn today() {
    compare(Clock::stopped().wall(), 20_000);
}

/// The end of the last of February of a leap year that is a century.
#[test]
fn at_a_leap_day() {
    compare(951_868_799_999_000_000, 10_000);
}

/// The first clock at which microseconds until the last state have 53 bits.
#[test]
fn in_the_year_1978() {
    compare(252_460_800_000_000_000, 10_000);
}

/// Some years before microseconds since the epoch have 54 bits, with the last states in reach.
#[test]
fn in_the_year_2248() {
    compare(8_800_000_000_000_000_000, 10_000);
}
