//! Random schedules of everything that can happen to a queue, and the properties that must always hold.

use crate::common::{Client, Server, Waiter, wait_for_blocked, wait_until, wall_ns};
use fastrand::Rng;
use std::time::{Duration, Instant};

/// The emission interval in milliseconds: one unit, no burst.
const INTERVAL: i64 = 5;

/// Keys on which nothing is given back, deleted or written by hand: their TAT grows at least by the cost of
/// every unit, and by the places that clients before bookings have left or missed. From the queue of the
/// first, no client leaves before its turn.
const HONEST: [&str; 2] = ["honest0", "honest1"];

/// Keys on which everything happens.
const WILD: [&str; 3] = ["wild0", "wild1", "wild2"];

struct Waiting {
    client: Waiter,
    key: &'static str,
    quantity: i64,
    may_get_an_error: bool,
}

/// The units that were taken from the honest keys, as the replies say.
#[derive(Default)]
struct Taken([i64; HONEST.len()]);

impl Taken {
    fn add(&mut self, key: &str, units: i64) {
        if let Some(place) = HONEST.iter().position(|honest| *honest == key) {
            self.0[place] += units;
        }
    }
}

struct Run {
    random: Rng,
    server: Server,
    client: Client,
    waiting: Vec<Waiting>,
    taken: Taken,
    admitted: usize,
}

impl Run {
    fn any<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.random.usize(..of.len())]
    }

    fn any_key(&mut self) -> &'static str {
        let all = [HONEST.as_slice(), WILD.as_slice()].concat();
        self.any(&all)
    }

    fn join(&mut self) {
        let (key, quantity) = (self.any_key(), self.any(&[0, 1, 1, 1, 2]));
        let timeout = if key == HONEST[0] { "0" } else { self.any(&["0", "0", "0.01", "0.05", "0.5"]) };
        // A quantity of 2 has room in a burst of 1.
        let client =
            Waiter::ask(&self.server, &format!("CL.BTHROTTLE {key} 1 1 {INTERVAL} {quantity} {timeout} MS"));
        self.waiting.push(Waiting { client, key, quantity, may_get_an_error: key.starts_with("wild") });
    }

    /// The reply of one that waits, or its end.
    fn end_one(&mut self, place: usize) {
        let mut waiting = self.waiting.swap_remove(place);
        let answer = waiting.client.answer();
        if let Some(reply) = answer.strip_prefix("0 2 ") {
            assert!(reply.contains(" -1 "), "{answer}");
            self.taken.add(waiting.key, waiting.quantity);
            self.admitted += 1;
        } else {
            let is_error =
                ["ERR the key does not hold", "WRONGTYPE "].iter().any(|error| answer.starts_with(error));
            assert!(answer == "null" || waiting.may_get_an_error && is_error, "{}: {answer}", waiting.key);
        }
    }

    /// A client that disconnects in one of several ways. The units that it has taken are then unknown.
    fn leave(&mut self) {
        let may_leave = (0..self.waiting.len()).filter(|&place| self.waiting[place].key != HONEST[0]);
        let may_leave: Vec<usize> = may_leave.collect();
        if may_leave.is_empty() {
            return;
        }
        let place = self.any(&may_leave);
        let id = self.waiting[place].client.id;
        match self.any(&["UNBLOCK", "UNBLOCK ERROR", "KILL", "hang up"]) {
            "UNBLOCK" => drop(self.client.call(&format!("CLIENT UNBLOCK {id}"))),
            "UNBLOCK ERROR" if self.client.int(&format!("CLIENT UNBLOCK {id} ERROR")) == 1 => {
                let answer = self.waiting.swap_remove(place).client.answer();
                assert!(answer.starts_with("UNBLOCKED "), "{answer}");
            }
            "UNBLOCK ERROR" => {}
            "KILL" => {
                let _ = self.client.ask(&format!("CLIENT KILL ID {id}"));
                self.waiting.swap_remove(place);
            }
            _ => drop(self.waiting.swap_remove(place)),
        }
    }

    /// A call that does not wait.
    fn take(&mut self) {
        let (key, quantity) = (self.any_key(), self.any(&[1, 1, 2]));
        let limit = self.any(&["1", "1", "9"]);
        let name = self.any(&["CL.THROTTLE", "CL.RESERVE", "CL.RESERVE", "CL.CHARGE"]);
        let call = format!("{name} {key} {limit} 1 {INTERVAL} {quantity} MS");
        let reply = match self.any(&["plain", "MULTI", "EVAL"]) {
            "plain" => self.client.ask(&call),
            "MULTI" => {
                self.client.call("MULTI");
                self.client.call(&call);
                self.client.ask("EXEC").map(|replies| match replies {
                    redis::Value::Array(mut replies) => replies.remove(0),
                    other => other,
                })
            }
            _ => {
                let script = "return redis.call(unpack(ARGV))";
                let words: Vec<&str> =
                    ["EVAL", script, "1", key].into_iter().chain(call.split(' ')).collect();
                self.client.ask(&words[..])
            }
        };
        let Ok(redis::Value::Array(reply)) = reply else { return };
        // A charge is never refused.
        if name == "CL.CHARGE" || reply[0] == redis::Value::Int(0) {
            self.taken.add(key, quantity);
        }
    }

    /// Something that only wild keys get, or that changes nothing on the honest ones.
    fn disturb(&mut self) {
        let key = self.any(&WILD);
        let call = match self.random.u8(..14) {
            0 => format!("CL.REFUND {key} 1 1 {INTERVAL} 1 MS"),
            1 => format!("DEL {key}"),
            2 => format!("PEXPIRE {key} 2"),
            3 => format!("SET {key} foreign"),
            4 => format!("SET {key} {} PX 20", wall_ns() + 10_000_000),
            5 => format!("RENAME {key} {}", self.any(&WILD)),
            6 => format!("COPY {key} {} REPLACE", self.any(&WILD)),
            7 => "CLIENT PAUSE 5 WRITE".to_owned(),
            8 => "DEBUG SLEEP 0.005".to_owned(),
            9 => format!("CL.PAUSE {key} 1 1 {INTERVAL} 10 MS"),
            10 => format!("CL.PEEK {} 1 1 {INTERVAL} 1 MS", self.any_key()),
            11 => "CONFIG SET hz 10".to_owned(),
            12 => "BGREWRITEAOF".to_owned(),
            _ => "SWAPDB 3 4".to_owned(),
        };
        let _ = self.client.ask(&call);
    }
}

