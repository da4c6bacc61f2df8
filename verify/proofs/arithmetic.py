"""Proves the arithmetic of the core for all inputs, and holds the formulas to the code.

Each theorem is a function below. A doc comment of the core that says "Proved for all inputs" names it. The formulas
are functions of integers. The theorems call them with symbols of z3. Then the same functions are given the numbers of a
table that the core has printed, and every row must agree. So neither can change without the other.

    cargo run --profile models -p redis-cell-verify table | python arithmetic.py

Integers are those of mathematics here, without an end. That none of them leaves the types of the core is a theorem too.
"""

import pathlib
import re
import sys

import z3

END = 2**63  # of instants, spans and quantities
U64, U128 = 2**64, 2**128
MS, SECOND, DAY = 10**6, 10**9, 86_400
LAST = 9_223_372_036_854 * MS  # the last instant at which a key can expire
NEAR_EXPIRY = 60 * SECOND  # of core/src/fixed.rs


# The formulas, of Python's integers or z3's.


QUOTIENTS = {}


def div(one, other):
    """Rounded down, for an `other` above 0. A quotient of symbols is one more symbol, defined by two products."""
    if isinstance(one, int):
        return one // other
    if isinstance(other, int):
        return one / other
    quotient, _, _ = QUOTIENTS.setdefault((one, other), (z3.FreshInt("quotient"), one, other))
    return quotient


def either(condition, one, other):
    return (one if condition else other) if isinstance(condition, bool) else z3.If(condition, one, other)


def greater(one, other):
    return either(one >= other, one, other)


def less(one, other):
    """`one - other`, 0 when `other` is the larger one."""
    return greater(one - other, one - one)


def lesser(one, other):
    return either(one <= other, one, other)


def cost(count, period, units):
    return div(units * period, count)


def units_in(count, period, time):
    return div((time + 1) * count - 1, period)


def is_admitted(tolerance, debt, price):
    return debt + price <= tolerance


def wait(tolerance, debt, price):
    return debt + price - tolerance


def remaining(count, period, tolerance, debt):
    return units_in(count, period, less(tolerance, debt))


def ceil_to(span, unit):
    return div(span + unit - 1, unit)


def weight(period, count, ahead):
    return div(2 * count * ahead + period, 2 * period)


def longest(period, count, left):
    """The largest part of the period for which a count above 0 weighs `left` at most."""
    return div((2 * left + 1) * period - 1, 2 * count)


def faded(period, count, left):
    """The time after which a count weighs `left` at most."""
    return 0 if isinstance(count, int) and count == 0 else less(period, longest(period, count, left))


def admits_at(start, end, room, current, here, there):
    """When a window has room: `here` and `there` is the time until enough has faded in this one and in the next."""
    return either(room >= current, either(start + here < end, start + here, end + there), end + there)


def fixed_end(period, now):
    """The end of a fixed window with a period that opens now: nanoseconds, rounded to whole milliseconds."""
    return div(div(now, MS) * MS + period + MS - 1, MS) * MS


def multiples(at, origin, length):
    """The last multiple of the length away from the origin that is not after an instant, and the next one."""
    start = origin + div(at - origin, length) * length
    return start, start + length


def begins(month):
    """The first day of a month, in days since the epoch; months are counted from March of the year 0."""
    year = div(month, 12)
    days = 365 * year + div(year, 4) - div(year, 100) + div(year, 400)
    return days + div(153 * (month - 12 * year) + 2, 5) - 719_468


def opens(first, following, day):
    """The day on which the window opens that begins in a month: the last one where there is no such day."""
    return first + lesser(day, following - first) - 1


def chosen(last, this, then, date):
    """Of three windows that follow each other, by their first days, the beginning and the end of a date's."""
    return either(date < this, last, this), either(date < this, this, then)


# The theorems.

THEOREMS = []


def theorem(function):
    THEOREMS.append(function)
    return function


def symbols(names):
    return z3.Ints(names)


