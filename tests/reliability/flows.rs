//! CL.BMTAKE against a simulation of its own, over random arrivals, departures and turns.

use crate::common::{Client, Options, Server, Waiter, wait_for_blocked, wait_until};
use crate::figures::{figure, long};
use fastrand::Rng;
use redis::Value;
use std::time::Duration;

/// The flows of random arrivals: their weights.
const WEIGHTS: [u64; 5] = [1, 2, 4, 1, 3];

/// A unit in tags, which are rounded up: three steps of a flow of weight 3 are a little more than a unit.
const UNIT: u64 = 1 << 32;

/// A flow as the rule describes it: all of it is looked at for every turn.
#[derive(Clone, Default)]
struct Flow {
    weight: u64,
    finish: u64,
    start: u64,
    /// The numbers of its clients, which came in this order.
    clients: Vec<usize>,
}

struct Simulation {
    time: u64,
    flows: Vec<Flow>,
}

impl Simulation {
    fn new(weights: impl Iterator<Item = u64>) -> Self {
        Self { time: 0, flows: weights.map(|weight| Flow { weight, ..Flow::default() }).collect() }
    }

    fn waiting(&self) -> usize {
        self.flows.iter().map(|flow| flow.clients.len()).sum()
    }

    fn join(&mut self, flow: usize, client: usize) {
        let flow = &mut self.flows[flow];
        flow.clients.push(client);
        if flow.clients.len() == 1 {
            flow.start = self.time.max(flow.finish);
        }
    }

    fn leave(&mut self, client: usize) {
        for flow in &mut self.flows {
            let was_first = flow.clients.first() == Some(&client);
            flow.clients.retain(|one| *one != client);
            if was_first {
                flow.start = self.time.max(flow.finish);
            }
        }
        self.begin_again();
    }

    /// The flow whose turn it is, of those that are ready.
    fn next(&self, is_ready: impl Fn(usize) -> bool) -> Option<usize> {
        let ready =
            (0..self.flows.len()).filter(|&flow| !self.flows[flow].clients.is_empty() && is_ready(flow));
        ready.min_by_key(|&flow| (self.flows[flow].start, self.flows[flow].clients[0]))
    }

    /// Serves the first client of a flow with this quantity.
    fn admit(&mut self, flow: usize, quantity: u64) -> usize {
        let flow = &mut self.flows[flow];
        self.time = self.time.max(flow.start);
        flow.finish = self.time + (quantity * UNIT).div_ceil(flow.weight);
        flow.start = flow.finish;
        let client = flow.clients.remove(0);
        self.begin_again();
        client
    }

    /// Serves the client whose turn it is, if all are ready and want one unit.
    fn serve(&mut self) -> usize {
        let flow = self.next(|_| true).unwrap();
        self.admit(flow, 1)
    }

    /// When nobody waits, all begin equal again.
    fn begin_again(&mut self) {
        if self.waiting() == 0 {
            *self = Self::new(self.flows.iter().map(|flow| flow.weight));
        }
    }
}

/// Who holds the place.
fn holder(client: &mut Client) -> String {
    wait_until("a client to be admitted", || {
        let held: Vec<String> = client.get("ZRANGE busy 0 -1");
        held.into_iter().next().ok_or_else(String::new)
    })
}

#[test]
pub fn turns_are_those_of_the_simulation_in_order() {
    let server = Server::start();
    let mut client = server.connect();
    let mut random = Rng::with_seed(22);
    let (mut simulation, mut waiters) =
        (Simulation::new(WEIGHTS.into_iter()), std::collections::BTreeMap::new());
    client.call("CL.ACQUIRE busy 1 3600 nobody");
    let mut held = "nobody".to_owned();
    let mut served = 0;
    for number in 0..if long() { 20_000 } else { 1_500 } {
        match random.usize(..10) {
            0..5 => {
                // Some flows come more often than others.
                let flow = random.usize(..WEIGHTS.len()).min(random.usize(..WEIGHTS.len()));
                let weight = WEIGHTS[flow];
                let call = format!("CL.BMTAKE busy LEASE 1 3600 c{number} FLOW f{flow} WEIGHT {weight}");
                waiters.insert(number, Waiter::ask(&server, &call));
                simulation.join(flow, number);
                wait_for_blocked(&mut client, simulation.waiting());
            }
            5 if !waiters.is_empty() => {
                let leaver = *waiters.keys().nth(random.usize(..waiters.len())).unwrap();
                client.call(&format!("CLIENT UNBLOCK {}", waiters[&leaver].id));
                assert_eq!(waiters.remove(&leaver).unwrap().answer(), "null");
                simulation.leave(leaver);
            }
            6.. if simulation.waiting() > 0 => {
                client.call("MULTI");
                client.call(&format!("CL.RELEASE busy {held}"));
                client.call("CL.ACQUIRE busy 1 3600 hasty");
                let Value::Array(answers) = client.call("EXEC") else { panic!("no array") };
                let hasty: Vec<i64> = redis::from_redis_value(answers[1].clone()).unwrap();
                assert_eq!(hasty[0], 1, "a call that does not wait comes before clients that do");
                held = holder(&mut client);
                let expected = simulation.serve();
                assert_eq!(held, format!("c{expected}"), "turn {served}");
                assert!(waiters.remove(&expected).unwrap().answer().starts_with("0 1 0 -1 "));
                served += 1;
            }
            _ => {}
        }
    }
    assert!(served > 300, "{served} turns");
}

