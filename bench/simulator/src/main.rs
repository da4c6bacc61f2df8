//! `make simulate`: the simulated tables and pictures of `docs/scaling.md` and `bench/scaling.md`.
//!
//! Gateways receive requests for keys. For each request they call a server, or they lease units from it, or
//! they share the limit in another way. The server and the clients run the core's own algorithms. The
//! traffic, the network and the time are simulated.
//!
//! ```text
//! redis-cell-simulator FOLDER             writes the tables and pictures into the project in this folder
//! redis-cell-simulator WAY KEY=VALUE...   runs one scenario: direct, leased, split, regional or shares; the
//!                                         keys are gateways, keys, zipf, skew, demand, burst, rate, near_ms,
//!                                         regions, far_ms, cut, seconds, seed, most and hold_ms (of leased),
//!                                         parts (of split)
//! ```

// A tool should fail at the first unexpected value. The lints against panics are for code inside a server.
#![allow(clippy::arithmetic_side_effects, clippy::expect_used, clippy::indexing_slicing)]
// Counts become floating-point numbers for statistics. They are far below 2^53.
#![allow(
    clippy::as_conversions,
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss
)]

mod draw;
mod measure;
mod tables;
mod world;

use std::error::Error;
use std::path::Path;
use std::str::FromStr;

use world::{Scenario, Way};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.split_first() {
        None => Err("usage: redis-cell-simulator FOLDER, or WAY KEY=VALUE...".into()),
        Some((way, settings))
            if ["direct", "leased", "split", "regional", "shares"].contains(&way.as_str()) =>
        {
            let scenario = scenario(way, settings)?;
            print!("{}", tables::table("way", [(way.clone(), &scenario.run())]));
            Ok(())
        }
        Some((folder, [])) => tables::write(Path::new(folder)),
        Some(_) => Err("a folder takes no settings".into()),
    }
}

/// Parses the scenario on the command line.
fn scenario(way: &str, settings: &[String]) -> Result<Scenario, Box<dyn Error>> {
    let mut scenario = Scenario::default();
    let (mut most, mut hold_ms, mut parts) = (100, 300, 16);
    for setting in settings {
        let (key, value) = setting.split_once('=').ok_or_else(|| format!("not KEY=VALUE: {setting}"))?;
        match key {
            "gateways" => scenario.gateways = number(setting, value)?,
            "keys" => scenario.keys = number(setting, value)?,
            "zipf" => scenario.zipf = number(setting, value)?,
            "skew" => scenario.skew = number(setting, value)?,
            "demand" => scenario.demand = number(setting, value)?,
            "burst" => scenario.burst = number(setting, value)?,
            "rate" => scenario.rate = number(setting, value)?,
            "near_ms" => scenario.near_ms = number(setting, value)?,
            "regions" => scenario.regions = number(setting, value)?,
            "far_ms" => scenario.far_ms = number(setting, value)?,
            "cut" => scenario.cut = number(setting, value)?,
            "seconds" => scenario.seconds = number(setting, value)?,
            "seed" => scenario.seed = number(setting, value)?,
            "most" => most = number(setting, value)?,
            "hold_ms" => hold_ms = number(setting, value)?,
            "parts" => parts = number(setting, value)?,
            _ => return Err(format!("no setting of this name: {setting}").into()),
        }
    }
    scenario.way = match way {
        "direct" => Way::Direct,
        "leased" => Way::Leased { most, hold_ms },
        "split" => Way::Split(parts),
        "regional" => Way::Regional,
        _ => Way::Shares,
    };
    scenario.check()?;
    Ok(scenario)
}

fn number<T: FromStr>(setting: &str, value: &str) -> Result<T, Box<dyn Error>> {
    value.parse().map_err(|_| format!("not a number: {setting}").into())
}
