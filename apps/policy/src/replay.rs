//! Calls, one after the other, through one or more policies.

use core::fmt;

use foldhash::fast::RandomState;

use redis_cell_core::several::{Row, combine_rows};
use redis_cell_core::{Answer, Error, Instant, Unit};

use crate::keys::{Keys, Numbered};
use crate::limiters::{Request, Running};
use crate::policy::{Kind, Policy};
use crate::template::{Amount, Template};

/// Calls through one or more policies, each with states of its own.
///
/// Policies whose keys are made alike share the names of their keys, so that a further policy costs its
/// decisions and its states.
///
/// Memory: by the number of keys. A log takes 8 bytes for each unit that counts, and leases take their names.
#[derive(Clone, Debug)]
pub struct Replay {
    tables: Vec<Table>,
    policies: Vec<Rules>,
    now: Instant,
    buffer: Vec<u8>,
    rows: Vec<Taken>,
}

/// The keys that one template makes.
#[derive(Clone, Debug)]
struct Table {
    template: Template,
    keys: Keys,
    /// The key of the present call; `None` if one of its fields is absent.
    key: Option<Numbered>,
}

/// A policy.
#[derive(Clone, Debug)]
struct Rules {
    limiters: Vec<Rule>,
}

/// One limiter of a policy.
#[derive(Clone, Debug)]
struct Rule {
    table: usize,
    shadow: bool,
    running: Running,
    amount: Amount,
    /// The holder of a lease.
    id: Option<Template>,
    /// The amount and the holder of the present call.
    present: (i64, Vec<u8>),
}

/// The answer of one limiter to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The position of the limiter in its policy.
    pub limiter: usize,
    /// The number of its key, for [`Replay::keys`].
    pub key: u32,
    /// Whether it is in shadow.
    pub shadow: bool,
    /// Its own answer.
    pub answer: Answer,
}

impl Taken {
    /// Whether this limiter refuses the call.
    pub const fn refuses(&self) -> bool {
        !self.shadow && self.answer.limited()
    }
}

impl Replay {
    /// Policies without any calls yet. The fields of all of them are those of one list.
    pub fn new(policies: impl IntoIterator<Item = Policy>) -> Self {
        let mut tables: Vec<Table> = Vec::new();
        let hasher = RandomState::default();
        let policies = policies.into_iter().map(|policy| {
            let limiters = policy.limiters.into_iter().map(|limiter| {
                let known = tables.iter().position(|table| table.template == limiter.key);
                let table = known.unwrap_or_else(|| {
                    tables.push(Table { template: limiter.key, keys: Keys::new(hasher.clone()), key: None });
                    tables.len().saturating_sub(1)
                });
                Rule::new(table, limiter.shadow, &limiter.kind, policy.unit)
            });
            Rules { limiters: limiters.collect() }
        });
        let policies = policies.collect();
        Self { tables, policies, now: Instant::default(), buffer: Vec::new(), rows: Vec::new() }
    }

    /// Begins a call: its instant, and the values of its fields in the order of their positions. An empty
    /// value is an absent field.
    ///
    /// As the clock of the module, that of a replay does not go back: a call before the latest one is taken
    /// to be as late as that.
    ///
    /// # Errors
    /// [`CallError::Number`] if the field of an amount holds something else; [`CallError::Keys`] for more
    /// than 2^32 keys.
    pub fn call(&mut self, now: Instant, values: &[&[u8]]) -> Result<(), CallError> {
        self.now = self.now.max(now);
        for rule in self.policies.iter_mut().flat_map(|policy| &mut policy.limiters) {
            let (amount, holder) = &mut rule.present;
            *amount = rule.amount.of(values).ok_or(CallError::Number)?;
            if let Some(id) = &rule.id {
                holder.clear();
                holder.extend_from_slice(id.render(values, &mut self.buffer).unwrap_or_default());
            }
        }
        for table in &mut self.tables {
            table.key = match table.template.render(values, &mut self.buffer) {
                Some(name) => Some(table.keys.number(name).ok_or(CallError::Keys)?),
                None => None,
            };
        }
        Ok(())
    }

    /// Decides the present call by the policy at this position, and takes from its limiters what `CL.MTAKE`
    /// would take.
    ///
    /// Returns the answers of its limiters, without those that have a field in their key which the call does
    /// not have: a client would leave them out. Nothing is returned if that leaves none. On a refusal each
    /// answer describes its own limiter, from which nothing was taken.
    ///
    /// # Errors
    /// The error that the server would reply. Nothing was taken then.
    #[inline]
    pub fn decide(&mut self, policy: usize) -> Result<&[Taken], CallError> {
        let Self { tables, policies, now, rows, .. } = self;
        rows.clear();
        let Some(Rules { limiters }) = policies.get_mut(policy) else { return Ok(rows) };
        if let [rule] = limiters.as_mut_slice() {
            if let Some(key) = rule.key(tables) {
                rows.push(rule.take(0, key, *now)?);
            }
        } else {
            take_from_all(limiters, tables, *now, rows)?;
        }
        Ok(rows)
    }

