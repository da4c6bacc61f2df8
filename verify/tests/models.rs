//! Every model, in its short form, and every defect of it.

#![allow(clippy::panic, reason = "a test that panics is a test that fails")]

use redis_cell_verify::{self as verify, Report, Size, check_all, find};

fn holds(name: &str, report: &Report) {
    println!("{name}: {} states, at most {} actions", report.states, report.depth);
    assert!(report.broken.is_empty(), "{:#?}", report.broken);
    assert!(report.missed.is_empty(), "never reached: {:?}", report.missed);
}

fn finds(defect: &dyn core::fmt::Debug, property: &str, report: &Report) {
    let found = report.broken.iter().find(|(name, _)| *name == property);
    let Some((_, actions)) = found else {
        panic!("{defect:?} is not found by \"{property}\": {} states, {:#?}", report.states, report.broken);
    };
    println!("{defect:?}: \"{property}\" does not hold: {actions}");
}

macro_rules! models {
    ($($model:ident)*) => {
        $(mod $model {
            use super::*;
            use verify::$model::{Defect, World};

            #[test]
            fn holds_in_every_state() {
                holds(stringify!($model), &check_all(World::new(Size::Short, Defect::None)));
            }

            #[test]
            fn finds_every_defect() {
                for (defect, property) in Defect::ALL {
                    finds(&defect, property, &find(World::new(Size::Short, defect), property));
                }
            }
        })*
    };
}

models! { queue leases }
