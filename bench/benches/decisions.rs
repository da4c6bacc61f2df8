//! `make bench-core`: the time of the core's decisions, without a server. Arguments and state are in the
//! cache.
//!
//! The results are in `target/criterion`, where `make bench-publish` finds them.

// A tool should fail at the first unexpected value. The lints against panics are for code inside a server.
#![allow(clippy::expect_used, missing_docs)]

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use redis_cell_core::{Instant, Tail, Unit, bucket, fixed, gcra, window};

/// Nanoseconds since the epoch, an hour before [`NOW`] and after it.
const NOW: u64 = 1_700_000_000_000_000_000;
const HOUR: u64 = 3_600_000_000_000;

fn at(nanos: u64) -> Instant {
    Instant::from_nanos(nanos).expect("before 2262")
}

fn decisions(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("decisions");
    group.warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1)).sample_size(50);
    let now = at(NOW);

    let limit = gcra::Limit::new(1_000_000, 1, 1, Unit::Seconds).expect("a limit");
    let tight = gcra::Limit::new(0, 1, 3600, Unit::Seconds).expect("a limit");
    let taken = Some(at(NOW + HOUR));
    group.bench_function("GCRA: throttle, admitted", |bencher| {
        bencher.iter(|| gcra::throttle(black_box(taken), black_box(&limit), black_box(now), black_box(1)));
    });
    group.bench_function("GCRA: throttle, refused", |bencher| {
        bencher.iter(|| gcra::throttle(black_box(taken), black_box(&tight), black_box(now), black_box(1)));
    });
    group.bench_function("GCRA: peek", |bencher| {
        bencher.iter(|| gcra::peek(black_box(taken), black_box(&limit), black_box(now), black_box(1)));
    });

    let bucket = bucket::Limit::new(1_000_000, 1, 1, Unit::Seconds).expect("a limit");
    let level = Some(bucket::Level { free: 1_000, since: now });
    group.bench_function("bucket and funnel: take", |bencher| {
        bencher.iter(|| bucket::take(black_box(level), black_box(&bucket), black_box(now), black_box(1)));
    });

    let quota = fixed::Limit::new(1_000_000, 3600, Unit::Seconds).expect("a limit");
    let counter = Some(fixed::Counter { count: 1_000, end: at(NOW + HOUR) });
    group.bench_function("fixed window: take", |bencher| {
        bencher.iter(|| fixed::take(black_box(counter), black_box(&quota), black_box(now), black_box(1)));
    });
    let limit = window::Limit::new(1_000_000, 3600, Unit::Seconds).expect("a limit");
    let sliding = Some(window::Sliding { start: at(NOW - NOW % HOUR), current: 1_000, previous: 1_000 });
    group.bench_function("sliding window: take", |bencher| {
        bencher.iter(|| window::take(black_box(sliding), black_box(&limit), black_box(now), black_box(1)));
    });

    let digits = (NOW + HOUR).to_string();
    group.bench_function("reading a TAT's digits", |bencher| {
        bencher.iter(|| gcra::decode(black_box(digits.as_bytes()), black_box(now), || None));
    });
    let words: [&[u8]; 3] = [b"15", b"30", b"60"];
    group.bench_function("reading the limit 15 30 60", |bencher| {
        bencher.iter(|| gcra::Limit::parse(black_box(words), Unit::Seconds));
    });
    let tail: [&[u8]; 2] = [b"10", b"MS"];
    group.bench_function("reading the rest 10 MS", |bencher| {
        bencher.iter(|| Tail::parse(black_box(tail), &[]));
    });
    group.finish();
}

criterion_group!(benches, decisions);
criterion_main!(benches);
