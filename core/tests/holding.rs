//! Leases of units: whatever the clients of a limit do, they never spend more than the bound.
//!
//! A schedule is drawn at random: clients that hoard, spend, give back, crash; calls and answers that travel
//! or are lost; a replica that lags behind and takes over once. The server is the core's own GCRA. Time
//! passes in ticks. The units spent in every stretch of ticks are compared with the bound, which a failover
//! extends by the units that it has forgotten.

#![allow(clippy::restriction, reason = "a test that panics is a test that fails")]

mod common;

use std::collections::{HashSet, VecDeque};

use common::{MS, Random, after, ago, at, nanos, span};
use proptest::prelude::*;
use redis_cell_core::gcra::{self, Tat};
use redis_cell_core::holding::{Holding, Part, Spend, Terms};
use redis_cell_core::limiter::Limiter;
use redis_cell_core::{Instant, Rate, Span, Unit, fixed, window};

/// The length of a tick in nanoseconds.
const TICK: i64 = 10 * MS;

/// The numbers of a schedule. Times are in ticks.
#[derive(Clone, Copy, Debug)]
struct Numbers {
    /// `max_burst + 1`.
    limit: i64,
    /// Ticks per unit.
    interval: i64,
    clients: usize,
    most: i64,
    least: i64,
    hold: i64,
    reply: i64,
    ticks: i64,
    seed: u64,
}

fn numbers() -> impl Strategy<Value = Numbers> {
    (1..10_i64, 1..4_i64, 1..6_usize, 1..12_i64, 1..4_i64, 1..40_i64, 0..4_i64, any::<u64>()).prop_map(
        |(limit, interval, clients, most, least, hold, reply, seed)| Numbers {
            limit,
            interval,
            clients,
            most,
            least: least.min(most),
            hold,
            reply,
            ticks: 120,
            seed,
        },
    )
}

/// The defect of the clients of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Defect {
    None,
    /// A batch stays valid for a tick longer.
    LongerHold,
    /// The hold counts from the answer, not from the call.
    HoldFromAnswer,
    /// A client holds one unit more.
    LargerBatch,
    /// All units left in a batch are given back, whether they have leaked or not.
    GivesAllBack,
    /// Units that were given back are spent as well.
    SpendsTwice,
    /// Units of a caller that has left come back twice.
    UnspendsTwice,
    /// A client does not notice that an answer is lost.
    WaitsForever,
    /// More units are forgotten in a failover than the replica has missed.
    ForgetsAll,
}

/// A message on its way.
#[derive(Clone, Copy, Debug)]
enum Message {
    Take(i64),
    Taken(i64, Option<Span>),
    GiveBack(i64),
    GivenBack,
}

#[derive(Clone, Debug, Default)]
struct Client {
    holding: Holding,
    /// Units of callers that leave before they use them.
    unread: Vec<Part>,
    /// Messages, with the tick of their arrival and whether the server receives them.
    messages: VecDeque<(i64, Message)>,
    /// When the call was sent for which the client waits.
    sent: Option<i64>,
    /// When the units on their way back were sent.
    sent_back: Option<i64>,
    crashed: bool,
}

impl Client {
    /// Whether it holds units, or has units on their way back.
    fn holds(&self) -> bool {
        if self.crashed {
            return self.messages.iter().any(|(_, message)| matches!(message, Message::GiveBack(_)));
        }
        !self.unread.is_empty() || !self.holding.is_idle(at(i64::MAX / 4))
    }
}

/// The behaviour of the clients in a tick.
#[derive(Clone, Copy, Debug)]
enum Mood {
    /// They take as much as they can, and spend nothing.
    Hoard,
    /// They take and spend as much as they can.
    Spend,
    /// They spend the units that they hold.
    Drain,
    /// They end their batches and give the units back.
    End,
    Quiet,
    /// Each does something else.
    Mixed,
}

const MOODS: [Mood; 6] = [Mood::Hoard, Mood::Spend, Mood::Drain, Mood::End, Mood::Quiet, Mood::Mixed];

/// What must not happen.
#[derive(Debug, PartialEq, Eq)]
enum Failure {
    /// In a stretch, more units were spent than the bound allows.
    Excess { spent: i64, bound: i64 },
    /// A client that goes on asking gets no unit, although no more messages are lost.
    Forgotten,
}

/// The world in which a schedule runs.
#[derive(Clone)]
struct World {
    numbers: Numbers,
    defect: Defect,
    terms: Terms,
    limit: gcra::Limit,
    tat: Option<Tat>,
    /// The state that the replica has received.
    replica: Option<Tat>,
    /// When it took over, and the nanoseconds of the units of which it had not received the state.
    forgot: Option<(i64, i64)>,
    clients: Vec<Client>,
    random: Random,
    /// Units spent in each tick.
    spent: Vec<i64>,
    /// Clients that held units when the tick began.
    holders: Vec<i64>,
}

