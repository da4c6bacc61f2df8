//! Sends the same calls to the module, or to the function library on a server that allows no modules.

use crate::call;
use redis::{Cmd, ErrorKind, RedisResult, Value};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// The part of the server that runs the commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Backend {
    /// The module.
    Module,
    /// The function library `redis_cell`, which has all commands except `CL.BTHROTTLE`, `CL.BMTAKE` and
    /// `CL.TOP`.
    Functions,
    /// The module if the server has it, otherwise the library. The first call determines which.
    Auto,
}

/// A connection that sends its calls to a [`Backend`]. It is blocking or asynchronous like the connection
/// that it wraps, and has the methods of [`CellCommands`](crate::CellCommands) or `AsyncCellCommands`.
///
/// With [`Backend::Auto`], the first call is sent to the module. If the server does not know the command, it
/// has done nothing: the call and all later calls, including calls on clones of the connection, are sent to
/// the library. If the server changes later, make a new `CellConnection`.
///
/// Commands of the server and of other modules pass through unchanged. So do pipelines: translate their
/// commands with [`call::as_function`].
///
/// # Errors
/// With the library, a command that it lacks returns an error, and is not sent. If the server has neither the
/// module nor the library, it returns an error that says so. The version of the library is checked before the
/// first call: a library older than 1.0.0 is an error.
///
/// # Example
/// ```
/// use redis_cell_client::{Backend, CellCommands, CellConnection, Rate, Units};
/// # let url = std::env::var("REDIS_CELL_URL").expect("make test sets it");
/// let connection = redis::Client::open(url)?.get_connection()?;
/// let mut connection = CellConnection::new(connection, Backend::Auto);
/// assert!(connection.cl_throttle("doc:backend", Rate::per_second(1), Units(1))?.admitted());
/// # redis::RedisResult::Ok(())
/// ```
#[derive(Clone, Debug)]
pub struct CellConnection<C> {
    connection: C,
    backend: Backend,
    /// The backend that [`Backend::Auto`] has found.
    found: Arc<AtomicU8>,
}

const UNKNOWN: u8 = 0;
const MODULE: u8 = 1;
/// The library, whose version is not known yet.
const UNCHECKED: u8 = 2;
const FUNCTIONS: u8 = 3;

/// The oldest library that has every function that this crate uses.
const OLDEST: [u64; 3] = [1, 0, 0];

impl<C> CellConnection<C> {
    /// Creates a connection that sends its calls to `backend`.
    pub fn new(connection: C, backend: Backend) -> Self {
        let found = match backend {
            Backend::Module => MODULE,
            Backend::Functions => UNCHECKED,
            Backend::Auto => UNKNOWN,
        };
        Self { connection, backend, found: Arc::new(AtomicU8::new(found)) }
    }

    /// Returns the backend of the calls, which is [`Backend::Auto`] until the first call has determined it.
    pub fn backend(&self) -> Backend {
        match self.found.load(Relaxed) {
            MODULE => Backend::Module,
            UNCHECKED | FUNCTIONS => Backend::Functions,
            _ => self.backend,
        }
    }

    pub(crate) const fn connection_mut(&mut self) -> &mut C {
        &mut self.connection
    }

    /// Returns whether a command must be sent to the library.
    fn is_for_library(&self, cmd: &Cmd) -> bool {
        matches!(self.found.load(Relaxed), UNCHECKED | FUNCTIONS) && call::is_of_redis_cell(cmd)
    }

    /// Returns whether the library's version is still unknown.
    fn is_unchecked(&self) -> bool {
        self.found.load(Relaxed) == UNCHECKED
    }

    /// Checks the version that the library has returned.
    fn check(&self, reply: RedisResult<Value>) -> RedisResult<()> {
        let version: String = match reply.and_then(Value::extract_error) {
            Ok(version) => redis::from_redis_value(version)?,
            Err(error) if error.detail().is_some_and(|text| text.contains("Function not found")) => {
                let detail =
                    "Function not found: the function library redis_cell is not loaded, or older than 1.0.0";
                return Err((ErrorKind::Client, "no function library", detail.to_owned()).into());
            }
            Err(error) => return Err(error),
        };
        let mut numbers = version.split(['.', '-']).map(|number| number.parse().unwrap_or_default());
        let found: [u64; 3] = std::array::from_fn(|_| numbers.next().unwrap_or_default());
        if found < OLDEST {
            let detail = format!("the server has {version}, and this client needs 1.0.0 or newer");
            return Err((ErrorKind::Client, "the function library redis_cell is too old", detail).into());
        }
        self.found.store(FUNCTIONS, Relaxed);
        Ok(())
    }

    /// Learns the backend from the reply to a command that was sent unchanged. Returns whether the call must
    /// be sent to the library: calls that were sent at the same time as the first one must, too.
    fn learn(&self, cmd: &Cmd, reply: &RedisResult<Value>) -> bool {
        if self.backend != Backend::Auto || !call::is_of_redis_cell(cmd) {
            return false;
        }
        let details = match reply {
            Ok(Value::ServerError(error)) => error.details(),
            Ok(_) => {
                _ = self.found.compare_exchange(UNKNOWN, MODULE, Relaxed, Relaxed);
                return false;
            }
            Err(error) => error.detail(),
        };
        let is_unknown = details.is_some_and(|text| text.starts_with("unknown command"));
        is_unknown && self.found.compare_exchange(UNKNOWN, UNCHECKED, Relaxed, Relaxed) != Err(MODULE)
    }
}

impl<C: redis::ConnectionLike> redis::ConnectionLike for CellConnection<C> {
    fn req_packed_command(&mut self, cmd: &[u8]) -> RedisResult<Value> {
        self.connection.req_packed_command(cmd)
    }

    fn req_packed_commands(&mut self, cmd: &[u8], offset: usize, count: usize) -> RedisResult<Vec<Value>> {
        self.connection.req_packed_commands(cmd, offset, count)
    }

    fn req_command(&mut self, cmd: &Cmd) -> RedisResult<Value> {
        if !self.is_for_library(cmd) {
            let reply = self.connection.req_command(cmd);
            if !self.learn(cmd, &reply) {
                return reply;
            }
        }
        let function = call::as_function(cmd)?;
        if self.is_unchecked() {
            let reply = self.connection.req_command(&call::version(cmd));
            self.check(reply)?;
        }
        self.connection.req_command(&function)
    }

    fn get_db(&self) -> i64 {
        self.connection.get_db()
    }

    fn supports_pipelining(&self) -> bool {
        self.connection.supports_pipelining()
    }

    fn check_connection(&mut self) -> bool {
        self.connection.check_connection()
    }

    fn is_open(&self) -> bool {
        self.connection.is_open()
    }
}

#[cfg(feature = "aio")]
impl<C: redis::aio::ConnectionLike + Send + Sync> redis::aio::ConnectionLike for CellConnection<C> {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> redis::RedisFuture<'a, Value> {
        Box::pin(async move {
            if !self.is_for_library(cmd) {
                let reply = self.connection.req_packed_command(cmd).await;
                if !self.learn(cmd, &reply) {
                    return reply;
                }
            }
            let function = call::as_function(cmd)?;
            if self.is_unchecked() {
                let reply = self.connection.req_packed_command(&call::version(cmd)).await;
                self.check(reply)?;
            }
            self.connection.req_packed_command(&function).await
        })
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a redis::Pipeline,
        offset: usize,
        count: usize,
    ) -> redis::RedisFuture<'a, Vec<Value>> {
        self.connection.req_packed_commands(pipeline, offset, count)
    }

    fn get_db(&self) -> i64 {
        self.connection.get_db()
    }
}