/// The other limiters of flows are used up and come back at any time, and clients want different quantities:
/// who is not ready holds up nobody, whether it was ready before or not.
#[test]
fn turns_are_those_of_the_simulation_while_readiness_changes() {
    const LIMIT: u64 = 8;
    const GATE: i64 = 1_000_000;
    let server = Server::start();
    let mut client = server.connect();
    let mut random = Rng::with_seed(23);
    let mut simulation = Simulation::new(WEIGHTS.into_iter());
    let mut waiters = std::collections::BTreeMap::new();
    let (mut used, mut shut, mut served) = (0_u64, [false; WEIGHTS.len()], 0);
    for number in 0..if long() { 20_000 } else { 1_500 } {
        match random.usize(..10) {
            0..4 if waiters.len() < 40 => {
                let flow = random.usize(..WEIGHTS.len());
                let (weight, quantity) = (WEIGHTS[flow], random.u64(1..=LIMIT).min(random.u64(1..=LIMIT)));
                let call = format!(
                    "CL.BMTAKE up FIXED {LIMIT} 36000 {quantity} gate{flow} FIXED {GATE} 36000 1 FLOW f{flow} WEIGHT {weight}"
                );
                waiters.insert(number, (Waiter::ask(&server, &call), quantity));
                simulation.join(flow, number);
            }
            4 if !waiters.is_empty() => {
                let leaver = *waiters.keys().nth(random.usize(..waiters.len())).unwrap();
                let (mut waiter, _) = waiters.remove(&leaver).unwrap();
                client.call(&format!("CLIENT UNBLOCK {}", waiter.id));
                assert_eq!(waiter.answer(), "null");
                simulation.leave(leaver);
            }
            5..7 => {
                let units = random.u64(1..=LIMIT);
                client.call(&format!("CL.MSETTLE up FIXED {LIMIT} 36000 -{units}"));
                used = used.saturating_sub(units);
            }
            7 => {
                let flow = random.usize(..WEIGHTS.len());
                let units = if shut[flow] { -GATE } else { GATE };
                client.call(&format!("CL.MSETTLE gate{flow} FIXED {GATE} 36000 {units}"));
                shut[flow] = !shut[flow];
            }
            8.. => {
                let ready = simulation.flows.iter().zip(shut).filter(|(_, shut)| !shut);
                let clients = ready.flat_map(|(flow, _)| &flow.clients);
                let ahead: u64 = clients.map(|client| waiters[client].1).sum();
                let call = format!("CL.FIXED up {LIMIT} 36000 1");
                if used + ahead < LIMIT {
                    // The queue hears of a limiter that was used up a moment later.
                    wait_until("the call to be admitted", || match client.ints(&call)[0] {
                        0 => Ok(()),
                        _ => Err(format!("{number}")),
                    });
                    used += 1;
                } else {
                    assert_eq!(client.ints(&call)[0], 1, "{number}: clients that are ready come first");
                }
            }
            _ => {}
        }
        // On a busy machine, the server may have left work for later: it goes on before each further call.
        for _ in 0..5 {
            client.call("PING");
        }
        while let Some(flow) = simulation.next(|flow| !shut[flow]) {
            let quantity = waiters[&simulation.flows[flow].clients[0]].1;
            if used + quantity > LIMIT {
                break;
            }
            used += quantity;
            served += 1;
            let (mut waiter, _) = waiters.remove(&simulation.admit(flow, quantity)).unwrap();
            assert!(waiter.answer().starts_with("0 "), "{number}");
        }
        wait_for_blocked(&mut client, simulation.waiting());
    }
    assert!(served > 200, "{served} turns");
}

/// Many turns that come at once are served in steps, and timeouts that pass meanwhile are replied in between:
/// a queue that is always busy delays no timeout of another.
#[test]
fn turns_without_end_delay_no_timeout() {
    const CLIENTS: usize = 1_500;
    let server = Options::new().set("maxclients", "11000").start();
    let mut client = server.connect();
    client.call(&format!("CL.FIXED k {CLIENTS} 36000 {CLIENTS}"));
    client.call("CL.ACQUIRE busy 1 3600 other");
    let mut waiters: Vec<Waiter> = (0..CLIENTS).map(|_| Waiter::connect(&server)).collect();
    for waiter in &mut waiters {
        waiter.send(&format!("CL.BMTAKE k FIXED {CLIENTS} 36000 1"));
    }
    wait_for_blocked(&mut client, CLIENTS);
    let mut late = Waiter::ask(&server, "CL.BMTAKE busy LEASE 1 3600 me TIMEOUT 0.2");
    wait_for_blocked(&mut client, CLIENTS + 1);
    // The turns have come before the timeout, and the server gets to them after it.
    client.call("MULTI");
    client.call("DEL k");
    client.call("DEBUG SLEEP 0.3");
    client.call("EXEC");
    assert_eq!(late.answer(), "null");
    assert_ne!(client.info("blocked_clients"), "0", "it is replied after all others");
    for waiter in &mut waiters {
        assert!(waiter.answer().starts_with("0 "));
    }
}