impl World {
    fn new(numbers: Numbers, defect: Defect) -> Self {
        let period = numbers.interval * TICK / MS;
        let hold = numbers.hold + i64::from(defect == Defect::LongerHold);
        let terms = Terms {
            rate: Some(Rate::new(1, period, Unit::Milliseconds).unwrap()),
            least: numbers.least,
            most: numbers.most + i64::from(defect == Defect::LargerBatch),
            hold: span(hold * TICK),
            reply: span(numbers.reply * TICK),
        };
        Self {
            numbers,
            defect,
            terms,
            limit: gcra::Limit::new(numbers.limit - 1, 1, period, Unit::Milliseconds).unwrap(),
            tat: None,
            replica: None,
            forgot: None,
            clients: vec![Client::default(); numbers.clients],
            random: Random(numbers.seed),
            spent: Vec::new(),
            holders: Vec::new(),
        }
    }

    fn run(mut self) -> Option<Failure> {
        let mut mood = Mood::Quiet;
        let mut tick = 0;
        while tick < self.numbers.ticks {
            if self.random.below(3) == 0 {
                mood = MOODS[usize::try_from(self.random.below(6)).unwrap()];
            }
            // A behaviour may last exactly as long as a hold.
            let length = match self.random.below(3) {
                0 => 1,
                1 => self.random.below(8) + 1,
                _ => (self.numbers.hold - self.random.below(3)).max(1),
            };
            for _ in 0..length {
                self.tick(tick, mood);
                tick += 1;
            }
        }
        let is_forgotten = (0..self.clients.len()).any(|index| self.clone().forgets(tick, index));
        self.excess().or(is_forgotten.then_some(Failure::Forgotten))
    }

    fn tick(&mut self, tick: i64, mood: Mood) {
        self.spent.push(0);
        self.fail_over(tick);
        let holders = self.clients.iter().filter(|client| client.holds()).count();
        self.holders.push(i64::try_from(holders).unwrap());
        // Twice, so that a client can take and spend units that another gives back in the same tick.
        for _ in 0..2 {
            for index in 0..self.clients.len() {
                self.deliver(tick, index);
                if self.clients[index].crashed {
                    continue;
                }
                let mood = match mood {
                    Mood::Mixed => MOODS[usize::try_from(self.random.below(5)).unwrap()],
                    mood => mood,
                };
                self.act(tick, index, mood);
                self.deliver(tick, index);
                if matches!(mood, Mood::Spend | Mood::Drain) {
                    self.spend_all(tick, index);
                }
            }
        }
    }

    /// Lets the replica receive all writes, or take over.
    fn fail_over(&mut self, tick: i64) {
        match self.random.below(60) {
            0 if self.forgot.is_none() => {
                let debt = |tat: Option<Tat>| tat.map_or(0, |tat| nanos(tat.since(at(tick * TICK))));
                self.forgot = Some((tick, (debt(self.tat) - debt(self.replica)).max(0)));
                self.tat = self.replica.filter(|_| self.defect != Defect::ForgetsAll);
            }
            1..8 => self.replica = self.tat,
            _ => {}
        }
    }

    /// Whether a client that goes on asking is never served. From now on, messages arrive at once.
    fn forgets(&mut self, begin: i64, index: usize) -> bool {
        if self.clients[index].crashed {
            return false;
        }
        self.clients[index].messages.clear();
        // A wait is at most the debt of the limiter, and a pause one and a half times as long as the longest.
        !(begin..begin + 2_000).any(|tick| {
            self.deliver(tick, index);
            let (Client { holding, .. }, now) = (&mut self.clients[index], at(tick * TICK));
            if holding.give_back(&self.terms, now).is_some() {
                holding.returned();
            }
            if let Some(units) = holding.ask(&self.terms, now, 1) {
                let taken = gcra::saturate(self.tat, &self.limit, now, units).unwrap();
                self.tat = after(&taken, self.tat);
                let wait = taken.answer.verdict.wait().filter(|_| taken.answer.limited());
                holding.answered(&self.terms, now, taken.answer.taken.unwrap(), wait, None);
            }
            holding.spend(&self.terms, now, 1) == Spend::Spent
        })
    }

    /// Lets the messages of a client arrive, in order.
    fn deliver(&mut self, tick: i64, index: usize) {
        while let Some(&(arrival, message)) = self.clients[index].messages.front()
            && arrival <= tick
        {
            self.clients[index].messages.pop_front();
            let now = at(tick * TICK);
            match message {
                Message::Take(units) => {
                    let decision = gcra::saturate(self.tat, &self.limit, now, units).unwrap();
                    self.tat = after(&decision, self.tat);
                    let answer = decision.answer;
                    let wait = answer.verdict.wait().filter(|_| answer.limited());
                    self.send(tick, index, Message::Taken(answer.taken.unwrap(), wait));
                }
                Message::GiveBack(units) => {
                    let decision = gcra::refund(self.tat, &self.limit, now, units).unwrap();
                    self.tat = after(&decision, self.tat);
                    self.send(tick, index, Message::GivenBack);
                }
                Message::Taken(units, wait) => {
                    let client = &mut self.clients[index];
                    // An answer that no client waits for any longer is ignored.
                    if client.sent.take().is_some() {
                        client.holding.answered(&self.terms, now, units, wait, None);
                    }
                }
                Message::GivenBack => {
                    let client = &mut self.clients[index];
                    if client.sent_back.take().is_some() {
                        client.holding.returned();
                    }
                }
            }
        }
        let client = &mut self.clients[index];
        let notices = self.defect != Defect::WaitsForever;
        if notices && client.sent.is_some_and(|sent| tick - sent > self.numbers.reply) {
            client.sent = None;
            client.holding.lost(&self.terms, at(tick * TICK));
            client.messages.retain(|(_, message)| !matches!(message, Message::Taken(..)));
        }
        if client.sent_back.is_some_and(|sent| tick - sent > self.numbers.reply) {
            client.sent_back = None;
            client.holding.returned();
        }
    }