def a_rate(count, period):
    """What Rate::new accepts: T = period / count is a nanosecond at least."""
    return [1 <= count, count <= period, period < END]


@theorem
def cost_and_units_are_inverse():
    """cost(q) <= t if and only if q <= units(t), so units(t) is the most that fits into t; and units(cost(q)) is q."""
    count, period, q, t = symbols("count period q t")
    c, u = cost(count, period, q), units_in(count, period, t)
    given = [*a_rate(count, period), q >= 0, t >= 0]
    # Two steps of one product each: cost(q) <= t, q * period < (t + 1) * count, q <= units(t).
    middle = q * period < (t + 1) * count
    yield given, (c <= t) == middle
    yield given, middle == (q <= u)
    yield [*given, t == c], z3.And(q * period <= (t + 1) * count - 1, (t + 1) * count - 1 < q * period + period)
    yield [*given, q * period <= (t + 1) * count - 1, (t + 1) * count - 1 < q * period + period], u == q
    # So what costs more than the whole limit is more than the whole limit.
    yield given, c < cost(count, period, q + 1)


@theorem
def a_whole_interval_is_the_same():
    """Where T is a whole number, q * T and t / T are cost(q) and units(t)."""
    count, interval, q, t = symbols("count interval q t")
    given = [count >= 1, interval >= 1, q >= 0, t >= 0]
    c, u, whole = cost(count, interval * count, q), units_in(count, interval * count, t), div(t, interval)
    # As one product, q * T * count is whole * count.
    yield given, (q * interval) * count == q * (interval * count)
    yield given, c == q * interval
    # t = k * T + rest, so (t + 1) * count - 1 lies between k * T * count and (k + 1) * T * count.
    scaled = (t + 1) * count - 1
    lies = [(whole * interval) * count <= scaled, scaled < (whole * interval + interval) * count]
    yield given, z3.And(lies)
    yield [*given, *lies], u == whole


@theorem
def nothing_wraps():
    """Products stay below 2^128, and units(t) is at most t: no result is cut off."""
    count, period, q, t = symbols("count period q t")
    given = [*a_rate(count, period), 0 <= q, q < END, 0 <= t, t < END]
    yield given, z3.And(q * period < U128, 0 <= q * period)
    yield given, z3.And((t + 1) * count < U128, (t + 1) * count - 1 >= 0)
    yield given, units_in(count, period, t) <= t


@theorem
def a_wait_is_exact():
    """Refused at every instant before the wait is over, and admitted at its end."""
    tolerance, debt, price, later = symbols("tolerance debt price later")
    given = [0 <= debt, 0 <= price, price <= tolerance, 0 <= later]
    given += [z3.Not(is_admitted(tolerance, debt, price))]
    then = is_admitted(tolerance, less(debt, later), price)
    yield given, then == (later >= wait(tolerance, debt, price))


@theorem
def remaining_is_exact():
    """remaining is admitted and one unit more is not, unless the debt is above the limit: then it is 0."""
    count, period, tolerance, debt, left = symbols("count period tolerance debt left")
    r = remaining(count, period, tolerance, debt)
    given = [*a_rate(count, period), 0 <= tolerance, 0 <= debt]
    # Two steps each, by the products that define remaining and the two costs.
    rest, enough, more = less(tolerance, debt), cost(count, period, r), cost(count, period, r + 1)
    fits = [r >= 0, r * period < (left + 1) * count, (left + 1) * count <= (r + 1) * period]
    yield [*given, left == rest], z3.And(fits)
    yield [*given, *fits], z3.And(enough <= left, more > left)
    last = [debt <= tolerance, left == rest, enough <= left, more > left]
    yield [*given, *last], z3.And(is_admitted(tolerance, debt, enough), z3.Not(is_admitted(tolerance, debt, more)))
    yield [*given, tolerance < debt], r == 0


