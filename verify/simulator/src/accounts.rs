//! The contract of chains and holds, by the same model: pools in order, and units that come back.
//!
//! A hold is a list of parts, which is read from the members of its sorted set as the page of CL.MTAKE
//! describes them.

use crate::contract::{Call, Hold, Join};
use crate::keyspace::Value;
use crate::model::{
    Ago, ENDLESS, Error, Limit, Model, Part, Row, State, Window, ceil, lease_of, look, room, taken, tick,
    verdict,
};

const MILLI: i128 = 1_000_000;

/// The smallest unit of time in which a settlement can say when units were taken.
const MICRO: i128 = 1_000;

/// The most parts under a key for owners that have none.
const MOST_PARTS: i128 = 100_000;

/// Where the units of a part were taken.
#[derive(Clone, Debug, PartialEq)]
pub enum Origin {
    /// In a window that ends then.
    Window(i128),
    /// In a window without end, which is forgotten when it is idle, or not.
    Total(bool),
    /// Of any other limiter, at an instant, with this `reset_after`.
    Rate(i128, i128),
}

/// The part of one limiter that an owner holds.
#[derive(Clone, Debug, PartialEq)]
pub struct Held {
    key: String,
    id: String,
    end: i128,
    period: i128,
    earlier: i128,
    last: i128,
    origin: Origin,
    /// How long its key lives, if it is a total that is forgotten when it is idle, as far as calls with HOLD
    /// know.
    lives: i128,
}

impl Held {
    /// Parts of owners of which the model only knows that they count.
    fn others(count: i128) -> Self {
        let (key, id, end) = (String::new(), String::new(), ENDLESS);
        Self { key, id, end, period: end, earlier: 0, last: count, origin: Origin::Rate(0, 0), lives: 0 }
    }

    /// Whether it stands for parts of which the model only knows that they count.
    pub fn is_of_others(&self) -> bool {
        self.key.is_empty()
    }

    /// How many parts it stands for.
    fn count(&self) -> i128 {
        if self.is_of_others() { self.last } else { 1 }
    }

    fn units(&self) -> i128 {
        self.earlier + self.last
    }

    /// A total is one window, whether the calls name IDLE or not.
    fn is_of_same_window(&self, other: &Self, now: i128) -> bool {
        match other.origin {
            Origin::Window(end) => matches!(self.origin, Origin::Window(_)) && self.is_of(end, now),
            Origin::Total(_) => matches!(self.origin, Origin::Total(_)),
            Origin::Rate(..) => false,
        }
    }

    fn has_ended(&self, now: i128) -> bool {
        self.end <= now || self.begins_after(now)
    }

    /// Whether its units were taken later.
    pub fn begins_after(&self, now: i128) -> bool {
        self.end - now > self.period
    }

    fn is_idle(&self) -> bool {
        self.origin == Origin::Total(true)
    }

    fn is_rate(&self) -> bool {
        matches!(self.origin, Origin::Rate(..))
    }

    /// Whether its units can come back to the open window that ends then. When keys are moved to another
    /// server, ends change a little.
    fn is_of(&self, window: i128, now: i128) -> bool {
        match self.origin {
            Origin::Window(end) => end == window || now < end && (end - window).abs() <= 1_000_000_000,
            Origin::Total(_) => true,
            Origin::Rate(..) => false,
        }
    }
}

/// The parts in order, but for those of which nothing can come back: of rates, of windows that have ended,
/// and of keys that are gone, unless `lives`.
pub fn shown(book: &[Held], now: i128, lives: impl Fn(&str) -> bool) -> Vec<String> {
    let comes_back = |held: &&Held| match held.origin {
        Origin::Rate(..) => false,
        Origin::Window(end) => end > now,
        // The key of the hold may be gone since the total was forgotten once.
        Origin::Total(true) => false,
        Origin::Total(false) => lives(&held.key),
    };
    let live = book.iter().filter(|held| !held.has_ended(now) || comes_back(held));
    let mut shown: Vec<String> = live.map(|held| format!("{held:?}")).collect();
    shown.sort_unstable();
    shown
}

