//! An unavailable server: nobody listens, the process is frozen, it comes back, a replica takes over. And no
//! call is sent twice.

use crate::cluster::{client as cluster_client, cluster};
use crate::common::{Client, Options, Server};
use crate::leased::SOON;
use crate::{client, counted, until};
use redis::aio::{ConnectionLike, ConnectionManager, ConnectionManagerConfig};
use redis::cluster::ClusterClient;
use redis::{ErrorKind, RedisResult};
use redis_cell_client::{
    Answer, AsyncCellCommands, Backend, BlockingGuard, CellCommands, CellConnection, DecidedBy, Decision,
    Fixed, FixedWindow, Guard, Limit, LocalLimiter, MTake, Policy, Quantity, Rate, Saturate, TimedConnection,
    Together, Units, WhenUnavailable, call, is_unavailable,
};
use std::num::NonZeroU32;
use std::pin::Pin;
use std::time::{Duration, SystemTime};

pub const KEY: &str = "k";

/// For a server that answers, however busy the machine is.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// While a test runs, no further call is sent to an unavailable server.
pub const NEVER: Duration = Duration::from_secs(3_600);

/// Four at once, which never leak while a test runs.
pub fn limit() -> redis_cell_client::Gcra {
    Rate::per_day(4).burst(3)
}

pub fn two_processes() -> LocalLimiter {
    LocalLimiter::new(NonZeroU32::new(2).unwrap())
}

/// A port on which nobody listens. One that was free a moment ago is taken by the next server that starts.
pub const NOBODY: u16 = 1;

pub fn manager(client: redis::Client) -> ConnectionManager {
    // Without a timeout of its own, so that the guard's is the one that ends a call.
    let config = ConnectionManagerConfig::new().set_response_timeout(None).set_number_of_retries(0);
    ConnectionManager::new_lazy_with_config(client, config).unwrap()
}

/// A guard of asynchronous code or of blocking code.
#[derive(Clone)]
enum Any {
    Async(Guard<ConnectionManager>),
    Blocking(BlockingGuard),
}

impl Any {
    /// Both, whose calls are all sent, and wait for a busy machine.
    fn both(client: &redis::Client, choice: &WhenUnavailable) -> [Self; 2] {
        let asynchronous = Guard::new(manager(client.clone()), choice.clone());
        let blocking = BlockingGuard::new(client.clone(), choice.clone());
        [
            Self::Async(asynchronous.timeout(PATIENCE).ask_again(Duration::ZERO)),
            Self::Blocking(blocking.timeout(PATIENCE).ask_again(Duration::ZERO)),
        ]
    }

    fn timeout(self, timeout: Duration) -> Self {
        match self {
            Self::Async(guard) => Self::Async(guard.timeout(timeout)),
            Self::Blocking(guard) => Self::Blocking(guard.timeout(timeout)),
        }
    }

    fn ask_again(self, pause: Duration) -> Self {
        match self {
            Self::Async(guard) => Self::Async(guard.ask_again(pause)),
            Self::Blocking(guard) => Self::Blocking(guard.ask_again(pause)),
        }
    }

    async fn take(
        &self,
        key: &str,
        limit: impl Into<Limit>,
        quantity: impl Into<Quantity>,
    ) -> RedisResult<DecidedBy> {
        match self {
            Self::Async(guard) => ends("a call", guard.take(key, limit, quantity)).await,
            Self::Blocking(guard) => {
                let (guard, key) = (guard.clone(), key.to_owned());
                let (limit, quantity) = (limit.into(), quantity.into());
                blocking("a blocking call", move || guard.take(key, limit, quantity)).await
            }
        }
    }

    async fn ask(&self) -> DecidedBy {
        self.take(KEY, limit(), Units(1)).await.unwrap()
    }

