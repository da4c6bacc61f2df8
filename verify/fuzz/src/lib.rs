//! The fuzz targets of the core: they take bytes, and assert what must hold for every input.
//!
//! Each function takes any bytes. If it returns, nothing panicked and nothing overflowed; its assertions hold
//! for every input, so no model is needed.

use redis_cell_core::bucket::{self, Level};
use redis_cell_core::calendar::{Calendar, Cycle};
use redis_cell_core::chain::{self, Pool, Share};
use redis_cell_core::fixed::{self, Counter, Window};
use redis_cell_core::lease::{self, Lease, Places};
use redis_cell_core::limiter::Limiter;
use redis_cell_core::queue::{Joined, Queue, Ticket, Turn};
use redis_cell_core::several::{self, Arity, Grammar, Join};
use redis_cell_core::timeline::{self, Timeline};
use redis_cell_core::window::{self, Sliding};
use redis_cell_core::{
    Answer, Change, Decision, Error, Instant, QUANTITY, Span, Tail, TailOption, Taken, Unit, Verdict, gcra,
    log, parse_integer, parse_timeout,
};

const UNITS: [Unit; 3] = [Unit::Seconds, Unit::Milliseconds, Unit::Microseconds];

/// Bytes read as numbers.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        self.0.split_off_first().copied().unwrap_or_default()
    }

    fn u64(&mut self) -> u64 {
        let bytes: Vec<u8> = (0..8).map(|_| self.byte()).collect();
        u64::from_le_bytes(bytes.try_into().unwrap())
    }

    /// A number of any size, small ones as likely as large ones.
    fn number(&mut self) -> i64 {
        let (shift, negative) = (self.byte(), self.byte() == 0xff);
        let number = (self.u64() >> (shift % 64) >> 1).cast_signed();
        if negative { -number } else { number }
    }

    fn unit(&mut self) -> Unit {
        UNITS[usize::from(self.byte()) % UNITS.len()]
    }

    /// An instant, mostly of our time.
    fn now(&mut self) -> Instant {
        match self.byte() {
            0 => Instant::saturating_from_nanos(self.u64()),
            _ => {
                Instant::saturating_from_nanos(1_800_000_000_000_000_000 + self.u64() % 1_000_000_000_000_000)
            }
        }
    }

    /// An instant near another one, or any.
    fn near(&mut self, now: Instant) -> Instant {
        let offset = Span::from_nanos(self.number().unsigned_abs()).unwrap_or_default();
        match self.byte() % 4 {
            0 => now.saturating_sub(offset),
            1 => self.now(),
            _ => now.checked_add(offset).unwrap_or(now),
        }
    }

    /// A word: a number's digits, or bytes as they come.
    fn word(&mut self) -> Vec<u8> {
        match self.byte() % 4 {
            0 => {
                let length = usize::from(self.byte()).min(self.0.len());
                self.0.split_off(..length).unwrap_or_default().to_vec()
            }
            _ => self.number().to_string().into_bytes(),
        }
    }

    fn option<T>(&mut self, some: impl FnOnce(&mut Self) -> T) -> Option<T> {
        (!self.byte().is_multiple_of(4)).then(|| some(self))
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// An error as it is sent: one line, with a code that clients know.
fn assert_wire_text(error: Error) {
    let text = error.to_string();
    assert!(text.starts_with("ERR "), "{text}");
    assert!(!text.contains(['\r', '\n', '\0']), "{text:?}");
}

/// The arguments that were understood; any others are a clear error.
fn clear<T>(outcome: Result<T, Error>) -> Option<T> {
    outcome.map_err(assert_wire_text).ok()
}

/// The arguments of a call.
pub fn arguments(input: &[u8]) {
    let mut words = input.split(|byte| *byte == b' ');
    let numbers: Vec<&[u8]> = words.by_ref().take(3).collect();
    let rest: Vec<&[u8]> = words.collect();

    // Bytes that are read as an integer are written in one way only, the server's.
    for word in &numbers {
        if let Some(number) = parse_integer(word) {
            assert_eq!(number.to_string().as_bytes(), *word);
        }
        match parse_timeout(word) {
            Ok(timeout) => assert_ne!(timeout, Some(Span::ZERO)),
            Err(error) => assert_wire_text(error),
        }
    }
    let keywords = [TailOption::Saturate, TailOption::Prepay, TailOption::MaxWait];
    for known in 0..=keywords.len() {
        match Tail::parse_within(rest.iter().copied(), &keywords[..known], &QUANTITY) {
            Ok(tail) => {
                assert!(tail.quantity >= 0);
                clear(tail.max_wait());
            }
            Err(error) => assert_wire_text(error),
        }
    }
    clear(Tail::parse_unit(rest.iter().copied()));
    let all: Vec<&[u8]> = input.split(|byte| *byte == b' ').collect();
    let kinds = [
        Grammar { word: b"S", arguments: Arity::Always(4) },
        Grammar { word: b"M", arguments: Arity::Counted(fixed::arguments) },
        Grammar { word: b"0", arguments: Arity::Always(3) },
    ];
    let mut parts = several::Parts::of(&all[..], &kinds);
    let unit = parts.unit(&several::Keyword::ALL);
    // The parts follow each other without a gap but for the words that join them, and the options follow
    // them.
    let end = parts.by_ref().fold(0, |end, part| {
        let key = end + usize::from(part.join != Join::None);
        assert!(part.key == key && part.arguments.start > part.key, "{part:?}");
        part.arguments.end
    });
    assert!(parts.rest().eq(all[end..].iter().copied()));
    if let Some(options) = clear(several::Options::parse(parts.rest(), &several::Keyword::ALL)) {
        assert_eq!(unit, options.unit);
    }
    let Ok(three) = <[&[u8]; 3]>::try_from(numbers) else { return };
    let two = [three[0], three[1]];
    for unit in UNITS {
        clear(gcra::Limit::parse(three, unit));
        clear(bucket::Limit::parse(three, unit));
        if let Ok(window) = Window::parse(&mut three[1..].iter().copied()) {
            let known = window.keywords();
            if let Some(tail) = clear(Tail::parse(rest.iter().copied(), known)) {
                clear(fixed::Limit::parse(three[0], window, [tail.utc, tail.from], unit));
            }
        }
        let all: Vec<&[u8]> = three.iter().chain(&rest).copied().collect();
        let parsed = clear(fixed::Limit::parse_words(&mut all.iter().copied(), unit));
        assert!(
            parsed.is_none()
                || fixed::arguments(&mut all.iter().copied()).is_none_or(|count| count <= all.len())
        );
        clear(window::Limit::parse(two, unit));
        clear(log::Limit::parse(two, unit));
        clear(Lease::parse(three[0], unit));
        clear(lease::Limit::parse(three[0]));
    }
}

/// The bytes that a key holds.
pub fn states(input: &[u8]) {
    let mut input = Input(input);
    let now = input.now();
    let expiry = input.option(|input| input.near(now));
    let fields = [input.option(Input::word), input.option(Input::word), input.option(Input::word)];
    let fields = fields.each_ref().map(Option::as_deref);
    let [first, second, third] = fields;
    let bytes = first.unwrap_or_default();
    let read_back = |number: i64| assert_eq!(number.to_string().as_bytes(), bytes, "read as another number");

    let tat = gcra::decode(bytes, now, || expiry);
    if let Some(tat) = clear(tat) {
        read_back(tat.as_nanos().cast_signed());
    }
    let counter = Counter::decode(bytes, expiry);
    if let Some(counter) = clear(counter) {
        read_back(counter.count);
    }
    if let (Ok(tat), Ok(Counter { end, .. })) = (tat, counter) {
        let apart = tat.since(end).max(end.since(tat));
        assert!(apart > fixed::NEAR_EXPIRY, "a TAT whose key expires with it is a count as well");
    }
    if let Some(total) = clear(Counter::decode_total(bytes, expiry)) {
        read_back(total.count);
        assert!(
            expiry.is_some() || total.count < fixed::LEAST_TAT,
            "a TAT whose key does not expire is a count"
        );
    }
    let level = bucket::decode(first, second, "a hash");
    if let Some(level) = clear(level) {
        read_back(level.free);
    }
    let sliding = Sliding::decode(first, second, third);
    if let Some(sliding) = clear(sliding) {
        read_back(sliding.start.as_nanos().cast_signed());
    }

    let mut entries: Vec<Instant> = Vec::new();
    while !input.is_empty() {
        entries.push(input.near(now));
    }
    entries.sort_unstable();
    if let [first, .., last] = entries[..] {
        let _ = (lease::may_be([first, last], now, || expiry), log::may_be([first, last], now));
    }
}

/// A decision that is made again at another instant.
fn assert_honest<S>(now: Instant, tick: u64, decide: impl Fn(Instant) -> Result<Decision<S>, Error>) {
    let Decision { answer, change } = match decide(now) {
        Ok(decision) => decision,
        Err(error) => return assert_wire_text(error),
    };
    assert!(answer.limit >= 1, "{answer:?}");
    assert!((0..=answer.limit).contains(&answer.remaining), "{answer:?}");
    for unit in UNITS {
        let reply = answer.reply(unit).five;
        assert!(reply[3] >= -1 && reply[4] >= -1, "{reply:?}");
    }
    if !answer.limited() {
        return;
    }
    assert!(change.is_keep(), "a refusal that writes: {answer:?}");
    let Verdict::Later(wait) = answer.verdict else { return };
    assert!(wait > Span::ZERO, "{answer:?}");
    // Refused until then, admitted then: a client that waits for `retry_after` need not wait again.
    let Some(then) = now.checked_add(wait) else { return };
    if let Ok(decision) = decide(then) {
        assert!(!decision.answer.limited(), "{answer:?}, and then {:?}", decision.answer);
    }
    let before = then.saturating_sub(Span::from_nanos(tick).unwrap_or_default());
    if before > now
        && let Ok(decision) = decide(before)
    {
        assert!(decision.answer.limited(), "{answer:?}, but before that {:?}", decision.answer);
    }
}

/// A settlement that is never refused, and changes nothing where there is nothing to settle.
fn assert_settles<S>(decision: Result<Decision<S>, Error>, difference: i64) {
    let Some(Decision { answer, change }) = clear(decision) else { return };
    assert!((0..=answer.limit).contains(&answer.remaining), "{answer:?}");
    match change {
        Change::Keep => assert!(difference <= 0, "{answer:?}"),
        Change::Store(_) => assert_ne!(difference, 0, "{answer:?}"),
        Change::Delete => {
            assert!(difference < 0 && answer.remaining == answer.limit, "{answer:?}");
            assert_eq!(answer.reset_after, Span::ZERO, "{answer:?}");
        }
    }
}

/// Limits whose windows the calendar or the caller ends.
fn by_calendar(input: &mut Input, now: Instant, limit: i64, number: i64, unit: Unit) -> Vec<fixed::Limit> {
    let cycles = [Cycle::Hour, Cycle::Day, Cycle::Week, Cycle::Month, Cycle::Year];
    let cycle = cycles[usize::from(input.byte()) % cycles.len()];
    let (utc, from) = (number % 841, input.option(|input| i64::from(input.byte() % 32)));
    let calendar = Calendar::new(cycle, utc, from);
    if let Some(Ok((start, end))) = calendar.ok().map(|calendar| calendar.window_of(now)) {
        assert!(start <= now && now < end, "{calendar:?} at {now:?}");
    }
    let by_calendar = calendar.and_then(|calendar| fixed::Limit::by_calendar(limit, calendar));
    let idle = input.option(Input::number);
    let others = [fixed::Limit::until(limit, number, unit), fixed::Limit::total(limit, idle, unit)];
    [by_calendar].into_iter().chain(others).filter_map(clear).collect()
}

/// Every decision, on every state.
pub fn decisions(input: &[u8]) {
    let mut input = Input(input);
    let (now, unit) = (input.now(), input.unit());
    let [a, b, c, quantity] = [(); 4].map(|()| input.number());
    if let Ok(limit) = gcra::Limit::new(a, b, c, unit) {
        let tat = input.option(|input| input.near(now));
        taken_and_given_back(tat, now, &limit, quantity);
        settled_and_paused(&mut input, tat, now, &limit, [c, quantity]);
        booked(&mut input, tat, now, &limit, quantity);
    }
    if let Ok(limit) = bucket::Limit::new(a, b, c, unit) {
        let level = input.option(|input| Level { free: input.number(), since: input.near(now) });
        assert_honest(now, 1, |now| bucket::take(level, &limit, now, quantity));
        assert_honest(now, 1, |now| bucket::saturate(level, &limit, now, quantity));
        let taken = taken(&mut input, unit);
        assert_settles(bucket::settle(level, &limit, now, quantity, taken.as_ref()), quantity);
    }
    counters(&mut input, now, [a, b, quantity], unit);
    chains(&mut input, now, [a, b, c, quantity], unit);
    sorted_sets(&mut input, now, [a, b, quantity], unit);
}

/// A limiter of a chain: its answers to quantities at any instant.
struct Asked<'a> {
    join: Join,
    quantity: i64,
    now: Instant,
    peek: Box<dyn Fn(Instant, i64) -> Result<Answer, Error> + 'a>,
}

