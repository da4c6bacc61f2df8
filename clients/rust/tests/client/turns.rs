//! Calls that wait for several limiters: their turns, and the layer in front of a service of axum.

use crate::cluster::{cluster, errors};
use crate::common::Server;
use crate::http::{Response, listen, try_request};
use crate::settle::words;
use crate::unavailable::{NOBODY, PATIENCE};
use crate::{client, until_waiting};
use axum::{Router, extract::Request, http::request::Builder, routing::get};
use redis::IntoConnectionInfo;
use redis_cell_client::{
    AsyncCellCommands, CellCommands, Difference, Fixed, FixedWindow, Flow, MSettle, MTake, Places, Rate,
    Taken, Units, Wait, WaitLayer, Waiter, call, is_unavailable,
};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::codegen::Service;
use tower_layer::Layer;

fn one() -> Fixed {
    Fixed::new(1, FixedWindow::period(Duration::from_secs(10_000)))
}

#[test]
fn a_call_that_waits_and_its_settlement_name_their_flow() {
    let wait = Wait::at_most(Duration::from_secs(2)).flow(Flow::new("f").weight(3));
    let take = call::bmtake(MTake::new().fixed("k", one(), Units(1)), &wait).unwrap();
    assert!(words(&take).join(" ").contains("FLOW f WEIGHT 3"), "{:?}", words(&take));
    let more = MSettle::new().fixed("k", one(), Difference::Charge(Units(2)));
    let settle = call::msettle(more.flow(Flow::new("f"))).unwrap();
    assert!(words(&settle).join(" ").contains("FLOW f"), "{:?}", words(&settle));
}

#[test]
fn waits_that_end_without_units() {
    let server = Server::start();
    let mut connection = client(server.port()).get_connection().unwrap();
    let soon = Wait::at_most(Duration::from_millis(50));
    let place = |id: &str| MTake::new().lease("busy", Places(1), Duration::from_secs(100), id);
    assert!(connection.cl_bmtake(place("a"), soon.clone()).unwrap().unwrap().combined.admitted());
    assert!(connection.cl_bmtake(place("b"), soon.clone()).unwrap().is_none());
    let refused = connection.cl_bmtake(place("b"), Wait::forever().maxlen(0)).unwrap().unwrap();
    assert!(refused.combined.retry_after().unwrap() > Duration::from_secs(90));
    let much = MTake::new().fixed("k", one(), Units(2));
    let refused = connection.cl_bmtake(much, Wait::forever()).unwrap().unwrap();
    assert_eq!(refused.combined.decision, redis_cell_client::Decision::RefusedForever);
    let heavy = soon.flow(Flow::new("f").weight(0));
    assert!(connection.cl_bmtake(place("b"), heavy).unwrap_err().to_string().contains("weight"));
    let function = call::bmtake(place("b"), &Wait::forever()).and_then(|cmd| call::as_function(&cmd));
    assert!(function.unwrap_err().to_string().contains("needs the module"));
    let flow = MSettle::new().fixed("k", one(), Difference::Charge(Units(1))).flow(Flow::new("f"));
    let function = call::msettle(flow).and_then(|cmd| call::as_function(&cmd));
    assert!(function.unwrap_err().to_string().contains("a flow needs the module"));
}

/// Units that were taken at the end of a long wait are still owed: the wait is not a part of their age.
#[tokio::test(flavor = "multi_thread")]
async fn the_age_of_units_counts_from_their_turn() {
    let server = Server::start();
    let mut connection = client(server.port()).get_multiplexed_async_connection().await.unwrap();
    let rate = Rate::per_second(100);
    connection.cl_throttle("k", rate, Units(100)).await.unwrap();
    let take = MTake::new().throttle("k", rate, Units(70));
    let taken = Waiter::new(client(server.port())).take(take, Wait::forever()).await.unwrap().unwrap();
    let settle = MSettle::of(&taken).throttle("k", rate, Difference::Refund(Units(60)));
    let settled = connection.cl_msettle(settle).await.unwrap();
    assert!(settled.combined.remaining >= 50, "{settled:?}");
}

