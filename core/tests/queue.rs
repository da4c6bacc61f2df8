//! The queue, compared with a list that is walked from its beginning each time, and with what a queue is for.

#![allow(clippy::restriction, reason = "a test that panics is a test that fails")]

mod common;

use std::collections::BTreeMap;

use common::{MS, S, at, in_nanos, nanos, span};
use proptest::prelude::*;
use redis_cell_core::gcra::{Booking, Limit, Tat, charge, pause, refund, reserve, throttle};
use redis_cell_core::queue::{Joined, Queue, Ticket, Turn};
use redis_cell_core::{Change, Decision, Unit};

/// Milliseconds per unit, and the capacity: a limit whose arithmetic a test can do by itself.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Numbers {
    interval: i64,
    capacity: i64,
}

impl Numbers {
    fn limit(self) -> Limit {
        Limit::new(self.capacity - 1, 1, self.interval, Unit::Milliseconds).unwrap()
    }

    fn cost(self, quantity: i64) -> i64 {
        self.interval * MS * quantity
    }

    fn tolerance(self) -> i64 {
        self.cost(self.capacity)
    }
}

/// An event of a key. A limit is an index into the case's list.
#[derive(Clone, Copy, Debug)]
enum Event {
    Join(usize, i64),
    Leave(usize),
    Plain(usize, i64),
    Reserve(usize, i64),
    Charge(i64),
    Refund(i64),
    /// Nobody before this many nanoseconds are over.
    Pause(i64),
    Delete,
    Pass(i64),
    /// Time that passes while nobody is served: a timer that is late, a server that stands still.
    Stall(i64),
    /// The queue is lost but the state is not: a failover, or a slot that moves.
    Lost,
}

fn event(limits: usize) -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (0..limits, 1..4_i64).prop_map(|(limit, quantity)| Event::Join(limit, quantity)),
        2 => (0..6_usize).prop_map(Event::Leave),
        4 => (0..limits, 1..4_i64).prop_map(|(limit, quantity)| Event::Plain(limit, quantity)),
        2 => (0..limits, 1..4_i64).prop_map(|(limit, quantity)| Event::Reserve(limit, quantity)),
        1 => (1..4_i64).prop_map(Event::Charge),
        2 => (1..6_i64).prop_map(Event::Refund),
        1 => (0..10_000 * MS).prop_map(Event::Pause),
        1 => Just(Event::Delete),
        6 => (1..6_000 * MS).prop_map(Event::Pass),
    ]
}

/// Also what makes a queue serve late, and what ends it.
fn rough_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        16 => event(1),
        3 => (1..6_000 * MS).prop_map(Event::Stall),
        2 => (1..20 * MS).prop_map(Event::Stall),
        1 => Just(Event::Lost),
    ]
}

fn events(limits: usize) -> impl Strategy<Value = Vec<Event>> {
    prop::collection::vec(event(limits), 1..40)
}

fn numbers() -> impl Strategy<Value = Numbers> {
    (1..2_000_i64, 1..8_i64).prop_map(|(interval, capacity)| Numbers { interval, capacity })
}

/// A key with its queue, served at the very instant of each turn.
#[derive(Clone, Debug, Default)]
struct Key {
    queue: Queue,
    state: Option<Tat>,
    now: i64,
    /// The waiters admitted, and when.
    served: Vec<(Ticket, i64)>,
    waiting: Vec<Ticket>,
}

impl Key {
    fn write(&mut self, decision: &Decision<Tat>) {
        match decision.change {
            Change::Keep => {}
            Change::Store(tat) => self.state = Some(tat),
            Change::Delete => self.state = None,
        }
    }

    /// Serves all whose turn it is, and checks that `next_turn` says so beforehand.
    fn serve(&mut self) {
        loop {
            let next = self.queue.next_turn(self.state, at(self.now));
            match self.queue.turn(self.state, at(self.now)) {
                Turn::Admitted(ticket, decision) => {
                    assert_eq!(next.map(nanos), Some(0), "a turn had come");
                    assert!(!decision.answer.limited());
                    self.write(&decision);
                    self.served.push((ticket, self.now));
                    self.waiting.retain(|waiting| *waiting != ticket);
                }
                Turn::Failed(ticket, error) => panic!("{ticket}: {error}"),
                Turn::NotYet => {
                    assert_ne!(next.map(nanos), Some(0), "no turn had come");
                    return;
                }
            }
        }
    }

