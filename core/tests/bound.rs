//! Whatever calls take, settle and wait for, no more units are used than the limit allows.

#![allow(clippy::restriction, reason = "a test that panics is a test that fails")]

mod common;

use common::{MS, NOW, S, US, after, at, nanos, span};
use proptest::prelude::*;
use redis_cell_core::calendar::{Calendar, Cycle};
use redis_cell_core::limiter::{Limiter, behind};
use redis_cell_core::{Answer, Decision, Taken, Unit, bucket, fixed, gcra, log, window};

/// A call that was admitted, and may give units back.
#[derive(Clone, Copy, Debug)]
struct Call {
    at: i64,
    /// The units that it used, which it has not given back.
    used: i64,
    /// The `reset_after` of its reply, in milliseconds.
    reset_after: i64,
    /// The instant at which its limiter would be fully replenished.
    replenished: i64,
    /// How often it was settled.
    settled: usize,
}

/// Which settlements send `RESET`.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Resets {
    Never,
    Sometimes,
    Always,
}

/// The next event, after a time.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A call takes this many units, while clients wait for others that come before it, and then leave.
    Take(i64, i64),
    /// The call with this number, counted from the latest, gives back this many of its units; `false` without
    /// `RESET`.
    Settle(usize, i64, bool),
    Look(i64),
    Pause(i64),
}

fn steps() -> impl Strategy<Value = Vec<(i64, Step)>> {
    let step = prop_oneof![
        4 => (1..6_i64, prop_oneof![Just(0), 1..11_i64]).prop_map(|(units, waited_for)| Step::Take(units, waited_for)),
        4 => (0..6_usize, 1..6_i64, any::<bool>()).prop_map(|(back, units, reset)| Step::Settle(back, units, reset)),
        1 => (0..6_i64).prop_map(Step::Look),
        1 => (0..400 * MS).prop_map(Step::Pause),
    ];
    let gap = prop_oneof![2 => Just(0), 2 => 0..200 * MS, 1 => 0..1_500 * MS, 1 => (0..15_i64).prop_map(|n| n * 100 * MS)];
    prop::collection::vec((gap, step), 1..40)
}

/// A limiter with its state.
trait Subject {
    fn take(&mut self, now: i64, quantity: i64) -> Answer;
    /// The same behind clients that wait for this many units.
    fn take_behind(&mut self, now: i64, quantity: i64, _: i64) -> Answer {
        self.take(now, quantity)
    }
    fn settle(&mut self, now: i64, back: i64, taken: &Taken) -> Answer;
    fn look(&self, now: i64, quantity: i64) -> Answer;
    fn pause(&mut self, _: i64, _: i64) {}
}

/// The state after a pause of this length that begins at an instant.
type Pause<L> = fn(&L, State<L>, i64, i64) -> State<L>;
type State<L> = Option<<L as Limiter>::State>;

struct Whole<L: Limiter> {
    limit: L,
    state: State<L>,
    pause: Pause<L>,
}

impl<L: Limiter> Whole<L> {
    fn new(limit: L) -> Self {
        Self { limit, state: None, pause: |_, state, _, _| state }
    }

    fn carry_out(&mut self, decision: &Decision<L::State>) -> Answer {
        self.state = after(decision, self.state);
        decision.answer
    }
}

impl<L: Limiter> Subject for Whole<L> {
    fn take(&mut self, now: i64, quantity: i64) -> Answer {
        let decision = self.limit.take(self.state, at(now), quantity).unwrap();
        self.carry_out(&decision)
    }

    fn take_behind(&mut self, now: i64, quantity: i64, waited_for: i64) -> Answer {
        let costs = self.limit.cost(waited_for).unwrap();
        let take = |state| self.limit.take(state, at(now), quantity);
        let decision = behind(&self.limit, self.state, at(now), quantity, costs, take).unwrap();
        let answer = self.carry_out(&decision);
        // `RESET` sends it, so it is that of what is stored.
        assert!(answer.limited() || answer.reset_after == self.look(now, 0).reset_after, "{answer:?}");
        answer
    }

    fn settle(&mut self, now: i64, back: i64, taken: &Taken) -> Answer {
        let decision = self.limit.settle(self.state, at(now), -back, Some(taken)).unwrap();
        self.carry_out(&decision)
    }

    fn look(&self, now: i64, quantity: i64) -> Answer {
        self.limit.peek(self.state, at(now), quantity).unwrap()
    }