/// The waiter knows one node, and another one that is down.
#[tokio::test(flavor = "multi_thread")]
async fn calls_wait_in_the_node_that_has_their_keys() {
    let nodes = cluster();
    let mut clients: Vec<_> = nodes.iter().map(Server::connect).collect();
    let down = redis::Client::open(format!("redis://127.0.0.1:{NOBODY}")).unwrap();
    assert!(Waiter::cluster([]).is_err());
    let waiter = Waiter::cluster([down, client(nodes[0].port())]).unwrap();
    let place = Places(1);
    let take = |key: &str, id: &str| MTake::new().lease(key, place, Duration::from_secs(1000), id);
    // The node of a key, and how many calls a node has redirected.
    let mut slot = |key: &str| clients[0].int(&format!("CLUSTER KEYSLOT {key}"));
    let node = |slot: i64| usize::try_from(slot).unwrap() * 3 / 16384;
    let count = |node: usize, code: &str| {
        errors(&nodes[node], code).rsplit_once('=').map_or(0, |(_, count)| count.parse::<u32>().unwrap())
    };
    let names: Vec<_> = (0..100).map(|n| format!("{{{n}}}a")).collect();
    let keys = [0, 1, 2].map(|wanted| names.iter().find(|name| node(slot(name)) == wanted).unwrap().as_str());
    for round in 1..=2 {
        for key in keys {
            let id = format!("r{round}");
            let wait = Wait::at_most(Duration::from_millis(if round == 1 { 20_000 } else { 10 }));
            assert_eq!(waiter.take(take(key, &id), wait).await.unwrap().is_some(), round == 1, "{key}");
        }
        assert_eq!(count(0, "MOVED"), 2, "the waiter remembers where the slots are");
    }
    let wait = |key: &str, id: &str| {
        let (waiter, take) = (waiter.clone(), take(key, id));
        tokio::spawn(async move { waiter.take(take, Wait::forever()).await })
    };

    // Its turn in another node.
    let waits = wait(keys[2], "next");
    until_waiting(&mut clients[2], 1);
    clients[2].call(&format!("CL.RELEASE {} r1", keys[2]));
    assert!(waits.await.unwrap().unwrap().is_some());

    // The slot moves while a call waits: keys that are not there yet are in the other node, and the call
    // continues to wait there.
    let waits = wait(keys[2], "last");
    until_waiting(&mut clients[2], 1);
    let moving = clients[0].int(&format!("CLUSTER KEYSLOT {}", keys[2]));
    let ids = [1, 2].map(|node: usize| nodes[node].connect().text("CLUSTER MYID"));
    clients[1].call(&format!("CLUSTER SETSLOT {moving} IMPORTING {}", ids[1]));
    clients[2].call(&format!("CLUSTER SETSLOT {moving} MIGRATING {}", ids[0]));
    let new = keys[2].replace('a', "b");
    assert!(waiter.take(take(&new, "asks"), Wait::forever()).await.unwrap().is_some());
    clients[1].call("ASKING");
    assert_eq!((count(2, "ASK"), clients[1].int(&format!("EXISTS {new}"))), (1, 1));
    clients[2].call(&format!("MIGRATE 127.0.0.1 {} {} 0 5000", nodes[1].port(), keys[2]));
    for node in [1, 2, 0] {
        clients[node].call(&format!("CLUSTER SETSLOT {moving} NODE {}", ids[0]));
    }
    until_waiting(&mut clients[1], 1);
    clients[1].call(&format!("CL.RELEASE {} next", keys[2]));
    assert!(waits.await.unwrap().unwrap().is_some());
}

/// Whether it has served the waiter before or not, and however long a connection may take to make.
#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_server_ends_no_wait_later_than_the_margin() {
    let server = Server::start();
    let waiters: [fn(redis::Client) -> Waiter; 2] =
        [Waiter::new, |client| Waiter::cluster([client]).unwrap()];
    let rows =
        waiters.iter().flat_map(|waiter| [(waiter, true), (waiter, false)]).flat_map(|(waiter, used)| {
            let waits = [Wait::at_most(Duration::from_millis(20)), Wait::forever().maxlen(0)];
            waits.map(|wait| (waiter(client(server.port())).connect_timeout(PATIENCE), used, wait))
        });
    let rows: Vec<_> = rows.collect();
    let take = || MTake::new().throttle("k", Rate::per_second(1_000).burst(999), Units(1));
    for (waiter, used, wait) in &rows {
        if *used {
            waiter.clone().margin(PATIENCE).take(take(), wait.clone()).await.unwrap().unwrap();
        }
    }
    let services = [service(client(server.port()), true).await, service(client(server.port()), false).await];
    for to in services {
        assert!(request(to, "soon").await.body().ends_with("a turn"));
    }
    server.signal("STOP");
    for (waiter, used, wait) in rows {
        let hasty = waiter.clone().margin(Duration::from_millis(50));
        let answer = tokio::time::timeout(PATIENCE.div_f32(2.0), hasty.take(take(), wait.clone())).await;
        let error = answer.unwrap_or_else(|_| panic!("{wait:?} hangs, used: {used}")).unwrap_err();
        assert!(is_unavailable(&error), "{error}");
    }
    let [open, closed] = services.map(|to| tokio::spawn(request(to, "soon")));
    assert!(open.await.unwrap().body().ends_with("no turn"));
    assert_eq!(closed.await.unwrap().status, 503);
}

