"""Places that a block holds, and functions with a limit."""

from __future__ import annotations

import functools
import inspect
import logging
import secrets
from collections.abc import Callable
from types import TracebackType
from typing import Any, Generic, ParamSpec, TypeVar, cast

from . import wire
from .answers import Key
from .limiters import Lease, Limit
from .times import Seconds
from .waiting import AsyncRuns, Runs, async_wait, wait
from .wire import Take

P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C")

_log = logging.getLogger("redis_cell")


class _Place(Generic[C]):
    """The common part of Place and AsyncPlace."""

    def __init__(
        self,
        cell: C,
        key: Key,
        places: int,
        lease: Seconds,
        holder: str | bytes | None = None,
        timeout: Seconds | None = 0,
    ) -> None:
        self.cell, self.key, self.timeout = cell, key, timeout
        self.lease = Lease(places, lease=lease, holder=secrets.token_hex(8) if holder is None else holder)

    def not_released(self, error: Exception) -> None:
        _log.warning("the place of %r was not released, and is free when its lease ends: %s", self.key, error)


class Place(_Place[Runs]):
    """A place that is held in a `with` block."""

    def renew(self) -> bool:
        """Renews the lease, which then ends one lease time from now. Returns False if the place is lost."""
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


class AsyncPlace(_Place[AsyncRuns]):
    """A place that is held in an `async with` block."""

    async def renew(self) -> bool:
        """Renews the lease, which then ends one lease time from now. Returns False if the place is lost."""
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
    cell: Runs | AsyncRuns, key: Key | Callable[..., Key], limit: Limit, *, timeout: Seconds | None = 0
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """A decorator: each call of the function takes a unit, or raises RateLimited.

    `key` is the key, or a function that returns it for the arguments of a call. A call waits up to `timeout` seconds.
    Coroutine functions need an AsyncCell or an AsyncGuard; other functions need a Cell or a Guard.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        def take(*args: P.args, **kwargs: P.kwargs) -> Take:
            return Take(key(*args, **kwargs) if callable(key) else key, limit)

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
