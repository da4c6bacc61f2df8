//! The tables of commands and of kinds of limiters: the data for the tests of all commands.

/// A command of the module.
pub struct Command {
    /// Its name in upper case.
    pub name: &'static str,
    /// Its page.
    pub page: &'static str,
    /// Its flags. `blocking` is known to servers since Redis 7.0.
    pub flags: &'static [&'static str],
    /// Its flags for its keys, from `COMMAND GETKEYSANDFLAGS`; empty for a command without keys.
    pub uses: &'static [&'static str],
    /// A call that is admitted on new keys: `KEY` is its key, `FIRST` a key before that, `ID` the name of a
    /// holder.
    pub call: &'static str,
    /// Calls that are counted as admitted, refused and wrong in this order, if `held` is a lease of `me` and
    /// `debt` is a GCRA limiter in debt.
    pub counted: [&'static str; 3],
    /// Whether its refusals are in the record of CL.TOP.
    pub records: bool,
    /// The commands of the server that the effects of `call` need.
    pub effects: &'static [&'static str],
}

impl Command {
    /// Its name in lower case, as in the server's table of commands.
    pub fn lower(&self) -> String {
        self.name.to_lowercase()
    }

    /// The call on this key.
    pub fn on(&self, key: &str) -> String {
        self.call.replace("FIRST", "first").replace("KEY", key).replace("ID", "me")
    }

    pub fn has(&self, flag: &str) -> bool {
        self.flags.contains(&flag)
    }

    /// Whether the server refuses it when memory is short.
    pub fn takes(&self) -> bool {
        self.has("denyoom")
    }

    /// Whether it is a call for several limiters.
    pub fn has_many(&self) -> bool {
        self.call.contains("FIRST")
    }

    /// Whether it has keys: all commands except CL.TOP.
    pub fn has_keys(&self) -> bool {
        !self.uses.is_empty()
    }
}

/// A kind of limiter: one with a state of its own.
pub struct Kind {
    /// Its word in a call for several.
    pub word: &'static str,
    /// The command for one.
    command: &'static str,
    /// The numbers of a limit of `L` in a period `P`, `B` being `L` minus one.
    limit: &'static str,
}

impl Kind {
    /// Whether its calls have a quantity, not a holder.
    pub fn has_quantity(&self) -> bool {
        self.word != "LEASE"
    }

    /// This quantity or this holder, whichever its calls have.
    pub fn asked<'a>(&self, quantity: &'a str, holder: &'a str) -> &'a str {
        if self.has_quantity() { quantity } else { holder }
    }

    /// The words of a limiter behind its key in a call for several limiters.
    pub fn limiter(&self, limit: i64, period: i64, asked: &str) -> String {
        format!("{} {} {asked}", self.word, self.numbers(limit, period))
    }

    /// A call of the command for one.
    pub fn call(&self, key: &str, limit: i64, period: i64, asked: &str) -> String {
        format!("{} {key} {} {asked}", self.command, self.numbers(limit, period))
    }

    fn numbers(&self, limit: i64, period: i64) -> String {
        let numbers = self.limit.replace('B', &(limit - 1).to_string()).replace('L', &limit.to_string());
        numbers.replace('P', &period.to_string())
    }
}

/// The kinds; the one without quantities is the last.
pub const KINDS: [Kind; 7] = [
    Kind { word: "THROTTLE", command: "CL.THROTTLE", limit: "B L P" },
    Kind { word: "FUNNEL", command: "CL.FUNNEL", limit: "L L P" },
    Kind { word: "BUCKET", command: "CL.BUCKET", limit: "L L P" },
    Kind { word: "FIXED", command: "CL.FIXED", limit: "L P" },
    // A thousand times as long, because its windows begin on the clock, whenever a test does.
    Kind { word: "WINDOW", command: "CL.WINDOW", limit: "L P000" },
    Kind { word: "LOG", command: "CL.LOG", limit: "L P" },
    Kind { word: "LEASE", command: "CL.ACQUIRE", limit: "L P" },
];

const READ: &[&str] = &["RO", "access"];
const TAKE: &[&str] = &["RW", "access", "update"];

const STRING: &[&str] = &["SET"];
const HASH: &[&str] = &["HSET", "PEXPIREAT"];
const SORTED_SET: &[&str] = &["ZADD", "ZREM", "ZREMRANGEBYRANK", "PEXPIREAT"];

