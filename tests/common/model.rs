//! The limiters as their pages define them, for comparison with a server: in wide integers, by search instead
//! of formulas, and without the code of the core.
//!
//! One number decides: [`room`], the most that a limiter would admit at an instant. A call is refused when
//! its quantity is above that. Its wait is searched for, as the first instant with enough room, and so is
//! `reset_after`, as the first instant with room for the whole limit.

use std::collections::BTreeMap;

/// The beginning of the error of a call.
pub type Error = &'static str;

const WRONG_TYPE: Error = "WRONGTYPE ";
const FOREIGN: Error = "ERR the key does not hold this limiter's state";
const PASSED: Error = "ERR UNTIL must be an integer from ";

const MILLI: i128 = 1_000_000;
const MICRO: i128 = 1_000;
const SECOND: i128 = 1_000_000_000;
const DAY: i128 = 86_400;
/// By how much the end of a window may change when its key is moved to another server.
const MOVED: i128 = SECOND;

/// The millisecond at which a key without expiry expires, and the wait for something that never comes.
pub const ENDLESS: i128 = 1 << 80;
const NEVER: i128 = 1 << 70;

/// `count` units per `period` nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    pub count: i128,
    pub period: i128,
}

impl Rate {
    /// The nanoseconds that serving this many units takes, rounded down.
    pub fn cost(self, units: i128) -> i128 {
        units * self.period / self.count
    }

    /// The most units that cost at most `time`; -1 when that is below 0.
    fn units(self, time: i128) -> i128 {
        let mut units = if time < 0 { return -1 } else { time * self.count / self.period };
        while self.cost(units + 1) <= time {
            units += 1;
        }
        units
    }

    /// Units per second, as a funnel shows them: nine decimals, cut off.
    fn per_second(self) -> String {
        let billionths = self.count * SECOND * SECOND / self.period;
        let text = format!("{}.{:09}", billionths / SECOND, billionths % SECOND);
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    }
}

/// When a fixed window ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Window {
    /// This many nanoseconds after it opened.
    Period(i128),
    /// At a boundary of the calendar, this many minutes ahead of UTC.
    Calendar { cycle: &'static str, utc: i128, from: i128 },
    /// At an instant.
    Until(i128),
    /// Never, or this many nanoseconds after the last take or charge.
    Total(Option<i128>),
}

/// A kind of limiter with its limit. All times are nanoseconds.
#[derive(Clone, Debug, PartialEq)]
pub enum Limit {
    Throttle { max_burst: i128, rate: Rate },
    Funnel { capacity: i128, rate: Rate },
    Bucket { capacity: i128, rate: Rate },
    Fixed { limit: i128, window: Window },
    Sliding { limit: i128, period: i128 },
    Log { limit: i128, period: i128 },
    Lease { limit: i128, lease: i128, id: String },
}

impl Limit {
    /// The most that can be admitted at once.
    pub fn most(&self) -> i128 {
        match *self {
            Self::Throttle { max_burst, .. } => max_burst + 1,
            Self::Funnel { capacity, .. } | Self::Bucket { capacity, .. } => capacity,
            Self::Fixed { limit, .. }
            | Self::Sliding { limit, .. }
            | Self::Log { limit, .. }
            | Self::Lease { limit, .. } => limit,
        }
    }
}

/// The state of a key. Instants are nanoseconds since the epoch, and whole microseconds in sorted sets.
#[derive(Clone, Debug, PartialEq)]
pub enum State {
    Tat(i128),
    /// A funnel shows its capacity and its rate, a bucket neither.
    Level {
        free: i128,
        since: i128,
        shown: Option<(i128, String)>,
    },
    Count {
        used: i128,
        end: i128,
    },
    Sliding {
        start: i128,
        current: i128,
        previous: i128,
    },
    Entries(Vec<i128>),
    Leases(BTreeMap<String, i128>),
}

impl State {
    /// Whether this is a state of the limiter.
    fn is_of(&self, limit: &Limit) -> Result<(), Error> {
        let (kind, own) = (self.kind(), kind_of(limit));
        if kind == own { Ok(()) } else { Err(if kind.0 == own.0 { FOREIGN } else { WRONG_TYPE }) }
    }

