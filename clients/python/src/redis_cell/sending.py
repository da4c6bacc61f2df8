"""How a call is sent: once. Nothing here knows a command.

The clients' own `execute_command` sends a call again if a connection breaks or a reply is late. A call that has been
sent may have been admitted, so these classes take a connection from the client's pool, send, and read one reply. A
cluster's redirections are followed, because a node that redirects has not run the call.
"""

from __future__ import annotations

import asyncio
import importlib
import time
from collections.abc import Callable
from typing import Any, TypeAlias

from .answers import Key
from .limiters import Word, Words

Ready: TypeAlias = Callable[[], None]
"""Raises an exception if a call that has just got its connection must not be sent."""

MARGIN = 5.0
"""How long after the end of a waiting call its reply may come, in seconds."""
REDIRECTIONS = 16
"""How often a cluster may redirect a call before the error is raised."""
PAUSE = 0.05
"""How long to wait in seconds if a slot is moving and its keys are on two nodes."""


def library(client: object) -> Any:
    """The module of exceptions of the library that a client comes from: that of redis or of valkey."""
    for base in type(client).__mro__:
        root = base.__module__.partition(".")[0]
        if root in ("redis", "valkey"):
            return importlib.import_module(root + ".exceptions")
    raise TypeError(f"a client of redis-py or valkey-py is needed, not {type(client).__name__}")


def connection_of(pool: Any) -> Any:
    """A connection of a pool, or a coroutine that returns one. Older versions require the name of a command."""
    try:
        return pool.get_connection()
    except TypeError:
        return pool.get_connection("CL")


def _is_broken(connection: Any) -> bool:
    """Whether the server has closed an idle connection for asyncio: after a restart, or by its setting `timeout`.

    The pools for blocking code find out by themselves. Those for asyncio do not in all versions, nor do the nodes of a
    cluster, so each idle connection would fail a call.
    """
    reader = connection._reader
    return reader is not None and (reader.at_eof() or reader.exception() is not None)


def _refuse_pipeline(client: Any) -> None:
    # A pipeline has the class and the pool of a client: calls would be sent at once, and not in the pipeline.
    if any(base.__name__.endswith("Pipeline") for base in type(client).__mro__):
        raise TypeError("calls are not sent in a pipeline: use the client that the pipeline was made from")


def is_cluster(client: Any) -> bool:
    return hasattr(client, "nodes_manager")


def _is_async(client: Any) -> bool:
    return hasattr(client, "__aenter__")


def _now(words: Words) -> tuple[Word, ...]:
    return words() if callable(words) else words


class Link:
    """Sends calls by a client, each of them once."""

    def __init__(self, client: Any) -> None:
        self.errors = library(client)
        _refuse_pipeline(client)
        if _is_async(client):
            raise TypeError("this client is for asyncio: use AsyncCell")
        self.client = client
        self.stale = False

    @property
    def pool(self) -> Any:
        """What has the connections: the client's pool, or the client itself if each node of a cluster has a pool."""
        return self.client if is_cluster(self.client) else self.client.connection_pool

    def send(self, words: Words, key: Key, held: float | None, ready: Ready | None = None) -> Any:
        """Sends a call to the node of a key, and returns the reply."""
        if not is_cluster(self.client):
            return self._once(self.client, words, held, ready)
        self._refresh()
        node, asking = self.client.get_node_from_key(key), False
        for attempt in range(REDIRECTIONS):
            try:
                return self._once(self._of(node), words, held, ready, asking)
            except self.errors.AskError as error:
                node, asking = self._node(error), True
            except self.errors.MovedError:
                self.client.nodes_manager.initialize()
                node, asking = self.client.get_node_from_key(key), False
            except self.errors.TryAgainError:
                if held != 0 or attempt + 1 == REDIRECTIONS:
                    raise
                time.sleep(PAUSE)
            except (self.errors.ConnectionError, self.errors.TimeoutError, self.errors.ClusterDownError):
                self.stale = True
                raise
        raise self.errors.ClusterError("the call was redirected too often")

    def send_many(self, calls: list[Words]) -> list[Any]:
        """Sends calls to a single server at once, and returns the replies. An error stands in place of its reply."""
        connection = connection_of(self.client.connection_pool)
        try:
            connection.send_packed_command(connection.pack_commands([_now(words) for words in calls]))
            return [self._reply(connection) for _ in calls]
        except BaseException:
            connection.disconnect()
            raise
        finally:
            self.client.connection_pool.release(connection)

    def _reply(self, connection: Any) -> Any:
        try:
            return connection.read_response()
        except self.errors.ResponseError as error:
            return error

    def send_to_all(self, words: Words) -> list[Any]:
        """Sends a call to every primary, and returns the replies."""
        if not is_cluster(self.client):
            return [self._once(self.client, words, 0)]
        self._refresh()
        try:
            return [self._once(self._of(node), words, 0) for node in self.client.get_primaries()]
        except (self.errors.ConnectionError, self.errors.TimeoutError):
            self.stale = True
            raise

    def _refresh(self) -> None:
        if self.stale:
            self.client.nodes_manager.initialize()
            self.stale = False

    def _of(self, node: Any) -> Any:
        """The client of one node."""
        find = getattr(self.client, "get_redis_connection", None) or self.client.get_valkey_connection
        return find(node)

    def _node(self, error: Any) -> Any:
        node = self.client.get_node(host=error.host, port=error.port)
        if node is None:
            self.client.nodes_manager.initialize()
            node = self.client.get_node(host=error.host, port=error.port)
        if node is None:
            raise error
        return node

    def _once(
        self, client: Any, words: Words, held: float | None, ready: Ready | None = None, asking: bool = False
    ) -> Any:
        pool = client.connection_pool
        connection = connection_of(pool)
        if ready is not None:
            try:
                ready()
            except BaseException:
                pool.release(connection)
                raise
        try:
            if asking:
                connection.send_command("ASKING")
                connection.read_response()
            connection.send_command(*_now(words))
            if held != 0 and not connection.can_read(None if held is None else held + MARGIN):
                raise self.errors.TimeoutError(f"no reply {MARGIN:g} seconds after the end of the wait")
            return connection.read_response()
        except self.errors.ResponseError as error:
            if isinstance(error, self.errors.ReadOnlyError):
                # The server was demoted, and its address may lead to its successor: the next call connects again.
                connection.disconnect()
            raise
        except BaseException:
            connection.disconnect()
            raise
        finally:
            pool.release(connection)


