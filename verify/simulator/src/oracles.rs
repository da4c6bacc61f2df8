//! The properties that must hold after every step.
//!
//! - *contract*: replies and states are those of the model; clients are served in the order that the pages
//!   promise; a timeout is told in time
//! - *bound*: what was admitted on a key by one limit, booked and waited for included, stays below the bound
//! - *progress*: no client waits that could be admitted, and that no other client precedes
//! - *told*: each key that has changed was signalled and published
//! - *fair*: flows that wait for one limiter are served in the order of their tags
//! - *info*: the module's section of INFO counts what was replied, and the clients that wait
//! - *purity*: a refusal, a look and an error change nothing
//! - *replication*: the keys by the stream of effects are the keys
//! - *handles*, *cost* and *memory* are found by the world itself, by the server and at the end of a run

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use crate::accounts;
use crate::boundary;
use crate::clock;
use crate::contract::{self, Call};
use crate::history::{self, Step};
use crate::keyspace::{Bytes, Entry, Keyspace, Value};
use crate::model::{self, Limit, Part, Rate, State};
use crate::world::{Answer, Held, MILLI, Reply, Words, World, slot_of, with};

/// How much later than at once something that is due may happen: the milliseconds of timers, the poll while
/// writes are paused, and the budget of the main thread, with a margin.
const SLACK: i64 = 30 * MILLI;

/// How much later the timer may be that was set before the wall clock was set back: by less than that it is
/// not set again.
const STEP: i64 = 50 * MILLI;

/// A client that waits.
#[derive(Clone, Debug)]
struct Waiter {
    call: Call,
    words: Rc<Words>,
    db: i32,
    order: u64,
    since: i64,
}

impl Waiter {
    /// The key whose line it is in.
    fn place(&self) -> (i32, String) {
        (self.db, self.call.parts[0].key.clone())
    }

    fn is_plain(&self) -> bool {
        self.call.verb == "BTHROTTLE"
    }

    fn deadline(&self) -> Option<i128> {
        self.call.timeout.map(|timeout| i128::from(self.since) + timeout)
    }
}

/// Who waits for a key: clients by their order.
#[derive(Debug, Default)]
struct Line {
    /// Those of CL.BTHROTTLE, and their costs.
    plain: BTreeMap<u64, u64>,
    costs: i128,
    /// Those of CL.BMTAKE, in each flow, and those of them that have a key of ONCE.
    flows: BTreeMap<Option<Bytes>, BTreeMap<u64, u64>>,
    with_once: BTreeSet<u64>,
    /// How many clients of CL.BMTAKE name the key.
    named: usize,
}

impl Line {
    fn is_empty(&self) -> bool {
        self.plain.is_empty() && self.flows.is_empty()
    }

    /// The clients of one order.
    fn peers(&self, of: &Waiter) -> Option<&BTreeMap<u64, u64>> {
        if of.is_plain() { Some(&self.plain) } else { self.flows.get(&of.call.flow) }
    }

    /// The first client of CL.BTHROTTLE, and that of each flow.
    fn heads(&self) -> impl Iterator<Item = u64> {
        [&self.plain].into_iter().chain(self.flows.values()).filter_map(|all| Some(*all.first_key_value()?.1))
    }
}

/// The units that one limit has admitted on a key.
#[derive(Clone, Debug, Default)]
struct Ledger {
    /// `max_burst`, and the rate.
    limit: Option<(i128, Rate)>,
    /// When how much acts, on the monotonic clock.
    acts: Vec<(i128, i128)>,
    /// Whether something else has changed the key.
    is_spoilt: bool,
}

/// The flows of a queue, by the pages. Tags are in units of 2^-32.
#[derive(Debug, Default)]
struct Flows {
    /// The virtual time.
    time: i128,
    /// The weight and the finish tag of each flow.
    known: BTreeMap<Option<Bytes>, (i128, i128)>,
    /// The clients of each flow, in the order of arrival.
    clients: BTreeMap<Option<Bytes>, BTreeSet<u64>>,
    /// The start tag and the number of the first client of each flow.
    firsts: BTreeMap<Option<Bytes>, (i128, u64)>,
    /// Whether something has happened that cannot be followed.
    are_lost: bool,
}

impl Flows {
    /// The weight and the finish tag of a flow that has clients or a tag ahead; any other one is like
    /// a new one.
    fn flow(&mut self, flow: &Option<Bytes>) -> Option<&mut (i128, i128)> {
        self.known.get_mut(flow).filter(|(_, finish)| *finish > self.time || self.firsts.contains_key(flow))
    }

    fn join(&mut self, order: u64, flow: &Option<Bytes>, weight: Option<i128>) {
        let time = self.time;
        let mut own = self.flow(flow).map_or((1, time), |own| *own);
        own.0 = weight.unwrap_or(own.0);
        self.firsts.entry(flow.clone()).or_insert((own.1.max(time), order));
        self.known.insert(flow.clone(), own);
        self.clients.entry(flow.clone()).or_default().insert(order);
    }

    /// A client leaves, and has got this quantity.
    fn leave(&mut self, order: u64, flow: &Option<Bytes>, got: Option<i128>) {
        let Some(clients) = self.clients.get_mut(flow) else { return };
        if !clients.remove(&order) {
            return;
        }
        let next = clients.first().copied();
        if next.is_none() {
            self.clients.remove(flow);
        }
        let Some(&(start, _)) = self.firsts.get(flow).filter(|(_, first)| *first == order) else {
            self.are_lost |= got.is_some();
            return;
        };
        if let Some(quantity) = got {
            self.time = self.time.max(start);
            let (weight, finish) = self.known.entry(flow.clone()).or_insert((1, 0));
            *finish = self.time + step(quantity, *weight);
        }
        self.firsts.remove(flow);
        if let Some(next) = next {
            let start = self.known.get(flow).map_or(0, |(_, finish)| *finish).max(self.time);
            self.firsts.insert(flow.clone(), (start, next));
        }
    }

    /// Both tags of a flow move, but not below the virtual time.
    fn settle(&mut self, flow: &Option<Bytes>, weight: Option<i128>, difference: i128) {
        let time = self.time;
        let Some((own, finish)) = self.flow(flow) else { return };
        *own = weight.unwrap_or(*own);
        let by = step(difference.abs(), *own);
        let moved = |tag: i128| match difference {
            1.. => (tag + by).max(time),
            _ if tag > time => (tag - by).max(time),
            _ => tag,
        };
        *finish = moved(*finish);
        self.firsts.get_mut(flow).into_iter().for_each(|(start, _)| *start = moved(*start));
    }
}

/// The increase of the tags of a flow of this weight for a quantity.
fn step(quantity: i128, weight: i128) -> i128 {
    ((quantity << 32) + weight - 1) / weight
}

/// A booking behind clients that wait.
#[derive(Debug)]
struct Booked {
    /// The last client before it.
    last: u64,
    /// When that one is served, whatever is charged meanwhile.
    served_by: i128,
    /// How late timers may be until then.
    spare: i128,
}

/// What the oracles remember.
#[derive(Debug, Default)]
pub struct Judge {
    waiters: BTreeMap<u64, Waiter>,
    lines: BTreeMap<(i32, String), Line>,
    /// When clients stop waiting.
    deadlines: BTreeSet<(i128, u64)>,
    ledgers: BTreeMap<(i32, String), Ledger>,
    /// Whether the wall clock is set within a call.
    is_set_within: bool,
    /// Whether it has been set back.
    is_set_back: bool,
    /// When the server had last had its turn, on the monotonic clock, if nothing has happened since.
    is_settled: bool,
    /// Replies that are stored by ONCE, with the instants until which they are there for certain.
    stored: BTreeMap<(i32, Bytes), (Reply, i64, i64)>,
    /// Those of them that were stored by a call that its client had sent while it was blocked.
    stored_behind: BTreeSet<(i32, Bytes)>,
    /// Since when nothing but time keeps the server from serving, on the monotonic clock.
    free_since: i64,
    flows: BTreeMap<(i32, String), Flows>,
    /// Keys of holds that were written while the module's clock was ahead of the wall clock.
    led: BTreeSet<String>,
    /// Keys with bookings behind clients that wait for them.
    booked: BTreeMap<(i32, String), Vec<Booked>>,
    /// How late timers may be, because calls have taken this time since the server had last had its turn.
    late: i128,
    /// Since when the slots of keys are served elsewhere, or the server is a replica, on the monotonic clock.
    left: BTreeMap<u16, i64>,
    demoted: i64,
    /// How many times the server has had its turn.
    looks: u32,
    /// The counts of INFO at the beginning.
    counted: BTreeMap<String, u64>,
    /// How many replies were compared with the contract.
    pub compared: u64,
    /// How many clients were looked at that wait.
    pub looked: u64,
}

