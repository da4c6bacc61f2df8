//! The checker of histories, compared with one that tries every order.

#![allow(clippy::restriction, reason = "a test that panics fails")]
#![allow(clippy::arithmetic_side_effects, reason = "small numbers")]

use redis_cell_verify::histories::{Call, Fault, History, Reply, Tampering, Units};

/// Numbers that look random: xorshift64* by G. Marsaglia and S. Vigna.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % bound
    }

    fn units(&mut self, from: i64, to: i64) -> i64 {
        from + i64::try_from(self.below((to - from + 1).unsigned_abs())).unwrap()
    }
}

/// The state of a limiter: the units taken, and the calls with ONCE.
type Held = (Units, Vec<(u64, Units, Option<u64>)>);

/// Runs a call as the limiters do. Returns whether it is admitted, and the units taken after the call, or
/// after the first call of its name.
fn run(held: &mut Held, limits: Units, call: &Call) -> (bool, Units) {
    if let Some((_, used, _)) = held.1.iter().find(|(name, ..)| call.once == Some(*name)) {
        return (true, *used);
    }
    let gives = call.units.iter().any(|units| *units < 0);
    let admitted = gives || (0..2).all(|key| held.0[key] + call.units[key] <= limits[key]);
    if admitted {
        held.0 = [0, 1].map(|key| (held.0[key] + call.units[key]).max(0));
        held.1.extend(call.once.map(|name| (name, held.0, None)));
    }
    (admitted, held.0)
}

/// Every order, one after the other.
struct Orders<'a>(&'a History);

impl Orders<'_> {
    fn explain(&self) -> bool {
        let start = (Held::default(), Vec::new());
        self.any(&mut vec![false; self.0.calls.len()], 0, &start.0, &start.1)
    }

    /// `earlier` are the states since the last fault, and the call after each.
    fn any(&self, done: &mut Vec<bool>, faults: usize, held: &Held, earlier: &[(Held, usize)]) -> bool {
        let History { limits, calls, faults: all } = self.0;
        let end = |call: &Call| call.reply.as_ref().map(|reply| reply.at);
        let waits =
            |done: &[bool]| (0..calls.len()).filter(|i| !done[*i]).filter_map(|i| end(&calls[i])).min();
        let next_fault = all.get(faults);
        if next_fault.is_none() && waits(done).is_none() {
            return true;
        }
        if let Some(fault) = next_fault
            && waits(done).is_none_or(|end| fault.at <= end)
        {
            // Calls that were lost before the fault can no longer run.
            let mut after = done.clone();
            for (done, call) in after.iter_mut().zip(calls) {
                *done |= call.reply.is_none() && call.start <= fault.at;
            }
            let known =
                |call: &Call| call.reply.as_ref().is_some_and(|reply| reply.admitted) && call.units != [0; 2];
            for kept in 0..=earlier.len() {
                let mut gone =
                    earlier[kept..].iter().map(|(_, call)| &calls[*call]).filter(|call| known(call));
                if gone.clone().count() <= fault.most
                    && gone.all(|call| end(call).is_none_or(|end| end >= fault.since))
                    && self.any(
                        &mut after.clone(),
                        faults + 1,
                        earlier.get(kept).map_or(held, |(held, _)| held),
                        &[],
                    )
                {
                    return true;
                }
            }
        }
        for i in 0..calls.len() {
            let call = &calls[i];
            let begun = |at: Option<u64>| at.is_none_or(|at| call.start <= at);
            if done[i] || !begun(waits(done)) || !begun(next_fault.map(|fault| fault.at)) {
                continue;
            }
            let mut after = held.clone();
            let (admitted, used) = run(&mut after, *limits, call);
            if let Some(reply) = &call.reply {
                let left =
                    |key: usize| reply.remaining[key].is_none_or(|left| left == limits[key] - used[key]);
                if reply.admitted != admitted || !left(0) || !left(1) {
                    continue;
                }
                if let Some((.., text)) = after.1.iter_mut().find(|(name, ..)| call.once == Some(*name)) {
                    if text.is_some_and(|text| text != reply.text) {
                        continue;
                    }
                    *text = Some(reply.text);
                }
            }
            let mut before = earlier.to_vec();
            before.push((held.clone(), i));
            done[i] = true;
            if self.any(done, faults, &after, &before) {
                return true;
            }
            done[i] = false;
        }
        false
    }
}

