//! Checks whether some order of calls explains the replies that their callers have received.
//!
//! Callers of real servers record each call: when it was sent, its arguments, when the reply arrived, and the
//! reply. Keys whose units are not replenished meanwhile are counters, and the `remaining` of a reply tells
//! the position of the call in the order of the key. [`History::check`] looks for an order in which every
//! reply is the one that the limiter gives at this place, and in which no call that began after the reply to
//! another one had arrived comes before it. A call without a reply may or may not have been run. At a
//! [`Fault`], the latest calls may be forgotten, within its bounds.
//!
//! No call is refused while there are units, and none is admitted when there are none: such a reply has no
//! place in any order.
//!
//! # Source
//!
//! Linearizability: M. Herlihy and J. Wing, 1990. The search: J. Wing and C. Gong, "Testing and verifying
//! concurrent objects", 1993, in the form of G. Lowe, "Testing for linearizability", 2017, which he calls
//! just-in-time linearization: the events are read in the order of time, and a call is placed when its reply
//! arrives. So only the calls that run at the same time are remembered, not the whole history. Faults that
//! forget calls are an addition.

use std::collections::{BTreeMap, HashMap, HashSet, hash_map::Entry};

/// The most keys that one call takes from.
pub const KEYS: usize = 2;

/// A number for each key of a call; 0 for a key that the call does not name.
pub type Units = [i64; KEYS];

/// A call, as its caller has seen it. Times are nanoseconds of one monotonic clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Just before it was sent.
    pub start: u64,
    /// The units to take from each key, or to give back if one of them is below 0. All 0 looks.
    pub units: Units,
    /// The name after `ONCE`.
    pub once: Option<u64>,
    /// `None` if the reply was lost.
    pub reply: Option<Reply>,
}

/// The reply to a [`Call`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// When it had arrived.
    pub at: u64,
    /// Whether the call was admitted.
    pub admitted: bool,
    /// The units that remain in each key, if the reply has them.
    pub remaining: [Option<i64>; KEYS],
    /// The whole reply as one number: a repeated call has the same reply.
    pub text: u64,
}

/// An instant between the end of a server and the beginning of its successor. The successor has the state
/// after some call, and not the calls after it: at most `most` of them were answered, and none of these
/// before `since`. No call that was sent before this instant and has no reply is run after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The instant, in nanoseconds.
    pub at: u64,
    /// The most calls that were admitted and answered and may be forgotten.
    pub most: usize,
    /// Calls that were answered before this instant are not forgotten.
    pub since: u64,
}

/// All calls for the keys that share calls, in any order, and the faults, in the order of time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// The most units of each key.
    pub limits: Units,
    /// The calls of all callers.
    pub calls: Vec<Call>,
    /// The ends of servers.
    pub faults: Vec<Fault>,
}

/// A call whose reply has no place in any order.
#[derive(Debug, PartialEq, Eq)]
pub struct Unexplained {
    /// The call's index in [`History::calls`].
    pub call: usize,
    /// The call, and the units taken before it in the orders that explain the earlier calls.
    pub text: String,
}

/// The state of a key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct State {
    used: Units,
    /// For each name of ONCE that is still used: the units taken after its call, and its reply if it is
    /// known.
    replies: BTreeMap<u64, (Units, Option<u64>)>,
}

/// A state that some order leads to, with the calls in that order which still wait for their replies.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Place {
    state: State,
    placed: Vec<usize>,
}

/// The common part of the orders that lead to a place, besides the place.
#[derive(Clone, Copy, Debug, Default)]
struct Past {
    /// The number of calls that were admitted and answered.
    answered: usize,
    /// The last of the states that the next fault may bring back, an index into [`Earlier`].
    earlier: Option<usize>,
}

/// States since the last fault, each after those before it.
#[derive(Debug)]
enum Earlier {
    /// A state, with the number of calls that were answered until then.
    State(State, usize, Option<usize>),
    /// Two orders lead to the same place.
    Either(usize, usize),
}

type Places = HashMap<Place, Past>;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Start(usize),
    Fault(usize),
    End(usize),
}

impl Call {
    fn gives(&self) -> bool {
        self.units.iter().any(|units| *units < 0)
    }

    /// Whether its caller knows that it has changed the state.
    fn is_known(&self) -> bool {
        self.units != [0; KEYS] && self.reply.as_ref().is_some_and(|reply| reply.admitted)
    }
}

