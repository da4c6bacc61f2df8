"""Storages and a strategy for the library limits, which flask-limiter and slowapi use.

Importing this module registers them: limits finds a storage when its class is defined. The fixed window is CL.FIXED,
the moving window is CL.LOG, the sliding window counter is CL.WINDOW, and the strategy `gcra` is CL.THROTTLE.

    redis-cell://localhost:6379/0?when_unavailable=fail_open

The schemes are `redis-cell`, `redis-cell+unix` and `redis-cell+cluster`, and with TLS `rediss-cell` and
`rediss-cell+cluster`. For asyncio, each has the prefix `async+`.
"""

from __future__ import annotations

import importlib
import inspect
import math
import threading
import time
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any, TypeVar, cast, get_args
from urllib.parse import parse_qsl, urlencode, urlsplit

import limits.aio.storage
import limits.aio.strategies
import limits.storage
import limits.strategies
import redis
from limits import RateLimitItem, WindowStats
from limits.aio.storage.base import SlidingWindowCounterSupport as AsyncSlidingWindowCounterSupport
from limits.errors import ConfigurationError
from limits.limits import GRANULARITIES
from limits.storage.base import SlidingWindowCounterSupport, TimestampedSlidingWindow
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.cluster import REDIS_ALLOWED_KEYS
from redis.retry import Retry

from . import wire
from .answers import Admitted, Answer, Refused, Together
from .client import AsyncCell, Backend, Cell
from .limiters import Fixed, Log, Rate, Window
from .sending import Ready, is_cluster
from .steps import Asyncio, Blocking, Method, Step, Steps
from .times import micros
from .unavailable import AsyncGuard, FailClosed, FailOpen, Guard, Local, WhenUnavailable
from .wire import Call, Take

_BLOCKING: Any = redis
_ASYNCIO: Any = importlib.import_module("redis.asyncio")

T = TypeVar("T")

UNKNOWN = 2**53 - 1
"""The limit for a key that does not contain one, because it does not come from the library limits."""
TIMEOUT = 1.0
"""The timeout for a connection and for a reply, in seconds, if the URI has none."""
CONNECTIONS = 100
"""The largest number of connections. A call that finds all of them in use waits for one."""
PATIENCE = 5.0
"""How long a call waits for a free connection, in seconds."""
DELAY = 0.05
"""The assumed time between a decision and its response, in seconds. The response may be in the next second."""
PORT = 6379
BLOCK = 5000
"""How many keys are searched and deleted at a time."""


def _numbers(key: str) -> tuple[int, int]:
    """Returns the limit and the period in a key of limits, which ends with them: `LIMITER/user/100/1/minute`."""
    match key.rsplit("/", 3):
        case [*_, amount, multiples, name] if name in GRANULARITIES and multiples.isdecimal():
            period = GRANULARITIES[name].GRANULARITY.seconds * int(multiples)
            return (int(amount) if amount.isdecimal() and int(amount) > 0 else UNKNOWN), max(1, period)
        case _:
            return UNKNOWN, 1


def _limit(key: str, expiry: int) -> int:
    """Returns the limit in a key for this period."""
    limit, period = _numbers(key)
    return limit if period == expiry else UNKNOWN


def _instant(wait: float) -> float:
    """Returns the instant after a wait, or up to a second later if flask-limiter needs that.

    flask-limiter truncates both this instant and the time until then to whole seconds. Its Retry-After is at least the
    wait only if this instant is in a second that comes `ceil(wait)` seconds after the present one.
    """
    now = time.time()
    return max(now + wait, math.floor(now + DELAY) + math.ceil(wait))


class _Wait(float):
    """A wait that limits does not reduce modulo the period: a wait for a sliding window can be longer than that."""

    def __mod__(self, period: float, /) -> float:
        return float(self)


_planned: Callable[[Callable[..., Steps[Any]]], Any] = Method
"""A method of both storages, or of both strategies, whose type is that of limits."""


