//! A key of every kind of limiter, and what a server holds.

use crate::common::{Client, ceil_div, wall_ns};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Tests that load this machine run one after the other, because they do not test waiting for the processor.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The exact value of every key, and its expiry in milliseconds.
pub fn contents(client: &mut Client) -> BTreeMap<String, (Vec<String>, i64)> {
    let keys: Vec<String> = client.get("KEYS *");
    let value = |client: &mut Client, key: &str| -> Vec<String> {
        match client.text(&["TYPE", key]).as_str() {
            "string" => vec![client.text(&["GET", key])],
            "hash" => {
                let mut pairs: Vec<String> = client
                    .get::<Vec<(String, String)>, _>(&["HGETALL", key])
                    .into_iter()
                    .map(|(field, value)| format!("{field}={value}"))
                    .collect();
                pairs.sort();
                pairs
            }
            "zset" => client.get(&["ZRANGE", key, "0", "-1", "WITHSCORES"]),
            _ => vec![format!("{:?}", client.call(&["DUMP", key]))],
        }
    };
    keys.into_iter()
        .map(|key| {
            let held = (value(client, &key), client.expiry_ms(&key));
            (key, held)
        })
        .collect()
}

/// A kind of limiter.
pub struct Kind {
    pub name: &'static str,
    /// Takes one unit of a budget of `L` for the caller `ID`. `B` is `L` minus one.
    take: &'static str,
    /// The units taken, according to the state of the key.
    used: fn(&mut Client, &str, i64) -> i64,
}

/// No unit is replenished within an hour.
const INTERVAL_NS: i128 = 3_600_000_000_000;

#[rustfmt::skip]
pub const KINDS: [Kind; 10] = [
    Kind { name: "throttle", take: "CL.THROTTLE KEY B 1 3600", used: gcra },
    Kind { name: "mtake", take: "CL.MTAKE KEY THROTTLE B 1 3600 1 KEY-twin THROTTLE B 1 3600 1", used: twins },
    Kind { name: "bthrottle", take: "CL.BTHROTTLE KEY B 1 3600 1 0.001", used: gcra },
    Kind { name: "reserve", take: "CL.RESERVE KEY B 1 3600 1 MAXWAIT 0", used: gcra },
    Kind { name: "funnel", take: "CL.FUNNEL KEY L 1 3600", used: |c, key, limit| limit - field(c, key, "left_quota", limit) },
    Kind { name: "bucket", take: "CL.BUCKET KEY L 1 3600", used: |c, key, limit| limit - field(c, key, "tokens", limit) },
    Kind { name: "fixed", take: "CL.FIXED KEY L 36000", used: |c, key, _| c.tat(key).unwrap_or(0) },
    Kind { name: "window", take: "CL.WINDOW KEY L 7000000", used: |c, key, _| field(c, key, "current", 0) + field(c, key, "previous", 0) },
    Kind { name: "log", take: "CL.LOG KEY L 36000", used: |c, key, _| c.int(&["ZCARD", key]) },
    Kind { name: "acquire", take: "CL.ACQUIRE KEY L 36000 ID", used: |c, key, _| c.int(&["ZCARD", key]) },
];

fn gcra(client: &mut Client, key: &str, _: i64) -> i64 {
    client.tat(key).map_or(0, |tat| ceil_div(i128::from(tat) - i128::from(wall_ns()), INTERVAL_NS))
}

fn twins(client: &mut Client, key: &str, limit: i64) -> i64 {
    let used = gcra(client, key, limit);
    assert_eq!(gcra(client, &format!("{key}-twin"), limit), used, "all or nothing");
    used
}

fn field(client: &mut Client, key: &str, name: &str, missing: i64) -> i64 {
    client.get::<Option<i64>, _>(&["HGET", key, name]).unwrap_or(missing)
}

impl Kind {
    /// The key of this kind, which shares a slot with all keys of the same tag.
    pub fn key(&self, tag: &str) -> String {
        format!("{{{tag}}}{}", self.name)
    }

    pub fn call(&self, tag: &str, limit: i64, caller: &str) -> String {
        let words = self.take.split(' ').map(|word| match word {
            "B" => (limit - 1).to_string(),
            "L" => limit.to_string(),
            "ID" => caller.to_owned(),
            word => word.replace("KEY", &self.key(tag)),
        });
        words.collect::<Vec<_>>().join(" ")
    }

    pub fn used(&self, client: &mut Client, tag: &str, limit: i64) -> i64 {
        (self.used)(client, &self.key(tag), limit)
    }
}
