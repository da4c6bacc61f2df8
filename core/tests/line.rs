//! The line of callers: held against a list that is walked from its beginning each time, and against what a line is for.

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
use redis_cell_core::gcra::{Booking, Limit, Tat, charge, refund, reserve, throttle};
use redis_cell_core::line::{Joined, Line, Ticket, Turn};
use redis_cell_core::{Change, Decision, Retry, Unit};

/// Milliseconds per unit, and the burst: a limit whose arithmetic a test can do by itself.
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

/// What happens to a key. Limits are numbers into the case's list.
#[derive(Clone, Copy, Debug)]
enum Event {
    Join(usize, i64),
    Leave(usize),
    Plain(usize, i64),
    Reserve(usize, i64),
    Charge(i64),
    Refund(i64),
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

/// A key with its line, served at the very instant of each turn.
#[derive(Clone, Debug, Default)]
struct Key {
    line: Line,
    state: Option<Tat>,
    now: i64,
    /// Who was admitted, when.
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

    /// Serves all whose turn it is, and takes it that they are told so beforehand.
    fn serve(&mut self) {
        loop {
            let told = self.line.next_turn(self.state, at(self.now));
            match self.line.turn(self.state, at(self.now)) {
                Turn::Admitted(ticket, decision) => {
                    assert_eq!(told.map(nanos), Some(0), "it was somebody's turn");
                    assert!(!decision.answer.limited);
                    self.write(&decision);
                    self.served.push((ticket, self.now));
                    self.waiting.retain(|waiting| *waiting != ticket);
                }
                Turn::Failed(ticket, error) => panic!("{ticket}: {error}"),
                Turn::Nobodys => {
                    assert_ne!(told.map(nanos), Some(0), "it was nobody's turn");
                    return;
                }
            }
        }
    }

    /// Lets time pass, stopping for each turn, where it looks one nanosecond too early as well.
    fn pass(&mut self, time: i64) {
        let end = self.now + time;
        while let Some(turn) =
            self.line.next_turn(self.state, at(self.now)).map(|wait| self.now + nanos(wait))
            && turn <= end
        {
            let mut early = self.clone();
            early.now = turn - 1;
            assert_eq!(early.line.turn(early.state, at(early.now)), Turn::Nobodys, "1 ns before the turn");
            let served = self.served.len();
            self.now = turn;
            self.serve();
            assert!(self.served.len() > served, "nobody's turn at the time that was told");
        }
        self.now = end;
    }

    fn join(&mut self, limit: Numbers, quantity: i64) -> Option<Ticket> {
        match self.line.join(self.state, &limit.limit(), at(self.now), quantity, None).unwrap() {
            Joined::Decided(decision) => {
                self.write(&decision);
                None
            }
            Joined::Waiting(ticket) => {
                self.waiting.push(ticket);
                Some(ticket)
            }
            Joined::TooLate => panic!("too late for one who waits for ever"),
        }
    }

    fn plain(&mut self, limit: Numbers, quantity: i64) -> bool {
        let now = at(self.now);
        let decide = |tat| throttle(tat, &limit.limit(), now, quantity);
        let decision = self.line.overtake(self.state, now, decide).unwrap();
        self.write(&decision);
        !decision.answer.limited
    }

    fn reserve(&mut self, limit: Numbers, quantity: i64) -> Option<i64> {
        let now = at(self.now);
        let decide = |tat| reserve(tat, &limit.limit(), now, quantity, Booking::default());
        let decision = self.line.overtake(self.state, now, decide).unwrap();
        self.write(&decision);
        match decision.answer.retry_after {
            Retry::After(wait) if !decision.answer.limited => Some(nanos(wait)),
            _ => None,
        }
    }

    fn refund(&mut self, limit: Numbers, quantity: i64) {
        let decision = refund(self.state, &limit.limit(), at(self.now), quantity).unwrap();
        self.write(&decision);
    }

    fn happen(&mut self, event: Event, limits: &[Numbers]) {
        match event {
            Event::Join(limit, quantity) => drop(self.join(limits[limit], quantity)),
            Event::Leave(place) => {
                if let Some(ticket) = self.waiting.get(place).copied() {
                    self.waiting.remove(place);
                    self.line.leave(ticket);
                }
            }
            Event::Plain(limit, quantity) => drop(self.plain(limits[limit], quantity)),
            Event::Reserve(limit, quantity) => drop(self.reserve(limits[limit], quantity)),
            Event::Charge(quantity) => {
                let decision = charge(self.state, &limits[0].limit(), at(self.now), quantity).unwrap();
                self.write(&decision);
            }
            Event::Refund(quantity) => self.refund(limits[0], quantity),
            Event::Delete => self.state = None,
            Event::Pass(time) => self.pass(time),
        }
        self.serve();
        assert_eq!(self.line.len(), self.waiting.len());
        assert_eq!(self.line.is_empty(), self.waiting.is_empty());
    }