class _Storage:
    """The functions of both storages."""

    client: Any
    guard: Any
    prefix: str

    @property
    def base_exceptions(self) -> type[Exception] | tuple[type[Exception], ...]:
        return redis.RedisError, ValueError

    def key(self, key: str, kind: str = "") -> str:
        """Returns a key of the server. Each strategy has its own keys, because the states differ."""
        return f"{self.prefix}:{key}{kind}"

    def _call(self, call: Call[T]) -> Step:
        return partial(self.guard.run, call)

    def _some(self, keys: Any) -> Any:
        """Returns the next keys of an iterator, at most `BLOCK`."""
        raise NotImplementedError

    @_planned
    def check(self) -> Steps[bool]:
        try:
            return bool((yield self.client.ping))
        except (redis.RedisError, OSError):
            return False

    @_planned
    def reset(self) -> Steps[int]:
        pattern, deleted, cursor = _pattern(self.prefix), 0, None
        if is_cluster(self.client):
            keys = self.client.scan_iter(pattern, BLOCK)
            while block := (yield partial(self._some, keys)):
                deleted += sum((yield _deletions(self.client, block).execute))
            return deleted
        while cursor != 0:
            cursor, block = yield partial(self.client.scan, cursor or 0, pattern, BLOCK)
            deleted += (yield partial(self.client.delete, *block)) if block else 0
        return deleted

    @_planned
    def clear(self, key: str) -> Steps[None]:
        for kind in ("", ":log"):
            yield partial(self.client.delete, self.key(key, kind))

    @_planned
    def clear_sliding_window(self, key: str, expiry: int) -> Steps[None]:
        yield partial(self.client.delete, self.key(key, ":window"))

    @_planned
    def incr(self, key: str, expiry: int, amount: int = 1) -> Steps[int]:
        """Returns the count after the call. If it is refused, and so not counted, returns the count including it."""
        limit = _limit(key, expiry)
        answer: Answer = yield self._call(wire.fixed(self.key(key), Fixed(limit, per=expiry), amount))
        return limit - answer.remaining + (0 if isinstance(answer, Admitted) else amount)

    @_planned
    def get(self, key: str) -> Steps[int]:
        limit = self._limit_of(key)
        answer: Answer = yield self._call(wire.fixed(self.key(key), limit, 0))
        return limit.limit - answer.remaining

    @_planned
    def get_expiry(self, key: str) -> Steps[float]:
        answer: Answer = yield self._call(wire.fixed(self.key(key), self._limit_of(key), 0))
        return _instant(answer.reset_after)

    @staticmethod
    def _limit_of(key: str) -> Fixed:
        """Returns the window in a key of limits. If a window is open, the server uses that one."""
        limit, period = _numbers(key)
        return Fixed(limit, per=period)

    @_planned
    def acquire_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> Steps[bool]:
        if limit < 1:
            return False
        answer: Answer = yield self._call(wire.log(self.key(key, ":log"), Log(limit, per=expiry), amount))
        return answer.admitted

    @_planned
    def get_moving_window(self, key: str, limit: int, expiry: int) -> Steps[tuple[float, int]]:
        """Returns the instant of the oldest entry, and the number of entries."""
        name = self.key(key, ":log")
        together: Together[Answer] = yield self._call(wire.mpeek(Take(name, Log(max(1, limit), per=expiry))))
        answer = together[name]
        # Not the answer's limit, which is only a share of this one while the server is unavailable.
        count = limit - answer.remaining
        if count > 0 and not isinstance(answer, Refused):
            # If the limit were the number of entries, the next unit would be available when the oldest entry leaves.
            together = yield self._call(wire.mpeek(Take(name, Log(count, per=expiry))))
            answer = together[name]
        if count > 0 and isinstance(answer, Refused):
            return _instant(answer.retry_after) - expiry, count
        return time.time(), max(0, count)

    @_planned
    def acquire_sliding_window_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> Steps[bool]:
        if limit < 1:
            return False
        answer: Answer = yield self._call(wire.window(self.key(key, ":window"), Window(limit, per=expiry), amount))
        return answer.admitted

    @_planned
    def get_sliding_window(self, key: str, expiry: int) -> Steps[tuple[int, float, int, float]]:
        """Returns the server's estimate as the count of the current window, which ends when the next unit is available.

        limits would compute an estimate of its own, without the server's rounding.
        """
        name, window = self.key(key, ":window"), Window(_limit(key, expiry), per=expiry)
        together: Together[Answer] = yield self._call(wire.mpeek(Take(name, window)))
        answer = together[name]
        estimate = window.limit - answer.remaining
        if estimate <= 0:
            return 0, 0.0, 0, 0.0
        if not isinstance(answer, Refused):
            together = yield self._call(wire.mpeek(Take(name, window, answer.remaining + 1)))
            answer = together[name]
        wait = answer.retry_after if isinstance(answer, Refused) else 0.0
        return 0, 0.0, estimate, _Wait(_instant(wait) - time.time())


