//! How a call waits, and for which flow.

use crate::limit::invalid;
use redis::{Cmd, RedisResult, ToSingleRedisArg};
use std::time::Duration;

/// A flow: clients that take turns as one, such as those of a tenant. Flows share what they wait for by their
/// weights.
///
/// The name must not be one that a client can choose freely, because each flow has a share.
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
    /// A flow that keeps the weight it has, which is 1 if no call has said another one.
    pub fn new(name: impl ToSingleRedisArg) -> Self {
        Self { name: name.to_redis_args().into_iter().next().unwrap_or_default(), weight: None }
    }

    /// The share of the flow from now on, relative to the others. Range: 1 to 1,000,000.
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

/// How a call waits: the options of `CL.BMTAKE`.
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
    /// Waits for `timeout` at the longest.
    pub const fn at_most(timeout: Duration) -> Self {
        Self { timeout: Some(timeout), flow: None, maxlen: None }
    }

    /// Waits until the call is admitted, however long that takes.
    pub const fn forever() -> Self {
        Self { timeout: None, flow: None, maxlen: None }
    }

    /// Takes turns as a client of `flow`. Clients without one are a flow of weight 1.
    #[must_use]
    pub fn flow(self, flow: Flow) -> Self {
        Self { flow: Some(flow), ..self }
    }

    /// Does not wait if so many clients of the same flow wait already: the call is decided at once then. With
    /// 0 it never waits.
    #[must_use]
    pub fn maxlen(self, clients: u64) -> Self {
        Self { maxlen: Some(clients), ..self }
    }

    pub(crate) fn write(&self, cmd: &mut Cmd, passed: Duration) -> RedisResult<()> {
        if let Some(timeout) = self.timeout {
            // The server reads a timeout of 0 as none.
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
