"""Budgets of runs, subagents and tools. A step takes tokens, money and steps from all its budgets at once."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context, Decimal
from fractions import Fraction
from functools import partial
from typing import Any, Generic, TypeAlias, TypeVar, cast

from . import wire
from .accounts import AsyncBlock, Block, SyncBlock
from .answers import Answer, Key, RateLimited, Refused, RefusedForever, Together
from .limiters import Fixed, Lease, check_name, function, of_kind, several_names, whole
from .steps import Asyncio, Blocking, Method, Steps
from .times import Seconds, micros
from .waiting import AsyncRuns, Runs, check_runs
from .wire import Once, Pools, Release, Settle, Take

_log = logging.getLogger("redis_cell")

Unit: TypeAlias = str
"""A unit of budgets: `tokens`, `dollars` or `steps`."""
UNITS = ("tokens", "dollars", "steps")
Dollars: TypeAlias = Decimal | str | float
Amounts: TypeAlias = dict[Unit, int]
"""Tokens, micro-dollars and steps."""
Left: TypeAlias = dict[Unit, int | Decimal]
"""Tokens, dollars and steps."""

MICRO = 1_000_000
MOST = 2**53 - 1
"""The largest amount: the largest integer that a function can reply."""
MOST_USERS = 10_000
"""The most tools of a run, in all its children."""
DAY = 86_400
_EXACT = Context(prec=100, rounding=ROUND_CEILING)
"""For sums of money, because the caller's own context may have fewer digits."""


def micro_dollars(dollars: Dollars, name: str = "a price", *, least: int = 0) -> int:
    """Returns a price in millionths of a dollar, rounded up. Raises an error that names it."""
    if not isinstance(cast(object, dollars), (Decimal, str, int, float)) or isinstance(dollars, bool):
        raise TypeError(f"{name} must be a number of dollars, not {dollars!r}")
    try:
        # Twelve digits of a float, because sums of floats have rounding errors after these, which would be rounded up.
        text = f"{dollars:.12g}" if isinstance(dollars, float) else str(dollars)
        micros = int(_EXACT.multiply(Decimal(text), MICRO).to_integral_value(ROUND_CEILING))
    except (ArithmeticError, ValueError):
        raise ValueError(f"{name} must be a number of dollars, not {dollars!r}") from None
    if not least <= micros <= MOST:
        raise ValueError(f"{name} must be from {Decimal(least) / MICRO} to {MOST // MICRO} dollars, not {dollars}")
    return micros


def _amounts(given: Mapping[Unit, Any], least: int) -> Amounts:
    """Returns amounts as they are counted. Raises an error that names a wrong amount."""
    amounts = Amounts()
    for unit, amount in given.items():
        if amount is None:
            continue
        if unit == "dollars":
            amounts[unit] = micro_dollars(amount, "dollars", least=least)
        else:
            amounts[unit] = whole(amount, unit, least, MOST)
    return amounts


def _unit_of(key: str) -> Unit:
    return key.rpartition(":")[2]


def _shown(unit: Unit, amount: int) -> int | Decimal:
    return _EXACT.divide(Decimal(amount), MICRO) if unit == "dollars" else amount


class BudgetExceeded(RateLimited):
    """A budget has too little left for a step. The text of the error tells a model how much is left."""

    def __init__(
        self, answer: Refused | RefusedForever, key: Key | None, budget: str, unit: Unit, left: int | Decimal, step: str
    ) -> None:
        super().__init__(answer, key)
        self.budget, self.unit, self.left, self.step = budget, unit, left, step
        text = f"the step {step!r} needs more {unit} than the budget {budget!r} has: {left} left"
        if answer.decided_by == "fail_closed":
            text = f"the server is unavailable, so the step {step!r} of the budget {budget!r} is refused"
        self.args = (text,)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.answer, self.key, self.budget, self.unit, self.left, self.step)


@dataclass(frozen=True, slots=True)
class BudgetWarning:
    """A budget of which a share is used or held for the first time."""

    budget: str
    unit: Unit
    share: float
    left: int | Decimal
    limit: int | Decimal

    def __str__(self) -> str:
        return (
            f"the budget {self.budget!r} has used {self.share:.0%} of its {self.unit}: {self.left} of {self.limit} left"
        )


def _log_warning(warning: BudgetWarning) -> None:
    _log.warning("%s", warning)


