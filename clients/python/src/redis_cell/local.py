"""Limiters in this process for when the server is unavailable. Each has a share of its limit."""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Protocol, TypeAlias, TypeVar

from . import answers
from .answers import Admitted, Answer, Balance, Booked, Booking, DecidedBy, Key, Together
from .limiters import MOST, Bucket, Calendar, Fixed, Funnel, Lease, Log, Rate, Total, Window
from .times import micros, seconds
from .wire import Change, Hold, Pools, Release, Renew, Settle, Take, pools_of, takes_of

KEYS = 100_000
"""The number of keys with a state. For one more, the least recently used key is removed."""
ENTRIES = 1000
"""The largest number of entries of a log. Calls within this fraction of its period share one entry."""
_MICRO = 1000
"""The nanoseconds of a microsecond."""
_CENTURIES = 10**16
"""In microseconds."""
_FOREVER = _CENTURIES // 2
"""A wait that is longer than this never ends, in microseconds."""
_DAYS = {"HOUR": 1 / 24, "DAY": 1, "WEEK": 7, "MONTH": 30, "YEAR": 365}


Pace = TypeVar("Pace", bound="_Paced")


@dataclass(frozen=True, slots=True)
class Look:
    """The present state of a limiter and its wait for a quantity, in microseconds."""

    limit: int
    remaining: int
    wait: int
    reset: int
    held: bool = False
    """Whether the caller has one of the places already."""


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
        self.count = self.begun = self.end = 0

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
            self.count, self.begun, self.end = 0, now, self.end_of(now)
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
        reset = max(self.ends.values(), default=now) - now
        return Look(self.limit, free, wait, reset, self.lease.holder in self.ends)

    def take(self, now: int, quantity: int) -> None:
        self.ends[self.lease.holder] = now + micros(self.lease.lease, "lease")

    def release(self, holder: str | bytes, now: int) -> bool:
        """Releases the holder's place. Returns whether the holder had one."""
        return self.ends.pop(holder, now) > now


Kind = TypeVar("Kind", _Gcra, _Bucket, _Window, _Log, _Places)

Looking: TypeAlias = Callable[[Take, int, int], Look]
"""Looks at a limiter in view of a quantity, when nothing is taken for a time in microseconds."""


@dataclass(slots=True)
class _Chain:
    """A chain of a call, or a single limiter. core/src/chain.rs explains the decision."""

    takes: tuple[Take, ...]
    pools: tuple[tuple[Take, ...], ...]
    wait: int = 0
    """The time until it admits the call; 0 if it does now."""
    parts: list[tuple[Take, int]] = field(default_factory=list[tuple[Take, int]])
    """What it gives."""
    renews: bool = False
    """Whether it gives a place that the caller has already."""

    def decide(self, look: Looking) -> None:
        waits = list[int]()
        # A place that its holder already has comes before all other pools.
        for pool in sorted(self.pools, key=lambda pool: not look(pool[0], 0, 0).held):
            wait = _wait_of(pool[0], look, 0) if len(pool) == 1 else _joined_wait(pool, look)
            if not wait:
                self.wait, self.parts, self.renews = 0, _parts(pool, look), look(pool[0], 0, 0).held
                return
            waits.append(wait)
        self.wait = min(waits)

    def numbers(self, look: Looking) -> tuple[int, int, int]:
        """Returns the most that it can ever give, the units that it can give now, and the time until it is fully
        replenished."""
        sums = list[tuple[int, int]]()
        for pool in self.pools:
            looks = [look(take, 0, 0) for take in pool]
            sums.append((sum(each.limit for each in looks), sum(each.remaining for each in looks)))
        most, now = (min(MOST, max(column)) for column in zip(*sums, strict=True))
        return most, now, max(look(take, 0, 0).reset for take in self.takes)


def _wait_of(take: Take, look: Looking, after: int) -> int:
    seen = look(take, take.quantity, after)
    return _CENTURIES if take.quantity > seen.limit else seen.wait