/// The parts of the key of a hold; `None` for anything else.
pub fn book(value: &Value) -> Option<Vec<Held>> {
    let Value::ZSet(set) = value else { return None };
    let (mut book, mut ends) = (Vec::new(), 0);
    for member in set.scores.keys() {
        let member = std::str::from_utf8(member).ok()?;
        if member.starts_with("id ") || member.starts_with("part ") {
            let from = book.len();
            parts(member, &mut book)?;
            ends += book[from..].iter().filter(|held| !held.is_rate()).count().max(1);
        }
    }
    for (member, score) in &set.scores {
        let key = member.strip_prefix(b"idle ").and_then(|name| name.splitn(2, |byte| *byte == b' ').nth(1));
        for held in book.iter_mut().filter(|held| held.is_idle() && key == Some(held.key.as_bytes())) {
            held.lives = score.0 as i128 * MILLI;
        }
    }
    // Nobody finds a part without its end, and there is no end without a part.
    let is_end = |member: &&Vec<u8>| member.starts_with(b"end ");
    let found = set.scores.keys().filter(is_end).count();
    let counted = |name: &[u8]| set.scores.get(name).map_or(0.0, |score| score.0);
    let totals = book.iter().filter(|held| held.origin == Origin::Total(false)).count();
    let others = counted(b"parts") as i128 - book.len() as i128;
    if others > 0 {
        book.push(Held::others(others));
    }
    (found == ends && others >= 0 && counted(b"totals") == totals as f64).then_some(book)
}

/// Whether so many parts are under the key that it may have no room for a call.
pub fn is_crowded(value: &Value) -> bool {
    let Value::ZSet(set) = value else { return false };
    set.scores.get(b"parts".as_slice()).is_some_and(|parts| parts.0 as i128 > MOST_PARTS / 2)
}

/// Whether the key lives only for a total, and expires with it. The parts of others, which have no members,
/// are then gone.
pub fn has_passed(value: &Value, now: i128) -> bool {
    let Value::ZSet(set) = value else { return false };
    set.scores.get(b"until".as_slice()).is_some_and(|until| until.0 as i128 * MILLI <= now)
}

/// The parts in a member; names without spaces are enough here.
fn parts(member: &str, book: &mut Vec<Held>) -> Option<()> {
    let mut words = member.split(' ').skip(2);
    let id = words.next()?;
    let (mut end, mut period) = (0, 0);
    while words.next().is_some() {
        let key = words.next()?;
        let first = words.next()?;
        if first != "-" {
            (end, period) = (first.parse().ok()?, words.next()?.parse().ok()?);
        }
        let kind = words.next()?;
        let mut number = || words.next()?.parse::<i128>().ok();
        let (earlier, last) = (number()?, number()?);
        let origin = match kind {
            "window" => Origin::Window(number()?),
            "rate" => {
                let began = words.next()?;
                let at = if began == "-" { end - period } else { began.parse().ok()? };
                Origin::Rate(at, words.next()?.parse().ok()?)
            }
            "total" | "idle" => Origin::Total(kind == "idle"),
            _ => return None,
        };
        book.push(Held { key: key.into(), end, id: id.into(), period, earlier, last, origin, lives: 0 });
    }
    Some(())
}

/// A decision.
pub struct Decided {
    /// The rows, the combined one first, each with its sixth integer if the call has a chain.
    pub rows: Vec<(Row, Option<i128>)>,
    /// The parts of the hold.
    pub book: Vec<Held>,
    /// Whether the call was admitted, or settled.
    pub is_admitted: bool,
    /// Whether it was refused, and perhaps only because the key has no room for its parts.
    pub is_full: bool,
    /// The limiters and chains that refuse it: whether what was taken may come back, and their waits. None if
    /// the call is a renewal.
    pub refusing: Vec<(bool, Option<i128>)>,
}

