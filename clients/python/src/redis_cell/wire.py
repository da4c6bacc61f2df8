"""The commands: from typed arguments to the words that are sent, and from a reply to a typed answer. No I/O.

Each function builds a Call, which Cell and AsyncCell carry out. The functions are also the methods of both, so the
arguments and the documentation of a command are here and nowhere else.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from . import answers
from .answers import Admitted, Answer, Balance, Booking, Key, Several, TopKey
from .limiters import Bucket, Counted, Fixed, Funnel, Lease, Limiter, Log, Rate, Window, Word, Words
from .times import Seconds, micros, micros_up

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Take:
    """One limiter of `mtake`, `bmtake` or `mpeek`. With `shadow`, which is not for `mpeek`, it refuses nothing."""

    key: Key
    limiter: Limiter
    quantity: int = 1
    shadow: bool = False

    def __post_init__(self) -> None:
        _check_key(self.key)
        _positive(self.quantity)
        if isinstance(self.limiter, Lease) and self.quantity != 1:
            raise ValueError("the quantity of a lease is 1")


@dataclass(frozen=True, slots=True)
class Once:
    """Makes a call that may be repeated: the server keeps its reply under `key` for `period`, and takes units once.

    The client repeats the call itself if the reply is lost or the server is unavailable: `tries` times in all, after
    pauses that begin with `pause` and double, and not later than half of `period` after the first time. Use one key for
    each piece of work. To repeat a call that has raised an error nevertheless, make it again with the same key.
    """

    key: Key
    period: Seconds
    tries: int = 5
    pause: Seconds = 0.05

    def __post_init__(self) -> None:
        _check_key(self.key)
        micros(self.period, "period", least=1)
        micros(self.pause, "pause")
        if self.tries < 1:
            raise ValueError(f"tries must be at least 1, not {self.tries}")

    def words(self) -> tuple[Word, ...]:
        return ("ONCE", self.key, micros(self.period, "period"))


class Decide(Protocol):
    """Decides calls without the server."""

    def decide(self, takes: tuple[Take, ...], *, saturate: bool, taking: bool) -> Several[Answer]:
        """Decides a call of several limiters. It only looks if not `taking`."""
        ...

    def release(self, key: Key, holder: str | bytes) -> bool:
        """Gives back a place that was given without the server."""
        ...


class Settles(Protocol):
    """Changes limiters without the server, as CL.MSETTLE does. For tests."""

    def settle(self, changes: tuple[Change, ...]) -> Several[Balance]: ...
    def pause(self, key: Key, rate: Rate, wait: int) -> Balance: ...
    def reserve(self, key: Key, rate: Rate, quantity: int, max_wait: int | None, prepay: bool) -> Booking: ...


@dataclass(frozen=True, slots=True)
class Waiting(Generic[T]):
    """What a call that waits in the server is made of, for those who wait in another way."""

    probe: Call[Any]
    """The call that takes at once or not at all."""
    within: Callable[[Seconds | None], Call[T]]
    """The same call with another timeout."""
    places: frozenset[Key] = frozenset()
    """The keys of leases: their places may be free long before the leases end."""
    maxlen: int | None = None


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """A call that has not been sent yet."""

    name: str
    key: Key | None
    """The key by which a cluster routes the call."""
    words: Words
    """What follows the name and, if there is one, the key."""
    read: Callable[[Any], T]
    """From the reply to the answer. If the call goes to every primary: from the list of the replies."""
    held: float | None = 0
    """How long the server may hold the reply back on purpose, in seconds. None: without a limit."""
    decide: Callable[[Decide], T] | None = None
    """How the call is decided without the server, if it can be."""
    settle: Callable[[Settles], T] | None = None
    """How the call changes limiters without the server, if it is one that is never refused."""
    everywhere: bool = False
    """Whether the call has no key and goes to every primary."""
    once: Once | None = None
    """Whether the call may be repeated, and how often."""
    waiting: Waiting[T] | None = None
    """For a call that waits."""

    def __post_init__(self) -> None:
        if not self.everywhere:
            _check_key(self.key)


MOST = 2**63 - 1
"""The largest number that the server reads."""
MOST_LOGGED = 10_000
"""The largest quantity of one call of a log."""


def _check_key(key: object) -> None:
    if not isinstance(key, (str, bytes)):
        raise TypeError(f"a key is a str or bytes, not {type(key).__name__}")


def _seconds(whole: int) -> str:
    """So many microseconds as a number of seconds, as blocking commands read it."""
    return f"{whole // 1_000_000}.{whole % 1_000_000:06}"


def _positive(quantity: int) -> int:
    if not 0 <= quantity <= MOST:
        raise ValueError(f"quantity must be at least 0 and at most {MOST}, not {quantity}")
    return quantity


def _logged(takes: tuple[Take, ...]) -> tuple[Take, ...]:
    """Raises the error that the server would return, so that it is an error whether the server answers or not."""
    for take in takes:
        if isinstance(take.limiter, Log) and take.quantity > MOST_LOGGED:
            raise ValueError(f"quantity must be at most {MOST_LOGGED} for a Log, not {take.quantity}")
    return takes


def _take(key: Key, limiter: Counted, quantity: int, saturate: bool = False, looks: str | None = None) -> Call[Answer]:
    """A call of the limiter's own command, or of one that only looks."""
    take = Take(key, limiter, quantity)
    if not saturate:
        _logged((take,))
    words = (*limiter.words(), quantity, *(("SATURATE",) if saturate else ()), *limiter.options(), "US")
    taken = 0 if looks else quantity
    return Call(
        looks or f"CL.{limiter.kind}",
        key,
        words,
        lambda reply: answers.answer(reply, taken),
        decide=lambda by: by.decide((take,), saturate=saturate, taking=not looks)[key],
    )


