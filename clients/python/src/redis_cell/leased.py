"""Leased units: batches that are taken from the server and spent in this process without further calls."""

from __future__ import annotations

import asyncio
import concurrent.futures
import heapq
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeAlias, TypeVar

from . import wire
from .answers import Admitted, Answer, Key, Refused, RefusedForever
from .client import AsyncCell, Cell
from .forks import in_each_child
from .holding import Batch, Holding, Nanos, Terms
from .limiters import Fixed, Rate, Window, of_kind, whole
from .steps import Asyncio, Blocking, Method, Steps, Tasks, Ticket, async_run, run, to_its_end, unread
from .times import Seconds, micros
from .wire import Call, Settle

_TIMEOUT = 0.5
_WORKERS = 64
"""The largest number of concurrent calls of a Leased."""
_IDLE = 5.0
"""How long a thread waits for another call before it ends, in seconds."""
_LONGEST = 1e9
"""The seconds after which a limiter is fully replenished, if it never is."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer of Leased and AsyncLeased to a call. It is true if the call was admitted."""

    admitted: bool
    retry_after: float | None
    """The seconds to wait. None if the call was admitted, or no wait helps: it exceeds the limit, or a total is used
    up."""

    def __bool__(self) -> bool:
        return self.admitted


_ADMITTED = Verdict(admitted=True, retry_after=None)


T = TypeVar("T", bound=Ticket)
C = TypeVar("C")


@dataclass(slots=True)
class _Waiting(Generic[T]):
    quantity: int
    ticket: T
    """If its result is None, the server must decide."""
    part: Batch | None = None
    """The units that it was served with."""


@dataclass(slots=True)
class _Share(Generic[T]):
    """The units that are held for a key, and the calls that wait for more."""

    holding: Holding
    waiting: deque[_Waiting[T]] = field(default_factory=deque["_Waiting[T]"])
    error: Exception | None = None
    is_used_up: bool = False
    """Whether the last batch was refused, and no wait helps."""

    def verdict(self, wait: Nanos) -> Verdict:
        if not wait:
            return _ADMITTED
        return Verdict(admitted=False, retry_after=None if self.is_used_up else wait / 1_000_000_000)


