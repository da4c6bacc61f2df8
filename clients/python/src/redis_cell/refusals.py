"""Refusals that are remembered: a key that was refused is refused in this process until its wait is over.

A refusal holds until its wait is over, unless the key changes. Refused calls do not change the key, but refunds,
deletions and calls with another limit do. The server announces changes by CLIENT TRACKING: a connection reads the key
with CL.MPEEK, and the server reports the first change after that on another connection (REDIRECT, so that both
protocols of the clients' libraries work). Nothing is remembered while one of the two connections is silent.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias, TypeVar, cast

from . import backend, steps, wire
from .answers import Key, Refused
from .client import AsyncCell, Cell
from .forks import in_each_child
from .limiters import Arguments, Limit, of_kind, whole
from .sending import Ready, is_cluster
from .steps import Steps
from .times import Seconds, micros
from .wire import Call, Take

T = TypeVar("T")

_log = logging.getLogger("redis_cell")

BEAT = 0.25
"""The time between two signs of life of the server, in seconds."""
SILENCE = 1.0
"""How long a connection may be silent before everything is forgotten, in seconds."""
CHANNEL = "__redis__:invalidate"

_Asked: TypeAlias = tuple[Limit, int]


@dataclass(frozen=True, slots=True)
class _Refusal:
    answer: Refused
    received: float
    until: float
    """The server's wait is over at this instant at the latest: it counts from the instant when the call was sent."""


