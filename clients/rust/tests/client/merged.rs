//! Merged calls on a real server: few calls, the answers of calls of their own, and callers that give up.

use crate::calls;
use crate::common::{Client, Server};
use crate::leased::{SOON, connect, futures_poll, runtime, soon};
use redis::RedisResult;
use redis::aio::MultiplexedConnection;
use redis_cell_client::{
    Answer, DecidedBy, Decision, Fixed, FixedWindow, Guard, Limit, MTake, Merged, Places, Quantity, Rate,
    Saturate, Taken, Units, WhenUnavailable, call,
};
use std::time::{Duration, Instant};

const KEY: &str = "hot";

/// What tasks return, in their order.
async fn joined<T>(tasks: Vec<tokio::task::JoinHandle<T>>) -> Vec<T> {
    let mut results = Vec::new();
    for task in tasks {
        results.push(task.await.unwrap());
    }
    results
}

/// Calls for all quantities at the same time, in their order: the runtime of these tests has one thread.
async fn take_all(
    merged: &Merged<MultiplexedConnection>,
    key: &'static str,
    limit: Limit,
    quantities: &[Quantity],
) -> Vec<RedisResult<Answer>> {
    let call = |&quantity| {
        let merged = merged.clone();
        tokio::spawn(async move { merged.take(key, limit, quantity).await })
    };
    joined(quantities.iter().map(call).collect()).await
}

async fn patient(server: &Server) -> Merged<MultiplexedConnection> {
    Merged::new(connect(server).await).timeout(SOON)
}

fn remaining(client: &mut Client) -> i64 {
    client.ints(&format!("CL.PEEK {KEY} 99 100 86400"))[2]
}

#[tokio::test]
async fn callers_that_come_meanwhile_share_a_call_and_get_their_own_answers() {
    let (server, mut client) = Server::with_client();
    let merged = patient(&server).await;
    let limit = Rate::per_day(100).burst(99).into();
    let answers = take_all(&merged, KEY, limit, &[Units(1).into(); 110]).await;
    assert_eq!(calls(&mut client, "cl.throttle"), 2);
    for (place, answer) in (0..).zip(answers) {
        let answer = answer.unwrap();
        // A unit takes 864 seconds; the test takes less than half of that.
        let units = |time: Duration| (time.as_secs() + 432) / 864;
        assert_eq!((answer.limit, answer.taken), (100, None));
        if place < 100 {
            assert_eq!((answer.decision, answer.remaining), (Decision::Admitted, 99 - place));
            assert_eq!(units(answer.reset_after), place + 1);
        } else {
            assert_eq!((units(answer.retry_after().unwrap()), answer.remaining), (1, 0));
        }
    }
    // A caller that is alone sends its own call.
    let alone = merged.take(KEY, limit, Units(1)).await.unwrap();
    assert!(matches!(alone.decision, Decision::RefusedFor(_)), "{alone:?}");
    assert_eq!(calls(&mut client, "cl.throttle"), 3);
}

#[tokio::test]
async fn callers_of_each_kind_share_calls_or_go_alone_and_get_their_own_answers() {
    let limits: [(&str, Limit, bool); 7] = [
        ("throttle", Rate::per_day(9).into(), true),
        ("funnel", Limit::Funnel(Rate::per_day(9).capacity(9)), true),
        ("bucket", Limit::Bucket(Rate::per_day(9).capacity(9)), true),
        ("fixed", Fixed::new(9, FixedWindow::period(DAY)).into(), true),
        ("fixed", Fixed::new(9, FixedWindow::total()).into(), false),
        ("window", Limit::Window(Rate::new(9, DAY)), false),
        ("log", Limit::Log(Rate::new(9, DAY)), false),
    ];
    let (server, mut client) = Server::with_client();
    for (name, limit, merges) in limits {
        client.call("FLUSHALL");
        client.call("CONFIG RESETSTAT");
        let merged = patient(&server).await;
        let answers = take_all(&merged, KEY, limit, &[Units(1).into(); 12]).await;
        let seen =
            answers.into_iter().map(Result::unwrap).map(|answer| (answer.admitted(), answer.remaining));
        assert!(seen.eq((0..12).map(|place: u64| (place < 9, 8_u64.saturating_sub(place)))), "{name}");
        assert_eq!(calls(&mut client, &format!("cl.{name}")), if merges { 2 } else { 12 });
        // More than the limit, nothing, and what is left: each of these is a call of its own.
        let alone = [Units(10).into(), Units(0).into(), Saturate(3).into()];
        let answers = take_all(&merged, "alone", limit, &alone).await.into_iter().map(Result::unwrap);
        let seen: Vec<_> = answers.map(|answer| (answer.decision, answer.remaining, answer.taken)).collect();
        let admitted = Decision::Admitted;
        let own = [(Decision::RefusedForever, 9, None), (admitted, 9, None), (admitted, 6, Some(3))];
        assert_eq!(seen, own, "{name}");
    }
}

