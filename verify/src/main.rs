//! The long form of the model of a queue, or with the argument `table` the calls that the proofs are compared
//! with.

use redis_cell_verify::queue::{Defect, World};
use redis_cell_verify::{Size, check_all, table};

fn main() {
    if std::env::args().nth(1).as_deref() == Some("table") {
        println!("{}", table::rows().join("\n"));
        return;
    }
    let report = check_all(World::new(Size::Long, Defect::None));
    println!("{} states, at most {} actions", report.states, report.depth);
    report.assert_holds();
}
