//! Servers of the limiters of every kind: with passwords, in a cluster, behind Sentinels, and encrypted.

use crate::common::{self, Options, Server, free_port, until, wait_for_cluster, wait_until};
use crate::harness::{Client, Service, descriptor, is_ok, request, rows, until_contains};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const RULES: &str = "
domain: d
descriptors:
  - {key: k, rate_limit: {unit: day, requests_per_unit: 5}}
  - {key: other, rate_limit: {unit: day, requests_per_unit: 100}}
";

#[tokio::test(flavor = "multi_thread")]
async fn a_user_with_the_password_needs_one_permission() {
    let server = Server::start();
    server.connect().call("ACL SETUSER gate on >se:cret ~{*}* +cl.mtake");
    let service = Service::with(&server, RULES, &[("REDIS_AUTH", "gate:se:cret")]);
    assert_eq!(service.client().await.admitted(7, &["k=1", "other=1"]).await, 5);
}

fn node() -> Server {
    Options::new().set("cluster-enabled", "yes").set("cluster-node-timeout", "60000").start()
}

/// Three primaries that share the slots.
fn cluster() -> Vec<Server> {
    common::cluster(3, Options::new)
}

/// The nodes, as the setting `REDIS_URL` has them.
fn urls(nodes: &[Server]) -> String {
    let urls: Vec<String> = nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
    urls.join(",")
}

#[tokio::test(flavor = "multi_thread")]
async fn in_a_cluster_all_descriptors_of_a_request_are_in_one_slot() {
    let nodes = cluster();
    let urls = urls(&nodes);
    let rules = format!(
        "{RULES}  - {{key: user, descriptors: [{{key: k, rate_limit: {{unit: day, requests_per_unit: 5}}}}]}}
  - {{key: user, value: all, rate_limit: {{unit: day, requests_per_unit: 5}}}}
"
    );
    let service = Service::at(&urls, &rules, &[("REDIS_TYPE", "CLUSTER")]);
    let client = service.client().await;
    for user in 0..20 {
        assert_eq!(client.admitted(7, &[&format!("k={user}"), &format!("other={user}")]).await, 5);
    }
    let sizes: Vec<i64> = nodes.iter().map(|node| node.connect().int("DBSIZE")).collect();
    assert_eq!(sizes.iter().filter(|size| **size > 0).count(), 1, "one domain is on one shard: {sizes:?}");

    // With the first entry in braces, users are on all shards, each with all limits that begin with it.
    for node in &nodes {
        node.connect().call("ACL SETUSER gate on >secret ~* +@all");
    }
    let settings = [("REDIS_TYPE", "CLUSTER"), ("REDIS_AUTH", "gate:secret")];
    let service = Service::at(&urls, &format!("hash_tag: first_entry{rules}"), &settings);
    let client = service.client().await;
    for user in 100..130 {
        assert_eq!(client.admitted(7, &[&format!("user={user},k=1"), &format!("user={user},k=2")]).await, 5);
    }
    for node in &nodes {
        assert!(node.connect().int("DBSIZE") > 0);
    }
    let error = client.error(&["k=200", "other=200"]).await;
    let text = error.message();
    assert!(text.contains("CROSSSLOT") || text.contains("slot"), "{text}");
}

/// Another node of the cluster, which replicates one of its nodes.
fn replica(nodes: &[Server], of: &Server) -> Server {
    let replica = node();
    replica.connect().call(&format!("CLUSTER MEET 127.0.0.1 {}", of.port()));
    wait_for_cluster(&nodes.iter().chain([&replica]).collect::<Vec<_>>());
    let id = of.connect().text("CLUSTER MYID");
    replica.connect().call(&format!("CLUSTER REPLICATE {id}"));
    for node in nodes {
        until_contains(&format!("slave {id}"), || node.connect().text("CLUSTER NODES"));
    }
    until_contains("master_link_status:up", || replica.connect().text("INFO replication"));
    replica
}

