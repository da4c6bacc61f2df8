//! `CL.THROTTLE` with redis-rs. Arguments: URL of the server, URL of a server that is down.

use redis::{Client, Connection, ErrorKind, RedisError, RedisResult};
use std::thread::sleep;
use std::time::Duration;

/// Short, because a slow limiter is of no use.
const TIMEOUT: Duration = Duration::from_millis(500);

struct Decision {
    limited: bool,
    limit: u64,
    remaining: u64,
    retry_after: i64,
    reset_after: i64,
}

struct Limiter {
    client: Client,
    connection: Option<Connection>,
    max_burst: u64,
    count: u64,
    period: u64,
}

impl Limiter {
    fn new(url: &str, max_burst: u64, count: u64, period: u64) -> RedisResult<Self> {
        Ok(Self { client: Client::open(url)?, connection: None, max_burst, count, period })
    }

    /// Returns the connection of the last call, or a new one.
    fn connect(&mut self) -> RedisResult<Connection> {
        if let Some(connection) = self.connection.take() {
            return Ok(connection);
        }
        let connection = self.client.get_connection_with_timeout(TIMEOUT)?;
        connection.set_read_timeout(Some(TIMEOUT))?;
        connection.set_write_timeout(Some(TIMEOUT))?;
        Ok(connection)
    }

    fn throttle(&mut self, key: &str, quantity: u64) -> RedisResult<Decision> {
        let mut connection = self.connect()?;
        let (limited, limit, remaining, retry_after, reset_after) = redis::cmd("CL.THROTTLE")
            .arg(key)
            .arg(self.max_burst)
            .arg(self.count)
            .arg(self.period)
            .arg(quantity)
            .query(&mut connection)?;
        // After an error it is dropped, because a late reply would be read as the reply to the next call.
        self.connection = Some(connection);
        Ok(Decision { limited, limit, remaining, retry_after, reset_after })
    }

    fn send(&mut self, command: &str, arguments: &[&str]) -> RedisResult<()> {
        let mut connection = self.connect()?;
        redis::cmd(command).arg(arguments).exec(&mut connection)?;
        self.connection = Some(connection);
        Ok(())
    }
}

/// The response to an HTTP request: its status, and the seconds for `Retry-After`.
struct Response {
    status: u16,
    retry_after: Option<i64>,
}

/// The codes of the error replies of a server that does not decide now.
const CANNOT_DECIDE: [&str; 9] =
    ["BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "MISCONF", "NOREPLICAS", "OOM", "READONLY", "TRYAGAIN"];

/// Whether no server decides now. All other errors are errors of the call or of the setup: they must be seen.
fn is_unavailable(error: &RedisError) -> bool {
    match error.code() {
        Some(code) => CANNOT_DECIDE.contains(&code) || error.to_string().contains("max number of clients"),
        None => error.kind() == ErrorKind::Io,
    }
}

fn handle(limiter: &mut Limiter, key: &str, fail_open: bool) -> Response {
    match limiter.throttle(key, 1) {
        Ok(decision) if decision.limited => Response { status: 429, retry_after: Some(decision.retry_after) },
        Ok(_) => Response { status: 200, retry_after: None },
        Err(error) if !is_unavailable(&error) => {
            eprintln!("{key}: {error}");
            Response { status: 500, retry_after: None }
        }
        Err(error) => {
            eprintln!("no decision on {key}: {error}");
            Response { status: if fail_open { 200 } else { 503 }, retry_after: None }
        }
    }
}

fn main() -> RedisResult<()> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().unwrap_or_else(|| "redis://127.0.0.1:6379".to_owned());
    let url_down = arguments.next().unwrap_or_else(|| "redis://127.0.0.1:1".to_owned()); // nothing listens there
    let key = "example:rust";
    let mut limiter = Limiter::new(&url, 2, 30, 60)?; // 3 at once, then one every 2 seconds
    limiter.send("DEL", &[key])?;
    for _ in 0..4 {
        let Decision { limited, limit, remaining, retry_after, reset_after } = limiter.throttle(key, 1)?;
        println!(
            "{}: limit {limit}, remaining {remaining}, retry after {retry_after}, reset after {reset_after}",
            if limited { "refused" } else { "admitted" }
        );
    }
    let response = handle(&mut limiter, key, false);
    let wait = response.retry_after.unwrap_or_default();
    println!("a request now: {}, Retry-After: {wait}", response.status);
    sleep(Duration::from_secs(wait.try_into().unwrap_or_default()));
    println!("a request after the wait: {}", handle(&mut limiter, key, false).status);

    limiter.send("SET", &[key, "of another type"])?;
    println!("an error of the call, fail open: {}", handle(&mut limiter, key, true).status);
    limiter.send("DEL", &[key])?;

    let mut down = Limiter::new(&url_down, 2, 30, 60)?;
    println!("server down, fail open: {}", handle(&mut down, key, true).status);
    println!("server down, fail closed: {}", handle(&mut down, key, false).status);
    Ok(())
}
