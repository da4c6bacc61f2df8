//! Clocks that step, drift and stand still.
//!
//! The servers here run on clocks that the tests control: `tests/common/clock_shim.c` replaces the clocks of
//! libc. Usually they are stopped and move only when a test moves them, so an hour takes no time and every
//! reply is exact. To test that a step has no effect, the same calls go to a second server whose clocks did
//! not step, and the replies must be equal.

use crate::common::{
    Client, Clock, Effect, Options, SECOND, Server, Waiter, ceil_div, read_aof, wait_for_blocked, wait_until,
    wall_ns,
};
use crate::failover::wait_for_info;
use redis::Value;

const HOUR: i64 = 3600 * SECOND;

/// A call of every kind of limiter, each of which admits five at once. `#` becomes a new number in every
/// call.
const KINDS: [&str; 9] = [
    "CL.THROTTLE gcra 4 1 60000 1 MS",
    "CL.RESERVE reserve 4 1 60000 1 MAXWAIT 0 MS",
    "CL.MTAKE several THROTTLE 4 1 60000 1 MS",
    "CL.FUNNEL funnel 5 1 60000 1 MS",
    "CL.BUCKET bucket 5 1 60000 1 MS",
    "CL.FIXED fixed 5 60000 1 MS",
    "CL.WINDOW window 5 60000 1 MS",
    "CL.LOG log 5 60000 1 MS",
    "CL.ACQUIRE lease 5 60000 # MS",
];

/// How a call reaches the server.
#[derive(Clone, Copy)]
enum Way {
    Plain,
    Transaction,
    Script,
}

/// A server on clocks that the test controls.
pub struct Subject {
    pub clock: Clock,
    pub client: Client,
    pub server: Server,
    way: Way,
    calls: u32,
}

impl Subject {
    pub fn new() -> Self {
        Self::with(Clock::stopped(), Options::new())
    }

    pub fn with(clock: Clock, options: Options) -> Self {
        let server = clock.start(options);
        Self { clock, client: server.connect(), server, way: Way::Plain, calls: 0 }
    }

    pub fn with_options(options: Options) -> Self {
        Self::with(Clock::stopped(), options)
    }

    fn by(way: Way) -> Self {
        Self { way, ..Self::new() }
    }

    pub fn restart(&mut self) {
        self.server.restart();
        self.client = self.server.connect();
    }

    /// The five numbers of a reply.
    fn take(&mut self, kind: &str) -> Vec<i64> {
        self.calls += 1;
        let call = kind.replace('#', &self.calls.to_string());
        let answer = match self.way {
            Way::Plain => self.client.call(&call),
            Way::Transaction => {
                self.client.call("MULTI");
                self.client.call(&call);
                let Value::Array(mut answers) = self.client.call("EXEC") else { panic!("no EXEC") };
                answers.remove(0)
            }
            Way::Script => {
                let mut words = vec!["EVAL", "return redis.call(unpack(ARGV))", "0"];
                words.extend(call.split(' '));
                self.client.call(&words)
            }
        };
        first_row(&answer)
    }

    /// How many of twenty calls are admitted.
    fn admitted(&mut self, kind: &str) -> usize {
        (0..20).filter(|_| self.take(kind)[0] == 0).count()
    }
}

/// The five numbers of a reply, or of its first row.
fn first_row(answer: &Value) -> Vec<i64> {
    match answer {
        Value::Array(items) => match &items[..] {
            [Value::Array(_), ..] => first_row(&items[0]),
            items => items.iter().map(|item| redis::from_redis_value(item.clone()).unwrap()).collect(),
        },
        seen => panic!("no answer of a limiter: {seen:?}"),
    }
}

/// Asserts that two servers give the same replies to every kind of call, now and as time passes.
fn assert_alike(what: &str, one: &mut Subject, other: &mut Subject) {
    // With room again, without room yet, and long after every limiter is fully replenished.
    for wait in [0, 29, 1, 29, 2, 17, 43, 61, 60, 600].map(|seconds| seconds * SECOND) {
        one.clock.pass(wait);
        other.clock.pass(wait);
        for kind in KINDS {
            for call in 1..=7 {
                let (seen, expected) = (one.take(kind), other.take(kind));
                assert_eq!(seen, expected, "{what}, {} s on, call {call}: {kind}", wait / SECOND);
            }
        }
    }
}

fn fill(subject: &mut Subject) {
    for kind in KINDS {
        assert_eq!(subject.admitted(kind), 5, "{kind}");
    }
}