impl History {
    /// Looks for an order that explains every reply.
    ///
    /// Cost: about proportional to the number of calls, if few of them run at the same time.
    ///
    /// # Errors
    ///
    /// The first reply, in the order in which they arrived, that no order explains.
    pub fn check(&self) -> Result<(), Unexplained> {
        let mut places = Places::from([(Place::default(), Past::default())]);
        let (mut open, mut faults, mut earlier) = (Vec::new(), 0, Vec::new());
        let mut names: HashMap<u64, usize> = HashMap::new();
        for name in self.calls.iter().filter_map(|call| call.once) {
            *names.entry(name).or_default() += 1;
        }
        for (_, event) in self.events() {
            let closed = match event {
                Event::Start(call) => {
                    open.push(call);
                    continue;
                }
                Event::End(call) => {
                    let before = places;
                    places = self.advance(&before, &open, Some(call), self.faults.get(faults), &mut earlier);
                    if places.is_empty() {
                        return Err(self.unexplained(call, &before));
                    }
                    vec![call]
                }
                Event::Fault(fault) => {
                    places = self.advance(&places, &open, None, Some(&self.faults[fault]), &mut earlier);
                    places = forget(places, &self.faults[fault], &earlier);
                    earlier.clear();
                    faults = fault + 1;
                    open.iter().copied().filter(|call| self.calls[*call].reply.is_none()).collect()
                }
            };
            open.retain(|call| !closed.contains(call));
            for name in closed.iter().filter_map(|call| self.calls[*call].once) {
                *names.get_mut(&name).unwrap() -= 1;
            }
            let mut next = Places::with_capacity(places.len());
            for (mut place, past) in places {
                place.placed.retain(|call| !closed.contains(call));
                place.state.replies.retain(|name, _| names[name] > 0);
                merge(&mut next, place, past, &mut earlier);
            }
            places = next;
        }
        Ok(())
    }

    /// In the order of time. Calls that overlap or touch run at the same time.
    fn events(&self) -> Vec<(u64, Event)> {
        let calls = || self.calls.iter().enumerate();
        let starts = calls().map(|(i, call)| (call.start, Event::Start(i)));
        let ends = calls().filter_map(|(i, call)| Some((call.reply.as_ref()?.at, Event::End(i))));
        let faults = self.faults.iter().enumerate().map(|(i, fault)| (fault.at, Event::Fault(i)));
        let mut events: Vec<_> = starts.chain(ends).chain(faults).collect();
        events.sort_unstable();
        events
    }

    /// The places that are reached by open calls: those with the wanted call, or all.
    fn advance(
        &self,
        from: &Places,
        open: &[usize],
        wanted: Option<usize>,
        next: Option<&Fault>,
        earlier: &mut Vec<Earlier>,
    ) -> Places {
        // Each step places one more call, so a place is complete when all places with fewer calls are done.
        let mut levels: BTreeMap<usize, Places> = BTreeMap::new();
        for (place, past) in from {
            merge(levels.entry(place.placed.len()).or_default(), place.clone(), *past, earlier);
        }
        let mut reached = Places::new();
        while let Some((level, places)) = levels.pop_first() {
            for (place, past) in places {
                if wanted.is_none_or(|call| place.placed.contains(&call)) {
                    merge(&mut reached, place.clone(), past, earlier);
                    if wanted.is_some() {
                        continue;
                    }
                }
                let mut tried: Vec<Units> = Vec::new();
                for &call in open.iter().filter(|call| !place.placed.contains(call)) {
                    let lost = self.calls[call].reply.is_none();
                    // Lost calls with the same arguments are interchangeable.
                    if lost && self.calls[call].once.is_none() {
                        if tried.contains(&self.calls[call].units) {
                            continue;
                        }
                        tried.push(self.calls[call].units);
                    }
                    let Some(state) = self.apply(&place.state, &self.calls[call]) else { continue };
                    // A lost call that changes nothing need not have been run.
                    if lost && state == place.state {
                        continue;
                    }
                    let mut past = past;
                    if let Some(fault) = next.filter(|fault| fault.most > 0) {
                        past.step(&place.state, &self.calls[call], fault, earlier);
                    }
                    let mut placed = place.placed.clone();
                    placed.insert(placed.partition_point(|other| *other < call), call);
                    merge(levels.entry(level + 1).or_default(), Place { state, placed }, past, earlier);
                }
            }
        }
        reached
    }

