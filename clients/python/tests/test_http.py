"""flask-limiter and slowapi, with the storage named by its URI."""

from __future__ import annotations

import time
from typing import Any

import pytest
from fastapi import FastAPI, Request
from fastapi.responses import PlainTextResponse
from fastapi.testclient import TestClient
from flask import Flask
from flask_limiter import Limiter as FlaskLimiter
from slowapi import Limiter as SlowLimiter
from slowapi import _rate_limit_exceeded_handler as exceeded
from slowapi.errors import RateLimitExceeded

import redis_cell.limits  # noqa: F401, which registers the schemes
import servers

STRATEGIES = ["fixed-window", "moving-window", "sliding-window-counter", "gcra"]
LIMIT = "3 per 2 seconds"


def flask(**options: Any) -> Any:
    app = Flask("test")
    limiter = FlaskLimiter(lambda: "everybody", app=app, headers_enabled=True, **options)

    @app.get("/")
    @limiter.limit(LIMIT)
    def answer() -> str:  # pyright: ignore[reportUnusedFunction]
        return "answer"

    return app.test_client()


def fastapi(**options: Any) -> Any:
    app = FastAPI()
    app.state.limiter = limiter = SlowLimiter(lambda: "everybody", headers_enabled=True, **options)
    app.add_exception_handler(RateLimitExceeded, exceeded)  # type: ignore[arg-type]

    @app.get("/")
    @limiter.limit(LIMIT)
    async def answer(request: Request) -> Any:  # pyright: ignore[reportUnusedFunction]
        return PlainTextResponse("answer")

    return TestClient(app)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("made", [flask, fastapi], ids=["flask-limiter", "slowapi"])
def test_who_waits_as_long_as_retry_after_says_is_admitted(server: servers.Server, made: Any, strategy: str) -> None:
    uri = f"redis-cell://127.0.0.1:{server.port}?when_unavailable=fail_closed&socket_timeout=10"
    client = made(storage_uri=uri, strategy=strategy)
    for _ in range(2):
        while (answer := client.get("/")).status_code == 200:
            pass
        assert answer.status_code == 429
        time.sleep(int(answer.headers["Retry-After"]))
        assert client.get("/").status_code == 200
