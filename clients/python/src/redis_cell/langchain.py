"""A rate limiter for LangChain chat models, whose limit all workers share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from langchain_core.rate_limiters import BaseRateLimiter

from .answers import Answer, Key, Together
from .client import AsyncCell, Cell
from .limiters import Counted
from .testing import FakeCell
from .times import Seconds, micros
from .unavailable import AsyncGuard, Guard
from .waiting import AsyncRuns, async_wait, check_runs, wait
from .wire import Call, Take

T = TypeVar("T")


class _Threaded:
    """A cell whose calls run in a thread. Its waits do not occupy the thread."""

    sleep: Callable[[float], Awaitable[None]]

    def __init__(self, cell: Cell | Guard) -> None:
        self.cell = cell
        if isinstance(cell, FakeCell):  # its waits move its clock
            self.clock = cell.clock
            self.sleep = lambda seconds: asyncio.to_thread(cell.sleep, seconds)

    async def run(self, call: Call[T]) -> T:
        return await asyncio.to_thread(self.cell.run, call)


class RateLimiter(BaseRateLimiter):
    """One limit for the chat models of all processes that have a limiter with the same key.

    `cell` is a Cell, or a Guard, which decides while the server is unavailable. Calls for asyncio use `async_cell` if
    there is one, otherwise `cell` in a thread. A call that would wait longer than `timeout` raises TimeoutError,
    because a chat model ignores the result of `acquire`.
    """

    def __init__(
        self,
        cell: Cell | Guard,
        key: Key,
        limit: Counted,
        *,
        timeout: Seconds | None = None,
        async_cell: AsyncCell | AsyncGuard | None = None,
    ) -> None:
        check_runs(cell, "RateLimiter", awaited=False)
        if async_cell is not None:
            check_runs(async_cell, "async_cell of RateLimiter", awaited=True)
        self.cell = cell
        self.async_cell: AsyncRuns = async_cell or _Threaded(cell)
        self.take = Take(key, limit)
        if timeout is not None:
            micros(timeout, "timeout")
        self.timeout = timeout

    def acquire(self, *, blocking: bool = True) -> bool:
        """Waits until the call is admitted. Without `blocking`, returns immediately whether it is admitted."""
        answer = wait(self.cell, self.take, timeout=self.timeout if blocking else 0)
        return self._admitted(answer, blocking)

    async def aacquire(self, *, blocking: bool = True) -> bool:
        """Like `acquire`, for asyncio."""
        answer = await async_wait(self.async_cell, self.take, timeout=self.timeout if blocking else 0)
        return self._admitted(answer, blocking)

    def _admitted(self, answer: Together[Answer], blocking: bool) -> bool:
        if blocking and not answer:
            closed = answer.combined.decided_by == "fail_closed"
            late = "no wait helps" if answer.combined.retry_after is None else f"no turn within {self.timeout} seconds"
            why = "the server is unavailable" if closed else late
            raise TimeoutError(f"{why}: {self.take.key!r}")
        return bool(answer)
