"""flask-limiter and slowapi, with the storage named by its URI, over real sockets."""

from __future__ import annotations

import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import werkzeug.serving
from fastapi import FastAPI, Request
from fastapi.responses import PlainTextResponse
from flask import Flask
from flask_limiter import Limiter as FlaskLimiter
from slowapi import Limiter as SlowLimiter
from slowapi import _rate_limit_exceeded_handler as exceeded
from slowapi.errors import RateLimitExceeded

import redis_cell.limits  # noqa: F401, which registers the schemes
import servers
from uvicorn_thread import serving

STRATEGIES = ["fixed-window", "moving-window", "sliding-window-counter", "gcra"]


@contextmanager
def flask(uri: str, strategy: str, limit: str = "10/hour") -> Iterator[str]:
    app = Flask("test")
    limiter = FlaskLimiter(lambda: "everybody", app=app, storage_uri=uri, strategy=strategy, headers_enabled=True)

    if "fail_closed" in uri:

        @app.errorhandler(429)
        def refused(error: Any) -> Any:  # pyright: ignore[reportUnusedFunction]
            storage: Any = limiter.storage
            return ("no decision", 503) if storage.guard.unavailable else error

    @app.get("/")
    @limiter.limit(limit)
    def answer() -> str:  # pyright: ignore[reportUnusedFunction]
        return "answer"

    server = werkzeug.serving.make_server("127.0.0.1", 0, app, threaded=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def fastapi(uri: str, strategy: str, limit: str = "10/hour") -> Iterator[str]:
    app = FastAPI()
    limiter = SlowLimiter(lambda: "everybody", storage_uri=uri, strategy=strategy, headers_enabled=True)
    app.state.limiter = limiter

    def refused(request: Request, error: Any) -> Any:
        storage: Any = limiter._storage  # pyright: ignore[reportPrivateUsage]
        if "fail_closed" in uri and storage.guard.unavailable:
            return PlainTextResponse("no decision", 503)
        return exceeded(request, error)

    app.add_exception_handler(RateLimitExceeded, refused)

    @app.get("/")
    @limiter.limit(limit)
    async def answer(request: Request) -> Any:  # pyright: ignore[reportUnusedFunction]
        return PlainTextResponse("answer")

    with serving(app) as url:
        yield f"{url}/"


def statuses(url: str, count: int) -> list[int]:
    def get(_: int) -> int:
        try:
            with urllib.request.urlopen(url) as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            if error.code == 429:
                # slowapi and flask-limiter send when to try again.
                # A sliding window says a twentieth of an hour more: that is when half a unit of ten is gone.
                assert 0 <= int(error.headers["Retry-After"]) <= 3600 * 21 / 20 + 2
            return error.code

    with ThreadPoolExecutor(8) as pool:
        return sorted(pool.map(get, range(count)))


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("serve", [flask, fastapi], ids=["flask-limiter", "slowapi"])
def test_who_waits_as_long_as_retry_after_says_is_admitted(
    server: servers.Server, serve: Callable[..., Any], strategy: str
) -> None:
    uri = f"redis-cell://127.0.0.1:{server.port}?when_unavailable=fail_closed&socket_timeout=10"
    with serve(uri, strategy, "3 per 2 seconds") as url:
        for _ in range(2):
            with pytest.raises(urllib.error.HTTPError) as refusal:
                while True:
                    urllib.request.urlopen(url).close()
            time.sleep(int(refusal.value.headers["Retry-After"]))
            urllib.request.urlopen(url).close()


@pytest.mark.parametrize(("query", "admitted"), [("fail_open", 20), ("fail_closed", 0), ("local&share=5", 2)])
@pytest.mark.parametrize("serve", [flask, fastapi], ids=["flask-limiter", "slowapi"])
def test_the_server_goes_and_comes_back(serve: Callable[..., Any], query: str, admitted: int) -> None:
    with servers.running() as server:
        uri = f"redis-cell://127.0.0.1:{server.port}?when_unavailable={query}&ask_again=0.05&socket_timeout=5"
        with serve(uri, "gcra") as url:
            assert statuses(url, 20) == [200] * 10 + [429] * 10
            server.stop()
            # Without a decision it is not the client's fault.
            refused = 503 if query == "fail_closed" else 429
            assert statuses(url, 20) == [200] * admitted + [refused] * (20 - admitted)
            assert server.start()
            servers.wait_until(lambda: statuses(url, 1) and server.calls("cl.throttle"))
            with server.admin as admin:
                admin.flushall()
            assert statuses(url, 20) == [200] * 10 + [429] * 10