    fn pause(&mut self, now: i64, wait: i64) {
        self.state = (self.pause)(&self.limit, self.state, now, wait);
    }
}

struct Log(log::Limit, common::Log);

impl Subject for Log {
    fn take(&mut self, now: i64, quantity: i64) -> Answer {
        self.1.take(&self.0, at(now), quantity)
    }

    fn settle(&mut self, now: i64, back: i64, taken: &Taken) -> Answer {
        self.1.settle(&self.0, at(now), -back, Some(taken))
    }

    fn look(&self, now: i64, quantity: i64) -> Answer {
        log::peek(&self.1.entries[..], &self.0, at(now), quantity).unwrap()
    }
}

/// A story: the calls, with the units that they used, and the instants at which units were given back.
#[derive(Debug, Default)]
struct Story {
    calls: Vec<Call>,
    given_back: Vec<(i64, i64)>,
}

impl Story {
    /// Plays the steps, with at most this number of settlements of each call.
    fn play(subject: &mut impl Subject, steps: &[(i64, Step)], resets: Resets, times: usize) -> Self {
        let (mut story, mut now) = (Self::default(), 0);
        for &(gap, step) in steps {
            now += gap;
            match step {
                Step::Take(quantity, waited_for) => {
                    let answer = subject.take_behind(now, quantity, waited_for);
                    if !answer.limited() {
                        let reset_after = answer.reply(Unit::Milliseconds).five[4];
                        let replenished = now + nanos(answer.reset_after);
                        story.calls.push(Call {
                            at: now,
                            used: quantity,
                            reset_after,
                            replenished,
                            settled: 0,
                        });
                    }
                }
                Step::Settle(back, units, reset) => {
                    let Some(index) = story.calls.len().checked_sub(1 + back) else { continue };
                    let call = &mut story.calls[index];
                    let units = units.min(call.used);
                    let age = (now - call.at + MS - 1) / MS * MS;
                    let sends = resets == Resets::Always || resets == Resets::Sometimes && reset;
                    let reset_after = sends.then(|| span(call.reset_after * MS));
                    if units > 0 && call.settled < times {
                        call.settled += 1;
                        let taken = Taken { age: span(age), reset_after, unit: Unit::Milliseconds };
                        subject.settle(now, units, &taken);
                        call.used -= units;
                        story.given_back.push((now, units));
                    }
                }
                Step::Look(quantity) => drop(subject.look(now, quantity)),
                Step::Pause(wait) => subject.pause(now, wait),
            }
        }
        story
    }

    /// For every stretch of time that begins and ends with a call: its beginning, its length, and the units
    /// used in it.
    fn stretches(&self) -> impl Iterator<Item = (i64, i64, i64)> {
        self.calls.iter().enumerate().flat_map(move |(first, begin)| {
            let mut used = 0;
            self.calls[first..].iter().map(move |call| {
                used += call.used;
                (begin.at, call.at - begin.at, used)
            })
        })
    }

    /// The units that were given back in the `before` nanoseconds before an instant.
    fn back_before(&self, instant: i64, before: i64) -> i64 {
        let within = self.given_back.iter().filter(|(at, _)| (instant - before..=instant).contains(at));
        within.map(|(_, units)| units).sum()
    }
}

/// From the tests' instant to the next full hour.
const TO_THE_HOUR: i64 = 3_600 * S - NOW % (3_600 * S);

/// Ten units a second: the time that one takes.
const UNIT: i64 = 100 * MS;

/// A GCRA limiter and a bucket of `most` units.
fn of_a_rate(most: i64) -> (Whole<gcra::Limit>, Whole<bucket::Limit>) {
    let mut throttle = Whole::new(gcra::Limit::new(most - 1, 10, 1, Unit::Seconds).unwrap());
    throttle.pause =
        |limit, state, now, wait| after(&gcra::pause(state, limit, at(now), span(wait)).unwrap(), state);
    (throttle, Whole::new(bucket::Limit::new(most, 10, 1, Unit::Seconds).unwrap()))
}

/// Plays the steps on limiters with a rate, and returns the stories. With `RESET`, each call is settled once.
fn on_rates(most: i64, steps: &[(i64, Step)], resets: Resets) -> [Story; 2] {
    let (mut throttle, mut bucket) = of_a_rate(most);
    let times = if resets == Resets::Never { usize::MAX } else { 1 };
    [Story::play(&mut throttle, steps, resets, times), Story::play(&mut bucket, steps, resets, times)]
}