    /// Calls until the server answers. Returns how often.
    async fn asked_until_it_answers(&self) -> u32 {
        for asked in 1..=360 {
            if matches!(self.ask().await, DecidedBy::Server(_)) {
                return asked;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("the server does not answer: {:?}", self.ask().await);
    }
}

/// The outcome of a call that must end, although the server may not reply.
async fn ends<T>(what: &str, call: impl Future<Output = T>) -> T {
    tokio::time::timeout(2 * PATIENCE, call).await.unwrap_or_else(|_| panic!("{what} does not end"))
}

/// Like [`ends`], of blocking code, in a thread for which nobody waits if it does not end.
async fn blocking<T: Send + 'static>(what: &str, call: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, outcome) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || sender.send(call()));
    ends(what, outcome).await.unwrap()
}

/// A guard whose calls are all sent, and wait for a busy machine.
fn patient(port: u16, choice: WhenUnavailable) -> Guard<ConnectionManager> {
    Guard::new(manager(client(port)), choice).timeout(PATIENCE).ask_again(Duration::ZERO)
}

async fn ask<C: ConnectionLike + Clone + Send + Sync + 'static>(guard: &Guard<C>) -> DecidedBy {
    guard.take(KEY, limit(), Units(1)).await.unwrap()
}

/// A guard with each of the three choices, whose server is unavailable.
async fn assert_each_choice(guard: impl Fn(&WhenUnavailable) -> Any) {
    for choice in choices() {
        let guard = guard(&choice);
        for (processed, remaining) in [(true, 1), (true, 0), (false, 0)] {
            let decided = guard.ask().await;
            assert!(decided.error().is_some(), "{decided:?}");
            let (admitted, is_right) = match choice {
                WhenUnavailable::FailOpen => (true, matches!(decided, DecidedBy::FailedOpen(_))),
                WhenUnavailable::FailClosed => (false, matches!(decided, DecidedBy::FailedClosed(_))),
                _ => (processed, matches!(decided, DecidedBy::Local { .. })),
            };
            assert!(is_right && decided.admitted() == admitted, "{decided:?}");
            // Two of the four units are this process's.
            let local = matches!(choice, WhenUnavailable::Local(_)).then_some((2, remaining));
            assert_eq!(decided.answer().map(|answer| (answer.limit, answer.remaining)), local);
        }
    }
}

/// How many calls of CL.THROTTLE the server has answered.
pub fn served(client: &mut Client) -> u32 {
    ["admitted", "refused"].map(|outcome| counted(client, &format!("throttle_{outcome}"))).iter().sum()
}

#[tokio::test]
async fn nobody_listens() {
    for sort in [0, 1] {
        assert_each_choice(|choice| Any::both(&client(NOBODY), choice)[sort].clone()).await;
    }
}

#[tokio::test]
async fn a_frozen_server() {
    let server = Server::start();
    let connection = manager(client(server.port()));
    let guard = Guard::new(connection.clone(), WhenUnavailable::FailClosed).timeout(PATIENCE);
    assert!(matches!(ask(&guard).await, DecidedBy::Server(_)));
    server.signal("STOP");
    let soon = Duration::from_millis(50);
    assert_each_choice(|choice| {
        let used = Guard::new(connection.clone(), choice.clone());
        Any::Async(used.timeout(Guard::<ConnectionManager>::TIMEOUT).ask_again(NEVER))
    })
    .await;
    // A server that is frozen accepts connections, and does not set them up.
    for sort in [0, 1] {
        assert_each_choice(|choice| Any::both(&client(server.port()), choice)[sort].clone().timeout(soon))
            .await;
    }
    server.signal("CONT");
    let mut client = server.connect();
    // The first call of each was sent, and has waited in the server's socket. It is served once.
    until("the calls to be served", 4, || served(&mut client));
    assert!(matches!(ask(&guard).await, DecidedBy::Server(answer) if !answer.admitted()));
    assert_eq!(served(&mut client), 5);
}

/// A call of a guard that gives up after this time, for a key of this node, which must end.
type Call = Box<dyn Fn(Duration) -> Pin<Box<dyn Future<Output = RedisResult<DecidedBy>>>>>;

fn call_of<C: ConnectionLike + Clone + Send + Sync + 'static>(guard: Guard<C>, key: &str) -> Call {
    let key = key.to_owned();
    Box::new(move |patience| {
        let (guard, key) = (guard.clone().timeout(patience), key.clone());
        Box::pin(async move { ends("a call", guard.take(&key, limit(), Units(0))).await })
    })
}

