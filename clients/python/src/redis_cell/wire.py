"""The commands: from typed arguments to a command's arguments, and from a reply to a typed answer. No I/O.

Each function builds a Call, which Cell and AsyncCell send. The functions are also the methods of both, so the arguments
and the documentation of each command are written only here.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, Protocol, TypeAlias, TypeVar, cast

from . import answers
from .answers import Answer, Balance, Booked, Booking, Key, Together, TopKey
from .limiters import (
    COUNTED,
    LIMITS,
    MOST,
    Argument,
    Arguments,
    Bucket,
    Counted,
    Fixed,
    Funnel,
    Lease,
    Limit,
    Log,
    Rate,
    Window,
    of_kind,
    served,
    whole,
)
from .times import Seconds, micros, micros_ahead, micros_up

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Take:
    """One limiter of `mtake`, `bmtake` or `mpeek`. With `shadow`, which `mpeek` does not accept, it refuses nothing."""

    key: Key
    limit: Limit
    quantity: int = 1
    shadow: bool = False

    def __post_init__(self) -> None:
        # Most calls consist of these, so the function avoids further calls.
        if not isinstance(cast(object, self.key), (str, bytes)):
            _check_key(self.key)
        if not isinstance(cast(object, self.limit), LIMITS):
            of_kind(self.limit, "limit", *LIMITS)
        if type(self.quantity) is not int or not 0 <= self.quantity <= MOST:
            _positive(self.quantity)
        if self.quantity != 1 and isinstance(self.limit, Lease):
            raise ValueError("the quantity of a lease is 1")


@dataclass(frozen=True, slots=True, init=False)
class Spill:
    """Limiters as one pool: as much as fits is taken from the first, the rest from the next. All have the same
    quantity."""

    takes: tuple[Take, ...]

    def __init__(self, *takes: Take) -> None:
        for take in takes:
            if of_kind(take, "a pool of a Spill", Take).shadow:
                raise ValueError("shadow is for limiters outside chains")
            if isinstance(take.limit, Lease):
                raise ValueError("a Lease cannot stand in a Spill: a place has no parts")
            if take.quantity != takes[0].quantity:
                raise ValueError(f"quantity must be the same in a Spill, not {takes[0].quantity} and {take.quantity}")
        if not takes:
            raise ValueError("a Spill needs at least one Take")
        object.__setattr__(self, "takes", takes)


@dataclass(frozen=True, slots=True, init=False)
class Else:
    """Pools in order: a call takes from the first that admits its quantity. Each has a quantity of its own."""

    pools: tuple[Take | Spill, ...]

    def __init__(self, *pools: Take | Spill) -> None:
        for pool in pools:
            of_kind(pool, "a pool of an Else", Take, Spill)
            if isinstance(pool, Take) and pool.shadow:
                raise ValueError("shadow is for limiters outside chains")
        if not pools:
            raise ValueError("an Else needs at least one Take or Spill")
        object.__setattr__(self, "pools", pools)


Pools: TypeAlias = Take | Spill | Else
"""A limiter of a call, or a chain of limiters, from which the call takes in order."""


def pools_of(chain: Pools) -> tuple[tuple[Take, ...], ...]:
    """Returns the pools of a chain, each with the limiters that make it."""
    pools = chain.pools if isinstance(chain, Else) else (chain,)
    return tuple(pool.takes if isinstance(pool, Spill) else (pool,) for pool in pools)


def takes_of(chains: Iterable[Pools]) -> tuple[Take, ...]:
    """Returns all limiters of a call, in order."""
    takes = list[Take]()
    for chain in chains:
        if isinstance(chain, Take):  # most calls have no other chain
            takes.append(chain)
        else:
            of_kind(chain, "a limiter of a call", Take, Spill, Else)
            takes += (take for pool in pools_of(chain) for take in pool)
    return tuple(takes)


@dataclass(frozen=True, slots=True)
class Hold:
    """The units that `owner` takes are held under `key`, and come back after `period` unless `settle` settles them.

    A call whose quantities are all 0 renews the hold of `owner`. Only units of a Fixed run out: rates are replenished
    by themselves, and places have their leases.
    """

    key: Key
    owner: str | bytes
    period: Seconds

    def __post_init__(self) -> None:
        _check_key(self.key)
        of_kind(self.owner, "owner", str, bytes)
        micros_ahead(self.period, "period")


@dataclass(frozen=True, slots=True)
class Once:
    """Allows a call to be repeated: the server keeps its reply under `key` for `period`, and takes the units once.

    The client repeats the call if the reply is lost or the server is unavailable: up to `tries` attempts, after pauses
    that start at `pause` and double. No attempt begins later than half of `period` after the first, and none except the
    second once the attempts have taken five seconds, not counting the pauses and the timeout of the call. Use a
    separate key for each piece of work. After an error, the call can be made again with the same key.
    """

    key: Key
    period: Seconds
    tries: int = 5
    pause: Seconds = 0.05

    def __post_init__(self) -> None:
        _check_key(self.key)
        micros_ahead(self.period, "period")
        micros(self.pause, "pause")
        whole(self.tries, "tries", 1)


class Decide(Protocol):
    """Decides calls without the server. LocalLimiters describes the methods."""

    def decide(
        self, chains: tuple[Pools, ...], *, saturate: bool, taking: bool, hold: Hold | None = None
    ) -> Together[Answer]: ...
    def settle_hold(self, chains: tuple[Pools, ...], hold: Hold) -> Together[Balance]: ...
    def holders(self, key: Key) -> list[str]: ...
    def renew(self, take: Take) -> bool: ...
    def release(self, key: Key, holder: str | bytes) -> bool: ...


class Settles(Protocol):
    """Changes limiters without the server, like CL.MSETTLE. For tests."""

    def settle(self, changes: tuple[Change, ...]) -> Together[Balance]: ...
    def pause(self, key: Key, rate: Rate, wait: int) -> Balance: ...
    def reserve(self, key: Key, rate: Rate, quantity: int, max_wait: int | None, prepay: bool) -> Booking: ...


@dataclass(frozen=True, slots=True)
class Waiting(Generic[T]):
    """The data with which a client waits for a call by polling."""

    probe: Call[Any]
    """The call that takes units immediately or not at all."""
    within: Callable[[Seconds | None], Call[T]]
    """Returns the same call with another timeout."""
    places: frozenset[Key] = frozenset()
    """The keys of leases, whose places may be free long before the leases end."""
    maxlen: int | None = None


@dataclass(slots=True, eq=False)  # not frozen, which would take as long as all the rest
class Call(Generic[T]):
    """A call that has not been sent yet. It is never changed."""

    name: str
    key: Key | None
    """The key that determines the node in a cluster."""
    arguments: Arguments
    """The arguments after the name and the key, if there is one."""
    read: Callable[[Any], T]
    """Converts the reply to the answer. If the call goes to every primary, converts the list of replies."""
    held: float | None = 0
    """How long the server may delay the reply on purpose, in seconds. None means without limit."""
    decide: Callable[[Decide], T] | None = None
    """Decides the call without the server, if that is possible."""
    settle: Callable[[Settles], T] | None = None
    """Changes limiters without the server, for a call that is never refused."""
    everywhere: bool = False
    """Whether the call has no key and goes to every primary."""
    once: Once | None = None
    """Whether the call may be repeated, and how many times."""
    waiting: Waiting[T] | None = None
    """The parts of a call that waits."""
    undo: Callable[[T, float], list[Call[Any]]] | None = None
    """Returns the calls that give back what was taken, from the answer and the time of the call as time.monotonic().
    None for calls that take nothing, and for those that are made again with the same arguments after a failure."""
    take: Take | None = None
    """The limiter of a call that takes units of it, all or nothing, and does nothing else."""
    keys: tuple[int, ...] = ()
    """The indexes of its other keys in the arguments, of a call for several limiters."""
    flow: bool = False
    """Whether the call names a flow."""
    native: bool = False
    """Whether the call is a command of the server itself, also where the function library is in place of the module."""
    mix: tuple[Take, ...] = ()
    """The limiters of a call of `mtake` that has no chain, no hold and no Once."""

    def __post_init__(self) -> None:
        if not self.everywhere:
            _check_key(self.key)


MOST_LOGGED = 10_000
"""The largest quantity of a call for a log."""


def most(limit: Limit) -> int:
    """Returns the largest quantity that a limiter accepts in a call: of a rate, the units of 146 years."""
    if isinstance(limit, Log):
        return MOST_LOGGED
    if isinstance(limit, (Rate, Bucket, Funnel)):
        return max(limit.limit, MOST // 2 * limit.count // (micros(limit.per, "per") * 1000))
    return MOST


def _check_key(key: object) -> None:
    if not isinstance(key, (str, bytes)):
        raise TypeError(f"a key is a str or bytes, not {type(key).__name__}")


def _seconds(whole: int) -> str:
    """Returns microseconds as a number of seconds, in the format of blocking commands."""
    return f"{whole // 1_000_000}.{whole % 1_000_000:06}"


def _positive(quantity: int) -> int:
    return whole(quantity, "quantity", 0, MOST)


def _checked(chains: tuple[Pools, ...]) -> tuple[Take, ...]:
    """Returns the limiters of a call. Raises the error that the server would return, so that the call fails even while
    the server is unavailable."""
    takes = takes_of(chains)
    for take in takes:
        if take.quantity > MOST_LOGGED and isinstance(take.limit, Log):
            raise ValueError(f"quantity must be at most {MOST_LOGGED} for a Log, not {take.quantity}")
        if take.quantity > 1 and isinstance(take.limit, Rate) and take.quantity > take.limit.limit:
            served(take.quantity, "quantity", take.limit.count, take.limit.per)
    return takes


def take(key: Key, limit: Counted, quantity: int, saturate: bool = False, looks: str | None = None) -> Call[Answer]:
    """Returns a call of the limiter's own command, or of a command that only reads the state."""
    own = Take(key, limit, quantity)
    if not saturate:
        _checked((own,))
    arguments = (*limit.arguments(), quantity, *(("SATURATE",) if saturate else ()), *limit.options(), "US")
    taken = 0 if looks else quantity
    return Call(
        looks or f"CL.{limit.kind}",
        key,
        arguments,
        lambda reply: answers.answer(reply, taken),
        decide=lambda by: by.decide((own,), saturate=saturate, taking=not looks)[key],
        undo=None if looks else lambda answer, sent: _back((own,), Together(answer, {key: answer}, sent)),
        take=None if saturate or looks else own,
    )