impl Decided {
    /// The reply on one line.
    pub fn shown(&self, unit: i128) -> String {
        let row = |(row, taken): &(Row, Option<i128>)| {
            let sixth = taken.map_or(String::new(), |taken| format!(" {taken}"));
            format!("{}{sixth}", row.shown(unit))
        };
        self.rows.iter().map(row).collect::<Vec<_>>().join(" | ")
    }
}

/// Whether something that is held of a limiter was taken from another kind of window.
fn is_foreign(part: &Part, held: &Held) -> bool {
    held.key == part.key
        && match &part.limit {
            Limit::Fixed { window: Window::Total(_), .. } => !matches!(held.origin, Origin::Total(_)),
            Limit::Fixed { .. } => !matches!(held.origin, Origin::Window(_)),
            Limit::Lease { .. } => true,
            _ => !held.is_rate(),
        }
}

/// Gives back what has run out of the limiters of a call. Returns what has ended; `None` if it cannot be
/// said.
fn restore(call: &Call, model: &mut Model, book: &[Held]) -> Option<Vec<Held>> {
    let mut gone = Vec::new();
    for part in &call.parts {
        if book.iter().any(|held| is_foreign(part, held)) {
            return None;
        }
        let ended: Vec<&Held> =
            book.iter().filter(|held| held.key == part.key && held.has_ended(model.now)).collect();
        gone.extend(ended.iter().map(|held| (*held).clone()));
        let Some((State::Count { used, end }, _)) = model.key(&part.key).cloned() else { continue };
        // What was held of an earlier life of a total does not come back to the present one.
        let lives = |held: &&&Held| !held.is_idle() || model.now < held.lives;
        let back = ended.iter().filter(|held| held.is_of(end, model.now)).filter(lives);
        let back: i128 = back.map(|held| held.last).sum();
        if back > 0 && model.now < end {
            let state = (used > back).then_some(State::Count { used: used - back, end });
            model.store(&part.key, &part.limit, state);
        }
    }
    Some(gone)
}

/// The states of a call's limiters, and their expiries.
type States = Vec<Option<(State, i128)>>;

fn states(call: &Call, model: &Model) -> States {
    call.parts.iter().map(|part| model.key(&part.key).cloned()).collect()
}

/// Notes how long the totals live of which something is held, and which an admitted call has changed: before
/// something has come back, or behind that.
fn with_lives(call: &Call, [before, restored]: &[States; 2], model: &Model, mut decided: Decided) -> Decided {
    let states = call.parts.iter().zip(before.iter().zip(restored));
    for (part, (before, restored)) in states.filter(|_| decided.is_admitted) {
        let after = model.key(&part.key);
        if let (Limit::Fixed { window: Window::Total(Some(_)), .. }, Some((State::Count { end, .. }, _))) =
            (&part.limit, after)
            && (before != restored || after != restored.as_ref())
        {
            let held = decided.book.iter_mut().filter(|held| held.is_idle() && held.key == part.key);
            held.for_each(|held| held.lives = *end);
        }
    }
    decided
}

/// The limiters in groups: a chain, or one limiter. Each with its pools: what `SPILL` joins.
fn chains(call: &Call) -> Vec<Vec<Vec<usize>>> {
    let mut chains: Vec<Vec<Vec<usize>>> = Vec::new();
    for (at, join) in call.joins.iter().enumerate() {
        match (join, chains.last_mut()) {
            (Join::Spill, Some(chain)) => chain.last_mut().expect("a pool").push(at),
            (Join::Else, Some(chain)) => chain.push(vec![at]),
            _ => chains.push(vec![vec![at]]),
        }
    }
    chains
}

fn is_chain(chain: &[Vec<usize>]) -> bool {
    chain.len() > 1 || chain[0].len() > 1
}

fn holds_place(part: &Part, state: Option<&State>, now: i128) -> bool {
    matches!(&part.limit, Limit::Lease { id, .. } if lease_of(state, id).is_some_and(|end| end > tick(now)))
}