def throttle(key: Key, rate: Rate, quantity: int = 1, *, saturate: bool = False) -> Call[Answer]:
    """Takes units from a rate limiter: CL.THROTTLE. With `saturate` it takes as many as are available."""
    return _take(key, rate, quantity, saturate)


def bucket(key: Key, bucket: Bucket, quantity: int = 1, *, saturate: bool = False) -> Call[Answer]:
    """Takes tokens from a token bucket: CL.BUCKET. With `saturate` it takes as many as are available."""
    return _take(key, bucket, quantity, saturate)


def funnel(key: Key, funnel: Funnel, quantity: int = 1, *, saturate: bool = False) -> Call[Answer]:
    """Pours units into a funnel: CL.FUNNEL. With `saturate` it pours as many as there is room for."""
    return _take(key, funnel, quantity, saturate)


def fixed(key: Key, fixed: Fixed, quantity: int = 1, *, saturate: bool = False) -> Call[Answer]:
    """Takes units from a fixed window: CL.FIXED. With `saturate` it takes as many as are available."""
    return _take(key, fixed, quantity, saturate)


def window(key: Key, window: Window, quantity: int = 1, *, saturate: bool = False) -> Call[Answer]:
    """Takes units from an estimated sliding window: CL.WINDOW. With `saturate` it takes as many as are available."""
    return _take(key, window, quantity, saturate)


def log(key: Key, log: Log, quantity: int = 1, *, saturate: bool = False) -> Call[Answer]:
    """Takes units from an exact sliding window: CL.LOG. With `saturate` it takes as many as are available."""
    return _take(key, log, quantity, saturate)


def peek(key: Key, rate: Rate, quantity: int = 1) -> Call[Answer]:
    """Returns what `throttle` would return now, and takes nothing: CL.PEEK."""
    return _take(key, rate, quantity, looks="CL.PEEK")


def charge(key: Key, rate: Rate, quantity: int = 1) -> Call[Balance]:
    """Takes units even if they are not available, which leaves the limiter in debt: CL.CHARGE."""
    change = Settle(key, rate, _positive(quantity))
    words = (*rate.words(), quantity, "US")
    return Call("CL.CHARGE", key, words, answers.balance, settle=lambda by: by.settle((change,))[key])


def refund(key: Key, rate: Rate, quantity: int = 1) -> Call[Balance]:
    """Gives units back to a rate limiter: CL.REFUND."""
    change = Settle(key, rate, -_positive(quantity))
    words = (*rate.words(), quantity, "US")
    return Call("CL.REFUND", key, words, answers.balance, settle=lambda by: by.settle((change,))[key])


def pause(key: Key, rate: Rate, wait: Seconds) -> Call[Balance]:
    """Admits nothing until `wait` has passed, and then one unit after another at the rate: CL.PAUSE."""
    whole = micros(wait, "wait")
    words = (*rate.words(), whole, "US")
    return Call("CL.PAUSE", key, words, answers.balance, settle=lambda by: by.pause(key, rate, whole))


