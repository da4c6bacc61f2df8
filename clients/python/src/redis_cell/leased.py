"""Leases of units: batches that are taken from the server, and spent in this process without further calls."""

from __future__ import annotations

import asyncio
import concurrent.futures
import heapq
import itertools
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from . import wire
from .answers import Admitted, Answer, Key, Refused
from .client import AsyncCell, Cell
from .limiters import Fixed, Rate
from .times import Seconds, micros
from .wire import Call, Settle

Nanos: TypeAlias = int
"""A time in nanoseconds: a length, or an instant of a clock that never goes back."""

_SHORTEST_PAUSE: Nanos = 10_000_000
_LONGEST_PAUSE: Nanos = 1_000_000_000
_TIMEOUT = 0.5
_WORKERS = 64
"""The most calls that a Leased has under way at the same time."""
_IDLE = 5.0
"""How long a thread waits for the next call before it ends, in seconds."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What a client may hold, and for how long. The fields are those of Terms in core/src/holding.rs."""

    rate: Rate | None
    least: int
    most: int
    hold: Nanos
    reply: Nanos


@dataclass(slots=True)
class Batch:
    """Units from one call."""

    taken: int
    left: int
    sent: Nanos
    answered: Nanos | None = None
    """When the answer came, if the units are those of a window that certainly lasts longer than a call takes."""


