//! CL.THROTTLE as its page defines it, in wide integers, to compare replies with.

/// The arguments of a call after its key.
#[derive(Clone, Copy, Debug)]
pub struct Throttle {
    max_burst: i128,
    count: i128,
    period_ns: i128,
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
        Self { max_burst, count, period_ns: period * unit_ns, quantity, saturate, unit_ns }
    }

    /// The nanoseconds that serving `quantity` units takes, rounded down.
    pub fn cost(&self, quantity: i128) -> i128 {
        quantity * self.period_ns / self.count
    }

    /// The tolerance in nanoseconds: how far the TAT may run ahead.
    pub fn tolerance(&self) -> i128 {
        self.cost(self.max_burst + 1)
    }

    /// The most units whose cost is at most `time`, which may be negative.
    fn units(&self, time: i128) -> i128 {
        if time < 0 { 0 } else { ((time + 1) * self.count - 1) / self.period_ns }
    }

    /// The most that `calls` admitted calls take within `elapsed` nanoseconds: the promise that users are
    /// given.
    pub fn most_within(&self, elapsed: i64, calls: i64) -> i128 {
        // A nanosecond's worth for each call, where a unit does not take a whole number of them.
        let forgiven = if self.period_ns % self.count == 0 { 0 } else { calls };
        self.max_burst + 1 + i128::from(elapsed + forgiven) * self.count / self.period_ns
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
        let (d, now) = (self.tolerance(), i128::from(now));
        let old = tat.map_or(now, |tat| i128::from(tat).max(now));
        let room = self.units(now + d - old);
        let quantity = if self.saturate { self.quantity.min(room) } else { self.quantity };
        let nothing_fits = self.saturate && quantity == 0 && self.quantity > 0;
        let refused = nothing_fits || !self.saturate && old + self.cost(quantity) - d > now;

        let ttl = if refused { old - now } else { old + self.cost(quantity) - now };
        let retry = match (refused, self.saturate) {
            (false, _) => -1,
            (true, true) => ceil_div(old + self.cost(1) - d - now, self.unit_ns),
            (true, false) if self.quantity > self.max_burst + 1 => -1,
            (true, false) => ceil_div(old + self.cost(self.quantity) - d - now, self.unit_ns),
        };
        let mut reply = vec![
            refused.into(),
            i64::try_from(self.max_burst + 1).unwrap(),
            i64::try_from(self.units(d - ttl)).unwrap(),
            retry,
            ceil_div(ttl, self.unit_ns),
        ];
        if self.saturate {
            reply.push(i64::try_from(quantity).unwrap());
        }
        reply
    }

    /// Panics unless `reply` is right for some instant within `earliest..=latest`. Each number moves in one
    /// direction as time passes, so it lies between its values at both ends.
    pub fn check(&self, reply: &[i64], tat: Option<i64>, earliest: i64, latest: i64, context: &str) {
        let (first, last) = (self.answer(tat, earliest), self.answer(tat, latest));
        let within = reply.len() == first.len()
            && reply.iter().zip(first.iter().zip(&last)).enumerate().all(|(i, (seen, (a, b)))| {
                // Taking turns from refused to admitted in between, the waits jump instead of moving.
                let jumps = first[0] != last[0] || self.saturate && first[5] != last[5];
                if jumps && i > 1 { true } else { (a.min(b)..=a.max(b)).contains(&seen) }
            });
        assert!(within, "{context}: {reply:?}, expected {first:?} .. {last:?}");
    }
}

/// `a / b`, rounded up, for `b > 0`.
pub fn ceil_div(a: i128, b: i128) -> i64 {
    (-(-a).div_euclid(b)).try_into().unwrap()
}