/// A history of a server without defects. Up to `width` calls run at a time, and of `lost` replies one is
/// lost.
fn record(random: &mut Random, length: u64, width: u64, lost: u64, fault: Option<(usize, u64)>) -> History {
    let limits = [random.units(2, 6), random.units(2, 6)];
    let mut history = History { limits, ..History::default() };
    let (mut held, mut before): (Held, Vec<(Held, u64)>) = Default::default();
    let mut replies: Vec<(u64, u64, Units)> = Vec::new();
    for turn in 0..length {
        let at = 100 * (turn + 1);
        if let Some((most, every)) = fault
            && turn % every == every - 1
        {
            // The last states from which at most this many answered calls lead to the present one.
            let gone = usize::try_from(random.below(3)).unwrap().min(most).min(before.len());
            let since = before[before.len() - gone..].iter().map(|(_, end)| *end).min().unwrap_or(at - 50);
            if gone > 0 {
                held = before[before.len() - gone].0.clone();
            }
            history.faults.push(Fault { at: at - 50, most, since });
            before.clear();
            for call in &mut history.calls {
                let late = call.reply.as_ref().is_some_and(|reply| reply.at > at - 50);
                call.reply = call.reply.take().filter(|_| !late);
            }
        }
        let once = (random.below(3) == 0).then(|| random.below(length / 4 + 1));
        let units = match (once, random.below(4)) {
            (Some(_), _) => [1, 1],
            (None, 0) => [-random.units(0, 2), -random.units(0, 1)],
            _ => [random.units(0, 2), random.units(0, 1)],
        };
        let mut call = Call { start: at - random.below(100 * width).min(at - 1), units, once, reply: None };
        if let Some(fault) = history.faults.last() {
            call.start = call.start.max(fault.at + 1);
        }
        let state = held.clone();
        let (admitted, used) = run(&mut held, limits, &call);
        let end = at + random.below(100 * width);
        if random.below(lost) > 0 {
            let text = match replies.iter().find(|(name, _, first)| once == Some(*name) && *first == used) {
                Some((_, text, _)) => *text,
                None => turn,
            };
            if admitted && let Some(name) = once {
                replies.push((name, text, used));
            }
            let remaining = [0, 1].map(|key| (random.below(6) > 0).then_some(limits[key] - used[key]));
            call.reply = Some(Reply { at: end, admitted, remaining, text });
        }
        if held != state {
            before.push((state, end));
        }
        history.calls.push(call);
    }
    history.in_order()
}

#[test]
fn decides_as_every_order_does() {
    let mut random = Random(42);
    let mut explained = [0_u32; 2];
    for round in 0..20_000_u64 {
        let fault = (round % 2 == 0).then(|| (usize::try_from(random.below(3)).unwrap(), 4));
        let mut history = record(&mut random, 7, 1 + round % 3, 8, fault);
        if round % 3 > 0 {
            // Any change of a reply or of a time, whether it can be explained or not.
            let chosen = usize::try_from(random.below(7)).unwrap();
            let other = history.calls[usize::try_from(random.below(7)).unwrap()].start;
            let start = history.calls[chosen].start;
            if let Some(reply) = &mut history.calls[chosen].reply {
                match random.below(4) {
                    0 => reply.admitted = !reply.admitted,
                    1 => reply.remaining[0] = Some(random.units(0, 4)),
                    2 => reply.at = reply.at.min(start + 1),
                    _ => reply.remaining[1] = reply.remaining[1].map(|left| left + 1),
                }
            } else {
                history.calls[chosen].start = other;
            }
            history = history.in_order();
        }
        let (quick, slow) = (history.check(), Orders(&history).explain());
        assert_eq!(quick.is_ok(), slow, "round {round}: {quick:?}\n{history:#?}");
        explained[usize::from(slow)] += 1;
    }
    println!("{explained:?}");
    assert!(explained.iter().all(|count| *count > 2_000), "{explained:?}: too one-sided");
}

#[test]
fn explains_what_a_correct_server_says() {
    let mut random = Random(7);
    for width in 1..=6 {
        for _ in 0..10 {
            let history = record(&mut random, 400, width, 400, None);
            assert_eq!(history.check(), Ok(()));
        }
    }
}

#[test]
fn finds_every_tampering() {
    let mut random = Random(11);
    let mut found = [0; Tampering::ALL.len()];
    for _ in 0..200 {
        let history = record(&mut random, 200, 1, 100, None);
        for (count, tampering) in found.iter_mut().zip(Tampering::ALL) {
            for call in 0..history.calls.len() {
                if let Some(told) = tampering.of(&history, call) {
                    assert!(told.check().is_err(), "{tampering:?} of call {call} is not found: {history:#?}");
                    *count += 1;
                }
            }
        }
    }
    assert!(found.iter().all(|count| *count > 0), "{found:?} of {:?}", Tampering::ALL);
}
