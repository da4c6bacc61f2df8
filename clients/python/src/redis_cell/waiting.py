"""Waiting for several limiters at once, in the server if it can be, and else by asking again."""

from __future__ import annotations

import asyncio
import math
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Any, Generic, Protocol, TypeVar, cast

from . import wire
from .answers import Answer, Key, Refused, Several
from .client import AsyncCell, Cell
from .errors import is_away, is_full
from .times import Seconds, micros
from .wire import Call, Take, Waiting

T = TypeVar("T")

SOON = 0.1
"""How long to wait before asking again for a place, in seconds: it may be free long before its lease ends."""
SHORTEST = 0.001
"""The shortest wait before asking again, in seconds."""
HALF_A_MICROSECOND = 0.000_000_5
STRETCH = 30.0
"""How long a call waits in the server at a time, in seconds. A frozen server is noticed that late."""


AGAIN = 1.0
"""How long to wait at most before asking again while the server is unavailable, in seconds."""


class Runs(Protocol):
    """A Cell or a Guard."""

    def run(self, call: Call[T]) -> T: ...


class AsyncRuns(Protocol):
    """An AsyncCell or an AsyncGuard."""

    async def run(self, call: Call[T]) -> T: ...


_waiting: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
_counting = threading.Lock()


@contextmanager
def _connection(pool: Any) -> Generator[bool, None, None]:
    """Whether a call may occupy a connection while it waits: half of a pool is for calls that do not wait."""
    with _counting:
        free = _waiting.get(pool, 0) < getattr(pool, "max_connections", math.inf) // 2
        if free:
            _waiting[pool] = _waiting.get(pool, 0) + 1
    try:
        yield free
    finally:
        if free:
            with _counting:
                _waiting[pool] -= 1


class Plan(Generic[T]):
    """What waits for threads and for asyncio share. No I/O."""

    def __init__(
        self, call: Call[T], timeout: Seconds | None, guarded: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        assert call.waiting is not None
        self.waiting: Waiting[T] = call.waiting
        self.guarded, self.clock = guarded, clock
        self.shortest = SHORTEST if clock is time.monotonic else 0  # a fake sleeps as long as is due
        self.end = math.inf if timeout is None else clock() + micros(timeout, "timeout") / 1_000_000
        self.blocks = True
        self.over = False
        """Whether the answer is a refusal because the time is over."""

    def pause(self, answer: Any) -> float | None:
        """How long to wait before asking again, in seconds. None if this answer is the last."""
        combined = cast(Several[Answer], answer).combined if isinstance(answer, Several) else answer
        if not isinstance(combined, Refused) or combined.decided_by == "fail_closed" or self.waiting.maxlen == 0:
            return None
        pause = combined.retry_after
        rows = cast(Several[Answer], answer) if isinstance(answer, Several) else dict[Key, Answer]()
        refusing = [key for key, row in rows.items() if isinstance(row, Refused)]
        if any(key in self.waiting.places for key in refusing):
            others = [rows[key].retry_after or 0 for key in refusing if key not in self.waiting.places]
            pause = max(SOON, *others) if others else min(SOON, pause)
        if pause > self.end - self.clock() + HALF_A_MICROSECOND:
            self.over = True
            return None
        # The server may be back before this process admits the call by itself.
        by_itself = self.guarded and combined.decided_by != "server"
        return max(self.shortest, min(pause, AGAIN) if by_itself else pause)

    def asks(self, answer: Any) -> bool:
        """Whether the call can wait in the server."""
        combined = cast(Several[Answer], answer).combined if isinstance(answer, Several) else answer
        return self.blocks and combined.decided_by == "server"

    def stretch(self, pause: float) -> Call[T]:
        """The call that waits in the server."""
        return self.waiting.within(max(SHORTEST, min(self.end - self.clock(), max(STRETCH, 2 * pause))))

    def after(self, errors: Any, error: Exception, pause: float) -> float | None:
        """How long to wait before asking again, after an error of the call that waits in the server. None: raise it."""
        if isinstance(error, NotImplementedError):  # the function library has no call that waits
            self.blocks = False
            return pause if self.waiting.maxlen is None else None
        if is_full(errors, error):
            return pause
        return 0 if self.guarded and is_away(errors, error) else None  # the guard decides at once


def waited(
    plan: Plan[T], run: Callable[[Call[Any]], Any], cell: Cell | None, sleep: Callable[[float], None] = time.sleep
) -> Any:
    """Waits for the answer of a call, in the server of `cell` or, without one, by asking again. `run` asks."""
    while True:
        answer = run(plan.waiting.probe)
        if (pause := plan.pause(answer)) is None:
            return answer
        if cell is not None and plan.asks(answer):
            with _connection(cell.pool) as free:
                if free:
                    try:
                        admitted = cell.run(plan.stretch(pause))
                    except Exception as error:
                        again = plan.after(cell.errors, error, pause)
                        if again is None:
                            raise
                        pause = again
                    else:
                        if admitted is not None:
                            return admitted
                        pause = min(pause, SOON)
        sleep(pause)


async def async_waited(
    plan: Plan[T],
    run: Callable[[Call[Any]], Awaitable[Any]],
    cell: AsyncCell | None,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> Any:
    """As `waited`, for asyncio."""
    while True:
        answer = await run(plan.waiting.probe)
        if (pause := plan.pause(answer)) is None:
            return answer
        if cell is not None and plan.asks(answer):
            with _connection(cell.pool) as free:
                if free:
                    try:
                        admitted = await cell.run(plan.stretch(pause))
                    except Exception as error:
                        again = plan.after(cell.errors, error, pause)
                        if again is None:
                            raise
                        pause = again
                    else:
                        if admitted is not None:
                            return admitted
                        pause = min(pause, SOON)
        await sleep(pause)


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
    plain = getattr(cell, "cell", cell)  # that of a guard
    clock = getattr(cell, "clock", time.monotonic)  # a fake has a clock of its own
    plan = Plan(wire.bmtake(first, *others, timeout=None, flow=flow, weight=weight), timeout, plain is not cell, clock)
    own = plain if isinstance(plain, Cell) else None
    return cast(Several[Answer], waited(plan, cell.run, own, getattr(cell, "sleep", time.sleep)))


async def async_wait(
    cell: AsyncRuns,
    first: Take,
    *others: Take,
    timeout: Seconds | None,
    flow: str | bytes | None = None,
    weight: int | None = None,
) -> Several[Answer]:
    """As `wait`, for asyncio."""
    plain = getattr(cell, "cell", cell)
    clock = getattr(cell, "clock", time.monotonic)
    plan = Plan(wire.bmtake(first, *others, timeout=None, flow=flow, weight=weight), timeout, plain is not cell, clock)
    own = plain if isinstance(plain, AsyncCell) else None
    return cast(Several[Answer], await async_waited(plan, cell.run, own, getattr(cell, "sleep", asyncio.sleep)))