class _Settings:
    """The settings in the URI and the options of a storage."""

    def __init__(self, uri: str, options: dict[str, Any]) -> None:
        parts = urlsplit(uri)
        self.scheme = parts.scheme.removeprefix("async+")
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        named = {**query, **options}
        self.choice = _choice(named)
        self.backend: Backend = _backend(named.get("backend", "module"))
        self.patience = _patience(named.get("timeout", PATIENCE))
        own = ("when_unavailable", "share", "ask_again", "backend", "timeout")
        rest = {name: value for name, value in query.items() if name not in own}
        self.options = {name: value for name, value in options.items() if name not in own}
        for name in ("socket_timeout", "socket_connect_timeout"):
            if name not in named:
                self.options[name] = TIMEOUT
        tls = self.scheme.startswith("rediss")
        scheme = "unix" if self.scheme.endswith("+unix") else "rediss" if tls else "redis"
        start, at, places = parts.netloc.rpartition("@")
        # The URL has the first node of a cluster, and the other nodes are startup nodes too.
        first, *others = places.split(",") if self.cluster else [places]
        self.others = [_place(place) for place in others]
        # Unlike this, urlunsplit would omit the `//` before the path of a Unix socket.
        self.url = f"{scheme}://{start}{at}{first}{parts.path}?{urlencode(rest)}"
        self._check()

    def _check(self) -> None:
        """Raises an error for a wrong address or option. The clients do so at the first call, or never in a cluster."""
        try:
            named = {**self.options, **_BLOCKING.connection.parse_url(self.url)}
        except ValueError as error:
            raise ConfigurationError(f"the address or an option of {self.scheme}: {error}") from None
        if "connection_pool" in named:
            raise ConfigurationError(
                "connection_pool: the storage makes its own connections, by the address and options"
            )
        if self.cluster:
            known = {*inspect.signature(_BLOCKING.RedisCluster.__init__).parameters, *REDIS_ALLOWED_KEYS}
            if unknown := named.keys() - known - {"connection_class"}:
                raise ConfigurationError(f"{self.scheme} has no option {', '.join(sorted(unknown))}")

    @property
    def cluster(self) -> bool:
        return self.scheme.endswith("+cluster")

    def client(self, library: Any, retry: object) -> Any:
        if self.cluster:
            # A cluster's calls cannot wait for a connection, and redis-py 8 allows only 100 per node by default.
            options = {"max_connections": 2**31, **self.options}
            nodes = [library.cluster.ClusterNode(host, port) for host, port in self.others]
            return library.RedisCluster.from_url(self.url, startup_nodes=nodes, **options)
        options = {"max_connections": CONNECTIONS, "timeout": self.patience, "retry": retry, **self.options}
        pool = library.BlockingConnectionPool.from_url(self.url, **options)
        try:
            pool.connection_class(**pool.connection_kwargs)  # does not connect
        except TypeError as error:
            raise ConfigurationError(f"an option of {self.scheme}: {error}") from None
        client = library.Redis(connection_pool=pool)
        client.auto_close_connection_pool = True
        return client