def _back(takes: tuple[Take, ...], taken: Together[Answer] | None, new: bool = False) -> list[Call[Any]]:
    """Returns the calls that give back the units of a call; places only of `new` holders, because other holders may
    have renewed theirs."""
    units: list[Change] = []
    logged: list[Change] = []
    for take in takes:
        if not taken or not (part := taken.taken(take.key)):
            continue
        if isinstance(take.limit, Lease):
            units += [Release(take.key, take.limit)] if new else []
            continue
        settled = logged if isinstance(take.limit, Log) else units
        settled.append(Settle(take.key, take.limit, -part))
    calls = [msettle(*units, taken=taken)] if units else []
    # The age of other units may be too long, which gives back less. Of a log, it would give back nothing.
    return [*calls, msettle(*logged, ago=0)] if logged else calls


def throttle(key: Key, rate: Rate, quantity: int = 1, *, saturate: bool = False) -> Call[Answer]:
    """Takes units from a rate limiter: CL.THROTTLE. With `saturate`, it takes as many as are available."""
    return take(key, of_kind(rate, "rate", Rate), quantity, saturate)


def bucket(key: Key, bucket: Bucket, quantity: int = 1, *, saturate: bool = False) -> Call[Answer]:
    """Takes tokens from a token bucket: CL.BUCKET. With `saturate`, it takes as many as are available."""
    return take(key, of_kind(bucket, "bucket", Bucket), quantity, saturate)


