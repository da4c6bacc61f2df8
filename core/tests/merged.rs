//! Merged calls: whatever the row, its callers get the answers that calls of their own would have got.

#![allow(clippy::restriction, reason = "a test that panics is a test that fails")]

mod common;

use common::{S, after, at, span};
use proptest::prelude::*;
use redis_cell_core::Unit::{Microseconds, Seconds};
use redis_cell_core::bucket::{self, Level};
use redis_cell_core::fixed::{self, Counter};
use redis_cell_core::gcra;
use redis_cell_core::limiter::{Limiter, behind, peek_behind};
use redis_cell_core::merged::{Grants, Limit, Line, Reply, tail};
use redis_cell_core::{Answer, Instant, Rate, Span, Verdict};
use std::collections::BTreeMap;

/// A row of quantities that are mostly small.
fn rows() -> impl Strategy<Value = Vec<i64>> {
    prop::collection::vec(prop_oneof![6 => Just(1_i64), 2 => 1..4_i64, 1 => 1..30_i64], 0..12)
}

/// The units that callers take one after the other, all or nothing.
fn one_by_one(row: &[i64], available: i64) -> i64 {
    row.iter()
        .fold(0, |taken, &quantity| if taken + quantity <= available { taken + quantity } else { taken })
}

fn tail_of(row: &[i64]) -> usize {
    tail(row.iter().rev().copied().map(Some))
}

/// Sends a row to a limiter: its complete ends as one call each, the others by themselves. Returns the five
/// numbers of each caller in microseconds, the units taken, and the number of calls.
fn merged<L: Limiter>(
    limiter: &L,
    limit: Limit,
    mut state: Option<L::State>,
    row: &[i64],
) -> (Vec<[i64; 5]>, i64, usize) {
    let mut parts = Vec::new();
    let mut rest = row;
    while !rest.is_empty() {
        let (before, part) = rest.split_at(rest.len() - tail_of(rest));
        parts.insert(0, part);
        rest = before;
    }
    let (mut answers, mut taken) = (Vec::new(), 0);
    for part in &parts {
        if let &[quantity] = *part {
            let decision = limiter.take(state, at(0), quantity).unwrap();
            taken += if decision.answer.limited() { 0 } else { quantity };
            answers.push(decision.answer.reply(Microseconds).five);
            state = after(&decision, state);
            continue;
        }
        let decision = limiter.saturate(state, at(0), part.iter().sum()).unwrap();
        let reply = decision.answer.reply(Microseconds);
        let micros = |number: i64| span(number * 1_000);
        let reply = Reply {
            taken: reply.taken.unwrap(),
            remaining: reply.five[2],
            retry_after: (reply.five[3] >= 0).then(|| (micros(reply.five[3]), 1)),
            reset_after: micros(reply.five[4]),
        };
        let mut grants = Grants::new(limit, reply);
        answers.extend(part.iter().map(|&quantity| grants.next(quantity).reply(Microseconds).five));
        let admitted = |(answer, quantity): (&[i64; 5], &i64)| if answer[0] == 0 { *quantity } else { 0 };
        let own = answers[answers.len() - part.len()..].iter().zip(*part).map(admitted).sum::<i64>();
        assert_eq!(own, reply.taken, "{part:?}: no unit may be held, and none granted twice");
        taken += own;
        state = after(&decision, state);
    }
    (answers, taken, parts.len())
}

/// The same by calls of their own.
fn direct<L: Limiter>(limiter: &L, mut state: Option<L::State>, row: &[i64]) -> (Vec<[i64; 5]>, i64) {
    let (mut answers, mut taken) = (Vec::new(), 0);
    for &quantity in row {
        let decision = limiter.take(state, at(0), quantity).unwrap();
        taken += if decision.answer.limited() { 0 } else { quantity };
        answers.push(decision.answer.reply(Microseconds).five);
        state = after(&decision, state);
    }
    (answers, taken)
}

/// Decisions are the same, and times at most this many microseconds longer.
fn same<L: Limiter>(limiter: &L, limit: Limit, state: Option<L::State>, row: &[i64], longer: i64) {
    // A quantity above the limit goes alone in clients.
    let row: Vec<i64> = row.iter().map(|&quantity| quantity.min(limit.most())).collect();
    let (answers, ..) = merged(limiter, limit, state, &row);
    for (merged, direct) in answers.iter().zip(direct(limiter, state, &row).0) {
        assert_eq!((&merged[..3], merged[3] < 0), (&direct[..3], direct[3] < 0), "{row:?}");
        let is_near = |time: usize| (0..=longer).contains(&(merged[time] - direct[time]));
        assert!(is_near(3) && is_near(4), "{merged:?}, not {direct:?}, of {row:?}");
    }
}

