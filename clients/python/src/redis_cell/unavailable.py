"""The choice that Guard and AsyncGuard require: how to decide calls while the server is unavailable."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, TypeVar, cast

from . import steps
from .answers import Answer, Balance, DecidedBy, Key, Together, balance_of
from .client import AsyncCell, Cell
from .commands import Asyncio, Blocking, Decisions
from .errors import FULL, is_full, is_unavailable
from .limiters import whole
from .local import LocalLimiters, Look, decided, together
from .sending import MARGIN, Ready
from .steps import Steps, Tasks
from .times import Seconds, micros
from .traffic import OVERDUE, AsyncTraffic, Exchange, Full, Overdue, Traffic, traffic_of
from .waiting import Plan
from .wire import Call, Hold, Pools, Take, takes_of

T = TypeVar("T")

_log = logging.getLogger("redis_cell")


@dataclass(frozen=True, slots=True)
class _AsksAgain:
    """The common part of FailOpen and FailClosed."""

    ask_again: Seconds = 1.0

    def __post_init__(self) -> None:
        micros(self.ask_again, "ask_again")


class FailOpen(_AsksAgain):
    """Admits every call. After `ask_again`, one call is sent to the server again."""

    __slots__ = ()


class FailClosed(_AsksAgain):
    """Refuses every call. After `ask_again`, one call is sent to the server again."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Local:
    """Decides in this process, with this process's share of each limit. `share` is the number of processes.

    A limit smaller than `share` is 1 for each process. After `ask_again`, one call is sent to the server again.
    """

    share: int
    ask_again: Seconds = 1.0

    def __post_init__(self) -> None:
        whole(self.share, "share", 1)
        micros(self.ask_again, "ask_again")


WhenUnavailable: TypeAlias = FailOpen | FailClosed | Local


def check_choice(choice: object) -> None:
    """Raises TypeError if an object is not a choice for when the server is unavailable."""
    if isinstance(choice, type):
        raise TypeError(f"when_unavailable needs an instance: {choice.__name__}(), not the class {choice.__name__}")
    if not isinstance(choice, (FailOpen, FailClosed, Local)):
        raise TypeError(f"when_unavailable must be FailOpen(), FailClosed() or Local(share), not {choice!r}")


class Unavailable(Exception):
    """The server is unavailable, so the call is decided without it."""


