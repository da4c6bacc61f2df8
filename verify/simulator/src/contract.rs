//! The contract: what a call replies and stores, by the model of the pages, which shares no code with the
//! core.

use std::collections::BTreeMap;

use crate::accounts;
use crate::keyspace::{Bytes, Value};
use crate::model::{Ago, ENDLESS, Error, Limit, Model, Part, Rate, Row, State, Window};
use crate::world::Held;

/// How a limiter is joined to the one before it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Join {
    /// It is not.
    None,
    /// The next pool.
    Else,
    /// More of the same pool.
    Spill,
}

/// `HOLD key [period id]`; of a settlement, `HOLD key id`.
#[derive(Clone, Debug)]
pub struct Hold {
    /// The key.
    pub key: String,
    /// For how long the units are held, in nanoseconds.
    pub period: Option<i128>,
    /// The owner.
    pub id: Option<String>,
}

/// A call of the module, as the pages explain its words.
#[derive(Clone, Debug, Default)]
pub struct Call {
    /// The command, without `CL.`.
    pub verb: String,
    /// Its limiters.
    pub parts: Vec<Part>,
    /// How each of them is joined to the one before it.
    pub joins: Vec<Join>,
    /// `HOLD`.
    pub hold: Option<Hold>,
    /// One unit of time, in nanoseconds.
    pub unit: i128,
    /// The age of a settlement.
    pub age: Option<i128>,
    /// `SATURATE`.
    pub saturates: bool,
    /// `MAXWAIT`.
    pub max_wait: Option<i128>,
    /// `PREPAY`.
    pub prepays: bool,
    /// The wait of CL.PAUSE.
    pub wait: i128,
    /// The timeout of a call that waits, in nanoseconds.
    pub timeout: Option<i128>,
    /// The flow.
    pub flow: Option<Bytes>,
    /// The weight of the flow, if it is given.
    pub weight: Option<i128>,
    /// `MAXLEN`.
    pub max_len: Option<i128>,
    /// The key of `ONCE`.
    pub once: Option<Bytes>,
    /// For how long its reply is stored, in nanoseconds.
    pub once_period: i64,
}

/// The words that are left to be read.
struct Reader<'a> {
    words: &'a [Bytes],
}

impl Reader<'_> {
    fn text(&mut self) -> Option<String> {
        let (first, rest) = self.words.split_first()?;
        self.words = rest;
        String::from_utf8(first.clone()).ok()
    }

    fn upper(&mut self) -> Option<String> {
        let mut text = self.text()?;
        text.make_ascii_uppercase();
        Some(text)
    }

    fn number(&mut self) -> Option<i128> {
        let (first, rest) = self.words.split_first()?;
        self.words = rest;
        let digits = first.strip_prefix(b"-").unwrap_or(first);
        let is_plain = digits.iter().all(u8::is_ascii_digit) && (digits[..] == first[..] || digits != b"0");
        let is_short = !digits.starts_with(b"0") || digits.len() == 1;
        let number: i64 = std::str::from_utf8(first).ok()?.parse().ok()?;
        (is_plain && is_short && number.unsigned_abs() < 1 << 62).then_some(number.into())
    }

    fn next_is(&self, word: &str) -> bool {
        self.words.first().is_some_and(|next| next.eq_ignore_ascii_case(word.as_bytes()))
    }

    fn optional(&mut self, word: &str) -> Option<bool> {
        let is = self.next_is(word);
        if is {
            self.words = &self.words[1..];
        }
        Some(is)
    }

    fn rate(&mut self, unit: i128) -> Option<Rate> {
        let (count, period) = (self.number()?, self.number()?);
        (count > 0 && period > 0 && period * unit >= count).then_some(Rate { count, period: period * unit })
    }

    /// A limit of a kind, without its quantity.
    fn limit(&mut self, kind: &str, unit: i128) -> Option<Limit> {
        let most = self.number()?;
        Some(match kind {
            "THROTTLE" => {
                if most < 0 {
                    return None;
                }
                Limit::Throttle { max_burst: most, rate: self.rate(unit)? }
            }
            _ if most < 1 => return None,
            "FUNNEL" => Limit::Funnel { capacity: most, rate: self.rate(unit)? },
            "BUCKET" => Limit::Bucket { capacity: most, rate: self.rate(unit)? },
            "FIXED" => {
                if let Some(period) =
                    self.words.first().and_then(|word| std::str::from_utf8(word).ok()?.parse().ok())
                {
                    self.words = &self.words[1..];
                    let period: i128 = period;
                    return (period > 0)
                        .then_some(Limit::Fixed { limit: most, window: Window::Period(period * unit) });
                }
                let window = match self.upper()?.as_str() {
                    "UNTIL" => Window::Until(self.number()? * unit),
                    "TOTAL" if self.optional("IDLE")? => {
                        Window::Total(Some(positive(self.number()?)? * unit))
                    }
                    "TOTAL" => Window::Total(None),
                    cycle => {
                        let cycle = ["HOUR", "DAY", "WEEK", "MONTH", "YEAR"]
                            .into_iter()
                            .find(|known| *known == cycle)?;
                        let (mut utc, mut from) = (0, 1);
                        // CL.FIXED has these behind the quantity.
                        while self.next_is("UTC") || self.next_is("FROM") {
                            let place = if self.upper()? == "UTC" { &mut utc } else { &mut from };
                            *place = self.number()?;
                        }
                        Window::Calendar { cycle, utc, from }
                    }
                };
                Limit::Fixed { limit: most, window }
            }
            "WINDOW" => Limit::Sliding { limit: most, period: positive(self.number()?)? * unit },
            "LOG" => Limit::Log { limit: most, period: positive(self.number()?)? * unit },
            "LEASE" => {
                let lease = self.number()? * unit;
                Limit::Lease { limit: most, lease, id: self.text()? }
            }
            _ => return None,
        })
    }
}

