//! The nodes of a cluster that serve its slots.
//!
//! A server redirects its own blocked clients when another node serves their slot. It does not know the keys
//! of a module's blocked clients, so the module has to look up the nodes of these keys.

use core::ops::RangeInclusive;

use redis_module::raw;

use super::call::Call;
use crate::error::Error;

/// The slots of a cluster.
const SLOTS: u16 = 16_384;

/// Which node serves which slots, as this node knows it.
pub struct Slots {
    /// The address of the node for each range, in order; `None` for this node.
    ranges: Vec<(RangeInclusive<u16>, Option<String>)>,
    /// The slots that this node imports.
    importing: Vec<u16>,
    /// Whether the cluster is down, as it is when a slot has no node, unless the configuration allows that.
    is_down: bool,
    /// The configuration epoch of this node, which rises whenever a slot comes to it.
    pub epoch: u64,
}

impl Call<'_> {
    /// The slots of the cluster that this server belongs to. `None` for a server without a cluster, and where
    /// the configuration has renamed `CLUSTER`.
    ///
    /// Cost: O(16384 + nodes).
    pub fn slots(&self) -> Option<Slots> {
        if self.flags() & raw::REDISMODULE_CTX_FLAGS_CLUSTER == 0 {
            return None;
        }
        let report = |what| self.report(c"CLUSTER", what);
        let (own, table, nodes) = (report(c"MYID")?, report(c"SLOTS")?, report(c"NODES")?);
        let is_down = report(c"INFO")?.text(&[])?.contains("cluster_state:fail");
        let own = own.text(&[])?;
        let range = |index: usize| {
            let edge = |edge: usize| table.integer(&[index, edge]).and_then(|slot| u16::try_from(slot).ok());
            let is_own = table.text(&[index, 2, 2]) == Some(own);
            // A cluster may be configured to name no host, so that clients keep the host that they use.
            let host = table.text(&[index, 2, 0]).unwrap_or_default();
            let port = table.integer(&[index, 2, 1])?;
            Some((edge(0)?..=edge(1)?, (!is_own).then(|| format!("{host}:{port}"))))
        };
        let mut ranges: Vec<_> = (0..table.len(&[])).filter_map(range).collect();
        ranges.sort_unstable_by_key(|(range, _)| *range.start());
        let nodes = nodes.text(&[])?;
        // A slot that is being imported appears as `[slot-<-node]`.
        let open = nodes.split('[').skip(1);
        let importing = open.filter_map(|slot| slot.split_once("-<-")?.0.parse().ok()).collect();
        let epoch = nodes.lines().find_map(|line| {
            let mut words = line.split(' ');
            words.nth(2).filter(|flags| flags.contains("myself")).and_then(|_| words.nth(3)?.parse().ok())
        });
        Some(Slots { ranges, importing, is_down, epoch: epoch.unwrap_or_default() })
    }
}

impl Slots {
    /// The server's error for a client that waits for a key that this node does not serve. `None` for a key
    /// that it serves, or is about to serve: clients of a slot that it imports were redirected here.
    ///
    /// While the cluster is down, no key is served, whether or not its slot has a node. Most servers send
    /// that error to clients that wait; Valkey 9.1 does not.
    pub fn redirection(&self, key: &[u8]) -> Option<String> {
        if self.is_down {
            return Some(Error::ClusterDown.to_string());
        }
        let slot = slot_of(key);
        let at = self.ranges.partition_point(|(range, _)| *range.end() < slot);
        match self.ranges.get(at).filter(|(range, _)| range.contains(&slot)) {
            Some((_, None)) => None,
            _ if self.importing.contains(&slot) => None,
            Some((_, Some(address))) => Some(format!("MOVED {slot} {address}")),
            None => Some(String::from("CLUSTERDOWN Hash slot not served")),
        }
    }
}

/// The slot of a key: the CRC-16 of the text in the key's first braces, or of the whole key if there is no
/// such text.
///
/// Source: the Redis Cluster specification, which takes the variant of the CRC that XMODEM uses.
fn slot_of(key: &[u8]) -> u16 {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let rest = key.get(open.saturating_add(1)..)?;
        rest.get(..rest.iter().position(|byte| *byte == b'}')?)
    });
    let hashed = tag.filter(|tag| !tag.is_empty()).unwrap_or(key);
    let crc = hashed.iter().fold(0_u16, |crc, byte| {
        // All eight bits at once: the polynomial is x^16 + x^12 + x^5 + 1.
        let bits = (crc >> 8) ^ u16::from(*byte);
        let bits = bits ^ (bits >> 4);
        (crc << 8) ^ (bits << 12) ^ (bits << 5) ^ bits
    });
    crc % SLOTS
}
