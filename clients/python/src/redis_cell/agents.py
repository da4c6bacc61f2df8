"""Transports for httpx and httpx2, which charge budgets for the calls of models by the SDKs of agents.

    client = openai.AsyncOpenAI(http_client=openai.DefaultAsyncHttpxClient(transport=AsyncBudgetTransport(budget)))

Each call of a model is a step of the budget: it holds an estimate before it is sent, and settles the usage that the
reply reports, also at the end of a stream. If the budget is too small, BudgetExceeded is raised, and nothing is sent.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar, cast

from . import steps
from .accounts import RENEWALS
from .budgets import AsyncBudget, Budget, Dollars
from .httpx import AsyncCloses, Closes, Sends, library_of, never_sent
from .limiters import function
from .steps import Steps
from .times import micros

B = TypeVar("B", Budget, AsyncBudget)

MAX_TOKENS = 1000
"""The estimated tokens of an answer if the request has no limit for them."""
LONGEST = 600.0
"""How long a hold is renewed while nothing comes, in seconds: as long as the SDKs wait."""
LAST = ("response.completed", "response.incomplete", "response.failed", "message_stop")
"""The types of events that end a stream."""
FREE = ("/count_tokens", "/input_tokens")
"""The ends of the paths of requests that name a model and do not call it: they count tokens."""

Price: TypeAlias = Callable[[str, int, int], Dollars]
"""Returns the price of a call: of a model, for tokens of its prompt and tokens of its answer."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """The tokens that a request may use: for its prompt, and for its answer."""

    prompt: int
    answer: int

    @property
    def tokens(self) -> int:
        return self.prompt + self.answer


def _bytes_of(content: object) -> int:
    """Returns the number of bytes of text in a request. Pictures and files, which are data URLs, are not text."""
    if isinstance(content, str):
        return 0 if content.startswith("data:") else len(content.encode("utf-8", "replace"))
    if isinstance(content, Mapping):
        return sum(_bytes_of(part) for part in cast(Mapping[object, object], content).values())
    if isinstance(content, (list, tuple)):
        return sum(_bytes_of(part) for part in cast(list[object], content))
    return 1 if isinstance(content, int) else 0  # the input of an embedding can be tokens


def estimate(data: Mapping[str, Any]) -> Estimate:
    """Estimates the tokens of a request: one for every two bytes of its text, and the longest answer that it allows.

    In most languages this estimate is too high. The request is settled with its real usage afterwards.
    """
    texts = ("messages", "prompt", "input", "system", "instructions", "tools")
    prompt = sum(_bytes_of(data.get(name)) for name in texts)
    longest = 0
    if any(name in data for name in ("messages", "prompt", "max_output_tokens")):
        names = ("max_completion_tokens", "max_tokens", "max_output_tokens")
        given = [data[name] for name in names if isinstance(data.get(name), int)]
        choices = data.get("n")
        longest = max(0, *given, 0) if given else MAX_TOKENS
        longest *= max(1, choices) if isinstance(choices, int) else 1
    return Estimate(-(-prompt // 2), min(longest, 10**9))


class Usage:
    """The usage that a reply reports, read from the bytes of the reply as they come."""

    def __init__(self, content_type: str) -> None:
        self._events = content_type.startswith("text/event-stream")
        self._rest: list[bytes] = []
        self._found: dict[str, int] = {}
        self._began = False
        """Whether the last report is that of the beginning of a message, whose answer has not come yet."""

    def read(self, data: bytes) -> bool:
        """Reads bytes. Returns whether they had the last event of a stream."""
        self._rest.append(data)  # joined once: a large reply comes in thousands of parts
        if not self._events or b"\n" not in data:
            return False
        *lines, rest = b"".join(self._rest).split(b"\n")
        self._rest = [rest]
        return any([self._event(line) for line in lines])

    def _event(self, line: bytes) -> bool:
        data = line[5:].strip() if line.startswith(b"data:") else b""
        if data == b"[DONE]":
            return True
        if b'"usage"' not in data and b"message_stop" not in data:
            return False
        return self._note(data) in LAST

    def _note(self, data: bytes) -> object:
        with suppress(ValueError, AttributeError):
            event: Any = json.loads(data)
            parts: list[Any] = [event, event.get("response"), event.get("message")]
            kind = event.get("type")
            if kind == "message_start":
                self._began = True
            elif event.get("usage") or kind in LAST:
                self._began = False
            for part in filter(None, parts):
                counts: dict[str, Any] = part.get("usage") or {}
                self._found |= {name: count for name, count in counts.items() if isinstance(count, int)}
            return kind
        return None

    def tokens(self) -> Estimate | None:
        """Returns the tokens of the prompt and of the answer, or None if they were not reported."""
        rest, self._rest = b"".join(self._rest), []
        (self._event if self._events else self._note)(rest)
        found = self._found
        if not found or self._began:
            return None
        prompt = found.get("prompt_tokens")
        if prompt is None:
            # Anthropic does not count those of the cache among them. LiteLLM does, under the other name.
            cached = found.get("cache_creation_input_tokens", 0) + found.get("cache_read_input_tokens", 0)
            prompt = found.get("input_tokens", 0) + cached
        answer = found.get("completion_tokens", found.get("output_tokens", 0))
        return Estimate(prompt, max(answer, found.get("total_tokens", 0) - prompt))


class _Call:
    """A call of a model, which is a step of a budget."""

    def __init__(self, budget: Any, data: Mapping[str, Any], estimated: Estimate, price: Price | None) -> None:
        self.model, self.price = str(data["model"]), price
        self.units = [unit for unit in ("tokens", "dollars") if budget.limit(unit) is not None]
        self.step: Any = budget.step(self.model, **self.amounts(estimated))
        self.pause: float = micros(budget.run.period, "period") / RENEWALS / 1_000_000
        self.usage = Usage("")
        self.heard = time.monotonic()
        self.ended = False
        self.over = threading.Event()

    def is_slow(self) -> bool:
        """Whether the client may have dropped the reply before its end."""
        return time.monotonic() > self.heard + LONGEST

    def read(self, data: bytes) -> bool:
        self.heard = time.monotonic()
        return self.usage.read(data)

    def amounts(self, tokens: Estimate) -> dict[str, Any]:
        amounts = dict[str, Any]()
        if "tokens" in self.units:
            amounts["tokens"] = tokens.tokens
        if "dollars" in self.units:
            if self.price is None:
                raise ValueError("a budget with dollars needs a price")
            price: Any = self.price(self.model, tokens.prompt, tokens.answer)
            if price is None:
                raise ValueError(f"price must return dollars, but returns None for the model {self.model!r}")
            amounts["dollars"] = price
        return amounts

    def renew(self) -> None:
        """Renews the hold of a call that is not yet over. Runs in a thread."""
        while not (self.over.wait(self.pause) or self.is_slow()):
            with suppress(Exception):  # the next time may succeed, and the settlement is exact without a hold too
                self.step.renew()

    async def async_renew(self) -> None:
        while not self.is_slow():
            await asyncio.sleep(self.pause)
            with suppress(Exception):
                await self.step.renew()

    def spent(self, failed: bool) -> bool:
        """Reports the usage of the call. Returns whether the call has failed, and used nothing."""
        if not failed and (tokens := self.usage.tokens()) is not None:
            self.step.used(**self.amounts(tokens))
        return failed


class _Sync(_Call):
    def enter(self) -> None:
        self.step.__enter__()
        threading.Thread(target=self.renew, daemon=True).start()

    def end(self, failed: bool = False) -> None:
        if not self.ended:
            self.ended = True
            self.over.set()
            self.step.__exit__(RuntimeError if self.spent(failed) else None, None, None)


class _Async(_Call):
    renewing: asyncio.Task[None]

    async def enter(self) -> None:
        await self.step.__aenter__()
        self.renewing = asyncio.ensure_future(self.async_renew())

    async def end(self, failed: bool = False) -> None:
        if not self.ended:
            self.ended = True
            self.renewing.cancel()
            await self.step.__aexit__(RuntimeError if self.spent(failed) else None, None, None)


class _Stream:
    """The body of a reply, which settles the call before its last bytes are returned."""

    def __init__(self, stream: Any, call: Any) -> None:
        self.stream, self.call = stream, call

    def __iter__(self) -> Iterator[bytes]:
        for data in self.stream:
            if self.call.read(data):
                self.call.end()
            yield data
        self.call.end()

    def close(self) -> None:
        try:
            self.stream.close()
        finally:
            self.call.end()


class _AsyncStream(_Stream):
    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for data in self.stream:
            if self.call.read(data):
                await self.call.end()
            yield data
        await self.call.end()

    async def aclose(self) -> None:
        try:
            await self.stream.aclose()
        finally:
            await self.call.end()


def _data_of(request: Any) -> dict[str, Any] | None:
    """Returns the call of a model in a request, or None if the request is another one."""
    library = library_of(request)
    if request.url.path.endswith(FREE):
        return None
    if isinstance(request.stream, library.ByteStream):
        request.read()  # the request after a redirection has it in memory, and has not read it
    with suppress(ValueError, library.RequestNotRead):
        data = json.loads(request.content) if request.method == "POST" else None
        if isinstance(data, dict) and isinstance(cast(dict[str, Any], data).get("model"), str):
            # An estimate tells the requests of this API from embeddings by the name of their longest answer.
            named = {"max_output_tokens": None} if request.url.path.endswith("/responses") else {}
            return {**named, **cast(dict[str, Any], data)}
    return None


def _with_usage(request: Any, data: dict[str, Any]) -> Any:
    """Returns the request that makes the upstream report its usage, in bytes that can be read."""
    headers = request.headers.copy()
    headers["accept-encoding"] = "identity"
    content = request.content
    if data.get("stream") and "stream_options" not in data and request.url.path.endswith("/chat/completions"):
        content = json.dumps({**data, "stream_options": {"include_usage": True}}).encode()
        headers["content-length"] = str(len(content))
    make = library_of(request).Request
    return make(request.method, request.url, headers=headers, content=content, extensions=request.extensions)


@cache
def _of(kind: Any, base: Any) -> Any:
    """Returns a kind of streams of httpx or httpx2."""
    return type(kind.__name__, (kind, base), {})


class _BudgetTransport(Sends, Generic[B]):
    """The common part of BudgetTransport and AsyncBudgetTransport."""

    _budget: ClassVar[type[Budget] | type[AsyncBudget]]
    _call: ClassVar[type[_Call]]
    _stream: ClassVar[Any]

    def __init__(
        self,
        budget: B | Callable[[], B],
        *,
        price: Price | None = None,
        estimate: Callable[[Mapping[str, Any]], Estimate] = estimate,
        transport: Any = None,
    ) -> None:
        given: Any = budget
        if isinstance(given, self._budget):
            self._check(given, price)
        elif isinstance(given, (Budget, AsyncBudget)) or not callable(given):
            raise TypeError(f"{type(self).__name__} needs a {self._budget.__name__}, or a function, not {given!r}")
        for name, given in (("price", price), ("estimate", estimate)):
            if given is not None:
                function(given, name)
        super().__init__(transport)
        self.budget: Any = budget
        self.price, self.estimate = price, estimate

    def _check(self, budget: Any, price: Price | None) -> None:
        if not isinstance(budget, self._budget):
            raise TypeError(f"the budget of a call must be of the kind {self._budget.__name__}, not {budget!r}")
        if price is None and budget.limit("dollars") is not None:
            raise ValueError(f"the budget {budget.name!r} has dollars, so price must be a function")

    def _handled(self, request: Any, send: Callable[[Any], Any], base: Any) -> Steps[Any]:
        data = _data_of(request)
        if data is None:
            return (yield partial(send, request))
        budget = self.budget if isinstance(self.budget, self._budget) else self.budget()
        self._check(budget, self.price)
        call: Any = self._call(budget, data, self.estimate(data), self.price)
        yield call.enter
        try:
            response = yield partial(send, _with_usage(request, data))
        except BaseException as error:
            # A request that may have reached the upstream is charged as estimated.
            yield partial(call.end, isinstance(error, Exception) and never_sent(request, error))
            raise
        call.usage = Usage(response.headers.get("content-type", ""))
        failed = response.status_code >= 300
        if failed or response.is_closed:  # a reply that was made in memory is closed, and nobody reads its stream
            if not failed:
                call.read(response.content)
            try:
                yield partial(call.end, failed)
            except BaseException:
                yield getattr(response.stream, self._closes)  # the connection goes back to its pool
                raise
            return response
        response.stream = _of(self._stream, base)(response.stream, call)
        return response


class BudgetTransport(_BudgetTransport[Budget], Closes):
    """A transport for httpx.Client and httpx2.Client, in which each call of a model is a step of a budget.

    `budget` is a Budget, or a function that returns the budget of a call. A call holds the estimate of `estimate`, and
    settles the usage that its reply reports. The step has the name of the model. A budget with dollars needs `price`,
    which returns the price of a model's tokens. BudgetExceeded is raised if too little is left for a call. `transport`
    sends the requests; by default it has as many connections as in the SDKs.
    """

    _budget, _call, _stream = Budget, _Sync, _Stream

    def handle_request(self, request: Any) -> Any:
        send = self.sender(request).handle_request
        return steps.run(self._handled(request, send, library_of(request).SyncByteStream))


class AsyncBudgetTransport(_BudgetTransport[AsyncBudget], AsyncCloses):
    """Like BudgetTransport, but for httpx.AsyncClient and httpx2.AsyncClient, with an AsyncBudget."""

    _budget, _call, _stream = AsyncBudget, _Async, _AsyncStream

    async def handle_async_request(self, request: Any) -> Any:
        send = self.sender(request).handle_async_request
        return await steps.async_run(self._handled(request, send, library_of(request).AsyncByteStream))


__all__ = ["AsyncBudgetTransport", "BudgetTransport", "Estimate", "estimate"]