    /// Lets time pass, and stops at each turn, and one nanosecond before it.
    fn pass(&mut self, time: i64) {
        let end = self.now + time;
        self.serve();
        while let Some(turn) =
            self.queue.next_turn(self.state, at(self.now)).map(|wait| self.now + nanos(wait))
            && turn <= end
        {
            let mut early = self.clone();
            early.now = turn - 1;
            assert_eq!(early.queue.turn(early.state, at(early.now)), Turn::NotYet, "1 ns before the turn");
            let served = self.served.len();
            self.now = turn;
            self.serve();
            assert!(self.served.len() > served, "no turn at the time that `next_turn` returned");
        }
        self.now = end;
    }

    fn join(&mut self, limit: Numbers, quantity: i64) -> Option<Ticket> {
        match self.queue.join(self.state, &limit.limit(), at(self.now), quantity, None).unwrap() {
            Joined::Decided(decision) => {
                self.write(&decision);
                None
            }
            Joined::Waiting(ticket) => {
                self.waiting.push(ticket);
                Some(ticket)
            }
            Joined::TooLate => panic!("too late for a client without a timeout"),
        }
    }

    /// A call that does not wait, decided on the state that the queue returns for it.
    fn behind(&mut self, decide: impl Fn(Option<Tat>) -> Decision<Tat>) -> Decision<Tat> {
        let now = at(self.now);
        let mut decision = decide(self.queue.seen(self.state, now).unwrap());
        self.queue.took(now, &mut decision).unwrap();
        self.write(&decision);
        decision
    }

    fn plain(&mut self, limit: Numbers, quantity: i64) -> bool {
        let now = at(self.now);
        let decision = self.behind(|tat| throttle(tat, &limit.limit(), now, quantity).unwrap());
        !decision.answer.limited()
    }

    fn reserve(&mut self, limit: Numbers, quantity: i64) -> Option<i64> {
        let now = at(self.now);
        let book = |tat| reserve(tat, &limit.limit(), now, quantity, Booking::default()).unwrap();
        let decision = self.behind(book);
        match decision.answer.verdict.wait() {
            Some(wait) if !decision.answer.limited() => Some(nanos(wait)),
            _ => None,
        }
    }

    fn charge(&mut self, limit: Numbers, quantity: i64) {
        let now = at(self.now);
        self.queue.saw(self.state, now);
        let decision = charge(self.state, &limit.limit(), now, quantity).unwrap();
        self.queue.charged(now, &decision);
        self.write(&decision);
    }

    /// The queue is not told.
    fn refund(&mut self, limit: Numbers, quantity: i64) {
        let decision = refund(self.state, &limit.limit(), at(self.now), quantity).unwrap();
        self.write(&decision);
    }

    fn pause(&mut self, limit: Numbers, wait: i64) {
        let (limit, now) = (limit.limit(), at(self.now));
        let decision = self.queue.pause(self.state, now, |tat| pause(tat, &limit, now, span(wait))).unwrap();
        self.write(&decision);
    }

    fn happen(&mut self, event: Event, limits: &[Numbers]) {
        match event {
            Event::Join(limit, quantity) => drop(self.join(limits[limit], quantity)),
            Event::Leave(place) => {
                if let Some(ticket) = self.waiting.get(place).copied() {
                    self.waiting.remove(place);
                    self.queue.leave(ticket);
                }
            }
            Event::Plain(limit, quantity) => drop(self.plain(limits[limit], quantity)),
            Event::Reserve(limit, quantity) => drop(self.reserve(limits[limit], quantity)),
            Event::Charge(quantity) => self.charge(limits[0], quantity),
            Event::Refund(quantity) => self.refund(limits[0], quantity),
            Event::Pause(wait) => self.pause(limits[0], wait),
            Event::Stall(time) => self.now += time,
            Event::Lost => {
                self.queue = Queue::default();
                self.waiting.clear();
            }
            Event::Delete => self.state = None,
            Event::Pass(time) => self.pass(time),
        }
        if !matches!(event, Event::Stall(_)) {
            self.serve();
        }
        self.is_counted();
    }

    fn is_counted(&self) {
        assert_eq!(self.queue.len(), self.waiting.len());
        assert_eq!(self.queue.is_empty(), self.waiting.is_empty());
        assert_eq!(self.queue.first(), self.waiting.first().copied());
    }

    /// When each waiter is admitted, if nothing more happens.
    fn turns(&self) -> Vec<(Ticket, i64)> {
        let mut key = self.clone();
        key.served.clear();
        key.serve();
        key.pass(1_000_000 * S);
        assert!(key.queue.is_empty(), "a client waits forever");
        key.served
    }
}

/// The same key as a list: what is owed before the first waiter, and then, in order of arrival, the waiters
/// and what was taken behind them.
#[derive(Debug, Default)]
struct Model {
    owed_until: i64,
    entries: Vec<Entry>,
    served: Vec<(Ticket, i64)>,
}

