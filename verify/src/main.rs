//! The long forms: `redis-cell-verify MODEL...`, or all models; and `redis-cell-verify table`.

use std::process::ExitCode;
use std::time::Instant;

use redis_cell_verify::{Report, Size, check_all, leases, queue, table};

fn main() -> ExitCode {
    let named: Vec<String> = std::env::args().skip(1).collect();
    if named == ["table"] {
        println!("{}", table::rows().join("\n"));
        return ExitCode::SUCCESS;
    }
    let mut holds = true;
    let mut run = |name: &str, check: &dyn Fn() -> Report| {
        if !named.is_empty() && named.iter().all(|other| other != name) {
            return;
        }
        let start = Instant::now();
        let report = check();
        let (seconds, Report { states, depth, broken, missed }) = (start.elapsed().as_secs(), report);
        println!("{name}: {states} states, at most {depth} actions, {seconds} s");
        for (property, actions) in &broken {
            println!("    does not hold: {property}: {actions}");
        }
        for situation in &missed {
            println!("    never reached: {situation}");
        }
        holds &= broken.is_empty() && missed.is_empty();
    };
    run("queue", &|| check_all(queue::World::new(Size::Long, queue::Defect::None)));
    run("leases", &|| check_all(leases::World::new(Size::Long, leases::Defect::None)));
    if holds { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
