//! The simulation: traffic, gateways, the network, and a server.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rand_distr::weighted::WeightedAliasIndex;
use rand_distr::{Distribution, Exp, LogNormal, Zipf};
use redis_cell_core::gcra::{self, Limit, Tat};
use redis_cell_core::holding::{Holding, Spend, Terms};
use redis_cell_core::{Change, Instant, Rate, Span, Unit, Verdict};

use crate::measure::{Meter, Outcome, Waits, fairness};

/// The instant at which a simulation begins, in November 2023.
const BEGIN: u64 = 1_700_000_000_000_000_000;

/// How long a gateway waits for an answer: as long as the clients do.
const TIMEOUT: u64 = 500_000_000;

/// How the gateways share the limit.
#[derive(Clone, Copy, Debug)]
pub enum Way {
    /// One call for each request.
    Direct,
    /// Leased units: at most `most` held by a gateway, each batch for `hold_ms`.
    Leased { most: i64, hold_ms: u64 },
    /// The key is split into this many keys on separate servers, each with its part of the limit.
    Split(u32),
    /// Each region has its own server with a part of the limit.
    Regional,
    /// Each gateway has a part of the limit, and calls no server.
    Shares,
}

/// A scenario.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// The number of gateways.
    pub gateways: u32,
    /// The number of keys.
    pub keys: u32,
    /// The exponent of the keys' distribution, which has no effect with a single key.
    pub zipf: f64,
    /// The skew of the gateways' traffic: gateway `i` has the weight `i ^ -skew`.
    pub skew: f64,
    /// Requests per second, for all gateways and keys.
    pub demand: f64,
    /// The limit of each key: `max_burst + 1`.
    pub burst: i64,
    /// The limit of each key: units per second.
    pub rate: i64,
    /// The median time of a message between a gateway and a server in its region, in milliseconds.
    pub near_ms: f64,
    /// The number of regions, over which the gateways are spread. The server is in the first one.
    pub regions: u32,
    /// The median time of a message between regions, in milliseconds.
    pub far_ms: f64,
    /// How long the last region is isolated from the others, in the middle of the simulation, in seconds.
    pub cut: f64,
    /// The simulated time, in seconds.
    pub seconds: f64,
    /// The seed of the random numbers.
    pub seed: u64,
    /// How the limit is shared.
    pub way: Way,
}

impl Default for Scenario {
    fn default() -> Self {
        Self {
            gateways: 200,
            keys: 1,
            zipf: 1.1,
            skew: 0.5,
            demand: 1e6,
            burst: 1_000,
            rate: 10_000,
            near_ms: 0.25,
            regions: 1,
            far_ms: 40.0,
            cut: 0.0,
            seconds: 5.0,
            seed: 1,
            way: Way::Direct,
        }
    }
}

impl Scenario {
    /// Checks the numbers. Returns an error that names a wrong one.
    pub fn check(&self) -> Result<(), String> {
        let whole = self.gateways > 0 && self.keys > 0 && self.burst > 0 && self.rate > 0;
        let real = self.demand > 0.0 && self.seconds > 0.0 && self.zipf > 0.0 && self.skew >= 0.0;
        let network = self.near_ms > 0.0 && self.far_ms > 0.0 && self.regions > 0 && self.cut >= 0.0;
        let way = match self.way {
            Way::Leased { most, hold_ms } => most > 0 && hold_ms > 0,
            Way::Split(parts) => i64::from(parts) <= self.burst.min(self.rate) && parts > 0,
            Way::Regional => i64::from(self.regions) <= self.burst.min(self.rate),
            Way::Direct | Way::Shares => true,
        };
        if whole && real && network && way {
            Ok(())
        } else {
            Err(format!("numbers must be positive, and parts and regions at most burst and rate: {self:?}"))
        }
    }

    /// Runs the scenario.
    pub fn run(&self) -> Outcome {
        World::new(*self).run()
    }
}

