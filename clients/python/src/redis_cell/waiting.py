"""Waiting for several limiters at once, in the server if it can be, and else by asking again."""

from __future__ import annotations

import asyncio
import math
import time
import weakref
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from . import wire
from .answers import Answer, Refused, Several
from .away import AsyncGuard, Guard
from .client import AsyncCell, Cell
from .errors import is_away, is_full
from .limiters import Lease
from .times import Seconds, micros
from .wire import Call, Take

T = TypeVar("T")

SOON = 0.1
"""How long to wait before asking again for a place, in seconds: it may be free long before its lease ends."""
SHORTEST = 0.001
"""The shortest wait before asking again, in seconds."""
STRETCH = 30.0
"""How long a call waits in the server at a time, in seconds. A frozen server is noticed that late."""


class Runs(Protocol):
    """A Cell or a Guard."""

    def run(self, call: Call[T]) -> T: ...


class AsyncRuns(Protocol):
    """An AsyncCell or an AsyncGuard."""

    async def run(self, call: Call[T]) -> T: ...


_waiting: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


@contextmanager
def _connection(pool: Any) -> Generator[bool, None, None]:
    """Whether a call may occupy a connection while it waits: half of a pool is for calls that do not wait."""
    waiting = _waiting.get(pool, 0)
    if waiting >= getattr(pool, "max_connections", math.inf) // 2:
        yield False
        return
    _waiting[pool] = waiting + 1
    try:
        yield True
    finally:
        _waiting[pool] -= 1


class _Wait:
    """What `wait` and `async_wait` share. No I/O."""

    def __init__(
        self,
        cell: object,
        takes: tuple[Take, ...],
        timeout: Seconds | None,
        flow: str | bytes | None,
        weight: int | None,
    ) -> None:
        self.clock: Callable[[], float] = getattr(cell, "clock", time.monotonic)  # a fake has a clock of its own
        self.takes, self.flow, self.weight = takes, flow, weight
        self.take = wire.mtake(*takes)
        self.end = math.inf if timeout is None else self.clock() + micros(timeout, "timeout") / 1_000_000
        self.places = {take.key for take in takes if isinstance(take.limiter, Lease)}
        self.blocks = True

    def pause(self, answer: Several[Answer]) -> float | None:
        """How long to wait before asking again, in seconds. None if this answer is the last."""
        if not isinstance(answer.combined, Refused) or answer.combined.decided_by == "fail_closed":
            return None
        pause = answer.combined.retry_after
        refusing = [key for key, row in answer.items() if isinstance(row, Refused)]
        if any(key in self.places for key in refusing):
            others = [answer[key].retry_after or 0 for key in refusing if key not in self.places]
            pause = max(SOON, *others) if others else min(SOON, pause)
        return max(SHORTEST, pause) if pause <= self.end - self.clock() else None

    def stretch(self, pause: float) -> Call[Several[Answer] | None]:
        """The call that waits in the server."""
        timeout = max(SHORTEST, min(self.end - self.clock(), max(STRETCH, 2 * pause)))
        return wire.bmtake(*self.takes, timeout=timeout, flow=self.flow, weight=self.weight)

    def after(self, guarded: bool, errors: Any, error: Exception, pause: float) -> float | None:
        """How long to wait before asking again, after an error of the call that waits in the server. None: raise it."""
        if isinstance(error, NotImplementedError):  # the function library has no call that waits
            self.blocks = False
            return pause
        if is_full(errors, error):
            return pause
        return 0 if guarded and is_away(errors, error) else None  # the guard decides at once


def wait(
    cell: Runs,
    first: Take,
    *others: Take,
    timeout: Seconds | None,
    flow: str | bytes | None = None,
    weight: int | None = None,
) -> Several[Answer]:
    """Waits until all limiters admit the call, and returns the answer. A timeout of None waits without a limit.

    Returns the refusal if the call cannot be admitted within `timeout`. Nothing is taken then. The call waits in the
    server, as `bmtake` with `flow` and `weight`. By the function library, and while half of the client's connections
    are in use by calls that wait, it asks again when it may be admitted. A Guard decides if the server is unavailable.
    """
    plan = _Wait(cell, (first, *others), timeout, flow, weight)
    plain = cell.cell if isinstance(cell, Guard) else cell
    while True:
        answer = cell.run(plan.take)
        if (pause := plan.pause(answer)) is None:
            return answer
        if plan.blocks and isinstance(plain, Cell):
            with _connection(plain.pool) as free:
                if free:
                    try:
                        waited = plain.run(plan.stretch(pause))
                    except Exception as error:
                        again = plan.after(isinstance(cell, Guard), plain.errors, error, pause)
                        if again is None:
                            raise
                        pause = again
                    else:
                        if waited is not None:
                            return waited
                        pause = min(pause, SOON)
        getattr(cell, "sleep", time.sleep)(pause)


async def async_wait(
    cell: AsyncRuns,
    first: Take,
    *others: Take,
    timeout: Seconds | None,
    flow: str | bytes | None = None,
    weight: int | None = None,
) -> Several[Answer]:
    """As `wait`, for asyncio."""
    plan = _Wait(cell, (first, *others), timeout, flow, weight)
    plain = cell.cell if isinstance(cell, AsyncGuard) else cell
    while True:
        answer = await cell.run(plan.take)
        if (pause := plan.pause(answer)) is None:
            return answer
        if plan.blocks and isinstance(plain, AsyncCell):
            with _connection(plain.pool) as free:
                if free:
                    try:
                        waited = await plain.run(plan.stretch(pause))
                    except Exception as error:
                        again = plan.after(isinstance(cell, AsyncGuard), plain.errors, error, pause)
                        if again is None:
                            raise
                        pause = again
                    else:
                        if waited is not None:
                            return waited
                        pause = min(pause, SOON)
        await getattr(cell, "sleep", asyncio.sleep)(pause)