class Policy:
    """Decides whether a call goes to the server, and answers it otherwise. No I/O."""

    def __init__(self, choice: WhenUnavailable) -> None:
        check_choice(choice)
        self.choice = choice
        self.local = LocalLimiters(choice.share if isinstance(choice, Local) else 1)
        self.pause = micros(choice.ask_again, "ask_again") / 1_000_000
        self.again = 0.0
        self.failing = self.overdue = False
        self.failures = 0
        self.lock = threading.Lock()

    def queries(self) -> bool:
        """Whether this call is sent to the server. While that is unavailable, one call per `ask_again` is sent."""
        with self.lock:
            now = time.monotonic()
            if self.failing and now < self.again:
                return False
            self.again = now + self.pause
            return True

    def ready(self) -> Ready:
        """Returns a function that raises Unavailable if a later call has failed and none was answered since."""
        failures = self.failures

        def check(connection: Any = None, /) -> None:
            if self.failing and self.failures != failures:
                raise Unavailable

        return check

    @contextmanager
    def deciding(self) -> Generator[None, None, None]:
        """Ends the enclosed call without an answer if it is decided without the server."""
        with suppress(Unavailable):
            try:
                yield
            except Overdue:
                with self.lock:
                    first, self.overdue = not self.overdue, True
                if first:
                    why = f"no call on its connections was answered for {OVERDUE:g} seconds"
                    _log.warning("%s, and %s decides", why, type(self.choice).__name__)

    @contextmanager
    def watching(self, errors: Any, exchange: Exchange) -> Generator[None, None, None]:
        """Records whether the enclosed call was answered. Raises Unavailable if the server is unavailable."""
        try:
            yield
        except Unavailable:
            raise
        except Exception as error:
            # While the server is unavailable, calls that wait for it can occupy all connections.
            if not is_unavailable(errors, error) and not (self.failing and is_full(errors, error)):
                if isinstance(error, errors.ResponseError):
                    self._answered(exchange)
                raise
            with self.lock:
                self.again = time.monotonic() + self.pause
                first, self.failing = not self.failing, True
                self.failures += 1
            if first:
                _log.warning("the server is unavailable, and %s decides: %s", type(self.choice).__name__, error)
            raise Unavailable from error
        else:
            self._answered(exchange)

    def _answered(self, exchange: Exchange) -> None:
        """Records that the server has answered, if only with an error of the call."""
        exchange.answered = True
        with self.lock:
            back, self.failing, self.overdue = self.failing or self.overdue, False, False
        if back:
            _log.warning("the server decides again")

    def decide(
        self, chains: tuple[Pools, ...], *, saturate: bool, taking: bool, hold: Hold | None = None
    ) -> Together[Answer]:
        if isinstance(self.choice, Local):
            return self.local.decide(chains, saturate=saturate, taking=taking, hold=hold)
        if saturate:
            (take,) = takes_of(chains)
            chains = (Take(take.key, take.limit, min(take.quantity, take.limit.limit)),)
        judged, waits = decided(chains, self._look)
        return together(judged, waits, self._look, self.decided_by, taking)

    def settle_hold(self, chains: tuple[Pools, ...], hold: Hold) -> Together[Balance]:
        if isinstance(self.choice, Local):
            return self.local.settle_hold(chains, hold)
        rows: dict[Key, Balance] = {}
        for take in takes_of(chains):
            seen = self._look(take, 0, 0)
            rows[take.key] = balance_of(seen.limit, seen.remaining, 0, math.inf, False)
        return Together(min(rows.values(), key=lambda row: row.remaining), rows)

    def renew(self, take: Take) -> bool:
        # The server may know of a lease that this process does not know.
        return bool(self.decide((take,), saturate=False, taking=True)[take.key])

    def release(self, key: Key, holder: str | bytes) -> bool:
        return self.local.release(key, holder)

    def holders(self, key: Key) -> list[str]:
        return self.local.holders(key)

    @property
    def decided_by(self) -> DecidedBy:
        return "fail_open" if isinstance(self.choice, FailOpen) else "fail_closed"

    def _look(self, take: Take, quantity: int, after: int) -> Look:
        """Returns the state of a limiter that admits everything, or that admits nothing before the next call."""
        limit = take.limit.limit
        if isinstance(self.choice, FailOpen):
            return Look(limit, limit, 0, 0)
        wait = max(1, micros(max(0, self.again - time.monotonic()), "wait"))
        return Look(limit, limit if after >= wait else 0, wait, wait)


def _own(cell: Cell | AsyncCell, kind: type[Cell] | type[AsyncCell]) -> Cell | AsyncCell:
    """Returns the cell of a guard. Raises TypeError if it is not a cell, or a cell for the other guard."""
    guard, other = ("Guard", "AsyncGuard") if kind is Cell else ("AsyncGuard", "Guard")
    given = cast(object, cell)
    if isinstance(given, (Cell, AsyncCell)) and not isinstance(given, kind):
        raise TypeError(f"{guard} needs the cell {kind.__name__}, not {type(cell).__name__}: use {other}")
    if not hasattr(cell, "errors"):
        raise TypeError(f"{guard} needs a cell, not {type(cell).__name__}: {guard}({kind.__name__}(client), ...)")
    return cell


