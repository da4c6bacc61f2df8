//! A cluster on loopback: failover, slots that move under load, and the cluster's error replies.

use crate::common::{
    BINARY, Client, FUNCTIONS, Options, Server, Waiter, has_functions, load_functions, meet, requires,
    to_function, wait_for_blocked, wait_until,
};
use crate::failover::catch_up;
use crate::figures::figure;
use crate::histories::{Guide, PATIENCE};
use crate::keys::{KINDS, alone, contents};
use redis::Value;
use std::ops::{Deref, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// The nodes of a cluster as clients know them: the primaries, then the same number of replicas.
pub struct Members(pub Vec<String>);

impl Members {
    pub fn connect(&self, node: usize) -> Client {
        Client::connect_to(&self.0[node], "", PATIENCE).unwrap()
    }

    pub fn id(&self, node: usize) -> String {
        self.connect(node).text("CLUSTER MYID")
    }

    /// Creates a cluster from separate servers. The primaries share the slots evenly.
    pub fn form(&self, primaries: usize) {
        let nodes = (0..self.0.len()).map(|node| self.connect(node));
        meet(nodes, &self.0[0].replace(':', " "), primaries);
        let all = format!("cluster_known_nodes:{}", self.0.len());
        for node in 0..self.0.len() {
            wait_until("all nodes to know each other", || {
                let mut client = self.connect(node);
                let (info, nodes) = (client.text("CLUSTER INFO"), client.text("CLUSTER NODES"));
                // During a handshake a node has a temporary name.
                if info.contains(&all) && !nodes.contains("handshake") { Ok(()) } else { Err(nodes) }
            });
        }
        for node in primaries..self.0.len() {
            let primary = self.id(node - primaries);
            let mut client = self.connect(node);
            wait_until("the replica to know its primary", || {
                client.ask(&format!("CLUSTER REPLICATE {primary}"))
            });
        }
        self.settle();
    }

    /// Waits until no node is failing, all slots are served, and the replicas are in sync.
    pub fn settle(&self) {
        for node in 0..self.0.len() {
            wait_until("the cluster to be well", || {
                let mut client = self.connect(node);
                let (info, nodes) = (client.text("CLUSTER INFO"), client.text("CLUSTER NODES"));
                let link = client.text("INFO replication");
                if info.contains("cluster_state:ok")
                    && !link.contains("link_status:down")
                    && !nodes.contains("fail")
                {
                    Ok(())
                } else {
                    Err(format!("{info}{link}{nodes}"))
                }
            });
        }
        for node in 0..self.0.len() {
            self.in_step(node);
        }
    }

    /// Waits until a replica has received its primary's writes. Returns at once for a primary.
    fn in_step(&self, node: usize) {
        let mut copy = self.connect(node);
        if copy.info("role") == "master" {
            return;
        }
        let primary = format!("{}:{}", copy.info("master_host"), copy.info("master_port"));
        let mut client = Client::connect_to(&primary, "", PATIENCE).unwrap();
        catch_up(&mut client, &mut copy);
    }

    /// Asserts that every key of each primary is the same on its replica.
    pub fn assert_same<const N: usize>(&self, pairs: [(usize, usize); N]) {
        for (primary, replica) in pairs {
            let held = contents(&mut self.connect(primary));
            let mut copy = self.connect(replica);
            copy.call("READONLY");
            assert!(held.len() >= KINDS.len(), "{} keys on {primary}", held.len());
            assert_eq!(contents(&mut copy), held, "{replica} is a replica of {primary}");
        }
    }

    /// A connection to the node that serves the tag.
    pub fn owner(&self, tag: &str) -> Client {
        let look = |address: &String| {
            let mut client = Client::connect_to(address, "", PATIENCE).ok()?;
            let answers = client.try_pipeline(&[&format!("EXISTS {{{tag}}}")]).ok()?;
            answers[0].is_ok().then_some(client)
        };
        wait_until(&format!("somebody to serve {tag}"), || self.0.iter().find_map(look).ok_or(String::new()))
    }

    /// Calls one node after the other, and follows their redirections.
    pub fn guide(&self) -> Guide {
        let (addresses, turn) = (self.0.clone(), AtomicUsize::new(0));
        Arc::new(move |_| Some(addresses[turn.fetch_add(1, Relaxed) % addresses.len()].clone()))
    }

    /// Tags whose slots are in a range.
    pub fn tags(&self, slots: Range<i64>, count: usize) -> Vec<String> {
        let mut client = self.connect(0);
        let mut in_range = |tag: &String| slots.contains(&client.int(&format!("CLUSTER KEYSLOT {{{tag}}}")));
        (0..).map(|n| format!("t{n}")).filter(|tag| in_range(tag)).take(count).collect()
    }
}

/// A cluster of servers on loopback.
pub struct Cluster {
    pub nodes: Vec<Server>,
    members: Members,
}

impl Deref for Cluster {
    type Target = Members;

    fn deref(&self) -> &Members {
        &self.members
    }
}

impl Cluster {
    pub fn start(primaries: usize, replicas: usize) -> Self {
        Self::start_with(Options::new, primaries, replicas)
    }

    /// A cluster whose nodes have these options, too.
    fn start_with(options: fn() -> Options, primaries: usize, replicas: usize) -> Self {
        let options = || {
            let options = options().set("cluster-enabled", "yes").set("cluster-node-timeout", "3000");
            options.set("repl-ping-replica-period", "5")
        };
        let nodes: Vec<Server> = (0..primaries + replicas).map(|_| options().start()).collect();
        let members = Members(nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect());
        members.form(primaries);
        Self { nodes, members }
    }

    /// Marks the tag's slot as moving on both nodes.
    pub fn begin_to_move(&self, tag: &str, from: usize, to: usize) -> i64 {
        let (mut source, mut target) = (self.connect(from), self.connect(to));
        let slot = source.int(&format!("CLUSTER KEYSLOT {{{tag}}}"));
        target.call(&format!("CLUSTER SETSLOT {slot} IMPORTING {}", self.id(from)));
        source.call(&format!("CLUSTER SETSLOT {slot} MIGRATING {}", self.id(to)));
        slot
    }

    pub fn end_of_move(&self, slot: i64, to: usize) {
        for node in [to].into_iter().chain(0..self.nodes.len()) {
            let mut client = self.connect(node);
            if client.info("role") == "master" {
                client.call(&format!("CLUSTER SETSLOT {slot} NODE {}", self.id(to)));
            }
        }
    }

    pub fn migrate(&self, keys: &[String], from: usize, to: usize) {
        let call = format!("MIGRATE 127.0.0.1 {} _ 0 5000 KEYS {}", self.nodes[to].port(), keys.join(" "));
        let words: Vec<&str> = call.split(' ').map(|word| if word == "_" { "" } else { word }).collect();
        self.connect(from).call(&words);
    }
}

#[test]
pub fn every_kind_of_key_migrates_with_its_limit() {
    let _alone = alone();
    let cluster = Cluster::start(2, 0);
    let tag = &cluster.tags(0..8000, 1)[0];
    let (mut source, mut target) = (cluster.connect(0), cluster.connect(1));
    for kind in &KINDS {
        for caller in ["one", "two"] {
            source.call(&kind.call(tag, 3, caller));
        }
    }
    let before = contents(&mut source);
    let slot = cluster.begin_to_move(tag, 0, 1);
    cluster.migrate(&before.keys().cloned().collect::<Vec<_>>(), 0, 1);
    cluster.end_of_move(slot, 1);
    let after = contents(&mut target);
    assert!(after.keys().eq(before.keys()), "{after:?}");
    for (key, (value, expiry)) in &before {
        // MIGRATE sends the remaining time to live, so the key may live longer by the duration of the
        // transfer.
        let (moved, later) = &after[key];
        assert_eq!(moved, value, "{key}");
        assert!((*expiry..expiry + 60_000).contains(later), "{key} expires at {later}, not at {expiry}");
    }
    assert_eq!(source.int("DBSIZE"), 0);
    for kind in &KINDS {
        assert_eq!(kind.used(&mut target, tag, 3), 2, "{}", kind.name);
        let refused = |answer: Value| {
            matches!(&answer, Value::Nil)
                || format!("{answer:?}").starts_with("array([int(1)")
                || format!("{answer:?}").starts_with("array([array([int(1)")
        };
        assert!(!refused(target.call(&kind.call(tag, 3, "three"))), "{}: one was left", kind.name);
        let answer = target.call(&kind.call(tag, 3, "four"));
        assert!(refused(answer.clone()), "{}: none was left: {answer:?}", kind.name);
    }
}

/// Asserts that MGET and CL.MTAKE get the same error, which begins with `expected`, or both succeed if it
/// is empty.
fn same_words(client: &mut Client, situation: &str, expected: &str, [a, b]: [&str; 2], before: Option<&str>) {
    let mut say = |call: &str| {
        if let Some(before) = before {
            client.call(before);
        }
        client.ask(call).err().unwrap_or_default()
    };
    let core = say(&format!("MGET {a} {b}"));
    let ours = say(&format!("CL.MTAKE {a} THROTTLE 9 1 3600 1 {b} THROTTLE 9 1 3600 1"));
    assert_eq!(ours, core, "{situation}");
    assert!(ours.starts_with(expected) && ours.is_empty() == expected.is_empty(), "{situation}: {ours:?}");
}

#[test]
pub fn multi_key_calls_are_redirected_as_the_servers_own() {
    let _alone = alone();
    let cluster = Cluster::start(2, 1);
    let tag = &cluster.tags(0..8000, 1)[0];
    let (mut source, mut target) = (cluster.connect(0), cluster.connect(1));
    let keys = [format!("{{{tag}}}x"), format!("{{{tag}}}y")];
    let pair = [keys[0].as_str(), keys[1].as_str()];
    let other = format!("{{{}}}", cluster.tags(9000..16384, 1)[0]);

    same_words(&mut source, "other slots", "CROSSSLOT ", [pair[0], &other], None);
    same_words(&mut target, "another node's slot", "MOVED ", pair, None);
    let mut replica = cluster.connect(2);
    same_words(&mut replica, "a replica", "MOVED ", pair, None);
    replica.call("READONLY");
    let write = format!("MOVED {}", source.int(&["CLUSTER", "KEYSLOT", tag]));
    for call in [
        format!("MSET {} 1 {} 2", pair[0], pair[1]),
        format!("CL.MTAKE {} THROTTLE 9 1 60 1 {} THROTTLE 9 1 60 1", pair[0], pair[1]),
    ] {
        assert!(replica.error(&call).starts_with(&write), "a write to a replica that serves reads: {call}");
    }
    assert_eq!(replica.ints(&format!("CL.PEEK {} 9 1 60", pair[0]))[..3], [0, 10, 10]);

    source.call(&format!("CL.MTAKE {} THROTTLE 9 1 3600 1 {} THROTTLE 9 1 3600 1", pair[0], pair[1]));
    let slot = cluster.begin_to_move(tag, 0, 1);
    same_words(&mut source, "about to move, both still here", "", pair, None);
    cluster.migrate(&keys[..1], 0, 1);
    let held = contents(&mut source);
    // Redis 6 redirects clients to the node that has the key, which asks them to try again.
    let halfway = if BINARY.at_least(7, 0, 0) { "TRYAGAIN " } else { "ASK " };
    same_words(&mut source, "one is here, one is there", halfway, pair, None);
    same_words(&mut target, "the same at the target", "TRYAGAIN ", pair, Some("ASKING"));
    same_words(&mut target, "the target, unasked", "MOVED ", pair, None);
    assert_eq!(contents(&mut source), held, "nothing was taken");
    cluster.migrate(&keys[1..], 0, 1);
    same_words(&mut source, "both are there", "ASK ", pair, None);
    same_words(&mut target, "the target, asked", "", pair, Some("ASKING"));
    // A call with one key is the same for all kinds.
    for kind in KINDS.iter().filter(|kind| kind.name != "mtake") {
        let key = kind.key(tag);
        let call = kind.call(tag, 9, "id");
        assert_eq!(source.error(&call), source.error(&["GET", &key]), "{}", kind.name);
        assert!(source.error(&call).starts_with("ASK "));
    }
    cluster.end_of_move(slot, 1);
    same_words(&mut source, "moved", "MOVED ", pair, None);
    same_words(&mut target, "arrived", "", pair, None);
    // In a transaction and in a script.
    for call in [
        format!("MGET {} {other}", pair[0]),
        format!("CL.MTAKE {} THROTTLE 9 1 60 1 {other} THROTTLE 9 1 60 1", pair[0]),
    ] {
        target.call("MULTI");
        assert!(target.error(&call).starts_with("CROSSSLOT "), "{call}");
        assert!(target.error("EXEC").starts_with("EXECABORT "), "{call}");
        let script = format!("return redis.pcall('{}')", call.replace(' ', "','"));
        let error = target.error(&["EVAL", &script, "1", pair[0]]);
        assert!(error.to_lowercase().contains("slot") || error.contains("non local"), "{call}: {error}");
    }
}

/// The call began to wait while its key was on this node; at its turn the key is on another one.
#[test]
pub fn a_client_that_waits_for_a_key_that_moves_away_is_sent_after_it() {
    let _alone = alone();
    moves_away("CL.BTHROTTLE KEY 0 1 3600 1 0");
    moves_away("CL.BMTAKE KEY THROTTLE 0 1 3600 1 KEY:log LOG 9 60 1 FLOW a");
}

/// The clients of one key that moves away.
const WAITING: usize = 100;

fn moves_away(call: &str) {
    let cluster = Cluster::start(2, 0);
    let tag = &cluster.tags(0..8000, 1)[0];
    let key = format!("{{{tag}}}k");
    let (mut source, mut target) = (cluster.connect(0), cluster.connect(1));
    source.call(&format!("CL.THROTTLE {key} 0 1 3600"));
    let state = source.tat(&key);
    let call = call.replace("KEY", &key);
    let mut waiters = [(); WAITING].map(|()| Waiter::ask(&cluster.nodes[0], &call));
    wait_for_blocked(&mut source, WAITING);
    let slot = cluster.begin_to_move(tag, 0, 1);
    assert!(waiters.iter_mut().all(Waiter::is_waiting), "while the key is still here");
    source.call("CONFIG RESETSTAT");
    cluster.migrate(std::slice::from_ref(&key), 0, 1);
    for waiter in &mut waiters {
        let answer = waiter.answer();
        assert!(answer.starts_with("TRYAGAIN "), "{answer}");
    }
    // The table of slots, which takes four calls, was not read for each client.
    let stats = source.text("INFO commandstats");
    let calls = stats.lines().filter_map(|line| {
        line.strip_prefix("cmdstat_cluster")?.split_once("calls=")?.1.split_once(',')?.0.parse::<usize>().ok()
    });
    let calls: usize = calls.sum();
    assert!((4..2 * WAITING).contains(&calls), "{calls}: {stats}");
    // No client was admitted by the node that no longer has the state.
    assert_eq!(source.int("DBSIZE"), 0);
    wait_for_blocked(&mut source, 0);
    // A second attempt, as the error suggests, is redirected, and waits at the new node, which imports the
    // slot.
    assert!(source.error(&call).starts_with("ASK "));
    let mut waiter = Waiter::connect(&cluster.nodes[1]);
    waiter.send("ASKING");
    assert_eq!(waiter.answer(), "OK");
    // Of a call with several keys, all would have to be there.
    waiter.send(&call.replace(&format!(" {key}:log LOG 9 60 1"), ""));
    wait_for_blocked(&mut target, 1);
    // Two looks at the table of slots.
    std::thread::sleep(Duration::from_millis(1_200));
    assert!(waiter.is_waiting(), "{}", waiter.answer());
    cluster.end_of_move(slot, 1);
    assert!(source.error(&call).starts_with("MOVED "));
    assert_eq!(target.tat(&key), state);
    target.call(&format!("CL.REFUND {key} 0 1 3600"));
    assert!(waiter.answer().starts_with("0 1 0 -1 "));
}

/// One call of each kind of wait, for a key that is full, and for the last one another limiter's key.
const WAITS: [&str; 5] = [
    "CL.BTHROTTLE TAG:rate 0 1 3600 1 0",
    "CL.BMTAKE TAG:month FIXED 1 MONTH 1",
    "CL.BMTAKE TAG:flows THROTTLE 0 1 3600 1 TAG:log LOG 9 60 1 FLOW a WEIGHT 2",
    "CL.BMTAKE TAG:places LEASE 1 3600 WHO",
    "CL.BMTAKE TAG:idle THROTTLE 9 1 60 1 TAG:busy LEASE 1 3600 WHO FLOW b",
];

/// These calls for keys with a tag, and the server's own behind them.
fn waits(tag: &str, who: &str) -> Vec<String> {
    let ours = WAITS.iter().map(|wait| wait.replace("TAG", tag).replace("WHO", who));
    ours.chain([format!("BLPOP {tag}:list 0")]).collect()
}

/// Takes what these calls want.
fn fill(node: &Server, tag: &str) {
    for call in waits(tag, "holder").iter().take(WAITS.len()) {
        let first = call.replace("idle THROTTLE", "idle2 THROTTLE");
        assert!(Waiter::ask(node, &first).answer().starts_with("0 "), "{first}");
    }
}

/// Waits until a node rejects calls for a slot with this error, and asserts that all waits of these calls end
/// as that of the last one does, which is the server's own: in time, and with this error. Of an error that
/// ends with a space, only this beginning is that of the calls.
fn are_sent_away(node: &mut Client, tag: &str, calls: &[String], mut waiters: Vec<Waiter>, error: &str) {
    let is_same = |seen: &str| if error.ends_with(' ') { seen.starts_with(error) } else { seen == error };
    wait_until("the slot to leave", || match node.ask(&format!("GET {tag}")) {
        Err(seen) if is_same(&seen) => Ok(()),
        seen => Err(format!("{seen:?}")),
    });
    let left = Instant::now();
    let answers: Vec<String> = waiters.iter_mut().map(Waiter::answer).collect();
    let after = left.elapsed();
    // A second, and some more on a machine with other work.
    assert!(after < Duration::from_secs(3), "{after:?}: {answers:?}");
    assert!(answers.last().is_some_and(|own| is_same(own)), "{answers:?}");
    let word = error.split(' ').next().unwrap();
    for (answer, call) in answers.iter().zip(calls) {
        // A cluster whose slot has no node goes down, perhaps between the ends of two waits.
        let ends = ["CLUSTERDOWN Hash slot not served", "CLUSTERDOWN The cluster is down"];
        let is_down = word == "CLUSTERDOWN" && ends.contains(&answer.as_str());
        assert!(is_down || Some(answer) == answers.last(), "{call}: {answers:?}");
    }
    let what = format!("cluster: from a slot that leaves to the last client's {word}");
    figure(&what, format!("{} ms", left.elapsed().as_millis()));
    assert_eq!(node.info("blocked_clients"), "0");
}

/// The slot leaves without any change of its keys, and long before any turn. The clients go to the other
/// node, wait there, and are served there; then conversely.
#[test]
pub fn clients_that_wait_go_with_a_slot_that_leaves_at_once() {
    let _alone = alone();
    let cluster = Cluster::start(2, 0);
    let mut nodes = [0, 1].map(|node| cluster.connect(node));
    let moves_at_once = ["CLUSTER|MIGRATION", "CLUSTER|MIGRATESLOTS"].map(|name| nodes[0].has_command(name));
    requires!(moves_at_once != [false; 2], "the server moves slots key by key");
    // The part of a key that decides its slot may be anywhere in it.
    let tag = format!("}}{{{}}}{{x}}", cluster.tags(0..8000, 1)[0]);
    let slot = nodes[0].int(&format!("CLUSTER KEYSLOT {tag}"));
    fill(&cluster.nodes[0], &tag);
    let calls = waits(&tag, "waiter");
    let ask = |node: usize| calls.iter().map(|call| Waiter::ask(&cluster.nodes[node], call)).collect();
    let mut waiters: Vec<Waiter> = ask(0);
    for (from, to) in [(0, 1), (1, 0)] {
        wait_for_blocked(&mut nodes[from], calls.len());
        if moves_at_once[0] {
            nodes[to].call(&format!("CLUSTER MIGRATION IMPORT {slot} {slot}"));
        } else {
            let id = cluster.id(to);
            nodes[from].call(&format!("CLUSTER MIGRATESLOTS SLOTSRANGE {slot} {slot} NODE {id}"));
        }
        are_sent_away(&mut nodes[from], &tag, &calls, waiters, &format!("MOVED {slot} {}", cluster.0[to]));
        waiters = ask(to);
        wait_for_blocked(&mut nodes[to], calls.len());
    }
    for key in ["rate", "month", "flows", "places", "busy"] {
        nodes[0].call(&format!("DEL {tag}:{key}"));
    }
    for (waiter, call) in waiters.iter_mut().zip(&calls).take(WAITS.len()) {
        let answer = waiter.answer();
        assert!(answer.starts_with("0 "), "{call}: {answer}");
    }
}

/// A node takes the slot without importing it, as tools do that repair a cluster, and then gives it up, so
/// that no node serves it, and the cluster is down or not.
#[test]
pub fn clients_that_wait_go_where_the_servers_own_go_when_a_slot_is_taken() {
    let _alone = alone();
    let cluster = Cluster::start(2, 0);
    let mut nodes = [0, 1].map(|node| cluster.connect(node));
    let tag = format!("{{{}}}", cluster.tags(0..8000, 1)[0]);
    let slot = nodes[0].int(&format!("CLUSTER KEYSLOT {tag}"));
    let calls = waits(&tag, "waiter");
    let wait = |node: usize, client: &mut Client| {
        fill(&cluster.nodes[node], &tag);
        let waiters = calls.iter().map(|call| Waiter::ask(&cluster.nodes[node], call)).collect();
        wait_for_blocked(client, calls.len());
        // Two looks at the table of slots. The first one tries all calls again, whatever the table says.
        std::thread::sleep(Duration::from_millis(1_200));
        waiters
    };
    let waiters = wait(0, &mut nodes[0]);
    // The nodes believe the one with the highest configuration epoch.
    let take = ["DELSLOTS", "ADDSLOTS"].map(|verb| format!("CLUSTER {verb} {slot}"));
    for answer in nodes[1].pipeline(&take.each_ref()) {
        answer.unwrap();
    }
    are_sent_away(&mut nodes[0], &tag, &calls, waiters, &format!("MOVED {slot} {}", cluster.0[1]));
    assert_eq!(nodes[0].int("DBSIZE"), 0, "nobody was served by the node that has lost the slot");
    cluster.settle();
    // If it needs all slots, the server itself ends all waits when a slot has no node.
    for needs_all_slots in ["yes", "no"] {
        nodes[1].call("FLUSHALL");
        nodes[1].call(&format!("CONFIG SET cluster-require-full-coverage {needs_all_slots}"));
        let waiters = wait(1, &mut nodes[1]);
        nodes[1].call(&format!("CLUSTER DELSLOTS {slot}"));
        are_sent_away(&mut nodes[1], &tag, &calls, waiters, "CLUSTERDOWN ");
        nodes[1].call(&format!("CLUSTER ADDSLOTS {slot}"));
        cluster.settle();
    }
}

#[test]
pub fn a_cluster_that_goes_down_ends_all_waits() {
    let _alone = alone();
    goes_down("CL.BTHROTTLE KEY 0 1 3600 1 0");
    goes_down("CL.BMTAKE KEY THROTTLE 0 1 3600 1 KEY:log LOG 9 60 1 FLOW a");
}

fn goes_down(call: &str) {
    let mut cluster = Cluster::start(2, 0);
    let key = format!("{{{}}}k", cluster.tags(0..8000, 1)[0]);
    let mut client = cluster.connect(0);
    client.call(&format!("CL.THROTTLE {key} 0 1 3600"));
    let state = client.tat(&key);
    let call = call.replace("KEY", &key);
    let mut waiter = Waiter::ask(&cluster.nodes[0], &call);
    wait_for_blocked(&mut client, 1);
    cluster.nodes[1].kill();
    let answer = waiter.answer();
    assert!(answer.starts_with("CLUSTERDOWN "), "{answer}");
    cluster.nodes[1].restart_here();
    cluster.settle();
    assert_eq!(client.tat(&key), state);
    // The queue is empty: the next client is the first.
    let mut waiter = Waiter::ask(&cluster.nodes[0], &call);
    wait_for_blocked(&mut client, 1);
    client.call(&format!("CL.REFUND {key} 0 1 3600"));
    assert!(waiter.answer().starts_with("0 1 0 -1 "));
}

/// The function library on three primaries without the module: limits in slots of each, the errors of the
/// cluster, and a slot that moves while clients take from two limits in it.
#[test]
pub fn the_function_library_keeps_limits_in_a_cluster() {
    requires!(has_functions(), "the server has no functions");
    let _alone = alone();
    let cluster = Cluster::start_with(|| Options::new().without_module(), 3, 0);
    let mut nodes = [0, 1, 2].map(|node| cluster.connect(node));
    for node in &mut nodes {
        load_functions(node, &FUNCTIONS);
    }
    let tags = [0..5461, 5462..10922, 10923..16384].map(|slots| cluster.tags(slots, 2));
    for (node, tag) in
        tags.iter().enumerate().flat_map(|(node, tags)| tags.iter().map(move |tag| (node, tag)))
    {
        let call = words(&format!("CL.MTAKE {{{tag}}}a THROTTLE 9 1 3600 4 {{{tag}}}b FIXED 9 3600 4"));
        let limited = [(); 3].map(|()| first_row(&nodes[node].call(&call)));
        assert_eq!(limited, [[0, 9, 5], [0, 9, 1], [1, 9, 1]], "{tag}");
        let moved = format!("MOVED {} {}", nodes[0].int(&format!("CLUSTER KEYSLOT {tag}")), cluster.0[node]);
        for other in (0..3).filter(|&other| other != node) {
            assert_eq!(nodes[other].error(&call), moved, "{tag}");
        }
    }
    let pair = format!("{{{}}}a THROTTLE 9 1 60 1 {{{}}}a THROTTLE 9 1 60 1", tags[0][0], tags[0][1]);
    let own = nodes[0].error(&format!("MGET {{{}}}a {{{}}}a", tags[0][0], tags[0][1]));
    assert_eq!(nodes[0].error(&words(&format!("CL.MTAKE {pair}"))), own);
    assert!(own.starts_with("CROSSSLOT "), "{own}");

    let limit = 2000;
    let tag = &tags[0][1];
    let keys = ["x", "y"].map(|name| format!("{{{tag}}}{name}"));
    let call = words(&format!("CL.MTAKE {} THROTTLE 1999 1 3600 1 {} FIXED 2000 3600 1", keys[0], keys[1]));
    let (admitted, redirected, has_moved) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut nodes = [0, 1, 2].map(|node| cluster.connect(node));
                let (mut node, mut limited) = (0, false);
                while !limited {
                    // Half of the limit is left for the time after the move.
                    if has_moved.load(Relaxed) == 0 && admitted.load(Relaxed) >= limit / 2 {
                        std::thread::yield_now();
                        continue;
                    }
                    let mut answer = nodes[node].ask(&call);
                    if answer.as_ref().is_err_and(|error| error.starts_with("ASK ")) {
                        redirected.fetch_add(1, Relaxed);
                        let asking = vec![b"ASKING".to_vec()];
                        answer = nodes[1].pipeline(&[&asking, &call]).remove(1);
                    }
                    match answer {
                        Ok(reply) => {
                            limited = first_row(&reply)[0] == 1;
                            admitted.fetch_add(usize::from(!limited), Relaxed);
                        }
                        Err(error) if error.starts_with("MOVED ") => node = 1,
                        Err(error) => assert!(error.starts_with("TRYAGAIN "), "{error}"),
                    }
                }
            });
        }
        let after = |count: usize| {
            wait_until("calls", || {
                let seen = admitted.load(Relaxed);
                if seen >= count { Ok(()) } else { Err(seen.to_string()) }
            });
        };
        after(100);
        let slot = cluster.begin_to_move(tag, 0, 1);
        cluster.migrate(&keys[..1], 0, 1);
        cluster.migrate(&keys[1..], 0, 1);
        wait_until("a call that is redirected", || {
            let seen = admitted.load(Relaxed);
            let is_late = redirected.load(Relaxed) > 0 || seen >= limit / 2;
            if is_late { Ok(()) } else { Err(seen.to_string()) }
        });
        cluster.end_of_move(slot, 1);
        has_moved.store(1, Relaxed);
    });
    assert_eq!(admitted.load(Relaxed), limit);
    let look = words(&format!("CL.MPEEK {} THROTTLE 1999 1 3600 1 {} FIXED 2000 3600 1", keys[0], keys[1]));
    assert_eq!(first_row(&nodes[1].call(&look)), [1, 2000, 0]);
    assert!(nodes[0].error(&look).starts_with("MOVED "));
}

/// The function's call for a command.
fn words(command: &str) -> Vec<Vec<u8>> {
    to_function(&command.split(' ').collect::<Vec<_>>())
}

/// The first integers of the row for all limiters.
fn first_row(reply: &Value) -> [i64; 3] {
    let Value::Array(rows) = reply else { panic!("{reply:?}") };
    crate::common::ints(&rows[0]).unwrap()[..3].try_into().unwrap()
}