    /// The state after a call, or `None` if its reply differs from the limiter's.
    fn apply(&self, before: &State, call: &Call) -> Option<State> {
        let mut after = before.clone();
        let remaining = |used: &Units, key: usize| self.limits[key] - used[key];
        let is_seen = |reply: &Reply, used: &Units| {
            (0..KEYS).all(|key| reply.remaining[key].is_none_or(|seen| seen == remaining(used, key)))
        };
        if let Some((used, text)) = call.once.and_then(|name| after.replies.get_mut(&name)) {
            if let Some(reply) = &call.reply {
                if !reply.admitted || !is_seen(reply, used) || text.is_some_and(|text| text != reply.text) {
                    return None;
                }
                *text = Some(reply.text);
            }
            return Some(after);
        }
        let fits = call.gives() || (0..KEYS).all(|key| call.units[key] <= remaining(&before.used, key));
        if fits {
            for (used, units) in after.used.iter_mut().zip(call.units) {
                *used = (*used + units).max(0);
            }
            if let Some(name) = call.once {
                after.replies.insert(name, (after.used, call.reply.as_ref().map(|reply| reply.text)));
            }
        }
        let explained =
            call.reply.as_ref().is_none_or(|reply| reply.admitted == fits && is_seen(reply, &after.used));
        explained.then_some(after)
    }

    fn unexplained(&self, call: usize, places: &Places) -> Unexplained {
        let mut used: Vec<Units> = places.keys().map(|place| place.state.used).collect();
        used.sort_unstable();
        used.dedup();
        used.truncate(4);
        let text = format!("{:?}, taken before it {used:?}, limits {:?}", self.calls[call], self.limits);
        Unexplained { call, text }
    }
}

impl Past {
    /// A call is placed behind the state `before`.
    fn step(&mut self, before: &State, call: &Call, fault: &Fault, earlier: &mut Vec<Earlier>) {
        let stays = call.reply.as_ref().is_some_and(|reply| reply.at < fault.since);
        if call.is_known() && stays {
            self.earlier = None; // and so does all that came before it
        } else if call.is_known() || call.reply.is_none() {
            earlier.push(Earlier::State(before.clone(), self.answered, self.earlier));
            self.earlier = Some(earlier.len() - 1);
        }
        self.answered += usize::from(call.is_known());
    }
}

/// Adds a place, or merges it with the same place reached by another order.
fn merge(places: &mut Places, place: Place, past: Past, earlier: &mut Vec<Earlier>) {
    let other = match places.entry(place) {
        Entry::Occupied(entry) => entry.into_mut(),
        Entry::Vacant(entry) => {
            entry.insert(past);
            return;
        }
    };
    match (other.earlier, past.earlier) {
        (Some(one), Some(two)) if one != two => {
            earlier.push(Earlier::Either(one, two));
            other.earlier = Some(earlier.len() - 1);
        }
        (one, two) => other.earlier = one.or(two),
    }
}

/// The states that a fault leaves.
fn forget(places: Places, fault: &Fault, earlier: &[Earlier]) -> Places {
    let mut left = Places::new();
    for (place, past) in places {
        let (mut todo, mut seen) = (Vec::from_iter(past.earlier), HashSet::new());
        while let Some(index) = todo.pop() {
            if !seen.insert(index) {
                continue;
            }
            match &earlier[index] {
                Earlier::Either(one, two) => todo.extend([one, two]),
                Earlier::State(state, answered, before) if past.answered - answered <= fault.most => {
                    todo.extend(before);
                    let place = Place { state: state.clone(), placed: place.placed.clone() };
                    left.insert(place, Past::default());
                }
                Earlier::State(..) => {}
            }
        }
        left.insert(place, Past::default());
    }
    left
}

/// A lie about a history, which [`History::check`] has to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tampering {
    /// A reply says that one unit more remains.
    OneMore,
    /// A reply says that one unit less remains.
    OneLess,
    /// Two callers were admitted with the same units.
    AdmittedTwice,
    /// A call was refused instead of admitted, and nothing else is different.
    Refused,
    /// A refused call was admitted, and nothing else is different.
    Admitted,
    /// Two calls, one of which began when the other had ended, have changed places in time.
    Swapped,
    /// The server has forgotten an answered call: all later replies are without it.
    Forgotten,
    /// The server has charged a call twice: all later replies say so.
    Charged,
    /// The server has charged a call with `ONCE` again when it was repeated: all later replies say so.
    ChargedAgain,
    /// A call with `ONCE` has another reply when it is repeated.
    OtherReply,
}

