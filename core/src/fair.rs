//! The queue of clients that wait for several limiters: fair among flows, first come, first served within
//! one.
//!
//! A *flow* is one of those who share: a tenant, a user, a model. A client waits for its first limiter, of
//! which flows get shares in proportion to their weights. Its other limiters only decide whether it is
//! *ready*: a client that is not ready does not hold up other flows, and keeps its place.
//!
//! # The rule
//!
//! This is start-time fair queueing (P. Goyal, H. M. Vin and H. Cheng, "Start-time fair queueing: a
//! scheduling algorithm for integrated services packet switching networks", SIGCOMM 1996). The queue has a
//! virtual time `V`, and each flow a finish tag `F` and a weight `w`.
//!
//! - The first client of a flow gets the start tag `S = max(V, F)` when it becomes the first.
//! - Next is the ready first client with the smallest `S`; among equals, the one that came first.
//! - When it is admitted with a quantity `q`, `V = max(V, S)`, and then `F = V + q / w`.
//!
//! The textbook has `F = S + q / w`. For flows that are always ready this is the same, because `S >= V` then.
//! A flow that was not ready for a while has an old `S` below `V`. With the textbook's rule it would be
//! admitted again and again until its tags have caught up, as if it had a claim to the past, while the others
//! wait. Here it goes first once, and shares from then on.
//!
//! Tags are integers in units of 2^-32, and `q / w` is rounded up: a flow is charged at most 2^-32 of a unit
//! too much for each call.
//!
//! # The bound
//!
//! While two flows `f` and `g` both have ready clients, the units they are given, each divided by its weight,
//! differ by at most `l_f + l_g`, where `l` is the largest `q / w` of the calls of a flow. It holds at any
//! rate of service, so also for limiters that admit in bursts or not at all for a while.
//!
//! Ready means: ready when last looked at. The caller looks at a client when it becomes the first of its
//! flow, and again when something has happened that may have made it ready, but not at once: other clients
//! and other commands are served in between. A flow whose limiters have just begun to admit it, and that
//! nobody has looked at yet, has no claim to what is given meanwhile. Nor does a flow wait for a turn in vain
//! that was ready and is not any more: its turn is a look, too, after which another flow is next.
//!
//! Proof. Let `E = max(S, V)` for the first client of each flow.
//!
//! 1. An admission makes `V = E` of the flow that is admitted, and then `E = F = V + q / w`. So it adds
//!    exactly `q / w` to the `E` of that flow.
//! 2. Between two of its admissions, the `E` of a flow with a ready client stays as it is. It could change
//!    only if `V` passed its `S`. But `V` rises only to the smallest `S` of all ready clients.
//! 3. `V <= E <= V + l`. The first is the definition. For the second, `S` is at most the `F` of the flow's
//!    last admission, which was `V + q / w` then, or it was `V` itself; and `V` never falls.
//!
//! From 1 and 2, what a flow was given in a stretch of time, divided by its weight, is the difference of its
//! `E` between the end and the beginning. From 3, at both instants `-l_g <= E_f - E_g <= l_f`. The difference
//! of the two flows' shares is the difference of two such numbers.
//!
//! A first client that leaves changes no `E`: the next one's `max(V, F)` is what `E` was.
//!
//! # What happens to
//!
//! - *flows that were idle*: `F` is below `V`, or soon will be, and they begin at `V`, like a new flow.
//! - *flows that were not ready*: they go first once, as said above.
//! - *weights that change*: the weight of the latest call divides what is admitted from then on.
//! - *a flow of many identities*: each identity is a flow. So the name of a flow must be one that a client
//!   cannot choose freely.
//! - *a queue that has emptied*: all flows begin equal again.
//! - *flows that begin at `V` anyway*: they are forgotten, a few with each change of the queue. Until then
//!   they are treated as if they were not known.
//!
//! The queue is pure: the caller asks the limiters and tells the queue what they answered.

use std::collections::{BTreeMap, BTreeSet};

use crate::Instant;

/// A client in the queue. Smaller numbers came first.
pub type Ticket = u64;

/// The weights that a flow may have; 1 if none is given.
pub const WEIGHTS: core::ops::RangeInclusive<u32> = 1..=1_000_000;

/// How many flows without clients a queue remembers by default.
pub const REMEMBERED: usize = 65_536;

/// How many flows are forgotten at a time. A change of the queue leaves at most one flow to be forgotten, so
/// these keep up, whenever `V` passes a great many at once.
const FORGOTTEN: usize = 16;

/// An instant of the virtual time, in units of 2^-32.
type Tag = u128;

/// The number of bits of a [`Tag`] after the binary point.
const FRACTION: u32 = 32;