#[tokio::test]
async fn a_caller_that_is_gone_before_its_call_takes_nothing() {
    let (server, mut client) = Server::with_client();
    let merged = patient(&server).await;
    let limit = Rate::per_day(100).burst(99);
    let mut first = Box::pin(merged.take(KEY, limit, Units(1)));
    assert!(futures_poll(first.as_mut()).is_none());
    for _ in 0..5 {
        let mut gone = Box::pin(merged.take(KEY, limit, Units(10)));
        assert!(futures_poll(gone.as_mut()).is_none());
    }
    let stays = tokio::spawn({
        let merged = merged.clone();
        async move { merged.take(KEY, limit, Units(2)).await }
    });
    assert_eq!(first.await.unwrap().remaining, 99);
    assert_eq!(stays.await.unwrap().unwrap().remaining, 97);
    assert_eq!((remaining(&mut client), calls(&mut client, "cl.throttle")), (97, 2));
    // The same with a mix.
    let mut first = Box::pin(merged.mtake(mix(50, 1)));
    assert!(futures_poll(first.as_mut()).is_none());
    let mut all = Vec::new();
    for units in [10, 2, 10] {
        let mut call = Box::pin(merged.mtake(mix(50, units)));
        assert!(futures_poll(call.as_mut()).is_none());
        all.push(call);
    }
    let stays = all.swap_remove(1);
    drop(all);
    let (first, stays) = tokio::join!(first, stays);
    first.unwrap();
    assert_eq!((stays.unwrap().each[2].remaining, calls(&mut client, "cl.mtake")), (47, 2));
}

#[tokio::test]
async fn an_error_of_the_key_is_the_error_of_each_caller_and_a_bad_number_that_of_one() {
    let server = Server::start();
    let merged = patient(&server).await;
    server.connect().call("HSET hot field value");
    let limit = Rate::per_day(9).into();
    for answer in take_all(&merged, KEY, limit, &[Units(1).into(); 5]).await {
        assert_eq!(answer.unwrap_err().code(), Some("WRONGTYPE"));
    }
    let quantities = [1, u64::MAX, 1, 1].map(|units| Units(units).into());
    let answers = take_all(&merged, "other", limit, &quantities).await;
    let left: Vec<_> = answers.into_iter().map(|answer| answer.map(|answer| answer.remaining).ok()).collect();
    assert_eq!(left, [Some(8), None, Some(7), Some(6)]);
}

#[tokio::test]
async fn each_caller_has_its_own_time() {
    let (server, mut client) = Server::with_client();
    let merged = Merged::new(connect(&server).await).timeout(Duration::from_millis(200));
    let limit = Rate::per_day(100).burst(99);
    server.signal("STOP");
    let began = Instant::now();
    let answers = take_all(&merged, KEY, limit.into(), &[Units(1).into(); 5]).await;
    assert!(answers.iter().all(Result::is_err), "{answers:?}");
    let took = began.elapsed();
    assert!(took >= Duration::from_millis(200) && took < SOON, "{took:?}");
    server.signal("CONT");
    soon("an answer", async || merged.take(KEY, limit, Units(1)).await.is_ok()).await;
    // The call without an answer was sent once. The four behind it were gone before the next one, or their
    // units came back, each on its own. A call of a connection that was given up may arrive last.
    let taken = |client: &mut _| u64::try_from(100 - remaining(client)).unwrap();
    soon("one unit of each call", async || {
        let (calls, back) = (calls(&mut client, "cl.throttle"), calls(&mut client, "cl.msettle"));
        (calls.saturating_sub(back)..=calls).contains(&taken(&mut client))
    })
    .await;
}