    /// Sends a message, which arrives at once or later. Units that are given back arrive within the time for
    /// an answer; requests and answers may be late or get lost.
    fn send(&mut self, tick: i64, index: usize, message: Message) {
        let late = match message {
            Message::GiveBack(_) => self.random.below(self.numbers.reply + 1),
            _ if self.random.below(10) == 0 => return,
            _ => self.random.below(2) * self.random.below(self.numbers.reply + 2),
        };
        let after = self.clients[index].messages.back().map_or(tick, |&(arrival, _)| arrival);
        let arrival = match message {
            // On a connection of its own.
            Message::GiveBack(_) => tick + late,
            _ => after.max(tick + late),
        };
        let messages = &mut self.clients[index].messages;
        let place = messages.iter().position(|&(other, _)| other > arrival).unwrap_or(messages.len());
        messages.insert(place, (arrival, message));
    }

    fn act(&mut self, tick: i64, index: usize, mood: Mood) {
        let now = at(tick * TICK);
        if self.random.below(100) == 0 {
            // A crash. Its messages are still on their way, and another client takes its place.
            self.clients[index].crashed = true;
            self.clients.push(Client::default());
            return;
        }
        let client = &mut self.clients[index];
        let unread = if self.random.below(2) == 0 { std::mem::take(&mut client.unread) } else { Vec::new() };
        for part in unread {
            for _ in 0..=i64::from(self.defect == Defect::UnspendsTwice) {
                client.holding.unspend(&self.terms, now, part);
            }
        }
        let wanted = match mood {
            Mood::Hoard | Mood::Spend => self.numbers.most,
            Mood::Drain | Mood::Quiet | Mood::Mixed => 0,
            Mood::End => {
                self.clients[index].holding.end(&self.terms, now);
                0
            }
        };
        if matches!(mood, Mood::Spend | Mood::Drain) {
            self.spend_all(tick, index);
        }
        let client = &mut self.clients[index];
        // Requested with the clock of the answer, a hold counts from there.
        let late = if self.defect == Defect::HoldFromAnswer { self.numbers.reply } else { 0 };
        if wanted > 0
            && let Some(units) = client.holding.ask(&self.terms, at((tick + late) * TICK), wanted)
        {
            client.sent = Some(tick);
            self.send(tick, index, Message::Take(units));
        }
        let client = &mut self.clients[index];
        let before = client.holding;
        if let Some((units, _)) = client.holding.give_back(&self.terms, now) {
            client.sent_back = Some(tick);
            self.send(tick, index, Message::GiveBack(units));
            if self.defect == Defect::SpendsTwice {
                self.spent[usize::try_from(tick).unwrap()] += units;
            }
        } else if self.defect == Defect::GivesAllBack {
            let quota = Terms { rate: None, ..self.terms };
            client.holding = before;
            if let Some((units, _)) = client.holding.give_back(&quota, now) {
                client.sent_back = Some(tick);
                self.send(tick, index, Message::GiveBack(units));
            }
        }
    }

    fn spend_all(&mut self, tick: i64, index: usize) {
        let (Client { holding, unread, .. }, now) = (&mut self.clients[index], at(tick * TICK));
        while let Some(part) = holding.part(&self.terms, now, 1)
            && holding.spend(&self.terms, now, 1) == Spend::Spent
        {
            if self.random.below(4) == 0 {
                unread.push(part);
            } else {
                self.spent[usize::try_from(tick).unwrap()] += 1;
            }
        }
    }

    /// The first stretch with more than the bound. On a grid of ticks, the last tick in which a batch is
    /// spent is the one before its hold is over.
    fn excess(&self) -> Option<Failure> {
        let numbers = self.numbers;
        for (first, holders) in self.holders.iter().enumerate() {
            let (begin, mut spent) = (i64::try_from(first).unwrap(), 0);
            for (stretch, units) in (0..).zip(&self.spent[first..]) {
                spent += units;
                // Units that were taken before a failover can be spent for a hold.
                let forgotten = match self.forgot {
                    Some((at, nanos)) if at > begin - numbers.hold && at <= begin + stretch => nanos,
                    _ => 0,
                };
                let rate = |ticks: i64| (ticks * TICK + forgotten) / (numbers.interval * TICK);
                let by_hold = rate(stretch + numbers.hold - 1);
                let bound = numbers.limit + by_hold.min(rate(stretch) + holders * numbers.most);
                if spent > bound {
                    return Some(Failure::Excess { spent, bound });
                }
            }
        }
        None
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24 * ProptestConfig::default().cases, ..ProptestConfig::default() })]

    #[test]
    fn clients_never_spend_more_than_the_bound(numbers in numbers()) {
        prop_assert_eq!(World::new(numbers, Defect::None).run(), None);
    }
}

