//! Random calls. In one database the module's commands work alone; in the other, commands and functions take
//! turns at random. Replies, errors, values and expiries must be equal at each step.

use crate::both::{Both, Reply, agree, is_beyond, reply};
use crate::calls::{ALL, About, Calls, HOLDS, KEYS, REPLIES};
use crate::common::{Clock, FUNCTIONS, to_function};
use redis::Value;
use std::io::Write;

/// What calls were answered, so that a test can tell that it has tested something.
#[derive(Debug, Default, PartialEq)]
pub struct Seen {
    pub calls: u32,
    pub admitted: u32,
    pub refused: u32,
    pub errors: u32,
    pub beyond: u32,
}

/// The database of the commands alone, and the one that is shared.
const DATABASES: [&str; 2] = ["0", "1"];

fn words(line: &[&str]) -> Vec<Vec<u8>> {
    line.iter().map(|word| word.as_bytes().to_vec()).collect()
}

/// A library with one function, which returns the type, the value and the expiry of each of its keys. Of long
/// sorted sets it returns the length and the ends.
const LOOK: &str = "#!lua name=look
redis.register_function{function_name='look', flags={'no-writes'}, callback=function(keys)
    local all = {}
    for i, key in ipairs(keys) do
        local kind = redis.call('TYPE', key).ok
        local value = ''
        if kind == 'string' then
            value = redis.call('GET', key)
        elseif kind == 'hash' then
            value = redis.call('HGETALL', key)
        elseif kind == 'zset' then
            local ends = { redis.call('ZRANGE', key, 0, 20, 'WITHSCORES'), redis.call('ZRANGE', key, -20, -1, 'WITHSCORES') }
            value = { redis.call('ZCARD', key), ends }
        end
        all[i] = { kind, value, redis.call('PEXPIRETIME', key) }
    end
    return all
end}";

/// Makes `calls` random calls from an instant on, or returns how the two differ.
pub fn run(library: &str, wall: i64, seed: u64, calls: u32, about: About) -> Result<Seen, String> {
    let mut both = Both::at(wall, library);
    assert_eq!(both.client.text(&["FUNCTION", "LOAD", LOOK]), "look");
    let mut random = Calls::new(seed, wall, about);
    let mut seen = Seen::default();
    for _ in 0..calls {
        let key = random.key();
        let pause = random.pause();
        both.clock.pass(pause);
        let wall = both.clock.wall();
        if random.rng().u32(0..25) == 0 {
            let key =
                if random.rng().u32(0..4) == 0 { KEYS + random.rng().usize(0..REPLIES + HOLDS) } else { key };
            let interference = random.interference(key, wall);
            for database in DATABASES {
                both.client.call(&["SELECT", database]);
                let _ = both.client.ask(&interference); // LPUSH on a string fails on both
            }
        }
        let call = random.call(key, wall);
        let by_function = random.rng().u32(0..10) < 7;
        let shared = if by_function { to_function(&call.words) } else { call.words.clone() };
        let keys: Vec<Vec<u8>> = call.keys.iter().map(|&at| call.words[at].clone()).collect();
        let look = [words(&["FCALL_RO", "look", &keys.len().to_string()]), keys.clone()].concat();
        let [alone, together] = DATABASES.map(|database| words(&["SELECT", database]));
        let batch = [&alone, &call.words, &look, &together, &shared, &look];
        let answers: [Result<Value, String>; 6] = both.client.pipeline(&batch).try_into().unwrap();
        let [_, command, state, _, shared, shared_state] = answers;
        let (command, shared): (Reply, Reply) = (reply(command), reply(shared));
        let beyond = by_function && is_beyond(&shared);
        if !agree(&command, &shared) || !beyond && state != shared_state {
            let call: Vec<String> = call.words.iter().map(|w| w.escape_ascii().to_string()).collect();
            return Err(format!(
                "call {} at {wall}, by a {}: {}\nmodule: {command:?}, {state:?}\nshared: {shared:?}, {shared_state:?}",
                seen.calls,
                if by_function { "function" } else { "command" },
                call.join(" ")
            ));
        }
        if beyond {
            // The function has changed nothing.
            for key in keys {
                both.client.call(&["SELECT", DATABASES[1]]);
                both.client.call(&[b"DEL".as_slice(), &key]);
                both.client.call(&["SELECT", DATABASES[0]]);
                let (source, target) = (key.as_slice(), DATABASES[1].as_bytes());
                both.client.call(&[b"COPY".as_slice(), source, source, b"DB", target]);
            }
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

/// Runs with another seed each time, or with that of `REDIS_CELL_SEED`, and prints it. `REDIS_CELL_LONG=1`
/// makes 20 runs, with seeds that follow one another: a single one would leave its century. With
/// `REDIS_CELL_SHORT=1`, a tenth of the calls.
fn compare(wall: i64, calls: u32) {
    let is = |name: &str| std::env::var(name).is_ok_and(|value| value == "1");
    let calls = if is("REDIS_CELL_SHORT") { calls / 10 } else { calls };
    let first: u64 =
        std::env::var("REDIS_CELL_SEED").map_or_else(|_| fastrand::u64(..), |seed| seed.parse().unwrap());
    let runs = if is("REDIS_CELL_LONG") { 20 } else { 1 };
    for seed in (0..runs).map(|number| first.wrapping_add(number)) {
        let line = format!("{calls} random calls from {wall} on: REDIS_CELL_SEED={seed}\n");
        std::io::stderr().write_all(line.as_bytes()).unwrap();
        match run(&FUNCTIONS, wall, seed, calls, ALL) {
            Ok(seen) => {
                let some = [seen.admitted, seen.refused, seen.errors].iter().all(|&n| n > calls / 20);
                assert!(some, "the calls are too much alike: {seen:?}");
            }
            Err(difference) => panic!("REDIS_CELL_SEED={seed}, from {wall}: {difference}"),
        }
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
