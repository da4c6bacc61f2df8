"""Merged calls: calls for the same limiters that are sent as a single call, while another one is on its way.

core/src/merged.rs explains the arithmetic, and proves it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Generic, TypeAlias, TypeVar, cast

from . import answers, wire
from .answers import Answer, Key, Together
from .client import AsyncCell, AsyncClient, Backend, Cell, SyncClient
from .forks import in_each_child
from .limiters import Bucket, Fixed, Funnel, Rate, Total
from .sending import Ready
from .steps import Tasks, Ticket, unread
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


class _Place:
    """A limiter at the place of one of the callers that a reply decides: `taken` units were taken when it was made."""

    __slots__ = ("ahead", "left", "limit", "most", "of", "reset", "taken", "wait")

    def __init__(self, limit: Mergeable, row: Sequence[int], taken: int, of: int) -> None:
        self.limit, self.taken, self.of, self.ahead = limit, taken, of, -taken
        self.most, self.left, self.wait, self.reset = row

    def row(self, admitted: bool, quantity: int) -> list[int]:
        """Returns the integers of the reply to a caller here."""
        wait, reset = self.wait, self.reset
        if isinstance(self.limit, Fixed):
            wait = reset if wait < 0 else wait
        else:
            # Clients that wait may come before: of SATURATE, `reset` does not count their units.
            base, of = (reset, self.most) if wait < 0 else (wait, self.of)
            ahead = self.time(self.ahead)
            wait = self.round(base * 1000 + ahead + self.time(quantity) - self.time(of))
            reset = self.round(reset * 1000 + ahead)
        return [not admitted, self.most, self.left - self.ahead, -1 if admitted else max(1, wait), reset]

    def knows_waits(self) -> bool:
        """Whether the times of a refusal here follow from the reply: see core/src/merged.rs."""
        if isinstance(self.limit, Fixed):
            return self.ahead <= 0 or self.reset > 0
        room = max(0, self.time(self.most) - self.reset * 1000)
        period = micros(self.limit.per, "per") * 1000
        return not self.taken or self.left >= ((room + 1) * self.limit.count - 1) // period

    def time(self, units: int) -> int:
        """Returns the time of units, in nanoseconds."""
        assert not isinstance(self.limit, Fixed)
        time = abs(units) * micros(self.limit.per, "per") * 1000 // self.limit.count
        return time if units > 0 else -time

    @staticmethod
    def round(nanos: int) -> int:
        return -(-max(0, nanos) // 1000)


class Grants:
    """The answers of the callers of a row, from the integers of the reply to the call for their sum."""

    def __init__(self, limit: Mergeable, reply: Sequence[int]) -> None:
        self.place = _Place(limit, reply[1:5], taken=reply[5], of=1)

    def next(self, quantity: int) -> Answer:
        """Returns the answer of the next caller, which wants `quantity` units: from 1 to the limit."""
        if admitted := self.place.ahead + quantity <= 0:
            self.place.ahead += quantity
        return answers.answer(self.place.row(admitted, quantity), quantity)


F = TypeVar("F", bound=Ticket)


@dataclass(slots=True, eq=False)
class _Caller(Generic[F]):
    """A caller that waits, with its own call."""

    call: Call[Any]
    ready: Ready | None
    ticket: F
    is_decided: bool = False
    """Of a mix: whether it came before the call was sent of which the last reply tells."""
    refused: int = 0
    """Of a mix: how many calls for it and others were refused."""
    is_gone: bool = False
    """Whether its thread was interrupted while it waited."""
    sent: float = 0
    """When the call was sent that its answer is from, as time.monotonic()."""

    @property
    def quantity(self) -> int:
        return 0 if self.call.take is None else self.call.take.quantity

    @property
    def quantities(self) -> list[int]:
        return [take.quantity for take in self.call.mix]

    def is_there(self) -> bool:
        """Whether the call is still wanted. If not, it takes nothing."""
        if self.is_gone:
            return False
        if not self.ticket.done() and self.ready is not None:
            try:
                self.ready()
            except Exception as error:
                self.ticket.set_exception(error)
        return not self.ticket.done()


_Future: TypeAlias = "asyncio.Future[Any]"
_Name: TypeAlias = tuple[Any, ...]
_Part: TypeAlias = list[_Caller[F]]
_Told: TypeAlias = list[tuple[_Caller[F], Any]]


def _is_mergeable(take: Take) -> bool:
    limit = take.limit
    if not isinstance(limit, (Rate, Bucket, Funnel, Fixed)) or take.shadow:
        return False
    return 1 <= take.quantity <= limit.limit and not (isinstance(limit, Fixed) and isinstance(limit.per, Total))


def _name(call: Call[Any]) -> _Name | None:
    """Returns what calls have in common that can be merged with this one, or None."""
    if (take := call.take) is not None:
        return (take.key, take.limit) if _is_mergeable(take) else None
    if call.mix and all(_is_mergeable(take) for take in call.mix):
        return tuple((take.key, take.limit) for take in call.mix)
    return None


class _Row(Generic[F]):
    """The callers of a key and a limit that wait, and the number of calls on their way."""

    loop: asyncio.AbstractEventLoop | None = None

    def __init__(self, name: _Name) -> None:
        self.name = name
        self.waiting: _Part[F] = []
        self.under_way = 1

    def begin(self) -> list[_Part[F]]:
        """Returns the callers of each of the next calls, in the order of the row."""
        row = [caller for caller in self.waiting if caller.is_there()]
        self.waiting = []
        parts: list[_Part[F]] = []
        while row:
            cut = len(row) - tail([caller.quantity for caller in row])
            parts.insert(0, row[cut:])
            row = row[:cut]
        self.under_way = len(parts)
        return parts

    def call(self, part: _Part[F]) -> Call[_Told[F]] | None:
        """Returns the call for a part, whose answer is that of each caller, or None for a caller's own call."""
        if len(part) == 1:
            return None
        key, limit = cast(tuple[Key, Mergeable], self.name)

        def read(reply: Any) -> _Told[F]:
            grants = Grants(limit, reply)
            return [(caller, grants.next(caller.quantity)) for caller in part]

        call = cast(Call[Any], wire.take(key, limit, sum(caller.quantity for caller in part), saturate=True))
        return replace(call, read=read, undo=None)

    def failed(self, part: _Part[F]) -> _Part[F]:
        """Returns the callers that get the error of the call for a part."""
        return part


