//! The fair queue: against a list that follows the rule to the letter, and against its bound.

#![allow(clippy::restriction, reason = "a test that panics is a test that fails")]

mod common;

use std::collections::{BTreeMap, VecDeque};

use common::{Random, at};
use proptest::prelude::*;
use redis_cell_core::fair::{Queue, Readiness, Request, Ticket};

fn request(flow: &[u8], weight: u32, quantity: u64) -> Request<'_> {
    Request { flow: Some(flow), weight: Some(weight), quantity, cost: quantity }
}

/// A client that is ready, in a flow of this name and weight.
fn join(queue: &mut Queue, flow: &[u8], weight: u32, quantity: u64) -> Ticket {
    let ticket = queue.join(request(flow, weight, quantity));
    check_all(queue);
    ticket
}

/// Finds all clients ready that are to be checked.
fn check_all(queue: &mut Queue) {
    while let Some(ticket) = queue.to_check(at(0)) {
        queue.checked(ticket, Readiness::Ready);
    }
}

/// Admits the next client.
fn serve(queue: &mut Queue) -> Option<Ticket> {
    let next = queue.next()?;
    queue.admitted(next);
    check_all(queue);
    Some(next)
}

/// The rule as a list of flows, each a list of clients, in which everything is found by looking at all.
#[derive(Clone, Debug, Default)]
struct Model {
    time: u128,
    flows: Vec<ModelFlow>,
    ready: BTreeMap<Ticket, bool>,
}

#[derive(Clone, Debug)]
struct ModelFlow {
    name: Option<u8>,
    weight: u32,
    finish: u128,
    /// Ticket, quantity and cost.
    clients: Vec<(Ticket, u64, u64)>,
    start: u128,
}

impl Model {
    fn flow(&mut self, name: Option<u8>) -> &mut ModelFlow {
        let finish = self.time;
        let there = self.flows.iter().position(|flow| flow.name == name);
        let index = there.unwrap_or_else(|| {
            self.flows.push(ModelFlow { name, weight: 1, finish, clients: Vec::new(), start: 0 });
            self.flows.len() - 1
        });
        &mut self.flows[index]
    }

    fn join(&mut self, ticket: Ticket, name: Option<u8>, weight: Option<u32>, quantity: u64, cost: u64) {
        let time = self.time;
        let flow = self.flow(name);
        flow.weight = weight.unwrap_or(flow.weight);
        flow.clients.push((ticket, quantity, cost));
        if flow.clients.len() == 1 {
            flow.start = time.max(flow.finish);
        }
        self.ready.insert(ticket, true);
    }

    fn remove(&mut self, ticket: Ticket, admitted: bool) {
        let mut time = self.time;
        for flow in &mut self.flows {
            if let Some(index) = flow.clients.iter().position(|client| client.0 == ticket) {
                let (_, quantity, _) = flow.clients.remove(index);
                if admitted {
                    time = time.max(flow.start);
                    let step = (u128::from(quantity) * (1 << 32)).div_ceil(u128::from(flow.weight));
                    flow.finish = time + step;
                }
                if index == 0 {
                    flow.start = time.max(flow.finish);
                }
            }
        }
        self.time = time;
        self.ready.remove(&ticket);
        if self.ready.is_empty() {
            *self = Self::default();
        }
        self.flows.retain(|flow| !flow.clients.is_empty() || flow.finish > time);
    }

    fn settle(&mut self, name: Option<u8>, weight: Option<u32>, difference: i64) {
        let time = self.time;
        if self.flows.iter().all(|flow| flow.name != name) {
            return;
        }
        let flow = self.flow(name);
        flow.weight = weight.unwrap_or(flow.weight);
        let step = (u128::from(difference.unsigned_abs()) * (1 << 32)).div_ceil(u128::from(flow.weight));
        for tag in [&mut flow.finish, &mut flow.start] {
            if difference > 0 {
                *tag = (*tag + step).max(time);
            } else if difference < 0 && *tag > time {
                *tag = tag.saturating_sub(step).max(time);
            }
        }
        self.flows.retain(|flow| !flow.clients.is_empty() || flow.finish > time);
    }

