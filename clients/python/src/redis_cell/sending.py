"""Sends each call once. Nothing here depends on a particular command.

The clients' own `execute_command` sends a call again if a connection breaks or a reply is late. A call that was sent
may have been admitted, so these classes take a connection from the client's pool, send the call, and read one reply.
They follow a cluster's redirections, because a node that redirects a call has not run it.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from .answers import Key
from .connecting import async_connection_of, async_find_nodes, connection_of, find_nodes, in_time, library, patience
from .limiters import Argument, Arguments
from .steps import Steps, Tasks


class Ready(Protocol):
    """Raises an exception if a call that has just got its connection must not be sent."""

    def __call__(self, connection: Any = None, /) -> None: ...


MARGIN = 5.0
"""How long each of these may take, in seconds: to find the nodes of a cluster, to connect, to write, and to reply after
the end of a wait in the server. A write, and the reply to a call that does not wait, have the timeout of their client,
or this time if the client has none."""
REDIRECTIONS = 16
"""The number of times that a call is sent in a cluster that redirects it, before an error is raised."""
PAUSE = 0.05
"""The pause before another attempt if a slot is moving and its keys are on two nodes, in seconds."""


def _is_broken(connection: Any) -> bool:
    """Whether the server has closed an idle connection of asyncio: after a restart, or because of its option `timeout`.

    The pools of blocking clients detect this. Not all versions of the asyncio pools do, and the nodes of a cluster do
    not, so each idle connection would fail a call.
    """
    left, reader = connection in _left, connection._reader
    _left.discard(connection)
    return reader is not None and (left or reader.at_eof() or reader.exception() is not None)


def _refuse_pipeline(client: Any) -> None:
    # A pipeline has the class and the pool of a client, so calls would be sent immediately instead of in the pipeline.
    if any(base.__name__.endswith("Pipeline") for base in type(client).__mro__):
        raise TypeError("calls are not sent in a pipeline: use the client that the pipeline was made from")


def is_cluster(client: Any) -> bool:
    return hasattr(client, "nodes_manager")


def _is_async(client: Any) -> bool:
    return hasattr(client, "__aenter__")


def _now(arguments: Arguments) -> tuple[Argument, ...]:
    return arguments() if callable(arguments) else arguments


class _Link:
    """The common part of Link and AsyncLink: finds the node of a key, and follows redirections."""

    def __init__(self, client: Any) -> None:
        self.errors = library(client)
        _refuse_pipeline(client)
        self.client = client
        self.stale = False

    @property
    def pool(self) -> Any:
        """The client's connection pool, or for a cluster, in which each node has a pool, the client itself."""
        return self.client if is_cluster(self.client) else self.client.connection_pool

    # The I/O, which differs between the two.

    _sleep: Callable[[float], Any]
    _begin: Callable[[], Any]
    """Prepares a cluster's client for a call."""
    _find_nodes: Callable[[], Any]
    """Reads the nodes of a cluster again."""
    _acquire: Callable[[Any], Any]
    """Returns a connection of a node, or of the only server if the node is None."""
    _release: Callable[[Any, Any], Any]
    """Gives a connection back to its node."""
    _close: Callable[[Any], Any]
    """Closes a connection, which its node may connect again."""
    _write: Callable[[Any, list[Arguments]], Any]
    """Sends calls in one write."""
    _read: Callable[[Any, float | None], Any]
    """Reads the reply to a call, which the server may delay on purpose."""

    def _once(
        self, node: Any, arguments: Arguments, held: float | None, ready: Ready | None = None, asking: bool = False
    ) -> Steps[Any]:
        """Sends a call to a node, or to the only server if `node` is None, and returns the reply."""
        connection = yield partial(self._acquire, node)
        try:
            if ready is not None:
                ready(connection)
            if asking:
                yield from self._exchange(connection, ("ASKING",), 0)
            return (yield from self._exchange(connection, arguments, held))
        finally:
            yield partial(self._release, node, connection)

    def _exchange(self, connection: Any, arguments: Arguments, held: float | None) -> Steps[Any]:
        try:
            yield partial(self._write, connection, [arguments])
            return (yield partial(self._read, connection, held))
        except BaseException as error:
            # A server that was demoted, and its address may lead to the new primary: the next call connects again.
            if not isinstance(error, self.errors.ResponseError) or isinstance(error, self.errors.ReadOnlyError):
                yield partial(self._close, connection)
            raise

    def send_many(self, calls: list[Arguments]) -> Steps[list[Any]]:
        """Sends calls to a single server together, and returns the replies, with an error in place of a failed one."""
        connection, replies = (yield partial(self._acquire, None)), list[Any]()
        try:
            yield partial(self._write, connection, calls)
            while len(replies) < len(calls):
                try:
                    replies.append((yield partial(self._read, connection, 0)))
                except self.errors.ResponseError as error:
                    replies.append(error)
        except BaseException:
            yield partial(self._close, connection)
            raise
        finally:
            yield partial(self._release, None, connection)
        return replies

    def send(self, arguments: Arguments, key: Key, held: float | None, ready: Ready | None = None) -> Steps[Any]:
        """Sends a call to the node of a key, and returns the reply."""
        if not is_cluster(self.client):
            return (yield from self._once(None, arguments, held, ready))
        yield from self._refresh()
        node, asking = self.client.get_node_from_key(key), False
        for attempt in range(REDIRECTIONS):
            try:
                return (yield from self._once(node, arguments, held, ready, asking))
            except self.errors.AskError as error:
                node, asking = (yield from self._node(error)), True
            except self.errors.MovedError:
                yield self._find_nodes
                node, asking = self.client.get_node_from_key(key), False
            except self.errors.TryAgainError:
                if held != 0 or attempt + 1 == REDIRECTIONS:
                    raise
                yield partial(self._sleep, PAUSE)
            except (self.errors.ConnectionError, self.errors.TimeoutError, self.errors.ClusterDownError):
                self.stale = True
                raise
        raise self.errors.ClusterError("the call was redirected too often")

    def send_to_all(self, arguments: Arguments) -> Steps[list[Any]]:
        """Sends a call to every primary, and returns the replies."""
        if not is_cluster(self.client):
            return [(yield from self._once(None, arguments, 0))]
        yield from self._refresh()
        replies: list[Any] = []
        try:
            for node in self.client.get_primaries():
                replies.append((yield from self._once(node, arguments, 0)))
        except (self.errors.ConnectionError, self.errors.TimeoutError):
            self.stale = True
            raise
        return replies

    def _refresh(self) -> Steps[None]:
        yield self._begin
        if self.stale:
            yield self._find_nodes
            self.stale = False

    def _node(self, error: Any) -> Steps[Any]:
        node = self.client.get_node(host=error.host, port=error.port)
        if node is None:
            yield self._find_nodes
            node = self.client.get_node(host=error.host, port=error.port)
        if node is None:
            raise error
        return node