class _Mix(_Row[F]):
    """The callers of a mix of limiters: `Line` of core/src/merged.rs."""

    def __init__(self, name: _Name) -> None:
        super().__init__(name)
        self.called: list[tuple[_Caller[F], Together[Answer] | None]] = []
        self.forget()

    def forget(self) -> None:
        self.places = [_Place(limit, (limit.limit, limit.limit, -1, 0), taken=0, of=0) for _, limit in self.name]

    def begin(self) -> list[_Part[F]]:
        waiting, self.waiting = [caller for caller in self.waiting if caller.is_there()], []
        alone: list[_Part[F]] = []
        for at, caller in enumerate(waiting):
            admits = all(
                quantity <= place.left - place.ahead
                for place, quantity in zip(self.places, caller.quantities, strict=True)
            )
            if admits and caller.refused > 1:
                alone.append([caller])
            elif admits:
                self.advance(caller)
                self.called.append((caller, None))
            elif caller.is_decided and all(place.knows_waits() for place in self.places):
                rows = self.rows(caller)
                if self.called:
                    self.called.append((caller, rows))
                else:
                    caller.ticket.set_result(rows)
            else:
                self.waiting = waiting[at:]
                break
        if self.waiting and not self.called:
            self.called.append((self.waiting.pop(0), None))
        for caller in self.waiting:
            caller.is_decided = True
        parts = [[caller for caller, rows in self.called if rows is None], *alone] if self.called else alone
        self.under_way = len(parts)
        return parts

    def shares(self, part: _Part[F]) -> bool:
        return bool(self.called) and part[0] is self.called[0][0]

    def call(self, part: _Part[F]) -> Call[_Told[F]] | None:
        if not self.shares(part):
            return None
        sums = [sum(quantities) for quantities in zip(*(caller.quantities for caller in part), strict=True)]
        takes = [Take(key, limit, units) for (key, limit), units in zip(self.name, sums, strict=True)]

        def read(reply: Any) -> _Told[F]:
            return self.told(reply, sums)

        return replace(cast(Call[Any], wire.mtake(*takes)), read=read, undo=None)

    def told(self, reply: list[list[int]], sums: list[int]) -> _Told[F]:
        """Returns the answers of the callers that the reply to the call for these quantities decides."""
        admitted = not reply[0][0]
        self.places = [
            _Place(limit, row[1:5], taken=units if admitted else 0, of=units)
            for (_, limit), row, units in zip(self.name, reply[1:], sums, strict=True)
        ]
        called, self.called = self.called, []
        if admitted:
            return [(caller, self.rows(caller, admitted=True) if rows is None else rows) for caller, rows in called]
        for caller, rows in called:
            caller.is_decided, caller.refused = True, caller.refused + (rows is None)
        self.waiting[:0] = [caller for caller, _ in called]
        return []

    def advance(self, caller: _Caller[F]) -> None:
        for place, quantity in zip(self.places, caller.quantities, strict=True):
            place.ahead += quantity

    def rows(self, caller: _Caller[F], admitted: bool = False) -> Together[Answer]:
        """Returns the answer of a caller: it is admitted, or refused at least by one of the limiters."""
        if admitted:
            self.advance(caller)
        rows: dict[Key, Answer] = {}
        for place, take in zip(self.places, caller.call.mix, strict=True):
            admits = admitted or take.quantity <= place.left - place.ahead
            rows[take.key] = answers.answer(place.row(admits, take.quantity), take.quantity if admitted else 0)
        return Together(answers.combined(rows, rows), rows)

    def failed(self, part: _Part[F]) -> _Part[F]:
        if not self.shares(part):
            return part
        self.forget()
        late = [caller for caller in self.waiting if not caller.is_decided]
        failed = [caller for caller, _ in self.called] + [caller for caller in self.waiting if caller.is_decided]
        self.called, self.waiting = [], late
        return failed