def funnel(key: Key, funnel: Funnel, quantity: int = 1, *, saturate: bool = False) -> Call[Answer]:
    """Takes units from a funnel: CL.FUNNEL. With `saturate`, it takes as many as are available."""
    return take(key, of_kind(funnel, "funnel", Funnel), quantity, saturate)


def fixed(key: Key, fixed: Fixed, quantity: int = 1, *, saturate: bool = False) -> Call[Answer]:
    """Takes units from a fixed window: CL.FIXED. With `saturate`, it takes as many as are available."""
    return take(key, of_kind(fixed, "fixed", Fixed), quantity, saturate)


def window(key: Key, window: Window, quantity: int = 1, *, saturate: bool = False) -> Call[Answer]:
    """Takes units from an estimated sliding window: CL.WINDOW. With `saturate`, it takes as many as are available."""
    return take(key, of_kind(window, "window", Window), quantity, saturate)


def log(key: Key, log: Log, quantity: int = 1, *, saturate: bool = False) -> Call[Answer]:
    """Takes units from an exact sliding window: CL.LOG. With `saturate`, it takes as many as are available."""
    return take(key, of_kind(log, "log", Log), quantity, saturate)


def peek(key: Key, rate: Rate, quantity: int = 1) -> Call[Answer]:
    """Returns the answer that `throttle` would return now, and takes nothing: CL.PEEK."""
    return take(key, of_kind(rate, "rate", Rate), quantity, looks="CL.PEEK")


