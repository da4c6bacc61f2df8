//! Random calls: usual, extreme and wrong arguments, and values that are not states of the limiter.

use fastrand::Rng;

/// The number of keys: for each kind of limiter two in each unit. A key is called by its number.
pub const KEYS: usize = 7 * 3 * 2;

/// The number of keys for replies of calls with `ONCE`, which are called by the numbers that follow.
pub const REPLIES: usize = 12;

/// The number of keys for what calls with `HOLD` hold, which are called by the numbers after those.
pub const HOLDS: usize = 3;

/// The kind of limiter that a key is used with, by its number.
const KINDS: [&str; 7] = ["THROTTLE", "FIXED", "FUNNEL", "BUCKET", "WINDOW", "LOG", "LEASE"];

/// What calls are made.
#[derive(Clone, Copy)]
pub struct About {
    /// The positions in `KINDS` of the kinds that are called.
    pub kinds: &'static [usize],
    /// One in how many calls is for several limiters.
    pub several: u32,
    /// One in how many of those has chains, and `HOLD`.
    pub chains: u32,
    pub holds: u32,
}

/// Everything.
pub const ALL: About = About { kinds: &[0, 1, 2, 3, 4, 5, 6], several: 4, chains: 8, holds: 8 };

/// Words that no argument accepts, and words that some do.
const BAD: [&[u8]; 18] = [
    b"",
    b"abc",
    b"-1",
    b"01",
    b"+1",
    b" 1",
    b"1 ",
    b"1.0",
    b"1e3",
    b"0x10",
    b"-0",
    b"--1",
    b"1\0",
    b"\xff",
    b"9223372036854775807",
    b"9223372036854775808",
    b"-9223372036854775808",
    b"18446744073709551616",
];

const OPTIONS: [&str; 22] = [
    "SATURATE", "S", "MS", "US", "UTC", "FROM", "BOGUS", "0", "UNTIL", "PREPAY", "MAXWAIT", "SHADOW", "AGO",
    "LOG", "DAY", "RESET", "ONCE", "ELSE", "SPILL", "TOTAL", "IDLE", "HOLD",
];

/// Changes the expiry of a key by some milliseconds, as `MIGRATE` may.
const MOVE: &str = "local at = redis.call('PEXPIRETIME', KEYS[1])
if at > 0 then redis.call('PEXPIREAT', KEYS[1], at + ARGV[1]) end";

/// The largest number of each unit that 292 years hold, as the module states it in its errors.
const MOST: [(&str, i64); 3] =
    [("S", 9_223_372_036), ("MS", 9_223_372_036_854), ("US", 9_223_372_036_854_775)];

/// A call: its words, and which of them are keys.
pub struct Call {
    pub words: Vec<Vec<u8>>,
    pub keys: Vec<usize>,
}

pub struct Calls {
    rng: Rng,
    about: About,
    /// The limit of each key, without its unit, so that states meet the limit that they were made under.
    limits: Vec<Vec<String>>,
}

/// The unit of a key's limit.
fn unit_of(key: usize) -> usize {
    key / KINDS.len() % 3
}

impl Calls {
    pub fn new(seed: u64, wall: i64, about: About) -> Self {
        let mut this = Self { rng: Rng::with_seed(seed), about, limits: Vec::new() };
        this.limits = (0..KEYS).map(|key| this.limit(key, wall)).collect();
        this
    }

    pub fn rng(&mut self) -> &mut Rng {
        &mut self.rng
    }

    /// One of the keys.
    pub fn key(&mut self) -> usize {
        let row = self.rng.usize(0..KEYS / KINDS.len());
        self.key_in(row)
    }

    /// A key of a row, which has one for each kind.
    fn key_in(&mut self, row: usize) -> usize {
        row * KINDS.len() + self.about.kinds[self.rng.usize(0..self.about.kinds.len())]
    }

