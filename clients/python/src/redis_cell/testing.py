"""Cells for the tests of applications, with the limiters of Local in this process, and a clock that tests move."""

from __future__ import annotations

import time
from typing import Any, TypeVar, cast

from . import steps
from .answers import Together
from .commands import Asyncio, Blocking, Commands
from .local import LocalLimiters
from .times import Seconds, micros
from .waiting import Plan
from .wire import Call

T = TypeVar("T")


class _Fake(Commands):
    """The common part of FakeCell and AsyncFakeCell."""

    def __init__(self) -> None:
        self._now = 0
        self._limiters = LocalLimiters(1, self._clock)

    def _clock(self) -> int:
        return self._now

    def advance(self, by: Seconds) -> None:
        """Moves the clock forward. Otherwise it stands still."""
        self._now += micros(by, "by") * 1000

    def clock(self) -> float:
        """The time of the clock in seconds."""
        return self._now / 1_000_000_000

    def decided(self, call: Call[T]) -> T:
        """Decides a call. Raises NotImplementedError for a command that needs the server."""
        if call.decide is not None:
            answer = call.decide(self._limiters)
            decided: object = answer
            if isinstance(decided, Together):
                # Units that a server has admitted can be settled.
                object.__setattr__(cast(object, decided), "sent", time.monotonic())
            return answer
        if call.settle is not None:
            return call.settle(self._limiters)
        raise NotImplementedError(f"{call.name} needs the server")


class FakeCell(_Fake, Blocking):
    """Replaces a Cell in tests. Exact limiters in this process decide calls, and `advance` moves the clock.

    A calendar window begins with its first call and has the length of its unit. A call that waits moves the clock to
    the instant at which it is admitted, and does not sleep. There are no other waiting clients, so there are no turns.
    `top` needs the server.
    """

    def run(self, call: Call[T]) -> T:
        """Decides a call that a function of `redis_cell.wire` has built."""
        if call.waiting is None:
            return self.decided(call)
        plan = Plan(call, call.held, guarded=False, clock=self.clock)
        return steps.run(plan.answer_in_time(self.decided, None, self.sleep))

    def sleep(self, seconds: float) -> None:
        """Moves the clock forward instead of waiting."""
        self.advance(seconds)


class AsyncFakeCell(_Fake, Asyncio):
    """Replaces an AsyncCell in tests, like FakeCell."""

    async def sleep(self, seconds: float) -> None:
        """Moves the clock forward instead of waiting."""
        self.advance(seconds)

    async def run(self, call: Call[T]) -> T:
        """Decides a call that a function of `redis_cell.wire` has built."""
        if call.waiting is None:
            return self.decided(call)
        plan = Plan(call, call.held, guarded=False, clock=self.clock)
        return await steps.async_run(plan.answer_in_time(self._decided, None, self.sleep))

    async def _decided(self, call: Call[Any]) -> Any:
        return self.decided(call)


__all__ = ["AsyncFakeCell", "FakeCell"]
