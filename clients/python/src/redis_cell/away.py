"""What happens to a call if the server is unavailable: the choice that Guard and AsyncGuard require."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec, TypeAlias, TypeVar, cast, overload

from . import answers, wire
from .answers import Admitted, Answer, DecidedBy, Key, Refused, RefusedForever, Several
from .client import AsyncCell, AsyncPlaces, Cell, Places, as_method
from .errors import FULL, is_away, is_full
from .local import LocalLimiters
from .sending import Ready
from .times import Seconds, micros
from .traffic import Full, Overdue, Place, async_traffic_of, traffic_of
from .waiting import Plan, async_waited, waited
from .wire import Call, Take

P = ParamSpec("P")
T = TypeVar("T")

_log = logging.getLogger("redis_cell")


@dataclass(frozen=True, slots=True)
class FailOpen:
    """Admits every call. After `ask_again` one call asks the server again."""

    ask_again: Seconds = 1.0


@dataclass(frozen=True, slots=True)
class FailClosed:
    """Refuses every call. After `ask_again` one call asks the server again."""

    ask_again: Seconds = 1.0


@dataclass(frozen=True, slots=True)
class Local:
    """Decides in this process, with one part in `share` of each limit: `share` is the number of processes.

    A limit that is smaller than `share` is 1 for each process. After `ask_again` one call asks the server again.
    """

    share: int
    ask_again: Seconds = 1.0

    def __post_init__(self) -> None:
        if self.share < 1:
            raise ValueError(f"share must be at least 1, not {self.share}")


Away: TypeAlias = FailOpen | FailClosed | Local


class Unavailable(Exception):
    """The server is unavailable, so the call is decided without it."""


class Policy:
    """Whether to ask the server, and what to answer without it. No I/O."""

    def __init__(self, away: Away) -> None:
        self.away = away
        self.local = LocalLimiters(away.share if isinstance(away, Local) else 1)
        self.pause = micros(away.ask_again, "ask_again") / 1_000_000
        self.again = 0.0
        self.failing = False
        self.failures = 0
        self.lock = threading.Lock()

    def asks(self) -> bool:
        """Whether this call asks the server. While the server is unavailable, one call in `ask_again` does."""
        with self.lock:
            now = time.monotonic()
            if self.failing and now < self.again:
                return False
            self.again = now + self.pause
            return True

    def ready(self) -> Ready:
        """A function that raises Unavailable if a call has failed since now, and the server has not answered again."""
        failures = self.failures

        def check() -> None:
            if self.failing and self.failures != failures:
                raise Unavailable

        return check

    @contextmanager
    def watching(self, errors: Any, place: Place) -> Generator[None, None, None]:
        """Notes whether the call within was answered. Raises Unavailable in place of an error that means that."""
        try:
            yield
        except Unavailable:
            raise
        except Exception as error:
            # While the server is unavailable, calls that wait for it can keep all connections in use.
            if not is_away(errors, error) and not (self.failing and is_full(errors, error)):
                if isinstance(error, errors.ResponseError):
                    self._answered(place)
                raise
            with self.lock:
                self.again = time.monotonic() + self.pause
                first, self.failing = not self.failing, True
                self.failures += 1
            if first:
                _log.warning("the server is unavailable, and %s decides: %s", type(self.away).__name__, error)
            raise Unavailable from error
        else:
            self._answered(place)

    def _answered(self, place: Place) -> None:
        """Notes that the server has answered, if only with an error of that call."""
        place.answered = True
        with self.lock:
            back, self.failing = self.failing, False
        if back:
            _log.warning("the server decides again")

    def decide(self, takes: tuple[Take, ...], *, saturate: bool, taking: bool) -> Several[Answer]:
        if isinstance(self.away, Local):
            return self.local.decide(takes, saturate=saturate, taking=taking)
        rows = {take.key: self._row(take, saturate, taking) for take in takes}
        return Several(answers.combined(rows, [take.key for take in takes if not take.shadow]), rows)

    def release(self, key: Key, holder: str | bytes) -> bool:
        return self.local.release(key, holder)

    def _row(self, take: Take, saturate: bool, taking: bool) -> Answer:
        limit = take.limiter.limit
        decided_by: DecidedBy = "fail_open" if isinstance(self.away, FailOpen) else "fail_closed"
        if take.quantity > limit and not saturate:
            # The server would say the same whatever the state of the limiter.
            return RefusedForever(limit=limit, remaining=0, reset_after=0, decided_by=decided_by)
        if isinstance(self.away, FailOpen):
            taken = min(take.quantity, limit) if taking else 0
            return Admitted(limit=limit, remaining=limit, reset_after=0, taken=taken, decided_by=decided_by)
        wait = max(0, self.again - time.monotonic())
        return Refused(limit=limit, remaining=0, reset_after=wait, retry_after=wait, decided_by=decided_by)


class Guarded(Generic[P, T]):
    """A function of `wire` as a method of Guard, which returns the answer, and of AsyncGuard, which is awaited."""

    def __init__(self, build: Callable[P, Call[T]]) -> None:
        self.method = as_method(build)
        self.__doc__ = build.__doc__

    @overload
    def __get__(self, guard: None, owner: type) -> Guarded[P, T]: ...
    @overload
    def __get__(self, guard: Guard, owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, guard: AsyncGuard, owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(
        self, guard: Guard | AsyncGuard | None, owner: type
    ) -> Guarded[P, T] | Callable[P, T] | Callable[P, Coroutine[Any, Any, T]]:
        method: Callable[..., Any] = self.method if guard is None else self.method.__get__(guard)
        return method


class Decisions:
    """The commands that admit or refuse, and those for places, each with the arguments of its function in `wire`.

    `bthrottle` and `bmtake` wait as `wait` does, and return None after their timeout.
    """

    throttle = Guarded(wire.throttle)
    bucket = Guarded(wire.bucket)
    funnel = Guarded(wire.funnel)
    fixed = Guarded(wire.fixed)
    window = Guarded(wire.window)
    log = Guarded(wire.log)
    peek = Guarded(wire.peek)
    acquire = Guarded(wire.acquire)
    renew = Guarded(wire.renew)
    release = Guarded(wire.release)
    mtake = Guarded(wire.mtake)
    mpeek = Guarded(wire.mpeek)
    bthrottle = Guarded(wire.bthrottle)
    bmtake = Guarded(wire.bmtake)


def _decided(policy: Policy, call: Call[T]) -> T:
    if call.decide is None:
        raise NotImplementedError(f"{call.name} cannot be decided without the server")
    return call.decide(policy)


def _full(errors: Any) -> Exception:
    """The error of a pool whose connections were all in use for too long, in the words of both libraries."""
    return cast(Exception, errors.ConnectionError(FULL[1]))


class Guard(Decisions, Places):
    """The commands of a Cell that admit or refuse, with a choice for the time in which the server is unavailable."""

    def __init__(self, cell: Cell, *, away: Away) -> None:
        self.cell = cell
        self._policy = Policy(away)

    @property
    def unavailable(self) -> bool:
        """Whether calls are decided without the server now."""
        return self._policy.failing

    def run(self, call: Call[T]) -> T:
        """Asks the server if it is not known to be unavailable, and decides without it if it is."""
        if call.waiting is not None:
            plan = Plan(call, call.held, guarded=True)
            answer = waited(plan, self._run, self.cell)
            return cast(T, None if plan.over else answer)
        return self._run(call)

    def _run(self, call: Call[T]) -> T:
        if self._policy.asks():
            with suppress(Unavailable, Overdue):
                return self._ask(call, self.cell.errors, self._policy.ready())
        return _decided(self._policy, call)

    def _ask(self, call: Call[T], errors: Any, ready: Ready) -> T:
        traffic, after = traffic_of(self.cell.pool), None
        while True:
            try:
                with traffic.place(ready, after) as place, self._policy.watching(errors, place):
                    return self.cell.run(call, ready)
            except Full:
                raise _full(errors) from None
            except Exception as error:
                # Others use the pool as well, or it is one of a cluster's nodes.
                if not is_full(errors, error) or not traffic.under_way:
                    raise
                after = traffic.ended


class AsyncGuard(Decisions, AsyncPlaces):
    """The commands of an AsyncCell that admit or refuse, with a choice for the time in which the server is unavailable.

    A call that has no answer within `timeout` is decided without the server. By asyncio.wait_for the guard would not
    hear that the server is late.
    """

    def __init__(self, cell: AsyncCell, *, away: Away, timeout: Seconds | None = None) -> None:
        self.cell = cell
        self._policy = Policy(away)
        self._timeout = None if timeout is None else micros(timeout, "timeout", least=1) / 1_000_000

    @property
    def unavailable(self) -> bool:
        """Whether calls are decided without the server now."""
        return self._policy.failing

    async def run(self, call: Call[T]) -> T:
        """Asks the server if it is not known to be unavailable, and decides without it if it is."""
        if call.waiting is not None:
            plan = Plan(call, call.held, guarded=True)
            answer = await async_waited(plan, self._run, self.cell)
            return cast(T, None if plan.over else answer)
        return await self._run(call)

    async def _run(self, call: Call[T]) -> T:
        if self._policy.asks():
            with suppress(Unavailable, Overdue):
                return await self._ask(call, self.cell.errors, self._policy.ready())
        return _decided(self._policy, call)

    async def _ask(self, call: Call[T], errors: Any, ready: Ready) -> T:
        traffic, after = async_traffic_of(self.cell.pool), None
        while True:
            try:
                async with traffic.place(ready, after) as place:
                    with self._policy.watching(errors, place):
                        return await asyncio.wait_for(self.cell.run(call, ready), self._timeout)
            except Full:
                raise _full(errors) from None
            except Exception as error:
                # Others use the pool as well, or it is one of a cluster's nodes.
                if not is_full(errors, error) or not traffic.under_way:
                    raise
                after = traffic.ended