/// A GCRA limiter and a bucket of this many units, in intervals of whole nanoseconds: their limit, and each
/// with the same units missing, as a time.
fn of_a_rate(
    most: i64,
    (count, period): (i64, i64),
    debt: i64,
) -> (Limit, (gcra::Limit, Instant), (bucket::Limit, Level)) {
    let rate = Rate::new(count, period, Microseconds).unwrap();
    let interval = period * 1_000 / count;
    let level = Level { free: most - debt / interval, since: at(-(debt % interval)) };
    (
        Limit::Rated { rate, capacity: most },
        (gcra::Limit::new(most - 1, count, period, Microseconds).unwrap(), at(debt)),
        (bucket::Limit::new(most, count, period, Microseconds).unwrap(), level),
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn the_longest_complete_end_is_found(row in rows()) {
        let is_complete = |row: &[i64]| {
            let sum: i64 = row.iter().sum();
            (0..=sum + 1).all(|available| one_by_one(row, available) == sum.min(available))
        };
        // The end of a complete row is complete, so the first one that is not ends the search.
        let longest = (0..=row.len()).take_while(|&length| is_complete(&row[row.len() - length..])).last();
        prop_assert_eq!(tail_of(&row), longest.unwrap().max(usize::from(!row.is_empty())));
    }

    #[test]
    fn whole_microseconds_make_all_answers_the_same(
        row in rows(), burst in 0..20_i64, interval in 1..5_000_i64, debt in 0..40_000_000_i64, empty in any::<bool>()
    ) {
        let debt = debt % (2 * (burst + 1) * interval * 1_000);
        let (limit, (limiter, tat), (bucket, level)) = of_a_rate(burst + 1, (1, interval), debt);
        same(&limiter, limit, (!empty).then_some(tat), &row, 0);
        same(&bucket, limit, (!empty).then_some(level), &row, 0);
    }

    #[test]
    fn whole_nanoseconds_round_times_up_by_a_microsecond_at_most(
        row in rows(), burst in 0..20_i64, interval in 1..3_000_i64, debt in 0..60_000_i64
    ) {
        let (limit, (limiter, tat), (bucket, level)) = of_a_rate(burst + 1, (1_000, interval), debt);
        same(&limiter, limit, Some(tat), &row, 1);
        same(&bucket, limit, Some(level), &row, 1);
    }

    #[test]
    fn other_intervals_never_take_more(
        row in rows(), burst in 0..20_i64, count in 1..3_000_i64, period in 1..3_000_i64, debt in 0..60_000_i64,
        free in -5..20_i64
    ) {
        let count = count.min(period * 1_000);
        let rate = Rate::new(count, period, Microseconds).unwrap();
        let limit = Limit::Rated { rate, capacity: burst + 1 };
        let limiter = gcra::Limit::new(burst, count, period, Microseconds).unwrap();
        let row: Vec<i64> = row.iter().map(|&quantity| quantity.min(burst + 1)).collect();
        let part = &row[row.len() - tail_of(&row)..];
        // Each caller is forgiven less than a nanosecond, which can complete one more unit.
        let forgiven = rate.units(span(i64::try_from(part.len()).unwrap())) + 1;
        let (_, taken, _) = merged(&limiter, limit, Some(at(debt)), part);
        let (_, own) = direct(&limiter, Some(at(debt)), part);
        prop_assert!((taken..=taken + forgiven).contains(&own), "{taken}, not {own}, for {part:?}");
        let limiter = bucket::Limit::new(burst + 1, count, period, Microseconds).unwrap();
        let level = Some(Level { free: free.min(burst + 1), since: at(-debt) });
        let (_, taken, _) = merged(&limiter, limit, level, part);
        let (_, own) = direct(&limiter, level, part);
        prop_assert!((taken..=taken + forgiven).contains(&own), "{taken}, not {own}, for {part:?}");
    }

    #[test]
    fn fixed_windows_give_the_same_answers(
        row in rows(), most in 1..20_i64, used in 0..30_i64, left in 1..60_000_000_000_i64
    ) {
        let limiter = fixed::Limit::new(most, 60, Seconds).unwrap();
        let state = (used > 0).then(|| Counter { count: used, end: at(left) });
        same(&limiter, Limit::Counted(most), state, &row, 0);
    }
}

/// A limiter of a mix in a server.
trait Keyed {
    /// Returns the answer of the limiter, and the limiter after the call.
    fn take(&self, now: Instant, quantity: i64) -> (Answer, Box<dyn Keyed>);
    fn peek(&self, now: Instant, quantity: i64) -> Answer;
}

#[derive(Clone, Copy)]
struct Stored<L: Limiter> {
    limit: L,
    state: Option<L::State>,
    /// Units for which clients wait.
    queue: i64,
    has_ended: fn(&L::State, Instant) -> bool,
}

impl<L: Limiter + Copy + 'static> Stored<L> {
    fn state(&self, now: Instant) -> Option<L::State> {
        self.state.filter(|state| !(self.has_ended)(state, now))
    }

    fn costs(&self) -> u64 {
        self.limit.cost(self.queue).unwrap()
    }
}

