"""Cells for the tests of applications: the limiters are those of Local, in this process, on a clock that tests move."""

from __future__ import annotations

import time
from typing import Any, TypeVar, cast

from .answers import Several
from .client import AsyncPlaces, Commands, Places
from .local import LocalLimiters
from .times import Seconds, micros
from .waiting import Plan, async_waited, waited
from .wire import Call

T = TypeVar("T")


class _Fake(Commands):
    """What FakeCell and AsyncFakeCell have in common."""

    def __init__(self) -> None:
        self._now = 0
        self._limiters = LocalLimiters(1, self._clock)

    def _clock(self) -> int:
        return self._now

    def advance(self, by: Seconds) -> None:
        """Moves the clock on. It stands still otherwise."""
        self._now += micros(by, "by") * 1000

    def clock(self) -> float:
        """The time of the clock in seconds."""
        return self._now / 1_000_000_000

    def decided(self, call: Call[T]) -> T:
        """Decides a call. Raises NotImplementedError for a command that needs the server."""
        if call.decide is not None:
            answer = call.decide(self._limiters)
            decided: object = answer
            if isinstance(decided, Several):
                # What a server has decided can be settled.
                object.__setattr__(cast(object, decided), "sent", time.monotonic())
            return answer
        if call.settle is not None:
            return call.settle(self._limiters)
        raise NotImplementedError(f"{call.name} needs the server")


class FakeCell(_Fake, Places):
    """In place of a Cell. Calls are decided by exact limiters in this process, and `advance` moves the clock on.

    A window of the calendar begins with its first call, and is as long as its unit. A call that waits moves the clock
    to the instant at which it is admitted, and does not sleep. Nobody else waits, so there are no turns. `top` needs
    the server.
    """

    def run(self, call: Call[T]) -> T:
        """Carries out a call that a function of `redis_cell.wire` has built."""
        if call.waiting is None:
            return self.decided(call)
        plan = Plan(call, call.held, guarded=False, clock=self.clock)
        answer = waited(plan, self.decided, None, self.sleep)
        return cast(T, None if plan.over else answer)

    def sleep(self, seconds: float) -> None:
        """What a call that waits does instead of waiting."""
        self.advance(seconds)


class AsyncFakeCell(_Fake, AsyncPlaces):
    """In place of an AsyncCell, as FakeCell."""

    async def sleep(self, seconds: float) -> None:
        """What a call that waits does instead of waiting."""
        self.advance(seconds)

    async def run(self, call: Call[T]) -> T:
        """Carries out a call that a function of `redis_cell.wire` has built."""
        if call.waiting is None:
            return self.decided(call)
        plan = Plan(call, call.held, guarded=False, clock=self.clock)
        answer = await async_waited(plan, self._decided, None, self.sleep)
        return cast(T, None if plan.over else answer)

    async def _decided(self, call: Call[Any]) -> Any:
        return self.decided(call)


__all__ = ["AsyncFakeCell", "FakeCell"]