/// The pages as they were when this was built: the tests also run where there is no checkout.
macro_rules! page {
    ($name:literal) => {
        include_str!(concat!("../../docs/commands/", $name, ".md"))
    };
}

/// The values that most commands have in common.
const SINGLE: Command = Command {
    name: "",
    page: "",
    flags: &["write", "denyoom", "fast"],
    uses: TAKE,
    call: "",
    counted: [""; 3],
    records: true,
    effects: STRING,
};

/// All commands, those without keys last.
pub const COMMANDS: &[Command] = &[
    Command {
        name: "CL.THROTTLE",
        page: page!("cl.throttle"),
        call: "CL.THROTTLE KEY 15 30 3600",
        counted: ["CL.THROTTLE k 0 1 60", "CL.THROTTLE k 0 1 60", "CL.THROTTLE k 0 1 x"],
        ..SINGLE
    },
    Command {
        name: "CL.PEEK",
        page: page!("cl.peek"),
        flags: &["readonly", "fast"],
        uses: READ,
        call: "CL.PEEK KEY 15 30 3600",
        counted: ["CL.PEEK k 0 1 60", "CL.PEEK k 0 1 60 2", "CL.PEEK k 0 1 x"],
        records: false,
        effects: &[],
    },
    Command {
        name: "CL.REFUND",
        page: page!("cl.refund"),
        flags: &["write", "fast"],
        uses: TAKE,
        call: "CL.REFUND KEY 15 30 3600",
        counted: ["CL.REFUND k 0 1 60 0", "CL.REFUND debt 0 1 60 1", "CL.REFUND k 0 1 x"],
        records: false,
        effects: &[],
    },
    Command {
        name: "CL.CHARGE",
        page: page!("cl.charge"),
        call: "CL.CHARGE KEY 15 30 3600",
        counted: ["CL.CHARGE k 0 1 60", "CL.CHARGE k 0 1 60", "CL.CHARGE k 0 1 x"],
        records: false,
        ..SINGLE
    },
    Command {
        name: "CL.RESERVE",
        page: page!("cl.reserve"),
        call: "CL.RESERVE KEY 15 30 3600",
        counted: ["CL.RESERVE k 0 1 60", "CL.RESERVE k 0 1 60 1 MAXWAIT 1", "CL.RESERVE k 0 1 x"],
        ..SINGLE
    },
    Command {
        name: "CL.BTHROTTLE",
        page: page!("cl.bthrottle"),
        flags: &["write", "denyoom", "blocking"],
        call: "CL.BTHROTTLE KEY 15 30 3600 1 0.001",
        counted: ["CL.BTHROTTLE k 0 1 60 1 0", "CL.BTHROTTLE k 0 1 60 1 0.1", "CL.BTHROTTLE k 0 1 60 1 x"],
        ..SINGLE
    },
    Command {
        name: "CL.PAUSE",
        page: page!("cl.pause"),
        call: "CL.PAUSE KEY 15 30 3600 1",
        counted: ["CL.PAUSE k 1 1 60 0", "CL.PAUSE k 1 1 60 3600", "CL.PAUSE k 1 1 60 x"],
        records: false,
        ..SINGLE
    },
    Command {
        name: "CL.MTAKE",
        page: page!("cl.mtake"),
        flags: &["write", "denyoom"],
        call: "CL.MTAKE FIRST THROTTLE 15 30 3600 1 KEY THROTTLE 15 30 3600 1",
        counted: [
            "CL.MTAKE k THROTTLE 0 1 60 1",
            "CL.MTAKE k THROTTLE 0 1 60 1 l THROTTLE 0 1 60 1",
            "CL.MTAKE k THROTTLE 0 1 60 1 k THROTTLE 0 1 60 1",
        ],
        ..SINGLE
    },
    Command {
        name: "CL.BMTAKE",
        page: page!("cl.bmtake"),
        flags: &["write", "denyoom", "blocking"],
        call: "CL.BMTAKE FIRST THROTTLE 15 30 3600 1 KEY THROTTLE 15 30 3600 1 TIMEOUT 0.001 FLOW x",
        counted: [
            "CL.BMTAKE k THROTTLE 0 1 60 1",
            "CL.BMTAKE k THROTTLE 0 1 60 1 TIMEOUT 0.1",
            "CL.BMTAKE k THROTTLE 0 1 60 x",
        ],
        ..SINGLE
    },
    Command {
        name: "CL.MPEEK",
        page: page!("cl.mpeek"),
        flags: &["readonly"],
        uses: READ,
        call: "CL.MPEEK FIRST THROTTLE 15 30 3600 1 KEY THROTTLE 15 30 3600 1",
        counted: [
            "CL.MPEEK k THROTTLE 0 1 60 1",
            "CL.MPEEK k THROTTLE 0 1 60 2",
            "CL.MPEEK k THROTTLE 0 1 60 x",
        ],
        records: false,
        effects: &[],
    },
    Command {
        name: "CL.MSETTLE",
        page: page!("cl.msettle"),
        flags: &["write"],
        uses: TAKE,
        call: "CL.MSETTLE FIRST THROTTLE 15 30 3600 1 KEY THROTTLE 15 30 3600 -1",
        counted: [
            "CL.MSETTLE k THROTTLE 0 1 60 0",
            "CL.MSETTLE debt THROTTLE 0 1 60 -1",
            "CL.MSETTLE k THROTTLE 0 1 60 x",
        ],
        records: false,
        effects: &[],
    },
    Command {
        name: "CL.FUNNEL",
        page: page!("cl.funnel"),
        call: "CL.FUNNEL KEY 15 30 3600",
        counted: ["CL.FUNNEL k 1 1 60", "CL.FUNNEL k 1 1 60", "CL.FUNNEL k 1 1 x"],
        effects: HASH,
        ..SINGLE
    },
    Command {
        name: "CL.BUCKET",
        page: page!("cl.bucket"),
        call: "CL.BUCKET KEY 15 30 3600",
        counted: ["CL.BUCKET k 1 1 60", "CL.BUCKET k 1 1 60", "CL.BUCKET k 1 1 x"],
        effects: HASH,
        ..SINGLE
    },
    Command {
        name: "CL.FIXED",
        page: page!("cl.fixed"),
        call: "CL.FIXED KEY 15 3600",
        counted: ["CL.FIXED k 1 60", "CL.FIXED k 1 60", "CL.FIXED k 1 x"],
        ..SINGLE
    },
    Command {
        name: "CL.WINDOW",
        page: page!("cl.window"),
        call: "CL.WINDOW KEY 15 3600",
        counted: ["CL.WINDOW k 1 60", "CL.WINDOW k 1 60 1", "CL.WINDOW k 1 x"],
        effects: HASH,
        ..SINGLE
    },
    Command {
        name: "CL.LOG",
        page: page!("cl.log"),
        flags: &["write", "denyoom"],
        call: "CL.LOG KEY 15 3600",
        counted: ["CL.LOG k 1 60", "CL.LOG k 1 60", "CL.LOG k 1 x"],
        effects: SORTED_SET,
        ..SINGLE
    },
    Command {
        name: "CL.ACQUIRE",
        page: page!("cl.acquire"),
        flags: &["write", "denyoom"],
        call: "CL.ACQUIRE KEY 15 3600 ID",
        counted: ["CL.ACQUIRE k 1 60 me", "CL.ACQUIRE k 1 60 you", "CL.ACQUIRE k 1 x me"],
        effects: SORTED_SET,
        ..SINGLE
    },
    Command {
        name: "CL.RENEW",
        page: page!("cl.renew"),
        flags: &["write"],
        uses: &["RW", "update"],
        call: "CL.RENEW KEY 3600 ID",
        counted: ["CL.RENEW held 60 me", "CL.RENEW held 60 you", "CL.RENEW held x me"],
        records: false,
        effects: &[],
    },
    Command {
        name: "CL.RELEASE",
        page: page!("cl.release"),
        flags: &["write"],
        uses: &["RW", "delete"],
        call: "CL.RELEASE KEY ID",
        counted: ["CL.RELEASE held me", "CL.RELEASE held me", "CL.RELEASE held me now"],
        records: false,
        effects: &[],
    },
    Command {
        name: "CL.TOP",
        page: page!("cl.top"),
        flags: &["admin"],
        uses: &[],
        call: "CL.TOP",
        counted: ["CL.TOP", "", "CL.TOP 0"],
        records: false,
        effects: &[],
    },
];
