//! The measurements as data: the table of targets.

use crate::server::Setup;

/// The quantity that is compared.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Measure {
    /// Time per unit of calls, in pipelines.
    Speed,
    /// Time from a call to its reply, with 50 clients that each wait for their reply.
    Latency,
    /// Memory per key.
    Memory,
}

/// A line of the table: the module's calls and other calls, measured in the same rounds.
pub struct Line {
    pub name: &'static str,
    pub measure: Measure,
    /// The target: how many times as fast or as small as the other calls. `None` if there is no target.
    pub target: Option<f64>,
    pub ours: Side,
    pub against: Side,
}

/// The position of the side to compare with in [`Line::sides`]. The module's side is the first.
pub const AGAINST: usize = 1;

impl Line {
    /// Returns the sides that each round measures.
    pub fn sides(&self) -> impl Iterator<Item = &Side> {
        [&self.ours, &self.against].into_iter()
    }
}

/// Calls to measure.
pub struct Side {
    pub name: &'static str,
    /// The server that receives them.
    pub server: Setup,
    /// The calls that create each key before the measurement.
    pub prepare: &'static str,
    /// The calls that count as one unit, separated by ` ; `. `{a}`, `{b}` and `{c}` are three keys, which
    /// differ in each unit. `{hot}` is always the same key. Any of them may have a suffix. `{gcra}` and the
    /// like are names of scripts.
    pub call: &'static str,
    /// The beginning of the reply to the first call, in the wire format.
    pub answer: &'static str,
}

/// The beginning of the reply to an admitted call, and to a refused call.
const ADMITTED: &str = "*5\r\n:0\r\n";
pub const REFUSED: &str = "*5\r\n:1\r\n";

const OK: &str = "+OK\r\n";
const TEXT: &str = "$19\r\n";

/// The calls that create most keys.
pub const THROTTLE: &str = "CL.THROTTLE {a} 1000000 1 1 3600";
pub const EXHAUSTED: &str = "CL.THROTTLE {a} 0 1 3600";
const SET: &str = "SET {a} nineteen-bytes-text PX 3600000";

pub const fn side(
    name: &'static str,
    server: Setup,
    prepare: &'static str,
    call: &'static str,
    answer: &'static str,
) -> Side {
    Side { name, server, prepare, call, answer }
}

/// Calls of the module that are admitted.
pub const fn ours(name: &'static str, prepare: &'static str, call: &'static str) -> Side {
    side(name, Setup::Module, prepare, call, ADMITTED)
}

/// Calls on a server without the module.
const fn bare(name: &'static str, prepare: &'static str, call: &'static str, answer: &'static str) -> Side {
    side(name, Setup::Bare, prepare, call, answer)
}

const fn speed(name: &'static str, target: Option<f64>, ours: Side, against: Side) -> Line {
    Line { name, measure: Measure::Speed, target, ours, against }
}

/// In most lines, the rate is one unit per second. Keys start with an hour's worth of units taken, so that
/// they outlive the run, and every further call is admitted.
pub const fn admitted(server: Setup) -> Side {
    side("CL.THROTTLE admitted", server, THROTTLE, "CL.THROTTLE {a} 1000000 1 1", ADMITTED)
}

const fn refused(server: Setup) -> Side {
    side("CL.THROTTLE refused", server, EXHAUSTED, EXHAUSTED, REFUSED)
}

const fn refused_hot(server: Setup) -> Side {
    side("CL.THROTTLE refused, hot key", server, EXHAUSTED, "CL.THROTTLE {hot} 0 1 3600", REFUSED)
}

const fn set(server: Setup) -> Side {
    side("SET key value PX ms", server, SET, SET, OK)
}

/// 19 digits, which the server stores as an integer in the object itself.
const SET_INTEGER: Side = bare(
    "SET key integer PX ms",
    "SET {a} 1700000000000000000 PX 3600000",
    "SET {a} 1700000000000000000 PX 3600000",
    OK,
);

/// 19 bytes of text with an expiry, which the server has to check.
const fn get(name: &'static str, call: &'static str) -> Side {
    bare(name, SET, call, TEXT)
}

/// A counter with its expiry, in a hash of the size that the module stores.
const PAIR: Side = bare(
    "HINCRBY + PEXPIRE",
    "HSET {a} window 1700000000000000000 current 1 previous 0",
    "HINCRBY {a} current 1 ; PEXPIRE {a} 3600000",
    ":",
);

const SCRIPT: Side = bare(
    "GCRA in Lua, EVALSHA",
    "EVALSHA {gcra} 1 {a} 1000000 1 1 3600",
    "EVALSHA {gcra} 1 {a} 1000000 1 1",
    ADMITTED,
);

