//! The example `leased`, on a small scale: processes that hammer one key.

use crate::common::Server;
use std::env::current_exe;
use std::process::Command;

/// Its tests are run from here, because an example that is tested is not built.
#[path = "../../examples/leased/stretches.rs"]
#[allow(dead_code)]
mod stretches;

/// The program holds every stretch of time against the bound, and fails if one has more units.
#[test]
fn processes_that_hammer_a_key_stay_within_the_bound_and_rarely_call() {
    let server = Server::start();
    // `cargo test` builds the examples as well, unless it is told to build one test program only.
    let folder = current_exe().unwrap().parent().unwrap().parent().unwrap().join("examples");
    let output = Command::new(folder.join("leased"))
        .args(["processes", "20", "2"])
        .env("REDIS_URL", format!("redis://127.0.0.1:{}", server.port()))
        .output()
        .expect("the example leased, which `cargo test -p redis-cell-client` builds");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let row = text.lines().find(|line| line.starts_with("| leases |")).expect("a row for leases");
    let number =
        |place: usize| row.split('|').nth(place).unwrap().trim().replace(',', "").parse::<u64>().unwrap();
    let (admitted, each_call) = (number(3), number(5));
    assert!(admitted > 0, "{row}");
    assert!(each_call >= 50, "fewer than 50 decisions for each call: {row}");
}
