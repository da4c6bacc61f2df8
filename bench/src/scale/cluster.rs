//! Clusters of one, three and six primaries with the same keys: a call costs the same on each.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write as _;
use std::net::TcpListener;
use std::ops::Range;
use std::thread;
use std::time::Duration;

use redis::Value;

use crate::lines::{Side, admitted};
use crate::load::{KEYS, Load, PIPELINED};
use crate::report::{Ratio, quantile, thousands};
use crate::scale::heading;
use crate::server::{Binaries, Cores, Kind, Server, on};

const ROUNDS: usize = 15;
const ROUND: Duration = Duration::from_millis(400);

/// The numbers of primaries. The others are compared with the first.
const SIZES: [usize; 3] = [1, 3, 6];
const SLOTS: usize = 16_384;

static ADMITTED: Side = admitted(Kind::Module);

pub fn run(binaries: &Binaries) -> Result<String, Box<dyn Error>> {
    let cores = Cores::choose();
    if let Some(cores) = cores {
        cores.pin_load()?;
    }
    let clusters = SIZES
        .iter()
        .map(|&size| {
            eprintln!("a cluster of {size} ...");
            start(size, binaries, cores)
        })
        .collect::<Result<Vec<_>, _>>()?;
    let mut shards = Vec::new();
    let mut keys = Vec::new();
    for cluster in &clusters {
        let numbers = spread(cluster)?;
        keys.push(numbers.iter().map(Vec::len).collect::<Vec<_>>());
        let loads = cluster.iter().zip(numbers);
        let loads =
            loads.map(|(server, numbers)| Load::prepare_keys(&ADMITTED, server, 0, PIPELINED, &numbers));
        shards.push(loads.collect::<Result<Vec<_>, _>>()?);
    }
    let mut rounds = Vec::new();
    for round in 0..=ROUNDS {
        let mut order: Vec<usize> = (0..shards.len()).collect();
        fastrand::shuffle(&mut order);
        let mut took = BTreeMap::new();
        for place in order {
            took.insert(place, together(&mut shards[place])?);
        }
        // The first round warms up the caches.
        if round > 0 {
            rounds.push(took.into_values().collect::<Vec<_>>());
        }
    }
    shards.into_iter().flatten().try_for_each(Load::finish)?;
    let mut text = format!(
        "{}: {ROUNDS} rounds of {} ms, {} keys, all primaries under load at once, on one core.\n\n\
         | primaries | keys on a primary | processor time of a call, mean of the primaries | cheapest and most \
         expensive primary | compared with 1 primary | quartiles |\n|--:|--:|--:|--:|--:|--:|\n",
        heading(binaries)?,
        ROUND.as_millis(),
        thousands(KEYS),
    );
    for (place, (size, keys)) in SIZES.iter().zip(keys).enumerate() {
        let mean = |took: &Vec<f64>| took.iter().sum::<f64>() / took.len() as f64;
        // Ratio compares the first value of each round with another one.
        let ratio = Ratio::of(&rounds, place, mean);
        let shards: Vec<f64> = (0..*size)
            .map(|shard| quantile(rounds.iter().map(|round| round[place][shard]), 0.5) / 1e3)
            .collect();
        let (least, most) = (quantile(shards.iter().copied(), 0.0), quantile(shards.iter().copied(), 1.0));
        let between =
            |least: String, most: String| if least == most { least } else { format!("{least} to {most}") };
        let fewest = thousands(keys.iter().copied().min().unwrap_or_default());
        writeln!(
            text,
            "| {size} | {} | {:.2} µs | {} µs | {:.2} | {:.2} to {:.2} |",
            between(fewest, thousands(keys.iter().copied().max().unwrap_or_default())),
            ratio.against / 1e3,
            between(format!("{least:.2}"), format!("{most:.2}")),
            ratio.against / ratio.ours,
            ratio.low,
            ratio.high,
        )?;
    }
    Ok(text)
}

/// Loads all primaries of a cluster at the same time. Returns the processor time of a call on each primary.
fn together(loads: &mut [Load]) -> Result<Vec<f64>, Box<dyn Error>> {
    let took: Vec<Result<f64, String>> = thread::scope(|scope| {
        let rounds: Vec<_> = loads
            .iter_mut()
            .map(|load| {
                scope.spawn(|| load.round(ROUND).map(|took| took.cpu).map_err(|error| error.to_string()))
            })
            .collect();
        rounds.into_iter().map(|round| round.join().expect("a load that ends")).collect()
    });
    Ok(took.into_iter().collect::<Result<_, _>>()?)
}

/// Returns the slots of a primary.
fn slots(place: usize, size: usize) -> Range<usize> {
    SLOTS * place / size..SLOTS * (place + 1) / size
}

/// Starts primaries that know each other and divide the slots among them.
fn start(size: usize, binaries: &Binaries, cores: Option<Cores>) -> Result<Vec<Server>, Box<dyn Error>> {
    let core = cores.map(|cores| on(cores.server)).unwrap_or_default();
    let mut cluster = Vec::new();
    let mut first = None;
    for place in 0..size {
        // The default port of the cluster bus could be above the largest port number.
        let bus = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port().to_string();
        let server = Server::start_under(
            &core,
            Kind::Module,
            binaries,
            &["--cluster-enabled", "yes", "--cluster-port", &bus, "--databases", "1"],
        )?;
        let mut connection = server.connect()?;
        let mine: Vec<usize> = slots(place, size).collect();
        redis::cmd("CLUSTER").arg("ADDSLOTS").arg(mine).exec(&mut connection)?;
        redis::cmd("CLUSTER").arg("SET-CONFIG-EPOCH").arg(place + 1).exec(&mut connection)?;
        let (port, bus) = first.get_or_insert((server.port, bus));
        redis::cmd("CLUSTER").arg("MEET").arg("127.0.0.1").arg(*port).arg(&*bus).exec(&mut connection)?;
        cluster.push(server);
    }
    for server in &cluster {
        let mut connection = server.connect()?;
        let known = format!("cluster_known_nodes:{size}\r\n");
        loop {
            let info: String = redis::cmd("CLUSTER").arg("INFO").query(&mut connection)?;
            if info.contains("cluster_state:ok") && info.contains(&known) {
                break;
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
    Ok(cluster)
}

/// Returns the numbers of the keys of each primary.
fn spread(cluster: &[Server]) -> Result<Vec<Vec<usize>>, Box<dyn Error>> {
    let mut pipeline = redis::pipe();
    for number in 0..KEYS {
        pipeline.cmd("CLUSTER").arg("KEYSLOT").arg(format!("key:{number:012}"));
    }
    let all: Vec<Value> = pipeline.query(&mut cluster[0].connect()?)?;
    let mut spread = vec![Vec::new(); cluster.len()];
    for (number, slot) in all.iter().enumerate() {
        let Value::Int(slot) = slot else { return Err(format!("not a slot: {slot:?}").into()) };
        let slot = usize::try_from(*slot)?;
        let place = (0..cluster.len()).find(|&place| slots(place, cluster.len()).contains(&slot));
        spread[place.ok_or("a slot of no primary")?].push(number);
    }
    Ok(spread)
}