class _Leases(Generic[T]):
    """The common part of Leased and AsyncLeased. It sends no calls, and only one thread at a time may use it."""

    def __init__(
        self, limit: Rate | Fixed | Window, *, least: int, most: int, hold: Seconds, keys: int = 10_000
    ) -> None:
        of_kind(limit, "limit", Rate, Fixed, Window)
        whole(most, "most", whole(least, "least", 1))
        whole(keys, "keys")
        rate = limit if isinstance(limit, Rate) else None
        nanos = micros(hold, "hold", least=1) * 1000
        self._terms = Terms(rate, least, most, nanos, int(_TIMEOUT * 1_000_000_000))
        self._limit = limit
        self._keys = keys
        self._shares: dict[Key, _Share[T]] = {}

    _cell: Any
    _lock: Any
    """Held while units change hands."""
    _ticket: Callable[[], T]
    """Returns a new ticket."""
    _begin: Callable[[Key, _Share[T]], None]
    """Notes that a key is in use from now on."""
    _fetch: Callable[[Key, _Share[T], int], None]
    """Starts the call for a batch."""
    _run: Callable[[Call[Any]], Any]
    """Sends a call, and waits for the answer."""

    @property
    def keys_in_use(self) -> int:
        """The number of keys for which units are held or requested, or a refusal is remembered."""
        return len(self._shares)

    def _share(self, key: Key, quantity: int) -> _Share[T] | None:
        """Returns the share of a key, or None if the server must decide the call directly."""
        if type(quantity) is not int or quantity < 0:
            whole(quantity, "quantity")
        # Only the server's reply says that a quantity above the limit is never admitted. Batches would never suffice.
        if quantity > min(self._terms.most, self._limit.limit):
            return None
        share = self._shares.get(key)
        if share is None and len(self._shares) < self._keys:
            share = self._shares[key] = _Share(Holding(self._terms))
            self._begin(key, share)
        return share

    def _ask(self, share: _Share[T], key: Key, quantity: int) -> Verdict | _Waiting[T]:
        """Returns the verdict on a call, or the call as it waits for a batch from now on."""
        now = time.monotonic_ns()
        answer: Verdict | _Waiting[T] | None = self._at_once(share, now, quantity)
        if answer is not None:
            units = share.holding.ask(now, 0)
        else:
            answer = _Waiting(quantity, self._ticket())
            share.waiting.append(answer)
            units = self._serve(share, now)
        if units:
            self._fetch(key, share, units)
        return answer

    @Method
    def give_back(self) -> Steps[None]:
        """Gives the held units back, as far as possible. Call it before the process ends.

        It stops at the first call without an answer, because each later call could take as long.
        """
        with self._lock:
            shares = list(self._shares.items())
        for key, share in shares:
            with self._lock:
                now = time.monotonic_ns()
                share.holding.end(now)
                back = share.holding.give_back(now)
            if back is not None and not (yield from self._return(key, share, *back)):
                return

    def _return(self, key: Key, share: _Share[T], units: int, age: Nanos) -> Steps[bool]:
        """Gives units back. Returns whether the server answered: without an answer, they are lost."""
        try:
            yield partial(self._run, self._back_call(key, units, age))
        except Exception as error:  # after any error, the units are no longer held
            return isinstance(error, self._cell.errors.ResponseError)
        finally:
            with self._lock:
                share.holding.returned()
        return True

    def _at_once(self, share: _Share[T], now: Nanos, quantity: int) -> Verdict | None:
        """Decides from the held units, if that is possible and no other call waits."""
        if share.waiting or (wait := share.holding.spend(now, quantity)) is None:
            return None
        if wait and share.error is not None:
            # Many calls raise the same exception, and each would add its own lines to the traceback.
            raise share.error.with_traceback(None)
        return share.verdict(wait)

    def _serve(self, share: _Share[T], now: Nanos) -> int:
        """Serves the waiting calls in order. Returns the units to fetch for the remaining calls, or in advance."""
        while share.waiting:
            waiting = share.waiting[0]
            quantity, ticket = waiting.quantity, waiting.ticket
            # A call that was cancelled needs no units.
            if not ticket.done():
                waiting.part = share.holding.part(now, quantity)
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
                    ticket.set_result(share.verdict(wait))
            share.waiting.popleft()
        return share.holding.ask(now, 0)

    def _answered(self, share: _Share[T], answer: Answer | Exception) -> int:
        """Records a batch or an error. Returns the units to fetch next."""
        now = time.monotonic_ns()
        share.is_used_up = isinstance(answer, RefusedForever)
        if isinstance(answer, Exception):
            share.holding.lost(now)
            share.error = answer
        else:
            wait = round(answer.retry_after * 1_000_000_000) if isinstance(answer, Refused) else 0
            taken = answer.taken if isinstance(answer, Admitted) else 0
            # It is rounded up to a whole microsecond.
            lasts = round(min(answer.reset_after, _LONGEST) * 1_000_000) - 1
            if isinstance(self._limit, Window):
                # Until the units of the window weigh nothing: the more units, the later after the end of the window.
                period = micros(self._limit.per, "per", least=1)
                used = max(1, self._limit.limit - answer.remaining)
                lasts -= period - (period * 1000 - 1) // (2 * used) // 1000
            lasts = max(0, lasts) * 1000
            share.holding.answered(now, taken, wait, lasts)
            share.error = None
        return self._serve(share, now)

    def _is_over(self, key: Key, share: _Share[T], now: Nanos) -> bool:
        """Removes a key that has no units and no calls left. Returns whether it was removed."""
        if share.waiting or not share.holding.idle(now):
            return False
        del self._shares[key]
        return True

    def _take_call(self, key: Key, quantity: int, *, saturate: bool) -> Call[Answer]:
        if isinstance(self._limit, Rate):
            return wire.throttle(key, self._limit, quantity, saturate=saturate)
        if isinstance(self._limit, Window):
            return wire.window(key, self._limit, quantity, saturate=saturate)
        return wire.fixed(key, self._limit, quantity, saturate=saturate)

    def _back_call(self, key: Key, units: int, age: Nanos) -> Call[Any]:
        if isinstance(self._limit, Rate):
            return wire.refund(key, self._limit, units)
        return wire.msettle(Settle(key, self._limit, -units), ago=age / 1_000_000_000)