/// The state before a step.
#[derive(Debug, Default)]
pub struct Before {
    call: Option<(u64, Rc<Words>, i32, Call)>,
    held: BTreeMap<String, Held>,
    is_plain: bool,
    /// The module's clock, which stands still within a plain call.
    now: i64,
    written: u64,
    /// The units for which clients wait that come before this call.
    goes_before: Option<u64>,
    /// The costs of the clients that wait for its keys, which count as taken.
    queued: BTreeMap<String, i128>,
    /// Whether it has to wait behind the clients of flows.
    is_behind: bool,
    /// Whether the key of `ONCE` was there.
    is_repeat: bool,
    /// Whether there was no memory.
    is_full: bool,
    /// How far the module's clock was ahead of the wall clock.
    lead: i128,
    /// The module's steps so far.
    steps: u64,
}

/// The first integer of a reply.
fn first(reply: &Reply) -> Option<i64> {
    match reply {
        Reply::Int(number) => Some(*number),
        Reply::Array(items) => first(items.first()?),
        _ => None,
    }
}

impl Judge {
    /// The module was loaded.
    pub fn begin(&mut self) {
        self.counted = counts();
        with(|world| world.replied.clear());
    }

    /// Records the state before a step.
    pub fn before(&mut self, step: &Step) -> Before {
        with(|world| {
            world.seen.clear();
            world.signalled.clear();
            world.published.clear();
            (world.acted, world.disturbances) = Default::default();
            world.sees = true;
        });
        let mut before = Before {
            written: with(|world| world.written),
            now: clock::module(),
            lead: lead(),
            steps: boundary::steps(),
            ..Before::default()
        };
        self.is_set_within |= matches!(step, Step::SetWithin(..));
        self.is_set_back |= matches!(step, Step::Set(by) if *by < 0);
        let Step::Call(client, words) = step else { return before };
        let is_script = words.first().is_some_and(|word| word.eq_ignore_ascii_case(b"LUA"));
        let words = if is_script { Rc::new(words[1..].to_vec()) } else { Rc::clone(words) };
        let runs = with(|world| {
            let paused = clock::wall() / MILLI < world.paused_until;
            let client = world.clients.get(client);
            !paused && client.is_none_or(|client| client.blocked.is_none() && client.queued.is_none())
        });
        let Some(call) = Call::parse(&words).filter(|_| runs) else { return before };
        let db = with(|world| world.clients.get(client).map_or(0, |client| client.db));
        before.is_plain = !self.is_set_within && call.once.is_none();
        before.is_plain &= with(|world| {
            let is_own = |key: &str| world.keys.get(db, key.as_bytes()).is_none_or(|entry| !entry.by_hand);
            world.settings.tick == 0 && call.keys().all(is_own)
        });
        // The units that a client waits for count as taken from its keys.
        let is_behind = !["CHARGE", "REFUND", "PAUSE", "MSETTLE"].contains(&call.verb.as_str());
        for part in call.parts.iter().filter(|_| !self.lines.is_empty()) {
            let place = (db, part.key.clone());
            let Some(line) = self.lines.get(&place) else { continue };
            // Another module may have booked behind them.
            before.is_plain &= line.named == 0 && with(|world| !world.settings.beside);
            if !line.plain.is_empty() {
                before.is_plain &= is_behind && !self.booked.contains_key(&place);
                before.queued.insert(part.key.clone(), line.costs);
            }
        }
        // What is not compared is not copied.
        with(|world| {
            for key in call.keys().filter(|_| before.is_plain) {
                let entry = world.living(db, key.as_bytes());
                before.held.insert(key.into(), entry.map(|entry| (entry.value.clone(), entry.expiry)));
            }
        });
        before.goes_before = self.goes_before(&call, db);
        before.is_plain &= !(is_script && call.waits());
        before.is_behind = self.is_behind(&call, db) && !is_script;
        before.is_full = with(|world| world.is_out_of_memory());
        before.is_repeat =
            call.once.as_ref().is_some_and(|name| with(|world| world.living(db, name).is_some()));
        before.call = Some((*client, words, db, call));
        before
    }

    /// Checks the state after a step.
    pub fn after(&mut self, step: &Step, before: &Before) {
        let answers = with(|world| {
            world.sees = false;
            std::mem::take(&mut world.answers)
        });
        self.spoil(step);
        let acted = with(|world| world.acted.clone());
        for words in &acted {
            self.spoil_by(words, true);
        }
        for answer in &answers {
            self.spoil_by(&answer.words, false);
            self.answered(answer, before);
        }
        if before.is_plain && acted.is_empty() && answers.is_empty() {
            self.waits_in_vain(before);
        }
        self.led.retain(|key| with(|world| (0..2).any(|db| world.keys.get(db, key.as_bytes()).is_some())));
        self.told();
        self.admitted_in_order(&answers);
        // A client that is killed by what another one had sent while it waited leaves at an unknown place.
        let is_call = matches!(step, Step::Call(..));
        let is_followed = acted.iter().all(|words| words.iter().all(|word| word != b"FLOW"))
            && (is_call || answers.iter().all(|answer| *crate::commands::name(&answer.words) != *"CLIENT"));
        if !is_call {
            self.lose_order(&answers);
        }
        self.admitted_fairly(&answers, is_followed);
        self.rejected_rightly(&answers);
        self.follow_waiters(is_call);
        // What another module has done in the event of a booking came after it.
        self.follow_bookings(&answers, is_call && acted.is_empty());
        self.replication();
        let is_held_up = with(|world| {
            // Timers follow the wall clock; the module sets its own again when the cron runs.
            world.awaits_cron
                || world.is_replica
                || world.is_full
                || world.busy > 0
                || !world.moved.is_empty()
                || !world.left.is_empty()
                || !world.denied.is_empty()
                || clock::wall() / MILLI <= world.paused_until
        });
        if is_held_up || !matches!(step, Step::Pass(_) | Step::Call(..) | Step::Close(_)) {
            self.booked.values_mut().for_each(Vec::clear);
        }
        // Where calls take time, they may take most of it.
        let taken = with(|world| world.settings.tick) * (boundary::steps() - before.steps) as i64;
        self.late += i128::from(taken);
        self.booked.values_mut().for_each(|booked| booked.retain(|booked| self.late <= booked.spare));
        self.late = if matches!(step, Step::Pass(_)) { 0 } else { self.late };
        // After a step that lets no time pass, the server has not had its turn.
        let has_its_turn = !is_held_up && matches!(step, Step::Pass(nanos) if taken <= nanos / 2);
        if !has_its_turn {
            self.free_since = clock::monotonic();
        }
        // The waits that ended during the step.
        let ended = with(|world| {
            let unpaused = clock::monotonic() - (clock::wall() - world.paused_until * MILLI);
            world.timed_since.max(unpaused)
        });
        self.free_since = self.free_since.max(ended);
        let is_looked_at = has_its_turn && matches!(step, Step::Pass(nanos) if *nanos >= SLACK);
        if matches!(step, Step::Pass(_) | Step::Left(..)) {
            self.ends_by_itself(matches!(step, Step::Pass(nanos) if *nanos >= SLACK.max(2 * taken)));
        }
        if is_looked_at {
            self.looks += 1;
            if self.looks.is_multiple_of(32) {
                self.info();
            }
            self.keeps_timeouts();
            // Whoever stood behind a client that was answered just now has had no turn since.
            let latest = answers.iter().map(|answer| answer.at).max();
            if latest.is_none_or(|at| clock::monotonic() - at >= self.slack()) {
                self.progress();
            }
        }
        self.is_settled = is_looked_at && with(|world| world.settings.tick == 0) && !self.is_set_within;
    }

