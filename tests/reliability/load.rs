//! Callers that keep calling while servers stop and start, and a record of every reply that they received.
//!
//! Each kind of limiter has a budget that is not replenished while a test runs, and its state shows to the
//! unit how much of it was taken. So the replies and the state of a server can be compared exactly, without
//! timing and without tolerance, except for the calls that were sent and never answered.

use crate::common::{Client, ceil_div, ints, wait_until, wall_ns};
use redis::Value;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Tests that load this machine run one after the other, because they do not test waiting for the processor.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The exact value of every key, and its expiry in milliseconds.
pub fn contents(client: &mut Client) -> BTreeMap<String, (Vec<String>, i64)> {
    let keys: Vec<String> = client.get("KEYS *");
    let value = |client: &mut Client, key: &str| -> Vec<String> {
        match client.text(&["TYPE", key]).as_str() {
            "string" => vec![client.text(&["GET", key])],
            "hash" => {
                let mut pairs: Vec<String> = client
                    .get::<Vec<(String, String)>, _>(&["HGETALL", key])
                    .into_iter()
                    .map(|(field, value)| format!("{field}={value}"))
                    .collect();
                pairs.sort();
                pairs
            }
            "zset" => client.get(&["ZRANGE", key, "0", "-1", "WITHSCORES"]),
            other => panic!("{key} is a {other}"),
        }
    };
    keys.into_iter()
        .map(|key| {
            let held = (value(client, &key), client.expiry_ms(&key));
            (key, held)
        })
        .collect()
}

/// A kind of limiter.
pub struct Kind {
    pub name: &'static str,
    /// Takes one unit of a budget of `L` for the caller `ID`. `B` is `L` minus one.
    take: &'static str,
    /// The units taken, according to the state of the key.
    used: fn(&mut Client, &str, i64) -> i64,
}

/// No unit is replenished within an hour.
const INTERVAL_NS: i128 = 3_600_000_000_000;

#[rustfmt::skip]
pub const KINDS: [Kind; 10] = [
    Kind { name: "throttle", take: "CL.THROTTLE KEY B 1 3600", used: gcra },
    Kind { name: "mtake", take: "CL.MTAKE KEY THROTTLE B 1 3600 1 KEY-twin THROTTLE B 1 3600 1", used: twins },
    Kind { name: "bthrottle", take: "CL.BTHROTTLE KEY B 1 3600 1 0.001", used: gcra },
    Kind { name: "reserve", take: "CL.RESERVE KEY B 1 3600 1 MAXWAIT 0", used: gcra },
    Kind { name: "funnel", take: "CL.FUNNEL KEY L 1 3600", used: |c, key, limit| limit - field(c, key, "left_quota", limit) },
    Kind { name: "bucket", take: "CL.BUCKET KEY L 1 3600", used: |c, key, limit| limit - field(c, key, "tokens", limit) },
    Kind { name: "fixed", take: "CL.FIXED KEY L 36000", used: |c, key, _| c.tat(key).unwrap_or(0) },
    Kind { name: "window", take: "CL.WINDOW KEY L 7000000", used: |c, key, _| field(c, key, "current", 0) + field(c, key, "previous", 0) },
    Kind { name: "log", take: "CL.LOG KEY L 36000", used: |c, key, _| c.int(&["ZCARD", key]) },
    Kind { name: "acquire", take: "CL.ACQUIRE KEY L 36000 ID", used: |c, key, _| c.int(&["ZCARD", key]) },
];

fn gcra(client: &mut Client, key: &str, _: i64) -> i64 {
    client.tat(key).map_or(0, |tat| ceil_div(i128::from(tat) - i128::from(wall_ns()), INTERVAL_NS))
}

fn twins(client: &mut Client, key: &str, limit: i64) -> i64 {
    let used = gcra(client, key, limit);
    assert_eq!(gcra(client, &format!("{key}-twin"), limit), used, "all or nothing");
    used
}

fn field(client: &mut Client, key: &str, name: &str, missing: i64) -> i64 {
    client.get::<Option<i64>, _>(&["HGET", key, name]).unwrap_or(missing)
}

impl Kind {
    /// The key of this kind, which shares a slot with all keys of the same tag.
    pub fn key(&self, tag: &str) -> String {
        format!("{{{tag}}}{}", self.name)
    }

    pub fn call(&self, tag: &str, limit: i64, caller: &str) -> String {
        let words = self.take.split(' ').map(|word| match word {
            "B" => (limit - 1).to_string(),
            "L" => limit.to_string(),
            "ID" => caller.to_owned(),
            word => word.replace("KEY", &self.key(tag)),
        });
        words.collect::<Vec<_>>().join(" ")
    }

    pub fn used(&self, client: &mut Client, tag: &str, limit: i64) -> i64 {
        (self.used)(client, &self.key(tag), limit)
    }
}

