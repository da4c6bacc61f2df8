//! The comparison is tested itself: each of these faults in the library is found.

use crate::calls::{ALL, About};
use crate::common::FUNCTIONS;
use crate::differential::{Seen, run};
use crate::edges::edges;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// A part of the library, and the wrong code in its place.
const FAULTS: &[(&str, &str)] = &[
    // Numbers and time
    ("(moment + -moment % MILLISECOND) / MILLISECOND", "(moment - moment % MILLISECOND) / MILLISECOND"),
    ("quotient(time + nanoseconds - one, nanoseconds)", "quotient(time, nanoseconds)"),
    ("rest == zero and units - one or units", "units"),
    ("return time < LARGEST and time or within_plain(time)", "return time"),
    ("return (time - time % interval) / interval", "return time / interval"),
    ("local LARGEST = 4e15", "local LARGEST = 4e18"),
    ("if whole > LARGEST then", "if false then"),
    ("return a.negative == true", "return false"),
    ("return compare(b, a) < 0", "return compare(a, b) < 0"),
    ("time[2] * MICROSECOND", "time[2] * MICROSECOND + 1"),
    ("if number >= EXACT then", "if false then"),
    // Arguments
    ("'^%-?[1-9]%d*$'", "'^%-?%d+$'"),
    ("digits == most_digits and text > most", "false"),
    ("    word = upper(word)\n    if not UNITS[word] and", "    if not UNITS[word] and"),
    ("given[word] = not given[word] and value or syntax_error()", "given[word] = value"),
    ("elseif not option or option == EXCLUDED then", "elseif not option then"),
    ("return not args[i + 1] and UNITS", "return UNITS"),
    // What is remembered
    ("    local path = { unit, kind", "    unit = UNITS.S\n    local path = { unit, kind"),
    ("local known = is_plain and remembered[unit]", "local known = is_plain and remembered[UNITS.S]"),
    ("local known, i = is_plain and remembered[unit]", "local known, i = is_plain and remembered[UNITS.S]"),
    ("NUMBERS[text], TEXTS[number] = number, text", "NUMBERS[text], TEXTS[number] = number, '1'"),
    ("if time[1] ~= clock_text then", "if not clock_text then"),
    ("if rest == moment then", "if true then"),
    ("elseif limit.start_text ~= text or limit.origin ~= origin then", "elseif not limit.start_text then"),
    ("if result.shared ~= limit then", "if not result.shared then"),
    ("row.state, row.shadow = kind, limit, quantity, nil, false", "row.state = kind, limit, quantity, nil"),
    ("        remembered, count_remembered = {}, 0", "        remembered = read_and_remember"),
    // SATURATE and looking
    ("smaller(quantity, larger(room, one))", "smaller(quantity, room)"),
    ("    if quantity == zero then\n        wait = nil", "    if false then\n        wait = nil"),
    ("wait, remaining, reset_after = kind.take(limit, state, zero)", ""),
    // THROTTLE and its companions
    ("if not time or time > LARGEST then", "if not time then"),
    ("if most < debt then", "if most < debt + one then"),
    ("return most < zero and FOREVER or debt - most", "return debt - most"),
    ("if limit.tolerance < debt then", "if limit.tolerance < debt + one then"),
    ("limit.most = int(max_burst) + one", "limit.most = int(max_burst)"),
    ("wait = debt - room_for_one(limit)", "wait = debt - limit.tolerance"),
    ("quantity ~= zero and within_time(now + debt) or nil", "within_time(now + debt)"),
    ("debt == zero and DELETED or within_time(now + debt)", "within_time(now + debt)"),
    ("are_near(tat, now, 365 * DAY)", "are_near(tat, now, 366 * DAY)"),
    ("are_near(tat, expires, DAY)", "are_near(tat, expires, DAY - 1)"),
    ("if debt < ends then", "if true then"),
    ("local ends = wait + room_for_one(limit)", "local ends = wait + limit.tolerance"),
    ("limit.most < quantity and not given.PREPAY", "limit.most < quantity"),
    ("given.PREPAY and cost(limit, smaller(quantity, one)) or time", "time"),
    ("if longest and longest < wait then", "if longest and not (wait < longest) then"),
    ("taken and smaller(still_owed(taken, back), back) or back", "back"),
    ("taken.reset_after and difference(taken.reset_after, taken.unit) or time", "time"),
    ("return difference(owed, taken.age)", "return owed"),
    // States that lie ahead, after the clock was set back: they count no longer than their keys live
    ("return is_doubtful and expires and smaller(expires, tat) or tat", "return tat"),
    ("now + (most or limit.tolerance) < tat", "now + limit.tolerance < tat"),
    ("since_epoch(from - difference(full_at(limit, level), expires))", "from"),
    ("local expires = now < from and expiry(key)", "local expires = expiry(key)"),
    ("now < window.start and expiry(key)", "nil"),
    ("        if zero < window.current then\n            gone", "        if false then\n            gone"),
    ("rest == zero and too_late or too_late - rest + limit.period", "too_late"),
    ("since_epoch(window.start - back), true", "since_epoch(window.start - back), false"),
    ("not window.is_moved and added", "added"),
    ("now + furthest < scores.last and expiry(scores.key)", "false"),
    ("smaller(scores.last + time, last)", "scores.last"),
    ("max(micros_of(scores.last) - scores.by, micros_of(now))", "micros_of(now)"),
    ("micros > scores.above and max(micros - scores.by, 0) or micros", "micros"),
    (
        "scores.first = instant_of_micros(moved(scores, micros_of(scores.first)))",
        "scores.first = scores.first",
    ),
    ("    while scores.above do", "    while false do"),
    ("if after >= scores.above then", "if true then"),
    ("limit.lease or int(DAY .. '000000000')", "limit.lease or zero"),
    // Funnel and bucket
    ("since = level.since + divide(leaks, limit.period, limit.count)", "since = now"),
    ("begun < divide(one, limit.period, limit.count) and zero or units_in(limit, begun)", "zero"),
    ("if leaks < smaller(limit.most - level.free, highest) then", "if true then"),
    ("return wait, larger(free, zero), difference(free_at", "return wait, free, difference(free_at"),
    ("smaller(units_in(limit, still_owed(taken, time_of(limit, back) or last)), back)", "back"),
    ("after = smaller(free + back, limit.most)", "after = free + back"),
    (
        "bucket_standing(limit, after, { free = limit.most, since = now }, DELETED)",
        "bucket_standing(limit, after, level, level)",
    ),
    (":gsub('0+$', '')", ""),
    ("call('EXISTS', key) == 0", "true"),
    // The fixed window
    ("- 719469", "- 719468"),
    ("        if day < this then", "        if day <= this then"),
    ("floor(year / 100) + floor(year / 400)", "floor(year / 100)"),
    ("(-3 + from - 1) * DAY", "(-4 + from - 1) * DAY"),
    ("floor(clock_nanoseconds / MILLISECOND))", "ceil(clock_nanoseconds / MILLISECOND))"),
    (
        "seconds * 1000 + ceil(nanoseconds / MILLISECOND))",
        "seconds * 1000 + floor(nanoseconds / MILLISECOND))",
    ),
    ("if limit.most < count then", "if not (count < limit.most) then"),
    ("limit.most < quantity and FOREVER or window", "window"),
    ("if ends and (is_plain or not (#text > 15 and are_near(instant(text), ends, 60))) then", "if ends then"),
    ("if not is_plain and #digits(count) > 15 and are_near(count, ends, 60) then", "if false then"),
    ("window and zero < window.count and now", "window and now"),
    ("find(word, '^%a')", "find(word, '^%u%l')"),
    ("taken and not covers(limit, window.ends, taken)", "false"),
    ("and limit.unit ~= MICROSECONDS and", "and"),
    ("zero < quantity and count <= most then", "zero < quantity and count <= most + 1 then"),
    ("if left > 0 and left < LARGEST then", "if left < LARGEST then"),
    (
        "opened_until(limit) or passed(limit), nil, window and quantity)",
        "opened_until(limit) or passed(limit), nil, quantity)",
    ),
    ("return now < known and are_near(known, ends, 1)", "return known == ends"),
    ("if Fixed.is_window(begin, ends) then", "if false then"),
    // The sliding window
    ("rest + rest < limit.period and whole or whole + one", "whole"),
    (
        "    if rest == zero then\n        ahead = ahead - one",
        "    if false then\n        ahead = ahead - one",
    ),
    ("if window.previous == zero then", "if true then"),
    ("if is_plain and stored.start == start then", "if is_plain then"),
    ("local full_at = within_time(ends + faded(limit, current, zero))", "local full_at = ends"),
    ("limit.gone ~= window.gone or limit.gone_origin ~= origin", "not limit.gone"),
    ("not (limit.period < start - stored.start)", "start - stored.start < limit.period"),
    ("if stored and not (stored.start < start) then", "if stored and stored.start == start then"),
    ("if not (free < window.current) then", "if window.current < free then"),
    ("zero < window.current and within_time(ends + limit.period) or ends", "ends"),
    ("elseif not taken or not (now < before.start + taken.age) then", "else"),
    ("store = used == zero and DELETED or after", "store = after"),
    ("local added = window == stored and current", "local added = current"),
    // Logs
    ("local is_past = not (now < scores.last)", "local is_past = true"),
    ("'(' .. format(WHOLE, micros_of(moment))", "format(WHOLE, micros_of(moment))"),
    ("at_rank(scores, expired + too_many - 1)", "at_rank(scores, expired + too_many)"),
    ("elseif rank >= place + added then", "elseif false then"),
    ("local count = min(-quantity, alive - newer)", "local count = min(-quantity, alive)"),
    ("            if not found[i] then", "            if true then"),
    ("store.score, store.name) == 0 then", "store.score, store.name) == 2 then"),
    ("if scores.above or scores.last and now - tick < scores.last then", "if false then"),
    (
        "        prune(key, store.pruned)\n    end\n    write('PEXPIREAT', key, expiry_at(store.empties))",
        "    end\n    write('PEXPIREAT', key, expiry_at(store.empties))",
    ),
    ("empties = larger(empties, leaves_at(limit, now))", "empties = leaves_at(limit, now)"),
    // Leases
    ("if is_log or not (is_plain or may_end", "if not (is_plain or may_end"),
    ("if scores.name == limit.id then", "if scores.name then"),
    ("if not renews and alive >= limit.places then", "if alive >= limit.places then"),
    ("(scores.own and not renews and 1 or 0)", "0"),
    ("renews and alive or alive + 1", "alive + 1"),
    ("if not scores.own or scores.own ~= scores.last then", "if true then"),
    ("micros = micros - 1", "micros = micros"),
    ("store.ends and alive or alive - 1", "alive"),
    // Several limiters
    ("if limiter.shadow and verb ~= TAKE or limiter.reset and verb ~= SETTLE then", "if false then"),
    ("if rows[k].reset and not age then", "if false then"),
    ("if wait and not row.shadow then", "if wait then"),
    ("if row.shadow and not with_shadow then", "if false then"),
    ("row_remaining < remaining", "not (remaining < row_remaining)"),
    ("row_wait and wait ~= FOREVER then", "row_wait then"),
    ("if reset_after < row_reset_after then", "if true then"),
    ("if has_twins(keys) then", "if false then"),
    ("if keys[other] == key then", "if false then"),
    ("            named[key] = true\n", ""),
    ("is_complete and read.unit or UNITS.S", "UNITS.S"),
    ("not is_option_of_fixed(args[at]) or not args[at + 1]", "not is_option_of_fixed(args[at])"),
    ("(upper(word) == 'FROM' or upper(word) == 'IDLE')", "upper(word) == 'IDLE'"),
    ("(upper(word) == 'FROM' or upper(word) == 'IDLE')", "upper(word) == 'FROM'"),
    ("                row.store = nil\n", ""),
    // Chains
    ("latest = smaller(latest, wait)", "latest = wait"),
    ("if most < quantity then", "if false then"),
    ("if not (wait and other) then", "if not wait then"),
    ("local part = smaller(rows[k].remaining, quantity)", "local part = quantity"),
    ("        quantity = quantity - part\n", ""),
    ("if takes and row.taken then", "if false then"),
    (
        "most, remaining = larger(most, pool_most), larger(remaining, pool_remaining)",
        "most, remaining = pool_most, pool_remaining",
    ),
    // HOLD
    ("a = rol(a, 16)", "a = rol(a, 15)"),
    ("length and is_natural(length) and", "length and"),
    ("if not before or before.till ~= part.till or before.period ~= part.period then", "if true then"),
    ("part.at == part.till - part.period and '-' or", ""),
    ("if zero < back then", "if false then"),
    ("if hold.has_lived[k] or not is_idle(hold.ended[k][i]) then", "if true then"),
    ("if hold.is_idle[k] or is_idle(hold.own[k]) then", "if false then"),
    ("if rows[k].kind == Fixed and hold.ended[k][1] then", "if false then"),
    ("if total and (not total.ends or total.ends < till) then", "if total then"),
    ("slot.after = not hold.own[k] and part or nil", "slot.after = part"),
    ("if not part.at then\n                Book.add_end", "if true then\n                Book.add_end"),
    ("if first and not list[1] then", "if false then"),
    ("+ third * 2 ^ 16 + fourth * 2 ^ 24", "+ fourth * 2 ^ 24"),
    ("part.window and not is_window(part, window.ends)", "false"),
    ("if window and (not own.window or is_window(own, window.ends)) then", "if window then"),
    ("or own.window and part.window and is_window(own, window_end)", ""),
    ("local present = difference(used, own.earlier)", "local present = used"),
    ("return difference(present, own.latest)", "return present - own.latest"),
    ("part.earlier = own.earlier + own.latest", "part.earlier = own.latest"),
    ("hold.parts % 1 ~= 0 or hold.parts < 1", "false"),
    // ONCE
    ("once = not is_refused and once", "once = once"),
    ("if #stored <= limiters or #row > 0 then", "if #row > 0 then"),
    ("or #stored > limiters then", "then"),
    ("kept_until = now + period", "kept_until = now"),
    ("read and count > 0 and count == #keys - read.keys", "read"),
];

