"""Limiters in this process for when the server is unavailable. Each has a share of its limit."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Protocol, TypeVar

from . import answers
from .answers import Admitted, Answer, Balance, Booked, Booking, Key, Refused, RefusedForever, Together
from .limiters import Bucket, Calendar, Fixed, Funnel, Lease, Log, Rate, Total, Window
from .times import micros, seconds
from .wire import Change, Release, Renew, Settle, Take

KEYS = 100_000
"""The number of keys with a state. For one more, the least recently used key is removed."""
ENTRIES = 1000
"""The largest number of entries of a log. Calls within this fraction of its period share one entry."""
_MICRO = 1000
"""The nanoseconds of a microsecond."""
_CENTURIES = 10**16
"""In microseconds."""
_DAYS = {"HOUR": 1 / 24, "DAY": 1, "WEEK": 7, "MONTH": 30, "YEAR": 365}


Pace = TypeVar("Pace", bound="_Paced")


@dataclass(frozen=True, slots=True)
class Look:
    """The state of a limiter now, in view of a quantity, in microseconds."""

    limit: int
    remaining: int
    wait: int
    reset: int


class State(Protocol):
    """The units taken from a key. As in the server, every call brings its own limit, which `set` stores."""

    def look(self, now: int, quantity: int) -> Look: ...
    def take(self, now: int, quantity: int) -> None:
        """Takes units, or gives units back if the quantity is below 0, but never more than were taken."""
        ...


class _Paced:
    """A share of a rate and of a capacity. Times are in nanoseconds and rounded as in core/src/rate.rs."""

    def set(self: Pace, rate: Rate | Bucket | Funnel, share: int) -> Pace:
        self.limit, self.count = max(1, rate.limit // share), rate.count
        self.per = micros(rate.per, "per") * _MICRO * share
        return self

    def cost(self, quantity: int) -> int:
        """Returns the time in which a quantity becomes available."""
        return quantity * self.per // self.count

    def units(self, time: int) -> int:
        """Returns the largest quantity that becomes available within a time."""
        return ((time + 1) * self.count - 1) // self.per

    def says(self, remaining: int, wait: int, reset: int) -> Look:
        return Look(self.limit, max(0, remaining), -(-max(0, wait) // _MICRO), -(-max(0, reset) // _MICRO))


class _Gcra(_Paced):
    """Decides like CL.THROTTLE. core/src/gcra.rs explains the algorithm."""

    def __init__(self) -> None:
        self.tat = 0

    def look(self, now: int, quantity: int) -> Look:
        debt = max(0, self.tat - now * _MICRO)
        room = self.cost(self.limit) - debt
        return self.says(self.units(room), self.cost(quantity) - room, debt)

    def take(self, now: int, quantity: int) -> None:
        cost = self.cost(quantity) if quantity >= 0 else -self.cost(-quantity)
        self.tat = max(self.tat, now * _MICRO) + cost


class _Bucket(_Paced):
    """Decides like CL.BUCKET and CL.FUNNEL. core/src/bucket.rs explains the algorithm."""

    def __init__(self) -> None:
        self.free = self.since = self.full_at = 0

    def level(self, now: int) -> tuple[int, int, int]:
        """Returns the units that were free at an instant, that instant, and the units that became free since."""
        come = self.units(now - self.since)
        if now >= self.full_at or self.free + come >= self.limit:
            return self.limit, now, 0
        return self.free, self.since, come

    def look(self, now: int, quantity: int) -> Look:
        now *= _MICRO
        free, since, come = self.level(now)
        wait, reset = (since + self.cost(wanted - free) - now for wanted in (quantity, self.limit))
        return self.says(free + come, wait, reset)

    def take(self, now: int, quantity: int) -> None:
        free, since, come = self.level(now * _MICRO)
        self.free, self.since = min(self.limit, free + come - quantity), since + self.cost(come)
        self.full_at = self.since + self.cost(self.limit - self.free)


class _Window:
    """Decides like CL.FIXED, but a calendar window begins with the first call and has the length of its unit.

    A total without an idle time ends after centuries.
    """

    def __init__(self) -> None:
        self.count = self.end = 0

    def set(self, fixed: Fixed, share: int) -> _Window:
        self.limit, self.window = max(1, fixed.limit // share), fixed
        return self

    def end_of(self, now: int) -> int:
        if self.window.until is not None:
            return micros(self.window.until - datetime.now(timezone.utc), "until", least=1) + now
        if isinstance(self.window.per, Calendar):
            return now + micros(_DAYS[self.window.per.unit] * 86400, "per")
        if isinstance(self.window.per, Total):
            return now + (_CENTURIES if self.window.per.idle is None else micros(self.window.per.idle, "idle"))
        assert self.window.per is not None
        return now + micros(self.window.per, "per")

    def look(self, now: int, quantity: int) -> Look:
        count, reset = (self.count, self.end - now) if now < self.end else (0, 0)
        return Look(self.limit, max(0, self.limit - count), reset if count + quantity > self.limit else 0, reset)

    def take(self, now: int, quantity: int) -> None:
        if now >= self.end:
            if quantity <= 0:
                return
            self.count, self.end = 0, self.end_of(now)
        elif quantity > 0 and isinstance(self.window.per, Total):
            self.end = max(self.end, self.end_of(now))
        self.count = max(0, self.count + quantity)
        if not self.count:
            self.end = now  # fully replenished: the window is over


class _Log:
    """Decides like CL.LOG, also for CL.WINDOW, which estimates the same count."""

    def __init__(self) -> None:
        self.entries: deque[tuple[int, int]] = deque()
        self.begun = 0  # the first call of the last entry
        self.count = 0

    def set(self, log: Log | Window, share: int) -> _Log:
        self.limit, self.per = max(1, log.limit // share), micros(log.per, "per")
        return self

    def look(self, now: int, quantity: int) -> Look:
        while self.entries and self.entries[0][0] + self.per <= now:
            self.count -= self.entries.popleft()[1]
        over, wait = self.count + quantity - self.limit, 0
        for instant, entry in self.entries:
            if over <= 0:
                break
            over, wait = over - entry, instant + self.per - now
        reset = self.entries[-1][0] + self.per - now if self.entries else 0
        return Look(self.limit, max(0, self.limit - self.count), wait, reset)

    def take(self, now: int, quantity: int) -> None:
        self.count = max(0, self.count + quantity)
        while quantity < 0 and self.entries:  # the newest units are given back first
            instant, entry = self.entries.pop()
            if entry + quantity > 0:
                self.entries.append((instant, entry + quantity))
            quantity = min(0, entry + quantity)
        if quantity <= 0:
            return
        if self.entries and now - self.begun < self.per // ENTRIES:
            quantity += self.entries.pop()[1]
        else:
            self.begun = now
        self.entries.append((now, quantity))


class _Places:
    """Decides like CL.ACQUIRE."""

    def __init__(self) -> None:
        self.ends: dict[str | bytes, int] = {}

    def set(self, lease: Lease, share: int) -> _Places:
        self.limit, self.lease = max(1, lease.places // share), lease
        return self

    def look(self, now: int, quantity: int) -> Look:
        self.ends = {holder: end for holder, end in self.ends.items() if end > now}
        free, wait = max(0, self.limit - len(self.ends)), 0
        if not free and self.lease.holder not in self.ends:
            # If the limit was lowered, more than one lease must end.
            wait = sorted(self.ends.values())[len(self.ends) - self.limit] - now
        return Look(self.limit, free, wait, max(self.ends.values(), default=now) - now)

    def take(self, now: int, quantity: int) -> None:
        self.ends[self.lease.holder] = now + micros(self.lease.lease, "lease")

    def release(self, holder: str | bytes, now: int) -> bool:
        """Releases the holder's place. Returns whether the holder had one."""
        return self.ends.pop(holder, now) > now


