"""Merged calls: calls for one key and limit that are sent as a single call, while another one is on its way.

core/src/merged.rs explains the arithmetic, and proves it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeAlias, TypeVar, cast

from . import answers, wire
from .answers import Answer, Key
from .client import AsyncCell, AsyncClient, Backend, Cell, SyncClient
from .limiters import Bucket, Fixed, Funnel, Rate, Total
from .sending import Ready
from .times import micros
from .wire import Call, Take

T = TypeVar("T")

Mergeable: TypeAlias = Rate | Bucket | Funnel | Fixed
"""A limit whose answers to fewer units follow from the answer to more."""


def tail(quantities: Sequence[int]) -> int:
    """Returns how many callers at the end of a row can be sent as one call: each quantity is at most one more than the
    sum of the quantities behind it. At least one, even if its quantity is larger."""
    callers, total = 0, 0
    for quantity in reversed(quantities):
        if quantity > total + 1:
            break
        callers, total = callers + 1, total + quantity
    return max(1, callers)


class Grants:
    """The answers of the callers of a row, from the integers of the reply to the call for their sum."""

    def __init__(self, limit: Mergeable, reply: Sequence[int]) -> None:
        _, self.limit, self.remaining, self.wait, self.reset, self.left = reply
        self.of = limit

    def next(self, quantity: int) -> Answer:
        """Returns the answer of the next caller, which wants `quantity` units: from 1 to the limit."""
        if admitted := quantity <= self.left:
            self.left -= quantity
        wait, reset = self.wait, self.reset
        if not isinstance(self.of, Fixed):
            reset = self.round(self.reset * 1000 - self.time(self.left))
            if not admitted and self.wait >= 0:
                # Clients that wait may come before: `reset` does not count their units.
                wait = self.round(self.wait * 1000 + self.time(quantity) - self.time(1))
            elif not admitted:
                wait = self.round(self.reset * 1000 - self.time(self.limit) + self.time(quantity))
        elif wait < 0:
            wait = reset
        wait = -1 if admitted else max(1, wait)
        return answers.answer([not admitted, self.limit, self.left + self.remaining, wait, reset], quantity)

    def time(self, units: int) -> int:
        """Returns the time of units, in nanoseconds."""
        assert not isinstance(self.of, Fixed)
        return units * micros(self.of.per, "per") * 1000 // self.of.count

    @staticmethod
    def round(nanos: int) -> int:
        return -(-max(0, nanos) // 1000)


class _Ticket(Protocol):
    """A waiting call: a Future of asyncio or of concurrent.futures."""

    def done(self) -> bool: ...
    def set_result(self, result: Any, /) -> None: ...
    def set_exception(self, exception: BaseException, /) -> None: ...


F = TypeVar("F", bound=_Ticket)


@dataclass(slots=True, eq=False)
class _Caller(Generic[F]):
    """A caller that waits, with its own call."""

    call: Call[Answer]
    ready: Ready | None
    ticket: F

    @property
    def quantity(self) -> int:
        return 0 if self.call.take is None else self.call.take.quantity

    def is_there(self) -> bool:
        """Whether the call is still wanted. If not, it takes nothing."""
        if not self.ticket.done() and self.ready is not None:
            try:
                self.ready()
            except Exception as error:
                self.ticket.set_exception(error)
        return not self.ticket.done()


_Name: TypeAlias = tuple[Key, Mergeable]
_Part: TypeAlias = list[_Caller[F]]


def _mergeable(call: Call[Any]) -> Take | None:
    """Returns the limiter of a call that can be merged with others, or None."""
    take = call.take
    if take is None or not isinstance(take.limit, (Rate, Bucket, Funnel, Fixed)):
        return None
    if isinstance(take.limit, Fixed) and isinstance(take.limit.per, Total):
        return None
    return take if 1 <= take.quantity <= take.limit.limit else None


def _name(take: Take) -> _Name:
    return take.key, cast(Mergeable, take.limit)


def _parts(row: _Part[F]) -> list[_Part[F]]:
    """Divides a row into parts, each of which is one call, in the order of the row."""
    parts: list[_Part[F]] = []
    while row:
        cut = len(row) - tail([caller.quantity for caller in row])
        parts.insert(0, row[cut:])
        row = row[:cut]
    return parts


def _merged(name: _Name, part: _Part[Any]) -> Call[Callable[[], None]]:
    """Returns the call for the callers of a part. Its answer is a function that tells each caller its own."""
    key, limit = name

    def read(reply: Any) -> Callable[[], None]:
        grants = Grants(limit, reply)

        def tell() -> None:
            for caller in part:
                answer = grants.next(caller.quantity)
                # The caller may be gone, as after a call of its own.
                if not caller.ticket.done():
                    caller.ticket.set_result(answer)

        return tell

    call = cast(Call[Any], wire.take(key, limit, sum(caller.quantity for caller in part), saturate=True))
    return replace(call, read=read)


def _fail(part: _Part[Any], error: BaseException) -> None:
    for caller in part:
        if not caller.ticket.done():
            # Several calls raise the same exception, and each would add its own lines to the traceback.
            caller.ticket.set_exception(error.with_traceback(None))


_Future: TypeAlias = "asyncio.Future[Answer]"


class AsyncMerged(AsyncCell):
    """An AsyncCell that sends calls for the same key and limit as one call, while another one is on its way.

    For each key and limit, at most one call is on its way. Calls that come meanwhile wait for it, and one call with
    SATURATE for the sum of their quantities follows. What it takes is granted in the order of arrival, and each caller
    gets the answer that its own call would have got at its place. No unit is held or lost, and the limit holds exactly.
    A call that is cancelled while it waits takes nothing.

    Merged are `throttle`, `bucket`, `funnel` and `fixed`, except totals, without `saturate`. Quantities above 1 are
    merged only with enough smaller ones behind them, and are otherwise sent at the same time, each by itself.
    """

    def __init__(self, client: AsyncClient, *, backend: Backend = "module", pipelined: bool = False) -> None:
        super().__init__(client, backend=backend, pipelined=pipelined)
        self._rows: dict[_Name, _Part[_Future]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, call: Call[T], ready: Ready | None = None) -> T:
        """Sends a call that a function of `redis_cell.wire` has built, or merges it with others."""
        take = _mergeable(call)
        if take is None:
            return await super().run(call, ready)
        name = _name(take)
        if (row := self._rows.get(name)) is None:
            self._rows[name] = []
            try:
                return await super().run(call, ready)
            finally:
                self._next(name)
        caller: _Caller[_Future] = _Caller(cast(Call[Answer], call), ready, asyncio.get_running_loop().create_future())
        row.append(caller)
        return cast(T, await caller.ticket)

    def _next(self, name: _Name) -> None:
        """Begins the calls for the callers behind a call that has ended."""
        row = [caller for caller in self._rows.pop(name) if caller.is_there()]
        if row:
            self._rows[name] = []
            # The event loop keeps only a weak reference to a task.
            task = asyncio.get_running_loop().create_task(self._serve(name, row))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _serve(self, name: _Name, row: _Part[_Future]) -> None:
        try:
            parts = _parts(row)
            if len(parts) == 1:
                await self._send(name, parts[0])
            else:
                await asyncio.gather(*(self._send(name, part) for part in parts))
        finally:
            for caller in row:
                caller.ticket.cancel()  # unless it has its answer: the event loop ends
            self._next(name)

    async def _send(self, name: _Name, part: _Part[_Future]) -> None:
        try:
            if len(part) > 1:
                (await super().run(_merged(name, part)))()
                return
            answer = await super().run(part[0].call)
            if not part[0].ticket.done():
                part[0].ticket.set_result(answer)
        except Exception as error:
            _fail(part, error)


_Promise: TypeAlias = "concurrent.futures.Future[Answer | _Part[Any]]"


@dataclass(slots=True)
class _Row:
    """The callers that wait, and the number of calls on their way."""

    under_way: int = 1
    waiting: _Part[_Promise] = field(default_factory=list)


class Merged(Cell):
    """AsyncMerged for threads: a call that waits for another one blocks its thread. It has no threads of its own."""

    def __init__(self, client: SyncClient, *, backend: Backend = "module") -> None:
        super().__init__(client, backend=backend)
        self._begin_again()
        _all_merged.add(self)

    def _begin_again(self) -> None:
        """Begins without callers, and with a lock that is free."""
        self._lock = threading.Lock()
        self._rows: dict[_Name, _Row] = {}

    def run(self, call: Call[T], ready: Ready | None = None) -> T:
        """Sends a call that a function of `redis_cell.wire` has built, or merges it with others."""
        take = _mergeable(call)
        if take is None:
            return super().run(call, ready)
        name = _name(take)
        caller: _Caller[_Promise] | None = None
        with self._lock:
            if (row := self._rows.get(name)) is None:
                self._rows[name] = _Row()
            else:
                caller = _Caller(cast(Call[Answer], call), ready, concurrent.futures.Future())
                row.waiting.append(caller)
        if caller is not None:
            try:
                served = caller.ticket.result()
            except BaseException:
                self._give_up(name, caller)
                raise
            if not isinstance(served, list):
                return cast(T, served)
            if len(served) > 1:
                return cast(T, self._send(name, caller, served))
        try:
            return super().run(call, ready)
        finally:
            self._ended(name)

    def _send(self, name: _Name, caller: _Caller[_Promise], part: _Part[_Promise]) -> Answer:
        """Sends the call for a part, whose first caller this thread is."""
        caller.ticket = concurrent.futures.Future()
        try:
            super().run(_merged(name, part))()
        except BaseException as error:
            _fail(part, error)
            raise
        finally:
            self._ended(name)
        return cast(Answer, caller.ticket.result())

    def _ended(self, name: _Name) -> None:
        """After the last call on its way, lets the first caller of each part of the row send the next one."""
        with self._lock:
            row = self._rows[name]
            row.under_way -= 1
            if row.under_way:
                return
            waiting, row.waiting = [caller for caller in row.waiting if caller.is_there()], []
            parts = _parts(waiting)
            row.under_way = len(parts)
            if not parts:
                del self._rows[name]
        for part in parts:
            part[0].ticket.set_result(part)

    def _give_up(self, name: _Name, caller: _Caller[_Promise]) -> None:
        """Takes a caller that was interrupted out of its row, or ends its turn."""
        with self._lock:
            row = self._rows.get(name)
            if row is not None and caller in row.waiting:
                row.waiting.remove(caller)
                return
        with suppress(BaseException):
            if isinstance(part := caller.ticket.result(timeout=0), list):
                _fail(part[1:], InterruptedError("the thread that was to send the call was interrupted"))
                self._ended(name)


_all_merged: weakref.WeakSet[Merged] = weakref.WeakSet()


def _after_fork() -> None:
    # The child process has none of the parent's threads, and none of their calls.
    for merged in list(_all_merged):
        merged._begin_again()  # pyright: ignore[reportPrivateUsage]


os.register_at_fork(after_in_child=_after_fork)
