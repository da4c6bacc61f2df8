"""Times as callers write them, and as they are sent: in microseconds, because every call has the unit US."""

from __future__ import annotations

import time as _time
from datetime import timedelta
from typing import TypeAlias, cast

Seconds: TypeAlias = float | timedelta
"""A time: a number of seconds, or a timedelta. It is rounded to the nearest microsecond."""


LONGEST = (2**63 - 1) // 1000
"""The longest time that the server accepts, in microseconds: 292 years, in 64-bit nanoseconds."""
LAST = 9_223_372_036_854_000
"""The last instant at which a key can expire, in microseconds since the epoch: in the year 2262."""
LAST_LEASE = 2**53 - 1
"""The last instant at which a lease can end, in microseconds since the epoch: in the year 2255."""


def micros(time: Seconds, name: str, *, least: int = 0) -> int:
    """Returns a time in microseconds, which must be at least `least`. Raises an error that names the argument."""
    if isinstance(time, timedelta):
        whole = time // timedelta(microseconds=1)
    elif isinstance(time, int) and not isinstance(time, bool):
        whole = time * 1_000_000
    elif not isinstance(cast(object, time), float):
        raise TypeError(f"{name} must be seconds or a timedelta, not {time!r}")
    else:
        try:
            whole = round(time * 1_000_000)
        except (ValueError, OverflowError):
            raise ValueError(f"{name} must be a finite number of seconds, not {time}") from None
    if whole < least:
        raise ValueError(f"{name} must be at least {least / 1_000_000:g} seconds, not {time}")
    if whole > LONGEST:
        raise ValueError(f"{name} must be at most 292 years, not {time}")
    return whole


def micros_ahead(time: Seconds, name: str, *, least: int = 1, times: int = 1, last: int = LAST) -> int:
    """Returns a time in microseconds, of which `times`, counted from now, must end before the year 2262."""
    whole = micros(time, name, least=least)
    if times * whole > last - _time.time_ns() // 1000:
        most = "a half of the time" if times == 2 else "the time"
        raise ValueError(f"{name} must be at most {most} to the year {2255 if last < LAST else 2262}, not {time}")
    return whole


def micros_up(time: Seconds, name: str) -> int:
    """Returns a time in microseconds, rounded up. Raises ValueError that names the argument."""
    whole = micros(time, name)
    exact = time.total_seconds() if isinstance(time, timedelta) else time
    return whole + (whole / 1_000_000 < exact)


def seconds(micros: int) -> float:
    """Returns the seconds of a time in a reply."""
    return micros / 1_000_000