    fn one_in(&mut self, of: u32) -> bool {
        self.rng.u32(0..of) == 0
    }

    /// A number of any length up to a limit.
    fn any_length(&mut self, most: i64) -> i64 {
        let bits = self.rng.u32(0..63);
        (self.rng.i64(0..=i64::MAX) >> bits).min(most)
    }

    /// The words of a limit for a key, after the word for its kind and before the quantity or the name.
    fn limit(&mut self, key: usize, wall: i64) -> Vec<String> {
        let unit = unit_of(key);
        match KINDS[key % KINDS.len()] {
            "THROTTLE" | "FUNNEL" | "BUCKET" => {
                let mut words = self.rate(unit);
                if KINDS[key % KINDS.len()] != "THROTTLE" && words[0] == "0" {
                    "1".clone_into(&mut words[0]);
                }
                words
            }
            "FIXED" => self.window(unit, wall),
            "WINDOW" => {
                let limit = if self.one_in(6) { self.any_length(i64::MAX) } else { self.rng.i64(0..30) };
                vec![limit.to_string(), self.period(unit).to_string()]
            }
            "LOG" => {
                let limit = if self.one_in(6) { self.rng.i64(1..2_000_000) } else { self.rng.i64(0..30) };
                vec![limit.to_string(), self.period(unit).to_string()]
            }
            _ => {
                let limit = if self.one_in(6) { self.any_length(i64::MAX) } else { self.rng.i64(0..6) };
                vec![limit.to_string(), self.period(unit).to_string()]
            }
        }
    }

    /// The length of a window or a lease.
    fn period(&mut self, unit: usize) -> i64 {
        let per_second = [1, 1_000, 1_000_000][unit];
        match self.rng.u32(0..8) {
            0 => self.any_length(MOST[unit].1),
            1 => self.rng.i64(1..20_000_000) * per_second,
            2 => self.rng.i64(1..10),
            _ => self.rng.i64(1..=100 * per_second),
        }
    }

    /// `max_burst count period`
    fn rate(&mut self, unit: usize) -> Vec<String> {
        let rng = &mut self.rng;
        let second = [1, 1_000, 1_000_000][unit];
        let (burst, count, period) = match rng.u32(0..8) {
            0..=1 => (rng.i64(0..20), rng.i64(1..50), rng.i64(1..120) * second),
            2 => (rng.i64(0..200), rng.i64(1..1000), rng.i64(1..5000)),
            3 => (rng.i64(0..2000), rng.i64(1..1000), rng.i64(1..1000)),
            4 => (rng.i64(0..30_000_000), rng.i64(1..=1_000_000_000), second),
            5 => (rng.i64(0..1000), rng.i64(1..10), rng.i64(1..100_000_000)),
            6 => (rng.i64(0..1000), rng.i64(1..1000), rng.i64(80_000..90_000) * second),
            _ => {
                let period = self.any_length(MOST[unit].1).max(1);
                (self.any_length(i64::MAX), self.any_length(i64::MAX), period)
            }
        };
        vec![burst.to_string(), count.to_string(), period.to_string()]
    }

