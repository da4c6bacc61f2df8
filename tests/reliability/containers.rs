//! A cluster of containers on a network of its own that can be cut. `REDIS_CELL_IMAGE` names an image with a
//! server, and `REDIS_CELL_PORTABLE_MODULE` a module that runs in it. scripts/test-reliability.sh sets both
//! if an engine answers.

use crate::cluster::Members;
use crate::common::{self, Client, report_skip, unique_name, wait_until};
use crate::figures::figure;
use crate::load::{Load, Plan, alone};
use std::sync::Arc;
use std::time::{Duration, Instant};

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
    /// Nodes of a cluster, the first half of them primaries.
    fn cluster(count: usize) -> Option<Self> {
        let options = "--cluster-enabled yes --cluster-node-timeout 3000 --cluster-announce-ip";
        let this = Self::start(count, options)?;
        this.members.form(count / 2);
        Some(this)
    }

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

/// How long callers wait for an answer: answers from the cut network never arrive.
const PATIENCE: Duration = Duration::from_secs(1);

fn seconds(since: Instant) -> String {
    format!("{:.1} s", since.elapsed().as_secs_f64())
}

/// One primary is cut off, with callers on both sides of the cut; then the network heals.
#[test]
fn a_partition_costs_what_the_minority_admits_before_it_knows() {
    let _alone = alone();
    let Some(cluster) = Containers::cluster(6) else { return };
    let members = &cluster.members;
    let tags = members.tags(0..5461, 1);
    let limit = 400_000; // not to be used up here: what is admitted is counted
    let with_minority = cluster.front[0].clone();
    let plan = Plan {
        callers: 2,
        tags: tags.clone(),
        limit,
        guide: Arc::new(move |_| Some(with_minority.clone())),
        patience: PATIENCE,
    };
    let others = Members(members.0[1..].to_vec());
    let mut minority = Load::start(plan.clone());
    let mut majority = Load::start(Plan { guide: others.guide(), ..plan });
    minority.wait_for(2_000);
    majority.wait_for(2_000);

    let before = minority.admitted_each();
    let cut = Instant::now();
    cluster.cut(0);
    wait_until("the minority to refuse", || {
        minority.errors().get("CLUSTERDOWN").map(drop).ok_or_else(|| format!("{:?}", minority.errors()))
    });
    let alone_for = seconds(cut);
    // Earlier calls have timed out by now, so these are the majority's own.
    wait_until("the replica to take over", || {
        let mut client = members.connect(3);
        match client.info("role").as_str() {
            "master" => Ok(()),
            seen => Err(seen.to_owned()),
        }
    });
    let admitted = majority.admitted();
    majority.wait_for(admitted + 1_000);
    let outage = seconds(cut);
    let after = minority.admitted_each();
    let healed = Instant::now();
    cluster.heal(0);
    members.settle();
    let rejoined = seconds(healed);
    // Both continue, now with the same primary.
    let (here, there) = (minority.admitted(), majority.admitted());
    minority.wait_for(here + 1_000);
    majority.wait_for(there + 1_000);
    minority.stop();
    majority.stop();
    members.settle();
    members.assert_same([(3, 0)]);

    let used = majority.used_each(&mut members.owner(&tags[0]));
    let answered: Vec<i64> =
        minority.admitted_each().iter().zip(majority.admitted_each()).map(|(a, b)| a + b).collect();
    let callers = minority.callers() + majority.callers();
    let (mut admitted_alone, mut lost) = (0, 0);
    for (i, (used, answered)) in used.iter().zip(&answered).enumerate() {
        // All that is forgotten was admitted by the minority, on its own; nothing else is.
        let alone = after[i] - before[i];
        assert!(
            answered - used <= alone + callers,
            "key {i}: {answered} answered, {used} used, {alone} by the minority"
        );
        assert!(*used <= limit);
        admitted_alone += alone;
        lost += (answered - used).max(0);
    }
    figure("partition: the cut-off primary admits on its own for, node timeout 3 s", alone_for);
    figure("partition: from the cut to admissions by the majority", outage);
    figure("partition: from the healing to a cluster in step", rejoined);
    figure(
        "partition: answered admissions forgotten, over 10 keys",
        format!("{lost} of the {admitted_alone} that the cut-off primary admitted since the cut"),
    );
}

/// Each in turn under load: slots move, a primary dies, and the limits hold.
#[test]
fn a_cluster_of_containers_reshards_and_fails_over_under_load() {
    let _alone = alone();
    let Some(cluster) = Containers::cluster(6) else { return };
    let members = &cluster.members;
    let tags: Vec<String> =
        [0..100, 5500..10_900, 11_000..16_384].into_iter().flat_map(|range| members.tags(range, 1)).collect();
    let mut load = Load::start(Plan {
        callers: 4,
        tags: tags.clone(),
        limit: 20_000,
        guide: members.guide(),
        patience: PATIENCE,
    });
    load.wait_for(3_000);
    let (from, to) = (members.id(0), members.id(1));
    docker(&format!(
        "exec {}-0 redis-cli --cluster reshard {} --cluster-from {from} --cluster-to {to} --cluster-slots 100 --cluster-yes",
        cluster.name, members.0[0]
    ))
    .unwrap();
    assert_eq!(members.owner(&tags[0]).text("CLUSTER MYID"), to, "the slot has moved");
    let admitted = load.admitted();
    load.wait_for(admitted + 1_000);
    let killed = Instant::now();
    cluster.kill(1);
    wait_until("the replica to take over", || match members.connect(4).info("role").as_str() {
        "master" => Ok(()),
        seen => Err(seen.to_owned()),
    });
    figure(
        "containers: from a primary's death to its replica's promotion, node timeout 3 s",
        seconds(killed),
    );
    let admitted = load.admitted();
    load.wait_for(admitted + 1_000);
    docker(&format!("start {}-1", cluster.name)).unwrap();
    members.settle();
    load.stop();
    let seen = load.compare(|tag| members.owner(tag), load.callers());
    members.assert_same([(4, 1)]);
    figure(
        "containers: answered admissions forgotten after it",
        format!("{} of {}, 4 callers", seen.lost, load.admitted()),
    );
}
