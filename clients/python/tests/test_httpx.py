"""The transports for httpx and httpx2, with the SDKs of OpenAI and Anthropic, and the limiter of LangChain."""

from __future__ import annotations

import asyncio
import importlib
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import anthropic
import httpx
import openai
import pytest
import redis
import redis.asyncio
from langchain_openai import ChatOpenAI
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic import SecretStr

import servers
from redis_cell import AsyncCell, Cell, FailClosed, FailOpen, Fixed, Guard, Rate, Take, observe
from redis_cell.httpx import AsyncTransport, Transport, Turn, retry_after, seconds_of
from redis_cell.langchain import RateLimiter
from redis_cell.testing import FakeCell
from redis_cell.wire import Call
from upstream import Upstream, leaves_its_connection, serving

MESSAGES: Any = [{"role": "user", "content": "hello"}]
NEVER = Rate(1, per=3600, burst=0)


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    with serving(Upstream()) as upstream:
        yield upstream


@pytest.fixture
def cell(blocking: redis.Redis) -> Cell:
    return Cell(blocking)


def openai_client(cell: Any, upstream: Upstream, rate: Rate | None, retries: int = 0, **options: Any) -> openai.OpenAI:
    http = openai.DefaultHttpxClient(transport=Transport(cell, "upstream", rate, **options))
    return openai.OpenAI(api_key="k", base_url=upstream.url + "/v1", http_client=http, max_retries=retries)


def ask(client: openai.OpenAI) -> Any:
    return client.chat.completions.create(model="fake", messages=MESSAGES)


async def test_the_sdks_and_langchain_together_stay_within_the_limit(client: Any, cell: Cell) -> None:
    """With calls from threads, and with calls for asyncio, of which LangChain's come from threads too."""
    # As many requests in any second as the upstream admits: a burst of half, and the rate of the other half.
    rate, calls = Rate(10, per=1, burst=9), 8
    with serving(Upstream(limit=20, period=1)) as upstream:
        sync = openai_client(cell, upstream, rate)
        http = anthropic.DefaultAsyncHttpxClient(transport=AsyncTransport(AsyncCell(client), "upstream", rate))
        other = anthropic.AsyncAnthropic(api_key="k", base_url=upstream.url, http_client=http, max_retries=0)
        limiter = RateLimiter(cell, "{upstream}:requests", rate)
        chat = ChatOpenAI(model="fake", base_url=upstream.url + "/v1", api_key=SecretStr("k"), rate_limiter=limiter)
        with ThreadPoolExecutor() as threads:
            await asyncio.gather(
                *(asyncio.wrap_future(threads.submit(ask, sync)) for _ in range(calls)),
                *(other.messages.create(model="fake", max_tokens=5, messages=MESSAGES) for _ in range(calls)),
                chat.abatch(["hello"] * calls),
                asyncio.to_thread(chat.batch, ["hello"] * calls),
            )
        assert (upstream.refused, len(upstream.seen)) == (0, 4 * calls)


@pytest.mark.parametrize("library", ["httpx", "httpx2"])
async def test_both_libraries_take_the_transports(client: Any, cell: Cell, upstream: Upstream, library: str) -> None:
    httpx = importlib.import_module(library)
    rate = Rate(2, per=3600)
    transport = Transport(cell, "upstream", rate, max_wait=0)
    with httpx.Client(transport=transport) as http:
        assert http.get(upstream.url).status_code == 200
    inner = httpx.AsyncHTTPTransport()
    paced = AsyncTransport(AsyncCell(client), "upstream", rate, max_wait=0, transport=inner)
    async with httpx.AsyncClient(transport=paced) as http:
        assert (await http.get(upstream.url)).status_code == 200
        refused = await http.get(upstream.url)
    assert refused.status_code == 429
    assert 1700 <= int(refused.headers["retry-after"]) <= 1800
    assert len(upstream.seen) == 2


def test_a_cell_of_the_other_kind_is_told_as_such(cell: Cell) -> None:
    with pytest.raises(TypeError, match="Transport needs a Cell or a Guard, not AsyncCell"):
        Transport(AsyncCell(redis.asyncio.Redis()), "upstream", NEVER)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="AsyncTransport needs an AsyncCell or an AsyncGuard, not Cell"):
        AsyncTransport(cell, "upstream", NEVER)  # type: ignore[arg-type]


def test_a_transport_has_as_many_connections_as_an_sdk(cell: Cell, upstream: Upstream) -> None:
    upstream.together = count = 130
    client = openai_client(cell, upstream, None)
    with ThreadPoolExecutor(count) as threads:
        list(threads.map(lambda _: ask(client), range(count)))
    assert upstream.busiest == count