proptest! {
        #[test]
    fn with_an_age_a_rate_is_never_exceeded(most in 1..11_i64, steps in steps()) {
        for story in on_rates(most, &steps, Resets::Never) {
            for (begin, length, used) in story.stretches() {
                prop_assert!(used * UNIT <= most * UNIT + length, "{used} from {begin} in {length}: {story:?}");
            }
        }
    }

    /// Units that others gave back while a call waited behind them make its `reset_after` too long.
    #[test]
    fn with_reset_a_rate_is_exceeded_by_no_more_than_what_was_given_back_before(
        most in 1..11_i64, steps in steps(), mixed in any::<bool>(),
    ) {
        for story in on_rates(most, &steps, if mixed { Resets::Sometimes } else { Resets::Always }) {
            for (begin, length, used) in story.stretches() {
                let allowed = most + story.back_before(begin, most * UNIT);
                prop_assert!(used * UNIT <= allowed * UNIT + length, "{used} from {begin} in {length}: {story:?}");
            }
        }
    }

    #[test]
    fn a_log_never_has_more_in_any_period(most in 1..11_i64, steps in steps()) {
        let mut log = Log(log::Limit::new(most, 1, Unit::Seconds).unwrap(), common::Log::default());
        let story = Story::play(&mut log, &steps, Resets::Sometimes, usize::MAX);
        // Its clock ticks in microseconds.
        for (begin, length, used) in story.stretches().filter(|(_, length, _)| *length < S - US) {
            prop_assert!(used <= most, "{used} from {begin} in {length}: {story:?}");
        }
    }

    #[test]
    fn a_fixed_window_never_has_more_than_its_limit(most in 1..11_i64, steps in steps()) {
        let calendar = Calendar::new(Cycle::Hour, 0, None).unwrap();
        for (limit, resets) in [
            (fixed::Limit::new(most, 1, Unit::Seconds), Resets::Always),
            (fixed::Limit::by_calendar(most, calendar), Resets::Sometimes),
            (fixed::Limit::by_calendar(most, calendar), Resets::Never),
        ] {
            // The hour ends in the middle of most stories.
            let early = [(TO_THE_HOUR - 3 * S, Step::Look(0))];
            let story = Story::play(&mut Whole::new(limit.unwrap()), &[&early, &steps[..]].concat(), resets, usize::MAX);
            for call in &story.calls {
                let same = story.calls.iter().filter(|other| other.replenished == call.replenished);
                let used: i64 = same.map(|call| call.used).sum();
                prop_assert!(used <= most, "{used} until {}: {story:?}", call.replenished);
            }
        }
    }

    #[test]
    fn a_sliding_window_never_has_more_than_its_limit_nor_a_period_more_than_twice(
        most in 1..11_i64, steps in steps(),
    ) {
        let limit = window::Limit::new(most, 1, Unit::Seconds).unwrap();
        let story = Story::play(&mut Whole::new(limit), &steps, Resets::Sometimes, usize::MAX);
        for (begin, length, used) in story.stretches() {
            let start = (NOW + begin) / S;
            if (NOW + begin + length) / S == start {
                prop_assert!(used <= most, "{used} from {begin} in {length}: {story:?}");
            }
            if length < S {
                prop_assert!(used <= 2 * most, "{used} from {begin} in {length}: {story:?}");
            }
        }
    }
}

/// Two calls take five units each, and the first gives its five back at once. So the units of the second have
/// leaked away in half a minute, not in the minute of its reply.
#[test]
fn what_is_given_back_before_a_call_makes_its_reset_after_too_long() {
    let unit = Unit::Seconds;
    for (reset_after, remaining) in [(None, 0), (Some(60), 4)] {
        let mut throttle = Whole::new(gcra::Limit::new(9, 10, 60, unit).unwrap());
        throttle.take(0, 5);
        assert_eq!(throttle.take(0, 5).reply(unit).five[4], 60);
        throttle.settle(0, 5, &Taken { age: span(0), reset_after: None, unit });
        assert!(!throttle.take(30 * S, 10).limited());
        let reset_after = reset_after.map(|reset| span(reset * S));
        let late = throttle.settle(30 * S, 5, &Taken { age: span(30 * S), reset_after, unit });
        assert_eq!(late.remaining, remaining, "{reset_after:?}");
    }
}
