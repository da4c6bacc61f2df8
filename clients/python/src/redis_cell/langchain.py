"""A rate limiter for the chat models of LangChain, whose limit holds for all workers together."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from langchain_core.rate_limiters import BaseRateLimiter

from .answers import Key
from .away import AsyncGuard, Guard
from .client import AsyncCell, Cell
from .limiters import Counted
from .times import Seconds
from .waiting import AsyncRuns, async_wait, wait
from .wire import Call, Take

T = TypeVar("T")


class _Threaded:
    """A cell whose calls run in a thread. Its waits do not."""

    def __init__(self, cell: Cell | Guard) -> None:
        self.cell = cell

    async def run(self, call: Call[T]) -> T:
        return await asyncio.to_thread(self.cell.run, call)


class RateLimiter(BaseRateLimiter):
    """One limit for all chat models and all processes that have a limiter with the same key.

    `cell` is a Cell, or a Guard, which decides what happens if the server is unavailable. Calls for asyncio use
    `async_cell` if there is one, and else `cell` in a thread. A call that waits longer than `timeout` raises
    TimeoutError, because a chat model does not look at what `acquire` returns.
    """

    def __init__(
        self,
        cell: Cell | Guard,
        key: Key,
        limiter: Counted,
        *,
        timeout: Seconds | None = None,
        async_cell: AsyncCell | AsyncGuard | None = None,
    ) -> None:
        self.cell = cell
        self.async_cell: AsyncRuns = async_cell or _Threaded(cell)
        self.take = Take(key, limiter)
        self.timeout = timeout

    def acquire(self, *, blocking: bool = True) -> bool:
        """Waits for its turn. Without `blocking` it returns at once whether the call may be made."""
        answer = wait(self.cell, self.take, timeout=self.timeout if blocking else 0)
        return self._admitted(bool(answer), blocking)

    async def aacquire(self, *, blocking: bool = True) -> bool:
        """As `acquire`, for asyncio."""
        answer = await async_wait(self.async_cell, self.take, timeout=self.timeout if blocking else 0)
        return self._admitted(bool(answer), blocking)

    def _admitted(self, admitted: bool, blocking: bool) -> bool:
        if blocking and not admitted:
            raise TimeoutError(f"no turn within {self.timeout} seconds: {self.take.key!r}")
        return admitted