#[test]
fn a_key_whose_call_was_on_its_way_when_the_runtime_ended_is_called_again() {
    let server = Server::start();
    let (first, second) = (runtime(), runtime());
    let merged = Merged::new(second.block_on(connect(&server))).timeout(SOON);
    let limit = Rate::per_day(100).burst(99);
    server.signal("STOP");
    // The task that serves the row is of the first runtime: its first caller is.
    let (one, two) = (merged.clone(), merged.clone());
    let mut leader = Box::pin(one.take(KEY, limit, Units(1)));
    assert!(first.block_on(async { futures_poll(leader.as_mut()) }).is_none());
    let mut waiting = Box::pin(two.take(KEY, limit, Units(1)));
    assert!(second.block_on(async { futures_poll(waiting.as_mut()) }).is_none());
    first.block_on(async { drop(leader) });
    drop(first);
    server.signal("CONT");
    let gone = second.block_on(waiting);
    assert!(gone.is_err(), "{gone:?}");
    let again = second.block_on(async { merged.take(KEY, limit, Units(1)).await });
    assert!(again.unwrap().admitted());
}

const DAY: Duration = Duration::from_secs(86_400);

/// A mix of limiters that callers share, and one that is too small for the second half of them.
fn mix(most: u64, units: u64) -> MTake {
    MTake::new()
        .throttle("{m}:rate", Rate::per_day(100).burst(99), Units(1))
        .bucket("{m}:bucket", Rate::per_day(100).capacity(100), Units(1))
        .fixed("{m}:fixed", Fixed::new(most, FixedWindow::period(DAY)), Units(units))
}

async fn mtake_all(
    merged: &Merged<MultiplexedConnection>,
    mixes: impl IntoIterator<Item = MTake>,
) -> Vec<RedisResult<Taken>> {
    let call = |mix| {
        let merged = merged.clone();
        tokio::spawn(async move { merged.mtake(mix).await })
    };
    joined(mixes.into_iter().map(call).collect()).await
}

#[tokio::test]
async fn callers_of_a_mix_share_calls_and_get_their_own_answers() {
    let (server, mut client) = Server::with_client();
    let mut connection = connect(&server).await;
    for quantities in [&[1; 40][..], &[3, 1, 1, 9, 2, 20, 1, 1, 1, 5, 1][..]] {
        client.call("FLUSHALL");
        let before = calls(&mut client, "cl.mtake");
        let mixes = quantities.iter().map(|&units| mix(20, units));
        let answers = mtake_all(&patient(&server).await, mixes.clone()).await;
        let sent = calls(&mut client, "cl.mtake") - before;
        assert!(sent <= 4, "{sent} calls");
        client.call("FLUSHALL");
        for (answer, mix) in answers.into_iter().zip(mixes) {
            let told = answer.unwrap();
            let cmd = call::mtake(mix).unwrap();
            let own: redis_cell_client::Together<Answer> = cmd.query_async(&mut connection).await.unwrap();
            for (told, own) in [&told.combined]
                .into_iter()
                .chain(&told.each)
                .zip([&own.combined].into_iter().chain(&own.each))
            {
                let close = |one: Duration, other: Duration| one.abs_diff(other) < Duration::from_secs(60);
                let wait = |answer: &Answer| answer.retry_after().unwrap_or_default();
                assert_eq!(
                    (told.admitted(), told.limit, told.remaining),
                    (own.admitted(), own.limit, own.remaining)
                );
                assert!(
                    close(told.reset_after, own.reset_after) && close(wait(told), wait(own)),
                    "{told:?} {own:?}"
                );
            }
        }
    }
}

