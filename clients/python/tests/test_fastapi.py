"""The dependency and the middleware for FastAPI, under uvicorn."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import redis.asyncio
from fastapi import Depends, FastAPI, Request, Response
from fastapi.responses import PlainTextResponse
from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection

import servers
from redis_cell import (
    AsyncCell,
    AsyncGuard,
    Cell,
    FailClosed,
    FailOpen,
    Fixed,
    Lease,
    Log,
    Rate,
    RateLimited,
    WhenUnavailable,
    limited,
)
from redis_cell.fastapi import RateLimit, RateLimitMiddleware, add_fields, rate_limited
from uvicorn_thread import serving


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
    async def exact() -> None:  # pyright: ignore[reportUnusedFunction]
        pass

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


@pytest.fixture(name="limited")
def limited_app(server: servers.Server) -> Iterator[str]:
    with serving(made(server.port, FailClosed())) as url:
        yield url


def test_fields_are_those_of_the_page(limited: str) -> None:
    """The numbers of docs/http.md, in a response that the route makes itself. The middleware's limit is listed too."""
    with httpx.Client(headers={"x-user": "ann"}) as client:
        answers = [client.get(limited + "/own") for _ in range(4)]
    names = ("x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset", "retry-after")
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert answers[0].headers.get_list("ratelimit") == ['"every";r=999, "http";r=2;t=2']
    assert answers[0].headers.get_list("ratelimit-policy") == ['"every";q=1000;w=3600, "http";q=3;w=6']
    # The other fields are those of the limit that has the least left, once.
    assert [answers[0].headers.get(name) for name in names] == ["3", "2", "2", None]
    refused = [answers[3].headers.get(name) for name in names]
    assert refused == ["3", "0", "6", "2"] and '"http";r=0;t=2' in answers[3].headers["ratelimit"]


def test_of_the_limits_of_a_dependency_the_one_that_refuses_is_told(limited: str) -> None:
    with httpx.Client(headers={"x-user": "ann"}) as client:
        answers = [client.get(limited + "/exact") for _ in range(11)]
    assert [answer.status_code for answer in answers] == [200] * 10 + [429]
    assert '"hour";r=0;t=' in answers[10].headers["ratelimit"]
    assert 3590 <= int(answers[10].headers["retry-after"]) <= 3600


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("order", [1, -1])
def test_of_several_limits_the_one_with_the_least_left_is_told(
    server: servers.Server, wrapped: bool, order: int
) -> None:
    """By two dependencies, with a middleware or without it, and beside a field of the application."""
    cell, app = AsyncCell(redis.asyncio.Redis(port=server.port)), FastAPI()
    limits = [RateLimit(cell, Log(count, per=60), prefix=f"least{count}") for count in (5, 9)][::order]

    @app.get("/", dependencies=[Depends(limit) for limit in limits])
    async def plain() -> str:  # pyright: ignore[reportUnusedFunction]
        return "plain"

    @app.get("/own", dependencies=[Depends(limit) for limit in limits])
    async def own() -> Response:  # pyright: ignore[reportUnusedFunction]
        return Response(headers={"X-RateLimit-Remaining": "unknown", "X-RateLimit-Limit": "unknown"})

    if wrapped:
        app.add_middleware(RateLimitMiddleware)
    with serving(app) as url, httpx.Client() as client:
        for path, known in (("/", ["5", "4"]), ("/own", ["unknown", "unknown"])):
            answer = client.get(url + path)
            assert [answer.headers[f"x-ratelimit-{name}"] for name in ("limit", "remaining")] == known
        names = [member.split(";")[0] for member in client.get(url).headers["ratelimit"].split(", ")]
        assert names == ['"least5"', '"least9"'][::order]


def test_of_a_refusal_the_fields_are_those_of_the_limit_that_refused() -> None:
    """A request for five units was refused by a limit that has two left, and another limit has one left."""
    headers = MutableHeaders({"X-RateLimit-Remaining": "2", "Retry-After": "9"})
    add_fields(headers, [("RateLimit", '"other";r=1'), ("X-RateLimit-Remaining", "1")])
    assert headers["X-RateLimit-Remaining"] == "2" and headers["RateLimit"] == '"other";r=1'
    headers["X-RateLimit-Reset"] = "9"
    del headers["Retry-After"]
    add_fields(headers, [])  # those of a limit that was decided without the server
    assert headers["X-RateLimit-Reset"] == "9"


def test_clients_quantities_and_requests_without_a_limit(limited: str) -> None:
    with httpx.Client() as client:
        for _ in range(5):
            free = client.get(limited + "/own")
            assert free.status_code == 200 and "ratelimit" not in free.headers
        for name in ("ann", "bob"):
            assert client.get(limited + "/own?cost=3", headers={"x-user": name}).status_code == 200
            assert client.get(limited + "/own", headers={"x-user": name}).status_code == 429
        too_much = client.get(limited + "/own?cost=4", headers={"x-user": "cat"})
        assert too_much.status_code == 413 and "retry-after" not in too_much.headers
        first, second = (client.get(limited + "/decorated", headers={"x-user": "dan"}) for _ in range(2))
        assert first.json() == "decorated"
        assert second.status_code == 429 and second.headers["content-type"] == "application/problem+json"
        # The middleware lists its limit, and leaves the numbers of the one that refused.
        assert second.headers["x-ratelimit-remaining"] == "0" and second.headers["x-ratelimit-limit"] == "1"
        assert 3590 <= int(second.headers["retry-after"]) <= 3600