    /// A call was answered at once: its reply and its keys are those of the contract.
    fn answered(&mut self, answer: &Answer, before: &Before) {
        let own = before
            .call
            .as_ref()
            .filter(|(client, words, ..)| *client == answer.client && *words == answer.words);
        let parsed;
        let call = if let Some((.., call)) = own {
            call
        } else {
            let Some(call) = Call::parse(&answer.words) else { return };
            parsed = call;
            &parsed
        };
        if (before.lead > 0 || lead() > 0)
            && let Some(hold) = &call.hold
        {
            self.led.insert(hold.key.clone());
        }
        if answer.waited.is_none()
            && let Some((_, _, db, _)) = own
        {
            self.pure(call, answer, before);
            if before.is_full && !matches!(answer.reply, Reply::Error(_)) {
                self.grows(answer);
            }
            if let Some(units) = before.goes_before.filter(|_| first(&answer.reply) == Some(0)) {
                let line = history::line(&answer.words);
                let text =
                    format!("{line} is admitted before clients who wait for {units} units and are ready");
                with(|world| world.violates("contract", text));
            }
            if before.is_behind && first(&answer.reply) == Some(0) {
                let line = history::line(&answer.words);
                with(|world| {
                    world.violates("contract", format!("{line} is admitted before clients who wait"));
                });
            }
            if before.is_plain && with(|world| world.acted.is_empty()) {
                self.contract(call, answer, *db, before);
            }
        }
        let is_own = answer.waited.is_none() && own.is_some();
        self.once(call, answer, is_own.then_some(before.is_repeat));
        self.enter(call, answer);
    }

    /// A call that repeats another one is replied what that one was.
    ///
    /// `is_repeat` says whether the key was there when the call came, if that is known.
    fn once(&mut self, call: &Call, answer: &Answer, is_repeat: Option<bool>) {
        let Some(name) =
            call.once.as_ref().filter(|_| !self.is_set_within && !matches!(answer.reply, Reply::Simple(_)))
        else {
            return;
        };
        let key = (answer.db, name.clone());
        let now = answer.at;
        self.stored.retain(|_, (_, until, _)| now < *until);
        let refused = call.may_refuse() && first(&answer.reply) != Some(0);
        match self.stored.get(&key) {
            Some((reply, _, stored_at)) => {
                let forbidden = ["NOPERM", "MOVED", "READONLY", "OOM", "TRYAGAIN", "UNBLOCKED"];
                let is_same = is_shape_of(reply, call);
                let is_error = matches!(&answer.reply, Reply::Error(text) if forbidden.iter().any(|code| text.starts_with(code)));
                // Whoever has waited may have timed out before the other call came; or was rejected before a
                // client got its reply that had sent the other call behind its own.
                let was_behind = self.stored_behind.contains(&key) && now - stored_at < MILLI;
                let is_rejected = was_behind && matches!(answer.reply, Reply::Error(_));
                let is_late = answer.waited.is_some() && (answer.reply == Reply::Null || is_rejected);
                if is_same && answer.reply != *reply && !is_error && !is_late {
                    let (line, stored, came) =
                        (history::line(&answer.words), reply.shown(), answer.reply.shown());
                    with(|world| {
                        world.violates("contract", format!("{line} repeats {stored}, and is {came}"))
                    });
                }
            }
            None if refused || matches!(answer.reply, Reply::Error(_) | Reply::Null) => {}
            None if is_repeat.unwrap_or_else(|| !is_stored_now(call, name, answer)) => {}
            None => {
                let until = now + call.once_period - SLACK;
                let is_exact = is_repeat.is_some() && lead() == 0 && with(|world| !world.settings.beside);
                if is_exact && !is_stored_now(call, name, answer) {
                    let line = history::line(&answer.words);
                    with(|world| world.violates("contract", format!("the reply of {line} is not stored")));
                }
                if is_stored_now(call, name, answer) {
                    if is_repeat.is_none() && answer.waited.is_none() {
                        self.stored_behind.insert(key.clone());
                    }
                    self.stored.insert(key, (answer.reply.clone(), until, now));
                }
            }
        }
    }

    /// Who waits counts as taken for a call that does not wait.
    fn goes_before(&self, call: &Call, db: i32) -> Option<u64> {
        if !self.is_settled || call.parts.len() != 1 || call.waits() || !call.may_refuse() || call.prepays {
            return None;
        }
        let part = &call.parts[0];
        let has_more = call.once.is_some() || call.hold.is_some();
        if part.quantity == 0 || call.saturates || has_more || call.verb == "RESERVE" {
            return None;
        }
        let line = self.lines.get(&(db, part.key.clone()))?;
        let is_alone = |one: &Waiter| {
            let mut others = one.call.parts[1..].iter();
            others.all(|other| other.key != part.key && !self.is_waited_for(db, &other.key))
        };
        let heads = line.heads().filter_map(|client| self.waiters.get(&client));
        let ready = heads.filter(|one| one.call.once.is_none() && !one.call.parts[0].shadow && is_alone(one));
        let now = i128::from(clock::module() - self.slack());
        let ready: Vec<&Waiter> =
            ready.filter(|one| self.admits(one, now, 1..one.call.parts.len()) == Some(true)).collect();
        let waits: i128 = ready.iter().map(|one| one.call.parts[0].quantity).sum();
        if waits == 0
            || matches!(part.limit, Limit::Lease { .. })
            || ready.iter().any(|one| one.call.parts[0].limit != part.limit)
        {
            return None;
        }
        let both = Waiter {
            call: Call {
                parts: vec![Part { quantity: part.quantity + waits, ..part.clone() }],
                ..call.clone()
            },
            words: Rc::default(),
            db,
            order: 0,
            since: 0,
        };
        (self.admits(&both, i128::from(clock::module()), 0..1) == Some(false)).then_some(waits as u64)
    }

    /// Whether a call joins a queue whatever its limiters say, because clients of a flow wait for its first
    /// key. Those who hold a place there renew it.
    fn is_behind(&self, call: &Call, db: i32) -> bool {
        let is_steady =
            with(|world| world.settings.tick == 0 && !world.settings.beside) && !self.is_set_within;
        let part = &call.parts[0];
        let holds = with(|world| {
            match (&part.limit, world.living(db, part.key.as_bytes()).map(|entry| &entry.value)) {
                (Limit::Lease { id, .. }, Some(Value::ZSet(set))) => set.scores.contains_key(id.as_bytes()),
                _ => false,
            }
        });
        let line = self.lines.get(&(db, part.key.clone()));
        is_steady
            && call.verb == "BMTAKE"
            && call.max_len.is_none()
            && call.once.is_none()
            && !holds
            && line.is_some_and(|line| line.flows.values().any(|flow| !flow.is_empty()))
    }

    /// A client begins to wait only if it may be admitted in time.
    fn waits_in_vain(&self, before: &Before) {
        let Some((client, words, _, call)) = before.call.as_ref().filter(|(.., call)| call.waits()) else {
            return;
        };
        let waits = with(|world| world.clients.get(client).is_some_and(|one| one.blocked.is_some()));
        let now = i128::from(before.now);
        let lead = now - i128::from(clock::wall());
        if waits
            && before.queued.is_empty()
            && let Some(expected) = contract::expected(call, now, lead, &before.held, &before.queued)
            && let Ok(reply) = expected.reply
            && reply != contract::WAITS
        {
            let line = history::line(words);
            with(|world| world.violates("contract", format!("{line} waits, and should be replied {reply}")));
        }
    }

