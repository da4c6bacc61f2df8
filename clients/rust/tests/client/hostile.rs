//! Servers that do not reply as the module does.

use crate::unavailable::PATIENCE;
use redis::RedisResult;
use redis_cell_client::{BlockingGuard, DecidedBy, Guard, Leased, Rate, Units, WhenUnavailable};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::Duration;

/// A server that replies with `reply` to each call of a rate limiter, and with `+OK` to anything else. Then
/// it closes the connection.
fn server(reply: &'static [u8]) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                let mut bytes = [0; 4096];
                while let Ok(count @ 1..) = stream.read(&mut bytes) {
                    let text = String::from_utf8_lossy(&bytes[..count]).into_owned();
                    for _ in text.matches("CLIENT") {
                        stream.write_all(b"+OK\r\n").unwrap();
                    }
                    if text.contains("CL.") {
                        let _ = stream.write_all(reply);
                        return;
                    }
                }
            });
        }
    });
    port
}

/// Replies that no module sends. Some are cut off, and then the connection breaks.
const REPLIES: [&[u8]; 16] = [
    b"",
    b"\r\n",
    b"garbage\r\n",
    b"+OK\r\n",
    b":0\r\n",
    b"$-1\r\n",
    b"*-1\r\n",
    b"*0\r\n",
    b"*-7\r\n",
    b"*5\r\n:0\r\n:1\r\n",
    b"*5\r\n:0\r\n:-1\r\n:0\r\n:-1\r\n:0\r\n",
    b"*5\r\n:9223372036854775807\r\n:1\r\n:0\r\n:-1\r\n:0\r\n",
    b"*5\r\n:99999999999999999999\r\n:1\r\n:0\r\n:-1\r\n:0\r\n",
    b"*1000000000\r\n",
    b"$999999999999\r\n",
    b"-\xff\xfe\r\n",
];

/// A reply that is not an answer is an error of the call. After a connection that breaks, the choice decides.
fn assert_refused(reply: &[u8], decided: RedisResult<DecidedBy>) {
    let cut_off =
        [b"", &b"*5\r\n:0\r\n:1\r\n"[..], b"*1000000000\r\n", b"$999999999999\r\n"].contains(&reply);
    let reply = reply.escape_ascii();
    match decided {
        Ok(decided) => {
            assert!(cut_off && matches!(decided, DecidedBy::FailedOpen(_)), "{reply}: {decided:?}");
        }
        Err(error) => assert!(!cut_off, "{reply}: {error}"),
    }
}

#[tokio::test]
async fn are_errors_of_guards_and_of_leased_units() {
    for reply in REPLIES {
        let client = redis::Client::open(format!("redis://127.0.0.1:{}", server(reply))).unwrap();
        let blocking = BlockingGuard::new(client.clone(), WhenUnavailable::FailOpen).timeout(PATIENCE);
        for _ in 0..2 {
            assert_refused(reply, blocking.take("k", Rate::per_second(1), Units(1)));
        }
        let config = redis::AsyncConnectionConfig::new().set_response_timeout(None);
        let connection = client.get_multiplexed_async_connection_with_config(&config).await.unwrap();
        let guard = Guard::new(connection.clone(), WhenUnavailable::FailOpen).timeout(PATIENCE);
        assert_refused(reply, guard.take("k", Rate::per_second(1), Units(1)).await);
        let leased = Leased::new(connection, Rate::per_second(1), 1..=2, Duration::from_secs(1)).unwrap();
        assert!(leased.timeout(PATIENCE).take("k", Units(1)).await.is_err(), "{}", reply.escape_ascii());
    }
}

/// The largest numbers that a reply can hold are durations, and fields of a response.
#[test]
fn the_largest_numbers() {
    const MOST: &[u8] =
        b"*5\r\n:1\r\n:9223372036854775807\r\n:9223372036854775807\r\n:9223372036854775807\r\n\
        :9223372036854775807\r\n";
    let client = redis::Client::open(format!("redis://127.0.0.1:{}", server(MOST))).unwrap();
    let guard = BlockingGuard::new(client, WhenUnavailable::FailClosed).timeout(PATIENCE);
    let decided = guard.take("k", Rate::per_second(1), Units(1)).unwrap();
    let wait = decided.answer().and_then(redis_cell_client::Answer::retry_after);
    assert_eq!(wait, Some(Duration::from_micros(9_223_372_036_854_775_807)), "{decided:?}");
}
