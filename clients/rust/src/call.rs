//! Builds the commands as values, for pipelines, transactions and scripts.
//!
//! [`CellCommands`](crate::CellCommands) and `AsyncCellCommands` send them and read the reply. The first
//! argument of a command is its key, from which a cluster's client finds the node. Times are in microseconds
//! (`US`): see [Durations](crate#durations).
//!
//! # Example
//! ```
//! use redis_cell_client::{Answer, Rate, Units, call};
//! # let url = std::env::var("REDIS_CELL_URL").expect("make test sets it");
//! # let mut connection = redis::Client::open(url)?.get_connection()?;
//! let per_user = call::throttle("call:user", Rate::per_minute(30).burst(15), Units(1))?;
//! let per_site = call::throttle("call:site", Rate::per_second(100).burst(99), Units(1))?;
//! let (user, site): (Answer, Answer) =
//!     redis::pipe().add_command(per_user).add_command(per_site).query(&mut connection)?;
//! assert!(user.admitted() && site.admitted());
//! # redis::RedisResult::Ok(())
//! ```

#[cfg(feature = "aio")]
use crate::Answer;
use crate::limit::{invalid, rounded_up};
use crate::several::{Peek, Settle, Several, Take};
use crate::{Bucket, Fixed, Gcra, Limit, Places, Quantity, Rate, Units, Wait};
use redis::{Arg, Cmd, ErrorKind, RedisError, RedisResult, ToSingleRedisArg};
use redis_cell_core::several::{GRAMMARS, Keyword, Options, Parts};
use std::time::Duration;

const UNIT: &str = "US";

fn of(name: &str, key: impl ToSingleRedisArg) -> Cmd {
    let mut cmd = redis::cmd(name);
    cmd.arg(key);
    cmd
}

fn gcra(name: &str, key: impl ToSingleRedisArg, limit: Gcra) -> RedisResult<Cmd> {
    let mut cmd = of(name, key);
    limit.write(&mut cmd)?;
    Ok(cmd)
}

fn with_units(name: &str, key: impl ToSingleRedisArg, limit: Gcra, units: Units) -> RedisResult<Cmd> {
    let mut cmd = gcra(name, key, limit)?;
    cmd.arg(units.0).arg(UNIT);
    Ok(cmd)
}

/// Builds the command for a limit of any kind. The reply is an [`Answer`].
///
/// # Errors
/// See the function for the kind of the limit, from [`throttle`] to [`log`].
///
/// # Example
/// ```
/// use redis_cell_client::{Fixed, FixedWindow, Rate, Units, call};
/// let month = Fixed::new(10_000, FixedWindow::month());
/// let (any, fixed) = (call::take("k", month, Units(1))?, call::fixed("k", month, Units(1))?);
/// assert_eq!(any.get_packed_command(), fixed.get_packed_command());
/// # redis::RedisResult::Ok(())
/// ```
pub fn take(
    key: impl ToSingleRedisArg,
    limit: impl Into<Limit>,
    quantity: impl Into<Quantity>,
) -> RedisResult<Cmd> {
    let limit = limit.into();
    let mut cmd = of(&format!("CL.{}", limit.word()), key);
    limit.write_with(&mut cmd, Some(quantity.into()))?;
    cmd.arg(UNIT);
    Ok(cmd)
}

/// Builds `CL.THROTTLE`. The reply is an [`Answer`].
///
/// # Errors
/// Returns an error if the rate's period is not a whole number of microseconds.
pub fn throttle(
    key: impl ToSingleRedisArg,
    limit: impl Into<Gcra>,
    quantity: impl Into<Quantity>,
) -> RedisResult<Cmd> {
    take(key, limit.into(), quantity)
}

/// Builds `CL.PEEK`. The reply is an [`Answer`].
///
/// # Errors
/// See [`throttle`].
pub fn peek(key: impl ToSingleRedisArg, limit: impl Into<Gcra>, units: Units) -> RedisResult<Cmd> {
    with_units("CL.PEEK", key, limit.into(), units)
}