fn blocking_call_of<C: TimedConnection + Send + 'static>(guard: BlockingGuard<C>, key: &str) -> Call {
    let key = key.to_owned();
    Box::new(move |patience| {
        let (guard, key) = (guard.clone().timeout(patience), key.clone());
        Box::pin(blocking("a blocking call", move || guard.take(key, limit(), Units(0))))
    })
}

/// On each connection that a guard takes, whether it has been used before or not.
#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_server_ends_each_call_on_any_connection() {
    let nodes = cluster();
    let (single, several) = (client(nodes[0].port()), cluster_client(&nodes));
    let key = (0..1_000)
        .map(|n| format!("{n}"))
        .find(|key| nodes[0].connect().int(&format!("CLUSTER KEYSLOT {key}")) < 5461)
        .unwrap();
    let guards = async || {
        let (single, another, several) = (single.clone(), single.clone(), several.clone());
        let connection = several.get_async_connection().await.unwrap();
        let connect = move |timeout| {
            Ok(CellConnection::new(another.get_connection_with_timeout(timeout)?, Backend::Auto))
        };
        let choice = WhenUnavailable::FailClosed;
        let auto = CellConnection::new(manager(single), Backend::Auto);
        let to_cluster = move |_| several.get_connection();
        [
            call_of(Guard::new(auto, choice.clone()), &key),
            call_of(Guard::new(connection, choice.clone()), &key),
            blocking_call_of(BlockingGuard::with_connections(connect, choice.clone()), &key),
            blocking_call_of(BlockingGuard::with_connections(to_cluster, choice), &key),
        ]
    };
    let (fresh, used) = (guards().await, guards().await);
    for call in &used {
        let decided = call(PATIENCE).await;
        assert!(matches!(decided, Ok(DecidedBy::Server(_))), "{decided:?}");
    }
    for node in &nodes {
        node.signal("STOP");
    }
    for call in fresh.iter().chain(&used) {
        let decided = call(Duration::from_millis(100)).await;
        assert!(matches!(decided, Ok(DecidedBy::FailedClosed(_))), "{decided:?}");
    }
}

/// As in Python. Without that, each call of an outage would wait for the timeout.
#[tokio::test]
async fn an_unavailable_server_gets_one_call_and_the_others_follow_it() {
    for sort in [0, 1] {
        let (server, mut inspector) = Server::with_client();
        let guard =
            Any::both(&client(server.port()), &WhenUnavailable::FailClosed)[sort].clone().ask_again(NEVER);
        assert!(matches!(guard.ask().await, DecidedBy::Server(_)));
        server.signal("STOP");
        let hasty = guard.timeout(Duration::from_millis(500));
        assert!(matches!(hasty.ask().await, DecidedBy::FailedClosed(_)));
        let patient = hasty.timeout(Duration::MAX); // a clone knows what the first one has learned
        for _ in 0..100 {
            assert!(matches!(patient.ask().await, DecidedBy::FailedClosed(_)));
        }
        server.signal("CONT");
        assert!(matches!(patient.ask().await, DecidedBy::FailedClosed(_)));
        // This call is sent, and an error of the call is an answer.
        inspector.call("LPUSH other x");
        let again = patient.clone().ask_again(Duration::ZERO);
        let error = again.take("other", limit(), Units(1)).await.unwrap_err();
        assert_eq!(error.code(), Some("WRONGTYPE"), "{error}");
        assert!(matches!(patient.ask().await, DecidedBy::Server(_)));
        assert_eq!(served(&mut inspector), 3);
    }
}

/// With a call on its way when the server dies, and without one.
#[tokio::test]
async fn a_server_that_comes_back_has_served_each_call_once() {
    for (sort, is_on_its_way) in [(0, false), (1, false), (0, true), (1, true)] {
        let mut server = Server::start();
        let guard = Any::both(&client(server.port()), &WhenUnavailable::FailClosed)[sort].clone();
        assert!(matches!(guard.ask().await, DecidedBy::Server(_)));
        let call = is_on_its_way.then(|| {
            server.signal("STOP");
            let guard = guard.clone();
            tokio::spawn(async move { guard.ask().await })
        });
        tokio::time::sleep(Duration::from_millis(100)).await; // it may also die before the call is sent
        server.kill();
        let decided = match call {
            Some(call) => call.await.unwrap(),
            None => guard.ask().await,
        };
        assert!(matches!(decided, DecidedBy::FailedClosed(_)), "{decided:?}");
        server.restart_here();
        let asked = guard.asked_until_it_answers().await;
        // Of a blocking guard, no connection of before is left.
        assert!(asked == 1 || matches!(guard, Any::Async(_)), "asked {asked} times");
        assert!((1..=asked).contains(&served(&mut server.connect())), "asked {asked} times");
    }
}

