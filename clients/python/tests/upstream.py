"""An upstream that speaks as OpenAI and Anthropic do: it has a limit of its own, and counts what it sees."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

import servers

USAGE = {"prompt_tokens": 5, "completion_tokens": 5, "total_tokens": 10}


class Upstream:
    """Admits `limit` requests in any `period`, and refuses the others. `faults` are answered first."""

    def __init__(self, limit: int = 10**6, period: float = 60) -> None:
        self.limit, self.period = limit, period
        self.admitted: deque[float] = deque()
        self.seen: list[float] = []
        self.refused = 0
        self.faults: deque[tuple[int, dict[str, str]]] = deque()
        self.headers: Callable[[], dict[str, str]] = dict
        self.busy = self.most_busy = 0
        self.url = ""

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        status, headers = self.decide()
        content = json.dumps(answer(scope["path"], status)).encode()
        head = [
            (name.encode(), value.encode()) for name, value in {"content-type": "application/json", **headers}.items()
        ]
        await send({"type": "http.response.start", "status": status, "headers": head})
        await send({"type": "http.response.body", "body": content})

    def decide(self) -> tuple[int, dict[str, str]]:
        now = time.monotonic()
        self.seen.append(now)
        if self.faults:
            return self.faults.popleft()
        while self.admitted and self.admitted[0] <= now - self.period:
            self.admitted.popleft()
        if len(self.admitted) >= self.limit:
            self.refused += 1
            return 429, {"retry-after": "1", **self.headers()}
        self.admitted.append(now)
        return 200, self.headers()


def answer(path: str, status: int) -> dict[str, Any]:
    if status != 200:
        return {"error": {"message": "no", "type": "rate_limit_error", "code": "rate_limit_exceeded"}}
    if path.endswith("/messages"):
        content = [{"type": "text", "text": "hello"}]
        usage = {"input_tokens": 5, "output_tokens": 5}
        message = {"id": "1", "type": "message", "role": "assistant", "model": "fake", "stop_reason": "end_turn"}
        return {**message, "content": content, "stop_sequence": None, "usage": usage}
    choice = {"index": 0, "message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}
    return {"id": "1", "object": "chat.completion", "created": 1, "model": "fake", "choices": [choice], "usage": USAGE}


@contextmanager
def serving(upstream: Upstream) -> Iterator[Upstream]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(upstream, log_level="warning", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        upstream.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        try:
            servers.wait_until(lambda: server.started)
            yield upstream
        finally:
            server.should_exit = True
            thread.join()