/// Builds `CL.REFUND`. The reply is a [`Balance`](crate::Balance).
///
/// # Errors
/// See [`throttle`].
pub fn refund(key: impl ToSingleRedisArg, limit: impl Into<Gcra>, units: Units) -> RedisResult<Cmd> {
    with_units("CL.REFUND", key, limit.into(), units)
}

/// Builds `CL.CHARGE`. The reply is a [`Balance`](crate::Balance).
///
/// # Errors
/// See [`throttle`].
pub fn charge(key: impl ToSingleRedisArg, limit: impl Into<Gcra>, units: Units) -> RedisResult<Cmd> {
    with_units("CL.CHARGE", key, limit.into(), units)
}

/// The options of `CL.RESERVE`.
///
/// # Example
/// ```
/// use redis_cell_client::{Reserve, Units};
/// use std::time::Duration;
/// let soon = Reserve::units(Units(2)).max_wait(Duration::from_millis(500));
/// let large = Reserve::units(Units(500)).prepay();
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Reserve {
    units: Units,
    max_wait: Option<Duration>,
    prepay: bool,
}

impl Reserve {
    /// Books `units`, however long the wait is.
    pub const fn units(units: Units) -> Self {
        Self { units, max_wait: None, prepay: false }
    }

    /// Books nothing if the wait would be longer than `wait`, which is rounded up to a whole microsecond.
    #[must_use]
    pub const fn max_wait(self, wait: Duration) -> Self {
        Self { max_wait: Some(wait), ..self }
    }

    /// Waits only as long as for one unit; the next caller waits for the rest. Any quantity is then accepted.
    #[must_use]
    pub const fn prepay(self) -> Self {
        Self { prepay: true, ..self }
    }
}

/// Builds `CL.RESERVE`. The reply is a [`Booking`](crate::Booking).
///
/// # Errors
/// See [`throttle`].
pub fn reserve(key: impl ToSingleRedisArg, limit: impl Into<Gcra>, options: Reserve) -> RedisResult<Cmd> {
    let mut cmd = gcra("CL.RESERVE", key, limit.into())?;
    cmd.arg(options.units.0);
    if let Some(wait) = options.max_wait {
        cmd.arg("MAXWAIT").arg(rounded_up(wait));
    }
    if options.prepay {
        cmd.arg("PREPAY");
    }
    cmd.arg(UNIT);
    Ok(cmd)
}

/// Builds `CL.BTHROTTLE`. The reply is an `Option<`[`Answer`]`>`. Without a `timeout`, the
/// call waits until it is admitted.
///
/// # Errors
/// See [`throttle`].
pub fn bthrottle(
    key: impl ToSingleRedisArg,
    limit: impl Into<Gcra>,
    units: Units,
    timeout: Option<Duration>,
) -> RedisResult<Cmd> {
    let mut cmd = gcra("CL.BTHROTTLE", key, limit.into())?;
    // To the server, a timeout of 0 means no timeout.
    let seconds = timeout.map_or(Duration::ZERO, |timeout| timeout.max(Duration::from_nanos(1)));
    let seconds = format!("{}.{:09}", seconds.as_secs(), seconds.subsec_nanos());
    cmd.arg(units.0).arg(seconds).arg(UNIT);
    Ok(cmd)
}

/// Builds `CL.PAUSE`. The reply is a [`Balance`](crate::Balance). `wait` is rounded up to a whole
/// microsecond.
///
/// # Errors
/// See [`throttle`].
pub fn pause(key: impl ToSingleRedisArg, limit: impl Into<Gcra>, wait: Duration) -> RedisResult<Cmd> {
    let mut cmd = gcra("CL.PAUSE", key, limit.into())?;
    cmd.arg(rounded_up(wait)).arg(UNIT);
    Ok(cmd)
}