@pytest.mark.parametrize(
    ("headers", "rate"),
    [
        ({"ratelimit-limit": "10", "ratelimit-remaining": "9", "ratelimit-policy": "10;w=1"}, Rate(10, per=1)),
        ({"ratelimit-limit": "10, 10;w=1, 99;w=60", "ratelimit-remaining": "9"}, Rate(10, per=1)),
        (
            {"x-ratelimit-limit": "3", "x-ratelimit-remaining": "2", "ratelimit-policy": '"default";q=3;w=6'},
            Rate(3, per=6),
        ),
        ({"x-ratelimit-limit-requests": "50", "x-ratelimit-remaining-requests": "49"}, Rate.per_minute(50)),
        ({"x-ratelimit-limit": "5000", "x-ratelimit-remaining": "4999"}, None),  # GitHub's are of an hour
        ({"ratelimit-limit": "10;w=x", "ratelimit-remaining": "9"}, None),
    ],
)
def test_a_limit_is_learned_with_its_window(cell: Cell, headers: dict[str, str], rate: Rate | None) -> None:
    pacing = Transport(cell, "upstream").pacing
    takes = pacing.takes()
    list(pacing.learned(Turn(cell.mtake(*takes), takes, time.monotonic()), 200, headers))
    assert pacing.rate == rate


def test_a_429_stops_all_workers(cell: Cell, upstream: Upstream) -> None:
    rate = Rate.per_minute(6000)
    first, second = (openai_client(cell, upstream, rate) for _ in range(2))
    ask(second)
    upstream.faults.append((429, {"retry-after": "1"}))
    with pytest.raises(openai.RateLimitError):
        ask(first)
    ask(second)
    assert upstream.seen[2] - upstream.seen[1] >= 0.95


def test_the_retries_of_an_sdk_do_not_pay_twice(cell: Cell, upstream: Upstream) -> None:
    rate = Rate(3, per=3600)
    client = openai_client(cell, upstream, rate, retries=2, max_wait=5)
    for _ in range(3):
        upstream.faults.append((429, {"retry-after-ms": "50"}))
        ask(client)
    assert len(upstream.seen) == 6


def test_what_a_transport_refuses_is_not_tried_again(server: servers.Server, cell: Cell, upstream: Upstream) -> None:
    rate = Rate(1, per=5)
    client = openai_client(cell, upstream, rate, retries=2, max_wait=0)
    ask(client)
    taken = cell.peek("{upstream}:requests", rate)
    calls = server.calls("cl.mtake")
    with pytest.raises(openai.RateLimitError, match="max_wait"):
        ask(client)
    assert server.calls("cl.mtake") == calls + 1
    assert cell.peek("{upstream}:requests", rate).reset_after <= taken.reset_after
    assert len(upstream.seen) == 1


def test_a_request_that_was_not_sent_has_its_turn_back(cell: Cell) -> None:
    rate = Rate(2, per=3600)
    client = openai_client(cell, Upstream(), rate, max_wait=0)
    for url in ("http://127.0.0.1:1/v1", "ftp://127.0.0.1/v1") * 2:
        client.base_url = url
        with pytest.raises(openai.APIConnectionError):
            ask(client)
    # Units that came meanwhile are not given back.
    servers.wait_until(lambda: cell.peek("{upstream}:requests", rate).remaining == 2, 5)


def test_the_limit_of_the_upstream_is_learned(cell: Cell, upstream: Upstream) -> None:
    upstream.headers = lambda: {"x-ratelimit-limit-requests": "2", "x-ratelimit-remaining-requests": "1"}
    client = openai_client(cell, upstream, None, max_wait=0)
    ask(client)  # the first response has the limit
    ask(client)
    ask(client)
    with pytest.raises(openai.RateLimitError):
        ask(client)
    assert len(upstream.seen) == 3


def test_what_others_use_of_the_account_is_learned(cell: Cell, upstream: Upstream) -> None:
    remaining = iter([3, 2, 1, 0])
    headers = ("anthropic-ratelimit-requests-limit", "anthropic-ratelimit-requests-remaining")
    upstream.headers = lambda: dict(zip(headers, ("60", str(next(remaining))), strict=True))
    rate = Rate(60, per=86400)
    http = anthropic.DefaultHttpxClient(transport=Transport(cell, "upstream", rate, max_wait=0))
    client = anthropic.Anthropic(api_key="k", base_url=upstream.url, http_client=http, max_retries=0)
    client.messages.create(model="fake", max_tokens=5, messages=MESSAGES)
    # The header omits a fraction of a unit, and another unit may have come since the request was sent.
    assert cell.peek("{upstream}:requests", rate).remaining == 5


def test_slow_responses_do_not_slow_the_workers_down(cell: Cell, upstream: Upstream) -> None:
    # The units that remained when a request was sent do not include the units that have come since.
    transport = Transport(cell, "upstream", Rate.per_minute(600))
    pacing = transport.pacing
    takes = pacing.takes()
    turn = Turn(cell.mtake(*takes), takes, time.monotonic() - 61)
    headers = {"x-ratelimit-limit-requests": "600", "x-ratelimit-remaining-requests": "0"}
    assert list(pacing.learned(turn, 200, headers)) == []
    turn.since = time.monotonic()
    assert [call.name for call in pacing.learned(turn, 200, headers)] == ["CL.PAUSE"]