fn positive(number: i128) -> Option<i128> {
    (number > 0).then_some(number)
}

fn unit_of(words: &[Bytes]) -> i128 {
    match words.last().map(|word| word.to_ascii_uppercase()).as_deref() {
        Some(b"US") => 1_000,
        Some(b"MS") => 1_000_000,
        _ => 1_000_000_000,
    }
}

impl Call {
    /// Reads a call. `None` for words that mean nothing, or that only an error can answer.
    pub fn parse(words: &[Bytes]) -> Option<Self> {
        let name = String::from_utf8(words.first()?.to_ascii_uppercase()).ok()?;
        let verb = name.strip_prefix("CL.")?.to_owned();
        let unit = unit_of(words);
        let named = words.last().is_some_and(|word| {
            ["S", "MS", "US"].iter().any(|unit| word.eq_ignore_ascii_case(unit.as_bytes()))
        });
        let mut reader = Reader { words: &words[1..words.len() - usize::from(named)] };
        let mut call = Self { verb, unit, ..Self::default() };
        if ["MTAKE", "MPEEK", "MSETTLE", "BMTAKE"].contains(&call.verb.as_str()) {
            call.several(&mut reader)?;
        } else {
            call.single(&mut reader)?;
        }
        reader.words.is_empty().then_some(call)
    }

