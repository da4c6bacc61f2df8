//! The measurements as data: the table of targets.

use crate::server::Kind;

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
    pub server: Kind,
    /// The calls that create each key before the measurement.
    pub prepare: &'static str,
    /// The calls that count as one unit, separated by ` ; `. `{a}`, `{b}` and `{c}` are three keys, which
    /// differ in each unit. `{hot}` is always the same key. Any of them may have a suffix. `{gcra}` and the
    /// like are names of scripts.
    pub call: &'static str,
    /// The beginning of the reply to the first call, in the wire format.
    pub answer: &'static str,
}

/// In most lines, the rate is one unit per second. Keys start with an hour's worth of units taken, so that
/// they outlive the run, and every further call is admitted.
pub const fn admitted(server: Kind) -> Side {
    Side {
        name: "CL.THROTTLE admitted",
        server,
        prepare: "CL.THROTTLE {a} 1000000 1 1 3600",
        call: "CL.THROTTLE {a} 1000000 1 1",
        answer: "*5\r\n:0\r\n",
    }
}

const fn refused(server: Kind) -> Side {
    Side {
        name: "CL.THROTTLE refused",
        server,
        prepare: "CL.THROTTLE {a} 0 1 3600",
        call: "CL.THROTTLE {a} 0 1 3600",
        answer: "*5\r\n:1\r\n",
    }
}

const fn refused_hot(server: Kind) -> Side {
    Side {
        name: "CL.THROTTLE refused, hot key",
        server,
        prepare: "CL.THROTTLE {a} 0 1 3600",
        call: "CL.THROTTLE {hot} 0 1 3600",
        answer: "*5\r\n:1\r\n",
    }
}

const fn set(server: Kind) -> Side {
    Side {
        name: "SET key value PX ms",
        server,
        prepare: "SET {a} nineteen-bytes-text PX 3600000",
        call: "SET {a} nineteen-bytes-text PX 3600000",
        answer: "+OK\r\n",
    }
}

/// 19 digits, which the server stores as an integer in the object itself.
const SET_INTEGER: Side = Side {
    name: "SET key integer PX ms",
    server: Kind::Bare,
    prepare: "SET {a} 1700000000000000000 PX 3600000",
    call: "SET {a} 1700000000000000000 PX 3600000",
    answer: "+OK\r\n",
};

/// 19 bytes of text with an expiry, which the server has to check.
const fn get(name: &'static str, call: &'static str) -> Side {
    Side {
        name,
        server: Kind::Bare,
        prepare: "SET {a} nineteen-bytes-text PX 3600000",
        call,
        answer: "$19\r\n",
    }
}

/// A counter with its expiry, in a hash of the size that the module stores.
const PAIR: Side = Side {
    name: "HINCRBY + PEXPIRE",
    server: Kind::Bare,
    prepare: "HSET {a} window 1700000000000000000 current 1 previous 0",
    call: "HINCRBY {a} current 1 ; PEXPIRE {a} 3600000",
    answer: ":",
};

const SCRIPT: Side = Side {
    name: "GCRA in Lua, EVALSHA",
    server: Kind::Bare,
    prepare: "EVALSHA {gcra} 1 {a} 1000000 1 1 3600",
    call: "EVALSHA {gcra} 1 {a} 1000000 1 1",
    answer: "*5\r\n:0\r\n",
};

const THREE_CALLS: Side = Side {
    name: "3 CL.THROTTLE",
    server: Kind::Module,
    prepare: "CL.THROTTLE {a} 1000000 1 1 3600",
    call: "CL.THROTTLE {a} 1000000 1 1 ; CL.THROTTLE {b} 1000000 1 1 ; CL.THROTTLE {c} 1000000 1 1",
    answer: "*5\r\n:0\r\n",
};

/// The same limiters in one call, in which each limiter has its own quantity.
const THREE_LIMITERS: Side = Side {
    name: "CL.MTAKE of 3 THROTTLE",
    server: Kind::Module,
    prepare: "CL.THROTTLE {a} 1000000 1 1 3600",
    call: "CL.MTAKE {a} THROTTLE 1000000 1 1 1 {b} THROTTLE 1000000 1 1 1 {c} THROTTLE 1000000 1 1 1",
    answer: "*4\r\n*5\r\n:0\r\n",
};

