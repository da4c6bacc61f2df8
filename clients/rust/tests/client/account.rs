//! Accounts: pools in order over the module and the functions, and units that come back whatever happens to
//! their owner.

use crate::common::{BINARY, Client, Server, wait_until};
use crate::functions::library;
use crate::http::listen;
use crate::leased::{SOON, connect};
use crate::unavailable::{NOBODY, two_processes};
use crate::{client, until};
use axum::{Router, body::Body, extract::Request, http::StatusCode, routing::get};
use redis::aio::MultiplexedConnection;
use redis_cell_client::{
    Account, AccountLayer, Backend, BlockingGuard, CellConnection, Fixed, FixedWindow, Guard, Held, Limit,
    Rate, Units, WhenUnavailable,
};
use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

type Blocking = BlockingGuard<CellConnection<redis::Connection>>;
type Async = Guard<CellConnection<MultiplexedConnection>>;

fn total(limit: u64) -> Fixed {
    Fixed::new(limit, FixedWindow::total())
}

/// Ten tokens that are included, ten that were bought, and then money: two cents a token.
fn pools<G>(guard: G) -> Account<G> {
    Account::new(guard, "{a}:holds")
        .pool("{a}:included", Fixed::new(10, FixedWindow::period(Duration::from_secs(10_000))))
        .spill("{a}:bought", total(10))
        .pool("{a}:cents", total(100))
        .price(|tokens| 2 * tokens)
        .also("{a}:rpm", Rate::per_day(9).burst(8))
        .price(|_| 1)
}

fn blocking(port: u16, backend: Backend, choice: WhenUnavailable) -> Blocking {
    let client = client(port);
    let connect =
        move |timeout| Ok(CellConnection::new(client.get_connection_with_timeout(timeout)?, backend));
    BlockingGuard::with_connections(connect, choice).timeout(SOON)
}

async fn guard(server: &Server, backend: Backend, choice: WhenUnavailable) -> Async {
    Guard::new(CellConnection::new(connect(server).await, backend), choice).timeout(SOON)
}

/// What is taken of the pools and of the rate.
fn taken(client: &mut Client) -> [i64; 3] {
    let get = |pool| client.get::<Option<i64>, _>(&format!("GET {{a}}:{pool}")).unwrap_or_default();
    ["included", "bought", "cents"].map(get)
}

fn until_taken(client: &mut Client, wanted: [i64; 3]) {
    until("what is taken", wanted, || taken(client));
}

fn from_each<G: redis_cell_client::Caller>(held: &Held<G>) -> Vec<u64> {
    held.answer().unwrap().each.iter().map(|row| row.taken.unwrap()).collect()
}

/// The servers with the module and with the functions.
fn backends() -> Vec<(Server, Backend)> {
    let mut all = vec![(Server::start(), Backend::Module)];
    if BINARY.at_least(7, 0, 0) {
        all.push((library(), Backend::Functions));
    }
    all
}

#[test]
fn units_are_taken_in_the_order_of_the_pools_and_settled_by_what_was_used() {
    for (server, backend) in backends() {
        let mut client = server.connect();
        let account = pools(blocking(server.port(), backend, WhenUnavailable::FailClosed));
        let first = account.hold("first", Units(12)).unwrap();
        assert_eq!((first.admitted(), from_each(&first)), (true, vec![10, 2, 0, 1]));
        let second = account.hold("second", Units(9)).unwrap();
        assert_eq!((second.admitted(), from_each(&second)), (true, vec![0, 0, 18, 1]));
        let third = account.hold("third", Units(42)).unwrap();
        assert_eq!((third.admitted(), from_each(&third), third.error().is_none()), (false, vec![0; 4], true));
        third.used(Units(5));
        assert!(third.settle().unwrap().is_none(), "it holds nothing");
        first.used(Units(4));
        first.used(Units(7));
        let settled = first.settle().unwrap().unwrap();
        assert_eq!(settled.each.iter().map(|row| row.taken).collect::<Vec<_>>(), [10, 1, 0, 1].map(Some));
        assert_eq!(taken(&mut client), [10, 1, 18]);
        assert!(first.settle().unwrap().is_none(), "it is settled once");
        drop(first);
        // Units that are not reported are charged if the request was sent, and given back if it was not.
        drop(second);
        assert_eq!(taken(&mut client), [10, 1, 0]);
        let all = account.hold("all", Units(9)).unwrap();
        all.settle().unwrap().unwrap();
        drop(all);
        assert_eq!(taken(&mut client), [10, 10, 0]);
        let part = account.hold("part", Units(20)).unwrap();
        part.used(Units(15));
        drop(part);
        assert_eq!(taken(&mut client), [10, 10, 30]);
        assert_eq!(client.int("EXISTS {a}:holds"), 0);
        // What the server would refuse is an error before anything is sent.
        let bad = account.clone().pool("{a}:bad", total(0)).hold("bad", Units(1)).unwrap_err();
        assert!(bad.to_string().contains("limit"), "{bad}");
        client.call("SET {a}:rpm text");
        assert_eq!(account.hold("odd", Units(1)).unwrap_err().code(), Some("ERR"));
    }
}