impl<'a> Asked<'a> {
    fn of<L: Limiter + 'a>(limit: L, state: Option<L::State>, now: Instant) -> Self
    where
        L::State: 'a,
    {
        let peek = Box::new(move |now, quantity| limit.peek(state, now, quantity));
        Self { join: Join::None, quantity: 0, now, peek }
    }
}

impl Pool for Asked<'_> {
    type Error = Error;

    fn join(&self) -> Join {
        self.join
    }

    fn quantity(&self) -> i64 {
        self.quantity
    }

    fn is_held(&self) -> Result<bool, Error> {
        Ok(false)
    }

    fn peek(&self, after: Span, quantity: i64) -> Result<Answer, Error> {
        (self.peek)(self.now.checked_add(after).unwrap_or(Instant::MAX), quantity)
    }
}

/// Limiters that are joined: what is taken is the quantity, and a wait is exact.
fn chains(input: &mut Input, now: Instant, [a, b, c, quantity]: [i64; 4], unit: Unit) {
    let mut pools = Vec::new();
    for _ in 0..4 {
        let pool = match input.byte() % 4 {
            0 => gcra::Limit::new(a, b, c, unit)
                .map(|limit| Asked::of(limit, input.option(|input| input.near(now)), now)),
            1 => bucket::Limit::new(a, b, c, unit).map(|limit| {
                let level = input.option(|input| Level { free: input.number(), since: input.near(now) });
                Asked::of(limit, level, now)
            }),
            kind => {
                let limit = if kind == 2 {
                    fixed::Limit::new(a, b, unit)
                } else {
                    fixed::Limit::total(a, None, unit)
                };
                let count = input.number().saturating_abs();
                let end = if input.byte() == 0 { Instant::MAX } else { input.near(now).floor_to_millis() };
                limit.map(|limit| Asked::of(limit, Some(Counter { count, end }), now))
            }
        };
        let join = if pools.is_empty() { Join::None } else { Join::Spill };
        pools.extend(pool.map(|pool| Asked { join, quantity, ..pool }));
    }
    let empty =
        Answer { verdict: Verdict::Never, limit: 0, remaining: 0, reset_after: Span::ZERO, taken: None };
    let mut shares = vec![Share::of(empty); pools.len()];
    let Some(verdict) = clear(chain::decide(&pools, &mut shares)) else { return };
    // More than one, because one limiter answers for itself.
    if pools.len() < 2 || quantity == 0 {
        return;
    }
    let together = |after| {
        let rooms =
            pools.iter().map(|pool| pool.peek(after, quantity).map(|answer| i128::from(answer.remaining)));
        rooms.sum::<Result<i128, Error>>()
    };
    let taken: i128 = shares.iter().filter_map(|share| share.taken).map(i128::from).sum();
    match verdict {
        Verdict::Later(wait) => {
            assert_eq!(taken, 0);
            if let Ok(room) = together(wait) {
                assert!(room >= quantity.into(), "{room} after {wait:?}");
            }
            let before = wait.saturating_sub(Span::NANOSECOND);
            if let Ok(room) = together(before) {
                assert!(room < quantity.into(), "{room} before {wait:?}");
            }
        }
        Verdict::Never => assert_eq!(taken, 0),
        _ => assert_eq!(taken, quantity.into()),
    }
}

