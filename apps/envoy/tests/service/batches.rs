//! Rules with `batch`: units that a process holds, with real servers, and 1,000 requests at the same time.

use crate::common::Server;
use crate::harness::{Client, Service, rules};
use std::time::Instant;

/// How many of these requests, sent at the same time, are admitted.
async fn at_once(client: &Client, requests: usize, descriptors: &'static [&'static str]) -> usize {
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..requests {
        let client = client.clone();
        tasks.spawn(async move { client.admits(descriptors).await });
    }
    tasks.join_all().await.into_iter().filter(|admitted| *admitted).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn few_calls_bring_the_units_of_many_requests() {
    let server = Server::start();
    let text = "  - {key: hot, rate_limit: {unit: year, requests_per_unit: 300, batch: 100, hold: 1h}}\n";
    let service = Service::start(&server, &rules(text));
    let client = service.client().await;
    assert_eq!(client.admitted(250, &["hot=1"]).await, 250);
    let calls = server.connect().text("INFO commandstats");
    let calls = calls.split("cmdstat_cl.fixed:calls=").nth(1).unwrap().split(',').next().unwrap();
    assert!(calls.parse::<u32>().unwrap() < 30, "{calls}");
    // All of the limit, and no more.
    assert_eq!(client.admitted(100, &["hot=1"]).await, 50);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_processes_admit_no_more_than_a_quota_together() {
    let server = Server::start();
    let text = "  - {key: hot, rate_limit: {unit: year, requests_per_unit: 300, batch: 50, hold: 1h}}\n";
    let services = [Service::start(&server, &rules(text)), Service::start(&server, &rules(text))];
    let (first, second) = (services[0].client().await, services[1].client().await);
    let (a, b) = tokio::join!(at_once(&first, 500, &["hot=1"]), at_once(&second, 500, &["hot=1"]));
    // Units that one of them holds are not available to the other.
    assert!(a + b <= 300 && a + b >= 200, "{a} {b}");
    let more = first.admitted(100, &["hot=1"]).await + second.admitted(100, &["hot=1"]).await;
    assert!(a + b + more <= 300, "{a} {b} {more}");
}

#[tokio::test(flavor = "multi_thread")]
async fn two_processes_admit_no_more_than_the_bound_of_a_rate() {
    // A limit of 100 at 1 a second, and two processes that hold at most 20 for at most a second.
    let text = "  - {key: hot, rate_limit: {unit: minute, requests_per_unit: 60, algorithm: gcra, burst: 100,
     batch: 20, hold: 1s}}\n";
    let server = Server::start();
    let services = [Service::start(&server, &rules(text)), Service::start(&server, &rules(text))];
    let (first, second) = (services[0].client().await, services[1].client().await);
    let begin = Instant::now();
    let mut admitted = 0;
    for _ in 0..3 {
        let (a, b) = tokio::join!(at_once(&first, 500, &["hot=1"]), at_once(&second, 500, &["hot=1"]));
        admitted += a + b;
        let seconds = usize::try_from(begin.elapsed().as_secs()).unwrap() + 1;
        // The limit, what comes at the rate, and min(h * rate, N * b) = min(1, 40).
        assert!(admitted <= 100 + seconds + 1, "{admitted} in {seconds} s");
    }
    assert!(admitted >= 60, "{admitted}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_with_a_batch_is_charged_for_all_descriptors_or_none() {
    let server = Server::start();
    let text = "  - {key: hot, rate_limit: {unit: year, requests_per_unit: 100, batch: 20, hold: 1h}}
  - {key: warm, rate_limit: {unit: year, requests_per_unit: 30, batch: 20, hold: 1h}}
  - {key: narrow, rate_limit: {unit: year, requests_per_unit: 5}}
  - {key: wide, rate_limit: {unit: year, requests_per_unit: 10, algorithm: gcra}}
";
    let service = Service::start(&server, &rules(text));
    let client = service.client().await;
    // Another limit refuses: nothing is taken from the batch.
    assert_eq!(client.admitted(10, &["hot=1", "narrow=1", "warm=1"]).await, 5);
    assert_eq!(client.admitted(100, &["hot=1"]).await, 95);
    // The batch refuses: the others get back what they gave.
    assert_eq!(client.admitted(5, &["wide=1", "hot=1", "warm=1"]).await, 0);
    assert_eq!(client.admitted(20, &["wide=1"]).await, 10);
    assert_eq!(client.admitted(40, &["warm=1"]).await, 25);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_ends_gives_back_what_it_holds() {
    let server = Server::start();
    let text = "  - {key: hot, rate_limit: {unit: year, requests_per_unit: 100, batch: 90, hold: 1h}}\n";
    let mut service = Service::start(&server, &rules(text));
    assert_eq!(service.client().await.admitted(1, &["hot=1"]).await, 1);
    service.process.signal("TERM");
    assert!(service.process.wait().success());
    let service = Service::start(&server, &rules(&text.replace(", batch: 90, hold: 1h", "")));
    assert_eq!(service.client().await.admitted(120, &["hot=1"]).await, 99);
}