def _row(name: _Name) -> _Row[Any]:
    return _Mix(name) if isinstance(name[0], tuple) else _Row(name)


def _tell(told: _Told[Any], sent: float) -> Iterable[tuple[Call[Any], Any]]:
    """Passes answers to callers. Returns the answers of cancelled callers, each with its call."""
    unread: list[tuple[Call[Any], Any]] = []
    for caller, answer in told:
        if caller.call.mix:
            object.__setattr__(answer, "sent", sent)
        if not caller.ticket.done():
            caller.sent = sent
            caller.ticket.set_result(answer)
        elif answer:
            unread.append((caller.call, answer))
    return unread


def _fail(part: Iterable[_Caller[Any]], error: BaseException) -> None:
    for caller in part:
        if not caller.ticket.done():
            # Several calls raise the same exception, and each would add its own lines to the traceback.
            caller.ticket.set_exception(error.with_traceback(None))


def _interrupted() -> InterruptedError:
    return InterruptedError("the thread that was to send the call was interrupted")


class AsyncMerged(AsyncCell):
    """An AsyncCell that sends calls for the same limiters as one call, while another one is on its way.

    For each key and limit, at most one call is on its way. Calls that come during that time wait for it, and one call
    with SATURATE for the sum of their quantities follows. Its units are granted in the order of arrival, and each
    caller gets the answer that its own call would have got at its place. No unit is held or lost, and the limit holds
    exactly. A cancelled call takes nothing, or its units are given back.

    It merges `throttle`, `bucket`, `funnel` and `fixed`, except totals, without `saturate`. Quantities above 1 are
    merged only with enough smaller ones behind them, and are otherwise sent separately at the same time.

    Calls of `mtake` with the same keys and limits in the same order are merged too, whatever their quantities are. A
    call takes the units of the callers that fit the `remaining` of the last reply. A caller that does not fit behind
    them is refused when they have their units, so it waits for at most two round trips more. Calls with other limits, a
    place, a chain, `shadow`, `hold` or `once` are sent separately.
    """

    def __init__(self, client: AsyncClient, *, backend: Backend = "module", pipelined: bool = False) -> None:
        super().__init__(client, backend=backend, pipelined=pipelined)
        self._rows: dict[_Name, _Row[_Future]] = {}
        self._tasks = Tasks()

    async def run(self, call: Call[T], ready: Ready | None = None) -> T:
        """Sends a call that a function of `redis_cell.wire` has built, or merges it with others."""
        name = _name(call)
        if name is None:
            return await super().run(call, ready)
        loop = asyncio.get_running_loop()
        # A call that was on its way when another event loop was closed never ends.
        if (row := self._rows.get(name)) is None or row.loop is not loop:
            row = self._rows[name] = _row(name)
            row.loop = loop
            try:
                return await super().run(call, ready)
            finally:
                self._next(row)
        caller: _Caller[_Future] = _Caller(call, ready, loop.create_future())
        row.waiting.append(caller)
        try:
            return cast(T, await caller.ticket)
        except asyncio.CancelledError:
            # Its answer may have come in the same turn of the event loop.
            if (answer := unread(caller.ticket)) is not None:
                self._tasks.start(self.give_back(call, answer, caller.sent))
            raise

    def _next(self, row: _Row[_Future]) -> None:
        """Begins the calls for the callers behind a call that has ended."""
        if row.loop is not None and row.loop.is_closed():
            return
        if parts := row.begin():
            self._tasks.start(self._serve(row, parts))
        elif self._rows.get(row.name) is row:
            del self._rows[row.name]

    async def _serve(self, row: _Row[_Future], parts: list[_Part[_Future]]) -> None:
        is_over = False
        try:
            if len(parts) == 1:
                await self._send(row, parts[0])
            else:
                await asyncio.gather(*(self._send(row, part) for part in parts))
            is_over = True
        finally:
            if not is_over:  # the event loop ends
                for caller in chain(*parts, *(row.failed(part) for part in parts)):
                    caller.ticket.cancel()
            self._next(row)

    async def _send(self, row: _Row[_Future], part: _Part[_Future]) -> None:
        shared, sent = row.call(part), time.monotonic()
        try:
            if shared is None:
                told = [(part[0], await super().run(part[0].call))]
            else:
                told = await super().run(shared)
        except Exception as error:
            _fail(row.failed(part), error)
            return
        for call, answer in _tell(told, sent):
            self._tasks.start(self.give_back(call, answer, sent))


