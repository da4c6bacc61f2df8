//! Calls that may be repeated, on a way to the server that loses replies.

use crate::common::Server;
use crate::functions::library;
use crate::{client, counted, until, until_waiting};
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis_cell_client::{
    AsyncCellCommands, Backend, CellCommands, CellConnection, Difference, Fixed, FixedWindow, Flow, MSettle,
    MTake, Once, Rate, Units, Wait, Waiter, is_unavailable,
};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// A proxy that omits a share of the replies to calls of redis-cell, although the calls arrive: it closes the
/// connection, or if it is silent, sends nothing.
struct Lossy {
    port: u16,
    lost: Arc<AtomicU32>,
    percent: Arc<AtomicU32>,
}

impl Lossy {
    fn before(server: &Server, percent: u32, silent: bool) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let this = Self {
            port: listener.local_addr().unwrap().port(),
            lost: Arc::default(),
            percent: Arc::new(percent.into()),
        };
        let (lost, percent, to) = (Arc::clone(&this.lost), Arc::clone(&this.percent), server.port());
        let random = Arc::new(AtomicU64::new(22));
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (client, server) = (client.unwrap(), TcpStream::connect(("127.0.0.1", to)).unwrap());
                let (lost, percent, random) = (Arc::clone(&lost), Arc::clone(&percent), Arc::clone(&random));
                std::thread::spawn(move || relay(&client, &server, [&lost, &percent], &random, silent));
            }
        });
        this
    }

    fn client(&self) -> redis::Client {
        redis::Client::open(format!("redis://127.0.0.1:{}", self.port)).unwrap()
    }

    fn lost(&self) -> u32 {
        self.lost.load(Relaxed)
    }
}

fn relay(
    client: &TcpStream,
    server: &TcpStream,
    [lost, percent]: [&AtomicU32; 2],
    random: &AtomicU64,
    silent: bool,
) {
    let is_call = AtomicU32::new(0);
    let one_way = |mut from: &TcpStream, mut to: &TcpStream, replies: bool| {
        let mut buffer = vec![0; 1 << 16];
        while let Ok(length @ 1..) = from.read(&mut buffer) {
            let data = &buffer[..length];
            if !replies {
                let call = data.windows(3).any(|part| part == b"CL." || part == b"cl_");
                is_call.store(call.into(), Relaxed);
            } else if is_call.load(Relaxed) == 1 {
                let next = random.load(Relaxed).wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                random.store(next, Relaxed);
                if next >> 33 < u64::from(percent.load(Relaxed)) * (1 << 31) / 100 {
                    lost.fetch_add(1, Relaxed);
                    if silent {
                        continue;
                    }
                    break;
                }
            }
            if to.write_all(data).is_err() {
                break;
            }
        }
        let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
    };
    std::thread::scope(|scope| {
        scope.spawn(|| one_way(client, server, false));
        one_way(server, client, true);
    });
}

fn month() -> Fixed {
    Fixed::new(1_000, FixedWindow::period(Duration::from_secs(10_000)))
}

fn once(name: &str, number: u32) -> Once {
    let key = format!("{{p}}:{name}-{number}");
    Once::new(key, Duration::from_secs(600)).tries(30).pause(Duration::from_millis(1))
}

fn payment(number: u32) -> MTake {
    let slow = Rate::new(1, Duration::from_secs(10_000)).capacity(1_000);
    MTake::new()
        .fixed("{p}:paid", month(), Units(25))
        .bucket("{p}:calls", slow, Units(10))
        .once(once("payment", number))
}

fn settlement(number: u32) -> MSettle {
    MSettle::new()
        .fixed("{p}:paid", month(), Difference::Refund(Units(5)))
        .ago(Duration::ZERO)
        .once(once("settlement", number))
}