impl<L: Limiter + Copy + 'static> Keyed for Stored<L> {
    fn take(&self, now: Instant, quantity: i64) -> (Answer, Box<dyn Keyed>) {
        let state = self.state(now);
        let decide = |state| self.limit.take(state, now, quantity);
        let decision = if self.queue == 0 {
            decide(state)
        } else {
            behind(&self.limit, state, now, quantity, self.costs(), decide)
        };
        let decision = decision.unwrap();
        (decision.answer, Box::new(Self { state: after(&decision, state), ..*self }))
    }

    fn peek(&self, now: Instant, quantity: i64) -> Answer {
        peek_behind(&self.limit, self.state(now), now, quantity, self.costs()).unwrap()
    }
}

type Keys = Vec<Box<dyn Keyed>>;

/// A call for several limiters: from all or from none.
fn mtake(keys: &mut Keys, now: Instant, quantities: &[i64]) -> Vec<Answer> {
    let (rows, after): (Vec<_>, Vec<_>) =
        keys.iter().zip(quantities).map(|(key, &quantity)| key.take(now, quantity)).unzip();
    if rows.iter().all(|row| !row.limited()) {
        *keys = after;
        return rows;
    }
    keys.iter().zip(quantities).map(|(key, &quantity)| key.peek(now, quantity)).collect()
}

fn five(rows: &[Answer]) -> Vec<[i64; 5]> {
    rows.iter().map(|row| row.reply(Microseconds).five).collect()
}

fn copied(keys: &Keys) -> Keys {
    keys.iter().map(|key| key.take(at(0), 0).1).collect()
}

/// A limiter of a mix: its kind, its limit, its interval in microseconds, what is taken, and who waits.
#[derive(Clone, Debug)]
struct Made {
    kind: u8,
    most: i64,
    interval: i64,
    used: i64,
    queue: i64,
}

impl Made {
    fn limit(&self) -> Limit {
        match self.kind {
            0 => Limit::Counted(self.most),
            _ => {
                Limit::Rated { rate: Rate::new(1, self.interval, Microseconds).unwrap(), capacity: self.most }
            }
        }
    }

    fn key(&self) -> Box<dyn Keyed> {
        let Self { kind, most, interval, used, queue } = *self;
        match kind {
            0 => Box::new(Stored {
                limit: fixed::Limit::new(most, interval, Microseconds).unwrap(),
                state: (used > 0).then(|| Counter { count: used, end: at(interval * 1_000) }),
                queue,
                has_ended: |state, now| state.end <= now,
            }),
            1 => Box::new(Stored {
                limit: gcra::Limit::new(most - 1, 1, interval, Microseconds).unwrap(),
                state: (used > 0).then(|| at(used * interval * 1_000 - 77)),
                queue,
                has_ended: |_, _| false,
            }),
            _ => Box::new(Stored {
                limit: bucket::Limit::new(most, 1, interval, Microseconds).unwrap(),
                state: (used > 0).then(|| Level { free: most - used, since: at(-77) }),
                queue,
                has_ended: |_, _| false,
            }),
        }
    }
}

fn made(queues: bool) -> impl Strategy<Value = Made> {
    let queue = if queues { prop_oneof![3 => Just(0), 1 => 1..6_i64].boxed() } else { Just(0).boxed() };
    (0..3_u8, 1..20_i64, 1..5_000_i64, 0..22_i64, queue)
        .prop_map(|(kind, most, interval, used, queue)| Made { kind, most, interval, used, queue })
}