/// Builds `CL.FUNNEL`. The reply is an [`Answer`].
///
/// # Errors
/// See [`throttle`].
pub fn funnel(key: impl ToSingleRedisArg, limit: Bucket, quantity: impl Into<Quantity>) -> RedisResult<Cmd> {
    take(key, Limit::Funnel(limit), quantity)
}

/// Builds `CL.BUCKET`. The reply is an [`Answer`].
///
/// # Errors
/// See [`throttle`].
pub fn bucket(key: impl ToSingleRedisArg, limit: Bucket, quantity: impl Into<Quantity>) -> RedisResult<Cmd> {
    take(key, Limit::Bucket(limit), quantity)
}

/// Builds `CL.FIXED`. The reply is an [`Answer`].
///
/// # Errors
/// Returns an error if the window's period is not a whole number of microseconds, or its end is before 1970.
pub fn fixed(key: impl ToSingleRedisArg, limit: Fixed, quantity: impl Into<Quantity>) -> RedisResult<Cmd> {
    take(key, limit, quantity)
}

/// Builds `CL.WINDOW`. The reply is an [`Answer`].
///
/// # Errors
/// See [`throttle`].
pub fn window(key: impl ToSingleRedisArg, limit: Rate, quantity: impl Into<Quantity>) -> RedisResult<Cmd> {
    take(key, Limit::Window(limit), quantity)
}

/// Builds `CL.LOG`. The reply is an [`Answer`].
///
/// # Errors
/// See [`throttle`].
pub fn log(key: impl ToSingleRedisArg, limit: Rate, quantity: impl Into<Quantity>) -> RedisResult<Cmd> {
    take(key, Limit::Log(limit), quantity)
}

/// Builds `CL.ACQUIRE`. The reply is an [`Answer`]. `lease` is rounded up to a whole
/// microsecond.
///
/// # Errors
/// Never. It returns a `Result` like the other functions of this module.
pub fn acquire(
    key: impl ToSingleRedisArg,
    places: Places,
    lease: Duration,
    holder: impl ToSingleRedisArg,
) -> RedisResult<Cmd> {
    let mut cmd = of("CL.ACQUIRE", key);
    cmd.arg(places.0).arg(rounded_up(lease)).arg(holder).arg(UNIT);
    Ok(cmd)
}

/// Builds `CL.RENEW`. The reply is a `bool`. `lease` is rounded up to a whole microsecond.
///
/// # Errors
/// See [`acquire`].
pub fn renew(key: impl ToSingleRedisArg, lease: Duration, holder: impl ToSingleRedisArg) -> RedisResult<Cmd> {
    let mut cmd = of("CL.RENEW", key);
    cmd.arg(rounded_up(lease)).arg(holder).arg(UNIT);
    Ok(cmd)
}

/// Builds `CL.RELEASE`. The reply is a `bool`.
///
/// # Errors
/// See [`acquire`].
pub fn release(key: impl ToSingleRedisArg, holder: impl ToSingleRedisArg) -> RedisResult<Cmd> {
    let mut cmd = of("CL.RELEASE", key);
    cmd.arg(holder);
    Ok(cmd)
}

/// Builds `CL.MTAKE`. The reply is a [`Together`](crate::Together)`<`[`Answer`]`>`.
///
/// # Errors
/// Returns an error if there is no limiter, or if the arguments of a limiter cannot be sent.
pub fn mtake(limiters: Several<Take>) -> RedisResult<Cmd> {
    limiters.finish()
}

/// Builds `CL.BMTAKE`. The reply is an
/// `Option<`[`Together`](crate::Together)`<`[`Answer`]`>>`.
///
/// # Errors
/// Returns the errors of [`mtake`], and an error if the weight of the flow is out of range.
pub fn bmtake(limiters: Several<Take>, wait: &Wait) -> RedisResult<Cmd> {
    limiters.waiting(wait, Duration::ZERO)
}

/// Builds `CL.MPEEK`. The reply is a [`Together`](crate::Together)`<`[`Answer`]`>`.
///
/// # Errors
/// See [`mtake`].
pub fn mpeek(limiters: Several<Peek>) -> RedisResult<Cmd> {
    limiters.finish()
}