#[tokio::test]
async fn a_server_that_becomes_a_replica_keeps_the_connection_of_a_manager() {
    let server = Server::start();
    let guard = patient(server.port(), WhenUnavailable::FailOpen);
    assert!(matches!(ask(&guard).await, DecidedBy::Server(_)));
    let mut inspector = server.connect();
    inspector.call(&format!("REPLICAOF 127.0.0.1 {NOBODY}"));
    let connections = inspector.info("total_connections_received");
    for _ in 0..3 {
        let decided = ask(&guard).await;
        assert!(decided.error().is_some_and(|error| error.code() == Some("READONLY")), "{decided:?}");
    }
    assert_eq!(inspector.info("total_connections_received"), connections);
    // As README.md advises: the manager connects again, through a proxy perhaps to another server.
    inspector.call("CLIENT KILL TYPE normal SKIPME yes");
    until("the connection to be closed", "1".to_owned(), || inspector.info("connected_clients"));
    assert!(matches!(ask(&guard).await, DecidedBy::FailedOpen(_)));
    assert!(matches!(ask(&guard).await, DecidedBy::FailedOpen(_)));
    assert_ne!(inspector.info("total_connections_received"), connections);
}

/// The three choices.
pub fn choices() -> [WhenUnavailable; 3] {
    [WhenUnavailable::FailOpen, WhenUnavailable::FailClosed, WhenUnavailable::Local(two_processes())]
}

#[tokio::test]
async fn errors_of_the_call_and_of_the_set_up_are_errors_in_every_choice() {
    let server = Server::start();
    let without = Options::new().without_module().start();
    let locked = Server::start();
    locked.connect().call("CONFIG SET requirepass secret");
    server.connect().call("LPUSH k x");
    let wrong = redis::Client::open(format!("redis://:wrong@127.0.0.1:{}", locked.port())).unwrap();
    let no_cluster = ClusterClient::new([format!("redis://127.0.0.1:{}", without.port())]).unwrap();
    for choice in choices() {
        for (client, expected) in [
            (client(server.port()), "value: \"k\""),
            (client(without.port()), "has not loaded redis-cell"),
            (client(locked.port()), "NOAUTH"),
            (wrong.clone(), "authentication"),
        ] {
            for guard in Any::both(&client, &choice) {
                // Within the timeout that a guard has by default.
                let guard = if expected == "authentication" { guard.timeout(SOON) } else { guard };
                let error = guard.take(KEY, limit(), Units(1)).await.unwrap_err();
                assert!(
                    error.to_string().to_lowercase().contains(&expected.to_lowercase()),
                    "{expected}: {error}"
                );
                assert!(!is_unavailable(&error), "{error}");
            }
        }
        // A client for clusters, on a server that is not part of one.
        let connect = {
            let client = no_cluster.clone();
            move |_| client.get_connection()
        };
        let guard = BlockingGuard::with_connections(connect, choice.clone()).timeout(PATIENCE);
        let error = guard.take(KEY, limit(), Units(1)).unwrap_err();
        assert!(error.to_string().contains("is it one?"), "{error}");
    }
}