/// Gives the slot of these keys to another node, and the keys one by one.
fn move_slot(nodes: &[Server], from: &Server, to: &Server, keys: &[String]) {
    let (mut source, mut target) = (from.connect(), to.connect());
    let slot = source.int(&format!("CLUSTER KEYSLOT {}", keys[0]));
    let (from_id, to_id) = (source.text("CLUSTER MYID"), target.text("CLUSTER MYID"));
    target.call(&format!("CLUSTER SETSLOT {slot} IMPORTING {from_id}"));
    source.call(&format!("CLUSTER SETSLOT {slot} MIGRATING {to_id}"));
    for key in keys {
        assert_eq!(source.text(&format!("MIGRATE 127.0.0.1 {} {key} 0 10000", to.port())), "OK");
        std::thread::sleep(Duration::from_millis(50)); // requests meet a slot in two parts
    }
    let others = nodes.iter().filter(|node| ![from.port(), to.port()].contains(&node.port()));
    for node in [to, from].into_iter().chain(others) {
        node.connect().call(&format!("CLUSTER SETSLOT {slot} NODE {to_id}"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_moves_and_a_planned_failover_cost_no_request() {
    const PER_DAY: usize = 1_000_000;
    let nodes = cluster();
    let rules = format!(
        "domain: d
descriptors:
  - {{key: k, rate_limit: {{unit: day, requests_per_unit: {PER_DAY}}}}}
  - {{key: other, rate_limit: {{unit: day, requests_per_unit: {PER_DAY}}}}}
"
    );
    let service = Service::at(&urls(&nodes), &rules, &[("REDIS_TYPE", "CLUSTER")]);
    let client = service.client().await;
    let request = || request(vec![descriptor("k=1"), descriptor("other=1")]);
    client.send(request()).await.unwrap();
    let source = nodes.iter().find(|node| node.connect().int("DBSIZE") > 0).unwrap();
    let target = nodes.iter().find(|node| node.port() != source.port()).unwrap();
    let replica = replica(&nodes, target);

    let ended = Arc::new(AtomicBool::new(false));
    let load: Vec<_> = (0..8)
        .map(|_| {
            let (client, ended) = (client.clone(), ended.clone());
            tokio::spawn(async move {
                let mut sent = 0;
                while !ended.load(Ordering::Relaxed) {
                    let reply =
                        client.send(request()).await.unwrap_or_else(|error| panic!("{sent}: {error}"));
                    assert!(is_ok(&reply));
                    sent += 1;
                }
                sent
            })
        })
        .collect();
    let keys: Vec<String> = source.connect().get("KEYS *");
    assert_eq!(keys.len(), 2, "{keys:?}");
    tokio::task::block_in_place(|| {
        move_slot(&nodes, source, target, &keys);
        let keys = |server: &Server| server.connect().int("DBSIZE");
        assert_eq!((keys(source), keys(target)), (0, 2));
        replica.connect().call("CLUSTER FAILOVER");
        until_contains("role:master", || replica.connect().text("INFO replication"));
        std::thread::sleep(Duration::from_millis(500)); // some requests on the new primary
    });
    ended.store(true, Ordering::Relaxed);
    let mut sent = 1;
    for task in load {
        sent += task.await.unwrap();
    }
    let last = client.send(request()).await.unwrap();
    let remains = u32::try_from(PER_DAY - sent - 1).unwrap();
    assert_eq!(rows(&last), [(true, remains), (true, remains)]);
    // Each kind of redirection was met.
    for (node, code) in [(source, "ASK"), (source, "MOVED"), (target, "MOVED"), (source, "TRYAGAIN")] {
        let errors = node.connect().text("INFO errorstats");
        assert!(errors.contains(&format!("errorstat_{code}:")), "{code}: {errors}");
    }
}

/// Regression: while a slot moved, or after a planned failover, a request failed if its node knew no owner of
/// the slot.
#[tokio::test(flavor = "multi_thread")]
async fn a_slot_without_an_owner_for_a_moment_costs_no_request() {
    let nodes = cluster();
    for node in &nodes {
        node.connect().call("CONFIG SET cluster-require-full-coverage no");
    }
    let settings = [("REDIS_TYPE", "CLUSTER"), ("REDIS_TIMEOUT", "10s")];
    let service = Service::at(&urls(&nodes), RULES, &settings);
    let client = service.client().await;
    assert_eq!(client.admitted(1, &["k=1"]).await, 1);
    let owner = nodes.iter().find(|node| node.connect().int("DBSIZE") > 0).unwrap();
    let keys: Vec<String> = owner.connect().get("KEYS *");
    let slot = owner.connect().int(&format!("CLUSTER KEYSLOT {}", keys[0]));
    owner.connect().call(&format!("CLUSTER DELSLOTS {slot}"));
    let request = tokio::spawn(async move { client.admitted(1, &["k=1"]).await });
    tokio::task::block_in_place(|| {
        until_contains("errorstat_CLUSTERDOWN:", || owner.connect().text("INFO errorstats"));
        owner.connect().call(&format!("CLUSTER ADDSLOTS {slot}"));
    });
    assert_eq!(request.await.unwrap(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_freezes_is_not_asked_after_the_failover() {
    let nodes = cluster();
    let settings = [("REDIS_TYPE", "CLUSTER"), ("REDIS_TIMEOUT", "300ms")];
    let service = Service::at(&urls(&nodes), RULES, &settings);
    let client = service.client().await;
    until_admitted(&client, "before").await;
    let primary = nodes.iter().find(|node| node.connect().int("DBSIZE") > 0).unwrap();
    let replica = replica(&nodes, primary);
    primary.signal("STOP");
    replica.connect().call("CLUSTER FAILOVER TAKEOVER");
    // The connection to the former primary stands, and nobody answers there.
    until_admitted(&client, "after").await;
    assert!(replica.connect().text("INFO replication").contains("role:master"));
    primary.signal("CONT");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failover_of_sentinels_continues_on_the_new_primary() {
    let first = Server::start();
    let second = Options::new().set("replicaof", &format!("127.0.0.1 {}", first.port())).start();
    let mut replica = second.connect();
    until_contains("master_link_status:up", || replica.text("INFO replication"));
    let sentinel = Options::sentinel(&format!(
        "sentinel monitor cell 127.0.0.1 {} 1\nsentinel down-after-milliseconds cell 60000\n",
        first.port()
    ))
    .start();
    let mut sentinels = sentinel.connect();
    until_contains("slaves=1", || sentinels.text("INFO sentinel"));
    let url = format!("cell,127.0.0.1:{}", sentinel.port());
    let service = Service::at(&url, RULES, &[("REDIS_TYPE", "SENTINEL")]);
    let client = service.client().await;
    assert_eq!(client.admitted(2, &["k=1"]).await, 2);
    until("the state on the replica", 1, || replica.int("DBSIZE"));
    wait_until("the failover to begin", || sentinels.ask("SENTINEL FAILOVER cell").map(drop));
    for (server, role) in [(&second, "master"), (&first, "slave")] {
        // The change ends the connections of clients.
        until_contains(role, || {
            let connection = common::Client::connect(server.port(), "");
            format!("{:?}", connection.map(|mut client| client.try_pipeline(&["ROLE"])))
        });
    }
    // The first requests may meet the old primary, which is read-only now and ends its connections.
    until_admitted(&client, "after the failover").await;
    assert_eq!(client.admitted(5, &["k=1"]).await, 3);
}

/// Relays connections to a server. It passes on what a client sends after a delay, and nothing once its
/// connection has stalled.
struct Relay {
    port: u16,
    stalls: tokio::sync::watch::Sender<()>,
}

impl Relay {
    async fn to(server: u16, delay: Duration) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (stalls, stalled) = tokio::sync::watch::channel(());
        tokio::spawn(async move {
            loop {
                let (mut client, _) = listener.accept().await.unwrap();
                let mut stalled = stalled.clone();
                stalled.mark_unchanged();
                tokio::spawn(async move {
                    tokio::time::sleep(delay).await;
                    let mut server = tokio::net::TcpStream::connect(("127.0.0.1", server)).await.unwrap();
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
                        _ = stalled.changed() => std::future::pending().await,
                    }
                });
            }
        });
        Self { port, stalls }
    }
}

/// Sends requests until one is admitted.
async fn until_admitted(client: &Client, what: &str) {
    let mut tries = 0;
    while let Err(error) = client.send(request(vec![descriptor("other=1")])).await {
        tries += 1;
        assert!(tries < 300, "{what}: {error}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_has_stalled_is_replaced() {
    let server = Server::start();
    let relay = Relay::to(server.port(), Duration::ZERO).await;
    let service = Service::at(&format!("127.0.0.1:{}", relay.port), RULES, &[("REDIS_TIMEOUT", "200ms")]);
    let client = service.client().await;
    until_admitted(&client, "before").await;
    // As if the machine were switched off: nothing arrives, not even the end of the connection.
    relay.stalls.send(()).unwrap();
    until_admitted(&client, "after").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_its_caller_gives_up_costs_no_connection() {
    let server = Server::start();
    let service = Service::start(&server, RULES);
    let client = service.client().await;
    until_admitted(&client, "before").await;
    let mut info = server.connect();
    let mut connections = || info.info("total_connections_received");
    let before = connections();
    let begun = std::time::Instant::now();
    let mut given_up = 0;
    while begun.elapsed() < Duration::from_secs(4) || given_up < 20 {
        let call = client.admits(&["other=1"]);
        given_up += u32::from(tokio::time::timeout(Duration::from_micros(200), call).await.is_err());
        client.admits(&["other=1"]).await;
    }
    assert_eq!(connections(), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_may_take_longer_than_a_call() {
    const DELAY: Duration = Duration::from_millis(400);
    let server = Server::start();
    let sentinel =
        Options::sentinel(&format!("sentinel monitor cell 127.0.0.1 {} 1\n", server.port())).start();
    let nodes = cluster();
    for (kind, name, port) in [
        ("SINGLE", "", server.port()),
        ("SENTINEL", "cell,", sentinel.port()),
        ("CLUSTER", "", nodes[0].port()),
    ] {
        let relay = Relay::to(port, DELAY).await;
        let url = format!("{name}127.0.0.1:{}", relay.port);
        let service = Service::at(&url, RULES, &[("REDIS_TYPE", kind), ("REDIS_TIMEOUT", "200ms")]);
        until_admitted(&service.client().await, kind).await;
    }
}

/// Makes a certificate of this machine, and its key.
pub fn certificate(folder: &Path, name: &str) {
    common::certificate(folder, name, "DNS:localhost,IP:127.0.0.1", 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_the_server_has_closed_fails_no_request() {
    let server = Server::start();
    let sentinel =
        Options::sentinel(&format!("sentinel monitor cell 127.0.0.1 {} 1\n", server.port())).start();
    let nodes = cluster();
    for (kind, url, servers) in [
        ("SINGLE", format!("127.0.0.1:{}", server.port()), std::slice::from_ref(&server)),
        ("SENTINEL", format!("cell,127.0.0.1:{}", sentinel.port()), std::slice::from_ref(&server)),
        ("CLUSTER", urls(&nodes), &nodes[..]),
    ] {
        let service = Service::at(&url, RULES, &[("REDIS_TYPE", kind)]);
        let client = service.client().await;
        let mut admins: Vec<_> = servers.iter().map(Server::connect).collect();
        for request in 0..5 {
            let ok = client.admits(&[&format!("k={kind}{request}")]).await;
            assert!(ok, "{kind}");
            for admin in &mut admins {
                // Those of others: the connection of `admin` stays.
                admin.call("CLIENT KILL TYPE normal SKIPME yes");
            }
            std::thread::sleep(Duration::from_millis(100)); // until the service has heard of it
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_of_envoy_can_be_encrypted() {
    let server = Server::start();
    let folder = tempfile::tempdir().unwrap();
    for name in ["grpc", "envoy"] {
        certificate(folder.path(), name);
    }
    let file = |name: &str| folder.path().join(name).display().to_string();
    let settings = [
        ("GRPC_SERVER_USE_TLS", "true"),
        ("GRPC_SERVER_TLS_CERT", &file("grpc.pem")),
        ("GRPC_SERVER_TLS_KEY", &file("grpc.key")),
        ("GRPC_CLIENT_TLS_CACERT", &file("envoy.pem")),
    ];
    let service = Service::with(&server, RULES, &settings);
    let read = |name: &str| std::fs::read(folder.path().join(name)).unwrap();
    let own = (read("envoy.pem"), read("envoy.key"));
    let connect = async |authority: &[u8]| service.encrypted_client(authority, Some((&own.0, &own.1))).await;
    let former = read("grpc.pem");
    assert_eq!(connect(&former).await.unwrap().admitted(7, &["k=1"]).await, 5);
    // A new certificate holds for new connections.
    certificate(folder.path(), "grpc");
    assert!(connect(&former).await.is_err(), "the former certificate is still used");
    let present = read("grpc.pem");
    assert_eq!(connect(&present).await.unwrap().admitted(1, &["k=2"]).await, 1);
    // What cannot be read changes nothing.
    std::fs::write(folder.path().join("grpc.pem"), "no certificate").unwrap();
    assert_eq!(connect(&present).await.unwrap().admitted(1, &["k=3"]).await, 1);
    let kept = format!(
        "certificates are still used: GRPC_SERVER_TLS_CERT: {}: has no certificate in PEM form",
        file("grpc.pem")
    );
    assert!(service.process.log().contains(&kept), "{}", service.process.log());
    // Without a certificate of its own a client has no answer.
    if let Ok(stranger) = service.encrypted_client(&present, None).await {
        stranger.error(&["k=1"]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn new_certificates_hold_for_new_connections_to_the_server() {
    for kind in ["SINGLE", "SENTINEL", "CLUSTER"] {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| folder.path().join(name).display().to_string();
        // A Sentinel is a client of the server, so all of them trust both.
        let make = || {
            let all = ["redis", "envoy"].map(|name| {
                certificate(folder.path(), name);
                std::fs::read_to_string(file(&format!("{name}.pem"))).unwrap()
            });
            std::fs::write(file("both.pem"), all.concat()).unwrap();
        };
        make();
        let [port, other] = [free_port(), free_port()];
        let encrypted = |options: Options, port: u16| {
            options
                .set("tls-port", &port.to_string())
                .set("tls-cert-file", &file("redis.pem"))
                .set("tls-key-file", &file("redis.key"))
                .set("tls-ca-cert-file", &file("both.pem"))
        };
        let mut options = encrypted(Options::new(), port);
        if kind == "CLUSTER" {
            options = options.set("cluster-enabled", "yes").set("tls-cluster", "yes");
        }
        let server = options.start();
        let watched = format!("sentinel monitor cell 127.0.0.1 {port} 1\ntls-replication yes\n");
        let watch = || (kind == "SENTINEL").then(|| encrypted(Options::sentinel(&watched), other).start());
        let mut sentinel = watch();
        let mut admin = server.connect();
        if kind == "CLUSTER" {
            admin.call("CLUSTER ADDSLOTSRANGE 0 16383");
            wait_for_cluster(&[&server]);
        }
        let [authority, own, key] = ["redis.pem", "envoy.pem", "envoy.key"].map(file);
        let settings = [
            ("REDIS_TYPE", kind),
            ("REDIS_TLS", "true"),
            ("REDIS_TLS_CACERT", &authority),
            ("REDIS_TLS_CLIENT_CERT", &own),
            ("REDIS_TLS_CLIENT_KEY", &key),
        ];
        let url =
            sentinel.as_ref().map_or(format!("127.0.0.1:{port}"), |_| format!("cell,127.0.0.1:{other}"));
        let service = Service::at(&url, RULES, &settings);
        let client = service.client().await;
        assert!(client.admits(&["k=1"]).await, "{kind}");
        make();
        assert!(client.admits(&["k=1"]).await, "{kind}: a connection stays");
        admin.call(&format!("CONFIG SET tls-ca-cert-file {}", file("both.pem"))); // reads all of them
        drop(sentinel.take()); // which cannot read them again
        sentinel = watch();
        admin.call("CLIENT KILL TYPE normal SKIPME yes");
        until_admitted(&client, kind).await;
        // A wrong file changes nothing, and is named.
        let other = std::fs::read(file("redis.key")).unwrap();
        let mismatch = format!("is not the key of REDIS_TLS_CLIENT_CERT: {own}");
        for (variable, path, wrong, why) in [
            ("REDIS_TLS_CACERT", &authority, &other, "has no certificate in PEM form"),
            ("REDIS_TLS_CLIENT_CERT", &own, &other, "has no certificate in PEM form"),
            ("REDIS_TLS_CLIENT_KEY", &key, &other, &mismatch),
        ] {
            let former = std::fs::read(path).unwrap();
            std::fs::write(path, wrong).unwrap();
            let why = format!("certificates for the server are still used: {variable}: {path}: {why}");
            let mut tries = 0;
            while !service.process.log().contains(&why) {
                tries += 1;
                assert!(tries < 300, "{kind}: {why}: {}", service.process.log());
                admin.call("CLIENT KILL TYPE normal SKIPME yes");
                until_admitted(&client, kind).await;
                tokio::time::sleep(Duration::from_millis(50)).await; // they are read once a second
            }
            std::fs::write(path, former).unwrap();
        }
    }
}