async def test_a_request_that_is_cancelled_behind_its_reply_leaves_its_connection(
    client: Any, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = httpx.AsyncHTTPTransport(limits=httpx.Limits(max_connections=1))
    transport = AsyncTransport(AsyncCell(client), "upstream", Rate(1000, per=1), transport=inner)
    upstream.faults.append((429, {"retry-after-ms": "1"}))
    await leaves_its_connection(upstream, transport, "CL.PAUSE", monkeypatch)


def test_the_times_in_headers_are_read() -> None:
    now = 1_700_000_000.0
    assert seconds_of("1.5", now) == 1.5
    assert seconds_of("1m30.5s", now) == 90.5
    assert seconds_of("20ms", now) == 0.02
    assert seconds_of("1700000009", now) == 9
    assert seconds_of("2023-11-14T22:13:30Z", now) == 10
    assert seconds_of("Tue, 14 Nov 2023 22:13:30 GMT", now) == 10
    assert seconds_of("soon", now) is None
    assert seconds_of("inf", now) is None
    assert retry_after({"retry-after-ms": "1500", "retry-after": "9"}, now) == 1.5
    assert retry_after({"x-ratelimit-reset-requests": "6m0s"}, now) == 360
    assert retry_after({}, now) is None


def test_only_a_429_that_names_a_limit_as_used_up_pauses_until_its_reset(cell: Cell) -> None:
    """Upstreams name the resets of their limits in each response, also in those of an outage."""
    pacing = Transport(cell, "upstream").pacing
    turn = Turn(cell.mtake(*pacing.takes()), pacing.takes(), time.monotonic())
    for status, left, pauses in ((503, "0", []), (529, "0", []), (429, "0", [360]), (429, "9", [1])):
        headers = {"x-ratelimit-remaining-requests": left, "x-ratelimit-reset-requests": "6m0s"}
        calls = [cast(Any, call.arguments) for call in pacing.learned(turn, status, headers)]
        assert [arguments[-2] // 1_000_000 for arguments in calls] == pauses


@pytest.mark.parametrize(("choice", "admitted"), [(FailOpen(), True), (FailClosed(ask_again=60), False)])
def test_a_guard_decides_without_the_server(upstream: Upstream, choice: Any, admitted: bool) -> None:
    with servers.running() as server, redis.Redis(port=server.port, socket_timeout=0.5) as client:
        asks = openai_client(Guard(Cell(client), when_unavailable=choice), upstream, Rate.per_minute(600), max_wait=0)
        ask(asks)
        server.stop()
        if admitted:
            ask(asks)
        else:
            with pytest.raises(openai.InternalServerError, match="the server of the rate limiter is unavailable"):
                ask(asks)
        assert len(upstream.seen) == 1 + admitted


async def test_the_limiter_of_langchain(client: Any, cell: Cell) -> None:
    limiter = RateLimiter(cell, "chain", NEVER, timeout=0.05)
    assert limiter.acquire(blocking=False)
    assert not limiter.acquire(blocking=False)
    assert not await limiter.aacquire(blocking=False)
    with pytest.raises(TimeoutError):
        limiter.acquire()
    with pytest.raises(TimeoutError):
        await limiter.aacquire()
    with pytest.raises(TimeoutError, match="no wait helps: 'total'"):
        await asyncio.gather(*(RateLimiter(cell, "total", Fixed.total(1)).aacquire() for _ in range(2)))
    fake = RateLimiter(FakeCell(), "fake", NEVER)  # type: ignore[arg-type]
    await asyncio.wait_for(asyncio.gather(fake.aacquire(), fake.aacquire()), 30)
    both = RateLimiter(cell, "both", Rate(1, per=0.2), async_cell=AsyncCell(client))
    begun = time.monotonic()
    await asyncio.gather(*(both.aacquire() for _ in range(3)))
    assert time.monotonic() - begun >= 0.4


def test_calls_are_spans(cell: Cell) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    observe(cell, tracer=provider.get_tracer("test"))
    cell.throttle("a", NEVER)
    cell.mtake(Take(b"\xff", NEVER), Take("a", NEVER))
    cell.charge("a", NEVER)
    with pytest.raises(redis.ResponseError):
        cell.run(Call("CL.NOTHING", "a", (), int))
    spans = exporter.get_finished_spans()
    seen = [(span.name, dict(span.attributes or {}).get("redis_cell.admitted"), span.status.is_ok) for span in spans]
    names = ["CL.THROTTLE", "CL.MTAKE", "CL.CHARGE", "CL.NOTHING"]
    assert seen == list(zip(names, [True, False, None, None], [True, True, True, False], strict=True))
    assert (spans[0].attributes or {})["redis_cell.decided_by"] == "server"
