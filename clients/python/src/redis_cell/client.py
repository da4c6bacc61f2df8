"""The clients, with every command of the module as a method, for blocking code and for asyncio."""

from __future__ import annotations

import asyncio
import importlib
import logging
import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, Protocol, TypeVar, cast
from urllib.parse import parse_qs, unquote, urlsplit

from . import backend as _backend
from . import steps
from .answers import Key, Together
from .backend import Backend
from .commands import Asyncio, Blocking, Commands
from .errors import is_lost
from .limiters import of_kind
from .sending import MARGIN, AsyncLink, Link, Ready, is_cluster, leave_queue
from .steps import Method, Steps
from .times import micros
from .wire import Call, Once

T = TypeVar("T")

_log = logging.getLogger("redis_cell")


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
    """Returns the answer. If it has several rows, also sets the time at which its units were taken, for `msettle`."""
    made: object = answer
    if isinstance(made, Together):
        taken = sent if held == 0 else max(sent, time.monotonic() - WAY)
        object.__setattr__(cast(object, made), "sent", taken)
    return answer


def check_url(url: str, *schemes: str) -> None:
    """Raises ValueError if a URL names no server, or a database that is not a number. redis-py would ignore it."""
    parts = urlsplit(of_kind(url, "url", str))
    if parts.scheme not in schemes:
        raise ValueError(
            f"the URL of a server begins with {', '.join(f'{name}://' for name in schemes)}, not {parts.scheme!r}"
        )
    database = parse_qs(parts.query).get("db", [""])[0]
    if parts.scheme in ("redis", "rediss"):
        database = database or parts.path.strip("/")
    if database and not database.isdecimal():
        raise ValueError(f"the database in a URL is a number, not {database!r}")


def _client(url: str, library: str, options: dict[str, Any]) -> Any:
    """Returns a client of redis-py for a URL, which may name Sentinels."""
    check_url(url, "redis", "rediss", "unix", "redis+sentinel")
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


SHORTEST = 0.000_001
"""The shortest timeout of a call that waits, in seconds."""


class _Attempts(Generic[T]):
    """The attempts at a call that may be repeated. No I/O."""

    def __init__(self, call: Call[T], once: Once) -> None:
        self._first = call
        self._begin = time.monotonic()
        self._last = self._begin + micros(once.period, "period") / 2_000_000
        self._pause = micros(once.pause, "pause") / 1_000_000
        self._end = math.inf if call.held is None else self._begin + call.held + MARGIN
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
        self._end += pause
        # If a reply is lost without an error, the attempt takes its whole time, and the call is repeated nevertheless.
        late = time.monotonic() + pause >= (self._last if self._made == 1 else min(self._last, self._end))
        return None if late or self._made == self._most or not is_lost(errors, error) else pause

    def answer(self, answer: T) -> T:
        """Returns the answer. After several attempts, its time is the first attempt's, which may have taken the
        units."""
        return answer if self._made == 1 else _timed(answer, self._begin)


class _Cell(Commands):
    """The common part of Cell and AsyncCell."""

    _sleep: Callable[[float], Any]

    def __init__(self, link: Link | AsyncLink, backend: Backend) -> None:
        _backend.check(backend)
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

    @Method
    def pipeline(self, *calls: Call[Any]) -> Steps[list[Any]]:
        """Sends calls to a single server together, and returns the answers. Functions of `redis_cell.wire` build calls.

        Each call is decided separately. The first error is raised after all calls have been answered.
        """
        for call in calls:
            if of_kind(call, "a call of a pipeline", Call).held != 0 or call.everywhere:
                raise ValueError("a pipeline has no calls that wait, or that go to every primary")
        if is_cluster(self._link.client):
            raise NotImplementedError("a pipeline is for a single server: in a cluster each call has a node of its own")
        sent, as_command = time.monotonic(), _backend.as_function if self._by_functions else _backend.as_command
        replies = yield from self._link.send_many([as_command(call) for call in calls])
        for call, reply in zip(calls, replies, strict=True):
            if isinstance(reply, self.errors.ResponseError):
                raise _backend.explained(reply, call)
        return [_timed(call.read(reply), sent) for call, reply in zip(calls, replies, strict=True)]

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
            try:
                return call.read((yield from self._link.send_to_all(_backend.as_command(call))))
            except self.errors.ResponseError as error:
                raise _backend.explained(error, call) from None
        sent = time.monotonic()
        if not self._by_functions:
            try:
                reply = yield from self._link.send(_backend.as_command(call), call.key, call.held, ready)
                return _timed(call.read(reply), sent, call.held)
            except self.errors.ResponseError as error:
                # A server that does not know the command has done nothing.
                if self._backend != "auto" or not _backend.is_unknown_command(error, call):
                    raise _backend.explained(error, call) from None
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

    def run(self, call: Call[T], ready: Ready | None = None) -> T:
        """Sends a call that a function of `redis_cell.wire` has built, and returns the answer.

        `ready` is called when the call has a connection. If it raises an exception, nothing is sent.
        """
        return steps.run(self._run(call, ready))