    fn several(&mut self, reader: &mut Reader) -> Option<()> {
        const KINDS: [&str; 7] = ["THROTTLE", "FUNNEL", "BUCKET", "FIXED", "WINDOW", "LOG", "LEASE"];
        let settles = self.verb == "MSETTLE";
        loop {
            let stands = |at: usize| {
                let is = |word: &Bytes, kind: &str| word.eq_ignore_ascii_case(kind.as_bytes());
                reader
                    .words
                    .get(at)
                    .is_some_and(|word| KINDS.iter().chain(&["SHADOW", "RESET"]).any(|kind| is(word, kind)))
            };
            let mut join = Join::None;
            if !stands(1) {
                // A word between two limiters, or the end of them.
                join = match reader.words.first().map(|word| word.to_ascii_uppercase()).as_deref() {
                    Some(b"ELSE") if stands(2) => Join::Else,
                    Some(b"SPILL") if stands(2) => Join::Spill,
                    _ => break,
                };
                reader.text()?;
            }
            let key = reader.text()?;
            let (mut shadow, mut reset) = (false, None);
            if reader.optional("SHADOW")? {
                shadow = true;
            } else if reader.optional("RESET")? {
                reset = Some(reader.number()? * self.unit);
            }
            let kind = reader.upper()?;
            let limit = reader.limit(&kind, self.unit)?;
            let quantity = match &limit {
                // In a settlement, a lease of 0 releases.
                Limit::Lease { lease, .. } => i128::from(*lease != 0 || !settles),
                _ => reader.number()?,
            };
            if !settles && quantity < 0 {
                return None;
            }
            self.parts.push(Part { key, shadow, reset, limit, quantity });
            self.joins.push(join);
        }
        while !reader.words.is_empty() {
            match reader.upper()?.as_str() {
                "AGO" => self.age = Some(reader.number()? * self.unit),
                "ONCE" => {
                    self.once = Some(reader.text()?.into_bytes());
                    self.once_period = (positive(reader.number()?)? * self.unit) as i64;
                }
                "TIMEOUT" => self.timeout = timeout(&reader.text()?)?,
                "FLOW" => {
                    self.flow = Some(reader.text()?.into_bytes());
                    if reader.optional("WEIGHT")? {
                        self.weight = positive(reader.number()?);
                    }
                }
                "MAXLEN" => self.max_len = Some(reader.number()?),
                "HOLD" => {
                    let key = reader.text()?;
                    let is_number =
                        reader.words.first().is_some_and(|word| word.iter().all(u8::is_ascii_digit));
                    let period = (is_number && !settles).then(|| reader.number()).flatten();
                    let id = if settles || period.is_some() { Some(reader.text()?) } else { None };
                    self.hold = Some(Hold { key, period: period.map(|period| period * self.unit), id });
                }
                _ => return None,
            }
        }
        if settles && self.has_chain() && self.hold.is_none() {
            return None;
        }
        let mut keys: Vec<&str> = self.parts.iter().map(|part| part.key.as_str()).collect();
        keys.extend(self.hold.as_ref().map(|hold| hold.key.as_str()));
        keys.sort_unstable();
        keys.dedup();
        (keys.len() == self.parts.len() + usize::from(self.hold.is_some()) && !self.parts.is_empty())
            .then_some(())
    }

    fn single(&mut self, reader: &mut Reader) -> Option<()> {
        let key = reader.text()?;
        let kind = match self.verb.as_str() {
            "FUNNEL" | "BUCKET" | "FIXED" | "WINDOW" | "LOG" => self.verb.clone(),
            "ACQUIRE" | "RENEW" | "RELEASE" => "LEASE".into(),
            "THROTTLE" | "PEEK" | "REFUND" | "CHARGE" | "RESERVE" | "PAUSE" | "BTHROTTLE" => {
                "THROTTLE".into()
            }
            _ => return None,
        };
        let mut limit = match self.verb.as_str() {
            "RENEW" => {
                let lease = reader.number()? * self.unit;
                Limit::Lease { limit: 1, lease, id: reader.text()? }
            }
            "RELEASE" => Limit::Lease { limit: 1, lease: 0, id: reader.text()? },
            _ => reader.limit(&kind, self.unit)?,
        };
        let mut quantity = 1;
        match self.verb.as_str() {
            "PAUSE" => self.wait = reader.number()? * self.unit,
            "BTHROTTLE" => {
                quantity = reader.number()?;
                self.timeout = timeout(&reader.text()?)?;
            }
            _ if kind == "LEASE" => {}
            _ if reader.words.first().is_some_and(|word| word.iter().all(|byte| byte.is_ascii_digit())) => {
                quantity = reader.number()?;
            }
            _ => {}
        }
        while !reader.words.is_empty() {
            match reader.upper()?.as_str() {
                "SATURATE" => self.saturates = true,
                "PREPAY" => self.prepays = true,
                "MAXWAIT" => self.max_wait = Some(reader.number()? * self.unit),
                option @ ("UTC" | "FROM") => {
                    let Limit::Fixed { window: Window::Calendar { utc, from, .. }, .. } = &mut limit else {
                        return None;
                    };
                    *(if option == "UTC" { utc } else { from }) = reader.number()?;
                }
                _ => return None,
            }
        }
        self.parts.push(Part { key, shadow: false, reset: None, limit, quantity });
        self.joins.push(Join::None);
        Some(())
    }

    /// Whether the call only checks.
    pub fn looks(&self) -> bool {
        ["PEEK", "MPEEK"].contains(&self.verb.as_str())
    }

    /// Whether a chain is among its limiters.
    pub fn has_chain(&self) -> bool {
        self.joins.iter().any(|join| *join != Join::None)
    }