/// Builds `CL.MSETTLE`. The reply is a [`Together`](crate::Together)`<`[`Balance`](crate::Balance)`>`.
///
/// # Errors
/// See [`mtake`].
pub fn msettle(limiters: Several<Settle>) -> RedisResult<Cmd> {
    limiters.finish()
}

/// Builds `CL.TOP`. The reply is a `Vec<`[`TopKey`](crate::TopKey)`>` of at most `rows` rows.
///
/// # Errors
/// See [`acquire`].
pub fn top(rows: u64) -> RedisResult<Cmd> {
    let mut cmd = redis::cmd("CL.TOP");
    cmd.arg(rows);
    Ok(cmd)
}

/// Builds `CL.TOP RESET`. The reply is `()`.
///
/// # Errors
/// See [`acquire`].
pub fn top_reset() -> RedisResult<Cmd> {
    let mut cmd = redis::cmd("CL.TOP");
    cmd.arg("RESET");
    Ok(cmd)
}

/// The commands that the function library does not implement.
const MODULE_ONLY: [&[u8]; 3] = [b"CL.BTHROTTLE", b"CL.BMTAKE", b"CL.TOP"];

/// Translates a command of the module into a call of the function library `redis_cell`.
///
/// # Errors
/// Returns an error if the library does not have the command, or if the command names a flow.
pub fn as_function(cmd: &Cmd) -> RedisResult<Cmd> {
    let all: Vec<&[u8]> = arguments(cmd).collect();
    let has = |name: &[u8]| name.starts_with(b"CL.") && !MODULE_ONLY.contains(&name);
    let Some((name, arguments)) = all.split_first().filter(|(name, _)| has(name)) else {
        let name = all.first().copied().unwrap_or_default();
        let detail = format!("{} needs the module", String::from_utf8_lossy(name));
        return Err((ErrorKind::Client, "not in the function library", detail).into());
    };
    let call = if matches!(*name, b"CL.PEEK" | b"CL.MPEEK") { "FCALL_RO" } else { "FCALL" };
    let mut translated = redis::cmd(call);
    translated.arg(String::from_utf8_lossy(name).to_lowercase().replace('.', "_"));
    let (keys, others) = keys_first(name, arguments)?;
    translated.arg(keys.len());
    for argument in keys.iter().chain(&others) {
        translated.arg(*argument);
    }
    Ok(translated)
}

/// Builds the call of the library function that returns the version. A cluster's client routes it by its key.
pub(crate) fn version(cmd: &Cmd) -> Cmd {
    let mut version = redis::cmd("FCALL_RO");
    version.arg("cl_version").arg(1).arg(arguments(cmd).nth(1).unwrap_or_default());
    version
}

/// Returns the name and the arguments of a command.
fn arguments(cmd: &Cmd) -> impl Iterator<Item = &[u8]> {
    cmd.args_iter().filter_map(|argument| match argument {
        Arg::Simple(bytes) => Some(bytes),
        _ => None,
    })
}

type Arguments<'a> = Vec<&'a [u8]>;

