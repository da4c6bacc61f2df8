//! How long a call waits, and in which flow.

use crate::bytes;
use crate::limit::invalid;
use redis::{Cmd, RedisResult, ToSingleRedisArg};
use std::time::Duration;

/// A flow: clients that take turns as one, such as the clients of a tenant. Flows share a limiter in
/// proportion to their weights.
///
/// Do not let clients choose the name freely: each new flow gets a share.
///
/// # Example
/// ```
/// use redis_cell_client::Flow;
/// let acme = Flow::new("tenant:acme").weight(2);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Flow {
    name: Vec<u8>,
    weight: Option<u32>,
}

impl Flow {
    /// Creates a flow with its present weight, which is 1 unless a call has set another one.
    pub fn new(name: impl ToSingleRedisArg) -> Self {
        Self { name: bytes(&name), weight: None }
    }

    /// Sets the weight of the flow relative to the others, from now on. Range: 1 to 1,000,000.
    #[must_use]
    pub fn weight(self, weight: u32) -> Self {
        Self { weight: Some(weight), ..self }
    }

    pub(crate) fn write(&self, cmd: &mut Cmd) -> RedisResult<()> {
        cmd.arg("FLOW").arg(&self.name);
        match self.weight {
            None => {}
            Some(weight @ 1..=1_000_000) => {
                cmd.arg("WEIGHT").arg(weight);
            }
            Some(_) => return Err(invalid("the weight of a flow is from 1 to 1,000,000")),
        }
        Ok(())
    }
}

/// The options of `CL.BMTAKE`.
///
/// # Example
/// ```
/// use redis_cell_client::{Flow, Wait};
/// use std::time::Duration;
/// let wait = Wait::at_most(Duration::from_secs(30)).flow(Flow::new("tenant:acme")).maxlen(100);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Wait {
    timeout: Option<Duration>,
    flow: Option<Flow>,
    maxlen: Option<u64>,
}

impl Wait {
    /// Waits at most for `timeout`.
    pub const fn at_most(timeout: Duration) -> Self {
        Self { timeout: Some(timeout), flow: None, maxlen: None }
    }

    /// Waits until the call is admitted, however long that takes.
    pub const fn forever() -> Self {
        Self { timeout: None, flow: None, maxlen: None }
    }

    /// Waits as a client of `flow`. Clients without a flow share one of weight 1.
    #[must_use]
    pub fn flow(self, flow: Flow) -> Self {
        Self { flow: Some(flow), ..self }
    }

    /// Decides the call immediately if at least this many clients of the same flow already wait. With 0, the
    /// call never waits.
    #[must_use]
    pub fn maxlen(self, clients: u64) -> Self {
        Self { maxlen: Some(clients), ..self }
    }

    /// Returns how long the server makes the call wait at most, or `None` if without limit.
    pub(crate) fn longest(&self) -> Option<Duration> {
        if self.maxlen == Some(0) { Some(Duration::ZERO) } else { self.timeout }
    }

    pub(crate) fn write(&self, cmd: &mut Cmd, passed: Duration) -> RedisResult<()> {
        if let Some(timeout) = self.timeout {
            // To the server, a timeout of 0 means no timeout.
            let left = timeout.saturating_sub(passed).max(Duration::from_nanos(1));
            cmd.arg("TIMEOUT").arg(format!("{}.{:09}", left.as_secs(), left.subsec_nanos()));
        }
        if let Some(flow) = &self.flow {
            flow.write(cmd)?;
        }
        if let Some(maxlen) = self.maxlen {
            cmd.arg("MAXLEN").arg(maxlen);
        }
        Ok(())
    }
}
