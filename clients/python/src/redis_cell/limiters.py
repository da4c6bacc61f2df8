"""The limiters: which limit a call has, with a name for each of its numbers.

The server keeps the state and decides. Nothing here is sent before a call, and one object can serve any number of keys.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import ClassVar, Literal, TypeAlias

from .times import Seconds, micros

Word: TypeAlias = str | bytes | int
"""An argument of a command."""
Words: TypeAlias = tuple[Word, ...] | Callable[[], tuple[Word, ...]]
"""The arguments of a command, or a function that returns them at the moment in which they are sent."""

_SECOND, _MINUTE, _HOUR, _DAY = 1, 60, 3600, 86400
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def _at_least(least: int, number: int, name: str) -> None:
    if number < least:
        raise ValueError(f"{name} must be at least {least}, not {number}")


@dataclass(frozen=True, slots=True)
class Rate:
    """A GCRA rate: `count` units per `per`, and a burst. For the commands that share the state of CL.THROTTLE.

    `burst` is the number of units that can be taken at once in addition to the first one, as `max_burst` in the
    commands. If it is left out, a whole `count` can be taken at once.
    """

    kind: ClassVar[str] = "THROTTLE"
    count: int
    per: Seconds
    burst: int

    def __init__(self, count: int, *, per: Seconds, burst: int | None = None) -> None:
        burst = count - 1 if burst is None else burst
        _at_least(1, count, "count")
        _at_least(0, burst, "burst")
        micros(per, "per", least=1)
        object.__setattr__(self, "count", count)
        object.__setattr__(self, "per", per)
        object.__setattr__(self, "burst", burst)

    @classmethod
    def per_second(cls, count: int, *, burst: int | None = None) -> Rate:
        return cls(count, per=_SECOND, burst=burst)

    @classmethod
    def per_minute(cls, count: int, *, burst: int | None = None) -> Rate:
        return cls(count, per=_MINUTE, burst=burst)

    @classmethod
    def per_hour(cls, count: int, *, burst: int | None = None) -> Rate:
        return cls(count, per=_HOUR, burst=burst)

    @classmethod
    def per_day(cls, count: int, *, burst: int | None = None) -> Rate:
        return cls(count, per=_DAY, burst=burst)

    @property
    def limit(self) -> int:
        """The largest quantity that can be admitted at once."""
        return self.burst + 1

    def words(self) -> tuple[Word, ...]:
        return (self.burst, self.count, micros(self.per, "per"))

    def options(self) -> tuple[Word, ...]:
        return ()


@dataclass(frozen=True, slots=True)
class _Capacity:
    """What Bucket and Funnel have in common."""

    kind: ClassVar[str]
    capacity: int
    count: int
    per: Seconds

    def __init__(self, capacity: int, *, count: int, per: Seconds) -> None:
        _at_least(1, capacity, "capacity")
        _at_least(1, count, "count")
        micros(per, "per", least=1)
        object.__setattr__(self, "capacity", capacity)
        object.__setattr__(self, "count", count)
        object.__setattr__(self, "per", per)

    @property
    def limit(self) -> int:
        """The largest quantity that can be admitted at once."""
        return self.capacity

    def words(self) -> tuple[Word, ...]:
        return (self.capacity, self.count, micros(self.per, "per"))

    def options(self) -> tuple[Word, ...]:
        return ()


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
    """A window of the calendar, in a zone that is `utc_offset` ahead of UTC. `first_day` is for WEEK and MONTH."""

    unit: Literal["HOUR", "DAY", "WEEK", "MONTH", "YEAR"]
    utc_offset: timedelta = timedelta(0)
    first_day: int | None = None


@dataclass(frozen=True, slots=True)
class Fixed:
    """A fixed window of `limit` units: use one of the class methods, each of which is a kind of window."""

    kind: ClassVar[str] = "FIXED"
    limit: int
    window: Seconds | Calendar | datetime

    def __post_init__(self) -> None:
        _at_least(1, self.limit, "limit")
        if isinstance(self.window, datetime):
            if self.window.tzinfo is None:
                raise ValueError("until must be a datetime with a time zone")
        elif isinstance(self.window, Calendar):
            if self.window.utc_offset % timedelta(minutes=1):
                raise ValueError("utc_offset must be a whole number of minutes")
        else:
            micros(self.window, "per", least=1)

    @classmethod
    def per(cls, limit: int, *, per: Seconds) -> Fixed:
        """A window that opens with the first admitted call, and lasts as long as `per`."""
        return cls(limit, per)

    @classmethod
    def per_hour(cls, limit: int, *, utc_offset: timedelta = timedelta(0)) -> Fixed:
        """The hours of the calendar."""
        return cls(limit, Calendar("HOUR", utc_offset))

    @classmethod
    def per_day(cls, limit: int, *, utc_offset: timedelta = timedelta(0)) -> Fixed:
        """The days of the calendar."""
        return cls(limit, Calendar("DAY", utc_offset))

    @classmethod
    def per_week(cls, limit: int, *, first_day: int = 1, utc_offset: timedelta = timedelta(0)) -> Fixed:
        """Weeks that begin on `first_day`, from 1 for Monday to 7."""
        return cls(limit, Calendar("WEEK", utc_offset, first_day))

    @classmethod
    def per_month(cls, limit: int, *, first_day: int = 1, utc_offset: timedelta = timedelta(0)) -> Fixed:
        """Months that begin on `first_day`, or on the month's last day if it has no such day."""
        return cls(limit, Calendar("MONTH", utc_offset, first_day))

    @classmethod
    def per_year(cls, limit: int, *, utc_offset: timedelta = timedelta(0)) -> Fixed:
        """The years of the calendar."""
        return cls(limit, Calendar("YEAR", utc_offset))

    @classmethod
    def until(cls, limit: int, instant: datetime) -> Fixed:
        """A window that ends at an instant, which has a time zone."""
        return cls(limit, instant)

    def words(self) -> tuple[Word, ...]:
        if isinstance(self.window, datetime):
            return (self.limit, "UNTIL", micros(self.window - _EPOCH, "until"))
        if isinstance(self.window, Calendar):
            return (self.limit, self.window.unit)
        return (self.limit, micros(self.window, "per"))

    def options(self) -> tuple[Word, ...]:
        if not isinstance(self.window, Calendar):
            return ()
        first = () if self.window.first_day is None else ("FROM", self.window.first_day)
        return ("UTC", self.window.utc_offset // timedelta(minutes=1), *first)


@dataclass(frozen=True, slots=True)
class _Sliding:
    """What Window and Log have in common."""

    kind: ClassVar[str]
    limit: int
    per: Seconds

    def __init__(self, limit: int, *, per: Seconds) -> None:
        _at_least(1, limit, "limit")
        micros(per, "per", least=1)
        object.__setattr__(self, "limit", limit)
        object.__setattr__(self, "per", per)

    def words(self) -> tuple[Word, ...]:
        return (self.limit, micros(self.per, "per"))

    def options(self) -> tuple[Word, ...]:
        return ()


class Window(_Sliding):
    """A sliding window of `limit` units per `per`, estimated from two counters."""

    kind = "WINDOW"
    __slots__ = ()


class Log(_Sliding):
    """A sliding window of `limit` units in any `per`, counted exactly."""

    kind = "LOG"
    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Lease:
    """One of `limit` places, held by `holder` for the time `lease` unless it is renewed or released."""

    kind: ClassVar[str] = "LEASE"
    limit: int
    lease: Seconds
    holder: str | bytes

    def __init__(self, limit: int, *, lease: Seconds, holder: str | bytes) -> None:
        _at_least(1, limit, "limit")
        micros(lease, "lease", least=1)
        object.__setattr__(self, "limit", limit)
        object.__setattr__(self, "lease", lease)
        object.__setattr__(self, "holder", holder)


Counted: TypeAlias = Rate | Bucket | Funnel | Fixed | Window | Log
"""A limiter whose calls have a quantity."""

Limiter: TypeAlias = Counted | Lease
"""A limiter of any kind."""
