//! The most refused keys, compared with a map that counts all keys, which takes the memory that the algorithm
//! saves.

#![allow(clippy::restriction, reason = "a test that panics is a test that fails")]

mod common;

use std::collections::HashMap;

use common::{MS, at};
use proptest::prelude::*;
use redis_cell_core::Instant;
use redis_cell_core::top::{KEPT, Refused, Top, shown};

/// Every key's refusals, and the last.
#[derive(Default)]
struct Naive(HashMap<(i32, Vec<u8>), (u64, Option<Instant>)>);

impl Naive {
    fn note(&mut self, db: i32, key: &[u8], now: Instant) {
        let (count, last) = self.0.entry((db, key.to_vec())).or_default();
        (*count, *last) = (*count + 1, Some(now));
    }

    fn total(&self) -> u64 {
        self.0.values().map(|(count, _)| count).sum()
    }
}

/// All that the algorithm promises, for every database.
fn check(top: &Top, naive: &Naive, size: usize) {
    let (total, k) = (naive.total(), u64::try_from(size).unwrap());
    let mut seen = 0;
    for db in 0..3 {
        let rows = top.most(db, usize::MAX);
        for row in &rows {
            let key = naive.0.iter().find(|((of, key), _)| *of == db && shown(key) == row.key);
            let (_, (count, last)) = key.unwrap_or_else(|| panic!("{row:?} was never refused"));
            assert!(row.refusals <= *count && *count <= row.refusals + row.error, "{row:?}: {count} times");
            assert!(row.refusals >= 1 && row.error <= total / k, "{row:?} of {total}");
            assert_eq!(Some(row.last), *last, "{row:?}");
            seen += row.refusals + row.error;
        }
        assert!(rows.windows(2).all(|pair| pair[0].refusals >= pair[1].refusals), "{rows:?}");
        let mut names: Vec<&str> = rows.iter().map(|row| row.key.as_str()).collect();
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "twice: {names:?}");
        for ((of, key), (count, _)) in &naive.0 {
            let listed = *of != db || names.contains(&shown(key).as_str());
            assert!(listed || *count <= total / k, "{key:?}, refused {count} of {total} times, has no row");
        }
        for most in 0..=rows.len() {
            assert_eq!(top.most(db, most), rows[..most]);
        }
    }
    assert!(seen <= total, "the counts add up to no more than what was refused");
    if naive.0.len() <= size {
        let exact = naive.0.iter().all(|((db, key), (count, _))| {
            let rows = top.most(*db, usize::MAX);
            rows.iter().any(|row| row.key == shown(key) && (row.refusals, row.error) == (*count, 0))
        });
        assert!(exact, "as long as every key has a row, counts are exact");
    }
}

proptest! {
    /// Few keys that come often and many that come once, in any order.
    #[test]
    fn keeps_its_promises(
        size in 1_usize..12,
        refusals in prop::collection::vec((0..3, prop_oneof![0_u32..6, 0_u32..60, 0_u32..100_000]), 0..600),
    ) {
        let (mut top, mut naive) = (Top::new(size), Naive::default());
        for (i, (db, key)) in refusals.iter().enumerate() {
            let (key, now) = (format!("key:{key}"), at(i64::try_from(i).unwrap() * MS));
            top.note(*db, key.as_bytes(), now);
            naive.note(*db, key.as_bytes(), now);
        }
        check(&top, &naive, size);

        top.reset();
        prop_assert!((0..3).all(|db| top.most(db, usize::MAX).is_empty()));
        for (db, key) in refusals.iter().take(5) {
            top.note(*db, &key.to_le_bytes(), at(0));
        }
        let mut naive = Naive::default();
        for (db, key) in refusals.iter().take(5) {
            naive.note(*db, &key.to_le_bytes(), at(0));
        }
        check(&top, &naive, size);
    }

    /// The output is plain text, and determines the key to the byte.
    #[test]
    fn shows_any_bytes(key in prop::collection::vec(any::<u8>(), 0..40)) {
        let text = shown(&key);
        prop_assert!(!text.contains(char::is_control) && !text.contains('"'), "{text:?}");
        let mut bytes = text.bytes();
        let mut read = Vec::new();
        while let Some(byte) = bytes.next() {
            if byte == b'\\' {
                assert_eq!(bytes.next(), Some(b'x'));
                let digits = [bytes.next().unwrap(), bytes.next().unwrap()];
                read.push(u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap());
            } else {
                read.push(byte);
            }
        }
        prop_assert_eq!(read, key, "{}", text);
    }
}

fn listed(top: &Top) -> Vec<(String, u64, u64)> {
    top.most(0, usize::MAX)
        .into_iter()
        .map(|Refused { key, refusals, error, .. }| (key, refusals, error))
        .collect()
}