    /// `limit window [options]` of a fixed window.
    fn window(&mut self, unit: usize, wall: i64) -> Vec<String> {
        let limit = if self.one_in(6) { self.any_length(i64::MAX) } else { self.rng.i64(1..30) };
        let most = MOST[unit].1;
        let per_second = [1, 1_000, 1_000_000][unit];
        let mut words = vec![limit.to_string()];
        match self.rng.u32(0..12) {
            10..=11 => {
                words.push(self.in_any_case("TOTAL"));
                if self.rng.bool() {
                    words.extend([self.in_any_case("IDLE"), self.period(unit).to_string()]);
                }
            }
            0..=3 => words.push(self.rng.i64(1..=per_second * 100).to_string()),
            4 => words.push(self.any_length(most).to_string()),
            5 => {
                let ahead = self.any_length(10_000_000_000_000_000) - 1000;
                words.push(self.in_any_case("UNTIL"));
                words.push((wall.saturating_add(ahead) / (1_000_000_000 / per_second)).max(0).to_string());
            }
            6 if self.one_in(3) => words.extend(["UNTIL".to_owned(), self.any_length(most).to_string()]),
            _ => {
                let cycle = ["HOUR", "DAY", "WEEK", "MONTH", "MONTH", "YEAR"][self.rng.usize(0..6)];
                words.push(self.in_any_case(cycle));
                if self.rng.bool() {
                    words.extend([self.in_any_case("UTC"), self.rng.i64(-850..=850).to_string()]);
                }
                if cycle == "WEEK" && self.rng.bool() {
                    words.extend(["FROM".to_owned(), self.rng.i64(1..=8).to_string()]);
                }
                if cycle == "MONTH" && self.rng.bool() {
                    words.extend(["FROM".to_owned(), self.rng.i64(1..=32).to_string()]);
                }
            }
        }
        words
    }

    fn in_any_case(&mut self, word: &str) -> String {
        if self.rng.bool() { word.to_owned() } else { word.to_lowercase() }
    }

    /// A quantity for a limit of which so much can be taken at once.
    fn quantity(&mut self, limit: i64) -> i64 {
        match self.rng.u32(0..12) {
            0..=3 => self.rng.i64(1..4),
            4..=5 => 0,
            6..=8 => limit.saturating_add(self.rng.i64(-2..=2)).max(0),
            9 => self.rng.i64(0..=limit.max(0)),
            10 => limit / 3,
            _ => self.any_length(i64::MAX),
        }
    }

    /// The most that a key's limit lets through at once.
    fn most(&self, key: usize) -> i64 {
        let most = self.limits[key][0].parse::<i64>().unwrap_or(0);
        if key.is_multiple_of(KINDS.len()) { most.saturating_add(1) } else { most }
    }

    /// The name of a holder: one of a few, or one that an entry of a log could have.
    fn holder(&mut self, key: usize, wall: i64) -> String {
        if self.one_in(6) {
            let lease = self.limits[key].last().unwrap().parse::<i64>().unwrap_or(0);
            let micros = lease.saturating_mul([1_000_000, 1_000, 1][unit_of(key)]);
            return format!("{}-0", (wall / 1_000).saturating_add(micros));
        }
        ["a", "a", "b", "b", "c", "d", "", "1-0"][self.rng.usize(0..8)].to_owned()
    }

    /// A call, by the kinds that its keys are used with; now and then by another.
    pub fn call(&mut self, key: usize, wall: i64) -> Call {
        if self.one_in(60) {
            self.limits[key] = self.limit(key, wall);
        }
        let mut call =
            if self.one_in(self.about.several) { self.several(key, wall) } else { self.one(key, wall) };
        if self.one_in(14) {
            self.damage(&mut call);
        }
        call
    }

