//! CL.BTHROTTLE on asynchronous connections of redis-rs, which all tasks share: the statements of
//! docs/clients.md about them.

use crate::common::{Client, Server, wait_until};
use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;
use redis_cell_client::{AsyncCellCommands, Rate, Units};
use std::time::Duration;

/// One unit an hour: no call is admitted by the passage of time.
const HOURLY: Rate = Rate::per_hour(1);

/// A server whose key `k` has no units left, and a connection of its own for looking at it.
fn server() -> (Server, Client) {
    let server = Server::start();
    let mut inspector = server.connect();
    inspector.call("CL.THROTTLE k 0 1 3600");
    (server, inspector)
}

async fn connect(server: &Server, config: &AsyncConnectionConfig) -> MultiplexedConnection {
    let client = redis::Client::open(format!("redis://127.0.0.1:{}", server.port())).unwrap();
    client.get_multiplexed_async_connection_with_config(config).await.unwrap()
}

fn patient() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new().set_response_timeout(None)
}

/// Waits until this many clients wait in the server.
fn waiting(inspector: &mut Client, clients: &'static str) {
    wait_until("clients to wait", || match inspector.info("blocked_clients") {
        seen if seen == clients => Ok(()),
        seen => Err(seen),
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn later_calls_of_all_clones_wait_behind_a_waiting_call() {
    let (server, mut inspector) = server();
    let mut connection = connect(&server, &patient()).await;
    let mut clone = connection.clone();
    let call = tokio::spawn(async move { connection.cl_bthrottle("k", HOURLY, Units(1), None).await });
    waiting(&mut inspector, "1");
    let later = tokio::spawn(async move { clone.cl_peek("other", HOURLY, Units(1)).await });
    // Another connection is served meanwhile.
    assert!(connect(&server, &patient()).await.cl_peek("other", HOURLY, Units(1)).await.unwrap().admitted());
    assert!(!later.is_finished());
    inspector.call("CL.REFUND k 0 1 3600");
    assert!(call.await.unwrap().unwrap().unwrap().admitted());
    assert!(later.await.unwrap().unwrap().admitted());
}

#[tokio::test(flavor = "multi_thread")]
async fn after_the_response_timeout_the_call_still_waits_and_its_units_are_lost() {
    let (server, mut inspector) = server();
    let mut connection = connect(&server, &AsyncConnectionConfig::new()).await;
    let error = connection.cl_bthrottle("k", HOURLY, Units(1), None).await.unwrap_err();
    assert!(error.is_timeout(), "{error}");
    waiting(&mut inspector, "1");
    // The connection is open, and every later call on it waits, and times out too.
    assert!(connection.cl_throttle("other", HOURLY.burst(6), Units(1)).await.unwrap_err().is_timeout());
    inspector.call("CL.REFUND k 0 1 3600");
    waiting(&mut inspector, "0");
    assert_eq!(
        inspector.ints("CL.PEEK k 0 1 3600")[0],
        1,
        "the unit is available, so no client was admitted"
    );
    // The replies that came too late are not taken for replies to later calls. The second call was counted
    // too.
    let mut answer = connection.cl_throttle("other", HOURLY.burst(6), Units(1)).await;
    for _ in 0..100 {
        if answer.is_ok() {
            break;
        }
        answer = connection.cl_throttle("other", HOURLY.burst(6), Units(0)).await;
    }
    assert_eq!(answer.unwrap().limit, 7);
    assert_eq!(inspector.ints("CL.PEEK other 6 1 3600")[2], 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_of_its_own_without_a_response_timeout_waits() {
    let (server, mut inspector) = server();
    let mut connection = connect(&server, &patient()).await;
    let short = Duration::from_millis(700); // above the response timeout that connections have otherwise
    assert_eq!(connection.cl_bthrottle("k", HOURLY, Units(1), Some(short)).await.unwrap(), None);
    let call = tokio::spawn(async move { connection.cl_bthrottle("k", HOURLY, Units(1), None).await });
    waiting(&mut inspector, "1");
    inspector.call("CL.REFUND k 0 1 3600");
    assert!(call.await.unwrap().unwrap().unwrap().admitted());
}

/// If a task is cancelled, its call continues to wait, as after a timeout. Dropping all clones ends it.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_task_leaves_its_call_waiting_until_the_connection_is_dropped() {
    let (server, mut inspector) = server();
    let connection = connect(&server, &patient()).await;
    let mut clone = connection.clone();
    let call = tokio::spawn(async move { clone.cl_bthrottle("k", HOURLY, Units(1), None).await });
    waiting(&mut inspector, "1");
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    assert_eq!(inspector.info("blocked_clients"), "1");
    drop(connection);
    waiting(&mut inspector, "0");
    inspector.call("CL.REFUND k 0 1 3600");
    assert_eq!(inspector.ints("CL.PEEK k 0 1 3600")[0], 0, "nobody has taken the unit");
}
