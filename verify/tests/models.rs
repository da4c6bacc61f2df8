//! The model of the queue, in its short form, and every defect of it.

#![allow(clippy::panic, reason = "a test that panics is a test that fails")]

use redis_cell_verify::queue::{Defect, World};
use redis_cell_verify::{Size, check_all, find};

#[test]
fn holds_in_every_state() {
    let report = check_all(World::new(Size::Short, Defect::None));
    println!("{} states, at most {} actions", report.states, report.depth);
    assert!(report.broken.is_empty(), "{:#?}", report.broken);
    assert!(report.missed.is_empty(), "never reached: {:?}", report.missed);
}

#[test]
fn finds_every_defect() {
    for (defect, property) in Defect::ALL {
        let report = find(World::new(Size::Short, defect), property);
        let found = report.broken.iter().find(|(name, _)| *name == property);
        let (_, actions) = found.unwrap_or_else(|| panic!("{defect:?} is not found: {:#?}", report.broken));
        println!("{defect:?}: \"{property}\" does not hold: {actions}");
    }
}
