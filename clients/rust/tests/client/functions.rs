//! The function library in place of the module.

use crate::cluster::{self, assert_no_redirections};
use crate::commands::{HOUR, each_command, nearly};
use crate::common::{self, BINARY, Client, FUNCTIONS, Options, Server, load_functions, requires};
use crate::{calls, client};
use redis_cell_client::{
    AsyncCellCommands, Backend, BookingDecision, CellCommands, CellConnection, DecidedBy, Decision,
    Difference, Fixed, FixedWindow, Guard, MPeek, MSettle, MTake, Places, Rate, Reserve, Saturate, Units,
    Weekday, WhenUnavailable,
};
use std::time::{Duration, SystemTime};

/// A server without the module, with the library.
pub fn library() -> Server {
    let server = Options::new().without_module().start();
    assert_eq!(server.connect().text(&["FUNCTION", "LOAD", &FUNCTIONS]), "redis_cell");
    server
}

fn connect(server: &Server, backend: Backend) -> CellConnection<redis::Connection> {
    CellConnection::new(client(server.port()).get_connection().unwrap(), backend)
}

const LIMIT: Rate = Rate::per_day(4);

#[test]
fn the_library_in_a_cluster() {
    requires!(BINARY.at_least(7, 0, 0), "functions are new in Redis 7.0");
    let nodes = common::cluster(3, || Options::new().without_module());
    for node in &nodes {
        load_functions(&mut node.connect(), &FUNCTIONS);
    }
    let mut connection =
        CellConnection::new(cluster::client(&nodes).get_connection().unwrap(), Backend::Auto);
    for user in 0..30 {
        let (calls, units) = (format!("{{user:{user}}}:calls"), format!("{{user:{user}}}:units"));
        let take = || MTake::new().throttle(&calls, LIMIT, Units(1)).log(&units, LIMIT, Units(2));
        let taken = connection.cl_mtake(take()).unwrap();
        assert_eq!(taken.each.iter().map(|row| row.remaining).collect::<Vec<_>>(), [3, 2]);
        assert_eq!(connection.cl_throttle(&calls, LIMIT, Units(3)).unwrap().remaining, 0);
        assert!(!connection.cl_mtake(take()).unwrap().combined.admitted());
    }
    assert_no_redirections(&nodes);
    for node in &nodes {
        assert!(node.connect().int("DBSIZE") > 0);
    }
    let apart = MTake::new().throttle("a", LIMIT, Units(1)).throttle("b", LIMIT, Units(1));
    let error = connection.cl_mtake(apart).unwrap_err().to_string();
    assert!(error.contains("CROSSSLOT") || error.contains("same slot"), "{error}");
}

#[test]
fn a_server_with_neither_or_with_an_older_library_says_so() {
    requires!(BINARY.at_least(7, 0, 0), "functions are new in Redis 7.0");
    let server = Options::new().without_module().start();
    let mut admin = server.connect();
    for (backend, expected) in
        [(Backend::Auto, "Function not found"), (Backend::Module, "has not loaded redis-cell")]
    {
        let error = connect(&server, backend).cl_throttle("k", LIMIT, Units(1)).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let older = FUNCTIONS.replace("local VERSION = '1.", "local VERSION = '0.");
    admin.call(&["FUNCTION", "LOAD", &older]);
    let mut connection = connect(&server, Backend::Auto);
    let error = connection.cl_throttle("k", LIMIT, Units(1)).unwrap_err().to_string();
    assert!(error.contains("too old") && error.contains("needs 1.0.0 or newer"), "{error}");
    admin.call(&["FUNCTION", "LOAD", "REPLACE", &FUNCTIONS]);
    assert!(connection.cl_throttle("k", LIMIT, Units(1)).unwrap().admitted());
}

#[test]
fn a_user_who_may_run_functions_alone() {
    requires!(BINARY.at_least(7, 0, 0), "functions are new in Redis 7.0");
    let server = library();
    let commands = "+fcall +fcall_ro +time +get +set +del +pexpiretime";
    server.connect().call(&format!("ACL SETUSER app on >secret ~* resetchannels -@all {commands}"));
    let url = format!("redis://app:secret@127.0.0.1:{}", server.port());
    let connection = redis::Client::open(url).unwrap().get_connection().unwrap();
    let mut connection = CellConnection::new(connection, Backend::Auto);
    assert!(connection.cl_throttle("k", LIMIT, Units(1)).unwrap().admitted());
}

#[test]
fn auto_finds_the_backend_with_one_call() {
    requires!(BINARY.at_least(7, 0, 0), "functions are new in Redis 7.0");
    let server = library();
    let mut connection = connect(&server, Backend::Auto);
    let mut inspector = server.connect();
    let errors = |inspector: &mut Client| inspector.info("total_error_replies").parse::<u64>().unwrap();
    let before = errors(&mut inspector);
    assert_eq!(connection.backend(), Backend::Auto);
    assert!(connection.cl_throttle("{t}gcra", LIMIT, Units(0)).unwrap().admitted());
    assert_eq!(connection.backend(), Backend::Functions);
    // With the check of the version, and one error: "unknown command".
    assert_eq!((calls(&mut inspector, "fcall"), calls(&mut inspector, "fcall_ro")), (1, 1));
    assert_eq!(errors(&mut inspector), before + 1);
    each_command!(connection, has_waits = false,);
    let error = connect(&server, Backend::Functions).cl_top(3).unwrap_err();
    assert_eq!(error.to_string(), "not in the function library - Client: CL.TOP needs the module");

    let server = Server::start();
    let mut connection = connect(&server, Backend::Auto);
    assert!(connection.cl_throttle("k", LIMIT, Units(1)).unwrap().admitted());
    assert_eq!(connection.backend(), Backend::Module);
    // An error of the module is no reason to call the library.
    let mut connection = connect(&server, Backend::Auto);
    server.connect().call("LPUSH list x");
    assert!(connection.cl_throttle("list", LIMIT, Units(1)).is_err());
    assert_eq!(calls(&mut server.connect(), "fcall"), 0);
}

#[tokio::test]
async fn asynchronous_connections_and_guards_take_it_too() {
    requires!(BINARY.at_least(7, 0, 0), "functions are new in Redis 7.0");
    let server = library();
    let connection = client(server.port()).get_connection_manager().await.unwrap();
    let mut connection = CellConnection::new(connection, Backend::Auto);
    let guard = Guard::new(connection.clone(), WhenUnavailable::FailClosed).timeout(Duration::from_secs(60));
    let decided = guard.take("k", LIMIT.burst(1), Units(1)).await.unwrap();
    assert!(matches!(decided, DecidedBy::Server(answer) if answer.remaining == 1), "{decided:?}");
    assert_eq!(connection.backend(), Backend::Functions); // a clone has found it
    assert_eq!(connection.cl_throttle("k", LIMIT.burst(1), Units(1)).await.unwrap().remaining, 0);
}

#[tokio::test]
async fn calls_that_are_sent_together_all_find_the_library() {
    requires!(BINARY.at_least(7, 0, 0), "functions are new in Redis 7.0");
    let server = library();
    let connection = client(server.port()).get_multiplexed_async_connection().await.unwrap();
    let connection = CellConnection::new(connection, Backend::Auto);
    let take = async |key: &str| connection.clone().cl_throttle(key, LIMIT, Units(1)).await.unwrap();
    let (first, second, third) = tokio::join!(take("a"), take("b"), take("c"));
    assert!(first.admitted() && second.admitted() && third.admitted());
}