#[test]
fn the_clocks_of_libc_are_the_only_ones() {
    let mut subject = Subject::new();
    for round in 0..3 {
        subject.client.call("CL.THROTTLE k 4 1 60");
        let wall = subject.clock.wall();
        assert_eq!(subject.client.tat("k"), Some(wall + 60 * SECOND), "round {round}");
        subject.clock.pass(HOUR + 1);
    }
}

/// To the millisecond: no key expires before its limiter is fully replenished, and none stays longer.
#[test]
pub fn a_key_lives_until_it_is_fully_replenished() {
    let mut subject = Subject::new();
    subject.clock.pass(999_999); // the last nanosecond of a millisecond
    for kind in KINDS {
        let call = kind.replace("60000", "60000000").replace(" MS", " US");
        let (answer, now) = (subject.take(&call), subject.clock.wall());
        let key = key_of(kind);
        // The reply is rounded up to a microsecond, the expiry to a millisecond.
        let new_from = now + (answer[4] - 1) * 1000;
        let expiry = subject.client.expiry_ms(key) * 1_000_000;
        // A sliding window is fully replenished once its units weigh less than half a unit. Its key lives
        // until they weigh nothing, which is the end of the next window.
        let until = if kind.starts_with("CL.WINDOW") {
            let next = (now / (60 * SECOND) + 2) * 60 * SECOND;
            assert!(new_from <= next, "{kind}: {answer:?}");
            next..=next
        } else {
            new_from..=new_from + 1_001_000
        };
        assert!(until.contains(&expiry), "{kind}: {answer:?}, {until:?}, {expiry}");
    }
}

/// An entry counts until its period is over, and not at that instant.
#[test]
pub fn an_entry_of_a_log_is_gone_at_the_end_of_its_period() {
    let mut subject = Subject::new();
    let mut take = |pass: i64| {
        subject.clock.pass(pass);
        subject.client.ints("CL.LOG log 2 60")[..3].to_vec()
    };
    assert_eq!(take(0), [0, 2, 1]);
    assert_eq!(take(10 * SECOND), [0, 2, 0]);
    assert_eq!(take(50 * SECOND - 1_000), [1, 2, 0]);
    assert_eq!(take(1_000), [0, 2, 0]);
}

#[test]
pub fn a_step_back_makes_no_client_wait_longer_and_admits_no_more() {
    for step in [-HOUR, -5 * SECOND] {
        let (mut stepped, mut left_alone) = (Subject::new(), Subject::new());
        for again in ["once", "again"] {
            for one in [&mut stepped, &mut left_alone] {
                fill(one);
                // If a fixed window opens shortly before the step back, it may seem to open after it.
                one.clock.pass(6 * SECOND);
            }
            stepped.clock.step(step);
            assert_alike(&format!("stepped by {} s {again}", step / SECOND), &mut stepped, &mut left_alone);
            // Long enough for every limiter to be fully replenished on both.
            stepped.clock.pass(HOUR);
            left_alone.clock.pass(HOUR);
        }
    }
}

#[test]
pub fn a_step_forward_forgives_the_burst_and_no_more() {
    let mut subject = Subject::new();
    fill(&mut subject);
    subject.clock.step(HOUR);
    for kind in KINDS {
        assert_eq!(subject.admitted(kind), 5, "after a step forward: {kind}");
        assert_eq!(subject.admitted(kind), 0, "after what it forgave was used: {kind}");
    }
    subject.clock.step(-HOUR);
    for kind in KINDS {
        assert_eq!(subject.admitted(kind), 0, "after a step back again: {kind}");
    }
}

#[test]
pub fn a_step_forward_is_an_hour_that_has_passed() {
    let (mut stepped, mut waited) = (Subject::new(), Subject::new());
    fill(&mut stepped);
    fill(&mut waited);
    stepped.clock.step(HOUR);
    waited.clock.pass(HOUR);
    fill(&mut stepped);
    fill(&mut waited);
    stepped.clock.step(-HOUR);
    assert_alike("set forward by mistake, then back", &mut stepped, &mut waited);
}

