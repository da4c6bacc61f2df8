//! The messages that users see first, as `docs/errors.md` quotes them.

use crate::common::{Options, Server};
use crate::unavailable::NOBODY;
use redis::{Client, RedisResult};
use redis_cell_client::{CellCommands, Rate, Units};

const PAGE: &str = include_str!("../../../../docs/errors.md");

fn message(url: &str, key: &str) -> String {
    let call = || -> RedisResult<()> {
        Client::open(url)?.get_connection()?.cl_throttle(key, Rate::per_minute(30), Units(1)).map(drop)
    };
    call().unwrap_err().to_string()
}

#[test]
fn the_messages_are_those_of_the_page() {
    let without = Options::new().without_module().start();
    let (server, locked) = (Server::start(), Server::start());
    locked.connect().call("CONFIG SET requirepass secret");
    let (port, mut admin) = (server.port(), server.connect());
    admin.call("ACL SETUSER ann on >secret ~user* +@all -cl.throttle");
    admin.call("ACL SETUSER bob on >secret ~other* +@all");
    admin.call("RPUSH user123 x");
    admin.call("SET user124 text");
    let mut missing = Vec::new();
    let state = (format!("redis://127.0.0.1:{port}"), "user124");
    let urls = [
        format!("redis://127.0.0.1:{}", without.port()),
        format!("redis://ann:secret@127.0.0.1:{port}"),
        format!("redis://bob:secret@127.0.0.1:{port}"),
        format!("redis://ann:wrong@127.0.0.1:{port}"),
        format!("redis://127.0.0.1:{port}"),
        format!("redis://127.0.0.1:{}", locked.port()),
        format!("redis://127.0.0.1:{NOBODY}"),
        "http://127.0.0.1".to_owned(),
        "redis://127.0.0.1/abc".to_owned(),
    ];
    for (url, key) in urls.into_iter().map(|url| (url, "user123")).chain([state]) {
        // From 7.2 on, the server names the user.
        let said = message(&url, key).replace("User ann", "this user").replace("User bob", "this user");
        let said = said.replace("user124", "user123");
        let quoted = said.strip_prefix("NoPerm: ").unwrap_or(&said);
        if !PAGE.contains(&format!("`{quoted}`")) {
            missing.push(said);
        }
    }
    assert!(missing.is_empty(), "the page has not: {missing:#?}");
}
