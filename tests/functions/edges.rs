//! Cases that random calls hardly meet, by the command and by the function.

use crate::both::{Both, Reply};
use crate::common::FUNCTIONS;

const WALL: i64 = 1_800_000_000_000_000_000;

/// What the key holds, the call without its key, and the beginning of the reply.
const EDGES: [(&str, &str, &str); 9] = [
    ("", "CL.THROTTLE 9 10 60", "[0, 10, 9, -1, 6]"),
    ("9223372036854775806 PXAT 9223372036855", "CL.CHARGE 0 1000 1 1 US", "[1, 1, 0, 7423372036854776,"),
    (
        "9223372036854775806 PXAT 9223372036855",
        "CL.CHARGE 0 1000 1 2 US",
        "ERR quantity is out of range: the state",
    ),
    ("1800000000000000001 PXAT 1800000000001", "CL.REFUND 0 1000 1 1 US", "[0, 1, 1, -1, 0]"),
    ("0 PXAT 1800000009000", "CL.FIXED 5 60 0", "[0, 5, 5, -1, 0]"),
    ("0 PXAT 1800000009000", "CL.FIXED 5 60 2", "[0, 5, 3, -1, 60]"),
    ("2 PXAT 9300000000000", "CL.FIXED 5 60 2", "[0, 5, 1, -1, 7423372037]"),
    (
        "",
        "CL.FIXED 9223372036854775807 UNTIL 1800000001 1800000001000000000",
        "ERR quantity is out of range: the count",
    ),
    ("", "CL.FIXED 9007199254740991 60 9007199254740991", "[0, 9007199254740991, 0, -1, 60]"),
];

/// Compares the two, or returns how they differ.
pub fn edges(library: &str) -> Result<(), String> {
    let mut both = Both::at(WALL, library);
    for (state, call, expected) in EDGES {
        let mut words: Vec<&str> = call.split(' ').collect();
        words.insert(1, "k");
        let mut outcomes = [false, true].map(|function| {
            both.client.call("DEL k");
            if !state.is_empty() {
                both.client.call(&format!("SET k {state}"));
            }
            let reply: Reply = both.call(&words, function);
            let left = (both.client.ask("GET k"), both.client.ask("PEXPIRETIME k"));
            (reply, left)
        });
        let [command, function] = &mut outcomes;
        let text = match &command.0 {
            Ok(integers) => format!("{integers:?}"),
            Err(error) => error.clone(),
        };
        assert!(text.starts_with(expected), "{call} on {state}: {text}");
        if command != function {
            return Err(format!("{call} on {state}: {command:?}, by function {function:?}"));
        }
    }
    Ok(())
}

#[test]
fn edges_are_equal() {
    edges(FUNCTIONS).unwrap();
}
