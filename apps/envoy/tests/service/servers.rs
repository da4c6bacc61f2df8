//! Servers of the limiters of every kind: with passwords, in a cluster, behind Sentinels, and encrypted.

use crate::common::{self, Options, Server, wait_until};
use crate::harness::{Client, Service, descriptor};
use redis_cell_envoy::proto::RateLimitRequest;
use std::path::Path;
use std::process::Command;

const RULES: &str = "
domain: d
descriptors:
  - {key: k, rate_limit: {unit: day, requests_per_unit: 5}}
  - {key: other, rate_limit: {unit: day, requests_per_unit: 100}}
";

/// The text of the error of a request.
async fn error(client: &Client, descriptors: &[&str]) -> String {
    let descriptors = descriptors.iter().map(|text| descriptor(text)).collect();
    let request = RateLimitRequest { domain: "d".into(), descriptors, hits_addend: 0 };
    client.send(request).await.unwrap_err().message().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_needs_the_permission_and_the_password() {
    let server = Server::start();
    server.connect().call("ACL SETUSER gate on >se:cret ~{*}* +cl.mtake");
    let service = Service::with(&server, RULES, &[("REDIS_AUTH", "gate:se:cret")]);
    assert_eq!(service.client().await.admitted(7, &["k=1", "other=1"]).await, 5);
    let service =
        Service::with(&server, RULES, &[("REDIS_AUTH", "gate:wrong"), ("SERVER_UNAVAILABLE", "open")]);
    // A wrong password is not an unavailable server.
    let text = error(&service.client().await, &["k=2"]).await;
    assert!(text.contains("WRONGPASS") || text.contains("uthentication"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn in_a_cluster_all_descriptors_of_a_request_are_in_one_slot() {
    let start = || Options::new().set("cluster-enabled", "yes").set("cluster-node-timeout", "60000").start();
    let nodes: Vec<Server> = (0..3).map(|_| start()).collect();
    for (index, (node, slots)) in nodes.iter().zip(["0 5460", "5461 10922", "10923 16383"]).enumerate() {
        let mut client = node.connect();
        client.call(&format!("CLUSTER SET-CONFIG-EPOCH {}", index + 1));
        client.call(&format!("CLUSTER ADDSLOTSRANGE {slots}"));
        client.call(&format!("CLUSTER MEET 127.0.0.1 {}", nodes[0].port()));
    }
    for node in &nodes {
        let mut client = node.connect();
        wait_until("the cluster to be well", || {
            let (info, known) = (client.text("CLUSTER INFO"), client.text("CLUSTER NODES"));
            let whole = info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:3");
            if whole && !known.contains("handshake") { Ok(()) } else { Err(format!("{info}{known}")) }
        });
    }
    let urls: Vec<String> = nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
    let rules = format!(
        "{RULES}  - {{key: user, descriptors: [{{key: k, rate_limit: {{unit: day, requests_per_unit: 5}}}}]}}
  - {{key: user, value: all, rate_limit: {{unit: day, requests_per_unit: 5}}}}
"
    );
    let service = Service::at(&urls.join(","), &rules, &[("REDIS_TYPE", "CLUSTER")]);
    let client = service.client().await;
    for user in 0..20 {
        assert_eq!(client.admitted(7, &[&format!("k={user}"), &format!("other={user}")]).await, 5);
    }
    let sizes: Vec<i64> = nodes.iter().map(|node| node.connect().int("DBSIZE")).collect();
    assert_eq!(sizes.iter().filter(|size| **size > 0).count(), 1, "one domain is on one shard: {sizes:?}");

    // With the first entry in braces, users are on all shards, each with all limits that begin with it.
    let service =
        Service::at(&urls.join(","), &format!("hash_tag: first_entry{rules}"), &[("REDIS_TYPE", "CLUSTER")]);
    let client = service.client().await;
    for user in 100..130 {
        assert_eq!(client.admitted(7, &[&format!("user={user},k=1"), &format!("user={user},k=2")]).await, 5);
    }
    for node in &nodes {
        assert!(node.connect().int("DBSIZE") > 0);
    }
    let text = error(&client, &["k=200", "other=200"]).await;
    assert!(text.contains("CROSSSLOT") || text.contains("slot"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failover_of_sentinels_continues_on_the_new_primary() {
    let first = Server::start();
    let second = Options::new().set("replicaof", &format!("127.0.0.1 {}", first.port())).start();
    let mut replica = second.connect();
    wait_until("the replica", || {
        let text = replica.text("INFO replication");
        if text.contains("master_link_status:up") { Ok(()) } else { Err(text) }
    });
    let sentinel = Options::sentinel(&format!(
        "sentinel monitor cell 127.0.0.1 {} 1\nsentinel down-after-milliseconds cell 60000\n",
        first.port()
    ))
    .start();
    let mut sentinels = sentinel.connect();
    wait_until("the sentinel to know the replica", || {
        let text = sentinels.text("INFO sentinel");
        if text.contains("slaves=1") { Ok(()) } else { Err(text) }
    });
    let url = format!("cell,127.0.0.1:{}", sentinel.port());
    let service = Service::at(&url, RULES, &[("REDIS_TYPE", "SENTINEL")]);
    let client = service.client().await;
    assert_eq!(client.admitted(2, &["k=1"]).await, 2);
    wait_until("the state on the replica", || match replica.int("DBSIZE") {
        1 => Ok(()),
        seen => Err(seen.to_string()),
    });
    wait_until("the failover to begin", || match sentinels.ask("SENTINEL FAILOVER cell") {
        Ok(_) => Ok(()),
        Err(error) => Err(error),
    });
    for (server, role) in [(&second, "master"), (&first, "slave")] {
        // The change ends the connections of clients.
        wait_until("the roles", || {
            let connection = common::Client::connect(server.port(), "");
            let seen = format!("{:?}", connection.map(|mut client| client.try_pipeline(&["ROLE"])));
            if seen.contains(role) { Ok(()) } else { Err(seen) }
        });
    }
    // The first requests may meet the old primary, which is read-only now and ends its connections.
    let request =
        || RateLimitRequest { domain: "d".into(), descriptors: vec![descriptor("k=2")], hits_addend: 0 };
    let mut tries = 0;
    while let Err(error) = client.send(request()).await {
        tries += 1;
        assert!(tries < 10_000, "{error}");
    }
    assert_eq!(client.admitted(5, &["k=1"]).await, 3);
}

/// Makes a certificate of `localhost`, which is its own authority, and its key: the files NAME.pem and
/// NAME.key.
fn certificate(folder: &Path, name: &str) {
    let openssl = |words: &str| {
        let output = Command::new("openssl").args(words.split(' ')).current_dir(folder).output().unwrap();
        assert!(output.status.success(), "openssl {words}: {}", String::from_utf8_lossy(&output.stderr));
    };
    let subject = "-subj /CN=localhost -addext subjectAltName=DNS:localhost";
    openssl(&format!("req -new -newkey rsa:2048 -nodes -keyout {name}.key -out {name}.csr {subject}"));
    let sign = format!("-signkey {name}.key -days 2 -copy_extensions copy");
    openssl(&format!("x509 -req -in {name}.csr {sign} -out {name}.pem"));
}

#[tokio::test(flavor = "multi_thread")]
async fn both_sides_can_be_encrypted() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["redis", "grpc", "envoy"] {
        certificate(folder.path(), name);
    }
    let file = |name: &str| folder.path().join(name).display().to_string();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let server = Options::new()
        .set("tls-port", &port.to_string())
        .set("tls-cert-file", &file("redis.pem"))
        .set("tls-key-file", &file("redis.key"))
        .set("tls-ca-cert-file", &file("envoy.pem"))
        .set("tls-auth-clients", "yes")
        .start();
    let settings = [
        ("REDIS_TLS", "true".to_owned()),
        ("REDIS_TLS_CACERT", file("redis.pem")),
        ("REDIS_TLS_CLIENT_CERT", file("envoy.pem")),
        ("REDIS_TLS_CLIENT_KEY", file("envoy.key")),
        ("GRPC_SERVER_USE_TLS", "true".to_owned()),
        ("GRPC_SERVER_TLS_CERT", file("grpc.pem")),
        ("GRPC_SERVER_TLS_KEY", file("grpc.key")),
        ("GRPC_CLIENT_TLS_CACERT", file("envoy.pem")),
    ];
    let settings: Vec<(&str, &str)> = settings.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let service = Service::at(&format!("localhost:{port}"), RULES, &settings);
    let read = |name: &str| std::fs::read(folder.path().join(name)).unwrap();
    let client =
        service.encrypted_client(&read("grpc.pem"), Some((&read("envoy.pem"), &read("envoy.key")))).await;
    assert_eq!(client.unwrap().admitted(7, &["k=1"]).await, 5);
    // Without a certificate of its own a client has no answer.
    let stranger = service.encrypted_client(&read("grpc.pem"), None).await;
    if let Ok(stranger) = stranger {
        error(&stranger, &["k=1"]).await;
    }
    drop(server);
}
