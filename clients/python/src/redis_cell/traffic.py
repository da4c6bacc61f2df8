"""The guards' calls that are under way on a pool's connections, and the calls that wait for a connection.

If all connections are in use, for example after a server has frozen, a pool raises an error or lets callers wait,
although a guard may already know that the server is unavailable. So calls wait here, and are notified immediately.
"""

from __future__ import annotations

import asyncio
import math
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, cast

from .forks import in_each_child
from .sending import Ready
from .steps import Steps

T = TypeVar("T", bound="_Counts")

OVERDUE = 0.5
"""Calls are overdue when none of the calls under way has been answered for this time, in seconds."""
FIRST = 3.0
"""The same before the first answer, in seconds, because connections that are made together are ready together."""
GRACE = 0.1
"""How much longer a call waits for the replies that have arrived meanwhile, in seconds: the process may have been
busy."""
PATIENCE = 5.0
"""How long a call waits for a connection while others are answered, in seconds, if its pool has no timeout."""


class Overdue(Exception):
    """All connections are in use by overdue calls."""


class Full(Exception):
    """All connections have been in use for so long that the pool is too small."""


@dataclass(slots=True)
class Exchange:
    """A call that is under way, and its reply."""

    answered: bool = False
    """Whether the server has answered it, if only with an error."""


@dataclass(slots=True)
class Wait:
    """The wait of a call for a connection, in pauses, of which the last one is its grace."""

    end: float
    since: float = -math.inf
    """When the last pause began."""
    until: float = 0

    @property
    def pause(self) -> float:
        return self.until - time.monotonic()


class _Counts:
    """The common part of Traffic and AsyncTraffic."""

    lock: Any
    """Held while the counts change."""
    sleep: Callable[[float], Any]
    """Waits until `wake` is called, for at most this time."""
    wake: Callable[..., None]
    """Ends the wait of one call, or with True of all calls."""

    def __init__(self, pool: Any) -> None:
        # A cluster has a pool for each node, and here it is not known which pool a call needs.
        self.most: float = getattr(pool, "max_connections", math.inf)
        timeout = getattr(pool, "timeout", PATIENCE)
        self.patience: float = math.inf if timeout is None else timeout
        self.under_way = 0
        self.ended = 0
        self.answered_at = 0.0
        self.overdue = FIRST

    def begin(self, ready: Ready, after: int | None) -> Steps[None]:
        """Waits until a call can begin, unless `ready` or this object raises an exception."""
        wait = Wait(time.monotonic() + self.patience)
        with self.lock:
            try:
                while True:
                    ready()
                    if self.enters(wait, after):
                        return
                    yield partial(self.sleep, wait.pause)
            except BaseException:
                self.wake()  # this call may have been woken, and does not begin
                raise

    def end(self, exchange: Exchange) -> None:
        with self.lock:
            self.under_way -= 1
            self.ended += 1
            if exchange.answered:
                self.answered_at, self.overdue = time.monotonic(), OVERDUE
            self.wake(not exchange.answered)

    def enters(self, wait: Wait, after: int | None) -> bool:
        """Whether a call can begin now. A call that found the pool full begins only after another one has ended."""
        now = time.monotonic()
        if self.under_way < self.most and (after != self.ended or not self.under_way):
            if not self.under_way:
                self.answered_at = now
            self.under_way += 1
            return True
        overdue_at = self.answered_at + self.overdue
        due = min(overdue_at, wait.end)
        if wait.since >= due:  # this is its grace, which says nothing if it ends late
            if now < wait.until:
                return False
            if now < wait.until + GRACE:
                raise Overdue if now >= overdue_at else Full
        wait.since, wait.until = now, max(due, now + GRACE)
        return False


class Traffic(_Counts):
    """For threads."""

    def __init__(self, pool: Any) -> None:
        super().__init__(pool)
        self.lock = threading.Condition()
        in_each_child(self, Traffic.begin_again)

    def sleep(self, pause: float) -> None:
        self.lock.wait(pause)

    def wake(self, all_calls: bool = False) -> None:
        (self.lock.notify_all if all_calls else self.lock.notify)()

    def begin_again(self) -> None:
        """Resets a child process, which has no calls, and no thread that holds the lock."""
        self.lock = threading.Condition()
        self.under_way = 0


class AsyncTraffic(_Counts):
    """For asyncio."""

    def __init__(self, pool: Any) -> None:
        super().__init__(pool)
        self.lock = nullcontext()
        self.waiting: deque[asyncio.Future[None]] = deque()

    async def sleep(self, pause: float) -> None:
        future = asyncio.get_running_loop().create_future()
        self.waiting.append(future)
        await asyncio.wait([future], timeout=pause)
        future.cancel()

    def wake(self, all_calls: bool = False) -> None:
        while self.waiting:
            future = self.waiting.popleft()
            if not future.done():
                future.set_result(None)
                if not all_calls:
                    return


_of: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
_making = threading.Lock()


def traffic_of(pool: Any, kind: type[T]) -> T:
    """Returns the calls of all guards on a pool: a Traffic, or an AsyncTraffic of a pool for asyncio."""
    with _making:
        if (found := _of.get(pool)) is None:
            found = _of[pool] = kind(pool)
        return cast(T, found)


def _after_fork() -> None:
    global _making
    _making = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