_Promise: TypeAlias = "concurrent.futures.Future[Any]"


class Merged(Cell):
    """AsyncMerged for threads: a call that waits for another one blocks its thread. It starts no threads."""

    def __init__(self, client: SyncClient, *, backend: Backend = "module") -> None:
        super().__init__(client, backend=backend)
        self._begin_again()
        in_each_child(self, Merged._begin_again)

    def _begin_again(self) -> None:
        """Begins without callers, and with a lock that is free."""
        self._lock = threading.Lock()
        self._rows: dict[_Name, _Row[_Promise]] = {}

    def run(self, call: Call[T], ready: Ready | None = None) -> T:
        """Sends a call that a function of `redis_cell.wire` has built, or merges it with others."""
        name = _name(call)
        if name is None:
            return super().run(call, ready)
        caller: _Caller[_Promise] | None = None
        with self._lock:
            if (row := self._rows.get(name)) is None:
                row = self._rows[name] = _row(name)
            else:
                caller = _Caller(call, ready, concurrent.futures.Future())
                row.waiting.append(caller)
        while caller is not None:
            try:
                served = caller.ticket.result()
            except BaseException:
                self._give_up(row, caller)
                raise
            if not isinstance(served, list):
                return cast(T, served)
            part = cast("_Part[_Promise]", served)
            if (shared := row.call(part)) is None:
                break
            self._send(row, part, shared)
        try:
            return super().run(call, ready)
        finally:
            self._ended(row)

    def _send(self, row: _Row[_Promise], part: _Part[_Promise], shared: Call[_Told[_Promise]]) -> None:
        """Sends the call for a part, whose first caller this thread is."""
        part[0].ticket, sent = concurrent.futures.Future(), time.monotonic()
        try:
            _tell(super().run(shared), sent)
        except BaseException as error:
            with self._lock:
                failed = row.failed(part)
            # An interruption is of this thread only.
            _fail(failed, error if isinstance(error, Exception) else _interrupted())
            raise
        finally:
            self._ended(row)

    def _ended(self, row: _Row[_Promise]) -> None:
        """After the last call on its way, lets the first caller of each part of the row send the next one."""
        with self._lock:
            row.under_way -= 1
            if row.under_way:
                return
            parts = row.begin()
            if not parts:
                del self._rows[row.name]
            # With the lock, so that a caller that is interrupted now sees that it is its turn.
            for part in parts:
                part[0].ticket.set_result(part)

    def _give_up(self, row: _Row[_Promise], caller: _Caller[_Promise]) -> None:
        """Removes an interrupted caller from its row, or ends its turn."""
        with self._lock:
            caller.is_gone = True
            if caller in row.waiting:
                row.waiting.remove(caller)
                return
        with suppress(BaseException):
            if isinstance(part := caller.ticket.result(timeout=0), list):
                failed = row.failed(cast("_Part[_Promise]", part))
                _fail((other for other in failed if other is not caller), _interrupted())
                self._ended(row)