Kind = TypeVar("Kind", _Gcra, _Bucket, _Window, _Log, _Places)


class LocalLimiters:
    """The limiters of this process. Calls of several threads are decided one after the other."""

    def __init__(self, share: int, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self.share, self.clock = share, clock
        self.states: OrderedDict[tuple[Key, type[State]], State] = OrderedDict()
        self.lock = threading.Lock()

    def decide(self, takes: tuple[Take, ...], *, saturate: bool, taking: bool) -> Together[Answer]:
        """Takes from all limiters or from none, like CL.MTAKE."""
        with self.lock:
            now = self.clock() // 1000
            states = [self._of(take) for take in takes]
            rows: dict[Key, Answer] = {}
            for take, state in zip(takes, states, strict=True):
                quantity = take.quantity
                if saturate:
                    quantity = min(quantity, max(1, state.look(now, 0).remaining))
                rows[take.key] = _answer(state.look(now, quantity), quantity)
            both = answers.combined(rows, [take.key for take in takes if not take.shadow])
            for take, state in zip(takes, states, strict=True):
                row = rows[take.key]
                if isinstance(row, Admitted):
                    taken = row.taken if taking and both.admitted else 0
                    if taken:
                        state.take(now, taken)
                    left = state.look(now, 0)
                    rows[take.key] = Admitted(
                        limit=left.limit,
                        remaining=left.remaining,
                        reset_after=seconds(left.reset),
                        taken=taken,
                        decided_by="local",
                    )
            return Together(answers.combined(rows, [take.key for take in takes if not take.shadow]), rows)

    def release(self, key: Key, holder: str | bytes) -> bool:
        """Gives a place back, like CL.RELEASE."""
        with self.lock:
            state = self.states.get((key, _Places))
            return isinstance(state, _Places) and state.release(holder, self.clock() // 1000)

    def settle(self, changes: tuple[Change, ...]) -> Together[Balance]:
        """Takes or gives back units, whether they are available or not, like CL.MSETTLE."""
        with self.lock:
            now = self.clock() // 1000
            rows: dict[Key, Balance] = {}
            for change in changes:
                lost = False
                if isinstance(change, Settle):
                    state = self._of(Take(change.key, change.limit))
                    state.take(now, change.difference)
                else:
                    state = self._of(Take(change.key, change.lease))
                    holds = isinstance(state, _Places) and state.ends.get(change.lease.holder, now) > now
                    if isinstance(change, Release) and isinstance(state, _Places):
                        state.release(change.lease.holder, now)
                    elif holds:
                        state.take(now, 1)
                    lost = isinstance(change, Renew) and not holds
                rows[change.key] = _balance(state.look(now, 0), lost)
            return Together(_tightest(rows), rows)

    def pause(self, key: Key, rate: Rate, wait: int) -> Balance:
        """Admits nothing until the wait is over, like CL.PAUSE."""
        with self.lock:
            now = self.clock() // 1000
            state = self._known(key, _Gcra).set(rate, self.share)
            state.tat = max(state.tat, (now + wait) * _MICRO + state.cost(rate.burst))
            return _balance(state.look(now, 0), False)

    def reserve(self, key: Key, rate: Rate, quantity: int, max_wait: int | None, prepay: bool) -> Booking:
        """Books units, like CL.RESERVE."""
        with self.lock:
            now = self.clock() // 1000
            state = self._known(key, _Gcra).set(rate, self.share)
            before = state.look(now, min(quantity, 1) if prepay else quantity)
            if quantity > state.limit and not prepay:
                forever = _answer(before, quantity)
                assert isinstance(forever, RefusedForever)
                return forever
            if max_wait is not None and before.wait > max_wait:
                return Refused(
                    limit=before.limit,
                    remaining=before.remaining,
                    reset_after=seconds(before.reset),
                    retry_after=seconds(before.wait),
                    decided_by="local",
                )
            if quantity:
                state.take(now, quantity)
            left = state.look(now, 0)
            wait, reset = seconds(before.wait), seconds(left.reset)
            return Booked(limit=left.limit, remaining=left.remaining, reset_after=reset, wait=wait)

    def _of(self, take: Take) -> State:
        match take.limit:
            case Fixed() as fixed:
                return self._known(take.key, _Window).set(fixed, self.share)
            case Log() | Window() as log:
                return self._known(take.key, _Log).set(log, self.share)
            case Lease() as lease:
                return self._known(take.key, _Places).set(lease, self.share)
            case Rate() as rate:
                return self._known(take.key, _Gcra).set(rate, self.share)
            case bucket:
                return self._known(take.key, _Bucket).set(bucket, self.share)

    def _known(self, key: Key, kind: type[Kind]) -> Kind:
        state = self.states.get((key, kind))
        if not isinstance(state, kind):
            if len(self.states) >= KEYS:
                self.states.popitem(last=False)
            state = self.states[key, kind] = kind()
        self.states.move_to_end((key, kind))
        return state


def _balance(look: Look, lost: bool) -> Balance:
    wait = seconds(look.wait) if look.wait else None
    return Balance(
        limit=look.limit,
        remaining=look.remaining,
        reset_after=seconds(look.reset),
        retry_after=wait,
        over_limit=lost or wait is not None,
    )


def _tightest(rows: dict[Key, Balance]) -> Balance:
    tightest = min(rows.values(), key=lambda row: row.remaining)
    waits = [row.retry_after for row in rows.values() if row.retry_after is not None]
    return Balance(
        limit=tightest.limit,
        remaining=tightest.remaining,
        reset_after=max(row.reset_after for row in rows.values()),
        retry_after=max(waits, default=None),
        over_limit=any(row.over_limit for row in rows.values()),
    )


def _answer(look: Look, quantity: int) -> Answer:
    limit, remaining, reset = look.limit, look.remaining, seconds(look.reset)
    if quantity > limit:
        return RefusedForever(limit=limit, remaining=remaining, reset_after=reset, decided_by="local")
    if look.wait:
        wait = seconds(look.wait)
        return Refused(limit=limit, remaining=remaining, reset_after=reset, retry_after=wait, decided_by="local")
    return Admitted(limit=limit, remaining=remaining, reset_after=reset, taken=quantity, decided_by="local")
