//! Callers record their calls and replies while servers die, fail over, lose their connections and move their
//! slots, and a checker looks for an order of the calls that explains them: verify/src/histories.rs.

#[path = "../../verify/src/histories.rs"]
#[allow(dead_code, clippy::drop_non_drop, clippy::missing_panics_doc)] // the lints are those of its crate
mod checker;

use crate::cluster::Cluster;
use crate::common::{self, Client, Kind, Options, aof_path, ints, requires, wait_until};
use crate::failover::{catch_up, node, promote, replica_of, wait_for_info};
use crate::figures::{figure, long};
use crate::keys::alone;
use checker::{Call, Fault, History, Reply, Tampering, Units};
use redis::Value;
use std::collections::HashMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The number of callers, and so the most calls that can be in flight.
pub const CALLERS: usize = 4;
const TAG: &str = "{h}";

/// The kinds that have quantities.
const KINDS: &[Kind] = {
    let [quantities @ .., _leases] = &common::KINDS;
    quantities
};

/// The seconds after which a unit comes back: none does within an hour.
const INTERVAL: i64 = 36_000;

/// Keys that share calls. The first objects are a key of each kind, the others two keys of neighbouring
/// kinds, which `CL.MTAKE` and `CL.MSETTLE` take and give together.
fn limits(object: usize) -> Units {
    if object < KINDS.len() { [60, 0] } else { [90, 70] }
}

/// The command of a call for one key, which is `key` of its object, or for all keys of the object.
fn command(object: usize, key: Option<usize>, call: &Call) -> String {
    let gives = call.units.iter().any(|units| *units < 0);
    let parts = |key: usize| {
        let (limit, units) = (limits(object)[key], call.units[key].to_string());
        let kind = &KINDS[(object + key) % KINDS.len()];
        (kind, format!("{TAG}{object}:{key}"), limit, limit * INTERVAL, units)
    };
    if let (Some(key), false) = (key, gives) {
        let (kind, key, limit, period, units) = parts(key);
        return kind.call(&key, limit, period, &units);
    }
    let mut text = (if gives { "CL.MSETTLE" } else { "CL.MTAKE" }).to_owned();
    for key in key.map_or(0..=1, |key| key..=key) {
        let (kind, key, limit, period, units) = parts(key);
        text = format!("{text} {key} {}", kind.limiter(limit, period, &units));
    }
    if let Some(name) = call.once {
        text = format!("{text} ONCE {TAG}once:{name} 36000");
    }
    text
}

/// Finds the node to call for the keys of a tag.
pub type Guide = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// The state that all callers share.
struct Shared {
    begun: Instant,
    guide: Guide,
    patience: Duration,
    stop: AtomicBool,
    answered: AtomicUsize,
    names: AtomicU64,
}

/// Callers that record their calls.
pub struct Recorder {
    shared: Arc<Shared>,
    callers: Vec<JoinHandle<Vec<(usize, Call)>>>,
    faults: Vec<Fault>,
}

impl Recorder {
    pub fn start(callers: usize, patience: Duration, guide: Guide) -> Self {
        let begun = Instant::now();
        Self::start_at(begun, callers, patience, guide)
    }

    fn start_at(begun: Instant, callers: usize, patience: Duration, guide: Guide) -> Self {
        static NAMES: AtomicU64 = AtomicU64::new(0);
        let shared = Arc::new(Shared {
            begun,
            guide,
            patience,
            stop: AtomicBool::new(false),
            answered: AtomicUsize::new(0),
            names: AtomicU64::new(NAMES.fetch_add(1 << 32, Relaxed)),
        });
        let callers = (0..callers)
            .map(|_| {
                let shared = Arc::clone(&shared);
                std::thread::spawn(move || Caller::new(&shared).work())
            })
            .collect();
        Self { shared, callers, faults: Vec::new() }
    }

    /// Nanoseconds since the beginning.
    fn now(&self) -> u64 {
        now(self.shared.begun)
    }