/// Which shares a pool would give at an instant; `None` if it does not admit its quantity.
fn shares(call: &Call, model: &Model, pool: &[usize], at: i128) -> Result<Option<Vec<i128>>, Error> {
    let mut rooms = Vec::new();
    for &own in pool {
        let part = &call.parts[own];
        rooms.push(room(&part.limit, model.state(&part.key, &part.limit)?, at));
    }
    let mut left = call.parts[pool[0]].quantity;
    if left == 0 {
        return Ok(rooms.iter().any(|room| *room >= 0).then(|| vec![0; pool.len()]));
    }
    let mut given = Vec::new();
    for room in rooms {
        let share = left.min(room.max(0));
        given.push(share);
        left -= share;
    }
    Ok((left == 0).then_some(given))
}

/// What a chain takes from which limiter; a wait if it refuses, and no wait if it always does.
type Taken = Result<Vec<(usize, i128)>, Option<i128>>;

/// Decides a chain.
fn take_chain(call: &Call, model: &Model, chain: &[Vec<usize>]) -> Result<Taken, Error> {
    let now = model.now;
    for &at in chain.iter().flatten() {
        let part = &call.parts[at];
        if holds_place(part, model.state(&part.key, &part.limit)?, now) {
            return Ok(Ok(vec![(at, 0)]));
        }
    }
    for pool in chain {
        if let Some(given) = shares(call, model, pool, now)? {
            return Ok(Ok(pool.iter().copied().zip(given).collect()));
        }
    }
    let enough = |wait: i128| -> Result<bool, Error> {
        for pool in chain {
            if shares(call, model, pool, now + wait)?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    };
    let (mut early, mut late) = (0, 1 << 66);
    if !enough(late)? {
        return Ok(Err(None));
    }
    while late - early > 1 {
        let between = i128::midpoint(early, late);
        if enough(between)? { late = between } else { early = between }
    }
    Ok(Err(Some(late)))
}

/// The row of a chain: what it could give now, and at most.
fn chain_row(chain: &[Vec<usize>], rows: &[Row], limited: bool, retry: Option<i128>) -> Row {
    let most = |of: &dyn Fn(&Row) -> i128| {
        let sums = chain.iter().map(|pool| pool.iter().map(|at| of(&rows[*at])).sum::<i128>());
        sums.max().unwrap_or(0).min(i64::MAX.into())
    };
    Row {
        limited,
        limit: most(&|row| row.limit),
        remaining: most(&|row| row.remaining),
        retry,
        reset: chain.iter().flatten().map(|at| rows[*at].reset).max().unwrap_or(0),
    }
}

/// The combined row, in which a chain counts as one limiter.
fn combine(call: &Call, rows: &[Row], chain_rows: &[(usize, Row)]) -> Row {
    let (mut parts, mut counted) = (Vec::new(), Vec::new());
    for (at, chain) in chains(call).iter().enumerate() {
        let first = chain[0][0];
        parts.push(call.parts[first].clone());
        let own = chain_rows.iter().find(|(own, _)| *own == at).map(|(_, row)| row.clone());
        counted.push(own.unwrap_or_else(|| rows[first].clone()));
    }
    crate::model::combined(&parts, counted).remove(0)
}

/// Decides a call with a chain or a hold, whose keys the model has, and takes. `None` if it cannot be said.
pub fn take(call: &Call, model: &mut Model, book: &[Held], looks: bool) -> Option<Result<Decided, Error>> {
    let (before, gone) = (states(call, model), restore(call, model, book)?);
    let left: Vec<Held> = book.iter().filter(|held| !gone.contains(held)).cloned().collect();
    let states = [before, states(call, model)];
    let decided = taking(call, model, left, &gone, looks).transpose()?;
    Some(decided.map(|decided| if looks { decided } else { with_lives(call, &states, model, decided) }))
}

/// How many parts an admitted call would add beyond those that there may be, at least and at most; `None` for
/// a call that adds none, and for an owner that holds something.
fn beyond(
    call: &Call,
    (book, gone): (&[Held], &[Held]),
    takes: &[Option<i128>],
    now: i128,
) -> Option<(i128, i128)> {
    let Hold { period: Some(_), id: Some(id), .. } = call.hold.as_ref()? else { return None };
    if book.iter().chain(gone).any(|held| held.id == *id) {
        return None;
    }
    let parts = call.parts.iter().zip(takes).filter(|(part, _)| !matches!(part.limit, Limit::Lease { .. }));
    let taken = parts.clone().filter(|(_, units)| units.is_some_and(|units| units > 0)).count() as i128;
    let most = parts.filter(|(part, units)| units.unwrap_or(part.quantity) > 0).count() as i128;
    let held: i128 = book.iter().map(Held::count).sum();
    // Parts of rates that have run out are removed with others of their owner, or not at all.
    let rates =
        |all: &[Held]| all.iter().filter(|held| held.is_rate() && held.has_ended(now)).count() as i128;
    // Owners who hold something add parts to a full key, so that there may be more than the most.
    let least = if taken > 0 { held - rates(book) + taken - MOST_PARTS } else { 0 };
    (most > 0).then_some((least, held + rates(gone) + most - MOST_PARTS))
}

fn own<'a>(call: &Call, book: &'a [Held], part: &Part) -> Option<&'a Held> {
    let id = call.hold.as_ref()?.id.as_ref()?;
    book.iter().find(|held| held.key == part.key && held.id == *id)
}