#[test]
fn calls_whose_replies_are_lost_count_once() {
    for server in [Server::start(), library()] {
        let way = Lossy::before(&server, 30, false);
        let mut connection = CellConnection::new(way.client(), Backend::Auto);
        for number in 0..30 {
            assert!(connection.cl_mtake(payment(number)).unwrap().combined.admitted());
            let settled = connection.cl_msettle(settlement(number)).unwrap();
            assert_eq!(settled.each[0].remaining, 1_000 - u64::from(number + 1) * 20);
        }
        assert!(way.lost() > 10, "{} replies were lost", way.lost());
        assert_eq!(server.connect().int("GET {p}:paid"), 600);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn asynchronous_and_waiting_calls_whose_replies_are_lost_count_once() {
    let (server, mut inspector) = Server::with_client();
    let way = Lossy::before(&server, 30, false);
    let mut connection =
        ConnectionManager::new_lazy_with_config(way.client(), ConnectionManagerConfig::new()).unwrap();
    let waiter = Waiter::new(way.client());
    let wait = || Wait::at_most(Duration::from_secs(20)).flow(Flow::new("f").weight(2)).maxlen(5);
    for number in 0..15 {
        assert!(connection.cl_mtake(payment(number)).await.unwrap().combined.admitted());
        connection.cl_msettle(settlement(number)).await.unwrap();
        let paced = MTake::new().throttle("{p}:pace", Rate::per_second(100).burst(0), Units(1)).fixed(
            "{p}:waited",
            month(),
            Units(1),
        );
        let taken = waiter.take(paced.once(once("wait", number)), wait()).await.unwrap();
        assert!(taken.unwrap().combined.admitted());
    }
    assert!(way.lost() > 10, "{} replies were lost", way.lost());
    assert_eq!((inspector.int("GET {p}:paid"), inspector.int("GET {p}:waited")), (300, 15));
    let repeated =
        ["mtake", "msettle", "bmtake"].map(|name| counted(&mut inspector, &format!("{name}_repeated")));
    assert_eq!(repeated.iter().sum::<u32>(), way.lost());
}

/// As in the Python client: the time of one attempt is over, and yet there is a second one, but no third.
#[tokio::test(flavor = "multi_thread")]
async fn a_reply_that_is_lost_in_silence_is_asked_for_once_more() {
    let server = Server::start();
    for (margin, replies) in [(2_000, true), (50, false)] {
        let way = Lossy::before(&server, 100, true);
        let waiter = Waiter::new(way.client()).margin(Duration::from_millis(margin));
        let take = MTake::new().fixed("{p}:k", month(), Units(1)).once(once("silence", replies.into()));
        let call =
            tokio::spawn(async move { waiter.take(take, Wait::at_most(Duration::from_millis(20))).await });
        if replies {
            until("a lost reply", true, || way.lost() > 0);
            way.percent.store(0, Relaxed);
            assert!(call.await.unwrap().unwrap().unwrap().combined.admitted());
            assert_eq!(counted(&mut server.connect(), "bmtake_repeated"), 1);
        } else {
            assert!(is_unavailable(&call.await.unwrap().unwrap_err()));
            assert!(way.lost() <= 2, "{}", way.lost());
        }
    }
    assert!(server.connect().int("GET {p}:k") <= 2);
}

#[test]
fn attempts_end_after_their_number_after_their_time_and_after_an_error_of_the_call() {
    let server = Server::start();
    let way = Lossy::before(&server, 100, false);
    let mut client = way.client();
    let take = |once| MTake::new().fixed("{p}:paid", month(), Units(1)).once(once);
    assert!(client.cl_mtake(take(once("a", 1).tries(4))).is_err());
    assert_eq!(way.lost(), 4);
    // Half of the period has passed before the fourth attempt.
    let short = Once::new("{p}:b", Duration::from_secs(1)).tries(99).pause(Duration::from_millis(100));
    assert!(client.cl_mtake(take(short)).is_err());
    assert!(way.lost() <= 7, "{}", way.lost());
    // Without it, a call is sent once.
    let before = way.lost();
    assert!(client.cl_mtake(MTake::new().fixed("{p}:other", month(), Units(1))).is_err());
    assert_eq!(way.lost(), before + 1);
    way.percent.store(0, Relaxed);
    server.connect().call("RPUSH {p}:list x");
    let error = client.cl_mtake(MTake::new().fixed("{p}:list", month(), Units(1)).once(once("c", 1)));
    assert!(error.unwrap_err().to_string().contains("value: \"{p}:list\" or another key of the call"));
    assert_eq!(counted(&mut server.connect(), "mtake_errors"), 1);
    assert_eq!(server.connect().int("GET {p}:paid"), 2);
}

fn waiter(server: &Server) -> Waiter {
    Waiter::new(client(server.port()))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_that_is_repeated_is_for_the_rest_of_its_time() {
    let (server, mut inspector) = Server::with_client();
    inspector.call("CL.FIXED {p}:k 1 10000");
    let monitor = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    (&monitor).write_all(b"MONITOR\r\n").unwrap();
    let mut lines = BufReader::new(monitor).lines().map(Result::unwrap);
    assert_eq!(lines.next().unwrap(), "+OK");
    let mut calls = lines.filter(|line| line.contains("\"CL.BMTAKE\""));
    let (waiter, one) = (waiter(&server), Fixed::new(1, FixedWindow::period(Duration::from_secs(10_000))));
    let take = MTake::new().fixed("{p}:k", one, Units(1)).once(once("f", 1));
    let wait = Wait::at_most(Duration::from_secs(20_000));
    let waited = tokio::spawn(async move { waiter.take(take, wait).await });
    let mut nanos = || -> u64 {
        let call = calls.next().unwrap();
        let (_, timeout) = call.split_once("\"TIMEOUT\" \"").unwrap();
        timeout.split('"').next().unwrap().replace('.', "").parse().unwrap()
    };
    let first = nanos();
    until_waiting(&mut inspector, 1);
    let clients = inspector.text("CLIENT LIST");
    let waiting = clients.lines().find(|line| line.contains("cmd=cl.bmtake")).unwrap();
    let id = waiting.split(' ').next().unwrap().replace("id=", "");
    inspector.call(&format!("CLIENT KILL ID {id}"));
    let second = nanos();
    assert!(second < first && first <= 20_000_000_000_000, "{first} {second}");
    until_waiting(&mut inspector, 1);
    inspector.call("DEL {p}:k");
    assert!(waited.await.unwrap().unwrap().unwrap().combined.admitted());
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_break_together_are_replaced_together() {
    let (server, mut inspector) = Server::with_client();
    inspector.call("CL.FIXED {p}:k 8 10000 8");
    let (waiter, eight) = (waiter(&server), Fixed::new(8, FixedWindow::period(Duration::from_secs(10_000))));
    let take = |key: &str, once: Option<Once>| {
        let (waiter, take) = (waiter.clone(), MTake::new().fixed(key, eight, Units(1)));
        let take = once.into_iter().fold(take, MTake::once);
        tokio::spawn(async move { waiter.take(take, Wait::forever()).await })
    };
    let waiting: Vec<_> = (0..8).map(|_| take("{p}:k", None)).collect();
    until_waiting(&mut inspector, 8);
    inspector.call("DEL {p}:k");
    for waited in waiting {
        assert!(waited.await.unwrap().unwrap().unwrap().combined.admitted());
    }
    inspector.call("CLIENT KILL TYPE normal SKIPME yes");
    // The first attempt finds a broken connection, and the second one makes a new one.
    let again = take("{p}:other", Some(once("g", 1).tries(2)));
    assert!(again.await.unwrap().unwrap().unwrap().combined.admitted());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_waits_waits_again_when_its_connection_breaks() {
    let (server, mut inspector) = Server::with_client();
    let waiter = waiter(&server);
    let one = Fixed::new(1, FixedWindow::period(Duration::from_secs(10_000)));
    inspector.call("CL.FIXED {p}:k 1 10000");
    let take = |take: MTake| {
        let waiter = waiter.clone();
        tokio::spawn(async move { waiter.take(take.fixed("{p}:k", one, Units(1)), Wait::forever()).await })
    };
    let (repeated, single) = (take(MTake::new().once(once("d", 1))), take(MTake::new()));
    until_waiting(&mut inspector, 2);
    inspector.call("CLIENT KILL TYPE normal SKIPME yes");
    assert!(single.await.unwrap().is_err());
    until_waiting(&mut inspector, 1);
    inspector.call("DEL {p}:k");
    assert!(repeated.await.unwrap().unwrap().unwrap().combined.admitted());
    // A task that is dropped leaves the queue.
    let dropped = take(MTake::new());
    until_waiting(&mut inspector, 1);
    dropped.abort();
    until_waiting(&mut inspector, 0);
}