#[derive(Clone, Debug)]
enum Event {
    /// A caller comes, with a quantity for each limiter.
    Comes([i64; 3]),
    /// Somebody else takes.
    Other([i64; 3]),
    /// The next thing happens to the call on its way: the server decides it, or its reply arrives.
    Goes,
    /// The call on its way gets an error.
    Fails,
    /// One of the callers that wait leaves.
    Leaves(usize),
    /// Microseconds pass.
    Passes(i64),
}

fn events(others: bool) -> impl Strategy<Value = Vec<Event>> {
    let quantity = || prop_oneof![5 => Just(1_i64), 2 => 1..4_i64, 1 => 1..20_i64];
    let three = move || [quantity(), quantity(), quantity()];
    let event = prop_oneof![
        8 => three().prop_map(Event::Comes),
        8 => Just(Event::Goes),
        if others { 4 } else { 0 } => three().prop_map(Event::Other),
        1 => Just(Event::Fails),
        1 => any::<usize>().prop_map(Event::Leaves),
        4 => (0..3_000_i64).prop_map(Event::Passes),
    ];
    prop::collection::vec(event, 1..80)
}

struct Caller(usize, Vec<i64>);

impl AsRef<[i64]> for Caller {
    fn as_ref(&self) -> &[i64] {
        &self.1
    }
}

/// A process whose callers share calls, and a server.
struct Process {
    line: Line<Caller>,
    keys: Keys,
    now: i64,
    quantities: Vec<Vec<i64>>,
    /// The callers without an answer, and after how many calls since they came.
    open: BTreeMap<usize, usize>,
    /// The call on its way: its quantities, and its one caller if it reads its own reply.
    sent: Option<(Vec<i64>, Option<usize>)>,
    /// The rows of the reply on its way, and the limiters and the instant at which it was decided.
    replied: Option<(Vec<Answer>, Keys, Instant)>,
    /// Who was there when the call was sent.
    there: Vec<usize>,
    /// What calls of their own would have got, at the instant of the last reply that decides them.
    own: BTreeMap<usize, Vec<[i64; 5]>>,
    /// Units that callers have got of each limiter, and those that the server has given.
    got: Vec<i64>,
    given: Vec<i64>,
    most_calls: usize,
}

fn add(sum: &mut [i64], more: &[i64]) {
    for (sum, more) in sum.iter_mut().zip(more) {
        *sum += more;
    }
}

impl Process {
    fn new(limiters: &[Made]) -> Self {
        Self {
            line: Line::new(limiters.iter().map(Made::limit)),
            keys: limiters.iter().map(Made::key).collect(),
            now: 0,
            quantities: Vec::new(),
            open: BTreeMap::new(),
            sent: None,
            replied: None,
            there: Vec::new(),
            own: BTreeMap::new(),
            got: vec![0; limiters.len()],
            given: vec![0; limiters.len()],
            most_calls: 0,
        }
    }

    fn comes(&mut self, quantities: Vec<i64>) {
        let caller = self.quantities.len();
        self.quantities.push(quantities.clone());
        self.open.insert(caller, 0);
        if self.sent.is_some() {
            self.line.push(Caller(caller, quantities));
            return;
        }
        self.sends(quantities, Some(caller));
    }

    fn sends(&mut self, sum: Vec<i64>, own: Option<usize>) {
        self.there = self.open.keys().copied().filter(|caller| Some(*caller) != own).collect();
        for calls in self.open.values_mut() {
            *calls += 1;
        }
        self.sent = Some((sum, own));
    }

