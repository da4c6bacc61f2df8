//! Units that are given back to the limiters that a call took them from.

use crate::client;
use crate::common::Server;
use redis_cell_client::{
    CellCommands, Difference, Fixed, FixedWindow, Gcra, MSettle, MTake, Rate, Taken, Units, call,
};
use std::time::Duration;

/// Ten at once, and one more in each hour: a unit is neither gained nor lost while a test runs.
fn throttle() -> Gcra {
    Rate::new(1, Duration::from_secs(3_600)).burst(9)
}

fn quota() -> Fixed {
    Fixed::new(10, FixedWindow::period(Duration::from_secs(3_600)))
}

fn connect(server: &Server) -> redis::Connection {
    client(server.port()).get_connection().unwrap()
}

/// The words of a call.
pub fn words(cmd: &redis::Cmd) -> Vec<String> {
    let word = |word| match word {
        redis::Arg::Simple(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        _ => None,
    };
    cmd.args_iter().filter_map(word).collect()
}

fn remaining(connection: &mut redis::Connection, settle: MSettle) -> Vec<u64> {
    connection.cl_msettle(settle).unwrap().each.iter().map(|row| row.remaining).collect()
}

/// The call that opened a window is as old as the window, and its age is counted from before it was sent.
#[test]
fn units_go_back_to_the_window_that_the_call_has_opened() {
    let server = Server::start();
    let mut connection = connect(&server);
    let taken = connection.cl_mtake(MTake::new().fixed("q", quota(), Units(8))).unwrap();
    let settle = MSettle::of(&taken).fixed("q", quota(), Difference::Refund(Units(5)));
    assert_eq!(remaining(&mut connection, settle), [7]);
}

/// `RESET` says how much of it is still there. A limiter without it would take all five back.
#[test]
fn a_row_is_sent_with_its_age() {
    let server = Server::start();
    let mut connection = connect(&server);
    let slow = Rate::new(10, Duration::from_secs(86_400)).burst(9);
    let first = connection.cl_mtake(MTake::new().throttle("t", slow, Units(5))).unwrap();
    connection.cl_mtake(MTake::new().throttle("t", slow, Units(5))).unwrap();
    let back = |taken: &Taken| MSettle::of(taken).throttle("t", slow, Difference::Refund(Units(5)));
    let sent = words(&call::msettle(back(&first)).unwrap());
    assert_eq!(sent[..4], ["CL.MSETTLE", "t", "RESET", &first.each[0].reset_after.as_micros().to_string()]);
    assert_eq!((sent[8].as_str(), sent[9].as_str(), sent[11].as_str()), ("-5", "AGO", "US"));
    // An age that the caller states replaces the row's. After half a day no unit of the first call is left.
    let late = back(&first).ago(Duration::from_secs(43_200));
    assert_eq!(remaining(&mut connection, late), [0]);
    let sooner = back(&first).ago(Duration::from_secs(21_600));
    assert_eq!(remaining(&mut connection, sooner), [2]); // and a half
}

#[test]
fn units_that_were_not_taken_are_not_given_back() {
    let server = Server::start();
    let mut connection = connect(&server);
    let one = |units| MTake::new().throttle("t", throttle(), Units(units));
    connection.cl_mtake(one(6)).unwrap();
    let refused = connection.cl_mtake(one(6)).unwrap();
    let back = |taken: &Taken| MSettle::of(taken).throttle("t", throttle(), Difference::Refund(Units(6)));
    assert_eq!(remaining(&mut connection, back(&refused)), [4]);
    let shadow = MTake::new().shadow(|shadow| shadow.throttle("t", throttle(), Units(6))).throttle(
        "other",
        throttle(),
        Units(1),
    );
    let shadow = connection.cl_mtake(shadow).unwrap();
    assert!(shadow.combined.admitted());
    assert_eq!(remaining(&mut connection, back(&shadow)), [4]);
    // A charge needs no row; a refund does.
    let charge = |key: &str, settlement| MSettle::of(&shadow).throttle(key, throttle(), settlement);
    assert_eq!(remaining(&mut connection, charge("new", Difference::Charge(Units(1)))), [9]);
    let error = connection.cl_msettle(charge("new", Difference::Refund(Units(1)))).unwrap_err();
    assert!(error.to_string().contains("no such key"), "{error}");
}