    fn firsts(&self) -> impl Iterator<Item = (&ModelFlow, Ticket)> {
        self.flows.iter().filter_map(|flow| Some((flow, flow.clients.first()?.0)))
    }

    fn next(&self) -> Option<Ticket> {
        let ready = self.firsts().filter(|(_, ticket)| self.ready[ticket]);
        ready.map(|(flow, ticket)| (flow.start, ticket)).min().map(|(_, ticket)| ticket)
    }

    fn taken(&self) -> u128 {
        let ready = self.firsts().filter(|(_, ticket)| self.ready[ticket]);
        ready.flat_map(|(flow, _)| &flow.clients).map(|client| u128::from(client.2)).sum()
    }
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Join(Option<u8>, Option<u32>, u64),
    /// Admits the next client.
    Serve,
    /// This one of the clients leaves, admitted (as the server's own call) or not.
    Leave(usize, bool),
    /// This one of the clients becomes ready or is ready no more.
    Turn(usize, bool),
    Settle(Option<u8>, Option<u32>, i64),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let flow = || prop::option::weighted(0.8, 0..4_u8);
    let weight = || prop::option::weighted(0.3, prop_oneof![1..5_u32, Just(1_000_000)]);
    let quantity =
        || prop_oneof![4 => 0..9_u64, 1 => Just(u64::from(u32::MAX)), 1 => Just(i64::MAX.unsigned_abs())];
    let event = prop_oneof![
        6 => (flow(), weight(), quantity()).prop_map(|(flow, weight, quantity)| Event::Join(flow, weight, quantity)),
        4 => Just(Event::Serve),
        2 => (0..9_usize, any::<bool>()).prop_map(|(index, admitted)| Event::Leave(index, admitted)),
        4 => (0..9_usize, any::<bool>()).prop_map(|(index, ready)| Event::Turn(index, ready)),
        2 => (flow(), weight(), -9..9_i64).prop_map(|(flow, weight, difference)| Event::Settle(flow, weight, difference)),
    ];
    prop::collection::vec(event, 1..80)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// The same client is next, as much counts as taken, and as many flows are known, after every event.
    #[test]
    fn agrees_with_the_rule(events in events()) {
        let (mut queue, mut model) = (Queue::default(), Model::default());
        // What the other limiters would say, whether or not anybody has looked.
        let mut ready: BTreeMap<Ticket, bool> = BTreeMap::new();
        for event in events {
            let nth = |index: usize| ready.keys().nth(index % ready.len().max(1)).copied();
            match event {
                Event::Join(flow, weight, quantity) => {
                    let name = flow.map(|flow| [flow]);
                    let cost = quantity / 2;
                    let flow = name.as_ref().map(<[u8; 1]>::as_slice);
                    let ticket = queue.join(Request { flow, weight, quantity, cost });
                    ready.insert(ticket, true);
                    model.join(ticket, name.map(|[flow]| flow), weight, quantity, cost);
                }
                Event::Serve => {
                    if let Some(next) = queue.next() {
                        queue.admitted(next);
                        model.remove(next, true);
                        ready.remove(&next);
                    }
                }
                Event::Leave(index, admitted) => {
                    if let Some(ticket) = nth(index) {
                        // Only a first client is ever admitted.
                        let admitted = admitted && model.firsts().any(|(_, first)| first == ticket);
                        if admitted { queue.admitted(ticket) } else { queue.leave(ticket) }
                        model.remove(ticket, admitted);
                        ready.remove(&ticket);
                        queue.leave(ticket); // a second time
                    }
                }
                Event::Turn(index, is_ready) => {
                    if let Some(ticket) = nth(index) {
                        ready.insert(ticket, is_ready);
                        queue.checked(ticket, Readiness::NotBefore(Some(at(0))));
                    }
                }
                Event::Settle(flow, weight, difference) => {
                    let name = flow.map(|flow| [flow]);
                    queue.settle(name.as_ref().map(<[u8; 1]>::as_slice), weight, difference);
                    model.settle(flow, weight, difference);
                }
            }
            // Before the checks, every client that was never checked counts as taken.
            model.ready.clone_from(&ready);
            let is_known = matches!(event, Event::Turn(..));
            prop_assert!(is_known || queue.taken() >= model.taken(), "after {:?}", event);
            while let Some(ticket) = queue.to_check(at(0)) {
                let readiness = if ready[&ticket] { Readiness::Ready } else { Readiness::NotBefore(None) };
                queue.checked(ticket, readiness);
            }
            prop_assert_eq!(queue.next(), model.next(), "after {:?}", event);
            prop_assert_eq!(queue.taken(), model.taken(), "after {:?}", event);
            prop_assert_eq!(queue.flows(), model.flows.len(), "after {:?}", event);
            prop_assert_eq!(queue.len(), ready.len());
        }
    }
}

