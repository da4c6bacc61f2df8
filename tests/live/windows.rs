//! CL.FUNNEL, CL.BUCKET, CL.FIXED and CL.WINDOW: their states and effects.

use crate::common::{BINARY, Client, Effect, ReplicaStream, Server, wait_until, wall_ns};
use std::collections::HashMap;
use std::sync::LazyLock;

const S: i64 = 1_000_000_000;
const MS: i64 = 1_000_000;

/// A limiter, and a limit of ten that lasts longer than any test.
struct Limiter {
    command: &'static str,
    limit: String,
    /// The fields that are state; none for a string.
    fields: &'static [&'static str],
}

static LIMITERS: LazyLock<[Limiter; 4]> = LazyLock::new(|| {
    let limiter = |command, limit: &str, fields| Limiter { command, limit: limit.to_owned(), fields };
    [
        limiter("CL.FUNNEL", "10 1 36000", &["left_quota", "leaking_ts"]),
        limiter("CL.BUCKET", "10 1 36000", &["tokens", "timestamp"]),
        limiter("CL.FIXED", "10 36000", &[]),
        limiter("CL.WINDOW", &format!("10 {}", long_period()), &["window", "current", "previous"]),
    ]
});

/// A period in seconds whose window has hours to go. Windows are aligned to the epoch, so one sometimes ends
/// in the middle of a test.
fn long_period() -> i64 {
    static PERIOD: LazyLock<i64> = LazyLock::new(|| {
        let left = |period: &i64| period - wall_ns() / S % period;
        [86_400, 100_000, 123_456].into_iter().max_by_key(left).unwrap()
    });
    *PERIOD
}

impl Limiter {
    /// The call for `quantity` on `key`.
    fn call(&self, key: &str, tail: &str) -> String {
        format!("{} {key} {} {tail}", self.command, self.limit)
    }

    fn is_hash(&self) -> bool {
        !self.fields.is_empty()
    }

    /// The key before a call.
    fn before(&self, client: &mut Client, key: &str) -> Before {
        let there = client.int(&["EXISTS", key]) == 1;
        let fields = if there && self.is_hash() { hash(client, key) } else { HashMap::new() };
        Before { fields, expires: there.then(|| client.expiry_ms(key)) }
    }

    /// The effects of an admitted call, derived from the key after it: for a hash, the changed fields of the
    /// state, and the fields that it does not read.
    fn effects(&self, client: &mut Client, db: u32, key: &str, before: &Before) -> Vec<Effect> {
        let ms = client.expiry_ms(key);
        let expire = format!("PEXPIREAT {key} {ms}");
        let in_place = BINARY.at_least(6, 2, 8);
        let commands = if self.is_hash() {
            // A small hash keeps its fields in the order in which they were written.
            let words: Vec<(String, String)> = client.get(&["HGETALL", key]);
            let told = words.into_iter().filter(|(field, value)| {
                !self.fields.contains(&field.as_str()) || before.fields.get(field) != Some(value)
            });
            let told: Vec<String> = told.flat_map(|(field, value)| [field, value]).collect();
            let expire = (!in_place || before.expires != Some(ms)).then_some(expire);
            [format!("HSET {key} {}", told.join(" "))].into_iter().chain(expire).collect()
        } else if in_place {
            vec![format!("SET {key} {} PXAT {ms}", client.text(&["GET", key]))]
        } else {
            vec![format!("SET {key} {}", client.text(&["GET", key])), expire]
        };
        commands.into_iter().map(|command| Effect { db, command }).collect()
    }

    /// The same, as it appears when the call stands alone.
    fn propagated(&self, client: &mut Client, db: u32, key: &str, before: &Before) -> Vec<Effect> {
        let effects = self.effects(client, db, key, before);
        if effects.len() > 1 { Effect::transaction(db, effects) } else { Effect::alone(db, effects) }
    }
}

/// A key's fields and expiry.
#[derive(Default)]
struct Before {
    fields: HashMap<String, String>,
    expires: Option<i64>,
}

fn hash(client: &mut Client, key: &str) -> HashMap<String, String> {
    client.get(&["HGETALL", key])
}

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
    let server = Server::start();
    let mut client = server.connect();
    for (n, limiter) in LIMITERS.iter().enumerate().filter(|(_, limiter)| limiter.is_hash()) {
        let key = format!("k{n}");
        client.ints(&limiter.call(&key, "4"));
        let expiry = client.expiry_ms(&key);
        client.call(&["PERSIST", &key]);
        assert_eq!(client.ints(&limiter.call(&key, "7"))[..3], [1, 10, 6], "{}", limiter.command);
        assert_eq!(client.expiry_ms(&key), -1, "a refusal writes nothing");
        assert_eq!(client.ints(&limiter.call(&key, "6"))[..3], [0, 10, 0], "{}", limiter.command);
        assert!(client.expiry_ms(&key) >= expiry, "{}", limiter.command);
    }
}

#[test]
fn an_admitted_call_propagates_its_state_and_nothing_else() {
    let server = Server::start();
    let mut stream = ReplicaStream::attach(&server);
    let mut client = server.connect();
    for (n, limiter) in LIMITERS.iter().enumerate() {
        for (db, quantity, tail) in [(0, 3, "3"), (0, 2, "2 S"), (5, 10, "10")] {
            client.call(&format!("SELECT {db}"));
            let key = format!("k{n}");
            client.call(&limiter.call(&key, "11")); // refused
            client.call(&limiter.call(&key, "0"));
            client.error(&limiter.call(&key, "x"));
            let before = limiter.before(&mut client, &key);
            assert_eq!(client.ints(&limiter.call(&key, tail))[0], 0, "{} {quantity}", limiter.command);
            client.call(&limiter.call(&key, "10")); // refused
            client.call(&limiter.call(&key, "0"));
            let expected = limiter.propagated(&mut client, db, &key, &before);
            assert_eq!(stream.effects(&server), expected, "{} {tail} in database {db}", limiter.command);
        }
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
    let server = Server::start();
    let mut client = server.connect();
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
    let server = Server::start();
    let mut client = server.connect();
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
    let server = Server::start();
    let mut client = server.connect();
    let minute = 60 * S;
    let ahead = (wall_ns() / minute + 60) * minute;
    client.call(&format!("HSET k window {ahead} current 5 previous 5"));
    client.call("PEXPIRE k 90000");
    let answer = client.ints("CL.WINDOW k 5 60");
    assert!(answer[3] <= 90, "{answer:?}");
}