/// The faster clock counts: the drift changes limits by no more than itself.
#[test]
pub fn a_slow_drift_moves_limits_by_the_drift_alone() {
    for per_mille in [-50, -1, 1, 50] {
        let (mut drifting, mut true_one) = (Subject::new(), Subject::new());
        fill(&mut drifting);
        fill(&mut true_one);
        for _ in 0..40 {
            let time = 7 * SECOND;
            let drifted = time + time / 1000 * per_mille;
            drifting.clock.pass_unevenly(drifted, time);
            true_one.clock.pass(time.max(drifted));
            for kind in KINDS {
                assert_eq!(drifting.take(kind), true_one.take(kind), "{per_mille} per mille: {kind}");
            }
        }
        assert_alike("after the drift", &mut drifting, &mut true_one);
    }
}

/// A paused process, and a machine that was paused or asleep: the monotonic clock runs during the pause or
/// not, and the wall clock is right again after it or not.
#[test]
pub fn a_pause_is_time_that_passes_on_the_faster_clock() {
    for (wall, monotonic) in [(HOUR, HOUR), (HOUR, 0), (0, HOUR), (90 * SECOND, 45 * SECOND), (0, 0)] {
        let (mut paused, mut waited) = (Subject::new(), Subject::new());
        for one in [&mut paused, &mut waited] {
            fill(one);
            // A wall clock that stands still from the very millisecond on in which a fixed window has opened
            // does not tell whether that was before the pause.
            one.clock.pass(SECOND);
        }
        paused.server.signal("STOP");
        paused.clock.pass_unevenly(wall, monotonic);
        paused.server.signal("CONT");
        waited.clock.pass(wall.max(monotonic));
        let what = format!("paused, {} s by the wall, {} s monotonic", wall / SECOND, monotonic / SECOND);
        assert_alike(&what, &mut paused, &mut waited);
    }
}

#[test]
fn in_transactions_and_scripts_time_is_the_same() {
    for way in [Way::Transaction, Way::Script] {
        let (mut wrapped, mut plain) = (Subject::by(way), Subject::new());
        for step in [-HOUR, 2 * HOUR, -5 * SECOND] {
            wrapped.clock.step(step);
            plain.clock.step(step);
            assert_alike("in a transaction or script", &mut wrapped, &mut plain);
        }
    }
}

/// A long script sees time pass, and each of its calls is decided by the time of that call.
#[test]
fn time_goes_on_within_a_script() {
    let mut subject = Subject::new();
    let script = "local admitted = 0
        while admitted < 10 do
            if redis.call('CL.THROTTLE', KEYS[1], 4, 1, 60)[1] == 0 then admitted = admitted + 1 end
        end
        return admitted";
    let client = &mut subject.client;
    let sha = client.text(&["SCRIPT", "LOAD", script]);
    let mut waiter = Waiter::ask(&subject.server, &format!("EVALSHA {sha} 1 k"));
    wait_until("the script to see the clock go on", || {
        subject.clock.pass(HOUR);
        if waiter.is_waiting() { Err("not yet".to_owned()) } else { Ok(()) }
    });
    assert_eq!(waiter.answer(), "10");
    if let Some(tat) = client.tat("k") {
        assert_eq!(client.expiry_ms("k"), ceil_div(tat.into(), 1_000_000));
    }
}

/// Every kind among several limiters, each with room for one.
const ONE_OF_SEVERAL: [&str; 7] = [
    "THROTTLE 0 1 60000 1",
    "FUNNEL 1 1 60000 1",
    "BUCKET 1 1 60000 1",
    "FIXED 1 60000 1",
    "WINDOW 1 60000 1",
    "LOG 1 60000 1",
    "LEASE 1 60000 holder",
];

/// The other calls that write a key of their own.
const OTHERS: [&str; 5] = [
    "CL.CHARGE charged 4 1 60000 1 MS",
    "CL.PAUSE paused 4 1 60000 60000 MS",
    "CL.MSETTLE settled FUNNEL 5 1 60000 1 MS",
    "CL.MTAKE shadow SHADOW LOG 5 60000 1 MS",
    "CL.MTAKE once THROTTLE 4 1 60000 1 ONCE reply 60000 MS",
];

/// Regression: Redis 8.6 crashed. The wall clock is set forward between any two readings of a call. No call
/// is decided at an instant before the server's, so what the next one stores has not expired.
#[test]
fn a_step_forward_within_a_call_harms_no_key() {
    let company =
        ONE_OF_SEVERAL.map(|one| format!("CL.MTAKE a {one} several THROTTLE 4 1 60000 1 b {one} MS"));
    let mut subject = Subject::new();
    for call in KINDS.map(str::to_owned).iter().chain(&OTHERS.map(str::to_owned)).chain(&company) {
        let call = call.replace('#', "holder");
        for readings in 0..24 {
            subject.clock.step_within(readings, HOUR);
            subject.client.call(&call);
            while !subject.clock.has_stepped() {
                subject.client.call("PING");
            }
            subject.client.call(&call);
            let left = subject
                .client
                .int(&format!("PTTL {}", if call.contains(" a ") { "b" } else { key_of(&call) }));
            assert!(left > 0, "{call}, after {readings} readings: {left}");
        }
    }
    subject.server.assert_alive("the steps");
}