def charge(key: Key, rate: Rate, quantity: int = 1) -> Call[Balance]:
    """Takes units even if they are not available, which leaves the limiter in debt: CL.CHARGE."""
    return _changed("CL.CHARGE", key, rate, quantity, 1)


def refund(key: Key, rate: Rate, quantity: int = 1) -> Call[Balance]:
    """Gives units back to a rate limiter: CL.REFUND."""
    return _changed("CL.REFUND", key, rate, quantity, -1)


def _changed(name: str, key: Key, rate: Rate, quantity: int, sign: int) -> Call[Balance]:
    served(_positive(quantity), "quantity", of_kind(rate, "rate", Rate).count, rate.per)
    change = Settle(key, rate, sign * quantity)
    arguments = (*rate.arguments(), quantity, "US")
    return Call(name, key, arguments, answers.balance, settle=lambda by: by.settle((change,))[key])


def pause(key: Key, rate: Rate, wait: Seconds) -> Call[Balance]:
    """Admits nothing until `wait` has passed, and then single units at the rate: CL.PAUSE."""
    time = micros_ahead(wait, "wait", least=0)
    arguments = (*of_kind(rate, "rate", Rate).arguments(), time, "US")
    return Call("CL.PAUSE", key, arguments, answers.balance, settle=lambda by: by.pause(key, rate, time))


def reserve(
    key: Key, rate: Rate, quantity: int = 1, *, max_wait: Seconds | None = None, prepay: bool = False
) -> Call[Booking]:
    """Books units, and returns how long to wait before using them: CL.RESERVE.

    Nothing is booked if the wait would be longer than `max_wait`. With `prepay`, the wait is for one unit only, and the
    next caller waits for the rest.
    """
    most = None if max_wait is None else micros(max_wait, "max_wait")
    limit = () if most is None else ("MAXWAIT", most)
    of_kind(rate, "rate", Rate)
    arguments = (*rate.arguments(), _positive(quantity), *limit, *(("PREPAY",) if prepay else ()), "US")
    return Call(
        "CL.RESERVE",
        key,
        arguments,
        answers.booking,
        settle=lambda by: by.reserve(key, rate, quantity, most, prepay),
        undo=lambda booking, sent: [refund(key, rate, quantity)] if isinstance(booking, Booked) else [],
    )


def bthrottle(key: Key, rate: Rate, quantity: int = 1, *, timeout: Seconds | None) -> Call[Answer | None]:
    """Waits in the server until the units are available: CL.BTHROTTLE. None if they are not within `timeout`.

    With a timeout of None, it waits without limit. The call occupies a connection while it waits.
    """
    most = 0 if timeout is None else micros(timeout, "timeout", least=1)
    probe = throttle(key, rate, quantity)
    arguments = (*rate.arguments(), quantity, _seconds(most), "US")

    def read(reply: Any) -> Answer | None:
        return None if reply is None else answers.answer(reply, quantity)

    return Call(
        "CL.BTHROTTLE",
        key,
        arguments,
        read,
        held=None if timeout is None else most / 1_000_000,
        waiting=Waiting(probe, lambda left: bthrottle(key, rate, quantity, timeout=left)),
        undo=lambda answer, sent: [] if answer is None or probe.undo is None else probe.undo(answer, sent),
    )


def acquire(key: Key, lease: Lease) -> Call[Answer]:
    """Acquires a place until a lease ends, or renews the holder's lease: CL.ACQUIRE."""
    take = Take(key, of_kind(lease, "lease", Lease))
    return Call(
        "CL.ACQUIRE",
        key,
        (lease.places, micros(lease.lease, "lease"), lease.holder, "US"),
        lambda reply: answers.answer(reply, 1),
        decide=lambda by: by.decide((take,), saturate=False, taking=True)[key],
    )