class Link(_Link):
    """Sends each call once through a blocking client."""

    _sleep = staticmethod(time.sleep)

    def __init__(self, client: Any) -> None:
        super().__init__(client)
        if _is_async(client):
            raise TypeError("this client is for asyncio: use AsyncCell")

    def _begin(self) -> None:
        pass

    def _find_nodes(self) -> None:
        find_nodes(self.client.nodes_manager, MARGIN)

    def _pool_of(self, node: Any) -> Any:
        if node is None:
            return self.client.connection_pool
        find = getattr(self.client, "get_redis_connection", None) or self.client.get_valkey_connection
        return find(node).connection_pool

    def _acquire(self, node: Any) -> Any:
        return connection_of(self._pool_of(node), MARGIN)

    def _release(self, node: Any, connection: Any) -> None:
        self._pool_of(node).release(connection)

    def _close(self, connection: Any) -> None:
        connection.disconnect()

    def _write(self, connection: Any, calls: list[Arguments]) -> None:
        with patience(connection, MARGIN):
            packed = connection.pack_commands([_now(arguments) for arguments in calls])
            connection.send_packed_command(packed, check_health=False)

    def _read(self, connection: Any, held: float | None) -> Any:
        if held != 0 and not connection.can_read(None if held is None else held + MARGIN):
            raise self.errors.TimeoutError(f"no reply within {(held or 0) + MARGIN:g} seconds")
        with patience(connection, MARGIN):
            return connection.read_response()


def leave_queue(connection: Any) -> None:
    """Shuts the connection of a waiting call down for writing. The call then leaves its queue, and the server closes
    the connection, after the reply if the call was admitted before."""
    writer = connection._writer
    if writer is None or not writer.can_write_eof():  # over TLS, a connection is only closed as a whole
        return
    _left.add(connection)  # for its next call, if its reply has arrived by now
    with suppress(OSError):
        writer.write_eof()


_left: weakref.WeakSet[Any] = weakref.WeakSet()
"""The connections over which nothing more can be sent."""


@contextmanager
def _patience(connection: Any) -> Generator[None, None, None]:
    """Gives a connection for asyncio that has no timeout a timeout of `MARGIN`."""
    if connection.socket_timeout is not None:
        yield
        return
    connection.socket_timeout = MARGIN
    try:
        yield
    finally:
        connection.socket_timeout = None