/// The same in a queue's timer, outside any command: what has expired before it could be stored is a
/// deletion.
#[test]
fn a_step_forward_within_a_turn_harms_no_key() {
    let mut subject = Subject::with_options(Options::new().append_only());
    let mut deletions = 0;
    for one in ONE_OF_SEVERAL {
        for readings in 8..40 {
            let call =
                format!("k {one} several THROTTLE 0 1 60000 1 MS").replace("holder", &readings.to_string());
            subject.client.call("FLUSHALL");
            subject
                .client
                .call(&format!("CL.MTAKE {}", call.replace("LEASE 1 60000 ", "LEASE 1 60000 other")));
            let mut waiter = Waiter::ask(&subject.server, &format!("CL.BMTAKE {call}"));
            wait_for_blocked(&mut subject.client, 1);
            let before = read_aof(&subject.server).len();
            subject.clock.step_within(readings, HOUR);
            subject.clock.pass(120 * SECOND);
            wait_until("the turn", || {
                subject.client.call("PING");
                subject.clock.pass(SECOND / 5);
                if waiter.is_waiting() { Err("still waits".to_owned()) } else { Ok(()) }
            });
            let answer = waiter.answer();
            let there = subject.client.int("EXISTS k");
            let effects = read_aof(&subject.server).split_off(before);
            let of_key = |effect: &&Effect| effect.command.split(' ').nth(1) == Some("k");
            let is_deletion = |effect: &Effect| ["DEL k", "UNLINK k"].contains(&&*effect.command);
            let last = effects.iter().rfind(of_key);
            assert_eq!(there == 0, last.is_some_and(is_deletion), "{one}, {readings}: {answer}, {effects:?}");
            deletions += u32::from(effects.iter().filter(of_key).all(is_deletion));
        }
    }
    assert!(deletions > 0, "no step came between a decision and its write");
    subject.server.assert_alive("the steps");
}

/// Waiting clients are admitted at the time that was due, whatever happens to the wall clock.
#[test]
pub fn a_step_back_delays_no_waiting_client() {
    for step in [-HOUR, -5 * SECOND] {
        let (mut stepped, mut left_alone) = (Subject::new(), Subject::new());
        let mut lines = [&mut stepped, &mut left_alone].map(|subject| {
            assert_eq!(subject.take("CL.THROTTLE k 0 1 60"), [0, 1, 0, -1, 60]);
            let mut waiters: Vec<Waiter> = Vec::new();
            for place in 1..=3 {
                waiters.push(Waiter::ask(&subject.server, "CL.BTHROTTLE k 0 1 60 1 0"));
                wait_for_blocked(&mut subject.client, place);
            }
            // A client whose timeout ends half a minute after the turn before its own gets a reply at once.
            waiters.push(Waiter::ask(&subject.server, "CL.BTHROTTLE k 0 1 60 1 230"));
            assert_eq!(waiters[3].answer(), "null");
            waiters.reverse();
            waiters.truncate(4);
            waiters.remove(0);
            waiters
        });
        stepped.clock.step(step);
        for turn in 1..=3 {
            for (subject, waiters) in [&mut stepped, &mut left_alone].into_iter().zip(&mut lines) {
                let mut first = waiters.pop().unwrap();
                subject.clock.pass(59 * SECOND);
                subject.client.call("PING");
                assert!(first.is_waiting(), "turn {turn} came early: {}", first.answer());
                subject.clock.pass(SECOND);
                subject.client.call("PING");
                // If the server's cron has just run, stopped clocks would never start the next one.
                subject.clock.pass(SECOND / 5);
                let answer = first.answer();
                assert!(answer.starts_with("0 1 0 -1 "), "turn {turn}: {answer}");
                assert!(waiters.iter_mut().all(Waiter::is_waiting), "turn {turn} was two");
            }
        }
    }
}