/// Found by the property: a client held units, and received as many again, which it had requested before.
#[test]
fn units_of_callers_that_leave_come_back_in_no_place_of_others() {
    let seed = 10_102_865_764_184_340_652;
    let numbers =
        Numbers { limit: 5, interval: 1, clients: 1, most: 2, least: 1, hold: 8, reply: 2, ticks: 120, seed };
    assert_eq!(World::new(numbers, Defect::None).run(), None);
}

/// The milliseconds of a window.
const WINDOW: i64 = 50;

/// The units that clients of a limiter with windows spend in the fullest of the windows. `is_next` says
/// whether a window has ended between two instants, and `lasts` for how long a batch lasts, in milliseconds
/// from those of `reset_after`, rounded up, and from the units that remain.
fn spent_in_a_window<L: Limiter>(
    limiter: &L,
    is_next: impl Fn(Option<L::State>, i64, i64) -> bool,
    lasts: impl Fn(i64, i64) -> i64,
    (most, hold, seed): (i64, i64, u64),
) -> i64
where
    L::State: Copy,
{
    let mut random = Random(seed);
    let terms = Terms { rate: None, least: 1, most, hold: span(hold * MS), reply: span(8 * MS) };
    let mut key: Option<L::State> = None;
    let mut clients = vec![Holding::default(); 4];
    // The arrival of each client's call and of its answer, and what is in them.
    let mut calls: Vec<Option<(i64, i64)>> = vec![None; clients.len()];
    let mut answers: Vec<Option<(i64, i64, Span)>> = vec![None; clients.len()];
    let (mut now, mut spent, mut fullest) = (0, 0, 0);
    for _ in 0..400 {
        let before = now;
        now += random.below(4 * MS);
        if is_next(key, before, now) {
            spent = 0;
        }
        for (index, holding) in clients.iter_mut().enumerate() {
            if let Some((_, units)) = calls[index].take_if(|(arrival, _)| *arrival <= now) {
                let decision = limiter.saturate(key, at(now), units).unwrap();
                key = after(&decision, key);
                let reset = nanos(decision.answer.reset_after).div_euclid(MS) + 1;
                let taken = decision.answer.taken.unwrap_or_default();
                let lasts = lasts(reset, decision.answer.remaining).max(0);
                answers[index] = Some((now + random.below(6 * MS), taken, span(lasts)));
            }
            if let Some((_, taken, lasts)) = answers[index].take_if(|(arrival, ..)| *arrival <= now) {
                holding.answered(&terms, at(now), taken, None, Some(lasts));
            }
            if let Some((units, age)) = holding.give_back(&terms, at(now)) {
                let decision = limiter.settle(key, at(now), -units, Some(&ago(nanos(age)))).unwrap();
                key = after(&decision, key);
                holding.returned();
            }
            while random.below(3) > 0
                && let Some(part) = holding.part(&terms, at(now), 1)
                && holding.spend(&terms, at(now), 1) == Spend::Spent
            {
                if random.below(4) == 0 {
                    let held = holding.held();
                    holding.unspend(&terms, at(now), part);
                    assert!(holding.held() >= held);
                } else {
                    spent += 1;
                }
            }
            if !holding.is_asking()
                && let Some(units) = holding.ask(&terms, at(now), random.below(most + 1))
            {
                calls[index] = Some((now + random.below(3 * MS), units));
            }
        }
        fullest = fullest.max(spent);
    }
    fullest
}

/// The fullest of fixed windows, in which a batch lasts for some milliseconds longer.
fn in_a_fixed_window(limit: i64, longer: i64, numbers: (i64, i64, u64)) -> i64 {
    let limiter = fixed::Limit::new(limit, WINDOW, Unit::Milliseconds).unwrap();
    let is_next = |open: Option<fixed::Counter>, before, now| {
        open.is_some_and(|open| at(before) < open.end && open.end <= at(now))
    };
    spent_in_a_window(&limiter, is_next, |reset, _| (reset - 1 + longer) * MS, numbers)
}

/// The same of the windows of `CL.WINDOW`, which begin at multiples of the period.
fn in_a_sliding_window(limit: i64, longer: i64, numbers: (i64, i64, u64)) -> i64 {
    let limiter = window::Limit::new(limit, WINDOW, Unit::Milliseconds).unwrap();
    let index = |now: i64| at(now).as_nanos() / (WINDOW * MS).unsigned_abs();
    let lasts = |reset, remaining| nanos(limiter.lasts(remaining, span((reset - 1) * MS))) + longer * MS;
    spent_in_a_window(&limiter, |_, before, now| index(before) < index(now), lasts, numbers)
}

