"""Transports for httpx and httpx2, which charge budgets for the calls of models by the SDKs of agents.

    client = openai.AsyncOpenAI(http_client=openai.DefaultAsyncHttpxClient(transport=AsyncBudgetTransport(budget)))

Each call of a model is a step of the budget: it holds an estimate before it is sent, and settles the usage that the
reply reports, also at the end of a stream. If the budget is too small, BudgetExceeded is raised, and nothing is sent.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from email import message_from_bytes
from functools import cache, partial
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar, cast

from . import steps
from .accounts import RENEWALS
from .budgets import AsyncBudget, Budget, Dollars
from .httpx import AsyncCloses, Closes, Sends, library_of, never_sent
from .limiters import function, whole
from .steps import Steps
from .times import micros

B = TypeVar("B", Budget, AsyncBudget)

_log = logging.getLogger("redis_cell")

MAX_TOKENS = 1000
"""The estimated tokens of an answer if the request has no limit for them."""
LONGEST = 600.0
"""How long a hold is renewed while nothing comes, in seconds: as long as the SDKs wait."""
LAST = ("response.completed", "response.incomplete", "response.failed", "message_stop")
"""The types of events that end a stream."""
PARTS = ("messages", "input")
"""The entries of requests that can have pictures and files."""
TEXTS = (*PARTS, "prompt", "system", "instructions", "tools", "functions", "response_format", "text", "prediction")
"""The entries of requests that are tokens for the model."""
FILES = ("image_url", "input_image", "input_file", "file")
"""The types of the parts of messages that are pictures or files."""
DATA = ("image_url", "file", "file_data")
"""Their entries that have the data."""
FREE = ("/count_tokens", "/input_tokens", "/count-tokens:rawPredict")
"""The ends of the paths of requests that name a model and do not call it: they count tokens."""
NAMED = re.compile("/models/([^/]+):(?:rawPredict|streamRawPredict)$|/model/(.+)/invoke(?:-with-response-stream)?$")
"""The paths of requests that have the name of the model in place of their JSON: of Vertex AI and Bedrock."""
BEGUN = ("queued", "in_progress")
"""The statuses of responses that have not ended, whose usage is not known."""
STORED = {"GET": re.compile("/responses/([^/]+)$"), "POST": re.compile("/responses/([^/]+)/cancel$")}
"""The paths of requests that retrieve or cancel a response."""

Price: TypeAlias = Callable[[str, int, int], Dollars]
"""Returns the price of a call: of a model, for tokens of its prompt and tokens of its answer."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """The tokens that a request may use: for its prompt, and for its answer."""

    prompt: int
    answer: int

    def __post_init__(self) -> None:
        whole(self.prompt, "prompt")
        whole(self.answer, "answer")

    @property
    def tokens(self) -> int:
        return self.prompt + self.answer


def _bytes_of(content: object, files: bool, is_file: bool = False) -> int:
    """Returns the number of bytes of text in a request. Pictures and files are not text. They are data URLs in the
    parts of messages for them: elsewhere, a text can begin like a data URL."""
    if isinstance(content, str):
        return 0 if is_file and content.startswith("data:") else len(content.encode("utf-8", "replace"))
    if isinstance(content, Mapping):
        parts = cast(Mapping[object, object], content)
        own = files and parts.get("type") in FILES
        return sum(_bytes_of(part, files, is_file or (own and name in DATA)) for name, part in parts.items())
    if isinstance(content, (list, tuple)):
        return sum(_bytes_of(part, files, is_file) for part in cast(list[object], content))
    return 1 if isinstance(content, int) else 0  # the input of an embedding can be tokens


def estimate(data: Mapping[str, Any]) -> Estimate:
    """Estimates the tokens of a request: one for every two bytes of its text, and the longest answer that it allows.

    In most languages this estimate is too high. The request is settled with its real usage afterwards.
    """
    prompt = sum(_bytes_of(data.get(name), name in PARTS) for name in TEXTS)
    longest = 0
    if any(name in data for name in ("messages", "prompt", "max_output_tokens")):
        names = ("max_completion_tokens", "max_tokens", "max_output_tokens")
        given = [data[name] for name in names if isinstance(data.get(name), int)]
        longest = max(0, *given, 0) if given else MAX_TOKENS
        longest *= max(1, *(data[name] for name in ("n", "best_of") if isinstance(data.get(name), int)), 1)
        prompts: Any = data.get("prompt")
        if isinstance(prompts, list) and not isinstance(prompts[:1] and prompts[0], int):  # or it is one, of tokens
            longest *= max(1, len(cast(list[object], prompts)))
    return Estimate(-(-prompt // 2), min(longest, 10**9))


def _has_ended(choice: Mapping[str, Any]) -> bool:
    return choice.get("finish_reason") is not None


class Usage:
    """The usage that a reply reports, read from the bytes of the reply as they come."""

    def __init__(self, content_type: str) -> None:
        self._events = content_type.lower().startswith("text/event-stream")
        self._rest: list[bytes] = []
        self._found: dict[str, int] = {}
        self._began = False
        """Whether the last report is not that of a whole answer: of the beginning of a message, or of a part so far."""
        self.response = ""
        """The id of a response, by which it can be retrieved."""

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
            self._began = False
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
                choices: list[dict[str, Any]] = event.get("choices") or []
                self._began = self._events and bool(choices) and not any(map(_has_ended, choices))
            for part in filter(None, parts):
                if part.get("object") == "response":
                    self.response = str(part.get("id", ""))
                if part.get("status") in BEGUN:
                    continue
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


def _amounts(units: Collection[str], model: str, price: Price | None, tokens: Estimate) -> dict[str, Any]:
    """Returns what tokens of a model use of these units."""
    amounts = dict[str, Any]()
    if "tokens" in units:
        amounts["tokens"] = tokens.tokens
    if "dollars" in units:
        if price is None:
            raise ValueError("a budget with dollars needs a price")
        dollars: Any = price(model, tokens.prompt, tokens.answer)
        if dollars is None:
            raise ValueError(f"price must return dollars, but returns None for the model {model!r}")
        amounts["dollars"] = dollars
    return amounts


class _Call:
    """A call of a model, which is a step of a budget."""

    def __init__(self, budget: Any, data: Mapping[str, Any], estimated: Estimate, price: Price | None) -> None:
        self.model = str(data["model"])
        units = [unit for unit in ("tokens", "dollars") if budget.limit(unit) is not None]
        self.amounts = partial(_amounts, units, self.model, price)
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
        try:
            if not failed and (tokens := self.usage.tokens()) is not None:
                self.step.used(**self.amounts(tokens))
                self.usage.response = ""
        except Exception as error:  # the answer has been made, and a step that is not settled would cost nothing
            _log.warning("a call of the model %r is charged as estimated: %s", self.model, error)
        return failed

    def later(self, failed: bool) -> Steps[None]:
        """Lets the process that retrieves the response settle the usage, if this reply has not reported it."""
        if self.usage.response and not failed:
            try:
                yield from self.step._later(self.usage.response)
            except Exception as error:
                _log.warning("the response %r stays charged as estimated: %s", self.usage.response, error)


class _Sync(_Call):
    def enter(self) -> None:
        self.step.__enter__()
        threading.Thread(target=self.renew, daemon=True).start()

    def end(self, failed: bool = False) -> None:
        if not self.ended:
            self.ended = True
            self.over.set()
            self.step.__exit__(RuntimeError if self.spent(failed) else None, None, None)
            steps.run(self.later(failed))


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
            await steps.async_run(self.later(failed))


class _Retrieval:
    """A request for a response whose call was charged as estimated."""

    def __init__(self, budget: Any, response: str, price: Price | None) -> None:
        self.budget, self.response, self.price = budget, response, price
        self.usage = Usage("")
        self.ended = False

    def read(self, data: bytes) -> bool:
        return self.usage.read(data)

    def settle(self, failed: bool) -> Steps[None]:
        ended, self.ended = self.ended, True
        try:
            if not (ended or failed) and (tokens := self.usage.tokens()) is not None:
                usage = partial(_amounts, price=self.price, tokens=tokens)
                yield from self.budget._settle_later(self.response, usage)
        except Exception as error:
            _log.warning("the response %r stays charged as estimated: %s", self.response, error)


class _SyncRetrieval(_Retrieval):
    def end(self, failed: bool = False) -> None:
        steps.run(self.settle(failed))


class _AsyncRetrieval(_Retrieval):
    async def end(self, failed: bool = False) -> None:
        await steps.async_run(self.settle(failed))


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


def _fields_of(request: Any) -> dict[str, Any]:
    """Returns the texts of a form, which is how audio, and images that are to be changed, are sent."""
    head = f"content-type: {request.headers['content-type']}\r\n\r\n".encode()
    form = message_from_bytes(head + request.content)
    parts = cast(list[Any], form.get_payload()) if form.is_multipart() else []
    fields = {
        str(part.get_param("name", header="content-disposition")): part.get_payload(decode=True).decode(
            "utf-8", "replace"
        )
        for part in parts
        if part.get_filename() is None
    }
    return {"prompt": "", **fields}  # for the estimate of the answer


def _data_of(request: Any) -> dict[str, Any] | None:
    """Returns the call of a model in a request, or None if the request is another one."""
    library = library_of(request)
    if request.method != "POST" or request.url.path.endswith(FREE):
        return None
    is_form = request.headers.get("content-type", "").startswith("multipart/form-data")
    # The request after a redirection has it in memory, and has not read it. Neither has a form with its files.
    if isinstance(request.stream, Iterable if is_form else library.ByteStream):
        request.read()
    with suppress(ValueError, TypeError, library.RequestNotRead):
        data = _fields_of(request) if is_form else json.loads(request.content)
        if in_path := NAMED.search(request.url.path):
            data["model"] = in_path[1] or in_path[2]
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
    _retrieval: ClassVar[type[_Retrieval]]
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
        function(estimate, "estimate")
        if price is not None:
            function(price, "price")
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
        path = STORED.get(request.method)
        stored = path.search(request.url.path) if path else None
        if data is None and stored is None:
            return (yield partial(send, request))
        budget = self.budget if isinstance(self.budget, self._budget) else self.budget()
        self._check(budget, self.price)
        if data is None:
            assert stored is not None
            request.headers["accept-encoding"] = "identity"
            response = yield partial(send, request)
            return (yield from self._read(response, self._retrieval(budget, stored[1], self.price), base))
        call: Any = self._call(budget, data, self.estimate(data), self.price)
        yield call.enter
        try:
            response = yield partial(send, _with_usage(request, data))
        except BaseException as error:
            # A request that may have reached the upstream is charged as estimated.
            yield partial(call.end, isinstance(error, Exception) and never_sent(request, error))
            raise
        return (yield from self._read(response, call, base))

    def _read(self, response: Any, call: Any, base: Any) -> Steps[Any]:
        """Returns the response, whose usage the call settles when it is known."""
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

    _budget, _call, _retrieval, _stream = Budget, _Sync, _SyncRetrieval, _Stream

    def handle_request(self, request: Any) -> Any:
        send = self.sender(request).handle_request
        return steps.run(self._handled(request, send, library_of(request).SyncByteStream))


class AsyncBudgetTransport(_BudgetTransport[AsyncBudget], AsyncCloses):
    """Like BudgetTransport, but for httpx.AsyncClient and httpx2.AsyncClient, with an AsyncBudget."""

    _budget, _call, _retrieval, _stream = AsyncBudget, _Async, _AsyncRetrieval, _AsyncStream

    async def handle_async_request(self, request: Any) -> Any:
        send = self.sender(request).handle_async_request
        return await steps.async_run(self._handled(request, send, library_of(request).AsyncByteStream))


__all__ = ["AsyncBudgetTransport", "BudgetTransport", "Estimate", "estimate"]