@dataclass(slots=True)
class _Run:
    """What all budgets of a run have in common."""

    cell: Any
    name: str
    idle: Seconds
    period: Seconds
    warn_at: tuple[float, ...]
    on_warning: Callable[[BudgetWarning], None]
    tools: frozenset[str] | None
    warned: dict[Key, float]
    """The warnings that were given, and until when the server knows of them, as time.monotonic()."""

    @property
    def prefix(self) -> str:
        return f"{{{self.name}}}"

    def total(self, limit: int) -> Fixed:
        return Fixed.total(limit, idle=self.idle)

    def later(self, name: str) -> str:
        return f"{self.prefix}:later:{name}"

    def record(self, text: str) -> Lease:
        """Returns a text that the server keeps, as the holder of a place."""
        return Lease(1, lease=self.idle, holder=text)


B = TypeVar("B", bound="_Budget")


class _Budget:
    """The common part of Budget and AsyncBudget."""

    def __init__(
        self,
        cell: Runs | AsyncRuns,
        name: str,
        *,
        tokens: int | None = None,
        dollars: Dollars | None = None,
        steps: int | None = None,
        tools: Collection[str] | None = None,
        idle: Seconds = DAY,
        period: Seconds = 60,
        warn_at: Collection[float] = (0.8,),
        on_warning: Callable[[BudgetWarning], None] = _log_warning,
    ) -> None:
        check_runs(cell, type(self).__name__, awaited=isinstance(self, AsyncBudget))
        check_name(name, "the name of a run", "{}")
        if micros(idle, "idle", least=1) <= micros(period, "period", least=1):
            raise ValueError(f"idle must be longer than period, not {idle}")
        if isinstance(cast(object, warn_at), str) or not isinstance(cast(object, warn_at), Collection):
            raise TypeError(f"warn_at must be several shares, not {warn_at!r}")
        for share in warn_at:
            if not 0 < of_kind(share, "a share of warn_at", float, int) <= 1:
                raise ValueError(f"warn_at must be shares above 0 and at most 1, not {share}")
        function(on_warning, "on_warning")
        run = _Run(cell, name, idle, period, tuple(warn_at), on_warning, several_names(tools, "tools"), {})
        self._begin(run, None, "", {"tokens": tokens, "dollars": dollars, "steps": steps})

    def _begin(self, run: _Run, parent: _Budget | None, path: str, given: Mapping[Unit, Any]) -> None:
        self.run, self._parent, self._path = run, parent, path
        self.name = run.name + path
        """The name of the run, and of the children down to this one, as in `run:4/subagent`."""
        self._limits = _amounts(given, 1)
        if not self._limits:
            raise ValueError(f"the budget {self.name!r} needs tokens, dollars or steps")
        for unit, limit in self._limits.items():
            above = parent.limit(unit) if parent else None
            if above is not None and limit > above:
                more, most = _shown(unit, limit), _shown(unit, above)
                raise ValueError(f"{unit} of the budget {self.name!r} are {more}, and those of its parents {most}")

    def child(
        self: B, name: str, *, tokens: int | None = None, dollars: Dollars | None = None, steps: int | None = None
    ) -> B:
        """Returns the budget of a part of the run, within this one. Sends nothing. A name is one budget everywhere."""
        child, given = object.__new__(type(self)), {"tokens": tokens, "dollars": dollars, "steps": steps}
        child._begin(self.run, self, f"{self._path}/{check_name(name, 'the name of a child', '{}:/')}", given)
        return child

    def limit(self, unit: Unit) -> int | None:
        """Returns the smallest limit of this budget and its parents. Dollars are in millionths. None without one."""
        above = self._parent.limit(unit) if self._parent else None
        own = self._limits.get(unit)
        return own if above is None else above if own is None else min(own, above)

    @property
    def _line(self) -> list[_Budget]:
        """This budget and its parents."""
        return [self, *(self._parent._line if self._parent else ())]

    def _key(self, unit: Unit) -> str:
        return f"{self.run.prefix}{self._path}:{unit}"

    def takes(self, amounts: Mapping[Unit, int]) -> list[tuple[_Budget, Unit, Take]]:
        """Returns the limiters of a step: of this budget and its parents."""
        return [
            (budget, unit, Take(budget._key(unit), self.run.total(limit), amounts.get(unit, 0)))
            for budget in self._line
            for unit, limit in budget._limits.items()
        ]

    def asked(self, given: Mapping[Unit, Any], what: str) -> Amounts:
        amounts = _amounts(given, 0)
        for unit in amounts:
            if self.limit(unit) is None:
                raise ValueError(f"{what} names {unit}, which the budget {self.name!r} does not have")
        return amounts

    def user(self, tool: str) -> str:
        # The names of models have slashes, which do not separate children.
        tool = tool.replace("%", "%25").replace("/", "%2F")
        return f"{self._path[1:]}/{tool}" if self._path else tool

    def rows(self, user: str, amounts: Mapping[Unit, int]) -> list[Take]:
        """Returns the counts of a tool, which refuse nothing."""
        run = self.run
        return [
            Take(f"{run.prefix}:used:{user}:{unit}", run.total(MOST), amounts.get(unit, 0))
            for unit in UNITS
            if self.limit(unit) is not None
        ]

    def _settle_later(self, name: str, usage: Callable[[Collection[Unit], str], Mapping[Unit, Any]]) -> Steps[None]:
        """Settles the usage of a step that was charged its estimate, once, whichever process calls it.

        `usage` returns the usage in these units, of a tool. A step of which nothing is noted stays as it is.
        """
        run, key = self.run, self.run.later(name)
        for record in cast(list[str], (yield partial(run.cell.run, wire.holders(key)))):
            tool, charged = cast(tuple[str, dict[str, int]], json.loads(record))
            used = _amounts(usage({_unit_of(each) for each in charged}, tool), 0)
            changes = [Settle(each, run.total(MOST), used[_unit_of(each)] - amount) for each, amount in charged.items()]
            call = wire.msettle(*changes, Release(key, run.record(record)), once=Once(f"{key}:settled", run.idle))
            yield partial(getattr(run.cell, "cell", run.cell).run, call)  # because a guard cannot decide this call

    @Method
    def left(self) -> Steps[Left]:
        """Returns the amounts that steps of this budget can still take, also from its parents. Dollars are a
        Decimal."""
        own = self.takes({})
        call = wire.mpeek(*(take for _, _, take in own), holds=f"{self.run.prefix}:holds")
        answer: Together[Answer] = yield partial(self.run.cell.run, call)
        left = Left()
        for _, unit, take in own:
            amount = _shown(unit, answer[take.key].remaining)
            left[unit] = min(amount, left.get(unit, amount))
        return left

    @Method
    def used(self) -> Steps[dict[str, Left]]:
        """Returns a row with the usage of each tool. The rows of a child begin with its name: `subagent/search`.

        In a tool's own name, `/` is `%2F` there, and `%` is `%25`.
        """
        run, within = self.run, f"{self._path[1:]}/" if self._path else ""
        names: list[str] = yield partial(run.cell.run, wire.holders(f"{run.prefix}:users"))
        users = {name: self.rows(name, {}) for name in sorted(names) if name.startswith(within)}
        table = dict[str, Left]()
        for user, takes in users.items():
            answer: Together[Answer] = yield partial(run.cell.run, wire.mpeek(*takes))
            if answer.combined.decided_by == "fail_closed":
                return {}  # the server has become unavailable
            units = [unit for unit in UNITS if self.limit(unit) is not None]
            counts = [answer[take.key].limit - answer[take.key].remaining for take in takes]
            table[user.removeprefix(within)] = {
                unit: _shown(unit, count) for unit, count in zip(units, counts, strict=True)
            }
        return table