def _joined_wait(pool: tuple[Take, ...], look: Looking) -> int:
    """Returns the time until limiters have room for their quantity together. Their rooms only grow meanwhile."""
    quantity = pool[0].quantity
    if quantity == 0:
        return min(_wait_of(take, look, 0) for take in pool)

    def fits(after: int) -> bool:
        return sum(look(take, 0, after).remaining for take in pool) >= quantity

    if fits(0):
        return 0
    resets = [look(take, 0, 0).reset for take in pool]
    late = max((reset for reset in resets if reset < _FOREVER), default=0)
    if not fits(late):
        return _CENTURIES
    early = 0
    while late - early > 1:
        middle = (early + late) // 2
        early, late = (early, middle) if fits(middle) else (middle, late)
    return late


def _parts(pool: tuple[Take, ...], look: Looking) -> list[tuple[Take, int]]:
    """Returns the units that each limiter of a pool gives to an admitted call: as many as fit, in order."""
    if len(pool) == 1:
        return [(pool[0], pool[0].quantity)]
    left, parts = pool[0].quantity, list[tuple[Take, int]]()
    for take in pool:
        part = min(left, look(take, 0, 0).remaining)
        parts.append((take, part))
        left -= part
    return parts


def together(
    chains: list[_Chain], waits: dict[Key, int], look: Looking, by: DecidedBy, taking: bool
) -> Together[Answer]:
    """Returns the answer to a call whose limiters had these waits, with the present state of each."""
    admitted = not any(chain.wait for chain in chains if not chain.takes[0].shadow)
    in_order = any(len(chain.takes) > 1 for chain in chains)
    given, rows, whole = dict[Key, int](), dict[Key, Answer](), dict[Key, Answer]()
    for chain in chains:
        if admitted and not (in_order and chain.renews):
            given.update((take.key, part) for take, part in chain.parts)
        for take in chain.takes:
            part = given.get(take.key, 0) if taking else 0
            rows[take.key] = _answer(look(take, 0, 0), waits[take.key], part, by)
        first = chain.takes[0].key
        whole[first] = rows[first]
        if len(chain.takes) > 1:
            limit, remaining, reset = chain.numbers(look)
            whole[first] = _answer(Look(limit, remaining, 0, reset), chain.wait, 0, by)
    parts = {key: given.get(key, 0) for key in rows} if in_order else {}
    counted = [chain.takes[0].key for chain in chains if not chain.takes[0].shadow]
    return Together(answers.combined(whole, counted), rows, parts=parts)


def decided(chains: tuple[Pools, ...], look: Looking) -> tuple[list[_Chain], dict[Key, int]]:
    """Decides the chains of a call. Returns them, and the wait of each limiter for its whole quantity."""
    judged, waits = list[_Chain](), dict[Key, int]()
    for chain in chains:
        if isinstance(chain, Take):  # as a chain, with a single look
            seen = look(chain, chain.quantity, 0)
            waits[chain.key] = wait = _CENTURIES if chain.quantity > seen.limit else seen.wait
            parts = [] if wait else [(chain, chain.quantity)]
            judged.append(_Chain((chain,), ((chain,),), wait, parts, not wait and seen.held))
            continue
        own = _Chain(takes_of((chain,)), pools_of(chain))
        own.decide(look)
        judged.append(own)
        waits.update((take.key, _wait_of(take, look, 0)) for take in own.takes)
    return judged, waits


@dataclass(slots=True)
class _Part:
    """The part of an owner under a key, in microseconds. core/src/hold.rs explains it."""

    end: int
    window: int = 0
    """The beginning of the window from which the units were taken."""
    units: int = 0
    earlier: int = 0
    """The units of windows that have ended."""
    last: int = 0
    """The units of the last take, and when it was, and until when they were owed."""
    taken_at: int = 0
    owed_until: int = 0