    fn kind(&self) -> (&'static str, u8) {
        match self {
            Self::Tat(_) => ("string", 0),
            Self::Count { .. } => ("string", 1),
            Self::Level { shown: Some(_), .. } => ("hash", 0),
            Self::Level { shown: None, .. } => ("hash", 1),
            Self::Sliding { .. } => ("hash", 2),
            Self::Entries(_) => ("zset", 0),
            Self::Leases(_) => ("zset", 1),
        }
    }

    /// The stored value as the server shows it: a string, the fields of a hash in the order of their names,
    /// or the scores of a sorted set.
    pub fn shown(&self) -> String {
        match self {
            Self::Tat(tat) => tat.to_string(),
            Self::Count { used, .. } => used.to_string(),
            Self::Level { free, since, shown: Some((capacity, rate)) } => {
                format!("capacity={capacity} leaking_rate={rate} leaking_ts={since} left_quota={free}")
            }
            Self::Level { free, since, shown: None } => format!("timestamp={since} tokens={free}"),
            Self::Sliding { start, current, previous } => {
                format!("current={current} previous={previous} window={start}")
            }
            Self::Entries(entries) => {
                entries.iter().map(|entry| (entry / MICRO).to_string()).collect::<Vec<_>>().join(" ")
            }
            Self::Leases(leases) => {
                let mut leases: Vec<_> = leases.iter().map(|(id, end)| (end / MICRO, id)).collect();
                leases.sort_unstable();
                leases.iter().map(|(end, id)| format!("{id}={end}")).collect::<Vec<_>>().join(" ")
            }
        }
    }
}

fn kind_of(limit: &Limit) -> (&'static str, u8) {
    match limit {
        Limit::Throttle { .. } => ("string", 0),
        Limit::Fixed { .. } => ("string", 1),
        Limit::Funnel { .. } => ("hash", 0),
        Limit::Bucket { .. } => ("hash", 1),
        Limit::Sliding { .. } => ("hash", 2),
        Limit::Log { .. } => ("zset", 0),
        Limit::Lease { .. } => ("zset", 1),
    }
}

/// A sorted set's clock: whole microseconds, rounded up.
pub fn tick(now: i128) -> i128 {
    ceil(now, MICRO) * MICRO
}

/// `a / b`, rounded up.
pub fn ceil(a: i128, b: i128) -> i128 {
    (a + b - 1).div_euclid(b)
}

/// The sliding window as it is at an instant: its start and both counts.
fn rolled(state: Option<&State>, period: i128, at: i128) -> (i128, i128, i128) {
    let begin = at - at % period;
    match state {
        Some(&State::Sliding { start, current, previous }) if start >= begin => (start, current, previous),
        Some(&State::Sliding { start, current, .. }) if begin - start <= period => (begin, 0, current),
        _ => (begin, 0, 0),
    }
}

/// The units that a funnel or a bucket has free, and how many of them have become free since.
fn free_at(state: Option<&State>, capacity: i128, rate: Rate, at: i128) -> (i128, Option<i128>) {
    let Some(&State::Level { free, since, .. }) = state else { return (capacity, None) };
    let come = rate.units((at - since).max(0));
    if free + come >= capacity { (capacity, None) } else { (free + come, Some(come)) }
}

