"""Transports for httpx and httpx2, which the SDKs of OpenAI and Anthropic use. All workers share one rate.

    client = openai.OpenAI(http_client=openai.DefaultHttpxClient(transport=Transport(cell, "openai", rate)))

A request waits for its turn. The transports read limits from the headers of responses, and when the upstream refuses a
request, they pause all workers for the time that the response names.
"""

from __future__ import annotations

import email.utils
import importlib
import logging
import math
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

from . import steps, wire
from .answers import Admitted, Answer, Refused, Together
from .client import AsyncCell, Cell
from .limiters import Rate, check_name, of_kind
from .steps import Steps
from .times import Seconds, micros
from .unavailable import AsyncGuard, Guard
from .waiting import async_wait, check_runs, wait
from .wire import Call, Settle, Take

C = TypeVar("C")

_log = logging.getLogger("redis_cell")

MINUTE = 60.0
LONGEST_PAUSE = 3600.0
"""The longest time for which a response can stop all requests, in seconds."""
PAUSE = 1.0
"""How long a refusal stops all requests if it does not name a time, in seconds."""
REFUSALS = (429, 503, 529)
"""The statuses that stop all requests. 503 and 529 do so only if the response names a time."""
GATE = Rate(1_000_000, per=1, burst=0)
"""The limiter of pauses. No request takes from its key: a quantity of 0 only checks whether a pause is over."""
LEARNED = ("x-ratelimit-{}-requests", "anthropic-ratelimit-requests-{}", "x-ratelimit-{}", "ratelimit-{}")
"""The headers for limits and remaining units of OpenAI and similar services, of Anthropic, and of others."""
A_MINUTE = LEARNED[:2]
"""The headers of limits per minute. The window of other limits is in the header RateLimit-Policy."""
CONNECTIONS = {"max_connections": 1000, "max_keepalive_connections": 100}
"""The connections of a transport that is made here, as in the SDKs of OpenAI and Anthropic."""
_PARTS = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhd])")
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds_of(value: str, now: float) -> float | None:
    """Returns the seconds in a header: a number, `1m30.5s`, a Unix time, or a date. None if it is none of these."""
    value = value.strip()
    try:
        number = float(value)
    except ValueError:
        pass
    else:
        # The number would be a wait of more than thirty years, so it is a Unix time.
        wait = number - now if number > 1e9 else number
        return wait if math.isfinite(wait) else None
    if _PARTS.sub("", value) == "" and value:
        return sum(float(number) * _SECONDS[unit] for number, unit in _PARTS.findall(value))
    try:
        return datetime.fromisoformat(value.replace("Z", "+00:00")).timestamp() - now
    except ValueError:
        pass
    try:
        date = email.utils.parsedate_to_datetime(value)
    except (ValueError, TypeError):
        return None
    return date.replace(tzinfo=date.tzinfo or timezone.utc).timestamp() - now


def retry_after(headers: Mapping[str, str], now: float, resets: bool = True) -> float | None:
    """Returns the wait that a response names, in seconds. With `resets`, that is also the time until the reset of a
    limit, unless some of the limit remains: many upstreams name the resets in each response."""
    if (value := headers.get("retry-after-ms")) and (wait := seconds_of(value, now)) is not None:
        return wait / 1000
    used_up = [header for header in LEARNED if resets and not _number(headers.get(header.format("remaining"), ""))]
    for name in ("retry-after", *(header.format("reset") for header in used_up)):
        if (value := headers.get(name)) and (wait := seconds_of(value, now)) is not None:
            return wait
    return None


def _number(value: str) -> int | None:
    return int(value) if value.isdecimal() and len(value) < 16 else None


def window_of(headers: Mapping[str, str], limit: int) -> float | None:
    """Returns the seconds in which an upstream allows `limit` requests: `10;w=1`, or `"default";q=10;w=1`. None if the
    headers do not name them."""
    for member in (headers.get("ratelimit-policy") or headers.get("ratelimit-limit", "")).split(","):
        quota, *parameters = (part.strip() for part in member.split(";"))
        named = dict(parameter.split("=", 1) for parameter in parameters if "=" in parameter)
        if _number(named.get("q", quota)) == limit and (window := _number(named.get("w", ""))):
            return window
    return None


@dataclass(slots=True)
class Turn:
    """The turn of a request."""

    answer: Together[Answer]
    takes: tuple[Take, ...]
    since: float


