"""Connects within a time. The client's own timeouts and retries may let a server that is frozen take a minute, or they
may have no end. They apply unchanged to whatever else uses the client."""

from __future__ import annotations

import asyncio
import importlib
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from functools import cache, partial
from typing import Any

_seconds: ContextVar[float | None] = ContextVar("_seconds", default=None)
"""The time to connect, while this thread or task gets a connection for a call of this package."""
TIMED = "_is_timed"
"""The mark of the classes of connections that have a time to connect."""


def library(client: object) -> Any:
    """Returns the module of exceptions of a client's library: redis or valkey."""
    for base in type(client).__mro__:
        root = base.__module__.partition(".")[0]
        if root in ("redis", "valkey"):
            return importlib.import_module(root + ".exceptions")
    raise TypeError(f"a client of redis-py or valkey-py is needed, not {type(client).__name__}")


def _connect_in_time(connection: Any, connect: Callable[[], None], seconds: float) -> None:
    """Connects in time, with the retries of the client. Each attempt has what is left of the time."""
    retry, timeouts = connection.retry, (connection.socket_timeout, connection.socket_connect_timeout)
    end = time.monotonic() + seconds

    def set_timeouts(*timeouts: float | None) -> None:
        connection.socket_timeout, connection.socket_connect_timeout = timeouts

    def call_with_retry(do: Callable[[], Any], fail: Callable[..., Any], *more: Any, **options: Any) -> Any:
        def attempt() -> Any:
            left = max(1.0, end - time.monotonic())  # the pause before may have taken all of the time
            set_timeouts(*(left if timeout is None else min(timeout, left) for timeout in timeouts))
            return do()

        def failed(error: Exception, *count: int) -> None:
            fail(error, *count)
            if time.monotonic() >= end:
                raise error

        return retry.call_with_retry(attempt, failed, *more, **options)

    connection.retry = copy(retry)
    connection.retry.call_with_retry = call_with_retry
    try:
        connect()
    finally:
        connection.retry = retry
        set_timeouts(*timeouts)
    # The socket and its reader have copies of the timeout.
    connection._sock.settimeout(connection.socket_timeout)
    buffer: Any = getattr(connection._parser, "_buffer", None)
    if hasattr(buffer, "socket_timeout"):
        buffer.socket_timeout = connection.socket_timeout
    else:
        connection._parser._socket_timeout = connection.socket_timeout


async def _in_time(connection: Any, connect: Callable[[], Any], seconds: float) -> None:
    try:
        await asyncio.wait_for(connect(), seconds)
    except BaseException as error:
        # The pool would give the next call a connection on which the replies to the handshake are still to come.
        await connection.disconnect(nowait=True)
        if isinstance(error, asyncio.TimeoutError):
            raise library(connection).TimeoutError(f"no connection within {seconds:g} seconds") from None
        raise


async def connect(connection: Any, seconds: float) -> None:
    """Connects a connection for asyncio, unless it is connected."""
    if not connection.is_connected:
        await _in_time(connection, connection.connect, seconds)


@cache
def _timed(kind: Any, blocking: bool) -> Any:
    """Returns a class of connections with a time to connect, which objects of their own class can be given."""

    def connect(self: Any) -> None:
        seconds = _seconds.get()
        if seconds is None or self._sock is not None:
            kind.connect(self)
        else:
            _connect_in_time(self, partial(kind.connect, self), seconds)

    async def async_connect(self: Any) -> None:
        seconds = _seconds.get()
        if seconds is None or self.is_connected:
            await kind.connect(self)
        else:
            await _in_time(self, partial(kind.connect, self), seconds)

    own = connect if blocking else async_connect
    return type(kind.__name__, (kind,), {"__slots__": (), "__module__": kind.__module__, "connect": own, TIMED: True})


@contextmanager
def _connecting(pool: Any, seconds: float, blocking: bool) -> Generator[None, None, None]:
    kind = pool.connection_class
    if isinstance(kind, type) and TIMED not in vars(kind):  # a pool may have a function in place of the class
        timed = _timed(kind, blocking)
        for name in ("_available_connections", "_in_use_connections", "_connections"):
            for connection in list(getattr(pool, name, ())):
                if type(connection) is kind:
                    connection.__class__ = timed
        pool.connection_class = timed
    token = _seconds.set(seconds)
    try:
        yield
    finally:
        _seconds.reset(token)


def _get_connection(pool: Any) -> Any:
    try:
        return pool.get_connection()
    except TypeError:  # older versions require the name of a command
        return pool.get_connection("CL")


def connection_of(pool: Any, seconds: float) -> Any:
    """Returns a connection of a pool. The wait for one that is free is the pool's, and is not in `seconds`."""
    with _connecting(pool, seconds, blocking=True):
        return _get_connection(pool)


async def async_connection_of(pool: Any, seconds: float) -> Any:
    """Like `connection_of`, for asyncio."""
    with _connecting(pool, seconds, blocking=False):
        return await _get_connection(pool)