fn taking(
    call: &Call,
    model: &mut Model,
    mut book: Vec<Held>,
    gone: &[Held],
    looks: bool,
) -> Result<Option<Decided>, Error> {
    let (now, parts) = (model.now, &call.parts);
    let all = chains(call);
    let mut before = Vec::new();
    for part in parts {
        before.push(verdict(&part.limit, model.state(&part.key, &part.limit)?, now, part.quantity));
    }
    let period = call.hold.as_ref().and_then(|hold| hold.period);
    let is_renewal = period.is_some()
        && parts.iter().all(|part| matches!(part.limit, Limit::Lease { .. }) || part.quantity == 0)
        && parts.iter().any(|part| own(call, &book, part).is_some());
    // What is taken of which limiter.
    let mut takes: Vec<Option<i128>> = vec![None; parts.len()];
    // Places may be given back at any time, and so may what is held of a window.
    let comes_back = |at: &usize| {
        let (part, is_held) = (&parts[*at], |held: &Held| held.key == parts[*at].key);
        match part.limit {
            Limit::Lease { .. } => true,
            Limit::Fixed { .. } => part.quantity <= before[*at].limit && book.iter().any(is_held),
            _ => false,
        }
    };
    let (mut refused, mut refusing, mut chain_ends) = (false, vec![], Vec::new());
    for (at, chain) in all.iter().enumerate() {
        let first = chain[0][0];
        if !is_chain(chain) {
            if before[first].limited && !parts[first].shadow {
                refused = true;
                refusing.push((comes_back(&first), before[first].retry));
            }
            takes[first] = (!before[first].limited).then_some(parts[first].quantity);
            continue;
        }
        match take_chain(call, model, chain)? {
            Ok(shares) => {
                chain_ends.push((at, false, None));
                shares.iter().for_each(|(own, share)| takes[*own] = Some(*share));
            }
            Err(wait) => {
                chain_ends.push((at, true, wait));
                refused = true;
                refusing.push((chain.iter().flatten().any(comes_back), wait));
            }
        }
    }
    if is_renewal {
        refusing.clear();
        // A place must be there: that of a LEASE, or in a chain with one, whatever the chain gives.
        let is_place = |at: &usize| matches!(parts[*at].limit, Limit::Lease { .. }) && !parts[*at].shadow;
        refused = all.iter().enumerate().any(|(at, chain)| {
            let refuses = chain_ends.iter().find(|(own, ..)| *own == at).map(|(_, refused, _)| *refused);
            chain.iter().flatten().any(is_place) && refuses.unwrap_or(before[chain[0][0]].limited)
        });
    }
    let is_full = match beyond(call, (&book, gone), &takes, now) {
        Some((_, most)) if most > 0 && refused => true,
        Some((least, _)) if least > 0 => true,
        Some((_, most)) if most > 0 => return Ok(None),
        _ => false,
    };
    refused |= is_full;
    if refused {
        takes.fill(None);
    }
    let (mut rows, mut sixth) = (Vec::new(), Vec::new());
    for (at, part) in parts.iter().enumerate() {
        let is_pool = all.iter().any(|chain| is_chain(chain) && chain.iter().flatten().any(|own| *own == at));
        let state = model.state(&part.key, &part.limit)?.cloned();
        let is_lease = matches!(part.limit, Limit::Lease { .. });
        let renews = holds_place(part, state.as_ref(), now);
        let units =
            if is_lease { i128::from(takes[at].is_some() && !renews) } else { takes[at].unwrap_or(0) };
        sixth.push(units);
        let takes_any = takes[at].is_some() && (units > 0 || is_lease);
        let mut after = state;
        if takes_any && !looks {
            after = Some(taken(&part.limit, after.as_ref(), now, units)?);
            model.store(&part.key, &part.limit, after.clone());
        }
        // A total with an idle time lives as long as its held parts.
        if let (Some(State::Count { used, end }), Some(period)) = (&after, period)
            && !refused
            && !looks
            && matches!(part.limit, Limit::Fixed { window: Window::Total(Some(_)), .. })
            && (takes_any || *end > now && own(call, &book, part).is_some())
        {
            let lasts = ceil(now + period, MILLI) * MILLI;
            after = Some(State::Count { used: *used, end: (*end).max(lasts) });
            model.store(&part.key, &part.limit, after.clone());
        }
        let standing = look(&part.limit, after.as_ref(), now, None);
        let row = match (is_pool, takes_any && !looks) {
            (true, _) => Row { limited: before[at].limited, retry: before[at].retry, ..standing },
            (false, true) => Row { limited: false, retry: None, ..standing },
            (false, false) => {
                Row { reset: standing.reset, remaining: standing.remaining, ..before[at].clone() }
            }
        };
        rows.push(row);
    }
    if !refused && !looks {
        hold(call, model, &mut book, &takes, &rows);
    }
    let chain_rows: Vec<(usize, Row)> = chain_ends
        .iter()
        .map(|(at, limited, wait)| (*at, chain_row(&all[*at], &rows, *limited, *wait)))
        .collect();
    let mut first = combine(call, &rows, &chain_rows);
    if is_renewal && !refused {
        (first.limited, first.retry) = (false, None);
    }
    let shown = |units: i128| (!chain_rows.is_empty()).then_some(units);
    let rows = rows.into_iter().zip(sixth).map(|(row, units)| (row, shown(units)));
    let rows = [(first, shown(0))].into_iter().chain(rows).collect();
    Ok(Some(Decided { rows, book, is_admitted: !refused, is_full, refusing }))
}

