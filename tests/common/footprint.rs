//! Traces that a call can leave.

use super::{Client, Effect, Server, Snapshot, read_aof};

/// Everything that would show a write.
#[derive(Debug, PartialEq)]
pub struct Footprint {
    pub key: Snapshot,
    pub unsaved_changes: String,
    pub replication_offset: String,
    pub append_only_file: Vec<Effect>,
}

impl Footprint {
    pub fn of(server: &Server, client: &mut Client, key: &str) -> Self {
        Self {
            key: client.snapshot(key),
            unsaved_changes: client.info("rdb_changes_since_last_save"),
            replication_offset: client.info("master_repl_offset"),
            append_only_file: read_aof(server),
        }
    }
}