/// Finds the node to call for the keys of a tag.
pub type Guide = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// The work of the callers.
#[derive(Clone)]
pub struct Plan {
    pub callers: usize,
    /// Each tag has a key of each kind.
    pub tags: Vec<String>,
    /// The budget of each key.
    pub limit: i64,
    pub guide: Guide,
    /// How long to wait for a reply.
    pub patience: Duration,
}

/// The record of one key.
#[derive(Default)]
pub struct Record {
    pub admitted: AtomicI64,
    pub refused: AtomicI64,
    /// Sent and never answered: each may have been admitted or not.
    pub unknown: AtomicI64,
}

struct Shared {
    plan: Plan,
    /// A row of kinds for each tag.
    records: Vec<[Record; KINDS.len()]>,
    /// The number of error replies, by their first word.
    errors: Mutex<BTreeMap<String, u64>>,
    stop: AtomicBool,
}

/// Running callers. Each has at most one call in flight for each key.
pub struct Load {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    pub fn start(plan: Plan) -> Self {
        // Callers of another load have other names.
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let records = plan.tags.iter().map(|_| <[Record; KINDS.len()]>::default()).collect();
        let shared =
            Arc::new(Shared { plan, records, errors: Mutex::default(), stop: AtomicBool::new(false) });
        let first = NEXT.fetch_add(shared.plan.callers, Relaxed);
        let threads = (first..first + shared.plan.callers)
            .map(|number| {
                let shared = Arc::clone(&shared);
                std::thread::spawn(move || Caller::new(&shared, number).work())
            })
            .collect();
        Self { shared, threads }
    }

    pub fn callers(&self) -> i64 {
        self.shared.plan.callers.try_into().unwrap()
    }

    /// The number of calls that were admitted and answered, for all keys.
    pub fn admitted(&self) -> i64 {
        self.each().map(|(.., record)| record.admitted.load(Relaxed)).sum()
    }

    /// The same for each key.
    pub fn admitted_each(&self) -> Vec<i64> {
        self.each().map(|(.., record)| record.admitted.load(Relaxed)).collect()
    }

    /// The budget of all keys together.
    pub fn budget(&self) -> i64 {
        self.shared.plan.limit * i64::try_from(self.each().count()).unwrap()
    }

    /// Waits until this number of calls has been admitted and answered.
    pub fn wait_for(&self, admitted: i64) {
        wait_until(&format!("{admitted} admissions"), || match self.admitted() {
            seen if seen >= admitted => Ok(()),
            seen => Err(format!("{seen}, errors {:?}", self.errors())),
        });
    }

    /// Waits until every budget is used up and every caller has been refused.
    pub fn exhaust(&self) {
        let mut missing: Vec<_> = self
            .each()
            .map(|(tag, kind, record)| (tag, kind, record, record.refused.load(Relaxed) + 2 * self.callers()))
            .collect();
        wait_until("every budget to be used up", || {
            missing.retain(|(.., record, enough)| record.refused.load(Relaxed) < *enough);
            match missing.first() {
                None => Ok(()),
                Some((tag, kind, ..)) => Err(format!(
                    "{} keys to go, {} among them, errors {:?}",
                    missing.len(),
                    kind.key(tag),
                    self.errors()
                )),
            }
        });
    }

    pub fn each(&self) -> impl Iterator<Item = (&str, &'static Kind, &Record)> {
        let tags = self.shared.plan.tags.iter().zip(&self.shared.records);
        tags.flat_map(|(tag, row)| {
            KINDS.iter().zip(row).map(move |(kind, record)| (tag.as_str(), kind, record))
        })
    }

    pub fn errors(&self) -> BTreeMap<String, u64> {
        self.shared.errors.lock().unwrap().clone()
    }

    /// Ends all callers, after the replies to the calls in flight.
    pub fn stop(&mut self) {
        self.shared.stop.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().expect("a caller failed");
        }
    }

    /// The units taken according to `client`, for each key.
    pub fn used_each(&self, client: &mut Client) -> Vec<i64> {
        let limit = self.shared.plan.limit;
        self.each().map(|(tag, kind, _)| kind.used(client, tag, limit)).collect()
    }

    /// Compares the replies to the callers with the state of each key; `client` finds the node of a tag. A
    /// key may lack `lost` answered admissions, and may contain admissions that were never answered. Returns
    /// the sums of both.
    pub fn compare(&self, mut client: impl FnMut(&str) -> Client, lost: i64) -> Differences {
        let (limit, mut sum) = (self.shared.plan.limit, Differences::default());
        for (tag, kind, record) in self.each() {
            let used = kind.used(&mut client(tag), tag, limit);
            let (admitted, unknown) = (record.admitted.load(Relaxed), record.unknown.load(Relaxed));
            let context = format!(
                "{}: {admitted} admissions answered, {unknown} calls unanswered, {used} of {limit} used",
                kind.key(tag)
            );
            assert!(used <= limit, "{context}: more than there is");
            assert!(used <= admitted + unknown, "{context}: nobody has asked for so many");
            assert!(used >= admitted - lost, "{context}: more than {lost} forgotten");
            assert!(admitted <= limit + lost, "{context}: above the budget");
            sum.lost += (admitted - used).max(0);
            sum.over += (admitted - limit).max(0);
        }
        sum
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.shared.stop.store(true, Relaxed);
    }
}

