"""Servers of FastMCP for tests/test_fastmcp.py: four processes, each on a port that it prints, behind one server.

Each has the same tools under three paths: with waits, with refusals at once, and with fastmcp's own limiter.
"""

from __future__ import annotations

import os
import sys
from contextlib import AsyncExitStack, suppress
from typing import Any

import anyio
import redis.asyncio
import uvicorn
from fastmcp import Context, FastMCP
from fastmcp.server.middleware.rate_limiting import SlidingWindowRateLimitingMiddleware
from mcp import MCPError
from starlette.middleware import Middleware

from redis_cell import AsyncCell, AsyncGuard, FailClosed, Fixed, Log
from redis_cell.fastmcp import Places, RateLimits, RefusalStatus, Rule, report_cost
from redis_cell.fastmcp import client_of as address_of

PROCESSES = 4
OWN = 20
"""The limit of fastmcp's own limiter, which counts in each process."""
RULES = {
    "all": Rule(Fixed(20, per=3600), per="server", tools=["count"]),
    "each": Rule(Log(5, per=3600), tools=["mine"]),
    "busy": Rule(Places(4, lease=2), per="tool", tools=["render"]),
    "one": Rule(Places(1, lease=60), per="server", tools=["turn"]),
    "tokens": Rule(Fixed.total(1000, idle=3600), tools=["search"], cost=300),
    "session": Rule(Fixed(3, per=3600), per="session", tools=["session"]),
}


def client_of(context: Any) -> str:
    """The name that a test gives a client, or the address."""
    meta = context.fastmcp_context.request_context.request.headers.get("x-client") if context.fastmcp_context else None
    return meta or address_of(context)


def process() -> int:
    return os.getpid()


def made(port: int) -> Any:
    client = redis.asyncio.Redis(port=port, socket_timeout=60, max_connections=1000)
    guard = AsyncGuard(AsyncCell(client), when_unavailable=FailClosed())
    server = FastMCP[Any]("limited")
    RateLimits(guard, RULES, timeout=60, client=client_of, period=1).add_to(server)
    at_once = FastMCP[Any]("at once")
    RateLimits(guard, RULES, client=client_of, period=1).add_to(at_once)

    own = FastMCP[Any]("its own limiter")
    # For calls of tools, which are one kind of requests.
    by_kind = {"get_client_id": lambda context: str(context.method)}
    own.add_middleware(SlidingWindowRateLimitingMiddleware(OWN, window_minutes=60, **by_kind))

    for each in (server, at_once, own):
        for name in ("count", "mine", "session"):
            each.tool(process, name=name)

        @each.tool
        async def tries(context: Context) -> str:  # pyright: ignore[reportUnusedFunction]
            """Continues if a tool that it calls is refused."""
            with suppress(MCPError):
                await context.fastmcp.call_tool("mine")
            return "done"

        @each.tool
        async def render(seconds: float) -> int:  # pyright: ignore[reportUnusedFunction]
            """Returns how many run at once."""
            now = int(await client.incr("running"))
            try:
                await anyio.sleep(seconds)
            finally:
                with anyio.CancelScope(shield=True):
                    await client.decr("running")
            return now

        @each.tool
        async def turn(name: str) -> None:  # pyright: ignore[reportUnusedFunction]
            await client.rpush("turns", name)

        @each.tool
        async def search(tokens: int | None, fails: bool = False, dies: bool = False) -> None:  # pyright: ignore[reportUnusedFunction]
            if tokens is not None:
                report_cost(tokens)
            if dies:
                os._exit(1)
            if fails:
                raise ValueError("the search failed")

    app = server.http_app(path="/waits", middleware=[Middleware(RefusalStatus)])
    other = at_once.http_app(path="/now", middleware=[Middleware(RefusalStatus)])
    apps = {"/waits": app, "/now": other, "/own": own.http_app(path="/own")}

    async def routed(scope: Any, receive: Any, send: Any) -> None:
        await apps.get(scope["path"], app)(scope, receive, send)

    return routed, [*apps.values()]


def main() -> None:
    import socket

    listeners = [socket.create_server(("127.0.0.1", 0), backlog=500) for _ in range(PROCESSES)]
    for listener in listeners[1:]:
        if not os.fork():
            listeners[0] = listener
            break
    else:
        print(*(listener.getsockname()[1] for listener in listeners), flush=True)
    routed, apps = made(int(sys.argv[1]))

    parent = os.getppid()

    async def end_with_parent() -> None:
        while os.getppid() == parent:
            await anyio.sleep(0.5)
        os._exit(1)

    async def serve() -> None:
        async with anyio.create_task_group() as tasks, AsyncExitStack() as stack:
            for app in apps:
                await stack.enter_async_context(app.lifespan(app))
            # A connection that is closed while a client sends a request on it is an error of the client.
            config = uvicorn.Config(routed, log_level="error", lifespan="off", timeout_keep_alive=600)
            tasks.start_soon(end_with_parent)
            await uvicorn.Server(config).serve([listeners[0]])

    anyio.run(serve)


if __name__ == "__main__":
    main()
