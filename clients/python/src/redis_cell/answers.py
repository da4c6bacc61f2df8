"""The answers of the commands. All times are seconds, as floats."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeAlias, TypeVar

from .times import seconds

DecidedBy: TypeAlias = Literal["server", "local", "fail_open", "fail_closed"]
"""Where a decision was made: by the server or, if it was away, by the choice that the caller made for that case."""


class RateLimited(Exception):
    """A call was refused. `answer` is the refusal, `retry_after` its wait in seconds, or None if it is permanent."""

    def __init__(self, answer: Refused | RefusedForever, key: Key | None = None) -> None:
        self.answer, self.key = answer, key
        self.retry_after = answer.retry_after
        of = "" if key is None else f" of {key!r}"
        wait = "no wait helps" if self.retry_after is None else f"try again in {self.retry_after:g} seconds"
        super().__init__(f"a limit{of} is reached: {wait}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What Admitted, Refused and RefusedForever have in common. It is true if the call was admitted."""

    limit: int
    """The largest quantity that can be admitted at once."""
    remaining: int
    """The quantity that could be admitted now, after this call."""
    reset_after: float
    """The time until the limiter is fully replenished."""
    decided_by: DecidedBy = "server"

    @property
    def admitted(self) -> bool:
        return isinstance(self, Admitted)

    def __bool__(self) -> bool:
        return self.admitted

    def or_raise(self) -> Admitted:
        """Returns the answer if the call was admitted, and raises RateLimited if it was not."""
        if isinstance(self, Admitted):
            return self
        assert isinstance(self, (Refused, RefusedForever))
        raise RateLimited(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted(Decision):
    """The call was admitted."""

    taken: int
    """The quantity taken. 0 for calls that only look."""

    @property
    def retry_after(self) -> None:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused(Decision):
    """The call was refused, and took nothing. The same call would be admitted after `retry_after`."""

    retry_after: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedForever(Decision):
    """The call was refused, and took nothing. It can never be admitted, because its quantity exceeds the limit."""

    @property
    def retry_after(self) -> None:
        return None


Answer: TypeAlias = Admitted | Refused | RefusedForever
"""The answer of a command that admits or refuses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Booked:
    """The units are booked. Use them after `wait`."""

    limit: int
    remaining: int
    reset_after: float
    wait: float


Booking: TypeAlias = Booked | Refused | RefusedForever
"""The answer of CL.RESERVE. Here Refused.retry_after is how long the call would have had to wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """The state of a limiter after a command that is never refused."""

    limit: int
    remaining: int
    reset_after: float
    retry_after: float | None
    """If the limiter is in debt, the time until one more unit would be admitted. Otherwise None."""
    in_debt: bool
    """More than `limit` units are taken. With a lease: it should have been renewed, and its holder has no place."""


Row = TypeVar("Row")
Key: TypeAlias = str | bytes
"""The name of a key."""


@dataclass(frozen=True, slots=True)
class Several(Mapping[Key, Row], Generic[Row]):
    """The answer of a call with several limiters: the combined one, and one for each key."""

    combined: Row
    rows: Mapping[Key, Row] = field(default_factory=dict[Key, Row])
    sent: float | None = field(default=None, compare=False, repr=False)
    """When the call was made, by time.monotonic(). None if the server did not decide."""

    def __getitem__(self, key: Key) -> Row:
        return self.rows[key]

    def __iter__(self) -> Iterator[Key]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __bool__(self) -> bool:
        return bool(self.combined)

    def or_raise(self) -> Several[Row]:
        """Returns the answer if the call was admitted, and raises RateLimited, with the first key, if it was not."""
        if isinstance(self.combined, (Refused, RefusedForever)):
            refusing = (key for key, row in self.rows.items() if isinstance(row, (Refused, RefusedForever)))
            raise RateLimited(self.combined, next(refusing, None))
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class TopKey:
    """A key that was refused often. The number of its refusals lies between `refusals` and `refusals + error`."""

    key: str
    refusals: int
    error: int
    last_refusal: float
    """The Unix time of the last refusal, in seconds."""


def combined(rows: Mapping[Key, Answer], counted: Collection[Key]) -> Answer:
    """The combined answer of several limiters: refused if a counted one refuses, with the numbers of the tightest.

    `counted` are the keys that are not in shadow. If all are, the answer is Admitted.
    """
    relevant = [rows[key] for key in counted] or list(rows.values())
    tightest = min(relevant, key=lambda row: row.remaining)
    limit, remaining, decided_by = tightest.limit, tightest.remaining, tightest.decided_by
    reset = max(row.reset_after for row in relevant)
    if counted and any(isinstance(row, RefusedForever) for row in relevant):
        return RefusedForever(limit=limit, remaining=remaining, reset_after=reset, decided_by=decided_by)
    waits = [row.retry_after for row in relevant if isinstance(row, Refused)]
    if counted and waits:
        return Refused(
            limit=limit, remaining=remaining, reset_after=reset, retry_after=max(waits), decided_by=decided_by
        )
    return Admitted(limit=limit, remaining=remaining, reset_after=reset, taken=0, decided_by=decided_by)


def answer(reply: list[int], taken: int) -> Answer:
    """From the integers of an admission reply. `taken` is the quantity that an admitted call takes."""
    limited, limit, remaining, retry_after, reset_after, *saturated = reply
    reset = seconds(reset_after)
    if not limited:
        return Admitted(limit=limit, remaining=remaining, reset_after=reset, taken=saturated[0] if saturated else taken)
    if retry_after < 0:
        return RefusedForever(limit=limit, remaining=remaining, reset_after=reset)
    return Refused(limit=limit, remaining=remaining, reset_after=reset, retry_after=seconds(retry_after))


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
    return Balance(
        limit=limit,
        remaining=remaining,
        reset_after=seconds(reset_after),
        retry_after=None if retry_after < 0 else seconds(retry_after),
        in_debt=bool(limited),
    )


def top_key(row: list[bytes | str | int]) -> TopKey:
    key, refusals, error, last = row
    name = key.decode() if isinstance(key, bytes) else str(key)
    return TopKey(key=name, refusals=int(refusals), error=int(error), last_refusal=int(last) / 1000)