class _Guard(Decisions):
    """The common part of Guard and AsyncGuard."""

    cell: Any
    _kind: type[Cell] | type[AsyncCell]
    _traffic: type[Traffic] | type[AsyncTraffic]
    _sleep: Callable[[float], Any]
    _send: Callable[..., Any]
    """Sends a call, and waits for the answer until the timeout."""

    def __init__(self, cell: Cell | AsyncCell, when_unavailable: WhenUnavailable) -> None:
        self._policy = Policy(when_unavailable)
        self.cell = _own(cell, self._kind)

    def _run(self, call: Call[T]) -> Steps[T]:
        if call.waiting is None:
            return (yield from self._answer(call))
        plan = Plan(call, call.held, guarded=True)
        runs: Callable[[Steps[Any]], Any] = cast(Any, self)._runs
        return (yield from plan.answer_in_time(lambda probe: runs(self._answer(probe)), self.cell, self._sleep))

    def _answer(self, call: Call[T]) -> Steps[T]:
        if self._policy.queries():
            with self._policy.deciding():
                return (yield from self._query(call, self._policy.ready()))
        if call.decide is None:
            raise NotImplementedError(f"{call.name} cannot be decided without the server")
        return call.decide(self._policy)

    def _query(self, call: Call[T], ready: Ready) -> Steps[T]:
        traffic, errors, after = traffic_of(self.cell.pool, self._traffic), self.cell.errors, None
        while True:
            try:
                yield from traffic.begin(ready, after)
                exchange = Exchange()
                try:
                    with self._policy.watching(errors, exchange):
                        answer: T = yield partial(self._send, call, ready)
                        return answer
                finally:
                    traffic.end(exchange)
            except Full:
                # The error of a pool whose connections were in use for too long, with the text of both libraries.
                raise errors.ConnectionError(FULL[1]) from None
            except Exception as error:
                # Another client may use the pool, or the pool of one node of a cluster may be full.
                if not is_full(errors, error) or not traffic.under_way:
                    raise
                after = traffic.ended

    @property
    def unavailable(self) -> bool:
        """Whether calls are decided without the server now."""
        return self._policy.failing


class Guard(_Guard, Blocking):
    """The commands of a Cell that admit or refuse, with a choice for when the server is unavailable.

    `bthrottle` and `bmtake` wait like `wait`, and return None after their timeout.
    """

    cell: Cell
    _kind, _traffic, _sleep = Cell, Traffic, staticmethod(time.sleep)

    def __init__(self, cell: Cell, *, when_unavailable: WhenUnavailable) -> None:
        super().__init__(cell, when_unavailable)

    def run(self, call: Call[T]) -> T:
        """Sends a call to the server, or decides it without the server while that is known to be unavailable."""
        return steps.run(self._run(call))

    def _send(self, call: Call[T], ready: Ready) -> T:
        return self.cell.run(call, ready)


class AsyncGuard(_Guard, Asyncio):
    """The commands of an AsyncCell that admit or refuse, with a choice for when the server is unavailable.

    A call without an answer within `timeout` is decided without the server. Do not use asyncio.wait_for instead,
    because the guard would not learn that the server is late.
    """

    cell: AsyncCell
    _kind, _traffic, _sleep = AsyncCell, AsyncTraffic, staticmethod(asyncio.sleep)

    def __init__(self, cell: AsyncCell, *, when_unavailable: WhenUnavailable, timeout: Seconds | None = None) -> None:
        super().__init__(cell, when_unavailable)
        self._timeout = None if timeout is None else micros(timeout, "timeout", least=1) / 1_000_000
        self._late = Tasks()

    async def run(self, call: Call[T]) -> T:
        """Sends a call to the server, or decides it without the server while that is known to be unavailable."""
        return await steps.async_run(self._run(call))

    async def _send(self, call: Call[T], ready: Ready) -> T:
        if self._timeout is None:
            return await self.cell.run(call, ready)
        asking, begun = asyncio.ensure_future(self.cell.run(call, ready)), time.monotonic()
        try:
            await asyncio.wait([asking], timeout=self._timeout)
        except asyncio.CancelledError:
            await steps.to_its_end(self._given_up(call, asking, begun))
            raise
        if not asking.done():
            self._late.start(self._answered_late(call, asking, begun))
            raise asyncio.TimeoutError(f"no answer within {self._timeout:g} seconds")
        return asking.result()

    async def _answered_late(self, call: Call[T], asking: asyncio.Future[T], begun: float) -> None:
        """Waits for a late answer. If FailClosed has refused the call in the meantime, gives its units back."""
        with suppress(Exception):
            answer = await asyncio.wait_for(asking, MARGIN)
            if isinstance(self._policy.choice, FailClosed):
                await self.cell.give_back(call, answer, begun)

    async def _given_up(self, call: Call[T], asking: asyncio.Future[T], begun: float) -> None:
        """Cancels a call. If it already has its answer, gives its units back."""
        asking.cancel()
        await asyncio.wait([asking])
        if not asking.cancelled() and asking.exception() is None:
            await self.cell.give_back(call, asking.result(), begun)
