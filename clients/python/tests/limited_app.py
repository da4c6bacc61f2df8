"""An application for tests/test_fastapi.py, which uvicorn runs in several processes."""

from __future__ import annotations

import os
from typing import Any

import redis.asyncio
from fastapi import Depends, FastAPI, Request
from fastapi.responses import PlainTextResponse
from starlette.requests import HTTPConnection

from redis_cell import AsyncCell, AsyncGuard, Fixed, Log, Rate, RateLimited, WhenUnavailable, limited
from redis_cell.fastapi import RateLimit, RateLimitMiddleware, rate_limited


def user(connection: HTTPConnection) -> str | None:
    return connection.headers.get("x-user") or None


async def cost(connection: HTTPConnection) -> int:
    return int(connection.query_params.get("cost", 1))


def made(port: int, when_unavailable: WhenUnavailable) -> FastAPI:
    client = redis.asyncio.Redis(port=port, socket_timeout=5, socket_connect_timeout=5)
    guard = AsyncGuard(AsyncCell(client), when_unavailable=when_unavailable)
    app = FastAPI()
    every = RateLimit(guard, Log(1000, per=3600), key=user, prefix="every")
    app.add_middleware(RateLimitMiddleware, limit=every)
    app.add_exception_handler(RateLimited, rate_limited)
    two = RateLimit(guard, Fixed.total(2), key=user, quantity=cost, prefix="total")
    hourly = {"hour": Fixed(10, per=3600), "second": Rate(1000, per=1)}

    @app.get("/exact", dependencies=[Depends(RateLimit(guard, hourly, key=user, prefix="exact"))])
    async def exact() -> dict[str, int]:  # pyright: ignore[reportUnusedFunction]
        return {"process": os.getpid()}

    @app.get("/own", dependencies=[Depends(RateLimit(guard, Rate(1, per=2, at_once=3), key=user, quantity=cost))])
    async def own() -> PlainTextResponse:  # pyright: ignore[reportUnusedFunction]
        return PlainTextResponse("a response that the route makes")

    @app.get("/total", dependencies=[Depends(two)])
    async def total() -> None:  # pyright: ignore[reportUnusedFunction]
        pass

    @app.post("/wait", dependencies=[Depends(RateLimit(guard, Rate(20, per=1, at_once=1), key=user, timeout=9))])
    async def wait(request: Request) -> Any:  # pyright: ignore[reportUnusedFunction]
        return await request.json()

    @app.get("/decorated")
    @limited(guard, lambda request: f"decorated:{request.headers['x-user']}", Rate(1, per=3600))
    async def decorated(request: Request) -> str:  # pyright: ignore[reportUnusedFunction]
        return "decorated"

    return app


def waiting(port: int) -> RateLimitMiddleware:
    """An application whose requests wait in the middleware, which replies with the body of the request."""
    cell = AsyncCell(redis.asyncio.Redis(port=port))

    async def echo(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await PlainTextResponse(await Request(scope, receive).body())(scope, receive, send)

    return RateLimitMiddleware(echo, RateLimit(cell, Rate(1, per=3600), key=user, timeout=None, prefix="waiting"))


if "REDIS_PORT" in os.environ:
    from redis_cell import FailClosed

    app = made(int(os.environ["REDIS_PORT"]), FailClosed())