    /// Whether a client of CL.BTHROTTLE would stand behind one that waits by another limit, and is not served
    /// before its own timeout.
    fn is_late_behind_others(&self, call: &Call, db: i32, now: i128, lead: i128, before: &Before) -> bool {
        let key = &call.parts[0].key;
        let (Some(line), Some(model)) =
            (self.lines.get(&(db, key.clone())), contract::model_of(call, now, lead, &before.held))
        else {
            return false;
        };
        let mut place = match model.key(key) {
            Some((State::Tat(tat), _)) => now.max(*tat),
            _ => now,
        };
        call.verb == "BTHROTTLE"
            && line.plain.values().filter_map(|client| self.waiters.get(client)).any(|waiter| {
                let part = &waiter.call.parts[0];
                let row = model::look(&part.limit, Some(&State::Tat(place)), now, Some(part.quantity));
                if let Limit::Throttle { rate, .. } = part.limit {
                    place += rate.cost(part.quantity);
                }
                row.limited && call.timeout < row.retry
            })
    }

    fn contract(&mut self, call: &Call, answer: &Answer, db: i32, before: &Before) {
        let forbidden = ["NOPERM", "MOVED", "READONLY", "OOM", "TRYAGAIN"];
        if matches!(&answer.reply, Reply::Error(error) if forbidden.iter().any(|code| error.starts_with(code)))
        {
            return;
        }
        let now = i128::from(before.now);
        let lead = now - i128::from(clock::wall());
        let Some(expected) = contract::expected(call, now, lead, &before.held, &before.queued) else {
            return;
        };
        self.compared += 1;
        let came = answer.reply.shown();
        let agrees = match (&expected.reply, &answer.reply) {
            (Ok(reply), _) if expected.is_full => {
                let rows = |reply: &str| reply.split_once(" | ").map(|(_, rows)| rows.to_owned());
                first(&answer.reply) == Some(1) && rows(reply) == rows(&came)
            }
            // A call that is admitted behind clients that wait moves back later.
            (Ok(reply), _) if !before.queued.is_empty() && reply.starts_with('0') && !call.looks() => {
                first(&answer.reply) == Some(0)
            }
            (Ok(reply), Reply::Null) if reply == contract::WAITS => {
                self.is_late_behind_others(call, db, now, lead, before)
            }
            (Ok(reply), _) => *reply == came,
            (Err(error), Reply::Error(text)) => text.starts_with(error),
            _ => false,
        };
        let line = || history::line(&answer.words);
        with(|world| {
            if !agrees {
                let line = line();
                let expected = expected.reply.unwrap_or_else(|error| format!("(error) {error}"));
                return world
                    .violates("contract", format!("{line}: {expected} was expected, and {came} came"));
            }
            // Behind clients that wait, what is stored is exact for bookings only, which store their costs.
            let books = call.verb == "RESERVE" && call.parts[0].quantity > 0 && !call.prepays;
            if !(before.queued.is_empty() || books && wait_of_booking(&answer.reply).is_some()) {
                return;
            }
            for (key, held) in expected.keys {
                let found = world
                    .living(db, key.as_bytes())
                    .map(|entry| (contract::shown(&entry.value), i128::from(entry.expiry.unwrap_or(-1))));
                // A key whose clock is ahead may live up to two milliseconds longer. The clock is read again
                // before the key is written, and may only then turn out to be ahead.
                let most = lead.max(self::lead());
                let same = match (&found, &held) {
                    (Some((value, at)), Some((own, until))) if most > 0 => {
                        let (first, last) = (until - most / 1_000_000 - 1, until - lead / 1_000_000 + 3);
                        value == own && (first..=last).contains(at)
                    }
                    _ => found == held,
                };
                if !same {
                    let line = line();
                    let text = format!("{line}: {key} holds {found:?}, and should hold {held:?}");
                    world.violates("contract", text);
                }
            }
            let (Some(hold), Some(mut book)) = (&call.hold, expected.book) else { return };
            let entry = world.living(db, hold.key.as_bytes());
            if entry.is_none()
                && let Some(Some((value, _))) = before.held.get(&hold.key)
                && accounts::has_passed(value, now)
            {
                book.retain(|held| !held.is_of_others());
            }
            let found = entry.map_or(Some(vec![]), |entry| accounts::book(&entry.value));
            let lives = |key: &str| world.living(db, key.as_bytes()).is_some();
            let shown = |book: &[accounts::Held]| accounts::shown(book, now, lives);
            if found.as_deref().map(shown) != Some(shown(&book)) {
                let text = format!("{}: {} holds {found:?}, and should hold {book:?}", line(), hold.key);
                world.violates("contract", text);
            } else if let Some(expiry) = entry.and_then(|entry| entry.expiry)
                // One that was set while the clock was behind is earlier when that ends.
                && !self.led.contains(&hold.key)
                && i128::from(expiry) < accounts::lives_until(&book)
            {
                let (line, key) = (line(), &hold.key);
                let text = format!("{line}: {key} expires at {expiry}, before what is held: {book:?}");
                world.violates("contract", text);
            }
        });
    }

    /// A refusal, a check and an error change nothing. Expired keys may be deleted.
    fn pure(&self, call: &Call, answer: &Answer, before: &Before) {
        let refused = match &answer.reply {
            Reply::Error(_) | Reply::Null => true,
            reply if call.may_refuse() => first(reply) == Some(1),
            reply if call.verb == "RENEW" || call.verb == "RELEASE" => first(reply) == Some(0),
            _ => false,
        };
        if !refused && !call.looks() {
            return;
        }
        with(|world| {
            if !world.acted.is_empty() {
                return;
            }
            // Units that have run out come back, even if the call is refused, or if a key that was written to
            // by hand holds no parts any more when they are removed.
            if let Some(hold) = call.hold.as_ref().filter(|_| !call.looks())
                && (!matches!(answer.reply, Reply::Error(_))
                    || world.keys.get(answer.db, hold.key.as_bytes()).is_some_and(|entry| entry.by_hand))
            {
                return;
            }
            let time = world.snapshot.max(world.time());
            let mut expired = 0;
            let mut changed = None;
            for (db, key, held) in world.seen.iter() {
                let now = world.keys.get(db, key).map(|entry| (&entry.value, entry.expiry));
                let was = held.as_ref().map(|(value, expiry)| (value, *expiry));
                if was.is_some_and(|(_, expiry)| expiry.is_some_and(|at| at < time)) && now.is_none() {
                    expired += 1;
                } else if now != was {
                    changed = Some(key.escape_ascii().to_string());
                }
            }
            let what = match changed {
                Some(key) => format!("changed {key}"),
                None if world.written > before.written + expired => "replicated something".into(),
                None => return,
            };
            let (line, reply) = (history::line(&answer.words), answer.reply.shown());
            world.violates("purity", format!("{line} is {reply}, and has {what}"));
        });
    }

    /// Notes what was admitted.
    fn enter(&mut self, call: &Call, answer: &Answer) {
        let now = i128::from(answer.at);
        for (at, part) in call.parts.iter().enumerate() {
            let Limit::Throttle { max_burst, rate } = &part.limit else {
                self.ledgers.entry((answer.db, part.key.clone())).or_default().is_spoilt = true;
                continue;
            };
            let row = match &answer.reply {
                Reply::Array(rows) if matches!(rows.first(), Some(Reply::Array(_))) => rows.get(at + 1),
                reply => Some(reply),
            };
            let Some(Reply::Array(numbers)) = row else { continue };
            let Some(limited) = numbers.first().and_then(first) else { continue };
            let ledger = self.ledgers.entry((answer.db, part.key.clone())).or_default();
            let is_same = *ledger.limit.get_or_insert((*max_burst, *rate)) == (*max_burst, *rate);
            ledger.is_spoilt |= !is_same || call.prepays || call.once.is_some();
            match call.verb.as_str() {
                "PEEK" | "MPEEK" => {}
                "PAUSE" | "REFUND" | "CHARGE" | "MSETTLE" => ledger.is_spoilt = true,
                "RESERVE" if limited == 0 => {
                    let wait = numbers.get(3).and_then(first).unwrap_or(0);
                    ledger.acts.push((now + i128::from(wait) * call.unit, part.quantity));
                }
                _ if (limited == 0 || call.has_chain()) && first(&answer.reply) == Some(0) => {
                    let taken = if call.saturates || call.has_chain() {
                        numbers.get(5).and_then(first).map_or(0, i128::from)
                    } else {
                        part.quantity
                    };
                    ledger.acts.push((now, taken));
                }
                _ => {}
            }
        }
    }

