//! Writes a history from a seed. The writer reads the state of the simulated server, so that it can choose
//! instants just before or after an event.

use std::collections::VecDeque;
use std::rc::Rc;

use fastrand::Rng;

use crate::clock;
use crate::contract::Call;
use crate::history::{Settings, Step, words};
use crate::world::{MILLI, Words, with};

/// What a history is about: the weights of what happens, and how many calls for several have a chain, and how
/// many a hold, in percent. The weights are those of
///
/// - calls for one limiter, for several, and calls that wait by `CL.BTHROTTLE` and by `CL.BMTAKE`;
/// - time that passes, a server that stands still, clocks that are set;
/// - clients that leave, the server's own commands, transactions and scripts;
/// - replicas, roles, and pauses, memory, permissions and slots;
/// - another module that acts.
type Theme = ([u32; 14], u8);

const THEMES: [Theme; 11] = [
    // Replies and states.
    ([40, 30, 0, 0, 25, 0, 0, 0, 1, 2, 0, 0, 0, 0], 3),
    // Queues of CL.BTHROTTLE.
    ([15, 3, 30, 0, 35, 3, 0, 8, 2, 0, 0, 0, 0, 0], 3),
    // Queues of flows.
    ([8, 14, 2, 35, 35, 2, 0, 8, 4, 0, 0, 0, 0, 0], 3),
    // Everything.
    ([20, 15, 12, 18, 30, 3, 0, 8, 8, 4, 3, 1, 3, 0], 8),
    // Another module acts.
    ([20, 30, 6, 8, 20, 0, 0, 3, 6, 0, 0, 0, 0, 12], 30),
    // The clock is set.
    ([25, 20, 14, 14, 20, 4, 8, 3, 4, 0, 0, 0, 0, 0], 3),
    // Replicas come and go.
    ([25, 15, 6, 6, 20, 0, 0, 0, 6, 4, 8, 3, 0, 0], 3),
    // Pauses, memory, permissions, slots.
    ([15, 10, 15, 20, 30, 0, 0, 5, 3, 0, 0, 1, 8, 0], 3),
    // Chains and holds.
    ([10, 60, 0, 0, 25, 0, 0, 0, 2, 2, 0, 0, 0, 0], 45),
    // The same, with clients that wait.
    ([6, 25, 0, 30, 35, 2, 0, 5, 2, 0, 1, 0, 0, 0], 35),
    // The same, with queues of CL.BTHROTTLE.
    ([10, 30, 25, 0, 35, 2, 0, 5, 2, 0, 0, 0, 0, 0], 45),
];

/// Histories that a real server can be made to follow, without clients that wait and with them.
const REAL_THEMES: [Theme; 2] = [
    ([40, 30, 0, 0, 25, 0, 0, 0, 5, 4, 0, 0, 0, 0], 20),
    ([20, 15, 12, 20, 30, 0, 0, 8, 8, 4, 0, 1, 0, 0], 8),
];

/// The places of some weights.
const PASS: usize = 4;
const CLOCKS: usize = 6;
const NATIVE: usize = 8;
const RIGHTS: usize = 12;
const OTHERS: usize = 13;

const KINDS: [&str; 7] = ["THROTTLE", "FUNNEL", "BUCKET", "FIXED", "WINDOW", "LOG", "LEASE"];

/// A key and its limit.
#[derive(Clone, Debug)]
struct Key {
    name: String,
    kind: &'static str,
    /// The words of the limit, without the quantity.
    limit: String,
    most: i64,
}