#[derive(Clone, Copy, Debug)]
enum Entry {
    Waits { ticket: Ticket, cost: i64, tolerance: i64 },
    Taken { cost: i64, booked: bool },
}

impl Entry {
    fn cost(self) -> i64 {
        match self {
            Self::Waits { cost, .. } | Self::Taken { cost, .. } => cost,
        }
    }

    fn waits(&self) -> bool {
        matches!(self, Self::Waits { .. })
    }

    fn is_booked(&self) -> bool {
        matches!(self, Self::Taken { booked: true, .. })
    }
}

impl Model {
    /// How far the TAT would be ahead with the whole list served.
    fn debt(&self, now: i64) -> i64 {
        (self.owed_until - now).max(0) + self.entries.iter().map(|entry| entry.cost()).sum::<i64>()
    }

    fn take(&mut self, cost: i64, now: i64, booked: bool) {
        match self.entries.last_mut() {
            None => self.owed_until = self.owed_until.max(now) + cost,
            Some(Entry::Taken { cost: before, booked: already }) => {
                *before += cost;
                *already |= booked;
            }
            Some(Entry::Waits { .. }) => self.entries.push(Entry::Taken { cost, booked }),
        }
    }

    /// The cost of a waiter that leaves stays right before the first booking behind it.
    fn leave(&mut self, place: usize) {
        let cost = self.entries.remove(place).cost();
        let behind = self.entries[place..].iter_mut().find(|entry| entry.is_booked());
        if let Some(Entry::Taken { cost: before, .. }) = behind {
            *before += cost;
        }
    }

    /// Before all waiters, but behind the last booking.
    fn charge(&mut self, cost: i64, now: i64) {
        match self.entries.iter_mut().rev().find(|entry| entry.is_booked()) {
            Some(Entry::Taken { cost: before, .. }) => *before += cost,
            _ => self.owed_until = self.owed_until.max(now) + cost,
        }
    }

    /// Serves every waiter that is due, at that instant. What was taken behind no waiter is owed.
    fn serve(&mut self, now: i64) {
        while let Some(&first) = self.entries.first() {
            if let Entry::Waits { ticket, cost, tolerance } = first {
                if (self.owed_until - now).max(0) + cost > tolerance {
                    return;
                }
                self.served.push((ticket, now));
            }
            self.owed_until = self.owed_until.max(now) + first.cost();
            self.entries.remove(0);
        }
    }

    fn next_turn(&self) -> Option<i64> {
        match *self.entries.first()? {
            Entry::Waits { cost, tolerance, .. } => Some(self.owed_until + cost - tolerance),
            Entry::Taken { .. } => panic!("no waiter is before it"),
        }
    }

    fn pass(&mut self, now: i64, time: i64) {
        while let Some(turn) = self.next_turn().filter(|turn| *turn <= now + time) {
            self.serve(turn.max(now));
        }
    }

    fn give_back(&mut self, mut cost: i64, now: i64) {
        while let Some(place) = self.entries.iter().rposition(|entry| !entry.waits()) {
            let Entry::Taken { cost: taken, booked } = self.entries[place] else { panic!("found as taken") };
            if taken > cost {
                self.entries[place] = Entry::Taken { cost: taken - cost, booked };
                return;
            }
            cost -= taken;
            self.entries.remove(place);
        }
        self.owed_until = self.owed_until.max(now) - cost;
    }

    fn happen(&mut self, event: Event, limits: &[Numbers], key: &Key, joined: Option<Ticket>) {
        let now = key.now;
        match event {
            Event::Join(limit, quantity) => {
                let (cost, tolerance) = (limits[limit].cost(quantity), limits[limit].tolerance());
                if cost <= tolerance && self.debt(now) + cost <= tolerance {
                    self.take(cost, now, false);
                } else if cost <= tolerance {
                    let ticket = joined.unwrap();
                    self.entries.push(Entry::Waits { ticket, cost, tolerance });
                }
            }
            Event::Leave(place) => {
                let mut waiters = self.entries.iter().enumerate().filter(|(_, entry)| entry.waits());
                if let Some((place, _)) = waiters.nth(place) {
                    self.leave(place);
                }
            }
            Event::Plain(limit, quantity) => {
                let (cost, tolerance) = (limits[limit].cost(quantity), limits[limit].tolerance());
                if self.debt(now) + cost <= tolerance {
                    self.take(cost, now, false);
                }
            }
            Event::Reserve(limit, quantity) => {
                if quantity <= limits[limit].capacity {
                    let (cost, tolerance) = (limits[limit].cost(quantity), limits[limit].tolerance());
                    let booked = self.debt(now) + cost > tolerance;
                    self.take(cost, now, booked);
                }
            }
            Event::Charge(quantity) => self.charge(limits[0].cost(quantity), now),
            Event::Refund(quantity) => self.give_back(limits[0].cost(quantity), now),
            Event::Pause(_) | Event::Stall(_) | Event::Lost => panic!("not in this model"),
            Event::Delete => {
                self.entries.retain(|entry| matches!(entry, Entry::Waits { .. }));
                self.owed_until = 0;
            }
            Event::Pass(time) => self.pass(now - time, time),
        }
        self.serve(now);
    }
}