    /// Waits until this many more calls were answered.
    pub fn wait_for(&self, more: usize) {
        let enough = self.shared.answered.load(Relaxed) + more;
        wait_until(&format!("{enough} replies"), || {
            assert!(!self.callers.iter().any(JoinHandle::is_finished), "a caller failed");
            match self.shared.answered.load(Relaxed) {
                seen if seen >= enough => Ok(()),
                seen => Err(seen.to_string()),
            }
        });
    }

    /// The server has ended, and its successor has not begun.
    pub fn fault(&mut self, most: usize, since: u64) {
        self.faults.push(Fault { at: self.now(), most, since });
    }

    pub fn stop(self) -> (Vec<(usize, Call)>, Vec<Fault>) {
        self.shared.stop.store(true, Relaxed);
        let calls = self.callers.into_iter().flat_map(|caller| caller.join().expect("a caller failed"));
        (calls.collect(), self.faults)
    }
}

fn now(begun: Instant) -> u64 {
    begun.elapsed().as_nanos().try_into().unwrap()
}

struct Caller<'a> {
    shared: &'a Shared,
    home: Option<String>,
    connections: HashMap<String, Client>,
    calls: Vec<(usize, Call)>,
    random: fastrand::Rng,
}

impl<'a> Caller<'a> {
    fn new(shared: &'a Shared) -> Self {
        let (connections, random) = (HashMap::new(), fastrand::Rng::new());
        Self { shared, home: None, connections, calls: Vec::new(), random }
    }

    fn work(mut self) -> Vec<(usize, Call)> {
        while !self.shared.stop.load(Relaxed) {
            let object = self.random.usize(0..2 * KINDS.len());
            let mut key = Some(0);
            let mut call = Call { start: 0, units: [0, 0], once: None, reply: None };
            let gives = self.random.u8(0..10) < 3;
            let mut quantity = || if gives { -self.random.i64(1..4) } else { self.random.i64(0..4) };
            call.units[0] = quantity();
            if object >= KINDS.len() {
                let second = quantity();
                match self.random.u8(0..4) {
                    0 => {}
                    1 => (key, call.units) = (Some(1), [0, second]),
                    _ => {
                        (key, call.units[1]) = (None, second);
                        let is_named = self.random.bool();
                        call.once = is_named.then(|| self.shared.names.fetch_add(1, Relaxed));
                    }
                }
            }
            let mut known = self.send(object, key, &call);
            // Until there is a reply, and some once more.
            while call.once.is_some()
                && !self.shared.stop.load(Relaxed)
                && (!known || self.random.u8(0..4) == 0)
            {
                known = self.send(object, key, &call);
            }
        }
        self.calls
    }

    /// Sends a call and records it. Returns whether it was answered.
    fn send(&mut self, object: usize, key: Option<usize>, call: &Call) -> bool {
        let Some(home) = self.home.take().or_else(|| (self.shared.guide)(TAG)) else { return pause() };
        let text = command(object, key, call);
        let Some((start, answer)) = self.ask(&home, &[&text]) else { return pause() };
        let mut record = Call { start, ..call.clone() };
        let mut answer = answer.map(|mut answers| answers.remove(0));
        if let Ok(Err(error)) = &answer
            && let Some(target) = error.strip_prefix("ASK ").and_then(|rest| rest.split(' ').nth(1))
        {
            let Some((start, answers)) = self.ask(target, &["ASKING", &text]) else {
                return false;
            };
            record.start = start;
            answer = answers.map(|mut answers| answers.remove(1));
        }
        let at = now(self.shared.begun);
        match answer {
            Ok(Ok(value)) => {
                record.reply = Some(read(object, key, &value, at, &text));
                self.shared.answered.fetch_add(1, Relaxed);
                self.home = Some(home);
                self.calls.push((object, record));
                true
            }
            // Refused by the server before anything was done.
            Ok(Err(error)) => {
                let mut words = error.split(' ');
                match words.next().unwrap_or_default() {
                    "MOVED" => self.home = words.nth(1).map(str::to_owned),
                    "READONLY" | "LOADING" | "MASTERDOWN" | "CLUSTERDOWN" | "TRYAGAIN" | "UNBLOCKED" => {}
                    // While the module is replaced.
                    "ERR" if error.contains("unknown command") => {}
                    _ => panic!("{text}: {error}"),
                }
                false
            }
            Err(_) => {
                self.calls.push((object, record));
                false
            }
        }
    }