/// An argument that a server rejects is rejected without it too, and before anything is sent.
#[tokio::test]
async fn a_limit_or_a_quantity_out_of_range_is_an_error_whether_the_server_is_available_or_not() {
    let server = Server::start();
    let log = Limit::Log(Rate::per_minute(100));
    let until = |instant| Limit::from(Fixed::new(5, FixedWindow::until(instant)));
    let calls: [(Limit, Quantity, &str); 7] = [
        (Rate::new(1, Duration::from_nanos(1)).into(), Units(1).into(), "whole number of microseconds"),
        (Rate::per_second(0).into(), Units(1).into(), "count must be an integer from 1 to"),
        (Rate::per_second(1).at_once(0).into(), Units(1).into(), "max_burst must be an integer from 0 to"),
        (limit().into(), Units(u64::MAX).into(), "quantity must be an integer from 0 to"),
        (limit().into(), Saturate(u64::MAX).into(), "quantity must be an integer from 0 to"),
        (log, Units(10_001).into(), "quantity must be an integer from 0 to 10000"),
        (until(SystemTime::now()), Units(u64::MAX).into(), "quantity must be an integer from 0 to"),
    ];
    for choice in choices() {
        for port in [server.port(), NOBODY] {
            for guard in Any::both(&client(port), &choice) {
                for (limit, take, expected) in calls {
                    let error = guard.take(KEY, limit, take).await.unwrap_err();
                    assert!(error.to_string().contains(expected), "{expected}: {error}");
                    assert_eq!(error.kind(), ErrorKind::Client);
                }
            }
        }
    }
    let mut inspector = server.connect();
    assert_eq!(served(&mut inspector), 0);
    assert!(!inspector.text("INFO commandstats").contains("cmdstat_cl."));
    // The server decides whether an instant has passed. It rejects the call, and is available.
    let guard = patient(server.port(), WhenUnavailable::FailOpen);
    let passed = SystemTime::now() - Duration::from_secs(3_600);
    let error = guard.take(KEY, until(passed), Units(1)).await.unwrap_err();
    assert!(error.to_string().contains("UNTIL"), "{error}");
}

/// The Python package says the same.
#[tokio::test]
async fn more_than_the_limit_is_refused_permanently_whether_the_server_is_available_or_not() {
    let server = Server::start();
    for choice in choices() {
        for port in [server.port(), NOBODY] {
            for guard in Any::both(&client(port), &choice) {
                for (index, limit) in kinds(8).into_iter().enumerate() {
                    let key = format!("more:{index}");
                    let decided = guard.take(&key, limit, Units(9)).await.unwrap();
                    assert!(decided.refused_forever() && !decided.admitted(), "{limit:?}: {decided:?}");
                    assert_eq!(decided.error().is_none(), port == server.port(), "{decided:?}");
                    // No more than are available.
                    assert!(
                        !guard.take(&key, limit, Saturate(9)).await.unwrap().refused_forever(),
                        "{limit:?}"
                    );
                }
            }
        }
    }
}

/// The number of clients that wait on the nodes.
fn waiting(nodes: &[Server]) -> u64 {
    nodes.iter().map(|node| node.connect().info("blocked_clients").parse::<u64>().unwrap()).sum()
}

/// Breaks the connections of all clients, once a call waits in the server.
fn break_connections(nodes: &[Server]) {
    until("the call to wait", 1, || waiting(nodes));
    for node in nodes {
        node.connect().call("CLIENT KILL TYPE normal SKIPME yes");
    }
}

/// With retries, the connections of these tests would send the call again, and it would wait again.
#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_whose_retries_are_off_sends_a_call_once() {
    let nodes = cluster();
    let mut connection = cluster_client(&nodes).get_async_connection().await.unwrap();
    connection.cl_throttle(KEY, limit(), Units(4)).await.unwrap();
    let call = tokio::spawn(async move { connection.cl_bthrottle(KEY, limit(), Units(1), None).await });
    break_connections(&nodes);
    assert!(ends("a call that is sent again", call).await.unwrap().is_err());
    let mut other = cluster_client(&nodes).get_connection().unwrap();
    other.cl_throttle(KEY, limit(), Units(0)).unwrap();
    let call = tokio::spawn(blocking("a call that is sent again", move || {
        other.cl_bthrottle(KEY, limit(), Units(1), None)
    }));
    break_connections(&nodes);
    assert!(call.await.unwrap().is_err());
    assert_eq!(waiting(&nodes), 0);
}

