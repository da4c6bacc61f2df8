"""Rate limits for FastAPI and Starlette: a dependency, a middleware, and a handler for refusals of `limited`.

    limit = RateLimit(guard, Rate.per_minute(30))

    @app.get("/search", dependencies=[Depends(limit)])
    async def search() -> ...

Everything runs in the event loop, and waits without blocking it. docs/http.md explains the fields of responses.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, TypeAlias, cast

from fastapi import HTTPException, Request, Response
from fastapi.responses import JSONResponse
from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection

from .answers import Answer, RateLimited, Refused, RefusedForever, Together
from .client import AsyncCell
from .limiters import (
    COUNTED,
    Bucket,
    Calendar,
    Counted,
    Fixed,
    Funnel,
    Rate,
    Total,
    check_name,
    function,
    of_kind,
    whole,
)
from .times import Seconds, micros
from .unavailable import AsyncGuard
from .waiting import async_wait, check_runs
from .wire import Take

Field: TypeAlias = tuple[str, str]
Status: TypeAlias = tuple[int, str]
Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]

PROBLEM = "https://iana.org/assignments/http-problem-types#quota-exceeded"
FIELDS = "redis_cell.fields"
"""The entry of a scope for the fields of its limits, which a middleware then adds to the response."""
REMAINING = "X-RateLimit-Remaining"
_CALENDAR = {"HOUR": 3600, "DAY": 86400, "WEEK": 604800}


def client_address(connection: HTTPConnection) -> str:
    """Returns the address of the connection, which behind a proxy is the proxy's, or `unknown`."""
    return connection.client.host if connection.client else "unknown"


def fields(limits: Mapping[str, Counted], answer: Together[Answer], keys: Mapping[str, str]) -> list[Field]:
    """Returns the fields of a response: RateLimit, RateLimit-Policy, X-RateLimit-*, and Retry-After of a refusal."""
    rows = {name: answer[keys[name]] for name in limits}
    tightest = min(rows.values(), key=lambda row: row.remaining)
    policies = (_member(name, q=row.limit, w=_window(limits[name])) for name, row in rows.items())
    states = (_member(name, r=row.remaining, t=_until_more(limits[name], row)) for name, row in rows.items())
    found = [("RateLimit-Policy", ", ".join(policies)), ("RateLimit", ", ".join(states))]
    return found + _told(tightest, answer.combined.retry_after)


def _told(row: Answer, wait: float | None) -> list[Field]:
    """Returns X-RateLimit-* of a limit, and Retry-After of a refusal. A total that does not expire has no end."""
    found = [("X-RateLimit-Limit", str(row.limit)), (REMAINING, str(row.remaining))]
    for name, time in (("X-RateLimit-Reset", row.reset_after), ("Retry-After", wait)):
        if time is not None and time < math.inf:
            found.append((name, str(math.ceil(time))))
    return found


def add_fields(headers: MutableHeaders, found: list[Field]) -> None:
    """Adds the fields of a RateLimit to those of others. RateLimit is a list of all limits. The other fields describe
    the limit that has refused, or that has the least left."""
    own = dict(found)
    there, left = headers.get(REMAINING, ""), own.get(REMAINING, "")
    refused = "Retry-After" in headers
    tighter = bool(left) and (not there or (not refused and there.isdecimal() and int(left) < int(there)))
    if tighter:
        del headers["X-RateLimit-Reset"]  # the other limit's, if this one has none
    for name, value in own.items():
        if name.startswith("RateLimit"):
            # On one line, because many clients read only the first line.
            headers[name] = ", ".join([*headers.getlist(name), value])
        elif tighter:
            headers[name] = value


def _member(name: str, **parameters: int | None) -> str:
    return f'"{name}"' + "".join(f";{key}={value}" for key, value in parameters.items() if value is not None)


