"""Waits for several limiters at once, in the server if possible, and otherwise by trying again."""

from __future__ import annotations

import asyncio
import inspect
import math
import threading
import time
import weakref
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from typing import Any, Generic, Protocol, TypeVar, cast

from . import steps, wire
from .answers import Answer, Key, Refused, Together
from .client import AsyncCell, Cell
from .errors import is_full, is_unavailable
from .steps import Steps
from .times import Seconds, micros
from .wire import Call, Hold, Take, Waiting

T = TypeVar("T")

SOON = 0.1
"""The pause before another try for a place, in seconds. The place may be free long before its lease ends."""
SHORTEST = 0.001
"""The shortest pause before another try, in seconds."""
HALF_A_MICROSECOND = 0.000_000_5
STRETCH = 30.0
"""How long a call waits in the server at a time, in seconds. A frozen server is noticed only after this time."""


AGAIN = 1.0
"""The longest pause before another try while the server is unavailable, in seconds."""


class Runs(Protocol):
    """A Cell or a Guard."""

    def run(self, call: Call[T]) -> T: ...


class AsyncRuns(Protocol):
    """An AsyncCell or an AsyncGuard."""

    async def run(self, call: Call[T]) -> T: ...


def check_runs(cell: object, user: str, *, awaited: bool) -> None:
    """Raises TypeError if `user` cannot send its calls through a cell or a guard."""
    run = getattr(cell, "run", None)
    if not callable(run) or inspect.iscoroutinefunction(run) != awaited:
        needed = "an AsyncCell or an AsyncGuard" if awaited else "a Cell or a Guard"
        raise TypeError(f"{user} needs {needed}, not {type(cell).__name__}")


_waiting: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
_counting = threading.Lock()


