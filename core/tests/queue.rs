//! The queue, compared with a list that is walked from its beginning each time, and with what a queue is for.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "a test that panics is a test that fails"
)]

mod common;

use common::{MS, S, at, nanos, span};
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

/// What happens to a key. A limit is an index into the case's list.
#[derive(Clone, Copy, Debug)]
enum Event {
    Join(usize, i64),
    Leave(usize),
    Plain(usize, i64),
    Reserve(usize, i64),
    Charge(i64),
    Refund(i64),
    /// Nobody before so many nanoseconds are over.
    Pause(i64),
    Delete,
    Pass(i64),
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
                Turn::Unpaid(tat) => {
                    assert_eq!(next.map(nanos), Some(0), "something was to be written");
                    self.state = Some(tat);
                }
                Turn::NotYet => {
                    if next.map(nanos) != Some(0) {
                        return;
                    }
                    // The key was deleted, so nothing is left to be written.
                    assert_eq!(self.state, None, "no turn had come");
                    assert_ne!(self.queue.next_turn(self.state, at(self.now)).map(nanos), Some(0));
                }
            }
        }
    }

    /// Lets time pass, and stops at each turn, and one nanosecond before it.
    fn pass(&mut self, time: i64) {
        let end = self.now + time;
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

    fn plain(&mut self, limit: Numbers, quantity: i64) -> bool {
        let now = at(self.now);
        let decide = |tat| throttle(tat, &limit.limit(), now, quantity);
        let decision = self.queue.decide_behind(self.state, now, decide).unwrap();
        self.write(&decision);
        !decision.answer.limited()
    }

    fn reserve(&mut self, limit: Numbers, quantity: i64) -> Option<i64> {
        let now = at(self.now);
        let decide = |tat| reserve(tat, &limit.limit(), now, quantity, Booking::default());
        let decision = self.queue.decide_behind(self.state, now, decide).unwrap();
        self.write(&decision);
        match decision.answer.verdict.wait() {
            Some(wait) if !decision.answer.limited() => Some(nanos(wait)),
            _ => None,
        }
    }

    fn refund(&mut self, limit: Numbers, quantity: i64) {
        // With the queue or without it.
        let decide = |tat| refund(tat, &limit.limit(), at(self.now), quantity);
        let decision = if quantity % 2 == 0 {
            self.queue.decide_before(self.state, at(self.now), decide).unwrap()
        } else {
            decide(self.state).unwrap()
        };
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
            Event::Charge(quantity) => {
                let now = at(self.now);
                let decide = |tat| charge(tat, &limits[0].limit(), now, quantity);
                let decision = self.queue.decide_before(self.state, now, decide).unwrap();
                self.write(&decision);
            }
            Event::Refund(quantity) => self.refund(limits[0], quantity),
            Event::Pause(wait) => {
                let (limit, now) = (limits[0].limit(), at(self.now));
                let decide = |tat| pause(tat, &limit, now, span(wait));
                let decision = self.queue.decide_for_all(self.state, now, decide).unwrap();
                self.write(&decision);
            }
            Event::Delete => self.state = None,
            Event::Pass(time) => self.pass(time),
        }
        self.serve();
        assert_eq!(self.queue.len(), self.waiting.len());
        assert_eq!(self.queue.is_empty(), self.waiting.is_empty());
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
            Event::Pause(wait) => {
                let one_unit = limits[0].tolerance() - limits[0].cost(1);
                self.owed_until = self.owed_until.max(now + wait + one_unit);
            }
            Event::Delete => {
                self.entries.retain(|entry| matches!(entry, Entry::Waits { .. }));
                self.owed_until = 0;
            }
            Event::Pass(time) => self.pass(now - time, time),
        }
        self.serve(now);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Whatever happens, and by whatever limits: the same waiters are admitted at the same instants in the
    /// same order.
    #[test]
    fn agrees_with_the_list(limits in prop::collection::vec(numbers(), 1..4), events in events(3)) {
        let (mut key, mut model) = (Key::default(), Model::default());
        for event in events {
            let event = match event {
                Event::Join(limit, quantity) => Event::Join(limit % limits.len(), quantity),
                Event::Plain(limit, quantity) => Event::Plain(limit % limits.len(), quantity),
                Event::Reserve(limit, quantity) => Event::Reserve(limit % limits.len(), quantity),
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
            // First come, first served.
            while served + 1 < key.served.len() {
                prop_assert!(key.served[served].0 < key.served[served + 1].0);
                served += 1;
            }
        }
        prop_assert!(key.served.is_sorted_by_key(|(ticket, _)| *ticket));
        key.turns();
    }

    /// By one limit: a client that joins, calls or leaves does not change when those before it are admitted;
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
        prop_assert_eq!(&crowded.turns()[..turns.len()], &turns[..]);

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

    /// By one limit: a client whose timeout ends before its turn is refused at once, to the nanosecond.
    #[test]
    fn too_late_is_exact(limit in numbers(), events in events(1), quantity in 1..4_i64) {
        let mut key = Key::default();
        for event in events {
            key.happen(event, &[limit]);
        }
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

    /// By one limit: what is admitted, from the queue, behind it or for a later time, never exceeds the
    /// limit, whoever leaves the queue and whatever is charged in between.
    #[test]
    fn never_more_than_the_limit(limit in numbers(), events in events(1), refunds in any::<bool>()) {
        let mut key = Key::default();
        let mut admitted = Vec::new();
        let mut quantities = std::collections::BTreeMap::new();
        for event in events {
            match event {
                Event::Join(_, quantity) => {
                    let before = key.state;
                    match key.join(limit, quantity) {
                        Some(ticket) => drop(quantities.insert(ticket, quantity)),
                        None if key.state != before => admitted.push((key.now, quantity)),
                        None => {}
                    }
                }
                Event::Plain(_, quantity) => {
                    if key.plain(limit, quantity) {
                        admitted.push((key.now, quantity));
                    }
                }
                Event::Reserve(_, quantity) => {
                    if let Some(wait) = key.reserve(limit, quantity) {
                        if refunds && wait > 0 {
                            // Booked and refunded at once: as if it had not been.
                            key.refund(limit, quantity);
                        } else {
                            admitted.push((key.now + wait, quantity));
                        }
                    }
                }
                Event::Pass(_) | Event::Leave(_) | Event::Charge(_) => key.happen(event, &[limit]),
                Event::Refund(_) | Event::Pause(_) | Event::Delete => {}
            }
            key.serve();
        }
        let rest = key.turns();
        admitted.extend(key.served.iter().chain(&rest).map(|(ticket, at)| (*at, quantities[ticket])));
        admitted.sort_unstable();
        let (mut level, mut last) = (0, 0);
        for (at, quantity) in admitted {
            level = (level - (at - last)).max(0) + limit.cost(quantity);
            last = at;
            prop_assert!(level <= limit.tolerance(), "{} over at {}", level - limit.tolerance(), at);
        }
    }

    /// A queue that has emptied is as if it had never been.
    #[test]
    fn an_empty_queue_has_no_memory(limit in numbers(), other in numbers(), events in events(1), more in events(2)) {
        let mut key = Key::default();
        for event in events {
            key.happen(event, &[limit]);
        }
        while let Some(ticket) = key.waiting.pop() {
            key.queue.leave(ticket);
        }
        key.serve();
        prop_assert!(key.queue.is_empty());
        let mut fresh = Key { queue: Queue::default(), served: Vec::new(), ..key.clone() };
        key.served.clear();
        for event in more {
            key.happen(event, &[limit, other]);
            fresh.happen(event, &[limit, other]);
            prop_assert_eq!(key.state, fresh.state, "after {:?}", event);
            let at = |key: &Key| key.served.iter().map(|(_, at)| *at).collect::<Vec<_>>();
            prop_assert_eq!(at(&key), at(&fresh), "after {:?}", event);
        }
    }
}

const ONE_A_SECOND: Numbers = Numbers { interval: 1000, capacity: 1 };

/// A key whose only unit has been taken.
fn full(limit: Numbers) -> Key {
    let mut key = Key::default();
    assert!(key.plain(limit, limit.capacity));
    key
}

#[test]
fn the_order_of_arrival() {
    let mut key = full(ONE_A_SECOND);
    let tickets: Vec<Ticket> = (0..4).map(|_| key.join(ONE_A_SECOND, 1).unwrap()).collect();
    key.queue.leave(tickets[1]);
    assert_eq!(key.turns(), [(tickets[0], S), (tickets[2], 2 * S), (tickets[3], 3 * S)]);
    assert_eq!(key.queue.dismiss(), Some(tickets[0]));
    assert_eq!(key.turns(), [(tickets[2], S), (tickets[3], 2 * S)]);
    key.queue.leave(tickets[0]); // a second time
    assert_eq!(key.queue.len(), 2);
}

#[test]
fn a_larger_limit_is_admitted_behind_the_queue_and_delays_nobody() {
    let mut key = full(ONE_A_SECOND);
    let first = key.join(ONE_A_SECOND, 1).unwrap();
    assert!(!key.plain(ONE_A_SECOND, 1));
    assert!(key.plain(Numbers { interval: 1000, capacity: 9 }, 5));
    let second = key.join(ONE_A_SECOND, 1).unwrap();
    assert_eq!(key.turns(), [(first, S), (second, 7 * S)]);
}

/// Regression: what was taken behind the queue counted as behind it even after it had been refunded.
#[test]
fn a_refunded_booking_does_not_admit_the_queue_early() {
    let mut key = full(ONE_A_SECOND);
    assert_eq!(key.reserve(ONE_A_SECOND, 1), Some(S));
    let waiter = key.join(ONE_A_SECOND, 1).unwrap();
    assert_eq!(key.reserve(ONE_A_SECOND, 1), Some(3 * S), "behind the queue");
    key.refund(ONE_A_SECOND, 1);
    assert_eq!(key.turns(), [(waiter, 2 * S)]);
    key.refund(ONE_A_SECOND, 1);
    assert_eq!(key.turns(), [(waiter, S)], "and what is given back beyond that moves it");
}

/// The same with a key that is deleted.
#[test]
fn a_deleted_key_does_not_admit_the_whole_queue() {
    let mut key = full(ONE_A_SECOND);
    let tickets: Vec<Ticket> = (0..3).map(|_| key.join(ONE_A_SECOND, 1).unwrap()).collect();
    assert!(key.plain(Numbers { interval: 1000, capacity: 99 }, 50));
    key.state = None;
    key.serve();
    assert_eq!(key.served, [(tickets[0], 0)]);
    assert_eq!(key.turns(), [(tickets[1], S), (tickets[2], 2 * S)]);
}

/// Regression: bookings acted at the times that they were told, and other calls in the places of the waiters
/// before them that had left.
#[test]
fn bookings_behind_a_queue_that_leaves_are_not_admitted_twice() {
    let mut key = full(ONE_A_SECOND);
    let tickets: Vec<Ticket> = (0..5).map(|_| key.join(ONE_A_SECOND, 1).unwrap()).collect();
    for place in 6..=8 {
        assert_eq!(key.reserve(ONE_A_SECOND, 1), Some(place * S));
    }
    for ticket in tickets {
        key.queue.leave(ticket);
    }
    key.waiting.clear();
    key.serve();
    assert!(key.queue.is_empty());
    assert_eq!(key.reserve(ONE_A_SECOND, 1), Some(9 * S));
}

#[test]
fn those_between_a_leaver_and_a_booking_move_up_and_those_behind_it_do_not() {
    let mut key = full(ONE_A_SECOND);
    let leaver = key.join(ONE_A_SECOND, 1).unwrap();
    let between = key.join(ONE_A_SECOND, 1).unwrap();
    assert_eq!(key.reserve(ONE_A_SECOND, 1), Some(3 * S));
    let behind = key.join(ONE_A_SECOND, 1).unwrap();
    key.queue.leave(leaver);
    key.waiting.remove(0);
    assert_eq!(key.turns(), [(between, S), (behind, 4 * S)]);
    key.state = None;
    key.serve();
    assert_eq!(key.served, [(between, 0)], "a deleted key owes nothing, not even what was yet to be written");
    assert_eq!(key.turns(), [(behind, S)]);
}

/// Regression: a charge delayed the waiters to the very time of a booking behind them.
#[test]
fn a_charge_is_behind_what_was_booked() {
    let mut key = full(ONE_A_SECOND);
    let before = key.join(ONE_A_SECOND, 1).unwrap();
    assert_eq!(key.reserve(ONE_A_SECOND, 1), Some(2 * S));
    let behind = key.join(ONE_A_SECOND, 1).unwrap();
    key.happen(Event::Charge(5), &[ONE_A_SECOND]);
    assert_eq!(key.turns(), [(before, S), (behind, 8 * S)]);
}

/// Regression: a waiter was admitted before the end of a pause when a booking was behind it.
#[test]
fn a_pause_is_one_for_all_waiters() {
    let mut key = full(ONE_A_SECOND);
    let before = key.join(ONE_A_SECOND, 1).unwrap();
    assert_eq!(key.reserve(ONE_A_SECOND, 1), Some(2 * S));
    let behind = key.join(ONE_A_SECOND, 1).unwrap();
    key.happen(Event::Pause(10 * S), &[ONE_A_SECOND]);
    assert_eq!(key.turns(), [(before, 10 * S), (behind, 12 * S)]);
    key.happen(Event::Pause(5 * S), &[ONE_A_SECOND]);
    assert_eq!(key.turns(), [(before, 10 * S), (behind, 12 * S)], "it only lengthens");
}

#[test]
fn a_late_timer_does_not_admit_more() {
    let mut key = full(ONE_A_SECOND);
    let tickets: Vec<Ticket> = (0..3).map(|_| key.join(ONE_A_SECOND, 1).unwrap()).collect();
    assert_eq!(key.reserve(ONE_A_SECOND, 1), Some(4 * S));
    key.now = 3 * S + S / 2;
    key.serve();
    assert_eq!(key.served, [(tickets[0], 3 * S + S / 2)]);
    assert_eq!(key.turns(), [(tickets[1], 4 * S + S / 2), (tickets[2], 5 * S + S / 2)]);
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
