//! A call of CL.THROTTLE: its arguments as text, its reply by the model, and the promises for it.

use super::model::{Limit, Model, Part, Rate, State, ceil};

/// The arguments of a call after its key.
#[derive(Clone, Copy, Debug)]
pub struct Throttle {
    max_burst: i128,
    rate: Rate,
    quantity: i128,
    saturate: bool,
    unit_ns: i128,
}

impl Throttle {
    /// Reads `max_burst count period [quantity] [SATURATE] [S|MS|US]`.
    pub fn parse(arguments: &str) -> Self {
        let mut words = arguments.split_whitespace().peekable();
        let mut number = || words.next_if(|w| w.parse::<i128>().is_ok()).map(|w| w.parse().unwrap());
        let (max_burst, count, period) = (number().unwrap(), number().unwrap(), number().unwrap());
        let quantity = number().unwrap_or(1);
        let options: Vec<String> = words.map(str::to_uppercase).collect();
        let given = |option: &str| options.iter().any(|o| o == option);
        let unit_ns = if given("US") {
            1_000
        } else if given("MS") {
            1_000_000
        } else {
            1_000_000_000
        };
        let saturate = given("SATURATE");
        Self { max_burst, rate: Rate { count, period: period * unit_ns }, quantity, saturate, unit_ns }
    }

    /// The nanoseconds that serving `quantity` units takes, rounded down.
    pub fn cost(&self, quantity: i128) -> i128 {
        self.rate.cost(quantity)
    }

    /// The most that `calls` admitted calls take within `elapsed` nanoseconds: the promise that users are
    /// given.
    pub fn most_within(&self, elapsed: i64, calls: i64) -> i128 {
        // Plus the units of a nanosecond for each call, where a unit does not take a whole number of
        // nanoseconds.
        let Rate { count, period } = self.rate;
        let forgiven = if period % count == 0 { 0 } else { calls };
        self.max_burst + 1 + i128::from(elapsed + forgiven) * count / period
    }

    /// The quantity taken, according to `reply`.
    pub fn taken(&self, reply: &[i64]) -> i128 {
        match (reply[0], self.saturate) {
            (0, true) => reply[5].into(),
            (0, false) => self.quantity,
            _ => 0,
        }
    }

    pub fn writes(&self, reply: &[i64]) -> bool {
        self.taken(reply) > 0
    }

    /// The reply at the instant `now`, with `tat` as the key's state.
    pub fn answer(&self, tat: Option<i64>, now: i64) -> Vec<i64> {
        let limit = Limit::Throttle { max_burst: self.max_burst, rate: self.rate };
        let mut model = Model::at(now.into());
        model.store("k", &limit, tat.map(|tat| State::Tat(tat.into())));
        let part =
            Part { key: String::from("k"), shadow: false, reset: None, limit, quantity: self.quantity };
        let numbers = if self.saturate {
            let (row, taken) = model.saturate(&part).unwrap();
            [row.reply(self.unit_ns).as_slice(), &[taken]].concat()
        } else {
            model.take(&[part]).unwrap()[1].reply(self.unit_ns).to_vec()
        };
        numbers.into_iter().map(|number| i64::try_from(number).unwrap()).collect()
    }

    /// Panics unless `reply` is right for some instant within `earliest..=latest`. Each number moves in one
    /// direction as time passes, so it lies between its values at both ends.
    pub fn check(&self, reply: &[i64], tat: Option<i64>, earliest: i64, latest: i64, context: &str) {
        let (first, last) = (self.answer(tat, earliest), self.answer(tat, latest));
        let within = reply.len() == first.len()
            && reply.iter().zip(first.iter().zip(&last)).enumerate().all(|(i, (seen, (a, b)))| {
                // If a refusal became an admission in between, the times are not between those of both ends.
                let jumps = first[0] != last[0] || self.saturate && first[5] != last[5];
                if jumps && i > 1 { true } else { (a.min(b)..=a.max(b)).contains(&seen) }
            });
        assert!(within, "{context}: {reply:?}, expected {first:?} .. {last:?}");
    }
}

/// `a / b`, rounded up, for `b > 0`.
pub fn ceil_div(a: i128, b: i128) -> i64 {
    ceil(a, b).try_into().unwrap()
}
