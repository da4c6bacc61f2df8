//! The long form of the model of the queue; or `redis-cell-verify table`.

use std::process::ExitCode;

use redis_cell_verify::{Report, Size, check_all, queue, table};

fn main() -> ExitCode {
    if std::env::args().nth(1).is_some_and(|name| name == "table") {
        println!("{}", table::rows().join("\n"));
        return ExitCode::SUCCESS;
    }
    let report = check_all(queue::World::new(Size::Long, queue::Defect::None));
    let Report { states, depth, broken, missed } = report;
    println!("queue: {states} states, at most {depth} actions");
    println!("does not hold: {broken:#?}, never reached: {missed:#?}");
    if broken.is_empty() && missed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