    /// `None` if it cannot be sent.
    #[allow(clippy::type_complexity)]
    fn ask(
        &mut self,
        address: &str,
        calls: &[&str],
    ) -> Option<(u64, Result<Vec<Result<Value, String>>, String>)> {
        if !self.connections.contains_key(address) {
            let client = Client::connect_to(address, "", self.shared.patience).ok()?;
            self.connections.insert(address.to_owned(), client);
        }
        let start = now(self.shared.begun);
        let answer = self.connections.get_mut(address)?.try_pipeline(calls);
        if answer.is_err() {
            self.connections.remove(address);
        }
        Some((start, answer))
    }
}

fn pause() -> bool {
    std::thread::sleep(Duration::from_millis(2)); // as a client does that waits for a server
    false
}

/// Reads a reply of five numbers, or several, of which the first is for all keys and the others for one key
/// each.
fn read(object: usize, key: Option<usize>, value: &Value, at: u64, call: &str) -> Reply {
    let row = |value: &Value| ints(value).unwrap_or_else(|seen| panic!("{call}: {seen}"));
    let rows: Vec<Vec<i64>> = match value {
        Value::Array(rows) if matches!(rows.first(), Some(Value::Array(_))) => rows.iter().map(row).collect(),
        value => vec![row(value); 2],
    };
    let mut remaining = if object < KINDS.len() { [None, Some(0)] } else { [None, None] };
    for (row, key) in rows[1..].iter().zip(key.map_or(0..=1, |key| key..=key)) {
        assert_eq!(row[1], limits(object)[key], "{call}: {value:?}");
        remaining[key] = Some(row[2]);
    }
    let mut text = DefaultHasher::new();
    rows.hash(&mut text);
    Reply { at, admitted: rows[0][0] == 0, remaining, text: text.finish() }
}

/// One history for each object.
pub fn histories((calls, faults): (Vec<(usize, Call)>, Vec<Fault>)) -> Vec<History> {
    let mut all: Vec<History> = (0..2 * KINDS.len())
        .map(|object| History { limits: limits(object), calls: Vec::new(), faults: faults.clone() })
        .collect();
    for (object, call) in calls {
        all[object].calls.push(call);
    }
    all.into_iter().map(History::in_order).collect()
}

/// Finds an order for each history, and none for the histories that were tampered with.
pub fn examine(what: &str, histories: &[History]) {
    let (mut calls, mut lost, mut found) = (0, 0, [0; Tampering::ALL.len()]);
    for (number, history) in histories.iter().enumerate() {
        let object = number % (2 * KINDS.len());
        calls += history.calls.len();
        lost += history.calls.iter().filter(|call| call.reply.is_none()).count();
        if let Err(why) = history.check() {
            panic!("{what}, object {object}: no order explains call {}: {}", why.call, why.text);
        }
        for (found, tampering) in found.iter_mut().zip(Tampering::ALL) {
            // From one that is chosen at random, the next ones to which it applies.
            let from = fastrand::usize(..history.calls.len().max(1));
            let turn = (from..history.calls.len()).chain(0..from).take(2_000);
            let lies = turn.filter_map(|call| tampering.of(history, call).map(|told| (call, told)));
            for (call, told) in lies.take(2) {
                assert!(
                    told.check().is_err(),
                    "{what}, object {object}: {tampering:?} of call {call} is not found"
                );
                *found += 1;
            }
        }
    }
    // The lies that apply, which differ. The tests of the checker have them all.
    let found: usize = found.iter().sum();
    assert!(found > 0, "{what}: no call is tampered with");
    figure(
        &format!("histories: {what}"),
        format!("{calls} calls, {lost} without a reply; tampered and found: {found}"),
    );
}