/// An event other than a request.
#[derive(Clone, Copy)]
enum Event {
    /// A call for one unit of a key reaches the server. `since` is the instant of the request.
    Call { gateway: u32, key: u32, part: u32, since: u64 },
    /// A request is admitted.
    Admitted { gateway: u32, key: u32, since: u64 },
    /// A call for a batch reaches the server.
    Ask { gateway: u32, key: u32, units: i64, asked: u64 },
    /// The answer to a call for a batch reaches the gateway.
    Answer { gateway: u32, key: u32, taken: i64, wait: Option<Span>, asked: u64 },
    /// The hold of a batch ends.
    Over { gateway: u32, key: u32 },
    /// Units that are given back reach the server.
    GiveBack { gateway: u32, key: u32, units: i64 },
    /// The answer to units that were given back reaches the gateway, or is late.
    GivenBack { gateway: u32, key: u32 },
    /// A request is refused because its call gets no answer.
    Unanswered { since: u64 },
    /// A call for a batch, sent at `asked`, gets no answer.
    Lost { gateway: u32, key: u32, asked: u64 },
}

/// Events are processed in the order of their instants, and at equal instants in the order of their creation.
struct Scheduled(u64, u64, Event);

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        (self.0, self.1) == (other.0, other.1)
    }
}

impl Eq for Scheduled {}

impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Scheduled {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.0, self.1).cmp(&(other.0, other.1))
    }
}

/// The units that a gateway holds for a key, and the requests that wait for more.
#[derive(Default)]
struct Share {
    holding: Holding,
    /// When the unanswered call was sent, if the network may lose messages.
    asked: Option<u64>,
    waiting: VecDeque<u64>,
}

struct World {
    scenario: Scenario,
    /// The limit of a key, or of one part of it.
    limit: Limit,
    terms: Terms,
    random: StdRng,
    near: LogNormal<f64>,
    far: LogNormal<f64>,
    events: BinaryHeap<Reverse<Scheduled>>,
    made: u64,
    /// The servers' states by key and part, or the gateways' own states by gateway and key.
    states: HashMap<(u32, u32), Tat>,
    shares: HashMap<(u32, u32), Share>,
    meters: HashMap<u32, Meter>,
    /// The units wanted and spent by each gateway.
    gateways: Vec<(u64, u64)>,
    waits: Waits,
    /// The number of calls for each part of a key.
    calls: HashMap<u32, u64>,
}

impl World {
    fn new(scenario: Scenario) -> Self {
        let parts = match scenario.way {
            Way::Split(parts) => i64::from(parts),
            Way::Shares => i64::from(scenario.gateways),
            Way::Regional => i64::from(scenario.regions),
            Way::Direct | Way::Leased { .. } => 1,
        };
        // A part of a small limit is at least one unit. Rates are exact: `rate` per `parts` seconds.
        let limit = Limit::new((scenario.burst / parts).max(1) - 1, scenario.rate, parts, Unit::Seconds);
        let (most, hold_ms) = match scenario.way {
            Way::Leased { most, hold_ms } => (most, hold_ms),
            _ => (1, 1),
        };
        let terms = Terms {
            rate: Some(Rate::new(scenario.rate, 1, Unit::Seconds).expect("a rate below a unit a nanosecond")),
            least: (most / 10).max(1),
            most,
            hold: Span::from_units(hold_ms, Unit::Milliseconds).expect("a short hold"),
            reply: Span::from_nanos(TIMEOUT).expect("a short time"),
        };
        Self {
            scenario,
            limit: limit.expect("a rate below a unit a nanosecond"),
            terms,
            random: StdRng::seed_from_u64(scenario.seed),
            // One message in a hundred takes more than six times the median.
            near: LogNormal::new(scenario.near_ms.ln(), 0.8).expect("a finite distribution"),
            // Times vary less over a longer distance.
            far: LogNormal::new(scenario.far_ms.ln(), 0.1).expect("a finite distribution"),
            events: BinaryHeap::new(),
            made: 0,
            states: HashMap::new(),
            shares: HashMap::new(),
            meters: HashMap::new(),
            gateways: vec![(0, 0); scenario.gateways as usize],
            waits: Waits::default(),
            calls: HashMap::new(),
        }
    }