/// A service with one place, which its handler gives back. The time that the handler takes is in the path.
async fn service(server: redis::Client, open: bool) -> SocketAddr {
    let waiter = Waiter::new(server.clone()).connect_timeout(Duration::from_secs(5));
    let place = Places(1);
    let takes = move |request: &Request| {
        let tenant = request.headers().get("x-api-key")?.to_str().ok().filter(|key| !key.is_empty())?;
        let take = MTake::new().lease("{s}:busy", place, Duration::from_secs(100), tenant);
        let wait = Wait::at_most(Duration::from_millis(if tenant == "soon" { 50 } else { 20_000 }));
        Some((take, wait.flow(Flow::new(tenant)).maxlen(2)))
    };
    let handler = async move |request: Request| {
        let Some(taken) = request.extensions().get::<Taken>() else { return "no turn" };
        let mut connection = server.get_multiplexed_async_connection().await.unwrap();
        let tenant = request.headers()["x-api-key"].to_str().unwrap();
        if tenant != "stays" {
            let done = MSettle::of(taken).release("{s}:busy", place, tenant);
            connection.cl_msettle(done).await.unwrap();
        }
        "a turn"
    };
    let layer =
        if open { WaitLayer::fail_open(waiter, takes) } else { WaitLayer::fail_closed(waiter, takes) };
    listen(Router::new().route("/", get(handler)).layer(layer.on_error(|error| eprintln!("{error}")))).await
}

async fn request(to: SocketAddr, key: &'static str) -> Response {
    tokio::task::spawn_blocking(move || try_request(to, key).unwrap()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_wait_for_their_turn() {
    let (server, mut inspector) = Server::with_client();
    let to = service(client(server.port()), false).await;
    assert!(request(to, "a").await.body().ends_with("a turn"));
    assert!(request(to, "").await.body().ends_with("no turn"));
    assert_eq!(request(to, "stays").await.status, 200);
    let in_vain = request(to, "soon").await;
    assert_eq!((in_vain.status, in_vain.field("retry-after")), (429, None));
    let waiters: Vec<_> = (0..2).map(|_| tokio::spawn(request(to, "b"))).collect();
    until_waiting(&mut inspector, 2);
    let refused = request(to, "b").await;
    assert_eq!(refused.status, 429);
    assert!((1..=100).contains(&refused.field("retry-after").unwrap().parse().unwrap()));
    // A client that disconnects leaves the queue.
    let gone = std::net::TcpStream::connect(to).unwrap();
    std::io::Write::write_all(&mut &gone, b"GET / HTTP/1.1\r\nHost: a\r\nX-Api-Key: c\r\n\r\n").unwrap();
    until_waiting(&mut inspector, 3);
    drop(gone);
    until_waiting(&mut inspector, 2);
    inspector.call("CL.RELEASE {s}:busy stays");
    for waiter in waiters {
        assert_eq!(waiter.await.unwrap().status, 200);
    }
}

/// A service for one request at a time: it is ready if it has the permit, and `call` uses that up.
struct Narrow(Arc<Semaphore>, Option<OwnedSemaphorePermit>);

impl Clone for Narrow {
    fn clone(&self) -> Self {
        Self(self.0.clone(), None)
    }
}

impl Service<Request> for Narrow {
    type Response = axum::response::Response;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        if self.1.is_none() {
            self.1 = self.0.clone().try_acquire_owned().ok();
            context.waker().wake_by_ref(); // asked again at once while another request has the permit
        }
        if self.1.is_some() { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    fn call(&mut self, _: Request) -> Self::Future {
        drop(self.1.take().expect("readiness was asked for"));
        std::future::ready(Ok(axum::response::Response::default()))
    }
}

/// A request that waits for its turn does not keep others from the service.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_waits_holds_nothing_of_the_service() {
    let (server, mut inspector) = Server::with_client();
    inspector.call("CL.ACQUIRE busy 1 1000 stays");
    let layer = WaitLayer::fail_closed(Waiter::new(client(server.port())), |request: &Request| {
        request.headers().get("x-api-key")?;
        Some((MTake::new().lease("busy", Places(1), Duration::from_secs(1000), "a"), Wait::forever()))
    });
    let narrow = Narrow(Arc::new(Semaphore::new(1)), None);
    let service = layer.layer(narrow.clone());
    let send = |request: Builder| {
        let (mut service, request) = (service.clone(), request.body(axum::body::Body::empty()).unwrap());
        tokio::spawn(async move {
            std::future::poll_fn(|context| service.poll_ready(context)).await.unwrap();
            service.call(request).await.unwrap().status()
        })
    };
    let waits = send(Request::builder().header("x-api-key", "a"));
    until_waiting(&mut inspector, 1);
    let other = tokio::time::timeout(PATIENCE, send(Request::builder())).await;
    assert_eq!(other.expect("the other request waits too").unwrap(), 200);
    // When the turn comes, the service is not ready yet.
    let permit = narrow.0.clone().try_acquire_owned().unwrap();
    inspector.call("CL.RELEASE busy stays");
    until_waiting(&mut inspector, 0);
    drop(permit);
    assert_eq!(waits.await.unwrap(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_server_the_choice_decides_and_an_error_of_the_call_is_one() {
    let nobody = "redis://127.0.0.1:1".into_connection_info().unwrap();
    let nobody = redis::Client::open(nobody).unwrap();
    assert_eq!(request(service(nobody.clone(), false).await, "a").await.status, 503);
    assert!(request(service(nobody, true).await, "a").await.body().ends_with("no turn"));
    let server = Server::start();
    server.connect().call("RPUSH {s}:busy x");
    assert_eq!(request(service(client(server.port()), true).await, "a").await.status, 500);
}