const THREE_CALLS: Side = ours(
    "3 CL.THROTTLE",
    THROTTLE,
    "CL.THROTTLE {a} 1000000 1 1 ; CL.THROTTLE {b} 1000000 1 1 ; CL.THROTTLE {c} 1000000 1 1",
);

/// The same limiters in one call, in which each limiter has its own quantity.
const THREE_LIMITERS: Side = side(
    "CL.MTAKE of 3 THROTTLE",
    Setup::Module,
    THROTTLE,
    "CL.MTAKE {a} THROTTLE 1000000 1 1 1 {b} THROTTLE 1000000 1 1 1 {c} THROTTLE 1000000 1 1 1",
    "*4\r\n*5\r\n:0\r\n",
);

/// The call of an LLM gateway for each request: two rates, a monthly quota, and a place, whose holder renews
/// it, so that the number of places stays small.
pub const FOUR_KINDS: Side = side(
    "CL.MTAKE of 4 kinds",
    Setup::Module,
    FOUR_CALLS,
    "CL.MTAKE {a}:rpm THROTTLE 1000000 1 1 1 {a}:tpm THROTTLE 1000000 1 1 1 {a}:month FIXED 1000000 MONTH 1 \
           {a}:busy LEASE 9 3600 me",
    "*5\r\n*5\r\n:0\r\n",
);

const FOUR_CALLS: &str = "CL.THROTTLE {a}:rpm 1000000 1 1 3600 ; CL.THROTTLE {a}:tpm 1000000 1 1 3600 ; \
                          CL.FIXED {a}:month 1000000 MONTH 1000 ; CL.ACQUIRE {a}:busy 9 3600 me";

const FOUR_KINDS_SCRIPT: Side = bare(
    "4 kinds in Lua, EVALSHA",
    "EVALSHA {mtake} 4 {a}:rpm {a}:tpm {a}:month {a}:busy \
              1000000 1 1 3600 1000000 1 1 3600 1000000 1000 9 3600 me",
    "EVALSHA {mtake} 4 {a}:rpm {a}:tpm {a}:month {a}:busy \
           1000000 1 1 1 1000000 1 1 1 1000000 1 9 3600 me",
    "*5\r\n*5\r\n:0\r\n",
);

/// An account: a rate, and what is included, then what was bought.
const CHAIN: Side = side(
    "CL.MTAKE of 3, a chain of 2",
    Setup::Module,
    "CL.MTAKE {a}:rpm THROTTLE 1000000 1 1 3600 {a}:included FIXED 1000000 36000 5 {a}:bought FIXED 1000000 TOTAL 5",
    "CL.MTAKE {a}:rpm THROTTLE 1000000 1 1 1 {a}:included FIXED 1000000 36000 5 SPILL {a}:bought FIXED 1000000 TOTAL 5",
    "*4\r\n*6\r\n:0\r\n",
);

const CHAIN_SCRIPT: Side = bare(
    "a chain of 2 in Lua, EVALSHA",
    "EVALSHA {account} 3 {a}:rpm {a}:included {a}:bought 1000000 1 1 3600 1000000 36000 1000000 5",
    "EVALSHA {account} 3 {a}:rpm {a}:included {a}:bought 1000000 1 1 1 1000000 36000 1000000 5",
    "*6\r\n:0\r\n",
);

/// A request that takes before it knows how much it needs, and settles.
const HOLD: Side = side(
    "CL.MTAKE + CL.MSETTLE, HOLD",
    Setup::Module,
    "CL.MTAKE {a}:rpm THROTTLE 1000000 1 1 3600 {a}:day FIXED 1000000 36000 5",
    "CL.MTAKE {a}:rpm THROTTLE 1000000 1 1 1 {a}:day FIXED 1000000 36000 5 HOLD {a}:holds 3600 me ; \
           CL.MSETTLE {a}:rpm THROTTLE 1000000 1 1 1 {a}:day FIXED 1000000 36000 3 HOLD {a}:holds me",
    "*3\r\n*5\r\n:0\r\n",
);

const HOLD_SCRIPT: Side = bare(
    "a hold in Lua, EVALSHA",
    "EVALSHA {hold} 4 {a}:rpm {a}:day {a}:ends {a}:held take 1000000 1 1 3600 1000000 36000 0 me 3600",
    "EVALSHA {hold} 4 {a}:rpm {a}:day {a}:ends {a}:held take 1000000 1 1 1 1000000 36000 5 me 3600 ; \
           EVALSHA {hold} 4 {a}:rpm {a}:day {a}:ends {a}:held settle 1000000 1 1 0 1000000 36000 3 me",
    ADMITTED,
);

