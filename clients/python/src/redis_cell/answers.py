"""The answers of the commands. All times are in seconds, as floats."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeAlias, TypeVar

from .times import seconds

DecidedBy: TypeAlias = Literal["server", "local", "fail_open", "fail_closed"]
"""Where a decision was made: by the server or, while it was unavailable, by the choice of the Guard."""


class RateLimited(Exception):
    """A call was refused. `answer` is the refusal; `retry_after` is its wait in seconds, or None if it is permanent."""

    def __init__(self, answer: Refused | RefusedForever, key: Key | None = None) -> None:
        self.answer, self.key = answer, key
        self.retry_after = answer.retry_after
        of = "" if key is None else f" of {key!r}"
        wait = "no wait helps" if self.retry_after is None else f"try again in {self.retry_after:g} seconds"
        super().__init__(f"a limit{of} is reached: {wait}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.answer, self.key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The common part of Admitted, Refused and RefusedForever. It is true if the call was admitted."""

    limit: int
    """The largest quantity that can be admitted at once."""
    remaining: int
    """The quantity that could be admitted now, after this call."""
    reset_after: float
    """The time until the limiter is fully replenished; infinite for a total whose key does not expire."""
    decided_by: DecidedBy = "server"

    @property
    def admitted(self) -> bool:
        return isinstance(self, Admitted)

    def __bool__(self) -> bool:
        return self.admitted

    def or_raise(self) -> Admitted:
        """Returns the answer if the call was admitted. Otherwise raises RateLimited."""
        if isinstance(self, Admitted):
            return self
        assert isinstance(self, (Refused, RefusedForever))
        raise RateLimited(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted(Decision):
    """The call was admitted."""

    taken: int
    """The quantity taken: 0 for a call that only reads the state."""

    @property
    def retry_after(self) -> None:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused(Decision):
    """The call was refused and took nothing. The same call would be admitted after `retry_after`."""

    retry_after: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedForever(Decision):
    """The call was refused, and no wait helps: its quantity exceeds the limit, or the rest of a total without idle."""

    @property
    def retry_after(self) -> None:
        return None


Answer: TypeAlias = Admitted | Refused | RefusedForever
"""The answer to a command that admits or refuses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Booked:
    """The units are booked. Use them after `wait`."""

    limit: int
    remaining: int
    reset_after: float
    wait: float


Booking: TypeAlias = Booked | Refused | RefusedForever
"""The answer to CL.RESERVE. The `retry_after` of a Refused is the wait that the booking would have needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """The state of a limiter after a command that is never refused."""

    limit: int
    remaining: int
    reset_after: float
    retry_after: float | None
    """While `over_limit`, the time until one more unit would be admitted or a place is free. Otherwise None."""
    over_limit: bool
    """Whether more than `limit` units are taken. For a lease, whether it was to be renewed but is lost."""


Row = TypeVar("Row")
Key: TypeAlias = str | bytes
"""The name of a key."""


@dataclass(frozen=True, slots=True)
class Together(Mapping[Key, Row], Generic[Row]):
    """The answer to a call for several limiters: the combined answer, and one for each key."""

    combined: Row
    each: Mapping[Key, Row] = field(default_factory=dict[Key, Row])
    sent: float | None = field(default=None, compare=False, repr=False)
    """When the call was sent, as time.monotonic(). None if the server did not decide it."""
    parts: Mapping[Key, int] = field(default_factory=dict[Key, int], compare=False)
    """The quantity taken from each key of a call with a chain. A pool may give a part while it refuses the rest."""

    def taken(self, key: Key) -> int:
        """Returns the quantity taken from a key: 0 if the call was refused, or if another pool of a chain gave it."""
        row = self.each[key]
        return self.parts.get(key, row.taken if isinstance(row, Admitted) else 0) if self else 0

    def __getitem__(self, key: Key) -> Row:
        return self.each[key]

    def __iter__(self) -> Iterator[Key]:
        return iter(self.each)

    def __len__(self) -> int:
        return len(self.each)

    def __bool__(self) -> bool:
        return bool(self.combined)

    def or_raise(self) -> Together[Row]:
        """Returns the answer if the call was admitted. Otherwise raises RateLimited with the first key."""
        if isinstance(self.combined, (Refused, RefusedForever)):
            refusing = (key for key, row in self.each.items() if isinstance(row, (Refused, RefusedForever)))
            raise RateLimited(self.combined, next(refusing, None))
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class TopKey:
    """A key that was refused often. The number of its refusals is between `refusals` and `refusals + error`."""

    key: str
    refusals: int
    error: int
    last_refusal: float
    """The Unix time of the last refusal, in seconds."""


def combined(rows: Mapping[Key, Answer], counted: Collection[Key]) -> Answer:
    """Returns the combined answer of several limiters: a refusal if a counted one refuses, with the tightest numbers.

    `counted` are the keys that are not in shadow. If there are none, the answer is Admitted.
    """
    relevant = [rows[key] for key in counted] or list(rows.values())
    tightest = min(relevant, key=lambda row: row.remaining)
    reset = max(row.reset_after for row in relevant)
    refusals = [row for row in relevant if counted and not isinstance(row, Admitted)]
    waits = [math.inf if row.retry_after is None else row.retry_after for row in refusals]
    return decision(tightest.limit, tightest.remaining, reset, max(waits, default=None), 0, tightest.decided_by)


def decision(
    limit: int, remaining: int, reset: float, wait: float | None, taken: int, by: DecidedBy = "server"
) -> Answer:
    """Returns an answer: the call is admitted if there is no wait, and refused forever if the wait is infinite."""
    if wait is None:
        return Admitted(limit=limit, remaining=remaining, reset_after=reset, taken=taken, decided_by=by)
    if wait == math.inf:
        return RefusedForever(limit=limit, remaining=remaining, reset_after=reset, decided_by=by)
    return Refused(limit=limit, remaining=remaining, reset_after=reset, retry_after=wait, decided_by=by)


def _endless(time: int) -> float:
    """Returns the seconds of a time in a reply, which never ends if it is below 0."""
    return math.inf if time < 0 else seconds(time)


def answer(reply: list[int], taken: int) -> Answer:
    """Reads an answer from the integers of a reply. `taken` is the quantity that the call takes if it is admitted."""
    limited, limit, remaining, retry_after, reset_after, *saturated = reply
    wait = _endless(retry_after) if limited else None
    return decision(limit, remaining, _endless(reset_after), wait, saturated[0] if saturated else taken)


def booking(reply: list[int]) -> Booking:
    limited, limit, remaining, retry_after, reset_after = reply
    if not limited:
        wait, reset = seconds(retry_after), seconds(reset_after)
        return Booked(limit=limit, remaining=remaining, reset_after=reset, wait=wait)
    refused = answer(reply, 0)
    assert not isinstance(refused, Admitted)
    return refused


def balance(reply: list[int]) -> Balance:
    limited, limit, remaining, retry_after, reset_after = reply
    return balance_of(limit, remaining, _endless(reset_after), _endless(retry_after), bool(limited))


def balance_of(limit: int, remaining: int, reset: float, wait: float, over: bool) -> Balance:
    """Returns a balance. An infinite wait is none."""
    again = None if wait == math.inf else wait
    return Balance(limit=limit, remaining=remaining, reset_after=reset, retry_after=again, over_limit=over)


def top_key(row: list[bytes | str | int]) -> TopKey:
    key, refusals, error, last = row
    name = key.decode() if isinstance(key, bytes) else str(key)
    return TopKey(key=name, refusals=int(refusals), error=int(error), last_refusal=int(last) / 1000)