/// The bound of the essay, over random arrivals, quantities and times at which flows are not ready.
///
/// Ten million steps with `REDIS_CELL_LONG=1`.
#[test]
fn two_flows_that_are_ready_differ_by_at_most_one_call_each() {
    const FLOWS: usize = 6;
    let long = std::env::var_os("REDIS_CELL_LONG").is_some_and(|long| long != "0");
    let mut random = Random(7);
    let mut below = |end: u64| random.below(end.cast_signed()).unsigned_abs();
    let (mut queue, mut weights) = (Queue::default(), [0_u64; FLOWS]);
    for weight in &mut weights {
        *weight = 1 + below(9);
    }
    let largest = 50;
    // For each pair: what each was given since both became ready; in units times all weights.
    let all: u64 = weights.iter().product();
    let mut given = [[(0_i128, 0_i128); FLOWS]; FLOWS];
    let mut ready = [true; FLOWS];
    let mut waiting: [VecDeque<(Ticket, u64)>; FLOWS] = Default::default();
    let (mut served, mut worst) = (0_u64, 0);
    for _ in 0..if long { 10_000_000 } else { 50_000 } {
        let flow = usize::try_from(below(6)).unwrap();
        if below(20) == 0 {
            ready[flow] = !ready[flow];
            if let Some(&(first, _)) = waiting[flow].front() {
                queue.checked(first, Readiness::NotBefore(Some(at(0))));
            }
        } else if below(2) == 0 && waiting[flow].len() < 20 {
            let quantity = 1 + below(largest);
            let weight = u32::try_from(weights[flow]).unwrap();
            let name = [u8::try_from(flow).unwrap()];
            waiting[flow].push_back((queue.join(request(&name, weight, quantity)), quantity));
        } else if let Some(next) = queue.next() {
            let flow = waiting.iter().position(|flow| flow.front().is_some_and(|(first, _)| *first == next));
            let flow = flow.expect("first come, first served within a flow");
            assert!(ready[flow]);
            let (_, quantity) = waiting[flow].pop_front().unwrap();
            queue.admitted(next);
            served += 1;
            #[expect(clippy::needless_range_loop, reason = "a row and a column")]
            for other in 0..FLOWS {
                let share = i128::from(quantity * all / weights[flow]);
                given[flow][other].0 += share;
                given[other][flow].1 += share;
            }
        }
        while let Some(ticket) = queue.to_check(at(0)) {
            let flow =
                waiting.iter().position(|flow| flow.front().is_some_and(|(first, _)| *first == ticket));
            let is_ready = ready[flow.unwrap()];
            queue.checked(ticket, if is_ready { Readiness::Ready } else { Readiness::NotBefore(None) });
        }
        let is_ready = |flow: usize| ready[flow] && !waiting[flow].is_empty();
        for one in 0..FLOWS {
            for other in 0..one {
                if is_ready(one) && is_ready(other) {
                    let (first, second) = given[one][other];
                    let bound = largest * all / weights[one] + largest * all / weights[other];
                    let part = (first - second).unsigned_abs() * 10_000 / u128::from(bound);
                    worst = worst.max(part);
                } else {
                    given[one][other] = (0, 0);
                    given[other][one] = (0, 0);
                }
            }
        }
    }
    assert!(served > 5_000, "{served} served");
    // Rounding adds 2^-32 of a unit for each call.
    assert!(worst <= 10_000, "{worst} of 10,000 parts of the bound");
    assert!(worst > 5_000, "the bound is not tested: {worst}");
}