@dataclass(slots=True)
class _Pipelined:
    """A call that is sent with others."""

    arguments: Arguments
    ready: Ready | None
    reply: asyncio.Future[Any]

    def is_ready(self, connection: Any) -> bool:
        """Whether to send the call: its caller has not been cancelled, and `ready` raises no exception."""
        if not self.reply.done() and self.ready is not None:
            try:
                self.ready(connection)
            except (Exception, asyncio.CancelledError) as error:
                self.ends(error)
        return not self.reply.done()

    def ends(self, reply: Any) -> None:
        """Gives the caller its reply or its error, unless it was cancelled."""
        if self.reply.done():
            return
        if not isinstance(reply, BaseException):
            self.reply.set_result(reply)
        elif isinstance(reply, Exception):
            # Several calls raise the same exception, and each would add its own lines to the traceback.
            self.reply.set_exception(reply.with_traceback(None))
        else:
            self.reply.cancel()


class AsyncLink(_Link):
    """Sends each call once through a client for asyncio."""

    _sleep = staticmethod(asyncio.sleep)

    def __init__(self, client: Any, *, pipelined: bool = False) -> None:
        super().__init__(client)
        if not _is_async(client):
            raise TypeError("this client is not for asyncio: use Cell")
        self.pipelined = pipelined
        self._turns: dict[int, list[_Pipelined]] = {}
        self._tasks = Tasks()

    async def _begin(self) -> None:
        if getattr(self.client, "_initialize", True):
            await async_find_nodes(self.client.nodes_manager, self.client.initialize, MARGIN)

    async def _find_nodes(self) -> None:
        manager = self.client.nodes_manager
        await async_find_nodes(manager, manager.initialize, MARGIN)

    async def _acquire(self, node: Any) -> Any:
        if node is not None:
            return node.acquire_connection()
        return await async_connection_of(self.client.connection_pool, MARGIN)

    async def _release(self, node: Any, connection: Any) -> None:
        if node is None:
            await self.client.connection_pool.release(connection)
        else:
            # As the node's own execute_command does. Older versions have no method that returns a connection.
            (getattr(node, "release", None) or node._free.append)(connection)

    async def _close(self, connection: Any) -> None:
        await connection.disconnect(nowait=True)

    async def _write(self, connection: Any, calls: list[Arguments]) -> None:
        if _is_broken(connection):
            await connection.disconnect(nowait=True)
        if not connection.is_connected:  # the server has closed it, or a node of a cluster has just made it
            await in_time(connection, connection.connect, MARGIN)
        elif connection.health_check_interval:
            await in_time(connection, connection.check_health, MARGIN)
        packed = connection.pack_commands([_now(arguments) for arguments in calls])
        with _patience(connection):
            await connection.send_packed_command(packed, check_health=False)

    async def _read(self, connection: Any, held: float | None) -> Any:
        if held == 0:
            with _patience(connection):
                return await connection.read_response()
        # The connection's own timeout would end the wait and return None, like a call that was not admitted.
        reading = connection.read_response(timeout=10**9)
        try:
            reply = await asyncio.wait_for(reading, None if held is None else held + MARGIN)
        except asyncio.TimeoutError:
            raise self.errors.TimeoutError(f"no reply within {(held or 0) + MARGIN:g} seconds") from None
        if connection in _left:
            await self._close(connection)
        return reply

    def _once(
        self, node: Any, arguments: Arguments, held: float | None, ready: Ready | None = None, asking: bool = False
    ) -> Steps[Any]:
        if self.pipelined and held == 0 and not asking:
            return (yield partial(self._in_turn, node, arguments, ready))
        return (yield from super()._once(node, arguments, held, ready, asking))

    def _in_turn(self, node: Any, arguments: Arguments, ready: Ready | None) -> asyncio.Future[Any]:
        """Sends a call with all others of this turn of the event loop. Returns the future of the reply."""
        loop = asyncio.get_running_loop()
        call = _Pipelined(arguments, ready, loop.create_future())
        # Not all versions of the libraries can hash a node.
        if (turn := self._turns.get(id(node))) is not None:
            turn.append(call)
        else:
            self._turns[id(node)] = [call]
            loop.call_soon(self._flush, node)  # after all that are ready to run now
        return call.reply

    def _flush(self, node: Any) -> None:
        self._tasks.start(self._exchange_all(node, self._turns.pop(id(node))))

    async def _exchange_all(self, node: Any, calls: list[_Pipelined]) -> None:
        """Sends the calls of a turn in one write, and gives each its reply."""
        connection = None
        try:
            connection = await self._acquire(node)
            calls = [call for call in calls if call.is_ready(connection)]
            if not calls:
                return
            await self._write(connection, [call.arguments for call in calls])
            demoted = False
            for call in calls:
                try:
                    call.ends(await self._read(connection, 0))
                except self.errors.ResponseError as error:
                    demoted = demoted or isinstance(error, self.errors.ReadOnlyError)
                    call.ends(error)
            if demoted:
                await self._close(connection)
        except BaseException as error:
            if connection is not None:
                await self._close(connection)
            for call in calls:
                call.ends(error)
            if not isinstance(error, Exception):
                raise
        finally:
            if connection is not None:
                await self._release(node, connection)
