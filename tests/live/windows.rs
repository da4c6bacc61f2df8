//! CL.FUNNEL, CL.BUCKET, CL.FIXED and CL.WINDOW: their states.

use crate::common::{BINARY, Effect, ReplicaStream, Server, wait_until, wall_ns};

const S: i64 = 1_000_000_000;
const MS: i64 = 1_000_000;

/// Runs `work` and returns the instants between which it ran, by the clock that the module reads too.
fn timed<T>(work: impl FnOnce() -> T) -> (i64, T, i64) {
    let earliest = wall_ns();
    let done = work();
    // The module's clock may run a little ahead of a wall clock that is being slewed.
    (earliest, done, wall_ns() + 5 * MS)
}

const MAX: i64 = i64::MAX;

#[test]
fn a_state_without_expiry_is_honoured_and_gets_one() {
    let (_server, mut client) = Server::with_client();
    for limiter in ["FUNNEL k 10 1 36000", "BUCKET k 10 1 36000", "WINDOW k 10 700000000"] {
        let call = |quantity: i64| format!("CL.{limiter} {quantity}");
        client.call("DEL k");
        client.ints(&call(4));
        let expiry = client.expiry_ms("k");
        client.call("PERSIST k");
        assert_eq!(client.ints(&call(7))[..3], [1, 10, 6], "{limiter}");
        assert_eq!(client.expiry_ms("k"), -1, "a refusal writes nothing");
        assert_eq!(client.ints(&call(6))[..3], [0, 10, 0], "{limiter}");
        assert!(client.expiry_ms("k") >= expiry, "{limiter}");
    }
}

#[test]
fn an_open_window_ends_when_its_key_expires_whatever_later_calls_say() {
    let server = Server::start();
    let mut stream = ReplicaStream::attach(&server);
    let mut client = server.connect();
    let until = wall_ns() / S + 3_600;
    assert_eq!(client.ints(&format!("CL.FIXED k 10 UNTIL {until} 2"))[..4], [0, 10, 8, -1]);
    assert_eq!(client.expiry_ms("k"), until * 1_000);
    assert_eq!((client.text("TYPE k"), client.text("GET k")), ("string".to_owned(), "2".to_owned()));
    let windows = ["MONTH", "60", "year", "UNTIL 1", "UNTIL 9000000000", "WEEK", "1"];
    for (window, count) in windows.iter().zip(3..) {
        let reply = client.ints(&format!("CL.FIXED k 10 {window} 1"));
        assert_eq!(reply[..4], [0, 10, 10 - count, -1], "{window}");
        assert_eq!(client.expiry_ms("k"), until * 1_000, "{window}");
        assert_eq!(client.text("GET k"), count.to_string());
        let refused = client.ints(&format!("CL.FIXED k 10 {window} 9"));
        assert!(refused[0] == 1 && refused[3] == refused[4], "{window}: {refused:?}");
        assert!((3_000..=3_600).contains(&refused[3]), "{window}: {refused:?}");
    }
    if BINARY.at_least(6, 2, 8) {
        let effects = (2..=9).flat_map(|count| {
            Effect::alone(0, vec![Effect { db: 0, command: format!("SET k {count} PXAT {}", until * 1_000) }])
        });
        assert_eq!(stream.effects(&server), effects.collect::<Vec<_>>());
    }
    // DEL is the reset, and the next call opens the next window.
    client.call("DEL k");
    client.ints("CL.FIXED k 10 60 1");
    assert!(client.expiry_ms("k") < until * 1_000);
}

#[test]
fn an_instant_that_has_passed_opens_no_window() {
    let (_server, mut client) = Server::with_client();
    for (unit, factor) in [("S", 1), ("MS", 1_000), ("US", 1_000_000)] {
        let (from, error, to) = timed(|| {
            let passed = wall_ns() / (S / factor) - 1;
            client.error(&format!("CL.FIXED k 5 UNTIL {passed} 1 {unit}"))
        });
        let least: i64 = error
            .strip_prefix("ERR UNTIL must be an integer from ")
            .and_then(|rest| rest.split(' ').next())
            .and_then(|least| least.parse().ok())
            .unwrap_or_else(|| panic!("{error}"));
        assert!((from..=to + S / factor).contains(&(least * (S / factor))), "{unit}: {error}");
        // A call that opens no window does not compute its end.
        assert_eq!(client.ints(&format!("CL.FIXED k 5 UNTIL 1 0 {unit}")), [0, 5, 5, -1, 0]);
        assert_eq!(client.ints(&format!("CL.FIXED k 5 UNTIL 1 6 {unit}")), [1, 5, 5, -1, 0]);
        assert_eq!(client.int("EXISTS k"), 0);
    }
    // The window ends at that instant, and the same call is an error then.
    let soon = wall_ns() / MS + 300;
    let call = format!("CL.FIXED k 1 UNTIL {soon} 1 MS");
    assert_eq!(client.ints(&call)[0], 0);
    let refused = client.ints(&call);
    assert!(refused[0] == 1 && (0..=300).contains(&refused[3]), "{refused:?}");
    let after = wait_until("the window to end", || match client.ask(&call) {
        Err(error) => Ok((wall_ns(), error)),
        Ok(reply) => Err(format!("{reply:?}")),
    });
    assert!(after.0 >= soon * MS && after.1.contains("UNTIL must be"), "{after:?}");
}

#[test]
fn a_count_like_a_tat_is_read_again() {
    let (_server, mut client) = Server::with_client();
    // Once an error until the window had ended: a count that is nearly the present instant in nanoseconds.
    let now = wall_ns();
    assert_eq!(client.ints(&format!("CL.FIXED k {MAX} 3600 {now}"))[..2], [0, MAX]);
    let reply = client.ints(&format!("CL.FIXED k {MAX} 3600 5"));
    assert_eq!(reply[..4], [0, MAX, MAX - now - 5, -1]);
    assert_eq!(client.ints("CL.FIXED k 5 3600 1")[..3], [1, 5, 0]);
    assert_eq!(client.text("GET k"), (now + 5).to_string());
    // A count that could not be told from a TAT is not written.
    let before = client.snapshot("k");
    let end = client.expiry_ms("k") * MS;
    let error = client.error(&format!("CL.FIXED k {MAX} 3600 {}", end - now - 5));
    assert!(
        error.starts_with("ERR quantity is out of range: the count would be the end of its window"),
        "{error}"
    );
    assert_eq!(client.snapshot("k"), before);
    assert!(
        client.error(&format!("CL.FIXED fresh {MAX} 3600 {}", wall_ns() + 3_600 * S)).contains("CL.THROTTLE")
    );
    assert_eq!(client.int("EXISTS fresh"), 0);
}

#[test]
fn a_window_that_lies_ahead_is_gone_when_its_key_expires() {
    let (_server, mut client) = Server::with_client();
    let minute = 60 * S;
    let ahead = (wall_ns() / minute + 60) * minute;
    client.call(&format!("HSET k window {ahead} current 5 previous 5"));
    client.call("PEXPIRE k 90000");
    let answer = client.ints("CL.WINDOW k 5 60");
    assert!(answer[3] <= 90, "{answer:?}");
}
