"""Leases of units: batches that are taken from the server, and spent in this process without further calls."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import TypeAlias

from .answers import Admitted, Answer, Key, Refused
from .client import AsyncCell
from .limiters import Fixed, Rate
from .times import Seconds, micros
from .wire import Settle

Nanos: TypeAlias = int
"""A time in nanoseconds: a length, or an instant of a clock that never goes back."""

_SHORTEST_PAUSE: Nanos = 500_000
_TIMEOUT = 0.5


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

    def answered(self, now: Nanos, taken: int, retry_after: Nanos) -> None:
        """The answer of the call. More than `reply` after the call, it is lost instead."""
        asked, self.asked = self.asked, None
        if asked is None:
            return
        taken = max(0, min(taken, asked.taken))
        if taken > asked.taken // 2:
            hold, pause = self.terms.hold, self.pause
            self.pause = hold * pause // (hold + pause)
        else:
            self.pause = min(self.terms.hold, 2 * max(self.pause, _SHORTEST_PAUSE))
        self.not_before = now + (max(retry_after, self.pause) if taken < asked.taken else retry_after)
        if taken > 0:
            batch = Batch(taken, taken, asked.sent)
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
        age = now - batch.sent + self.terms.reply
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
        return not busy and now >= self.not_before

    def _half_used(self) -> bool:
        return self.next is None and self.current is not None and self.current.left <= self.current.taken // 2

    def _size(self) -> int:
        return min(max(self.size, self.terms.least), self.terms.most)

    def _merge(self) -> None:
        if self.current is not None and self.next is not None:
            self.current = Batch(self.next.taken, self.current.left + self.next.left, self.current.sent)
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
    """What AsyncLeased says to a call. It is true if the call was admitted."""

    admitted: bool
    retry_after: float | None
    """The seconds to wait: None if the call was admitted, and if it exceeds the limit and never can be."""

    def __bool__(self) -> bool:
        return self.admitted


_ADMITTED = Verdict(admitted=True, retry_after=None)


def _verdict(wait: Nanos) -> Verdict:
    return Verdict(admitted=False, retry_after=wait / 1_000_000_000) if wait else _ADMITTED


@dataclass(slots=True)
class _Share:
    """What is held of a key, and the calls that wait for more."""

    holding: Holding
    waiting: deque[tuple[int, asyncio.Future[Verdict | None]]] = field(default_factory=deque)
    error: Exception | None = None


class AsyncLeased:
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
        if not 1 <= least <= most:
            raise ValueError(f"least and most must be at least 1, and least at most most, not {least} and {most}")
        rate = limit if isinstance(limit, Rate) else None
        nanos = micros(hold, "hold", least=1) * 1000
        self._terms = Terms(rate, least, most, nanos, int(_TIMEOUT * 1_000_000_000))
        self._cell = cell
        self._limit = limit
        self._keys = keys
        self._shares: dict[Key, _Share] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def keys_in_use(self) -> int:
        """The number of keys of which units are held, awaited, or remembered to be refused."""
        return len(self._shares)

    async def take(self, key: Key, quantity: int = 1) -> Verdict:
        """Takes units of those that are held, and waits for a batch if there are too few.

        An error of the client's library, or asyncio.TimeoutError, means that the server has not answered. The calls
        that come in the pause after it get the same error at once. What to do then is the caller's choice.
        """
        if quantity < 0:
            raise ValueError(f"quantity must be at least 0, not {quantity}")
        share = self._shares.get(key)
        if share is None:
            if quantity > self._terms.most or len(self._shares) >= self._keys:
                return await self._direct(key, quantity)
            share = self._shares[key] = _Share(Holding(self._terms))
            self._start(self._tend(key, share))
        elif quantity > self._terms.most:
            return await self._direct(key, quantity)
        now = time.monotonic_ns()
        # A call does not pass those that wait.
        if not share.waiting and (wait := share.holding.spend(now, quantity)) is not None:
            if wait and share.error is not None:
                raise share.error
            if units := share.holding.ask(now, 0):
                self._start(self._fetch(key, share, units))
            return _verdict(wait)
        future: asyncio.Future[Verdict | None] = asyncio.get_running_loop().create_future()
        share.waiting.append((quantity, future))
        if units := self._serve(share, now):
            self._start(self._fetch(key, share, units))
        served = await future
        return await self._direct(key, quantity) if served is None else served

    async def give_back(self) -> None:
        """Gives back what is held, as far as it can be given back. Call it before the process ends."""
        now = time.monotonic_ns()
        for key, share in list(self._shares.items()):
            share.holding.end(now)
            await self._return(key, share)

    def _start(self, work: Coroutine[None, None, None]) -> None:
        # The event loop keeps no reference to a task.
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _serve(self, share: _Share, now: Nanos) -> int:
        """Serves the calls that wait, in order. The units to fetch for the rest of them, or in advance."""
        while share.waiting:
            quantity, future = share.waiting[0]
            # A caller that is gone needs no units.
            if not future.done():
                wait = share.holding.spend(now, quantity)
                if wait is None:
                    if units := share.holding.ask(now, quantity):
                        return units
                    if share.holding.asked is not None:
                        return 0
                    future.set_result(None)
                elif wait and share.error is not None:
                    future.set_exception(share.error)
                else:
                    future.set_result(_verdict(wait))
            share.waiting.popleft()
        return share.holding.ask(now, 0)

    async def _fetch(self, key: Key, share: _Share, units: int) -> None:
        """Fetches a batch, and then others as long as a call waits for more."""
        while units:
            try:
                answer = await asyncio.wait_for(self._ask(key, units, saturate=True), _TIMEOUT)
            except Exception as error:
                share.holding.lost(time.monotonic_ns())
                share.error = error
            else:
                wait = round(answer.retry_after * 1_000_000_000) if isinstance(answer, Refused) else 0
                taken = answer.taken if isinstance(answer, Admitted) else 0
                share.holding.answered(time.monotonic_ns(), taken, wait)
                share.error = None
            units = self._serve(share, time.monotonic_ns())

    async def _tend(self, key: Key, share: _Share) -> None:
        """Gives back what is left at the end of each hold, and forgets the key when nothing is left of it."""
        while True:
            await asyncio.sleep(share.holding.ends_in(time.monotonic_ns()) / 1_000_000_000)
            if not await self._return(key, share) and not share.waiting and share.holding.idle(time.monotonic_ns()):
                del self._shares[key]
                return

    async def _return(self, key: Key, share: _Share) -> bool:
        """Gives back what is over, if anything is. Without an answer it is lost."""
        back = share.holding.give_back(time.monotonic_ns())
        if back is None:
            return False
        units, age = back
        try:
            if isinstance(self._limit, Rate):
                work = self._cell.refund(key, self._limit, units)
                await asyncio.wait_for(work, _TIMEOUT)
            else:
                settle = self._cell.msettle(Settle(key, self._limit, -units), ago=age / 1_000_000_000)
                await asyncio.wait_for(settle, _TIMEOUT)
        except Exception:  # whatever it is, the units are not held any more
            pass
        share.holding.returned()
        return True

    async def _direct(self, key: Key, quantity: int) -> Verdict:
        answer = await self._ask(key, quantity, saturate=False)
        retry_after = None if isinstance(answer, Admitted) else answer.retry_after
        return Verdict(admitted=answer.admitted, retry_after=retry_after)

    async def _ask(self, key: Key, quantity: int, *, saturate: bool) -> Answer:
        if isinstance(self._limit, Rate):
            return await self._cell.throttle(key, self._limit, quantity, saturate=saturate)
        return await self._cell.fixed(key, self._limit, quantity, saturate=saturate)