def _window(limit: Counted) -> int | None:
    """Returns the time in which the whole limit comes back, in seconds. None if it has no fixed length."""
    if isinstance(limit, (Rate, Bucket, Funnel)):
        return -(-limit.limit * micros(limit.per, "per") // (limit.count * 1_000_000))
    if isinstance(limit, Fixed) and isinstance(limit.per, (Calendar, Total)):
        return _CALENDAR.get(limit.per.unit) if isinstance(limit.per, Calendar) else None
    return None if limit.per is None else -(-micros(cast(Seconds, limit.per), "per") // 1_000_000)


def _until_more(limit: Counted, row: Answer) -> int | None:
    """Returns the time in which only the remaining units can be used, in seconds. None if it is unknown."""
    if isinstance(row, Refused):
        return math.ceil(row.retry_after)
    if isinstance(limit, (Rate, Bucket, Funnel)):
        used = (row.limit - row.remaining - 1) * micros(limit.per, "per")
        return max(0, -(-(micros(row.reset_after, "reset_after") * limit.count - used) // (limit.count * 1_000_000)))
    return math.ceil(row.reset_after) if isinstance(limit, Fixed) and row.reset_after < math.inf else None


def refusal(answer: Answer, too_large: bool) -> Status:
    """Returns the status of a refusal, and its reason."""
    if answer.decided_by == "fail_closed":
        return 503, "the rate limiter is unavailable"
    return (413, "the request alone exceeds a limit") if too_large else (429, "a limit is reached")


class RateLimit:
    """A dependency that takes from one limit, or from several at once, or answers 429.

    `cell` is an AsyncCell, or an AsyncGuard, which decides while the server is unavailable: with FailClosed, the answer
    is 503 then. `limit` is a limit, or a mapping from names to limits, all of which must admit a request. `key` returns
    the name of the client of a request, or None if it has no limit. `quantity` is the cost of a request, or returns it.
    Both may be coroutine functions. A request that cannot be admitted waits up to `timeout` for its turn, in the queue
    of its client. `prefix` distinguishes the limits of several routes, which otherwise are one, and is the name of a
    single limit.
    """

    def __init__(
        self,
        cell: AsyncCell | AsyncGuard,
        limit: Counted | Mapping[str, Counted],
        *,
        key: Callable[[HTTPConnection], Any] = client_address,
        quantity: int | Callable[[HTTPConnection], Any] = 1,
        timeout: Seconds | None = 0,
        prefix: str = "http",
    ) -> None:
        check_runs(cell, type(self).__name__, awaited=True)
        self.cell, self.key, self.quantity = cell, key, quantity
        self.timeout, self.prefix = timeout, prefix
        check_name(prefix, "prefix")
        self.limits: Mapping[str, Counted] = limit if isinstance(limit, Mapping) else {prefix: limit}
        for name in self.limits:
            check_name(name, "the name of a limit")
        if not self.limits or any('"' in name or not name.isascii() for name in self.limits):
            raise ValueError("a limit has a name, or prefix, in ASCII without quotes, and there is at least one")
        for each in self.limits.values():
            of_kind(each, "limit", *COUNTED)
        function(key, "key")
        if not callable(quantity):
            whole(quantity, "quantity")
        if timeout is not None:
            micros(timeout, "timeout")

    async def decide(self, connection: HTTPConnection) -> tuple[Together[Answer], list[Field], Status | None] | None:
        """Takes from the limits. Returns the answer, the fields of the response, and the status of a refusal.

        None without a limit.
        """
        client = await _value(self.key, connection)
        if client is None:
            return None
        quantity = await _value(self.quantity, connection) if callable(self.quantity) else self.quantity
        # The braces put all keys of a client into one slot of a cluster.
        keys = {name: f"{{{self.prefix}:{client}}}:{name}" for name in self.limits}
        takes = [Take(keys[name], limit, quantity) for name, limit in self.limits.items()]
        answer = await async_wait(self.cell, *takes, timeout=self.timeout)
        known = answer.combined.decided_by in ("server", "local")
        # No wait helps either if a total is used up, but then the request is not too large.
        too_large = any(isinstance(row, RefusedForever) and quantity > row.limit for row in answer.values())
        refused = None if answer else refusal(answer.combined, too_large)
        return answer, fields(self.limits, answer, keys) if known else [], refused

    async def __call__(self, request: HTTPConnection, response: Response) -> Together[Answer] | None:
        decided = await self.decide(request)
        if decided is None:
            return None
        answer, found, refused = decided
        if refused is not None:
            raise HTTPException(*refused, headers=dict(found))
        shared: list[list[Field]] | None = request.scope.get(FIELDS)
        if shared is None:
            add_fields(response.headers, found)
        else:
            shared.append(found)
        return answer


# The annotations above are texts, which FastAPI cannot look up for an object that is no function.
RateLimit.__call__.__annotations__.update(request=HTTPConnection, response=Response)


async def _value(function: Callable[[HTTPConnection], Any], connection: HTTPConnection) -> Any:
    value = function(connection)
    return await value if inspect.isawaitable(value) else value


class RateLimitMiddleware:
    """A middleware that limits every request, and adds the fields of dependencies to responses that a route makes.

    `limit` is a RateLimit, or None if only dependencies limit requests. A request whose client disconnects while it
    waits leaves its queue.
    """

    def __init__(self, app: Any, limit: RateLimit | None = None) -> None:
        self.app = function(app, "app")
        self.limit = None if limit is None else of_kind(limit, "limit", RateLimit)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        adds = FIELDS not in scope  # otherwise another middleware does
        found: list[list[Field]] = scope.setdefault(FIELDS, [])
        if self.limit is not None:
            deciding = self.limit.decide(HTTPConnection(scope))
            if self.limit.timeout == 0:
                # To read the request would ask its client for a body that a refusal does not need.
                decided = await deciding
            else:
                ahead = _Ahead(receive)
                decided, receive = await ahead.until_done(deciding), ahead.receive
                if ahead.left:
                    return
            if decided is not None:
                answer, own, refused = decided
                if refused is not None:
                    status, reason = refused
                    response = _problem(status, reason, own, answer)
                    return await response(cast(Any, scope), receive, cast(Any, send))
                found.append(own)

        async def send_with_fields(message: MutableMapping[str, Any]) -> None:
            if adds and message["type"] == "http.response.start":
                headers = MutableHeaders(raw=list(message.get("headers", ())))
                for own in found:
                    add_fields(headers, own)
                message = {**message, "headers": headers.raw}
            await send(message)

        await self.app(scope, receive, send_with_fields)


class _Ahead:
    """Reads the messages of a request ahead while it waits, to detect that its client has disconnected."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._read: deque[MutableMapping[str, Any]] = deque()
        self._reading: asyncio.Future[MutableMapping[str, Any]] | None = None
        self.left = False

    async def until_done(self, work: Any) -> Any:
        """Returns the result of work. If the client leaves first, the work is cancelled."""
        task = asyncio.ensure_future(work)
        try:
            await asyncio.sleep(0)
            watches = True
            while not task.done():
                if watches and self._reading is None:
                    self._reading = asyncio.ensure_future(self._receive())
                waiting = {task, self._reading} if watches and self._reading else {task}
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                if self._reading is not None and self._reading.done():
                    message, self._reading = self._reading.result(), None
                    self._read.append(message)
                    if message["type"] == "http.disconnect":
                        self.left = not task.done()
                        break
                    watches = not message.get("more_body")  # a long body is not read ahead
            if self.left:
                task.cancel()
                await asyncio.wait([task])
                return None
            return await task
        except BaseException:  # of this task, or of `receive`
            task.cancel()
            await asyncio.wait([task])
            raise

    async def receive(self) -> MutableMapping[str, Any]:
        if self._read:
            return self._read.popleft()
        if self._reading is not None:
            message = await asyncio.shield(self._reading)
            self._reading = None
            return message
        return await self._receive()


def _problem(status: int, reason: str, own: list[Field], answer: Together[Answer] | None = None) -> JSONResponse:
    """Returns a response with the details of a problem, as in RFC 9457."""
    body: dict[str, Any] = {"title": reason, "status": status}
    if status == 429:
        refusing = [] if answer is None else [key for key, row in answer.items() if not row]
        names = [str(key).rpartition("}:")[2] for key in refusing]
        body = {"type": PROBLEM, **body, "violated-policies": names} if names else {"type": PROBLEM, **body}
    return JSONResponse(body, status, dict(own), media_type="application/problem+json")


async def rate_limited(request: Request, error: Exception) -> JSONResponse:
    """A handler that answers the refusals of `limited`: app.add_exception_handler(RateLimited, rate_limited)."""
    assert isinstance(error, RateLimited)
    own = [] if error.answer.decided_by == "fail_closed" else _told(error.answer, error.retry_after)
    # The quantity is not known. Units of a total without end do not come back.
    too_large = isinstance(error.answer, RefusedForever) and error.answer.reset_after < math.inf
    return _problem(*refusal(error.answer, too_large), own)


__all__ = ["RateLimit", "RateLimitMiddleware", "client_address", "rate_limited"]