/// The call of an LLM gateway for each request: two rates, a monthly quota, and a place, whose holder renews
/// it, so that the number of places stays small.
pub const FOUR_KINDS: Side = Side {
    name: "CL.MTAKE of 4 kinds",
    server: Kind::Module,
    prepare: FOUR_CALLS,
    call: "CL.MTAKE {a}:rpm THROTTLE 1000000 1 1 1 {a}:tpm THROTTLE 1000000 1 1 1 {a}:month FIXED 1000000 MONTH 1 \
           {a}:busy LEASE 9 3600 me",
    answer: "*5\r\n*5\r\n:0\r\n",
};

const FOUR_CALLS: &str = "CL.THROTTLE {a}:rpm 1000000 1 1 3600 ; CL.THROTTLE {a}:tpm 1000000 1 1 3600 ; \
                          CL.FIXED {a}:month 1000000 MONTH 1000 ; CL.ACQUIRE {a}:busy 9 3600 me";

const FOUR_KINDS_SCRIPT: Side = Side {
    name: "4 kinds in Lua, EVALSHA",
    server: Kind::Bare,
    prepare: "EVALSHA {mtake} 4 {a}:rpm {a}:tpm {a}:month {a}:busy \
              1000000 1 1 3600 1000000 1 1 3600 1000000 1000 9 3600 me",
    call: "EVALSHA {mtake} 4 {a}:rpm {a}:tpm {a}:month {a}:busy \
           1000000 1 1 1 1000000 1 1 1 1000000 1 9 3600 me",
    answer: "*5\r\n*5\r\n:0\r\n",
};

/// An account: a rate, and what is included, then what was bought.
const CHAIN: Side = Side {
    name: "CL.MTAKE of 3, a chain of 2",
    server: Kind::Module,
    prepare: "CL.MTAKE {a}:rpm THROTTLE 1000000 1 1 3600 {a}:included FIXED 1000000 36000 5 {a}:bought FIXED 1000000 TOTAL 5",
    call: "CL.MTAKE {a}:rpm THROTTLE 1000000 1 1 1 {a}:included FIXED 1000000 36000 5 SPILL {a}:bought FIXED 1000000 TOTAL 5",
    answer: "*4\r\n*6\r\n:0\r\n",
};

const CHAIN_SCRIPT: Side = Side {
    name: "a chain of 2 in Lua, EVALSHA",
    server: Kind::Bare,
    prepare: "EVALSHA {account} 3 {a}:rpm {a}:included {a}:bought 1000000 1 1 3600 1000000 36000 1000000 5",
    call: "EVALSHA {account} 3 {a}:rpm {a}:included {a}:bought 1000000 1 1 1 1000000 36000 1000000 5",
    answer: "*6\r\n:0\r\n",
};

/// A request that takes before it knows how much it needs, and settles.
const HOLD: Side = Side {
    name: "CL.MTAKE + CL.MSETTLE, HOLD",
    server: Kind::Module,
    prepare: "CL.MTAKE {a}:rpm THROTTLE 1000000 1 1 3600 {a}:day FIXED 1000000 36000 5",
    call: "CL.MTAKE {a}:rpm THROTTLE 1000000 1 1 1 {a}:day FIXED 1000000 36000 5 HOLD {a}:holds 3600 me ; \
           CL.MSETTLE {a}:rpm THROTTLE 1000000 1 1 1 {a}:day FIXED 1000000 36000 3 HOLD {a}:holds me",
    answer: "*3\r\n*5\r\n:0\r\n",
};

const HOLD_SCRIPT: Side = Side {
    name: "a hold in Lua, EVALSHA",
    server: Kind::Bare,
    prepare: "EVALSHA {hold} 4 {a}:rpm {a}:day {a}:ends {a}:held take 1000000 1 1 3600 1000000 36000 0 me 3600",
    call: "EVALSHA {hold} 4 {a}:rpm {a}:day {a}:ends {a}:held take 1000000 1 1 1 1000000 36000 5 me 3600 ; \
           EVALSHA {hold} 4 {a}:rpm {a}:day {a}:ends {a}:held settle 1000000 1 1 0 1000000 36000 3 me",
    answer: "*5\r\n:0\r\n",
};

const INCR: Side =
    Side { name: "INCR", server: Kind::Bare, prepare: "SET {a} 1 PX 3600000", call: "INCR {a}", answer: ":" };

const FIXED: Side = Side {
    name: "CL.FIXED",
    server: Kind::Module,
    prepare: "CL.FIXED {a} 1000000 3600",
    call: "CL.FIXED {a} 1000000 3600",
    answer: "*5\r\n:0\r\n",
};

