"""The limits that are sent with each call, with a name for each number.

The server keeps the state and decides. Creating a limit sends nothing, and one object can limit any number of keys.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import ClassVar, Literal, TypeAlias, TypeVar, cast

from .times import LAST_LEASE, Seconds, micros, micros_ahead

T = TypeVar("T")

Argument: TypeAlias = str | bytes | int
"""An argument of a command."""
Arguments: TypeAlias = tuple[Argument, ...] | Callable[[], tuple[Argument, ...]]
"""The arguments of a command, or a function that returns them when they are sent."""

_SECOND, _MINUTE, _HOUR, _DAY = 1, 60, 3600, 86400
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


MOST = 2**63 - 1
"""The largest number that the server accepts."""


def whole(number: int, name: str, least: int = 0, most: int = MOST) -> int:
    """Returns a number. Raises an error that names the argument if it is not whole, or out of range."""
    if not isinstance(cast(object, number), int) or isinstance(number, bool):
        raise TypeError(f"{name} must be a whole number, not {number!r}")
    if not least <= number <= most:
        end = "" if most == MOST and number < least else f" and at most {most}"
        raise ValueError(f"{name} must be at least {least}{end}, not {number}")
    return number


def served(units: int, name: str, count: int, per: Seconds) -> None:
    """Raises ValueError if units take longer than 292 years at a rate, or if the rate is above one per nanosecond."""
    period = micros(per, "per", least=1) * 1000
    whole(count, "count", 1, period)
    whole(units, name, 0, ((MOST + 1) * count - 1) // period)


def of_kind(value: T, name: str, *kinds: type) -> T:
    """Returns an argument. Raises TypeError that names it if it is of none of the kinds."""
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        *others, last = (kind.__name__ for kind in kinds)
        raise TypeError(f"{name} must be {', '.join(others)}{' or ' if others else ''}{last}, not {value!r}")
    return value


def check_name(name: object, what: str, forbidden: str = "") -> str:
    """Returns a name. Raises an error that says what it is if it is no text, is empty, or has a forbidden letter."""
    if not isinstance(name, str):
        raise TypeError(f"{what} must be text, not {name!r}")
    if not name or any(letter in forbidden for letter in name):
        letters = f", nor have any of {forbidden}" if forbidden else ""
        raise ValueError(f"{what} must not be empty{letters}, but is {name!r}")
    return name


def several_names(several: object, argument: str) -> frozenset[str] | None:
    """Returns the names of tools in an argument, or None. Raises an error that names the argument."""
    if several is None:
        return None
    if isinstance(several, (str, bytes, Mapping)) or not isinstance(several, Collection):
        raise TypeError(f"{argument} must be several names, not {several!r}")
    if not several:
        raise ValueError(f"{argument} must be names, or None for all")
    return frozenset(check_name(each, f"each of {argument}") for each in cast(Collection[object], several))


LONGEST = 200
"""The longest name from outside that is part of a key as it is."""


def short(name: str) -> str:
    """Returns a part of a key for a name from outside, whose length a client may choose."""
    if len(name) <= LONGEST:
        return name
    return f"{name[:LONGEST]}:{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()}"


def function(value: T, name: str) -> T:
    """Returns an argument. Raises TypeError that names it if it is no function."""
    if not callable(value):
        raise TypeError(f"{name} must be a function, not {value!r}")
    return value


class _Plain:
    """A limit without options behind its quantity."""

    __slots__ = ()

    def options(self) -> tuple[Argument, ...]:
        return ()


@dataclass(frozen=True, slots=True)
class Rate(_Plain):
    """A GCRA rate: `count` units per `per`, and a burst. For the commands that share the state of CL.THROTTLE.

    `at_once` is the number of units that can be taken at once, or `burst` is the number in addition to the first one,
    like `max_burst` in the commands. Without either, `count` units can be taken at once.
    """

    kind: ClassVar[str] = "THROTTLE"
    count: int
    per: Seconds
    burst: int

    def __init__(self, count: int, *, per: Seconds, burst: int | None = None, at_once: int | None = None) -> None:
        whole(count, "count", 1)
        if burst is None:
            at_once = count if at_once is None else at_once
            whole(at_once, "at_once", 1)
            burst = at_once - 1
        elif at_once is not None:
            raise ValueError("a Rate has burst or at_once, not both")
        whole(burst, "burst")
        served(burst + 1, "burst + 1" if at_once is None else "at_once", count, per)
        object.__setattr__(self, "count", count)
        object.__setattr__(self, "per", per)
        object.__setattr__(self, "burst", burst)

    @classmethod
    def per_second(cls, count: int, *, burst: int | None = None, at_once: int | None = None) -> Rate:
        return cls(count, per=_SECOND, burst=burst, at_once=at_once)

    @classmethod
    def per_minute(cls, count: int, *, burst: int | None = None, at_once: int | None = None) -> Rate:
        return cls(count, per=_MINUTE, burst=burst, at_once=at_once)

    @classmethod
    def per_hour(cls, count: int, *, burst: int | None = None, at_once: int | None = None) -> Rate:
        return cls(count, per=_HOUR, burst=burst, at_once=at_once)

    @classmethod
    def per_day(cls, count: int, *, burst: int | None = None, at_once: int | None = None) -> Rate:
        return cls(count, per=_DAY, burst=burst, at_once=at_once)

    @property
    def limit(self) -> int:
        """The largest quantity that can be admitted at once."""
        return self.burst + 1

    def arguments(self) -> tuple[Argument, ...]:
        return (self.burst, self.count, micros(self.per, "per"))


@dataclass(frozen=True, slots=True)
class _Capacity(_Plain):
    """The common part of Bucket and Funnel."""

    kind: ClassVar[str]
    capacity: int
    count: int
    per: Seconds

    def __init__(self, capacity: int, *, count: int, per: Seconds) -> None:
        whole(capacity, "capacity", 1)
        whole(count, "count", 1)
        served(capacity, "capacity", count, per)
        object.__setattr__(self, "capacity", capacity)
        object.__setattr__(self, "count", count)
        object.__setattr__(self, "per", per)

    @property
    def limit(self) -> int:
        """The largest quantity that can be admitted at once."""
        return self.capacity

    def arguments(self) -> tuple[Argument, ...]:
        return (self.capacity, self.count, micros(self.per, "per"))


class Bucket(_Capacity):
    """A token bucket: `capacity` tokens at once, refilled with `count` tokens per `per`."""

    kind = "BUCKET"
    __slots__ = ()


class Funnel(_Capacity):
    """A leaky bucket: `capacity` units at once, of which `count` leak per `per`."""

    kind = "FUNNEL"
    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Calendar:
    """A calendar window in a zone that is `utc_offset` ahead of UTC. `first_day` is for WEEK and MONTH."""

    unit: Literal["HOUR", "DAY", "WEEK", "MONTH", "YEAR"]
    utc_offset: timedelta = timedelta(0)
    first_day: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "unit", of_kind(self.unit, "unit", str).upper())  # as the server reads it


_FIRST_DAYS = {"WEEK": 7, "MONTH": 31}


@dataclass(frozen=True, slots=True)
class Total:
    """A window without end. With `idle`, its key expires when nothing was taken for that long."""

    idle: Seconds | None = None


@dataclass(frozen=True, slots=True)
class Fixed:
    """A fixed window of `limit` units, with either `per` or `until`.

    `per` is the length of a window that opens with the first admitted call, or a calendar window or a total, as from
    the class methods. `until` is the instant at which the window ends, with a time zone.
    """

    kind: ClassVar[str] = "FIXED"
    limit: int
    per: Seconds | Calendar | Total | None = field(default=None, kw_only=True)
    until: datetime | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        whole(self.limit, "limit", 1)
        if (self.per is None) == (self.until is None):
            raise ValueError("a Fixed needs either per or until")
        if self.until is not None:
            if of_kind(self.until, "until", datetime).tzinfo is None:
                raise ValueError("until must be a datetime with a time zone")
            micros(self.until - _EPOCH, "until")
        elif isinstance(self.per, Calendar):
            if of_kind(self.per.utc_offset, "utc_offset", timedelta) % timedelta(minutes=1):
                raise ValueError("utc_offset must be a whole number of minutes")
            if abs(self.per.utc_offset) > timedelta(hours=14):
                raise ValueError(f"utc_offset must be at most 14 hours, not {self.per.utc_offset}")
            if self.per.first_day is not None:
                if self.per.unit not in _FIRST_DAYS:
                    raise ValueError("first_day is for WEEK and MONTH")
                whole(self.per.first_day, "first_day", 1, _FIRST_DAYS[self.per.unit])
        elif isinstance(self.per, Total):
            if self.per.idle is not None:
                micros_ahead(self.per.idle, "idle")
        elif self.per is not None:
            micros_ahead(self.per, "per")

    @classmethod
    def per_hour(cls, limit: int, *, utc_offset: timedelta = timedelta(0)) -> Fixed:
        """Calendar hours."""
        return cls(limit, per=Calendar("HOUR", utc_offset))

    @classmethod
    def per_day(cls, limit: int, *, utc_offset: timedelta = timedelta(0)) -> Fixed:
        """Calendar days."""
        return cls(limit, per=Calendar("DAY", utc_offset))

    @classmethod
    def per_week(cls, limit: int, *, first_day: int = 1, utc_offset: timedelta = timedelta(0)) -> Fixed:
        """Weeks that begin on `first_day`, from 1 for Monday to 7."""
        return cls(limit, per=Calendar("WEEK", utc_offset, first_day))

    @classmethod
    def per_month(cls, limit: int, *, first_day: int = 1, utc_offset: timedelta = timedelta(0)) -> Fixed:
        """Months that begin on `first_day`, or on the month's last day if the month is shorter."""
        return cls(limit, per=Calendar("MONTH", utc_offset, first_day))

    @classmethod
    def per_year(cls, limit: int, *, utc_offset: timedelta = timedelta(0)) -> Fixed:
        """Calendar years."""
        return cls(limit, per=Calendar("YEAR", utc_offset))

    @classmethod
    def total(cls, limit: int, *, idle: Seconds | None = None) -> Fixed:
        """A total without end, until its key is deleted, or nothing was taken for `idle` seconds.

        `reset_after` is infinite while something is taken and the key does not expire.
        """
        return cls(limit, per=Total(idle))

    def arguments(self) -> tuple[Argument, ...]:
        if self.until is not None:
            return (self.limit, "UNTIL", micros(self.until - _EPOCH, "until"))
        if isinstance(self.per, Total):
            idle = () if self.per.idle is None else ("IDLE", micros(self.per.idle, "idle"))
            return (self.limit, "TOTAL", *idle)
        if isinstance(self.per, Calendar):
            return (self.limit, self.per.unit)
        assert self.per is not None
        return (self.limit, micros(self.per, "per"))

    def options(self) -> tuple[Argument, ...]:
        if not isinstance(self.per, Calendar):
            return ()
        first = () if self.per.first_day is None else ("FROM", self.per.first_day)
        return ("UTC", self.per.utc_offset // timedelta(minutes=1), *first)


@dataclass(frozen=True, slots=True)
class _Sliding(_Plain):
    """The common part of Window and Log."""

    kind: ClassVar[str]
    _most: ClassVar[int] = MOST
    _periods: ClassVar[int] = 1
    limit: int
    per: Seconds

    def __init__(self, limit: int, *, per: Seconds) -> None:
        whole(limit, "limit", 1, self._most)
        micros_ahead(per, "per", times=self._periods)
        object.__setattr__(self, "limit", limit)
        object.__setattr__(self, "per", per)

    def arguments(self) -> tuple[Argument, ...]:
        return (self.limit, micros(self.per, "per"))


class Window(_Sliding):
    """A sliding window of `limit` units per `per`, estimated from two counters."""

    kind = "WINDOW"
    _periods = 2
    __slots__ = ()


class Log(_Sliding):
    """An exact sliding window: at most `limit` units in any `per`."""

    kind = "LOG"
    _most = 1_000_000
    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Lease:
    """One of `places`, which `holder` has for `lease` unless it is renewed or released."""

    kind: ClassVar[str] = "LEASE"
    places: int
    lease: Seconds
    holder: str | bytes

    def __init__(self, places: int, *, lease: Seconds, holder: str | bytes) -> None:
        whole(places, "places", 1)
        micros_ahead(lease, "lease", last=LAST_LEASE)
        of_kind(holder, "holder", str, bytes)
        object.__setattr__(self, "places", places)
        object.__setattr__(self, "lease", lease)
        object.__setattr__(self, "holder", holder)

    @property
    def limit(self) -> int:
        """The number of places, under the common name of limits and answers."""
        return self.places


Counted: TypeAlias = Rate | Bucket | Funnel | Fixed | Window | Log
"""A limit whose calls have a quantity."""

Limit: TypeAlias = Counted | Lease
"""A limit of any kind."""

COUNTED = (Rate, Bucket, Funnel, Fixed, Window, Log)
LIMITS = (*COUNTED, Lease)