class Pacing:
    """The common part of the transports for blocking code and for asyncio. No I/O."""

    def __init__(self, key: str, rate: Rate | None, max_wait: Seconds | None) -> None:
        # The braces put both keys into one slot of a cluster.
        check_name(key, "key")
        if rate is not None:
            of_kind(rate, "rate", Rate)
        self.requests, self.gate = f"{{{key}}}:requests", f"{{{key}}}:pause"
        self.own, self.rate = rate, rate
        self.max_wait = None if max_wait is None else micros(max_wait, "max_wait") / 1_000_000

    def takes(self) -> tuple[Take, ...]:
        gate = Take(self.gate, GATE, 0)
        return (gate,) if self.rate is None else (Take(self.requests, self.rate), gate)

    def unsent(self, turn: Turn) -> Call[Any] | None:
        """Returns the call that gives back the unit of a request that the upstream did not see or refused."""
        row = turn.answer.get(self.requests)
        if not isinstance(row, Admitted) or turn.answer.sent is None:
            return None
        return wire.msettle(Settle(self.requests, turn.takes[0].limit, -1), taken=turn.answer)  # type: ignore[arg-type]

    def learned(self, turn: Turn, status: int, headers: Mapping[str, str]) -> Iterator[Call[Any]]:
        """Returns the calls that share the limits and pauses in a response with all workers."""
        yield from self._remaining(turn, headers)
        if status not in REFUSALS:
            return
        wait = retry_after(headers, time.time(), status == 429)
        if status == 429 and (call := self.unsent(turn)):
            yield call
        if wait is None and status == 429:
            wait = PAUSE
        if wait is not None and wait > 0:
            yield wire.pause(self.gate, GATE, min(wait, LONGEST_PAUSE) + 1e-6)

    def _remaining(self, turn: Turn, headers: Mapping[str, str]) -> Iterator[Call[Any]]:
        """Lowers the limiter to the units that the upstream names, because others may use the account too.

        CL.PAUSE with a burst of the used units lowers the limiter to the remaining units, and never raises it. Units
        that became available since the request was sent, and the fraction of a unit that the header omits, count as
        remaining.
        """
        for header in LEARNED:
            limit = _number(re.split("[,;]", headers.get(header.format("limit"), ""))[0].strip())
            remaining = _number(headers.get(header.format("remaining"), ""))
            if limit and remaining is not None:
                break
        else:
            return
        if window := MINUTE if header in A_MINUTE else window_of(headers, limit):
            self._limit(limit, window)
        rate, row = self.rate, turn.answer.get(self.requests)
        if rate is None or (row is not None and row.remaining <= remaining + 1):
            return
        interval = micros(rate.per, "per") / 1_000_000 / rate.count
        used = rate.limit - remaining - 1 - math.ceil((time.monotonic() - turn.since) / interval)
        if used > 0:
            yield wire.pause(self.requests, Rate(rate.count, per=rate.per, burst=used), 0)

    def _limit(self, limit: int, window: float) -> None:
        """Applies the upstream's limit if it is smaller, or if there is no other one."""
        if self.own is None:
            self.rate = Rate(limit, per=window)
        elif micros(self.own.per, "per") == window * 1_000_000:
            self.rate = Rate(min(self.own.count, limit), per=window, burst=min(self.own.burst, limit - 1))

    def handled(
        self, request: Any, cell: Any, wait: Callable[..., Any], send: Callable[[Any], Any], closes: str
    ) -> Steps[Any]:
        """Waits for the turn of a request, sends the request, and returns the response."""
        takes = self.takes()
        answer = yield partial(wait, cell, *takes, timeout=self.max_wait)
        if not answer:
            return self.refusal(request, answer)
        turn = Turn(answer, takes, time.monotonic())
        try:
            response = yield partial(send, request)
        except Exception as error:
            if never_sent(request, error) and (call := self.unsent(turn)):
                yield from self._tell(cell, call)
            raise
        try:
            for call in self.learned(turn, response.status_code, response.headers):
                yield from self._tell(cell, call)
        except BaseException:
            yield getattr(response.stream, closes)  # the connection goes back to its pool
            raise
        return response

    def _tell(self, cell: Any, call: Call[Any]) -> Steps[None]:
        try:
            yield partial(getattr(cell, "cell", cell).run, call)  # because a guard cannot decide this call
        except Exception as error:
            _log.warning("%s was not sent: %s", call.name, error)

    def refusal(self, request: Any, answer: Together[Answer]) -> Any:
        """Returns the response to a request that would wait too long. It tells the SDKs not to try again."""
        wait = answer.combined.retry_after if isinstance(answer.combined, Refused) else None
        headers = {"content-type": "application/json", "x-should-retry": "false"}
        if wait is not None:
            headers["retry-after"] = str(math.ceil(wait))
        closed = answer.combined.decided_by == "fail_closed"
        message = "redis_cell: the request would wait longer than max_wait for its turn"
        if closed:
            message = "redis_cell: the server of the rate limiter is unavailable"
        body = {"error": {"type": "rate_limit_error", "code": "rate_limit_exceeded", "message": message}}
        return library_of(request).Response(503 if closed else 429, headers=headers, json=body, request=request)