    /// The keys of its limiters, and that of the hold.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        let hold = self.hold.as_ref().map(|hold| hold.key.as_str());
        self.parts.iter().map(|part| part.key.as_str()).chain(hold)
    }

    /// Whether the call may wait.
    pub fn waits(&self) -> bool {
        ["BTHROTTLE", "BMTAKE"].contains(&self.verb.as_str())
    }

    /// Whether a reply that begins with 1 is a refusal, which changes nothing.
    pub fn may_refuse(&self) -> bool {
        !["MSETTLE", "CHARGE", "REFUND", "PAUSE", "RENEW", "RELEASE"].contains(&self.verb.as_str())
    }
}

/// A timeout in seconds; 0 for none.
fn timeout(text: &str) -> Option<Option<i128>> {
    let seconds: f64 = text.parse().ok()?;
    Some((seconds > 0.0).then_some((seconds * 1e9).ceil() as i128))
}

/// The required reply to a call, and the required states of its keys after it.
#[derive(Debug)]
pub struct Expected {
    /// The reply on one line, or the beginning of an error.
    pub reply: Result<String, Error>,
    /// The keys, as [`shown`] shows them.
    pub keys: Vec<(String, Option<(String, i128)>)>,
    /// The parts of the hold.
    pub book: Option<Vec<accounts::Held>>,
    /// Whether the key of the hold has no room for the call, whose wait the model does not know then.
    pub is_full: bool,
}

/// The model of the keys of a call, as they are; `None` if one holds something that the model does not know.
///
/// `now` is an instant of the module's clock, which is ahead of the wall clock by `lead`, by which keys
/// expire. All keys in `held` are there.
pub fn model_of(call: &Call, now: i128, lead: i128, held: &BTreeMap<String, Held>) -> Option<Model> {
    let mut model = Model::at(now);
    for part in &call.parts {
        if lead > 0 && matches!(part.limit, Limit::Fixed { .. }) {
            return None; // which follows the wall clock in part
        }
        if let Some((value, expiry)) = held.get(&part.key)? {
            let is_total = matches!(part.limit, Limit::Fixed { window: Window::Total(_), .. });
            let expiry = match expiry {
                Some(at) => i128::from(*at) + (lead + 999_999) / 1_000_000,
                None if is_total => ENDLESS,
                None => return None,
            };
            let state = state_of(value, expiry)?;
            // A sliding window that was begun with another period is not that of the model.
            let is_foreign = match (&state, &part.limit, value) {
                (State::Sliding { start, .. }, Limit::Sliding { period, .. }, _) => start % period != 0,
                // Nor a set that was a log and leases.
                (_, _, Value::ZSet(set)) => {
                    let mut are_entries = set.order.iter().map(|(score, member)| is_entry(member, score.0));
                    let is_first = are_entries.next();
                    are_entries.any(|is| Some(is) != is_first)
                }
                _ => false,
            };
            // Leases that have ended are nothing.
            let has_ended = matches!(
                (&state, &part.limit),
                (State::Leases(leases), Limit::Log { .. }) if leases.values().all(|end| *end <= now)
            );
            if is_foreign || has_ended {
                return None;
            }
            // A debt above the tolerance lasts no longer than the key, after the clock was set.
            if let (State::Tat(tat), Limit::Throttle { max_burst, rate }) = (&state, &part.limit)
                && tat - now
                    > if call.verb == "PAUSE" {
                        call.wait + rate.cost(*max_burst)
                    } else {
                        rate.cost(max_burst + 1)
                    }
                && *tat > expiry * 1_000_000 - if lead > 0 { 3_000_000 } else { 0 }
            {
                return None;
            }
            let last = match &state {
                State::Leases(leases) => leases.values().max().copied().unwrap_or(0),
                State::Entries(entries) => entries.last().copied().unwrap_or(0),
                _ => 0,
            };
            if last > expiry * 1_000_000 {
                return None; // the same for entries that lie ahead
            }
            model.hold(&part.key, state, expiry);
        }
    }
    Some(model)
}