#[tokio::test]
async fn what_cannot_be_merged_of_a_mix_goes_by_itself() {
    let (server, mut client) = Server::with_client();
    let merged = patient(&server).await;
    let alone: [fn(MTake) -> MTake; 6] = [
        |mix| mix.lease("{m}:place", Places(9), DAY, "holder"),
        |mix| mix.shadow(|mix| mix.throttle("{m}:shadow", Rate::per_day(9), Units(1))),
        |mix| mix.log("{m}:log", Rate::new(9, DAY), Units(1)),
        |mix| mix.spill().fixed("{m}:more", Fixed::new(9, FixedWindow::period(DAY)), Units(1)),
        |mix| mix.hold("{m}:holds", DAY, "owner"),
        |mix| mix.throttle("{m}:look", Rate::per_day(9), Units(0)),
    ];
    for (nth, more) in (0..).zip(alone) {
        let answers = mtake_all(&merged, (0..6).map(|_| more(mix(50, 1)))).await;
        assert!(
            answers.iter().all(|answer| answer.as_ref().unwrap().combined.admitted()),
            "{nth}: {answers:?}"
        );
        assert_eq!(calls(&mut client, "cl.mtake"), 6 * (nth + 1), "{nth}");
    }
    // One that can never be admitted is refused by its own call, and so is one that the server rejects.
    let answers = mtake_all(&merged, [1, 1, 51, 1].map(|units| mix(50, units))).await;
    let decisions: Vec<_> = answers.into_iter().map(|answer| answer.unwrap().combined.decision).collect();
    assert_eq!(decisions[2], Decision::RefusedForever);
    assert_eq!(decisions.iter().filter(|decision| **decision == Decision::Admitted).count(), 3);
    client.call("DEL {m}:fixed");
    client.call("HSET {m}:fixed field value");
    for answer in mtake_all(&merged, (0..6).map(|_| mix(50, 1))).await {
        assert_eq!(answer.unwrap_err().code(), Some("WRONGTYPE"));
    }
}

/// Callers of several processes take exactly the limits, and each unit once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_of_many_clients_take_exactly_the_limits() {
    for is_mix in [false, true] {
        let (server, mut client) = Server::with_client();
        let (rate, fixed) = (Rate::per_day(5_000).burst(4_999), Fixed::new(3_000, FixedWindow::period(DAY)));
        let mut tasks = Vec::new();
        for _ in 0..4 {
            let merged = patient(&server).await;
            for task in 0..16 {
                let (merged, units) = (merged.clone(), if task == 0 { 3 } else { 1 });
                let both = move || MTake::new().throttle("{m}:rate", rate, Units(units));
                tasks.push(tokio::spawn(async move {
                    let mut calls = 0;
                    for _ in 0..100 {
                        calls += u64::from(if is_mix {
                            let mix = both().fixed("{m}:fixed", fixed, Units(1));
                            merged.mtake(mix).await.unwrap().combined.admitted()
                        } else {
                            merged.take("{m}:rate", rate, Units(units)).await.unwrap().admitted()
                        });
                    }
                    [calls * units, calls]
                }));
            }
        }
        let admitted = joined(tasks).await.into_iter().reduce(|sum, own| [sum[0] + own[0], sum[1] + own[1]]);
        let [units, places] = admitted.unwrap();
        assert!(if is_mix { places == 3_000 } else { units == 5_000 }, "{units}, {places}, a mix: {is_mix}");
        let left = client.ints("CL.PEEK {m}:rate 4999 5000 86400")[2];
        assert_eq!(u64::try_from(5_000 - left).unwrap(), units);
        let calls = calls(&mut client, if is_mix { "cl.mtake" } else { "cl.throttle" });
        assert!(calls < 6_400 / 2, "{calls} calls for 6,400 decisions");
    }
}

/// A guard whose calls are merged: few calls, remembered refusals, and the choice while there is no server.
#[tokio::test]
async fn a_guard_merges_its_calls() {
    let (server, mut client) = Server::with_client();
    let merges = |connection| Guard::new(connection, WhenUnavailable::FailOpen).merged().timeout(SOON);
    let guard = merges(connect(&server).await);
    let limit = Rate::per_day(50).burst(49);
    let tasks: Vec<_> = (0..60)
        .map(|_| {
            let guard = guard.clone();
            tokio::spawn(async move { guard.take(KEY, limit, Units(1)).await.unwrap() })
        })
        .collect();
    let mut admitted = 0;
    for decided in joined(tasks).await {
        assert!(decided.error().is_none());
        admitted += i32::from(decided.admitted());
    }
    assert_eq!((admitted, calls(&mut client, "cl.throttle")), (50, 2));
    client.call("SET other text");
    assert!(guard.take("other", limit, Units(1)).await.is_err());
    let hasty = guard.timeout(Duration::from_millis(50));
    server.signal("STOP");
    let decided = hasty.take(KEY, limit, Units(1)).await.unwrap();
    assert!(matches!(decided, DecidedBy::FailedOpen(_)), "{decided:?}");
    server.signal("CONT");
}
