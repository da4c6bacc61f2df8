//! Properties of GCRA, compared with models that share nothing with it but the contract.

#![allow(clippy::restriction, reason = "a test that panics is a test that fails")]

mod common;

use common::{Exact, NOW, S, after, at, instant, nanos, span, unit};
use proptest::prelude::*;
use proptest::sample::select;
use redis_cell_core::Change::{Delete, Keep, Store};
use redis_cell_core::gcra::{Booking, Limit, Tat, charge, decode, peek, refund, reserve, saturate, throttle};
use redis_cell_core::{Answer, Decision, Error, Span, Taken, Unit, Verdict, gcra};

/// The four numbers that make a limit, and the numbers that the contract derives from them.
#[derive(Clone, Copy, Debug)]
struct Numbers {
    max_burst: i64,
    count: i64,
    period: i64,
    unit: Unit,
}

impl Numbers {
    fn limit(self) -> Limit {
        Limit::new(self.max_burst, self.count, self.period, self.unit).unwrap()
    }

    fn rate(self) -> Exact {
        Exact::new(self.count, self.period, self.unit)
    }

    /// The nanoseconds that serving `quantity` units takes.
    fn cost(self, quantity: i64) -> i64 {
        i64::try_from(self.rate().cost(quantity.into())).unwrap()
    }

    /// `T`, nanoseconds per unit, rounded down.
    fn interval(self) -> i64 {
        self.cost(1)
    }

    fn capacity(self) -> i64 {
        self.max_burst + 1
    }

    /// `D`, the debt of an exhausted limiter.
    fn tolerance(self) -> i64 {
        self.cost(self.capacity())
    }
}

/// Limits small enough to be counted out by hand, most of them with an interval that does not come out even,
/// and some of them so fast that the fraction is a good part of it.
fn numbers() -> impl Strategy<Value = Numbers> {
    let rate = prop_oneof![
        4 => (1..40_i64, 1..100_i64, unit()),
        1 => (1..=1000_i64, Just(1_i64), Just(Unit::Microseconds)),
        1 => (300_000_000..=1_000_000_000_i64, Just(1_i64), Just(Unit::Seconds)),
    ];
    (0..12_i64, rate).prop_map(|(max_burst, (count, period, unit))| Numbers {
        max_burst,
        count,
        period,
        unit,
    })
}

/// A length of time for a limit: a number of its intervals, plus or minus a nanosecond, or any other length.
#[derive(Clone, Copy, Debug)]
enum Length {
    Intervals(i64, i64),
    Parts(i64),
}

impl Length {
    fn of(self, numbers: Numbers) -> i64 {
        match self {
            Self::Intervals(count, shift) => count * numbers.interval() + shift,
            Self::Parts(parts) => numbers.interval() / 1_000 * parts + parts,
        }
    }
}

fn length() -> impl Strategy<Value = Length> {
    prop_oneof![
        (0..20_i64, -1..=1_i64).prop_map(|(count, shift)| Length::Intervals(count, shift)),
        (0..20_000_i64).prop_map(Length::Parts),
    ]
}

fn quantity() -> impl Strategy<Value = i64> {
    prop_oneof![4 => 0..15_i64, 1 => Just(1_i64)]
}

/// The naive model: a bucket that forgets nothing.
///
/// It keeps every rise and fall that there has been, in nanoseconds of serving, leaks included. Since the
/// bucket cannot be emptier than empty, it holds the most that any stretch of its history up to now adds up
/// to.
#[derive(Clone, Debug, Default)]
struct Model {
    history: Vec<i64>,
}

impl Model {
    fn change(&mut self, by: i64) {
        self.history.push(by);
    }

    /// The level once `wait` more has leaked away.
    fn level_after(&self, wait: i64) -> i64 {
        let (mut sum, mut level) = (-wait, 0);
        for by in self.history.iter().rev() {
            sum += by;
            level = level.max(sum);
        }
        level
    }

    fn level(&self) -> i64 {
        self.level_after(0)
    }

    /// Whether `quantity` fits into the bucket once `wait` has passed.
    fn admits_after(&self, wait: i64, quantity: i64, numbers: Numbers) -> bool {
        self.level_after(wait) + numbers.cost(quantity) <= numbers.tolerance()
    }

    fn admits(&self, quantity: i64, numbers: Numbers) -> bool {
        self.admits_after(0, quantity, numbers)
    }

