"""The clients: every command of the module as a method, for blocking code and for asyncio."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Coroutine
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, cast, overload

from . import backend as _backend
from . import wire
from .answers import Key, Several
from .backend import Backend
from .errors import is_lost
from .sending import AsyncLink, Link, Ready
from .times import micros
from .wire import Call, Once

P = ParamSpec("P")
T = TypeVar("T")


class SyncClient(Protocol):
    """redis.Redis, redis.RedisCluster, valkey.Valkey or valkey.ValkeyCluster."""

    def __enter__(self) -> Any: ...
    def execute_command(self, *args: Any, **kwargs: Any) -> Any: ...


class AsyncClient(Protocol):
    """The same clients of redis.asyncio and valkey.asyncio."""

    async def __aenter__(self) -> Any: ...
    def execute_command(self, *args: Any, **kwargs: Any) -> Any: ...


class Command(Generic[P, T]):
    """A function of `wire` as a method: of Cell, which returns the answer, and of AsyncCell, which is awaited."""

    def __init__(self, build: Callable[P, Call[T]]) -> None:
        self.build = build
        self.__doc__ = build.__doc__

    @overload
    def __get__(self, cell: None, owner: type) -> Command[P, T]: ...
    @overload
    def __get__(self, cell: Cell, owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, cell: AsyncCell, owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(
        self, cell: Cell | AsyncCell | None, owner: type
    ) -> Command[P, T] | Callable[P, T] | Callable[P, Coroutine[Any, Any, T]]:
        if cell is None:
            return self

        @functools.wraps(self.build)
        def method(*args: P.args, **kwargs: P.kwargs) -> Any:
            return cell.run(self.build(*args, **kwargs))

        return method


class Commands:
    """The commands, each with the arguments of its function in `wire`."""

    throttle = Command(wire.throttle)
    bucket = Command(wire.bucket)
    funnel = Command(wire.funnel)
    fixed = Command(wire.fixed)
    window = Command(wire.window)
    log = Command(wire.log)
    peek = Command(wire.peek)
    charge = Command(wire.charge)
    refund = Command(wire.refund)
    pause = Command(wire.pause)
    reserve = Command(wire.reserve)
    bthrottle = Command(wire.bthrottle)
    acquire = Command(wire.acquire)
    renew = Command(wire.renew)
    release = Command(wire.release)
    mtake = Command(wire.mtake)
    bmtake = Command(wire.bmtake)
    mpeek = Command(wire.mpeek)
    msettle = Command(wire.msettle)
    top = Command(wire.top)
    reset_top = Command(wire.reset_top)


WAY = 0.1
"""How long the reply of a call that has waited is taken to be on its way at most, in seconds."""


def _timed(answer: T, sent: float, held: float | None = 0) -> T:
    """The answer, which notes when its units were taken if it has several rows: `msettle` needs that."""
    made: object = answer
    if isinstance(made, Several):
        taken = sent if held == 0 else max(sent, time.monotonic() - WAY)
        object.__setattr__(cast(object, made), "sent", taken)
    return answer


class _Attempts(Generic[T]):
    """The attempts at a call that may be repeated. No I/O."""

    def __init__(self, call: Call[T], once: Once) -> None:
        self._first = call
        self._begin = time.monotonic()
        self._last = self._begin + micros(once.period, "period") / 2_000_000
        self._pause = micros(once.pause, "pause") / 1_000_000
        self._most, self._made = once.tries, 0

    def next(self) -> Call[T]:
        """The call to send now."""
        self._made += 1
        if self._made == 1 or self._first.rest is None:
            return self._first
        return self._first.rest(time.monotonic() - self._begin)

    def pause(self, errors: Any, error: Exception) -> float | None:
        """How long to wait before the next attempt, after an error. None if there is none."""
        pause, self._pause = self._pause, 2 * self._pause
        late = time.monotonic() + pause >= self._last
        return None if late or self._made == self._most or not is_lost(errors, error) else pause

    def answer(self, answer: T) -> T:
        """The answer. If it is not that of the first attempt, the units may have been taken by any of them."""
        return answer if self._made == 1 else _timed(answer, self._begin)


class Cell(Commands):
    """The commands of the module, by a client that blocks. A call is sent once, whatever the client's retries,
    unless it may be repeated: see `Once`.

    Errors are those of the client's library. If the server is unavailable, the call raises: `Guard` decides instead.
    """

    def __init__(self, client: SyncClient, *, backend: Backend = "module") -> None:
        self._link = Link(client)
        self._backend: Backend = backend
        self._by_functions = backend == "functions"
        self._checked = False

    @property
    def errors(self) -> Any:
        """The exceptions of the client's library: the module redis.exceptions or valkey.exceptions."""
        return self._link.errors

    @property
    def pool(self) -> Any:
        """What has the connections: the client's pool, or the client itself if each node of a cluster has a pool."""
        return self._link.pool

    def run(self, call: Call[T], ready: Ready | None = None) -> T:
        """Carries out a call that a function of `redis_cell.wire` has built.

        `ready` is asked when the call has a connection: if it raises an exception, nothing is sent.
        """
        if call.once is None:
            return self._run(call, ready)
        attempts = _Attempts(call, call.once)
        while True:
            try:
                return attempts.answer(self._run(attempts.next(), ready))
            except Exception as error:
                if (pause := attempts.pause(self.errors, error)) is None:
                    raise
            time.sleep(pause)

    def _run(self, call: Call[T], ready: Ready | None) -> T:
        if call.key is None:
            return call.read(self._link.send_to_all(_backend.as_command(call)))
        sent = time.monotonic()
        if not self._by_functions:
            try:
                reply = self._link.send(_backend.as_command(call), call.key, call.held, ready)
                return _timed(call.read(reply), sent, call.held)
            except self.errors.ResponseError as error:
                # A server that does not know the command has done nothing.
                if self._backend != "auto" or not _backend.is_unknown_command(error):
                    raise
        return self._run_function(call, call.key, ready)

    def _run_function(self, call: Call[T], key: Key, ready: Ready | None) -> T:
        words, sent = _backend.as_function(call), time.monotonic()
        try:
            if not self._by_functions or not self._checked:
                version = self._link.send(_backend.version(key), key, 0, ready)
                if fault := _backend.too_old(version):
                    raise self.errors.ResponseError(fault)
                self._by_functions = self._checked = True
            return _timed(call.read(self._link.send(words, key, call.held, ready)), sent)
        except self.errors.ResponseError as error:
            if not _backend.is_unknown_function(error):
                raise
            # The next call finds out again.
            self._by_functions, self._checked = self._backend == "functions", False
            raise self.errors.ResponseError(_backend.NOT_LOADED) from None