@theorem
def no_stretch_admits_more_than_it_may():
    """The costs admitted in a stretch W come to at most D + W: one more call, whatever was before."""
    tolerance, tat, now, start, total, price, then = symbols("tolerance tat now start total price then")
    given = [0 <= tolerance, 0 <= price, start <= now, now <= then]
    # Before: all that was admitted since the start lies between it and the TAT, or nothing was.
    given += [total <= greater(tat, now) - start]
    debt = less(tat, then)
    given += [is_admitted(tolerance, debt, price)]
    after = then + debt + price
    yield given, total + price <= after - start
    yield given, total + price <= (then - start) + tolerance
    # At the start nothing was.
    yield [start == now, total == 0], total <= greater(tat, now) - start


@theorem
def a_call_is_forgiven_less_than_a_nanosecond():
    """q * T < cost(q) + 1: of n calls, quantities times T come to less than their costs and n."""
    count, period, q = symbols("count period q")
    given, c = [*a_rate(count, period), q >= 0], cost(count, period, q)
    yield given, z3.And(q * period < (c + 1) * count, c * count <= q * period)
    # One call more, by induction.
    calls, quantities, costs = symbols("calls quantities costs")
    before = [calls >= 0, quantities * period <= (costs + calls) * count]
    yield [*given, *before], (quantities + q) * period <= (costs + c + calls + 1) * count


@theorem
def rounded_waits_are_long_enough():
    """A span in whole units, rounded up, is not shorter, and longer by less than a unit."""
    span, unit = symbols("span unit")
    given, r = [0 <= span, 1 <= unit], ceil_to(span, unit)
    yield given, z3.And(r * unit >= span, r * unit < span + unit)


def a_part(period, count, ahead):
    """What weight() is given: a part of the period."""
    return [period >= 1, count >= 0, 0 <= ahead, ahead <= period]


@theorem
def a_weight_is_to_the_nearest_unit():
    """Off by half a unit at most, from 0 to the count, and the count where the whole window is covered."""
    period, count, ahead = symbols("period count ahead")
    given, w = a_part(period, count, ahead), weight(period, count, ahead)
    off = 2 * (w * period - count * ahead)
    yield given, z3.And(off <= period, off > -period)
    yield given, z3.And(0 <= count * ahead, count * ahead <= count * period)
    yield [*given, 0 <= count * ahead, count * ahead <= count * period], z3.And(0 <= w, w <= count)
    yield [*given, ahead == period], w == count


@theorem
def an_estimate_only_falls():
    """A smaller part of the same count weighs no more, and at the end of a window the estimate does not rise."""
    period, count, ahead, later, current = symbols("period count ahead later current")
    given = [*a_part(period, count, ahead), *a_part(period, count, later), later <= ahead]
    w, then = weight(period, count, ahead), weight(period, count, later)
    yield given, count * later <= count * ahead
    yield [*given, count * later <= count * ahead], then <= w
    # At its end, the present count has its full weight.
    yield [*given, current >= 0, w >= 0], weight(period, current, period) <= current + w


@theorem
def a_window_fades_exactly_then():
    """count weighs at most left if and only if ahead is at most the quotient of faded()."""
    period, count, ahead, left = symbols("period count ahead left")
    given, w = [*a_part(period, count, ahead), left >= 0], weight(period, count, ahead)
    odd, most = (2 * left + 1) * period, longest(period, count, left)
    yield given, (w <= left) == (2 * count * ahead < odd)
    yield [*given, count >= 1], (2 * count * ahead < odd) == (ahead <= most)
    # So, of the time since the window began.
    since, wait = z3.Int("since"), faded(period, count, left)
    yield [count >= 1, 0 <= since, since <= period, ahead == period - since], (ahead <= most) == (since >= wait)
    yield [*given, count == 0, 2 * count * ahead == 0], w <= left