const fn of_kinds(kinds: &'static [usize]) -> About {
    About { kinds, ..ALL }
}

/// The files of the library that some calls reach more often than others, and those calls.
const FILES: [(&str, About); 9] = [
    (include_str!("../../functions/40_throttle.lua"), of_kinds(&[0])),
    (include_str!("../../functions/41_bucket.lua"), of_kinds(&[2, 3])),
    (include_str!("../../functions/42_fixed.lua"), of_kinds(&[1])),
    (include_str!("../../functions/43_window.lua"), of_kinds(&[4])),
    (include_str!("../../functions/44_timeline.lua"), of_kinds(&[5, 6])),
    (include_str!("../../functions/45_log.lua"), of_kinds(&[5])),
    (include_str!("../../functions/46_lease.lua"), of_kinds(&[6])),
    (include_str!("../../functions/47_chain.lua"), About { several: 1, chains: 1, ..ALL }),
    (include_str!("../../functions/48_hold.lua"), About { kinds: HELD, several: 1, holds: 1, ..ALL }),
];

/// Most units that are held are of fixed windows, because only those run out.
const HELD: &[usize] = &[0, 1, 1, 1, 2, 3, 4, 5, 6];

/// How many rounds of random calls look for a fault.
const ROUNDS: u64 = 6;

/// Random calls that reach a part of the library; few in the first round, which finds half the faults.
fn calls(library: &str, part: &str, seed: u64) -> Result<Seen, String> {
    let about = FILES.iter().find(|(file, _)| file.contains(part)).map_or(ALL, |&(_, about)| about);
    run(library, 1_800_000_001_000_000_000, seed, if seed == 1 { 400 } else { 40_000 }, about)
}

#[test]
fn every_fault_of_the_library_is_found() {
    edges(&FUNCTIONS).unwrap();
    calls(&FUNCTIONS, "", 1).unwrap();
    let (next, missed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let check = || {
        while let Some((right, wrong)) = FAULTS.get(next.fetch_add(1, Relaxed)) {
            let broken = FUNCTIONS.replacen(right, wrong, 1);
            assert_ne!(broken, *FUNCTIONS, "the library has no {right}");
            let random = |seed| calls(&broken, right, seed).is_err();
            let found = random(1) || edges(&broken).is_err() || (2..=ROUNDS).any(random);
            if !found {
                missed.lock().unwrap().push(format!("{wrong} instead of {right}"));
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(check);
        }
    });
    let missed = missed.into_inner().unwrap();
    assert!(missed.is_empty(), "not found: {missed:#?}");
}