    fn goes(&mut self) {
        let Some((sum, own)) = self.sent.clone() else { return };
        let Some((rows, mut before, decided_at)) = self.replied.take() else {
            let (before, now) = (copied(&self.keys), at(self.now));
            let rows = mtake(&mut self.keys, now, &sum);
            if rows.iter().all(|row| !row.limited()) {
                add(&mut self.given, &sum);
            }
            self.replied = Some((rows, before, now));
            return;
        };
        self.sent = None;
        let admitted = rows.iter().all(|row| !row.limited());
        let reply = |[_, _, remaining, retry_after, reset_after]: [i64; 5]| {
            let micros = |time: i64| span(time * 1_000);
            let retry_after = (retry_after >= 0).then(|| (micros(retry_after), 0));
            Reply { taken: 0, remaining, retry_after, reset_after: micros(reset_after) }
        };
        let told = self.line.answered(admitted, five(&rows).into_iter().map(reply));
        let told: BTreeMap<_, _> = told.into_iter().map(|(caller, rows)| (caller.0, rows)).collect();
        if let Some(caller) = own {
            mtake(&mut before, decided_at, &sum);
            self.is_answered(caller, &rows);
        }
        let next = self.line.next_call();
        for caller in self.there.clone() {
            if next.alone.iter().any(|alone| alone.0 == caller) {
                continue; // it comes later
            }
            if let Some(rows) = told.get(&caller).filter(|rows| rows.iter().any(Answer::limited)) {
                assert_eq!(five(rows), self.own[&caller], "{caller}, whose units others have got since");
                self.is_answered(caller, rows);
                continue;
            }
            let direct = five(&mtake(&mut before, decided_at, &self.quantities[caller]));
            if let Some(rows) = told.get(&caller) {
                assert_eq!(five(rows), direct, "{caller}, which is admitted");
                self.is_answered(caller, rows);
            }
            self.own.insert(caller, direct);
        }
        for (Caller(caller, _), rows) in &next.refused {
            // Nobody is before it who has no units yet.
            let ahead = self.there.iter().take_while(|other| *other != caller);
            let mut waits = ahead.filter(|other| next.alone.iter().all(|alone| alone.0 != **other));
            let waits = waits.find(|other| self.open.contains_key(other));
            assert_eq!(waits, None, "before {caller}");
            assert_eq!(five(rows), self.own[caller], "{caller}, which is refused");
            assert!(rows.iter().any(Answer::limited), "{rows:?}");
            self.is_answered(*caller, rows);
        }
        for Caller(caller, _) in next.alone {
            let rows = mtake(&mut self.keys, at(self.now), &self.quantities[caller]);
            if rows.iter().all(|row| !row.limited()) {
                add(&mut self.given, &self.quantities[caller]);
            }
            self.is_answered(caller, &rows);
        }
        if !next.sum.is_empty() {
            self.sends(next.sum, None);
        }
    }

    fn is_answered(&mut self, caller: usize, rows: &[Answer]) {
        self.most_calls = self.most_calls.max(self.open.remove(&caller).unwrap());
        if rows.iter().all(|row| !row.limited()) {
            add(&mut self.got, &self.quantities[caller]);
        }
    }

    fn fails(&mut self) {
        let Some((sum, own)) = self.sent.take() else { return };
        // The units of a call whose reply is lost are taken, as those of a direct call.
        if self.replied.take().is_some_and(|(rows, ..)| rows.iter().all(|row| !row.limited())) {
            add(&mut self.got, &sum);
        }
        let failed: Vec<usize> = self.line.failed().into_iter().map(|caller| caller.0).chain(own).collect();
        let mut there = self.there.clone();
        there.retain(|caller| self.open.contains_key(caller));
        there.extend(own);
        assert_eq!(failed, there);
        for caller in failed {
            self.open.remove(&caller);
        }
        let next = self.line.next_call();
        assert!(next.refused.is_empty() && next.alone.is_empty());
        if !next.sum.is_empty() {
            self.sends(next.sum, None);
        }
    }

    fn leaves(&mut self, nth: usize) {
        let Some(&caller) = self.open.keys().nth(nth % self.open.len().max(1)) else { return };
        let mut was_there = false;
        self.line.retain(|other| {
            was_there |= other.0 == caller;
            other.0 != caller
        });
        if was_there {
            self.open.remove(&caller);
            self.there.retain(|&other| other != caller);
        }
    }