@theorem
def a_wait_of_a_window_is_exact():
    """Of a call that is refused: refused at every instant before, and admitted from then on, if nothing else is."""
    start, end, period, now, then = symbols("start end period now then")
    room, current, w, later, here, there = symbols("room current w later here there")
    # w is the weight of the previous count at `then` in this window, later the weight of the present one in the next.
    # here and there are what faded() says of them: the theorem above. A window that lies ahead has not begun to fade.
    given = [period >= 1, start < end, end <= start + period, now < end, now <= then]
    given += [room >= 0, current >= 0, w >= 0, 0 <= here, here <= period, 0 <= there, there <= period]
    given += [z3.Implies(room >= current, (w <= room - current) == (less(then, start) >= here))]
    given += [z3.Implies(z3.And(end <= then, then < end + period), (later <= room) == (then - end >= there))]
    # Units admitted in this window count in the next: its full weight is the count.
    given += [(current <= room) == (there == 0)]
    given += [z3.Not(z3.And(room >= current, less(now, start) >= here))]
    admitted = z3.If(then < end, current + w <= room, z3.If(then < end + period, later <= room, True))
    yield given, admitted == (then >= admits_at(start, end, room, current, here, there))


@theorem
def no_period_holds_more_than_twice_the_limit():
    """The window itself holds at most the limit, a period at most limit + previous - weight."""
    limit, current, previous, quantity, period, ahead = symbols("limit current previous quantity period ahead")
    given, w = a_part(period, previous, ahead), weight(period, previous, ahead)
    given += [0 <= w, current >= 0, quantity >= 0, current + w + quantity <= limit]
    after = current + quantity
    yield given, after <= limit
    yield [*given, previous <= limit], z3.And(after + previous <= limit + previous - w, after + previous <= 2 * limit)
    # The weighted value is passed by half a unit at most, and the difference is the rounding to the nearest unit.
    yield given, 2 * (after * period + previous * ahead) < (2 * limit + 1) * period
    yield given, 2 * (previous - w) * period < 2 * previous * (period - ahead) + period + 1


@theorem
def no_window_wraps():
    """The sums of weight() and faded() stay below 2^128."""
    period, count, ahead, left = symbols("period count ahead left")
    given = [1 <= period, period < END, 0 <= count, count < END, 0 <= ahead, ahead <= period, 0 <= left, left < END]
    yield given, 2 * count * ahead + period < U128
    yield given, z3.And((2 * left + 1) * period - 1 < U128, (2 * left + 1) * period - 1 >= 0, 2 * count < U64)


@theorem
def a_fixed_window_is_as_long_as_it_says():
    """It ends after the call that opens it, a period and a millisecond later at most, and never wraps."""
    period, now = symbols("period now")
    end = fixed_end(period, now)
    given = [1 <= period, 0 <= now, period <= LAST - now]
    yield given, z3.And(now < end, end - now <= period + MS - 1)
    yield given, z3.And(end <= LAST, end % MS == 0, now - now % MS + period < END)
    # Of whole milliseconds, it is as long as it says, from the millisecond of the call on.
    yield [*given, period % MS == 0], z3.And(end == now - now % MS + period, end - now > period - MS)


@theorem
def an_instant_lies_in_one_window():
    """Windows of one length: an instant lies in the one that begins at a multiple, and in no other one."""
    at, origin, length, other = symbols("at origin length other")
    given, k = [length >= 1], div(at - origin, length)
    start, end = multiples(at, origin, length)
    yield given, z3.And(start <= at, at < end, start - origin == k * length)
    # Another multiple before the instant lies a length or more before the start; one after it lies after the end.
    yield [*given, other < k, (k - other - 1) * length >= 0], origin + other * length + length <= start
    yield [*given, other > k, (other - k - 1) * length >= 0], origin + other * length >= end


@theorem
def months_follow_each_other():
    """Each month begins 28 to 31 days after the one before, and twelve of them make a year of 365 or 366."""
    year = z3.Int("year")
    for k in range(12):
        here, there = 12 * year + k, 12 * year + k + 1
        length = begins(there) - begins(here)
        given = [year >= 0]
        # March has 31 days, and so on; the rest is February.
        days = [31, 30, 31, 30, 31, 31, 30, 31, 30, 31, 31][k] if k < 11 else None
        yield given, length == days if days else z3.And(28 <= length, length <= 29)
    # Of the years that begin in January.
    following = year + 1
    is_leap = z3.And(following % 4 == 0, z3.Or(following % 100 != 0, following % 400 == 0))
    yield [year >= 0], begins(12 * year + 22) - begins(12 * year + 10) == z3.If(is_leap, 366, 365)