const GCRA_FUNCTION: Side = Side {
    name: "FCALL cl_throttle",
    server: Kind::Bare,
    prepare: "FCALL cl_throttle 1 {a} 1000000 1 1 3600",
    call: "FCALL cl_throttle 1 {a} 1000000 1 1",
    answer: "*5\r\n:0\r\n",
};

/// A function and a script that people use for the same purpose. The first calls of both create their keys.
const fn scripted(
    name: &'static str,
    [function, call, answer]: [&'static str; 3],
    [script, other, other_answer]: [&'static str; 3],
) -> Line {
    let ours = Side { name: function, server: Kind::Bare, prepare: call, call, answer };
    let against =
        Side { name: script, server: Kind::Bare, prepare: other, call: other, answer: other_answer };
    Line { name, measure: Measure::Speed, target: None, ours, against }
}

/// A command of the module, and the corresponding function on a server without the module.
const fn function(
    name: &'static str,
    ours: Side,
    function: &'static str,
    prepare: &'static str,
    call: &'static str,
) -> Line {
    let against = Side { name: function, server: Kind::Bare, prepare, call, answer: ours.answer };
    Line { name, measure: Measure::Speed, target: None, ours, against }
}

/// The table of targets, and then the lines without a target.
pub const LINES: &[Line] = &[
    Line {
        name: "admitted",
        measure: Measure::Speed,
        target: Some(1.00),
        ours: admitted(Kind::Module),
        against: set(Kind::Bare),
    },
    Line {
        name: "admitted, integers",
        measure: Measure::Speed,
        target: None,
        ours: admitted(Kind::Module),
        against: SET_INTEGER,
    },
    Line {
        name: "admitted, AOF everysec",
        measure: Measure::Speed,
        target: Some(0.95),
        ours: admitted(Kind::ModuleAof),
        against: set(Kind::BareAof),
    },
    Line {
        name: "admitted, a replica attached",
        measure: Measure::Speed,
        target: Some(0.95),
        ours: admitted(Kind::ModuleReplica),
        against: set(Kind::BareReplica),
    },
    Line {
        name: "refused",
        measure: Measure::Speed,
        target: Some(0.70),
        ours: refused(Kind::Module),
        against: get("GET key", "GET {a}"),
    },
    Line {
        name: "admitted, the peer",
        measure: Measure::Speed,
        target: Some(2.0),
        ours: admitted(Kind::Module),
        against: admitted(Kind::Peer),
    },
    Line {
        name: "refused, the peer",
        measure: Measure::Speed,
        target: Some(1.6),
        ours: refused(Kind::Module),
        against: refused(Kind::Peer),
    },
    Line {
        name: "admitted, a script",
        measure: Measure::Speed,
        target: Some(5.0),
        ours: admitted(Kind::Module),
        against: SCRIPT,
    },
    Line {
        name: "peek",
        measure: Measure::Speed,
        target: Some(0.75),
        ours: Side {
            name: "CL.PEEK",
            server: Kind::Module,
            prepare: "CL.THROTTLE {a} 1000000 1 1 3600",
            call: "CL.PEEK {a} 1000000 1 1",
            answer: "*5\r\n:0\r\n",
        },
        against: get("GET key", "GET {a}"),
    },
    Line { name: "fixed", measure: Measure::Speed, target: Some(0.70), ours: FIXED, against: INCR },
    Line {
        name: "funnel",
        measure: Measure::Speed,
        target: Some(1.0),
        ours: Side {
            name: "CL.FUNNEL",
            server: Kind::Module,
            prepare: "CL.FUNNEL {a} 1000000 1 1 3600",
            call: "CL.FUNNEL {a} 1000000 1 1",
            answer: "*5\r\n:0\r\n",
        },
        against: PAIR,
    },
    Line {
        name: "bucket",
        measure: Measure::Speed,
        target: Some(1.0),
        ours: Side {
            name: "CL.BUCKET",
            server: Kind::Module,
            prepare: "CL.BUCKET {a} 1000000 1 1 3600",
            call: "CL.BUCKET {a} 1000000 1 1",
            answer: "*5\r\n:0\r\n",
        },
        against: PAIR,
    },
    Line {
        name: "window",
        measure: Measure::Speed,
        target: Some(1.0),
        ours: Side {
            name: "CL.WINDOW",
            server: Kind::Module,
            prepare: "CL.WINDOW {a} 1000000 3600",
            call: "CL.WINDOW {a} 1000000 3600",
            answer: "*5\r\n:0\r\n",
        },
        against: PAIR,
    },
    Line {
        name: "lease",
        measure: Measure::Speed,
        target: Some(0.6),
        ours: Side {
            name: "CL.ACQUIRE + CL.RELEASE",
            server: Kind::Module,
            prepare: "CL.ACQUIRE {a} 10 3600 first",
            call: "CL.ACQUIRE {a} 10 3600 holder ; CL.RELEASE {a} holder",
            answer: "*5\r\n:0\r\n",
        },
        against: Side {
            name: "ZADD + ZREM",
            server: Kind::Bare,
            prepare: "ZADD {a} 1700000000000000 first",
            call: "ZADD {a} 1700000000000000 holder ; ZREM {a} holder",
            answer: ":1\r\n",
        },
    },
    Line {
        name: "several",
        measure: Measure::Speed,
        target: Some(1.25),
        ours: THREE_LIMITERS,
        against: THREE_CALLS,
    },
    Line {
        name: "several, with quantities",
        measure: Measure::Speed,
        target: None,
        ours: THREE_LIMITERS,
        against: Side {
            name: "3 CL.THROTTLE with a quantity",
            call: "CL.THROTTLE {a} 1000000 1 1 1 ; CL.THROTTLE {b} 1000000 1 1 1 ; CL.THROTTLE {c} 1000000 1 1 1",
            ..THREE_CALLS
        },
    },
    Line {
        name: "several kinds",
        measure: Measure::Speed,
        target: Some(1.0),
        ours: FOUR_KINDS,
        against: Side {
            name: "the 4 single commands",
            server: Kind::Module,
            prepare: FOUR_CALLS,
            call: "CL.THROTTLE {a}:rpm 1000000 1 1 ; CL.THROTTLE {a}:tpm 1000000 1 1 ; \
                   CL.FIXED {a}:month 1000000 MONTH ; CL.ACQUIRE {a}:busy 9 3600 me",
            answer: "*5\r\n:0\r\n",
        },
    },
    Line {
        name: "several kinds, a script",
        measure: Measure::Speed,
        target: Some(6.0),
        ours: FOUR_KINDS,
        against: FOUR_KINDS_SCRIPT,
    },
    Line {
        name: "a chain, a script",
        measure: Measure::Speed,
        target: Some(3.0),
        ours: CHAIN,
        against: CHAIN_SCRIPT,
    },
    Line {
        name: "a hold, a script",
        measure: Measure::Speed,
        target: Some(3.0),
        ours: HOLD,
        against: HOLD_SCRIPT,
    },
    Line {
        name: "fixed by the month",
        measure: Measure::Speed,
        target: Some(0.97),
        ours: Side {
            name: "CL.FIXED MONTH",
            server: Kind::Module,
            prepare: "CL.FIXED {a} 1000000 MONTH",
            call: "CL.FIXED {a} 1000000 MONTH",
            answer: "*5\r\n:0\r\n",
        },
        against: FIXED,
    },
    Line {
        name: "latency",
        measure: Measure::Latency,
        target: Some(1.0 / 1.05),
        ours: admitted(Kind::Module),
        against: set(Kind::Bare),
    },
    Line {
        name: "memory",
        measure: Measure::Memory,
        target: Some(1.0),
        ours: admitted(Kind::Module),
        against: set(Kind::Bare),
    },
    Line {
        name: "admitted, beyond a day",
        measure: Measure::Speed,
        target: None,
        ours: Side {
            name: "CL.THROTTLE, reset in 11 days",
            server: Kind::Module,
            prepare: "CL.THROTTLE {a} 1000000 1 1 1000000",
            call: "CL.THROTTLE {a} 2000000 1 1",
            answer: "*5\r\n:0\r\n",
        },
        against: set(Kind::Bare),
    },
    Line {
        name: "admitted, hot key",
        measure: Measure::Speed,
        target: None,
        ours: Side {
            name: "CL.THROTTLE admitted, hot key",
            server: Kind::Module,
            prepare: "CL.THROTTLE {a} 1000000000 1000 1 3600000",
            // A thousand per second, so that millions of calls stay within the burst and a day.
            call: "CL.THROTTLE {hot} 1000000000 1000 1",
            answer: "*5\r\n:0\r\n",
        },
        against: Side {
            name: "SET key value PX ms, hot key",
            server: Kind::Bare,
            prepare: "SET {a} nineteen-bytes-text PX 3600000",
            call: "SET {hot} nineteen-bytes-text PX 3600000",
            answer: "+OK\r\n",
        },
    },
    Line {
        name: "refused, hot key",
        measure: Measure::Speed,
        target: None,
        ours: refused_hot(Kind::Module),
        against: get("GET key, hot key", "GET {hot}"),
    },
    Line {
        name: "refused, without expiry",
        measure: Measure::Speed,
        target: None,
        ours: refused(Kind::Module),
        against: Side {
            name: "GET key without expiry",
            server: Kind::Bare,
            prepare: "SET {a} nineteen-bytes-text",
            call: "GET {a}",
            answer: "$19\r\n",
        },
    },
    Line {
        name: "refused, CL.TOP on / off",
        measure: Measure::Speed,
        target: None,
        ours: refused(Kind::Module),
        against: refused(Kind::ModuleNoTop),
    },
    Line {
        name: "refused, hot key, CL.TOP on / off",
        measure: Measure::Speed,
        target: None,
        ours: refused_hot(Kind::Module),
        against: refused_hot(Kind::ModuleNoTop),
    },
    Line {
        name: "SET beside the module",
        measure: Measure::Speed,
        target: None,
        ours: Side {
            name: "SET key value PX ms, beside the module",
            server: Kind::Module,
            prepare: "SET {a} nineteen-bytes-text PX 3600000",
            call: "SET {a} nineteen-bytes-text PX 3600000",
            answer: "+OK\r\n",
        },
        against: set(Kind::Bare),
    },
    function(
        "function, admitted",
        admitted(Kind::Module),
        "FCALL cl_throttle",
        "FCALL cl_throttle 1 {a} 1000000 1 1 3600",
        "FCALL cl_throttle 1 {a} 1000000 1 1",
    ),
    function(
        "function, refused",
        refused(Kind::Module),
        "FCALL cl_throttle",
        "FCALL cl_throttle 1 {a} 0 1 3600",
        "FCALL cl_throttle 1 {a} 0 1 3600",
    ),
    function(
        "function, fixed",
        Side {
            name: "CL.FIXED",
            server: Kind::Module,
            prepare: "CL.FIXED {a} 1000000 3600",
            call: "CL.FIXED {a} 1000000 3600",
            answer: "*5\r\n:0\r\n",
        },
        "FCALL cl_fixed",
        "FCALL cl_fixed 1 {a} 1000000 3600",
        "FCALL cl_fixed 1 {a} 1000000 3600",
    ),
    Line {
        name: "function against script, GCRA",
        measure: Measure::Speed,
        target: None,
        ours: GCRA_FUNCTION,
        against: SCRIPT,
    },
    scripted(
        "function against script, counter",
        ["FCALL cl_fixed", "FCALL cl_fixed 1 {a} 1000000 3600", "*5\r\n:0\r\n"],
        ["a counter in Lua, EVALSHA", "EVALSHA {counter} 1 {a} 1 3600", "*2\r\n"],
    ),
    scripted(
        "function against script, sliding window",
        ["FCALL cl_window", "FCALL cl_window 1 {a} 1000000 86400", "*5\r\n:0\r\n"],
        ["2 counters in Lua, EVALSHA", "EVALSHA {halves} 2 {a}:old {a} 1000000 86400 1", ":1\r\n"],
    ),
    scripted(
        "function against script, log",
        ["FCALL cl_log", "FCALL cl_log 1 {a} 1000 3600", "*5\r\n:0\r\n"],
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
    Line {
        name: "function against script, four kinds",
        measure: Measure::Speed,
        target: None,
        ours: Side {
            name: "FCALL cl_mtake of 4 kinds",
            server: Kind::Bare,
            prepare: "FCALL cl_mtake 4 {a}:rpm {a}:tpm {a}:month {a}:busy THROTTLE 1000000 1 1 3600 \
                      THROTTLE 1000000 1 1 3600 FIXED 1000000 MONTH 1000 LEASE 9 3600 me",
            call: "FCALL cl_mtake 4 {a}:rpm {a}:tpm {a}:month {a}:busy THROTTLE 1000000 1 1 1 \
                   THROTTLE 1000000 1 1 1 FIXED 1000000 MONTH 1 LEASE 9 3600 me",
            answer: "*5\r\n*5\r\n:0\r\n",
        },
        against: FOUR_KINDS_SCRIPT,
    },
];
