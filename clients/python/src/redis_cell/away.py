"""What happens to a call if the server is away: the choice that Guard and AsyncGuard require."""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec, TypeAlias, TypeVar, overload

from . import answers, wire
from .answers import Admitted, Answer, Refused, Several
from .client import AsyncCell, Cell
from .local import LocalLimiters
from .times import Seconds, micros
from .wire import Call, Take

P = ParamSpec("P")
T = TypeVar("T")

_log = logging.getLogger("redis_cell")


@dataclass(frozen=True, slots=True)
class FailOpen:
    """Admits every call. After `ask_again` one call asks the server again."""

    ask_again: Seconds = 1.0


@dataclass(frozen=True, slots=True)
class FailClosed:
    """Refuses every call. After `ask_again` one call asks the server again."""

    ask_again: Seconds = 1.0


@dataclass(frozen=True, slots=True)
class Local:
    """Decides in this process, with one part in `share` of each limit: `share` is the number of processes.

    A limit that is smaller than `share` is 1 for each process. After `ask_again` one call asks the server again.
    """

    share: int
    ask_again: Seconds = 1.0

    def __post_init__(self) -> None:
        if self.share < 1:
            raise ValueError(f"share must be at least 1, not {self.share}")


Away: TypeAlias = FailOpen | FailClosed | Local

_PREFIXES = ("READONLY", "LOADING", "CLUSTERDOWN", "MASTERDOWN", "TRYAGAIN", "OOM", "MISCONF", "NOREPLICAS", "BUSY ")
_CLASSES = ("ReadOnlyError", "ClusterDownError", "TryAgainError", "OutOfMemoryError")
_CLUSTER = ("RedisClusterException", "ValkeyClusterException", "ClusterError")
_FULL = ("Too many connections", "No connection available.")


def _is_full(errors: Any, error: Exception) -> bool:
    """Whether all connections of the client's pool are in use, which says nothing of the server."""
    return isinstance(error, errors.MaxConnectionsError) or str(error) in _FULL


def is_away(errors: Any, error: Exception) -> bool:
    """Whether an error means that the server does not decide now. `errors` is the client library's module of them.

    True if no server answers, and if the server answers that it cannot write. An error that a change of the program or
    of its configuration would mend, such as a wrong password, a key of another type or a full pool, is not one of them.
    """
    refused = (errors.AuthenticationError, getattr(errors, "AuthorizationError", errors.AuthenticationError))
    if isinstance(error, refused) or _is_full(errors, error):
        return False
    names = (*_CLASSES, *_CLUSTER)
    classes = tuple(getattr(errors, name) for name in names if hasattr(errors, name))
    if isinstance(error, (errors.ConnectionError, errors.TimeoutError, OSError, *classes)):
        return True
    return isinstance(error, errors.ResponseError) and str(error).startswith(_PREFIXES)


class Policy:
    """Whether to ask the server, and what to answer without it. No I/O."""

    def __init__(self, away: Away) -> None:
        self.away = away
        self.local = LocalLimiters(away.share if isinstance(away, Local) else 1)
        self.pause = micros(away.ask_again, "ask_again") / 1_000_000
        self.again = 0.0
        self.failing = False
        self.lock = threading.Lock()

    def asks(self) -> bool:
        """Whether this call asks the server. While the server is away, one call in `ask_again` does."""
        with self.lock:
            now = time.monotonic()
            if self.failing and now < self.again:
                return False
            self.again = now + self.pause
            return True

    @contextmanager
    def watching(self, errors: Any) -> Generator[None, None, None]:
        """Notes whether the call within was answered. An error that means that the server is away ends here."""
        try:
            yield
        except Exception as error:
            # While the server is away, calls that wait for it can keep all connections in use.
            if not is_away(errors, error) and not (self.failing and _is_full(errors, error)):
                if isinstance(error, errors.ResponseError):
                    self._answered()
                raise
            with self.lock:
                self.again = time.monotonic() + self.pause
                first, self.failing = not self.failing, True
            if first:
                _log.warning("the server is away, and %s decides: %s", type(self.away).__name__, error)
        else:
            self._answered()

    def _answered(self) -> None:
        """Notes that the server has answered, if only with an error of that call."""
        with self.lock:
            back, self.failing = self.failing, False
        if back:
            _log.warning("the server decides again")

    def decide(self, takes: tuple[Take, ...], *, saturate: bool, taking: bool) -> Several[Answer]:
        if isinstance(self.away, Local):
            return self.local.decide(takes, saturate=saturate, taking=taking)
        rows = {take.key: self._row(take, taking) for take in takes}
        return Several(answers.combined(rows.values()), rows)

    def _row(self, take: Take, taking: bool) -> Answer:
        limit = take.limiter.limit
        if isinstance(self.away, FailOpen):
            taken = take.quantity if taking else 0
            return Admitted(limit=limit, remaining=limit, reset_after=0, taken=taken, decided_by="fail_open")
        wait = max(0, self.again - time.monotonic())
        return Refused(limit=limit, remaining=0, reset_after=wait, retry_after=wait, decided_by="fail_closed")


class Guarded(Generic[P, T]):
    """A function of `wire` as a method of Guard, which returns the answer, and of AsyncGuard, which is awaited."""

    def __init__(self, build: Callable[P, Call[T]]) -> None:
        self.build = build
        self.__doc__ = build.__doc__

    @overload
    def __get__(self, guard: None, owner: type) -> Guarded[P, T]: ...
    @overload
    def __get__(self, guard: Guard, owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, guard: AsyncGuard, owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(
        self, guard: Guard | AsyncGuard | None, owner: type
    ) -> Guarded[P, T] | Callable[P, T] | Callable[P, Coroutine[Any, Any, T]]:
        if guard is None:
            return self

        @functools.wraps(self.build)
        def method(*args: P.args, **kwargs: P.kwargs) -> Any:
            return guard.run(self.build(*args, **kwargs))

        return method


class Decisions:
    """The commands that admit or refuse, each with the arguments of its function in `wire`."""

    throttle = Guarded(wire.throttle)
    bucket = Guarded(wire.bucket)
    funnel = Guarded(wire.funnel)
    fixed = Guarded(wire.fixed)
    window = Guarded(wire.window)
    log = Guarded(wire.log)
    peek = Guarded(wire.peek)
    acquire = Guarded(wire.acquire)
    mtake = Guarded(wire.mtake)
    mpeek = Guarded(wire.mpeek)


def _decided(policy: Policy, call: Call[T]) -> T:
    if call.decide is None:
        raise NotImplementedError(f"{call.name} cannot be decided without the server")
    return call.decide(policy.decide)


class Guard(Decisions):
    """The commands of a Cell that admit or refuse, with a choice for the time in which the server is away."""

    def __init__(self, cell: Cell, *, away: Away) -> None:
        self.cell = cell
        self._policy = Policy(away)

    def run(self, call: Call[T]) -> T:
        """Asks the server if it is not known to be away, and decides without it if it is."""
        if self._policy.asks():
            with self._policy.watching(self.cell.errors):
                return self.cell.run(call)
        return _decided(self._policy, call)


class AsyncGuard(Decisions):
    """The commands of an AsyncCell that admit or refuse, with a choice for the time in which the server is away."""

    def __init__(self, cell: AsyncCell, *, away: Away) -> None:
        self.cell = cell
        self._policy = Policy(away)

    async def run(self, call: Call[T]) -> T:
        """Asks the server if it is not known to be away, and decides without it if it is."""
        if self._policy.asks():
            with self._policy.watching(self.cell.errors):
                return await self.cell.run(call)
        return _decided(self._policy, call)
