//! Rules with `batch`: units that a process holds, with a real server. The client's tests and
//! `core/src/holding.rs` have what several processes admit together.

use crate::harness::{Service, limits, rules, start};

#[tokio::test(flavor = "multi_thread")]
async fn few_calls_bring_the_units_of_many_requests() {
    let held = "300, batch: 100, hold: 1h";
    let rules = limits(&format!("fixed => {held}; throttle => {held}, algorithm: gcra"));
    let (server, _service, client) = start(&rules, &[]).await;
    for kind in ["fixed", "throttle"] {
        let key = format!("{kind}=1");
        assert_eq!(client.admitted(250, &[&key]).await, 250);
        let calls = server.connect().text("INFO commandstats");
        let calls =
            calls.split(&format!("cmdstat_cl.{kind}:calls=")).nth(1).unwrap().split(',').next().unwrap();
        assert!(calls.parse::<u32>().unwrap() < 30, "{calls}");
        // All of the limit, and no more.
        assert_eq!(client.admitted(100, &[&key]).await, 50, "{kind}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_with_a_batch_is_charged_for_all_descriptors_or_none() {
    let rules = limits(
        "hot => 100, batch: 20, hold: 1h; warm => 30, batch: 20, hold: 1h; narrow => 5; \
         wide => 10, algorithm: gcra",
    );
    let (_server, _service, client) = start(&rules, &[]).await;
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
    let text = limits("hot => 100, batch: 90, hold: 1h");
    let (server, mut service, client) = start(&text, &[]).await;
    assert_eq!(client.admitted(1, &["hot=1"]).await, 1);
    service.process.signal("TERM");
    assert!(service.process.wait().success());
    let service = Service::start(&server, &rules(&text.replace(", batch: 90, hold: 1h", "")));
    assert_eq!(service.client().await.admitted(120, &["hot=1"]).await, 99);
}