/// Limiters in order, each with the word that joins it to the one before it, if one does.
type Limiters = Vec<(Key, &'static str)>;

/// What the quantities of a call for several are.
#[derive(Clone, Copy, PartialEq)]
enum Quantities {
    Taken,
    /// 0, to renew what is held.
    Renewed,
    /// The difference that is settled, with `AGO` or without.
    Settled(bool),
    /// What was used of what was held.
    Used,
}

/// Writes a history.
#[derive(Debug)]
pub struct Writer {
    random: Rng,
    theme: Theme,
    keys: Vec<Key>,
    clients: u64,
    /// The next steps.
    planned: Vec<Step>,
    cluster: bool,
    /// What the names of keys begin with: in a cluster, all of them are in one slot.
    tag: &'static str,
    once: u64,
    /// Whether clients select databases.
    selects: bool,
    /// The unit of time of the calls, and how many of it are a millisecond.
    unit: (&'static str, i64),
    /// Whether the clock stands still between steps, so that a real server has the same time for them.
    stops: bool,
    /// What histories differ in, in percent: calls with `ONCE`, calls of flows for one limiter only, and
    /// large quantities.
    repeated: u8,
    narrow: u8,
    large: u8,
    /// In percent, the calls of several that begin with the first key.
    first: u8,
    /// Whether calls have more limiters than the record of an owner of holds.
    is_wide: bool,
    /// What owners have taken lately, each with the key of holds and the owner.
    held: VecDeque<(Limiters, String)>,
    /// For how many steps no time passes and most calls are about one client, and which.
    burst: (u8, u64),
}

/// Seeds from here on are histories that a real server can be made to follow on clocks that stand still.
pub const REAL: u64 = 1 << 40;

fn theme(seed: u64) -> (Rng, Theme, usize) {
    let mut random = Rng::with_seed(seed);
    if seed >= REAL {
        let waits = seed % 2;
        return (random, REAL_THEMES[waits as usize], if waits == 0 { 0 } else { 3 });
    }
    let number = random.usize(..THEMES.len());
    (random, THEMES[number], number)
}

fn call(client: u64, line: &str) -> Step {
    Step::Call(client, Rc::new(words(line).unwrap_or_default()))
}

impl Writer {
    /// The settings of the world of a seed.
    pub fn settings(seed: u64) -> Settings {
        let (mut random, theme, _) = theme(seed);
        let versions = ["7.0.15", "7.0.15", "8.6.3", "7.4.1", "valkey-9.1.0", "6.2.6"];
        Settings {
            // Without expiries as instants, an expiry is only as exact as the clock.
            version: random
                .choice(if theme.0[CLOCKS] > 0 { &versions[..5] } else { &versions[..] })
                .unwrap_or(&"7.0.15")
                .to_string(),
            listeners: random.choice(["replica", "replica", "aof", "none"]).unwrap_or("replica").into(),
            beside: theme.0[OTHERS] > 0,
            active: random.u8(..4) > 0,
            tick: if random.u8(..if theme.0[CLOCKS] + theme.0[OTHERS] > 0 { 2 } else { 4 }) == 0 {
                let most = random.choice([2_000, 20_000]).unwrap_or(2_000);
                random.i64(20..most)
            } else {
                0
            },
            wall: (1_700_000_000 + i64::from(random.u32(..400_000_000))) * 1_000_000_000 + 123_456_789,
            cluster: theme.0[RIGHTS] > 0 && random.bool(),
            evicts: theme.0[RIGHTS] > 0 && random.u8(..4) == 0,
        }
    }

    /// The writer of a seed, for this number of clients; 0 for the number of the seed.
    pub fn new(seed: u64, clients: u64) -> Self {
        let (_, mut theme, number) = theme(seed);
        let mut random = Rng::with_seed(seed ^ 0x5eed);
        // In some histories, more happens before time passes.
        theme.0[PASS] /= random.choice([1, 1, 3]).unwrap_or(1);
        let cluster = seed < REAL && Self::settings(seed).cluster;
        let mut writer = Self {
            clients: if clients > 0 { clients } else { random.u64(3..14) },
            theme,
            keys: vec![],
            planned: vec![],
            cluster,
            tag: if cluster { "{t}" } else { "" },
            once: 0,
            selects: !cluster,
            unit: if random.u8(..8) == 0 { ("US", 1_000) } else { ("MS", 1) },
            stops: seed >= REAL && seed % 2 == 1,
            repeated: random.choice([0, 12, 30]).unwrap_or(0),
            narrow: random.choice([0, 25, 95]).unwrap_or(0),
            large: random.choice([20, 50]).unwrap_or(20),
            first: random.choice([70, 70, 30]).unwrap_or(70),
            is_wide: false,
            held: VecDeque::new(),
            burst: (0, 0),
            random,
        };
        if theme.0[RIGHTS] > 0 {
            let user = |client: u64| Step::User(client, format!("user{}", client % 3).into_bytes());
            writer.planned.extend((1..=writer.clients).map(user));
        }
        if writer.selects && writer.random.u8(..3) == 0 {
            writer.planned.extend((1..=writer.clients).step_by(2).map(|one| call(one, "SELECT 1")));
        }
        writer.is_wide = number >= 8 && writer.random.u8(..6) == 0;
        let count = if writer.is_wide { writer.random.usize(18..=24) } else { writer.random.usize(2..=7) };
        for at in 0..count {
            let wanted = match (number, at) {
                (8 | 9, 1 | 2) => Some("FIXED"),
                _ if writer.is_wide && at % 4 > 0 => Some("FIXED"),
                (8, 3 | 4) => Some("LEASE"),
                (1, _) | (10, 0 | 3) => (writer.random.u8(..5) > 0).then_some("THROTTLE"),
                (_, 0) => writer.random.bool().then_some("THROTTLE"),
                (2 | 7, 1) => writer.random.bool().then_some("LEASE"),
                _ => None,
            };
            let kind = wanted.unwrap_or_else(|| writer.kind());
            let key = writer.key(format!("{}k{at}", writer.tag), kind);
            writer.keys.push(key);
        }
        if theme.1 > 10 && writer.random.u8(..8) == 0 {
            // Other owners hold almost as many parts as there may be.
            let line = writer.parts_of_others(&format!("{}h0", writer.tag));
            writer.planned.push(call(1, &line));
        }
        writer
    }

    fn kind(&mut self) -> &'static str {
        self.random.choice(KINDS).unwrap_or("THROTTLE")
    }

    fn chance(&mut self, percent: u8) -> bool {
        self.random.u8(..100) < percent
    }

    /// A period of time.
    fn period(&mut self) -> i64 {
        let (first, end) = match self.random.u8(..6) {
            0 => (1, 50),
            1 => (50, 500),
            2 => return 1000 * self.unit.1,
            3 => return 100 * self.unit.1,
            4 => (500, 5_000),
            _ => (5_000, 200_000),
        };
        self.time(first, end)
    }

    /// A time of at least `first` and less than `end` milliseconds.
    fn time(&mut self, first: i64, end: i64) -> i64 {
        self.random.i64(first * self.unit.1..end * self.unit.1)
    }

    /// The words of a call in the unit of this history; with `errs`, one call of fifty has a mistake.
    fn written(&mut self, mut words: Words, errs: bool) -> Words {
        if let Some(last) = words.last_mut().filter(|last| *last == b"MS") {
            *last = self.unit.0.into();
        }
        if errs && words[0].starts_with(b"CL.") && words.len() > 3 && self.chance(2) {
            let (mut wrong, at) = (words.clone(), self.random.usize(1..words.len() - 2));
            match self.random.u8(..4) {
                0 => drop(wrong.remove(at)),
                1 => wrong.insert(at, words[at].clone()),
                _ => {
                    let some = ["x", "-1", "9223372036854775808", "ELSE", "SATURATE", "k0"];
                    wrong[at] = self.random.choice(some).unwrap_or("x").into();
                }
            }
            // Other mistakes are none to the contract, which reads loosely.
            if Call::parse(&wrong).is_none() {
                return wrong;
            }
        }
        words
    }

    /// A window of the calendar, or until an instant.
    fn window(&mut self) -> String {
        let window = self.random.choice(["HOUR", "DAY", "WEEK", "MONTH", "YEAR", "UNTIL"]).unwrap_or("DAY");
        if window == "UNTIL" {
            return format!("UNTIL {}", clock::wall() / MILLI * self.unit.1 + self.period());
        }
        let from = match window {
            "WEEK" => format!(" FROM {}", self.random.u8(1..=7)),
            "MONTH" => format!(" FROM {}", self.random.u8(1..=31)),
            _ => String::new(),
        };
        let is_local = self.random.bool();
        if is_local { format!("{window} UTC {}{from}", self.random.i16(-840..=840)) } else { window.into() }
    }

    fn key(&mut self, name: String, kind: &'static str) -> Key {
        let most = match self.random.u8(..6) {
            _ if self.is_wide => self.random.i64(10..100),
            0 => 1,
            1 => self.random.i64(1..4),
            2 => self.random.i64(10..100),
            _ => self.random.i64(2..12),
        };
        let (count, period) = (self.random.i64(1..12), self.period());
        let limit = match kind {
            "THROTTLE" => format!("{} {count} {period}", most - 1),
            "FUNNEL" | "BUCKET" => format!("{most} {count} {period}"),
            "FIXED" => match self.random.u8(..if self.theme.1 > 10 { 6 } else { 12 }) {
                1 => format!("{most} TOTAL"),
                2 | 3 => format!("{most} TOTAL IDLE {period}"),
                0 if !self.is_wide => format!("{most} {}", self.window()),
                _ => format!("{most} {period}"),
            },
            "WINDOW" | "LOG" => format!("{most} {period}"),
            _ => {
                let places = if self.is_wide { most } else { self.random.i64(1..=most.min(4)) };
                return Key { name, kind, limit: format!("{places} {period}"), most: places };
            }
        };
        Key { name, kind, limit, most }
    }

    fn quantity(&mut self, most: i64) -> i64 {
        match self.random.u8(..10) {
            // One refusal of many limiters is that of the call.
            _ if self.is_wide && !self.chance(2) => 1,
            0 => 0,
            1 => most + 1,
            _ if self.chance(self.large) => self.random.i64(1..=most),
            _ => 1,
        }
    }

    /// A limiter as the words of a call for several, with the quantity of the one that spills over to it.
    fn limiter(&mut self, key: &Key, quantities: Quantities, share: Option<i64>) -> String {
        let settles = matches!(quantities, Quantities::Settled(_) | Quantities::Used);
        if key.kind == "LEASE" {
            let id = self.random.u8(..6);
            let (limit, lease) = key.limit.split_once(' ').unwrap_or((&key.limit, "1000"));
            let lease = if settles && self.chance(60) { "0" } else { lease };
            return format!("LEASE {limit} {lease} id{id}");
        }
        let mut quantity = self.quantity(key.most);
        match quantities {
            Quantities::Renewed => quantity = 0,
            Quantities::Settled(_) if self.chance(60) => quantity = -quantity,
            _ => {}
        }
        format!("{} {} {}", key.kind, key.limit, share.unwrap_or(quantity))
    }

    /// A key of holds and an owner.
    fn owner(&mut self) -> String {
        format!("{}h{} o{}", self.tag, self.random.u8(..8) / 7, self.random.u8(..4))
    }

    /// The option HOLD of a call that takes, for the key of holds and an owner.
    fn hold(&mut self, owner: &str) -> String {
        let (key, id) = owner.split_once(' ').unwrap_or_default();
        if self.chance(10) {
            return format!(" HOLD {key}");
        }
        let period = self.period().min(5_000 * self.unit.1);
        format!(" HOLD {key} {period} {id}")
    }

    /// Almost as many parts as there may be, as if other owners held them under the key until the year 2096.
    fn parts_of_others(&mut self, key: &str) -> String {
        format!("ZADD {key} {} parts 4000000000000 until", self.random.u32(99_990..100_000))
    }

    fn some_key(&mut self) -> Key {
        let at = self.random.usize(..self.keys.len());
        if self.chance(2) {
            // A limit is replaced for good.
            let (name, kind) = (self.keys[at].name.clone(), self.keys[at].kind);
            let key = self.key(name, kind);
            // The model of a sliding window with another period is not exact.
            if kind != "WINDOW" {
                self.keys[at] = key;
            }
        }
        let mut key = self.keys[at].clone();
        if self.chance(1) {
            key.name = self.keys[self.random.usize(..self.keys.len())].name.clone();
        }
        key
    }

    /// The call of a client that waits, in this many cases of a hundred, if one is found soon.
    fn awaited(&mut self, percent: u8) -> Option<Call> {
        let (steps, client) = self.burst;
        let (percent, client) =
            if steps > 0 { (80, client) } else { (percent, self.random.u64(1..=self.clients)) };
        if !self.chance(percent) {
            return None;
        }
        let words = with(|world| {
            let mut some = world.clients.range(client..).take(4);
            let blocked = some.find_map(|(_, one)| world.blocked.get(one.blocked?))?;
            Some(Rc::clone(&blocked.words))
        });
        Call::parse(&words?)
    }

    /// The key that such a client waits for, or one that decides whether it is ready.
    fn awaited_key(&mut self, percent: u8) -> Option<String> {
        let mut call = self.awaited(percent)?;
        let at = if self.random.bool() { 0 } else { self.random.usize(..call.parts.len()) };
        Some(call.parts.swap_remove(at).key)
    }

    /// Different keys, the first of which is often one that clients wait for.
    fn some_keys(&mut self, first: bool) -> Vec<Key> {
        let count = self.random.usize(1..=self.keys.len().min(if self.is_wide { 20 } else { 4 }));
        let mut places: Vec<usize> = (0..self.keys.len()).collect();
        self.random.shuffle(&mut places);
        let awaited = self.awaited_key(10).and_then(|name| self.keys.iter().position(|key| key.name == name));
        if let Some(front) = awaited.or_else(|| (first && self.chance(self.first)).then_some(0)) {
            places.retain(|&at| at != front);
            places.insert(0, front);
        }
        places.truncate(count);
        places.into_iter().map(|at| self.keys[at].clone()).collect()
    }

    /// Keys of a call, of which those from `first` on may be joined to the one before.
    fn chained(&mut self, mut keys: Vec<Key>, first: usize) -> Limiters {
        let has_chain = self.chance(self.theme.1);
        if has_chain && self.random.bool() {
            // Pools of one kind.
            keys[first - 1..].sort_by_key(|key| key.kind);
        }
        let mut before = "LEASE";
        let words = keys.into_iter().enumerate().map(|(at, key)| {
            let word = if !has_chain || at < first || !self.chance(75) {
                ""
            } else if before != "LEASE" && key.kind != "LEASE" && self.random.bool() {
                " SPILL"
            } else {
                " ELSE"
            };
            before = key.kind;
            (key, word)
        });
        words.collect()
    }

    /// The words of limiters, some of them, in percent, in shadow.
    fn limiters(&mut self, limiters: &[(Key, &str)], quantities: Quantities, shadows: u8) -> String {
        let (mut line, mut last) = (String::new(), 0);
        for (at, (key, word)) in limiters.iter().enumerate() {
            line += &format!("{word} {}", key.name);
            let is_alone = word.is_empty() && limiters.get(at + 1).is_none_or(|(_, next)| next.is_empty());
            if is_alone && self.chance(shadows) {
                line += " SHADOW";
            } else if is_alone && quantities == Quantities::Settled(true) && self.chance(40) {
                line += &format!(" RESET {}", self.time(0, 2_000));
            }
            // What spills over is of the same quantity.
            let share = if *word == " SPILL" { Some(last) } else { None };
            let words = self.limiter(key, quantities, share);
            last = words.rsplit(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0);
            line += &format!(" {words}");
        }
        line
    }

    fn single(&mut self) -> String {
        if self.chance(1) {
            return self.random.choice(["CL.TOP", "CL.TOP 2", "CL.TOP RESET"]).unwrap_or_default().into();
        }
        let key = self.some_key();
        let awaited = self.awaited_key(30).and_then(|name| self.keys.iter().find(|key| key.name == name));
        // What the clients of a queue notice comes more often where there is one.
        let most = if awaited.is_some() { 8 } else { 12 };
        let key = awaited.cloned().unwrap_or(key);
        let Key { name, limit, .. } = &key;
        let quantity = self.quantity(key.most);
        match key.kind {
            "THROTTLE" => match self.random.u8(..most) {
                0 => format!("CL.PEEK {name} {limit} {quantity} MS"),
                1 => format!("CL.REFUND {name} {limit} {quantity} MS"),
                2 => format!("CL.CHARGE {name} {limit} {quantity} MS"),
                3 => format!("CL.PAUSE {name} {limit} {} MS", self.time(0, 2_000)),
                4 | 5 => {
                    let wait = self.time(0, 4_000);
                    let more =
                        ["", " PREPAY", &format!(" MAXWAIT {wait}")][self.random.usize(..3)].to_owned();
                    format!("CL.RESERVE {name} {limit} {quantity}{more} MS")
                }
                6 => format!("CL.THROTTLE {name} {limit} {quantity} SATURATE MS"),
                _ => format!("CL.THROTTLE {name} {limit} {quantity} MS"),
            },
            "LEASE" => {
                let (limit, lease) = limit.split_once(' ').unwrap_or((limit, "1000"));
                let id = self.random.u8(..6);
                match self.random.u8(..5) {
                    0 => format!("CL.RELEASE {name} id{id}"),
                    1 => format!("CL.RENEW {name} {lease} id{id} MS"),
                    _ => format!("CL.ACQUIRE {name} {limit} {lease} id{id} MS"),
                }
            }
            kind => {
                let saturate = if self.chance(15) { " SATURATE" } else { "" };
                let (limit, zone) = limit.split_at(limit.find(" UTC").unwrap_or(limit.len()));
                format!("CL.{kind} {name} {limit} {quantity}{saturate}{zone} MS")
            }
        }
    }

    fn once(&mut self) -> String {
        // Somebody may wait for the very reply.
        let awaited = self.awaited(10).and_then(|call| call.once);
        if awaited.is_none() && !self.chance(self.repeated) {
            return String::new();
        }
        if self.chance(60) {
            self.once += 1;
        }
        let period = self.time(50, 5_000);
        let name = awaited.and_then(|name| String::from_utf8(name).ok());
        let name = name.unwrap_or_else(|| format!("{}once{}", self.tag, self.once % 4));
        format!(" ONCE {name} {period}")
    }

    /// The settlement of a flow of which a client waits. What is settled has often come back already.
    fn settled_flow(&mut self) -> Option<String> {
        let call = self.awaited(50).filter(|call| call.flow.is_some())?;
        let key =
            self.keys.iter().find(|key| key.name == call.parts[0].key && key.kind != "LEASE").cloned()?;
        let own = call.flow.filter(|_| self.random.bool()).and_then(|flow| String::from_utf8(flow).ok());
        let flow = own.unwrap_or_else(|| format!("f{}", self.random.u8(..4)));
        let units = self.random.i64(-key.most..=key.most / 2);
        let age = if self.chance(70) { format!(" AGO {}", self.time(0, 100_000)) } else { String::new() };
        Some(format!("CL.MSETTLE {} {} {} {units}{age} FLOW {flow} MS", key.name, key.kind, key.limit))
    }

    /// A call that a client repeats by other limiters, because the reply does not come: often after the key
    /// for which it waits was overwritten.
    fn retried(&mut self) -> Option<String> {
        let awaited = self.awaited(50)?;
        let once = String::from_utf8(awaited.once?).ok()?;
        let mut others = self.keys.clone();
        others.retain(|key| key.name != awaited.parts[0].key);
        self.random.shuffle(&mut others);
        others.truncate(awaited.parts.len());
        let limiters: Limiters = others.into_iter().map(|key| (key, "")).collect();
        let limiters = self.limiters(&limiters, Quantities::Taken, 30);
        let line = format!("CL.MTAKE{limiters} ONCE {once} {} MS", self.time(50, 5_000));
        if self.random.bool() {
            return Some(line);
        }
        let client = self.client();
        self.planned.push(call(client, &line));
        Some(format!("SET {} text", awaited.parts[0].key))
    }

    fn several(&mut self) -> String {
        let what = self.random.u8(..10);
        let awaited = match what {
            1..=3 => self.settled_flow(),
            4 => self.retried(),
            _ => None,
        };
        if let Some(line) = awaited {
            return line;
        }
        let (verb, settles) = match what {
            0 => ("CL.MPEEK", false),
            1..=3 => ("CL.MSETTLE", true),
            _ => ("CL.MTAKE", false),
        };
        let holds = self.chance(self.theme.1);
        // Owners renew and settle what they have taken, or take more of it.
        let known =
            if holds && self.chance(60) { self.random.choice(self.held.iter()).cloned() } else { None };
        let (limiters, owner) = known.unwrap_or_else(|| {
            let keys = self.some_keys(what == 1);
            let limiters = if settles && !holds {
                keys.into_iter().map(|key| (key, "")).collect()
            } else {
                self.chained(keys, 1)
            };
            (limiters, self.owner())
        });
        let age = (settles && !holds && self.chance(40)).then(|| self.time(0, 1_000));
        let quantities = match (settles, holds) {
            (true, true) => Quantities::Used,
            (true, false) => Quantities::Settled(age.is_some()),
            (false, true) if self.chance(30) => Quantities::Renewed,
            _ => Quantities::Taken,
        };
        let shadows = if what > 3 { 12 } else { 0 };
        let mut line = format!("{verb}{}", self.limiters(&limiters, quantities, shadows));
        if quantities == Quantities::Renewed && self.chance(30) {
            // Together with a place, of which others may hold all.
            let is_other = |key: &&Key| limiters.iter().all(|(own, _)| own.name != key.name);
            let places = self.keys.iter().filter(|key| key.kind == "LEASE").filter(is_other).cloned();
            let places = places.zip(["", " ELSE", " ELSE"]).collect::<Limiters>();
            line += &self.limiters(&places, quantities, 0);
        }
        if let Some(age) = age {
            line += &format!(" AGO {age}");
        }
        if what == 1 && limiters.iter().all(|(_, word)| word.is_empty()) && self.random.bool() {
            line += &format!(" FLOW f{}", self.random.u8(..3));
        }
        if what > 0 {
            line += &self.once();
        }
        if holds {
            line += &match what {
                0 => format!(" HOLD {}", owner.split(' ').next().unwrap_or_default()),
                1..=3 => format!(" HOLD {owner}"),
                _ => self.hold(&owner),
            };
            if what > 3 {
                self.remember(limiters, owner);
            }
        }
        line + " MS"
    }

    /// Remembers what an owner has taken, if it has.
    fn remember(&mut self, limiters: Limiters, owner: String) {
        self.held.push_front((limiters, owner));
        self.held.truncate(4);
    }

    fn timeout(&mut self) -> String {
        match self.random.u8(..4) {
            0 => format!("0.{:03}", self.random.u16(1..1_000)),
            1 => self.random.u8(1..5).to_string(),
            _ => "0".to_owned(),
        }
    }

    fn throttled(&mut self) -> Option<String> {
        let keys: Vec<Key> = self.keys.iter().filter(|key| key.kind == "THROTTLE").cloned().collect();
        let key = self.random.choice(keys)?;
        let (quantity, timeout) = (self.quantity(key.most), self.timeout());
        Some(format!("CL.BTHROTTLE {} {} {quantity} {timeout} MS", key.name, key.limit))
    }

    fn flow(&mut self) -> String {
        let mut keys = self.some_keys(true);
        if self.chance(self.narrow) {
            keys.truncate(1);
        }
        let limiters = self.chained(keys, 2);
        let mut line = format!("CL.BMTAKE{}", self.limiters(&limiters, Quantities::Taken, 5));
        let timeout = self.timeout();
        if timeout != "0" {
            line += &format!(" TIMEOUT {timeout}");
        }
        if self.chance(70) {
            let flow = self.random.u8(..4);
            line += &format!(" FLOW f{flow}");
            if flow == 3 || self.chance(2) {
                line += &format!(" WEIGHT {}", self.random.u8(1..5));
            } else if flow > 0 {
                line += &format!(" WEIGHT {}", flow + 1);
            }
        }
        if self.chance(5) {
            line += &format!(" MAXLEN {}", self.random.u8(..3));
        }
        line += &self.once();
        if self.chance(self.theme.1) {
            let owner = self.owner();
            line += &self.hold(&owner);
            self.remember(limiters, owner);
        }
        line + " MS"
    }

    fn native(&mut self) -> String {
        let (mut one, other) = (self.some_key().name, self.some_key().name);
        if self.theme.1 > 10 && self.chance(15) {
            one = format!("{}h0", self.tag);
        } else if let Some(name) = self.awaited_key(40) {
            one = name;
        }
        match self.random.u8(..if self.selects { 26 } else { 24 }) {
            0..=6 => format!("DEL {one}"),
            7..=9 => format!("PEXPIRE {one} {}", self.random.i64(0..500)),
            10 => format!("PERSIST {one}"),
            11 | 12 => format!("RENAME {one} {other}"),
            13 => format!("COPY {one} {other} REPLACE"),
            14 => "FLUSHDB".into(),
            15 => "FLUSHALL".into(),
            16 => self.random.choice(["SWAPDB 0 1", "SWAPDB 1 0"]).unwrap_or_default().into(),
            17 => format!("MOVE {one} 1"),
            18 => format!("SET {one} text"),
            19 => format!("SADD {one} text"),
            20 => format!("INCR {one}"),
            21 => format!("UNLINK {one}"),
            22 if self.random.bool() => self.parts_of_others(&one),
            22 => format!("ZADD {one} {} text", self.random.u8(..2)),
            23 => format!("ZREM {one} parts"),
            _ => format!("SELECT {}", self.random.u8(..2)),
        }
    }

    /// A client that does not wait.
    fn client(&mut self) -> u64 {
        for _ in 0..4 {
            let client = self.random.u64(1..=self.clients);
            if with(|world| world.clients.get(&client).is_none_or(|client| client.blocked.is_none())) {
                return client;
            }
        }
        let is_free = |id: &u64| with(|world| world.clients.get(id).is_none_or(|one| one.blocked.is_none()));
        if self.stops { (100..).find(is_free).unwrap_or(100) } else { 100 + self.random.u64(..3) }
    }

    fn pass(&mut self) -> Step {
        // To an instant at which something happens, or just before it.
        let is_timer = self.random.u8(..3) == 0;
        let next = with(|world| {
            let timers = world.timers.keys().map(|(at, _)| at * 1_000 - clock::wall());
            let keys = world.keys.iter();
            let expiries = keys.filter_map(|(_, _, entry)| Some((entry.expiry? + 1) * MILLI - clock::wall()));
            let expiries = expiries.take(if is_timer { 0 } else { usize::MAX });
            timers.chain(expiries).filter(|left| *left > 0).collect::<Vec<_>>()
        });
        let nanos = match (self.random.u8(..10), self.random.choice(next)) {
            (0..=2, Some(left)) if left < 1 << 50 => {
                // Where time passes within a call, at an instant within the next one, too.
                let within = self.random.i64(0..64) * with(|world| world.settings.tick);
                left - self.random.choice([within, 1, MILLI]).unwrap_or(0)
            }
            (0..=3, _) => self.random.i64(0..50) * MILLI,
            (4, _) => 0,
            (5, _) => self.random.i64(0..5_000_000),
            (6, _) => self.random.i64(1_000..20_000) * MILLI,
            (7, _) => self.soon(),
            _ => self.random.i64(30..1_000) * MILLI,
        };
        Step::Pass(nanos.max(0))
    }

    /// Enough time for what is due, and often too little for the server's cron, which mends what was
    /// forgotten.
    fn soon(&mut self) -> i64 {
        self.random.i64(30..70) * MILLI
    }

    /// Something that lasts for some steps, until the other one.
    fn lasts(&mut self, begin: Step, end: Step) -> Step {
        self.planned.push(end);
        for _ in 0..self.random.u8(..6) {
            let line = match self.random.u8(..8) {
                0 => self.single(),
                1 => self.several(),
                2 => self.flow(),
                _ => {
                    let later = self.pass();
                    self.planned.push(later);
                    continue;
                }
            };
            let client = self.client();
            self.planned.push(call(client, &line));
        }
        begin
    }

    /// Whether a real server would go on by itself before the next step.
    pub fn is_behind(&self) -> bool {
        let now = clock::wall().div_euclid(1_000);
        self.stops && with(|world| world.timers.first_key_value().is_some_and(|((at, _), _)| *at <= now))
    }

    /// What happens next.
    pub fn step(&mut self) -> Step {
        if self.is_behind() {
            return Step::Pass(0);
        }
        match self.next() {
            Step::Pass(nanos) if self.stops => {
                // A real server wakes up when a timer is due, and its timers count in whole milliseconds.
                let due = with(|world| world.timers.first_key_value().map(|((at, _), _)| at * 1_000));
                let nanos = nanos.min(due.map_or(i64::MAX - MILLI, |due| due - clock::wall()));
                Step::Hang((nanos + MILLI - 1) / MILLI * MILLI)
            }
            Step::Call(client, words) => {
                // The server would not run a transaction with one.
                let is_queued =
                    with(|world| world.clients.get(&client).is_some_and(|one| one.queued.is_some()));
                Step::Call(client, Rc::new(self.written(Rc::unwrap_or_clone(words), !is_queued)))
            }
            Step::Reacts(times, key, words) => Step::Reacts(times, key, self.written(words, false)),
            step => step,
        }
    }

    fn next(&mut self) -> Step {
        if let Some(step) = self.planned.pop() {
            return step;
        }
        let (mut weights, _) = self.theme;
        match self.burst.0 {
            0 if self.random.u8(..32) == 0 => {
                self.burst = (self.random.u8(1..7), self.random.u64(1..=self.clients));
            }
            0 => {}
            steps => {
                self.burst.0 = steps - 1;
                weights[PASS] = 0;
                weights[NATIVE] *= 2;
                if steps == 1 {
                    let soon = Step::Pass(self.soon());
                    self.planned.push(soon);
                }
            }
        }
        let mut drawn = self.random.u32(..weights.iter().sum::<u32>());
        let mut what = 0;
        while drawn >= weights[what] {
            drawn -= weights[what];
            what += 1;
        }
        let client = self.client();
        match what {
            0 => call(client, &self.single()),
            1 => call(client, &self.several()),
            2 => match self.throttled() {
                Some(line) => call(client, &line),
                None => call(client, &self.single()),
            },
            3 => call(client, &self.flow()),
            4 => self.pass(),
            5 => Step::Hang(self.random.i64(1..800) * MILLI),
            6 => {
                let size = self.random.choice([10, 60, 1_000, 100_000]).unwrap_or(10);
                let by = self.random.i64(-size..size) * MILLI;
                if with(|world| world.settings.tick == 0) || self.random.bool() {
                    Step::Set(by)
                } else {
                    // While clients are served, rather than within a call.
                    let later = self.pass();
                    self.planned.push(later);
                    let most = self.random.choice([8, 60]).unwrap_or(8);
                    Step::SetWithin(self.random.i64(0..most), by)
                }
            }
            7 => {
                let waiting: Vec<u64> = with(|world| {
                    world.clients.iter().filter(|(_, one)| one.blocked.is_some()).map(|(id, _)| *id).collect()
                });
                let Some(one) = self.random.choice(waiting) else { return Step::Close(client) };
                match self.random.u8(..4) {
                    0 => call(client, &format!("CLIENT UNBLOCK {one} TIMEOUT")),
                    1 => call(client, &format!("CLIENT UNBLOCK {one} ERROR")),
                    2 => call(client, &format!("CLIENT KILL {one}")),
                    _ => Step::Close(one),
                }
            }
            8 => call(client, &self.native()),
            9 => match self.random.u8(..3) {
                0 => call(client, &format!("LUA {}", self.single())),
                1 => call(client, &format!("LUA {}", self.several())),
                _ => {
                    self.planned.push(call(client, "EXEC"));
                    for _ in 0..self.random.u8(1..4) {
                        let line = match self.random.u8(..4) {
                            0 => self.single(),
                            1 => self.several(),
                            2 => self.flow(),
                            _ => self.native(),
                        };
                        self.planned.push(call(client, &line));
                    }
                    call(client, "MULTI")
                }
            },
            10 => Step::Replica(
                self.random.choice(["comes", "goes", "returns", "ends"]).unwrap_or("comes").into(),
            ),
            11 => self.lasts(Step::Role(true), Step::Role(false)),
            12 => match self.random.u8(..if self.cluster { 12 } else { 8 }) {
                0 => Step::Pause(self.random.i64(1..1_500) * MILLI),
                1 => self.lasts(Step::Full(true), Step::Full(false)),
                2 | 3 => {
                    let name = format!("user{}", self.random.u8(..2)).into_bytes();
                    let key = self.random.bool().then(|| self.some_key().name.into_bytes());
                    self.lasts(Step::Denied(true, name.clone(), key.clone()), Step::Denied(false, name, key))
                }
                4 => Step::User(client, format!("user{}", self.random.u8(..2)).into_bytes()),
                5 | 8 if self.cluster => {
                    let key = self.some_key().name.into_bytes();
                    self.lasts(Step::Moved(true, key.clone()), Step::Moved(false, key))
                }
                6 | 9..=11 if self.cluster => {
                    let key = self.some_key().name.into_bytes();
                    let step = self.lasts(Step::Left(true, key.clone()), Step::Left(false, key));
                    if self.random.bool() {
                        self.planned.push(Step::Pass(2_500 * MILLI));
                    }
                    step
                }
                7 => {
                    let times = self.random.u64(2..9);
                    self.lasts(Step::Busy(times), Step::Busy(0))
                }
                _ => {
                    let awaited = self.awaited_key(60);
                    Step::Evict(awaited.unwrap_or_else(|| self.some_key().name).into_bytes())
                }
            },
            _ => {
                let key = match self.random.u8(..8) {
                    0 => format!("{}once{}", self.tag, self.random.u8(..4)),
                    1 => format!("{}h0", self.tag),
                    _ => self.some_key().name,
                };
                let key = key.into_bytes();
                let line = match self.random.u8(..4) {
                    0 => self.native(),
                    1 => self.several(),
                    _ => self.single(),
                };
                Step::Reacts(self.random.u32(1..4), key, words(&line).unwrap_or_default())
            }
        }
    }
}