    fn one(&mut self, key: usize, wall: i64) -> Call {
        // Sometimes with the limit of another key, which may be of another kind.
        let other = if self.one_in(25) { self.rng.usize(0..KEYS) } else { key };
        let kind = KINDS[other % KINDS.len()];
        let limit = self.limits[other].clone();
        let quantity = self.quantity(self.most(other)).to_string();
        let mut words = Vec::new();
        let mut options = Vec::new();
        let name = match kind {
            "THROTTLE" => {
                let name = ["THROTTLE", "THROTTLE", "PEEK", "REFUND", "CHARGE", "RESERVE", "PAUSE"]
                    [self.rng.usize(0..7)];
                words.extend(limit);
                match name {
                    "PAUSE" => {
                        let wait = self.period(unit_of(other)) - 1;
                        words.push(wait.to_string());
                    }
                    "RESERVE" => {
                        if self.rng.bool() {
                            let wait = self.period(unit_of(other)) - 1;
                            options.push(vec!["MAXWAIT".to_owned(), wait.to_string()]);
                        }
                        if self.one_in(3) {
                            options.push(vec!["PREPAY".to_owned()]);
                        }
                    }
                    _ => {}
                }
                name
            }
            "FIXED" => {
                let positional = match limit[1].to_uppercase().as_str() {
                    "UNTIL" => 3,
                    "TOTAL" => limit.len(),
                    _ => 2,
                };
                words.extend_from_slice(&limit[..positional]);
                options.extend(limit[positional..].chunks(2).map(<[String]>::to_vec));
                kind
            }
            "LEASE" => {
                let holder = self.holder(other, wall);
                let name = ["ACQUIRE", "ACQUIRE", "RENEW", "RELEASE"][self.rng.usize(0..4)];
                words.extend_from_slice(
                    &limit[["ACQUIRE", "RENEW", "RELEASE"].iter().position(|&n| n == name).unwrap()..],
                );
                words.push(holder);
                name
            }
            _ => {
                words.extend(limit);
                kind
            }
        };
        let counts = !matches!(name, "PAUSE" | "ACQUIRE" | "RENEW" | "RELEASE");
        if counts && !self.one_in(3) {
            words.push(quantity);
        }
        if counts && !matches!(name, "PEEK" | "REFUND" | "CHARGE" | "RESERVE") && self.one_in(3) {
            options.push(vec!["SATURATE".to_owned()]);
        }
        if name != "RELEASE" {
            self.unit(&mut options, unit_of(other));
        }
        self.rng.shuffle(&mut options);
        for mut option in options {
            option[0] = self.in_any_case(&option[0].to_uppercase());
            words.extend(option);
        }
        let mut all = vec![format!("CL.{name}"), key.to_string()];
        all.append(&mut words);
        Call { words: all.into_iter().map(String::into_bytes).collect(), keys: vec![1] }
    }

    fn unit(&mut self, options: &mut Vec<Vec<String>>, unit: usize) {
        if unit != 0 || self.rng.bool() {
            options.push(vec![MOST[unit].0.to_owned()]);
        }
    }