    /// The answers of the limiters to the present call, without taking anything, as `CL.MPEEK` returns them.
    ///
    /// # Errors
    /// The error that the server would reply.
    pub fn peek(&mut self, policy: usize) -> Result<&[Taken], CallError> {
        let Self { tables, policies, now, rows, .. } = self;
        rows.clear();
        if let Some(Rules { limiters }) = policies.get(policy) {
            peek_at_all(limiters, tables, *now, rows)?;
        }
        Ok(rows)
    }

    /// The keys of the limiter at this position of the policy.
    pub fn keys(&self, policy: usize, limiter: usize) -> Option<&Keys> {
        let table = self.policies.get(policy)?.limiters.get(limiter)?.table;
        self.tables.get(table).map(|table| &table.keys)
    }

    /// The clock: the instant of the latest call.
    pub const fn now(&self) -> Instant {
        self.now
    }
}

/// The answers of all limiters, from which nothing is taken.
fn peek_at_all(
    limiters: &[Rule],
    tables: &[Table],
    now: Instant,
    rows: &mut Vec<Taken>,
) -> Result<(), CallError> {
    for (position, rule) in limiters.iter().enumerate() {
        let Some(key) = rule.key(tables) else { continue };
        let answer = rule.running.peek(&rule.request(key, now))?;
        rows.push(Taken { limiter: position, key, shadow: rule.shadow, answer });
    }
    if names_a_key_twice(limiters, tables) { Err(CallError::SameKey) } else { Ok(()) }
}

/// Takes from all of several limiters or from none.
fn take_from_all(
    limiters: &mut [Rule],
    tables: &[Table],
    now: Instant,
    rows: &mut Vec<Taken>,
) -> Result<(), CallError> {
    peek_at_all(limiters, tables, now, rows)?;
    if rows.iter().any(Taken::refuses) {
        return Ok(());
    }
    // Of what admits, the answers above describe the state before the call.
    for row in rows {
        if let Some(rule) = limiters.get_mut(row.limiter).filter(|_| !row.answer.limited()) {
            *row = rule.take(row.limiter, row.key, now)?;
        }
    }
    Ok(())
}

/// Whether two limiters of the present call have the same key, though not the same template.
fn names_a_key_twice(limiters: &[Rule], tables: &[Table]) -> bool {
    let mut rest = limiters.iter().filter_map(|rule| {
        let table = tables.get(rule.table)?;
        Some((&table.keys, table.key?))
    });
    while let Some((keys, key)) = rest.next() {
        if rest.clone().any(|(others, other)| {
            other.hash == key.hash && others.name(other.number) == keys.name(key.number)
        }) {
            return true;
        }
    }
    false
}

impl Rule {
    fn new(table: usize, shadow: bool, kind: &Kind, unit: Unit) -> Self {
        let running = Running::new(kind, unit);
        let (amount, id) = kind.taken();
        Self { table, shadow, running, amount, id: id.cloned(), present: (0, Vec::new()) }
    }

    /// The key of the present call.
    fn key(&self, tables: &[Table]) -> Option<u32> {
        Some(tables.get(self.table)?.key?.number)
    }

    fn request(&self, key: u32, now: Instant) -> Request<'_> {
        let (amount, id) = &self.present;
        Request { key: usize::try_from(key).unwrap_or(usize::MAX), now, amount: *amount, id }
    }

    fn take(&mut self, limiter: usize, key: u32, now: Instant) -> Result<Taken, CallError> {
        let Self { running, present: (amount, id), shadow, .. } = self;
        let key_index = usize::try_from(key).unwrap_or(usize::MAX);
        let answer = running.take(&Request { key: key_index, now, amount: *amount, id })?;
        Ok(Taken { limiter, key, shadow: *shadow, answer })
    }
}

/// The answer that stands for all answers of a call, as the first row of `CL.MTAKE`; `None` for none.
pub fn combined(rows: &[Taken]) -> Option<Answer> {
    let rows: Vec<Row> = rows.iter().map(|row| Row { answer: row.answer, shadow: row.shadow }).collect();
    combine_rows(&rows)
}

/// Why a call was not decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallError {
    /// The field of a quantity or of a lease is not a number.
    Number,
    /// Two limiters of the call have the same key.
    SameKey,
    /// More keys than can be numbered.
    Keys,
    /// The error of a limiter.
    Limiter(Error),
}

impl From<Error> for CallError {
    fn from(error: Error) -> Self {
        Self::Limiter(error)
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number => f.write_str("the field of a quantity is not a number"),
            Self::SameKey => f.write_str("two limiters of the call have the same key"),
            Self::Keys => f.write_str("more than 4,294,967,295 keys"),
            Self::Limiter(error) => f.write_str(error.to_string().trim_start_matches("ERR ")),
        }
    }
}

impl core::error::Error for CallError {}