#[test]
fn usage_beyond_the_largest_quantity_is_charged_as_far_as_possible() {
    let server = Server::start();
    let guard = blocking(server.port(), Backend::Module, WhenUnavailable::FailOpen);
    let account = Account::new(guard, "{a}:holds")
        .pool("{a}:log", Limit::Log(Rate::per_minute(5000)))
        .spill("{a}:bought", total(100))
        .also("{a}:own", Limit::Log(Rate::per_minute(5000)));
    let held = account.hold("x", Units(1)).unwrap();
    held.used(Units(20_000));
    let rows = held.settle().unwrap().unwrap().each;
    assert!(rows.iter().all(|row| row.remaining == 0), "{rows:?}");
    let guard = blocking(server.port(), Backend::Module, WhenUnavailable::FailOpen);
    let slow =
        Account::new(guard, "{a}:holds").pool("{a}:slow", Rate::per_day(1)).also("{a}:all", total(1_000_000));
    let held = slow.hold("slow", Units(1)).unwrap();
    held.used(Units(100_000)); // of 273 years
    let rows = held.settle().unwrap().unwrap().each;
    assert_eq!([rows[0].remaining, rows[1].remaining], [0, 900_000], "{rows:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_is_settled_when_it_is_dropped_and_renewed_until_then() {
    for (server, backend) in backends() {
        let mut client = server.connect();
        let account = pools(guard(&server, backend, WhenUnavailable::FailClosed).await);
        let settled = account.hold("settled", Units(12)).await.unwrap();
        settled.used(Units(3));
        assert!(settled.settle().await.unwrap().is_some());
        assert_eq!(taken(&mut client), [3, 0, 0]);
        let dropped = account.hold("dropped", Units(12)).await.unwrap();
        assert_eq!(from_each(&dropped), [7, 5, 0, 1]);
        dropped.clone().used(Units(1));
        drop(dropped);
        until_taken(&mut client, [4, 0, 0]);

        // Each third of the period, so it may be late for the rest of it.
        let period = Duration::from_secs(6);
        let held = account.clone().period(period).hold("long", Units(2)).await.unwrap();
        let blocking = pools(blocking(server.port(), backend, WhenUnavailable::FailClosed));
        let other = blocking.period(period).hold("other", Units(2)).unwrap();
        // The ends of all parts.
        let ends = |client: &mut Client| {
            let parts: Vec<String> = client.get("ZRANGE {a}:holds 0 -1");
            let owned = parts.iter().filter(|part| part.starts_with("id "));
            owned.map(|part| part.split(' ').nth(5).unwrap().to_owned()).collect::<HashSet<_>>()
        };
        let before = ends(&mut client);
        wait_until("both holds to be renewed", || match ends(&mut client) {
            now if !now.is_empty() && before.is_disjoint(&now) => Ok(()),
            now => Err(format!("{now:?}")),
        });
        drop((held, other));
        until_taken(&mut client, [4, 0, 0]);
        assert_eq!(client.int("EXISTS {a}:holds"), 0);
    }
}

/// The runtime of the owner ends, and with it everything that would settle or renew.
#[test]
fn an_owner_that_dies_needs_nothing() {
    let (server, mut client) = Server::with_client();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let account = runtime.block_on(guard(&server, Backend::Module, WhenUnavailable::FailClosed));
    let account = pools(account).period(Duration::from_millis(50));
    std::mem::forget(runtime.block_on(account.hold("dies", Units(12))).unwrap());
    drop(runtime);
    let mut look =
        || client.call("CL.MTAKE {a}:included FIXED 10 10000 0 {a}:bought FIXED 10 TOTAL 0 HOLD {a}:holds");
    look();
    until("the units to come back", [0, 0, 0], || {
        look();
        taken(&mut server.connect())
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_server_the_choice_decides_and_what_was_used_is_charged_when_it_is_back() {
    let errors = Arc::new(AtomicUsize::new(0));
    let admitted = |choice: WhenUnavailable| {
        let errors = Arc::clone(&errors);
        let account = pools(blocking(NOBODY, Backend::Module, choice))
            .on_error(move |_| _ = errors.fetch_add(1, Relaxed));
        let admitted = |name: &str, units| {
            let held = account.hold(name, Units(units)).unwrap();
            assert!(held.error().is_some() && held.answer().is_none());
            held.used(Units(1));
            held.admitted()
        };
        [admitted("a", 9), admitted("b", 9), admitted("c", 60)]
    };
    assert_eq!(admitted(WhenUnavailable::FailOpen), [true; 3]);
    assert_eq!(errors.load(Relaxed), 3, "the settlements");
    assert_eq!(admitted(WhenUnavailable::FailClosed), [false; 3]);
    // Half of each pool: five included, five bought, 50 cents.
    assert_eq!(admitted(WhenUnavailable::Local(two_processes())), [true, true, false]);

    let (server, mut client) = Server::with_client();
    let soon = guard(&server, Backend::Module, WhenUnavailable::FailOpen).await;
    let account = pools(soon.timeout(Duration::from_millis(100)).ask_again(Duration::ZERO));
    server.signal("STOP");
    let held = account.hold("frozen", Units(12)).await.unwrap();
    assert!(held.admitted() && held.error().is_some());
    server.signal("CONT");
    held.used(Units(4));
    held.settle().await.unwrap().unwrap();
    assert_eq!(taken(&mut client), [4, 0, 0]);
}

/// A handler that uses as many tokens as its path says, at once or in a stream that lasts.
async fn service(server: &Server) -> SocketAddr {
    let guard = guard(server, Backend::Module, WhenUnavailable::FailClosed).await;
    let layer = AccountLayer::new(move |request: &Request| {
        let id = request.uri().path().to_owned();
        if id == "/free" { None } else { Some((pools(guard.clone()), id, Units(8))) }
    });
    let handler = async |request: Request| {
        let held = request.extensions().get::<Held<Async>>().cloned();
        match (request.uri().path(), held) {
            ("/free", None) => (StatusCode::OK, Body::from("free")),
            ("/fails", Some(_)) => (StatusCode::BAD_GATEWAY, Body::from("fails")),
            ("/silent", Some(_)) => (StatusCode::OK, Body::from("silent")),
            ("/empty", Some(held)) => {
                held.used(Units(1));
                (StatusCode::OK, Body::empty())
            }
            ("/stream", Some(held)) => {
                held.used(Units(2));
                (StatusCode::OK, Body::new(Endless(Some(axum::body::Bytes::from("part")))))
            }
            other => panic!("{other:?}"),
        }
    };
    listen(Router::new().fallback(get(handler)).layer(layer)).await
}

/// A body with one part, and no end.
struct Endless(Option<axum::body::Bytes>);

impl http_body::Body for Endless {
    type Data = axum::body::Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Self::Data>, Self::Error>>> {
        match self.0.take() {
            Some(part) => std::task::Poll::Ready(Some(Ok(http_body::Frame::data(part)))),
            None => std::task::Poll::Pending,
        }
    }
}

/// Sends a request, and reads its response up to some text.
fn request(to: SocketAddr, path: &str, until: &str) -> (String, std::net::TcpStream) {
    use std::io::{Read as _, Write as _};
    let mut stream = std::net::TcpStream::connect(to).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
    let (mut text, mut byte) = (String::new(), [0]);
    while !text.ends_with(until) {
        stream.read_exact(&mut byte).unwrap_or_else(|error| panic!("{error}: {text}"));
        text.push(char::from(byte[0]));
    }
    (text, stream)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_holds_units_until_its_response_has_ended() {
    let (server, mut client) = Server::with_client();
    let to = service(&server).await;
    assert!(request(to, "/free", "free").0.starts_with("HTTP/1.1 200"));
    for (path, until, status, used) in [
        ("/fails", "fails", 502, [0, 0, 0]),
        ("/silent", "silent", 200, [8, 0, 0]),
        ("/empty", "\r\n\r\n", 200, [9, 0, 0]),
    ] {
        let (text, _) = request(to, path, until);
        assert!(text.starts_with(&format!("HTTP/1.1 {status}")), "{text}");
        assert!(text.to_lowercase().contains("content-length"), "{text}");
        until_taken(&mut client, used);
    }
    // Held while the stream lasts; what was reported is charged when the client is gone.
    let (_, stream) = request(to, "/stream", "part");
    assert_eq!(taken(&mut client), [10, 7, 0]);
    assert_eq!(client.int("EXISTS {a}:holds"), 1);
    drop(stream);
    until_taken(&mut client, [10, 1, 0]);
    client.call("CL.MSETTLE {a}:cents FIXED 100 TOTAL 100 {a}:bought FIXED 10 TOTAL 9");
    let (text, _) = request(to, "/refused", "}");
    assert!(text.starts_with("HTTP/1.1 429") && text.contains("retry-after"), "{text}");
}