    /// The most that fits, counted out.
    fn room(&self, numbers: Numbers) -> i64 {
        (0..=numbers.capacity()).rev().find(|&quantity| self.admits(quantity, numbers)).unwrap_or(0)
    }

    /// Whether `wait` is the first moment at which `quantity` fits.
    fn is_the_wait(&self, wait: i64, quantity: i64, numbers: Numbers) -> bool {
        self.admits_after(wait, quantity, numbers)
            && (wait == 0 || !self.admits_after(wait - 1, quantity, numbers))
    }

    /// Compares the state in an answer with the bucket.
    fn describes(&self, answer: &Answer, numbers: Numbers) {
        assert_eq!(answer.limit, numbers.capacity(), "limit");
        assert_eq!(answer.remaining, self.room(numbers), "remaining");
        let reset = nanos(answer.reset_after);
        assert_eq!(self.level_after(reset), 0, "fully replenished after reset_after");
        assert!(reset == 0 || self.level_after(reset - 1) > 0, "not fully replenished before reset_after");
    }
}

fn wait(answer: &Answer) -> Option<i64> {
    answer.verdict.wait().map(nanos)
}

#[derive(Clone, Copy, Debug)]
enum Call {
    Throttle(i64),
    Saturate(i64),
    Peek(i64),
    Refund(i64),
    Charge(i64),
    Reserve { quantity: i64, max_wait: Option<Length>, prepay: bool },
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Time passes.
    Pause(Length),
    /// The time in the last answer passes, give or take a nanosecond.
    WaitAsTold(i64),
    /// The limit is another from here on.
    Limit(Numbers),
    Call(Call),
}

fn call() -> impl Strategy<Value = Call> {
    prop_oneof![
        8 => quantity().prop_map(Call::Throttle),
        2 => prop_oneof![quantity(), Just(i64::MAX)].prop_map(Call::Saturate),
        1 => quantity().prop_map(Call::Peek),
        2 => quantity().prop_map(Call::Refund),
        2 => quantity().prop_map(Call::Charge),
        3 => (quantity(), prop::option::of(length()), any::<bool>())
            .prop_map(|(quantity, max_wait, prepay)| Call::Reserve { quantity, max_wait, prepay }),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => length().prop_map(Step::Pause),
        3 => (-1..=1_i64).prop_map(Step::WaitAsTold),
        1 => numbers().prop_map(Step::Limit),
        9 => call().prop_map(Step::Call),
    ]
}