    fn several(&mut self, key: usize, wall: i64) -> Call {
        let name = ["MTAKE", "MTAKE", "MPEEK", "MSETTLE"][self.rng.usize(0..4)];
        let unit = unit_of(key);
        let (mut words, mut keys) = (vec![format!("CL.{name}").into_bytes()], Vec::new());
        let add = |words: &mut Vec<Vec<u8>>, word: String| words.push(word.into_bytes());
        let holds = self.one_in(self.about.holds);
        let has_age = name == "MSETTLE" && if holds { self.one_in(40) } else { self.rng.bool() };
        let has_chains =
            if name == "MSETTLE" && !holds { self.one_in(20) } else { self.one_in(self.about.chains) };
        let renews = holds && name == "MTAKE" && self.one_in(8);
        let mut before: Option<String> = None;
        for n in 0..[1, 2, 2, 3, 4, 7][self.rng.usize(0..6)] {
            // The others have the same unit.
            let row = self.rng.usize(0..2) * 3 + unit;
            let key = if n == 0 { key } else { self.key_in(row) };
            let named = keys.iter().any(|&at: &usize| words[at] == key.to_string().as_bytes());
            if named && !self.one_in(40) {
                continue;
            }
            let join = ["", "ELSE", "SPILL"][if has_chains && n > 0 { self.rng.usize(0..3) } else { 0 }];
            if !join.is_empty() && !keys.is_empty() {
                let join = self.in_any_case(join);
                add(&mut words, join);
            }
            keys.push(words.len());
            add(&mut words, key.to_string());
            if if has_chains {
                self.one_in(40)
            } else if name == "MTAKE" {
                self.one_in(4)
            } else {
                self.one_in(60)
            } {
                let shadow = self.in_any_case("SHADOW");
                add(&mut words, shadow);
            }
            let kind = KINDS[key % KINDS.len()];
            if if has_age { self.one_in(2) } else { self.one_in(80) } {
                let reset = self.in_any_case("RESET");
                add(&mut words, reset);
                let reset_after = if self.one_in(3) { -1 } else { self.period(unit) - 1 };
                add(&mut words, reset_after.to_string());
            }
            let kind_word = self.in_any_case(kind);
            add(&mut words, kind_word);
            let mut limit = self.limits[key].clone();
            if kind == "FIXED" && limit.len() == 6 && self.rng.bool() {
                let (utc, from) = limit.split_at_mut(4);
                utc[2..].swap_with_slice(from);
            }
            if kind == "LEASE" && name == "MSETTLE" && self.rng.bool() {
                "0".clone_into(&mut limit[1]);
            }
            for word in limit {
                add(&mut words, word);
            }
            let last = if join == "SPILL"
                && let Some(quantity) = before.clone().filter(|_| !self.one_in(20))
                && kind != "LEASE"
            {
                quantity
            } else if kind == "LEASE" {
                self.holder(key, wall)
            } else if renews {
                "0".to_owned()
            } else {
                let quantity = self.quantity(self.most(key));
                let quantity = if kind == "LOG" && quantity > 300 { quantity % 20_000 } else { quantity };
                if name == "MSETTLE" && if holds { self.one_in(40) } else { self.rng.bool() } {
                    (-quantity).to_string()
                } else {
                    quantity.to_string()
                }
            };
            before = Some(last.clone()).filter(|_| kind != "LEASE");
            add(&mut words, last);
        }
        let options = self.options(name, unit, has_age, holds);
        for word in options.into_iter().flatten() {
            let is_option = |last: &Vec<u8>| {
                ["ONCE", "HOLD"].iter().any(|option| last.eq_ignore_ascii_case(option.as_bytes()))
            };
            if words.last().is_some_and(is_option) {
                keys.push(words.len());
            }
            let word = self.in_any_case(&word.to_uppercase());
            add(&mut words, word);
        }
        Call { words, keys }
    }

    /// The options of a call of several limiters, in any order.
    fn options(&mut self, name: &str, unit: usize, has_age: bool, holds: bool) -> Vec<Vec<String>> {
        let mut options = Vec::new();
        if has_age {
            let age = if self.rng.bool() { self.rng.i64(0..3) } else { self.period(unit) - 1 };
            options.push(vec!["AGO".to_owned(), age.to_string()]);
        }
        if name != "MPEEK" && self.one_in(4) {
            // One of few keys, so that many calls find a reply, and one that a limiter has now and then.
            let key =
                if self.one_in(20) { self.rng.usize(0..KEYS) } else { KEYS + self.rng.usize(0..REPLIES) };
            let period = if self.one_in(6) { self.period(unit) } else { self.rng.i64(1..100) };
            options.push(vec!["ONCE".to_owned(), key.to_string(), period.to_string()]);
        }
        if holds {
            let key = if self.one_in(40) {
                self.rng.usize(0..KEYS)
            } else {
                KEYS + REPLIES + self.rng.usize(0..HOLDS)
            };
            let mut hold = vec!["HOLD".to_owned(), key.to_string()];
            if name == "MSETTLE" || !self.one_in(4) {
                if name != "MSETTLE" {
                    // Longer than most windows, so that units are held of windows that have ended.
                    let period = match self.rng.u32(0..6) {
                        0..=1 => self.rng.i64(1..10),
                        2 => self.period(unit),
                        _ => self.rng.i64(1..=10_000 * [1, 1_000, 1_000_000][unit]),
                    };
                    hold.push(period.to_string());
                }
                hold.push(["0", "1", "owner", "the owner"][self.rng.usize(0..4)].to_owned());
            }
            options.push(hold);
        }
        self.unit(&mut options, unit);
        self.rng.shuffle(&mut options);
        options
    }

