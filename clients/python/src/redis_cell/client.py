"""The clients, with every command of the module as a method, for blocking code and for asyncio."""

from __future__ import annotations

import asyncio
import importlib
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, Protocol, TypeVar, cast
from urllib.parse import unquote, urlsplit

from . import backend as _backend
from . import steps
from .answers import Key, Together
from .backend import Backend
from .commands import Asyncio, Blocking, Commands
from .errors import is_lost
from .limiters import Arguments
from .sending import AsyncLink, Link, Ready, is_cluster
from .steps import Steps
from .times import micros
from .wire import Call, Once

T = TypeVar("T")


class SyncClient(Protocol):
    """redis.Redis, redis.RedisCluster, valkey.Valkey or valkey.ValkeyCluster."""

    def __enter__(self) -> Any: ...
    def execute_command(self, *args: Any, **kwargs: Any) -> Any: ...


class AsyncClient(Protocol):
    """The corresponding client of redis.asyncio or valkey.asyncio."""

    async def __aenter__(self) -> Any: ...
    def execute_command(self, *args: Any, **kwargs: Any) -> Any: ...


WAY = 0.1
"""The longest time that the reply to a call that waited is assumed to travel, in seconds."""


def _timed(answer: T, sent: float, held: float | None = 0) -> T:
    """Returns the answer. If it has several rows, sets the time when its units were taken, which `msettle` needs."""
    made: object = answer
    if isinstance(made, Together):
        taken = sent if held == 0 else max(sent, time.monotonic() - WAY)
        object.__setattr__(cast(object, made), "sent", taken)
    return answer


def _client(url: str, library: str, options: dict[str, Any]) -> Any:
    """Returns a client of redis-py for a URL, which may name Sentinels."""
    if not url.startswith("redis+sentinel://"):
        return importlib.import_module(library).from_url(url, **options)
    parts = urlsplit(url)
    access, _, places = parts.netloc.rpartition("@")
    user, _, password = access.partition(":")
    name, _, database = parts.path.lstrip("/").partition("/")
    if not name:
        raise ValueError("redis+sentinel:// needs the name of the primary: redis+sentinel://host:26379/mymaster")
    own = {"username": unquote(user) or None, "password": unquote(password) or None, "db": int(database or 0)}
    hosts = [place.rpartition(":") for place in places.split(",")]
    sentinels = [(host.strip("[]"), int(port)) for host, _, port in hosts]
    sentinel = importlib.import_module(library + ".sentinel").Sentinel(sentinels, sentinel_kwargs=options)
    return sentinel.master_for(name, **{key: value for key, value in own.items() if value is not None}, **options)


def _commands(client: Any, by_functions: bool, calls: tuple[Call[Any], ...]) -> list[Arguments]:
    """Returns the commands of a pipeline."""
    if is_cluster(client):
        raise NotImplementedError("a pipeline is for a single server: in a cluster each call has a node of its own")
    if any(call.held != 0 or call.everywhere for call in calls):
        raise ValueError("a pipeline has no calls that wait, or that go to every primary")
    return [_backend.as_function(call) if by_functions else _backend.as_command(call) for call in calls]


def _answers(calls: tuple[Call[Any], ...], replies: list[Any], sent: float, errors: Any) -> list[Any]:
    for reply in replies:
        if isinstance(reply, errors.ResponseError):
            raise reply
    return [_timed(call.read(reply), sent) for call, reply in zip(calls, replies, strict=True)]


SHORTEST = 0.000_001
"""The shortest timeout of a call that waits, in seconds."""


class _Attempts(Generic[T]):
    """The attempts at a call that may be repeated. No I/O."""

    def __init__(self, call: Call[T], once: Once) -> None:
        self._first = call
        self._begin = time.monotonic()
        self._last = self._begin + micros(once.period, "period") / 2_000_000
        self._pause = micros(once.pause, "pause") / 1_000_000
        self._most, self._made = once.tries, 0

    def next(self) -> Call[T]:
        """Returns the call to send now."""
        self._made += 1
        call = self._first
        if self._made == 1 or call.waiting is None or call.held is None:
            return call
        return call.waiting.within(max(SHORTEST, call.held - (time.monotonic() - self._begin)))

    def pause(self, errors: Any, error: Exception) -> float | None:
        """Returns the pause before the next attempt, after an error. None if there is no other attempt."""
        pause, self._pause = self._pause, 2 * self._pause
        late = time.monotonic() + pause >= self._last
        return None if late or self._made == self._most or not is_lost(errors, error) else pause

    def answer(self, answer: T) -> T:
        """Returns the answer. After several attempts, its time is the first attempt's, which may have taken the
        units."""
        return answer if self._made == 1 else _timed(answer, self._begin)