def reserve(
    key: Key, rate: Rate, quantity: int = 1, *, max_wait: Seconds | None = None, prepay: bool = False
) -> Call[Booking]:
    """Books units, and returns how long to wait before using them: CL.RESERVE.

    Nothing is booked if the wait would be longer than `max_wait`. With `prepay` the wait is that of one unit, and the
    next caller waits for the rest.
    """
    most = None if max_wait is None else micros(max_wait, "max_wait")
    limit = () if most is None else ("MAXWAIT", most)
    words = (*rate.words(), _positive(quantity), *limit, *(("PREPAY",) if prepay else ()), "US")
    return Call(
        "CL.RESERVE",
        key,
        words,
        answers.booking,
        settle=lambda by: by.reserve(key, rate, quantity, most, prepay),
    )


def bthrottle(key: Key, rate: Rate, quantity: int = 1, *, timeout: Seconds | None) -> Call[Answer | None]:
    """Waits in the server until the units are available: CL.BTHROTTLE. None if they are not within `timeout`.

    A timeout of None waits without a limit. The call occupies a connection while it waits.
    """
    whole = 0 if timeout is None else micros(timeout, "timeout", least=1)
    words = (*rate.words(), _positive(quantity), _seconds(whole), "US")

    def read(reply: Any) -> Answer | None:
        return None if reply is None else answers.answer(reply, quantity)

    return Call(
        "CL.BTHROTTLE",
        key,
        words,
        read,
        held=None if timeout is None else whole / 1_000_000,
        waiting=Waiting(throttle(key, rate, quantity), lambda left: bthrottle(key, rate, quantity, timeout=left)),
    )


def acquire(key: Key, lease: Lease) -> Call[Answer]:
    """Acquires a place for the time of a lease, or renews the lease of its holder: CL.ACQUIRE."""
    take = Take(key, lease)
    return Call(
        "CL.ACQUIRE",
        key,
        (lease.limit, micros(lease.lease, "lease"), lease.holder, "US"),
        lambda reply: answers.answer(reply, 1),
        decide=lambda by: by.decide((take,), saturate=False, taking=True)[key],
    )


def renew(key: Key, lease: Lease) -> Call[bool]:
    """Sets a new end for a lease: CL.RENEW. False if its holder has no place."""
    take = Take(key, lease)
    words = (micros(lease.lease, "lease"), lease.holder, "US")
    return Call(
        "CL.RENEW", key, words, bool, decide=lambda by: bool(by.decide((take,), saturate=False, taking=True)[key])
    )


def release(key: Key, lease: Lease | str | bytes) -> Call[bool]:
    """Gives a place back before its lease ends: CL.RELEASE. False if the holder has no place.

    `lease` is the lease, or the name of its holder.
    """
    holder = lease.holder if isinstance(lease, Lease) else lease
    return Call("CL.RELEASE", key, (holder,), bool, decide=lambda by: by.release(key, holder))


_RESETS = (Rate, Bucket, Funnel, Fixed)
"""The limiters whose `reset_after` says how long what was taken is owed."""


@dataclass(frozen=True, slots=True)
class Settle:
    """One limiter of `msettle`: takes `difference` units if it is above 0, gives units back if it is below 0.

    `reset_after` is that of the answer that took the units, for a Rate, a Bucket, a Funnel or a Fixed, and needs the
    `ago` of `msettle`. With its argument `taken`, `msettle` finds both by itself.
    """

    key: Key
    limiter: Counted
    difference: int
    reset_after: Seconds | None = None

    def __post_init__(self) -> None:
        _check_key(self.key)
        if not -MOST <= self.difference <= MOST:
            raise ValueError(f"difference must be at least {-MOST} and at most {MOST}, not {self.difference}")
        if self.reset_after is not None and not isinstance(self.limiter, _RESETS):
            raise ValueError("reset_after is for a Rate, a Bucket, a Funnel or a Fixed")


@dataclass(frozen=True, slots=True)
class Renew:
    """A lease that `msettle` renews."""

    key: Key
    lease: Lease

    def __post_init__(self) -> None:
        _check_key(self.key)


@dataclass(frozen=True, slots=True)
class Release:
    """A place that `msettle` gives back."""

    key: Key
    lease: Lease

    def __post_init__(self) -> None:
        _check_key(self.key)


Change: TypeAlias = Settle | Renew | Release