/// What a call must do that does not wait.
///
/// `queued` are the costs of the clients that wait for its keys by `CL.BTHROTTLE`.
pub fn expected(
    call: &Call,
    now: i128,
    lead: i128,
    held: &BTreeMap<String, Held>,
    queued: &BTreeMap<String, i128>,
) -> Option<Expected> {
    let mut model = model_of(call, now, lead, held)?;
    let is_rate = |part: &Part| matches!(part.limit, Limit::Throttle { .. });
    for (key, cost) in
        queued.iter().filter(|(key, _)| call.parts.iter().any(|part| is_rate(part) && part.key == **key))
    {
        let tat = match model.key(key) {
            Some((State::Tat(tat), _)) => now.max(*tat) + cost,
            None => now + cost,
            Some(_) => continue,
        };
        model.hold(key, State::Tat(tat), tat / 1_000_000 + 1);
    }
    if call.hold.is_some() || call.has_chain() {
        return accounted(call, model, lead, held);
    }
    let (parts, unit) = (&call.parts, call.unit);
    let part = &parts[0];
    let rows = |rows: Result<Vec<Row>, Error>| {
        rows.map(|rows| rows.iter().map(|row| row.shown(unit)).collect::<Vec<_>>().join(" | "))
    };
    let own = |rows: Result<Vec<Row>, Error>| rows.map(|rows| rows[1].shown(unit));
    let one = |row: Result<Row, Error>| row.map(|row| row.shown(unit));
    let reply = match call.verb.as_str() {
        _ if call.saturates => {
            model.saturate(part).map(|(row, taken)| format!("{} {taken}", row.shown(unit)))
        }
        "MTAKE" => rows(model.take(parts)),
        "MPEEK" => rows(model.peek(parts)),
        "MSETTLE" => rows(model.settle(parts, call.age.map(|age| Ago { age, unit }))),
        "BMTAKE" | "BTHROTTLE" => {
            let refusing: Vec<(bool, Option<i128>)> = model.peek(parts).map_or(vec![], |rows| {
                let refusing = rows[1..].iter().zip(parts).filter(|(row, part)| row.limited && !part.shadow);
                refusing.map(|(row, part)| (matches!(part.limit, Limit::Lease { .. }), row.retry)).collect()
            });
            if let Some(expected) = waits(call, &refusing) {
                return Some(expected);
            }
            let taken = model.take(parts);
            if call.verb == "BMTAKE" { rows(taken) } else { own(taken) }
        }
        "PEEK" => own(model.peek(parts)),
        "CHARGE" => own(model.settle(parts, None)),
        "REFUND" => own(model.settle(&[Part { quantity: -part.quantity, ..part.clone() }], None)),
        "RESERVE" => one(model.reserve(part, call.max_wait, call.prepays)),
        "PAUSE" => one(model.pause(&part.key, &part.limit, call.wait)),
        "RENEW" | "RELEASE" => {
            let Limit::Lease { lease, id, .. } = &part.limit else { return None };
            let lease = (call.verb == "RENEW").then_some(*lease);
            model.renew(&part.key, id, lease).map(|held| u8::from(held).to_string())
        }
        _ => own(model.take(parts)),
    };
    Some(Expected { reply, keys: keys_of(call, &model), book: None, is_full: false })
}

/// The expected reply of a call that waits.
pub const WAITS: &str = "a wait";

/// What a client is replied that may wait: null if a limiter will not admit it in time. `None` if it is
/// admitted or refused at once. `refusing` has the limiters and chains that refuse it: whether what was taken
/// may come back at any time, and their waits.
fn waits(call: &Call, refusing: &[(bool, Option<i128>)]) -> Option<Expected> {
    let mut ends = refusing.iter().filter(|(comes_back, _)| !comes_back).map(|(_, wait)| *wait);
    if refusing.is_empty() || ends.clone().any(|wait| wait.is_none()) || call.max_len == Some(0) {
        return None;
    }
    let is_late = call.timeout.is_some() && ends.any(|wait| call.timeout < wait);
    let reply = Ok(if is_late { "(nil)" } else { WAITS }.to_owned());
    // The keys stay as they are, except that what has run out comes back.
    Some(Expected { reply, keys: vec![], book: None, is_full: false })
}

fn keys_of(call: &Call, model: &Model) -> Vec<(String, Option<(String, i128)>)> {
    let keys = call.parts.iter().map(|part| {
        let expiry = |expiry: i128| if expiry == ENDLESS { -1 } else { expiry };
        let held = model.key(&part.key).map(|(state, at)| (state.shown(), expiry(*at)));
        (part.key.clone(), held)
    });
    keys.collect()
}