    /// When each of those in line is admitted, if nothing more happens.
    fn turns(&self) -> Vec<(Ticket, i64)> {
        let mut key = self.clone();
        key.served.clear();
        key.pass(1_000_000 * S);
        assert!(key.line.is_empty(), "somebody waits for ever");
        key.served
    }
}

/// The same key as a list: what is owed by nobody in line, and behind it, in order of arrival, who waits and what was
/// taken past them.
#[derive(Debug, Default)]
struct Model {
    owed_until: i64,
    entries: Vec<Entry>,
    served: Vec<(Ticket, i64)>,
}

#[derive(Clone, Copy, Debug)]
enum Entry {
    Waits { ticket: Ticket, cost: i64, tolerance: i64 },
    Taken(i64),
}

impl Entry {
    fn cost(self) -> i64 {
        match self {
            Self::Waits { cost, .. } | Self::Taken(cost) => cost,
        }
    }
}

impl Model {
    /// How far the TAT would be ahead, with all in the list served.
    fn debt(&self, now: i64) -> i64 {
        (self.owed_until - now).max(0) + self.entries.iter().map(|entry| entry.cost()).sum::<i64>()
    }

    fn take(&mut self, cost: i64, now: i64) {
        if self.entries.is_empty() {
            self.owed_until = self.owed_until.max(now) + cost;
        } else {
            self.entries.push(Entry::Taken(cost));
        }
    }

