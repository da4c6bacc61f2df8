//! Runs a log through all policies, and searches for the smallest limit.

use core::error::Error;

use redis_cell_core::Instant;
use redis_cell_policy::{CallError, Fields, Policy, PolicyError, Replay, Taken};

use crate::faults;
use crate::input::Source;
use crate::log::Log;
use crate::report::{Check, Found, LogReport, PolicyReport, Report, Tried, share};
use crate::tally::{Tally, count, grown};
use redis_cell_lines::format::Hints;

/// The user's question.
#[derive(Clone, Debug)]
pub struct Question {
    /// The policies as text. A `?` in a policy stands for the number to find.
    pub policies: Vec<String>,
    /// The shares that may be refused.
    pub check: Option<Check>,
    /// The files of the log.
    pub sources: Vec<Source>,
    /// The settings for the format of the log.
    pub hints: Hints,
    /// The zone of times without one, in minutes ahead of UTC.
    pub zone: i32,
    /// The number of keys to show.
    pub top: usize,
}

/// The largest number that is tried in place of `?`.
const LARGEST: i64 = 1 << 40;

/// The number of candidates that are tried in one pass through the log.
const AT_ONCE: usize = 16;

/// Runs the log through the policies.
///
/// # Errors
/// Returns an error for an invalid policy or format, for files that cannot be read, for a log without calls,
/// and for a search without a result.
pub fn run(question: &Question) -> Result<Report, Box<dyn Error>> {
    let mut fields = Fields::default();
    for text in &question.policies {
        // The fields must be known before the format. A wrong number in place of ? shows when it is tried.
        let tried = if searches(text) { with_number(text, 1) } else { text.clone() };
        Policy::parse(&tried, &mut fields).map_err(|error| format!("policy {text}: {error}"))?;
    }
    let mut log = Log::open(question.sources.clone(), &question.hints, &fields, question.zone)?;
    let mut texts = Vec::new();
    let mut found = Vec::new();
    for text in &question.policies {
        if searches(text) {
            let check =
                question.check.ok_or("a ? is searched for with --max-refused or --max-refused-keys")?;
            if !log.can_be_read_again() {
                return Err("a ? needs files, because the log is read several times".into());
            }
            let (value, tried) = search(text, &check, &mut log, &mut fields)?;
            texts.push(with_number(text, value));
            found.push(Some(Found { value, tried }));
        } else {
            texts.push(text.clone());
            found.push(None);
        }
    }
    let policies =
        texts.iter().map(|text| Policy::parse(text, &mut fields)).collect::<Result<Vec<_>, _>>()?;
    let (replay, tallies, log_report) = replay(&policies, &mut log, "reading")?;
    let reports = texts.iter().zip(&policies).zip(&tallies).zip(found).enumerate();
    let reports = reports.map(|(position, (((text, policy), tally), found))| {
        let report = PolicyReport::new(text, position, policy, tally, &replay, question.top);
        PolicyReport { found, ..report }
    });
    let policies: Vec<PolicyReport> = reports.collect();
    for (policy, limiter) in
        policies.iter().flat_map(|policy| policy.limiters.iter().map(move |each| (policy, each)))
    {
        if limiter.keys == 0 && policy.errors.is_empty() && !faults::has("no-key-is-silent") {
            return Err(format!(
                "policy {}: no line has all fields of the key {}",
                policy.policy, limiter.key
            )
            .into());
        }
    }
    let checked = if faults::has("first-is-checked") { policies.first() } else { policies.last() };
    let check = question.check.zip(checked).map(|(check, last)| {
        let passed = check.allows(last.refused_share, last.keys_refused_share) && last.errors.is_empty();
        Check { passed, ..check }
    });
    Ok(Report { log: log_report, policies, check, error: None })
}

/// Runs the log through the policies once.
fn replay(
    policies: &[Policy],
    log: &mut Log,
    what: &str,
) -> Result<(Replay, Vec<Tally>, LogReport), Box<dyn Error>> {
    let mut replay = Replay::new(policies.iter().cloned());
    let mut tallies = policies.iter().map(Tally::new).collect::<Result<Vec<_>, _>>()?;
    let log_report = log.read(what, |now, values| one(&mut replay, &mut tallies, now, values))?;
    Ok((replay, tallies, log_report))
}

/// Runs one call through all policies and counts it.
///
/// # Errors
/// Returns [`CallError::Number`], which makes the line unreadable. All other errors are counted.
pub fn one(
    replay: &mut Replay,
    tallies: &mut [Tally],
    now: Instant,
    values: &[&[u8]],
) -> Result<(), CallError> {
    replay.call(now, values)?;
    let now = replay.now();
    for (position, tally) in tallies.iter_mut().enumerate() {
        match replay.decide(position) {
            Ok(rows) => tally.count(now, rows),
            Err(error) => tally.error(error),
        }
    }
    Ok(())
}

/// Returns whether a policy has a number to find.
fn searches(text: &str) -> bool {
    text.split_ascii_whitespace().any(|word| word == "?")
}

/// Returns the policy with a number in place of each `?`.
fn with_number(text: &str, number: i64) -> String {
    let number = number.to_string();
    let words = text.split_ascii_whitespace().map(|word| if word == "?" { &number } else { word });
    words.collect::<Vec<_>>().join(" ")
}