/// Remembers what an admitted call has taken.
fn hold(call: &Call, model: &Model, book: &mut Vec<Held>, takes: &[Option<i128>], rows: &[Row]) {
    let Some(Hold { period: Some(period), id: Some(id), .. }) = &call.hold else { return };
    let now = model.now;
    for ((part, units), row) in call.parts.iter().zip(takes).zip(rows) {
        if matches!(part.limit, Limit::Lease { .. }) {
            continue;
        }
        let units = units.unwrap_or(0);
        let before = own(call, book, part).cloned();
        book.retain(|held| held.key != part.key || held.id != *id);
        let origin = match (&part.limit, model.key(&part.key)) {
            (Limit::Fixed { window: Window::Total(idle), .. }, _) => Origin::Total(idle.is_some()),
            (Limit::Fixed { .. }, Some((State::Count { end, .. }, _))) => Origin::Window(*end),
            (Limit::Fixed { .. }, _) => Origin::Window(0),
            (Limit::Log { .. }, _) => Origin::Rate(tick(now), ceil(row.reset, MICRO) * MICRO),
            _ => Origin::Rate(now, row.reset),
        };
        let new = Held {
            key: part.key.clone(),
            id: id.clone(),
            end: now + period,
            period: *period,
            earlier: 0,
            last: units,
            origin,
            lives: 0,
        };
        match before {
            None if units == 0 => {}
            None => book.push(new),
            Some(before) if units == 0 => book.push(Held { end: new.end, period: new.period, ..before }),
            Some(before) if before.is_of_same_window(&new, now) => {
                book.push(Held { earlier: before.earlier, last: before.last + units, ..new });
            }
            Some(before) => book.push(Held { earlier: before.units(), ..new }),
        }
    }
}

