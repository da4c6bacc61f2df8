//! The rows of the conformance table that the tests of the core and of the function library share: the state
//! before a call, its answer, the state after it.
//!
//! A row reads from left to right: the case; the TAT before the call in nanoseconds from now, or `None` for a
//! key that does not exist; the limit; the unit of the call; the quantity; the integers answered (limited,
//! limit, remaining, `retry_after`, `reset_after`, and the quantity taken for SATURATE); the change of the
//! state, TATs again in nanoseconds from now.

use super::{DAY, MS, S, US};
use redis_cell_core::Change::{self, Delete, Keep, Store};
use redis_cell_core::Unit::{self, Microseconds, Milliseconds, Seconds};

/// The case, TAT before, limit, unit, quantity, answer, change.
pub type Row<const N: usize> = (&'static str, Option<i64>, [i64; 3], Unit, i64, [i64; N], Change<i64>);

/// One every 2 s, 16 at once: the limit of redis-cell's own example.
pub const L: [i64; 3] = [15, 30, 60];
/// A billion a second, a second's worth at once: one per nanosecond.
pub const FASTEST: [i64; 3] = [999_999_999, 1_000_000_000, 1];
/// 600 MB a second, in bursts of 20 MB.
pub const BYTES: [i64; 3] = [MB20 - 1, 600_000_000, 1];
pub const MB20: i64 = 20_000_000;
/// A hundred years in seconds.
pub const CENTURY: i64 = 3_153_600_000;

#[rustfmt::skip]
pub const THROTTLE_TAKES_ALL_OR_NOTHING: &[Row<5>] = &[
    ("a fresh limiter admits",              None,           L, Seconds,  1, [0, 16, 15, -1,  2], Store(2 * S)),
    ("a whole burst at once",               None,           L, Seconds, 16, [0, 16,  0, -1, 32], Store(32 * S)),
    ("partly used",                         Some(2 * S),    L, Seconds,  4, [0, 16, 11, -1, 10], Store(10 * S)),
    ("part of a unit is no unit",           Some(9 * S),    L, Seconds,  1, [0, 16, 10, -1, 11], Store(11 * S)),
    ("the last unit that fits",             Some(30 * S),   L, Seconds,  1, [0, 16,  0, -1, 32], Store(32 * S)),
    ("a nanosecond too soon",               Some(30*S + 1), L, Seconds,  1, [1, 16,  0,  1, 31], Keep),
    ("full",                                Some(32 * S),   L, Seconds,  1, [1, 16,  0,  2, 32], Keep),
    ("full, and asked for the whole limit", Some(32 * S),   L, Seconds, 16, [1, 16,  0, 32, 32], Keep),
    ("room, but not for that many",         Some(10 * S),   L, Seconds, 12, [1, 16, 11,  2, 10], Keep),
    ("the whole limit, but for 1 ns",       Some(1),        L, Seconds, 16, [1, 16, 15,  1,  1], Keep),
    ("drained just now",                    Some(0),        L, Seconds,  1, [0, 16, 15, -1,  2], Store(2 * S)),
    ("drained just now, the whole limit",   Some(0),        L, Seconds, 16, [0, 16,  0, -1, 32], Store(32 * S)),
    ("drained a moment ago",                Some(-1),       L, Seconds,  1, [0, 16, 15, -1,  2], Store(2 * S)),
    ("idle time is not saved up",           Some(-DAY),     L, Seconds, 16, [0, 16,  0, -1, 32], Store(32 * S)),
    ("a single unit at a time",             None,  [0, 1, 60], Seconds,  1, [0,  1,  0, -1, 60], Store(60 * S)),
    ("a single unit at a time, too soon",   Some(1), [0, 1, 60], Seconds, 1, [1, 1,  0,  1,  1], Keep),
];

#[rustfmt::skip]
pub const THROTTLE_REFUSES_FOR_EVER_WHAT_IS_ABOVE_THE_LIMIT: &[Row<5>] = &[
    ("fresh",           None,         L,         Seconds, 17,            [1, 16, 16, -1,  0], Keep),
    ("partly used",     Some(10 * S), L,         Seconds, 17,            [1, 16, 11, -1, 10], Keep),
    ("full",            Some(32 * S), L,         Seconds, 17,            [1, 16,  0, -1, 32], Keep),
    ("in debt",         Some(40 * S), L,         Seconds, 17,            [1, 16,  0, -1, 40], Keep),
    ("drained",         Some(-1),     L,         Seconds, 17,            [1, 16, 16, -1,  0], Keep),
    ("limit of one",    None,         [0, 1, 1], Seconds,  2,            [1,  1,  1, -1,  0], Keep),
    ("the most of all", None,         L,         Seconds, 4_611_686_018, [1, 16, 16, -1,  0], Keep),
];

#[rustfmt::skip]
pub const THROTTLE_OF_QUANTITY_0_LOOKS: &[Row<5>] = &[
    ("fresh",             None,           L, Seconds, 0, [0, 16, 16, -1,  0], Keep),
    ("partly used",       Some(10 * S),   L, Seconds, 0, [0, 16, 11, -1, 10], Keep),
    ("1 ns used",         Some(1),        L, Seconds, 0, [0, 16, 15, -1,  1], Keep),
    ("full",              Some(32 * S),   L, Seconds, 0, [0, 16,  0, -1, 32], Keep),
    ("in debt by 1 ns",   Some(32*S + 1), L, Seconds, 0, [1, 16,  0,  1, 33], Keep),
    ("in debt",           Some(40 * S),   L, Seconds, 0, [1, 16,  0,  8, 40], Keep),
    ("drained just now",  Some(0),        L, Seconds, 0, [0, 16, 16, -1,  0], Keep),
    ("drained long ago",  Some(-DAY),     L, Seconds, 0, [0, 16, 16, -1,  0], Keep),
];

#[rustfmt::skip]
pub const THROTTLE_WAITS_FOR_A_DEBT_TO_BE_SERVED: &[Row<5>] = &[
    ("one in debt",            Some(40 * S),  L, Seconds,  1, [1, 16, 0, 10,  40], Keep),
    ("the whole limit",        Some(40 * S),  L, Seconds, 16, [1, 16, 0, 40,  40], Keep),
    ("a debt of many limits",  Some(320 * S), L, Seconds,  1, [1, 16, 0, 290, 320], Keep),
];

#[rustfmt::skip]
pub const THROTTLE_FOLLOWS_A_LIMIT_THAT_CHANGES_BETWEEN_CALLS: &[Row<5>] = &[
    ("burst lowered: what was admitted is served first",
        Some(20 * S), [3, 30, 60],  Seconds, 1, [1, 4, 0, 14, 20],   Keep),
    ("burst lowered below the quantity",
        Some(20 * S), [3, 30, 60],  Seconds, 5, [1, 4, 0, -1, 20],   Keep),
    ("burst raised: room at once",
        Some(32 * S), [31, 30, 60], Seconds, 1, [0, 32, 15, -1, 34], Store(34 * S)),
    ("rate halved: the time owed stays, new units cost double",
        Some(32 * S), [15, 15, 60], Seconds, 1, [0, 16, 7, -1, 36],  Store(36 * S)),
    ("rate doubled: the time owed stays, new units cost half",
        Some(10 * S), [15, 60, 60], Seconds, 1, [0, 16, 5, -1, 11],  Store(11 * S)),
];

#[rustfmt::skip]
pub const WAITS_ROUND_UP_TO_THE_UNIT_AND_A_NANOSECOND_COUNTS: &[Row<5>] = &[
    ("seconds, 1 ns below",      Some(S - 1),  [0, 1, 1],    Seconds,      1, [1, 1, 0, 1, 1], Keep),
    ("seconds, exact",           Some(S),      [0, 1, 1],    Seconds,      1, [1, 1, 0, 1, 1], Keep),
    ("seconds, 1 ns above",      Some(S + 1),  [0, 1, 1],    Seconds,      1, [1, 1, 0, 2, 2], Keep),
    ("milliseconds, 1 ns",       Some(1),      [0, 1, 1000], Milliseconds, 1, [1, 1, 0, 1, 1], Keep),
    ("milliseconds, exact",      Some(MS),     [0, 1, 1000], Milliseconds, 1, [1, 1, 0, 1, 1], Keep),
    ("milliseconds, 1 ns above", Some(MS + 1), [0, 1, 1000], Milliseconds, 1, [1, 1, 0, 2, 2], Keep),
    ("microseconds, 1 ns",       Some(1),      [0, 1, 1],    Microseconds, 1, [1, 1, 0, 1, 1], Keep),
    ("microseconds, exact",      Some(US),     [0, 1, 1],    Microseconds, 1, [1, 1, 0, 1, 1], Keep),
    ("microseconds, 1 ns above", Some(US + 1), [0, 1, 1],    Microseconds, 1, [1, 1, 0, 2, 2], Keep),
];

#[rustfmt::skip]
pub const A_COST_ROUNDS_DOWN_ONCE_PER_CALL: &[Row<5>] = &[
    ("a third of a second",       None, [0, 3, 1],  Seconds,       1, [0,  1, 0, -1, 1], Store(333_333_333)),
    ("two thirds",                None, [2, 3, 1],  Seconds,       2, [0,  3, 1, -1, 1], Store(666_666_666)),
    ("three thirds are a second", None, [2, 3, 1],  Seconds,       3, [0,  3, 0, -1, 1], Store(S)),
    ("a third of a millisecond",  None, [2, 3, 1],  Milliseconds,  1, [0,  3, 2, -1, 1], Store(333_333)),
    ("142 6/7 ns count as 142",   None, [9, 7, 1],  Microseconds,  1, [0, 10, 9, -1, 1], Store(142)),
    ("ten of them, as 1,428",     None, [9, 7, 1],  Microseconds, 10, [0, 10, 0, -1, 2], Store(1_428)),
    ("room for one, of 143 ns",   Some(1_428 - 143), [9, 7, 1], Microseconds, 0, [0, 10, 1, -1, 2], Keep),
    ("and of 142 ns",             Some(1_428 - 142), [9, 7, 1], Microseconds, 0, [0, 10, 1, -1, 2], Keep),
    ("and of none in 141 ns",     Some(1_428 - 141), [9, 7, 1], Microseconds, 1, [1, 10, 0,  1, 2], Keep),
    ("a byte of 600 MB a second", None, BYTES, Seconds,         1, [0, MB20, MB20 - 1, -1, 1], Store(1)),
    ("three of them",             None, BYTES, Seconds,         3, [0, MB20, MB20 - 3, -1, 1], Store(5)),
    ("a thirtieth of a second",   None, BYTES, Seconds,      MB20, [0, MB20, 0, -1, 1],  Store(33_333_333)),
];

const BILLION: i64 = 1_000_000_000;
const MOST: [i64; 3] = [i64::MAX - 1, BILLION, 1];
#[rustfmt::skip]
pub const NUMBERS_MAY_BE_HUGE: &[Row<5>] = &[
    ("one per nanosecond",          None,    FASTEST, Seconds, 1,       [0, BILLION, BILLION - 1, -1, 1], Store(1)),
    ("a billion at once",           None,    FASTEST, Seconds, BILLION, [0, BILLION, 0, -1, 1], Store(S)),
    ("full for one nanosecond",     Some(S), FASTEST, Seconds, 1,       [1, BILLION, 0, 1, 1],  Keep),
    ("the largest burst there is",  None,    MOST, Seconds, 1, [0, i64::MAX, i64::MAX - 1, -1, 1],    Store(1)),
    ("a unit every hundred years",  None,    [0, 1, CENTURY], Seconds, 1, [0, 1, 0, -1, CENTURY],     Store(CENTURY * S)),
    ("a wait of a hundred years",   Some(CENTURY * S), [0, 1, CENTURY], Seconds, 1, [1, 1, 0, CENTURY, CENTURY], Keep),
    ("a hundred years in microseconds", None, [0, 1, CENTURY * 1_000_000], Microseconds, 1,
        [0, 1, 0, -1, CENTURY * 1_000_000], Store(CENTURY * S)),
];

#[rustfmt::skip]
pub const SATURATE_TAKES_WHAT_FITS: &[Row<6>] = &[
    ("all of it fits",                 None,           L, Seconds,        4, [0, 16, 12, -1,  8,  4], Store(8 * S)),
    ("exactly the limit",              None,           L, Seconds,       16, [0, 16,  0, -1, 32, 16], Store(32 * S)),
    ("more than the limit",            None,           L, Seconds,       17, [0, 16,  0, -1, 32, 16], Store(32 * S)),
    ("however large",                  None,           L, Seconds, i64::MAX, [0, 16,  0, -1, 32, 16], Store(32 * S)),
    ("a part of it fits",              Some(10 * S),   L, Seconds,       17, [0, 16,  0, -1, 32, 11], Store(32 * S)),
    ("part of a unit does not fit",    Some(9 * S),    L, Seconds, i64::MAX, [0, 16,  0, -1, 31, 11], Store(31 * S)),
    ("the last unit",                  Some(30 * S),   L, Seconds,        5, [0, 16,  0, -1, 32,  1], Store(32 * S)),
    ("nothing fits, but for 1 ns",     Some(30*S + 1), L, Seconds,        5, [1, 16,  0,  1, 31,  0], Keep),
    ("nothing fits, however large",    Some(30*S + 1), L, Seconds, i64::MAX, [1, 16,  0,  1, 31,  0], Keep),
    ("full: the wait is one unit's",   Some(32 * S),   L, Seconds,       16, [1, 16,  0,  2, 32,  0], Keep),
    ("in debt",                        Some(40 * S),   L, Seconds,        5, [1, 16,  0, 10, 40,  0], Keep),
    ("drained",                        Some(-1),       L, Seconds,       17, [0, 16,  0, -1, 32, 16], Store(32 * S)),
    ("0 of a fresh limiter",           None,           L, Seconds,        0, [0, 16, 16, -1,  0,  0], Keep),
    ("0 of a full one is admitted",    Some(32 * S),   L, Seconds,        0, [0, 16,  0, -1, 32,  0], Keep),
    ("0 of one in debt is admitted",   Some(40 * S),   L, Seconds,        0, [0, 16,  0, -1, 40,  0], Keep),
];

#[rustfmt::skip]
pub const PEEK_SAYS_WHAT_THROTTLE_WOULD: &[Row<5>] = &[
    ("fresh",                            None,           L, Seconds,  1, [0, 16, 16, -1,  0], Keep),
    ("fresh, the whole limit",           None,           L, Seconds, 16, [0, 16, 16, -1,  0], Keep),
    ("fresh, above the limit",           None,           L, Seconds, 17, [1, 16, 16, -1,  0], Keep),
    ("fresh, quantity 0",                None,           L, Seconds,  0, [0, 16, 16, -1,  0], Keep),
    ("partly used",                      Some(2 * S),    L, Seconds,  1, [0, 16, 15, -1,  2], Keep),
    ("partly used, the whole limit",     Some(2 * S),    L, Seconds, 16, [1, 16, 15,  2,  2], Keep),
    ("the last unit",                    Some(30 * S),   L, Seconds,  1, [0, 16,  1, -1, 30], Keep),
    ("the last unit, but for 1 ns",      Some(30*S + 1), L, Seconds,  1, [1, 16,  0,  1, 31], Keep),
    ("full",                             Some(32 * S),   L, Seconds,  1, [1, 16,  0,  2, 32], Keep),
    ("full, quantity 0",                 Some(32 * S),   L, Seconds,  0, [0, 16,  0, -1, 32], Keep),
    ("in debt, quantity 0",              Some(40 * S),   L, Seconds,  0, [1, 16,  0,  8, 40], Keep),
    ("in debt, above the limit",         Some(40 * S),   L, Seconds, 17, [1, 16,  0, -1, 40], Keep),
    ("drained just now",                 Some(0),        L, Seconds,  1, [0, 16, 16, -1,  0], Keep),
    ("drained long ago",                 Some(-DAY),     L, Seconds,  1, [0, 16, 16, -1,  0], Keep),
];

#[rustfmt::skip]
pub const REFUND_GIVES_BACK_UP_TO_FULL: &[Row<5>] = &[
    ("no key: nothing is created",           None,           L, Seconds,   1, [0, 16, 16, -1,  0], Keep),
    ("no key, quantity 0",                   None,           L, Seconds,   0, [0, 16, 16, -1,  0], Keep),
    ("one of several",                       Some(10 * S),   L, Seconds,   1, [0, 16, 12, -1,  8], Store(8 * S)),
    ("quantity 0",                           Some(10 * S),   L, Seconds,   0, [0, 16, 11, -1, 10], Keep),
    ("all of it: full, the key goes",        Some(2 * S),    L, Seconds,   1, [0, 16, 16, -1,  0], Delete),
    ("all but 1 ns",                         Some(2*S + 1),  L, Seconds,   1, [0, 16, 15, -1,  1], Store(1)),
    ("more than was taken",                  Some(10 * S),   L, Seconds, 100, [0, 16, 16, -1,  0], Delete),
    ("the most of all", Some(10 * S), L, Seconds, 4_611_686_018, [0, 16, 16, -1, 0], Delete),
    ("drained just now",                     Some(0),        L, Seconds,   1, [0, 16, 16, -1,  0], Delete),
    ("drained a moment ago",                 Some(-1),       L, Seconds,   1, [0, 16, 16, -1,  0], Delete),
    ("drained, quantity 0",                  Some(-1),       L, Seconds,   0, [0, 16, 16, -1,  0], Keep),
    ("out of debt, to full use",             Some(40 * S),   L, Seconds,   4, [0, 16,  0, -1, 32], Store(32 * S)),
    ("still in debt by 1 ns",                Some(34*S + 1), L, Seconds,   1, [1, 16,  0,  3, 33], Store(32*S + 1)),
    ("still in debt",                        Some(40 * S),   L, Seconds,   1, [1, 16,  0,  8, 38], Store(38 * S)),
    ("in debt, quantity 0",                  Some(40 * S),   L, Seconds,   0, [1, 16,  0, 10, 40], Keep),
];

#[rustfmt::skip]
pub const CHARGE_TAKES_REGARDLESS: &[Row<5>] = &[
    ("fresh",                                None,           L, Seconds,  1, [0, 16, 15, -1,   2], Store(2 * S)),
    ("the whole limit is no debt",           None,           L, Seconds, 16, [0, 16,  0, -1,  32], Store(32 * S)),
    ("above the limit: into debt",           None,           L, Seconds, 17, [1, 16,  0,  4,  34], Store(34 * S)),
    ("far above the limit",                  None,           L, Seconds, 100, [1, 16, 0, 170, 200], Store(200 * S)),
    ("partly used",                          Some(2 * S),    L, Seconds,  4, [0, 16, 11, -1,  10], Store(10 * S)),
    ("the last unit",                        Some(30 * S),   L, Seconds,  1, [0, 16,  0, -1,  32], Store(32 * S)),
    ("into debt by 1 ns",                    Some(30*S + 1), L, Seconds,  1, [1, 16,  0,  3,  33], Store(32*S + 1)),
    ("full",                                 Some(32 * S),   L, Seconds,  1, [1, 16,  0,  4,  34], Store(34 * S)),
    ("deeper into debt",                     Some(34 * S),   L, Seconds,  1, [1, 16,  0,  6,  36], Store(36 * S)),
    ("drained",                              Some(-1),       L, Seconds,  1, [0, 16, 15, -1,   2], Store(2 * S)),
    ("fresh, quantity 0",                    None,           L, Seconds,  0, [0, 16, 16, -1,   0], Keep),
    ("full, quantity 0",                     Some(32 * S),   L, Seconds,  0, [0, 16,  0, -1,  32], Keep),
    ("in debt, quantity 0",                  Some(40 * S),   L, Seconds,  0, [1, 16,  0, 10,  40], Keep),
    ("limit of one",                         None,   [0, 1, 1], Seconds,  3, [1,  1,  0,  3,   3], Store(3 * S)),
];

/// Every table of CL.THROTTLE.
pub const THROTTLE: &[&[Row<5>]] = &[
    THROTTLE_TAKES_ALL_OR_NOTHING,
    THROTTLE_REFUSES_FOR_EVER_WHAT_IS_ABOVE_THE_LIMIT,
    THROTTLE_OF_QUANTITY_0_LOOKS,
    THROTTLE_WAITS_FOR_A_DEBT_TO_BE_SERVED,
    THROTTLE_FOLLOWS_A_LIMIT_THAT_CHANGES_BETWEEN_CALLS,
    WAITS_ROUND_UP_TO_THE_UNIT_AND_A_NANOSECOND_COUNTS,
    A_COST_ROUNDS_DOWN_ONCE_PER_CALL,
    NUMBERS_MAY_BE_HUGE,
];