/// A thousand connections in a hundred flows, and 10,000 in 1,000 flows in the long form: each batch of turns
/// is that of the simulation, two flows never differ by more than a call of each, and after 10,000 turns the
/// flows of each weight have had their share.
#[test]
fn a_thousand_connections_have_their_turns_and_their_shares() {
    const PLACES: usize = 50;
    let (connections, flows, turns) = if long() { (10_000, 1_000, 50_000) } else { (1_000, 100, 10_000) };
    let server = Options::new().set("maxclients", "11000").start();
    let mut client = server.connect();
    let weight = |flow: usize| [1, 2, 4][flow % 3];
    let mut simulation = Simulation::new((0..flows).map(weight));
    let mut waiters: Vec<Waiter> = (0..connections).map(|_| Waiter::connect(&server)).collect();
    // The connection of each client. Clients have the numbers in which they came.
    let mut clients: Vec<usize> = Vec::new();
    let mut join =
        |simulation: &mut Simulation, clients: &mut Vec<usize>, connection: usize, waiter: &mut Waiter| {
            let (number, flow) = (clients.len(), connection % flows);
            let weight = weight(flow);
            waiter
                .send(&format!("CL.BMTAKE busy LEASE {PLACES} 36000 {number} FLOW f{flow} WEIGHT {weight}"));
            // The server reads what was sent before this before it reads what is sent after the reply.
            client.call("PING");
            simulation.join(flow, number);
            clients.push(connection);
        };
    let mut other = server.connect();
    let mut held: Vec<String> = (0..PLACES).map(|place| format!("holder{place}")).collect();
    for holder in &held {
        other.call(&format!("CL.ACQUIRE busy {PLACES} 36000 {holder}"));
    }
    for (connection, waiter) in waiters.iter_mut().enumerate() {
        join(&mut simulation, &mut clients, connection, waiter);
    }
    // Microseconds of all threads of the server.
    let cpu = |client: &mut Client| -> u128 {
        let seconds = |name: &str| client.info(name).parse::<f64>().unwrap();
        ["used_cpu_user", "used_cpu_sys"]
            .map(seconds)
            .map(Duration::from_secs_f64)
            .iter()
            .map(Duration::as_micros)
            .sum()
    };
    let before = cpu(&mut other);
    // What each flow was given, four times, divided by its weight.
    let mut given = vec![0_i64; flows];
    for _ in 0..turns / PLACES {
        let releases: Vec<String> = held.iter().map(|holder| format!("CL.RELEASE busy {holder}")).collect();
        other.pipeline(&releases.iter().map(String::as_str).collect::<Vec<_>>());
        let expected: Vec<usize> = (0..PLACES).map(|_| simulation.serve()).collect();
        held = wait_until("the next clients to be admitted", || {
            let held: Vec<String> = other.get("ZRANGE busy 0 -1");
            if held.len() == PLACES { Ok(held) } else { Err(format!("{held:?}")) }
        });
        let mut admitted: Vec<usize> = held.iter().map(|holder| holder.parse().unwrap()).collect();
        let mut turn = expected.clone();
        admitted.sort_unstable();
        turn.sort_unstable();
        assert_eq!(admitted, turn);
        for &number in &expected {
            let flow = clients[number] % flows;
            let share = |flow: usize| i64::try_from(4 / weight(flow)).unwrap();
            given[flow] += share(flow);
            for other in 0..flows {
                assert!(
                    (given[flow] - given[other]).abs() <= share(flow) + share(other),
                    "{flow} and {other}"
                );
            }
        }
        for number in expected {
            let connection = clients[number];
            assert!(waiters[connection].answer().starts_with("0 "));
            assert!(
                !simulation.flows[connection % flows].clients.is_empty(),
                "the flow was not always ready"
            );
            join(&mut simulation, &mut clients, connection, &mut waiters[connection]);
        }
    }
    let micros = (cpu(&mut other) - before) / u128::try_from(turns).unwrap();
    figure(
        &format!("a turn of {connections} clients in {flows} flows, processor time"),
        format!("{micros} µs"),
    );
    let all: u64 = (0..flows).map(weight).sum();
    for class in 0..3 {
        let of_class = || (0..flows).filter(|flow| flow % 3 == class);
        // In parts of 10,000, of all turns.
        let part = |some: i64, all: u64| some * 10_000 / i64::try_from(all).unwrap();
        let turns_of = of_class().map(|flow| given[flow] * i64::try_from(weight(flow)).unwrap() / 4).sum();
        let share = part(turns_of, turns.try_into().unwrap());
        let due = part(of_class().map(weight).sum::<u64>().try_into().unwrap(), all);
        assert!((share - due).abs() < 100, "{share} of 10,000 turns, not {due}");
    }
}