proptest! {
    #[test]
    fn clients_of_a_window_never_spend_more_than_its_limit(
        (limit, most, hold, seed) in (1..30_i64, 1..12_i64, 1..200_i64, any::<u64>())
    ) {
        prop_assert!(in_a_fixed_window(limit, 0, (most, hold, seed)) <= limit);
        prop_assert!(in_a_sliding_window(limit, 0, (most, hold, seed)) <= limit);
    }

    /// A sliding window lasts as long as its answer says, and no longer if there was no window before it.
    #[test]
    fn a_sliding_window_lasts_as_long_as_its_answer_says(
        calls in prop::collection::vec((0..30 * MS, 0..12_i64), 1..20), limit in 1..40_i64
    ) {
        let limiter = window::Limit::new(limit, WINDOW, Unit::Milliseconds).unwrap();
        let (mut key, mut now, mut windows) = (None, 0, HashSet::new());
        for (later, units) in calls {
            now += later;
            let decision = limiter.saturate(key, at(now), units).unwrap();
            let answer = decision.answer;
            key = after(&decision, key);
            if answer.taken > Some(0) {
                let period = WINDOW * MS;
                let into = i64::try_from(at(now).as_nanos() % period.unsigned_abs()).unwrap();
                let window = at(now).as_nanos() / period.unsigned_abs();
                let lasts = nanos(limiter.lasts(answer.remaining, answer.reset_after));
                prop_assert!(lasts <= period - into);
                windows.insert(window);
                prop_assert!(windows.contains(&(window - 1)) || lasts == period - into);
            }
        }
    }
}

#[test]
fn a_batch_that_outlasts_its_window_is_found() {
    // A sliding window is longer than its answer says, unless the one before it was empty.
    assert!((0..2_000).any(|seed| in_a_fixed_window(10, 1, (5, 100, seed)) > 10));
    assert!((0..2_000).any(|seed| in_a_sliding_window(10, 3, (5, 100, seed)) > 10));
}

/// The schedules would find a client that is wrong by little.
#[test]
fn a_defect_is_found_quickly() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;

    for defect in [
        Defect::LongerHold,
        Defect::HoldFromAnswer,
        Defect::LargerBatch,
        Defect::GivesAllBack,
        Defect::SpendsTwice,
        Defect::UnspendsTwice,
        Defect::WaitsForever,
        Defect::ForgetsAll,
    ] {
        let mut runner = TestRunner::deterministic();
        let found = (1..=6_000).find(|_| {
            let numbers = numbers().new_tree(&mut runner).unwrap().current();
            World::new(numbers, defect).run().is_some()
        });
        println!("{defect:?}: found by schedule {found:?}");
        assert!(found.is_some(), "{defect:?} was not found");
    }
}

/// A thousand units a second, in batches from 10 to 100 that are held for a second.
fn terms() -> Terms {
    let rate = Some(Rate::new(1000, 1, Unit::Seconds).unwrap());
    Terms { rate, least: 10, most: 100, hold: span(1000 * MS), reply: span(0) }
}

/// A step of a story about one client, with what is expected of it. Times are in nanoseconds.
#[derive(Clone, Copy, Debug)]
enum Step {
    Now(i64),
    /// A caller wants this many units, or none yet: how many the client requests, if any.
    Ask(i64, Option<i64>),
    /// An answer: units, units and a wait, or units and the time for which their window lasts at least.
    Got(i64),
    Wait(i64, i64),
    Lasts(i64, i64),
    Lost,
    /// A caller gets this many units, finds too few, or is told to wait this long.
    Spent(i64),
    Short(i64),
    Refused(i64, i64),
    /// The first pause: from a half of 10 ms to one and a half times as much.
    Paused,
    Held(i64),
    EndsIn(Option<i64>),
    End,
    /// The units that go back, and their age.
    Back(Option<(i64, i64)>),
    Returned,
    Idle(bool),
    /// What would happen in place of the steps behind it.
    Or(&'static [Step]),
}

use Step::*;

fn tell(holding: &mut Holding, terms: &Terms, now: &mut Instant, steps: &[Step]) {
    for step in steps {
        println!("{step:?}"); // shown if it fails
        match *step {
            Now(nanos) => *now = at(nanos),
            Ask(wanted, units) => {
                assert_eq!(holding.ask(terms, *now, wanted), units);
                assert!(units.is_none() || holding.is_asking());
            }
            Got(units) => holding.answered(terms, *now, units, None, None),
            Wait(units, wait) => holding.answered(terms, *now, units, Some(span(wait)), None),
            Lasts(units, lasts) => holding.answered(terms, *now, units, None, Some(span(lasts))),
            Lost => holding.lost(terms, *now),
            Spent(units) => assert_eq!(holding.spend(terms, *now, units), Spend::Spent),
            Short(units) => assert_eq!(holding.spend(terms, *now, units), Spend::Short),
            Refused(units, wait) => {
                assert_eq!(holding.spend(terms, *now, units), Spend::Refused(span(wait)));
            }
            Paused => {
                let pause = holding.spend(terms, *now, 1);
                let range = span(5 * MS)..=span(15 * MS);
                assert!(matches!(pause, Spend::Refused(wait) if range.contains(&wait)), "{pause:?}");
            }
            Held(units) => assert_eq!(holding.held(), units),
            EndsIn(time) => assert_eq!(holding.ends_in(*now), time.map(span)),
            End => holding.end(terms, *now),
            Back(back) => {
                assert_eq!(holding.give_back(terms, *now), back.map(|(units, age)| (units, span(age))));
            }
            Returned => holding.returned(),
            Idle(is_idle) => assert_eq!(holding.is_idle(*now), is_idle),
            Or(steps) => tell(&mut holding.clone(), terms, &mut now.clone(), steps),
        }
        assert!(!matches!(step, Got(_) | Wait(..) | Lasts(..) | Lost) || !holding.is_asking());
    }
}

/// A batch of ten.
const TEN: &[Step] = &[Ask(1, Some(10)), Got(10)];
/// A batch of ten that is used up at once, and then one of twenty.
const TWENTY: &[Step] = &[Ask(1, Some(10)), Got(10), Spent(10), Ask(1, Some(20)), Got(20)];
/// Two calls that bring nothing, and one that brings enough.
#[rustfmt::skip]
const PAUSES: &[Step] = &[Ask(1, Some(10)), Got(0), Now(100 * MS), Ask(1, Some(10)), Got(0),
                          Now(200 * MS), Ask(1, Some(10)), Got(100), Now(200 * MS + 1)];
const NOTHING: &[Step] = &[];

/// How the terms of a story differ from the usual ones, by the milliseconds of a time.
type Change = fn(Terms, i64) -> Terms;
const USUAL: Change = |terms, _| terms;
const HOLD: Change = |terms, millis| Terms { hold: span(millis * MS), ..terms };
const REPLY: Change = |terms, millis| Terms { reply: span(millis * MS), ..terms };
const MOST: Change = |terms, most| Terms { most, least: terms.least.min(most), ..terms };
const QUOTA: Change = |terms, reply| Terms { rate: None, reply: span(reply * MS), ..terms };

/// What a story shows, its terms, how it begins, and how it goes on.
type Story<'a> = (&'a str, Change, i64, &'a [Step], &'a [Step]);