/// The parts under the key of a call's hold; `None` if it holds something else.
pub fn book_of(call: &Call, held: &BTreeMap<String, Held>) -> Option<Vec<accounts::Held>> {
    match call.hold.as_ref().and_then(|hold| held.get(&hold.key)?.as_ref()) {
        Some((value, _)) => accounts::book(value),
        None => Some(vec![]),
    }
}

/// The same for a call with a chain or a hold.
fn accounted(call: &Call, mut model: Model, lead: i128, held: &BTreeMap<String, Held>) -> Option<Expected> {
    let before = keys_of(call, &model);
    let book = book_of(call, held)?;
    let has_passed = |part: &Part| matches!(part.limit, Limit::Fixed { window: Window::Until(end), .. } if end <= model.now);
    if lead > 0 && call.hold.is_some() || call.parts.iter().any(has_passed) {
        return None; // the call is an error, whatever the pools before it
    }
    let decided = match call.verb.as_str() {
        "MSETTLE" => accounts::settle(call, &mut model, &book)?,
        "MPEEK" => accounts::take(call, &mut model, &book, true)?,
        _ => accounts::take(call, &mut model, &book, false)?,
    };
    Some(match decided {
        Err(error) => Expected { reply: Err(error), keys: before, book: Some(book), is_full: false },
        Ok(decided) if call.verb == "BMTAKE" && !decided.is_admitted && call.max_len != Some(0) => {
            if call.hold.is_some() && (call.has_chain() || decided.is_full) {
                return None;
            }
            waits(call, &decided.refusing)?
        }
        Ok(decided) if call.looks() => {
            let reply = Ok(decided.shown(call.unit));
            Expected { reply, keys: before, book: Some(book), is_full: decided.is_full }
        }
        Ok(decided) => Expected {
            reply: Ok(decided.shown(call.unit)),
            keys: keys_of(call, &model),
            book: Some(decided.book),
            is_full: decided.is_full,
        },
    })
}

fn number(bytes: Option<&Bytes>) -> Option<i128> {
    std::str::from_utf8(bytes?).ok()?.parse().ok()
}

fn is_entry(member: &[u8], score: f64) -> bool {
    member.starts_with(format!("{score}-").as_bytes())
}

/// The state that a value stands for.
fn state_of(value: &Value, expiry: i128) -> Option<State> {
    Some(match value {
        Value::Text(bytes) => match number(Some(bytes))? {
            tat if tat >= 1_000_000_000_000_000 => State::Tat(tat),
            used => State::Count { used, end: expiry * 1_000_000 },
        },
        Value::Hash(fields) => {
            let field = |name: &str| number(fields.get(name.as_bytes()));
            if fields.contains_key(b"tokens".as_slice()) {
                State::Level { free: field("tokens")?, since: field("timestamp")?, shown: None }
            } else if fields.contains_key(b"left_quota".as_slice()) {
                let rate = String::from_utf8(fields.get(b"leaking_rate".as_slice())?.clone()).ok()?;
                let shown = Some((field("capacity")?, rate));
                State::Level { free: field("left_quota")?, since: field("leaking_ts")?, shown }
            } else {
                State::Sliding {
                    start: field("window")?,
                    current: field("current")?,
                    previous: field("previous")?,
                }
            }
        }
        Value::ZSet(set) => {
            let (score, last) = set.order.last()?;
            if score.0 == 0.0 || set.scores.contains_key(b"parts".as_slice()) {
                return None; // holds, under another name
            }
            if is_entry(last, score.0) {
                State::Entries(set.order.iter().map(|(score, _)| score.0 as i128 * 1_000).collect())
            } else {
                let lease = |(member, score): (&Bytes, &crate::keyspace::Score)| {
                    Some((String::from_utf8(member.clone()).ok()?, score.0 as i128 * 1_000))
                };
                State::Leases(set.scores.iter().map(lease).collect::<Option<_>>()?)
            }
        }
        Value::Other(_) => return None,
    })
}

/// A value as the model shows states.
pub fn shown(value: &Value) -> String {
    match value {
        Value::ZSet(set) => {
            let entry = |(score, member): &(crate::keyspace::Score, Bytes)| {
                let score = score.0;
                if is_entry(member, score) {
                    score.to_string()
                } else {
                    format!("{}={score}", member.escape_ascii())
                }
            };
            set.order.iter().map(entry).collect::<Vec<_>>().join(" ")
        }
        other => other.shown(),
    }
}