/// Returns the keys among a command's arguments, and the other arguments. In a call for several limiters,
/// each limiter follows its key, and options may name keys.
fn keys_first<'a>(name: &[u8], arguments: &[&'a [u8]]) -> RedisResult<(Arguments<'a>, Arguments<'a>)> {
    let mut keys = vec![0];
    if name.starts_with(b"CL.M") {
        let settles = name == b"CL.MSETTLE";
        let known: &[Keyword] = if settles { &Keyword::OF_SETTLEMENTS } else { &Keyword::ALL };
        let mut parts = Parts::of(arguments, GRAMMARS);
        let of_options = parts.option_keys(known);
        let limiters: Vec<usize> = parts.by_ref().map(|part| part.key).collect();
        if Options::parse(parts.rest(), known).is_ok_and(|options| options.flow.is_some()) {
            return Err(invalid("a flow needs the module: the function library has no clients that wait"));
        }
        keys.extend(limiters.into_iter().chain(of_options));
    }
    let (keys, others): (Vec<_>, Vec<_>) =
        arguments.iter().enumerate().partition(|(at, _)| keys.contains(at));
    let words = |all: Vec<(usize, &&'a [u8])>| all.into_iter().map(|(_, word)| *word).collect();
    Ok((words(keys), words(others)))
}

/// Builds the settlement that gives back all units of an admitted call of several limiters. Returns `None` if
/// the call has taken nothing, if it holds its units, which come back by themselves, or if it may be repeated
/// and then needs its units.
///
/// `rows` are the answers of the limiters, and `ago` is the age of the units. A log gives back entries that
/// are at least as old, and the other limiters count the units that may have leaked. So a caller with an
/// inexact age sends two settlements: of the `logs` with the shortest possible age, and of the others with
/// the longest.
#[cfg(feature = "aio")]
pub(crate) fn giving_back(cmd: &Cmd, rows: &[Answer], logs: bool, ago: Duration) -> Option<Cmd> {
    let words: Vec<&[u8]> = arguments(cmd).skip(1).collect();
    let (parts, mut rows) = (Parts::of(words.as_slice(), GRAMMARS), rows.iter());
    if parts.option_keys(&Keyword::ALL).next().is_some() {
        return None;
    }
    let (mut back, mut is_needed) = (redis::cmd("CL.MSETTLE"), false);
    for part in parts {
        let (key, kind) = (*words.get(part.key)?, GRAMMARS.get(part.kind)?.word);
        let (row, (last, limit)) = (rows.next()?, words.get(part.arguments)?.split_last()?);
        if (kind == b"LOG") != logs || !row.admitted() && row.taken.is_none() {
            continue; // a limiter in shadow that would have refused the call has taken nothing
        }
        if kind == b"LEASE" {
            back.arg(key).arg(kind).arg(*limit.first()?).arg(0).arg(*last);
            is_needed = true;
            continue;
        }
        let asked = std::str::from_utf8(last).ok().and_then(|units| units.parse().ok());
        let units: u64 = row.taken.or(asked)?;
        if units > 0 {
            back.arg(key);
            if row.reset_after < Duration::MAX {
                back.arg("RESET").arg(rounded_up(row.reset_after));
            }
            back.arg(kind).arg(limit).arg(format!("-{units}"));
            is_needed = true;
        }
    }
    back.arg("AGO").arg(rounded_up(ago)).arg(UNIT);
    is_needed.then_some(back)
}

/// Returns whether this is a command of redis-cell.
pub(crate) fn is_of_redis_cell(cmd: &Cmd) -> bool {
    matches!(cmd.args_iter().next(), Some(Arg::Simple(name)) if name.starts_with(b"CL."))
}

/// Returns the error of a call in words that name its cause: a server without the module, or the key of
/// another type or state.
pub(crate) fn explained(cmd: &Cmd, error: RedisError) -> RedisError {
    let detail = error.detail().unwrap_or_default();
    if !is_of_redis_cell(cmd) {
        return error;
    }
    if detail.starts_with("unknown command") {
        return (error.kind(), "the server has not loaded redis-cell").into();
    }
    let is_type = error.code() == Some("WRONGTYPE");
    match cmd.args_iter().nth(1) {
        Some(Arg::Simple(key)) if is_type || detail.contains("does not hold this limiter's state") => {
            let several = cmd.args_iter().next().is_some_and(
                |name| matches!(name, Arg::Simple(name) if name.starts_with(b"CL.M") || name == b"CL.BMTAKE"),
            );
            let others = if several { " or another key of the call" } else { "" };
            let detail = format!("{detail}: \"{}\"{others}", key.escape_ascii());
            if !is_type {
                return (error.kind(), "An error was signalled by the server", detail).into();
            }
            redis::make_extension_error("WRONGTYPE".to_owned(), Some(detail))
        }
        _ => error,
    }
}