/// How much would be admitted at the instant `at`; below 0 when the state is beyond the limit.
pub fn room(limit: &Limit, state: Option<&State>, at: i128) -> i128 {
    match (limit, state) {
        (Limit::Throttle { max_burst, rate }, state) => {
            let debt = if let Some(State::Tat(tat)) = state { (tat - at).max(0) } else { 0 };
            rate.units(rate.cost(max_burst + 1) - debt)
        }
        (Limit::Funnel { capacity, rate } | Limit::Bucket { capacity, rate }, state) => {
            free_at(state, *capacity, *rate, at).0
        }
        (Limit::Fixed { limit, .. }, Some(State::Count { used, end })) if at < *end => limit - used,
        (Limit::Sliding { limit, period }, state) => {
            let (start, current, previous) = rolled(state, *period, at);
            let ahead = (period - (at - start).max(0)).max(0);
            limit - current - (2 * previous * ahead + period) / (2 * period)
        }
        (Limit::Log { limit, period }, Some(State::Entries(entries))) => {
            limit - number(entries.iter().filter(|&&entry| entry + period > tick(at)).count())
        }
        (Limit::Lease { limit, .. }, Some(State::Leases(leases))) => {
            limit - number(leases.values().filter(|&&end| end > tick(at)).count())
        }
        (limit, _) => limit.most(),
    }
}

fn number(count: usize) -> i128 {
    i128::try_from(count).unwrap()
}

/// The time from `now` until there is room for this many units; [`NEVER`] if there never is, in a window
/// without end.
fn wait_for(limit: &Limit, state: Option<&State>, now: i128, wanted: i128) -> i128 {
    let enough = |wait: i128| room(limit, state, now + wait) >= wanted;
    if enough(0) {
        return 0;
    }
    let (mut earliest, mut latest) = (0, 1 << 20); // too early, and a millisecond: most waits are longer
    while !enough(latest) {
        (earliest, latest) = (latest, latest * 2);
        if latest > 1 << 66 {
            let is_total = matches!(limit, Limit::Fixed { window: Window::Total(_), .. });
            assert!(is_total, "{limit:?} never admits {wanted} on {state:?}");
            return NEVER;
        }
    }
    while latest - earliest > 1 {
        let between = i128::midpoint(earliest, latest);
        if enough(between) { latest = between } else { earliest = between }
    }
    latest
}

/// The answer of a limiter, with times in nanoseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    pub limited: bool,
    pub limit: i128,
    pub remaining: i128,
    pub retry: Option<i128>,
    pub reset: i128,
}

impl Row {
    /// The integers of the reply.
    pub fn reply(&self, unit: i128) -> [i128; 5] {
        let told = |time: i128| if time >= NEVER { -1 } else { ceil(time, unit) };
        let retry = self.retry.map_or(-1, told);
        [self.limited.into(), self.limit, self.remaining, retry, told(self.reset)]
    }

    /// The reply as text.
    pub fn shown(&self, unit: i128) -> String {
        self.reply(unit).map(|number| number.to_string()).join(" ")
    }
}

/// The verdict on a quantity, with the numbers of the state as it is. `None` checks the state itself: whether
/// it is over the limit, and when one more unit is admitted.
pub fn look(limit: &Limit, state: Option<&State>, now: i128, quantity: Option<i128>) -> Row {
    let here = room(limit, state, now);
    let limited = quantity.unwrap_or(0) > here;
    let wanted = quantity.unwrap_or(1);
    let waits = limited && wanted <= limit.most();
    Row {
        limited,
        limit: limit.most(),
        remaining: here.max(0),
        retry: waits.then(|| wait_for(limit, state, now, wanted)).filter(|wait| *wait < NEVER),
        reset: wait_for(limit, state, now, limit.most()),
    }
}

/// The verdict on a request to a limiter; the holder of a lease is admitted.
pub fn verdict(limit: &Limit, state: Option<&State>, now: i128, quantity: i128) -> Row {
    match limit {
        Limit::Lease { id, .. } => {
            let holds = lease_of(state, id).is_some_and(|end| end > tick(now));
            let row = look(limit, state, now, Some(1));
            if holds { Row { limited: false, retry: None, ..row } } else { row }
        }
        _ => look(limit, state, now, Some(quantity)),
    }
}

pub fn lease_of(state: Option<&State>, id: &str) -> Option<i128> {
    if let Some(State::Leases(leases)) = state { leases.get(id).copied() } else { None }
}

