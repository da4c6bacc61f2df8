//! The comparison is tested itself: each of these faults in the library is found.

use crate::common::FUNCTIONS;
use crate::differential::run;
use crate::edges::edges;

/// A part of the library, and what stands wrongly in its place.
const FAULTS: &[(&str, &str)] = &[
    ("math.ceil(nanoseconds / MILLISECOND))", "math.floor(nanoseconds / MILLISECOND))"),
    ("quotient(time + limit.unit - limit.one, limit.unit)", "quotient(time, limit.unit)"),
    (
        "quotient((time + limit.one) * limit.count - limit.one, limit.period)",
        "quotient(time * limit.count, limit.period)",
    ),
    ("if most < debt then", "if most < debt + limit.one then"),
    ("if limit.tolerance < time then", "if limit.tolerance < time + limit.one then"),
    ("if limit.tolerance < debt then", "if limit.tolerance < debt + limit.one then"),
    ("int(call.max_burst) + one", "int(call.max_burst)"),
    ("return debt - (limit.tolerance - cost(limit, limit.one))", "return debt - limit.tolerance"),
    ("quantity ~= limit.zero and after or nil", "after"),
    ("free < limit.one and limit.one or free", "free"),
    ("tonumber(time[2]) * 1000", "tonumber(time[2]) * 1000 + 1"),
    ("+ 2) * period + count < HALF", "+ 2) < HALF"),
    ("owed_seconds * SECOND + owed_nanoseconds > HALF", "owed_seconds < 0"),
    ("seconds, nanoseconds, YEAR)", "seconds, nanoseconds, YEAR + 1)"),
    ("end_seconds, end_nanoseconds, DAY)", "end_seconds, end_nanoseconds, DAY - 1)"),
    ("seconds, nanoseconds, 60)", "seconds, nanoseconds, 59)"),
    ("seconds == most and nanoseconds <= 0", "false"),
    ("'^%-?[1-9]%d*$'", "'^%-?%d+$'"),
    ("#digits == #most and digits > most", "false"),
    ("word = word:upper()", "word = word"),
    ("if given[name] then", "if false then"),
    ("elseif not option or option == EXCLUDED then", "elseif not option then"),
    ("- 719469", "- 719468"),
    (
        "(day < this and this or begins(year, month + 1, from))",
        "(day <= this and this or begins(year, month + 1, from))",
    ),
    ("math.floor(year / 100) + math.floor(year / 400)", "math.floor(year / 100)"),
    ("local monday = -3 * DAY", "local monday = -4 * DAY"),
    ("end_seconds == seconds and end_nanoseconds <= nanoseconds", "false"),
    (
        "return begin + period_seconds * 1000 + math.ceil(",
        "return begin + period_seconds * 1000 + math.floor(",
    ),
    (
        "seconds * 1000 + math.floor(nanoseconds / MILLISECOND)",
        "seconds * 1000 + math.ceil(nanoseconds / MILLISECOND)",
    ),
    ("return end_seconds * 1000 + math.ceil(", "return end_seconds * 1000 + math.floor("),
    ("local limited = limit < used + quantity", "local limited = not (used + quantity < limit)"),
    ("not (limit < quantity) and left or -1", "left or -1"),
    ("if seconds and not reads_as_tat(text, seconds, nanoseconds) then", "if seconds then"),
    ("if reads_as_tat(count, end_seconds, end_nanoseconds) then", "if false then"),
    ("count ~= '0' and left_seconds", "left_seconds"),
    ("limited = limited and zero < asked", "limited = limited"),
    ("if reply[i] >= EXACT then", "if false then"),
    ("word:find('^%a')", "word:find('^%u%l')"),
    ("if store == limit.zero then", "if false then"),
    ("seconds == LAST_SECOND and nanoseconds > LAST_NANOSECOND", "false"),
];

#[test]
fn every_fault_of_the_library_is_found() {
    for (right, wrong) in FAULTS {
        let broken = FUNCTIONS.replacen(right, wrong, 1);
        assert_ne!(broken, FUNCTIONS, "the library has no {right}");
        let found = edges(&broken).is_err() || run(&broken, 1_800_000_001_000_000_000, 1, 20_000).is_err();
        assert!(found, "not found: {wrong} instead of {right}");
    }
}
