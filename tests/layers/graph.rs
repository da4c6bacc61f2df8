//! Circles in a graph of dependencies.

use super::house::Dependency;
use std::collections::{BTreeMap, BTreeSet};

/// The groups of files that all depend on each other, however indirectly.
pub fn circles(dependencies: &[Dependency]) -> Vec<Vec<String>> {
    let mut reached: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (file, on, _) in dependencies {
        reached.entry(file).or_default().insert(on);
    }
    // A few dozen files: following every path until nothing new is reached takes no time.
    loop {
        let before = reached.values().map(BTreeSet::len).sum::<usize>();
        for file in reached.keys().copied().collect::<Vec<_>>() {
            let next: Vec<&str> =
                reached[file].iter().filter_map(|on| reached.get(on)).flatten().copied().collect();
            reached.get_mut(file).unwrap().extend(next);
        }
        if reached.values().map(BTreeSet::len).sum::<usize>() == before {
            break;
        }
    }
    let reaches = |one: &str, other: &str| reached.get(one).is_some_and(|reached| reached.contains(other));
    let circle = |file: &str| {
        reached[file].iter().filter(|on| reaches(on, file)).map(|on| (*on).to_owned()).collect::<Vec<_>>()
    };
    let found: BTreeSet<Vec<String>> =
        reached.keys().map(|file| circle(file)).filter(|circle| !circle.is_empty()).collect();
    found.into_iter().collect()
}