/// The address that callers connect to.
#[derive(Clone)]
pub struct Target(Arc<Mutex<String>>);

impl Target {
    pub fn new(address: &str) -> Self {
        Self(Arc::new(Mutex::new(address.to_owned())))
    }

    fn set(&self, address: &str) {
        address.clone_into(&mut self.0.lock().unwrap());
    }

    pub fn guide(&self) -> Guide {
        let this = self.clone();
        Arc::new(move |_| Some(this.0.lock().unwrap().clone()))
    }
}

pub fn address(port: u16) -> String {
    format!("127.0.0.1:{port}")
}

/// The calls between two faults.
pub fn stretch() -> usize {
    if long() { 20_000 } else { 1_500 }
}

fn rounds(short: usize) -> usize {
    if long() { 10 } else { short }
}

pub const PATIENCE: Duration = Duration::from_secs(30);

#[test]
pub fn a_server_that_is_killed_forgets_no_answered_call() {
    let _alone = alone();
    let mut server = Options::new().append_only().start();
    let target = Target::new(&address(server.port()));
    let mut recorder = Recorder::start(CALLERS, PATIENCE, target.guide());
    for _ in 0..rounds(3) {
        recorder.wait_for(stretch());
        server.kill();
        recorder.fault(0, u64::MAX);
        server.restart();
        target.set(&address(server.port()));
    }
    recorder.wait_for(stretch());
    examine("kill -9, appendfsync always", &histories(recorder.stop()));
}

/// A power cut loses writes that are not on the disk yet, so the file is cut to its length of a second
/// before. The server delays a write for up to two seconds while the disk is busy.
#[test]
pub fn a_power_cut_forgets_the_last_seconds_and_nothing_else() {
    let _alone = alone();
    let options = Options::new().set("appendonly", "yes").set("appendfsync", "everysec");
    let mut server = options.set("auto-aof-rewrite-percentage", "0").start();
    let target = Target::new(&address(server.port()));
    let mut recorder = Recorder::start(CALLERS, PATIENCE, target.guide());
    let file = aof_path(&server);
    let length = || fs::metadata(&file).unwrap().len();
    for _ in 0..rounds(1) {
        recorder.wait_for(stretch());
        let (begun, mut samples) = (recorder.now(), Vec::new());
        while recorder.now() < begun + 3_500_000_000 {
            samples.push((recorder.now(), length()));
            std::thread::sleep(Duration::from_millis(10)); // between samples; nothing is awaited
        }
        server.kill();
        let end = recorder.now();
        let (cut, length) = *samples.iter().rfind(|(at, _)| at + 1_000_000_000 <= end).unwrap();
        recorder.fault(usize::MAX, cut - 2_000_000_000);
        fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(length).unwrap();
        server.restart();
        target.set(&address(server.port()));
    }
    recorder.wait_for(stretch());
    examine("power cut, appendfsync everysec", &histories(recorder.stop()));
}

/// Callers of a primary which is killed, and of its replica, which is promoted.
fn histories_of_a_death(nodes: &[String; 2], kill: impl FnOnce()) -> Vec<History> {
    let target = Target::new(&nodes[0]);
    let mut recorder = Recorder::start(CALLERS, PATIENCE, target.guide());
    recorder.wait_for(1_500);
    kill();
    recorder.fault(CALLERS, 0);
    promote(&mut connect(&nodes[1]));
    target.set(&nodes[1]);
    recorder.wait_for(stretch());
    histories(recorder.stop())
}

fn connect(address: &str) -> Client {
    Client::connect_to(address, "", PATIENCE).unwrap()
}