    /// Replaces, removes or inserts a word after the first key.
    fn damage(&mut self, call: &mut Call) {
        let words = &mut call.words;
        let i = self.rng.usize(2..=words.len());
        let word = match self.rng.u32(0..3) {
            0 => OPTIONS[self.rng.usize(0..OPTIONS.len())].as_bytes(),
            _ => BAD[self.rng.usize(0..BAD.len())],
        };
        if call.keys.contains(&i) {
            return;
        }
        match self.rng.u32(0..3) {
            0 if i < words.len() => {
                words.remove(i);
                call.keys.iter_mut().filter(|at| **at > i).for_each(|at| *at -= 1);
            }
            1 if i < words.len() => words[i] = word.to_vec(),
            _ => {
                words.insert(i, word.to_vec());
                call.keys.iter_mut().filter(|at| **at >= i).for_each(|at| *at += 1);
            }
        }
    }

    /// A reply as `ONCE` stores it, or nearly.
    fn stored_reply(&mut self) -> Vec<String> {
        let mut integers = Vec::new();
        for _ in 0..self.rng.usize(2..4) {
            let limit = self.any_length(i64::MAX).to_string();
            integers.extend(["0", limit.as_str(), "3", "-1", "60"].map(str::to_owned));
        }
        if self.one_in(3) {
            let at = self.rng.usize(0..integers.len());
            let odd = ["", "-1", "0", "2", "9223372036854775808"][self.rng.usize(0..5)];
            odd.clone_into(&mut integers[at]);
        }
        vec!["SET".to_owned(), integers.join(" ")]
    }

    /// Something that another program does to the key.
    pub fn interference(&mut self, key: usize, wall: i64) -> Vec<String> {
        let mut words = self.words_of_interference(key, wall);
        let at = if words[0] == "EVAL" { 3 } else { 1 };
        words.insert(at, key.to_string());
        words
    }

    /// The command without the key.
    fn words_of_interference(&mut self, key: usize, wall: i64) -> Vec<String> {
        let text = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
        let soon = (wall / 1_000_000 + self.rng.i64(1..100_000)).to_string();
        match self.rng.u32(0..24) {
            0..=7 => text(&["DEL"]),
            8 => text(&["PERSIST"]),
            9 => text(&["LPUSH", "x"]),
            10 => text(&["PEXPIREAT", &soon]),
            11..=12 => {
                let by = self.rng.i64(-1_001..=1_001) / [1, 100][self.rng.usize(0..2)];
                text(&["EVAL", MOVE, "1", &by.to_string()])
            }
            _ if key >= KEYS + REPLIES => {
                text([&["ZADD", "0", "zebra"][..], &["ZREM", "parts"]][self.rng.usize(0..2)])
            }
            _ if key >= KEYS => self.stored_reply(),
            _ => match KINDS[key % KINDS.len()] {
                "FUNNEL" => self.hash(&["left_quota", "leaking_ts"], wall),
                "BUCKET" => self.hash(&["tokens", "timestamp"], wall),
                "WINDOW" => self.hash(&["current", "window", "previous"], wall),
                "LOG" | "LEASE" => self.sorted_set(wall),
                _ => self.string(wall),
            },
        }
    }

    /// Another field of a hash: an instant or a number.
    fn hash(&mut self, fields: &[&str], wall: i64) -> Vec<String> {
        let field = fields[self.rng.usize(0..fields.len())].to_owned();
        let near = self.rng.i64(-5_000_000_000..5_000_000_000);
        let value = match self.rng.u32(0..8) {
            0 => return vec!["HDEL".to_owned(), field],
            1 => ["", "hello", "-5", "007", "1.5", "9223372036854775808", "-9223372036854775808"]
                [self.rng.usize(0..7)]
            .to_owned(),
            2 => self.any_length(i64::MAX).to_string(),
            3..=4 => self.rng.i64(0..40).to_string(),
            _ => wall.saturating_add(near).max(0).to_string(),
        };
        vec!["HSET".to_owned(), field, value]
    }

