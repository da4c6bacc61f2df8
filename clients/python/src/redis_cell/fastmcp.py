"""Limits for the tools of FastMCP servers that all their processes share."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import json
import logging
import math
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any, Literal, TypeAlias, get_args

from fastmcp import FastMCP
from fastmcp.server.dependencies import get_access_token, get_context, get_http_request
from fastmcp.server.middleware import CallNext, Middleware, MiddlewareContext
from fastmcp.server.providers import LocalProvider, Provider
from fastmcp.server.providers.addressing import parse_hashed_backend_name
from fastmcp.tools import Tool
from mcp import MCPError
from starlette.types import Message, Receive, Scope, Send

from . import steps, wire
from .accounts import KEPT, RENEWALS, empty
from .answers import Answer, Refused, RefusedForever, Together
from .client import AsyncCell
from .limiters import Counted, Lease, Log, check_name, function, of_kind, several_names, short, whole
from .sending import MARGIN
from .times import Seconds, micros
from .unavailable import AsyncGuard
from .waiting import async_answer, check_runs
from .wire import MOST_LOGGED, Hold, Once, Take

_log = logging.getLogger("redis_cell")

RATE_LIMITED = -32023
"""The code of the error, as in SEP-3304 of the Model Context Protocol."""
INTERNAL = -32603
NEVER = 2**53 - 1
"""The milliseconds of a wait that never ends: the largest integer that all clients can read."""
UNAVAILABLE = "the rate limiter is unavailable"

Per: TypeAlias = Literal["client", "session", "tool", "server"]
PERS = get_args(Per)


@dataclass(frozen=True, slots=True)
class Places:
    """A number of calls that may run at once. A place of a crashed process is free after `lease`, in seconds."""

    places: int
    lease: Seconds = 60

    def __post_init__(self) -> None:
        Lease(self.places, lease=self.lease, holder="")

    @property
    def limit(self) -> int:
        return self.places


@dataclass(frozen=True, slots=True)
class Rule:
    """A limit of calls of tools, of the costs that tools report, or of calls at once.

    `per` says what has a limit of its own: each `client`, each `session`, each `tool`, or the `server` with all its
    processes. `tools` are the tools of the rule; without it, the rule is for all tools. With `cost`, the limit counts
    the costs that tools report with `report_cost`: a call holds `cost` units and settles the reported ones.
    """

    limit: Counted | Places
    per: Per = "client"
    tools: Collection[str] | None = None
    cost: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.limit, (Places, *get_args(Counted))):
            raise TypeError(f"limit must be a limit, such as Rate.per_minute(60), or Places, not {self.limit!r}")
        if self.per not in PERS:
            raise ValueError(f"per must be {', '.join(PERS)}, not {self.per!r}")
        several_names(self.tools, "tools")
        if self.cost is not None and isinstance(self.limit, Places):
            raise ValueError("cost is for a limit of units: Places count calls")
        if self.cost is not None:
            whole(self.cost, "cost", 0, self.limit.limit)
            if isinstance(self.limit, Log) and self.limit.limit > MOST_LOGGED:
                raise ValueError(f"with cost, a Log has a limit of at most {MOST_LOGGED}, not {self.limit.limit}")


class RateLimitedError(MCPError):
    """The error of a call that a rule refused, with `retryAfterMs`, `limit` and `remaining` in its data."""

    def __init__(self, rule: str, refusal: Refused | RefusedForever) -> None:
        unavailable = refusal.decided_by == "fail_closed"
        wait = math.inf if refusal.retry_after is None else refusal.retry_after
        after = NEVER if wait == math.inf else math.ceil(wait * 1000)
        data: dict[str, Any] = {"retryAfterMs": after}
        text = "no wait helps" if after == NEVER else f"try again in {wait:.3f} seconds"
        if unavailable:
            super().__init__(INTERNAL, f"{UNAVAILABLE}: {text}", data)
        else:
            data |= {"limit": refusal.limit, "remaining": refusal.remaining}
            super().__init__(RATE_LIMITED, f"the limit {rule!r} is reached: {text}", data)


_reported: ContextVar[dict[tuple[str, str], list[int]]] = ContextVar("redis_cell_costs")
"""The costs that the running tool has reported to each rule with `cost`, by prefix and name. A tool that another tool
calls reports to the rules of both. Lists, because threads can append to them at once."""


def report_cost(units: int) -> None:
    """Adds to the cost of the call of a tool, for rules with `cost`. Call it in the tool. Sends nothing.

    A tool that reports nothing costs the `cost` of its rule, or nothing if it fails. Raises ValueError if `units` are
    below 0. Without a rule with `cost`, or outside of a tool, it does nothing.
    """
    whole(units, "units")
    for costs in _reported.get({}).values():
        costs.append(units)


def _address(context: MiddlewareContext[Any]) -> str:
    with suppress(RuntimeError):
        client = get_http_request().client
        return client.host if client else ""
    return ""


def client_of(context: MiddlewareContext[Any]) -> str:
    """Returns the name of the caller: the user of an access token, or its client if it names no user, or else the
    address of the connection."""
    token = get_access_token()
    if token is None:
        return f"address:{_address(context)}"
    user = token.claims.get("sub")
    # A user may register any number of clients.
    who = json.dumps([token.client_id if user is None else None, token.claims.get("iss"), user])
    return "token:" + hashlib.sha256(who.encode("utf-8", "surrogatepass")).hexdigest()[:32]


class RateLimits(Middleware):
    """A middleware that limits the calls of tools, by rules that all processes share.

    `rules` maps names to rules, all of which must admit a call: it takes from all of them, in one call, or from none.
    A call that is refused waits up to `timeout` seconds, in a queue in which clients take turns: a client that calls in
    a loop delays its own calls. With 0, it gets the error -32023 at once. `client` returns the name of a client, and
    may be a coroutine function; `session` that of a session. In a protocol without sessions, a client has one session.
    `prefix` is the name of the server, which is one slot of a cluster.

    Places and costs of a call are renewed while its tool runs, and settled at its end, by one more call. If a process
    crashes, its places are free after their lease, and its costs come back after `period`. With an AsyncGuard, its
    choice decides while the server is unavailable. Only tools are limited.
    """

    def __init__(
        self,
        cell: AsyncCell | AsyncGuard,
        rules: Mapping[str, Rule],
        *,
        timeout: Seconds | None = 0,
        client: Callable[[MiddlewareContext[Any]], Any] = client_of,
        session: Callable[[MiddlewareContext[Any]], Any] | None = None,
        prefix: str = "mcp",
        period: Seconds = 60,
    ) -> None:
        check_runs(cell, type(self).__name__, awaited=True)
        of_kind(rules, "rules", Mapping)
        function(client, "client")
        if session is not None:
            function(session, "session")
        check_name(prefix, "prefix", "{}")
        if timeout is not None:
            micros(timeout, "timeout")
        for name, rule in rules.items():
            check_name(name, "the name of a rule")
            if not isinstance(rule, Rule):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise TypeError(f"rules must map names to Rules, and {name!r} not to {rule!r}")
        if not rules:
            raise ValueError("rules must have at least one rule")
        self.cell, self.rules, self.timeout, self.prefix, self.period = cell, dict(rules), timeout, prefix, period
        micros(period, "period", least=1)
        self._client, self._session = client, session
        self.holds = f"{{{prefix}}}:holds"
        self._unseen = dict[str, str]()
        self.running = set[_Running]()

    def add_to(self, server: FastMCP[Any]) -> None:
        """Adds the middleware to a server, and the resource `limits://mine`, which lists a client its limits.

        If a rule names a tool that the server does not have when it starts, this is a ValueError, or a warning if other
        servers or providers may have it. For tools that are added later, use the server's `add_middleware` instead.
        """
        of_kind(server, "server", FastMCP).add_middleware(self)
        server.add_provider(_Check(lambda: self._check(server), self._all_over))

        @server.resource("limits://mine", name="limits", mime_type="application/json")
        async def limits() -> str:  # pyright: ignore[reportUnusedFunction]
            """The limits of this client, with the number that remains of each."""
            context = MiddlewareContext[Any](message=None, fastmcp_context=get_context())
            with _without_its_text("the limits of a client cannot be read"):
                own = [each for each in server.middleware if isinstance(each, RateLimits)]
                return json.dumps([row for each in own for row in await each.limits(context)])

    async def _check(self, server: FastMCP[Any]) -> None:
        named = {tool: name for name, rule in self.rules.items() for tool in rule.tools or ()}
        if not all(isinstance(provider, (LocalProvider, _Check)) for provider in server.providers):
            self._unseen = named
            return
        # Tools that not every client sees, and those of other middleware, are tools of the server too.
        known = {tool.name for tool in await Provider.list_tools(server)}
        for tool, name in named.items():
            if tool not in known and await server.get_tool(tool) is None:
                raise ValueError(_unknown(name, tool, known))

    async def _all_over(self) -> None:
        """Waits for the calls that have been cancelled because the server shuts down: they give back what they hold."""
        if self.running:
            await asyncio.wait([asyncio.ensure_future(call.over.wait()) for call in self.running], timeout=MARGIN)

    async def on_list_tools(self, context: MiddlewareContext[Any], call_next: CallNext[Any, Sequence[Tool]]) -> Any:
        """Lists the tools. The first time, logs which tools that rules name do not exist."""
        tools = await call_next(context)
        unseen, self._unseen = self._unseen, {}
        known, own = {tool.name for tool in tools}, context.fastmcp_context
        for tool, name in unseen.items():
            if tool not in known and (own is None or await own.fastmcp.get_tool(tool) is None):
                _log.warning("%s", _unknown(name, tool, known))
        return tools

    async def limits(self, context: MiddlewareContext[Any]) -> list[dict[str, Any]]:
        """Returns the rules for a client: the limit, the remaining units, and the time until it is fully replenished.

        A rule of each tool has a row for each of its tools, if it names them.
        """
        rows, takes = list[dict[str, Any]](), list[Take]()
        whose = await self._names(context)
        for name, rule in self.rules.items():
            named = sorted(set(rule.tools or ()))
            for tool in named if rule.per == "tool" else [None]:
                row: dict[str, Any] = {"name": name, "per": rule.per, "counts": _counts(rule)}
                if rule.tools is not None:
                    row["tools"] = named if tool is None else [tool]
                rows.append(row)
                takes.append(empty(self._take(name, rule, tool or "", whose, "")))
        if not takes:
            return rows
        answer = await self.cell.run(wire.mpeek(*takes, holds=self.holds))
        for row, found in zip(rows, answer.values(), strict=True):
            row |= {"limit": found.limit, "remaining": found.remaining}
            if found.reset_after < math.inf:
                row["resetAfterMs"] = math.ceil(found.reset_after * 1000)
        return rows

    async def _names(self, context: MiddlewareContext[Any]) -> dict[Per, str]:
        client = str(await _value(self._client, context))
        session = client if self._session is None else str(await _value(self._session, context))
        own = context.fastmcp_context
        if self._session is None and own is not None and own.request_context is not None:
            # With the newest protocol, and in a stateless server, each request has a session of its own, which is no
            # session; fastmcp's name of it is then the choice of the client.
            connection = getattr(own.session, "_connection", None)
            if own.transport == "streamable-http":
                session = getattr(connection, "session_id", None) or client
            elif (scope := own._session_scope_key()) not in (None, "process"):  # pyright: ignore[reportPrivateUsage]
                session = str(scope)
        return {"client": client, "session": session, "server": ""}

    def _take(self, name: str, rule: Rule, tool: str, whose: Mapping[Per, str], holder: str) -> Take:
        who = tool if rule.per == "tool" else whose[rule.per]
        key = f"{{{self.prefix}}}:{name}:{short(who)}"
        if isinstance(rule.limit, Places):
            return Take(key, Lease(rule.limit.places, lease=rule.limit.lease, holder=holder))
        return Take(key, rule.limit, 1 if rule.cost is None else rule.cost)

    async def on_call_tool(self, context: MiddlewareContext[Any], call_next: CallNext[Any, Any]) -> Any:
        """Calls a tool if the rules admit it."""
        tool = await _tool_of(context)
        own = {name: rule for name, rule in self.rules.items() if rule.tools is None or tool in rule.tools}
        if not own:
            return await call_next(context)
        whose, holder = await self._names(context), secrets.token_hex(8)
        # Clients take turns for the first limiter, so the limiter that all clients share is the first.
        names = sorted(own, key=lambda name: -PERS.index(own[name].per))
        takes = {name: self._take(name, own[name], tool, whose, holder) for name in names}
        costs = [name for name in names if own[name].cost is not None]
        hold = Hold(self.holds, holder, self.period) if costs else None
        call = _Running(self, takes, {name: own[name] for name in names}, hold)
        with _without_its_text(f"no rule can be decided for the tool {tool!r}"):
            answer = await call.take(whose["client"])
        if not answer:
            raise _refusal(takes, answer)
        if hold is None and not call.leases:
            return await call_next(context)
        token = _reported.set({**_reported.get({}), **call.costs})
        self.running.add(call)
        renewing = asyncio.ensure_future(call.renew())
        unused = True
        try:
            result = await call_next(context)
            # A tool that asks its client for input is called again with the answers, and reports the costs then.
            unused = bool(getattr(result, "is_error", False)) or hasattr(result, "input_required")
            if hasattr(result, "task_id"):  # the tool runs as a background task, and its end is not known here
                call.leases = []
            return result
        finally:
            _reported.reset(token)
            call.done.set()
            await steps.to_its_end(call.end(tool, unused, renewing))


class _Check(Provider):
    """Provides no tools. A server starts its providers before the first call, and stops them after the last one."""

    def __init__(self, check: Callable[[], Awaitable[None]], over: Callable[[], Awaitable[None]]) -> None:
        super().__init__()
        self._check, self._over = check, over

    @asynccontextmanager
    async def lifespan(self) -> AsyncGenerator[None, None]:
        await self._check()
        yield
        await self._over()


async def _tool_of(context: MiddlewareContext[Any]) -> str:
    """Returns the name under which the server lists a tool. The tools of an app can be called by another name too."""
    name, own = str(context.message.name), context.fastmcp_context
    hashed = parse_hashed_backend_name(name)
    if hashed is not None and own is not None and await own.fastmcp.get_tool(name) is None:
        found = await own.fastmcp.get_tool_by_hash(*hashed)
        return name if found is None else found.name
    return name


@contextmanager
def _without_its_text(what: str) -> Generator[None, None, None]:
    """Hides the text of an error from clients, because it can name the server of Redis."""
    try:
        yield
    except Exception as error:
        _log.error("%s: %s", what, error)
        raise MCPError(INTERNAL, UNAVAILABLE) from None


def _refusal(takes: Mapping[str, Take], answer: Together[Answer]) -> RateLimitedError:
    refusal = answer.combined
    assert isinstance(refusal, (Refused, RefusedForever))
    # The error names the rule with the longest wait.
    refused = {name: row for name, take in takes.items() if isinstance(row := answer[take.key], type(refusal))}
    name = max(refused, key=lambda name: refused[name].retry_after or 0, default="")
    own = refused.get(name, refusal)
    if isinstance(own, Refused) and isinstance(refusal, Refused):
        refusal = replace(own, retry_after=refusal.retry_after)
    return RateLimitedError(name, refusal)


def _unknown(rule: str, tool: str, known: Collection[str]) -> str:
    likely = get_close_matches(tool, known, n=1)
    hint = f"did you mean {likely[0]!r}?" if likely else f"its tools are {', '.join(sorted(known)) or 'none'}"
    return f"the rule {rule!r} names the tool {tool!r}, which the server does not have: {hint}"


def _counts(rule: Rule) -> str:
    return "calls at once" if isinstance(rule.limit, Places) else "calls" if rule.cost is None else "costs"


async def _value(function: Callable[[MiddlewareContext[Any]], Any], context: MiddlewareContext[Any]) -> Any:
    value = function(context)
    return await value if inspect.isawaitable(value) else value


class _Running:
    """A call of a tool that has places, or holds costs."""

    def __init__(
        self, limits: RateLimits, takes: Mapping[str, Take], rules: Mapping[str, Rule], hold: Hold | None
    ) -> None:
        self.limits, self.takes, self.rules, self.hold = limits, takes, rules, hold
        self.leases = [take for take in takes.values() if isinstance(take.limit, Lease)]
        """The places that end with the call."""
        self.done, self.over = asyncio.Event(), asyncio.Event()
        """Whether the tool has ended, and whether the call has: it then holds nothing."""
        self.costs = {(limits.prefix, name): list[int]() for name, rule in rules.items() if rule.cost is not None}

    async def take(self, client: str) -> Together[Answer]:
        cell, takes = self.limits.cell, tuple(self.takes.values())
        if self.limits.timeout == 0:
            # The command of a single limiter has half the words of CL.MTAKE.
            if len(takes) == 1 and self.hold is None and not isinstance(limit := takes[0].limit, Lease):
                row = await cell.run(wire.take(takes[0].key, limit, takes[0].quantity))
                return Together(row, {takes[0].key: row})
            return await cell.run(wire.mtake(*takes, hold=self.hold, new=True))
        call = wire.bmtake(*takes, timeout=None, flow="client:" + client, hold=self.hold, new=True)
        return await async_answer(cell, call, self.limits.timeout)

    async def renew(self) -> None:
        """Renews the places and the hold until the tool is done."""
        times = [take.limit.lease for take in self.leases if isinstance(take.limit, Lease)]
        times += [self.hold.period] if self.hold else []
        pause = min(micros(time, "period") for time in times) / RENEWALS / 1_000_000
        # With a hold, quantities of 0 renew what is held.
        takes = [empty(take) for take in self.takes.values()] if self.hold else self.leases
        while True:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.done.wait(), pause)
                return
            with suppress(Exception):  # the next time may succeed, and nothing is lost before the end of the lease
                answer = await self.limits.cell.run(wire.mtake(*takes, hold=self.hold))
                if not answer and answer.combined.decided_by == "server":
                    # Another call has a place that was lost, for instance in an outage. The rest is renewed.
                    takes = [take for take in takes if answer[take.key]] or takes

    async def end(self, tool: str, unused: bool, renewing: asyncio.Future[None]) -> None:
        """Settles the costs, and releases the places. If the tool reported nothing, it costs nothing if `unused`."""
        try:
            await asyncio.wait_for(self._end(unused, renewing), MARGIN)
        except Exception as error:  # the tool has run, so its result counts
            _log.warning("what the tool %r holds runs out: %s", tool, str(error) or type(error).__name__)
        finally:
            self.limits.running.discard(self)
            self.over.set()

    async def _end(self, unused: bool, renewing: asyncio.Future[None]) -> None:
        cell = self.limits.cell
        await renewing  # a renewal that arrives after the end would take the places again
        if self.hold is None:
            for take in self.leases:
                assert isinstance(take.limit, Lease)
                await cell.run(wire.release(take.key, take.limit))
            return
        takes = list[Take]()
        for name, take in self.takes.items():
            if isinstance(take.limit, Lease) and take not in self.leases:
                continue
            if (estimate := self.rules[name].cost) is not None:
                costs = self.costs[self.limits.prefix, name]
                used = sum(costs) if costs else 0 if unused else estimate
                # The server would refuse a larger quantity, and then charge nothing.
                takes.append(replace(take, quantity=min(used, wire.most(take.limit))))
            else:
                takes.append(take)
        kept = max(KEPT, micros(self.hold.period, "period") / 1_000_000)
        once = Once(f"{self.hold.key!s}:{self.hold.owner!s}", kept)
        await cell.run(wire.settle(*takes, hold=self.hold, once=once))


class RefusalStatus:
    """A middleware of Starlette: refusals have the status 429 and the headers of SEP-3304, where HTTP still allows it.

    A refusal that comes before the response begins has `Retry-After`, `RateLimit-Limit` and `RateLimit-Remaining`. A
    refusal after a stream of events has begun is an error in the stream. `mcp.http_app(middleware=[Middleware(...)])`
    adds it.
    """

    def __init__(self, app: Any) -> None:
        self.app = function(app, "app")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begins: Message | None = None

        async def send_status(message: Message) -> None:
            nonlocal begins
            is_answer = message["type"] == "http.response.start" and message["status"] == 200
            if is_answer and (b"content-type", b"application/json") in message.get("headers", ()):
                begins = message
                return
            if begins is not None:
                # The tool can have continued after the refusal of a tool that it called, so only the answer counts.
                await send({**begins, **_status_of(message.get("body", b""), begins)})
                begins = None
            await send(message)

        await self.app(scope, receive, send_status if scope["type"] == "http" else send)


def _status_of(body: bytes, begins: Message) -> Message:
    """Returns the status and the headers of a response whose body is a refusal, and nothing for other bodies."""
    if b'"retryAfterMs"' not in body:
        return {}
    with suppress(ValueError, KeyError, TypeError):
        error = json.loads(body)["error"]
        data = error["data"]
        found = {"retry-after": -(-data["retryAfterMs"] // 1000)}
        found |= {f"ratelimit-{name}": data[name] for name in ("limit", "remaining") if name in data}
        headers = [*begins["headers"], *((name.encode(), str(value).encode()) for name, value in found.items())]
        return {"status": 429 if error["code"] == RATE_LIMITED else 503, "headers": headers}
    return {}