/// The state after this many units were taken, whether there was room for them or not.
pub fn taken(limit: &Limit, state: Option<&State>, now: i128, quantity: i128) -> Result<State, Error> {
    Ok(match limit {
        Limit::Throttle { rate, .. } => {
            let tat = if let Some(State::Tat(tat)) = state { *tat } else { now };
            State::Tat(tat.max(now) + rate.cost(quantity))
        }
        Limit::Funnel { capacity, rate } | Limit::Bucket { capacity, rate } => {
            leveled(limit, state, now, free_at(state, *capacity, *rate, now).0 - quantity)
        }
        Limit::Fixed { window, .. } => match state {
            Some(&State::Count { used, end }) if now < end => {
                State::Count { used: used + quantity, end: renewed(*window, end, now) }
            }
            _ => State::Count { used: quantity, end: end_from(*window, now)? },
        },
        Limit::Sliding { period, .. } => {
            let (start, current, previous) = rolled(state, *period, now);
            State::Sliding { start, current: current + quantity, previous }
        }
        Limit::Log { period, .. } => {
            let now = tick(now);
            let mut entries =
                if let Some(State::Entries(entries)) = state { entries.clone() } else { vec![] };
            entries.retain(|entry| entry + period > now);
            entries.resize(entries.len() + usize::try_from(quantity).unwrap(), now);
            State::Entries(entries)
        }
        Limit::Lease { lease, id, .. } => {
            let now = tick(now);
            let mut leases =
                if let Some(State::Leases(leases)) = state { leases.clone() } else { BTreeMap::new() };
            leases.retain(|_, end| *end > now);
            leases.insert(id.clone(), now + lease);
            State::Leases(leases)
        }
    })
}

/// The level of a funnel or a bucket with this many units free. A begun leak continues; a full bucket has
/// begun none.
fn leveled(limit: &Limit, state: Option<&State>, now: i128, free: i128) -> State {
    let (Limit::Funnel { capacity, rate } | Limit::Bucket { capacity, rate }) = limit else {
        panic!("{limit:?} has no level")
    };
    let since = match (free_at(state, *capacity, *rate, now), state) {
        ((_, Some(come)), Some(State::Level { since, .. })) => since + rate.cost(come),
        _ => now,
    };
    let shown = matches!(limit, Limit::Funnel { .. }).then(|| (*capacity, rate.per_second()));
    State::Level { free, since, shown }
}

/// The end of a window after units were taken.
fn renewed(window: Window, end: i128, now: i128) -> i128 {
    let Window::Total(Some(idle)) = window else { return end };
    let own = ceil(now - now % MILLI + idle, MILLI) * MILLI;
    if end == ENDLESS * MILLI { own } else { end.max(own) }
}

/// The end of a window that opens now.
fn end_from(window: Window, now: i128) -> Result<i128, Error> {
    let end = match window {
        Window::Period(period) => now - now % MILLI + period,
        Window::Calendar { .. } => boundaries(window, now).1,
        Window::Until(end) if end <= now => return Err(PASSED),
        Window::Until(end) => end,
        Window::Total(None) => ENDLESS * MILLI,
        Window::Total(Some(idle)) => now - now % MILLI + idle,
    };
    Ok(ceil(end, MILLI) * MILLI)
}

/// The first instant of the window of a calendar, and the first after it.
fn boundaries(window: Window, now: i128) -> (i128, i128) {
    let Window::Calendar { cycle, utc, from } = window else { panic!("{window:?} is not of a calendar") };
    let local = now.div_euclid(SECOND) + utc * 60;
    let (day, year) = (local.div_euclid(DAY), 1970 + local.div_euclid(DAY) / 366);
    let midnights = |begins: &mut dyn Iterator<Item = i128>| -> (i128, i128) {
        let begins: Vec<i128> = begins.collect();
        let next = begins.partition_point(|&begin| begin <= day);
        (begins[next - 1] * DAY, begins[next] * DAY)
    };
    let (start, end) = match cycle {
        "HOUR" => (local - local.rem_euclid(3600), local - local.rem_euclid(3600) + 3600),
        "DAY" => (day * DAY, (day + 1) * DAY),
        // 1970 began on a Thursday: day 4 was the first Monday.
        "WEEK" => midnights(&mut (day - 7..=day + 8).filter(|day| (day - 4).rem_euclid(7) + 1 == from)),
        "MONTH" => midnights(&mut (year - 1..year + 3).flat_map(|year| {
            (1..=12).map(move |month| day_of(year, month, from.min(length_of(year, month))))
        })),
        "YEAR" => midnights(&mut (year - 1..year + 3).map(|year| day_of(year, 1, 1))),
        _ => panic!("no cycle {cycle}"),
    };
    ((start - utc * 60) * SECOND, (end - utc * 60) * SECOND)
}