/// The commands that take from a TAT, check it, or give back.
fn taken_and_given_back(tat: Option<Instant>, now: Instant, limit: &gcra::Limit, quantity: i64) {
    assert_honest(now, 1, |now| gcra::throttle(tat, limit, now, quantity));
    assert_honest(now, 1, |now| gcra::saturate(tat, limit, now, quantity));
    if let (Ok(look), Ok(take)) =
        (gcra::peek(tat, limit, now, quantity), gcra::throttle(tat, limit, now, quantity))
    {
        assert_eq!(look.verdict, take.answer.verdict);
        // Units that were taken and given back leave nothing behind.
        if let Change::Store(taken) = take.change {
            let back = gcra::refund(Some(taken), limit, now, quantity).unwrap();
            match back.change {
                Change::Store(state) => assert_eq!(Some(state), tat),
                Change::Delete => assert!(tat.is_none_or(|tat| tat <= now)),
                Change::Keep => panic!("nothing was given back"),
            }
        }
    }
    if let Ok(charged) = gcra::charge(tat, limit, now, quantity)
        && let Change::Store(after) = charged.change
    {
        assert!(tat.is_none_or(|before| after >= before), "a charge that gives back");
    }
}

/// When the units that a settlement gives back were taken.
fn taken(input: &mut Input, unit: Unit) -> Option<Taken> {
    let span = |input: &mut Input| Span::from_nanos(input.number().unsigned_abs());
    let age = input.option(|input| input.number().unsigned_abs()).and_then(Span::from_nanos)?;
    Some(Taken { age, reset_after: input.option(span).flatten(), unit })
}