def renew(key: Key, lease: Lease) -> Call[bool]:
    """Sets a new end for a lease: CL.RENEW. Returns False if its holder has no place."""
    take = Take(key, of_kind(lease, "lease", Lease))
    arguments = (micros(lease.lease, "lease"), lease.holder, "US")
    return Call("CL.RENEW", key, arguments, bool, decide=lambda by: by.renew(take))


def release(key: Key, lease: Lease | str | bytes) -> Call[bool]:
    """Gives a place back before its lease ends: CL.RELEASE. Returns False if the holder has no place.

    `lease` is the lease, or the name of its holder.
    """
    of_kind(lease, "lease", Lease, str, bytes)
    holder = lease.holder if isinstance(lease, Lease) else lease
    return Call("CL.RELEASE", key, (holder,), bool, decide=lambda by: by.release(key, holder))


def holders(key: Key) -> Call[list[str]]:
    """Returns the names of the holders of places, and of leases that have ended but were not removed: ZRANGE."""

    def read(names: list[str | bytes]) -> list[str]:
        return [name.decode("utf-8", "replace") if isinstance(name, bytes) else name for name in names]

    return Call("ZRANGE", key, (0, -1), read, decide=lambda by: by.holders(key), native=True)


_RESETS = (Rate, Bucket, Funnel, Fixed)
"""The limits whose `reset_after` tells how many of the units taken are still owed after some time."""


@dataclass(frozen=True, slots=True)
class Settle:
    """One limiter of `msettle`. If `difference` is above 0, it takes units; if it is below 0, it gives units back.

    `reset_after` is from the answer of the call that took the units, for a Rate, a Bucket, a Funnel or a Fixed, and
    needs the `ago` of `msettle`. The argument `taken` of `msettle` provides both.
    """

    key: Key
    limit: Counted
    difference: int
    reset_after: Seconds | None = None

    def __post_init__(self) -> None:
        _check_key(self.key)
        of_kind(self.limit, "limit", *COUNTED)
        whole(self.difference, "difference", -MOST, MOST_LOGGED if isinstance(self.limit, Log) else MOST)
        if self.difference > 1 and isinstance(self.limit, (Rate, Bucket, Funnel)):
            served(self.difference, "difference", self.limit.count, self.limit.per)
        if self.reset_after is not None and not isinstance(self.limit, _RESETS):
            raise ValueError("reset_after is for a Rate, a Bucket, a Funnel or a Fixed")


@dataclass(frozen=True, slots=True)
class _OfLease:
    """The common part of Renew and Release."""

    key: Key
    lease: Lease

    def __post_init__(self) -> None:
        _check_key(self.key)
        of_kind(self.lease, "lease", Lease)


class Renew(_OfLease):
    """A lease that `msettle` renews."""

    __slots__ = ()


class Release(_OfLease):
    """A place that `msettle` gives back."""

    __slots__ = ()


Change: TypeAlias = Settle | Renew | Release


class _Words:
    """The arguments of a call for several limiters, which remember where the keys stand."""

    def __init__(self, chains: tuple[Pools, ...] = (), lease: int | None = None) -> None:
        self.words = list[Argument]()
        self.keys = list[int]()
        for chain in chains:
            if isinstance(chain, Take) and not chain.shadow:
                self.limiter(chain.key, chain.limit, chain.quantity, lease=lease)
            else:
                self.chain(chain, lease)

    def key(self, key: Key) -> None:
        self.keys.append(len(self.words))
        self.words.append(key)

    def limiter(self, key: Key, limit: Limit, quantity: int, *before: Argument, lease: int | None = None) -> None:
        self.keys.append(len(self.words))
        if isinstance(limit, Lease):
            lease = micros(limit.lease, "lease") if lease is None else lease
            self.words += (key, *before, limit.kind, limit.places, lease, limit.holder)
        else:
            self.words += (key, *before, limit.kind, *limit.arguments(), *limit.options(), quantity)

    def chain(self, chain: Pools, lease: int | None = None) -> None:
        if isinstance(chain, Take):
            shadow = ("SHADOW",) if chain.shadow else ()
            self.limiter(chain.key, chain.limit, chain.quantity, *shadow, lease=lease)
            return
        join = None
        for pool in pools_of(chain):
            for take in pool:
                self.words += () if join is None else (join,)
                self.limiter(take.key, take.limit, take.quantity, lease=lease)
                join = "SPILL"
            join = "ELSE"

    def options(self, hold: Hold | None, once: Once | None, *settled: Literal["settled"]) -> None:
        """Adds the options that have a key. They precede all others."""
        if once is not None:
            self.words.append("ONCE")
            self.key(of_kind(once, "once", Once).key)
            self.words.append(micros(once.period, "period"))
        if hold is not None:
            self.words.append("HOLD")
            self.key(of_kind(hold, "hold", Hold).key)
            self.words += (hold.owner,) if settled else (micros(hold.period, "period"), hold.owner)

    def rest(self, *options: Argument) -> tuple[tuple[Argument, ...], tuple[int, ...]]:
        """Returns what stands behind the first key, with these options, and the indexes of the keys there."""
        if len(self.keys) > 1:
            keys = [self.words[index] for index in self.keys]
            if len({key.encode() if isinstance(key, str) else key for key in keys}) < len(keys):
                raise ValueError("the same key is named twice")
        return (*self.words[1:], *options, "US"), tuple([index - 1 for index in self.keys[1:]])