class _Cell(Commands):
    """The common part of Cell and AsyncCell."""

    _sleep: Callable[[float], Any]

    def __init__(self, link: Link | AsyncLink, backend: Backend) -> None:
        self._link = link
        self._backend: Backend = backend
        self._by_functions = backend == "functions"
        self._checked = False

    @property
    def errors(self) -> Any:
        """The exceptions of the client's library: the module redis.exceptions or valkey.exceptions."""
        return self._link.errors

    @property
    def pool(self) -> Any:
        """The client's connection pool, or for a cluster, in which each node has a pool, the client itself."""
        return self._link.pool

    def _pipeline(self, calls: tuple[Call[Any], ...]) -> Steps[list[Any]]:
        commands, sent = _commands(self._link.client, self._by_functions, calls), time.monotonic()
        replies = yield partial(self._link.send_many, commands)
        return _answers(calls, replies, sent, self.errors)

    def _run(self, call: Call[T], ready: Ready | None) -> Steps[T]:
        """Sends a call, and repeats it if that is allowed."""
        if call.once is None:
            return (yield from self._run_once(call, ready))
        attempts = _Attempts(call, call.once)
        while True:
            try:
                return attempts.answer((yield from self._run_once(attempts.next(), ready)))
            except Exception as error:
                if (pause := attempts.pause(self.errors, error)) is None:
                    raise
            yield partial(self._sleep, pause)

    def _run_once(self, call: Call[T], ready: Ready | None) -> Steps[T]:
        if call.key is None:
            return call.read((yield from self._link.send_to_all(_backend.as_command(call))))
        sent = time.monotonic()
        if not self._by_functions:
            try:
                reply = yield from self._link.send(_backend.as_command(call), call.key, call.held, ready)
                return _timed(call.read(reply), sent, call.held)
            except self.errors.ResponseError as error:
                # A server that does not know the command has done nothing.
                if self._backend != "auto" or not _backend.is_unknown_command(error):
                    raise
        return (yield from self._run_function(call, call.key, ready))

    def _run_function(self, call: Call[T], key: Key, ready: Ready | None) -> Steps[T]:
        command, sent = _backend.as_function(call), time.monotonic()
        try:
            if not self._by_functions or not self._checked:
                version = yield from self._link.send(_backend.version(key), key, 0, ready)
                if fault := _backend.too_old(version):
                    raise self.errors.ResponseError(fault)
                self._by_functions = self._checked = True
            reply = yield from self._link.send(command, key, call.held, ready)
            return _timed(call.read(reply), sent)
        except self.errors.ResponseError as error:
            if not _backend.is_unknown_function(error):
                raise
            # The next call determines the backend again.
            self._by_functions, self._checked = self._backend == "functions", False
            raise self.errors.ResponseError(_backend.NOT_LOADED) from None


class Cell(_Cell, Blocking):
    """The commands of the module, through a blocking client. A call is sent once, whatever the client's retries are,
    unless it may be repeated: see `Once`.

    Calls raise the errors of the client's library, also while the server is unavailable. A `Guard` decides then.
    """

    _sleep = staticmethod(time.sleep)

    def __init__(self, client: SyncClient, *, backend: Backend = "module") -> None:
        super().__init__(Link(client), backend)

    @classmethod
    def from_url(cls, url: str, *, backend: Backend = "module", **options: Any) -> Cell:
        """Returns a Cell with a client of redis-py for a URL: `redis://`, `rediss://`, `unix://`, `redis+sentinel://`.

        `redis+sentinel://user:password@host:port,host:port/name/0` is database 0 of the primary that the Sentinels call
        `name`. `options` are options of the client, such as `socket_timeout`.
        """
        return cls(_client(url, "redis", options), backend=backend)

    def pipeline(self, *calls: Call[Any]) -> list[Any]:
        """Sends calls to a single server together, and returns the answers. Functions of `redis_cell.wire` build calls.

        Each call is decided separately. The first error is raised after all calls have been answered.
        """
        return steps.run(self._pipeline(calls))

    def run(self, call: Call[T], ready: Ready | None = None) -> T:
        """Sends a call that a function of `redis_cell.wire` has built, and returns the answer.

        `ready` is called when the call has a connection. If it raises an exception, nothing is sent.
        """
        return steps.run(self._run(call, ready))


class AsyncCell(_Cell, Asyncio):
    """The commands of the module, through a client for asyncio. A call is sent once, whatever the client's retries are,
    unless it may be repeated: see `Once`.

    Calls raise the errors of the client's library, also while the server is unavailable. An `AsyncGuard` decides then.
    """

    _sleep = staticmethod(asyncio.sleep)

    def __init__(self, client: AsyncClient, *, backend: Backend = "module") -> None:
        super().__init__(AsyncLink(client), backend)

    @classmethod
    def from_url(cls, url: str, *, backend: Backend = "module", **options: Any) -> AsyncCell:
        """Returns an AsyncCell with a client of redis-py for a URL, like `Cell.from_url`."""
        return cls(_client(url, "redis.asyncio", options), backend=backend)

    async def pipeline(self, *calls: Call[Any]) -> list[Any]:
        """Sends calls to a single server together, and returns the answers. Functions of `redis_cell.wire` build calls.

        Each call is decided separately. The first error is raised after all calls have been answered.
        """
        return await steps.async_run(self._pipeline(calls))

    async def run(self, call: Call[T], ready: Ready | None = None) -> T:
        """Sends a call that a function of `redis_cell.wire` has built, and returns the answer.

        `ready` is called when the call has a connection. If it raises an exception, nothing is sent.
        """
        return await steps.async_run(self._run(call, ready))


__all__ = ["AsyncCell", "AsyncClient", "Backend", "Cell", "Key", "SyncClient"]
