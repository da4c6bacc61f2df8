//! Calls that wait in a cluster, each in the node that has the slot of its keys.

use super::{Node, Servers, Waiter};
use crate::limit::invalid;
use crate::{Answer, Together, is_unavailable, lock};
use redis::cluster_routing::Slot;
use redis::{AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ErrorKind, RedisResult, ServerErrorKind};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The number of redirections that a call follows before it returns an error, as in other clients.
const MOST_REDIRECTIONS: u32 = 16;

/// The pause before a call is sent again while its keys move to another node.
const PAUSE: Duration = Duration::from_millis(100);

/// The known nodes, and for each slot the node that a redirection has named.
pub(super) struct Nodes {
    known: Vec<Arc<Node>>,
    first: Arc<Node>,
    slots: HashMap<Slot, Arc<Node>>,
}

impl Waiter {
    /// Creates a waiter for a cluster: calls wait in the node that has the slot of their keys. `nodes` are
    /// some of its nodes, as for redis-rs's `ClusterClient`; the waiter learns of the others from their
    /// replies. If a node cannot be reached, the others are tried, one after the other. A call whose slot
    /// moves while it waits goes to the end of the queue in the new node.
    ///
    /// Needs the feature `cluster`.
    ///
    /// # Errors
    /// Returns an error if `nodes` is empty.
    ///
    /// # Example
    /// ```no_run
    /// use redis_cell_client::{MTake, Rate, Units, Wait, Waiter};
    /// use std::time::Duration;
    /// # #[tokio::main] async fn main() -> redis::RedisResult<()> {
    /// let nodes = ["redis://10.0.0.1", "redis://10.0.0.2"].map(redis::Client::open);
    /// let waiter = Waiter::cluster(nodes.into_iter().collect::<Result<Vec<_>, _>>()?)?;
    /// let take = MTake::new().throttle("{user7}:rpm", Rate::per_minute(100), Units(1));
    /// let taken = waiter.take(take, Wait::at_most(Duration::from_secs(5))).await?;
    /// # Ok(()) }
    /// ```
    pub fn cluster(nodes: impl IntoIterator<Item = Client>) -> RedisResult<Self> {
        let known: Vec<_> = nodes.into_iter().map(Node::new).collect();
        let first = known.first().cloned().ok_or_else(|| invalid("a cluster needs a node"))?;
        Ok(Self::with(Servers::Cluster(Arc::new(Mutex::new(Nodes { known, first, slots: HashMap::new() })))))
    }
}

/// Sends a call to the node of its slot, and follows redirections.
pub(super) async fn follow(
    nodes: &Mutex<Nodes>,
    slot: Slot,
    config: &AsyncConnectionConfig,
    cmd: impl Fn() -> RedisResult<Cmd>,
) -> RedisResult<Option<Together<Answer>>> {
    let (mut node, mut others) = {
        let nodes = lock(nodes);
        (nodes.of(slot), nodes.known.clone().into_iter())
    };
    let (mut asking, mut redirections) = (false, 0..MOST_REDIRECTIONS);
    loop {
        let connection = match node.connection(config).await {
            Ok(connection) => connection,
            // Nothing was sent, so another node can redirect the call to the node of its slot.
            Err(error) if is_unavailable(&error) => {
                let other = others.find(|other| !Arc::ptr_eq(other, &node));
                (asking, node) = (false, other.ok_or(error)?);
                continue;
            }
            Err(error) => return Err(error),
        };
        let error = match node.send(connection, asking, cmd()?, config).await {
            Err(error) => error,
            answer => return answer,
        };
        if redirections.next().is_none() {
            return Err(error);
        }
        if error.kind() == ErrorKind::Server(ServerErrorKind::TryAgain) {
            // The slot is moving, and the keys are not all in one node. The call has taken nothing.
            tokio::time::sleep(PAUSE).await;
            continue;
        }
        let target = error.redirect_node();
        let Some(target) = target.and_then(|(address, _)| lock(nodes).at(address, &node)) else {
            return Err(error);
        };
        node = target;
        asking = error.kind() == ErrorKind::Server(ServerErrorKind::Ask);
        if !asking {
            lock(nodes).slots.insert(slot, node.clone());
        }
    }
}

impl Nodes {
    /// Returns the node that has the slot, or the first node if that is not known.
    pub(super) fn of(&self, slot: Slot) -> Arc<Node> {
        self.slots.get(&slot).unwrap_or(&self.first).clone()
    }

    /// Returns the node at an address that `from` has named, or `None` if it is not an address.
    fn at(&mut self, address: &str, from: &Node) -> Option<Arc<Node>> {
        let (host, port) = address.rsplit_once(':')?;
        let port = port.parse().ok()?;
        let near = from.client.get_connection_info();
        // A node that does not know its own address omits the host.
        let named = |default: &str| if host.is_empty() { default.to_owned() } else { host.to_owned() };
        let target = match near.addr().clone() {
            ConnectionAddr::Tcp(default, _) => ConnectionAddr::Tcp(named(&default), port),
            ConnectionAddr::TcpTls { host: default, insecure, tls_params, .. } => {
                ConnectionAddr::TcpTls { host: named(&default), port, insecure, tls_params }
            }
            _ => return None,
        };
        let is_it = |node: &&Arc<Node>| node.client.get_connection_info().addr() == &target;
        if let Some(node) = self.known.iter().find(is_it) {
            return Some(node.clone());
        }
        let node = Node::new(Client::open(near.clone().set_addr(target)).ok()?);
        self.known.push(node.clone());
        Some(node)
    }
}
