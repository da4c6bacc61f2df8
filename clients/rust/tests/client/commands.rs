//! Every command, typed, on every kind of connection.

use crate::client;
use crate::common::Server;
use crate::leased::connect;
use redis_cell_client::{
    AsyncCellCommands, BookingDecision, CellCommands, Decision, Difference, Fixed, FixedWindow, MPeek,
    MSettle, MTake, Places, Rate, Reserve, Saturate, Units, Weekday, call,
};
use std::time::{Duration, SystemTime};

pub const HOUR: Duration = Duration::from_secs(3_600);

/// Whether a time is the expected one, less the time that the test has taken.
pub fn nearly(time: Duration, expected: Duration) -> bool {
    time <= expected && time + HOUR / 2 > expected
}

/// Calls each command on a connection, without those that the function library lacks unless it `has_waits`.
/// Awaits the answers if the last argument is `.await`. The rates are so low that nothing leaks meanwhile.
macro_rules! each_command {
    ($connection:expr, has_waits = $has_waits:expr, $($wait:tt)*) => {{
        let mut connection = $connection;
        let per_day = Rate::per_day(4).burst(15); // a unit is 6 hours

        // GCRA
        let answer = connection.cl_throttle("{t}gcra", per_day, Units(4))$($wait)*.unwrap();
        assert_eq!((answer.decision, answer.limit, answer.remaining), (Decision::Admitted, 16, 12));
        assert!(nearly(answer.reset_after, 24 * HOUR), "{answer:?}");
        assert_eq!(answer.taken, None);
        let answer = connection.cl_throttle("{t}gcra", per_day, Saturate(20))$($wait)*.unwrap();
        assert_eq!((answer.decision, answer.remaining, answer.taken), (Decision::Admitted, 0, Some(12)));
        let answer = connection.cl_throttle(b"{t}gcra".as_slice(), per_day, Units(2))$($wait)*.unwrap();
        assert!(matches!(answer.decision, Decision::RefusedFor(wait) if nearly(wait, 12 * HOUR)), "{answer:?}");
        let answer = connection.cl_peek("{t}gcra", per_day, Units(17))$($wait)*.unwrap();
        assert_eq!((answer.decision, answer.remaining), (Decision::RefusedForever, 0));
        let balance = connection.cl_charge("{t}gcra", per_day, Units(3))$($wait)*.unwrap();
        assert!(balance.over_limit && nearly(balance.retry_after.unwrap(), 24 * HOUR), "{balance:?}");
        assert!(nearly(balance.reset_after, 19 * 6 * HOUR), "{balance:?}");
        let balance = connection.cl_refund("{t}gcra", per_day, Units(5))$($wait)*.unwrap();
        assert_eq!((balance.over_limit, balance.retry_after, balance.remaining), (false, None, 2));
        let balance = connection.cl_pause("{t}gcra", per_day, 1_000 * HOUR)$($wait)*.unwrap();
        assert!(balance.over_limit && nearly(balance.retry_after.unwrap(), 1_000 * HOUR), "{balance:?}");

        let book = Reserve::units(Units(2));
        let booking = connection.cl_reserve("{t}book", per_day, book)$($wait)*.unwrap();
        assert_eq!(booking.decision, BookingDecision::Booked(Duration::ZERO));
        assert_eq!((booking.limit, booking.remaining), (16, 14));
        let most = Reserve::units(Units(16));
        let booking = connection.cl_reserve("{t}book", per_day, most.max_wait(HOUR))$($wait)*.unwrap();
        let BookingDecision::TooLate(wait) = booking.decision else { panic!("{booking:?}") };
        assert!(nearly(wait, 12 * HOUR), "{booking:?}");
        let booking = connection.cl_reserve("{t}book", per_day, most)$($wait)*.unwrap();
        let BookingDecision::Booked(wait) = booking.decision else { panic!("{booking:?}") };
        assert!(nearly(wait, 12 * HOUR), "{booking:?}");
        let large = Reserve::units(Units(17));
        let never = connection.cl_reserve("{t}book", per_day, large)$($wait)*.unwrap();
        assert_eq!(never.decision, BookingDecision::Never);
        let booking = connection.cl_reserve("{t}book", per_day, large.prepay())$($wait)*.unwrap();
        let BookingDecision::Booked(wait) = booking.decision else { panic!("{booking:?}") };
        assert!(nearly(wait, 18 * HOUR), "{booking:?}");

        if $has_waits {
            let one = Rate::per_day(4).burst(0); // one at a time
            let at_once = Some(Duration::ZERO);
            let answer = connection.cl_bthrottle("{t}wait", one, Units(1), None)$($wait)*.unwrap();
            assert!(answer.is_some_and(|answer| answer.admitted() && answer.limit == 1));
            assert_eq!(connection.cl_bthrottle("{t}wait", one, Units(1), at_once)$($wait)*.unwrap(), None);
            let answer = connection.cl_bthrottle("{t}wait", one, Units(2), at_once)$($wait)*.unwrap();
            assert!(answer.is_some_and(|answer| answer.decision == Decision::RefusedForever));
        }

        // Funnel and bucket
        let level = Rate::per_day(4).capacity(30);
        let answer = connection.cl_funnel("{t}funnel", level, Units(10))$($wait)*.unwrap();
        assert_eq!((answer.decision, answer.limit, answer.remaining), (Decision::Admitted, 30, 20));
        assert!(nearly(answer.reset_after, 60 * HOUR), "{answer:?}");
        let answer = connection.cl_bucket("{t}bucket", level, Saturate(40))$($wait)*.unwrap();
        assert_eq!((answer.limit, answer.remaining, answer.taken), (30, 0, Some(30)));
        assert!(nearly(answer.reset_after, 180 * HOUR), "{answer:?}");

        // Windows
        let quota = Fixed::new(10, FixedWindow::period(5 * HOUR));
        let answer = connection.cl_fixed("{t}fixed", quota, Units(4))$($wait)*.unwrap();
        assert_eq!((answer.limit, answer.remaining), (10, 6));
        assert!(nearly(answer.reset_after, 5 * HOUR), "{answer:?}");
        let answer = connection.cl_fixed("{t}fixed", quota, Units(7))$($wait)*.unwrap();
        assert!(matches!(answer.decision, Decision::RefusedFor(wait) if nearly(wait, 5 * HOUR)), "{answer:?}");
        assert_eq!(connection.cl_fixed("{t}fixed", quota, Saturate(7))$($wait)*.unwrap().taken, Some(6));
        for (name, window, longest) in [
            ("hour", FixedWindow::hour(), HOUR),
            ("day", FixedWindow::day().utc_offset_minutes(-360), 24 * HOUR),
            ("week", FixedWindow::week(), 7 * 24 * HOUR),
            ("sunday", FixedWindow::week_from(Weekday::Sunday).utc_offset_minutes(840), 7 * 24 * HOUR),
            ("month", FixedWindow::month(), 31 * 24 * HOUR),
            ("billing", FixedWindow::month_from(31).utc_offset_minutes(60), 31 * 24 * HOUR),
            ("year", FixedWindow::year(), 366 * 24 * HOUR),
            ("until", FixedWindow::until(SystemTime::now() + 99 * HOUR), 100 * HOUR),
        ] {
            let answer = connection
                .cl_fixed(format!("{{t}}{name}"), Fixed::new(5, window), Saturate(2))$($wait)*
                .unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!((answer.limit, answer.remaining, answer.taken), (5, 3, Some(2)), "{name}");
            assert!(answer.reset_after <= longest, "{name}: {answer:?}");
        }
        let run = Fixed::new(5, FixedWindow::total().idle(9 * HOUR));
        let answer = connection.cl_fixed("{t}run", run, Units(2))$($wait)*.unwrap();
        assert!(answer.remaining == 3 && nearly(answer.reset_after, 9 * HOUR), "{answer:?}");
        let total = Fixed::new(5, FixedWindow::total());
        let answer = connection.cl_fixed("{t}total", total, Units(2))$($wait)*.unwrap();
        assert_eq!((answer.remaining, answer.reset_after), (3, Duration::MAX));
        let answer = connection.cl_fixed("{t}total", total, Units(4))$($wait)*.unwrap();
        assert_eq!(answer.decision, Decision::RefusedForever);
        let five = Rate::new(5, 10_000 * HOUR);
        let answer = connection.cl_window("{t}window", five, Units(3))$($wait)*.unwrap();
        assert_eq!((answer.limit, answer.remaining), (5, 2));
        let answer = connection.cl_log("{t}log", five, Units(3))$($wait)*.unwrap();
        assert_eq!((answer.limit, answer.remaining), (5, 2));
        assert!(nearly(answer.reset_after, 10_000 * HOUR), "{answer:?}");

        // Leases
        let answer = connection.cl_acquire("{t}jobs", Places(2), 3 * HOUR, "a")$($wait)*.unwrap();
        assert_eq!((answer.decision, answer.limit, answer.remaining), (Decision::Admitted, 2, 1));
        assert!(nearly(answer.reset_after, 3 * HOUR), "{answer:?}");
        assert!(connection.cl_renew("{t}jobs", 9 * HOUR, "a")$($wait)*.unwrap());
        assert!(!connection.cl_renew("{t}jobs", 9 * HOUR, "b")$($wait)*.unwrap());
        let answer = connection.cl_acquire("{t}jobs", Places(1), 3 * HOUR, "b")$($wait)*.unwrap();
        assert!(matches!(answer.decision, Decision::RefusedFor(wait) if nearly(wait, 9 * HOUR)), "{answer:?}");
        assert!(connection.cl_release("{t}jobs", "a")$($wait)*.unwrap());
        assert!(!connection.cl_release("{t}jobs", "a")$($wait)*.unwrap());

        // Several at once
        let all = |take: MTake| {
            take.throttle("{m}gcra", per_day, Units(1))
                .funnel("{m}funnel", level, Units(2))
                .bucket("{m}bucket", level, Units(3))
                .fixed("{m}fixed", Fixed::new(10, FixedWindow::month_from(15).utc_offset_minutes(60)), Units(4))
                .window("{m}window", five, Units(1))
                .log("{m}log", five, Units(2))
                .lease("{m}jobs", Places(4), 3 * HOUR, "a")
                .shadow(|new| new.fixed("{m}new", Fixed::new(1, FixedWindow::period(HOUR)), Units(1)))
        };
        let remaining = |rows: &[redis_cell_client::Answer]| -> Vec<u64> {
            rows.iter().map(|row| row.remaining).collect()
        };
        let took = connection.cl_mtake(all(MTake::new()))$($wait)*.unwrap();
        assert!(took.combined.admitted());
        assert_eq!(remaining(&took.each), [15, 28, 27, 6, 4, 3, 3, 0]);
        assert_eq!(took.combined.remaining, 3); // those in shadow are left out
        let took = connection.cl_mtake(all(MTake::new()))$($wait)*.unwrap();
        assert!(took.combined.admitted() && !took.each[7].admitted(), "{took:?}");
        let took = connection.cl_mtake(all(MTake::new()))$($wait)*.unwrap();
        assert_eq!(took.combined.admitted(), false);
        assert_eq!(remaining(&took.each), [14, 26, 24, 2, 3, 1, 3, 0]);

        let peek = MPeek::new()
            .log("{m}log", five, Units(1))
            .lease("{m}jobs", Places(1), "a")
            .lease("{m}other", Places(1), "a");
        let saw = connection.cl_mpeek(peek)$($wait)*.unwrap();
        assert!(saw.combined.admitted());
        assert_eq!(remaining(&saw.each), [1, 0, 1]);

        let settle = MSettle::new()
            .throttle("{m}gcra", per_day, Difference::Refund(Units(1)))
            .bucket("{m}bucket", level, Difference::Charge(Units(25)))
            .log("{m}log", five, Difference::Refund(Units(0)))
            .renew("{m}jobs", Places(4), HOUR, "a")
            .renew("{m}jobs2", Places(4), HOUR, "a")
            .ago(Duration::from_nanos(1));
        let settled = connection.cl_msettle(settle)$($wait)*.unwrap();
        let rows: Vec<(bool, u64)> = settled.each.iter().map(|row| (row.over_limit, row.remaining)).collect();
        assert_eq!(rows, [(false, 15), (true, 0), (false, 1), (false, 3), (true, 4)]);
        assert!(settled.combined.over_limit);
        // Of the units that were taken 100 hours ago nothing can be left: 16 units leak in 96.
        let ago = |age| {
            MSettle::new().throttle("{m}gcra", per_day, Difference::Refund(Units(1))).ago(age)
        };
        assert_eq!(connection.cl_msettle(ago(100 * HOUR))$($wait)*.unwrap().each[0].remaining, 15);
        assert_eq!(connection.cl_msettle(ago(Duration::ZERO))$($wait)*.unwrap().each[0].remaining, 16);
        let settle = MSettle::new().release("{m}jobs", Places(4), "a");
        assert_eq!(connection.cl_msettle(settle)$($wait)*.unwrap().each[0].remaining, 4);

        // An argument that cannot be sent is an error, and the call is not sent.
        let inexact = Rate::new(1, Duration::from_nanos(1_500));
        let error = connection.cl_throttle("{t}no", inexact, Units(1))$($wait)*.unwrap_err();
        assert_eq!(
            error.to_string(),
            "invalid duration - Client: the period of a rate must be a whole number of microseconds, and 1.5µs is not"
        );
        let error = connection.cl_mtake(MTake::new())$($wait)*.unwrap_err();
        assert_eq!(error.to_string(), "the call names no limiter - Client");
        // Arguments that the server rejects, with its text.
        let error = connection.cl_throttle("{t}no", Rate::per_second(0), Units(1))$($wait)*.unwrap_err();
        assert!(error.to_string().contains("count must be an integer from 1 to"), "{error}");
        let error = connection.cl_throttle("{t}jobs", per_day, Units(1))$($wait)*;
        assert!(error.is_ok(), "the key of the jobs is gone: {error:?}");
        let error = connection.cl_log("{t}jobs", five, Units(1))$($wait)*.unwrap_err();
        assert!(error.to_string().contains("value: \"{t}jobs\""), "{error}");
        connection
    }};
}
pub(crate) use each_command;