#[test]
#[rustfmt::skip] // A story is read from left to right.
fn stories_of_one_client() {
    let stories: [Story; 30] = [
        ("a hold is over at its very end", USUAL, 0, TWENTY,
            &[EndsIn(Some(1000 * MS)), Now(1000 * MS - 1), EndsIn(Some(1)), Spent(1),
              Now(1000 * MS), EndsIn(Some(0)), Short(1), Held(0), EndsIn(None)]),
        ("the older of two batches ends first", USUAL, 0, TWENTY,
            &[Spent(10), Now(400 * MS), Ask(0, Some(20)), Got(20), Held(30), EndsIn(Some(600 * MS)),
              Now(1000 * MS), Spent(1), Held(19)]),
        ("a batch of which more than half is left was too large", USUAL, 0, TWENTY,
            &[Or(&[Spent(0), Now(1000 * MS), Short(1), Ask(1, Some(10))]),
              Or(&[Spent(9), Now(1000 * MS), Short(1), Ask(1, Some(10))]),
              Or(&[Spent(10), Now(1000 * MS), Short(1), Ask(1, Some(20))]),
              Or(&[Spent(11), Now(1000 * MS), Short(1), Ask(1, Some(20))])]),
        ("a batch that is used up leaves nothing behind", USUAL, 0, TWENTY,
            &[Spent(20), Now(1000 * MS), Short(1), Idle(true), Back(None)]),
        ("a quantity comes from the older of two batches first, and what it lacks from the other", USUAL, 0, TWENTY,
            &[Spent(15), Now(MS), Ask(35, Some(30)), Got(30), Held(35), Short(36), Spent(7), Held(28),
              EndsIn(Some(1000 * MS))]),
        ("who was refused stays away until the wait is over", USUAL, 0, NOTHING,
            &[Ask(1, Some(10)), Wait(0, 5000 * MS), Refused(1, 5000 * MS), Now(5000 * MS - 1), Ask(1, None),
              Now(5000 * MS), Short(1), Ask(1, Some(10))]),
        ("a wait begins with the answer, not with the call", USUAL, 0, NOTHING,
            &[Ask(1, Some(10)), Now(100 * MS), Wait(0, 50 * MS), Now(150 * MS - 1), Ask(1, None),
              Now(150 * MS), Ask(1, Some(10))]),
        ("a wait without a pause is remembered until it ends", USUAL, 0, NOTHING,
            &[Ask(1, Some(10)), Wait(10, 5000 * MS), Spent(10), Ask(1, None), Now(5000 * MS - 1), Idle(false),
              Now(5000 * MS), Idle(true)]),
        ("nobody asks for what is held", USUAL, 0, TEN, &[Ask(10, None), Ask(11, Some(10))]),
        ("nobody asks for more than may be held", MOST, 1, NOTHING, &[Ask(1, Some(1)), Got(1), Ask(2, None)]),
        ("less than half of the request shows that others want units too: a pause follows", USUAL, 0,
            &[Ask(1, Some(10))],
            &[Or(&[Got(0), Now(1), Ask(11, None)]), Or(&[Got(1), Now(1), Ask(11, None)]),
              Or(&[Got(5), Now(1), Ask(11, None)]), Or(&[Got(6), Now(1), Ask(11, Some(10))]),
              Or(&[Got(10), Now(1), Ask(11, Some(10))])]),
        ("a pause of 10 ms ends with a call that brings enough, and one of 20 ms, the second, does not", USUAL, 0,
            &[Ask(1, Some(10)), Got(0), Now(100 * MS), Ask(1, Some(10))],
            &[Or(&[Got(100), Now(100 * MS + 1), Ask(11, Some(10))]),
              Got(0), Now(100 * MS + 1), Ask(1, None),
              Now(200 * MS), Ask(1, Some(10)), Got(100), Now(200 * MS + 1), Ask(11, None)]),
        ("a pause of 20 ms becomes one of 10 where a hold takes 20 ms", HOLD, 20, PAUSES, &[Ask(11, None)]),
        ("where a hold takes less, it would become shorter than the shortest, and ends", HOLD, 19, PAUSES,
            &[Ask(11, Some(10))]),
        ("an answer without units leaves room for the next", USUAL, 0, TWENTY,
            &[Spent(10), Ask(0, Some(20)), Got(0), Now(100 * MS), Ask(0, Some(20))]),
        ("what is ended goes back, and what is ended meanwhile after it", USUAL, 0, TEN,
            &[End, Held(0), Back(Some((10, 0))), Idle(false), Ask(1, Some(10)), Got(10), Returned, Idle(false),
              End, Back(Some((10, 0))), Returned, Idle(true)]),
        ("regression: a batch that ended while another one was on its way back was forgotten", USUAL, 0, TEN,
            &[End, Back(Some((10, 0))), Ask(1, Some(10)), Got(10), End, Back(None), Returned, Idle(false),
              Back(Some((10, 0)))]),
        ("units that leak on their way do not go back", REPLY, 3, TEN, &[Now(2 * MS), End, Back(Some((5, 5 * MS)))]),
        ("a batch whose hold is over goes back without another call", HOLD, 4, TEN,
            &[Now(4 * MS - 1), Back(None), Now(4 * MS), Back(Some((6, 4 * MS))), Held(0)]),
        ("a batch that is used up hides none that has units to give back", USUAL, 0, TEN,
            &[End, Ask(1, Some(10)), Got(10), Spent(10), End, Back(Some((10, 0)))]),
        ("of two ended batches the younger goes back, of which less has leaked, also when both are over", HOLD, 20,
            TEN,
            &[Spent(5), Now(2 * MS), Ask(35, Some(30)), Got(30), Or(&[Now(23 * MS), Back(Some((9, 21 * MS)))]),
              Now(3 * MS), End, Held(0), Back(Some((29, MS)))]),
        ("units on their way back count as held: the server may not have them yet", MOST, 10, TEN,
            &[End, Ask(1, None), Now(4 * MS), Back(Some((6, 4 * MS))), Ask(1, Some(4)), Lost, Returned,
              Now(100 * MS), Ask(1, Some(10))]),
        ("of a quota all units go back; their age begins with the answer if the window outlasts a call", QUOTA, 300,
            &[Ask(1, Some(10)), Now(100 * MS)],
            &[Or(&[Got(10), Now(500 * MS), End, Back(Some((10, 800 * MS)))]),
              Or(&[Lasts(10, 400 * MS), Now(500 * MS), End, Back(None)]),
              Or(&[Lasts(10, 1000 * MS), Now(500 * MS), End, Back(Some((10, 400 * MS)))]),
              Or(&[Lasts(10, 9000 * MS), Now(500 * MS), End, Back(Some((10, 400 * MS)))]),
              Or(&[Lasts(10, 400 * MS), Now(1000 * MS), End, Back(None)]),
              Or(&[Lasts(10, 9000 * MS), Now(1000 * MS), End, Back(Some((10, 900 * MS)))])]),
        ("a limit with a rate has no window", USUAL, 0, NOTHING,
            &[Ask(1, Some(10)), Now(2 * MS), Lasts(10, 9000 * MS), Now(5 * MS), End, Back(Some((5, 5 * MS)))]),
        ("the next batch is requested when half is used", USUAL, 0, TEN,
            &[Ask(0, None), Spent(4), Ask(0, None), Spent(1), Ask(0, Some(10))]),
        ("two batches become one where a third comes: as old as the older, with the allowance of the younger", USUAL, 0,
            TEN,
            &[Spent(5), Ask(35, Some(30)), Got(30), Ask(36, Some(10)), Or(&[Got(10), Held(45)]),
              Got(0), Now(5 * MS), End, Back(Some((25, 5 * MS)))]),
        ("two batches of a quota become one, of the older age and the earlier end", QUOTA, 300,
            &[Ask(1, Some(10)), Now(100 * MS)],
            &[Or(&[Lasts(10, 9000 * MS), Spent(5), Ask(0, Some(10)), Now(200 * MS), Lasts(10, 9000 * MS),
                   Ask(16, Some(10)), Lost, EndsIn(Some(800 * MS)), Now(350 * MS), End, Back(Some((15, 250 * MS)))]),
              Or(&[Lasts(10, 9000 * MS), Spent(5), Ask(0, Some(10)), Now(200 * MS), Lasts(10, 400 * MS),
                   Ask(16, Some(10)), Lost, EndsIn(Some(300 * MS)), Now(350 * MS), End, Back(Some((15, 250 * MS)))]),
              Or(&[Lasts(10, 400 * MS), Spent(5), Ask(0, Some(10)), Now(200 * MS), Lasts(10, 9000 * MS),
                   Ask(16, Some(10)), Lost, EndsIn(Some(200 * MS)), Now(350 * MS), End, Back(Some((15, 650 * MS)))])]),
        ("batches grow while they are used up in a quarter of their hold", USUAL, 0, &[Ask(1, Some(10))],
            &[Or(&[Got(10), Spent(10), Ask(1, Some(20))]),
              Or(&[Got(10), Now(250 * MS - 1), Spent(10), Ask(1, Some(20))]),
              Or(&[Got(10), Now(250 * MS), Spent(10), Ask(1, Some(10))]),
              Or(&[Got(6), Spent(6), Ask(1, Some(10))])]),
        ("the pause is the client's own: a server that names a shorter wait does not end it", USUAL, 0,
            &[Ask(1, Some(10))],
            &[Or(&[Got(0), Paused]), Or(&[Wait(0, 0), Paused]), Or(&[Wait(0, 1), Paused]), Wait(0, MS), Paused]),
        ("half of the size that was too large", USUAL, 0, TWENTY,
            &[Spent(20), Ask(1, Some(40)), Got(40), Now(1000 * MS), Ask(1, Some(20))]),
    ];
    for (shows, change, number, first, then) in stories {
        println!("{shows}");
        tell(&mut Holding::default(), &change(terms(), number), &mut at(0), &[first, then].concat());
    }
}