/// Whatever happens: every client is answered, none is answered twice, the server lives, and the TAT of a key
/// on which nothing is given back has grown at least by the cost of everything that was admitted.
pub fn survive(seed: u64, time: Duration) {
    let server = Server::start();
    let client = server.connect();
    let mut run = Run {
        random: Rng::with_seed(seed),
        server,
        client,
        waiting: Vec::new(),
        taken: Taken::default(),
        admitted: 0,
    };
    // From the start the honest keys owe more than the run lasts, so that there is no time in which they owe
    // nothing, which would hide a unit too many.
    let owed = i64::try_from(time.as_millis()).unwrap() / INTERVAL;
    for key in HONEST {
        run.client.call(&format!("CL.CHARGE {key} 1 1 {INTERVAL} {owed} MS"));
        run.taken.add(key, owed);
    }
    let began = HONEST.map(|key| run.client.tat(key).unwrap() - owed * INTERVAL * 1_000_000);
    let until = Instant::now() + time;
    while Instant::now() < until {
        match run.random.u8(..100) {
            0..40 if run.waiting.len() < 60 => run.join(),
            0..50 => run.leave(),
            50..80 => run.take(),
            80..90 => run.disturb(),
            _ => {
                let ready: Vec<usize> =
                    (0..run.waiting.len()).filter(|&place| !run.waiting[place].client.is_waiting()).collect();
                for place in ready.into_iter().rev() {
                    run.end_one(place);
                }
            }
        }
    }
    // On the wild keys, the test does not wait for booked and charged units.
    for key in WILD {
        run.client.call(&format!("DEL {key}"));
    }
    // A booking behind all queues keeps the keys until the end, and delays nobody.
    for key in HONEST {
        run.client.call(&format!("CL.RESERVE {key} 1 1 {INTERVAL} 10000 PREPAY MS"));
        run.taken.add(key, 10_000);
    }
    // Clients of small bursts that are too late for their places before a booking wait for its end. When all
    // places before it have passed, those are not waited for.
    let begins = HONEST.map(|key| run.client.tat(key).unwrap() - 10_000 * INTERVAL * 1_000_000);
    while let Some(place) = (0..run.waiting.len()).rfind(|&place| {
        let key = run.waiting[place].key;
        let begins = HONEST.iter().zip(begins).find(|(honest, _)| **honest == key);
        begins.is_none_or(|(_, begins)| wall_ns() < begins) || !run.waiting[place].client.is_waiting()
    }) {
        if HONEST.contains(&run.waiting[place].key) && run.waiting[place].client.is_waiting() {
            std::thread::sleep(Duration::from_millis(1));
        } else {
            run.end_one(place);
        }
    }
    for place in (0..run.waiting.len()).rev() {
        let id = run.waiting[place].client.id;
        run.client.call(&format!("CLIENT UNBLOCK {id}"));
        run.end_one(place);
    }
    wait_for_blocked(&mut run.client, 0);
    assert!(run.admitted > 0);
    for ((key, began), taken) in HONEST.into_iter().zip(began).zip(run.taken.0) {
        let tat = run.client.tat(key).expect("it owes a minute");
        let more = (tat - began) / 1_000_000 - taken * INTERVAL;
        assert!(more >= 0, "seed {seed}: {key} gave {taken} units, {} ms too many", -more);
    }
    // All data of the queues is gone: the next client waits and is admitted as before.
    run.client.call("DEL honest0");
    run.client.call(&format!("CL.THROTTLE honest0 0 1 {INTERVAL} 1 MS"));
    let mut last = Waiter::ask(&run.server, &format!("CL.BTHROTTLE honest0 0 1 {INTERVAL} 1 0 MS"));
    assert!(last.answer().starts_with("0 1 0 -1 "));
    wait_until("no client to be blocked", || match run.client.info("blocked_clients").as_str() {
        "0" => Ok(()),
        seen => Err(seen.to_owned()),
    });
    assert!(!run.server.log().to_lowercase().contains("panic"), "seed {seed}\n{}", run.server.log());
    run.server.assert_alive("a random schedule");
}

#[test]
pub fn no_schedule_loses_a_client_or_admits_too_much() {
    let long = std::env::var("REDIS_CELL_LONG").is_ok();
    let seeds = if long { 0..20 } else { 0..2 };
    for seed in seeds {
        survive(seed, Duration::from_secs(if long { 20 } else { 3 }));
    }
}