/// The limits of each kind, of `units` units in a time that does not pass while a test runs.
fn kinds(units: u64) -> [Limit; 7] {
    let daily = Rate::per_day(units);
    [
        daily.burst(units - 1).into(),
        Limit::Funnel(daily.capacity(units)),
        Limit::Bucket(daily.capacity(units)),
        Fixed::new(units, FixedWindow::period(Duration::from_secs(86_400))).into(),
        Fixed::new(units, FixedWindow::year().utc_offset_minutes(90)).into(),
        Limit::Window(daily),
        Limit::Log(daily),
    ]
}

#[test]
fn a_local_limiter_of_each_kind_gives_the_servers_answers() {
    let server = Server::start();
    let client = client(server.port());
    let mut connection = client.get_connection().unwrap();
    let takes: [Quantity; 7] = [
        Units(3).into(),
        Units(0).into(),
        Units(5).into(),
        Saturate(4).into(),
        Units(1).into(),
        Saturate(2).into(),
        Units(11).into(),
    ];
    for (index, limit) in kinds(10).into_iter().enumerate() {
        let local = LocalLimiter::new(NonZeroU32::MIN);
        let key = format!("kind:{index}");
        for take in takes {
            let there: Answer = call::take(&key, limit, take).unwrap().query(&mut connection).unwrap();
            let here = local.take(&key, limit, take).unwrap();
            let numbers = |answer: Answer| (answer.limit, answer.remaining, answer.taken, answer.admitted());
            assert_eq!(numbers(here), numbers(there), "{limit:?}, {take:?}");
            let forever = |answer: Answer| answer.decision == Decision::RefusedForever;
            assert_eq!(forever(here), forever(there), "{limit:?}, {take:?}");
            // The two decided at different instants, and only here a log is estimated.
            if !matches!(limit, Limit::Log(_)) {
                let apart = here.reset_after.abs_diff(there.reset_after);
                assert!(apart < Duration::from_secs(60), "{limit:?}, {take:?}: {here:?}, {there:?}");
            }
        }
    }
}

#[test]
fn a_local_limiter_takes_from_several_limits_as_the_server_does() {
    let server = Server::start();
    let client = client(server.port());
    let mut connection = client.get_connection().unwrap();
    let local = LocalLimiter::new(NonZeroU32::MIN);
    let limits: Vec<(String, Limit)> =
        kinds(10).into_iter().enumerate().map(|(index, limit)| (format!("{{k}}:{index}"), limit)).collect();
    // One limit after the other refuses, and units are taken only if all admit them.
    for units in [[2; 7], [8, 9, 8, 8, 8, 8, 8], [3, 3, 3, 3, 3, 3, 9], [0; 7], [8; 7], [1, 0, 0, 0, 0, 0, 0]]
    {
        let takes: Vec<(&str, Limit, Units)> = limits
            .iter()
            .zip(units)
            .map(|((key, limit), units)| (key.as_str(), *limit, Units(units)))
            .collect();
        let call =
            takes.iter().fold(MTake::new(), |call, (key, limit, units)| call.limit(key, *limit, *units));
        let there: Together<Answer> = call::mtake(call).unwrap().query(&mut connection).unwrap();
        let here = local.take_together(&takes, |answers| answers.iter().all(Answer::admitted)).unwrap();
        let rows = |answers: &[Answer]| -> Vec<(bool, u64)> {
            answers.iter().map(|answer| (answer.admitted(), answer.remaining)).collect()
        };
        assert_eq!(rows(&here), rows(&there.each), "{units:?}");
    }
    // The function that decides is given the answers of a call that takes.
    let both = [("a", limit().into(), Units(1)), ("b", limit().into(), Units(4))];
    let answers = local.take_together(&both, |answers| answers[1].remaining > 0).unwrap();
    assert_eq!(answers.iter().map(|answer| answer.remaining).collect::<Vec<_>>(), [4, 4]);
    let twice = [("a", limit().into(), Units(1)), ("a", limit().into(), Units(1))];
    assert!(local.take_together(&twice, |_| true).unwrap_err().to_string().contains("named twice"));
    let wrong = [("a", limit().into(), Units(1)), ("c", Rate::per_second(0).into(), Units(1))];
    assert!(local.take_together(&wrong, |_| true).is_err());
    assert_eq!(local.take("a", limit(), Units(0)).unwrap().remaining, 4);
}