/// Settles a call with a hold by what was used. `None` if it cannot be said.
pub fn settle(call: &Call, model: &mut Model, book: &[Held]) -> Option<Result<Decided, Error>> {
    let (before, gone) = (states(call, model), restore(call, model, book)?);
    let left: Vec<Held> = book.iter().filter(|held| !gone.contains(held)).cloned().collect();
    let states = [before, states(call, model)];
    Some(settling(call, model, left).map(|decided| with_lives(call, &states, model, decided)))
}

fn settling(call: &Call, model: &mut Model, mut book: Vec<Held>) -> Result<Decided, Error> {
    let (now, parts) = (model.now, &call.parts);
    let all = chains(call);
    let has_chain = all.iter().any(|chain| is_chain(chain));
    // What of the units used each limiter bears.
    let mut bears: Vec<Option<i128>> = vec![None; parts.len()];
    for part in parts {
        model.state(&part.key, &part.limit)?;
    }
    for chain in &all {
        if is_chain(chain) {
            bear(call, model, &book, chain, &mut bears)?;
        } else {
            let (at, part) = (chain[0][0], &parts[chain[0][0]]);
            let is_window = matches!(part.limit, Limit::Fixed { .. });
            bears[at] = (is_window || own(call, &book, part).is_some()).then_some(part.quantity);
        }
    }
    let mut rows = Vec::new();
    for (at, part) in parts.iter().enumerate() {
        let held = own(call, &book, part);
        let is_pool = all.iter().any(|chain| is_chain(chain) && chain.iter().flatten().any(|own| *own == at));
        let (mut difference, mut ago, mut reset) = (0, None, None);
        match (&part.limit, held) {
            (Limit::Lease { .. }, _) => difference = part.quantity,
            (Limit::Fixed { .. }, held) => {
                if let Some(used) = bears[at] {
                    difference = used;
                    if let Some(held) = held {
                        let present = (used - held.earlier).max(0) - held.last;
                        let window = match model.key(&part.key) {
                            Some((State::Count { end, .. }, _)) => *end,
                            _ => 0,
                        };
                        let is_here = held.is_of(window, now) && now < window;
                        // Units of 0 come back anywhere.
                        difference = if is_here || held.last == 0 { present } else { present.max(0) };
                    }
                }
            }
            (_, None) if is_pool => difference = bears[at].unwrap_or(0),
            (_, None) => {}
            (limit, Some(held)) => {
                let Origin::Rate(then, reset_after) = held.origin else { continue };
                let here = if matches!(limit, Limit::Log { .. }) { tick(now) } else { now };
                difference = (bears[at].unwrap_or(0) - held.units()).max(-held.last);
                (ago, reset) = (Some(Ago { age: here - then, unit: MICRO }), Some(reset_after + MICRO));
            }
        }
        let own = Part { quantity: difference, reset, ..part.clone() };
        rows.push(model.settle(&[own], ago)?.remove(1));
    }
    if let Some(id) = call.hold.as_ref().and_then(|hold| hold.id.as_ref()) {
        let is_named = |held: &Held| parts.iter().any(|part| part.key == held.key);
        book.retain(|held| held.id != *id || !(is_named(held) || held.is_rate() && !held.has_ended(now)));
        for held in book.iter_mut().filter(|held| held.id == *id && !held.has_ended(now)) {
            held.end = now;
        }
    }
    let mut chain_rows = Vec::new();
    for (at, chain) in all.iter().enumerate().filter(|(_, chain)| is_chain(chain)) {
        let own: Vec<&Row> = chain.iter().flatten().map(|at| &rows[*at]).collect();
        let limited = own.iter().all(|row| row.limited);
        let retry = own.iter().filter_map(|row| row.retry).min().filter(|_| limited);
        chain_rows.push((at, chain_row(chain, &rows, limited, retry)));
    }
    let first = combine(call, &rows, &chain_rows);
    let shown = |units: i128| has_chain.then_some(units);
    let rows = rows.into_iter().zip(&bears).map(|(row, units)| (row, shown(units.unwrap_or(0))));
    let rows = [(first, shown(0))].into_iter().chain(rows).collect();
    Ok(Decided { rows, book, is_admitted: true, is_full: false, refusing: vec![] })
}