def _direct(answer: Answer) -> Verdict:
    return Verdict(admitted=answer.admitted, retry_after=None if isinstance(answer, Admitted) else answer.retry_after)


_Future: TypeAlias = "asyncio.Future[Verdict | None]"


class AsyncLeased(_Leases[_Future], Asyncio):
    """Limits calls with units taken from the server in batches, for keys with more calls than a server can handle.

    `least` is the size of the smallest batch, and `most` the largest number of units that this object holds for a key.
    Between the two, batches grow and shrink with the traffic. A batch can be spent within `hold` of its call; the units
    left are then given back. Units are held for at most `keys` keys; calls for further keys go directly to the server.

    docs/scaling.md has the bound of what N processes admit together, and its proof.
    """

    def __init__(
        self, cell: AsyncCell, limit: Rate | Fixed | Window, *, least: int, most: int, hold: Seconds, keys: int = 10_000
    ) -> None:
        super().__init__(limit, least=least, most=most, hold=hold, keys=keys)
        self._cell, self._lock = cell, nullcontext()
        self._tasks = Tasks()

    async def take(self, key: Key, quantity: int = 1) -> Verdict:
        """Takes held units, and waits for a batch if there are too few.

        An error of the client's library, or asyncio.TimeoutError, means that the server has not answered. Calls during
        the pause that follows raise the same error immediately. The caller decides what to do then.
        """
        share = self._share(key, quantity)
        if share is None:
            return await self._take_directly(key, quantity)
        waiting = self._ask(share, key, quantity)
        if isinstance(waiting, Verdict):
            return waiting
        try:
            served = await waiting.ticket
        except asyncio.CancelledError:
            if unread(waiting.ticket) is not None and waiting.part is not None:
                share.holding.unspend(time.monotonic_ns(), waiting.part)
            raise
        return await self._take_directly(key, quantity) if served is None else served

    def _ticket(self) -> _Future:
        return asyncio.get_running_loop().create_future()

    async def _run(self, call: Call[C]) -> C:
        """Sends a call, and waits for the answer for up to half a second. A later answer gives its units back."""
        asking = self._tasks.start(self._cell.run(call))
        try:
            return await asyncio.wait_for(asyncio.shield(asking), _TIMEOUT)
        except asyncio.TimeoutError:
            asking.cancel()
            raise
        except asyncio.CancelledError:
            asking.cancel()
            await to_its_end(asyncio.wait([asking]))
            raise

    async def _take_directly(self, key: Key, quantity: int) -> Verdict:
        return _direct(await self._run(self._take_call(key, quantity, saturate=False)))

    def _begin(self, key: Key, share: _Share[_Future]) -> None:
        self._tasks.start(self._tend(key, share))

    def _fetch(self, key: Key, share: _Share[_Future], units: int) -> None:
        self._tasks.start(self._fetch_all(key, share, units))

    async def _fetch_all(self, key: Key, share: _Share[_Future], units: int) -> None:
        """Fetches a batch, and then further batches while a call waits for more."""
        while units:
            answer: Answer | Exception
            try:
                answer = await self._run(self._take_call(key, units, saturate=True))
            except Exception as error:
                answer = error
            units = self._answered(share, answer)

    async def _tend(self, key: Key, share: _Share[_Future]) -> None:
        """Gives back the units left at the end of each hold, and removes the key when no units are left."""
        while True:
            await asyncio.sleep(share.holding.ends_in(time.monotonic_ns()) / 1_000_000_000)
            now = time.monotonic_ns()
            back = share.holding.give_back(now)
            if back is not None:
                await async_run(self._return(key, share, *back))
            elif self._is_over(key, share, now):
                return