def test_of_a_total_no_wait_helps_but_only_what_exceeds_all_of_it_is_too_large(limited: str) -> None:
    with httpx.Client(headers={"x-user": "eve"}) as client:
        for cost, status, left in ((3, 413, 2), (1, 200, 1), (3, 413, 1), (2, 429, 1), (1, 200, 0), (1, 429, 0)):
            answer = client.get(f"{limited}/total?cost={cost}")
            assert answer.status_code == status, cost
            assert f'"total";r={left}' in answer.headers["ratelimit"]
            assert answer.headers["x-ratelimit-remaining"] == str(left)
            assert "retry-after" not in answer.headers and ("x-ratelimit-reset" in answer.headers) == (left == 2)


async def test_requests_wait_for_their_turn_and_block_nobody(limited: str) -> None:
    async with httpx.AsyncClient(headers={"x-user": "ann"}, timeout=30) as client:
        begun = time.monotonic()
        waits = [asyncio.ensure_future(client.post(limited + "/wait", json=number)) for number in range(20)]
        await asyncio.sleep(0.1)
        other = await client.get(limited + "/exact")
        assert other.status_code == 200 and not all(wait.done() for wait in waits)
        answers = await asyncio.gather(*waits)
        assert [answer.json() for answer in answers] == list(range(20))
        assert time.monotonic() - begun >= 0.9


async def test_a_client_that_leaves_while_it_waits_leaves_the_queue(server: servers.Server) -> None:
    with server.admin as admin, serving(waiting(server.port)) as url:
        async with httpx.AsyncClient(headers={"x-user": "ann"}, timeout=30) as client:
            assert (await client.post(url, content=b"one")).text == "one"
            leaving = asyncio.ensure_future(client.post(url, content=b"two"))
            await servers.until(lambda: server.counted("blocked_clients") == 1)
            staying = asyncio.ensure_future(client.post(url, content=b"three" * 100_000))
            await servers.until(lambda: server.counted("blocked_clients") == 2)
            leaving.cancel()
            await servers.until(lambda: server.counted("blocked_clients") == 1)
            admin.delete("{waiting:ann}:waiting")
            assert (await staying).text == "three" * 100_000
            assert not server.counted("blocked_clients")


async def test_a_request_that_cannot_be_read_leaves_the_queue(server: servers.Server) -> None:
    """Other middleware raises an error if a body is too large."""

    async def receive() -> Any:
        await servers.until(lambda: server.counted("blocked_clients") == 1)
        raise ValueError("too large")

    with server.admin as admin:
        admin.execute_command("CL.THROTTLE", "{waiting:ann}:waiting", 0, 1, 3600)
    with pytest.raises(ValueError, match="too large"):
        await waiting(server.port)({"type": "http", "headers": [(b"x-user", b"ann")]}, receive, receive)
    await servers.until(lambda: not server.counted("blocked_clients"))


async def test_a_request_that_does_not_wait_is_not_read(client: redis.asyncio.Redis) -> None:
    """To read it would ask a client that expects `100 Continue` for its body, also if the request is refused."""
    sent = list[Any]()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})

    async def receive() -> Any:
        pytest.fail("the request is read")

    async def send(message: Any) -> None:
        sent.append(message.get("status"))

    middleware = RateLimitMiddleware(app, RateLimit(AsyncCell(client), Fixed(1, per=3600)))
    for _ in range(2):
        await middleware({"type": "http", "headers": []}, receive, send)
    assert sent[:2] == [200, 429]


@pytest.mark.parametrize(("choice", "status"), [(FailOpen(), 200), (FailClosed(), 503)])
def test_without_the_server(choice: Any, status: int) -> None:
    client = httpx.Client(headers={"x-user": "ann"}, timeout=30)
    with servers.running() as server, serving(made(server.port, choice)) as url, client:
        assert client.get(url + "/exact").status_code == 200
        server.stop()
        for path in ("/exact", "/own", "/decorated"):
            answer = client.get(url + path)
            assert answer.status_code == status, path
            assert "ratelimit" not in answer.headers and "retry-after" not in answer.headers


def test_mistakes_are_told_as_such() -> None:
    with pytest.raises(TypeError, match="RateLimit needs an AsyncCell or an AsyncGuard, not Cell"):
        RateLimit(Cell(redis.Redis()), Rate(1, per=1))  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="a limit has a name, or prefix,"):
        RateLimit(AsyncCell(redis.asyncio.Redis()), {})
    with pytest.raises(ValueError, match="a limit has a name, or prefix,"):
        RateLimit(AsyncCell(redis.asyncio.Redis()), Rate(1, per=1), prefix="für Äpfel")
    with pytest.raises(TypeError, match="limit must be Rate, Bucket"):
        RateLimit(AsyncCell(redis.asyncio.Redis()), {"a": Lease(1, lease=1, holder="x")})  # type: ignore[dict-item]