    /// What the module has not decided changes what its bounds are about.
    fn spoil(&mut self, step: &Step) {
        match step {
            Step::Set(by) if *by > 0 => self.all_spoilt(),
            Step::SetWithin(..) | Step::Role(_) | Step::Left(..) => self.all_spoilt(),
            Step::Evict(key) => self.spoil_keys(std::slice::from_ref(key)),
            _ => {}
        }
    }

    /// The same for a command that has run, as that of another module `by_other`.
    fn spoil_by(&mut self, words: &Words, by_other: bool) {
        let is_own = is_named(words, &["CL."]);
        if is_own && !by_other {
            return;
        }
        let name = crate::commands::name(words);
        if is_own {
            if let Some(call) = Call::parse(words) {
                self.led.extend(call.hold.iter().map(|hold| hold.key.clone()).filter(|_| lead() > 0));
                self.spoil_keys(&asked_for(&call));
            }
        } else if ["SWAPDB", "FLUSHDB", "FLUSHALL"].contains(&&*name) {
            self.all_spoilt();
        } else if crate::commands::writes(&name) == Some(true) {
            self.spoil_keys(crate::commands::keys(words));
        }
    }

    fn spoil_keys(&mut self, keys: &[Bytes]) {
        for key in keys {
            for db in 0..2 {
                self.stored.remove(&(db, key.clone()));
                let place = (db, String::from_utf8_lossy(key).into_owned());
                self.booked.entry(place.clone()).and_modify(Vec::clear);
                self.ledgers.entry(place).or_default().is_spoilt = true;
            }
        }
    }

    /// From here on, keys have a past that is not known.
    fn all_spoilt(&mut self) {
        self.stored.clear();
        self.booked.values_mut().for_each(Vec::clear);
        self.ledgers.values_mut().for_each(|ledger| ledger.is_spoilt = true);
        let keys: Vec<(i32, String)> = with(|world| {
            world.keys.iter().map(|(db, key, _)| (db, String::from_utf8_lossy(key).into_owned())).collect()
        });
        for key in keys {
            self.ledgers.entry(key).or_default().is_spoilt = true;
        }
    }

    /// Never more than the bound, in any stretch of time.
    pub fn bound(&self) {
        for ((db, key), ledger) in &self.ledgers {
            let Some((max_burst, rate)) = ledger.limit.filter(|_| !ledger.is_spoilt) else { continue };
            let mut acts = ledger.acts.clone();
            acts.sort_unstable();
            let (mut tat, most) = (0, rate.cost(max_burst + 1));
            for (at, quantity) in acts {
                tat = tat.max(at) + rate.cost(quantity);
                // A client that has waited was decided up to a turn of the loop before its reply, and a wait
                // is told in whole units.
                if tat - most > at + i128::from(SLACK) {
                    let text = format!(
                        "{key} of database {db}: more was admitted than the limit allows, by {} ns at {at}: {:?}",
                        tat - most - at,
                        ledger.acts
                    );
                    with(|world| world.violates("bound", text));
                    break;
                }
            }
        }
    }

    /// Those who wait for a key, or for a key in a flow, are admitted in the order in which they came.
    fn admitted_in_order(&mut self, answers: &[Answer]) {
        let mut gone: BTreeSet<u64> = BTreeSet::new();
        for answer in answers.iter().filter(|answer| answer.waited.is_some()) {
            gone.insert(answer.client);
            let Some(own) = self.waiters.get(&answer.client) else { continue };
            // It may have waited again within the step, with a call that it had sent meanwhile.
            if own.words != answer.words || answer.waited != Some(own.since) {
                continue;
            }
            let leases = matches!(own.call.parts[0].limit, Limit::Lease { .. });
            if first(&answer.reply) == Some(0) {
                let forbidden = with(|world| {
                    let user = world
                        .clients
                        .get(&answer.client)
                        .map(|client| client.user.clone())
                        .unwrap_or_default();
                    let key = own.call.parts[0].key.as_bytes();
                    let moved = world.moved.contains(key) || world.redirection(key).is_some();
                    // Before 7.0 a module cannot ask.
                    let asks = !world.settings.version.starts_with('6');
                    let forbids = asks && world.forbids(&user, &asked_for(&own.call)).is_some();
                    (world.is_out_of_memory() || moved || forbids) && own.call.once.is_none()
                });
                if forbidden {
                    let (line, client) = (history::line(&answer.words), answer.client);
                    let text =
                        format!("{line} of client {client} is admitted though the server would not run it");
                    with(|world| world.violates("contract", text));
                }
            }
            if first(&answer.reply) != Some(0) || own.call.once.is_some() || leases {
                continue;
            }
            let waits = |client: &u64| {
                with(|world| world.clients.get(client).is_some_and(|one| one.blocked.is_some()))
            };
            let peers = self.lines.get(&own.place()).and_then(|line| line.peers(own));
            let mut before = peers.into_iter().flat_map(|peers| peers.range(..own.order)).map(|(_, one)| one);
            if let Some(other) = before.find(|client| !gone.contains(client) && waits(client)) {
                let (line, client) = (history::line(&answer.words), answer.client);
                let text =
                    format!("{line} of client {client} is admitted before client {other}, who came first");
                with(|world| world.violates("contract", text));
            }
        }
    }

    /// A client that waits receives an error of the server only if the server would reply so, and is told to
    /// try again only if there is a reason.
    fn rejected_rightly(&self, answers: &[Answer]) {
        for answer in answers {
            let Reply::Error(text) = &answer.reply else { continue };
            let Some(call) = Call::parse(&answer.words) else { continue };
            let key = call.parts[0].key.as_bytes();
            let is_right = with(|world| match text.split(' ').next() {
                // A call begins again this number of times, but not if the server does not open a key.
                Some("TRYAGAIN") => {
                    world.disturbances >= 16 || call.keys().any(|key| world.moved.contains(key.as_bytes()))
                }
                _ if answer.waited.is_none() => true,
                Some("NOPERM") => world
                    .clients
                    .get(&answer.client)
                    .is_none_or(|client| world.forbids(&client.user, &asked_for(&call)).is_some()),
                Some("OOM") => world.is_out_of_memory(),
                // Or the slot has come back within the last second, and the module has not looked again.
                Some("MOVED") => {
                    world.redirection(key).as_ref() == Some(text) || clock::monotonic() < world.timed_since
                }
                Some("CLUSTERDOWN") => false,
                _ => true,
            });
            if !is_right {
                let line = history::line(&answer.words);
                with(|world| world.violates("contract", format!("{line} is replied {text}")));
            }
        }
    }

    /// Every change of a key is signalled to the clients that watch it.
    fn told(&self) {
        let untold = with(|world| {
            let mut changed = world.seen.iter().filter(|(db, key, held)| {
                let now = world.keys.get(*db, key).map(|entry| (&entry.value, entry.expiry));
                now != held.as_ref().map(|(value, expiry)| (value, *expiry))
            });
            let is_told = |db: i32, key: &[u8]| {
                world.published.get(db, key).is_some() && world.signalled.get(db, key).is_some()
            };
            changed.find(|(db, key, _)| !is_told(*db, key)).map(|(_, key, _)| key.escape_ascii().to_string())
        });
        if let Some(key) = untold {
            with(|world| world.violates("told", format!("nobody is told that {key} has changed")));
        }
    }

    /// A call that was admitted without memory adds nothing.
    fn grows(&self, answer: &Answer) {
        with(|world| {
            let count = |value: &Value| match value {
                Value::ZSet(set) => set.scores.len(),
                _ => 1,
            };
            let grown = world.seen.iter().find(|(db, key, held)| {
                let now = world.keys.get(*db, key).map_or(0, |entry| count(&entry.value));
                now > held.as_ref().map_or(0, |(value, _)| count(value))
            });
            if let Some((_, key, _)) = grown {
                let (key, line) = (key.escape_ascii(), history::line(&answer.words));
                let text = format!("{line} makes {key} larger though the server has no memory");
                world.violates("purity", text);
            }
        });
    }