#[test]
fn what_is_unspent_ends_with_its_first_batch_and_has_room() {
    let (terms, mut holding) = (terms(), Holding::default());
    assert!(holding.part(&terms, at(0), 1).is_none());
    tell(
        &mut holding,
        &terms,
        &mut at(0),
        &[TWENTY, &[Spent(15), Now(MS), Ask(35, Some(30)), Got(30)]].concat(),
    );
    let part = holding.part(&terms, at(MS), 7).unwrap();
    assert_eq!(holding.spend(&terms, at(MS), 7), Spend::Spent);
    let (mut full, mut late) = (holding, holding);
    holding.unspend(&terms, at(MS), part);
    assert_eq!((holding.held(), holding.ends_in(at(MS))), (35, Some(span(999 * MS))));
    // The younger batch lasts longer, and what has ended does not end it.
    holding.part(&terms, at(1000 * MS), 0);
    late.unspend(&terms, at(1000 * MS), part);
    assert_eq!((holding.held(), late.held()), (28, 28));
    // All that may be held is held or requested.
    assert_eq!(full.ask(&terms, at(MS), 100), Some(72));
    full.unspend(&terms, at(MS), part);
    assert_eq!(full.held(), 28);
}

/// A client with nothing but a pause is kept until the pause has been over for its own length.
#[test]
fn a_pause_is_remembered_for_its_length() {
    let terms = terms();
    let mut holding = Holding::default();
    tell(&mut holding, &terms, &mut at(0), &[Ask(1, Some(10)), Got(0), Paused]);
    let Spend::Refused(wait) = holding.spend(&terms, at(0), 1) else { panic!("a pause follows") };
    let over = nanos(wait);
    assert!(!holding.is_idle(at(over - 1)), "the pause is not over");
    assert!(!holding.is_idle(at(over + 10 * MS - 1)), "nor remembered for 10 ms");
    assert!(holding.is_idle(at(over + 10 * MS)));
}