#[test]
fn on_a_blocking_connection() {
    for protocol in ["resp2", "resp3"] {
        let server = Server::start();
        let url = format!("redis://127.0.0.1:{}?protocol={protocol}", server.port());
        let mut connection =
            each_command!(redis::Client::open(url).unwrap().get_connection().unwrap(), has_waits = true,);
        refusals_are_listed(&connection.cl_top(10).unwrap());
        connection.cl_top_reset().unwrap();
        assert_eq!(connection.cl_top(10).unwrap(), []);
    }
}

#[tokio::test]
async fn on_a_multiplexed_connection() {
    let server = Server::start();
    let mut connection = each_command!(connect(&server).await, has_waits = true, .await);
    refusals_are_listed(&connection.cl_top(10).await.unwrap());
    connection.cl_top_reset().await.unwrap();
    assert_eq!(connection.cl_top(10).await.unwrap(), []);
}

fn refusals_are_listed(rows: &[redis_cell_client::TopKey]) {
    let row = rows.iter().find(|row| row.key == "{t}book").unwrap_or_else(|| panic!("{rows:?}"));
    assert_eq!((row.refusals, row.error), (2, 0));
    let age = SystemTime::now().duration_since(row.last_refusal).unwrap();
    assert!(age < HOUR, "{rows:?}");
}

#[test]
fn commands_are_values_for_pipelines() {
    let server = Server::start();
    let client = client(server.port());
    let mut connection = client.get_connection().unwrap();
    let take = || call::throttle("k", Rate::per_day(1).burst(1), Units(1)).unwrap();
    let answers: Vec<redis_cell_client::Answer> =
        redis::pipe().atomic().add_command(take()).add_command(take()).query(&mut connection).unwrap();
    assert_eq!(answers.iter().map(|answer| answer.remaining).collect::<Vec<_>>(), [1, 0]);
}