/// The commands that settle a TAT or pause it.
fn settled_and_paused(
    input: &mut Input,
    tat: Option<Instant>,
    now: Instant,
    limit: &gcra::Limit,
    [wait, quantity]: [i64; 2],
) {
    let taken = taken(input, Unit::Microseconds);
    assert_settles(gcra::settle(tat, limit, now, quantity, taken.as_ref()), quantity);
    let wait = Span::from_nanos(wait.unsigned_abs()).unwrap_or_default();
    if let Some(paused) = clear(gcra::pause(tat, limit, now, wait)) {
        let after = if let Change::Store(after) = paused.change { Some(after) } else { tat };
        assert_honest(now, 1, |now| gcra::throttle(after, limit, now, 1));
        let at_once = gcra::throttle(after, limit, now, 1);
        assert!(wait == Span::ZERO || at_once.is_ok_and(|take| take.answer.limited()), "a pause that admits");
    }
}

/// Reservations.
fn booked(input: &mut Input, tat: Option<Instant>, now: Instant, limit: &gcra::Limit, quantity: i64) {
    for prepay in [false, true] {
        let max_wait = input.option(|input| input.number().unsigned_abs()).and_then(Span::from_nanos);
        let booking = gcra::Booking { max_wait, prepay };
        if let Ok(booked) = gcra::reserve(tat, limit, now, quantity, booking) {
            assert!(!booked.answer.limited() || booked.change.is_keep());
            let Some(wait) = booked.answer.verdict.wait() else { continue };
            assert!(booked.answer.limited() == max_wait.is_some_and(|max_wait| wait > max_wait));
        }
    }
}