/// The highest level of a bucket into which these units flow, as a time. If no limit is exceeded, it is at
/// most the tolerance.
fn fullest(limit: Numbers, mut acts: Vec<(i64, i64)>) -> i64 {
    acts.sort_unstable();
    let (mut level, mut last, mut fullest) = (0, 0, 0);
    for (at, quantity) in acts {
        level = (level - (at - last)).max(0) + limit.cost(quantity);
        last = at;
        fullest = fullest.max(level);
    }
    fullest
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2 * ProptestConfig::default().cases, ..ProptestConfig::default() })]

    /// Whatever happens, and by whatever limits: the same waiters are admitted at the same instants in the
    /// same order.
    #[test]
    fn agrees_with_the_list(limits in prop::collection::vec(numbers(), 1..4), events in events(3)) {
        let (mut key, mut model) = (Key::default(), Model::default());
        for event in events {
            let event = match event {
                // What a refund leaves of a booking's room is not in this model: `never_more_than_the_limit`.
                Event::Refund(_) if model.entries.iter().any(Entry::is_booked) => continue,
                Event::Join(limit, quantity) => Event::Join(limit % limits.len(), quantity),
                // A list does not say what becomes of the room before a booking when the limits differ.
                Event::Reserve(_, quantity) if limits.len() == 1 => Event::Reserve(0, quantity),
                Event::Plain(limit, quantity) | Event::Reserve(limit, quantity) => {
                    Event::Plain(limit % limits.len(), quantity)
                }
                Event::Pause(time) => Event::Pass(time),
                other => other,
            };
            let before = key.waiting.last().copied();
            let mut served = key.served.len();
            key.happen(event, &limits);
            let joined = key.waiting.last().copied().filter(|last| before < Some(*last));
            model.happen(event, &limits, &key, joined);
            prop_assert_eq!(&key.served, &model.served, "after {:?}", event);
            let next = key.queue.next_turn(key.state, at(key.now)).map(|wait| key.now + nanos(wait));
            prop_assert_eq!(next, model.next_turn(), "after {:?}", event);
            // A call that does not wait sees the costs of all that came before it.
            let seen = key.queue.seen(key.state, at(key.now)).unwrap();
            let debt = seen.map_or(0, |tat| nanos(tat.since(at(key.now))));
            prop_assert_eq!(debt, model.debt(key.now), "after {:?}", event);
            // First come, first served.
            while served + 1 < key.served.len() {
                prop_assert!(key.served[served].0 < key.served[served + 1].0);
                served += 1;
            }
        }
        prop_assert!(key.served.is_sorted_by_key(|(ticket, _)| *ticket));
        key.turns();
    }

    /// By one limit: a client that joins, calls or leaves does not delay those before it;
    /// and a client that leaves is as if it had never come.
    #[test]
    fn those_behind_do_not_delay(limit in numbers(), other in numbers(), events in events(1), late in events(1), place in 0..8_usize) {
        let mut key = Key::default();
        for event in events {
            key.happen(event, &[limit]);
        }
        let turns = key.turns();
        let mut crowded = key.clone();
        for event in late {
            match event {
                Event::Join(_, quantity) => drop(crowded.join(limit, quantity)),
                Event::Plain(_, quantity) => drop(crowded.plain(other, quantity)),
                Event::Reserve(_, quantity) => drop(crowded.reserve(other, quantity)),
                _ => {}
            }
        }
        // A new booking can only add to the room that one before it has left.
        for (crowded, alone) in crowded.turns().into_iter().zip(turns) {
            prop_assert_eq!(crowded.0, alone.0);
            prop_assert!(crowded.1 <= alone.1, "{} delayed from {} to {}", alone.0, alone.1, crowded.1);
        }

        // With it gone, all others are admitted as in a queue that it did not join.
        let (mut with, mut without) = (key.clone(), key);
        let tickets: Vec<Option<Ticket>> = (0..8).map(|_| with.join(limit, 1)).collect();
        if let Some(ticket) = tickets[place] {
            with.queue.leave(ticket);
            with.waiting.retain(|waiting| *waiting != ticket);
            for _ in 1..8 {
                without.join(limit, 1);
            }
            let at = |turns: Vec<(Ticket, i64)>| turns.into_iter().map(|(_, at)| at).collect::<Vec<_>>();
            prop_assert_eq!(at(with.turns()), at(without.turns()));
        }
    }

    /// A client whose timeout ends before its turn is refused at once, to the nanosecond.
    #[test]
    fn too_late_is_exact(
        limits in prop::collection::vec(numbers(), 1..4),
        events in events(3),
        client in (0..3_usize, 1..4_i64),
    ) {
        let mut key = Key::default();
        let mut booked = false;
        for event in events {
            let event = match event {
                Event::Join(limit, quantity) => Event::Join(limit % limits.len(), quantity),
                Event::Plain(limit, quantity) => Event::Plain(limit % limits.len(), quantity),
                Event::Reserve(limit, quantity) => Event::Reserve(limit % limits.len(), quantity),
                other => other,
            };
            booked |= matches!(event, Event::Reserve(..));
            // What a refund leaves of a booking's room may serve a client earlier than it was told.
            if !(booked && matches!(event, Event::Refund(_))) {
                key.happen(event, &limits);
            }
        }
        let (limit, quantity) = (limits[client.0 % limits.len()], client.1);
        let mut waits = key.clone();
        let Some(ticket) = waits.join(limit, quantity) else { return Ok(()) };
        let turn = waits.turns().into_iter().find(|(served, _)| *served == ticket).unwrap().1 - key.now;
        let join = |patience| {
            let mut queue = key.queue.clone();
            queue.join(key.state, &limit.limit(), at(key.now), quantity, Some(span(patience))).unwrap()
        };
        prop_assert_eq!(join(turn - 1), Joined::TooLate);
        prop_assert_eq!(join(turn), Joined::Waiting(ticket));
        prop_assert_eq!(join(0), Joined::TooLate);
        prop_assert_eq!(key.turns().len(), key.queue.len(), "a client that is too late is not in the queue");
    }

    /// By one limit: what acts, from the queue, behind it or at a later time that it was told, never exceeds
    /// the limit: whoever leaves the queue, whatever is charged, paused or refunded at once, however late the
    /// queue is served, and if it is lost. Only the tenth of a unit that a place in a room may be late comes
    /// on top.
    #[test]
    fn never_more_than_the_limit(
        limit in numbers(),
        events in prop::collection::vec(rough_event(), 1..60),
        refunds in any::<bool>(),
    ) {
        let mut key = Key::default();
        let mut acts = Vec::new();
        let mut quantities = BTreeMap::new();
        let mut late = false;
        for event in events {
            match event {
                Event::Join(_, quantity) => {
                    let before = key.state;
                    match key.join(limit, quantity) {
                        Some(ticket) => drop(quantities.insert(ticket, quantity)),
                        None if key.state != before => acts.push((key.now, quantity)),
                        None => {}
                    }
                }
                Event::Plain(_, quantity) => {
                    if key.plain(limit, quantity) {
                        acts.push((key.now, quantity));
                    }
                }
                Event::Reserve(_, quantity) => {
                    if let Some(wait) = key.reserve(limit, quantity) {
                        if refunds && wait > 0 {
                            // Booked and refunded at once: as if it had not been.
                            key.refund(limit, quantity);
                        } else {
                            acts.push((key.now + wait, quantity));
                        }
                    }
                }
                Event::Lost => {
                    acts.extend(key.served.drain(..).map(|(ticket, at)| (at, quantities[&ticket])));
                    quantities.clear();
                    key.happen(event, &[limit]);
                }
                Event::Refund(_) | Event::Delete => {}
                _ => key.happen(event, &[limit]),
            }
            late |= matches!(event, Event::Stall(_));
            if !matches!(event, Event::Stall(_)) {
                key.serve();
            }
        }
        let rest = key.turns();
        acts.extend(key.served.iter().chain(&rest).map(|(ticket, at)| (*at, quantities[ticket])));
        let allowance = if late { limit.cost(1) / 10 } else { 0 };
        let over = fullest(limit, acts) - limit.tolerance();
        prop_assert!(over <= allowance, "over by {over} ns");
    }
}