@theorem
def a_date_lies_in_one_month():
    """Windows that begin on a day of the month follow each other, and a date lies in the one that is chosen."""
    before, first, following, after, day, date = symbols("before first following after day date")
    given = [1 <= day, day <= 31]
    given += [z3.And(28 <= b - a, b - a <= 31) for a, b in [(before, first), (first, following), (following, after)]]
    last, this, then = opens(before, first, day), opens(first, following, day), opens(following, after, day)
    yield given, z3.And(last < this, this - last <= 31)
    # The date lies in the month that begins on `first`. Before this month's window it lies in the window before.
    given += [first <= date, date < following]
    start, end = chosen(last, this, then, date)
    yield given, z3.And(start <= date, date < end)


@theorem
def no_window_of_the_calendar_wraps():
    """Seconds and nanoseconds of its end stay below 2^64, and dates within the years 1969 to 2263."""
    now, offset, length, end = symbols("now offset length end")
    seconds = div(now, SECOND)
    given = [0 <= now, now < END, -840 * 60 <= offset, offset <= 840 * 60]
    local = seconds + offset
    given += [0 <= length, length <= 366 * DAY, end == local + length]
    yield given, z3.And((end - offset) * SECOND < U64, end - offset >= 0)
    yield given, z3.And(div(local, DAY) >= -1, div(end, DAY) < begins(12 * 2263 + 10))


def definitions(expressions):
    """Of the quotients that occur in these expressions, or in the definitions of others."""
    seen, left, found = set(), list(expressions), []
    while left:
        expression = left.pop()
        if expression in seen:
            continue
        seen.add(expression)
        left += expression.children()
        for quotient, one, other in QUOTIENTS.values():
            if quotient.eq(expression):
                found += [quotient * other <= one, one < quotient * other + other]
                left += [one, other]
    return found


def is_proved(given, claim):
    solver = z3.Solver()
    solver.set("timeout", 60_000)
    solver.add(*given, *definitions([*given, claim]))
    if solver.check() != z3.sat:
        print("    nothing has what is given")
        return False
    solver.add(z3.Not(claim))
    result = solver.check()
    if result != z3.unsat:
        print(f"    {result}: {solver.model() if result == z3.sat else solver.reason_unknown()}")
    return result == z3.unsat


# The rows of the core.


ERROR = [-1]
KEPT = -1  # the state


def throttle(count, period, burst, now, tat, quantity):
    """A call on a TAT, -1 for none: the verdict, its wait, what remains, the debt, and the new state."""
    tolerance, price = cost(count, period, burst + 1), cost(count, period, quantity)
    debt, verdict, delay, state = less(tat, now), 0, -1, KEPT
    if price >= END:
        return ERROR
    if price > tolerance:
        verdict = 2
    elif not is_admitted(tolerance, debt, price):
        verdict, delay = 1, wait(tolerance, debt, price)
    elif quantity:
        debt += price
        state = now + debt
    if max(tolerance, debt, state) >= END:
        return ERROR
    return [verdict, delay, remaining(count, period, tolerance, debt), debt, state]


