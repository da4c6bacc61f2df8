"""Proves the arithmetic of the core for all inputs, and holds the formulas to the code.

Each theorem is a function below. A doc comment of the core that says "Proved for all inputs" names it. The formulas
are functions of integers. z3 is given them with symbols. Then the same functions are given the numbers of a table that
the core has printed, and every row must agree. So neither can change without the other.

    cargo run --profile models -p redis-cell-verify table | python arithmetic.py

Integers are those of mathematics here, without an end. That none of them leaves the types of the core is a theorem too.
"""

import pathlib
import re
import sys

import z3

END = 2**63  # of instants, spans and quantities
U64, U128 = 2**64, 2**128


# The formulas, of Python's integers or z3's.


def div(one, other):
    """Rounded down, for an `other` above 0."""
    return one // other if isinstance(one, int) else one / other


def greater(one, other):
    return max(one, other) if isinstance(one, int) else z3.If(one >= other, one, other)


def less(one, other):
    """`one - other`, 0 when `other` is the larger one."""
    return greater(one - other, one - one)


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
    """cost(q) <= t if and only if q <= units(t): so units(t) is the largest quantity that fits into t."""
    count, period, q, t, c, u = symbols("count period q t c u")
    # c and u are the two quotients, by what a quotient is.
    given = [*a_rate(count, period), q >= 0, t >= 0]
    given += [c * count <= q * period, q * period < c * count + count]
    given += [u * period <= (t + 1) * count - 1, (t + 1) * count - 1 < u * period + period]
    # Two steps of one product each: cost(q) <= t, q * period < (t + 1) * count, q <= units(t).
    middle = q * period < (t + 1) * count
    yield given, (c <= t) == middle
    yield given, middle == (q <= u)


@theorem
def a_whole_interval_is_the_same():
    """Where T is a whole number, q * T and t / T are cost(q) and units(t)."""
    count, interval, q, t = symbols("count interval q t")
    given = [count >= 1, interval >= 1, q >= 0, t >= 0]
    k, rest = symbols("k rest")
    # q * T is the quotient of q * period and count, where period is T * count.
    units_times, whole = q * (interval * count), q * interval
    yield given, z3.And(whole * count <= units_times, units_times < whole * count + count)
    # t = k * T + rest, so (t + 1) * count - 1 lies between k * T * count and (k + 1) * T * count.
    quotient = [t == k * interval + rest, 0 <= rest, rest < interval, k >= 0]
    scaled = (t + 1) * count - 1
    yield [*given, *quotient], scaled >= (k * interval) * count
    yield [*given, *quotient], scaled < (k * interval + interval) * count


@theorem
def nothing_wraps():
    """Products stay below 2^128, and units(t) is at most t: no result is cut off."""
    count, period, q, t, u = symbols("count period q t u")
    given = [*a_rate(count, period), 0 <= q, q < END, 0 <= t, t < END]
    yield given, z3.And(q * period < U128, 0 <= q * period)
    yield given, z3.And((t + 1) * count < U128, (t + 1) * count - 1 >= 0)
    quotient = [u * period <= (t + 1) * count - 1]
    yield given + quotient, u <= t


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
    """remaining is admitted, and one unit more is not: the inverse, for the time that is left."""
    tolerance, debt, price, more, r = symbols("tolerance debt price more r")
    # Of the inverse: cost(q) <= t if and only if q <= units(t), for q = r and q = r + 1.
    left = less(tolerance, debt)
    given = [0 <= debt, debt <= tolerance, 0 <= price, price <= left, more > left]
    yield given, z3.And(is_admitted(tolerance, debt, price), z3.Not(is_admitted(tolerance, debt, more)))
    yield [0 <= debt, tolerance < debt], left == 0


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
    count, period, q, c = symbols("count period q c")
    given = [*a_rate(count, period), q >= 0, c * count <= q * period, q * period < c * count + count]
    yield given, z3.And(q * period < (c + 1) * count, c * count <= q * period)


@theorem
def rounded_waits_are_long_enough():
    """A span in whole units, rounded up, is not shorter, and longer by less than a unit."""
    span, unit, r = symbols("span unit r")
    given = [0 <= span, 1 <= unit, r * unit <= span + unit - 1, span + unit - 1 < r * unit + unit]
    yield given, z3.And(r * unit >= span, r * unit < span + unit)


def is_proved(given, claim):
    solver = z3.Solver()
    solver.set("timeout", 60_000)
    solver.add(*given, z3.Not(claim))
    result = solver.check()
    if result != z3.unsat:
        print(f"    {result}: {solver.model() if result == z3.sat else solver.reason_unknown()}")
    return result == z3.unsat


# The rows of the core.


def throttled(count, period, burst, debt, quantity):
    tolerance, price = cost(count, period, burst + 1), cost(count, period, quantity)
    if price > tolerance:
        return [2, -1, remaining(count, period, tolerance, debt), debt]
    if not is_admitted(tolerance, debt, price):
        return [1, wait(tolerance, debt, price), remaining(count, period, tolerance, debt), debt]
    return [0, -1, remaining(count, period, tolerance, debt + price), debt + price]


ROWS = {
    "time": lambda count, period, units: [c if (c := cost(count, period, units)) < END else -1],
    "units": lambda count, period, time: [units_in(count, period, time)],
    "throttle": throttled,
    "ceil": lambda span, unit: [ceil_to(span, unit)],
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
    rows, kinds, wrong = 0, set(), 0
    for line in sys.stdin:
        rows, wrong = rows + 1, wrong + (not agrees(line))
        kinds.add(line.split()[0])
    complete = kinds == set(ROWS) and rows >= 10_000
    print(f"{rows} rows of the core, {wrong} of them not by the formula")
    right = complete and not wrong
    passed, failed = passed + right, failed + (not right)
    print(f"test result: {'ok' if not failed else 'FAILED'}. {passed} passed; {failed} failed")
    return 1 if failed else 0


sys.exit(main())
