//! Runs calls, one after the other, through one or more policies.

use core::fmt;

use redis_cell_core::chain::{self, Pool, Share};
use redis_cell_core::several::{Join, Role, Row, combine_chain, combine_rows};
use redis_cell_core::{Answer, Error, Instant, Span, Unit, Verdict};

use crate::keys::Keys;
use crate::limiters::{Call, Running};
use crate::policy::{Limiter, Policy};
use crate::template::{Amount, Template};

/// One or more policies through which calls run, each policy with its own states.
///
/// Limiters whose keys differ only in the text around their fields share the names of keys, in one policy or
/// in several: another limiter adds only its decisions and states.
///
/// Memory: grows with the number of keys. A log takes 8 bytes per unit, and a lease its holder's name.
#[derive(Clone, Debug)]
pub struct Replay {
    tables: Vec<Table>,
    policies: Vec<Rules>,
    now: Instant,
    buffer: Vec<u8>,
    rows: Vec<Taken>,
}

/// The keys that one template makes from the fields of the calls.
#[derive(Clone, Debug)]
struct Table {
    template: Template,
    keys: Keys,
    /// The number of the present call's key, or `None` if a field is missing.
    key: Option<u32>,
}

/// A policy.
#[derive(Clone, Debug)]
struct Rules {
    limiters: Vec<Rule>,
    /// The positions of pairs of limiters that can have the same key in a call.
    alike: Vec<(usize, usize)>,
}

/// One limiter of a policy.
#[derive(Clone, Debug)]
struct Rule {
    table: usize,
    /// The text before and after the part of the key that is in the table.
    around: [Vec<u8>; 2],
    shadow: bool,
    /// How it is joined to the limiter before it.
    join: Join,
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
    /// The number of its key, for [`Replay::names`].
    pub key: u32,
    /// Whether the limiter is in shadow.
    pub shadow: bool,
    /// The limiter's own answer, with what was taken from it if the call has a chain.
    pub answer: Answer,
    /// How it is joined to the limiter before it, and the verdict on its chain, if it is in one.
    pub chain: Option<(Join, Verdict)>,
}

impl Taken {
    /// Returns whether this limiter, or its chain, refuses the call.
    pub const fn refuses(&self) -> bool {
        !self.shadow && self.verdict().is_limited()
    }

    /// Returns the verdict on the limiter, or on its chain.
    pub const fn verdict(&self) -> Verdict {
        match self.chain {
            Some((_, verdict)) => verdict,
            None => self.answer.verdict,
        }
    }
}

impl Replay {
    /// Creates a replay without any calls. All policies share one list of fields.
    pub fn new(policies: impl IntoIterator<Item = Policy>) -> Self {
        let mut tables: Vec<Table> = Vec::new();
        let policies = policies.into_iter().map(|policy| {
            let limiters = policy.limiters.iter().map(|limiter| {
                let (before, template, behind) = limiter.key.split();
                let known = tables.iter().position(|table| table.template == template);
                let table = known.unwrap_or_else(|| {
                    tables.push(Table { template, keys: Keys::default(), key: None });
                    tables.len().saturating_sub(1)
                });
                Rule::new(table, [before, behind], limiter, policy.unit)
            });
            Rules::new(limiters.collect())
        });
        let policies = policies.collect();
        Self { tables, policies, now: Instant::default(), buffer: Vec::new(), rows: Vec::new() }
    }

    /// Begins a call at an instant, with the values of its fields by their positions. An empty value means a
    /// missing field.
    ///
    /// As in the module, the clock does not go back: a call with an earlier instant than the latest call is
    /// decided at the latest instant.
    ///
    /// # Errors
    /// Returns [`CallError::Number`] if the field of an amount is not a number, and [`CallError::Keys`] if
    /// there are more than 2^32 keys.
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