/// Regression: steps back that were each too small to be noticed added up to any delay.
#[test]
pub fn small_steps_back_do_not_add_up() {
    let mut subject = Subject::new();
    assert_eq!(subject.take("CL.THROTTLE k 0 1 60"), [0, 1, 0, -1, 60]);
    let mut waiter = Waiter::ask(&subject.server, "CL.BTHROTTLE k 0 1 60 1 0");
    wait_for_blocked(&mut subject.client, 1);
    for _ in 0..40 {
        subject.clock.step(-45 * SECOND / 1000);
        subject.clock.pass(SECOND / 5);
        // The server's cron runs after the first of these, at the latest.
        subject.client.call("PING");
        subject.client.call("PING");
    }
    subject.clock.pass(52 * SECOND - SECOND / 5);
    subject.client.call("PING");
    assert!(waiter.is_waiting(), "too early: {}", waiter.answer());
    subject.clock.pass(2 * SECOND / 5);
    subject.client.call("PING");
    wait_until("the turn", || if waiter.is_waiting() { Err("still waits".to_owned()) } else { Ok(()) });
    assert!(waiter.answer().starts_with("0 1 0 -1 "));
}

/// As docs/clock.md says: a restarted process reads the wall clock, and states from the future look fuller.
#[test]
fn after_a_restart_the_wall_counts() {
    let mut subject = Subject::with(Clock::stopped(), Options::new().append_only());
    fill(&mut subject);
    let told = KINDS.map(|kind| subject.take(kind)[3]);
    subject.clock.step(-HOUR);
    subject.restart();
    for (kind, told) in KINDS.into_iter().zip(told) {
        let seen = subject.take(kind);
        assert_eq!(seen[0], 1, "{kind}");
        assert_eq!(seen[3], told + 3_600_000, "{kind}");
    }
    assert_eq!(subject.take("CL.THROTTLE fresh 4 1 60"), [0, 5, 4, -1, 60]);
    // The wall clock has caught up.
    subject.clock.pass(HOUR);
    for (kind, told) in KINDS.into_iter().zip(told) {
        assert_eq!(subject.take(kind)[3], told, "{kind}");
    }
    subject.clock.step(HOUR);
    subject.restart();
    for kind in KINDS {
        assert_eq!(subject.admitted(kind), 5, "forgiven by a step forward: {kind}");
    }
}

const YEAR: i64 = 365 * 24 * HOUR;

/// A key of each kind of limiter.
fn key_of(kind: &str) -> &str {
    kind.split(' ').find(|word| word.starts_with(|c: char| c.is_ascii_lowercase())).unwrap()
}

/// The clock is wrong for a moment, in which every limiter is called once, and is put right.
fn wrong_for_a_moment(subject: &mut Subject, by: i64) {
    subject.clock.step(by);
    subject.take("CL.THROTTLE wrong 4 1 60");
    subject.clock.step(-by);
    let lead = format!("redis-cell_clock_lead_ms:{}\r\n", by / 1_000_000);
    assert!(subject.client.text("INFO redis-cell").contains(&lead), "{lead}");
}

/// Once the clock is right again, keys live as long as their limiters need.
#[test]
pub fn a_wrong_moment_lengthens_no_life() {
    for by in [HOUR, 36 * YEAR] {
        let mut subject = Subject::new();
        wrong_for_a_moment(&mut subject, by);
        for kind in KINDS {
            let needed = subject.take(kind)[4];
            let needed = if kind.starts_with("CL.WINDOW") { 120_000 } else { needed };
            let left = subject.client.int(&format!("PTTL {}", key_of(kind)));
            assert!((1..=needed + 1).contains(&left), "{kind}: {left} of {needed}");
        }
        subject.client.call("CL.MTAKE once THROTTLE 4 1 60000 1 ONCE reply 60000 MS");
        let left = subject.client.int("PTTL reply");
        assert!((1..=60_001).contains(&left), "ONCE: {left}");
    }
}