N = TypeVar("N", bound=_Budget)


class _Step(Block[Amounts], Generic[N]):
    """The common part of Step and AsyncStep."""

    def __init__(self, budget: N, tool: str, given: Mapping[Unit, Any], owner: str | bytes | None) -> None:
        run = budget.run
        check_name(tool, "a tool")
        if run.tools is not None and tool not in run.tools:
            known = ", ".join(sorted(run.tools))
            raise ValueError(f"the budget {budget.name!r} has no tool {tool!r}: its tools are {known}")
        asked = budget.asked(given, f"the step {tool!r}")
        # A step that names no amount needs at least one unit, so that a budget that is used up refuses it.
        least = {unit: 1 for unit in UNITS if budget.limit(unit) is not None}
        self.budget, self.tool = budget, tool
        self._asked, self._added = asked, Amounts()
        self.holds: Key = f"{run.prefix}:holds"
        self.period, self.runs = run.period, run.cell
        super().__init__(self, {**least, **asked}, owner)

    def of(self, quantity: Amounts, /) -> tuple[Pools, ...]:
        """Returns the budgets that give amounts, and the list of tools."""
        run = self.budget.run
        users = Lease(MOST_USERS, lease=run.idle, holder=self.budget.user(self.tool))
        return *(take for _, _, take in self.budget.takes(quantity)), Take(f"{run.prefix}:users", users)

    def _settled(self, quantity: Amounts) -> tuple[Pools, ...]:
        # The whole usage is charged to a count of which nothing is held.
        user = self.budget.user(self.tool)
        return *(take for _, _, take in self.budget.takes(quantity)), *self.budget.rows(user, quantity)

    def used(self, *, tokens: int | None = None, dollars: Dollars | None = None) -> None:
        """Adds to the usage of the step. It is charged when the block ends, so this method sends nothing.

        A unit that is never named is charged as the step has held it, or not at all if an exception ends the block.
        Dollars are text or a Decimal, or a float of at most twelve digits, and are rounded up to a millionth.
        """
        amounts = self.budget.asked({"tokens": tokens, "dollars": dollars}, "used")
        self._check_open()
        with self._adding:
            for unit, amount in amounts.items():
                self._added[unit] = self._added.get(unit, 0) + amount

    def _later(self, name: str) -> Steps[None]:
        """Notes what the server has charged for this step, under a name by which `_settle_later` finds it."""
        if self.settled is None or self.settled.sent is None:
            return
        takes = cast(tuple[Take, ...], self._settled(self._spent(False)))
        charged = {str(take.key): take.quantity for take in takes if _unit_of(str(take.key)) != "steps"}
        run = self.budget.run
        record = run.record(json.dumps([self.tool, charged]))
        yield from self._run(wire.mtake(Take(run.later(name), record)))

    def _spent(self, failed: bool) -> Amounts:
        spent = {**({} if failed else self._asked), **self._added}
        return {**spent, "steps": 1} if self.budget.limit("steps") is not None else spent

    def _enter(self) -> Steps[None]:
        try:
            yield from super()._enter()
        except RateLimited as refusal:
            for budget, unit, take in self.budget.takes({}):
                if take.key == refusal.key:
                    raise self._exceeded(refusal, budget, unit) from None
            raise

    def _exceeded(self, refusal: RateLimited, budget: _Budget, unit: Unit) -> BudgetExceeded:
        assert self.refusal is not None and refusal.key is not None
        left = _shown(unit, self.refusal[refusal.key].remaining)
        return BudgetExceeded(refusal.answer, refusal.key, budget.name, unit, left, self.tool)

    def _settle(self, failed: bool) -> Steps[None]:
        yield from super()._settle(failed)
        run, settled = self.budget.run, self.settled
        if settled is None or settled.sent is None:
            return  # only the server knows the usage of all processes
        for budget, unit, take in self.budget.takes({}):
            row, limit = settled[take.key], take.limit.limit
            for share in run.warn_at:
                marker = f"{take.key!s}:warned:{share}"
                if limit - row.remaining < Fraction(str(share)) * limit or time.monotonic() < run.warned.get(marker, 0):
                    continue
                answer = yield from self._run(wire.mtake(Take(marker, run.total(1))))
                if answer.sent is None:
                    continue  # a later step warns
                run.warned[marker] = answer.sent + answer[marker].reset_after
                if answer:
                    left, most = _shown(unit, row.remaining), _shown(unit, limit)
                    run.on_warning(BudgetWarning(budget.name, unit, share, left, most))


