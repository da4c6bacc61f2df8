//! Servers in containers, on a network of their own that can be cut. `REDIS_CELL_IMAGE` names an image with a
//! server, and `REDIS_CELL_PORTABLE_MODULE` a module that runs in it. scripts/test-reliability.sh sets both
//! if an engine answers.

use crate::cluster::Members;
use crate::common::{self, Client, report_skip, unique_name, wait_until};
use std::time::Duration;

/// Runs `docker` with arguments that contain no spaces.
fn docker(arguments: &str) -> Result<String, String> {
    common::docker(&arguments.split_whitespace().collect::<Vec<_>>())
}

/// Nodes on two networks without a way out: they talk to each other on the one that can be cut, and clients
/// reach them on the other. Everything is removed when this is dropped.
pub struct Containers {
    name: String,
    /// The addresses of the nodes for each other.
    pub members: Members,
    /// The addresses for clients, which a cut of the other network does not affect.
    pub front: Vec<String>,
}

impl Containers {
    /// Returns `None`, and reports that the test is skipped, if there is no image to run. The address of each
    /// node is added to the options, unless there are none.
    pub fn start(count: usize, options: &str) -> Option<Self> {
        let set = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let (Some(image), Some(module)) = (set("REDIS_CELL_IMAGE"), set("REDIS_CELL_PORTABLE_MODULE")) else {
            report_skip("no containers: REDIS_CELL_IMAGE and REDIS_CELL_PORTABLE_MODULE name none");
            return None;
        };
        let name = unique_name();
        let mut this = Self { name: name.clone(), members: Members(Vec::new()), front: Vec::new() };
        docker(&format!("network create --internal {name}-front")).unwrap();
        // Fixed addresses need a named subnet, and another network may use this one.
        let subnet = (0..20)
            .map(|i| format!("10.{}.{}", 201 + i, std::process::id() % 250))
            .find(|subnet| {
                docker(&format!("network create --internal --subnet {subnet}.0/24 {name}-bus")).is_ok()
            })
            .expect("no subnet is free");
        for i in 0..count {
            let address = format!("{subnet}.{}", 10 + i);
            let own = if options.is_empty() { String::new() } else { format!("{options} {address}") };
            docker(&format!(
                "create --init --user nobody --name {name}-{i} --network {name}-front {image} \
                 redis-server --dir /var/tmp --protected-mode no --loadmodule /libredis_cell.so {own} \
                 --repl-diskless-sync-delay 0 --repl-ping-replica-period 1 --save 3600 1"
            ))
            .unwrap();
            docker(&format!("cp {module} {name}-{i}:/libredis_cell.so")).unwrap();
            docker(&format!("network connect --ip {address} {name}-bus {name}-{i}")).unwrap();
            docker(&format!("start {name}-{i}")).unwrap();
            let format = format!("{{{{(index .NetworkSettings.Networks \"{name}-front\").IPAddress}}}}");
            let front = common::docker(&["inspect", "--format", &format, &format!("{name}-{i}")]);
            this.front.push(format!("{}:6379", front.unwrap()));
            this.members.0.push(format!("{address}:6379"));
        }
        for address in &this.members.0 {
            wait_until("the server in the container to answer", || {
                let mut client = Client::connect_to(address, "", Duration::from_secs(2))?;
                client.try_pipeline(&["PING"]).map(drop)
            });
        }
        Some(this)
    }

    /// Cuts a node off from all others.
    pub fn cut(&self, node: usize) {
        docker(&format!("network disconnect {0}-bus {0}-{node}", self.name)).unwrap();
    }

    pub fn heal(&self, node: usize) {
        let (address, _) = self.members.0[node].split_once(':').unwrap();
        docker(&format!("network connect --ip {address} {0}-bus {0}-{node}", self.name)).unwrap();
    }

    pub fn kill(&self, node: usize) {
        docker(&format!("kill {}-{node}", self.name)).unwrap();
    }
}

impl Drop for Containers {
    fn drop(&mut self) {
        for i in 0..=self.members.0.len() {
            if std::thread::panicking()
                && let Ok(log) = docker(&format!("logs {}-{i}", self.name))
            {
                eprintln!("--- log of container {i} ---\n{log}\n--- end of log ---");
            }
            let _ = docker(&format!("rm --force --volumes {}-{i}", self.name));
        }
        for network in ["front", "bus"] {
            let _ = docker(&format!("network rm {}-{network}", self.name));
        }
    }
}
