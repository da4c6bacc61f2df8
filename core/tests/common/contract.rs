//! The contract's answer to a call, in wide integers, and a decision in the same form.

use super::{Exact, instant};
use redis_cell_core::Change::{self, Delete, Keep, Store};
use redis_cell_core::Verdict::{self, Admitted, Later, Never};
use redis_cell_core::gcra::Tat;
use redis_cell_core::{Answer, Decision, Span};

/// The length of a span in nanoseconds.
pub fn wide(span: Span) -> i128 {
    span.as_nanos().into()
}

/// A span of this many nanoseconds.
pub fn span(nanos: i128) -> Span {
    Span::from_nanos(nanos.try_into().unwrap()).unwrap()
}

/// The smallest number up to `most` for which `holds` is true, as it is for all above it.
pub fn first(most: i128, holds: impl Fn(i128) -> bool) -> i128 {
    assert!(holds(most));
    let (mut fails, mut held) = (-1, most);
    while held - fails > 1 {
        let middle = (fails + held).div_euclid(2);
        if holds(middle) {
            held = middle;
        } else {
            fails = middle;
        }
    }
    held
}

/// The contract's answer to one call.
#[derive(Debug, PartialEq, Eq)]
pub struct Said<S> {
    pub verdict: Verdict,
    pub remaining: i128,
    pub reset_after: i128,
    pub change: Change<S>,
}

impl<S: Copy> Said<S> {
    /// A decision in this form.
    pub fn of(decision: &Decision<S>) -> Self {
        let Answer { verdict, remaining, reset_after, .. } = decision.answer;
        Self { verdict, remaining: remaining.into(), reset_after: wide(reset_after), change: decision.change }
    }
}

/// A request to GCRA.
#[derive(Clone, Copy, Debug)]
pub enum Call {
    Throttle,
    Charge,
    Refund,
}

/// GCRA by the contract, to which a state of the past is none.
pub fn gcra_says(
    call: Call,
    rate: Exact,
    capacity: i128,
    tat: Option<Tat>,
    now: i128,
    quantity: i128,
) -> Said<Tat> {
    let tolerance = rate.cost(capacity);
    let old = tat.map_or(now, |tat| i128::from(tat.as_nanos()).max(now));
    let admits = |at: i128, quantity| old.max(at) + rate.cost(quantity) - tolerance <= at;
    let wait = |quantity| first(old - now + rate.cost(quantity), |wait| admits(now + wait, quantity));
    let (verdict, new) = match call {
        Call::Throttle if quantity > capacity => (Never, old),
        Call::Throttle if admits(now, quantity) => (Admitted, old + rate.cost(quantity)),
        Call::Throttle => (Later(span(wait(quantity))), old),
        Call::Charge | Call::Refund => {
            let cost = rate.cost(quantity) * if matches!(call, Call::Charge) { 1 } else { -1 };
            let new = (old + cost).max(now);
            let wait = first(new, |wait| new.max(now + wait) + rate.cost(1) - tolerance <= now + wait);
            (if new - now > tolerance { Later(span(wait)) } else { Admitted }, new)
        }
    };
    let change = match call {
        _ if new == old => Keep,
        Call::Refund if new == now => Delete,
        _ => Store(instant(new)),
    };
    let ttl = new - now;
    let remaining = if ttl > tolerance { 0 } else { rate.units(tolerance - ttl) };
    Said { verdict, remaining, reset_after: ttl, change }
}
