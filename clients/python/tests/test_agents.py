"""Agents of OpenAI's Agents SDK, of LangGraph and of Pydantic AI, whose model always wants to search again."""

from __future__ import annotations

import asyncio
import json
import threading
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any

import agents
import httpx
import openai
import pydantic_ai
import pytest
import redis
import redis.asyncio
from agents.models.openai_chatcompletions import OpenAIChatCompletionsModel
from agents.models.openai_responses import OpenAIResponsesModel
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.models.openai import OpenAIResponsesModel as PydanticResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from redis_cell import AsyncBudget, AsyncCell, Budget, BudgetExceeded, Cell
from redis_cell.agents import AsyncBudgetTransport, BudgetTransport, Estimate, Usage, estimate
from redis_cell.testing import AsyncFakeCell, FakeCell
from upstream import Upstream, answer, chunk, leaves_its_connection, serving, start, write

agents.set_tracing_disabled(True)
SEARCH = 7
"""The tokens of a search."""
ANSWER = 50
"""The longest answer that the agents allow."""


class Model(Upstream):
    """A model that always calls its tool twice at once. What it reports grows, but is below the estimate."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[dict[str, Any]] = []
        self.uses: list[Estimate] = []
        self.longest = ANSWER
        self.thinking = 0
        """The requests whose answers have not begun."""
        self.breaks = False
        """Whether a stream breaks off in the middle."""

    @property
    def reports(self) -> list[int]:
        return [used.tokens for used in self.uses]

    async def answer(self, path: str, request: dict[str, Any], send: Any) -> None:
        status, headers = self.decide()
        self.requests.append(request)
        self.thinking += 1
        await asyncio.sleep(self.delay)
        self.thinking -= 1
        turn = len(self.requests)
        used = Estimate(estimate(request).prompt // 2 + turn, self.longest - 1 - turn % 5)
        if status != 200:
            await start(send, status, {"content-type": "application/json", **headers})
            await write(send, json.dumps(answer(path, status, 0)).encode(), False)
            return
        self.uses.append(used)
        calls = [(f"call-{turn}-{number}", number) for number in range(2)]
        body = responses(calls, used) if path.endswith("/responses") else completions(calls, used)
        body["id"] = f"reply-{turn}"
        if not request.get("stream"):
            await start(send, 200, {"content-type": "application/json"})
            await write(send, json.dumps(body).encode(), False)
            return
        await start(send, 200, {"content-type": "text/event-stream"})
        with_usage = request.get("stream_options", {}).get("include_usage", False)
        events = response_events(body) if path.endswith("/responses") else chunks(body, with_usage)
        for index, event in enumerate(events):
            if self.breaks and index == 1:
                raise ConnectionError("the stream breaks off")
            half = len(event) // 2  # no end of an event is the end of what arrives
            await write(send, event[:half], True)
            await asyncio.sleep(0)
            await write(send, event[half:], True)
        await write(send, b"", False)


def completions(calls: list[tuple[str, int]], used: Estimate) -> dict[str, Any]:
    tools = [
        {
            "id": name,
            "type": "function",
            "function": {"name": "search", "arguments": json.dumps({"query": str(number)})},
        }
        for name, number in calls
    ]
    message = {"role": "assistant", "content": None, "tool_calls": tools}
    usage = {"prompt_tokens": used.prompt, "completion_tokens": used.answer, "total_tokens": used.tokens}
    choice = {"index": 0, "finish_reason": "tool_calls", "message": message}
    return {"id": "1", "object": "chat.completion", "created": 1, "model": "fake", "choices": [choice], "usage": usage}


def chunks(body: dict[str, Any], with_usage: bool) -> Iterator[bytes]:
    message = body["choices"][0]["message"]
    for index, call in enumerate(message["tool_calls"]):
        delta = {"role": "assistant", "tool_calls": [{"index": index, **call}]}
        yield chunk({"choices": [{"index": 0, "delta": delta}]})
    yield chunk({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})
    if with_usage:
        yield chunk({"choices": [], "usage": body["usage"]})
    yield b"data: [DONE]\n\n"


def responses(calls: list[tuple[str, int]], used: Estimate) -> dict[str, Any]:
    output = [
        {"type": "function_call", "id": f"fc-{name}", "call_id": name, "name": "search", "status": "completed",
         "arguments": json.dumps({"query": str(number)})}
        for name, number in calls
    ]  # fmt: skip
    body = answer("/responses", 200, used.answer)
    usage = {"input_tokens": used.prompt, "output_tokens": used.answer, "total_tokens": used.tokens}
    return {**body, "output": output, "usage": {**body["usage"], **usage}}


def response_events(body: dict[str, Any]) -> Iterator[bytes]:
    begun = {**body, "status": "in_progress", "output": [], "usage": None}
    events: list[dict[str, Any]] = [{"type": "response.created", "response": begun}]
    for index, item in enumerate(body["output"]):
        place = {"output_index": index, "item_id": item["id"]}
        added = {**item, "arguments": "", "status": "in_progress"}
        events += [
            {"type": "response.output_item.added", "output_index": index, "item": added},
            {"type": "response.function_call_arguments.delta", **place, "delta": item["arguments"]},
            {"type": "response.function_call_arguments.done", **place, "arguments": item["arguments"]},
            {"type": "response.output_item.done", "output_index": index, "item": item},
        ]
    events.append({"type": "response.completed", "response": body})
    for number, event in enumerate(events):
        yield f"event: {event['type']}\ndata: {json.dumps({'sequence_number': number, **event})}\n\n".encode()


@pytest.fixture
def model() -> Iterator[Model]:
    with serving(Model()) as model:
        assert isinstance(model, Model)
        yield model


@pytest.fixture
def cell(client: redis.asyncio.Redis) -> AsyncCell:
    return AsyncCell(client)


def client_of(model: Model, transport: AsyncBudgetTransport) -> openai.AsyncOpenAI:
    http = openai.DefaultAsyncHttpxClient(transport=transport)
    return openai.AsyncOpenAI(api_key="k", base_url=model.url + "/v1", http_client=http)


Search = Callable[[str], Any]


async def agents_sdk(client: openai.AsyncOpenAI, search: Search, api: str, stream: bool) -> None:
    kind = OpenAIResponsesModel if api == "responses" else OpenAIChatCompletionsModel
    agent = agents.Agent(
        name="researcher",
        model=kind("fake", client),
        model_settings=agents.ModelSettings(max_tokens=ANSWER),
        tools=[agents.function_tool(search)],
    )
    if stream:
        async for _ in agents.Runner.run_streamed(agent, "find it", max_turns=1000).stream_events():
            pass
    else:
        await agents.Runner.run(agent, "find it", max_turns=1000)


def graph_of(chat: ChatOpenAI, search: Search) -> Any:
    bound = chat.bind_tools([tool(search)])

    async def think(state: MessagesState) -> Any:
        return {"messages": [await bound.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("think", think)
    graph.add_node("tools", ToolNode([tool(search)]))
    graph.add_edge(START, "think")
    graph.add_conditional_edges("think", tools_condition)
    graph.add_edge("tools", "think")
    return graph.compile()


FOUND = {"messages": [{"role": "user", "content": "find it"}]}


async def lang_graph(client: openai.AsyncOpenAI, search: Search, api: str, stream: bool) -> None:
    chat = ChatOpenAI(
        model="fake",
        base_url=str(client.base_url),
        api_key="k",  # type: ignore[arg-type]
        http_async_client=client._client,
        use_responses_api=api == "responses",
        max_tokens=ANSWER,  # type: ignore[call-arg]
        streaming=stream,
    )
    await graph_of(chat, search).ainvoke(FOUND, {"recursion_limit": 1000})


async def pydantic(client: openai.AsyncOpenAI, search: Search, api: str, stream: bool) -> None:
    kind: Any = PydanticResponsesModel if api == "responses" else OpenAIChatModel
    agent = pydantic_ai.Agent(
        kind("fake", provider=OpenAIProvider(openai_client=client)),
        tools=[search],
        model_settings={"max_tokens": ANSWER},
    )

    async def seen(_: Any, events: Any) -> None:
        async for _event in events:
            pass

    limits = pydantic_ai.UsageLimits(request_limit=None)
    await agent.run("find it", event_stream_handler=seen if stream else None, usage_limits=limits)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize("run", [agents_sdk, lang_graph, pydantic])
async def test_a_loop_is_stopped_at_its_budget(cell: AsyncCell, model: Model, run: Any, api: str, stream: bool) -> None:
    limit = 3000
    budget = AsyncBudget(cell, "run:4", tokens=limit)
    researcher = budget.child("researcher", tokens=limit)
    asked, searches, at_once, most = list[int](), 0, 0, 0

    def estimated(data: Any) -> Estimate:
        asked.append(estimate(data).tokens)
        return estimate(data)

    async def search(query: str) -> str:
        """Finds what a query asks for."""
        nonlocal searches, at_once, most
        async with researcher.step("search", tokens=30) as step:
            at_once += 1
            most = max(most, at_once)
            await asyncio.sleep(0.01)
            step.used(tokens=SEARCH)
            searches += 1
            at_once -= 1
        return "nothing, search again"

    transport = AsyncBudgetTransport(researcher, estimate=estimated)
    async with client_of(model, transport) as client:
        with pytest.raises(BudgetExceeded) as stopped:
            await run(client, search, api, stream)
    used = sum(model.reports) + searches * SEARCH
    assert (stopped.value.budget, stopped.value.unit) == ("run:4/researcher", "tokens")
    assert 86_000 < (stopped.value.retry_after or 0) <= 86_400
    # What is counted is what the model has reported. What is left is too little for one more call, which was not sent.
    assert await budget.left() == {"tokens": limit - used} and used <= limit
    if stopped.value.step == "fake":
        assert stopped.value.left == limit - used < asked[-1] and len(asked) == len(model.reports) + 1
        assert str(stopped.value).endswith(f"has: {limit - used} left")
    else:
        assert stopped.value.step == "search" and stopped.value.left < 30
    assert await researcher.used() == {"fake": {"tokens": sum(model.reports)}, "search": {"tokens": searches * SEARCH}}
    assert most == 2 and len(model.reports) > 3
    assert all(request.get("stream", False) == stream for request in model.requests)
    assert all(report <= held for report, held in zip(model.reports, asked, strict=False))


async def test_agents_at_once_share_a_budget(cell: AsyncCell, model: Model) -> None:
    limit, asked = 6000, 1202
    budget = AsyncBudget(cell, "run:4", tokens=limit, period=1)
    model.delay, model.longest = 2.5, 700  # longer than the holds, which are renewed
    children = [budget.child(f"agent-{number}", tokens=limit) for number in range(8)]

    async def agent(child: AsyncBudget) -> None:
        async with client_of(model, AsyncBudgetTransport(child)) as client:
            while True:
                await client.chat.completions.create(
                    model="fake", max_tokens=1000, messages=[{"role": "user", "content": "x" * 400}]
                )

    running = asyncio.gather(*(agent(child) for child in children), return_exceptions=True)
    seen = set[Any]()
    while not running.done():
        await asyncio.sleep(0.05)
        before, left = model.thinking, (await budget.left())["tokens"]
        if before == model.thinking == 4 and not model.reports:
            seen.add(left)
    assert seen == {limit - 4 * asked}
    for stopped in running.result():
        assert isinstance(stopped, BudgetExceeded) and stopped.budget == "run:4"
        assert stopped.left < asked
    assert await budget.left() == {"tokens": limit - sum(model.reports)}
    assert limit - asked < sum(model.reports) <= limit


async def test_what_a_reply_does_not_report_is_charged_as_estimated(cell: AsyncCell, model: Model) -> None:
    budget = AsyncBudget(cell, "run:4", tokens=100_000)
    asks: Any = {"model": "fake", "max_tokens": 400, "messages": [{"role": "user", "content": "x" * 200}]}

    spent = 0

    async def spends(work: Any) -> int:
        nonlocal spent
        before = spent
        with pytest.raises((openai.OpenAIError, asyncio.CancelledError, ConnectionError)):
            await work
        spent = 100_000 - int((await budget.left())["tokens"])
        return spent - before

    async with client_of(model, AsyncBudgetTransport(budget)) as client:
        client.max_retries = 0
        model.faults.append((500, {}))
        assert await spends(client.chat.completions.create(**asks)) == 0
        model.breaks = True

        async def broken() -> None:
            async for _ in await client.chat.completions.create(**asks, stream=True):
                pass
            raise ConnectionError

        assert await spends(broken()) == 502
        model.breaks = False

        async def left_early() -> None:
            async with await client.chat.completions.create(**asks, stream=True) as stream:
                async for _ in stream:
                    raise ConnectionError

        assert await spends(left_early()) == 502
        model.delay = 2
        call = asyncio.ensure_future(client.chat.completions.create(**asks))
        before = len(model.seen)
        while len(model.seen) == before:
            await asyncio.sleep(0.01)
        call.cancel()
        assert await spends(call) == 502
        steps = await budget.used()
        assert await spends(client.models.list()) == 0 and await budget.used() == steps  # no call of a model
        client.base_url = "http://127.0.0.1:1/v1"
        assert await spends(client.chat.completions.create(**asks)) == 0


class Stored:
    """A model that answers in the background: its responses end when a test says so."""

    def __init__(self) -> None:
        self.stored = dict[str, dict[str, Any]]()

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.method == "POST" and request.url.path.endswith("/responses"):
            name = f"resp_{len(self.stored)}"
            body = {**answer("/responses", 200, 0), "id": name, "status": "queued", "output": [], "usage": None}
            self.stored[name] = body
            streams, events = json.loads(request.content).get("stream"), slice(1)  # the stream breaks off
        else:
            body = self.stored[request.url.path.split("/responses/")[1].partition("/")[0]]
            streams, events = request.url.params.get("stream"), slice(1, None)
        if not streams:
            return httpx.Response(200, stream=Body(body))
        content = b"".join([*response_events(body)][events])
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=content)

    def ends(self, name: str, status: str, prompt: int, answered: int) -> None:
        usage = {"input_tokens": prompt, "output_tokens": answered, "total_tokens": prompt + answered}
        self.stored[name] |= {"status": status, "usage": {**answer("/responses", 200, 0)["usage"], **usage}}


ESTIMATED = 403
"""The estimate of a response of at most 400 tokens to `hello`."""


def openai_client(budget: Any, upstream: Stored, **options: Any) -> openai.OpenAI:
    transport = BudgetTransport(budget, transport=httpx.MockTransport(upstream), **options)
    return openai.OpenAI(api_key="k", base_url="http://upstream/v1", http_client=httpx.Client(transport=transport))


def test_a_response_in_the_background_is_settled_once_by_the_process_that_retrieves_it(
    blocking: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream = Stored()
    asks: Any = {"model": "fake", "input": "hello", "max_output_tokens": 400, "background": True}

    def price(model: str, prompt: int, answer: int) -> str:
        return f"{(prompt + 3 * answer) / 1e6:.6f}"

    def budget() -> Budget:
        return Budget(Cell(blocking), "run:4", tokens=100_000, dollars=1, steps=9)

    def dollars(*uses: tuple[int, int]) -> Decimal:
        return sum((Decimal(price("fake", *each)) for each in uses), Decimal(0))

    child = budget().child("researcher", tokens=50_000)
    with openai_client(child, upstream, price=price) as begins:
        for _ in range(4):
            begins.responses.create(**asks)
        for _ in begins.responses.create(**asks, stream=True):
            pass
    estimate = (3, 400)
    names = list(upstream.stored)
    assert child.left()["tokens"] == 50_000 - 5 * ESTIMATED
    ends = {names[0]: (5, 90), names[1]: (7, 1200), names[2]: (5, 10), names[4]: (6, 60)}
    with openai_client(budget(), upstream, price=price) as one, openai_client(budget(), upstream, price=price) as two:
        upstream.ends(names[0], "in_progress", 5, 9)
        one.responses.retrieve(names[0])
        assert child.left()["tokens"] == 50_000 - 5 * ESTIMATED  # it has not ended
        for name, used in ends.items():
            upstream.ends(name, "cancelled" if name == names[2] else "completed", *used)
        run, together = Cell.run, threading.Barrier(2)

        def at_once(cell: Cell, call: Any) -> Any:
            """Both processes find the response before either settles it."""
            found = run(cell, call)
            if call.name == "ZRANGE":
                together.wait(30)
            return found

        with monkeypatch.context() as patched, ThreadPoolExecutor() as pool:
            patched.setattr(Cell, "run", at_once)
            list(pool.map(lambda client: client.responses.retrieve(names[0]), (one, two)))
        for _ in range(2):
            for client in (one, two):
                client.responses.retrieve(names[1])
                client.responses.cancel(names[2])
                for _ in client.responses.retrieve(names[4], stream=True):
                    pass
    uses = [*ends.values(), estimate]  # nobody has retrieved the fourth
    total = sum(prompt + answered for prompt, answered in uses)
    assert child.left() == {"tokens": 50_000 - total, "dollars": 1 - dollars(*uses), "steps": 4}
    assert budget().left()["tokens"] == 100_000 - total
    assert budget().used() == {"researcher/fake": {"tokens": total, "dollars": dollars(*uses), "steps": 5}}
    assert all(blocking.ttl(key) > 0 for key in blocking.scan_iter())


async def test_a_loop_of_responses_in_the_background_ends_with_its_budget() -> None:
    budget, upstream = AsyncBudget(AsyncFakeCell(), "run:4", tokens=1000), Stored()
    transport = AsyncBudgetTransport(budget, transport=httpx.MockTransport(upstream))
    http = httpx.AsyncClient(transport=transport)
    async with openai.AsyncOpenAI(api_key="k", base_url="http://upstream/v1", http_client=http) as client:
        asks: Any = {"model": "fake", "input": "hello", "max_output_tokens": 400, "background": True}
        names = [(await client.responses.create(**asks)).id for _ in range(2)]
        with pytest.raises(BudgetExceeded):
            await client.responses.create(**asks)
        for name in names:
            upstream.ends(name, "completed", 3, 1)
            for _ in range(2):
                await client.responses.retrieve(name)
        assert await budget.left() == {"tokens": 1000 - 2 * 4}
        await client.responses.create(**asks)


def test_usage_is_read_from_all_apis() -> None:
    def read(text: str, kind: str = "text/event-stream; charset=utf-8") -> tuple[Estimate | None, bool]:
        usage, last = Usage(kind), False
        for index in range(0, len(text), 5):
            last = usage.read(text[index : index + 5].encode())
        return usage.tokens(), last

    anthropic = (
        'event: message_start\ndata: {"type":"message_start","message":{"usage":{"input_tokens":20,'
        '"cache_read_input_tokens":300,"output_tokens":1}}}\n\n'
        'data: {"type":"message_delta","usage":{"output_tokens":44}}\n\ndata: {"type":"message_stop"}\n'
    )
    assert read(anthropic) == (Estimate(320, 44), True)
    assert read('data: {"usage":{"prompt_tokens":5,"completion_tokens":1,"total_tokens":9}}\r\n') == (
        Estimate(5, 4),
        False,
    )
    assert read('data: {"choices":[]}\n\ndata: [DONE]\n') == (None, True)
    assert read('data: {"usage":{"prompt_tokens":5,"completion_tokens":1}}\n', "Text/Event-Stream")[0] == Estimate(5, 1)
    assert read('{"usage":{"prompt_tokens":8,"total_tokens":8}}', "application/json") == (Estimate(8, 0), False)
    assert read("no JSON", "text/plain") == (None, False)
    # LiteLLM's proxy reports the tokens of Anthropic's cache among those of the prompt, and by themselves too.
    cached = '{"usage":{"prompt_tokens":320,"completion_tokens":44,"total_tokens":364,"cache_read_input_tokens":300}}'
    assert read(cached, "application/json") == (Estimate(320, 44), False)
    # The usage of the beginning of a message is not that of its answer.
    begun = anthropic[: anthropic.index('data: {"type":"message_delta"')] + 'data: {"type":"content_block_delta"}\n\n'
    assert read(begun) == (None, False)
    without_end = begun + 'data: {"type":"message_delta","usage":{"output_tokens":44}}'
    assert read(without_end) == (Estimate(320, 44), False)

    # Some servers report the usage so far in each part of a stream: it is not that of the whole answer.
    def part(tokens: int, end: str | None) -> bytes:
        choice = {"index": 0, "delta": {"content": "a"}, "finish_reason": end}
        return chunk({"choices": [choice], "usage": {"prompt_tokens": 5, "completion_tokens": tokens}})

    so_far = part(1, None) + part(2, None)
    assert read(so_far.decode())[0] is None
    for last in (b"data: [DONE]\n\n", part(2, "stop"), chunk({"choices": [], "usage": {"prompt_tokens": 5}})):
        assert read((so_far + last).decode())[0] == Estimate(5, 2)


def test_a_call_with_several_answers_is_estimated_for_all_of_them() -> None:
    asks = {"prompt": "find", "max_tokens": 100}
    for more, answers in (
        ({}, 1),
        ({"n": 2}, 2),
        ({"n": 2, "best_of": 5}, 5),
        ({"prompt": ["a", "b", "c"]}, 3),
        ({"prompt": [[1, 2], [3]], "n": 2}, 4),
        ({"prompt": [1, 2, 3]}, 1),
        ({"prompt": []}, 1),
    ):
        assert estimate({**asks, **more}).answer == 100 * answers, more


def test_the_parts_of_a_large_reply_are_not_copied() -> None:
    usage, part = Usage("application/json"), b"0" * 16384
    tracemalloc.start()
    for _ in range(2048):
        usage.read(part)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 10 * len(part)


USED = {"usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}}


class Body(httpx.SyncByteStream, httpx.AsyncByteStream):
    def __init__(self, data: object) -> None:
        self.data = json.dumps(data).encode()

    def __iter__(self) -> Iterator[bytes]:
        yield self.data

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self.data


@pytest.mark.parametrize(
    ("path", "replies", "used"),
    [
        ("chat/completions", [httpx.Response(200, json=USED)], {"fake": {"tokens": 15}}),
        ("chat/completions", [httpx.Response(500, json=USED)], {"fake": {"tokens": 0}}),
        (
            "chat/completions",
            [
                httpx.Response(307, headers={"location": "/v2/chat/completions"}),
                httpx.Response(200, headers={"content-type": "application/json"}, stream=Body(USED)),
            ],
            {"fake": {"tokens": 15}},
        ),
        ("messages/count_tokens", [httpx.Response(200, stream=Body({"input_tokens": 9}))], {}),
        ("responses/input_tokens", [httpx.Response(200, stream=Body({"input_tokens": 9}))], {}),
        ("models/count-tokens:rawPredict", [httpx.Response(200, stream=Body({"input_tokens": 9}))], {}),
        ("models/claude:streamRawPredict", [httpx.Response(200, json=USED)], {"claude": {"tokens": 15}}),
        ("model/claude:0/invoke", [httpx.Response(200, json=USED)], {"claude:0": {"tokens": 15}}),
    ],
    ids=[
        "in memory",
        "in memory, refused",
        "redirected",
        "counted",
        "counted too",
        "Vertex counts",
        "Vertex",
        "Bedrock",
    ],
)
def test_a_reply_is_settled_however_it_comes(path: str, replies: list[httpx.Response], used: Any) -> None:
    budget = Budget(FakeCell(), "run:4", tokens=100_000)
    inner = httpx.MockTransport(lambda request: replies.pop(0))
    with httpx.Client(transport=BudgetTransport(lambda: budget, transport=inner), follow_redirects=True) as http:
        body = {"max_tokens": 400, "messages": FOUND["messages"]}
        body |= {} if "claude" in path else {"model": "fake"}
        http.post(f"http://upstream/v1/{path}", json=body)
    assert budget.used() == used
    assert budget.left() == {"tokens": 100_000 - sum(row["tokens"] for row in used.values())}
    assert not replies


@pytest.mark.parametrize("usage", [{"prompt_tokens": -10}, {"prompt_tokens": 10**30}, USED["usage"]])
def test_a_call_whose_usage_cannot_be_charged_is_charged_as_estimated(usage: Any) -> None:
    """The units would otherwise come back when the hold runs out."""
    budget, known = Budget(FakeCell(), "run:4", tokens=100_000, dollars=1), ["0.5"]
    inner = httpx.MockTransport(lambda request: httpx.Response(200, json={"usage": usage}))
    transport = BudgetTransport(budget, price=lambda *tokens: known.pop(), transport=inner)
    with httpx.Client(transport=transport) as http:
        body = {"model": "fake", "max_tokens": 400, "messages": FOUND["messages"]}
        assert http.post("http://upstream/v1/chat/completions", json=body).status_code == 200
    assert budget.used() == {"fake": {"tokens": estimate(body).tokens, "dollars": Decimal("0.5")}}


async def test_forms_with_files_are_calls_of_a_model() -> None:
    sent: list[bytes] = []

    def upstream(request: httpx.Request) -> httpx.Response:
        sent.append(request.content)
        return httpx.Response(200, json={"usage": {"input_tokens": 10, "output_tokens": 5}} if len(sent) < 3 else {})

    form: Any = {"data": {"model": "fake"}, "files": {"file": ("a.wav", b"model" * 100, "audio/wav")}}
    budget, inner = Budget(FakeCell(), "run:4", tokens=100_000), httpx.MockTransport(upstream)
    with httpx.Client(transport=BudgetTransport(budget, transport=inner)) as http:
        http.post("http://upstream/v1/audio/transcriptions", **form)
    assert budget.used() == {"fake": {"tokens": 15}}
    other = AsyncBudget(AsyncFakeCell(), "run:4", tokens=100_000)
    async with httpx.AsyncClient(transport=AsyncBudgetTransport(other, transport=inner)) as http:
        await http.post("http://upstream/v1/audio/transcriptions", **form)
        assert await other.used() == {"fake": {"tokens": 15}}
        await http.post("http://upstream/v1/images/edits", **{**form, "data": {"model": "paint", "prompt": "é" * 10}})
        await http.post("http://upstream/v1/images/edits", **{**form, "data": {"model": "other", "prompt": b"\xff"}})
    assert (await other.used())["paint"] == {"tokens": 10 + 1000}  # without usage, as estimated
    assert (await other.used())["other"] == {"tokens": 2 + 1000}  # a text that is not UTF-8 is a text
    assert all(b"model" * 100 in body for body in sent)


def test_a_text_that_begins_like_a_data_url_is_estimated() -> None:
    picture = "data:image/png;base64," + "A" * 10_000
    part = {"type": "image_url", "image_url": {"url": picture}}
    files = [part, {"type": "input_image", "image_url": picture}, {"type": "file", "file": {"file_data": picture}}]
    for content in files:
        assert estimate({"messages": [{"role": "user", "content": [content]}]}).prompt < 100
        assert estimate({"input": [{"role": "user", "content": [content]}]}).prompt < 100
    for texts in (
        {"messages": [{"role": "user", "content": picture}]},
        {"messages": [{"role": "user", "type": "file", "content": picture}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": picture}]}]},
        {"input": picture},
        {"tools": [{"type": "function", "function": {"parameters": part}}]},
        {"functions": [{"name": "f", "description": picture}]},
        {"response_format": {"type": "json_schema", "json_schema": {"description": picture}}},
    ):
        assert estimate(texts).prompt >= 5000, texts


async def test_a_call_that_is_cancelled_while_it_is_settled_leaves_its_connection(
    cell: AsyncCell, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = httpx.AsyncHTTPTransport(limits=httpx.Limits(max_connections=1))
    transport = AsyncBudgetTransport(AsyncBudget(cell, "run:4", tokens=100_000), transport=inner)
    model.faults.append((500, {}))
    await leaves_its_connection(model, transport, "CL.MSETTLE", monkeypatch)


def test_a_price_is_a_function_that_returns_dollars() -> None:
    budget, body = Budget(FakeCell(), "run:4", tokens=1, dollars=1), {"model": "gpt", "messages": []}
    with pytest.raises(ValueError, match="the budget 'run:4' has dollars, so price must be a function"):
        BudgetTransport(budget)
    with pytest.raises(TypeError, match="AsyncBudgetTransport needs a AsyncBudget"):
        AsyncBudgetTransport(budget)  # type: ignore[type-var]
    transport = BudgetTransport(budget, price=lambda *_: None)  # type: ignore[arg-type,return-value]
    named = "price must return dollars, but returns None for the model 'gpt'"
    with httpx.Client(transport=transport) as http, pytest.raises(ValueError, match=named):
        http.post("http://127.0.0.1:1/v1/chat/completions", json=body)