def _call(
    chains: tuple[Pools, ...], hold: Hold | None, once: Once | None, *options: Argument
) -> tuple[tuple[Argument, ...], tuple[int, ...]]:
    """Returns the arguments of a call behind its first key, and the indexes of the other keys."""
    words = _Words(chains)
    if hold is not None or once is not None:
        words.options(hold, once)
    return words.rest(*options)


Row = TypeVar("Row")


def _several(
    takes: tuple[Take, ...], reply: list[list[int]], read: Callable[[list[int], int], Row], admitted: bool
) -> Together[Row]:
    """Reads a reply of several rows. Those of a call with a chain have six integers."""
    pairs = list(zip(takes, reply[1:], strict=True))
    parts = {take.key: row[5] for take, row in pairs if len(row) > 5}
    rows = {take.key: read(row[:5], parts.get(take.key, take.quantity) if admitted else 0) for take, row in pairs}
    return Together(read(reply[0][:5], 0), rows, parts=parts)


def _rows(takes: tuple[Take, ...], taking: bool) -> Callable[[Any], Together[Answer]]:
    def read(reply: list[list[int]]) -> Together[Answer]:
        return _several(takes, reply, answers.answer, taking and not reply[0][0])

    return read


def _unheld(chains: tuple[Pools, ...], hold: Hold, answer: Together[Answer] | None) -> list[Call[Any]]:
    """Returns the call that gives back all units of a hold."""
    takes = [take if isinstance(take.limit, Lease) else replace(take, quantity=0) for take in takes_of(chains)]
    return [settle(*takes, hold=hold)] if answer else []


def mtake(
    first: Pools, *others: Pools, hold: Hold | None = None, once: Once | None = None, new: bool = False
) -> Call[Together[Answer]]:
    """Takes units from several limiters of any kind, from all or from none: CL.MTAKE.

    A `Spill` or an `Else` is a chain of limiters, which counts as one. In a cluster, all keys must be in one slot.
    `combined.taken` is 0: each row has the quantity taken from its limiter, and with a chain in the call, the method
    `taken` of the answer. Units taken with a `hold` come back after its period unless `settle` settles them. If the
    owner is `new`, they come back at once if no caller receives the answer; so do places of `new` holders. With `once`,
    the call is repeated if its reply is lost, and takes the units once.
    """
    chains = (first, *others)
    takes = _checked(chains)
    arguments, keys = _call(chains, hold, once)
    return Call(
        "CL.MTAKE",
        takes[0].key,
        arguments,
        _rows(takes, taking=True),
        decide=lambda by: by.decide(chains, saturate=False, taking=True, hold=hold),
        once=once,
        undo=_undo(chains, hold, once, new),
        mix=() if once or hold or len(takes) > len(chains) else takes,
        keys=keys,
    )


def _undo(
    chains: tuple[Pools, ...], hold: Hold | None, once: Once | None, new: bool
) -> Callable[[Together[Answer] | None, float], list[Call[Any]]] | None:
    if hold is not None:
        return (lambda answer, sent: _unheld(chains, hold, answer)) if new else None
    return None if once else lambda answer, sent: _back(takes_of(chains), answer, new)