/// The part of the used units that is charged to each limiter of a chain.
fn bear(
    call: &Call,
    model: &Model,
    book: &[Held],
    chain: &[Vec<usize>],
    bears: &mut [Option<i128>],
) -> Result<(), Error> {
    let is_lease = |at: &usize| matches!(call.parts[*at].limit, Limit::Lease { .. });
    let held = |at: &usize| own(call, book, &call.parts[*at]).map(Held::units);
    let mut has_any = false;
    for at in chain.iter().flatten() {
        let part = &call.parts[*at];
        has_any |= held(at).is_some() || holds_place(part, model.state(&part.key, &part.limit)?, model.now);
    }
    let rooms: Vec<i128> = call
        .parts
        .iter()
        .map(|part| Ok(room(&part.limit, model.state(&part.key, &part.limit)?, model.now).max(0)))
        .collect::<Result<_, Error>>()?;
    let mut pools: Vec<Vec<usize>> =
        chain.iter().map(|pool| pool.iter().copied().filter(|at| !is_lease(at)).collect()).collect();
    if has_any {
        pools.retain(|pool| pool.iter().any(|at| held(at).is_some()));
    } else {
        pools.iter_mut().for_each(|pool| {
            pool.retain(|at| matches!(call.parts[*at].limit, Limit::Fixed { .. }));
        });
        pools.retain(|pool| !pool.is_empty());
        let fits = |pool: &Vec<usize>| {
            call.parts[pool[0]].quantity <= pool.iter().map(|at| rooms[*at]).sum::<i128>()
        };
        let chosen = pools.iter().position(fits).or(pools.len().checked_sub(1));
        pools = chosen.map(|at| pools[at].clone()).into_iter().collect();
    }
    for pool in pools {
        let used = call.parts[pool[0]].quantity;
        let mut share: Vec<i128> = pool.iter().map(|at| held(at).unwrap_or(0)).collect();
        let mut difference = used - share.iter().sum::<i128>();
        // Back to the last first.
        for own in share.iter_mut().rev() {
            let back = (-difference).clamp(0, *own);
            (*own, difference) = (*own - back, difference + back);
        }
        // Beyond, in order, where it fits; the last goes into debt.
        for (own, at) in share.iter_mut().zip(&pool) {
            let more = difference.clamp(0, rooms[*at]);
            (*own, difference) = (*own + more, difference - more);
        }
        *share.last_mut().expect("a pool") += difference.max(0);
        for (at, share) in pool.iter().zip(share) {
            bears[*at] = (share > 0 || held(at).is_some()).then_some(share);
        }
    }
    Ok(())
}

/// The millisecond until which the key of a hold must live; [`ENDLESS`] for a total that never expires.
pub fn lives_until(book: &[Held]) -> i128 {
    let needs = |held: &Held| match held.origin {
        Origin::Total(false) => ENDLESS,
        Origin::Window(end) => held.end.max(end) / MILLI,
        _ => held.end / MILLI,
    };
    book.iter().filter(|held| !held.is_of_others()).map(needs).max().unwrap_or(0)
}
