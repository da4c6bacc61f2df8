//! What the fuzzers try on the core: bytes in, and nothing that must not happen.
//!
//! Each function takes any bytes. That it returns at all says that nothing panicked and nothing overflowed; what it
//! asserts beside that holds for every input, so no model is needed.

use redis_cell_core::bucket::{self, Level};
use redis_cell_core::lease::{self, Lease, Places};
use redis_cell_core::line::{Joined, Line, Turn};
use redis_cell_core::timeline::{self, Timeline};
use redis_cell_core::window::{self, Counter, Sliding};
use redis_cell_core::{
    Change, Decision, Error, Instant, Keyword, QUANTITY, Retry, Span, Tail, Unit, gcra, log, parse_integer,
    parse_timeout,
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

    /// A moment, mostly of our time.
    fn now(&mut self) -> Instant {
        match self.byte() {
            0 => Instant::saturating_from_nanos(self.u64()),
            _ => {
                Instant::saturating_from_nanos(1_800_000_000_000_000_000 + self.u64() % 1_000_000_000_000_000)
            }
        }
    }

    /// A moment near another one, or any.
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

/// What stands for an error on the wire: one line, with a code that clients know.
fn assert_wire_text(error: Error) {
    let text = error.to_string();
    assert!(text.starts_with("ERR ") || text.starts_with("WRONGTYPE "), "{text}");
    assert!(!text.contains(['\r', '\n', '\0']), "{text:?}");
}

/// What was understood; what was not has a clear error.
fn clear<T>(outcome: Result<T, Error>) -> Option<T> {
    outcome.map_err(assert_wire_text).ok()
}

/// The words of a call.
pub fn arguments(input: &[u8]) {
    let mut words = input.split(|byte| *byte == b' ');
    let numbers: Vec<&[u8]> = words.by_ref().take(3).collect();
    let rest: Vec<&[u8]> = words.collect();

    // What is read as an integer is written in one way only, the server's.
    for word in &numbers {
        if let Some(number) = parse_integer(word) {
            assert_eq!(number.to_string().as_bytes(), *word);
        }
        match parse_timeout(word) {
            Ok(timeout) => assert_ne!(timeout, Some(Span::ZERO)),
            Err(error) => assert_wire_text(error),
        }
    }
    let keywords = [Keyword::Saturate, Keyword::Prepay, Keyword::MaxWait, Keyword::Quantity];
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
    let Ok(three) = <[&[u8]; 3]>::try_from(numbers) else { return };
    let two = [three[0], three[1]];
    for unit in UNITS {
        clear(gcra::Limit::parse(three, unit));
        clear(bucket::Limit::parse(three, unit));
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
    let read_back = |number: u64| assert_eq!(number.to_string().as_bytes(), bytes, "read as another number");

    let tat = gcra::decode(bytes, now, || expiry);
    if let Some(tat) = clear(tat) {
        read_back(tat.as_nanos());
    }
    let counter = Counter::decode(bytes, now, expiry);
    if let Some(counter) = clear(counter) {
        read_back(counter.count.unsigned_abs());
    }
    assert!(tat.is_err() || counter.is_err(), "one string that is the state of two limiters");
    let level = bucket::decode(first, second, "a hash");
    if let Some(level) = clear(level) {
        read_back(level.free.unsigned_abs());
    }
    let sliding = Sliding::decode(first, second, third);
    if let Some(sliding) = clear(sliding) {
        read_back(sliding.start.as_nanos());
    }

    let mut entries: Vec<Instant> = Vec::new();
    while !input.is_empty() {
        entries.push(input.near(now));
    }
    entries.sort_unstable();
    clear(timeline::check(&entries[..], now, || expiry));
}

/// A decision that is asked for again at another instant.
fn assert_honest<S>(now: Instant, tick: u64, decide: impl Fn(Instant) -> Result<Decision<S>, Error>) {
    let Decision { answer, change } = match decide(now) {
        Ok(decision) => decision,
        Err(error) => return assert_wire_text(error),
    };
    assert!(answer.limit >= 1, "{answer:?}");
    assert!((0..=answer.limit).contains(&answer.remaining), "{answer:?}");
    for unit in UNITS {
        let reply = answer.reply(unit).five;
        assert!(reply[3] >= -1 && reply[4] >= 0, "{reply:?}");
    }
    if !answer.limited {
        return;
    }
    assert!(change.is_keep(), "a refusal that writes: {answer:?}");
    let Retry::After(wait) = answer.retry_after else { return };
    assert!(wait > Span::ZERO, "{answer:?}");
    // Refused until then, admitted then: who waits as told is not told to wait again.
    let Some(then) = now.checked_add(wait) else { return };
    if let Ok(decision) = decide(then) {
        assert!(!decision.answer.limited, "{answer:?}, and then {:?}", decision.answer);
    }
    let before = then.saturating_sub(Span::from_nanos(tick).unwrap_or_default());
    if before > now
        && let Ok(decision) = decide(before)
    {
        assert!(decision.answer.limited, "{answer:?}, but before that {:?}", decision.answer);
    }
}

/// Every decision, on every state.
pub fn decisions(input: &[u8]) {
    let mut input = Input(input);
    let (now, unit) = (input.now(), input.unit());
    let [a, b, c, quantity] = [(); 4].map(|()| input.number());

    if let Ok(limit) = gcra::Limit::new(a, b, c, unit) {
        let tat = input.option(|input| input.near(now));
        assert_honest(now, 1, |now| gcra::throttle(tat, &limit, now, quantity));
        assert_honest(now, 1, |now| gcra::saturate(tat, &limit, now, quantity));
        if let (Ok(look), Ok(take)) =
            (gcra::peek(tat, &limit, now, quantity), gcra::throttle(tat, &limit, now, quantity))
        {
            assert_eq!((look.limited, look.retry_after), (take.answer.limited, take.answer.retry_after));
            // What was taken and given back leaves nothing behind.
            if let Change::Store(taken) = take.change {
                let back = gcra::refund(Some(taken), &limit, now, quantity).unwrap();
                match back.change {
                    Change::Store(state) => assert_eq!(Some(state), tat),
                    Change::Delete => assert!(tat.is_none_or(|tat| tat <= now)),
                    Change::Keep => panic!("nothing was given back"),
                }
            }
        }
        if let Ok(charged) = gcra::charge(tat, &limit, now, quantity)
            && let Change::Store(after) = charged.change
        {
            assert!(tat.is_none_or(|before| after >= before), "a charge that gives back");
        }
        for prepay in [false, true] {
            let max_wait = input.option(|input| input.number().unsigned_abs()).and_then(Span::from_nanos);
            let booking = gcra::Booking { max_wait, prepay };
            if let Ok(booked) = gcra::reserve(tat, &limit, now, quantity, booking) {
                assert!(!booked.answer.limited || booked.change.is_keep());
                let wait = booked.answer.retry_after;
                let Retry::After(wait) = wait else { continue };
                assert!(booked.answer.limited == max_wait.is_some_and(|max_wait| wait > max_wait));
            }
        }
    }
    if let Ok(limit) = bucket::Limit::new(a, b, c, unit) {
        let level =
            input.option(|input| Level { free: input.number().saturating_abs(), since: input.near(now) });
        assert_honest(now, 1, |now| bucket::take(level, &limit, now, quantity));
    }
    if let Ok(limit) = window::Limit::new(a, b, unit) {
        let counter = input.option(|input| Counter {
            count: input.number().saturating_abs(),
            end: input.near(now).floor_to_millis(),
        });
        assert_honest(now, 1, |now| window::fixed(counter, &limit, now, quantity));
        let sliding = input.option(|input| Sliding {
            start: input.near(now),
            current: input.number().saturating_abs(),
            previous: input.number().saturating_abs(),
        });
        assert_honest(now, 1, |now| window::sliding(sliding, &limit, now, quantity));
    }
    sorted_sets(&mut input, now, [a, b, quantity], unit);
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
    }
    if let (Ok(limit), Ok(lease)) = (lease::Limit::new(a), Lease::new(b, unit)) {
        let own = entries.get(usize::from(own)).copied();
        let places = Places { ends: entries, own };
        assert_honest(now, 1_000, |now| lease::acquire(&places, &limit, now, &lease));
        clear(lease::renew(&places, now, &lease));
        clear(lease::release(&places, now));
    }
}

/// Callers that come, wait, are overtaken and leave.
pub fn lines(input: &[u8]) {
    let mut input = Input(input);
    let (mut now, unit) = (input.now(), input.unit());
    let [a, b, c] = [(); 3].map(|()| input.number());
    let Ok(limit) = gcra::Limit::new(a, b, c, unit) else { return };
    let (mut line, mut state, mut tickets) = (Line::default(), None, Vec::new());
    while !input.is_empty() {
        let (step, number) = (input.byte() % 6, input.number());
        match step {
            0 => {
                let patience = input.option(|input| input.number().unsigned_abs()).and_then(Span::from_nanos);
                match line.join(state, &limit, now, number, patience) {
                    Ok(Joined::Waiting(ticket)) => tickets.push(ticket),
                    Ok(Joined::Decided(Decision { change: Change::Store(tat), .. })) => state = Some(tat),
                    Ok(_) => {}
                    Err(error) => assert_wire_text(error),
                }
            }
            1 => {
                let taken = line.overtake(state, now, |tat| gcra::throttle(tat, &limit, now, number));
                if let Ok(Decision { change: Change::Store(tat), .. }) = taken {
                    state = Some(tat);
                }
            }
            2 => {
                let back = line.overtake(state, now, |tat| gcra::refund(tat, &limit, now, number));
                match back.map(|decision| decision.change) {
                    Ok(Change::Store(tat)) => state = Some(tat),
                    Ok(Change::Delete) => state = None,
                    _ => {}
                }
            }
            3 if !tickets.is_empty() => {
                let place = usize::try_from(number.unsigned_abs()).unwrap_or_default() % tickets.len();
                line.leave(tickets.remove(place));
            }
            4 => {
                let passed = Span::from_nanos(number.unsigned_abs()).unwrap_or_default();
                now = now.checked_add(passed).unwrap_or(now);
            }
            _ => now = line.next_turn(state, now).and_then(|wait| now.checked_add(wait)).unwrap_or(now),
        }
        // Whoever's turn has come is served, first come, first served.
        loop {
            match line.turn(state, now) {
                Turn::Admitted(ticket, decision) => {
                    assert_eq!(ticket, tickets.remove(0), "out of turn");
                    if let Change::Store(tat) = decision.change {
                        state = Some(tat);
                    }
                }
                Turn::Failed(ticket, _) => assert_eq!(ticket, tickets.remove(0), "out of turn"),
                Turn::Nobodys => break,
            }
        }
        assert_eq!(line.len(), tickets.len());
        assert_eq!(line.next_turn(state, now).is_some(), !tickets.is_empty(), "a line that nobody looks at");
    }
}