    fn run(mut self) -> Outcome {
        let scenario = self.scenario;
        let end = (scenario.seconds * 1e9) as u64;
        let gaps = Exp::new(scenario.demand / 1e9).expect("a positive rate");
        let keys = Zipf::new(f64::from(scenario.keys), scenario.zipf).expect("a positive exponent");
        let weights = (1..=scenario.gateways).map(|place| f64::from(place).powf(-scenario.skew)).collect();
        let gateways = WeightedAliasIndex::new(weights).expect("positive weights");
        let mut request = 0.0;
        loop {
            request += gaps.sample(&mut self.random);
            let now = request as u64;
            self.until(now.min(end));
            if now >= end {
                return self.outcome();
            }
            let gateway = u32::try_from(gateways.sample(&mut self.random)).expect("a gateway");
            let key = if scenario.keys == 1 { 1 } else { keys.sample(&mut self.random) as u32 };
            self.gateways[gateway as usize].0 += 1;
            self.meters.entry(key).or_default().wanted += 1;
            self.request(now, gateway, key);
        }
    }

    /// Processes all events before `end`.
    fn until(&mut self, end: u64) {
        while let Some(Reverse(Scheduled(now, ..))) = self.events.peek()
            && *now <= end
        {
            if let Some(Reverse(Scheduled(now, _, event))) = self.events.pop() {
                self.happen(now, event);
            }
        }
    }

    fn request(&mut self, now: u64, gateway: u32, key: u32) {
        match self.scenario.way {
            Way::Direct => self.call(now, gateway, key, 0),
            Way::Split(parts) => {
                let part = self.random.random_range(0..parts);
                self.call(now, gateway, key, part);
            }
            Way::Regional => self.call(now, gateway, key, self.region(gateway)),
            Way::Shares => {
                if self.take(now, (gateway, key), 1) == (1, None) {
                    self.admit(now, gateway, key);
                }
                self.waits.add(0);
            }
            Way::Leased { .. } => {
                self.shares.entry((gateway, key)).or_default().waiting.push_back(now);
                self.serve(now, gateway, key);
            }
        }
    }

    fn happen(&mut self, now: u64, event: Event) {
        match event {
            Event::Call { gateway, key, part, since } => {
                *self.calls.entry(part).or_default() += 1;
                let admitted = self.take(now, (key, part), 1).0 == 1;
                match self.arrival(now, gateway).filter(|&answered| answered - since < TIMEOUT) {
                    Some(answered) if admitted => {
                        self.schedule(answered, Event::Admitted { gateway, key, since });
                    }
                    Some(answered) => self.waits.add(answered - since),
                    None => self.schedule(since + TIMEOUT, Event::Unanswered { since }),
                }
            }
            Event::Admitted { gateway, key, since } => {
                self.admit(now, gateway, key);
                self.waits.add(now - since);
            }
            Event::Ask { gateway, key, units, asked } => {
                *self.calls.entry(0).or_default() += 1;
                let (taken, wait) = self.take(now, (key, 0), units);
                if let Some(arrival) = self.arrival(now, gateway).filter(|&arrival| arrival - asked < TIMEOUT)
                {
                    self.schedule(arrival, Event::Answer { gateway, key, taken, wait, asked });
                }
            }
            Event::Answer { gateway, key, taken, wait, asked } => {
                let share = self.shares.entry((gateway, key)).or_default();
                share.asked = share.asked.filter(|&other| other != asked);
                share.holding.answered(&self.terms, at(now), taken, wait, None);
                if taken > 0 {
                    let hold = self.terms.hold.as_nanos();
                    self.schedule(now + hold, Event::Over { gateway, key });
                }
                self.serve(now, gateway, key);
            }
            Event::Over { gateway, key } => {
                let share = self.shares.entry((gateway, key)).or_default();
                if let Some((units, _)) = share.holding.give_back(&self.terms, at(now)) {
                    match self.arrival(now, gateway) {
                        Some(arrival) => self.schedule(arrival, Event::GiveBack { gateway, key, units }),
                        None => self.schedule(now + TIMEOUT, Event::GivenBack { gateway, key }),
                    }
                }
                if self.shares.get(&(gateway, key)).is_some_and(|share| share.holding.is_idle(at(now))) {
                    self.shares.remove(&(gateway, key));
                }
            }
            Event::GiveBack { gateway, key, units } => {
                *self.calls.entry(0).or_default() += 1;
                let state = self.states.get(&(key, 0)).copied();
                let decision = gcra::refund(state, &self.limit, at(now), units).expect("in range");
                self.store((key, 0), decision.change);
                let arrival = self.arrival(now, gateway).unwrap_or(now + TIMEOUT);
                self.schedule(arrival, Event::GivenBack { gateway, key });
            }
            Event::GivenBack { gateway, key } => {
                self.shares.entry((gateway, key)).or_default().holding.returned();
            }
            Event::Unanswered { since } => self.waits.add(now - since),
            Event::Lost { gateway, key, asked } => {
                let share = self.shares.entry((gateway, key)).or_default();
                if share.asked == Some(asked) {
                    share.asked = None;
                    share.holding.lost(&self.terms, at(now));
                    self.serve(now, gateway, key);
                }
            }
        }
    }