class _LateCell(Cell):
    """A Cell for a cluster. The first call makes its client, because making the client connects it."""

    def __init__(self, make: Callable[[], Any], backend: Backend) -> None:
        self._make = make
        self._backend = backend
        self._lock = threading.Lock()
        self._client: Any = None
        self._failure: Exception | None = None

    @property
    def client(self) -> Any:
        before = self._failure
        with self._lock:
            if self._client is None:
                if (failure := self._failure) is not None and failure is not before:
                    # This call has waited for an attempt that failed, and does not make the same attempt.
                    raise failure.with_traceback(None)
                try:
                    self._client = self._make()
                except Exception as error:
                    self._failure = error
                    raise
                super().__init__(self._client, backend=self._backend)
            return self._client

    @property
    def errors(self) -> Any:
        return _BLOCKING.exceptions

    @property
    def pool(self) -> Any:
        return self

    def run(self, call: Call[T], ready: Ready | None = None) -> T:
        _ = self.client
        return super().run(call, ready)


def _place(text: str) -> tuple[str, int]:
    """Returns the host and the port of a node, as in `10.0.0.1:7000` or `[::1]`."""
    try:
        parts = urlsplit(f"//{text}")
        if parts.hostname:
            return parts.hostname, parts.port or PORT
    except ValueError:
        pass
    raise ConfigurationError(f"{text!r} is not a host and a port, as in 10.0.0.1:7000")


def _patience(text: float | str) -> float:
    try:
        return micros(float(text), "timeout") / 1_000_000
    except ValueError:
        raise ConfigurationError(f"timeout must be a number of seconds, not {text}") from None


def _backend(name: object) -> Backend:
    if name not in get_args(Backend):
        raise ConfigurationError(f"backend must be module, functions or auto, not {name}")
    return cast(Backend, name)


def _choice(named: dict[str, Any]) -> WhenUnavailable:
    """Returns the choice for when the server is unavailable. There is no default."""
    try:
        again = float(named.get("ask_again", 1.0))
        micros(again, "ask_again")
        match named.get("when_unavailable"):
            case "fail_open":
                return FailOpen(again)
            case "fail_closed":
                return FailClosed(again)
            case "local" if "share" in named:
                return Local(int(named["share"]), again)
            case "local":
                raise ConfigurationError(
                    "when_unavailable=local needs share, the number of processes, as in when_unavailable=local&share=4"
                )
            case choice:
                said = "is missing" if choice is None else f"is {choice}"
                raise ConfigurationError(
                    f"when_unavailable {said}: choose when_unavailable=fail_open, when_unavailable=fail_closed or "
                    "when_unavailable=local&share=4"
                )
    except ValueError as error:
        raise ConfigurationError(f"when_unavailable, share or ask_again: {error}") from None


def _pattern(prefix: str) -> str:
    """Returns the SCAN pattern for the keys with a prefix."""
    return "".join("\\" + letter if letter in "*?[]\\^-" else letter for letter in prefix) + ":*"


def _deletions(cluster: Any, keys: list[Any]) -> Any:
    """Returns a pipeline that deletes keys in any slots."""
    pipeline = cluster.pipeline()
    for key in keys:
        pipeline.delete(key)
    return pipeline


def _only(storage: object, needed: type[T]) -> T:
    if not isinstance(storage, needed):
        raise NotImplementedError(f"the strategy gcra needs a {needed.__name__}")
    return storage


SCHEMES = ["redis-cell", "rediss-cell", "redis-cell+unix", "redis-cell+cluster", "rediss-cell+cluster"]
ASYNC_SCHEMES = ["async+" + scheme for scheme in SCHEMES]


