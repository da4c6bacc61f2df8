//! The model of a queue, in its short form, and every defect of it.

#![allow(clippy::panic, reason = "a test that panics is a test that fails")]

use redis_cell_verify::queue::{Defect, World};
use redis_cell_verify::{Size, check_all, find};

#[test]
fn holds_in_every_state() {
    let report = check_all(World::new(Size::Short, Defect::None));
    println!("{} states, at most {} actions", report.states, report.depth);
    report.assert_holds();
}

#[test]
fn finds_every_defect() {
    for (defect, property) in Defect::ALL {
        let report = find(World::new(Size::Short, defect), property);
        let Some((_, actions)) = report.broken.iter().find(|(name, _)| *name == property) else {
            panic!("{defect:?} is not found by \"{property}\": {report:#?}");
        };
        println!("{defect:?}: \"{property}\" does not hold: {actions}");
    }
}