class _Refusals:
    """The common part of Refusals and AsyncRefusals. No I/O."""

    def __init__(self, cell: Cell | AsyncCell, least: Seconds, keys: int) -> None:
        self._link: Any = cell._link  # pyright: ignore[reportPrivateUsage]
        if is_cluster(self._link.client):
            raise NotImplementedError("refusals are remembered for a single server: in a cluster, slots move")
        self._cell = cell
        self._least = micros(least, "least") / 1_000_000
        self._keys = whole(keys, "keys")
        self._inner: Callable[..., Any] = cell.run
        self._lock = threading.Lock()
        self._begin_again()

    def _begin_again(self) -> None:
        self._known: dict[bytes, dict[_Asked, _Refusal]] = {}
        self._asked: dict[bytes, set[_Asked]] = {}
        self._queue: list[Take] = []
        self._heard = [0.0, 0.0]
        self._again = 0.0
        self.recalled = 0

    recalled: int
    """The number of calls that were refused without the server."""

    @property
    def keys_in_use(self) -> int:
        """The number of keys of which a refusal is remembered."""
        return len(self._known)

    def _name(self, key: Key) -> bytes:
        return key if isinstance(key, bytes) else key.encode(self._options.get("encoding", "utf-8"))

    @property
    def _options(self) -> dict[str, Any]:
        return cast(dict[str, Any], self._link.client.connection_pool.connection_kwargs)

    def _connection(self) -> Any:
        """Returns a new connection like those of the pool, without connecting it."""
        own = {"protocol": 2, "decode_responses": False, "socket_timeout": SILENCE}
        # Newer versions of redis-py have notifications that need the other protocol.
        options = {name: value for name, value in self._options.items() if "maint_notifications" not in name}
        return self._link.client.connection_pool.connection_class(**{**options, **own})

    def recall(self, take: Take | None) -> Refused | None:
        """Returns the refusal of a call that the server would refuse now, if it is remembered."""
        known = None if take is None else self._known.get(self._name(take.key))
        if take is None or known is None or (found := known.get((take.limit, take.quantity))) is None:
            return None
        now = time.monotonic()
        # After a pause of the process, invalidations may not have been read yet.
        if now >= found.until or now - min(self._heard) > SILENCE:
            return None
        self.recalled += 1
        passed = now - found.received
        wait, reset = found.answer.retry_after - passed, found.answer.reset_after - passed
        return replace(found.answer, retry_after=max(0.000_001, wait), reset_after=max(0.0, reset))

    def _asks(self, take: Take | None, answer: object) -> bool:
        """Records that the key of a refused call is to be read. Returns whether it has to be."""
        if (
            take is None
            or not isinstance(answer, Refused)
            or answer.decided_by != "server"
            or answer.retry_after < self._least
        ):
            return False
        name, asked = self._name(take.key), (take.limit, take.quantity)
        with self._lock:
            if time.monotonic() < self._again or asked in self._asked.get(name, ()):
                return False
            if len(self._asked) + len(self._known) >= self._keys:
                now = time.monotonic()
                for key in [
                    key for key, known in self._known.items() if all(now >= one.until for one in known.values())
                ]:
                    del self._known[key]
                if len(self._asked) + len(self._known) >= self._keys:
                    return False
            self._asked.setdefault(name, set()).add(asked)
            self._queue.append(take)
        return True

    def _batch(self) -> list[Take]:
        with self._lock:
            batch, self._queue = self._queue, []
        return batch

    def _look(self, take: Take) -> Arguments:
        """Returns the call that reads a key, whose change the server then announces."""
        call = wire.mpeek(take)
        functions = self._cell._by_functions  # pyright: ignore[reportPrivateUsage]
        return backend.as_function(call) if functions else backend.as_command(call)

    def _tracks(self, listens: Any, reads: Any) -> Steps[None]:
        """Connects both connections. The server announces on the first one what changes of the keys that the second one
        reads."""
        yield listens.connect
        yield partial(listens.send_command, "CLIENT", "ID")
        own = yield listens.read_response
        yield partial(listens.send_command, "SUBSCRIBE", CHANNEL)
        yield listens.read_response
        yield reads.connect
        yield partial(reads.send_command, "CLIENT", "TRACKING", "ON", "REDIRECT", own)
        yield reads.read_response

    def _beats(self, listens: Any, reads: Any) -> Steps[None]:
        """Reads the keys of refused calls, and sends pings."""
        batch, sent = self._batch(), time.monotonic()
        yield partial(listens.send_command, "PING")
        commands = [("PING",), *(self._look(take) for take in batch)]
        yield partial(reads.send_packed_command, reads.pack_commands(commands))
        yield reads.read_response
        self._heard[1] = time.monotonic()
        for take in batch:
            try:
                reply = yield reads.read_response
            except self._link.errors.ResponseError as error:
                reply = error
            self._answered(take, reply, sent)

    def _answered(self, take: Take, reply: Any, sent: float) -> None:
        """Remembers a refusal, unless its key has changed since it was read."""
        name, asked, now = self._name(take.key), (take.limit, take.quantity), time.monotonic()
        answer = None if isinstance(reply, Exception) else wire.mpeek(take).read(reply)[take.key]
        with self._lock:
            if asked not in self._asked.get(name, ()):
                return
            self._asked[name].discard(asked)
            if not self._asked[name]:
                del self._asked[name]
            if isinstance(answer, Refused) and answer.retry_after >= self._least:
                self._known.setdefault(name, {})[asked] = _Refusal(answer, now, sent + answer.retry_after)

    def _told(self, message: Any) -> None:
        """Reads a message of the server: keys that have changed, None for all keys, or the reply to a ping."""
        self._heard[0] = time.monotonic()
        if message[0] != b"message":
            return
        with self._lock:
            if message[2] is None:
                self._known.clear()
                self._asked.clear()
                return
            for key in message[2]:
                self._known.pop(key, None)
                self._asked.pop(key, None)

    def _lost(self, error: Exception | None = None) -> None:
        """Forgets everything, because the server may not announce changes."""
        if error is not None:
            # Every call is then sent to the server, which reports the error.
            _log.warning("refusals are not remembered for now: %s", error)
        with self._lock:
            self._known.clear()
            self._asked.clear()
            self._queue.clear()
            self._heard = [0.0, 0.0]
            self._again = time.monotonic() + SILENCE