#[test]
fn a_flow_that_was_not_ready_goes_first_once() {
    let mut queue = Queue::default();
    let late: Vec<Ticket> = (0..3).map(|_| queue.join(request(b"late", 1, 1))).collect();
    queue.checked(late[0], Readiness::NotBefore(Some(at(5))));
    for _ in 0..50 {
        join(&mut queue, b"busy", 1, 1);
        serve(&mut queue);
    }
    let busy: Vec<Ticket> = (0..3).map(|_| join(&mut queue, b"busy", 1, 1)).collect();
    assert_eq!(queue.to_check(at(4)), None);
    assert_eq!(queue.next_check(), Some(at(5)));
    assert_eq!(queue.to_check(at(5)), Some(late[0]));
    queue.checked(late[0], Readiness::Ready);
    let order: Vec<Ticket> = std::iter::from_fn(|| serve(&mut queue)).collect();
    // Once before those who waited, and then in turn: equal tags go by arrival.
    assert_eq!(order, [late[0], late[1], busy[0], late[2], busy[1], busy[2]]);
}

#[test]
fn who_may_be_ready_by_now_is_checked_again_and_does_not_count_until_then() {
    let mut queue = Queue::default();
    let [first, second, ready] = [(&b"a"[..], 2), (b"a", 3), (b"b", 5)]
        .map(|(flow, cost)| queue.join(Request { flow: Some(flow), weight: None, quantity: 1, cost }));
    queue.checked(ready, Readiness::Ready);
    queue.wake(first, at(0));
    assert_eq!((queue.to_check(at(9)), queue.taken()), (Some(first), 10), "it was not checked yet");
    queue.checked(first, Readiness::NotBefore(Some(at(9))));
    for ticket in [second, ready] {
        queue.wake(ticket, at(0));
        assert_eq!((queue.to_check(at(8)), queue.taken()), (None, 5), "there is nothing to check");
    }
    queue.wake(first, at(0));
    assert_eq!((queue.to_check(at(0)), queue.taken(), queue.next()), (Some(first), 5, Some(ready)));
    queue.checked(first, Readiness::Ready);
    assert_eq!((queue.to_check(at(9)), queue.taken()), (None, 10));
}

#[test]
fn so_many_flows_without_clients_are_remembered() {
    let mut queue = Queue::remembering(100);
    let stays = join(&mut queue, b"stays", 1, 1);
    queue.checked(stays, Readiness::NotBefore(None));
    for flow in 0..200_u32 {
        let ticket = queue.join(request(&flow.to_be_bytes(), 1, u64::from(flow) + 1));
        queue.admitted(ticket);
    }
    assert_eq!(queue.flows(), 101);
}

#[test]
fn a_queue_says_who_waits() {
    let mut queue = Queue::default();
    assert!(queue.is_empty());
    let first = queue.join(request(b"a", 1, 1));
    let behind = queue.join(request(b"a", 1, 1));
    assert_eq!((queue.is_empty(), queue.len()), (false, 2));
    assert_eq!([b"a", b"b"].map(|flow| queue.clients_of(Some(flow))), [2, 0]);
    assert_eq!(queue.clients_of(None), 0);
    assert!(!queue.is_ready(first), "nobody has checked it");
    queue.checked(first, Readiness::NotBefore(None));
    assert!(!queue.is_ready(first));
    queue.checked(first, Readiness::Ready);
    assert_eq!([first, behind].map(|ticket| queue.is_ready(ticket)), [true, false]);
    for ticket in [first, behind] {
        queue.leave(ticket);
    }
    assert!(queue.is_empty());
    assert!(!queue.is_ready(first), "it has left");
    assert!(![first, behind].contains(&queue.join(request(b"a", 1, 1))), "a ticket is never used again");
}