    /// What happens, until everybody has an answer.
    fn lives(mut self, limiters: &[Made], events: &[Event]) -> usize {
        let own = |quantities: &[i64; 3]| {
            let most = |(made, quantity): (&Made, &i64)| made.most.min(*quantity);
            limiters.iter().zip(quantities).map(most).collect::<Vec<_>>()
        };
        for event in events {
            match event {
                Event::Comes(quantities) => self.comes(own(quantities)),
                Event::Other(quantities) => _ = mtake(&mut self.keys, at(self.now), &own(quantities)),
                Event::Goes => self.goes(),
                Event::Fails => self.fails(),
                Event::Leaves(nth) => self.leaves(*nth),
                Event::Passes(micros) => self.now += micros * 1_001,
            }
        }
        let mut steps = 0;
        while self.sent.is_some() {
            self.goes();
            steps += 1;
            assert!(steps < 1_000, "{:?} are never answered", self.open);
        }
        assert!(self.line.is_empty() && self.open.is_empty(), "{:?} have no answer", self.open);
        assert_eq!(self.got, self.given, "no unit is held, and none is granted twice");
        self.most_calls
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn callers_of_a_mix_get_the_answers_of_calls_of_their_own(
        limiters in prop::collection::vec(made(false), 1..4), events in events(false)
    ) {
        let calls = Process::new(&limiters).lives(&limiters, &events);
        // One more if nobody knows when a window would end that is not open yet.
        prop_assert!(calls <= 2 + usize::from(limiters.iter().any(|made| made.kind == 0)), "{calls}");
    }

    #[test]
    fn whoever_else_takes_callers_of_a_mix_get_the_answers_of_calls_of_their_own(
        limiters in prop::collection::vec(made(true), 1..4), events in events(true)
    ) {
        Process::new(&limiters).lives(&limiters, &events);
    }
}

#[test]
fn whoever_fitted_twice_in_vain_goes_alone() {
    let mut line = Line::new([Limit::Counted(9)]);
    let reply = |remaining| [Reply { taken: 0, remaining, retry_after: None, reset_after: span(1) }];
    for caller in 0..4 {
        line.push(Caller(caller, vec![1]));
    }
    for (sum, remaining) in [(4, 3), (3, 2)] {
        let next = line.next_call();
        assert_eq!((next.sum, next.alone.len(), next.refused.len()), (vec![sum], 0, 0));
        assert!(line.answered(false, reply(remaining)).is_empty());
    }
    let next = line.next_call();
    let alone: Vec<_> = next.alone.iter().map(|caller| caller.0).collect();
    assert_eq!((next.sum, alone), (vec![1], vec![0, 1, 2]));
}

#[test]
fn a_row_of_single_units_is_one_call() {
    assert_eq!(tail(std::iter::repeat_n(Some(1), 1_000)), 1_000);
    assert_eq!(tail([None, Some(1)]), 1); // the last caller goes alone
    assert_eq!(tail([Some(1), None, Some(1)]), 1);
    assert_eq!(tail([Some(1), Some(i64::MAX)]), 1);
    assert_eq!(tail([]), 0);
}

#[test]
fn a_refusal_behind_clients_that_wait_has_their_wait() {
    // `reset_after` does not count the units of clients that wait, and `retry_after` does.
    let rate = Rate::new(1, 1, Seconds).unwrap();
    let wait = |seconds: i64| span(seconds * S);
    let reply = Reply { taken: 0, remaining: 0, retry_after: Some((wait(7), 1)), reset_after: wait(3) };
    let mut grants = Grants::new(Limit::Rated { rate, capacity: 5 }, reply);
    for (quantity, retry_after) in [(1, 7), (3, 9), (1, 7)] {
        let answer = grants.next(quantity);
        assert_eq!((answer.verdict, answer.reset_after), (Verdict::Later(wait(retry_after)), wait(3)));
    }
}

#[test]
fn no_unit_is_granted_that_was_not_taken() {
    // With intervals of a fraction of a nanosecond, rounding can make one more unit available.
    let rate = Rate::new(2, 3, Seconds).unwrap();
    let reply = Reply { taken: 2, remaining: 1, retry_after: None, reset_after: span(1) };
    let mut grants = Grants::new(Limit::Rated { rate, capacity: 5 }, reply);
    assert_eq!([1, 1, 1].map(|quantity| grants.next(quantity).limited()), [false, false, true]);
}

#[test]
fn no_number_of_a_reply_panics() {
    let rate = Rate::new(1, 1, Seconds).unwrap();
    for limit in [Limit::Rated { rate, capacity: i64::MAX }, Limit::Counted(i64::MAX)] {
        for taken in [0, 1, i64::MAX] {
            for time in [Span::ZERO, Span::MAX] {
                for retry_after in [None, Some((time, 1))] {
                    let reply = Reply { taken, remaining: i64::MAX, retry_after, reset_after: time };
                    let mut grants = Grants::new(limit, reply);
                    for quantity in [1, i64::MAX] {
                        assert_eq!(grants.next(quantity).limit, i64::MAX);
                    }
                }
            }
        }
    }
}
