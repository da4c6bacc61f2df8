//! `make plots`: the pictures of `docs/choosing.md`.
//!
//! The same traffic (a spike, a steady overload, a pause, another spike) goes through every limiter at once,
//! on a real server. The replies are recorded in a file, and the pictures are drawn from that file alone:
//!
//! ```text
//! redis-cell-plots record PORT FILE        calls the server at this port, and writes the file
//! redis-cell-plots draw FILE FOLDER        draws FOLDER/*.svg from the file
//! ```
//!
//! `redis-cell-plots rungs bench/rungs.tsv FOLDER` draws `scaling-rungs.svg` of `docs/scaling.md`.

// A tool should fail at the first unexpected value. The lints against panics are for code inside a server.
#![allow(clippy::arithmetic_side_effects, clippy::expect_used, clippy::indexing_slicing)]

mod draw;
mod record;
mod rungs;

use std::error::Error;
use std::path::Path;

/// A limiter in the pictures: its name, and the call that takes one unit at 10 a second.
struct Limiter {
    name: &'static str,
    title: &'static str,
    /// The arguments of the call; `{id}` is a different number in each call.
    call: &'static str,
    /// Whether it is drawn beside the others, because it differs from them.
    beside: bool,
}

/// Ten at once and ten a second, in the arguments of each limiter. Funnels and buckets look like CL.THROTTLE.
const LIMITERS: [Limiter; 7] = [
    Limiter {
        name: "throttle",
        title: "CL.THROTTLE: GCRA",
        call: "CL.THROTTLE plot:throttle 9 10 1 1",
        beside: true,
    },
    Limiter {
        name: "reserve",
        title: "CL.RESERVE: a queue",
        call: "CL.RESERVE plot:reserve 0 10 1000 1 MAXWAIT 500 MS",
        beside: true,
    },
    Limiter {
        name: "fixed",
        title: "CL.FIXED: a fixed window",
        call: "CL.FIXED plot:fixed 10 1 1",
        beside: true,
    },
    Limiter {
        name: "window",
        title: "CL.WINDOW: a sliding window",
        call: "CL.WINDOW plot:window 10 1 1",
        beside: true,
    },
    Limiter { name: "log", title: "CL.LOG: a sliding log", call: "CL.LOG plot:log 10 1 1", beside: true },
    Limiter {
        name: "acquire",
        title: "CL.ACQUIRE: leases of 1 s",
        call: "CL.ACQUIRE plot:acquire 10 1 holder:{id}",
        beside: true,
    },
    Limiter {
        name: "mtake",
        title: "CL.MTAKE: and 20 in 5 s",
        call: "CL.MTAKE plot:{m}:second THROTTLE 9 10 1 1 plot:{m}:five THROTTLE 19 20 5 1",
        beside: false,
    },
];

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["record", port, file] => record::record(port.parse()?, Path::new(file)),
        ["draw", file, folder] => draw::draw(Path::new(file), Path::new(folder)),
        ["rungs", file, folder] => rungs::draw(Path::new(file), Path::new(folder)),
        _ => Err("usage: redis-cell-plots record PORT FILE | draw FILE FOLDER | rungs FILE FOLDER".into()),
    }
}