#[test]
fn a_newcomer_takes_over_the_smallest_count_once_it_may_have_as_much() {
    let mut top = Top::new(2);
    let row = |key: &str, refusals, error| (key.to_owned(), refusals, error);
    for key in ["a", "a", "a", "b", "b", "c"] {
        top.note(0, key.as_bytes(), at(0));
    }
    assert_eq!(listed(&top), [row("a", 3, 0), row("b", 2, 0)]);
    top.note(0, b"c", at(0));
    assert_eq!(listed(&top), [row("a", 3, 0), row("b", 2, 0)], "c has no more than b");
    top.note(0, b"c", at(0));
    assert_eq!(listed(&top), [row("a", 3, 0), row("c", 1, 2)]);
    top.note(0, b"b", at(0));
    // Both have 3 now, and b comes back with the count that it left. Whichever row is lost, no reported
    // number is wrong.
    assert_eq!(listed(&top).len(), 2);
    top.note(0, b"b", at(0));
    assert!(
        listed(&top).contains(&row("b", 1, 3)) || listed(&top).contains(&row("b", 2, 2)),
        "{:?}",
        listed(&top)
    );
}

/// The cells keep keys that come once from taking rows over, however many they are.
#[test]
fn keys_that_never_repeat_seldom_take_a_row() {
    let mut top = Top::new(16);
    let mut taken = 0;
    for key in 0..10_000_u32 {
        let key = format!("once:{key}");
        top.note(0, key.as_bytes(), at(0));
        taken += usize::from(listed(&top).iter().any(|(listed, ..)| *listed == key));
    }
    assert!((1_000..1_300).contains(&taken), "{taken} of 10,000");
}

#[test]
fn long_keys_are_cut_and_told_apart() {
    let mut top = Top::new(10);
    let long = vec![b'k'; 1 << 20];
    let mut other = long.clone();
    *other.last_mut().unwrap() = b'l';
    for key in [&long, &long, &other] {
        top.note(0, key, at(0));
    }
    let cut = format!("{}... ({} more bytes)", "k".repeat(KEPT), (1 << 20) - KEPT);
    assert_eq!(listed(&top), [(cut.clone(), 2, 0), (cut, 1, 0)]);

    top.reset();
    for len in [0, 1, KEPT - 1, KEPT] {
        top.note(0, &long[..len], at(0));
        assert!(listed(&top).contains(&("k".repeat(len), 1, 0)), "{len} bytes are not cut");
    }
    top.note(0, &long[..=KEPT], at(0));
    assert!(listed(&top).contains(&(format!("{}... (1 more bytes)", "k".repeat(KEPT)), 1, 0)));
}

/// Neither the counts of keys without a row nor the rows of others are remembered.
#[test]
fn what_was_reset_is_forgotten() {
    let mut top = Top::new(1);
    let note = |top: &mut Top, key: &[u8], times: usize| (0..times).for_each(|_| top.note(0, key, at(0)));
    note(&mut top, b"a", 3);
    note(&mut top, b"b", 2);
    top.reset();
    note(&mut top, b"a", 2);
    note(&mut top, b"b", 1);
    assert_eq!(listed(&top), [("a".to_owned(), 2, 0)], "b was refused once");
    top.reset();
    note(&mut top, b"b", 2);
    note(&mut top, b"a", 1);
    assert_eq!(listed(&top), [("b".to_owned(), 2, 0)], "the row is b's");
}

#[test]
fn without_rows_nothing_is_kept() {
    let mut top = Top::new(0);
    top.note(0, b"k", at(0));
    assert!(top.most(0, 9).is_empty());
}

#[test]
fn strange_keys_are_shown_safely() {
    for (key, text) in [
        (&b"user:42"[..], "user:42"),
        ("用户:42".as_bytes(), "用户:42"),
        (b"a b", "a b"),
        (b"\xff\xfe", "\\xff\\xfe"),
        (b"a\0b\r\n\x1b[31m", "a\\x00b\\x0d\\x0a\\x1b[31m"),
        (b"a\\b\"c", "a\\x5cb\\x22c"),
        // Characters that reverse the rest of a line, end a line, or are invisible.
        ("admin\u{202e}resu".as_bytes(), "admin\\xe2\\x80\\xaeresu"),
        ("a\u{2028}b\u{2029}c".as_bytes(), "a\\xe2\\x80\\xa8b\\xe2\\x80\\xa9c"),
        ("a\u{200b}b\u{feff}c\u{e0041}".as_bytes(), "a\\xe2\\x80\\x8bb\\xef\\xbb\\xbfc\\xf3\\xa0\\x81\\x81"),
        ("é ü ß ไทย हिन्दी 🦀".as_bytes(), "é ü ß ไทย हिन्दी 🦀"),
        (b"", ""),
    ] {
        assert_eq!(shown(key), text);
    }
}