    /// What a client has sent while it waited runs when it is answered: before others are answered whose turn
    /// has come already, and before turns that come later in the same step. So it is not known which of them
    /// were decided by the weights and the tags that it has changed.
    fn lose_order(&mut self, answers: &[Answer]) {
        let turned: Vec<u64> = with(|world| world.turned.iter().copied().collect());
        let come = turned.into_iter().filter_map(|client| {
            let (words, db, order, _) = wait_of(client)?;
            let is_known = self.waiters.get(&client).is_some_and(|own| own.order == order);
            (!is_known).then_some((words, db))
        });
        let last = answers.iter().rposition(|answer| answer.waited.is_some()).unwrap_or(0);
        let answered = answers.iter().enumerate().filter(|(at, answer)| match answer.waited {
            Some(since) => {
                let own = self.waiters.get(&answer.client);
                own.is_none_or(|own| own.words != answer.words || own.since != since)
            }
            None => *at < last && *crate::commands::name(&answer.words) == *"CL.MSETTLE",
        });
        let answered = answered.map(|(_, answer)| (Rc::clone(&answer.words), answer.db));
        for (words, db) in come.chain(answered).collect::<Vec<_>>() {
            let call = Call::parse(&words).filter(|call| call.verb == "BMTAKE" || call.flow.is_some());
            let flows = call.and_then(|call| self.flows.get_mut(&(db, call.parts[0].key.clone())));
            flows.into_iter().for_each(|flows| flows.are_lost = true);
        }
    }

    /// Flows whose first clients wait for one limiter only, and so are ready, are served in their order.
    fn admitted_fairly(&mut self, answers: &[Answer], is_followed: bool) {
        self.flows.values_mut().for_each(|flows| flows.are_lost |= !is_followed);
        // Others change no flows, and to read them takes long.
        let concerned = answers.iter().filter(|answer| is_named(&answer.words, &["CL.BMTAKE", "CL.MSETTLE"]));
        for answer in concerned.filter(|_| !self.flows.is_empty()).collect::<Vec<_>>() {
            let Some(call) = Call::parse(&answer.words) else { continue };
            let Some(flows) = self.flows.get_mut(&(answer.db, call.parts[0].key.clone())) else { continue };
            if answer.waited.is_none() {
                let settles = call.verb == "MSETTLE" && call.flow.is_some();
                if settles && matches!(answer.reply, Reply::Array(_)) {
                    flows.are_lost |= call.once.is_some() || call.hold.is_some();
                    if !matches!(call.parts[0].limit, Limit::Lease { .. }) {
                        flows.settle(&call.flow, call.weight, call.parts[0].quantity);
                    }
                }
                continue;
            }
            let own = self.waiters.get(&answer.client);
            let own = own.filter(|own| own.words == answer.words && answer.waited == Some(own.since));
            let Some(own) = own.filter(|_| call.verb == "BMTAKE") else {
                // Who came and went in one step is not followed.
                flows.are_lost |= call.verb == "BMTAKE";
                continue;
            };
            let is_admitted = first(&answer.reply) == Some(0);
            flows.are_lost |= is_admitted && call.once.is_some();
            let line = self.lines.get(&own.place());
            let is_ready = |flow: &Option<Bytes>, order: u64| {
                let client = line.and_then(|line| line.flows.get(flow)?.get(&order));
                client.and_then(|client| self.waiters.get(client)).is_some_and(|one| {
                    let Call { parts, once, hold, .. } = &one.call;
                    parts.len() == 1 && once.is_none() && hold.is_none()
                })
            };
            let start = flows.firsts.get(&call.flow).copied().filter(|_| is_admitted && !flows.are_lost);
            let before = flows.firsts.iter().filter(|(_, first)| Some(**first) < start);
            if let Some((_, (_, order))) =
                before.filter(|(flow, first)| is_ready(flow, first.1)).min_by_key(|(_, first)| **first)
            {
                let text = format!(
                    "{} is admitted before the {order}th client that has waited: {flows:?}",
                    history::line(&answer.words)
                );
                with(|world| world.violates("fair", text));
            }
            flows.leave(own.order, &call.flow, is_admitted.then_some(call.parts[0].quantity));
        }
    }

    fn is_waited_for(&self, db: i32, key: &str) -> bool {
        self.lines.get(&(db, key.to_owned())).is_some_and(|line| !line.is_empty())
    }

    /// Bookings take the costs of the clients before them with them.
    fn follow_bookings(&mut self, answers: &[Answer], is_known: bool) {
        const CONCERNED: [&str; 4] = ["CL.RESERVE", "CL.PAUSE", "CL.REFUND", "CL.MSETTLE"];
        let lines = &self.lines;
        self.booked.retain(|place, _| lines.get(place).is_some_and(|line| !line.is_empty()));
        for answer in answers.iter().filter(|one| !lines.is_empty() && is_named(&one.words, &CONCERNED)) {
            let Some(call) = Call::parse(&answer.words) else { continue };
            for part in &call.parts {
                let place = (answer.db, part.key.clone());
                let Some(line) = self.lines.get(&place).filter(|line| !line.is_empty()) else { continue };
                match call.verb.as_str() {
                    "RESERVE" => {
                        let booked = self.booked.entry(place).or_default();
                        let Limit::Throttle { max_burst, rate } = &part.limit else { continue };
                        // Who needs the whole limit loses the room before the booking if the timer is late,
                        // which counts in milliseconds.
                        let spare = rate.cost(max_burst + 1) + rate.cost(1) / 10 - i128::from(2 * MILLI);
                        let spare_of = |client| {
                            let one = &self.waiters.get(client)?.call.parts[0];
                            (one.limit == part.limit).then(|| spare - rate.cost(one.quantity))
                        };
                        // Of a client by another limit, it is not known.
                        let least = line.plain.values().map(|client| spare_of(client).unwrap_or(-1)).min();
                        if let Some((order, _)) = line.plain.last_key_value()
                            && let Some(spare) = least.filter(|spare| *spare >= 0)
                            && let Some(wait) = wait_of_booking(&answer.reply)
                            && is_known
                            && !call.prepays
                            && part.quantity > 0
                        {
                            // The time between the last client and the booking is the cost of the latter.
                            let turn = (i128::from(wait) + 1) * call.unit - rate.cost(part.quantity);
                            let served_by = i128::from(answer.at) + turn;
                            booked.push(Booked { last: *order, served_by, spare });
                        }
                    }
                    // The room before a booking may be given to others.
                    "PAUSE" | "REFUND" | "MSETTLE" => {
                        self.booked.entry(place).and_modify(Vec::clear);
                    }
                    _ => {}
                }
            }
        }
    }

    /// Nobody waits for a key that another node serves, or on a replica, for longer than a second, if the
    /// server has had its turn.
    fn ends_by_itself(&mut self, has_had_turn: bool) {
        let now = clock::monotonic();
        let (is_replica, awaits_cron, timed_since) = with(|world| {
            self.left.retain(|slot, _| world.left.contains(slot));
            for slot in &world.left {
                self.left.entry(*slot).or_insert(now);
            }
            (world.is_replica, world.awaits_cron, world.timed_since)
        });
        if !is_replica {
            self.demoted = now;
        }
        if !has_had_turn || awaits_cron || self.is_set_within || self.left.is_empty() && !is_replica {
            return;
        }
        for (client, waiter) in &self.waiters {
            let left = self.left.get(&slot_of(waiter.call.parts[0].key.as_bytes()));
            let since = left.into_iter().chain(Some(&self.demoted).filter(|_| is_replica)).min();
            let Some(since) = since.map(|since| timed_since.max(waiter.since).max(*since)) else { continue };
            if now - since > 2_000 * MILLI {
                let text = format!("client {client} waits where its call cannot be served any more");
                with(|world| world.violates("progress", text));
            }
        }
    }