const ONE_A_SECOND: Numbers = Numbers { interval: 1000, capacity: 1 };

/// A key whose only unit has been taken.
fn full(limit: Numbers) -> Key {
    let mut key = Key::default();
    assert!(key.plain(limit, limit.capacity));
    key
}

/// A step of a story on a full key, of one unit a second if nothing else is said. Times are in milliseconds.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// The limit has this capacity, and the key is full.
    Full(i64),
    /// A client waits for this quantity.
    Join(i64),
    /// A client with a limit of this capacity comes for this quantity, with this timeout; whether it waits.
    Patient(i64, i64, i64, bool),
    /// The waiter at this place leaves.
    Leave(usize),
    /// The first waiter is removed.
    Dismiss,
    /// A call by a limit of this capacity, for this quantity, and whether it is admitted.
    Plain(i64, i64, bool),
    /// A booking of one unit, and the wait that it is told.
    Reserve(i64),
    /// The same by a limit of this capacity, for this quantity.
    Book(i64, i64, i64),
    Charge(i64),
    Refund(i64),
    Pause(i64),
    Delete,
    /// It is so late, and nobody has been served.
    Now(i64),
    /// Serves all whose turn it is, and says when they were admitted.
    Serve(&'static [i64]),
    /// When all waiters are admitted, if nothing more happens.
    Turns(&'static [i64]),
}

impl Key {
    fn step(&mut self, limit: &mut Numbers, step: Step) {
        let in_millis = |served: &[(Ticket, i64)]| served.iter().map(|(_, at)| *at / MS).collect::<Vec<_>>();
        let of = |capacity| Numbers { interval: 1000, capacity };
        match step {
            Step::Full(capacity) => {
                *limit = of(capacity);
                *self = full(*limit);
            }
            Step::Join(quantity) => assert!(self.join(*limit, quantity).is_some()),
            Step::Patient(capacity, quantity, patience, waits) => {
                let (limit, patience) = (of(capacity).limit(), Some(span(patience * MS)));
                let joined = self.queue.join(self.state, &limit, at(self.now), quantity, patience);
                match joined.unwrap() {
                    Joined::Waiting(ticket) if waits => self.waiting.push(ticket),
                    joined => assert_eq!((joined, waits), (Joined::TooLate, false)),
                }
            }
            Step::Leave(place) => {
                let ticket = self.waiting.remove(place);
                self.queue.leave(ticket);
                self.queue.leave(ticket); // a second time
            }
            Step::Dismiss => assert_eq!(self.queue.dismiss(), Some(self.waiting.remove(0))),
            Step::Plain(capacity, quantity, admitted) => {
                assert_eq!(self.plain(of(capacity), quantity), admitted);
            }
            Step::Reserve(wait) => assert_eq!(self.reserve(*limit, 1), Some(wait * MS)),
            Step::Book(capacity, quantity, wait) => {
                assert_eq!(self.reserve(of(capacity), quantity), Some(wait * MS));
            }
            Step::Charge(quantity) => self.happen(Event::Charge(quantity), &[*limit]),
            Step::Refund(quantity) => self.refund(*limit, quantity),
            Step::Pause(wait) => self.happen(Event::Pause(wait * MS), &[*limit]),
            Step::Delete => self.state = None,
            Step::Now(now) => self.now = now * MS,
            Step::Serve(admitted) => {
                self.serve();
                assert_eq!(in_millis(&self.served), admitted);
                self.served.clear();
            }
            Step::Turns(turns) => {
                let (tickets, all) = (&self.waiting, self.turns());
                assert_eq!(in_millis(&all), turns);
                assert!(all.iter().map(|(ticket, _)| ticket).eq(tickets));
            }
        }
        self.is_counted();
    }
}

#[test]
#[rustfmt::skip] // A story is read from left to right.
fn stories_of_one_unit_a_second() {
    use Step::*;

    let stories: [(&str, &[Step]); 27] = [
        ("a larger limit is admitted behind the queue, and delays nobody",
            &[Join(1), Plain(1, 1, false), Plain(9, 5, true), Join(1), Turns(&[1_000, 7_000])]),
        ("regression: what was taken behind the queue counted as behind it after its refund",
            &[Reserve(1_000), Join(1), Reserve(3_000), Refund(1), Turns(&[2_000]),
              Refund(1), Turns(&[1_000])]),
        ("the same with a key that is deleted",
            &[Join(1), Join(1), Join(1), Plain(99, 50, true), Delete, Serve(&[0]), Turns(&[1_000, 2_000])]),
        ("regression: bookings acted, and other calls in the places of leavers before them",
            &[Join(1), Join(1), Join(1), Reserve(4_000), Reserve(5_000),
              Leave(0), Leave(0), Leave(0), Serve(&[]), Turns(&[]), Reserve(6_000)]),
        ("those between a leaver and a booking move up, and those behind it do not",
            &[Join(1), Join(1), Reserve(3_000), Join(1), Leave(0), Turns(&[1_000, 4_000]),
              Delete, Serve(&[0]), Turns(&[1_000])]),
        ("regression: a charge delayed the waiters to the very time of a booking behind them",
            &[Join(1), Reserve(2_000), Join(1), Charge(5), Turns(&[1_000, 8_000])]),
        ("a charge is behind the last of several bookings: it delays nobody before one of them",
            &[Join(1), Reserve(2_000), Join(1), Reserve(4_000), Join(1), Charge(5),
              Turns(&[1_000, 3_000, 10_000])]),
        ("regression: a waiter before a booking was admitted before the end of a pause",
            &[Join(1), Reserve(2_000), Join(1), Pause(10_000), Turns(&[10_000, 11_000]),
              Pause(5_000), Turns(&[10_000, 11_000])]),
        ("a pause takes from a room the time before its end, and no more",
            &[Join(1), Join(1), Reserve(3_000), Pause(1_500), Turns(&[1_500, 4_000])]),
        ("a pause that ends behind a room takes all of it, and nothing of the next one",
            &[Join(1), Reserve(2_000), Join(1), Reserve(4_000), Pause(2_500), Turns(&[3_000, 5_000])]),
        ("regression: a call behind a booking delayed a waiter that had missed its room",
            &[Join(1), Join(1), Reserve(3_000), Pause(1_500), Plain(9, 2, true), Turns(&[1_500, 4_000]),
              Reserve(7_000), Turns(&[1_500, 4_000])]),
        ("calls by a larger limit keep their places among waiters and bookings",
            &[Join(1), Plain(9, 1, true), Plain(9, 1, true), Join(1), Plain(9, 1, true), Join(1),
              Turns(&[1_000, 4_000, 6_000]), Reserve(7_000), Turns(&[1_000, 4_000, 6_000]),
              Plain(9, 1, true), Join(1), Plain(9, 1, false), Turns(&[1_000, 4_000, 6_000, 9_000])]),
        ("of calls behind waiters that are served late, those whose time has passed are first",
            &[Join(1), Plain(9, 1, true), Join(1), Plain(9, 1, true), Now(2_500), Turns(&[2_500, 3_500])]),
        ("a room that is too small for all who wait before a booking does not count as theirs",
            &[Join(1), Join(1), Join(1), Reserve(4_000), Now(1_200), Serve(&[1_200]), Reserve(4_800),
              Turns(&[2_100, 5_000])]),
        ("a client without a quantity waits like others, and takes no time",
            &[Join(1), Reserve(2_000), Join(0), Reserve(3_000), Turns(&[1_000, 2_000])]),
        ("a late timer does not admit more: half a second is left before the booking",
            &[Join(1), Join(1), Join(1), Reserve(4_000), Now(3_500), Serve(&[]),
              Turns(&[5_000, 6_000, 7_000])]),
        ("regression: who had left before a booking was forgotten by a charge that was decided before",
            &[Join(1), Join(1), Reserve(3_000), Leave(0), Leave(0), Charge(1), Reserve(5_000)]),
        ("a waiter that has missed its room has one before the next booking: bookings starve nobody",
            &[Join(1), Reserve(2_000), Now(1_500), Plain(1, 1, false), Reserve(2_500), Turns(&[3_000])]),
        ("a booking that was refunded leaves an open room: calls behind it do not close it, however late it is",
            &[Full(2), Pause(2_000), Join(2), Reserve(4_000), Refund(1), Now(4_000), Plain(3, 1, true), Turns(&[4_000]),
              Reserve(2_000), Turns(&[4_000])]),
        ("nor if the queue is late after the call",
            &[Full(2), Pause(2_000), Join(2), Reserve(4_000), Refund(1), Plain(9, 1, true), Now(4_000), Turns(&[4_000])]),
        ("once all of an open room has passed, the time that passes is that of the calls behind it",
            &[Full(2), Pause(2_000), Join(1), Reserve(3_000), Refund(1), Now(2_000), Plain(3, 1, true),
              Now(3_000), Plain(3, 1, true), Now(5_000), Turns(&[5_000]), Reserve(1_000), Turns(&[5_000])]),
        ("the order of arrival", &[Join(1), Join(1), Join(1), Join(1), Leave(1), Turns(&[1_000, 2_000, 3_000]),
              Dismiss, Turns(&[1_000, 2_000])]),
        ("a client that leaves behind a booking leaves nothing behind",
            &[Join(1), Reserve(2_000), Join(1), Join(1), Leave(1), Reserve(4_000), Turns(&[1_000, 3_000])]),
        ("a refund is that of the latest booking, and the rest of it that of the one before",
            &[Join(1), Reserve(2_000), Join(1), Reserve(4_000), Refund(2), Turns(&[1_000, 2_000])]),
        ("where nothing is left between two rooms, clients of both have their places in the one that is left",
            &[Join(1), Book(2, 2, 2_000), Join(1), Book(2, 1, 4_000), Refund(2), Turns(&[1_000, 3_000])]),
        ("a client is admitted after those before it, whose waits by another limit may be longer than its own",
            &[Join(1), Join(1), Patient(3, 1, 1_999, false), Patient(3, 1, 2_000, true),
              Turns(&[1_000, 2_000, 2_000])]),
        ("regression: a client was told that its turn would come too late, by as much as those before it may be ahead",
            &[Full(3), Join(1), Patient(9, 6, 1_000, true), Turns(&[1_000, 1_000])]),
    ];
    for (shows, steps) in stories {
        let mut limit = ONE_A_SECOND;
        let mut key = full(limit);
        for step in steps {
            println!("{shows}: {step:?}");
            key.step(&mut limit, *step);
        }
    }
}

/// A pause that ends before what is booked is answered with the state as it is, which reaches further.
#[test]
fn a_pause_is_answered_with_what_is_booked_behind_it() {
    let mut key = full(ONE_A_SECOND);
    key.join(ONE_A_SECOND, 1).unwrap();
    assert_eq!(key.reserve(ONE_A_SECOND, 1), Some(2 * S));
    let limit = ONE_A_SECOND.limit();
    let decide = |tat| pause(tat, &limit, at(0), span(3 * S / 2));
    let decision = key.queue.pause(key.state, at(0), decide).unwrap();
    assert_eq!(decision.change, Change::Keep, "the booking ends at 3 s");
    assert_eq!(in_nanos(&decision.answer), [1, 1, 0, 3 * S, 3 * S]);
}

/// In the reply at its turn, the costs of those who still wait count as taken from what remains.
#[test]
fn a_reply_at_its_turn_counts_those_who_wait() {
    let limit = Numbers { interval: 1000, capacity: 5 };
    let mut key = full(limit);
    let first = key.join(limit, 1).unwrap();
    key.join(limit, 3).unwrap();
    key.now = 2 * S;
    let Turn::Admitted(ticket, decision) = key.queue.turn(key.state, at(key.now)) else {
        panic!("its turn was at 1 s")
    };
    assert_eq!(ticket, first);
    // 5 and 1 are taken, 3 wait, and 2 have come back.
    assert_eq!((decision.answer.remaining, nanos(decision.answer.reset_after)), (0, 4 * S));
}

/// A tenth of a unit is as exact as a timer.
#[test]
fn a_timer_may_be_late_by_a_tenth_of_a_unit() {
    // A nanosecond more, and too little is left for the second waiter.
    for (late, second) in [(S / 10, 2 * S), (S / 10 + 1, 4 * S)] {
        let mut key = full(ONE_A_SECOND);
        let tickets: Vec<Ticket> = (0..2).map(|_| key.join(ONE_A_SECOND, 1).unwrap()).collect();
        assert_eq!(key.reserve(ONE_A_SECOND, 1), Some(3 * S));
        key.now = S + late;
        assert_eq!(key.turns(), [(tickets[0], S + late), (tickets[1], second)], "late by {late}");
    }
}

/// Regression: what waiters cost before a booking was not in the key, but expected to be served in time.
#[test]
fn a_booking_stores_the_costs_before_it() {
    let mut key = full(ONE_A_SECOND);
    let tickets: Vec<Ticket> = (0..3).map(|_| key.join(ONE_A_SECOND, 1).unwrap()).collect();
    assert_eq!(key.state, Some(at(S)));
    assert_eq!(key.reserve(ONE_A_SECOND, 1), Some(4 * S));
    assert_eq!(key.state, Some(at(5 * S)));
    let before = key.clone();
    assert_eq!(key.turns(), [(tickets[0], S), (tickets[1], 2 * S), (tickets[2], 3 * S)]);
    key.pass(3 * S);
    assert_eq!(key.state, before.state, "nothing is written for them");
    // The queue is lost, and the key has the whole state.
    let mut lost = before;
    lost.queue = Queue::default();
    assert_eq!(lost.reserve(ONE_A_SECOND, 1), Some(5 * S));
}

#[test]
fn past_the_end_of_time_joining_is_an_error() {
    let century = Limit::new(1, 1, 3_155_760_000, Unit::Seconds).unwrap();
    let mut queue = Queue::default();
    let state = at(3_000_000_000 * S);
    for _ in 0..2 {
        let joined = queue.join(Some(state), &century, at(0), 2, None);
        assert!(matches!(joined, Ok(Joined::Waiting(_)) | Err(_)), "{joined:?}");
    }
    assert!(queue.join(Some(state), &century, at(0), 2, None).is_err());
    assert!(queue.len() < 3);
}
