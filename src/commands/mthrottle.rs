//! `CL.MTHROTTLE`

use redis_cell_core::{Error, Keyword, Range, Tail, gcra};

use super::spec::{Argument, COUNT, KEY, Kind, MAX_BURST, PERIOD, TIME, UNIT};
use super::{Command, Flag, Keys, Spec, Use, tally};
use crate::ffi::{self, Access, Arg, Call, Key};
use crate::outcome::Outcome;
use crate::store::{self, State};
use crate::waiting;

/// Takes a quantity from several GCRA limiters, from all or from none.
pub struct Mthrottle;

impl Command for Mthrottle {
    const SPEC: Spec = Spec {
        name: c"cl.mthrottle",
        summary: "Takes a quantity from several GCRA limiters, from all or from none.",
        reply: "Replies arrays of five integers: the combined answer, then each key's.",
        complexity: c"O(N log N) where N is the number of keys.",
        since: c"1.0.0",
        arguments: &[
            Argument::new(
                c"numkeys",
                Kind::Integer,
                c"How many keys follow, and as many limits behind them.",
            ),
            KEY.multiple(),
            Argument::new(
                c"limit",
                Kind::Block(&[MAX_BURST, COUNT, PERIOD]),
                c"The limit of each key, in order.",
            )
            .multiple(),
            Argument::new(c"n", Kind::Integer, c"Units to take from each, 0 or more; 1 when left out.")
                .behind(c"QUANTITY")
                .optional(),
            UNIT,
        ],
        flags: &[Flag::Write, Flag::DenyOom],
        keys: Keys::Counted,
        uses: Use::Take,
        tips: TIME,
        tally: tally!(),
    };

    fn run(call: &Call) -> Result<Outcome, Error> {
        let (limiters, tail) = arguments(call)?;
        let now = ffi::now();

        let mut states = Vec::with_capacity(limiters.len());
        for (name, limit) in &limiters {
            let key = Key::open(*call, *name, Access::Write);
            let tat = gcra::Tat::load(&key, now)?;
            let seen = waiting::seen(call, *name, tat, now)?;
            let answer = gcra::throttle(seen, limit, now, tail.quantity)?.answer;
            states.push((key, tat, seen, answer));
        }
        let admitted = states.iter().all(|(.., answer)| !answer.limited);

        let mut rows = Vec::with_capacity(limiters.len());
        for ((name, limit), (key, tat, seen, _)) in limiters.iter().zip(states) {
            rows.push(if admitted {
                let decision = waiting::overtake(call, *name, tat, now, |tat| {
                    gcra::throttle(tat, limit, now, tail.quantity)
                })?;
                store::carry_out(decision.change, key);
                decision.answer
            } else {
                gcra::peek(seen, limit, now, tail.quantity)?
            });
        }
        Ok(Outcome::Several(rows, tail.unit))
    }
}

/// The keys with their limits, and what stands behind them.
fn arguments<'c>(call: &Call<'c>) -> Result<(Vec<(Arg<'c>, gcra::Limit)>, Tail), Error> {
    // Each key brings its name and the three numbers of its limit.
    let most = call.len().saturating_sub(2) / 4;
    let range = Range { name: "numkeys", min: 1, max: i64::try_from(most).unwrap_or(i64::MAX) };
    let [numkeys] = call.positional()?;
    let numkeys = usize::try_from(range.parse(call.bytes(numkeys))?).map_err(|_| range.error())?;

    let keys = call.words(2, numkeys);
    let numbers = call.words(numkeys.saturating_add(2), numkeys.saturating_mul(3));
    let tail = call.rest(numkeys.saturating_mul(4).saturating_add(2));
    let tail = Tail::parse(tail, &[Keyword::Quantity])?;

    let mut names: Vec<&[u8]> = keys.iter().map(|key| call.bytes(*key)).collect();
    names.sort_unstable();
    if names.windows(2).any(|pair| matches!(pair, [one, next] if one == next)) {
        return Err(Error::SameKey);
    }
    let (triples, _) = numbers.as_chunks::<3>();
    let limits =
        triples.iter().map(|triple| gcra::Limit::parse(triple.map(|arg| call.bytes(arg)), tail.unit));
    let limiters = keys.iter().zip(limits).map(|(key, limit)| Ok((*key, limit?)));
    Ok((limiters.collect::<Result<_, Error>>()?, tail))
}