    /// Decides the present call with the policy at this position, and takes the units that `CL.MTAKE` would
    /// take.
    ///
    /// Returns the answers of its limiters. A limiter whose key has a field that the call lacks is omitted,
    /// as a client would omit it. Without any limiters, returns no answers. If the call is refused, each
    /// answer describes its limiter's state, from which nothing was taken.
    ///
    /// # Errors
    /// Returns the error that the server would reply. Nothing was taken in this case.
    #[inline]
    pub fn decide(&mut self, policy: usize) -> Result<&[Taken], CallError> {
        let Self { tables, policies, now, rows, .. } = self;
        rows.clear();
        if let Some(rules) = policies.get_mut(policy) {
            rules.decide(tables, *now, rows)?;
        }
        Ok(rows)
    }

    /// Returns the answers to the present call without taking anything, like `CL.MPEEK`.
    ///
    /// # Errors
    /// Returns the error that the server would reply.
    pub fn peek(&mut self, policy: usize) -> Result<&[Taken], CallError> {
        let Self { tables, policies, now, rows, .. } = self;
        rows.clear();
        if let Some(rules) = policies.get(policy) {
            rules.peek(tables, *now, rows)?;
        }
        Ok(rows)
    }

    /// Returns the keys of the limiter at this position of the policy.
    pub fn names(&self, policy: usize, limiter: usize) -> Option<Names<'_>> {
        let Rule { table, around, .. } = self.policies.get(policy)?.limiters.get(limiter)?;
        Some(Names { keys: &self.tables.get(*table)?.keys, around })
    }

    /// Returns the time of the clock: the instant of the latest call.
    pub const fn now(&self) -> Instant {
        self.now
    }
}

/// The keys of a limiter, by their numbers.
#[derive(Clone, Copy, Debug)]
pub struct Names<'a> {
    keys: &'a Keys,
    around: &'a [Vec<u8>; 2],
}

impl<'a> Names<'a> {
    /// Returns the key with this number.
    pub fn name(self, number: u32) -> Vec<u8> {
        let [before, behind] = self.around;
        [before, self.part(number), behind].concat()
    }

    /// Returns the part of the key in which it differs from other keys.
    pub fn part(self, number: u32) -> &'a [u8] {
        self.keys.name(number)
    }
}

impl Rules {
    fn new(limiters: Vec<Rule>) -> Self {
        let numbered = || limiters.iter().enumerate();
        let pairs =
            numbered().flat_map(|one| numbered().skip(one.0.saturating_add(1)).map(move |two| (one, two)));
        let alike = pairs.filter(|((_, one), (_, two))| one.may_have_the_key_of(two));
        let alike = alike.map(|((one, _), (two, _))| (one, two)).collect();
        Self { limiters, alike }
    }

    /// Returns the answers of all limiters, from which nothing is taken.
    fn peek(&self, tables: &[Table], now: Instant, rows: &mut Vec<Taken>) -> Result<(), CallError> {
        if self.has_chains() {
            return self.look(tables, now, rows).map(drop);
        }
        for (position, rule) in self.limiters.iter().enumerate() {
            let Some(key) = rule.key(tables) else { continue };
            let answer = rule.running.peek(&rule.call(key, now))?;
            rows.push(Taken { limiter: position, key, shadow: rule.shadow, answer, chain: None });
        }
        if self.names_a_key_twice(tables) { Err(CallError::SameKey) } else { Ok(()) }
    }

    /// Takes from all limiters or from none.
    #[inline]
    fn decide(&mut self, tables: &[Table], now: Instant, rows: &mut Vec<Taken>) -> Result<(), CallError> {
        if self.has_chains() {
            return self.decide_chains(tables, now, rows);
        }
        for (position, rule) in self.limiters.iter_mut().enumerate() {
            let Some(key) = rule.key(tables) else { continue };
            let (call, running) = rule.call_and_limiter(key, now);
            let answer = running.decide(&call)?;
            rows.push(Taken { limiter: position, key, shadow: rule.shadow, answer, chain: None });
        }
        if self.names_a_key_twice(tables) {
            return Err(CallError::SameKey);
        }
        let refused = rows.iter().any(Taken::refuses);
        // The answer of a limiter that refuses already describes its present state.
        for row in rows.iter_mut().filter(|row| !row.answer.limited()) {
            let Some(rule) = self.limiters.get_mut(row.limiter) else { continue };
            let (call, running) = rule.call_and_limiter(row.key, now);
            if refused {
                row.answer = running.peek(&call)?;
            } else {
                running.commit(&call);
            }
        }
        Ok(())
    }

