//! Leases of units: whatever the clients of a limit do, they never spend more than the bound.
//!
//! A schedule is drawn at random: clients that hoard, spend, give back, crash; calls and answers that travel
//! or are lost. The server is the core's own GCRA. Time passes in ticks. The units spent in every stretch of
//! ticks are compared with the bound.

#![allow(clippy::restriction, reason = "a test that panics is a test that fails")]

mod common;

use std::collections::VecDeque;

use std::collections::HashSet;

use common::{MS, after, ago, at, nanos, span};
use proptest::prelude::*;
use redis_cell_core::gcra::{self, Tat};
use redis_cell_core::holding::{Holding, Part, Spend, Terms};
use redis_cell_core::limiter::Limiter;
use redis_cell_core::{Rate, Span, Unit, fixed, window};

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

/// How many units were spent in a stretch in which the bound allows fewer.
#[derive(Debug, PartialEq, Eq)]
struct Excess {
    spent: i64,
    bound: i64,
}

/// Numbers that depend only on their seed: splitmix64.
struct Random(u64);

impl Random {
    fn below(&mut self, end: i64) -> i64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        i64::try_from((z ^ (z >> 31)) % u64::try_from(end).unwrap()).unwrap()
    }
}

/// The world in which a schedule runs.
struct World {
    numbers: Numbers,
    defect: Defect,
    terms: Terms,
    limit: gcra::Limit,
    tat: Option<Tat>,
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
            clients: vec![Client::default(); numbers.clients],
            random: Random(numbers.seed),
            spent: Vec::new(),
            holders: Vec::new(),
        }
    }

    fn run(mut self) -> Option<Excess> {
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
        self.excess()
    }

    fn tick(&mut self, tick: i64, mood: Mood) {
        self.spent.push(0);
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
                    let wait = match answer.verdict {
                        redis_cell_core::Verdict::Later(wait) => Some(wait),
                        _ => None,
                    };
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
        if client.sent.is_some_and(|sent| tick - sent > self.numbers.reply) {
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
    fn excess(&self) -> Option<Excess> {
        let numbers = self.numbers;
        for first in 0..self.spent.len() {
            let mut spent = 0;
            for last in first..self.spent.len() {
                spent += self.spent[last];
                let stretch = i64::try_from(last - first).unwrap();
                let rate = |ticks: i64| ticks / numbers.interval;
                let by_hold = rate(stretch + numbers.hold - 1);
                let by_holders = rate(stretch) + self.holders[first] * numbers.most;
                let bound = numbers.limit + by_hold.min(by_holders);
                if spent > bound {
                    return Some(Excess { spent, bound });
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
        let excess = World::new(numbers, Defect::None).run();
        prop_assert_eq!(excess, None);
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

/// A client that has used up a batch of 10 at once, and has a batch of 20 then.
fn with_twenty() -> Holding {
    let (mut holding, terms) = (Holding::default(), terms());
    for units in [10, 20] {
        assert_eq!(holding.ask(&terms, at(0), 1), Some(units));
        assert!(holding.is_asking());
        holding.answered(&terms, at(0), units, None, None);
        assert!(!holding.is_asking());
        if units == 10 {
            assert_eq!(holding.spend(&terms, at(0), 10), Spend::Spent);
        }
    }
    holding
}

#[test]
fn a_hold_is_over_at_its_very_end() {
    let (mut holding, terms) = (with_twenty(), terms());
    assert_eq!(holding.ends_in(at(0)), Some(span(1000 * MS)));
    let last = at(1000 * MS - 1);
    assert_eq!(holding.ends_in(last), Some(span(1)));
    assert_eq!(holding.spend(&terms, last, 1), Spend::Spent);
    let end = at(1000 * MS);
    assert_eq!(holding.ends_in(end), Some(span(0)));
    assert_eq!(holding.spend(&terms, end, 1), Spend::Short);
    assert_eq!((holding.held(), holding.ends_in(end)), (0, None));
}

#[test]
fn the_older_of_two_batches_ends_first() {
    let (mut holding, terms) = (with_twenty(), terms());
    assert_eq!(holding.spend(&terms, at(0), 10), Spend::Spent);
    let later = at(400 * MS);
    assert_eq!(holding.ask(&terms, later, 0), Some(20), "half of the only batch is used up");
    holding.answered(&terms, later, 20, None, None);
    assert_eq!(holding.held(), 30);
    assert_eq!(holding.ends_in(later), Some(span(600 * MS)));
    assert_eq!(holding.spend(&terms, at(1000 * MS), 1), Spend::Spent);
    assert_eq!(holding.held(), 19);
}

#[test]
fn a_batch_of_which_more_than_half_is_left_was_too_large() {
    let terms = terms();
    for (spent, next) in [(0, 10), (9, 10), (10, 20), (11, 20)] {
        let mut holding = with_twenty();
        assert_eq!(holding.spend(&terms, at(0), spent), Spend::Spent);
        let end = at(1000 * MS);
        assert_eq!(holding.spend(&terms, end, 1), Spend::Short);
        assert_eq!(holding.ask(&terms, end, 1), Some(next), "{spent} of 20 spent");
    }
}

#[test]
fn a_batch_that_is_used_up_leaves_nothing_behind() {
    let (mut holding, terms) = (with_twenty(), terms());
    assert_eq!(holding.spend(&terms, at(0), 20), Spend::Spent);
    let end = at(1000 * MS);
    assert_eq!(holding.spend(&terms, end, 1), Spend::Short);
    assert!(holding.is_idle(end));
    assert_eq!(holding.give_back(&terms, end), None);
}

/// Of two batches, the older one is spent first, and what it lacks comes from the younger one.
#[test]
fn a_quantity_may_come_from_two_batches() {
    let (mut holding, terms) = (with_twenty(), terms());
    assert_eq!(holding.spend(&terms, at(0), 15), Spend::Spent);
    assert_eq!(holding.ask(&terms, at(MS), 35), Some(30));
    holding.answered(&terms, at(MS), 30, None, None);
    assert_eq!(holding.held(), 35);
    assert_eq!(holding.spend(&terms, at(MS), 36), Spend::Short);
    assert_eq!(holding.spend(&terms, at(MS), 7), Spend::Spent);
    assert_eq!(holding.held(), 28);
    // What is left is the younger one.
    assert_eq!(holding.ends_in(at(MS)), Some(span(1000 * MS)));
}

#[test]
fn what_is_unspent_ends_with_its_first_batch_and_has_room() {
    let (mut holding, terms) = (with_twenty(), terms());
    assert!(Holding::default().part(&terms, at(0), 1).is_none());
    assert_eq!(holding.spend(&terms, at(0), 15), Spend::Spent);
    assert_eq!(holding.ask(&terms, at(MS), 35), Some(30));
    holding.answered(&terms, at(MS), 30, None, None);
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

/// A client that has just received this many of the ten units that it has requested.
fn handed(terms: &Terms, units: i64, wait: Option<i64>) -> Holding {
    let mut holding = Holding::default();
    assert_eq!(holding.ask(terms, at(0), 1), Some(10));
    holding.answered(terms, at(0), units, wait.map(span), None);
    holding
}

#[test]
fn who_was_refused_stays_away_until_the_wait_is_over() {
    let terms = terms();
    let wait = 5000 * MS;
    let mut holding = handed(&terms, 0, Some(wait));
    assert_eq!(holding.spend(&terms, at(0), 1), Spend::Refused(span(wait)));
    assert_eq!(holding.ask(&terms, at(wait - 1), 1), None);
    assert_eq!(holding.spend(&terms, at(wait), 1), Spend::Short);
    assert_eq!(holding.ask(&terms, at(wait), 1), Some(10));
}

/// The wait of a refusal begins with the answer, not with the call.
#[test]
fn a_wait_begins_with_the_answer() {
    let terms = terms();
    let mut holding = Holding::default();
    assert_eq!(holding.ask(&terms, at(0), 1), Some(10));
    holding.answered(&terms, at(100 * MS), 0, Some(span(50 * MS)), None);
    assert_eq!(holding.ask(&terms, at(150 * MS - 1), 1), None);
    assert_eq!(holding.ask(&terms, at(150 * MS), 1), Some(10));
}

/// A client with nothing but a pause is kept until the pause has been over for its own length.
#[test]
fn a_pause_is_remembered_for_its_length() {
    let terms = terms();
    let mut holding = handed(&terms, 0, None);
    let Spend::Refused(wait) = holding.spend(&terms, at(0), 1) else { panic!("a pause follows") };
    let over = i64::try_from(wait.as_nanos()).unwrap();
    assert!(!holding.is_idle(at(over - 1)), "the pause is not over");
    assert!(!holding.is_idle(at(over + 10 * MS - 1)), "nor remembered for 10 ms");
    assert!(holding.is_idle(at(over + 10 * MS)));
    // A wait without a pause is remembered until it ends.
    let mut holding = handed(&terms, 10, Some(5000 * MS));
    assert_eq!(holding.spend(&terms, at(0), 10), Spend::Spent);
    assert_eq!(holding.ask(&terms, at(0), 1), None);
    assert!(!holding.is_idle(at(5000 * MS - 1)));
    assert!(holding.is_idle(at(5000 * MS)));
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

/// The pause is the client's own: a server that names a shorter wait does not end it.
#[test]
fn a_short_wait_does_not_shorten_the_pause() {
    let terms = terms();
    let pauses = handed(&terms, 0, None).spend(&terms, at(0), 1);
    assert!(matches!(pauses, Spend::Refused(pause) if pause >= span(5 * MS)), "{pauses:?}");
    for wait in [0, 1, MS] {
        assert_eq!(handed(&terms, 0, Some(wait)).spend(&terms, at(0), 1), pauses, "{wait} ns");
    }
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

#[test]
fn nobody_asks_without_need_or_room() {
    let terms = terms();
    let mut holding = handed(&terms, 10, None);
    assert_eq!(holding.ask(&terms, at(0), 10), None, "as much is held");
    assert_eq!(holding.ask(&terms, at(0), 11), Some(10));
    let one = Terms { least: 1, most: 1, ..terms };
    let mut holding = Holding::default();
    assert_eq!(holding.ask(&one, at(0), 1), Some(1));
    holding.answered(&one, at(0), 1, None, None);
    assert_eq!(holding.ask(&one, at(0), 2), None, "no more may be held");
}

/// Less than half of the request shows that other clients want the units as well.
#[test]
fn a_call_that_brings_little_is_followed_by_a_pause() {
    let terms = terms();
    for (units, pauses) in [(0, true), (1, true), (5, true), (6, false), (10, false)] {
        let mut holding = handed(&terms, units, None);
        let asks = holding.ask(&terms, at(1), 11).is_some();
        assert_eq!(asks, !pauses, "{units} of 10");
    }
    // The first takes from a half of 10 ms to one and a half times as much.
    let waits = handed(&terms, 0, None).spend(&terms, at(0), 1);
    let Spend::Refused(wait) = waits else { panic!("{waits:?}") };
    assert!((span(5 * MS)..=span(15 * MS)).contains(&wait), "{wait:?}");
    // Each pause is twice the one before; a call that brings enough makes it shorter, and the shortest ends.
    let next = |holding: &mut Holding, now: i64, units: i64| {
        let wanted = holding.held() + 1;
        assert!(holding.ask(&terms, at(now), wanted).is_some());
        holding.answered(&terms, at(now), units, None, None);
        holding.ask(&terms, at(now + 1), holding.held() + 1).is_some()
    };
    let mut holding = handed(&terms, 0, None);
    assert!(next(&mut holding, 100 * MS, 100), "after one pause of 10 ms");
    let mut holding = handed(&terms, 0, None);
    assert!(!next(&mut holding, 100 * MS, 0));
    assert!(!next(&mut holding, 200 * MS, 100), "after pauses of 10 and 20 ms");
}

#[test]
fn an_answer_without_units_leaves_room_for_the_next() {
    let (mut holding, terms) = (with_twenty(), terms());
    assert_eq!(holding.spend(&terms, at(0), 10), Spend::Spent);
    assert_eq!(holding.ask(&terms, at(0), 0), Some(20));
    holding.answered(&terms, at(0), 0, None, None);
    assert_eq!(holding.ask(&terms, at(100 * MS), 0), Some(20));
}

#[test]
fn what_is_ended_goes_back_and_one_return_is_waited_for() {
    let terms = terms();
    let mut holding = handed(&terms, 10, None);
    holding.end(&terms, at(0));
    assert_eq!(holding.held(), 0);
    assert_eq!(holding.give_back(&terms, at(0)), Some((10, span(0))));
    assert!(!holding.is_idle(at(0)));
    // Meanwhile another batch is handed out and ended.
    assert_eq!(holding.ask(&terms, at(0), 1), Some(10));
    holding.answered(&terms, at(0), 10, None, None);
    holding.returned();
    assert!(!holding.is_idle(at(0)), "ten units are held");
    holding.end(&terms, at(0));
    assert_eq!(holding.give_back(&terms, at(0)), Some((10, span(0))), "the first has returned");
    holding.returned();
    assert!(holding.is_idle(at(0)));
}

/// Regression: a batch that ended while another one was on its way back was forgotten.
#[test]
fn a_batch_that_ends_during_a_return_goes_back_after_it() {
    let terms = terms();
    let mut holding = handed(&terms, 10, None);
    holding.end(&terms, at(0));
    assert_eq!(holding.give_back(&terms, at(0)), Some((10, span(0))));
    assert_eq!(holding.ask(&terms, at(0), 1), Some(10));
    holding.answered(&terms, at(0), 10, None, None);
    holding.end(&terms, at(0));
    assert_eq!(holding.give_back(&terms, at(0)), None, "one return is on its way");
    holding.returned();
    assert!(!holding.is_idle(at(0)));
    assert_eq!(holding.give_back(&terms, at(0)), Some((10, span(0))));
}

/// The server receives units after the time for an answer, and by then more of them have leaked.
#[test]
fn units_that_leak_on_their_way_do_not_go_back() {
    let terms = Terms { reply: span(3 * MS), ..terms() };
    let mut holding = handed(&terms, 10, None);
    holding.end(&terms, at(2 * MS));
    assert_eq!(holding.give_back(&terms, at(2 * MS)), Some((5, span(5 * MS))));
}

/// Nobody has to spend or ask: a timer that gives back sets batches aside as well.
#[test]
fn a_batch_whose_hold_is_over_goes_back_without_another_call() {
    let terms = Terms { hold: span(4 * MS), ..terms() };
    let mut holding = handed(&terms, 10, None);
    assert_eq!(holding.give_back(&terms, at(4 * MS - 1)), None);
    assert_eq!(holding.give_back(&terms, at(4 * MS)), Some((6, span(4 * MS))));
    assert_eq!(holding.held(), 0);
}

/// A batch that is used up has nothing to give back, and does not take the place of one that has.
#[test]
fn a_batch_that_is_used_up_hides_no_other() {
    let terms = terms();
    let mut holding = handed(&terms, 10, None);
    holding.end(&terms, at(0));
    assert_eq!(holding.ask(&terms, at(0), 1), Some(10));
    holding.answered(&terms, at(0), 10, None, None);
    assert_eq!(holding.spend(&terms, at(0), 10), Spend::Spent);
    holding.end(&terms, at(0));
    assert_eq!(holding.give_back(&terms, at(0)), Some((10, span(0))));
}

/// Of two batches that are over, the younger one goes back: more of it has not leaked.
#[test]
fn of_two_ended_batches_the_younger_goes_back() {
    let terms = Terms { hold: span(20 * MS), ..terms() };
    let mut holding = handed(&terms, 10, None);
    assert_eq!(holding.spend(&terms, at(0), 5), Spend::Spent);
    assert_eq!(holding.ask(&terms, at(2 * MS), 35), Some(30));
    holding.answered(&terms, at(2 * MS), 30, None, None);
    let mut other = holding;
    holding.end(&terms, at(3 * MS));
    assert_eq!(holding.held(), 0, "neither can be spent any more");
    assert_eq!(holding.give_back(&terms, at(3 * MS)), Some((29, span(MS))));
    // The same if both holds have ended since.
    assert_eq!(other.give_back(&terms, at(23 * MS)), Some((9, span(21 * MS))));
}

/// Units on their way back count as held: the server may not have them yet.
#[test]
fn nobody_asks_for_units_that_are_on_their_way_back() {
    let terms = Terms { most: 10, ..terms() };
    let mut holding = handed(&terms, 10, None);
    holding.end(&terms, at(0));
    assert_eq!(holding.ask(&terms, at(0), 1), None, "they are to go back");
    assert_eq!(holding.give_back(&terms, at(4 * MS)), Some((6, span(4 * MS))));
    assert_eq!(holding.ask(&terms, at(4 * MS), 1), Some(4), "six are on their way");
    holding.lost(&terms, at(4 * MS));
    holding.returned();
    assert_eq!(holding.ask(&terms, at(100 * MS), 1), Some(10));
}

/// All units of a quota go back, with an age from the answer on, if the window is certain to outlast a call.
#[test]
fn the_age_of_what_goes_back_to_a_quota() {
    let terms = Terms { rate: None, reply: span(300 * MS), ..terms() };
    let long = span(500 * MS + 300 * MS);
    let rows = [
        (None, 500, Some((10, long))),
        (Some(400 * MS), 500, None), // its window has ended
        (Some(1000 * MS), 500, Some((10, span(400 * MS)))),
        (Some(9000 * MS), 500, Some((10, span(400 * MS)))),
        (Some(400 * MS), 1000, None),
        (Some(9000 * MS), 1000, Some((10, span(900 * MS)))),
    ];
    for (lasts, ends, back) in rows {
        let mut holding = Holding::default();
        assert_eq!(holding.ask(&terms, at(0), 1), Some(10));
        holding.answered(&terms, at(100 * MS), 10, None, lasts.map(span));
        holding.end(&terms, at(ends * MS));
        assert_eq!(holding.give_back(&terms, at(ends * MS)), back, "{lasts:?}");
    }
    // A limit with a rate has no window.
    let rate = Terms { reply: span(0), ..self::terms() };
    let mut holding = Holding::default();
    assert_eq!(holding.ask(&rate, at(0), 1), Some(10));
    holding.answered(&rate, at(2 * MS), 10, None, Some(span(9000 * MS)));
    holding.end(&rate, at(5 * MS));
    assert_eq!(holding.give_back(&rate, at(5 * MS)), Some((5, span(5 * MS))));
}

#[test]
fn the_next_batch_is_asked_for_when_half_is_used() {
    let terms = terms();
    let mut holding = handed(&terms, 10, None);
    for (left, asks) in [(10, false), (6, false), (5, true)] {
        let spent = holding.held() - left;
        assert_eq!(holding.spend(&terms, at(0), spent), Spend::Spent);
        assert_eq!(holding.ask(&terms, at(0), 0).is_some(), asks, "{left} of 10 left");
    }
}

/// When a third batch comes, two are merged: the result has the age of the older one and the allowance of the
/// younger one.
#[test]
fn two_batches_make_room_for_a_third() {
    let terms = terms();
    let mut holding = handed(&terms, 10, None);
    assert_eq!(holding.spend(&terms, at(0), 5), Spend::Spent);
    assert_eq!(holding.ask(&terms, at(0), 35), Some(30));
    holding.answered(&terms, at(0), 30, None, None);
    assert_eq!(holding.ask(&terms, at(0), 36), Some(10));
    let mut other = holding;
    holding.answered(&terms, at(0), 10, None, None);
    assert_eq!(holding.held(), 45);
    other.answered(&terms, at(0), 0, None, None);
    let later = at(5 * MS);
    other.end(&terms, later);
    assert_eq!(other.give_back(&terms, later), Some((25, span(5 * MS))), "30 less what has leaked");
}

/// Of a quota, two batches are spent as one only with the age of the older one.
#[test]
fn two_batches_of_a_quota_go_back_with_the_older_age() {
    let terms = Terms { rate: None, reply: span(300 * MS), ..terms() };
    let (short, long) = (Some(span(400 * MS)), Some(span(9000 * MS)));
    for (older, younger, age) in [(long, long, 250), (long, short, 250), (short, long, 650)] {
        let mut holding = Holding::default();
        assert_eq!(holding.ask(&terms, at(0), 1), Some(10));
        holding.answered(&terms, at(100 * MS), 10, None, older);
        assert_eq!(holding.spend(&terms, at(100 * MS), 5), Spend::Spent);
        assert_eq!(holding.ask(&terms, at(100 * MS), 0), Some(10));
        holding.answered(&terms, at(200 * MS), 10, None, younger);
        assert_eq!(holding.ask(&terms, at(200 * MS), 16), Some(10), "the two become one");
        holding.lost(&terms, at(200 * MS));
        holding.end(&terms, at(350 * MS));
        let back = holding.give_back(&terms, at(350 * MS));
        assert_eq!(back, Some((15, span(age * MS))), "{older:?}, {younger:?}");
    }
}

#[test]
fn a_pause_ends_when_it_is_shorter_than_the_shortest() {
    // Of pauses of 20 ms and one more call in each hold, pauses of 10 ms are left where a hold takes 20 ms,
    // and shorter ones where it takes less.
    for (hold, pauses) in [(20 * MS, true), (20 * MS - 1, false)] {
        let terms = Terms { hold: span(hold), ..terms() };
        let mut holding = handed(&terms, 0, None);
        for (now, units) in [(100 * MS, 0), (200 * MS, 100)] {
            assert!(holding.ask(&terms, at(now), 1).is_some());
            holding.answered(&terms, at(now), units, None, None);
        }
        let wanted = holding.held() + 1;
        assert_eq!(holding.ask(&terms, at(200 * MS + 1), wanted).is_none(), pauses, "{hold} ns");
    }
}

#[test]
fn batches_grow_while_they_are_used_up_in_a_quarter_of_their_hold() {
    let terms = terms();
    for (units, spent_at, next) in [(10, 0, 20), (10, 250 * MS - 1, 20), (10, 250 * MS, 10), (6, 0, 10)] {
        let mut holding = handed(&terms, units, None);
        let now = at(spent_at);
        assert_eq!(holding.spend(&terms, now, units), Spend::Spent);
        assert_eq!(holding.ask(&terms, now, 1), Some(next), "{units} spent after {spent_at} ns");
    }
    // Half of the size that was too large.
    let mut holding = with_twenty();
    assert_eq!(holding.spend(&terms, at(0), 20), Spend::Spent);
    assert_eq!(holding.ask(&terms, at(0), 1), Some(40));
    holding.answered(&terms, at(0), 40, None, None);
    assert_eq!(holding.ask(&terms, at(1000 * MS), 1), Some(20));
}