    /// Serves whoever is due, at the instant at which it is; what was taken past nobody any more is simply owed.
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
            Entry::Taken(_) => panic!("nobody is ahead of it"),
        }
    }

    fn pass(&mut self, now: i64, time: i64) {
        while let Some(turn) = self.next_turn().filter(|turn| *turn <= now + time) {
            self.serve(turn.max(now));
        }
    }

    fn give_back(&mut self, mut cost: i64, now: i64) {
        while let Some(place) = self.entries.iter().rposition(|entry| matches!(entry, Entry::Taken(_))) {
            let Entry::Taken(taken) = self.entries[place] else { panic!("found as taken") };
            if taken > cost {
                self.entries[place] = Entry::Taken(taken - cost);
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
                    self.take(cost, now);
                } else if cost <= tolerance {
                    let ticket = joined.unwrap();
                    self.entries.push(Entry::Waits { ticket, cost, tolerance });
                }
            }
            Event::Leave(place) => {
                let waits = |entry: &Entry| matches!(entry, Entry::Waits { .. });
                if let Some((place, _)) = self.entries.iter().enumerate().filter(|(_, e)| waits(e)).nth(place)
                {
                    self.entries.remove(place);
                }
            }
            Event::Plain(limit, quantity) => {
                let (cost, tolerance) = (limits[limit].cost(quantity), limits[limit].tolerance());
                if self.debt(now) + cost <= tolerance {
                    self.take(cost, now);
                }
            }
            Event::Reserve(limit, quantity) => {
                if quantity <= limits[limit].capacity {
                    self.take(limits[limit].cost(quantity), now);
                }
            }
            Event::Charge(quantity) => self.owed_until = self.owed_until.max(now) + limits[0].cost(quantity),
            Event::Refund(quantity) => self.give_back(limits[0].cost(quantity), now),
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

    /// Whatever happens, and by whatever limits: the same are admitted at the same instants in the same order.
    #[test]
    fn does_as_the_list_does(limits in prop::collection::vec(numbers(), 1..4), events in events(3)) {
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
            let next = key.line.next_turn(key.state, at(key.now)).map(|wait| key.now + nanos(wait));
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

    /// By one limit: nobody who joins, calls or leaves changes when those before it are admitted; and who leaves is as
    /// if it had never come.
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

        // As if never come: with it gone, all stand as they do in a line that it did not join.
        let (mut with, mut without) = (key.clone(), key);
        let tickets: Vec<Option<Ticket>> = (0..8).map(|_| with.join(limit, 1)).collect();
        if let Some(ticket) = tickets[place] {
            with.line.leave(ticket);
            with.waiting.retain(|waiting| *waiting != ticket);
            for _ in 1..8 {
                without.join(limit, 1);
            }
            let at = |turns: Vec<(Ticket, i64)>| turns.into_iter().map(|(_, at)| at).collect::<Vec<_>>();
            prop_assert_eq!(at(with.turns()), at(without.turns()));
        }
    }

    /// By one limit: who has less patience than its turn takes is told so at once, to the nanosecond.
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
            let mut line = key.line.clone();
            line.join(key.state, &limit.limit(), at(key.now), quantity, Some(span(patience))).unwrap()
        };
        prop_assert_eq!(join(turn - 1), Joined::TooLate);
        prop_assert_eq!(join(turn), Joined::Waiting(ticket));
        prop_assert_eq!(join(0), Joined::TooLate);
        prop_assert_eq!(key.turns().len(), key.line.len(), "who is too late is not in line");
    }

    /// By one limit: what is admitted, from the line, past it or to a later time, never passes what the limit lets in.
    ///
    /// But for one thing: who has booked behind a line has been told its time, and does not move up with the line when
    /// somebody leaves it. So there is either leaving or booking here.
    #[test]
    fn never_more_than_the_budget(limit in numbers(), events in events(1), bookings in any::<bool>(), refunds in any::<bool>()) {
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
                Event::Reserve(_, quantity) if bookings => {
                    if let Some(wait) = key.reserve(limit, quantity) {
                        if refunds && wait > 0 {
                            // Booked and given back at once: as if it had not been.
                            key.refund(limit, quantity);
                        } else {
                            admitted.push((key.now + wait, quantity));
                        }
                    }
                }
                Event::Pass(_) => key.happen(event, &[limit]),
                Event::Leave(_) if !bookings => key.happen(event, &[limit]),
                Event::Leave(_) | Event::Reserve(..) | Event::Charge(_) | Event::Refund(_) | Event::Delete => {}
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

    /// A line that has emptied is as if it had never been.
    #[test]
    fn an_empty_line_has_no_memory(limit in numbers(), other in numbers(), events in events(1), more in events(2)) {
        let mut key = Key::default();
        for event in events {
            key.happen(event, &[limit]);
        }
        while let Some(ticket) = key.waiting.pop() {
            key.line.leave(ticket);
        }
        let mut fresh = Key { line: Line::default(), served: Vec::new(), ..key.clone() };
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
    key.line.leave(tickets[1]);
    assert_eq!(key.turns(), [(tickets[0], S), (tickets[2], 2 * S), (tickets[3], 3 * S)]);
    assert_eq!(key.line.dismiss(), Some(tickets[0]));
    assert_eq!(key.turns(), [(tickets[2], S), (tickets[3], 2 * S)]);
    key.line.leave(tickets[0]); // a second time
    assert_eq!(key.line.len(), 2);
}

#[test]
fn a_wider_limit_overtakes_and_delays_nobody() {
    let mut key = full(ONE_A_SECOND);
    let first = key.join(ONE_A_SECOND, 1).unwrap();
    assert!(!key.plain(ONE_A_SECOND, 1));
    assert!(key.plain(Numbers { interval: 1000, capacity: 9 }, 5));
    let second = key.join(ONE_A_SECOND, 1).unwrap();
    assert_eq!(key.turns(), [(first, S), (second, 7 * S)]);
}

/// Found by thinking: what overtook was counted as behind the line even when it had been given back.
#[test]
fn a_cancelled_booking_does_not_let_the_line_in_early() {
    let mut key = full(ONE_A_SECOND);
    assert_eq!(key.reserve(ONE_A_SECOND, 1), Some(S));
    let waiter = key.join(ONE_A_SECOND, 1).unwrap();
    assert_eq!(key.reserve(ONE_A_SECOND, 1), Some(3 * S), "behind the line");
    key.refund(ONE_A_SECOND, 1);
    assert_eq!(key.turns(), [(waiter, 2 * S)]);
    key.refund(ONE_A_SECOND, 1);
    assert_eq!(key.turns(), [(waiter, S)], "and what is given back beyond that moves it");
}

/// The same, by way of a key that is deleted.
#[test]
fn a_deleted_key_does_not_let_the_whole_line_in() {
    let mut key = full(ONE_A_SECOND);
    let tickets: Vec<Ticket> = (0..3).map(|_| key.join(ONE_A_SECOND, 1).unwrap()).collect();
    assert!(key.plain(Numbers { interval: 1000, capacity: 99 }, 50));
    key.state = None;
    key.serve();
    assert_eq!(key.served, [(tickets[0], 0)]);
    assert_eq!(key.turns(), [(tickets[1], S), (tickets[2], 2 * S)]);
}

#[test]
fn a_late_timer_does_not_let_in_more() {
    let mut key = full(ONE_A_SECOND);
    let tickets: Vec<Ticket> = (0..3).map(|_| key.join(ONE_A_SECOND, 1).unwrap()).collect();
    assert_eq!(key.reserve(ONE_A_SECOND, 1), Some(4 * S));
    key.now = 3 * S + S / 2;
    key.serve();
    assert_eq!(key.served, [(tickets[0], 3 * S + S / 2)]);
    assert_eq!(key.turns(), [(tickets[1], 4 * S + S / 2), (tickets[2], 5 * S + S / 2)]);
}

#[test]
fn the_end_of_time_is_an_error_and_nobody_joins() {
    let century = Limit::new(1, 1, 3_155_760_000, Unit::Seconds).unwrap();
    let mut line = Line::default();
    let state = at(3_000_000_000 * S);
    for _ in 0..2 {
        let joined = line.join(Some(state), &century, at(0), 2, None);
        assert!(matches!(joined, Ok(Joined::Waiting(_)) | Err(_)), "{joined:?}");
    }
    assert!(line.join(Some(state), &century, at(0), 2, None).is_err());
    assert!(line.len() < 3);
}