def slid(limit, period, start, current, previous, now, quantity):
    """A call on a window as it is stored, at an instant before its end or later; without one if its start is -1."""
    begun = now - now % period
    if start < begun:
        previous = current if 0 <= start and begun - start <= period else 0
        start, current = begun, 0
    end = start - start % period + period
    used = current + weight(period, previous, less(period, less(now, start)))

    def fits_at(quantity):
        room = limit - quantity
        here, there = faded(period, previous, less(room, current)), faded(period, current, room)
        return admits_at(start, end, room, current, here, there)

    verdict, wait, last = 0, -1, end
    if used + quantity > limit:
        last = fits_at(min(quantity, limit))
        verdict, wait = (2, -1) if quantity > limit else (1, less(last, now))
    elif quantity:
        used, current, last = used + quantity, current + quantity, end + period
    gone = fits_at(limit) if used else now
    if 2 * period > less(LAST, now) or max(end, last, gone) >= END:
        return ERROR
    answer = [verdict, wait, less(limit, used), less(gone, now)]
    return answer if verdict or not quantity else [*answer, start, current, previous]


def opened(end, can_open):
    """The end of a fixed window of which one unit is taken, unless it would read as a TAT: next to the epoch."""
    return [end] if can_open and end - 1 > NEAR_EXPIRY else ERROR


def calendar(cycle, offset, day, now):
    """The window of the calendar that an instant lies in, from the epoch on, if it ends before all time does."""
    local = now // SECOND + offset
    if cycle <= 2:
        origin, length = [(0, 3_600), (0, DAY), ((day - 4) * DAY, 7 * DAY)][cycle]
        start, end = multiples(local, origin, length)
    else:
        date = local // DAY
        # From December 1969 on, as many months as have 31 days each, and then the rest.
        month = 12 * 1969 + 9 + greater(date, 0) // 31
        while begins(month + 1) <= date:
            month += 1
        if cycle == 4:
            january = month - (month - 10) % 12
            first, following = begins(january), begins(january + 12)
        else:
            opened = [opens(begins(m), begins(m + 1), day) for m in range(month - 1, month + 2)]
            first, following = chosen(*opened, date)
        start, end = first * DAY, following * DAY
    start, end = greater(start - offset, 0) * SECOND, (end - offset) * SECOND
    return [start, end] if end < END else ERROR


ROWS = {
    "fixed": lambda period, now: opened(fixed_end(period, now), period <= less(LAST, now)),
    "until": lambda instant, now: opened(ceil_to(instant, MS) * MS, now < instant <= LAST),
    "calendar": calendar,
    "time": lambda count, period, units: [c if (c := cost(count, period, units)) < END else -1],
    "units": lambda count, period, time: [units_in(count, period, time)],
    "window": slid,
    "ceil": lambda span, unit: [ceil_to(span, unit)],
    "throttle": throttle,
}


def agrees(line):
    name, *numbers = line.split()
    split = numbers.index("->")
    given, said = [int(n) for n in numbers[:split]], [int(n) for n in numbers[split + 1 :]]
    formula = ROWS[name](*given)
    if formula != said:
        print(f"    {line.strip()}, by the formula {formula}")
    return formula == said


def main():
    passed = failed = 0
    for proof in THEOREMS:
        holds = all([is_proved(given, claim) for given, claim in proof()])
        print(f"{proof.__name__}: {'proved' if holds else 'NOT PROVED'}")
        passed, failed = passed + holds, failed + (not holds)
    sources = pathlib.Path(__file__).parents[2] / "core" / "src"
    sentences = [re.findall(r"Proved for all inputs[^.]*\.", file.read_text()) for file in sources.glob("*.rs")]
    named = set(re.findall(r"`(\w+)`", str(sentences)))
    known = {proof.__name__ for proof in THEOREMS}
    print(f"named in core/src and not here: {named - known}; here and not named: {known - named}")
    passed, failed = passed + (named == known), failed + (named != known)
    counts, wrong = dict.fromkeys(ROWS, 0), 0
    for line in sys.stdin:
        counts[line.split()[0]] += 1
        wrong += not agrees(line)
    complete = min(counts.values()) >= 4_000
    print(f"{sum(counts.values())} rows of the core, {wrong} of them not by the formula: {counts}")
    right = complete and not wrong
    passed, failed = passed + right, failed + (not right)
    print(f"test result: {'ok' if not failed else 'FAILED'}. {passed} passed; {failed} failed")
    return 1 if failed else 0


sys.exit(main())