    fn has_chains(&self) -> bool {
        self.limiters.iter().any(|rule| rule.join != Join::None)
    }

    /// Returns the answers of all limiters of a policy with chains, each with what would be taken, and these
    /// units: `None` for a limiter that is passed over.
    fn look(
        &self,
        tables: &[Table],
        now: Instant,
        rows: &mut Vec<Taken>,
    ) -> Result<Vec<Option<i64>>, CallError> {
        let mut pools: Vec<Asked> = Vec::new();
        // The word before limiters that are omitted belongs to the next one: of the same pool after SPILL,
        // or of the same chain if none is left before it.
        let mut omitted: Option<Join> = None;
        for (position, rule) in self.limiters.iter().enumerate() {
            let join = match (rule.join, omitted) {
                (Join::Spill, Some(before)) | (Join::Else, Some(before @ Join::None)) => before,
                (join, _) => join,
            };
            omitted = None;
            match rule.key(tables) {
                Some(key) => pools.push(Asked { rule, position, key, join, now }),
                None => omitted = Some(join),
            }
        }
        let mut taken = Vec::new();
        for chain in pools.chunk_by(|_, next| next.join != Join::None) {
            let mut shares: Vec<Share> = chain.iter().map(|_| Share::of(NOTHING)).collect();
            let verdict = chain::decide(chain, &mut shares)?;
            for (Asked { rule, position, key, join, .. }, share) in chain.iter().zip(shares) {
                let chain = (chain.len() > 1).then_some((*join, verdict));
                let (limiter, key, shadow) = (*position, *key, rule.shadow);
                rows.push(Taken { limiter, key, shadow, answer: share.answer, chain });
                taken.push(share.taken);
            }
        }
        if self.names_a_key_twice(tables) {
            return Err(CallError::SameKey);
        }
        let refused = rows.iter().any(Taken::refuses);
        for (row, taken) in rows.iter_mut().zip(&mut taken) {
            *taken = taken.filter(|_| !refused);
            row.answer.taken = Some(taken.unwrap_or(0));
        }
        Ok(taken)
    }

    /// Takes from all limiters and chains of a policy with chains, or from none.
    fn decide_chains(
        &mut self,
        tables: &[Table],
        now: Instant,
        rows: &mut Vec<Taken>,
    ) -> Result<(), CallError> {
        let taken = self.look(tables, now, rows)?;
        for (row, taken) in rows.iter_mut().zip(&taken) {
            let (Some(rule), Some(units)) = (self.limiters.get_mut(row.limiter), taken) else { continue };
            let is_lease = rule.id.is_some();
            let (call, running) = rule.call_and_limiter(row.key, now);
            let amount = if is_lease { call.amount } else { *units };
            let after = running.decide(&Call { amount, ..call })?;
            let Answer { verdict, taken, .. } = row.answer;
            row.answer = Answer { verdict, taken, ..after };
        }
        for (row, _) in rows.iter().zip(&taken).filter(|(_, taken)| taken.is_some()) {
            let Some(rule) = self.limiters.get_mut(row.limiter) else { continue };
            let (call, running) = rule.call_and_limiter(row.key, now);
            running.commit(&call);
        }
        Ok(())
    }

    /// Returns whether two limiters of the present call have the same key from different templates.
    fn names_a_key_twice(&self, tables: &[Table]) -> bool {
        self.alike.iter().any(|&(one, two)| {
            let [one, two] = [one, two].map(|position| self.limiters.get(position)?.name(tables));
            one.zip(two).is_some_and(|(one, two)| one.eq(two))
        })
    }
}

/// An answer that is not known yet.
const NOTHING: Answer =
    Answer { verdict: Verdict::Never, limit: 0, remaining: 0, reset_after: Span::ZERO, taken: None };

/// A limiter of a chain, as an argument of the decision.
struct Asked<'a> {
    rule: &'a Rule,
    position: usize,
    key: u32,
    join: Join,
    now: Instant,
}