fn length_of(year: i128, month: i128) -> i128 {
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    [31, 28 + i128::from(leap), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31][usize::try_from(month - 1).unwrap()]
}

/// The number of a date's day since the epoch, by counting the months in between.
fn day_of(year: i128, month: i128, day: i128) -> i128 {
    let years: i128 = (1970..year).flat_map(|year| (1..=12).map(move |month| length_of(year, month))).sum();
    years + (1..month).map(|month| length_of(year, month)).sum::<i128>() + day - 1
}

/// The first millisecond after which a key with this state is gone.
fn expiry(limit: &Limit, state: &State) -> i128 {
    let end = match (limit, state) {
        (_, State::Tat(tat)) => *tat,
        (
            Limit::Funnel { capacity, rate } | Limit::Bucket { capacity, rate },
            State::Level { free, since, .. },
        ) => since + rate.cost(capacity - free),
        (_, State::Count { end, .. }) => *end,
        (Limit::Sliding { period, .. }, State::Sliding { start, current, .. }) => {
            start + period + if *current > 0 { *period } else { 0 }
        }
        (Limit::Log { period, .. }, State::Entries(entries)) => entries.iter().max().unwrap() + period,
        (_, State::Leases(leases)) => *leases.values().max().unwrap(),
        _ => panic!("{limit:?} with {state:?}"),
    };
    ceil(end, MILLI)
}

/// The request of a call for several to one of its limiters.
#[derive(Clone, Debug)]
pub struct Part {
    pub key: String,
    pub shadow: bool,
    /// The `reset_after` of the call that took the units that a settlement gives back.
    pub reset: Option<i128>,
    pub limit: Limit,
    /// A difference in a settlement. For a lease, it has a meaning only in a settlement, where 0 releases.
    pub quantity: i128,
}

/// How long ago a settlement says that the units were taken, and one unit of the call.
#[derive(Clone, Copy, Debug)]
pub struct Ago {
    pub age: i128,
    pub unit: i128,
}

/// The keys of a server.
pub struct Model {
    pub now: i128,
    keys: BTreeMap<String, (State, i128)>,
}

impl Model {
    /// A server without keys.
    pub fn at(now: i128) -> Self {
        Self { now, keys: BTreeMap::new() }
    }

    /// The state of a key and the millisecond of its expiry, if it has not expired.
    pub fn key(&self, key: &str) -> Option<&(State, i128)> {
        self.keys.get(key).filter(|(_, expiry)| self.now / MILLI <= *expiry)
    }

    /// The state of a key, if it has not expired.
    ///
    /// # Errors
    /// The error for another kind's state.
    pub fn state(&self, key: &str, limit: &Limit) -> Result<Option<&State>, Error> {
        let state = self.key(key).map(|(state, _)| state);
        state.map_or(Ok(()), |state| state.is_of(limit))?;
        Ok(state)
    }

    /// Gives a key this state, with the expiry that the limiter gives it.
    pub fn store(&mut self, key: &str, limit: &Limit, state: Option<State>) {
        match state {
            Some(state) => {
                let expiry = expiry(limit, &state);
                self.keys.insert(key.to_owned(), (state, expiry));
            }
            None => drop(self.keys.remove(key)),
        }
    }

    /// Gives a key this state and this expiry, in milliseconds.
    pub fn hold(&mut self, key: &str, state: State, expiry: i128) {
        self.keys.insert(key.to_owned(), (state, expiry));
    }

