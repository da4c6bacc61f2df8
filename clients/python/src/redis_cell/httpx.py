"""Transports for httpx and httpx2, which the SDKs of OpenAI and Anthropic use: all workers share one rate.

    client = openai.OpenAI(http_client=openai.DefaultHttpxClient(transport=Transport(cell, "openai", rate)))

A request waits for its turn. The limits in the headers of the responses are learned, and a refusal by the upstream
stops all workers for the time that it names.
"""

from __future__ import annotations

import email.utils
import importlib
import logging
import math
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from types import TracebackType
from typing import Any

from . import wire
from .answers import Admitted, Answer, Refused, Several
from .away import AsyncGuard, Guard
from .client import AsyncCell, Cell
from .limiters import Rate
from .times import Seconds, micros
from .waiting import async_wait, wait
from .wire import Call, Settle, Take

_log = logging.getLogger("redis_cell")

MINUTE = 60.0
LONGEST_PAUSE = 3600.0
"""The longest time for which a response can stop all requests, in seconds."""
PAUSE = 1.0
"""For how long a refusal stops all requests if it does not say how long, in seconds."""
REFUSALS = (429, 503, 529)
"""The statuses that stop all requests. 503 and 529 only if they say for how long."""
GATE = Rate(1_000_000, per=1, burst=0)
"""The limiter of pauses. No request takes from its key: a quantity of 0 only finds out whether a pause is over."""
LEARNED = ("x-ratelimit-{}-requests", "anthropic-ratelimit-requests-{}", "x-ratelimit-{}", "ratelimit-{}")
"""The headers of limits and of what remains, of OpenAI and those who follow it, of Anthropic, and of others."""
_PARTS = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhd])")
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds_of(value: str, now: float) -> float | None:
    """How many seconds a header names: a number, `1m30.5s`, a Unix time, or a date. None if it is none of these."""
    value = value.strip()
    try:
        number = float(value)
    except ValueError:
        pass
    else:
        # No upstream asks for a wait of thirty years: this is a Unix time.
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


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """The wait that a response names, in seconds."""
    if (value := headers.get("retry-after-ms")) and (wait := seconds_of(value, now)) is not None:
        return wait / 1000
    for name in ("retry-after", *(header.format("reset") for header in LEARNED)):
        if (value := headers.get(name)) and (wait := seconds_of(value, now)) is not None:
            return wait
    return None


def _number(headers: Mapping[str, str], name: str) -> int | None:
    value = headers.get(name, "")
    return int(value) if value.isdecimal() and len(value) < 16 else None


@dataclass(slots=True)
class Turn:
    """The turn of a request."""

    answer: Several[Answer]
    takes: tuple[Take, ...]
    since: float


class Pacing:
    """What the transports for blocking code and for asyncio share. No I/O."""

    def __init__(self, key: str, rate: Rate | None, max_wait: Seconds | None) -> None:
        # The braces put both keys into one slot of a cluster.
        self.requests, self.gate = f"{{{key}}}:requests", f"{{{key}}}:pause"
        self.own, self.rate = rate, rate
        self.max_wait = None if max_wait is None else micros(max_wait, "max_wait") / 1_000_000

    def takes(self) -> tuple[Take, ...]:
        gate = Take(self.gate, GATE, 0)
        return (gate,) if self.rate is None else (Take(self.requests, self.rate), gate)

    def unsent(self, turn: Turn) -> Call[Any] | None:
        """The call that gives the turn of a request back."""
        row = turn.answer.get(self.requests)
        if not isinstance(row, Admitted) or turn.answer.sent is None:
            return None
        return wire.msettle(Settle(self.requests, turn.takes[0].limiter, -1), taken=turn.answer)  # type: ignore[arg-type]

    def learned(self, turn: Turn, status: int, headers: Mapping[str, str]) -> Iterator[Call[Any]]:
        """The calls by which all workers learn what a response says."""
        yield from self._remaining(turn, headers)
        if status not in REFUSALS:
            return
        wait = retry_after(headers, time.time())
        if status == 429 and (call := self.unsent(turn)):
            yield call
        if wait is None and status == 429:
            wait = PAUSE
        if wait is not None and wait > 0:
            yield wire.pause(self.gate, GATE, min(wait, LONGEST_PAUSE) + 1e-6)

    def _remaining(self, turn: Turn, headers: Mapping[str, str]) -> Iterator[Call[Any]]:
        """Others may use the account as well: no more remains here than the upstream says.

        CL.PAUSE with a burst of what is used up sets the limiter to what remains, and only ever to less. What has come
        since the request was sent, and the part of a unit that the header rounds off, count as remaining.
        """
        for header in LEARNED:
            limit = _number(headers, header.format("limit"))
            remaining = _number(headers, header.format("remaining"))
            if limit and remaining is not None:
                break
        else:
            return
        self._limit(limit)
        rate, row = self.rate, turn.answer.get(self.requests)
        if rate is None or (row is not None and row.remaining <= remaining + 1):
            return
        interval = micros(rate.per, "per") / 1_000_000 / rate.count
        used = rate.limit - remaining - 1 - math.ceil((time.monotonic() - turn.since) / interval)
        if used > 0:
            yield wire.pause(self.requests, Rate(rate.count, per=rate.per, burst=used), 0)

    def _limit(self, limit: int) -> None:
        """The upstream's limit of requests a minute holds, if it is the smaller one."""
        learned = Rate.per_minute(limit)
        if self.own is None:
            self.rate = learned
        elif micros(self.own.per, "per") == MINUTE * 1_000_000:
            count = min(self.own.count, limit)
            self.rate = Rate.per_minute(count, burst=min(self.own.burst, limit - 1))

    def refusal(self, request: Any, answer: Several[Answer]) -> Any:
        """The response to a request that would wait too long. The SDKs do not try again."""
        wait = answer.combined.retry_after if isinstance(answer.combined, Refused) else None
        headers = {"content-type": "application/json", "x-should-retry": "false"}
        if wait is not None:
            headers["retry-after"] = str(math.ceil(wait))
        message = "redis_cell: the request would wait longer than max_wait for its turn"
        body = {"error": {"type": "rate_limit_error", "code": "rate_limit_exceeded", "message": message}}
        return _library(request).Response(429, headers=headers, json=body, request=request)


