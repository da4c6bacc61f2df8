//! Remembered refusals on a real server: few calls, and none refused that the server would admit.

use crate::common::{Server, wait_until};
use crate::leased::{SOON, connect, soon};
use crate::{calls, client, until};
use redis::Value;
use redis::aio::MultiplexedConnection;
use redis_cell_client::{
    Answer, BlockingGuard, Decision, Fixed, FixedWindow, Guard, Limit, Rate, Refusals, Units, WhenUnavailable,
};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

struct Guarded {
    guard: Guard<MultiplexedConnection>,
    refusals: Refusals,
}

async fn guarded(server: &Server) -> Guarded {
    let client = client(server.port());
    let refusals = Refusals::new(&client).unwrap();
    let guard = Guard::new(connect(server).await, WhenUnavailable::FailClosed).timeout(SOON);
    Guarded { guard: guard.refusals(refusals.clone()), refusals }
}

impl Guarded {
    async fn take(&self, key: &str, limit: impl Into<Limit>) -> Answer {
        let decided = self.guard.take(key, limit, Units(1)).await.unwrap();
        assert!(decided.error().is_none(), "{decided:?}");
        *decided.answer().unwrap()
    }

    /// Takes all units of a key that are left, and waits until its refusal is remembered.
    async fn refused(&self, key: &str, limit: Limit) {
        soon("the refusal to be remembered", async || {
            self.take(key, limit).await;
            self.refusals.recall(key.as_bytes(), limit, Units(1)).is_some()
        })
        .await;
    }

    async fn until_admitted(&self, key: &str, limit: Limit) {
        soon("the key to be admitted", async || self.take(key, limit).await.admitted()).await;
    }
}

fn one_a_day() -> Limit {
    Rate::per_day(1).burst(0).into()
}

#[tokio::test]
async fn a_flood_of_refusals_hardly_reaches_the_server() {
    let (server, mut client) = Server::with_client();
    let guarded = guarded(&server).await;
    for key in 0..20 {
        guarded.refused(&format!("k{key}"), one_a_day()).await;
    }
    let before = (calls(&mut client, "cl.throttle"), guarded.refusals.recalled());
    let mut waits = Vec::new();
    for call in 0..4_000 {
        let answer = guarded.take(&format!("k{}", call % 20), one_a_day()).await;
        assert_eq!((answer.limit, answer.remaining, answer.taken), (1, 0, None));
        waits.push(answer.retry_after().unwrap());
    }
    // On a busy machine, signs of life may be late; then calls go to the server.
    assert!(calls(&mut client, "cl.throttle") - before.0 < 40);
    assert!(guarded.refusals.recalled() - before.1 > 3_960);
    // The wait becomes shorter, and is that of the server.
    let own = client.ints("CL.PEEK k19 0 1 86400 1 US")[3];
    let (last, own) = (waits[3_999], Duration::from_micros(u64::try_from(own).unwrap()));
    assert!(last < waits[19] && last.abs_diff(own) < Duration::from_secs(1), "{last:?}, {own:?}");
}

#[tokio::test]
async fn what_gives_units_back_is_learned_at_once() {
    let (server, mut client) = Server::with_client();
    let guarded = guarded(&server).await;
    let day = Duration::from_secs(86_400);
    let limits: [Limit; 6] = [
        one_a_day(),
        Limit::Funnel(Rate::per_day(1).capacity(1)),
        Limit::Bucket(Rate::per_day(1).capacity(1)),
        Fixed::new(1, FixedWindow::period(day)).into(),
        Limit::Window(Rate::new(1, day)),
        Limit::Log(Rate::new(1, day)),
    ];
    for limit in limits {
        for gives_back in ["DEL k", "FLUSHALL"] {
            guarded.refused("k", limit).await;
            client.call(gives_back);
            guarded.until_admitted("k", limit).await;
        }
        client.call("DEL k");
    }
    guarded.refused("k", one_a_day()).await;
    client.call("CL.REFUND k 0 1 86400");
    guarded.until_admitted("k", one_a_day()).await;
}