class Step(_Step["Budget"], SyncBlock[Amounts]):
    """A step of an agent, in a `with` block. It raises BudgetExceeded if a budget has too little left."""


class AsyncStep(_Step["AsyncBudget"], AsyncBlock[Amounts]):
    """A step of an agent, in an `async with` block, like Step."""


class Budget(_Budget, Blocking):
    """The budget of a run of an agent: tokens, dollars and steps, for all its processes.

    A step takes from this budget and from all its parents, in one call of CL.MTAKE with a hold, so the units of a
    killed process come back after `period`. A run is forgotten when it has taken nothing for `idle`. `tools` are the
    allowed names of steps; without it, all names are. `on_warning` is called once for each unit and each share in
    `warn_at`, in the process of the step at whose end usage and holds together have reached the share. By default, it
    logs.

    Keys begin with `{name}`, so a run is one slot of a cluster. A step costs two calls, and as many keys as its budgets
    have units. A misspelt name raises an error that names the argument.

    >>> budget = Budget(cell, "run:4", tokens=250_000, dollars="3.00")
    >>> with budget.step("search", tokens=3_000) as step:
    ...     step.used(tokens=1874)
    """

    def step(
        self, tool: str, *, tokens: int | None = None, dollars: Dollars | None = None, owner: str | bytes | None = None
    ) -> Step:
        """Returns a context manager for a step, which holds these amounts.

        Of a unit of the budget that the step does not name, at least one must be left. `owner` is a unique name, by
        default a random one.
        """
        return Step(self, tool, {"tokens": tokens, "dollars": dollars}, owner)


class AsyncBudget(_Budget, Asyncio):
    """A Budget for asyncio."""

    def step(
        self, tool: str, *, tokens: int | None = None, dollars: Dollars | None = None, owner: str | bytes | None = None
    ) -> AsyncStep:
        """Returns a context manager for a step, like `Budget.step`."""
        return AsyncStep(self, tool, {"tokens": tokens, "dollars": dollars}, owner)