def _library(thing: object) -> Any:
    """httpx or httpx2, whichever a request is of."""
    return importlib.import_module(type(thing).__module__.partition(".")[0])


def _never_sent(request: Any, error: Exception) -> bool:
    """Whether an error means that the upstream has not seen the request."""
    library = _library(request)
    return isinstance(error, (library.ConnectError, library.ConnectTimeout, library.PoolTimeout))


class Transport:
    """A transport for httpx.Client and httpx2.Client, in which each request waits for its turn.

    `cell` is a Cell, or a Guard, which decides what happens if the server is unavailable. `rate` is the limit of all
    workers with the same `key` together. Without it the limit a minute is the one that the upstream's responses name.
    A request that would wait longer than `max_wait` is answered with 429. `transport` sends the requests.
    """

    def __init__(
        self,
        cell: Cell | Guard,
        key: str,
        rate: Rate | None = None,
        *,
        max_wait: Seconds | None = 60.0,
        transport: Any = None,
    ) -> None:
        self.cell = cell
        self.pacing = Pacing(key, rate, max_wait)
        self.transport = transport if transport is not None else _default("HTTPTransport")

    def handle_request(self, request: Any) -> Any:
        takes = self.pacing.takes()
        answer = wait(self.cell, *takes, timeout=self.pacing.max_wait)
        if not answer:
            return self.pacing.refusal(request, answer)
        turn = Turn(answer, takes, time.monotonic())
        try:
            response = self.transport.handle_request(request)
        except Exception as error:
            if _never_sent(request, error) and (call := self.pacing.unsent(turn)):
                self._tell(call)
            raise
        for call in self.pacing.learned(turn, response.status_code, response.headers):
            self._tell(call)
        return response

    def _tell(self, call: Call[Any]) -> None:
        cell = self.cell.cell if isinstance(self.cell, Guard) else self.cell
        try:
            cell.run(call)
        except Exception as error:
            _log.warning("%s was not sent: %s", call.name, error)

    def close(self) -> None:
        self.transport.close()

    def __enter__(self) -> Transport:
        self.transport.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        self.transport.__exit__(kind, error, trace)


class AsyncTransport:
    """As Transport, for httpx.AsyncClient and httpx2.AsyncClient, with an AsyncCell or an AsyncGuard."""

    def __init__(
        self,
        cell: AsyncCell | AsyncGuard,
        key: str,
        rate: Rate | None = None,
        *,
        max_wait: Seconds | None = 60.0,
        transport: Any = None,
    ) -> None:
        self.cell = cell
        self.pacing = Pacing(key, rate, max_wait)
        self.transport = transport if transport is not None else _default("AsyncHTTPTransport")

    async def handle_async_request(self, request: Any) -> Any:
        takes = self.pacing.takes()
        answer = await async_wait(self.cell, *takes, timeout=self.pacing.max_wait)
        if not answer:
            return self.pacing.refusal(request, answer)
        turn = Turn(answer, takes, time.monotonic())
        try:
            response = await self.transport.handle_async_request(request)
        except Exception as error:
            if _never_sent(request, error) and (call := self.pacing.unsent(turn)):
                await self._tell(call)
            raise
        for call in self.pacing.learned(turn, response.status_code, response.headers):
            await self._tell(call)
        return response

    async def _tell(self, call: Call[Any]) -> None:
        cell = self.cell.cell if isinstance(self.cell, AsyncGuard) else self.cell
        try:
            await cell.run(call)
        except Exception as error:
            _log.warning("%s was not sent: %s", call.name, error)

    async def aclose(self) -> None:
        await self.transport.aclose()

    async def __aenter__(self) -> AsyncTransport:
        await self.transport.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        await self.transport.__aexit__(kind, error, trace)


def _default(name: str) -> Any:
    """A transport of httpx2, or of httpx where httpx2 is not installed."""
    try:
        return getattr(importlib.import_module("httpx2"), name)()
    except ImportError:
        return getattr(importlib.import_module("httpx"), name)()


__all__ = ["AsyncTransport", "Transport"]
