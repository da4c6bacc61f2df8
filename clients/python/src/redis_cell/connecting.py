"""Connects, and reads the nodes of a cluster and the primary of Sentinels, within a time limit. With the client's own
timeouts and retries, a frozen server may take a minute, or forever. They still apply to all other users of the client.

While a thread or a task has a deadline, each wait of a connection gets a part of the time that is left: the classes of
connections are replaced by subclasses that read the deadline. So all waits end in time, and after a frozen server
another one can still be tried. The pauses between attempts become shorter, and a task is cancelled at its deadline.
"""

from __future__ import annotations

import asyncio
import importlib
import socket
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from copy import copy
from functools import cache, partial
from ipaddress import ip_address
from typing import Any, TypeVar, cast

from .forks import in_each_child

T = TypeVar("T")

SHORTEST = 0.001
"""The shortest wait, in seconds, when the time is over: 0 would mean a socket that does not wait."""
REFUSED = ("AuthenticationError", "AuthorizationError")
"""The errors that the libraries report as lost connections, although another attempt would have the same outcome."""
TIMED = "_is_timed"
"""The mark of the classes of connections that know of deadlines."""
NUMBER = "_redis_cell_number"
"""The attribute of a connection that is the numeric address of its host while it connects."""


def library(client: object) -> Any:
    """Returns the module of exceptions of a client's library: redis or valkey."""
    for base in type(client).__mro__:
        root = base.__module__.partition(".")[0]
        if root in ("redis", "valkey"):
            return importlib.import_module(root + ".exceptions")
    raise TypeError(f"a client of redis-py or valkey-py is needed, not {type(client).__name__}")


class _Deadline:
    """The time limit of a thread or a task, which begins with the first wait. Each wait has a `share` of the time that
    is left: half of it if more waits may follow."""

    def __init__(self, seconds: float, share: float = 1 / 2) -> None:
        self.seconds, self.share = seconds, share
        self.end: float | None = None
        self.is_over = False

    @property
    def left(self) -> float:
        now = time.monotonic()
        if self.end is None:
            self.end = now + self.seconds
        return self.end - now

    def part(self, own: float | None) -> float:
        part = max(SHORTEST, self.left * self.share)
        return part if own is None else min(own, part)

    def retry(self, own: Any) -> Any:
        """Returns the retries of a client, which leave time for other servers."""
        retry = copy(own)
        retry._backoff = _Backoff(own._backoff, self)
        return retry


class _Backoff:
    """The pauses of a client between its attempts."""

    def __init__(self, own: Any, deadline: _Deadline) -> None:
        self.own, self.deadline = own, deadline
        self.reset = own.reset

    def compute(self, failures: int) -> float:
        """Returns the next pause. Raises the error of the last attempt at the end, if the server refuses the user, or
        after two waits without an answer, because the time that is left is for another server."""
        error = sys.exc_info()[1]
        name = type(error).__name__
        is_late = name == "TimeoutError"  # of the library, of asyncio or of a socket
        is_last = name in REFUSED or self.deadline.left <= 0 or (is_late and failures > 1)
        if error is not None and is_last:
            raise error
        return 0 if is_late else self.deadline.part(self.own.compute(failures))


_deadline: ContextVar[_Deadline | None] = ContextVar("_deadline", default=None)
"""The deadline of this thread or task, while it does something for a call of this package."""


@contextmanager
def _until(deadline: _Deadline | None) -> Generator[None, None, None]:
    token = _deadline.set(deadline)
    try:
        yield
    finally:
        _deadline.reset(token)
        if deadline is not None:
            deadline.is_over = True


def _current() -> _Deadline | None:
    """Returns the deadline of this thread or task. A task that was made under a deadline keeps it after its end."""
    deadline = _deadline.get()
    return None if deadline is None or deadline.is_over else deadline


def _set_timeout(connection: Any) -> None:
    """Gives the socket of a connection, and the reader with its copy, the timeout that the connection has now."""
    if (sock := connection._sock) is not None:
        with suppress(OSError):  # another thread has closed it, which the next read or write reports
            sock.settimeout(connection.socket_timeout)
    buffer: Any = getattr(connection._parser, "_buffer", None)
    if hasattr(buffer, "socket_timeout"):
        buffer.socket_timeout = connection.socket_timeout
    else:
        connection._parser._socket_timeout = connection.socket_timeout


def _attribute(kind: Any, name: str, shown: Callable[[Any, Any], Any]) -> property:
    """Returns an attribute of a class of connections that `shown` computes from a connection and its own value."""
    own: Any = getattr(kind, name, None)  # some versions have a property or a slot

    def get(self: Any) -> Any:
        if not own and name not in vars(self):
            raise AttributeError(name)  # the connection to the path of a socket has no host
        return shown(self, cast(Any, own.__get__(self) if own else vars(self)[name]))

    def put(self: Any, value: Any) -> None:
        if own:
            own.__set__(self, value)
        else:
            vars(self)[name] = value

    return property(get, put)