#[tokio::test]
async fn a_call_after_the_wait_and_one_for_another_quantity_reach_the_server() {
    let server = Server::start();
    let guarded = guarded(&server).await;
    let short = Rate::new(1, Duration::from_millis(400)).into();
    guarded.refused("short", short).await;
    let Decision::RefusedFor(wait) = guarded.take("short", short).await.decision else { panic!("admitted") };
    tokio::time::sleep(wait).await;
    assert!(guarded.take("short", short).await.admitted());

    let ten: Limit = Rate::per_day(10).into();
    let take = async |units| guarded.guard.take("k", ten, Units(units)).await.unwrap().admitted();
    assert!(take(8).await);
    soon("the refusal to be remembered", async || {
        assert!(!take(3).await);
        guarded.refusals.recall(b"k", ten, Units(3)).is_some()
    })
    .await;
    assert!(take(2).await);
}

#[tokio::test]
async fn a_lost_connection_forgets_all() {
    let (server, mut client) = Server::with_client();
    let guarded = guarded(&server).await;
    guarded.refused("k", one_a_day()).await;
    let list = client.text("CLIENT LIST");
    let tracks = list.lines().find(|line| line.contains(" flags=t ")).unwrap();
    let id = tracks.split(' ').next().unwrap().trim_start_matches("id=");
    client.call(&format!("CLIENT KILL ID {id}"));
    client.call("DEL k");
    guarded.until_admitted("k", one_a_day()).await;
    // It is remembered again.
    guarded.refused("k", one_a_day()).await;
}

#[tokio::test]
async fn nothing_is_recalled_while_the_server_is_silent() {
    let server = Server::start();
    let guarded = guarded(&server).await;
    guarded.refused("k", one_a_day()).await;
    server.signal("STOP");
    let is_forgotten = async || guarded.refusals.recall(b"k", one_a_day(), Units(1)).is_none();
    soon("the refusal to be forgotten", is_forgotten).await;
    server.signal("CONT");
}