/// The limiters that count in windows.
fn counters(input: &mut Input, now: Instant, [a, b, quantity]: [i64; 3], unit: Unit) {
    if let Ok(limit) = fixed::Limit::new(a, b, unit) {
        let counter = input.option(|input| Counter {
            count: input.number().saturating_abs(),
            end: input.near(now).floor_to_millis(),
        });
        assert_honest(now, 1, |now| fixed::take(counter, &limit, now, quantity));
        assert_honest(now, 1, |now| fixed::saturate(counter, &limit, now, quantity));
        let taken = taken(input, unit);
        assert_settles(fixed::settle(counter, &limit, now, quantity, taken.as_ref()), quantity);
        for limit in by_calendar(input, now, a, b, unit) {
            assert_honest(now, 1, |now| fixed::take(counter, &limit, now, quantity));
            let settled = fixed::settle(counter, &limit, now, quantity, taken.as_ref());
            // Nothing is charged to a window that has ended.
            let opens = quantity <= 0 || fixed::take(None, &limit, now, 1).is_ok();
            if opens {
                assert_settles(settled, quantity);
            } else {
                let _ = clear(settled);
            }
        }
    }
    if let Ok(limit) = window::Limit::new(a, b, unit) {
        let sliding = input.option(|input| Sliding {
            start: input.near(now),
            current: input.number().saturating_abs(),
            previous: input.number().saturating_abs(),
        });
        assert_honest(now, 1, |now| window::take(sliding, &limit, now, quantity));
        assert_honest(now, 1, |now| window::saturate(sliding, &limit, now, quantity));
        let taken = taken(input, unit);
        assert_settles(window::settle(sliding, &limit, now, quantity, taken.as_ref()), quantity);
    }
}