/// Clients with equal pauses call at different times, by the digits of their clocks.
#[test]
fn equal_pauses_end_at_different_times() {
    let terms = terms();
    let wait = |now: i64| {
        let mut holding = Holding::default();
        assert!(holding.ask(&terms, at(now), 1).is_some());
        holding.answered(&terms, at(now), 0, None, None);
        holding.spend(&terms, at(now), 1)
    };
    assert_ne!(wait(0), wait(1));
}

/// However many calls bring nothing, no pause is longer than a second, or than a hold if that is longer.
#[test]
fn the_longest_pause_is_a_second_or_a_hold() {
    for (hold, longest) in [(100 * MS, 1000 * MS), (4000 * MS, 4000 * MS)] {
        let terms = Terms { hold: span(hold), ..terms() };
        let (mut holding, mut now) = (Holding::default(), 0);
        for _ in 0..20 {
            now += 10_000 * MS;
            assert!(holding.ask(&terms, at(now), 1).is_some());
            holding.lost(&terms, at(now));
        }
        let waits = holding.spend(&terms, at(now), 1);
        let Spend::Refused(wait) = waits else { panic!("{waits:?}") };
        assert!(
            (span(longest / 2)..=span(longest * 3 / 2)).contains(&wait),
            "{wait:?} with a hold of {hold}"
        );
    }
}