    /// The module's section of INFO is right.
    fn info(&self) {
        let now = counts();
        let waiting = now.get("blocked_clients").copied().unwrap_or(0);
        if waiting != self.waiters.len() as u64 {
            let text = format!("{waiting} clients are said to wait, and {} do", self.waiters.len());
            with(|world| world.violates("info", text));
        }
        let since = |name: String| now.get(&name).unwrap_or(&0) - self.counted.get(&name).unwrap_or(&0);
        let wrong = with(|world| {
            world.replied.iter().find_map(|(command, replied)| {
                let name = command.strip_prefix("CL.").filter(|name| *name != "TOP")?.to_lowercase();
                let [admitted, refused, errors, repeated] =
                    ["admitted", "refused", "errors", "repeated"].map(|what| since(format!("{name}_{what}")));
                let counted = [admitted + refused + errors + repeated, errors];
                (counted != *replied).then(|| format!("{command}: counted {counted:?}, replied {replied:?}"))
            })
        });
        if let Some(text) = wrong {
            with(|world| world.violates("info", text));
        }
    }

    /// Clients have begun to wait, or wait no more.
    fn follow_waiters(&mut self, is_call: bool) {
        let turned = with(|world| std::mem::take(&mut world.turned));
        let turned: Vec<_> = turned.into_iter().map(|client| (client, wait_of(client))).collect();
        for (client, now) in &turned {
            let order = now.as_ref().map(|(_, _, order, _)| *order);
            if self.waiters.get(client).is_some_and(|waiter| Some(waiter.order) != order) {
                self.leaves(*client);
            }
        }
        for (client, now) in turned {
            let Some((words, db, order, since)) = now.filter(|_| !self.waiters.contains_key(&client)) else {
                continue;
            };
            if let Some(call) = Call::parse(&words) {
                let waiter = Waiter { call, words, db, order, since };
                self.holds_no_place(&waiter);
                self.joins(client, waiter, is_call);
            }
        }
    }

    fn joins(&mut self, client: u64, waiter: Waiter, is_call: bool) {
        let line = self.lines.entry(waiter.place()).or_default();
        let part = &waiter.call.parts[0];
        if let Limit::Throttle { rate, .. } = &part.limit
            && waiter.is_plain()
        {
            line.plain.insert(waiter.order, client);
            line.costs += rate.cost(part.quantity);
        } else {
            line.flows.entry(waiter.call.flow.clone()).or_default().insert(waiter.order, client);
            if waiter.call.once.is_some() {
                line.with_once.insert(client);
            }
            let flows = self.flows.entry(waiter.place()).or_default();
            // What a client has sent while it waited may come before others leave.
            flows.are_lost |= !is_call;
            flows.join(waiter.order, &waiter.call.flow, waiter.call.weight);
            for part in &waiter.call.parts {
                self.lines.entry((waiter.db, part.key.clone())).or_default().named += 1;
            }
        }
        self.deadlines.extend(waiter.deadline().map(|at| (at, client)));
        self.waiters.insert(client, waiter);
    }

    fn leaves(&mut self, client: u64) {
        let Some(waiter) = self.waiters.remove(&client) else { return };
        let (place, part) = (waiter.place(), &waiter.call.parts[0]);
        self.deadlines.remove(&(waiter.deadline().unwrap_or(0), client));
        let Some(line) = self.lines.get_mut(&place) else { return };
        if let Limit::Throttle { rate, .. } = &part.limit
            && waiter.is_plain()
        {
            line.plain.remove(&waiter.order);
            line.costs -= rate.cost(part.quantity);
        } else {
            line.with_once.remove(&client);
            if let Some(peers) = line.flows.get_mut(&waiter.call.flow) {
                peers.remove(&waiter.order);
            }
            line.flows.retain(|_, peers| !peers.is_empty());
            if let Some(flows) = self.flows.get_mut(&place) {
                flows.leave(waiter.order, &waiter.call.flow, None);
                if flows.clients.is_empty() {
                    self.flows.remove(&place);
                }
            }
            for part in &waiter.call.parts {
                self.lines.entry((waiter.db, part.key.clone())).and_modify(|line| line.named -= 1);
            }
        }
        for part in &waiter.call.parts {
            let place = (waiter.db, part.key.clone());
            if self.lines.get(&place).is_some_and(|line| line.is_empty() && line.named == 0) {
                self.lines.remove(&place);
            }
        }
    }

    /// Nobody waits to renew a place.
    fn holds_no_place(&self, waiter: &Waiter) {
        let Limit::Lease { id, .. } = &waiter.call.parts[0].limit else { return };
        let now = i128::from(clock::module());
        let key = waiter.call.parts[0].key.as_bytes();
        // Leases of a key whose expiry was set by hand end no later than the key.
        let holds = |entry: &Entry| match &entry.value {
            Value::ZSet(set) if !entry.by_hand => set
                .scores
                .get(id.as_bytes())
                .is_some_and(|end| end.0 as i128 * 1_000 > now + i128::from(MILLI)),
            _ => false,
        };
        let is_held = with(|world| world.keys.get(waiter.db, key).is_some_and(holds));
        let is_steady =
            with(|world| world.settings.tick == 0 && !world.settings.beside) && !self.is_set_within;
        if is_held
            && is_steady
            && waiter.since == clock::monotonic()
            && self.admits(waiter, now, 1..waiter.call.parts.len()) == Some(true)
            && waiter.call.parts[1..].iter().all(|part| !self.is_waited_for(waiter.db, &part.key))
        {
            let text = format!("{} waits for a place that it holds", history::line(&waiter.words));
            with(|world| world.violates("progress", text));
        }
    }

    /// How much later than at once something that is due may happen.
    fn slack(&self) -> i64 {
        SLACK + if self.is_set_back { STEP } else { 0 }
    }

    fn keeps_timeouts(&self) {
        let (now, slack) = (clock::monotonic(), self.slack());
        if now - self.free_since < slack || self.is_set_within {
            return;
        }
        let (late, first) = (now - slack, self.deadlines.first());
        if let Some((_, client)) = first.filter(|(at, _)| *at < i128::from(late)) {
            let text = format!("client {client} waits longer than its timeout");
            with(|world| world.violates("progress", text));
        }
    }

    /// No client waits that could be admitted, and that no other client precedes.
    fn progress(&mut self) {
        let slack = self.slack();
        if clock::monotonic() - self.free_since < slack || self.is_set_within || self.waiters.is_empty() {
            return;
        }
        // By the states as they are, a short time ago.
        let then = i128::from(clock::module() - slack);
        for (place, line) in self.lines.iter().filter(|(_, line)| !line.is_empty()) {
            let (db, key) = (place.0, &place.1);
            self.looked += 1;
            let head = line.plain.first_key_value().and_then(|(_, client)| self.waiters.get(client));
            if let Some(head) = head {
                if self.admits(head, then, 0..1) == Some(true) {
                    stuck(key, head, "the first client in the queue");
                }
                let late = i128::from(clock::monotonic() - slack);
                let mut booked = self.booked.get(place).into_iter().flatten();
                if booked.any(|booked| booked.served_by < late && head.order <= booked.last) {
                    stuck(key, head, "a client before a booking, whose time has come,");
                }
                continue;
            }
            let late = clock::monotonic() - slack;
            for one in line.with_once.iter().filter_map(|client| self.waiters.get(client)) {
                let Some(name) = one.call.once.clone() else { continue };
                let stored = self.stored.get(&(db, name.clone()));
                let is_due = |(reply, until, since): &(Reply, i64, i64)| {
                    *since < late
                        && one.since < late
                        && clock::monotonic() < *until
                        && is_shape_of(reply, &one.call)
                };
                let is_there = with(|world| world.keys.get(db, &name).is_some_and(|entry| !entry.by_hand));
                if is_there && stored.is_some_and(is_due) {
                    stuck(key, one, "a client whose reply is stored");
                }
            }
            // The first clients of flows whose other limiters admit them, on keys that nobody else waits for.
            let heads: Vec<&Waiter> = line.heads().filter_map(|client| self.waiters.get(&client)).collect();
            if heads.iter().any(|one| one.call.once.is_some()) {
                continue;
            }
            let is_free =
                |one: &Waiter| one.call.parts[1..].iter().all(|part| self.is_idle(db, &part.key, then));
            let ready: Option<Vec<&Waiter>> = heads.iter().try_fold(vec![], |mut ready, one| {
                let admits = self.admits(one, then, 1..one.call.parts.len())?;
                if admits {
                    if !is_free(one) {
                        return None;
                    }
                    ready.push(*one);
                }
                Some(ready)
            });
            let Some(ready) = ready.filter(|ready| !ready.is_empty()) else { continue };
            let flows = self.flows.get(place).filter(|flows| !flows.are_lost);
            let next =
                flows.and_then(|flows| ready.iter().min_by_key(|one| flows.firsts.get(&one.call.flow)));
            let nexts = next.map_or(&ready[..], std::slice::from_ref);
            if nexts.iter().all(|one| self.admits(one, then, 0..1) == Some(true)) {
                stuck(key, nexts[0], "whoever is next in the queue");
            }
        }
    }