/// A client that waits and is not ready.
fn stay(queue: &mut Queue, flow: &[u8]) -> Ticket {
    let ticket = queue.join(request(flow, 1, 1));
    queue.checked(ticket, Readiness::NotBefore(None));
    ticket
}

/// The virtual time is that of the last client to be admitted, also where a settlement has moved it.
#[test]
fn a_charge_to_a_flow_that_waits_moves_the_time() {
    let mut queue = Queue::default();
    stay(&mut queue, b"stays"); // an empty queue would begin again
    join(&mut queue, b"twelve", 1, 12);
    serve(&mut queue);
    let twelve = stay(&mut queue, b"twelve");
    let (first, charged) = (stay(&mut queue, b"charged"), queue.join(request(b"charged", 1, 1)));
    for quantity in [5, 1] {
        join(&mut queue, b"five", 1, quantity);
        serve(&mut queue);
    }
    queue.leave(first);
    check_all(&mut queue);
    queue.settle(Some(b"charged"), None, 10);
    assert_eq!(serve(&mut queue), Some(charged), "from 5 to 15");
    let new = join(&mut queue, b"new", 1, 1);
    queue.checked(twelve, Readiness::Ready);
    assert_eq!([serve(&mut queue), serve(&mut queue)], [Some(twelve), Some(new)], "12 is before 15");
}

/// A charge leaves no claim to the past: a flow that was not ready for a while is charged from the virtual
/// time on, and so comes after one that was charged nothing.
#[test]
fn a_charge_to_a_flow_that_was_not_ready_begins_at_the_virtual_time() {
    let mut queue = Queue::default();
    let pass = |queue: &mut Queue, calls: u64| {
        for _ in 0..calls {
            join(queue, b"others", 1, 5);
            serve(queue);
        }
    };
    let charged = stay(&mut queue, b"charged"); // from 0
    pass(&mut queue, 2);
    let later = stay(&mut queue, b"later"); // from 5
    pass(&mut queue, 1);
    queue.settle(Some(b"charged"), None, 3); // from 10, not from 3
    check_all(&mut queue);
    for ticket in [charged, later] {
        queue.checked(ticket, Readiness::Ready);
    }
    assert_eq!([serve(&mut queue), serve(&mut queue)], [Some(later), Some(charged)]);
}

#[test]
fn a_great_many_flows_are_forgotten_bit_by_bit_and_are_new_at_once() {
    const MANY: u32 = 10_000;
    let mut queue = Queue::default();
    let stays = join(&mut queue, b"stays", 1, 1);
    queue.checked(stays, Readiness::NotBefore(None));
    for flow in 0..MANY {
        join(&mut queue, &flow.to_be_bytes(), 1_000_000, 5);
        serve(&mut queue);
    }
    let many = queue.flows();
    assert!(many > 9_000, "{many} flows");
    // The virtual time passes all of them.
    for _ in 0..2 {
        join(&mut queue, b"last", 1, 5);
        serve(&mut queue);
    }
    assert!((many - 100..many).contains(&queue.flows()), "{} of {many} flows", queue.flows());
    // Those that are still there are treated as new: their weight is 1, so they take turns with a new flow.
    for _ in 0..3 {
        for flow in [(MANY - 1).to_be_bytes(), *b"new!"] {
            queue.join(Request { flow: Some(&flow), weight: None, quantity: 1, cost: 1 });
        }
    }
    check_all(&mut queue);
    let mut turns = Vec::new();
    while let Some(ticket) = serve(&mut queue) {
        turns.push(ticket % 2);
    }
    assert!(turns.chunks(2).all(|pair| pair[0] != pair[1]), "{turns:?}");
    // Without clients, whoever drops the queue forgets the rest.
    queue.leave(stays);
    assert!(queue.is_empty() && queue.flows() > 1_000, "{} flows", queue.flows());
    let mut calls = 0;
    while queue.tidy() {
        calls += 1;
    }
    assert!(queue.flows() == 0 && calls > 100, "{calls} calls");
}