const INCR: Side = bare("INCR", "SET {a} 1 PX 3600000", "INCR {a}", ":");

const FIXED_CALL: &str = "CL.FIXED {a} 1000000 3600";
const FIXED: Side = ours("CL.FIXED", FIXED_CALL, FIXED_CALL);

/// A thousand per second, so that millions of calls stay within the burst and a day.
const ADMITTED_HOT: Side = ours(
    "CL.THROTTLE admitted, hot key",
    "CL.THROTTLE {a} 1000000000 1000 1 3600000",
    "CL.THROTTLE {hot} 1000000000 1000 1",
);

const GCRA_FUNCTION: Side = bare(
    "FCALL cl_throttle",
    "FCALL cl_throttle 1 {a} 1000000 1 1 3600",
    "FCALL cl_throttle 1 {a} 1000000 1 1",
    ADMITTED,
);

/// A function and a script that people use for the same purpose. The first calls of both create their keys.
const fn scripted(
    name: &'static str,
    [function, call, answer]: [&'static str; 3],
    [script, other, other_answer]: [&'static str; 3],
) -> Line {
    let against = bare(script, other, other, other_answer);
    speed(name, None, bare(function, call, call, answer), against)
}

/// A command of the module, and the corresponding function on a server without the module.
const fn function(
    name: &'static str,
    ours: Side,
    function: &'static str,
    prepare: &'static str,
    call: &'static str,
) -> Line {
    let against = bare(function, prepare, call, ours.answer);
    speed(name, None, ours, against)
}

/// The table of targets, and then the lines without a target.
pub const LINES: &[Line] = &[
    speed("admitted", Some(1.00), admitted(Setup::Module), set(Setup::Bare)),
    speed("admitted, integers", None, admitted(Setup::Module), SET_INTEGER),
    speed("admitted, AOF everysec", Some(0.95), admitted(Setup::ModuleAof), set(Setup::BareAof)),
    speed(
        "admitted, a replica attached",
        Some(0.95),
        admitted(Setup::ModuleReplica),
        set(Setup::BareReplica),
    ),
    speed("refused", Some(0.70), refused(Setup::Module), get("GET key", "GET {a}")),
    speed("admitted, the peer", Some(2.0), admitted(Setup::Module), admitted(Setup::Peer)),
    speed("refused, the peer", Some(1.6), refused(Setup::Module), refused(Setup::Peer)),
    speed("admitted, a script", Some(5.0), admitted(Setup::Module), SCRIPT),
    speed(
        "peek",
        Some(0.75),
        ours("CL.PEEK", THROTTLE, "CL.PEEK {a} 1000000 1 1"),
        get("GET key", "GET {a}"),
    ),
    speed("fixed", Some(0.70), FIXED, INCR),
    speed(
        "funnel",
        Some(1.0),
        ours("CL.FUNNEL", "CL.FUNNEL {a} 1000000 1 1 3600", "CL.FUNNEL {a} 1000000 1 1"),
        PAIR,
    ),
    speed(
        "bucket",
        Some(1.0),
        ours("CL.BUCKET", "CL.BUCKET {a} 1000000 1 1 3600", "CL.BUCKET {a} 1000000 1 1"),
        PAIR,
    ),
    speed(
        "window",
        Some(1.0),
        ours("CL.WINDOW", "CL.WINDOW {a} 1000000 3600", "CL.WINDOW {a} 1000000 3600"),
        PAIR,
    ),
    speed(
        "lease",
        Some(0.6),
        ours(
            "CL.ACQUIRE + CL.RELEASE",
            "CL.ACQUIRE {a} 10 3600 first",
            "CL.ACQUIRE {a} 10 3600 holder ; CL.RELEASE {a} holder",
        ),
        bare(
            "ZADD + ZREM",
            "ZADD {a} 1700000000000000 first",
            "ZADD {a} 1700000000000000 holder ; ZREM {a} holder",
            ":1\r\n",
        ),
    ),
    speed("several", Some(1.25), THREE_LIMITERS, THREE_CALLS),
    speed(
        "several kinds",
        Some(1.0),
        FOUR_KINDS,
        side(
            "the 4 single commands",
            Setup::Module,
            FOUR_CALLS,
            "CL.THROTTLE {a}:rpm 1000000 1 1 ; CL.THROTTLE {a}:tpm 1000000 1 1 ; \
                   CL.FIXED {a}:month 1000000 MONTH ; CL.ACQUIRE {a}:busy 9 3600 me",
            ADMITTED,
        ),
    ),
    speed("several kinds, a script", Some(6.0), FOUR_KINDS, FOUR_KINDS_SCRIPT),
    speed("a chain, a script", Some(3.0), CHAIN, CHAIN_SCRIPT),
    speed("a hold, a script", Some(3.0), HOLD, HOLD_SCRIPT),
    speed(
        "fixed by the month",
        Some(0.97),
        ours("CL.FIXED MONTH", "CL.FIXED {a} 1000000 MONTH", "CL.FIXED {a} 1000000 MONTH"),
        FIXED,
    ),
    Line {
        measure: Measure::Latency,
        ..speed("latency", Some(1.0 / 1.05), admitted(Setup::Module), set(Setup::Bare))
    },
    Line {
        measure: Measure::Memory,
        ..speed("memory", Some(1.0), admitted(Setup::Module), set(Setup::Bare))
    },
    speed(
        "admitted, hot key",
        None,
        ADMITTED_HOT,
        bare("SET key value PX ms, hot key", SET, "SET {hot} nineteen-bytes-text PX 3600000", OK),
    ),
    speed("refused, hot key", None, refused_hot(Setup::Module), get("GET key, hot key", "GET {hot}")),
    speed("refused, CL.TOP on / off", None, refused(Setup::Module), refused(Setup::ModuleNoTop)),
    speed(
        "refused, hot key, CL.TOP on / off",
        None,
        refused_hot(Setup::Module),
        refused_hot(Setup::ModuleNoTop),
    ),
    speed(
        "SET beside the module",
        None,
        side("SET key value PX ms, beside the module", Setup::Module, SET, SET, OK),
        set(Setup::Bare),
    ),
    function(
        "function, admitted",
        admitted(Setup::Module),
        "FCALL cl_throttle",
        "FCALL cl_throttle 1 {a} 1000000 1 1 3600",
        "FCALL cl_throttle 1 {a} 1000000 1 1",
    ),
    function(
        "function, refused",
        refused(Setup::Module),
        "FCALL cl_throttle",
        "FCALL cl_throttle 1 {a} 0 1 3600",
        "FCALL cl_throttle 1 {a} 0 1 3600",
    ),
    function(
        "function, fixed",
        FIXED,
        "FCALL cl_fixed",
        "FCALL cl_fixed 1 {a} 1000000 3600",
        "FCALL cl_fixed 1 {a} 1000000 3600",
    ),
    speed("function against script, GCRA", None, GCRA_FUNCTION, SCRIPT),
    scripted(
        "function against script, counter",
        ["FCALL cl_fixed", "FCALL cl_fixed 1 {a} 1000000 3600", ADMITTED],
        ["a counter in Lua, EVALSHA", "EVALSHA {counter} 1 {a} 1 3600", "*2\r\n"],
    ),
    scripted(
        "function against script, sliding window",
        ["FCALL cl_window", "FCALL cl_window 1 {a} 1000000 86400", ADMITTED],
        ["2 counters in Lua, EVALSHA", "EVALSHA {halves} 2 {a}:old {a} 1000000 86400 1", ":1\r\n"],
    ),
    scripted(
        "function against script, log",
        ["FCALL cl_log", "FCALL cl_log 1 {a} 1000 3600", ADMITTED],
        ["a list in Lua, EVALSHA", "EVALSHA {list} 1 {a} 1700000000.25 1000 3600 1", ":1\r\n"],
    ),
    scripted(
        "function against script, four counters",
        [
            "FCALL cl_mtake of 4 FIXED",
            "FCALL cl_mtake 4 {a} {a}:b {a}:c {a}:d FIXED 1000000 3600 1 FIXED 1000000 3600 1 \
             FIXED 1000000 3600 1 FIXED 1000000 3600 1",
            "*5\r\n*5\r\n:0\r\n",
        ],
        [
            "4 counters in Lua, EVALSHA",
            "EVALSHA {counters} 8 {a}:a {a} {a}:b {a}:c {a}:d {a}:e {a}:f {a}:g 1700000000 3600",
            "*8\r\n",
        ],
    ),
    speed(
        "function against script, four kinds",
        None,
        bare(
            "FCALL cl_mtake of 4 kinds",
            "FCALL cl_mtake 4 {a}:rpm {a}:tpm {a}:month {a}:busy THROTTLE 1000000 1 1 3600 \
                      THROTTLE 1000000 1 1 3600 FIXED 1000000 MONTH 1000 LEASE 9 3600 me",
            "FCALL cl_mtake 4 {a}:rpm {a}:tpm {a}:month {a}:busy THROTTLE 1000000 1 1 1 \
                   THROTTLE 1000000 1 1 1 FIXED 1000000 MONTH 1 LEASE 9 3600 me",
            "*5\r\n*5\r\n:0\r\n",
        ),
        FOUR_KINDS_SCRIPT,
    ),
];