def _limiter(limiter: Limiter, quantity: int, lease: int | None = None) -> tuple[Word, ...]:
    """A limiter as CL.MTAKE and its companions read it."""
    if isinstance(limiter, Lease):
        lease = micros(limiter.lease, "lease") if lease is None else lease
        return (limiter.kind, limiter.limit, lease, limiter.holder)
    return (limiter.kind, *limiter.words(), *limiter.options(), quantity)


def _takes(takes: tuple[Take, ...]) -> tuple[Word, ...]:
    """The words of several limiters, without the first key."""
    limiters = ((t.key, *(("SHADOW",) if t.shadow else ()), *_limiter(t.limiter, t.quantity)) for t in takes)
    return tuple(word for limiter in limiters for word in limiter)[1:]


def _rows(takes: tuple[Take, ...], taking: bool) -> Callable[[Any], Several[Answer]]:
    def read(reply: list[list[int]]) -> Several[Answer]:
        combined = answers.answer(reply[0], 0)
        admitted = taking and combined.admitted
        rows = {
            take.key: answers.answer(row, take.quantity if admitted else 0)
            for take, row in zip(takes, reply[1:], strict=True)
        }
        return Several(combined, rows)

    return read


def mtake(first: Take, *others: Take, once: Once | None = None) -> Call[Several[Answer]]:
    """Takes units from several limiters of any kind, from all of them or from none: CL.MTAKE.

    In a cluster all keys must be in one slot. `combined.taken` is 0: each row has the quantity that was taken from it.
    With `once` the call is repeated if its reply is lost, and takes the units once.
    """
    takes = _logged((first, *others))
    return Call(
        "CL.MTAKE",
        first.key,
        (*_takes(takes), *(once.words() if once else ()), "US"),
        _rows(takes, taking=True),
        decide=lambda by: by.decide(takes, saturate=False, taking=True),
        once=once,
    )


def mpeek(first: Take, *others: Take) -> Call[Several[Answer]]:
    """Returns what `mtake` would return now, and takes nothing: CL.MPEEK."""
    takes = _logged((first, *others))
    if any(take.shadow for take in takes):
        raise ValueError("shadow is for mtake")
    return Call(
        "CL.MPEEK",
        first.key,
        (*_takes(takes), "US"),
        _rows(takes, taking=False),
        decide=lambda by: by.decide(takes, saturate=False, taking=False),
    )


MOST_WEIGHT = 1_000_000
"""The largest weight of a flow."""


def _flow(flow: str | bytes | None, weight: int | None) -> tuple[Word, ...]:
    if weight is None:
        return () if flow is None else ("FLOW", flow)
    if flow is None:
        raise ValueError("weight is that of a flow: name the flow")
    if not 1 <= weight <= MOST_WEIGHT:
        raise ValueError(f"weight must be at least 1 and at most {MOST_WEIGHT}, not {weight}")
    return ("FLOW", flow, "WEIGHT", weight)


def bmtake(
    first: Take,
    *others: Take,
    timeout: Seconds | None,
    flow: str | bytes | None = None,
    weight: int | None = None,
    maxlen: int | None = None,
    once: Once | None = None,
) -> Call[Several[Answer] | None]:
    """Takes units from several limiters, and waits in the server until all admit the call, fairly: CL.BMTAKE.

    `first` is the limiter that all who wait share. The clients of a `flow` are served in their order, and flows share
    `first` by their `weight`: without it a flow keeps the weight that it has. None if the units do not become available
    within `timeout`; a timeout of None waits without a limit. The answer is a refusal at once if a limiter can never
    admit its quantity, or if `maxlen` clients of the flow wait already. The call occupies a connection while it waits.

    With `once` the call is repeated if its reply is lost, for the rest of the timeout, and takes the units once.
    """
    takes = _logged((first, *others))
    whole = 0 if timeout is None else micros(timeout, "timeout", least=1)
    if maxlen is not None and not 0 <= maxlen <= MOST:
        raise ValueError(f"maxlen must be at least 0 and at most {MOST}, not {maxlen}")
    options: tuple[Word, ...] = (
        *(() if timeout is None else ("TIMEOUT", _seconds(whole))),
        *_flow(flow, weight),
        *(() if maxlen is None else ("MAXLEN", maxlen)),
        *(once.words() if once else ()),
    )
    rows = _rows(takes, taking=True)

    def within(left: Seconds | None) -> Call[Several[Answer] | None]:
        return bmtake(first, *others, timeout=left, flow=flow, weight=weight, maxlen=maxlen, once=once)

    places = frozenset(take.key for take in takes if isinstance(take.limiter, Lease))

    return Call(
        "CL.BMTAKE",
        first.key,
        (*_takes(takes), *options, "US"),
        lambda reply: None if reply is None else rows(reply),
        held=None if timeout is None else whole / 1_000_000,
        once=once,
        waiting=Waiting(mtake(*takes, once=once), within, places, maxlen),
    )