class AsyncCell(Commands):
    """The commands of the module, by a client for asyncio. A call is sent once, whatever the client's retries,
    unless it may be repeated: see `Once`.

    Errors are those of the client's library. If the server is unavailable, the call raises, and `AsyncGuard` decides
    instead.
    """

    def __init__(self, client: AsyncClient, *, backend: Backend = "module") -> None:
        self._link = AsyncLink(client)
        self._backend: Backend = backend
        self._by_functions = backend == "functions"
        self._checked = False

    @property
    def errors(self) -> Any:
        """The exceptions of the client's library: the module redis.exceptions or valkey.exceptions."""
        return self._link.errors

    @property
    def pool(self) -> Any:
        """What has the connections: the client's pool, or the client itself if each node of a cluster has a pool."""
        return self._link.pool

    async def run(self, call: Call[T], ready: Ready | None = None) -> T:
        """Carries out a call that a function of `redis_cell.wire` has built.

        `ready` is asked when the call has a connection: if it raises an exception, nothing is sent.
        """
        if call.once is None:
            return await self._run(call, ready)
        attempts = _Attempts(call, call.once)
        while True:
            try:
                return attempts.answer(await self._run(attempts.next(), ready))
            except Exception as error:
                if (pause := attempts.pause(self.errors, error)) is None:
                    raise
            await asyncio.sleep(pause)

    async def _run(self, call: Call[T], ready: Ready | None) -> T:
        if call.key is None:
            return call.read(await self._link.send_to_all(_backend.as_command(call)))
        sent = time.monotonic()
        if not self._by_functions:
            try:
                reply = await self._link.send(_backend.as_command(call), call.key, call.held, ready)
                return _timed(call.read(reply), sent, call.held)
            except self.errors.ResponseError as error:
                # A server that does not know the command has done nothing.
                if self._backend != "auto" or not _backend.is_unknown_command(error):
                    raise
        return await self._run_function(call, call.key, ready)

    async def _run_function(self, call: Call[T], key: Key, ready: Ready | None) -> T:
        words, sent = _backend.as_function(call), time.monotonic()
        try:
            if not self._by_functions or not self._checked:
                version = await self._link.send(_backend.version(key), key, 0, ready)
                if fault := _backend.too_old(version):
                    raise self.errors.ResponseError(fault)
                self._by_functions = self._checked = True
            return _timed(call.read(await self._link.send(words, key, call.held, ready)), sent)
        except self.errors.ResponseError as error:
            if not _backend.is_unknown_function(error):
                raise
            # The next call finds out again.
            self._by_functions, self._checked = self._backend == "functions", False
            raise self.errors.ResponseError(_backend.NOT_LOADED) from None


__all__ = ["AsyncCell", "AsyncClient", "Backend", "Cell", "Key", "SyncClient"]
