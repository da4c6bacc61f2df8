"""Waiting for several limiters at once: calls that are refused are made again when they can be admitted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator
from typing import Protocol, TypeAlias, TypeVar

from . import wire
from .answers import Answer, Refused, Several
from .limiters import Lease
from .times import Seconds, micros
from .wire import Call, Take

T = TypeVar("T")

SOON = 0.1
"""How long to wait for a place, in seconds: its holder may release it long before its lease ends."""
SHORTEST = 0.001
"""The shortest wait, in seconds."""


class Runs(Protocol):
    """A Cell or a Guard."""

    def run(self, call: Call[T]) -> T: ...


class AsyncRuns(Protocol):
    """An AsyncCell or an AsyncGuard."""

    async def run(self, call: Call[T]) -> T: ...


Pauses: TypeAlias = Generator[float, Several[Answer], None]


def _pauses(takes: tuple[Take, ...], timeout: Seconds | None) -> Pauses:
    """How long to wait after each answer, in seconds. It ends with the answer that is the last."""
    end = None if timeout is None else time.monotonic() + micros(timeout, "timeout") / 1_000_000
    places = {take.key for take in takes if isinstance(take.limiter, Lease)}
    answer = yield 0
    while isinstance(answer.combined, Refused):
        pause = answer.combined.retry_after
        refusing = [key for key, row in answer.items() if isinstance(row, Refused)]
        if any(key in places for key in refusing):
            others = [answer[key].retry_after or 0 for key in refusing if key not in places]
            pause = max(SOON, *others) if others else min(SOON, pause)
        left = None if end is None else end - time.monotonic()
        if left is not None and pause > left:
            return
        answer = yield max(SHORTEST, pause)


def wait(cell: Runs, first: Take, *others: Take, timeout: Seconds | None) -> Several[Answer]:
    """Waits until `mtake` admits the call, and returns its answer. A timeout of None waits without a limit.

    Returns the refusal if the call cannot be admitted within `timeout`, as soon as that is known. Nothing is taken
    then.
    """
    pauses = _pauses((first, *others), timeout)
    next(pauses)
    while True:
        answer = cell.run(wire.mtake(first, *others))
        try:
            pause = pauses.send(answer)
        except StopIteration:
            return answer
        time.sleep(pause)


async def async_wait(cell: AsyncRuns, first: Take, *others: Take, timeout: Seconds | None) -> Several[Answer]:
    """As `wait`, for asyncio."""
    pauses = _pauses((first, *others), timeout)
    next(pauses)
    while True:
        answer = await cell.run(wire.mtake(first, *others))
        try:
            pause = pauses.send(answer)
        except StopIteration:
            return answer
        await asyncio.sleep(pause)
