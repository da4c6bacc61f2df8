"""Places that a block holds, and functions with a limit."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import secrets
from collections.abc import Callable
from types import TracebackType
from typing import Any, Generic, ParamSpec, TypeVar, cast

from . import steps, wire
from .answers import Key
from .limiters import LIMITS, Lease, Limit, of_kind
from .sending import MARGIN
from .times import Seconds, micros
from .waiting import AsyncRuns, Runs, async_wait, check_runs, wait
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

    def not_released(self, error: BaseException) -> None:
        why = str(error) or type(error).__name__
        _log.warning("the place of %r was not released, and is free when its lease ends: %s", self.key, why)


class Place(_Place[Runs]):
    """A place that is held in a `with` block."""

    def renew(self) -> bool:
        """Renews the lease, which then ends one lease time from now. Returns False if the place is lost."""
        return self.cell.run(wire.renew(self.key, self.lease))

    def _leave(self) -> None:
        try:
            self.cell.run(wire.release(self.key, self.lease))
        except BaseException as failure:
            self.not_released(failure)
            if not isinstance(failure, Exception):
                raise

    def __enter__(self) -> Place:
        try:
            wait(self.cell, Take(self.key, self.lease), timeout=self.timeout).or_raise()
        except BaseException as error:
            if not isinstance(error, Exception):  # the call that was interrupted may have been admitted
                self._leave()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()


class AsyncPlace(_Place[AsyncRuns]):
    """A place that is held in an `async with` block."""

    async def renew(self) -> bool:
        """Renews the lease, which then ends one lease time from now. Returns False if the place is lost."""
        return await self.cell.run(wire.renew(self.key, self.lease))

    async def _leave(self) -> None:
        try:
            await asyncio.wait_for(self.cell.run(wire.release(self.key, self.lease)), MARGIN)
        except BaseException as failure:
            self.not_released(failure)
            if not isinstance(failure, Exception):
                raise

    async def __aenter__(self) -> AsyncPlace:
        try:
            answer = await async_wait(self.cell, Take(self.key, self.lease), timeout=self.timeout)
        except asyncio.CancelledError:
            await steps.to_its_end(self._leave())
            raise
        answer.or_raise()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await steps.to_its_end(self._leave())


def limited(
    cell: Runs | AsyncRuns, key: Key | Callable[..., Key], limit: Limit, *, timeout: Seconds | None = 0
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """A decorator: each call of the function takes a unit, or raises RateLimited.

    `key` is the key, or a function that returns it for the arguments of a call. A call waits up to `timeout` seconds.
    Coroutine functions need an AsyncCell or an AsyncGuard; other functions need a Cell or a Guard.
    """

    if not callable(key):
        of_kind(key, "key", str, bytes)
    of_kind(limit, "limit", *LIMITS)
    if timeout is not None:
        micros(timeout, "timeout")

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        def take(*args: P.args, **kwargs: P.kwargs) -> Take:
            return Take(key(*args, **kwargs) if callable(key) else key, limit)

        awaits = inspect.iscoroutinefunction(function)
        check_runs(cell, f"the limit of {getattr(function, '__qualname__', 'a function')}", awaited=awaits)
        if awaits:

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