    /// Another entry of a sorted set.
    fn sorted_set(&mut self, wall: i64) -> Vec<String> {
        let now = wall / 1_000;
        let score = match self.rng.u32(0..10) {
            0 => ["inf", "-inf", "1.5", "-1", "9007199254740992", "0"][self.rng.usize(0..6)].to_owned(),
            1 => self.any_length(1 << 53).to_string(),
            2 => now.saturating_add(self.rng.i64(-400_000_000_000_000..400_000_000_000_000)).to_string(),
            3..=5 => now.to_string(),
            _ => now.saturating_add(self.rng.i64(-200_000_000..200_000_000)).to_string(),
        };
        let k = self.rng.usize(0..4);
        let name = if self.rng.bool() { format!("{now}-{k}") } else { ["a", "b", "x", "-1"][k].to_owned() };
        if self.one_in(4) { vec!["ZREM".to_owned(), name] } else { vec!["ZADD".to_owned(), score, name] }
    }

    /// Another string.
    fn string(&mut self, wall: i64) -> Vec<String> {
        const YEAR: i64 = 365 * 86_400 * 1_000_000_000;
        const DAY: i64 = 86_400 * 1_000_000_000;
        let near = self.rng.i64(-1_000_001..=1_000_001);
        let by = [-1, 0, 1, near][self.rng.usize(0..4)];
        let year = wall.saturating_add([YEAR, -YEAR][self.rng.usize(0..2)]).saturating_add(by).max(0);
        let soon = wall / 1_000_000 + self.rng.i64(1..100_000);
        let at = |millis: i64| ["PXAT".to_owned(), millis.max(1).to_string()];
        let any = self.any_length(i64::MAX);
        let set = |value: &str| vec!["SET".to_owned(), value.to_owned()];
        match self.rng.u32(0..8) {
            0 => set(["", "hello", "-5", "007", "1.5", "9223372036854775808"][self.rng.usize(0..6)]),
            1 => set(&year.to_string()),
            // Far from the clock, and a day from the expiry.
            2 => {
                let expiry = wall.saturating_add(YEAR + 2 * DAY) / 1_000_000;
                let tat = expiry.saturating_mul(1_000_000).saturating_add([DAY, -DAY][self.rng.usize(0..2)]);
                [set(&tat.saturating_add(by).to_string()), at(expiry).to_vec()].concat()
            }
            // A count within a minute of the expiry.
            3 => {
                let minute = [60_000_000_000, -60_000_000_000][self.rng.usize(0..2)];
                let count = (soon * 1_000_000).saturating_add(minute).saturating_add(by).max(0);
                [set(&count.to_string()), at(soon).to_vec()].concat()
            }
            4 => [set(&any.to_string()), at(soon).to_vec()].concat(),
            5 => [set(&self.rng.i64(0..40).to_string()), at(soon).to_vec()].concat(),
            // Later than any state.
            6 => [set(&any.to_string()), at(9_223_372_036_854 + self.rng.i64(-1..1000)).to_vec()].concat(),
            _ => set(&wall.saturating_add(self.rng.i64(0..1 << 55)).to_string()),
        }
    }

    /// How far the clock moves on, in nanoseconds: whole microseconds, the resolution of the functions'.
    pub fn pause(&mut self) -> i64 {
        let rng = &mut self.rng;
        let micros = match rng.u32(0..100) {
            0..=49 => 0,
            50..=64 => rng.i64(0..10),
            65..=79 => rng.i64(0..5_000),
            80..=94 => rng.i64(0..5_000_000),
            95..=97 => rng.i64(0..100_000_000),
            98 => rng.i64(0..4_000_000_000),
            _ => rng.i64(0..2_000_000_000_000),
        };
        micros * 1000
    }
}