def mpeek(first: Pools, *others: Pools, holds: Key | None = None) -> Call[Together[Answer]]:
    """Returns the answer that `mtake` would return now, and takes nothing: CL.MPEEK.

    With `holds`, units of this key's holds that have run out count as given back.
    """
    chains = (first, *others)
    takes = _checked(chains)
    if any(take.shadow for take in takes):
        raise ValueError("shadow is for mtake")
    words = _Words(chains)
    hold = None if holds is None else Hold(holds, "", 1)
    if hold is not None:
        words.words.append("HOLD")
        words.key(hold.key)
    arguments, keys = words.rest()
    return Call(
        "CL.MPEEK",
        takes[0].key,
        arguments,
        _rows(takes, taking=False),
        decide=lambda by: by.decide(chains, saturate=False, taking=False, hold=hold),
        keys=keys,
    )


def settle(
    first: Pools, *others: Pools, hold: Hold, once: Once | None = None, flow: str | bytes | None = None
) -> Call[Together[Balance]]:
    """Ends the hold of an owner: each quantity is the usage. CL.MSETTLE with HOLD.

    Unused units are given back, usage beyond the hold is charged, and places are released. If the hold has run out, the
    whole usage is charged to a Fixed, so a settlement that may be sent twice needs `once`. With chains, the method
    `taken` of the answer returns the units that are charged to each key. With `flow`, the difference of `first` is also
    charged to the flow, as in `msettle`.
    """
    chains = (first, *others)
    takes, words = takes_of(chains), _Words(chains, lease=0)
    if any(take.shadow for take in takes):
        raise ValueError("shadow is for mtake")
    words.options(of_kind(hold, "hold", Hold), once, "settled")
    arguments, keys = words.rest(*_flow(flow, None))
    return Call(
        "CL.MSETTLE",
        takes[0].key,
        arguments,
        lambda reply: _several(takes, reply, lambda row, taken: answers.balance(row), False),
        decide=lambda by: by.settle_hold(chains, hold),
        once=once,
        keys=keys,
    )


MOST_WEIGHT = 1_000_000
"""The largest weight of a flow."""


def _flow(flow: str | bytes | None, weight: int | None) -> tuple[Argument, ...]:
    if flow is not None:
        of_kind(flow, "flow", str, bytes)
    if weight is None:
        return () if flow is None else ("FLOW", flow)
    if flow is None:
        raise ValueError("weight needs flow")
    return ("FLOW", flow, "WEIGHT", whole(weight, "weight", 1, MOST_WEIGHT))


def bmtake(
    first: Take,
    *others: Pools,
    timeout: Seconds | None,
    flow: str | bytes | None = None,
    weight: int | None = None,
    maxlen: int | None = None,
    hold: Hold | None = None,
    once: Once | None = None,
    new: bool = False,
) -> Call[Together[Answer] | None]:
    """Takes units from several limiters, and waits in the server until all admit the call, fairly: CL.BMTAKE.

    `first` is the limiter that all waiting clients share. The clients of a `flow` are served in order, and flows share
    `first` by their `weight`: without it, a flow keeps its weight. Returns None if the units do not become available
    within `timeout`; a timeout of None waits without limit. Returns a refusal immediately if a limiter can never admit
    its quantity, or if `maxlen` clients of the flow already wait. The call occupies a connection while it waits.

    Units taken with a `hold` come back after its period, as in `mtake`. With `once`, the call is repeated if its reply
    is lost, for the rest of the timeout, and takes the units once.
    """
    chains = (of_kind(first, "the first limiter of bmtake", Take), *others)
    takes = _checked(chains)
    most = 0 if timeout is None else micros(timeout, "timeout", least=1)
    if maxlen is not None:
        whole(maxlen, "maxlen", 0, MOST)
    options: tuple[Argument, ...] = (
        *(() if timeout is None else ("TIMEOUT", _seconds(most))),
        *_flow(flow, weight),
        *(() if maxlen is None else ("MAXLEN", maxlen)),
    )
    arguments, keys = _call(chains, hold, once, *options)
    rows = _rows(takes, taking=True)

    def within(left: Seconds | None) -> Call[Together[Answer] | None]:
        options: dict[str, Any] = {"flow": flow, "weight": weight, "maxlen": maxlen}
        return bmtake(first, *others, timeout=left, hold=hold, once=once, new=new, **options)

    places = frozenset(take.key for take in takes if isinstance(take.limit, Lease))

    return Call(
        "CL.BMTAKE",
        first.key,
        arguments,
        lambda reply: None if reply is None else rows(reply),
        held=None if timeout is None else most / 1_000_000,
        once=once,
        waiting=Waiting(mtake(*chains, hold=hold, once=once, new=new), within, places, maxlen),
        undo=_undo(chains, hold, once, new),
        keys=keys,
        flow=flow is not None,
    )