class AsyncLink:
    """Sends calls by a client for asyncio, each of them once."""

    def __init__(self, client: Any) -> None:
        self.errors = library(client)
        _refuse_pipeline(client)
        if not _is_async(client):
            raise TypeError("this client is not for asyncio: use Cell")
        self.client = client
        self.stale = False

    @property
    def pool(self) -> Any:
        """What has the connections: the client's pool, or the client itself if each node of a cluster has a pool."""
        return self.client if is_cluster(self.client) else self.client.connection_pool

    async def send(self, words: Words, key: Key, held: float | None, ready: Ready | None = None) -> Any:
        """Sends a call to the node of a key, and returns the reply."""
        if not is_cluster(self.client):
            return await self._by_pool(words, held, ready)
        await self._refresh()
        node, asking = self.client.get_node_from_key(key), False
        for attempt in range(REDIRECTIONS):
            try:
                return await self._by_node(node, words, held, ready, asking)
            except self.errors.AskError as error:
                node, asking = await self._node(error), True
            except self.errors.MovedError:
                await self.client.nodes_manager.initialize()
                node, asking = self.client.get_node_from_key(key), False
            except self.errors.TryAgainError:
                if held != 0 or attempt + 1 == REDIRECTIONS:
                    raise
                await asyncio.sleep(PAUSE)
            except (self.errors.ConnectionError, self.errors.TimeoutError, self.errors.ClusterDownError):
                self.stale = True
                raise
        raise self.errors.ClusterError("the call was redirected too often")

    async def send_many(self, calls: list[Words]) -> list[Any]:
        """Sends calls to a single server at once, and returns the replies. An error stands in place of its reply."""
        pool = self.client.connection_pool
        connection = await connection_of(pool)
        try:
            if _is_broken(connection):
                await connection.disconnect(nowait=True)  # connecting again is what sending does
            if not connection.is_connected:
                await connection.connect()
            await connection.send_packed_command(connection.pack_commands([_now(words) for words in calls]))
            return [await self._reply(connection) for _ in calls]
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        finally:
            await pool.release(connection)

    async def _reply(self, connection: Any) -> Any:
        try:
            return await connection.read_response()
        except self.errors.ResponseError as error:
            return error

    async def send_to_all(self, words: Words) -> list[Any]:
        """Sends a call to every primary, and returns the replies."""
        if not is_cluster(self.client):
            return [await self._by_pool(words, 0)]
        await self._refresh()
        try:
            return [await self._by_node(node, words, 0) for node in self.client.get_primaries()]
        except (self.errors.ConnectionError, self.errors.TimeoutError):
            self.stale = True
            raise

    async def _refresh(self) -> None:
        await self.client.initialize()
        if self.stale:
            await self.client.nodes_manager.initialize()
            self.stale = False

    async def _node(self, error: Any) -> Any:
        node = self.client.get_node(host=error.host, port=error.port)
        if node is None:
            await self.client.nodes_manager.initialize()
            node = self.client.get_node(host=error.host, port=error.port)
        if node is None:
            raise error
        return node

    async def _by_pool(self, words: Words, held: float | None, ready: Ready | None = None) -> Any:
        pool = self.client.connection_pool
        connection = await connection_of(pool)
        try:
            if ready is not None:
                ready()
            return await self._exchange(connection, words, held)
        finally:
            await pool.release(connection)

    async def _by_node(
        self, node: Any, words: Words, held: float | None, ready: Ready | None = None, asking: bool = False
    ) -> Any:
        # As the node's own execute_command does. Older versions have no method to give a connection back.
        release = getattr(node, "release", None) or node._free.append
        connection = node.acquire_connection()
        try:
            if ready is not None:
                ready()
            if asking:
                await self._exchange(connection, ("ASKING",), 0)
            return await self._exchange(connection, words, held)
        finally:
            release(connection)

    async def _exchange(self, connection: Any, words: Words, held: float | None) -> Any:
        try:
            if _is_broken(connection):
                await connection.disconnect(nowait=True)  # sending connects again
            await connection.send_command(*_now(words))
            if held == 0:
                return await connection.read_response()
            # The connection's own limit would end the wait. It returns None when it passes, as an unanswered call does.
            reply = connection.read_response(timeout=10**9)
            return await asyncio.wait_for(reply, None if held is None else held + MARGIN)
        except self.errors.ResponseError as error:
            if isinstance(error, self.errors.ReadOnlyError):
                # The server was demoted, and its address may lead to its successor: the next call connects again.
                await connection.disconnect(nowait=True)
            raise
        except asyncio.TimeoutError:
            await connection.disconnect(nowait=True)
            raise self.errors.TimeoutError(f"no reply {MARGIN:g} seconds after the end of the wait") from None
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
