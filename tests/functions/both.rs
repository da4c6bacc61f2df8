//! One server with the module and the library, on a clock that moves only when a test moves it.

use crate::common::{Client, Clock, Options, Server, load_functions, to_function};
use redis::Value;

/// The integers of a reply, or the text of an error.
pub type Reply = Result<Vec<i64>, String>;

/// The beginning of the error of a call whose reply a function cannot give.
const BEYOND: &str = "is above 9007199254740991, the largest integer that a function can reply";

pub struct Both {
    pub clock: Clock,
    pub client: Client,
    _server: Server,
}

impl Both {
    /// A server with a version of the library, whose clock stands at `wall` nanoseconds.
    pub fn at(wall: i64, library: &str) -> Self {
        let clock = Clock::stopped_at(wall);
        let server = clock.start(Options::new());
        let mut client = server.connect();
        load_functions(&mut client, library);
        Self { clock, client, _server: server }
    }

    /// Calls the command of the module with these words, or the function.
    pub fn call<W: AsRef<[u8]>>(&mut self, words: &[W], function: bool) -> Reply {
        let words =
            if function { to_function(words) } else { words.iter().map(|w| w.as_ref().to_vec()).collect() };
        reply(self.client.ask(&words))
    }
}

/// The integers of an answer that is not an error, those of all rows one after the other.
pub fn reply(answer: Result<Value, String>) -> Reply {
    fn add(value: &Value, all: &mut Vec<i64>) {
        match value {
            Value::Int(integer) => all.push(*integer),
            Value::Array(values) => values.iter().for_each(|value| add(value, all)),
            other => panic!("not integers: {other:?}"),
        }
    }
    let mut all = Vec::new();
    add(&answer?, &mut all);
    Ok(all)
}

/// Whether the function's reply is equal to the command's, or is the error for integers above 2^53 - 1, of
/// which the command's reply has one.
pub fn agree(command: &Reply, function: &Reply) -> bool {
    match (command, function) {
        (Ok(integers), Err(error)) if error.contains(BEYOND) => integers.iter().any(|&n| n >= 1 << 53),
        _ => command == function,
    }
}

/// Whether this is that error.
pub fn is_beyond(function: &Reply) -> bool {
    function.as_ref().is_err_and(|error| error.contains(BEYOND))
}
