"""Places that a block holds, and functions with a limit."""

from __future__ import annotations

import functools
import inspect
import logging
import secrets
from collections.abc import Callable
from functools import partial
from typing import Any, ParamSpec, TypeVar, cast

from . import wire
from .answers import Answer, Key, Together
from .contexts import AsyncContext, SyncContext
from .limiters import LIMITS, Lease, Limit, of_kind
from .steps import Method, Steps
from .times import Seconds, micros
from .waiting import AsyncRuns, Runs, async_wait, check_runs, wait
from .wire import Take

P = ParamSpec("P")
T = TypeVar("T")

_log = logging.getLogger("redis_cell")


class _Place:
    """The common part of Place and AsyncPlace."""

    _wait: Callable[..., Any]

    def __init__(
        self,
        cell: Runs | AsyncRuns,
        key: Key,
        places: int,
        lease: Seconds,
        holder: str | bytes | None = None,
        timeout: Seconds | None = 0,
    ) -> None:
        self.cell, self.key, self.timeout = cell, key, timeout
        self.lease = Lease(places, lease=lease, holder=secrets.token_hex(8) if holder is None else holder)

    @Method
    def renew(self) -> Steps[bool]:
        """Renews the lease, which then ends one lease time from now. Returns False if the place is lost."""
        renewed: bool = yield partial(self.cell.run, wire.renew(self.key, self.lease))
        return renewed

    def _enter(self) -> Steps[None]:
        answer: Together[Answer] = yield partial(
            self._wait, self.cell, Take(self.key, self.lease), timeout=self.timeout
        )
        answer.or_raise()

    def _settle(self, failed: bool) -> Steps[None]:
        yield partial(self.cell.run, wire.release(self.key, self.lease))

    def _not_settled(self, failed: bool, error: BaseException) -> None:
        self.not_released(error)

    def not_released(self, error: BaseException) -> None:
        why = str(error) or type(error).__name__
        _log.warning("the place of %r was not released, and is free when its lease ends: %s", self.key, why)


class Place(_Place, SyncContext):
    """A place that is held in a `with` block."""

    _wait = staticmethod(wait)


class AsyncPlace(_Place, AsyncContext):
    """A place that is held in an `async with` block."""

    _wait = staticmethod(async_wait)


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