def library_of(thing: object) -> Any:
    """Returns httpx or httpx2, whichever library a request comes from."""
    return importlib.import_module(type(thing).__module__.partition(".")[0])


def never_sent(request: Any, error: Exception) -> bool:
    """Whether an error means that the upstream has not received the request."""
    library = library_of(request)
    kinds = library.ConnectError, library.ConnectTimeout, library.PoolTimeout, library.UnsupportedProtocol
    return isinstance(error, kinds)


class Sends:
    """Sends requests by another transport, of the library that they come from."""

    _own: ClassVar[str]
    """The class of httpx and httpx2 that sends the requests if the caller provides no transport."""
    _closes: ClassVar[str]
    """The method of a response's stream that gives its connection back."""
    _handles: ClassVar[str]
    """The method of a transport that sends a request."""

    def __init__(self, transport: Any) -> None:
        if transport is not None and (isinstance(transport, type) or not hasattr(transport, self._handles)):
            raise TypeError(f"transport must be a transport with {self._handles}, not {transport!r}")
        self.transport = transport
        self.making = threading.Lock()

    def sender(self, request: Any) -> Any:
        """Returns the transport that sends requests, which is made with the first one, of its library."""
        with self.making:
            if self.transport is None:
                library = library_of(request)
                self.transport = getattr(library, self._own)(limits=library.Limits(**CONNECTIONS))
            return self.transport


class Closes(Sends):
    """A transport for blocking clients."""

    _own = "HTTPTransport"
    _closes = "close"
    _handles = "handle_request"

    def close(self) -> None:
        if self.transport is not None:
            self.transport.close()

    def __enter__(self: S) -> S:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class AsyncCloses(Sends):
    """A transport for clients for asyncio."""

    _own = "AsyncHTTPTransport"
    _closes = "aclose"
    _handles = "handle_async_request"

    async def aclose(self) -> None:
        if self.transport is not None:
            await self.transport.aclose()

    async def __aenter__(self: AS) -> AS:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()


S = TypeVar("S", bound=Closes)
AS = TypeVar("AS", bound=AsyncCloses)


class _Transport(Sends, Generic[C]):
    """The common part of Transport and AsyncTransport."""

    def __init__(
        self, cell: C, key: str, rate: Rate | None = None, *, max_wait: Seconds | None = 60.0, transport: Any = None
    ) -> None:
        check_runs(cell, type(self).__name__, awaited=isinstance(self, AsyncTransport))
        super().__init__(transport)
        self.cell = cell
        self.pacing = Pacing(key, rate, max_wait)


class Transport(_Transport[Cell | Guard], Closes):
    """A transport for httpx.Client and httpx2.Client, in which each request waits for its turn.

    `cell` is a Cell, or a Guard, which decides while the server is unavailable. `rate` is the limit that all workers
    with the same `key` share. Without it, the limit per minute is learned from the upstream's responses. A request that
    would wait longer than `max_wait` is answered with 429. `transport` sends the requests. Without it, the transport is
    one of the client's library, with as many connections as the SDKs have: options of the client such as `limits`,
    `verify`, `http2` and `proxy` have no effect, because they are options of its transport.
    """

    def handle_request(self, request: Any) -> Any:
        send = self.sender(request).handle_request
        return steps.run(self.pacing.handled(request, self.cell, wait, send, self._closes))


class AsyncTransport(_Transport[AsyncCell | AsyncGuard], AsyncCloses):
    """Like Transport, but for httpx.AsyncClient and httpx2.AsyncClient, with an AsyncCell or an AsyncGuard."""

    async def handle_async_request(self, request: Any) -> Any:
        send = self.sender(request).handle_async_request
        return await steps.async_run(self.pacing.handled(request, self.cell, async_wait, send, self._closes))


__all__ = ["AsyncTransport", "Transport"]
