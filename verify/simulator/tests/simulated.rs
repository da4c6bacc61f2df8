//! The module that `REDIS_CELL_MODULE` names, in a simulated server: kept histories, fixed seeds, and, with
//! the module of `REDIS_CELL_FAULTY_MODULE`, that the oracles find what is wrong.

use std::path::Path;
use std::process::{Command, Output};

fn module(variable: &str, name: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the workspace");
        root.join("target/suite").join(name).display().to_string()
    })
}

fn simulate(fault: &str, arguments: &[&str]) -> Output {
    let module = match fault {
        "" => module("REDIS_CELL_MODULE", "libredis_cell.so"),
        _ => module("REDIS_CELL_FAULTY_MODULE", "libredis_cell_faulty.so"),
    };
    let mut simulate = Command::new(env!("CARGO_BIN_EXE_simulate"));
    simulate.args(arguments).arg(module).env("REDIS_CELL_FAULT", fault);
    simulate.output().expect("the simulator")
}

fn printed(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn kept_histories() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("histories");
    let files = std::fs::read_dir(folder).expect("kept histories");
    let files: Vec<String> = files.map(|file| file.expect("a file").path().display().to_string()).collect();
    assert!(files.len() > 5, "{files:?}");
    let arguments: Vec<&str> = files.iter().flat_map(|file| ["--file", file]).collect();
    let output = simulate("", &arguments);
    assert!(output.status.success(), "{}", printed(&output));
}

/// 240,000 steps.
#[test]
fn fixed_seeds() {
    let output = simulate("", &["--seeds", "1", "600"]);
    print!("{}", printed(&output));
    assert!(output.status.success(), "{}", printed(&output));
}

/// Each of these faults breaks a promise that an oracle watches.
#[test]
fn seeded_faults_are_found() {
    let faults = [
        ("charge-refused", "purity"),
        ("forget-holds", "contract"),
        ("forget-replies", "contract"),
        ("ignore-age", "contract"),
        ("ignore-flows", "contract"),
        ("keep-holds", "contract"),
        ("leak", "memory"),
        ("lose", "contract"),
        ("lose-effects", "replication"),
        ("no-expiry", "replication"),
        ("no-lead", "contract"),
        ("one-flow", "fair"),
        ("panic", "contract"),
        ("raw-clock", "contract"),
        ("round-down", "contract"),
        ("settle-takes", "contract"),
        ("shadow-refuses", "contract"),
        ("verbatim", "replication"),
        ("whole-parts", "contract"),
        ("write-at-once", "handles"),
        ("write-on-refusal", "purity"),
    ];
    for (fault, oracle) in faults {
        let output = simulate(fault, &["--seeds", "1", "300", "--first", "--no-shrink"]);
        let printed = printed(&output);
        assert!(printed.contains(&format!(": {oracle}, after")), "{fault}: {printed}");
    }
}

#[test]
fn a_seed_is_the_same_history_every_time() {
    let runs = [(); 2]
        .map(|()| printed(&simulate("lose-effects", &["--seeds", "1", "3", "--no-shrink", "--jobs", "1"])));
    let without_time = |text: &str| {
        text.lines().filter(|line| line.starts_with("seed")).map(String::from).collect::<Vec<_>>()
    };
    assert!(!without_time(&runs[0]).is_empty(), "{runs:?}");
    assert_eq!(without_time(&runs[0]), without_time(&runs[1]));
}