    pub fn delete(&mut self, key: &str) -> bool {
        let there = self.key(key).is_some();
        self.keys.remove(key);
        there
    }

    /// The verdict, and the state to be stored if there is one.
    fn decide(&self, part: &Part) -> Result<(Row, Option<State>), Error> {
        let Part { limit, quantity, .. } = part;
        let state = self.state(&part.key, limit)?;
        let row = verdict(limit, state, self.now, *quantity);
        let takes = !row.limited && (*quantity > 0 || matches!(limit, Limit::Lease { .. }));
        let after = if takes { Some(taken(limit, state, self.now, *quantity)?) } else { None };
        Ok((row, after))
    }

    /// `CL.MTAKE`: the rows, the combined one first.
    pub fn take(&mut self, parts: &[Part]) -> Result<Vec<Row>, Error> {
        let decided = parts.iter().map(|part| self.decide(part)).collect::<Result<Vec<_>, _>>()?;
        let refused = parts.iter().zip(&decided).any(|(part, (row, _))| row.limited && !part.shadow);
        let rows = parts.iter().zip(decided).map(|(part, (row, after))| match after {
            Some(after) if !refused => {
                let row =
                    Row { limited: false, retry: None, ..look(&part.limit, Some(&after), self.now, None) };
                self.store(&part.key, &part.limit, Some(after));
                row
            }
            _ => row,
        });
        Ok(combined(parts, rows.collect()))
    }

    /// `CL.MPEEK`
    pub fn peek(&self, parts: &[Part]) -> Result<Vec<Row>, Error> {
        let rows = parts.iter().map(|part| self.decide(part).map(|(row, _)| row));
        Ok(combined(parts, rows.collect::<Result<_, _>>()?))
    }

    /// `CL.MSETTLE`
    pub fn settle(&mut self, parts: &[Part], ago: Option<Ago>) -> Result<Vec<Row>, Error> {
        let settled = parts.iter().map(|part| self.settled(part, ago)).collect::<Result<Vec<_>, _>>()?;
        let rows = parts.iter().zip(settled).map(|(part, after)| {
            let before = self.key(&part.key).map(|(state, _)| state.clone());
            let after = match after {
                Settled::Kept => before,
                Settled::Now(after) => {
                    self.store(&part.key, &part.limit, after.clone());
                    after
                }
            };
            let row = look(&part.limit, after.as_ref(), self.now, None);
            let Limit::Lease { id, .. } = &part.limit else { return row };
            let lost =
                part.quantity != 0 && lease_of(after.as_ref(), id).is_none_or(|end| end <= tick(self.now));
            let retry = lost.then(|| wait_for(&part.limit, after.as_ref(), self.now, 1));
            Row { limited: lost, retry, ..row }
        });
        Ok(combined(parts, rows.collect()))
    }