/// The number of a flow while it is remembered.
type Number = u64;

/// The request of a client, as far as the queue is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// Its flow. All clients that name no flow share one, which has no name.
    pub flow: Option<&'a [u8]>,
    /// The new weight of the flow, one of [`WEIGHTS`]. Without it the flow keeps the weight it has.
    pub weight: Option<u32>,
    /// The units of the first limiter that it wants: what its flow is charged.
    pub quantity: u64,
    /// What counts as taken from the first limiter while it waits, in a measure that the caller chooses.
    pub cost: u64,
}

/// Whether all limiters of a client but the first would admit it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// They would.
    Ready,
    /// One of them would not. It is to be checked again at this instant, if there is one, and when somebody
    /// changes one of the keys.
    NotBefore(Option<Instant>),
}

/// Clients that wait for one and the same first limiter.
///
/// Cost: O(log n) for n clients and flows, for every function.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Queue {
    /// How many flows without clients are remembered.
    remembered: usize,
    /// `V`.
    time: Tag,
    next_ticket: Ticket,
    next_flow: Number,
    flows: BTreeMap<Number, Flow>,
    /// The flows by name. The one without a name is not among them.
    names: BTreeMap<Box<[u8]>, Number>,
    unnamed: Option<Number>,
    /// The flow of each client.
    clients: BTreeMap<Ticket, Number>,
    /// The first clients that are ready, by their start tags.
    ready: BTreeSet<(Tag, Ticket)>,
    /// The first clients whose readiness is unknown.
    unchecked: BTreeSet<Ticket>,
    /// The first clients that are to be checked again at an instant.
    asleep: BTreeSet<(Instant, Ticket)>,
    /// The flows without clients, by their finish tags.
    idle: BTreeSet<(Tag, Number)>,
    /// The costs of all clients in flows whose first client is ready or not checked.
    taken: u128,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Flow {
    name: Option<Box<[u8]>>,
    weight: u32,
    /// `F`.
    finish: Tag,
    clients: BTreeMap<Ticket, Client>,
    /// The sum of their costs.
    cost: u128,
    /// The first client, if there is any.
    first: Option<First>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Client {
    quantity: u64,
    cost: u64,
}

/// The first client of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct First {
    ticket: Ticket,
    /// `S`.
    start: Tag,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum State {
    Ready,
    Unchecked,
    NotBefore(Option<Instant>),
}

impl State {
    /// Whether what the clients of the flow wait for counts as taken.
    ///
    /// Clients that were not checked yet count: calls that come before the check must not be decided before
    /// them.
    const fn counts(self) -> bool {
        matches!(self, Self::Ready | Self::Unchecked)
    }
}

impl Flow {
    /// What admitting this quantity adds to a tag.
    fn step(&self, quantity: u64) -> Tag {
        (Tag::from(quantity) << FRACTION).div_ceil(Tag::from(self.weight.max(1)))
    }
}

impl Default for Queue {
    fn default() -> Self {
        Self::remembering(REMEMBERED)
    }
}

impl Queue {
    /// An empty queue that remembers up to `flows` flows without clients.
    pub const fn remembering(flows: usize) -> Self {
        Self {
            remembered: flows,
            time: 0,
            next_ticket: 0,
            next_flow: 0,
            flows: BTreeMap::new(),
            names: BTreeMap::new(),
            unnamed: None,
            clients: BTreeMap::new(),
            ready: BTreeSet::new(),
            unchecked: BTreeSet::new(),
            asleep: BTreeSet::new(),
            idle: BTreeSet::new(),
            taken: 0,
        }
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.clients.is_empty()
    }

    /// The number of clients.
    pub fn len(&self) -> usize {
        self.clients.len()
    }

    /// The number of clients of a flow.
    pub fn clients_of(&self, flow: Option<&[u8]>) -> usize {
        self.number(flow).and_then(|number| self.flows.get(&number)).map_or(0, |flow| flow.clients.len())
    }

    /// The number of flows that are remembered: those without clients included, and those that are soon to be
    /// forgotten.
    pub fn flows(&self) -> usize {
        self.flows.len()
    }

    /// The costs of all clients of flows whose first client is ready: to a call that does not wait, they
    /// count as taken.
    pub const fn taken(&self) -> u128 {
        self.taken
    }

    /// Joins the queue, after all clients of its flow. If it is the first of them, it is to be checked next.
    pub fn join(&mut self, request: Request) -> Ticket {
        let ticket = self.next_ticket;
        self.next_ticket = ticket.wrapping_add(1);
        let number = self.known(request.flow).unwrap_or_else(|| self.new_flow(request.flow));
        self.clients.insert(ticket, number);
        self.change(number, |flow, _| {
            flow.weight = request.weight.unwrap_or(flow.weight);
            flow.clients.insert(ticket, Client { quantity: request.quantity, cost: request.cost });
            flow.cost = flow.cost.saturating_add(u128::from(request.cost));
        });
        ticket
    }

    /// Leaves the queue. No tag changes. Nothing happens when the ticket has left already.
    pub fn leave(&mut self, ticket: Ticket) {
        self.remove(ticket, |_, _, _| {});
    }

    /// The client is admitted, and leaves the queue: its flow is charged.
    pub fn admitted(&mut self, ticket: Ticket) {
        self.remove(ticket, |flow, client, time| {
            let start =
                flow.first.filter(|first| first.ticket == ticket).map_or(flow.finish, |first| first.start);
            *time = (*time).max(start);
            flow.finish = time.saturating_add(flow.step(client.quantity));
        });
    }

    /// The client whose turn it is, once the first limiter admits it: the ready first client with the
    /// smallest start tag.
    ///
    /// While [`to_check`](Self::to_check) returns a client, the answer may be another one than after its
    /// check.
    pub fn next(&self) -> Option<Ticket> {
        self.ready.first().map(|&(_, ticket)| ticket)
    }

    /// A first client that was never checked.
    pub fn unchecked(&self) -> Option<Ticket> {
        self.unchecked.first().copied()
    }

    /// A first client that was [never checked](Self::unchecked), or whose instant has come.
    pub fn to_check(&self, now: Instant) -> Option<Ticket> {
        self.unchecked()
            .or_else(|| self.asleep.first().filter(|(at, _)| *at <= now).map(|&(_, ticket)| ticket))
    }

    /// Whether the client is the first of its flow, and was ready when it was last checked.
    pub fn is_ready(&self, ticket: Ticket) -> bool {
        self.first(ticket).is_some_and(|first| first.state == State::Ready)
    }

    /// The instant at which the next client is to be checked, unless one of its keys changes before.
    pub fn next_check(&self) -> Option<Instant> {
        self.asleep.first().map(|&(at, _)| at)
    }

    /// The client was checked. Nothing happens when it is not the first of its flow any more.
    pub fn checked(&mut self, ticket: Ticket, readiness: Readiness) {
        self.set_state(
            ticket,
            match readiness {
                Readiness::Ready => State::Ready,
                Readiness::NotBefore(instant) => State::NotBefore(instant),
            },
        );
    }

    /// A client that was not ready may be, because something has happened at `now`. It is to be checked
    /// again, after those that were woken before it, and does not count until then.
    pub fn wake(&mut self, ticket: Ticket, now: Instant) {
        let state = self.first(ticket).map(|first| first.state);
        if let Some(State::NotBefore(at)) = state {
            self.set_state(ticket, State::NotBefore(Some(at.map_or(now, |at| at.min(now)))));
        }
    }

    /// Settles the difference between what a flow was charged and what it used. A flow that the queue does
    /// not know has nothing to settle.
    ///
    /// Both tags of the flow move by `difference / weight`, but not below the virtual time. One that lies
    /// there already is not raised by giving back.
    pub fn settle(&mut self, flow: Option<&[u8]>, weight: Option<u32>, difference: i64) {
        let Some(number) = self.known(flow) else { return };
        self.change(number, |flow, time| {
            flow.weight = weight.unwrap_or(flow.weight);
            let (time, step) = (*time, flow.step(difference.unsigned_abs()));
            let moved = |tag: Tag| match difference {
                1.. => tag.saturating_add(step).max(time),
                _ if tag > time => tag.saturating_sub(step).max(time),
                _ => tag,
            };
            flow.finish = moved(flow.finish);
            flow.first = flow.first.map(|first| First { start: moved(first.start), ..first });
        });
    }

    /// The client, if it is the first of its flow.
    fn first(&self, ticket: Ticket) -> Option<First> {
        let flow = self.clients.get(&ticket).and_then(|number| self.flows.get(number));
        flow.and_then(|flow| flow.first).filter(|first| first.ticket == ticket)
    }

    fn number(&self, flow: Option<&[u8]>) -> Option<Number> {
        flow.map_or(self.unnamed, |name| self.names.get(name).copied())
    }

    /// The number of a flow, unless it begins at `V` anyway, like a new flow: such a flow is forgotten.
    fn known(&mut self, name: Option<&[u8]>) -> Option<Number> {
        let number = self.number(name)?;
        let flow = self.flows.get(&number)?;
        if flow.first.is_some() || flow.finish > self.time {
            return Some(number);
        }
        self.forget(flow.finish, number);
        None
    }

    fn new_flow(&mut self, name: Option<&[u8]>) -> Number {
        let number = self.next_flow;
        self.next_flow = number.wrapping_add(1);
        let name: Option<Box<[u8]>> = name.map(Box::from);
        match &name {
            Some(name) => drop(self.names.insert(name.clone(), number)),
            None => self.unnamed = Some(number),
        }
        let flow =
            Flow { name, weight: 1, finish: self.time, clients: BTreeMap::new(), cost: 0, first: None };
        self.flows.insert(number, flow);
        number
    }

    /// Removes a client from its flow, which `charge` may charge first.
    fn remove(&mut self, ticket: Ticket, charge: impl FnOnce(&mut Flow, Client, &mut Tag)) {
        let Some(number) = self.clients.remove(&ticket) else { return };
        self.change(number, |flow, time| {
            if let Some(client) = flow.clients.remove(&ticket) {
                flow.cost = flow.cost.saturating_sub(u128::from(client.cost));
                charge(flow, client, time);
            }
        });
        if self.clients.is_empty() {
            // All flows begin equal again.
            self.time = self.idle.last().map_or(self.time, |&(finish, _)| finish.max(self.time));
            if !self.tidy() {
                // Tickets continue, so that no two clients ever have the same one.
                *self = Self { next_ticket: self.next_ticket, ..Self::remembering(self.remembered) };
            }
        }
    }

    fn set_state(&mut self, ticket: Ticket, state: State) {
        let Some(&number) = self.clients.get(&ticket) else { return };
        self.change(number, |flow, _| {
            if let Some(first) = flow.first.as_mut().filter(|first| first.ticket == ticket) {
                first.state = state;
            }
        });
    }

    /// Changes a flow: the one way to do so, which keeps all indexes in step.
    fn change(&mut self, number: Number, edit: impl FnOnce(&mut Flow, &mut Tag)) {
        let Some(mut flow) = self.flows.remove(&number) else { return };
        self.unlist(number, &flow);
        edit(&mut flow, &mut self.time);
        let first = flow.clients.first_key_value().map(|(&ticket, _)| ticket);
        if flow.first.map(|first| first.ticket) != first {
            let start = self.time.max(flow.finish);
            flow.first = first.map(|ticket| First { ticket, start, state: State::Unchecked });
        }
        self.list(number, &flow);
        self.flows.insert(number, flow);
        self.tidy();
    }

    /// Removes a flow from all indexes.
    fn unlist(&mut self, number: Number, flow: &Flow) {
        match flow.first {
            None => drop(self.idle.remove(&(flow.finish, number))),
            Some(First { ticket, start, state }) => {
                match state {
                    State::Ready => drop(self.ready.remove(&(start, ticket))),
                    State::Unchecked => drop(self.unchecked.remove(&ticket)),
                    State::NotBefore(at) => drop(at.map(|at| self.asleep.remove(&(at, ticket)))),
                }
                if state.counts() {
                    self.taken = self.taken.saturating_sub(flow.cost);
                }
            }
        }
    }

    /// Adds a flow to the indexes that it belongs to.
    fn list(&mut self, number: Number, flow: &Flow) {
        match flow.first {
            None => drop(self.idle.insert((flow.finish, number))),
            Some(First { ticket, start, state }) => {
                match state {
                    State::Ready => drop(self.ready.insert((start, ticket))),
                    State::Unchecked => drop(self.unchecked.insert(ticket)),
                    State::NotBefore(at) => drop(at.map(|at| self.asleep.insert((at, ticket)))),
                }
                if state.counts() {
                    self.taken = self.taken.saturating_add(flow.cost);
                }
            }
        }
    }

    /// Forgets some of the flows without clients that would begin at `V` anyway, and of the earliest ones if
    /// there are too many. True if there may be more of them.
    ///
    /// Whoever drops a queue that has emptied calls this until it is false, at times, because a great many
    /// flows take a while to forget.
    pub fn tidy(&mut self) -> bool {
        for _ in 0..FORGOTTEN {
            match self.idle.first() {
                Some(&(finish, number)) if finish <= self.time || self.idle.len() > self.remembered => {
                    self.forget(finish, number);
                }
                _ => return false,
            }
        }
        true
    }

    /// Forgets a flow without clients.
    fn forget(&mut self, finish: Tag, number: Number) {
        self.idle.remove(&(finish, number));
        match self.flows.remove(&number).and_then(|flow| flow.name) {
            Some(name) => drop(self.names.remove(&name)),
            None => self.unnamed = None,
        }
    }
}