impl Pool for Asked<'_> {
    type Error = Error;

    fn join(&self) -> Join {
        self.join
    }

    fn quantity(&self) -> i64 {
        if self.rule.id.is_some() { 1 } else { self.rule.present.0 }
    }

    fn is_held(&self) -> Result<bool, Error> {
        Ok(self.rule.running.is_held(&self.rule.call(self.key, self.now)))
    }

    fn peek(&self, after: Span, quantity: i64) -> Result<Answer, Error> {
        let now = self.now.checked_add(after).unwrap_or(Instant::MAX);
        let call = self.rule.call(self.key, now);
        let amount = if self.rule.id.is_some() { call.amount } else { quantity };
        self.rule.running.peek(&Call { amount, ..call })
    }
}

impl Rule {
    fn new(table: usize, around: [&[u8]; 2], limiter: &Limiter, unit: Unit) -> Self {
        let around = around.map(<[u8]>::to_vec);
        let running = Running::new(&limiter.kind, unit);
        let (amount, id) = limiter.kind.taken();
        let (shadow, join, id) = (limiter.shadow, limiter.join, id.cloned());
        Self { table, around, shadow, join, running, amount, id, present: (0, Vec::new()) }
    }

    /// Returns the number of the present call's key.
    fn key(&self, tables: &[Table]) -> Option<u32> {
        tables.get(self.table)?.key
    }

    /// Returns the bytes of the present call's key.
    fn name<'a>(&'a self, tables: &'a [Table]) -> Option<impl Iterator<Item = &'a u8>> {
        let table = tables.get(self.table)?;
        let [before, behind] = &self.around;
        Some(before.iter().chain(table.keys.name(table.key?)).chain(behind))
    }

    /// Returns whether some fields give the other limiter the same key.
    fn may_have_the_key_of(&self, other: &Self) -> bool {
        let [[before, behind], [others_before, others_behind]] = [&self.around, &other.around];
        let same_begin = before.iter().zip(others_before).all(|(one, two)| one == two);
        let same_end = behind.iter().rev().zip(others_behind.iter().rev()).all(|(one, two)| one == two);
        let length = |[before, behind]: &[Vec<u8>; 2]| before.len().saturating_add(behind.len());
        let same_length = self.table != other.table || length(&self.around) == length(&other.around);
        same_begin && same_end && same_length
    }

    fn call(&self, key: u32, now: Instant) -> Call<'_> {
        let (amount, id) = &self.present;
        Call { key: usize::try_from(key).unwrap_or(usize::MAX), now, amount: *amount, id }
    }

    /// Returns the call to the limiter, and the limiter.
    fn call_and_limiter(&mut self, key: u32, now: Instant) -> (Call<'_>, &mut Running) {
        let Self { running, present: (amount, id), .. } = self;
        (Call { key: usize::try_from(key).unwrap_or(usize::MAX), now, amount: *amount, id }, running)
    }
}

/// Returns the combined answer of a call, like the first row of `CL.MTAKE`, or `None` for no answers.
pub fn combined(rows: &[Taken]) -> Option<Answer> {
    let role = |row: &Taken| match row.chain {
        Some(_) => Role::Pool,
        None if row.shadow => Role::Shadow,
        None => Role::Limiter,
    };
    let mut all: Vec<Row> = rows.iter().map(|row| Row { answer: row.answer, role: role(row) }).collect();
    let is_next = |next: &Taken| next.chain.is_some_and(|(join, _)| join != Join::None);
    let mut first = 0_usize;
    for chain in rows.chunk_by(|_, next| is_next(next)) {
        if let Some(Taken { chain: Some((_, verdict)), .. }) = chain.first() {
            let pools = chain.iter().filter_map(|row| Some((row.chain?.0, row.answer)));
            all.push(Row { answer: combine_chain(*verdict, pools), role: Role::chain(first) });
        }
        first = first.saturating_add(chain.len());
    }
    // Where fields are missing, a policy with chains may have none left.
    let taken = rows.first()?.answer.taken.map(|_| 0);
    combine_rows(&all).map(|answer| Answer { taken, ..answer })
}

/// Why a call was not decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallError {
    /// The field for a quantity or a lease is not a number.
    Number,
    /// Two limiters of the call have the same key.
    SameKey,
    /// There are too many keys to number them.
    Keys,
    /// A limiter returned this error.
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