    /// Serves the requests of a gateway that wait for units of a key, in order.
    fn serve(&mut self, now: u64, gateway: u32, key: u32) {
        let mut share = self.shares.remove(&(gateway, key)).unwrap_or_default();
        while let Some(&since) = share.waiting.front() {
            match share.holding.spend(&self.terms, at(now), 1) {
                Spend::Spent => self.admit(now, gateway, key),
                Spend::Refused(_) => {}
                Spend::Short => break,
            }
            share.waiting.pop_front();
            self.waits.add(now - since);
        }
        let wanted = i64::from(!share.waiting.is_empty());
        if let Some(units) = share.holding.ask(&self.terms, at(now), wanted) {
            if let Some(arrival) = self.arrival(now, gateway) {
                self.schedule(arrival, Event::Ask { gateway, key, units, asked: now });
            }
            // Without other regions, every call is answered in time, which saves a hundred million events.
            if self.scenario.regions > 1 {
                share.asked = Some(now);
                self.schedule(now + TIMEOUT, Event::Lost { gateway, key, asked: now });
            }
        }
        self.shares.insert((gateway, key), share);
    }

    /// Decides in the server or in a gateway. Returns the units taken, and the wait of a refusal.
    fn take(&mut self, now: u64, place: (u32, u32), units: i64) -> (i64, Option<Span>) {
        let state = self.states.get(&place).copied();
        let decision = gcra::saturate(state, &self.limit, at(now), units).expect("in range");
        self.store(place, decision.change);
        let wait = match decision.answer.verdict {
            Verdict::Later(wait) => Some(wait),
            _ => None,
        };
        (decision.answer.taken.unwrap_or_default(), wait)
    }

    fn store(&mut self, place: (u32, u32), change: Change<Tat>) {
        match change {
            Change::Keep => {}
            Change::Store(tat) => {
                self.states.insert(place, tat);
            }
            Change::Delete => {
                self.states.remove(&place);
            }
        }
    }

    /// Admits a request that arrived at `since`.
    fn admit(&mut self, now: u64, gateway: u32, key: u32) {
        self.gateways[gateway as usize].1 += 1;
        self.meters.entry(key).or_default().spend(now, self.scenario.rate as f64);
    }

    /// Returns the region of a gateway. Busy and quiet gateways are spread equally.
    fn region(&self, gateway: u32) -> u32 {
        gateway % self.scenario.regions
    }

    /// Calls a server for one unit. If the network loses the call, the request is refused.
    fn call(&mut self, now: u64, gateway: u32, key: u32, part: u32) {
        match self.arrival(now, gateway) {
            Some(arrival) => self.schedule(arrival, Event::Call { gateway, key, part, since: now }),
            None => self.schedule(now + TIMEOUT, Event::Unanswered { since: now }),
        }
    }

    /// Returns when a message between a gateway and its server arrives, or `None` if it goes to another
    /// region and is lost.
    fn arrival(&mut self, now: u64, gateway: u32) -> Option<u64> {
        let scenario = self.scenario;
        let region = self.region(gateway);
        // Each region has its own server, or all regions use the server in the first one.
        let is_near = region == 0 || matches!(scenario.way, Way::Regional);
        let middle = (now as f64 / 1e9 - scenario.seconds / 2.0).abs();
        if !is_near && region == scenario.regions - 1 && middle < scenario.cut / 2.0 {
            return None;
        }
        let millis = (if is_near { self.near } else { self.far }).sample(&mut self.random);
        Some(now + (millis * 1e6) as u64)
    }

    fn schedule(&mut self, at: u64, event: Event) {
        self.made += 1;
        self.events.push(Reverse(Scheduled(at, self.made, event)));
    }

