//! Three nodes: every call goes to the node of its key at once.

use crate::commands::each_command;
use crate::common::{self, Options, Server};
use redis::cluster::{ClusterClient, ClusterClientBuilder};
use redis::cluster_routing::{MultipleNodeRoutingInfo, RoutingInfo};
use redis_cell_client::{
    AsyncCellCommands, BookingDecision, CellCommands, Decision, Difference, Fixed, FixedWindow, MPeek,
    MSettle, MTake, Places, Rate, Reserve, Saturate, TopKey, Units, Weekday, call,
};
use std::time::{Duration, SystemTime};

use crate::commands::{HOUR, nearly};

/// Three primaries that share the slots.
pub fn cluster() -> Vec<Server> {
    common::cluster(3, Options::new)
}

pub fn client(nodes: &[Server]) -> ClusterClient {
    let urls = nodes.iter().map(|node| format!("redis://127.0.0.1:{}", node.port()));
    ClusterClientBuilder::new(urls).retries(0).build().unwrap()
}

/// How many errors of this code a node has answered with.
pub fn errors(node: &Server, code: &str) -> String {
    let text = node.connect().text("INFO errorstats");
    text.lines().filter(|line| line.contains(code)).collect()
}

pub fn assert_no_redirections(nodes: &[Server]) {
    for node in nodes {
        assert_eq!(errors(node, "MOVED"), "");
        assert_eq!(errors(node, "CROSSSLOT"), "");
    }
}

/// redis-rs finds the node of a command in the same way for both kinds of connections.
#[tokio::test]
async fn each_command_goes_to_the_node_of_its_key() {
    let nodes = cluster();
    let mut connection = each_command!(client(&nodes).get_connection().unwrap(), has_waits = true,);
    let mut other = client(&nodes).get_async_connection().await.unwrap();
    for key in 0..30 {
        let (key, limit) = (format!("key:{key}"), Rate::per_day(1));
        CellCommands::cl_throttle(&mut connection, &key, limit, Units(2)).unwrap();
        AsyncCellCommands::cl_throttle(&mut other, &key, limit, Units(2)).await.unwrap();
    }
    assert_no_redirections(&nodes);
    // CL.TOP has no key: it is sent to every primary.
    let everywhere = RoutingInfo::MultiNode((MultipleNodeRoutingInfo::AllMasters, None));
    let top = call::top(10).unwrap();
    for rows in
        [connection.route_command(&top, everywhere.clone()), other.route_command(top, everywhere).await]
    {
        let rows: Vec<(String, Vec<TopKey>)> = redis::from_redis_value(rows.unwrap()).unwrap();
        assert_eq!(rows.len(), 3, "{rows:?}");
        assert!(rows.iter().all(|(_, rows)| !rows.is_empty()), "{rows:?}");
    }
}

/// Gives the slot of a key to another node.
pub fn move_slot(nodes: &[Server], key: &str) {
    let slot = nodes[0].connect().int(&format!("CLUSTER KEYSLOT {key}"));
    let owner = usize::try_from(slot).unwrap() * 3 / 16384;
    let to = nodes[(owner + 1) % 3].connect().text("CLUSTER MYID");
    for node in [1, 0, 2].map(|step| &nodes[(owner + step) % 3]) {
        node.connect().call(&format!("CLUSTER SETSLOT {slot} NODE {to}"));
    }
}

#[tokio::test]
async fn without_retries_a_moved_slot_is_an_error_until_the_slots_are_read_again() {
    let nodes = cluster();
    let client = client(&nodes);
    let limit = Rate::per_day(1);
    let is_moved = |error: &redis::RedisError| error.code() == Some("MOVED");

    let mut connection = client.get_async_connection().await.unwrap();
    connection.cl_throttle("k", limit, Units(0)).await.unwrap();
    move_slot(&nodes, "k");
    assert!(connection.cl_throttle("k", limit, Units(1)).await.is_err_and(|error| is_moved(&error)));
    let mut answer = connection.cl_throttle("k", limit, Units(1)).await;
    for _ in 0..1_000 {
        if answer.is_ok() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
        answer = connection.cl_throttle("k", limit, Units(1)).await;
    }
    assert!(answer.unwrap().admitted()); // for the first time: the errors took nothing

    let mut connection = client.get_connection().unwrap();
    connection.cl_throttle("other", limit, Units(0)).unwrap();
    move_slot(&nodes, "other");
    for _ in 0..3 {
        assert!(connection.cl_throttle("other", limit, Units(1)).is_err_and(|error| is_moved(&error)));
    }
    let mut connection = client.get_connection().unwrap();
    assert!(connection.cl_throttle("other", limit, Units(1)).unwrap().admitted());
}