LEAVING = 1.0
"""How long a call that is cancelled may still wait for its reply, in seconds, to give back what it took."""


class _Caller(Generic[T]):
    """The caller of a call for asyncio, which may be cancelled."""

    def __init__(self, call: Call[T], ready: Ready | None) -> None:
        self.call, self.ready = call, ready
        self.left, self.sent, self.connection = False, 0.0, cast(Any, None)

    def begins(self, connection: Any = None, /) -> None:
        if self.left:
            raise asyncio.CancelledError
        if self.ready is not None:
            self.ready(connection)
        self.sent, self.connection = time.monotonic(), connection

    def leaves(self) -> None:
        self.left = True
        if self.connection is not None and self.call.held != 0:
            leave_queue(self.connection)

    @property
    def may_have_taken(self) -> bool:
        """Whether units may be taken if there is no reply. A server that detects the disconnection of a waiting caller
        takes none."""
        return self.connection is not None and self.call.held == 0


def _not_given_back(call: Call[Any], error: BaseException) -> None:
    why = str(error) or type(error).__name__
    _log.warning("%s %r was cancelled, and units may remain taken: %s", call.name, call.key, why)


class AsyncCell(_Cell, Asyncio):
    """The commands of the module, through a client for asyncio. A call is sent once, whatever the client's retries are,
    unless it may be repeated: see `Once`.

    Calls raise the errors of the client's library, also while the server is unavailable. An `AsyncGuard` decides then.
    """

    _sleep = staticmethod(asyncio.sleep)

    def __init__(self, client: AsyncClient, *, backend: Backend = "module", pipelined: bool = False) -> None:
        """`pipelined` sends all calls of a turn of the event loop in one write, on one connection for each server. Each
        call keeps its own errors and time limit, and one that is cancelled before the write is not sent."""
        super().__init__(AsyncLink(client, pipelined=pipelined), backend)

    @classmethod
    def from_url(cls, url: str, *, backend: Backend = "module", pipelined: bool = False, **options: Any) -> AsyncCell:
        """Returns an AsyncCell with a client of redis-py for a URL, like `Cell.from_url`."""
        return cls(_client(url, "redis.asyncio", options), backend=backend, pipelined=pipelined)

    async def run(self, call: Call[T], ready: Ready | None = None) -> T:
        """Sends a call that a function of `redis_cell.wire` has built, and returns the answer.

        `ready` is called when the call has a connection. If it raises an exception, nothing is sent. A cancelled call
        leaves its queue, and its units are given back. If the server does not answer, the cancellation takes up to two
        seconds, and the log names the units that may remain taken.
        """
        if call.undo is None:
            return await steps.async_run(self._run(call, ready))
        caller = _Caller(call, ready)
        asking = asyncio.ensure_future(steps.async_run(self._run(call, caller.begins)))
        try:
            return await asyncio.shield(asking)
        except asyncio.CancelledError:
            await steps.to_its_end(self._leave(caller, asking))
            raise

    async def _leave(self, caller: _Caller[T], asking: asyncio.Future[T]) -> None:
        """Ends a call whose caller was cancelled, and gives its units back if its reply arrives in time."""
        if not asking.done():
            caller.leaves()
        await asyncio.wait([asking], timeout=LEAVING)
        asking.cancel()
        await asyncio.wait([asking])
        try:
            answer = await asking
        except (Exception, asyncio.CancelledError) as error:
            if caller.may_have_taken and not isinstance(error, self.errors.ResponseError):
                _not_given_back(caller.call, error)
        else:
            await self.give_back(caller.call, answer, caller.sent)

    async def give_back(self, call: Call[T], answer: T, sent: float) -> None:
        """Gives back the units of a call whose answer no caller has received. `sent` is its time as
        time.monotonic()."""
        try:
            for back in call.undo(answer, sent) if call.undo else ():
                await asyncio.wait_for(self.run(back), LEAVING)
        except Exception as error:
            _not_given_back(call, error)


__all__ = ["AsyncCell", "AsyncClient", "Backend", "Cell", "Key", "SyncClient"]
