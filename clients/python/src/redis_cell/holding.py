"""The units of a limit that a client holds: how many to request, and when. No clock and no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from .limiters import Rate
from .times import micros

Nanos: TypeAlias = int
"""A time in nanoseconds: a length, or an instant of a monotonic clock."""

_SHORTEST_PAUSE: Nanos = 10_000_000
_LONGEST_PAUSE: Nanos = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Terms:
    """How many units a client may hold, and for how long. Has the same fields as in core/src/holding.rs."""

    rate: Rate | None
    least: int
    most: int
    hold: Nanos
    reply: Nanos


@dataclass(slots=True)
class Batch:
    """The units of one call."""

    taken: int
    left: int
    sent: Nanos
    ends: Nanos
    """When the units cannot be spent any more: the hold is over, or the window ends."""
    answered: Nanos | None = None
    """When the answer arrived, if the window of the units certainly lasts longer than a call takes."""
    calls: int = 0
    """Of units that were spent: the calls for units before that."""


@dataclass(slots=True)
class Holding:
    """The units of one limit that a client holds. It has no clock and does no I/O.

    core/src/holding.rs has the same functions, explains them, and proves the bound.
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
    calls: int = 0
    spare: int = 0

    def spend(self, now: Nanos, quantity: int) -> Nanos | None:
        """Spends held units: 0. Otherwise the wait of the last refusal, or None if the server must decide."""
        batch = self.current
        if batch is not None and batch.left >= quantity and now < batch.ends:
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

    def part(self, now: Nanos, quantity: int) -> Batch | None:
        """Returns what `spend` would spend now as a batch of its own, for `unspend`: with the earliest end of its units
        and the greatest age. None if nothing is held."""
        self._expire(now)
        if (first := self.current) is None:
            return None
        ends = min(first.ends, (self.next or first).ends)
        return Batch(quantity, quantity, first.sent, ends, first.answered, self.calls)

    def unspend(self, now: Nanos, part: Batch) -> None:
        """Takes units back that were spent but not used. Units are lost if they have ended since, if they may not be
        held in addition to the units requested since, or if they were spent before the last two calls for units."""
        self._expire(now)
        asked = self.asked.taken if self.asked is not None else 0
        part.left = min(part.left, self._room() - asked)
        if later := self.calls - part.calls:
            part.left = min(part.left, self.spare if later == 1 else 0)
        if part.left < 1 or part.ends <= now:
            return
        if later:
            self.spare -= part.left
        if (batch := self.current) is None:
            self.current = part
        elif batch.ends > part.ends and self.next is None and self.asked is None:
            self.current, self.next = part, batch  # a younger batch, which lasts longer
        else:
            left, ends = batch.left + part.left, min(batch.ends, part.ends)
            self.current = Batch(batch.taken, left, part.sent, ends, part.answered)

    def ask(self, now: Nanos, wanted: int) -> int:
        """Returns the units to request now: for a call that needs `wanted` units, or in advance. 0 if there are none.

        If the number is not 0, the caller sends the request, and then calls `answered` or `lost`.
        """
        # Almost every call ends here.
        if not wanted and not self._half_used():
            return 0
        self._expire(now)
        half_used = self._half_used()
        short = self.held() < wanted
        if self.asked is not None or now < self.not_before or not (half_used or short):
            return 0
        self._merge()
        size = min(max(self._size(), wanted - self.held()), self._room())
        if size < 1:
            return 0
        self.asked = Batch(size, size, now, now + self.terms.hold)
        self.calls += 1
        self.spare = self._room() - size
        return size

    def answered(self, now: Nanos, taken: int, retry_after: Nanos, lasts: Nanos | None = None) -> None:
        """Records the answer to a request. The caller calls `lost` if the answer takes longer than `reply`.

        `lasts` is the time for which a fixed window lasts at least: `reset_after` less its unit of time.
        """
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
            batch = Batch(taken, taken, asked.sent, asked.ends)
            if self.terms.rate is None and lasts is not None:
                batch.ends = min(batch.ends, asked.sent + lasts)
                if lasts > now - asked.sent + self.terms.reply:
                    batch.answered = now
            if self.current is None:
                self.current = batch
            else:
                self.next = batch
        self._expire(now)

    def lost(self, now: Nanos) -> None:
        """Records that a request got an error, or no answer in time."""
        self.answered(now, 0, 0)

    def give_back(self, now: Nanos) -> tuple[int, Nanos] | None:
        """Returns the units to give back now, and their greatest possible age. The caller then calls `returned`."""
        self._expire(now)
        if self.over is None or self.returning:
            return None
        batch, self.over = self.over, None
        # If this batch's call opened the window, an age that is too long exceeds the age of the window. An age that is
        # too short, by the time between the call and its answer, matches a later window only if the batch's own window
        # ended within that time and `reply`.
        since = batch.sent - self.terms.reply if batch.answered is None else batch.answered
        age = now - since
        most = batch.left
        if (rate := self.terms.rate) is not None:
            # The units that would still be owed if no others had been taken.
            period = micros(rate.per, "per") * 1000
            most = max(0, (batch.taken * period // rate.count - age) * rate.count // period)
        self.returning = min(batch.left, most)
        return (self.returning, age) if self.returning else None

    def returned(self) -> None:
        """Records that no units are on their way back any more."""
        self.returning = 0

    def end(self, now: Nanos) -> None:
        """Ends all batches, so that `give_back` gives back units of the youngest one that has any."""
        self._expire(now)
        for batch in (self.current, self.next):
            if batch is not None and batch.left:
                self.over = batch
        self.current = self.next = None

    def held(self) -> int:
        """Returns the units that can be spent if no hold ends first."""
        return (self.current.left if self.current else 0) + (self.next.left if self.next else 0)

    def ends_in(self, now: Nanos) -> Nanos:
        """Returns the time until the first batch ends."""
        ends = [batch.ends for batch in (self.current, self.next) if batch is not None]
        return max(0, min(ends) - now) if ends else self.terms.hold

    def idle(self, now: Nanos) -> bool:
        """Whether nothing is held, requested or on its way back, and no refusal is remembered."""
        busy = self.held() or self.asked is not None or self.over is not None or self.returning
        return not busy and now - self.not_before >= self.pause

    def _half_used(self) -> bool:
        return self.next is None and self.current is not None and self.current.left <= self.current.taken // 2

    def _room(self) -> int:
        return self.terms.most - self.held() - self.returning - (self.over.left if self.over is not None else 0)

    def _size(self) -> int:
        return min(max(self.size, self.terms.least), self.terms.most)

    def _merge(self) -> None:
        if self.current is not None and self.next is not None:
            left = self.current.left + self.next.left
            ends = min(self.current.ends, self.next.ends)
            self.current = Batch(self.next.taken, left, self.current.sent, ends, self.current.answered)
            self.next = None

    def _expire(self, now: Nanos) -> None:
        for batch in (self.current, self.next):
            if batch is not None and now >= batch.ends:
                if batch is self.current:
                    self.current = None
                else:
                    self.next = None
                if batch.left:
                    if batch.ends - batch.sent >= self.terms.hold:
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