/// The limiters on sorted sets, whose clock ticks in microseconds.
fn sorted_sets(input: &mut Input, now: Instant, [a, b, quantity]: [i64; 3], unit: Unit) {
    let Ok(now) = timeline::tick(now) else { return };
    let own = input.byte();
    let mut entries: Vec<Instant> = Vec::new();
    while !input.is_empty() {
        entries.extend(Instant::from_micros(input.near(now).as_micros()));
    }
    entries.sort_unstable();
    let entries = &entries[..];
    if let Ok(limit) = log::Limit::new(a, b, unit) {
        assert_honest(now, 1_000, |now| log::take(entries, &limit, now, quantity));
        if let Ok(Decision { change: Change::Store(new), .. }) = log::take(entries, &limit, now, quantity) {
            assert!(new.pruned <= Timeline::len(entries) && new.until >= new.at);
        }
        clear(log::saturate(entries, &limit, now, quantity));
        let peeked = clear(log::peek(entries, &limit, now, quantity));
        let taken = clear(log::take(entries, &limit, now, quantity)).map(|decision| decision.answer.verdict);
        assert_eq!(peeked.map(|answer| answer.verdict), taken, "a look and a call");
        let age = Span::from_nanos(u64::from(own).saturating_mul(1_000_000_000)).unwrap_or_default();
        let taken = Taken { age, reset_after: None, unit };
        for difference in [quantity, quantity.saturating_neg()] {
            if let Some(Decision { change: Change::Store(log::Edit::Remove { count, newer, .. }), .. }) =
                clear(log::settle(entries, &limit, now, difference, Some(&taken)))
            {
                assert!(count + newer < Timeline::len(entries) || newer > 0, "what is empty is deleted");
                assert!(count + newer <= Timeline::len(entries));
            }
        }
    }
    if let (Ok(limit), Ok(lease)) = (lease::Limit::new(a), Lease::new(b, unit)) {
        let own = entries.get(usize::from(own)).copied();
        let places = Places { ends: entries, own };
        assert_honest(now, 1_000, |now| lease::acquire(&places, &limit, now, &lease));
        clear(lease::renew(&places, now, &lease));
        clear(lease::release(&places, now));
        clear(lease::peek(&places, &limit, now, &lease));
        clear(lease::settle(&places, &limit, now, Some(&lease)));
        clear(lease::settle(&places, &limit, now, None));
    }
}