def _bounded(kind: Any, name: str, bounded: Callable[[_Deadline, Any], Any]) -> property:
    """Returns an attribute of a class of connections that is bounded by the deadline."""

    def shown(_: Any, value: Any) -> Any:
        deadline = _current()
        return value if deadline is None else bounded(deadline, value)

    return _attribute(kind, name, shown)


def _host(kind: Any) -> property:
    """Returns the host of a class of connections, which is a number when `_connect` reads it for the first time, to
    look it up. Then it is the name, which TLS compares with the certificate."""

    def shown(self: Any, name: Any) -> Any:
        return cast(dict[str, Any], vars(self)).pop(NUMBER, name)

    return _attribute(kind, "host", shown)


def _waiting(kind: Any, name: str) -> Callable[..., Any]:
    """Returns a method of a class of connections that waits for the socket until the deadline. The socket has its own
    timeout afterwards, because the connection may go back to its pool, and to other threads, before the deadline."""

    def method(self: Any, *arguments: Any, **options: Any) -> Any:
        if _current() is None:
            return getattr(kind, name)(self, *arguments, **options)
        _set_timeout(self)
        try:
            return getattr(kind, name)(self, *arguments, **options)
        finally:
            with _until(None):
                _set_timeout(self)

    return method


class _Lookups:
    """The lookups of names that are under way. A thread makes each, because a lookup has no timeout, and a name server
    that never answers keeps the thread. So there is one for each address, for all that wait for it."""

    def __init__(self) -> None:
        self.lock, self.running = threading.Lock(), dict[Any, Future[list[str]]]()
        in_each_child(self, _Lookups.__init__)

    def find(self, host: str, port: int, family: int, seconds: float) -> list[str]:
        """Returns the numeric addresses of a host within a time."""
        where = (host, port, family)
        with self.lock:
            if (found := self.running.get(where)) is None:
                found = self.running[where] = Future[list[str]]()
                work = partial(self._look_up, where, found)
                try:
                    threading.Thread(target=work, name="redis-cell-lookup", daemon=True).start()
                except RuntimeError:  # Python 3.12 starts no thread at the end of the process
                    del self.running[where]
                    return _numbers(*where)
        try:
            return found.result(max(0, seconds))
        except FutureTimeoutError:  # another class before Python 3.11
            raise TimeoutError(f"the name {host!r} is not looked up in time") from None

    def _look_up(self, where: tuple[str, int, int], found: Future[list[str]]) -> None:
        try:
            numbers = _numbers(*where)
        except BaseException as error:
            end = partial(found.set_exception, error)
        else:
            end = partial(found.set_result, numbers)
        with self.lock:
            del self.running[where]
        end()


_lookups = _Lookups()


def _numbers(host: str, port: int, family: int) -> list[str]:
    found = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM)
    return [socket.getnameinfo(each[4], socket.NI_NUMERICHOST | socket.NI_NUMERICSERV)[0] for each in found]


def _is_number(host: str) -> bool:
    with suppress(ValueError):
        return bool(ip_address(host))
    return False


def _connecting(kind: Any) -> Callable[..., Any]:
    """Returns a method of a class of connections that makes a socket until the deadline, and looks its host up."""

    def make(self: Any) -> Any:
        deadline, host = _current(), getattr(self, "host", None)
        if deadline is None or host is None or _is_number(host):
            return kind._connect(self)
        failed, own = OSError(f"no address of {host!r} is known"), cast(dict[str, Any], vars(self))
        for number in _lookups.find(host, self.port, self.socket_type, deadline.left):
            own[NUMBER] = number
            try:
                return kind._connect(self)
            except OSError as error:
                failed = error
            finally:
                own.pop(NUMBER, None)
        raise failed

    return make


def _unbounded(make: Callable[..., T]) -> Callable[..., T]:
    """Returns a function that creates a connection without a deadline, because a connection stores the timeouts at its
    creation."""

    def made(*arguments: Any, **options: Any) -> T:
        with _until(None):
            return make(*arguments, **options)

    return made


@cache
def _timed(kind: Any, blocking: bool) -> Any:
    """Returns a subclass of connections with deadlines, which can replace the class of existing objects."""

    async def connect(self: Any) -> None:
        if self.is_connected:  # a pool connects each connection that it returns
            return
        deadline = _current()
        if deadline is None:
            await kind.connect(self)
        else:
            await in_time(self, partial(kind.connect, self), deadline.seconds)

    timeouts = ("socket_timeout", "socket_connect_timeout")
    own: dict[str, Any] = {name: _bounded(kind, name, _Deadline.part) for name in timeouts}
    own["retry"] = _bounded(kind, "retry", _Deadline.retry)
    own["__init__"] = _unbounded(kind.__init__)
    if blocking:
        own |= {name: _waiting(kind, name) for name in ("connect", "send_packed_command", "read_response")}
        own |= {"_connect": _connecting(kind), "host": _host(kind)}
    else:
        own["connect"] = connect
    return type(kind.__name__, (kind,), {"__slots__": (), "__module__": kind.__module__, TIMED: True, **own})


