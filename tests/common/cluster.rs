//! Clusters on loopback, and certificates.

use super::{Client, Options, Server, wait_until};
use std::path::Path;
use std::process::Command;

/// Primaries with these options that share the slots evenly.
pub fn cluster(primaries: usize, options: impl Fn() -> Options) -> Vec<Server> {
    let start = || options().set("cluster-enabled", "yes").set("cluster-node-timeout", "60000").start();
    let nodes: Vec<Server> = (0..primaries).map(|_| start()).collect();
    let first = format!("127.0.0.1 {}", nodes[0].port());
    meet(nodes.iter().map(Server::connect), &first, primaries);
    wait_for_cluster(&nodes.iter().collect::<Vec<_>>());
    nodes
}

/// Lets nodes meet the first one, by its host and port. The primaries come first, and share the slots evenly.
pub fn meet(nodes: impl Iterator<Item = Client>, first: &str, primaries: usize) {
    for (index, mut node) in nodes.enumerate() {
        node.call(&format!("CLUSTER SET-CONFIG-EPOCH {}", index + 1));
        if index < primaries {
            let slots = (0..16384).filter(|slot| slot * primaries / 16384 == index);
            let slots: Vec<String> = slots.map(|slot| slot.to_string()).collect();
            node.call(&format!("CLUSTER ADDSLOTS {}", slots.join(" ")));
        }
        node.call(&format!("CLUSTER MEET {first}"));
    }
}

/// Waits until all slots are served, and each of the nodes knows all of them.
pub fn wait_for_cluster(nodes: &[&Server]) {
    let all = format!("cluster_known_nodes:{}", nodes.len());
    for node in nodes {
        let mut client = node.connect();
        wait_until("the cluster to be well", || {
            let (info, known) = (client.text("CLUSTER INFO"), client.text("CLUSTER NODES"));
            let whole = info.contains("cluster_state:ok") && info.contains(&all);
            if whole && !known.contains("handshake") { Ok(()) } else { Err(format!("{info}{known}")) }
        });
    }
}

/// Makes a certificate of some hosts, such as `DNS:localhost`, which is its own authority, and its key: the
/// files NAME.pem and NAME.key. A number of days below zero makes one that has expired.
pub fn certificate(folder: &Path, name: &str, hosts: &str, days: i32) {
    let openssl = |words: &str| {
        let output = Command::new("openssl").args(words.split(' ')).current_dir(folder).output().unwrap();
        assert!(output.status.success(), "openssl {words}: {}", String::from_utf8_lossy(&output.stderr));
    };
    // OpenSSL looks for an authority by this name, so it is not the same for all.
    let subject = format!("-subj /CN={name} -addext subjectAltName={hosts}");
    openssl(&format!("req -new -newkey rsa:2048 -nodes -keyout {name}.key -out {name}.csr {subject}"));
    let sign = format!("-signkey {name}.key -days {days} -copy_extensions copy");
    openssl(&format!("x509 -req -in {name}.csr {sign} -out {name}.pem"));
}
