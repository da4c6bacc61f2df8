//! CL.BMTAKE against a simulation of its own, over random arrivals, departures and turns.

use crate::common::{Client, Server, Waiter, wait_for_blocked, wait_until};
use crate::figures::long;
use fastrand::Rng;
use redis::Value;

/// The flows: their names and weights.
const FLOWS: [(&str, u64); 5] = [("a", 1), ("b", 2), ("c", 4), ("d", 1), ("e", 3)];

/// A multiple of all weights, so that no tag has a fraction.
const UNIT: u64 = 12;

/// A flow as the rule describes it: all of it is looked at for every turn.
#[derive(Clone, Default)]
struct Flow {
    finish: u64,
    start: u64,
    /// The numbers of its clients, which came in this order.
    clients: Vec<usize>,
}

#[derive(Default)]
struct Simulation {
    time: u64,
    flows: [Flow; FLOWS.len()],
}

impl Simulation {
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

    /// Serves the client whose turn it is.
    fn serve(&mut self) -> usize {
        let flows = (0..FLOWS.len()).filter(|&flow| !self.flows[flow].clients.is_empty());
        let next = flows.min_by_key(|&flow| (self.flows[flow].start, self.flows[flow].clients[0])).unwrap();
        let flow = &mut self.flows[next];
        self.time = self.time.max(flow.start);
        flow.finish = self.time + UNIT / FLOWS[next].1;
        flow.start = flow.finish;
        let client = flow.clients.remove(0);
        self.begin_again();
        client
    }

    /// When nobody waits, all begin equal again.
    fn begin_again(&mut self) {
        if self.waiting() == 0 {
            *self = Self::default();
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
pub fn turns_are_those_of_the_simulation_and_nobody_is_overtaken() {
    let server = Server::start();
    let mut client = server.connect();
    let mut random = Rng::with_seed(22);
    let (mut simulation, mut waiters) = (Simulation::default(), std::collections::BTreeMap::new());
    client.call("CL.ACQUIRE busy 1 3600 nobody");
    let mut held = "nobody".to_owned();
    let mut served = 0;
    for number in 0..if long() { 20_000 } else { 1_500 } {
        match random.usize(..10) {
            0..5 => {
                // Some flows come more often than others.
                let flow = random.usize(..FLOWS.len()).min(random.usize(..FLOWS.len()));
                let (name, weight) = FLOWS[flow];
                let call = format!("CL.BMTAKE busy LEASE 1 3600 c{number} FLOW {name} WEIGHT {weight}");
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