def _time_one(connection: Any, blocking: bool) -> None:
    """Adds deadlines to a connection, or to the connection behind a cache."""
    connection = getattr(connection, "_conn", connection)
    kind = cast(Any, type(connection))
    if TIMED not in vars(kind):
        connection.__class__ = _timed(kind, blocking)


def _time(pool: Any, blocking: bool) -> None:
    """Adds deadlines to the connections of a pool, and of the Sentinels behind it, or of a node of a cluster."""
    kind = pool.connection_class
    if TIMED in vars(kind):
        return
    if isinstance(kind, type):
        timed = _timed(kind, blocking)
    else:  # a function in place of the class

        def timed(**options: Any) -> Any:
            connection = kind(**options)
            _time_one(connection, blocking)
            return connection

        setattr(timed, TIMED, True)
    for sentinel in getattr(getattr(pool, "sentinel_manager", None), "sentinels", ()):
        _time(sentinel.connection_pool, blocking)
    pool.connection_class = timed
    for name in ("_available_connections", "_in_use_connections", "_connections"):
        for connection in list(getattr(pool, name, ())):
            _time_one(connection, blocking)
    if getattr(pool, "cache", None) is not None:
        pool.make_connection = _unbounded(pool.make_connection)


def _get_connection(pool: Any) -> Any:
    try:
        return pool.get_connection()
    except TypeError:  # older versions require the name of a command
        return pool.get_connection("CL")


def connection_of(pool: Any, seconds: float) -> Any:
    """Returns a connection of a pool, whose health is checked if that is due. The wait for one that is free is the
    pool's, and is not in `seconds`."""
    _time(pool, blocking=True)
    with _until(_Deadline(seconds)):
        connection = _get_connection(pool)
        try:
            connection.check_health()
        except BaseException:
            pool.release(connection)
            raise
        return connection


async def async_connection_of(pool: Any, seconds: float) -> Any:
    """Returns a connection of a pool for asyncio. The wait for one that is free is the pool's."""
    _time(pool, blocking=False)
    with _until(_Deadline(seconds)):
        return await _get_connection(pool)


@contextmanager
def patience(connection: Any, seconds: float) -> Generator[None, None, None]:
    """Gives a blocking connection that has no timeout this one."""
    if connection.socket_timeout is not None:
        yield
        return
    with _until(_Deadline(seconds, 1)):
        yield


async def in_time(connection: Any, work: Callable[[], Coroutine[Any, Any, T]], seconds: float) -> T:
    """Does something with a connection for asyncio, and closes the connection if that fails or takes longer."""
    try:
        return await asyncio.wait_for(work(), seconds)
    except BaseException as error:
        # Otherwise the pool would give the next call a connection that still receives replies to the handshake.
        await connection.disconnect(nowait=True)
        if isinstance(error, asyncio.TimeoutError):
            raise library(connection).TimeoutError(f"no connection within {seconds:g} seconds") from None
        raise


def find_nodes(manager: Any, seconds: float) -> None:
    """Reads the nodes of a cluster with a blocking client."""
    name = type(manager).__module__.partition(".")[0]
    make = getattr(manager, f"create_{name}_node")
    if not hasattr(make, TIMED):

        def timed(*arguments: Any, **options: Any) -> Any:
            client = make(*arguments, **options)
            _time(client.connection_pool, blocking=True)
            return client

        setattr(timed, TIMED, True)
        setattr(manager, f"create_{name}_node", timed)
    for node in _nodes(manager):
        if (client := getattr(node, f"{name}_connection")) is not None:
            _time(client.connection_pool, blocking=True)
    with _until(_begun(seconds)):
        manager.initialize()


async def async_find_nodes(manager: Any, find: Callable[[], Coroutine[Any, Any, Any]], seconds: float) -> None:
    """Like `find_nodes`, for asyncio, with the function that reads them."""
    for node in _nodes(manager):
        _time(node, blocking=False)
    try:
        with _until(_begun(seconds)):
            await asyncio.wait_for(find(), seconds)
    except asyncio.TimeoutError:
        raise library(manager).TimeoutError(f"the cluster's nodes are not known within {seconds:g} seconds") from None


def _nodes(manager: Any) -> list[Any]:
    return [*manager.startup_nodes.values(), *manager.nodes_cache.values()]


def _begun(seconds: float) -> _Deadline:
    """Returns a deadline that counts from now: one caller reads the nodes, while others wait for it."""
    deadline = _Deadline(seconds)
    deadline.end = time.monotonic() + seconds
    return deadline