class LocalLimiters:
    """The limiters of this process. Calls of several threads are decided one after the other."""

    def __init__(self, share: int, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self.share, self.clock = share, clock
        self.states: OrderedDict[tuple[Key, type[State]], State] = OrderedDict()
        self.held: OrderedDict[tuple[Key, Key], dict[str | bytes, _Part]] = OrderedDict()
        """What owners hold under a key of holds, of a key."""
        self.lock = threading.Lock()

    def _looking(self, takes: tuple[Take, ...], now: int) -> tuple[dict[Key, State], Looking]:
        states = {take.key: self._of(take) for take in takes}

        def look(take: Take, quantity: int, after: int) -> Look:
            state = states[take.key]
            return (deepcopy(state) if after else state).look(now + after, quantity)

        return states, look

    def decide(
        self, chains: tuple[Pools, ...], *, saturate: bool, taking: bool, hold: Hold | None = None
    ) -> Together[Answer]:
        """Takes from all limiters or from none, like CL.MTAKE."""
        with self.lock:
            now, takes = self.clock() // 1000, takes_of(chains)
            states, look = self._looking(takes, now)
            if hold is not None:
                if not taking:
                    states.update(deepcopy(states))
                self._run_out(hold, takes, states, now, forget=taking)
            if saturate:
                (take,) = takes
                fits = min(take.quantity, max(1, look(take, 0, 0).remaining))
                chains = (Take(take.key, take.limit, fits),)
            judged, waits = decided(chains, look)
            if saturate and not judged[0].takes[0].quantity:  # admitted even in debt
                judged[0].wait = waits[takes[0].key] = 0
            units = [take for take in takes if not isinstance(take.limit, Lease)]
            renews = hold is not None and not any(take.quantity for take in units) and self._holds(hold, units)
            for chain in judged if renews else ():
                if not (len(chain.takes) == 1 and isinstance(chain.takes[0].limit, Lease)):
                    chain.wait = 0
            if taking and not any(chain.wait for chain in judged if not chain.takes[0].shadow):
                for chain in judged:
                    for take, part in () if chain.wait else chain.parts:
                        if part:
                            states[take.key].take(now, part)
                if hold is not None:
                    self._hold(hold, judged, states, look, now)
            answer = together(judged, waits, look, "local", taking)
            if renews and not answer and not any(chain.wait for chain in judged):
                row = answer.combined
                own = answers.decision(row.limit, row.remaining, row.reset_after, None, 0, "local")
                return Together(own, answer.each, parts=answer.parts)
            return answer

    def holders(self, key: Key) -> list[str]:
        """Returns the names of the holders of places."""
        with self.lock:
            state = self.states.get((key, _Places))
            names = list(state.ends) if isinstance(state, _Places) else []
            return [name.decode("utf-8", "replace") if isinstance(name, bytes) else name for name in names]

    def _parts_of(self, hold: Hold, key: Key) -> dict[str | bytes, _Part]:
        return self.held.get((hold.key, key), {})

    def _holds(self, hold: Hold, takes: list[Take]) -> bool:
        return any(hold.owner in self._parts_of(hold, take.key) for take in takes)

    def _hold(self, hold: Hold, chains: list[_Chain], states: dict[Key, State], look: Looking, now: int) -> None:
        """Records the units that an owner has taken, and renews its parts of the limiters of the call."""
        end = now + micros(hold.period, "period")
        for chain in chains:
            given = {take.key: part for take, part in chain.parts}
            for take in chain.takes:
                part, units = self._parts_of(hold, take.key).get(hold.owner), given.get(take.key, 0)
                if isinstance(take.limit, Lease) or (part is None and not units):
                    continue
                if part is None:
                    if len(self.held) >= KEYS:
                        self.held.popitem(last=False)
                    part = self.held.setdefault((hold.key, take.key), {})[hold.owner] = _Part(end)
                state = states[take.key]
                if units and isinstance(state, _Window) and not (part.units and _is_of(part, state)):
                    part.earlier, part.units, part.window = part.earlier + part.units, 0, state.begun
                part.end = end
                if units:
                    part.units, part.last, part.taken_at = part.units + units, units, now
                    part.owed_until = now + look(take, 0, 0).reset
                if isinstance(state, _Window) and isinstance(state.window.per, Total):
                    state.end = max(state.end, end)

    def _run_out(
        self, hold: Hold, takes: tuple[Take, ...], states: dict[Key, State], now: int, *, forget: bool = True
    ) -> None:
        """Gives back the units of parts of these limiters that have run out."""
        for take in takes:
            parts = self._parts_of(hold, take.key)
            for owner in [owner for owner, part in parts.items() if part.end <= now]:
                part, state = parts.pop(owner) if forget else parts[owner], states[take.key]
                if isinstance(state, _Window) and _is_of(part, state):
                    state.take(now, -part.units)
            if not parts:
                self.held.pop((hold.key, take.key), None)

    def settle_hold(self, chains: tuple[Pools, ...], hold: Hold) -> Together[Balance]:
        """Settles the parts of an owner, like CL.MSETTLE with HOLD."""
        with self.lock:
            now, takes = self.clock() // 1000, takes_of(chains)
            states, look = self._looking(takes, now)
            self._run_out(hold, takes, states, now)
            own = {take.key: self._parts_of(hold, take.key).pop(hold.owner, _NOTHING) for take in takes}
            for (key, _), parts in self.held.items():
                if key == hold.key and hold.owner in parts:
                    parts[hold.owner].end = now  # the settlement does not name it: it has run out
            borne = dict[Key, int]()

            def held(take: Take) -> bool:
                return look(take, 0, 0).held

            for chain in chains:
                pools = pools_of(chain)
                known = [pool for pool in pools if any(own[each.key] is not _NOTHING or held(each) for each in pool)]
                if known:
                    pools = tuple(known)
                elif not isinstance(chain, Take):
                    pools = _late(pools, look)
                for pool in pools:
                    for take, used in _bears(pool, own, look):
                        chained = bool(known) and not isinstance(chain, Take)
                        counts = chained or isinstance(take.limit, Fixed) or own[take.key] is not _NOTHING
                        borne[take.key] = used if counts and not isinstance(take.limit, Lease) else 0
                        self._settle_part(take, used, own[take.key], states[take.key], now, chained)
            rows = {take.key: _balance(states[take.key], now) for take in takes}
            shares = {key: borne.get(key, 0) for key in rows} if len(rows) > len(chains) else {}
            whole = {takes_of((chain,))[0].key: _whole(chain, rows, look) for chain in chains}
            return Together(_tightest(whole), rows, parts=shares)

    def _settle_part(self, take: Take, used: int, part: _Part, state: State, now: int, chained: bool) -> None:
        if isinstance(state, _Places):
            assert isinstance(take.limit, Lease)
            state.release(take.limit.holder, now)
        elif isinstance(state, _Window):
            difference = max(0, used - part.earlier) - part.units
            state.take(now, difference if _is_of(part, state) else max(0, difference))
        elif part is not _NOTHING:
            owed = max(0, part.owed_until - now)
            if isinstance(state, _Gcra) and used < part.units:
                state.tat -= min(state.cost(min(part.units - used, part.last)), owed * _MICRO)
                return
            back = state.units(owed * _MICRO) if isinstance(state, _Paced) else part.last if owed else 0
            state.take(now, max(used - part.units, -min(back, part.last)))
        elif chained:
            state.take(now, used)

    def renew(self, take: Take) -> bool:
        """Renews a lease, like CL.RENEW."""
        with self.lock:
            holds = self._of(take).look(self.clock() // 1000, 0).held
        return holds and bool(self.decide((take,), saturate=False, taking=True))

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
                rows[change.key] = _balance(state, now, lost)
            return Together(_tightest(rows), rows)

    def pause(self, key: Key, rate: Rate, wait: int) -> Balance:
        """Admits nothing until the wait is over, like CL.PAUSE."""
        with self.lock:
            now = self.clock() // 1000
            state = self._known(key, _Gcra).set(rate, self.share)
            state.tat = max(state.tat, (now + wait) * _MICRO + state.cost(rate.burst))
            return _balance(state, now)

    def reserve(self, key: Key, rate: Rate, quantity: int, max_wait: int | None, prepay: bool) -> Booking:
        """Books units, like CL.RESERVE."""
        with self.lock:
            now = self.clock() // 1000
            state = self._known(key, _Gcra).set(rate, self.share)
            before = state.look(now, min(quantity, 1) if prepay else quantity)
            needed = _CENTURIES if quantity > state.limit and not prepay else before.wait
            if needed >= _FOREVER or (max_wait is not None and needed > max_wait):
                refused = _answer(before, needed, 0, "local")
                assert not isinstance(refused, Admitted)
                return refused
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


def _balance(state: State, now: int, lost: bool = False) -> Balance:
    look = state.look(now, 0)
    over = lost or bool(look.wait and not isinstance(state, _Places))
    after = state.look(now, 1).wait if over else _FOREVER
    return answers.balance_of(look.limit, look.remaining, _time(look.reset), _time(after), over)


def _tightest(rows: dict[Key, Balance]) -> Balance:
    tightest = min(rows.values(), key=lambda row: row.remaining)
    waits = [math.inf if row.retry_after is None else row.retry_after for row in rows.values() if row.over_limit]
    reset = max(row.reset_after for row in rows.values())
    return answers.balance_of(tightest.limit, tightest.remaining, reset, max(waits, default=math.inf), bool(waits))


def _whole(chain: Pools, rows: dict[Key, Balance], look: Looking) -> Balance:
    """Returns the balance of a chain, which is over its limit if all its limiters are."""
    takes = takes_of((chain,))
    if len(takes) == 1:
        return rows[takes[0].key]
    limit, remaining, reset = _Chain(takes, pools_of(chain)).numbers(look)
    waits = [rows[take.key].retry_after for take in takes]
    over = all(rows[take.key].over_limit for take in takes)
    wait = min((wait for wait in waits if wait is not None), default=math.inf) if over else math.inf
    return answers.balance_of(limit, remaining, _time(reset), wait, over)


_NOTHING = _Part(0, -1)
"""What an owner holds that holds nothing."""


def _is_of(part: _Part, window: _Window) -> bool:
    """Whether the units of a part were taken from a window."""
    return part.window == window.begun


def _late(pools: tuple[tuple[Take, ...], ...], look: Looking) -> tuple[tuple[Take, ...], ...]:
    """Returns the pool that is charged the usage of an owner without a hold: the first that admits it, or the last."""
    known = [fixed for pool in pools if (fixed := tuple(take for take in pool if isinstance(take.limit, Fixed)))]
    fits = (pool for pool in known if sum(look(take, 0, 0).remaining for take in pool) >= pool[0].quantity)
    return (next(fits, known[-1]),) if known else ()


def _bears(pool: tuple[Take, ...], own: dict[Key, _Part], look: Looking) -> list[tuple[Take, int]]:
    """Returns the part of the usage that is charged to each limiter of a pool: first its held units, then as much as
    fits."""
    left, held = pool[0].quantity, [own[take.key].earlier + own[take.key].units for take in pool]
    if len(pool) == 1:
        return [(pool[0], left)]
    bears = [min(units, max(0, left - sum(held[:index]))) for index, units in enumerate(held)]
    left -= sum(bears)
    for index, take in enumerate(pool):
        more = left if index == len(pool) - 1 else min(left, look(take, 0, 0).remaining)
        bears[index], left = bears[index] + more, left - more
    return list(zip(pool, bears, strict=True))


def _time(micros: int) -> float:
    return math.inf if micros >= _FOREVER else seconds(micros)


def _answer(look: Look, wait: int, taken: int, by: DecidedBy) -> Answer:
    return answers.decision(look.limit, look.remaining, _time(look.reset), _time(wait) if wait else None, taken, by)