/// Decides one call, and compares every part of the decision with the model. Returns the answer and the state
/// after.
fn agree(
    model: &mut Model,
    state: Option<Tat>,
    numbers: Numbers,
    now: i64,
    call: Call,
) -> (Answer, Option<Tat>) {
    let (limit, instant) = (numbers.limit(), at(now));
    let cost = |quantity| numbers.cost(quantity);
    // The quantity that the model takes (or gets back), whether it is refused, and the quantity that a wait
    // is for.
    let (decision, taken, refused, waits_for) = match call {
        Call::Throttle(quantity) => {
            let fits = model.admits(quantity, numbers);
            let taken = if fits { quantity } else { 0 };
            (throttle(state, &limit, instant, quantity).unwrap(), taken, !fits, quantity)
        }
        Call::Saturate(quantity) => {
            let decision = saturate(state, &limit, instant, quantity).unwrap();
            let taken = quantity.min(model.room(numbers));
            assert_eq!(decision.answer.taken, Some(taken), "taken");
            (decision, taken, quantity > 0 && taken == 0, 1)
        }
        Call::Peek(quantity) => {
            let answer = peek(state, &limit, instant, quantity).unwrap();
            (Decision::keep(answer), 0, !model.admits(quantity, numbers), quantity)
        }
        Call::Refund(quantity) => {
            model.change(-cost(quantity));
            let decision = refund(state, &limit, instant, quantity).unwrap();
            let refused = !model.admits(0, numbers);
            model.describes(&decision.answer, numbers);
            let expected = match state {
                Some(_) if quantity > 0 && model.level() == 0 => Delete,
                Some(_) if quantity > 0 => Store(at(now + model.level())),
                _ => Keep,
            };
            assert_eq!(decision.change, expected, "what is left after giving back");
            (decision, 0, refused, 1)
        }
        Call::Charge(quantity) => {
            let mut after = model.clone();
            after.change(cost(quantity));
            let refused = !after.admits(0, numbers);
            (charge(state, &limit, instant, quantity).unwrap(), quantity, refused, 1)
        }
        Call::Reserve { quantity, max_wait, prepay } => {
            let max_wait = max_wait.map(|length| length.of(numbers).max(0));
            let booking = Booking { max_wait: max_wait.map(span), prepay };
            let decision = reserve(state, &limit, instant, quantity, booking).unwrap();
            let waits_for = if prepay { quantity.min(1) } else { quantity };
            let never = waits_for > numbers.capacity();
            let told = wait(&decision.answer);
            assert_eq!(told.is_none(), never, "forever");
            let too_long = told.is_some_and(|wait| max_wait.is_some_and(|max_wait| wait > max_wait));
            if let Some(told) = told {
                assert!(model.is_the_wait(told, waits_for, numbers), "the wait for a slot: {told}");
            }
            let refused = never || too_long;
            (decision, if refused { 0 } else { quantity }, refused, waits_for)
        }
    };

    let before = model.clone();
    if taken > 0 {
        model.change(cost(taken));
        assert_eq!(decision.change, Store(at(now + model.level())), "the state");
    } else if !matches!(call, Call::Refund(_)) {
        assert_eq!(decision.change, Keep, "nothing was taken");
    }
    assert_eq!(decision.answer.limited(), refused, "limited");
    model.describes(&decision.answer, numbers);
    let waited_in = if matches!(call, Call::Charge(_)) { &*model } else { &before };
    match wait(&decision.answer) {
        Some(told) => assert!(waited_in.is_the_wait(told, waits_for, numbers), "retry_after {told}"),
        None => assert!(!refused || waits_for > numbers.capacity(), "never admitted without a reason"),
    }
    (decision.answer, after(&decision, state))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever the calls, the pauses and the limits: same decisions, same remaining, same waits, same state.
    #[test]
    fn every_call_agrees_with_the_naive_model(
        first in numbers(),
        steps in prop::collection::vec(step(), 1..50),
    ) {
        let (mut model, mut state, mut numbers) = (Model::default(), None, first);
        let (mut now, mut told) = (0, 0);
        for step in steps {
            let passes = match step {
                Step::Pause(length) => length.of(numbers).max(0),
                Step::WaitAsTold(shift) => (told + shift).max(0),
                Step::Limit(other) => {
                    numbers = other;
                    0
                }
                Step::Call(call) => {
                    let answer;
                    (answer, state) = agree(&mut model, state, numbers, now, call);
                    told = wait(&answer).unwrap_or(0);
                    0
                }
            };
            model.change(-passes);
            now += passes;
        }
    }

}

/// Any integer. The edges are far more frequent than among random integers.
fn extreme() -> impl Strategy<Value = i64> {
    let edges =
        vec![i64::MIN, i64::MIN + 1, -1, 0, 1, 2, 1_000_000_000, i64::MAX / 2, i64::MAX - 1, i64::MAX];
    let scale = (any::<i64>(), 0..64_u32).prop_map(|(value, shift)| value >> shift);
    prop_oneof![any::<i64>(), scale, select(edges), -3..20_i64]
}

/// Any instant but the epoch itself, from which the time to the last instant is that of a state without an
/// end.
fn any_instant() -> impl Strategy<Value = i64> {
    let any = prop_oneof![extreme().prop_map(|nanos| nanos & i64::MAX), Just(NOW), Just(i64::MAX - 1)];
    any.prop_map(|nanos| nanos.max(1))
}

