"""An upstream with the interfaces of OpenAI and Anthropic, which has a limit of its own, and counts requests."""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

import uvicorn_thread
from redis_cell import AsyncCell


class Upstream:
    """Admits `limit` requests in any `period`, and refuses the others. `faults` are answered first."""

    def __init__(self, limit: int = 10**6, period: float = 60) -> None:
        self.limit, self.period = limit, period
        self.admitted: deque[float] = deque()
        self.seen: list[float] = []
        self.who: list[str] = []
        """The last message of each request, or its input."""
        self.refused = 0
        self.faults: deque[tuple[int, dict[str, str]]] = deque()
        self.headers: Callable[[], dict[str, str]] = dict
        self.delay = 0.0
        """How long an answer takes, in seconds."""
        self.tokens = 0
        """The tokens of all answers."""
        self.report: dict[str, int] | None = None
        """The usage that it reports, if not that of the answer."""
        self.busy = self.busiest = 0
        """The requests under way now, and the most of them ever."""
        self.together = 0
        """No request is answered before so many have been under way at once, for ten seconds at most."""
        self.url = ""

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        if scope["path"].endswith("/models"):  # LiteLLM asks what there is
            await start(send, 404, {})
            await write(send, b"", False)
            return
        if "/batches/" in scope["path"] or "/files/" in scope["path"]:
            await start(send, 200, {"content-type": "application/json"})
            await write(send, batch(scope["path"]), False)
            return
        if scope["method"] == "GET" and "/responses/" in scope["path"]:  # a stored one
            await start(send, 200, {"content-type": "application/json"})
            await write(send, json.dumps(answer("/responses", 200, 10)).encode(), False)
            return
        self.busy += 1
        self.busiest = max(self.busy, self.busiest)
        try:
            await self.answer(scope["path"], json.loads(body or b"{}"), send)
        finally:
            self.busy -= 1

    async def answer(self, path: str, request: dict[str, Any], send: Any) -> None:
        said = (request.get("messages") or [{}])[-1].get("content") or request.get("input", "")
        self.who.append(str(said))
        status, headers = self.decide()
        completion = max(1, request.get("max_tokens", request.get("max_output_tokens", 10)) // 2)
        end = time.monotonic() + 10
        while self.busiest < self.together and time.monotonic() < end:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0 if request.get("stream") else self.delay)
        if request.get("stream") and status == 200:
            await start(send, 200, {"content-type": "text/event-stream", **headers})
            if "x-error" in headers:
                error = answer(path, 503, 0, headers["x-error"])
                await write(send, b"data: " + json.dumps(error).encode() + b"\n\n", False)
                return
            for number in range(completion):
                await write(send, chunk({"choices": [{"index": 0, "delta": {"content": "word "}}]}), True)
                self.tokens += 1 + (5 if number == 0 else 0)
                await asyncio.sleep(self.delay)
            end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
            await write(send, chunk(end) + chunk({"choices": [], "usage": usage(completion)}), True)
            await write(send, b"data: [DONE]\n\n", False)
            return
        if status == 200:
            self.tokens += 5 + completion
        await start(send, status, {"content-type": "application/json", **headers})
        content = answer(path, status, completion, headers.get("x-error", "no"))
        content |= {} if self.report is None else {"usage": self.report}
        await write(send, json.dumps(content).encode(), False)

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


async def start(send: Any, status: int, headers: dict[str, str]) -> None:
    head = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": head})


async def write(send: Any, body: bytes, more: bool) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": more})


def usage(completion: int) -> dict[str, int]:
    return {"prompt_tokens": 5, "completion_tokens": completion, "total_tokens": 5 + completion}


def chunk(content: dict[str, Any]) -> bytes:
    head = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "fake"}
    return b"data: " + json.dumps({**head, **content}).encode() + b"\n\n"


def answer(path: str, status: int, completion: int, error: str = "no") -> dict[str, Any]:
    if status != 200:
        kind = "rate_limit_exceeded" if status == 429 else "server_error"
        return {"error": {"message": error, "type": kind, "code": kind}}
    if path.endswith("/messages"):
        content = [{"type": "text", "text": "hello"}]
        used = {"input_tokens": 5, "output_tokens": completion}
        message = {"id": "1", "type": "message", "role": "assistant", "model": "fake", "stop_reason": "end_turn"}
        return {**message, "content": content, "stop_sequence": None, "usage": used}
    if path.endswith("/responses"):
        text = {"type": "output_text", "text": "hello", "annotations": []}
        output = {"type": "message", "id": "1", "status": "completed", "role": "assistant", "content": [text]}
        used = {"input_tokens": 5, "output_tokens": completion, "total_tokens": 5 + completion}
        details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
        head = {"id": "1", "object": "response", "created_at": 1, "model": "fake", "status": "completed"}
        tools = {"parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
        return {**head, **tools, "output": [output], "usage": {**used, **details}}
    if path.endswith("/embeddings"):
        rows = [{"object": "embedding", "index": 0, "embedding": [0.5]}]
        return {"object": "list", "data": rows, "model": "fake", "usage": {"prompt_tokens": 5, "total_tokens": 5}}
    choice: dict[str, Any] = {"index": 0, "finish_reason": "stop"}
    if path.endswith("/chat/completions"):
        choice["message"] = {"role": "assistant", "content": "hello"}
    else:
        choice["text"] = "hello"
    head = {"id": "1", "object": "chat.completion", "created": 1, "model": "fake"}
    return {**head, "choices": [choice], "usage": usage(completion)}


def batch(path: str) -> bytes:
    """A batch that has ended, or the file of its answers."""
    if path.endswith("/content"):
        bodies = [{"model": "fake", "usage": usage(completion)} for completion in (20, 40)]
        rows = [{"id": "1", "custom_id": "1", "response": {"status_code": 200, "body": body}} for body in bodies]
        return "\n".join(map(json.dumps, rows)).encode()
    head = {"id": path.rpartition("/")[2], "object": "batch", "endpoint": "/v1/chat/completions", "status": "completed"}
    times = {"created_at": 1, "completion_window": "24h"}
    counted = {"total": 2, "completed": 2, "failed": 0}
    return json.dumps(
        {**head, **times, "input_file_id": "in", "output_file_id": "out", "request_counts": counted}
    ).encode()


@contextmanager
def serving(upstream: Upstream) -> Iterator[Upstream]:
    with uvicorn_thread.serving(upstream, timeout_keep_alive=600) as upstream.url:
        yield upstream


async def leaves_its_connection(upstream: Upstream, transport: Any, name: str, patch: pytest.MonkeyPatch) -> None:
    """A request is cancelled during the call with this name, and another one has the only connection after it."""
    run, begun = AsyncCell.run, asyncio.Event()

    async def slow(cell: AsyncCell, call: Any, ready: Any = None) -> Any:
        if call.name == name:
            begun.set()
            await asyncio.sleep(0.1)
        return await run(cell, call, ready)

    patch.setattr(AsyncCell, "run", slow)
    async with httpx.AsyncClient(transport=transport, timeout=5) as http:
        body = {"model": "fake", "messages": [{"role": "user", "content": "hello"}]}
        asks: dict[str, Any] = {"url": upstream.url + "/v1/chat/completions", "json": body}
        call = asyncio.ensure_future(http.post(**asks))
        await begun.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert (await http.post(**asks)).status_code == 200
