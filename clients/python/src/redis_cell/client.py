"""The clients: every command of the module as a method, for blocking code and for asyncio."""

from __future__ import annotations

import asyncio
import functools
import importlib
import inspect
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar, cast, overload
from urllib.parse import unquote, urlsplit

from . import backend as _backend
from . import wire
from .answers import Key, Several
from .backend import Backend
from .errors import is_lost
from .limiters import Words
from .sending import AsyncLink, Link, Ready, is_cluster
from .times import Seconds, micros
from .wire import Call, Once

if TYPE_CHECKING:
    from .places import AsyncPlace, Place

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


def as_method(build: Callable[..., Call[Any]]) -> Callable[..., Any]:
    """A function of `wire` as a method, with the signature that help() shows."""

    @functools.wraps(build)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self.run(build(*args, **kwargs))

    of = inspect.signature(build)
    answer = str(of.return_annotation).removeprefix("Call[").removesuffix("]")
    parameters = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY), *of.parameters.values()]
    method.__dict__["__signature__"] = of.replace(parameters=parameters, return_annotation=answer)
    return method


class Command(Generic[P, T]):
    """A function of `wire` as a method: of Cell, which returns the answer, and of AsyncCell, which is awaited."""

    def __init__(self, build: Callable[P, Call[T]]) -> None:
        self.method = as_method(build)
        self.__doc__ = build.__doc__

    @overload
    def __get__(self, cell: None, owner: type) -> Command[P, T]: ...
    @overload
    def __get__(self, cell: Places, owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, cell: AsyncPlaces, owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(
        self, cell: Places | AsyncPlaces | None, owner: type
    ) -> Command[P, T] | Callable[P, T] | Callable[P, Coroutine[Any, Any, T]]:
        method: Callable[..., Any] = self.method if cell is None else self.method.__get__(cell)
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


def _client(url: str, library: str, options: dict[str, Any]) -> Any:
    """A client of redis-py for a URL, which may name Sentinels."""
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


def _words(client: Any, by_functions: bool, calls: tuple[Call[Any], ...]) -> list[Words]:
    """The words of the calls of a pipeline."""
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
        """The call to send now."""
        self._made += 1
        call = self._first
        if self._made == 1 or call.waiting is None or call.held is None:
            return call
        return call.waiting.within(max(SHORTEST, call.held - (time.monotonic() - self._begin)))

    def pause(self, errors: Any, error: Exception) -> float | None:
        """How long to wait before the next attempt, after an error. None if there is none."""
        pause, self._pause = self._pause, 2 * self._pause
        late = time.monotonic() + pause >= self._last
        return None if late or self._made == self._most or not is_lost(errors, error) else pause

    def answer(self, answer: T) -> T:
        """The answer. If it is not that of the first attempt, the units may have been taken by any of them."""
        return answer if self._made == 1 else _timed(answer, self._begin)


class Places:
    """What a Cell and a Guard have in common."""

    def place(
        self,
        key: Key,
        limit: int,
        *,
        lease: Seconds,
        holder: str | bytes | None = None,
        timeout: Seconds | None = 0,
    ) -> Place:
        """One of `limit` places for the block of `with`, which releases it. Raises RateLimited without one.

        It waits up to `timeout` for a place. The place is lost if the block takes longer than `lease`, unless it calls
        the place's method `renew` in time.
        """
        from .places import Place

        return Place(cast(Any, self), key, limit, lease, holder, timeout)


class AsyncPlaces:
    """What an AsyncCell and an AsyncGuard have in common."""

    def place(
        self,
        key: Key,
        limit: int,
        *,
        lease: Seconds,
        holder: str | bytes | None = None,
        timeout: Seconds | None = 0,
    ) -> AsyncPlace:
        """One of `limit` places for the block of `async with`, which releases it. Raises RateLimited without one.

        It waits up to `timeout` for a place. The place is lost if the block takes longer than `lease`, unless it calls
        the place's method `renew` in time.
        """
        from .places import AsyncPlace

        return AsyncPlace(cast(Any, self), key, limit, lease, holder, timeout)


class Cell(Commands, Places):
    """The commands of the module, by a client that blocks. A call is sent once, whatever the client's retries,
    unless it may be repeated: see `Once`.

    Errors are those of the client's library. If the server is unavailable, the call raises: `Guard` decides instead.
    """

    def __init__(self, client: SyncClient, *, backend: Backend = "module") -> None:
        self._link = Link(client)
        self._backend: Backend = backend
        self._by_functions = backend == "functions"
        self._checked = False

    @classmethod
    def from_url(cls, url: str, *, backend: Backend = "module", **options: Any) -> Cell:
        """A Cell with a client of redis-py for a URL: `redis://`, `rediss://`, `unix://` or `redis+sentinel://`.

        `redis+sentinel://user:password@host:port,host:port/name/0` is the database 0 of the primary that the Sentinels
        know by the name. `options` are those of the client, such as `socket_timeout`.
        """
        return cls(_client(url, "redis", options), backend=backend)

    def pipeline(self, *calls: Call[Any]) -> list[Any]:
        """Sends calls to a single server at once, and returns the answers. Functions of `redis_cell.wire` build them.

        Each call is decided by itself. The first error is raised when all calls have been answered.
        """
        words, sent = _words(self._link.client, self._by_functions, calls), time.monotonic()
        return _answers(calls, self._link.send_many(words), sent, self.errors)

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


class AsyncCell(Commands, AsyncPlaces):
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

    @classmethod
    def from_url(cls, url: str, *, backend: Backend = "module", **options: Any) -> AsyncCell:
        """An AsyncCell with a client of redis-py for a URL: `redis://`, `rediss://`, `unix://` or `redis+sentinel://`.

        `redis+sentinel://user:password@host:port,host:port/name/0` is the database 0 of the primary that the Sentinels
        know by the name. `options` are those of the client, such as `socket_timeout`.
        """
        return cls(_client(url, "redis.asyncio", options), backend=backend)

    async def pipeline(self, *calls: Call[Any]) -> list[Any]:
        """Sends calls to a single server at once, and returns the answers. Functions of `redis_cell.wire` build them.

        Each call is decided by itself. The first error is raised when all calls have been answered.
        """
        words, sent = _words(self._link.client, self._by_functions, calls), time.monotonic()
        return _answers(calls, await self._link.send_many(words), sent, self.errors)

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