#[test]
pub fn a_primary_that_is_killed_takes_the_calls_in_flight_along() {
    let _alone = alone();
    let mut all = Vec::new();
    for _ in 0..rounds(3) {
        let mut first = node().start();
        let second = replica_of(&first);
        let nodes = [&first, &second].map(|node| address(node.port()));
        all.extend(histories_of_a_death(&nodes, || first.kill()));
    }
    examine("kill -9 of the primary, a replica is promoted", &all);
}

#[test]
pub fn a_planned_failover_forgets_nothing() {
    let _alone = alone();
    let first = node().start();
    let second = replica_of(&first);
    let (mut from, mut to) = (first.connect(), second.connect());
    requires!(from.has_command("FAILOVER"), "no FAILOVER");
    let target = Target::new(&address(first.port()));
    let recorder = Recorder::start(CALLERS, PATIENCE, target.guide());
    let mut addresses = [second.port(), first.port()].map(address).into_iter().cycle();
    for _ in 0..rounds(2) {
        recorder.wait_for(stretch());
        wait_for_info(&mut to, "master_link_status", "up");
        from.call("FAILOVER");
        wait_for_info(&mut to, "role", "master");
        target.set(&addresses.next().unwrap());
        wait_for_info(&mut from, "master_link_status", "up");
        std::mem::swap(&mut from, &mut to);
    }
    recorder.wait_for(stretch());
    examine("FAILOVER", &histories(recorder.stop()));
}