class RedisCellStorage(
    _Storage,
    Blocking,
    limits.storage.Storage,
    limits.storage.MovingWindowSupport,
    SlidingWindowCounterSupport,
    TimestampedSlidingWindow,
):
    """A storage on redis-cell for blocking code."""

    STORAGE_SCHEME = SCHEMES

    def __init__(self, uri: str, key_prefix: str = "LIMITS", wrap_exceptions: bool = False, **options: Any) -> None:
        super().__init__(uri, wrap_exceptions=wrap_exceptions)
        settings, self.prefix = _Settings(uri, options), key_prefix

        def make() -> Any:
            return settings.client(_BLOCKING, Retry(NoBackoff(), 0))

        cell = _LateCell(make, settings.backend) if settings.cluster else Cell(make(), backend=settings.backend)
        self.guard = Guard(cell, when_unavailable=settings.choice)

    @property
    def client(self) -> Any:
        cell = self.guard.cell
        return cell.client if isinstance(cell, _LateCell) else cell._link.client  # pyright: ignore[reportPrivateUsage]

    def _some(self, keys: Any) -> Any:
        return list[Any](islice(keys, BLOCK))


class AsyncRedisCellStorage(
    _Storage,
    Asyncio,
    limits.aio.storage.Storage,
    limits.aio.storage.MovingWindowSupport,
    AsyncSlidingWindowCounterSupport,
    TimestampedSlidingWindow,
):
    """A storage on redis-cell for asyncio."""

    STORAGE_SCHEME = ASYNC_SCHEMES

    def __init__(self, uri: str, key_prefix: str = "LIMITS", wrap_exceptions: bool = False, **options: Any) -> None:
        super().__init__(uri, wrap_exceptions=wrap_exceptions)
        settings, self.prefix = _Settings(uri, options), key_prefix
        self.client = settings.client(_ASYNCIO, AsyncRetry(NoBackoff(), 0))
        self.guard = AsyncGuard(AsyncCell(self.client, backend=settings.backend), when_unavailable=settings.choice)

    async def _some(self, keys: Any) -> Any:
        some = list[Any]()
        async for key in keys:
            some.append(key)
            if len(some) == BLOCK:
                break
        return some


class _Gcra:
    """The strategy `gcra`, with a burst of the whole limit."""

    storage: Any

    def _call(self, call: Callable[..., Call[Answer]], item: RateLimitItem, names: tuple[str, ...], cost: int) -> Step:
        key = self.storage.key(item.key_for(*names), ":gcra")
        return partial(self.storage.guard.run, call(key, Rate(max(1, item.amount), per=item.get_expiry()), cost))

    @_planned
    def hit(self, item: RateLimitItem, *identifiers: str, cost: int = 1) -> Steps[bool]:
        return item.amount > 0 and (yield self._call(wire.throttle, item, identifiers, cost)).admitted

    @_planned
    def test(self, item: RateLimitItem, *identifiers: str, cost: int = 1) -> Steps[bool]:
        return item.amount > 0 and (yield self._call(wire.peek, item, identifiers, cost)).admitted

    @_planned
    def get_window_stats(self, item: RateLimitItem, *identifiers: str) -> Steps[WindowStats]:
        """Returns how many units are available, and when the next one is, or all of them if one is available now."""
        answer: Answer = yield self._call(wire.peek, item, identifiers, 1)
        wait = answer.retry_after if isinstance(answer, Refused) else answer.reset_after
        return WindowStats(_instant(wait), answer.remaining)

    @_planned
    def clear(self, item: RateLimitItem, *identifiers: str) -> Steps[None]:
        yield partial(self.storage.client.delete, self.storage.key(item.key_for(*identifiers), ":gcra"))


class GcraRateLimiter(_Gcra, Blocking, limits.strategies.RateLimiter):
    """The strategy `gcra`: CL.THROTTLE, with a burst of the whole limit."""

    def __init__(self, storage: limits.storage.StorageTypes) -> None:
        super().__init__(_only(storage, RedisCellStorage))


class AsyncGcraRateLimiter(_Gcra, Asyncio, limits.aio.strategies.RateLimiter):
    """The strategy `gcra` for asyncio: CL.THROTTLE, with a burst of the whole limit."""

    def __init__(self, storage: limits.storage.StorageTypes) -> None:
        super().__init__(_only(storage, AsyncRedisCellStorage))


cast(dict[str, Any], limits.strategies.STRATEGIES)["gcra"] = GcraRateLimiter
cast(dict[str, Any], limits.aio.strategies.STRATEGIES)["gcra"] = AsyncGcraRateLimiter