_Promise: TypeAlias = "concurrent.futures.Future[Verdict | None]"


class _Workers:
    """A few threads for calls, which end when they are idle. They do not keep the process from ending."""

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


class Leased(_Leases[_Promise], Blocking):
    """AsyncLeased for threads: a call that needs a batch blocks its thread until the batch arrives, or for half a
    second if the server does not answer. Calls are served in order.

    Threads of this object send the calls, except in `give_back`. It has no threads while it holds nothing. After a
    fork, the child process starts without units.
    """

    _cell: Cell

    def __init__(
        self, cell: Cell, limit: Rate | Fixed | Window, *, least: int, most: int, hold: Seconds, keys: int = 10_000
    ) -> None:
        super().__init__(limit, least=least, most=most, hold=hold, keys=keys)
        self._cell, self._ticket = cell, concurrent.futures.Future
        self._reset()
        in_each_child(self, Leased._reset)

    def _reset(self) -> None:
        """Starts again: no units, no threads, and a lock that is free."""
        self._lock = threading.Lock()
        self._shares.clear()
        self._workers = _Workers()
        self._ends: list[tuple[Nanos, int, Key]] = []
        self._order = itertools.count()
        self._tended = False

    def take(self, key: Key, quantity: int = 1) -> Verdict:
        """Takes held units, and waits for a batch if there are too few, like `AsyncLeased.take`."""
        with self._lock:
            share = self._share(key, quantity)
            waiting = None if share is None else self._ask(share, key, quantity)
        if isinstance(waiting, Verdict):
            return waiting
        served = None if share is None or waiting is None else self._await(key, share, waiting.ticket)
        return self._take_directly(key, quantity) if served is None else served

    def _run(self, call: Call[C]) -> C:
        return self._cell.run(call)

    def _take_directly(self, key: Key, quantity: int) -> Verdict:
        """Calls the server in a thread of this object, because a client has no timeout for a single call."""
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
            answer.cancel()  # a call that no thread has started is not sent

    def _await(self, key: Key, share: _Share[_Promise], promise: _Promise) -> Verdict | None:
        """Waits for the result of a call. A batch that does not arrive in time is lost for all waiting calls."""
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
        asked = share.holding.asked

        def work() -> None:
            answer: Answer | Exception
            if share.holding.asked is not asked:
                return  # given up before a thread was free: no call would get its units
            try:
                answer = self._cell.run(self._take_call(key, units, saturate=True))
            except Exception as error:
                answer = error
            with self._lock:
                self._arrived(key, share, asked, answer)

        self._workers.start(work)

    def _arrived(self, key: Key, share: _Share[_Promise], asked: Batch | None, answer: Answer | Exception) -> None:
        """Records the answer to a call that was not given up, and starts the next one. The caller holds the lock."""
        if asked is None or share.holding.asked is not asked:
            return
        if time.monotonic_ns() - asked.sent > self._terms.reply and not isinstance(answer, Exception):
            answer = TimeoutError(f"the answer took more than {_TIMEOUT} seconds")
        if units := self._answered(share, answer):
            self._fetch(key, share, units)

    def _begin(self, key: Key, share: _Share[_Promise]) -> None:
        # A new hold ends after all holds that began before, so the thread that waits for the first end need not wake.
        heapq.heappush(self._ends, (time.monotonic_ns() + self._terms.hold, next(self._order), key))
        if not self._tended:
            threading.Thread(target=self._tend, name="redis-cell-leased-ends", daemon=True).start()
            self._tended = True

    def _tend(self) -> None:
        """Gives back the units left at the end of each hold, and removes the keys that have no units left."""
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
                run(self._return(key, share, *back))