/// A way to a server that can be cut: then no more replies arrive, and every connection ends.
struct Proxy {
    port: u16,
    cut: Arc<AtomicBool>,
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    fn to(target: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let [cut, end] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let (is_cut, ended) = (Arc::clone(&cut), Arc::clone(&end));
        let thread = std::thread::spawn(move || {
            for near in listener.incoming() {
                if ended.load(Relaxed) {
                    return;
                }
                let (Ok(near), false) = (near, is_cut.load(Relaxed)) else { continue };
                let Ok(far) = TcpStream::connect(("127.0.0.1", target)) else { continue };
                for stream in [&near, &far] {
                    stream.set_nodelay(true).unwrap();
                }
                let never = Arc::new(AtomicBool::new(false));
                let back = (far.try_clone().unwrap(), near.try_clone().unwrap(), Arc::clone(&is_cut));
                for (from, to, cut) in [(near, far, never), back] {
                    std::thread::spawn(move || forward(from, to, &cut));
                }
            }
        });
        Self { port, cut, end, thread: Some(thread) }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.end.store(true, Relaxed);
        let _ = TcpStream::connect(("127.0.0.1", self.port)); // wakes the thread
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Forwards bytes until either side ends, or the way is cut.
fn forward(mut from: TcpStream, mut to: TcpStream, cut: &AtomicBool) {
    let mut buffer = [0; 1 << 14];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        if cut.load(Relaxed) || to.write_all(&buffer[..length]).is_err() {
            break;
        }
    }
    for stream in [from, to] {
        let _ = stream.shutdown(Shutdown::Both);
    }
}

#[test]
pub fn callers_that_are_cut_off_are_charged_once_or_not_at_all() {
    let _alone = alone();
    let server = Options::new().start();
    let proxy = Proxy::to(server.port());
    let target = Target::new(&address(proxy.port));
    let recorder = Recorder::start(CALLERS, PATIENCE, target.guide());
    for _ in 0..rounds(4) {
        recorder.wait_for(stretch());
        proxy.cut.store(true, Relaxed);
        std::thread::sleep(Duration::from_millis(20)); // the length of the cut; nothing is awaited
        proxy.cut.store(false, Relaxed);
    }
    recorder.wait_for(stretch());
    examine("replies lost in the network", &histories(recorder.stop()));
}

/// Both sides of a partition, each with its callers: the old primary continues, and its replica, which
/// receives nothing since the cut, is promoted.
fn examine_partition(what: &str, nodes: &[String; 2], cut: impl FnOnce()) {
    let (mut client, mut copy) = (connect(&nodes[0]), connect(&nodes[1]));
    let [on_the_old, on_the_new] = nodes.each_ref().map(|node| Target::new(node).guide());
    let old = Recorder::start(CALLERS / 2, PATIENCE, on_the_old);
    old.wait_for(stretch());
    // Calls that were answered before this instant were replicated before the cut.
    let since = old.now();
    catch_up(&mut client, &mut copy);
    cut();
    old.wait_for(stretch());
    let at = old.now();
    copy.call("REPLICAOF NO ONE");
    let new = Recorder::start_at(old.shared.begun, CALLERS / 2, PATIENCE, on_the_new);
    new.wait_for(stretch());
    old.wait_for(stretch());
    let (old, new) = (old.stop().0, new.stop().0);
    examine(&format!("{what}, the side of the old primary"), &histories((old.clone(), Vec::new())));
    // The new primary has the calls of the old one from before its promotion.
    let mut calls: Vec<_> = old.into_iter().filter(|(_, call)| call.start < at).collect();
    for (_, call) in &mut calls {
        call.reply = call.reply.take().filter(|reply| reply.at < at);
    }
    calls.extend(new);
    let fault = Fault { at, most: usize::MAX, since };
    examine(&format!("{what}, the side of the new primary"), &histories((calls, vec![fault])));
}

#[test]
pub fn a_partition_forgets_what_the_other_side_admits_and_nothing_else() {
    let _alone = alone();
    let first = node().start();
    let proxy = Proxy::to(first.port());
    let second = node().start();
    let mut copy = second.connect();
    copy.call(&format!("REPLICAOF 127.0.0.1 {}", proxy.port));
    wait_for_info(&mut copy, "master_link_status", "up");
    examine_partition("partition", &[first.port(), second.port()].map(address), || {
        proxy.cut.store(true, Relaxed);
    });
}

#[test]
pub fn a_primary_of_a_cluster_that_dies_takes_the_calls_in_flight_along() {
    let _alone = alone();
    let mut cluster = Cluster::start(3, 3);
    let mut recorder = Recorder::start(CALLERS, PATIENCE, cluster.guide());
    recorder.wait_for(stretch());
    let owner = cluster.owner(TAG.trim_matches(['{', '}'])).text("CLUSTER MYID");
    let owner = (0..3).find(|&node| cluster.id(node) == owner).unwrap();
    cluster.nodes[owner].kill();
    recorder.fault(CALLERS, 0);
    recorder.wait_for(stretch());
    examine("kill -9 of a cluster's primary", &histories(recorder.stop()));
    cluster.nodes[owner].restart_here();
    cluster.settle();
    cluster.assert_same([(owner + 3, owner)]);
}

#[test]
pub fn slots_that_move_forget_nothing() {
    let _alone = alone();
    let cluster = Cluster::start(2, 0);
    let recorder = Recorder::start(CALLERS, PATIENCE, cluster.guide());
    let tag = TAG.trim_matches(['{', '}']);
    recorder.wait_for(stretch());
    let owner = usize::from(cluster.owner(tag).text("CLUSTER MYID") == cluster.id(1));
    let mut turns = [owner, 1 - owner].into_iter().cycle();
    for _ in 0..rounds(2) {
        let from = turns.next().unwrap();
        let slot = cluster.begin_to_move(tag, from, 1 - from);
        let mut source = cluster.connect(from);
        loop {
            let keys: Vec<String> = source.get(&format!("CLUSTER GETKEYSINSLOT {slot} 50"));
            if keys.is_empty() {
                break;
            }
            cluster.migrate(&keys, from, 1 - from);
        }
        cluster.end_of_move(slot, 1 - from);
        recorder.wait_for(stretch());
    }
    examine("slots that move", &histories(recorder.stop()));
}