/// Clients that join a queue, wait and leave, and calls that do not wait.
pub fn queues(input: &[u8]) {
    let mut input = Input(input);
    let (now, unit) = (input.now(), input.unit());
    let [a, b, c] = [(); 3].map(|()| input.number());
    let Ok(limit) = gcra::Limit::new(a, b, c, unit) else { return };
    let mut key = Key { limit, now, queue: Queue::default(), state: None, tickets: Vec::new() };
    while !input.is_empty() {
        let (step, number) = (input.byte() % 8, input.number());
        key.step(&mut input, step, number);
        key.serve();
        assert_eq!(key.queue.len(), key.tickets.len());
        assert_eq!(
            key.queue.next_turn(key.state, key.now).is_some(),
            !key.tickets.is_empty(),
            "a queue that nobody serves"
        );
    }
}

/// A key with its queue, and the tickets that wait in it.
struct Key {
    limit: gcra::Limit,
    now: Instant,
    queue: Queue,
    state: Option<Instant>,
    tickets: Vec<Ticket>,
}

impl Key {
    /// Something happens to the key, or time passes.
    fn step(&mut self, input: &mut Input, step: u8, number: i64) {
        let Self { limit, now, state, .. } = *self;
        match step {
            0 => {
                let patience = input.option(|input| input.number().unsigned_abs()).and_then(Span::from_nanos);
                match self.queue.join(state, &limit, now, number, patience) {
                    Ok(Joined::Waiting(ticket)) => self.tickets.push(ticket),
                    Ok(Joined::Decided(decision)) => self.carry_out(Ok(decision)),
                    Ok(_) => {}
                    Err(error) => assert_wire_text(error),
                }
            }
            1 => {
                let taken = self.behind(|tat| gcra::throttle(tat, &limit, now, number));
                self.carry_out(taken);
            }
            2 => {
                self.carry_out(gcra::refund(state, &limit, now, number));
            }
            3 if !self.tickets.is_empty() => {
                let place = usize::try_from(number.unsigned_abs()).unwrap_or_default() % self.tickets.len();
                self.queue.leave(self.tickets.remove(place));
            }
            4 => {
                let reserve = |tat| gcra::reserve(tat, &limit, now, number, gcra::Booking::default());
                let booked = self.behind(reserve);
                self.carry_out(booked);
            }
            5 => {
                self.queue.saw(state, now);
                let charged = gcra::charge(state, &limit, now, number);
                if let Ok(decision) = &charged {
                    self.queue.charged(now, decision);
                }
                self.carry_out(charged);
            }
            6 => {
                let passed = Span::from_nanos(number.unsigned_abs()).unwrap_or_default();
                self.now = now.checked_add(passed).unwrap_or(now);
            }
            7 if number % 2 == 0 => {
                let wait = Span::from_nanos(number.unsigned_abs()).unwrap_or_default();
                let paused = self.queue.pause(state, now, |tat| gcra::pause(tat, &limit, now, wait));
                self.carry_out(paused);
            }
            _ => {
                let turn = self.queue.next_turn(state, now).and_then(|wait| now.checked_add(wait));
                self.now = turn.unwrap_or(now);
            }
        }
    }

    /// A call that does not wait.
    fn behind(
        &mut self,
        decide: impl FnOnce(Option<Instant>) -> Result<Decision<Instant>, Error>,
    ) -> Result<Decision<Instant>, Error> {
        let mut decision = decide(self.queue.seen(self.state, self.now)?)?;
        self.queue.took(self.now, &mut decision)?;
        Ok(decision)
    }

    fn carry_out(&mut self, decision: Result<Decision<Instant>, Error>) {
        match decision.map(|decision| decision.change) {
            Ok(Change::Store(tat)) => self.state = Some(tat),
            Ok(Change::Delete) => self.state = None,
            Ok(Change::Keep) | Err(_) => {}
        }
    }

    /// Clients are served when their turn comes, first come, first served.
    fn serve(&mut self) {
        loop {
            match self.queue.turn(self.state, self.now) {
                Turn::Admitted(ticket, decision) => {
                    assert_eq!(ticket, self.tickets.remove(0), "out of turn");
                    self.carry_out(Ok(decision));
                }
                Turn::Failed(ticket, _) => assert_eq!(ticket, self.tickets.remove(0), "out of turn"),
                Turn::NotYet => break,
            }
        }
    }
}