/// Sums over all keys.
#[derive(Debug, Default)]
pub struct Differences {
    /// Answered admissions that the state lacks.
    pub lost: i64,
    /// Answered admissions above the budget.
    pub over: i64,
}

struct Caller<'a> {
    shared: &'a Shared,
    number: usize,
    calls: u64,
    /// The last known node of each tag.
    homes: HashMap<String, String>,
    connections: HashMap<String, Client>,
}

impl<'a> Caller<'a> {
    fn new(shared: &'a Shared, number: usize) -> Self {
        Self { shared, number, calls: 0, homes: HashMap::new(), connections: HashMap::new() }
    }

    fn work(mut self) {
        let plan = &self.shared.plan;
        // Callers do not start with the same key.
        for turn in self.number.. {
            if self.shared.stop.load(Relaxed) {
                return;
            }
            let index = turn % plan.tags.len();
            if self.round(&plan.tags[index], &self.shared.records[index]).is_none() {
                self.homes.remove(&plan.tags[index]);
                std::thread::sleep(Duration::from_millis(5)); // as a client does that waits for a server
            }
        }
    }

    /// One call of each kind, in one pipeline. `None` if the node could not answer all of them.
    fn round(&mut self, tag: &str, row: &[Record]) -> Option<()> {
        let address = match self.homes.get(tag) {
            Some(address) => address.clone(),
            None => (self.shared.plan.guide)(tag)?,
        };
        self.homes.insert(tag.to_owned(), address.clone());
        self.calls += 1;
        let id = format!("{}-{}", self.number, self.calls);
        let calls: Vec<String> =
            KINDS.iter().map(|kind| kind.call(tag, self.shared.plan.limit, &id)).collect();
        let sent: Vec<&str> = calls.iter().map(String::as_str).collect();
        let Some(answers) = self.send(&address, &sent)? else {
            for record in row {
                record.unknown.fetch_add(1, Relaxed);
            }
            return None;
        };
        let mut all = Some(());
        for ((answer, call), record) in answers.into_iter().zip(&calls).zip(row) {
            all = self.settle(tag, call, record, answer).and(all);
        }
        all
    }

    /// `None` if it cannot be sent, `Some(None)` if it is never answered.
    #[allow(clippy::option_option)]
    fn send(&mut self, address: &str, calls: &[&str]) -> Option<Option<Vec<Result<Value, String>>>> {
        if !self.connections.contains_key(address) {
            let client = Client::connect_to(address, "", self.shared.plan.patience).ok()?;
            self.connections.insert(address.to_owned(), client);
        }
        let answers = self.connections.get_mut(address)?.try_pipeline(calls).ok();
        if answers.is_none() {
            self.connections.remove(address);
        }
        Some(answers)
    }

    /// Records a reply. `None` if the node does not, or not now, serve the key.
    fn settle(
        &mut self,
        tag: &str,
        call: &str,
        record: &Record,
        answer: Result<Value, String>,
    ) -> Option<()> {
        let error = match answer {
            Ok(answer) => {
                let count = if is_admission(&answer) { &record.admitted } else { &record.refused };
                count.fetch_add(1, Relaxed);
                return Some(());
            }
            Err(error) => error,
        };
        let mut words = error.split(' ');
        let code = words.next().unwrap_or_default().to_owned();
        let target = words.nth(1).unwrap_or_default().to_owned();
        *self.shared.errors.lock().unwrap().entry(code.clone()).or_default() += 1;
        match code.as_str() {
            "MOVED" => {
                self.homes.insert(tag.to_owned(), target);
                Some(())
            }
            "ASK" => {
                let Some(mut answers) = self.send(&target, &["ASKING", call])? else {
                    record.unknown.fetch_add(1, Relaxed);
                    return None;
                };
                self.settle(tag, call, record, answers.remove(1))
            }
            // Returned before anything is done.
            "READONLY" | "LOADING" | "MASTERDOWN" | "CLUSTERDOWN" | "TRYAGAIN" | "UNBLOCKED" => None,
            "ERR" if error.contains("unknown command") => None,
            _ => panic!("{call}: {error}"),
        }
    }
}

/// Whether the first row, or the only one, is a refusal. A null is a refusal.
fn is_admission(answer: &Value) -> bool {
    let row = match answer {
        Value::Array(rows) if matches!(rows.first(), Some(Value::Array(_))) => ints(&rows[0]),
        Value::Nil => return false,
        row => ints(row),
    };
    row.unwrap_or_else(|seen| panic!("no answer of a limiter: {seen}"))[0] == 0
}