/// Finds the smallest number in place of `?` that refuses no more than allowed. It tries powers of four
/// first, and then smaller and smaller steps between two of them.
///
/// Each number is tried on the whole log, several of them in one pass. If a larger number can refuse more, as
/// with different quantities, the result still refuses little enough, and the next smaller number does not.
fn search(
    text: &str,
    check: &Check,
    log: &mut Log,
    fields: &mut Fields,
) -> Result<(i64, Vec<Tried>), Box<dyn Error>> {
    let mut all: Vec<Tried> = Vec::new();
    // This number and smaller ones refuse too much or are not valid limits.
    let mut below = -1;
    let mut enough = None;
    let powers =
        core::iter::successors(Some(1_i64), |power| power.checked_mul(4).filter(|&next| next <= LARGEST));
    let powers: Vec<i64> = core::iter::once(0).chain(powers).collect();
    for numbers in powers.chunks(AT_ONCE) {
        enough = narrow(try_numbers(text, numbers, log, fields)?, check, &mut below, &mut all);
        if enough.is_some() {
            break;
        }
    }
    let mut enough = enough.ok_or_else(|| format!("no number in place of ? refuses that little: {text}"))?;
    while enough.saturating_sub(below) > 1 {
        let numbers = between(below, enough);
        let tried = try_numbers(text, &numbers, log, fields)?;
        if tried.is_empty() {
            break; // no smaller number is a valid limit
        }
        enough = narrow(tried, check, &mut below, &mut all).unwrap_or(enough);
    }
    all.sort_by_key(|tried| tried.value);
    Ok((if faults::has("one-more") { enough.saturating_add(1) } else { enough }, all))
}

/// Returns the first number that refuses little enough, and sets `below` to the last one before it.
fn narrow(tried: Vec<Tried>, check: &Check, below: &mut i64, all: &mut Vec<Tried>) -> Option<i64> {
    let allows = |tried: &Tried| check.allows(tried.refused_share, tried.keys_refused_share);
    let enough = tried.iter().position(allows);
    if let Some(before) = tried.get(..enough.unwrap_or(tried.len())).and_then(<[_]>::last) {
        *below = before.value;
    }
    let enough = enough.and_then(|at| tried.get(at)).map(|tried| tried.value);
    all.extend(tried);
    enough
}

/// Returns numbers between these two, at equal distances.
fn between(below: i64, above: i64) -> Vec<i64> {
    let parts = i64::try_from(AT_ONCE).unwrap_or(i64::MAX).saturating_add(1);
    let gap = above.saturating_sub(below);
    let step = gap.saturating_add(parts).saturating_sub(1).checked_div(parts).unwrap_or(1);
    let numbers = core::iter::successors(Some(below), |number| number.checked_add(step));
    numbers.skip(1).take_while(|&number| number < above).collect()
}

/// Runs the log through the policy with each of these numbers, except those that are not valid limits.
fn try_numbers(
    text: &str,
    numbers: &[i64],
    log: &mut Log,
    fields: &mut Fields,
) -> Result<Vec<Tried>, Box<dyn Error>> {
    let limits =
        numbers.iter().filter_map(|&number| match Policy::parse(&with_number(text, number), fields) {
            Ok(policy) => Some(Ok((number, policy))),
            Err(PolicyError::Limiter(_)) => None, // out of range
            Err(error) => Some(Err(error)),
        });
    let (numbers, policies): (Vec<i64>, Vec<Policy>) =
        limits.collect::<Result<Vec<_>, _>>()?.into_iter().unzip();
    if policies.is_empty() {
        return Ok(Vec::new());
    }
    let mut replay = Replay::new(policies);
    let mut counts = vec![Counts::default(); numbers.len()];
    log.read("searching", |now, values| {
        replay.call(now, values)?;
        for (position, counts) in counts.iter_mut().enumerate() {
            if let Ok(rows) = replay.decide(position) {
                counts.count(rows);
            }
        }
        Ok(())
    })?;
    Ok(numbers.iter().zip(&counts).map(|(&value, counts)| counts.tried(value)).collect())
}

/// The counts of a candidate, with two flags for each key.
#[derive(Clone, Debug, Default)]
struct Counts {
    requests: u64,
    refused: u64,
    /// For each limiter and key, whether it was seen and whether it was refused.
    keys: Vec<Vec<[bool; 2]>>,
}

impl Counts {
    fn count(&mut self, rows: &[Taken]) {
        if rows.is_empty() {
            return;
        }
        self.requests = self.requests.saturating_add(1);
        if rows.iter().any(Taken::refuses) {
            self.refused = self.refused.saturating_add(1);
        }
        for row in rows.iter().filter(|row| !row.shadow || faults::has("shadow-has-keys")) {
            let Some(keys) = grown(&mut self.keys, row.limiter) else { continue };
            let number = usize::try_from(row.key).unwrap_or(usize::MAX);
            if let Some([seen, refused]) = grown(keys, number) {
                *seen = true;
                *refused |= row.refuses();
            }
        }
    }

    fn tried(&self, value: i64) -> Tried {
        let keys = || self.keys.iter().flatten();
        let seen = count(keys().filter(|[seen, _]| *seen).count());
        let refused = count(keys().filter(|[_, refused]| *refused).count());
        let refused_share = share(self.refused, self.requests);
        Tried { value, refused_share, keys_refused_share: share(refused, seen) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_between_two_are_at_equal_distances() {
        assert_eq!(between(-1, 1), [0]);
        assert_eq!(between(4, 16), (5..16).collect::<Vec<_>>());
        assert_eq!(between(0, 170), (10..170).step_by(10).collect::<Vec<_>>());
    }
}