class AsyncRefusals(_Refusals):
    """Remembers the refusals of an AsyncCell, so that calls for refused keys rarely reach the server.

    From now on, a call that the server has refused is refused here until its wait is over or its key changes: the same
    key, limit and quantity, of `throttle`, `bucket`, `funnel`, `fixed`, `window` and `log`. The server announces
    changes by client-side caching, so a refusal is exact up to the delay of this message. While one of the two
    connections for this is lost or silent for a second, every call is sent to the server. Waits shorter than `least`
    are not remembered, and at most `keys` keys are.

    `remaining` of a remembered refusal is that at the time of the refusal. If clients wait for the key in the server
    and one gives up, a remembered wait is not shortened, because the key does not change. Not for clusters.
    """

    def __init__(self, cell: AsyncCell, *, least: Seconds = 0.01, keys: int = 10_000) -> None:
        super().__init__(of_kind(cell, "cell", AsyncCell), least, keys)
        self._task: asyncio.Task[None] | None = None
        self._more = asyncio.Event()
        self._closed = False
        cast(Any, cell).run = self._run

    async def _run(self, call: Call[T], ready: Ready | None = None) -> T:
        if (refusal := self.recall(call.take)) is not None:
            return cast(T, refusal)
        answer = await self._inner(call, ready)
        if self._asks(call.take, answer):
            self._more.set()
            if self._task is None or self._task.done():
                self._task = asyncio.get_running_loop().create_task(self._track())
        return cast(T, answer)

    async def aclose(self) -> None:
        """Forgets everything, closes the connections, and remembers nothing from now on."""
        cast(Any, self._cell).run = self._inner
        self._closed = True  # before Python 3.12, `wait_for` ignores a cancellation that comes with its result
        if self._task is not None:
            self._task.cancel()
            with suppress(BaseException):
                await self._task

    async def _track(self) -> None:
        listens, reads = self._connection(), self._connection()
        hears: asyncio.Task[None] | None = None
        try:
            await steps.async_run(self._tracks(listens, reads))
            hears = asyncio.get_running_loop().create_task(self._hear(listens))
            await self._read(listens, reads, hears)
        except Exception as error:
            self._lost(error)
        finally:
            self._lost()
            for connection in (listens, reads):
                with suppress(Exception):
                    await connection.disconnect(nowait=True)
            if hears is not None:
                hears.cancel()
                with suppress(BaseException):
                    await hears

    async def _hear(self, listens: Any) -> None:
        while True:
            self._told(await listens.read_response())

    async def _read(self, listens: Any, reads: Any, hears: asyncio.Task[None]) -> None:
        while not hears.done() and not self._closed:
            self._more.clear()
            await steps.async_run(self._beats(listens, reads))
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._more.wait(), BEAT)
        if hears.done():
            await hears  # raises its error


class Refusals(_Refusals):
    """AsyncRefusals for threads: remembers the refusals of a Cell. Two threads read what the server announces."""

    def __init__(self, cell: Cell, *, least: Seconds = 0.01, keys: int = 10_000) -> None:
        super().__init__(of_kind(cell, "cell", Cell), least, keys)
        cast(Any, cell).run = self._run
        in_each_child(self, Refusals._begin_again)

    def _begin_again(self) -> None:
        super()._begin_again()
        self._lock = threading.Lock()
        self._more = threading.Event()
        self._tracked = False
        self._closed = False

    def _run(self, call: Call[T], ready: Ready | None = None) -> T:
        if (refusal := self.recall(call.take)) is not None:
            return cast(T, refusal)
        answer = self._inner(call, ready)
        if self._asks(call.take, answer):
            self._more.set()
            with self._lock:
                begins, self._tracked = not self._tracked, True
            if begins:
                self._start(self._track)
        return cast(T, answer)

    def close(self) -> None:
        """Forgets everything, closes the connections, and remembers nothing from now on."""
        cast(Any, self._cell).run = self._inner
        self._closed = True
        self._more.set()

    def _start(self, work: Callable[..., None], *arguments: Any) -> None:
        threading.Thread(target=work, args=arguments, name="redis-cell-refusals", daemon=True).start()

    def _track(self) -> None:
        listens, reads = self._connection(), self._connection()
        try:
            steps.run(self._tracks(listens, reads))
            lost = threading.Event()
            self._start(self._hear, listens, lost)
            self._read(listens, reads, lost)
            lost.set()
        except Exception as error:
            self._lost(error)
        finally:
            self._lost()
            for connection in (listens, reads):
                with suppress(Exception):
                    connection.disconnect()
            with self._lock:
                self._tracked = False

    def _hear(self, listens: Any, lost: threading.Event) -> None:
        try:
            while True:
                self._told(listens.read_response())
        except Exception as error:
            if not self._closed and not lost.is_set():
                self._lost(error)
        finally:
            lost.set()
            self._lost()

    def _read(self, listens: Any, reads: Any, lost: threading.Event) -> None:
        while not lost.is_set() and not self._closed:
            self._more.clear()
            steps.run(self._beats(listens, reads))
            self._more.wait(BEAT)