    fn settled(&self, part: &Part, ago: Option<Ago>) -> Result<Settled, Error> {
        let Part { limit, quantity, reset, .. } = part;
        let state = self.state(&part.key, limit)?;
        let now = self.now;
        let then = ago.map(|Ago { age, .. }| now - age);
        // The earliest end of the units that the call took.
        let served = ago.and_then(|Ago { age, unit }| Some(now - age + (reset.as_ref()? - unit).max(0)));
        // The time still owed for units with this cost.
        let owed = |cost: i128| match (then, served) {
            (None, _) => cost,
            (Some(then), None) => (then + cost - now).clamp(0, cost),
            (Some(_), Some(served)) => (served - now).clamp(0, cost),
        };
        if let Limit::Lease { lease, id, .. } = limit {
            let Some(State::Leases(leases)) = state else { return Ok(Settled::Kept) };
            return Ok(self.renewed(leases, id, (*quantity != 0).then_some(*lease)));
        }
        if *quantity > 0 {
            return match taken(limit, state, now, *quantity) {
                Err(PASSED) => Ok(Settled::Kept),
                after => after.map(|after| Settled::Now(Some(after))),
            };
        }
        let (Some(state), back) = (state, -quantity) else { return Ok(Settled::Kept) };
        if back == 0 {
            return Ok(Settled::Kept);
        }
        Ok(match (limit, state) {
            (Limit::Throttle { rate, .. }, State::Tat(tat)) => {
                let back = owed(rate.cost(back));
                match tat - back {
                    _ if back == 0 => Settled::Kept,
                    tat if tat <= now => Settled::Now(None),
                    tat => Settled::Now(Some(State::Tat(tat))),
                }
            }
            (Limit::Funnel { capacity, rate } | Limit::Bucket { capacity, rate }, _) => {
                let back = back.min(rate.units(owed(rate.cost(back))));
                let free = free_at(Some(state), *capacity, *rate, now).0;
                match (free + back).min(*capacity) {
                    after if after == free => Settled::Kept,
                    after => {
                        // The leak that is stored is rounded down, and may thereby be the last.
                        let after = leveled(limit, Some(state), now, after);
                        Settled::Now((room(limit, Some(&after), now) < *capacity).then_some(after))
                    }
                }
            }
            (Limit::Fixed { window, .. }, &State::Count { used, end }) => {
                let start = match *window {
                    Window::Period(period) => end - ceil(period, MILLI) * MILLI,
                    Window::Calendar { .. } => match boundaries(*window, end - 1).0 {
                        boundary if is_end(boundary, end, now) => boundaries(*window, boundary - 1).0,
                        boundary => boundary,
                    },
                    Window::Until(own) if is_end(ceil(own, MILLI) * MILLI, end, now) => i128::MIN,
                    Window::Until(_) => i128::MAX,
                    Window::Total(_) => i128::MIN,
                };
                let slack = match (*window, ago) {
                    (Window::Period(_), Some(Ago { unit, .. })) => unit,
                    _ => 0,
                };
                let latest = served.or(then.map(|then| then + slack));
                if now >= end || latest.is_some_and(|latest| start > latest) {
                    Settled::Kept
                } else {
                    Settled::Now((used > back).then(|| State::Count { used: used - back, end }))
                }
            }
            (Limit::Sliding { limit: most, period }, _) => {
                let (start, current, previous) = rolled(Some(state), *period, now);
                let back = if then.is_some_and(|then| start > then) { 0 } else { back.min(current) };
                let after = State::Sliding { start, current: current - back, previous };
                match back {
                    0 => Settled::Kept,
                    _ if room(limit, Some(&after), now) == *most => Settled::Now(None),
                    _ => Settled::Now(Some(after)),
                }
            }
            (Limit::Log { period, .. }, State::Entries(entries)) => {
                let counts = |entry: i128| entry + period > tick(now);
                let old = |entry| ago.is_none_or(|Ago { age, .. }| entry + age <= tick(now));
                let may_go: Vec<usize> =
                    (0..entries.len()).filter(|&at| counts(entries[at]) && old(entries[at])).collect();
                let mut left = entries.clone();
                for at in may_go.iter().rev().take(usize::try_from(back).unwrap_or(usize::MAX)) {
                    left.remove(*at);
                }
                match left.iter().any(|&entry| counts(entry)) {
                    _ if left.len() == entries.len() => Settled::Kept,
                    true => Settled::Now(Some(State::Entries(left))),
                    false => Settled::Now(None),
                }
            }
            _ => panic!("{limit:?} with {state:?}"),
        })
    }

    /// The leases after one holder has renewed its lease, or has given its place back.
    fn renewed(&self, leases: &BTreeMap<String, i128>, id: &str, lease: Option<i128>) -> Settled {
        let now = tick(self.now);
        if leases.get(id).is_none_or(|end| *end <= now) {
            return Settled::Kept;
        }
        let mut leases = leases.clone();
        match lease {
            Some(lease) => drop(leases.insert(id.to_owned(), now + lease)),
            None => drop(leases.remove(id)),
        }
        Settled::Now(leases.values().any(|end| *end > now).then_some(State::Leases(leases)))
    }