/// Calendar windows and windows with an end follow only the wall clock.
#[test]
pub fn the_calendar_is_right_as_soon_as_the_wall_clock() {
    let mut subject = Subject::new();
    subject.clock.step(36 * YEAR);
    for window in ["HOUR", "DAY", "WEEK", "MONTH", "YEAR"] {
        assert_eq!(subject.client.ints(&format!("CL.FIXED wrong{window} 2 {window}"))[0], 0);
    }
    subject.clock.step(-36 * YEAR);
    let now = subject.clock.wall();
    for (window, longest) in
        [("HOUR", HOUR), ("DAY", 24 * HOUR), ("MONTH", 31 * 24 * HOUR), ("YEAR", YEAR + 24 * HOUR)]
    {
        for key in ["wrong", "right"] {
            let call = format!("CL.FIXED {key}{window} 2 {window}");
            assert_eq!(subject.client.ints(&call)[0], 0, "{call}");
            let end = subject.client.expiry_ms(&format!("{key}{window}")) * 1_000_000;
            assert!((now + 1..=now + longest).contains(&end), "{call}: {end}");
        }
    }
    let until = now / SECOND + 90;
    assert_eq!(subject.take(&format!("CL.FIXED until 5 UNTIL {until} 5"))[..2], [0, 5]);
    assert_eq!(subject.client.expiry_ms("until"), until * 1000);
    subject.clock.pass(91 * SECOND);
    let until = until + 90;
    assert_eq!(subject.take(&format!("CL.FIXED until 5 UNTIL {until} 5"))[..2], [0, 5]);
}

/// A fixed window that opens less than a small step before it: no more units are admitted, and it ends later
/// by the step.
#[test]
pub fn a_step_back_lengthens_a_fixed_window_by_no_more_than_itself() {
    let fixed = "CL.FIXED fixed 5 60000 1 MS";
    for age in [0, 2, 4, 5, 6] {
        let mut subject = Subject::new();
        assert_eq!(subject.admitted(fixed), 5);
        subject.clock.pass(age * SECOND);
        subject.clock.step(-5 * SECOND);
        let mut waited = age;
        while subject.admitted(fixed) == 0 {
            subject.clock.pass(SECOND);
            waited += 1;
        }
        assert!((60..=if age <= 5 { 65 } else { 60 }).contains(&waited), "{age} s before: {waited} s");
    }
}

/// States that were written while the module's clock was ahead mean the same to a process whose clock is
/// right.
#[test]
pub fn after_a_restart_no_client_waits_longer_than_the_key_lives() {
    let ahead = 100 * 24 * HOUR;
    let mut subject = Subject::with(Clock::stopped(), Options::new().append_only());
    let mut other = Subject::with(Clock::stopped(), Options::new().append_only());
    wrong_for_a_moment(&mut subject, ahead);
    for one in [&mut subject, &mut other] {
        fill(one);
        one.clock.pass(7 * SECOND);
        one.restart();
        // A write keeps the knowledge of the key's expiry.
        one.clock.pass(113 * SECOND);
    }
    assert_alike("after a wrong moment and a restart", &mut subject, &mut other);
}

/// A state so far ahead that it is taken for something else is an error until its key expires.
#[test]
fn after_a_restart_a_state_from_another_age_is_gone_with_its_key() {
    let mut subject = Subject::with(Clock::stopped(), Options::new().append_only());
    wrong_for_a_moment(&mut subject, 36 * YEAR);
    fill(&mut subject);
    subject.restart();
    subject.clock.pass(301 * SECOND);
    fill(&mut subject);
}

/// A failover is a step by the difference of the two clocks. The state itself is exactly the same.
#[test]
pub fn a_failover_is_a_step_by_the_difference_of_the_clocks() {
    for ahead in [5 * SECOND, -5 * SECOND] {
        let mut primary = Subject::with(Clock::ahead_by(0), Options::new());
        let mut replica = Subject::with(Clock::ahead_by(ahead), Options::new());
        replica.client.call(&format!("REPLICAOF 127.0.0.1 {}", primary.server.port()));
        wait_for_info(&mut replica.client, "master_link_status", "up");
        fill(&mut primary);
        assert_eq!(primary.client.int("WAIT 1 60000"), 1);
        replica.client.call("REPLICAOF NO ONE");
        assert_eq!(replica.client.tat("gcra"), primary.client.tat("gcra"));
        for kind in KINDS {
            let begun = wall_ns();
            let (here, there) = (primary.take(kind), replica.take(kind));
            // Besides the clocks, the replies differ by the time between the calls and by a rounding each.
            let between = (wall_ns() - begun) / 1_000_000 + 2;
            // Windows are aligned to the epoch: one may have just begun.
            if !kind.starts_with("CL.WINDOW") {
                assert_eq!([here[0], there[0]], [1, 1], "{kind}");
                let sooner = here[3] - there[3] - ahead / 1_000_000;
                assert!((-1..=between).contains(&sooner), "{kind}: {here:?} became {there:?}");
            }
        }
    }
}