def _change(change: Change) -> tuple[Word, ...]:
    match change:
        case Settle():
            reset = () if change.reset_after is None else ("RESET", micros(change.reset_after, "reset_after"))
            return (change.key, *reset, *_limiter(change.limiter, change.difference))
        case Renew():
            return (change.key, *_limiter(change.lease, 1))
        case Release():
            return (change.key, *_limiter(change.lease, 1, lease=0))


def _of_its_row(change: Change, taken: Several[Answer]) -> Change:
    """The change, with the numbers of the row that took the units: no more than that is given back."""
    if not isinstance(change, Settle) or change.difference >= 0:
        return change
    if change.key not in taken:
        raise ValueError(f"taken has no row of the key {change.key!r}")
    row = taken[change.key]
    # What a guard has decided without the server is not the server's to give back.
    units = row.taken if isinstance(row, Admitted) and taken.sent is not None else 0
    reset = row.reset_after if units and isinstance(change.limiter, _RESETS) else None
    return Settle(change.key, change.limiter, max(change.difference, -units), reset)


def msettle(
    first: Change,
    *others: Change,
    ago: Seconds | None = None,
    taken: Several[Answer] | None = None,
    flow: str | bytes | None = None,
    weight: int | None = None,
    once: Once | None = None,
) -> Call[Several[Balance]]:
    """Takes or gives back units of several limiters, whether they are available or not: CL.MSETTLE.

    `taken` is the answer of the `mtake` or `bmtake` that took the units. The call then says itself how long ago that
    was, and by RESET what was owed then, and gives back no more than was taken and is still owed. Without it, `ago` is
    how long ago the units that are given back were taken. In a cluster all keys must be in one slot.

    With `flow`, the difference of `first` also changes whose turn it is among the flows that wait for it in `bmtake`,
    so that they share by what was used. With `once` the call is repeated if its reply is lost, and settles once.
    """
    changes, sent = (first, *others), None
    if taken is not None:
        if ago is not None:
            raise ValueError("taken says how long ago the units were taken: leave ago out")
        if not taken:
            raise ValueError("taken is a refusal: nothing was taken")
        changes, sent = tuple(_of_its_row(change, taken) for change in changes), taken.sent
    elif ago is None and any(isinstance(change, Settle) and change.reset_after is not None for change in changes):
        raise ValueError("reset_after needs ago")

    def read(reply: list[list[int]]) -> Several[Balance]:
        rows = {change.key: answers.balance(row) for change, row in zip(changes, reply[1:], strict=True)}
        return Several(answers.balance(reply[0]), rows)

    limiters = tuple(word for change in changes for word in _change(change))[1:]
    options = (*_flow(flow, weight), *(once.words() if once else ()), "US")

    def words() -> tuple[Word, ...]:
        age = ago if sent is None else time.monotonic() - sent  # when this call is sent
        return (*limiters, *(() if age is None else ("AGO", micros_up(age, "ago"))), *options)

    return Call(
        "CL.MSETTLE",
        first.key,
        words if taken is not None else words(),
        read,
        settle=lambda by: by.settle(changes),
        once=once,
    )


def top(count: int = 10) -> Call[list[TopKey]]:
    """Returns the keys that are refused most often: CL.TOP. In a cluster, those of all primaries."""
    if count < 1:
        raise ValueError(f"count must be at least 1, not {count}")

    def read(replies: list[list[Any]]) -> list[TopKey]:
        keys = [answers.top_key(row) for reply in replies for row in reply]
        return sorted(keys, key=lambda key: -key.refusals)[:count]

    return Call("CL.TOP", None, (count,), read, everywhere=True)


def reset_top() -> Call[None]:
    """Forgets all refusals that CL.TOP knows: CL.TOP RESET. In a cluster, those of all primaries."""
    return Call("CL.TOP", None, ("RESET",), lambda replies: None, everywhere=True)