@contextmanager
def _connection(pool: Any) -> Generator[bool, None, None]:
    """Whether a call may occupy a connection while it waits. Half of a pool is for calls that do not wait."""
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
    """How a call waits, for threads and for asyncio."""

    def __init__(
        self, call: Call[T], timeout: Seconds | None, guarded: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        assert call.waiting is not None
        self.waiting: Waiting[T] = call.waiting
        self.guarded, self.clock = guarded, clock
        self.shortest = SHORTEST if clock is time.monotonic else 0  # a fake cell sleeps exactly as long as is due
        self.end = math.inf if timeout is None else clock() + micros(timeout, "timeout") / 1_000_000
        self.blocks = True
        self.over = False
        """Whether the answer is a refusal because the timeout has passed."""

    def pause(self, answer: Any) -> float | None:
        """Returns the pause before another try, in seconds. None if this answer is the last one."""
        combined = cast(Together[Answer], answer).combined if isinstance(answer, Together) else answer
        if not isinstance(combined, Refused) or combined.decided_by == "fail_closed" or self.waiting.maxlen == 0:
            return None
        pause = combined.retry_after
        rows = cast(Together[Answer], answer) if isinstance(answer, Together) else dict[Key, Answer]()
        refusing = [key for key, row in rows.items() if isinstance(row, Refused)]
        if any(key in self.waiting.places for key in refusing):
            others = [rows[key].retry_after or 0 for key in refusing if key not in self.waiting.places]
            pause = max(SOON, *others) if others else min(SOON, pause)
        if pause > self.end - self.clock() + HALF_A_MICROSECOND:
            self.over = True
            return None
        # The server may be available again before this process would admit the call.
        by_itself = self.guarded and combined.decided_by != "server"
        return max(self.shortest, min(pause, AGAIN) if by_itself else pause)

    def can_block(self, answer: Any) -> bool:
        """Whether the call can wait in the server."""
        combined = cast(Together[Answer], answer).combined if isinstance(answer, Together) else answer
        return self.blocks and combined.decided_by == "server"

    def stretch(self, pause: float) -> Call[T]:
        """Returns the call that waits in the server."""
        return self.waiting.within(max(SHORTEST, min(self.end - self.clock(), max(STRETCH, 2 * pause))))

    def after(self, errors: Any, error: Exception, pause: float) -> float | None:
        """Returns the pause before another try, after the call in the server raised an error. None: raise the error."""
        if isinstance(error, NotImplementedError):  # the function library has no call that waits
            self.blocks = False
            return pause if self.waiting.maxlen is None else None
        if is_full(errors, error):
            return pause
        return 0 if self.guarded and is_unavailable(errors, error) else None  # the guard decides immediately

    def answer(
        self, run: Callable[[Call[Any]], Any], cell: Cell | AsyncCell | None, sleep: Callable[[float], Any]
    ) -> Steps[Any]:
        """Waits for the answer: in the server of `cell`, or without a `cell` by trying again. `run` sends a call."""
        while True:
            answer = yield partial(run, self.waiting.probe)
            if (pause := self.pause(answer)) is None:
                return answer
            if cell is not None and self.can_block(answer):
                with _connection(cell.pool) as free:
                    if free:
                        try:
                            admitted = yield partial(cell.run, self.stretch(pause))
                        except Exception as error:
                            again = self.after(cell.errors, error, pause)
                            if again is None:
                                raise
                            pause = again
                        else:
                            if admitted is not None:
                                return admitted
                            pause = min(pause, SOON)
            yield partial(sleep, pause)

    def answer_in_time(
        self, run: Callable[[Call[Any]], Any], cell: Cell | AsyncCell | None, sleep: Callable[[float], Any]
    ) -> Steps[T]:
        """Like `answer`, but returns None instead of a refusal because the timeout has passed."""
        answer = yield from self.answer(run, cell, sleep)
        return cast(T, None if self.over else answer)


def _answer(
    cell: Any,
    kind: type[Cell] | type[AsyncCell],
    call: Call[Together[Answer] | None],
    timeout: Seconds | None,
    sleep: Callable[[float], Any],
) -> Steps[Together[Answer]]:
    plain = getattr(cell, "cell", cell)  # the cell of a guard
    clock = getattr(cell, "clock", time.monotonic)  # a fake cell has its own clock
    plan = Plan(call, timeout, plain is not cell, clock)
    own = plain if isinstance(plain, kind) else None  # neither a fake cell nor a cell whose calls run in a thread
    answer = yield from plan.answer(cell.run, own, getattr(cell, "sleep", sleep))
    return cast(Together[Answer], answer)


def wait(
    cell: Runs,
    first: Take,
    *others: Take,
    timeout: Seconds | None,
    flow: str | bytes | None = None,
    weight: int | None = None,
    hold: Hold | None = None,
) -> Together[Answer]:
    """Waits until all limiters admit the call, and returns the answer. With a timeout of None, it waits without limit.

    If the call cannot be admitted within `timeout`, returns the refusal, and nothing is taken. The call waits in the
    server, like `bmtake` with `flow`, `weight` and `hold`. With the function library, or while waiting calls use half
    of the client's connections, it tries again when it may be admitted. A Guard decides while the server is
    unavailable.
    """
    check_runs(cell, "wait", awaited=False)
    call = wire.bmtake(first, *others, timeout=None, flow=flow, weight=weight, hold=hold)
    return steps.run(_answer(cell, Cell, call, timeout, time.sleep))


async def async_wait(
    cell: AsyncRuns,
    first: Take,
    *others: Take,
    timeout: Seconds | None,
    flow: str | bytes | None = None,
    weight: int | None = None,
    hold: Hold | None = None,
) -> Together[Answer]:
    """Like `wait`, for asyncio."""
    check_runs(cell, "async_wait", awaited=True)
    return await async_answer(
        cell, wire.bmtake(first, *others, timeout=None, flow=flow, weight=weight, hold=hold), timeout
    )


async def async_answer(
    cell: AsyncRuns, call: Call[Together[Answer] | None], timeout: Seconds | None
) -> Together[Answer]:
    """Like `async_wait`, for a call of `wire.bmtake`."""
    return await steps.async_run(_answer(cell, AsyncCell, call, timeout, asyncio.sleep))