/// A limit's rate and `D` by the contract, in integers that cannot overflow; `None` when 63 bits do not hold
/// them.
fn by_the_contract(max_burst: i64, count: i64, period: i64, unit: Unit) -> Option<(Exact, i128)> {
    let (rate, most) = (Exact::new(count, period, unit), i128::from(i64::MAX));
    let numbers_fit = max_burst >= 0 && count >= 1 && period >= 1 && rate.period <= most;
    if !numbers_fit || rate.count > rate.period {
        return None;
    }
    let tolerance = rate.cost(i128::from(max_burst) + 1);
    (tolerance <= most).then_some((rate, tolerance))
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        cases: 4 * ProptestConfig::default().cases,
        ..ProptestConfig::default()
    })]

    /// The contract's formula, in numbers that cannot overflow, makes the same decisions; results above 63
    /// bits are errors.
    #[test]
    fn extremes_are_decided_by_the_contract_or_are_errors(
        (max_burst, count, period) in prop_oneof![
            3 => (0..1000_i64, 1..1000_i64, 1..=9_223_372_036_i64),
            1 => (extreme(), extreme(), extreme()),
            1 => (extreme(), 1..=1_000_000_000_i64, 1..10_i64),
        ],
        unit in unit(),
        quantity in extreme(),
        tat in prop::option::of(any_instant()),
        now in any_instant(),
    ) {
        let limit = Limit::new(max_burst, count, period, unit);
        let derived = by_the_contract(max_burst, count, period, unit);
        prop_assert_eq!(limit.is_ok(), derived.is_some(), "{:?}", limit);
        let (Ok(limit), Some((rate, tolerance))) = (limit, derived) else { return Ok(()) };

        let most = i128::from(i64::MAX);
        let (instant_now, state) = (instant(now.into()), tat.map(|tat| instant(tat.into())));
        let decided = throttle(state, &limit, instant_now, quantity);

        let (now, cost) = (i128::from(now), rate.cost(quantity.into()));
        let new = tat.map_or(now, |tat| i128::from(tat).max(now)) + cost;
        if quantity < 0 || cost > most {
            let last = i64::try_from(rate.units(most)).unwrap();
            prop_assert_eq!(decided, Err(Error::OutOfRange { name: "quantity", min: 0, max: last }));
        } else if new - tolerance <= now && quantity > 0 && new > most {
            prop_assert_eq!(decided, Err(Error::BeyondTime));
        } else {
            let (Decision { answer, change }, capacity) = (decided.unwrap(), i128::from(max_burst) + 1);
            let (verdict, after) = if i128::from(quantity) > capacity {
                (Verdict::Never, new - cost)
            } else if new - tolerance <= now {
                (Verdict::Admitted, new)
            } else {
                let wait = Span::from_nanos((new - tolerance - now).try_into().unwrap()).unwrap();
                (Verdict::Later(wait), new - cost)
            };
            let (owed, unit_nanos) = (after - now, i128::from(unit.nanos().get()));
            let remaining = if owed > tolerance { 0 } else { rate.units(tolerance - owed) };
            prop_assert_eq!(answer.verdict, verdict);
            prop_assert_eq!([answer.limit, answer.remaining].map(i128::from), [capacity, remaining]);
            prop_assert_eq!(i128::from(answer.reset_after.as_nanos()), owed);
            let told = (owed + unit_nanos - 1) / unit_nanos;
            prop_assert_eq!(i128::from(answer.reply(unit).five[4]), told);
            prop_assert_eq!(change, if after == new - cost { Keep } else { Store(instant(after)) });
        }
    }

    /// A state is read back as it was written, while its key lives.
    #[test]
    fn decode_reads_what_a_key_was_given(tat in any_instant(), now in any_instant()) {
        let (tat, now) = (instant(tat.into()), instant(now.into()));
        let bytes = tat.as_nanos().to_string();
        let expiry = i128::from(tat.as_millis_ceil()) * 1_000_000;
        let expiry = instant(expiry.min(i64::MAX.into()));
        prop_assert_eq!(decode(bytes.as_bytes(), now, || Some(expiry)), Ok(tat));
    }
}

#[test]
fn the_longest_pause_is_named_in_the_unit_of_the_call() {
    let limit = Limit::new(15, 30, 60, Unit::Seconds).unwrap();
    for unit in [Unit::Seconds, Unit::Milliseconds, Unit::Microseconds] {
        let longest = gcra::waits(&limit, at(0), unit).max;
        let pause = |units: i64| {
            let wait = Span::from_units(units.unsigned_abs(), unit).unwrap();
            gcra::pause(None, &limit, at(0), wait)
        };
        assert!(pause(longest).is_ok(), "{longest} {unit:?}");
        assert_eq!(pause(longest + 1).unwrap_err(), Error::BeyondTime, "{longest} {unit:?}");
    }
}

/// However much is still owed for all the units of a call, no more goes back than what the settlement names.
#[test]
fn a_settlement_gives_back_no_more_than_its_difference() {
    let limit = Limit::new(9, 1, 1, Unit::Seconds).unwrap();
    let taken = Taken { age: span(0), reset_after: Some(span(6 * S)), unit: Unit::Seconds };
    let settled = gcra::settle(Some(at(5 * S)), &limit, at(0), -2, Some(&taken)).unwrap();
    assert_eq!(settled.change, Store(at(3 * S)));
}