def _change(words: _Words, change: Change) -> None:
    of_kind(change, "a change", Settle, Renew, Release)
    match change:
        case Settle():
            reset = () if change.reset_after is None else ("RESET", micros(change.reset_after, "reset_after"))
            words.limiter(change.key, change.limit, change.difference, *reset)
        case Renew():
            words.limiter(change.key, change.lease, 1)
        case Release():
            words.limiter(change.key, change.lease, 1, lease=0)


def _of_its_row(change: Change, taken: Together[Answer]) -> Change:
    """Limits a change to the units that are still owed, with the numbers of the row of the call that took them."""
    if not isinstance(change, Settle) or change.difference >= 0:
        return change
    if change.key not in taken:
        raise ValueError(f"taken has no row of the key {change.key!r}")
    row = taken[change.key]
    # The server cannot give back units that a guard admitted without it.
    units = taken.taken(change.key) if taken.sent is not None else 0
    # Units of a total, which is never replenished, are given back whatever their age.
    reset = row.reset_after if units and isinstance(change.limit, _RESETS) and row.reset_after < math.inf else None
    return Settle(change.key, change.limit, max(change.difference, -units), reset)


def msettle(
    first: Change,
    *others: Change,
    ago: Seconds | None = None,
    taken: Together[Answer] | None = None,
    flow: str | bytes | None = None,
    weight: int | None = None,
    once: Once | None = None,
) -> Call[Together[Balance]]:
    """Takes units from several limiters, or gives them back, whether they are available or not: CL.MSETTLE.

    `taken` is the answer of the `mtake` or `bmtake` that took the units. The call then sends their age and, by RESET,
    the debt after them, and gives back at most the units that were taken and are still owed. Without `taken`, `ago` is
    the age of the units that are given back. In a cluster, all keys must be in one slot.

    With `flow`, the difference of `first` is also charged to the flow in the queue of `bmtake`, so that flows share by
    the units that were used. With `once`, the call is repeated if its reply is lost, and settles once.
    """
    changes, sent = (first, *others), None
    if taken is not None:
        if ago is not None:
            raise ValueError("taken says how long ago the units were taken: leave ago out")
        if not of_kind(taken, "taken", Together):
            raise ValueError("taken is a refusal: nothing was taken")
        changes, sent = tuple(_of_its_row(change, taken) for change in changes), taken.sent
    elif ago is None and any(isinstance(change, Settle) and change.reset_after is not None for change in changes):
        raise ValueError("reset_after needs ago")

    def read(reply: list[list[int]]) -> Together[Balance]:
        rows = {change.key: answers.balance(row) for change, row in zip(changes, reply[1:], strict=True)}
        return Together(answers.balance(reply[0]), rows)

    words = _Words()
    for change in changes:
        _change(words, change)
    words.options(None, once)
    changed, keys = words.rest()
    options = _flow(flow, weight)

    def arguments() -> tuple[Argument, ...]:
        age = ago if sent is None else time.monotonic() - sent  # measured when this call is sent
        return (*changed[:-1], *(() if age is None else ("AGO", micros_up(age, "ago"))), *options, "US")

    return Call(
        "CL.MSETTLE",
        first.key,
        arguments if taken is not None else arguments(),
        read,
        settle=lambda by: by.settle(changes),
        once=once,
        keys=keys,
        flow=flow is not None,
    )


def top(count: int = 10) -> Call[list[TopKey]]:
    """Returns the keys that are refused most often: CL.TOP. In a cluster, returns the keys of all primaries."""
    whole(count, "count", 1)

    def read(replies: list[list[Any]]) -> list[TopKey]:
        keys = [answers.top_key(row) for reply in replies for row in reply]
        return sorted(keys, key=lambda key: -key.refusals)[:count]

    return Call("CL.TOP", None, (count,), read, everywhere=True)


def reset_top() -> Call[None]:
    """Clears the record of refusals: CL.TOP RESET. In a cluster, clears it on all primaries."""
    return Call("CL.TOP", None, ("RESET",), lambda replies: None, everywhere=True)