impl Tampering {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::OneMore,
        Self::OneLess,
        Self::AdmittedTwice,
        Self::Refused,
        Self::Admitted,
        Self::Swapped,
        Self::Forgotten,
        Self::Charged,
        Self::ChargedAgain,
        Self::OtherReply,
    ];

    /// The history, which is in order, with this lie about one of its calls. `None` if the lie does not apply
    /// to this call, or could be the truth, because the calls beside it do not say what was left.
    pub fn of(self, history: &History, call: usize) -> Option<History> {
        let (first, next) = (call.checked_sub(1)?, call + 1);
        let beside = [history.calls.get(first)?, history.calls.get(next)?];
        let (chosen, reply) = (&history.calls[call], history.calls[call].reply.as_ref()?);
        let says_all = |reply: &Reply| reply.remaining.iter().all(Option::is_some);
        let is_first = |index: usize| {
            let call = &history.calls[index];
            call.once.is_none() || history.calls[..index].iter().all(|other| other.once != call.once)
        };
        let says = |call: &&Call| call.reply.as_ref().is_some_and(says_all);
        if !says_all(reply)
            || !beside.iter().all(says)
            || !is_first(first)
            || !is_first(next)
            || !history.is_quiet(first, next)
        {
            return None;
        }
        let same_name = |other: &&Call| other.once.is_some() && other.once == chosen.once;
        let is_only = history.calls.iter().filter(same_name).count() < 2;
        let is_repeated = history.calls[..call].iter().filter(same_name).any(|other| {
            let ended = other.reply.as_ref().map_or(u64::MAX, |reply| reply.at);
            other.is_known() && ended < chosen.start && !history.has_fault(other.start, reply.at)
        });
        let mut effect = Units::default();
        for (key, effect) in effect.iter_mut().enumerate() {
            *effect = beside[0].reply.as_ref()?.remaining[key]? - reply.remaining[key]?;
        }
        let takes = reply.admitted && !chosen.gives() && chosen.units != [0; KEYS];
        let applies = match self {
            Self::OneMore | Self::OneLess => is_only || is_repeated,
            Self::AdmittedTwice | Self::Refused => is_only && takes,
            Self::Admitted => !reply.admitted,
            // A call that gives back may end at zero at any position.
            Self::Swapped => is_only && effect != [0; KEYS] && !beside[1].gives(),
            Self::Forgotten | Self::Charged => is_only && effect != [0; KEYS],
            Self::ChargedAgain | Self::OtherReply => is_repeated,
        };
        if !applies {
            return None;
        }
        let mut told = history.clone();
        let raise = |calls: &mut [Call], by: Units| {
            for reply in calls.iter_mut().filter_map(|call| call.reply.as_mut()) {
                for (remaining, by) in reply.remaining.iter_mut().zip(by) {
                    *remaining = remaining.map(|remaining| remaining + by);
                }
            }
        };
        match self {
            Self::OneMore => raise(&mut told.calls[call..next], [1, 0]),
            Self::OneLess => raise(&mut told.calls[call..next], [-1, 0]),
            Self::AdmittedTwice => told.calls.push(Call { once: None, ..chosen.clone() }),
            Self::Refused => told.calls[call].reply.as_mut()?.admitted = false,
            Self::Admitted => told.calls[call].reply.as_mut()?.admitted = true,
            Self::Swapped => {
                for (index, times) in [(call, beside[1]), (next, chosen)] {
                    told.calls[index].start = times.start;
                    told.calls[index].reply.as_mut()?.at = times.reply.as_ref()?.at;
                }
            }
            Self::Forgotten => raise(&mut told.calls[next..], effect),
            Self::Charged => raise(&mut told.calls[next..], effect.map(|units| -units)),
            Self::ChargedAgain => raise(&mut told.calls[next..], chosen.units.map(|units| -units)),
            Self::OtherReply => told.calls[call].reply.as_mut()?.text ^= 1,
        }
        Some(told)
    }
}

impl History {
    /// The same history with its calls in the order in which they began.
    #[must_use]
    pub fn in_order(mut self) -> Self {
        self.calls.sort_by_key(|call| call.start);
        self
    }

    fn has_fault(&self, from: u64, to: u64) -> bool {
        self.faults.iter().any(|fault| (from..=to).contains(&fault.at))
    }

    /// Whether these calls and the calls between them run one after the other, with no other call at the same
    /// time.
    fn is_quiet(&self, first: usize, last: usize) -> bool {
        // A call whose reply was lost may run until the next fault.
        let end = |call: &Call| {
            let fault = || self.faults.iter().map(|fault| fault.at).find(|at| *at >= call.start);
            call.reply.as_ref().map(|reply| reply.at).or_else(fault).unwrap_or(u64::MAX)
        };
        let follows = |pair: &[Call]| end(&pair[0]) < pair[1].start;
        let (begun, ended) = (self.calls[first].start, end(&self.calls[last]));
        !self.has_fault(begun, ended)
            && self.calls[first..=last].windows(2).all(follows)
            && self.calls[..first].iter().all(|call| end(call) < begun)
            && self.calls[last + 1..].iter().all(|call| ended < call.start)
    }
}