    fn outcome(&self) -> Outcome {
        let scenario = &self.scenario;
        let per_second = |count: u64| count as f64 / scenario.seconds;
        let most = scenario.burst as f64 + scenario.rate as f64 * scenario.seconds;
        let could: f64 = self.meters.values().map(|meter| most.min(meter.wanted as f64)).sum();
        let spent: u64 = self.meters.values().map(|meter| meter.spent).sum();
        let above = self.meters.values().map(|meter| meter.above(scenario.burst as f64));
        Outcome {
            wanted: per_second(self.gateways.iter().map(|(wanted, _)| wanted).sum()),
            admitted: per_second(spent),
            calls: per_second(self.calls.values().sum()),
            busiest: per_second(self.calls.values().copied().max().unwrap_or_default()),
            above: above.fold(0.0, f64::max),
            unused: (1.0 - spent as f64 / could).max(0.0),
            fairness: fairness(&self.gateways),
            waits: [self.waits.mean(), self.waits.p99()],
        }
    }
}

fn at(now: u64) -> Instant {
    Instant::saturating_from_nanos(BEGIN + now)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Few gateways that hold much, many that hold little, long and short holds, one key and many keys.
    #[test]
    fn leases_stay_within_the_bound() {
        let scenarios = [(3, 1_000, 2_000, 1), (50, 100, 300, 1), (500, 10, 100, 1), (20, 50, 1_000, 1_000)];
        for (gateways, most, hold_ms, keys) in scenarios {
            for seed in 1..4 {
                let way = Way::Leased { most, hold_ms };
                let scenario =
                    Scenario { gateways, keys, seed, way, demand: 5e4, seconds: 3.0, ..Scenario::default() };
                let outcome = scenario.run();
                let by_hold = scenario.rate as f64 * hold_ms as f64 / 1e3;
                let bound = by_hold.min(f64::from(gateways) * most as f64);
                assert!(outcome.above <= bound, "{} above the limit: {scenario:?}", outcome.above);
                assert!(outcome.calls < outcome.wanted, "leases save no calls: {scenario:?}");
            }
        }
    }

    /// Direct calls are above the limit only by the delay of the network.
    #[test]
    fn direct_calls_keep_the_limit() {
        let scenario = Scenario { demand: 1e5, seconds: 2.0, ..Scenario::default() };
        let outcome = scenario.run();
        assert!(outcome.above <= scenario.rate as f64 * 0.02, "{} above the limit", outcome.above);
        assert!(outcome.unused < 0.01, "{} unused", outcome.unused);
        assert!((outcome.calls - outcome.wanted).abs() < 0.01 * outcome.wanted, "a call for each request");
    }

    /// A region is isolated, and batches are lost on the way to it.
    #[test]
    fn a_cut_keeps_the_bound() {
        let regions = Scenario { regions: 3, cut: 2.0, demand: 3e4, seconds: 6.0, ..Scenario::default() };
        let together = Scenario { cut: 0.0, ..regions };
        for (way, bound) in [
            (Way::Direct, regions.rate as f64 * 0.2),
            (Way::Leased { most: 100, hold_ms: 1_000 }, regions.rate as f64),
            (Way::Regional, regions.rate as f64 * 0.02),
        ] {
            let (whole, cut) = (Scenario { way, ..together }.run(), Scenario { way, ..regions }.run());
            for outcome in [&whole, &cut] {
                assert!(outcome.above <= bound, "{} above the limit, {way:?}", outcome.above);
            }
            // Only the isolated region has no server, and only if it has none of its own.
            let fewer = cut.calls < whole.calls * 0.95;
            assert_eq!(fewer, matches!(way, Way::Direct | Way::Leased { .. }), "{way:?}: {}", cut.calls);
        }
    }

    #[test]
    fn equal_numbers_repeat() {
        let scenario = Scenario { demand: 1e4, seconds: 1.0, ..Scenario::default() };
        let run = |scenario: Scenario| {
            let outcome = scenario.run();
            [outcome.wanted, outcome.waits[0]].map(f64::to_bits)
        };
        assert_eq!(run(scenario), run(scenario));
        assert_ne!(run(scenario), run(Scenario { seed: 2, ..scenario }));
    }
}