@dataclass(slots=True)
class Holding:
    """What a client holds of one limit. It has no clock and does no I/O.

    core/src/holding.rs has the same functions, says why they are as they are, and proves the bound.
    """

    terms: Terms
    current: Batch | None = None
    next: Batch | None = None
    asked: Batch | None = None
    over: Batch | None = None
    returning: int = 0
    size: int = 0
    not_before: Nanos = 0
    pause: Nanos = 0

    def spend(self, now: Nanos, quantity: int) -> Nanos | None:
        """Spends units of what is held: 0. Else the wait of the last refusal, or None if the server must be asked."""
        batch = self.current
        if batch is not None and batch.left >= quantity and now - batch.sent < self.terms.hold:
            batch.left -= quantity
            return 0
        self._expire(now)
        if self.held() >= quantity:
            for batch in (self.current, self.next):
                if batch is not None:
                    spent = min(quantity, batch.left)
                    batch.left -= spent
                    quantity -= spent
            self._advance(now)
            return 0
        if now < self.not_before and self.asked is None:
            return self.not_before - now
        return None

    def ask(self, now: Nanos, wanted: int) -> int:
        """The units to ask the server for now: for a caller that is short of `wanted`, or in advance. 0 if none are.

        After another number the call is made: `answered` or `lost` follows.
        """
        # Nearly every call ends here.
        if not wanted and not self._half_used():
            return 0
        self._expire(now)
        half_used = self._half_used()
        short = self.held() < wanted
        if self.asked is not None or now < self.not_before or not (half_used or short):
            return 0
        self._merge()
        back = self.returning + (self.over.left if self.over is not None else 0)
        size = min(max(self._size(), wanted - self.held()), self.terms.most - self.held() - back)
        if size < 1:
            return 0
        self.asked = Batch(size, size, now)
        return size

    def answered(self, now: Nanos, taken: int, retry_after: Nanos, reset_after: Nanos = 0) -> None:
        """The answer of the call. More than `reply` after the call, it is lost instead."""
        asked, self.asked = self.asked, None
        if asked is None:
            return
        taken = max(0, min(taken, asked.taken))
        if taken > asked.taken // 2:
            hold, pause = self.terms.hold, self.pause
            shorter = hold * pause // (hold + pause)
            self.pause = 0 if shorter < _SHORTEST_PAUSE else shorter
        else:
            self.pause = min(max(2 * self.pause, _SHORTEST_PAUSE), max(self.terms.hold, _LONGEST_PAUSE))
        self.not_before = now + max(retry_after, self.pause * (now % 1024 + 512) // 1024)
        if taken > 0:
            batch = Batch(taken, taken, asked.sent)
            if self.terms.rate is None and reset_after > now - asked.sent + self.terms.reply:
                batch.answered = now
            if self.current is None:
                self.current = batch
            else:
                self.next = batch
        self._expire(now)

    def lost(self, now: Nanos) -> None:
        """There was no answer in time, or an error."""
        self.answered(now, 0, 0)

    def give_back(self, now: Nanos) -> tuple[int, Nanos] | None:
        """The units to give back now, and how long ago they were taken at most. `returned` follows."""
        self._expire(now)
        if self.over is None or self.returning:
            self.over = None
            return None
        batch, self.over = self.over, None
        # The call for this batch may have opened the window, which is then younger than an age that is too long. An age
        # that is too short, by the time from the call to its answer, fits a window that has opened since only if the
        # one of this batch has ended within that time and `reply`.
        since = batch.sent - self.terms.reply if batch.answered is None else batch.answered
        age = now - since
        most = batch.left
        if (rate := self.terms.rate) is not None:
            # What the units would still owe, had they been taken alone.
            period = micros(rate.per, "per") * 1000
            most = max(0, (batch.taken * period // rate.count - age) * rate.count // period)
        self.returning = min(batch.left, most)
        return (self.returning, age) if self.returning else None

    def returned(self) -> None:
        """Nothing is on its way back any more."""
        self.returning = 0

    def end(self, now: Nanos) -> None:
        """Ends all batches, so that `give_back` gives back what can be given back."""
        self.over = self.next or self.current or self.over
        self.current = self.next = None

    def held(self) -> int:
        """The units that can be spent, if no hold ends before."""
        return (self.current.left if self.current else 0) + (self.next.left if self.next else 0)

    def ends_in(self, now: Nanos) -> Nanos:
        """The time until the first hold is over."""
        batches = [batch.sent for batch in (self.current, self.next) if batch is not None]
        return max(0, min(batches) + self.terms.hold - now) if batches else self.terms.hold

    def idle(self, now: Nanos) -> bool:
        """Whether there is nothing to spend, to wait for or to remember."""
        busy = self.held() or self.asked is not None or self.over is not None or self.returning
        return not busy and now - self.not_before >= self.pause

    def _half_used(self) -> bool:
        return self.next is None and self.current is not None and self.current.left <= self.current.taken // 2

    def _size(self) -> int:
        return min(max(self.size, self.terms.least), self.terms.most)

    def _merge(self) -> None:
        if self.current is not None and self.next is not None:
            left = self.current.left + self.next.left
            self.current = Batch(self.next.taken, left, self.current.sent, self.current.answered)
            self.next = None

    def _expire(self, now: Nanos) -> None:
        for batch in (self.current, self.next):
            if batch is not None and now - batch.sent >= self.terms.hold:
                if batch is self.current:
                    self.current = None
                else:
                    self.next = None
                if batch.left:
                    self.over = batch
                    if batch.left > batch.taken // 2:
                        self.size //= 2
        self._advance(now)

    def _advance(self, now: Nanos) -> None:
        if self.current is not None and not self.current.left:
            if self.current.taken >= self._size() and now - self.current.sent < self.terms.hold // 4:
                self.size = min(2 * self._size(), self.terms.most)
            self.current = None
        if self.current is None:
            self.current, self.next = self.next, None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What Leased and AsyncLeased say to a call. It is true if the call was admitted."""

    admitted: bool
    retry_after: float | None
    """The seconds to wait: None if the call was admitted, and if it exceeds the limit and never can be."""

    def __bool__(self) -> bool:
        return self.admitted


_ADMITTED = Verdict(admitted=True, retry_after=None)


def _verdict(wait: Nanos) -> Verdict:
    return Verdict(admitted=False, retry_after=wait / 1_000_000_000) if wait else _ADMITTED


class _Ticket(Protocol):
    """A call that waits: a Future of asyncio or of concurrent.futures. None as its result sends it to the server."""

    def done(self) -> bool: ...
    def set_result(self, result: Verdict | None, /) -> None: ...
    def set_exception(self, exception: BaseException, /) -> None: ...


T = TypeVar("T", bound=_Ticket)
C = TypeVar("C")


@dataclass(slots=True)
class _Share(Generic[T]):
    """What is held of a key, and the calls that wait for more."""

    holding: Holding
    waiting: deque[tuple[int, T]] = field(default_factory=deque)
    error: Exception | None = None


class _Leases(Generic[T]):
    """What Leased and AsyncLeased have in common. It makes no calls, and one thread uses it at a time."""

    def __init__(self, limit: Rate | Fixed, *, least: int, most: int, hold: Seconds, keys: int = 10_000) -> None:
        if not 1 <= least <= most:
            raise ValueError(f"least and most must be at least 1, and least at most most, not {least} and {most}")
        rate = limit if isinstance(limit, Rate) else None
        nanos = micros(hold, "hold", least=1) * 1000
        self._terms = Terms(rate, least, most, nanos, int(_TIMEOUT * 1_000_000_000))
        self._limit = limit
        self._keys = keys
        self._shares: dict[Key, _Share[T]] = {}

    @property
    def keys_in_use(self) -> int:
        """The number of keys of which units are held, awaited, or remembered to be refused."""
        return len(self._shares)

    def _share(self, key: Key, quantity: int) -> _Share[T] | None:
        """What is held of a key. None if the units must be taken from the server directly."""
        if quantity < 0:
            raise ValueError(f"quantity must be at least 0, not {quantity}")
        # The server says that more than the limit is never admitted. Batches would be fetched for it again and again.
        if quantity > min(self._terms.most, self._limit.limit):
            return None
        share = self._shares.get(key)
        if share is None and len(self._shares) < self._keys:
            share = self._shares[key] = _Share(Holding(self._terms))
            self._begin(key, share)
        return share

    def _begin(self, key: Key, share: _Share[T]) -> None:
        """A key is in use from now on."""
        raise NotImplementedError

    def _at_once(self, share: _Share[T], now: Nanos, quantity: int) -> Verdict | None:
        """Decides by what is held, if that is possible and no other call waits."""
        if share.waiting or (wait := share.holding.spend(now, quantity)) is None:
            return None
        if wait and share.error is not None:
            # The same exception for many calls: each would add its own lines to the traceback.
            raise share.error.with_traceback(None)
        return _verdict(wait)

    def _serve(self, share: _Share[T], now: Nanos) -> int:
        """Serves the calls that wait, in order. The units to fetch for the rest of them, or in advance."""
        while share.waiting:
            quantity, ticket = share.waiting[0]
            # A caller that is gone needs no units.
            if not ticket.done():
                wait = share.holding.spend(now, quantity)
                if wait is None:
                    if units := share.holding.ask(now, quantity):
                        return units
                    if share.holding.asked is not None:
                        return 0
                    ticket.set_result(None)
                elif wait and share.error is not None:
                    ticket.set_exception(share.error)
                else:
                    ticket.set_result(_verdict(wait))
            share.waiting.popleft()
        return share.holding.ask(now, 0)

    def _answered(self, share: _Share[T], answer: Answer | Exception) -> int:
        """A batch has come, or an error. The units to fetch next."""
        now = time.monotonic_ns()
        if isinstance(answer, Exception):
            share.holding.lost(now)
            share.error = answer
        else:
            wait = round(answer.retry_after * 1_000_000_000) if isinstance(answer, Refused) else 0
            taken = answer.taken if isinstance(answer, Admitted) else 0
            share.holding.answered(now, taken, wait, round(answer.reset_after * 1_000_000_000))
            share.error = None
        return self._serve(share, now)

    def _is_over(self, key: Key, share: _Share[T], now: Nanos) -> bool:
        """Forgets a key of which nothing is left."""
        if share.waiting or not share.holding.idle(now):
            return False
        del self._shares[key]
        return True

    def _take_call(self, key: Key, quantity: int, *, saturate: bool) -> Call[Answer]:
        if isinstance(self._limit, Rate):
            return wire.throttle(key, self._limit, quantity, saturate=saturate)
        return wire.fixed(key, self._limit, quantity, saturate=saturate)

    def _back_call(self, key: Key, units: int, age: Nanos) -> Call[Any]:
        if isinstance(self._limit, Rate):
            return wire.refund(key, self._limit, units)
        return wire.msettle(Settle(key, self._limit, -units), ago=age / 1_000_000_000)


def _direct(answer: Answer) -> Verdict:
    return Verdict(admitted=answer.admitted, retry_after=None if isinstance(answer, Admitted) else answer.retry_after)


_Future: TypeAlias = "asyncio.Future[Verdict | None]"


class AsyncLeased(_Leases[_Future]):
    """Limits calls with units that are taken from the server in batches: for keys that are hotter than a server.

    `least` is the size of the smallest batch, and `most` the largest number of units that this object holds of a key.
    Sizes follow the traffic between the two. A batch is spent within `hold` of its call, and what is left then is given
    back. Units of at most `keys` keys are held at the same time; calls for further keys go to the server directly.

    With N processes, all of them together admit at most min(hold * rate, N * most) units more than the server alone
    would, in any stretch of time. docs/scaling.md has the proof.
    """

    def __init__(
        self, cell: AsyncCell, limit: Rate | Fixed, *, least: int, most: int, hold: Seconds, keys: int = 10_000
    ) -> None:
        super().__init__(limit, least=least, most=most, hold=hold, keys=keys)
        self._cell = cell
        self._tasks: set[asyncio.Task[None]] = set()

    async def take(self, key: Key, quantity: int = 1) -> Verdict:
        """Takes units of those that are held, and waits for a batch if there are too few.

        An error of the client's library, or asyncio.TimeoutError, means that the server has not answered. The calls
        that come in the pause after it get the same error at once. What to do then is the caller's choice.
        """
        share = self._share(key, quantity)
        if share is None:
            return await self._take_directly(key, quantity)
        now = time.monotonic_ns()
        if (verdict := self._at_once(share, now, quantity)) is not None:
            if units := share.holding.ask(now, 0):
                self._start(self._fetch(key, share, units))
            return verdict
        future: _Future = asyncio.get_running_loop().create_future()
        share.waiting.append((quantity, future))
        if units := self._serve(share, now):
            self._start(self._fetch(key, share, units))
        served = await future
        return await self._take_directly(key, quantity) if served is None else served

    async def give_back(self) -> None:
        """Gives back what is held, as far as it can be given back. Call it before the process ends.

        It stops at the first call that gets no answer, because the calls after that would wait as long as this one.
        """
        for key, share in list(self._shares.items()):
            now = time.monotonic_ns()
            share.holding.end(now)
            back = share.holding.give_back(now)
            if back is not None and not await self._return(key, share, *back):
                return

    async def _run(self, call: Call[C]) -> C:
        """Makes a call, and waits for the answer for half a second at most."""
        return await asyncio.wait_for(self._cell.run(call), _TIMEOUT)

    async def _take_directly(self, key: Key, quantity: int) -> Verdict:
        return _direct(await self._run(self._take_call(key, quantity, saturate=False)))

    def _begin(self, key: Key, share: _Share[_Future]) -> None:
        self._start(self._tend(key, share))

    def _start(self, work: Coroutine[None, None, None]) -> None:
        # The event loop keeps no reference to a task.
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _fetch(self, key: Key, share: _Share[_Future], units: int) -> None:
        """Fetches a batch, and then others as long as a call waits for more."""
        while units:
            answer: Answer | Exception
            try:
                answer = await self._run(self._take_call(key, units, saturate=True))
            except Exception as error:
                answer = error
            units = self._answered(share, answer)

    async def _tend(self, key: Key, share: _Share[_Future]) -> None:
        """Gives back what is left at the end of each hold, and forgets the key when nothing is left of it."""
        while True:
            await asyncio.sleep(share.holding.ends_in(time.monotonic_ns()) / 1_000_000_000)
            now = time.monotonic_ns()
            back = share.holding.give_back(now)
            if back is not None:
                await self._return(key, share, *back)
            elif self._is_over(key, share, now):
                return

    async def _return(self, key: Key, share: _Share[_Future], units: int, age: Nanos) -> bool:
        """Gives units back. Returns whether the server answered: if not, they are lost."""
        try:
            await self._run(self._back_call(key, units, age))
        except Exception as error:  # whatever it is, the units are not held any more
            return isinstance(error, self._cell.errors.ResponseError)
        finally:
            share.holding.returned()
        return True


_Promise: TypeAlias = "concurrent.futures.Future[Verdict | None]"


class _Workers:
    """Threads for calls: few, and they end when they have nothing to do. The process can end without them."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._work: deque[Callable[[], None]] = deque()
        self._threads = 0
        self._idle = 0

    def start(self, work: Callable[[], None]) -> None:
        with self._changed:
            self._work.append(work)
            if self._idle >= len(self._work):
                self._changed.notify()
            elif self._threads < _WORKERS:
                threading.Thread(target=self._run, name="redis-cell-leased", daemon=True).start()
                self._threads += 1

    def _run(self) -> None:
        while True:
            with self._changed:
                self._idle += 1
                self._changed.wait_for(lambda: self._work, _IDLE)
                self._idle -= 1
                if not self._work:
                    self._threads -= 1
                    return
                work = self._work.popleft()
            work()


class Leased(_Leases[_Promise]):
    """AsyncLeased for threads: a call that needs a batch blocks its thread until the batch has come, and for half a
    second if the server does not answer. Threads are served in the order of their calls.

    Calls are made by threads of this object, but for those of `give_back`. It has none while nothing is held. After a
    fork, the child begins with no units.
    """

    def __init__(
        self, cell: Cell, limit: Rate | Fixed, *, least: int, most: int, hold: Seconds, keys: int = 10_000
    ) -> None:
        super().__init__(limit, least=least, most=most, hold=hold, keys=keys)
        self._cell = cell
        self._reset()
        _all_leased.add(self)

    def _reset(self) -> None:
        """Begins with nothing: no units, no threads, and a lock that nobody holds."""
        self._lock = threading.Lock()
        self._shares.clear()
        self._workers = _Workers()
        self._ends: list[tuple[Nanos, int, Key]] = []
        self._order = itertools.count()
        self._tended = False

    def take(self, key: Key, quantity: int = 1) -> Verdict:
        """Takes units of those that are held, and waits for a batch if there are too few.

        An error of the client's library, or TimeoutError, means that the server has not answered. The calls that come
        in the pause after it get the same error at once. What to do then is the caller's choice.
        """
        promise: _Promise | None = None
        with self._lock:
            share = self._share(key, quantity)
            if share is not None:
                now = time.monotonic_ns()
                if (verdict := self._at_once(share, now, quantity)) is not None:
                    if units := share.holding.ask(now, 0):
                        self._fetch(key, share, units)
                    return verdict
                promise = concurrent.futures.Future()
                share.waiting.append((quantity, promise))
                if units := self._serve(share, now):
                    self._fetch(key, share, units)
        if share is None or promise is None or (served := self._await(key, share, promise)) is None:
            return self._take_directly(key, quantity)
        return served

    def give_back(self) -> None:
        """Gives back what is held, as far as it can be given back. Call it before the process ends.

        It stops at the first call that gets no answer, because the calls after that would wait as long as this one:
        for the timeout of the client.
        """
        with self._lock:
            shares = list(self._shares.items())
        for key, share in shares:
            with self._lock:
                now = time.monotonic_ns()
                share.holding.end(now)
                back = share.holding.give_back(now)
            if back is not None and not self._return(key, share, *back):
                return

    def _take_directly(self, key: Key, quantity: int) -> Verdict:
        """Asks by a thread of this object, because a client has no timeout for a single call."""
        answer: concurrent.futures.Future[Answer] = concurrent.futures.Future()

        def work() -> None:
            if answer.set_running_or_notify_cancel():
                try:
                    answer.set_result(self._cell.run(self._take_call(key, quantity, saturate=False)))
                except BaseException as error:
                    answer.set_exception(error)

        self._workers.start(work)
        try:
            return _direct(answer.result(_TIMEOUT))
        except concurrent.futures.TimeoutError:
            raise TimeoutError(f"no answer within {_TIMEOUT} seconds") from None
        finally:
            answer.cancel()  # a call that still waits for a thread is not made

    def _await(self, key: Key, share: _Share[_Promise], promise: _Promise) -> Verdict | None:
        """Waits for the result of a call. A batch that does not come in time is lost, for all that wait for it."""
        while True:
            try:
                promise.exception(_TIMEOUT)
            except concurrent.futures.TimeoutError:
                with self._lock:
                    asked, now = share.holding.asked, time.monotonic_ns()
                    if asked is not None and now - asked.sent >= self._terms.reply:
                        self._arrived(key, share, asked, TimeoutError(f"no answer within {_TIMEOUT} seconds"))
            except BaseException:
                with self._lock:
                    promise.cancel()
                raise
            else:
                return promise.result()

    def _fetch(self, key: Key, share: _Share[_Promise], units: int) -> None:
        """Starts the call for a batch. The caller has the lock."""
        asked = share.holding.asked

        def work() -> None:
            answer: Answer | Exception
            if share.holding.asked is not asked:
                return  # given up while it waited for a thread: nobody would get its units
            try:
                answer = self._cell.run(self._take_call(key, units, saturate=True))
            except Exception as error:
                answer = error
            with self._lock:
                self._arrived(key, share, asked, answer)

        self._workers.start(work)

    def _arrived(self, key: Key, share: _Share[_Promise], asked: Batch | None, answer: Answer | Exception) -> None:
        """The answer of a call, unless that was given up, and the next call if one is due. The caller has the lock."""
        if asked is None or share.holding.asked is not asked:
            return
        if time.monotonic_ns() - asked.sent > self._terms.reply and not isinstance(answer, Exception):
            answer = TimeoutError(f"the answer took more than {_TIMEOUT} seconds")
        if units := self._answered(share, answer):
            self._fetch(key, share, units)

    def _begin(self, key: Key, share: _Share[_Promise]) -> None:
        # No hold ends before those that have begun already: the thread that waits for the first end can sleep on.
        heapq.heappush(self._ends, (time.monotonic_ns() + self._terms.hold, next(self._order), key))
        if not self._tended:
            threading.Thread(target=self._tend, name="redis-cell-leased-ends", daemon=True).start()
            self._tended = True

    def _tend(self) -> None:
        """Gives back what is left at the end of each hold, and forgets the keys of which nothing is left."""
        while True:
            with self._lock:
                if not self._ends:
                    self._tended = False
                    return
                now = time.monotonic_ns()
                end, _, key = self._ends[0]
                share = self._shares[key]
                back = None
                if end <= now:
                    heapq.heappop(self._ends)
                    back = share.holding.give_back(now)
                    if back is not None or not self._is_over(key, share, now):
                        heapq.heappush(self._ends, (now + share.holding.ends_in(now), next(self._order), key))
            if end > now:
                time.sleep((end - now) / 1_000_000_000)
            elif back is not None:
                self._return(key, share, *back)

    def _return(self, key: Key, share: _Share[_Promise], units: int, age: Nanos) -> bool:
        """Gives units back. Returns whether the server answered: if not, they are lost."""
        try:
            self._cell.run(self._back_call(key, units, age))
        except Exception as error:  # whatever it is, the units are not held any more
            return isinstance(error, self._cell.errors.ResponseError)
        finally:
            with self._lock:
                share.holding.returned()
        return True


_all_leased: weakref.WeakSet[Leased] = weakref.WeakSet()


def _after_fork() -> None:
    # The threads of the parent are not there, and its units are its own.
    for leased in list(_all_leased):
        leased._reset()  # pyright: ignore[reportPrivateUsage]


os.register_at_fork(after_in_child=_after_fork)
