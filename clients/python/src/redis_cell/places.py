"""Places that a block holds, and functions with a limit."""

from __future__ import annotations

import functools
import inspect
import logging
import secrets
from collections.abc import Callable
from types import TracebackType
from typing import Any, ParamSpec, TypeVar, cast

from . import wire
from .answers import Key
from .limiters import Lease, Limiter
from .times import Seconds
from .waiting import AsyncRuns, Runs, async_wait, wait
from .wire import Take

P = ParamSpec("P")
T = TypeVar("T")

_log = logging.getLogger("redis_cell")


class _Held:
    """What Place and AsyncPlace have in common."""

    def __init__(
        self, key: Key, limit: int, lease: Seconds, holder: str | bytes | None, timeout: Seconds | None
    ) -> None:
        self.key, self.timeout = key, timeout
        self.lease = Lease(limit, lease=lease, holder=secrets.token_hex(8) if holder is None else holder)

    def not_released(self, error: Exception) -> None:
        _log.warning("the place of %r was not released, and is free when its lease ends: %s", self.key, error)


class Place(_Held):
    """A place for the block of `with`."""

    def __init__(
        self,
        cell: Runs,
        key: Key,
        limit: int,
        lease: Seconds,
        holder: str | bytes | None = None,
        timeout: Seconds | None = 0,
    ) -> None:
        super().__init__(key, limit, lease, holder, timeout)
        self.cell = cell

    def renew(self) -> bool:
        """Holds the place for the time of another lease from now. False if it was lost."""
        return self.cell.run(wire.renew(self.key, self.lease))

    def __enter__(self) -> Place:
        wait(self.cell, Take(self.key, self.lease), timeout=self.timeout).or_raise()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.cell.run(wire.release(self.key, self.lease))
        except Exception as failure:
            self.not_released(failure)


class AsyncPlace(_Held):
    """A place for the block of `async with`."""

    def __init__(
        self,
        cell: AsyncRuns,
        key: Key,
        limit: int,
        lease: Seconds,
        holder: str | bytes | None = None,
        timeout: Seconds | None = 0,
    ) -> None:
        super().__init__(key, limit, lease, holder, timeout)
        self.cell = cell

    async def renew(self) -> bool:
        """Holds the place for the time of another lease from now. False if it was lost."""
        return await self.cell.run(wire.renew(self.key, self.lease))

    async def __aenter__(self) -> AsyncPlace:
        (await async_wait(self.cell, Take(self.key, self.lease), timeout=self.timeout)).or_raise()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.cell.run(wire.release(self.key, self.lease))
        except Exception as failure:
            self.not_released(failure)


def limited(
    cell: Runs | AsyncRuns, key: Key | Callable[..., Key], limiter: Limiter, *, timeout: Seconds | None = 0
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """A decorator: each call of the function takes a unit, or raises RateLimited.

    `key` is the key, or a function that makes it from the arguments of the call. A call waits up to `timeout` seconds.
    Coroutine functions need an AsyncCell or an AsyncGuard, and other functions a Cell or a Guard.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        def take(*args: P.args, **kwargs: P.kwargs) -> Take:
            return Take(key(*args, **kwargs) if callable(key) else key, limiter)

        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def awaited(*args: P.args, **kwargs: P.kwargs) -> Any:
                answer = await async_wait(cast(AsyncRuns, cell), take(*args, **kwargs), timeout=timeout)
                answer.or_raise()
                return await cast(Any, function)(*args, **kwargs)

            return cast(Callable[P, T], awaited)

        @functools.wraps(function)
        def called(*args: P.args, **kwargs: P.kwargs) -> T:
            wait(cast(Runs, cell), take(*args, **kwargs), timeout=timeout).or_raise()
            return function(*args, **kwargs)

        return called

    return decorate