    /// `CL.RENEW`, and `CL.RELEASE` without a lease.
    pub fn renew(&mut self, key: &str, id: &str, lease: Option<i128>) -> Result<bool, Error> {
        let limit = Limit::Lease { limit: 1, lease: 1, id: id.to_owned() };
        let Some(State::Leases(leases)) = self.state(key, &limit)? else { return Ok(false) };
        match self.renewed(leases, id, lease) {
            Settled::Kept => Ok(false),
            Settled::Now(after) => {
                self.store(key, &limit, after);
                Ok(true)
            }
        }
    }

    /// A limiter's own command with `SATURATE`: the row, and the quantity taken.
    pub fn saturate(&mut self, part: &Part) -> Result<(Row, i128), Error> {
        let state = self.state(&part.key, &part.limit)?;
        let fits = part.quantity.min(room(&part.limit, state, self.now)).max(0);
        let fits = if matches!(part.limit, Limit::Log { .. }) { fits.min(10_000) } else { fits };
        if part.quantity == 0 {
            return Ok((Row { limited: false, retry: None, ..look(&part.limit, state, self.now, None) }, 0));
        }
        let rows = self.take(&[Part { quantity: fits.max(1), ..part.clone() }])?;
        Ok((rows[1].clone(), fits))
    }

    /// `CL.PAUSE`
    pub fn pause(&mut self, key: &str, limit: &Limit, wait: i128) -> Result<Row, Error> {
        let Limit::Throttle { max_burst, rate } = limit else { panic!("{limit:?} has no pause") };
        let end = self.now + wait + rate.cost(max_burst + 1) - rate.cost(1);
        let state = self.state(key, limit)?.cloned();
        if !matches!(state, Some(State::Tat(tat)) if tat >= end) && end > self.now {
            self.store(key, limit, Some(State::Tat(end)));
        }
        Ok(look(limit, self.state(key, limit)?, self.now, None))
    }

    /// `CL.RESERVE`
    pub fn reserve(&mut self, part: &Part, max_wait: Option<i128>, prepay: bool) -> Result<Row, Error> {
        let Part { key, limit, quantity, .. } = part;
        let state = self.state(key, limit)?;
        let standing = look(limit, state, self.now, None);
        if *quantity > limit.most() && !prepay {
            return Ok(Row { limited: true, retry: None, ..standing });
        }
        let awaited = if prepay { (*quantity).min(1) } else { *quantity };
        let retry = wait_for(limit, state, self.now, awaited);
        if max_wait.is_some_and(|max_wait| retry > max_wait) {
            return Ok(Row { limited: true, retry: Some(retry), ..standing });
        }
        if *quantity > 0 {
            let after = taken(limit, state, self.now, *quantity)?;
            self.store(key, limit, Some(after));
        }
        let standing = look(limit, self.state(key, limit)?, self.now, None);
        Ok(Row { limited: false, retry: Some(retry), ..standing })
    }
}

/// Whether the window that ends at `end` is the one that was to end at `known`.
const fn is_end(known: i128, end: i128, now: i128) -> bool {
    now < known && (known - end).abs() <= MOVED
}

/// Settles one key.
enum Settled {
    Kept,
    Now(Option<State>),
}

/// The rows with the combined one before them.
pub fn combined(parts: &[Part], rows: Vec<Row>) -> Vec<Row> {
    let all_in_shadow = parts.iter().all(|part| part.shadow);
    let seen: Vec<&Row> = parts
        .iter()
        .zip(&rows)
        .filter(|(part, _)| all_in_shadow || !part.shadow)
        .map(|(_, row)| row)
        .collect();
    let tightest = seen.iter().min_by_key(|row| row.remaining).unwrap();
    let limiting: Vec<&&Row> = seen.iter().filter(|row| row.limited && !all_in_shadow).collect();
    let for_ever = limiting.iter().any(|row| row.retry.is_none());
    let first = Row {
        limited: !limiting.is_empty(),
        retry: limiting.iter().filter_map(|row| row.retry).max().filter(|_| !for_ever),
        reset: seen.iter().map(|row| row.reset).max().unwrap(),
        ..(*tightest).clone()
    };
    [vec![first], rows].concat()
}
