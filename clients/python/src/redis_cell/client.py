"""The clients: every command of the module as a method, for blocking code and for asyncio."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Coroutine
from typing import Any, Generic, Literal, ParamSpec, Protocol, TypeAlias, TypeVar, cast, overload

from . import wire
from .answers import Key, Several
from .limiters import Word, Words
from .sending import AsyncLink, Link, Ready
from .wire import Call

P = ParamSpec("P")
T = TypeVar("T")

Backend: TypeAlias = Literal["module", "functions", "auto"]
"""Where calls go: to the module's commands, or to the functions of functions/redis_cell.lua. auto asks."""

FUNCTIONS = {"CL.THROTTLE", "CL.PEEK", "CL.REFUND", "CL.CHARGE", "CL.FIXED"}
"""The commands that the function library has."""


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
    mpeek = Command(wire.mpeek)
    msettle = Command(wire.msettle)
    top = Command(wire.top)
    reset_top = Command(wire.reset_top)


_ASK: tuple[Word, ...] = ("COMMAND", "INFO", "CL.THROTTLE")


def _backend(reply: list[object]) -> Backend:
    """From the reply to _ASK: a list with one row, which is None or empty if the server does not have the command."""
    return "module" if any(reply) else "functions"


_GONE = ("unknown command", "Function not found")


def _is_gone(error: Exception) -> bool:
    """Whether a server does not know a command or a function: not the server that was asked, or not any more."""
    return any(text in str(error) for text in _GONE)


def _words(call: Call[Any], backend: Backend) -> Words:
    key: tuple[Word, ...] = () if call.key is None else (call.key,)
    name: tuple[Word, ...] = (call.name,)
    if backend != "module":
        if call.name not in FUNCTIONS:
            raise NotImplementedError(f"{call.name} needs the module: the function library does not have it")
        name = ("FCALL_RO" if call.name == "CL.PEEK" else "FCALL", call.name.lower().replace(".", "_"), 1)
    words = call.words
    return (lambda: (*name, *key, *words())) if callable(words) else (*name, *key, *words)


def _timed(answer: T, sent: float) -> T:
    """The answer, which notes when its call was made if it has several rows: `msettle` needs that."""
    made: object = answer
    if isinstance(made, Several):
        object.__setattr__(cast(object, made), "times", (sent, time.monotonic()))
    return answer


class Cell(Commands):
    """The commands of the module, by a client that blocks. A call is sent once, whatever the client's retries.

    Errors are those of the client's library. If the server is unavailable, the call raises: `Guard` decides instead.
    """

    def __init__(self, client: SyncClient, *, backend: Backend = "module") -> None:
        self._link = Link(client)
        self._backend: Backend = backend
        self._found: Backend | None = None

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
        if call.key is None:
            return call.read(self._link.send_to_all(_words(call, "module")))
        backend, sent = self._backend, time.monotonic()
        if backend == "auto":
            backend = self._found = self._found or _backend(self._link.send(_ASK, call.key, 0, ready))
        try:
            return _timed(call.read(self._link.send(_words(call, backend), call.key, call.held, ready)), sent)
        except self.errors.ResponseError as error:
            if _is_gone(error):
                self._found = None  # the next call asks again
            raise


class AsyncCell(Commands):
    """The commands of the module, by a client for asyncio. A call is sent once, whatever the client's retries.

    Errors are those of the client's library. If the server is unavailable, the call raises, and `AsyncGuard` decides
    instead.
    """

    def __init__(self, client: AsyncClient, *, backend: Backend = "module") -> None:
        self._link = AsyncLink(client)
        self._backend: Backend = backend
        self._found: Backend | None = None

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
        if call.key is None:
            return call.read(await self._link.send_to_all(_words(call, "module")))
        backend, sent = self._backend, time.monotonic()
        if backend == "auto":
            backend = self._found = self._found or _backend(await self._link.send(_ASK, call.key, 0, ready))
        try:
            return _timed(call.read(await self._link.send(_words(call, backend), call.key, call.held, ready)), sent)
        except self.errors.ResponseError as error:
            if _is_gone(error):
                self._found = None  # the next call asks again
            raise


__all__ = ["AsyncCell", "AsyncClient", "Backend", "Cell", "Key", "SyncClient"]