#[test]
fn the_shares_of_all_processes_are_the_limit_together() {
    let four = LocalLimiter::new(NonZeroU32::new(4).unwrap());
    for limit in kinds(20) {
        assert_eq!(four.take(KEY, limit, Units(5)).unwrap().limit, 5, "{limit:?}");
        // A key has a state of one kind, and none for another kind.
        assert!(!four.take(KEY, limit, Units(5)).unwrap().admitted(), "{limit:?}");
    }
    // Never nothing.
    for limit in kinds(1) {
        assert_eq!(four.take("one", limit, Units(1)).unwrap().limit, 1, "{limit:?}");
    }
    let local = two_processes();
    assert_eq!(local.share(limit()), Rate::new(4, Duration::from_secs(2 * 86_400)).burst(1).into());
    assert_eq!(local.take(KEY, limit(), Saturate(9)).unwrap().taken, Some(2));
    // Clones share their memory. A unit of this process takes twelve hours.
    let refused = local.clone().take(KEY, limit(), Units(1)).unwrap();
    let hours = |hours: u64| Duration::from_secs(hours * 3_600);
    assert!(matches!(refused.decision, Decision::RefusedFor(wait) if wait > hours(11) && wait <= hours(12)));
}

#[test]
fn a_local_limiter_and_a_policy_reject_the_limits_that_the_server_rejects() {
    let server = Server::start();
    let mut connection = client(server.port()).get_connection().unwrap();
    let local = two_processes();
    let nothing = Rate::per_second(0);
    let huge = Rate::per_second(u64::MAX);
    for limit in [
        nothing.burst(0).into(),
        Rate::new(5, Duration::ZERO).into(),
        Rate::new(1, Duration::from_secs(9_000_000_000)).into(), // a unit until after 2262
        Limit::Funnel(nothing.capacity(1)),
        Limit::Bucket(Rate::per_second(1).capacity(0)),
        Fixed::new(0, FixedWindow::month()).into(),
        Fixed::new(1, FixedWindow::period(Duration::ZERO)).into(),
        Fixed::new(1, FixedWindow::month_from(32)).into(),
        Fixed::new(1, FixedWindow::day().utc_offset_minutes(i16::MAX)).into(),
        Fixed::new(1, FixedWindow::period(Duration::from_secs(1)).utc_offset_minutes(1)).into(),
        Fixed::new(1, FixedWindow::until(SystemTime::UNIX_EPOCH)).into(),
        Limit::Window(nothing),
        Limit::Log(nothing),
        Limit::Log(Rate::new(1, Duration::from_nanos(1))),
        Limit::Log(Rate::per_day(2_000_002)), // its half has a unit more than a log
        huge.into(),
        Limit::Funnel(huge.capacity(u64::MAX)),
        Rate::new(1, Duration::MAX).burst(u64::MAX).into(),
    ] {
        let reply = call::take(KEY, limit, Units(1)).and_then(|call| call.query::<Answer>(&mut connection));
        assert!(reply.is_err(), "{limit:?}");
        assert!(Policy::new("p", limit).is_err(), "{limit:?}");
        assert!(local.take(KEY, limit, Units(1)).is_err(), "{limit:?}");
        assert!(local.take(KEY, limit, Saturate(u64::MAX)).is_err(), "{limit:?}");
    }
    assert!(local.take(KEY, Rate::per_second(1), Units(u64::MAX)).is_err());
    assert!(Policy::new("p", Limit::Log(Rate::per_minute(1_000_000))).is_ok());
}

#[test]
fn a_local_limiter_forgets_the_keys_that_were_not_used_for_longest() {
    let local = LocalLimiter::with_keys(NonZeroU32::MIN, 100);
    let limit = Rate::per_day(1000).burst(999);
    let spent = |key: &str| 999 - local.take(key, limit, Units(1)).unwrap().remaining;
    for other in 0..1_000 {
        assert_eq!(spent("busy"), other);
        assert_eq!(spent(&format!("once:{other}")), 0);
    }
    assert_eq!(spent("once:999"), 1); // among the last hundred
    assert_eq!(spent("once:0"), 0); // forgotten
}