    /// Whether nobody waits for a key but clients that are not ready, and are before nobody. Where many wait,
    /// nobody asks.
    fn is_idle(&self, db: i32, key: &str, then: i128) -> bool {
        let Some(line) = self.lines.get(&(db, key.to_owned())) else { return true };
        let mut all = line.flows.values().flat_map(BTreeMap::values).filter_map(|one| self.waiters.get(one));
        line.is_empty()
            || line.plain.is_empty()
                && line.with_once.is_empty()
                && line.flows.values().map(BTreeMap::len).sum::<usize>() < 64
                && all.all(|one| self.admits(one, then, 1..one.call.parts.len()) == Some(false))
    }

    /// Whether some of a client's limiters would admit it at an instant; `None` if it cannot be said.
    fn admits(&self, waiter: &Waiter, now: i128, which: std::ops::Range<usize>) -> Option<bool> {
        // Whether the key of a hold has room depends on the whole call.
        if let Some(hold) = &waiter.call.hold
            && with(|world| {
                let entry = world.keys.get(waiter.db, hold.key.as_bytes());
                entry.is_some_and(|entry| accounts::is_crowded(&entry.value))
            })
        {
            return None;
        }
        let mut call = waiter.call.clone();
        let own = waiter.call.parts[which.clone()].iter().zip(&waiter.call.joins[which]);
        (call.parts, call.joins) =
            own.filter(|(part, _)| !part.shadow).map(|(part, join)| (part.clone(), *join)).unzip();
        if call.parts.is_empty() {
            return Some(true);
        }
        // A part of a call that takes something is no renewal.
        call.hold.iter_mut().for_each(|hold| hold.period = None);
        let held: Option<BTreeMap<String, Held>> = with(|world| {
            let wall = clock::wall() / MILLI;
            // A short time ago it was there, with another value if it is there again.
            let is_fresh = |key: &str| {
                let gone = world.gone.get(waiter.db, key.as_bytes());
                gone.is_some_and(|at| clock::monotonic() - at <= 2 * SLACK)
            };
            let entry = |key: &str| match world.keys.get(waiter.db, key.as_bytes()) {
                _ if is_fresh(key) => None,
                None => Some(None),
                // A key that was written while the clock was behind expires early when that ends.
                Some(entry) if entry.expiry.is_some_and(|at| at < wall - 2 * SLACK / MILLI) => {
                    (lead() == 0 && !self.is_set_back).then_some(None)
                }
                Some(entry) if entry.by_hand || entry.expiry.is_some_and(|at| at < wall) => None,
                Some(entry) => Some(Some((entry.value.clone(), entry.expiry))),
            };
            call.keys().map(|key| Some((key.to_owned(), entry(key)?))).collect()
        });
        let held = held?;
        let mut model = contract::model_of(&call, now, lead(), &held)?;
        if call.has_chain() || call.hold.is_some() {
            let book = contract::book_of(&call, &held)?;
            // At an instant before it began, a part looks like one from before the clock was set back.
            if book.iter().any(|held| held.begins_after(now)) {
                return None;
            }
            return Some(accounts::take(&call, &mut model, &book, true)?.ok()?.is_admitted);
        }
        let rows = model.peek(&call.parts).ok()?;
        Some(rows[1..].iter().all(|row| !row.limited))
    }

    /// The keys that the stream has made are the keys.
    fn replication(&self) {
        with(|world| {
            let touched = std::mem::take(&mut world.touched);
            let Some(image) = world.image.as_ref().filter(|_| !world.is_replica) else { return };
            let passed = passed(world);
            let same = |(db, key, ()): (i32, &Bytes, &())| {
                Keyspace::same(world.keys.get(db, key), image.get(db, key), passed)
            };
            if !touched.iter().all(same)
                && let Some(difference) = world.keys.difference(image, passed)
            {
                world.violates("replication", format!("here and on the replica, {difference}"));
            }
        });
    }

    /// Looks once more, at the end.
    pub fn end(&self) {
        self.bound();
        self.info();
        with(|world| {
            let Some(image) = world.image.as_ref().filter(|_| !world.is_replica) else { return };
            if let Some(difference) = world.keys.difference(image, passed(world)) {
                world.violates("replication", format!("here and on the replica, {difference}"));
            }
        });
    }
}

/// The words, the database and the order of the call with which a client waits, and since when.
fn wait_of(client: u64) -> Option<(Rc<Words>, i32, u64, i64)> {
    with(|world| {
        let one = world.clients.get(&client)?;
        let blocked = world.blocked.get(one.blocked?)?;
        Some((Rc::clone(&blocked.words), blocked.db, blocked.order, one.since))
    })
}

/// Whether the name of a command begins with one of these.
fn is_named(words: &Words, names: &[&str]) -> bool {
    let begins =
        |name: &&str| words.first()?.get(..name.len()).map(|own| own.eq_ignore_ascii_case(name.as_bytes()));
    names.iter().any(|name| begins(name) == Some(true))
}

/// Whether the reply of a call has as many rows and columns as this call's.
fn is_shape_of(reply: &Reply, call: &Call) -> bool {
    let Reply::Array(rows) = reply else { return false };
    let has_six = rows.iter().any(|row| matches!(row, Reply::Array(columns) if columns.len() == 6));
    rows.len() == call.parts.len() + 1 && has_six == call.has_chain()
}

/// The wait after which the units of CL.RESERVE act by its reply, if they do not act now.
fn wait_of_booking(reply: &Reply) -> Option<i64> {
    let Reply::Array(row) = reply else { return None };
    row.get(3).and_then(first).filter(|wait| *wait > 0 && first(reply) == Some(0))
}

/// The numbers of the module's section of INFO.
fn counts() -> BTreeMap<String, u64> {
    let fields = crate::server::info();
    fields.into_iter().filter_map(|(name, value)| Some((name, value.parse().ok()?))).collect()
}

/// The keys of which the server is asked whether the user of a client that waits may use them.
fn asked_for(call: &Call) -> Vec<Bytes> {
    call.keys().map(Into::into).chain(call.once.clone()).collect()
}

/// Whether the reply of a call that was answered some time ago is stored, with the expiry that it was given
/// then.
fn is_stored_now(call: &Call, name: &Bytes, answer: &Answer) -> bool {
    let expiry = with(|world| world.keys.get(answer.db, name).and_then(|entry| entry.expiry));
    let due = clock::wall() - (clock::monotonic() - answer.at) + call.once_period;
    expiry.is_some_and(|at| (at * MILLI - due).abs() < SLACK)
}

/// The instant by which all expiries count as one. Where a module sets the time that is left, an expiry that
/// has passed is set to the present.
fn passed(world: &World) -> i64 {
    if world.settings.version.starts_with('6') { clock::wall() / MILLI } else { i64::MIN }
}

/// How far the module's clock is ahead of the wall clock.
fn lead() -> i128 {
    i128::from(clock::module() - clock::wall())
}

fn stuck(key: &str, waiter: &Waiter, who: &str) {
    let text = format!(
        "the queue of {key} stands still: {who} could have been admitted {} ago, having waited for {}",
        history::time(SLACK),
        history::time(clock::monotonic() - waiter.since)
    );
    with(|world| world.violates("progress", text));
}