#[tokio::test]
async fn further_keys_and_short_waits_are_not_remembered() {
    let server = Server::start();
    let client = client(server.port());
    let refusals = Refusals::new(&client).unwrap().keys(3);
    let guard = Guard::new(connect(&server).await, WhenUnavailable::FailClosed).timeout(SOON);
    let guard = guard.refusals(refusals.clone());
    for _ in 0..3 {
        for key in 0..6 {
            guard.take(format!("k{key}"), one_a_day(), Units(1)).await.unwrap();
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!((1..=3).contains(&refusals.keys_in_use()), "{} keys", refusals.keys_in_use());
    let refusals = refusals.keys(10);
    let guard = guard.refusals(refusals.clone());
    for _ in 0..10 {
        guard.take("short", Rate::per_second(200).burst(0), Units(1)).await.unwrap();
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(refusals.keys_in_use(), 0);
}

/// A server that the test plays, for what a real one cannot be made to do.
struct Played {
    stream: TcpStream,
    refusals: Refusals,
}

impl Played {
    /// Connects with refused calls: of these keys, with these limits.
    fn connect(calls: impl IntoIterator<Item = (String, Limit)>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("redis://{}", listener.local_addr().unwrap());
        let refusals = Refusals::new(&redis::Client::open(url).unwrap()).unwrap();
        for (key, limit) in calls {
            learn(&refusals, &key, limit);
        }
        let (stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        Self { stream, refusals }
    }

    fn tell(&self, replies: &str) {
        (&self.stream).write_all(replies.as_bytes()).unwrap();
    }

    /// Returns the number of keys that are read, at least `least`. Answers everything else.
    fn looks(&self, least: usize) -> usize {
        let (mut bytes, mut looks) = ([0; 4_096], 0);
        while looks < least {
            let length = (&self.stream).read(&mut bytes).unwrap();
            assert!(length > 0, "the connection is closed after {looks} keys");
            let text = String::from_utf8_lossy(&bytes[..length]);
            looks += text.matches("CL.MPEEK").count();
            for (name, reply) in [("HELLO", "%0\r\n"), ("CLIENT", "+OK\r\n"), ("PING", "+PONG\r\n")] {
                self.tell(&reply.repeat(text.matches(name).count()));
            }
        }
        looks
    }

    fn wait_of(&self, key: &str) -> Option<Duration> {
        self.refusals.recall(key.as_bytes(), one_a_day(), Units(1))?.retry_after()
    }

    fn until(&self, what: &str, done: impl Fn(&Self) -> bool) {
        wait_until(what, || if done(self) { Ok(()) } else { Err(format!("{:?}", self.refusals)) });
    }
}

fn learn(refusals: &Refusals, key: &str, limit: Limit) {
    let refused = Value::Array([1, 1, 0, DAY, DAY].map(Value::Int).into());
    let refused: Answer = redis::from_redis_value(refused).unwrap();
    refusals.learn(key.as_bytes(), limit, Units(1), &refused);
}

const DAY: i64 = 86_400_000_000;

/// The reply of a server that refuses for `wait` microseconds.
fn refused_for(wait: i64) -> String {
    let row = format!("*5\r\n:1\r\n:1\r\n:0\r\n:{wait}\r\n:{wait}\r\n");
    format!("*2\r\n{row}{row}")
}

/// If each key took a round trip, a flood would arrive faster than its refusals are remembered.
#[test]
fn refused_keys_are_read_together_and_not_after_the_last_guard() {
    let played = Played::connect((0..1_000).map(|key| (format!("k{key}"), one_a_day())));
    let looks = played.looks(200);
    let Played { mut stream, refusals } = played;
    drop(refusals);
    stream.write_all("-ERR no\r\n".repeat(looks).as_bytes()).unwrap();
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(looks + rest.matches("CL.MPEEK").count() < 1_000, "all keys are read");
}

#[test]
fn a_key_that_cannot_be_read_leaves_the_others() {
    let unsent = Limit::Log(Rate::new(1, Duration::from_nanos(1)));
    let keys = [("unsent", unsent), ("odd", one_a_day()), ("error", one_a_day()), ("k", one_a_day())];
    let played = Played::connect(keys.map(|(key, limit)| (key.to_owned(), limit)));
    assert_eq!(played.looks(3), 3);
    played.tell(&format!(":1\r\n-ERR no\r\n{}", refused_for(DAY)));
    played.until("the last key to be remembered", |played| played.wait_of("k").is_some());
    assert_eq!(played.refusals.keys_in_use(), 1);
}

/// What the server has answered before the change is not what it answers to the call after it.
#[test]
fn a_key_that_changes_while_it_is_read_is_read_again() {
    let played = Played::connect([("before".to_owned(), one_a_day())]);
    played.looks(1);
    played.tell(&refused_for(DAY));
    played.until("a key to be remembered", |played| played.refusals.keys_in_use() == 1);
    learn(&played.refusals, "k", one_a_day());
    played.looks(1);
    played.tell(">2\r\n$10\r\ninvalidate\r\n*2\r\n$1\r\nk\r\n$6\r\nbefore\r\n");
    played.until("the change to be known", |played| played.refusals.keys_in_use() == 0);
    learn(&played.refusals, "k", one_a_day());
    played.tell(&refused_for(DAY));
    played.looks(1);
    assert_eq!(played.wait_of("k"), None);
    played.tell(&refused_for(DAY / 2));
    played.until("the key to be remembered", |played| played.wait_of("k").is_some());
    assert!(played.wait_of("k") <= Some(Duration::from_secs(43_200)));
}

/// Outside a runtime, a thread learns what changes.
#[test]
fn a_blocking_guard_remembers_refusals() {
    let (server, mut inspector) = Server::with_client();
    let client = client(server.port());
    let refusals = Refusals::new(&client).unwrap();
    let guard = BlockingGuard::new(client, WhenUnavailable::FailClosed).timeout(SOON);
    let guard = guard.refusals(refusals.clone());
    let take = || guard.take("k", one_a_day(), Units(1)).unwrap();
    until("the refusal to be remembered", true, || {
        take();
        refusals.recalled() > 0
    });
    let before = (calls(&mut inspector, "cl.throttle"), refusals.recalled());
    assert!((0..1_000).all(|_| !take().admitted()));
    assert!(calls(&mut inspector, "cl.throttle") - before.0 < 20);
    assert!(refusals.recalled() - before.1 > 980);
    inspector.call("DEL k");
    until("the key to be admitted", true, || take().admitted());
    // Its connection ends with the last guard.
    drop((guard, refusals));
    until("the connection to be closed", false, || inspector.text("CLIENT LIST").contains(" flags=t "));
}
