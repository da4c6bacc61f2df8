"""FastMCP: four real servers over HTTP behind one server of Redis, and fastmcp's own clients."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import httpx
import pytest
import redis
import redis.asyncio
from fastmcp import Client, Context, FastMCP, FastMCPApp
from fastmcp.client.transports import StreamableHttpTransport
from fastmcp.exceptions import ToolError
from fastmcp.server.auth.providers.jwt import StaticTokenVerifier
from fastmcp.server.middleware import MiddlewareContext
from fastmcp.server.providers.addressing import hashed_backend_name
from mcp import MCPError
from mcp_types import CallToolRequestParams, InputRequiredResult, ListRootsRequest

import servers
import uvicorn_thread
from redis_cell import AsyncCell, Bucket, Fixed, Funnel, Lease, Log, Rate, Window, wire
from redis_cell.fastmcp import Places, RateLimits, Rule, report_cost
from redis_cell.testing import AsyncFakeCell, FakeCell

CLIENTS = 200


class Servers:
    """The servers, which an own process group holds together."""

    def __init__(self, server: servers.Server) -> None:
        program = [sys.executable, str(Path(__file__).parent / "limited_mcp.py"), str(server.port)]
        self.process = subprocess.Popen(program, stdout=subprocess.PIPE, text=True, start_new_session=True)
        assert self.process.stdout
        self.ports = [int(port) for port in self.process.stdout.readline().split()]
        self.admin = server.admin

    def client(self, number: int, name: str = "ann", path: str = "now", mode: Any = "auto") -> Client[Any]:
        url = f"http://127.0.0.1:{self.ports[number % len(self.ports)]}/{path}"
        # To read the certificates of this machine would be most of the work of a client.
        return Client(StreamableHttpTransport(url, headers={"x-client": name}, verify=False), mode=mode)


@pytest.fixture(scope="module")
def running(shared_server: servers.Server) -> Iterator[Servers]:
    found = Servers(shared_server)
    try:
        servers.wait_until(lambda: all(_answers(port) for port in found.ports))
        yield found
    finally:
        os.killpg(found.process.pid, signal.SIGKILL)
        found.process.wait()


def _answers(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/", timeout=5).status_code == 404
    except httpx.TransportError:
        return False


@pytest.fixture
def mcp(running: Servers, server: servers.Server) -> Servers:
    return running


async def called(client: Client[Any], tool: str, **arguments: Any) -> Any:
    """Returns the result of a tool, or the data of its refusal."""
    try:
        return (await client.call_tool(tool, arguments)).data
    except MCPError as error:
        assert error.error.code == -32023
        return error.error.data


async def test_clients_of_four_servers_get_exactly_the_limit(mcp: Servers) -> None:
    async def ask(number: int) -> Any:
        async with mcp.client(number, str(number)) as client:
            return await called(client, "count")

    answers = await asyncio.gather(*(ask(number) for number in range(CLIENTS)))
    refused = [answer for answer in answers if isinstance(answer, dict)]
    assert len(refused) == CLIENTS - 20
    for data in refused:
        assert 3_500_000 < data["retryAfterMs"] <= 3_600_000 and data["limit"] == 20 and data["remaining"] == 0


async def test_counting_in_each_process_admits_the_limit_in_each(mcp: Servers) -> None:
    """The limit of fastmcp's own middleware is 20 too."""
    admitted = {"own": 0, "now": 0}

    async def ask(path: str, number: int) -> None:
        async with mcp.client(number, path=path) as client:
            for _ in range(25):
                with suppress(MCPError, ToolError):
                    await client.call_tool("count")
                    admitted[path] += 1

    await asyncio.gather(*(ask(path, number) for path in admitted for number in range(4)))
    assert admitted == {"own": 80, "now": 20}


async def test_a_client_has_its_own_limit_and_sees_it(mcp: Servers) -> None:
    async with mcp.client(0) as one, mcp.client(1) as two, mcp.client(2, "bob") as other:
        answers = [await called(client, "mine") for client in (one, two) * 4]
        assert [isinstance(answer, int) for answer in answers] == [True] * 5 + [False] * 3
        assert isinstance(await called(other, "mine"), int)
        for client, left in ((two, 0), (other, 4)):
            (content,) = await client.read_resource("limits://mine")
            rows = {row["name"]: row for row in json.loads(content.text)}
            assert (rows["each"]["limit"], rows["each"]["remaining"], rows["each"]["counts"]) == (5, left, "calls")
            assert rows["each"]["tools"] == ["mine"] and rows["each"]["resetAfterMs"] > 3_500_000
            assert rows["busy"]["remaining"] == 4 and rows["tokens"]["counts"] == "costs"


async def test_a_client_has_as_many_sessions_as_its_protocol_knows(mcp: Servers) -> None:
    async with AsyncExitStack() as stack:
        clients = [
            *(mcp.client(0, mode="legacy") for _ in range(2)),
            *(mcp.client(number, name) for number in range(2) for name in ("ann", "bob")),
        ]
        connected = [await stack.enter_async_context(client) for client in clients]
        answers = [[isinstance(await called(client, "session"), int) for _ in range(4)] for client in connected]
        own, none = [True] * 3 + [False], [False] * 4
        assert answers == [own, own, own, own, none, none]


async def test_places_are_waited_for(mcp: Servers) -> None:
    """The first calls take longer than the leases of their places, which are renewed meanwhile."""

    async def ask(number: int) -> int:
        async with mcp.client(number, str(number), "waits") as client:
            return int((await client.call_tool("render", {"seconds": 2.5 if number < 4 else 0.01})).data)

    at_once = await asyncio.gather(*(ask(number) for number in range(12)))
    assert 1 < max(at_once) <= 4
    with mcp.admin as admin:
        assert admin.zcard("{mcp}:busy:render") == 0


async def test_a_client_that_loops_delays_its_own_calls(mcp: Servers, server: servers.Server) -> None:
    with mcp.admin as admin:
        admin.execute_command("CL.ACQUIRE", "{mcp}:one:", 1, 600, "somebody")
        async with mcp.client(0, "loop", "waits") as loop, mcp.client(1, "bob", "waits") as sibling:
            calls = [asyncio.ensure_future(loop.call_tool("turn", {"name": "loop"})) for _ in range(20)]
            await servers.until(lambda: server.counted("blocked_clients") == 20)
            calls.append(asyncio.ensure_future(sibling.call_tool("turn", {"name": "bob"})))
            await servers.until(lambda: server.counted("blocked_clients") == 21)
            admin.delete("{mcp}:one:")
            await asyncio.gather(*calls)
        assert admin.lrange("turns", 0, -1).index("bob") <= 1


def test_the_calls_of_a_client_that_is_killed_leave_the_queue(mcp: Servers, server: servers.Server) -> None:
    program = """if True:
        import asyncio, sys
        from fastmcp import Client
        async def main():
            async with Client(sys.argv[1]) as client:
                await asyncio.gather(*(client.call_tool("turn", {"name": "killed"}) for _ in range(20)))
        asyncio.run(main())
    """
    others = server.counted("blocked_clients")
    with mcp.admin as admin:
        admin.execute_command("CL.ACQUIRE", "{mcp}:one:", 1, 600, "somebody")
        client = subprocess.Popen([sys.executable, "-c", program, f"http://127.0.0.1:{mcp.ports[0]}/waits"])
        try:
            servers.wait_until(lambda: server.counted("blocked_clients") >= others + 20 or client.poll(), 180)
            assert client.poll() is None
        finally:
            client.kill()
            client.wait()
        # A call waits for 30 seconds at a time, and is not blocked for an instant between two of these times.
        servers.wait_until(lambda: server.counted("blocked_clients") <= others, 20)
        admin.delete("{mcp}:one:")
        assert not admin.exists("turns")


async def test_costs_are_what_tools_report(mcp: Servers) -> None:
    async with mcp.client(0) as client:
        for tokens, fails, left in ((50, False, 950), (None, False, 650), (None, True, 650), (7, True, 643)):
            try:
                await client.call_tool("search", {"tokens": tokens, "fails": fails})
            except ToolError:
                assert fails
            (content,) = await client.read_resource("limits://mine")
            assert next(row for row in json.loads(content.text) if row["name"] == "tokens")["remaining"] == left
        await client.call_tool("search", {"tokens": 400})
        data = await called(client, "search", tokens=1)
        assert (data["limit"], data["remaining"]) == (1000, 243) and 3_500_000 < data["retryAfterMs"] <= 3_600_000


def test_a_refusal_has_the_status_and_the_headers_of_the_proposal(mcp: Servers) -> None:
    headers = {"accept": "application/json, text/event-stream", "mcp-protocol-version": "2026-07-28"}
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
    parameters = {"name": "mine", "arguments": {}, "_meta": meta}
    own = {**headers, "mcp-method": "tools/call", "mcp-name": "mine"}
    url = f"http://127.0.0.1:{mcp.ports[0]}/now"
    answers = [httpx.post(url, headers=own, json={**body, "params": parameters}) for _ in range(6)]
    assert [answer.status_code for answer in answers] == [200] * 5 + [429]
    data = answers[-1].json()["error"]["data"]
    assert int(answers[-1].headers["retry-after"]) == -(-data["retryAfterMs"] // 1000)
    assert (answers[-1].headers["ratelimit-limit"], answers[-1].headers["ratelimit-remaining"]) == ("5", "0")
    # A refusal within the tool is no refusal of the call.
    own, parameters = {**own, "mcp-name": "tries"}, {**parameters, "name": "tries"}
    answer = httpx.post(url, headers=own, json={**body, "params": parameters})
    assert answer.status_code == 200 and answer.json()["result"]["structuredContent"] == {"result": "done"}


async def test_a_server_that_dies_strands_nothing(mcp: Servers) -> None:
    """The last test: one server is gone after it."""
    with pytest.raises(Exception), mcp.admin as admin:  # noqa: B017
        async with mcp.client(1) as client:
            await client.call_tool("search", {"tokens": 5, "dies": True})
    with mcp.admin as admin:
        assert admin.get("{mcp}:tokens:ann") == "300"
    async with mcp.client(0) as client:

        async def whole() -> None:
            while True:
                (content,) = await client.read_resource("limits://mine")
                if any(row["name"] == "tokens" and row["remaining"] == 1000 for row in json.loads(content.text)):
                    return
                await asyncio.sleep(0.05)

        await asyncio.wait_for(whole(), 60)


@pytest.mark.parametrize("stateless", [False, True])
async def test_a_client_cannot_choose_its_name_or_its_session(server: servers.Server, stateless: bool) -> None:
    """A user may register several clients, and a server without sessions would take any from a header."""
    users = (("a", {"sub": "ann"}), ("b", {"sub": "ann"}), ("a", {"sub": "bob"}), ("a", {}), ("b", {}))
    tokens = {str(number): {"client_id": client, **user} for number, (client, user) in enumerate(users)}
    mcp = FastMCP[Any]("search", auth=StaticTokenVerifier(tokens))
    rules = {"calls": Rule(Fixed(4, per=3600)), "session": Rule(Fixed(2, per=3600), per="session")}
    mcp.add_middleware(RateLimits(AsyncCell(redis.asyncio.Redis(port=server.port)), rules))
    mcp.tool(lambda: 1, name="search")
    app = mcp.http_app(path="/mcp", stateless_http=stateless)
    with uvicorn_thread.serving(app, lifespan="on") as url:
        admitted = dict[str, int]()
        for token in tokens:
            for session in ("x", "y"):
                headers = {"authorization": f"Bearer {token}"} | ({"mcp-session-id": session} if stateless else {})
                transport = StreamableHttpTransport(url + "/mcp", headers=headers, verify=False)
                async with Client(transport, mode="legacy") as client:
                    answers = [await called(client, "search") for _ in range(3)]
                admitted[token] = admitted.get(token, 0) + answers.count(None)
    assert list(admitted.values()) == ([2, 0, 2, 2, 2] if stateless else [4, 0, 4, 4, 4])


async def test_a_tool_of_an_app_has_the_limits_of_its_name() -> None:
    app = FastMCPApp("panel")
    app.tool(lambda: 1, name="save")
    mcp = FastMCP[Any]("search", providers=[app])
    rules = {"calls": Rule(Fixed(2, per=60), per="tool", tools=["save"])}
    mcp.add_middleware(RateLimits(AsyncFakeCell(), rules))
    async with Client(mcp) as client:
        names = [hashed_backend_name("panel", "save"), "save"] * 2
        assert [await called(client, name) for name in names][:2] == [None, None]
        for name in names:
            assert (await called(client, name))["remaining"] == 0


async def test_what_clients_read_of_their_limits(server: servers.Server) -> None:
    """Also if a rule names a tool twice, but not where the server of Redis is."""
    mcp = FastMCP[Any]("search")
    mcp.tool(lambda: 1, name="search")
    rules = {"a": Rule(Fixed(2, per=60), per="tool", tools=["search", "search"]), "b": Rule(Rate.per_minute(5))}
    async with redis.asyncio.Redis(port=server.port) as redis_client:
        RateLimits(AsyncCell(redis_client), rules, client=lambda context: "long" * 9999).add_to(mcp)
        async with Client(mcp) as client:
            await client.call_tool("search")
            (content,) = await client.read_resource("limits://mine")
            rows = [(row.get("tools"), row["remaining"]) for row in json.loads(content.text)]
            assert rows == [(["search"], 1), (None, 4)]
        assert max(len(key) for key in await redis_client.keys()) < 300
    mcp = FastMCP[Any]("search")
    RateLimits(AsyncCell(redis.asyncio.Redis(port=1, retry=None)), {"a": Rule(Rate.per_minute(5))}).add_to(mcp)
    mcp.tool(lambda: 1, name="search")
    async with Client(mcp, mode="legacy") as client:
        for asks in (client.read_resource("limits://mine"), client.call_tool("search")):
            with pytest.raises(MCPError, match=r"^the rate limiter is unavailable$"):
                await asks


async def test_a_report_counts_once_for_each_rule_of_the_tools_that_run() -> None:
    """A tool calls another tool, which has a place, and asks for input first, under two middlewares."""
    places, costs = Rule(Places(3), tools=["inner"]), Rule(Fixed(1000, per=60), cost=100)
    mcp, rules = FastMCP[Any]("search"), {"busy": places, "all": costs, "outer": replace(costs, tools=["outer"])}
    for prefix in ("a", "b"):
        RateLimits(AsyncFakeCell(), rules, prefix=prefix).add_to(mcp)

    @mcp.tool
    def inner() -> None:
        report_cost(50)

    @mcp.tool
    async def outer(context: Context) -> InputRequiredResult | str:
        if context.input_responses is None:
            return InputRequiredResult(input_requests={"a": ListRootsRequest()})
        await context.fastmcp.call_tool("inner")
        report_cost(7)
        return "done"

    async with Client(mcp, roots=["file:///"]) as client:
        assert (await client.call_tool("outer")).content[0].text == "done"
        (content,) = await client.read_resource("limits://mine")
        left = [(row["name"], row["remaining"]) for row in json.loads(content.text)]
    assert left == [("busy", 3), ("all", 943), ("outer", 943)] * 2


async def test_a_server_that_shuts_down_gives_back_what_its_calls_hold(server: servers.Server) -> None:
    mcp, begun = FastMCP[Any]("search"), threading.Event()
    rules = {"busy": Rule(Places(3)), "costs": Rule(Fixed(10, per=60), cost=5)}
    RateLimits(AsyncCell(redis.asyncio.Redis(port=server.port)), rules, client=lambda context: "ann").add_to(mcp)

    @mcp.tool
    async def search() -> None:
        begun.set()
        await asyncio.sleep(600)

    with ExitStack() as served, server.admin as admin:
        app = mcp.http_app(path="/mcp")
        url = served.enter_context(uvicorn_thread.serving(app, lifespan="on", timeout_graceful_shutdown=1))
        async with Client(StreamableHttpTransport(url + "/mcp", verify=False)) as client:
            call = asyncio.ensure_future(client.call_tool("search"))
            await asyncio.to_thread(begun.wait)
            await asyncio.to_thread(served.close)
            assert not admin.exists("{mcp}:busy:ann", "{mcp}:costs:ann")
            await asyncio.wait([call])


@pytest.mark.parametrize("cost", [None, 2])
async def test_a_renewal_that_is_late_does_not_take_the_place_again(
    client: redis.asyncio.Redis, monkeypatch: pytest.MonkeyPatch, cost: int | None
) -> None:
    run, renewed, seen = AsyncCell.run, asyncio.Event(), list[str]()

    async def slow(cell: AsyncCell, call: Any, ready: Any = None) -> Any:
        seen.append(call.name)
        if seen == ["CL.MTAKE"] * 2:
            renewed.set()
            await asyncio.sleep(0.2)
        return await run(cell, call, ready)

    async def tool(context: Any) -> None:
        await renewed.wait()

    monkeypatch.setattr(AsyncCell, "run", slow)
    rules = {"busy": Rule(Places(1, lease=60 if cost else 0.3), per="server")}
    rules |= {"costs": Rule(Fixed(9, per=3600), cost=cost)} if cost else {}
    limits = RateLimits(AsyncCell(client), rules, period=0.3)
    await limits.on_call_tool(MiddlewareContext[Any](message=CallToolRequestParams(name="search")), tool)
    await asyncio.sleep(0.3)
    assert not await client.zcard("{mcp}:busy:") and seen.count("CL.MTAKE") == 2


@pytest.mark.parametrize("cost", [None, 2])
async def test_a_call_that_has_lost_a_place_keeps_the_others(client: redis.asyncio.Redis, cost: int | None) -> None:
    """Its lease ended while the server did not answer, and another call has the place."""
    rules = {"lost": Rule(Places(1, lease=60)), "busy": Rule(Places(2, lease=1.5), per="server")}
    rules |= {"costs": Rule(Fixed(9, per=3600), cost=cost)} if cost else {}
    limits = RateLimits(AsyncCell(client), rules, period=1.5, client=lambda context: "ann")
    context = MiddlewareContext[Any](message=CallToolRequestParams(name="search"))

    async def tool(_: Any) -> None:
        await client.delete("{mcp}:lost:ann")
        await limits.cell.run(wire.acquire("{mcp}:lost:ann", Lease(1, lease=60, holder="another")))
        await asyncio.sleep(2.5)
        left = {row["name"]: row["remaining"] for row in await limits.limits(context)}
        assert left == {"lost": 0, "busy": 1} | ({"costs": 7} if cost else {})

    await limits.on_call_tool(context, tool)


async def test_the_result_of_a_tool_is_not_lost_if_it_cannot_be_settled(caplog: pytest.LogCaptureFixture) -> None:
    with servers.running() as server:
        async with redis.asyncio.Redis(port=server.port, retry=None) as client:
            mcp = FastMCP("search")
            mcp.add_middleware(RateLimits(AsyncCell(client), {"costs": Rule(Fixed(10, per=60), cost=2)}))

            @mcp.tool
            def search() -> str:
                server.stop()
                return "found"

            async with Client(mcp) as caller:
                assert (await caller.call_tool("search")).data == "found"
    assert "what the tool 'search' holds runs out" in caplog.text


@pytest.mark.parametrize(
    "limit",
    [
        Rate(500, per=60),
        Bucket(500, count=500, per=60),
        Funnel(500, count=500, per=60),
        Fixed(500, per=60),
        Window(500, per=60),
        Log(500, per=60),
    ],
    ids=lambda limit: type(limit).__name__,
)
@pytest.mark.parametrize("cost", [15_000, 2**62])
async def test_a_cost_that_is_too_large_for_a_call_uses_the_limit_up(
    client: redis.asyncio.Redis, limit: Any, cost: int
) -> None:
    limits = RateLimits(AsyncCell(client), {"costs": Rule(limit, cost=1)}, client=lambda context: "ann")
    context = MiddlewareContext[Any](message=CallToolRequestParams(name="search"))

    async def tool(context: Any) -> None:
        report_cost(cost)
        report_cost(cost)

    for _ in range(2):
        await limits.on_call_tool(context, tool)
        with pytest.raises(MCPError, match="the limit 'costs' is reached"):
            await limits.on_call_tool(context, tool)
        await client.delete("{mcp}:costs:ann")


@pytest.mark.parametrize("cost", [None, 2])
async def test_a_background_task_keeps_its_place_for_the_lease(cost: int | None) -> None:
    """The call ends before its tool has run."""
    rules = {"busy": Rule(Places(2, lease=60), per="server")} | (
        {"costs": Rule(Fixed(10, per=60), cost=cost)} if cost else {}
    )
    cell = AsyncFakeCell()
    limits = RateLimits(cell, rules, client=lambda context: "ann")
    context = MiddlewareContext[Any](message=CallToolRequestParams(name="search"))

    async def created(context: Any) -> Any:
        return SimpleNamespace(task_id="1", status="working")  # as a CreateTaskResult of fastmcp-tasks

    for _ in range(2):
        await limits.on_call_tool(context, created)
    with pytest.raises(MCPError, match="the limit 'busy' is reached: try again in 60"):
        await limits.on_call_tool(context, created)
    left = {row["name"]: row["remaining"] for row in await limits.limits(context)}
    assert left == {"busy": 0} | ({"costs": 6} if cost else {})
    cell.advance(60)
    await limits.on_call_tool(context, created)


@pytest.mark.parametrize("timeout", [0, 9000])
@pytest.mark.parametrize("cost", [None, 2])
@pytest.mark.parametrize("by_scope", [False, True])
async def test_a_call_that_is_cancelled_at_any_point_leaves_nothing(
    client: redis.asyncio.Redis, cost: int | None, timeout: int, by_scope: bool
) -> None:
    context = MiddlewareContext[Any](message=CallToolRequestParams(name="search"))
    finished, outcomes = set[int](), set[bool]()

    async def tool(context: Any) -> None:
        for _ in range(5):
            await asyncio.sleep(0)
        finished.add(passes)

    async def call(limits: RateLimits, scope: anyio.CancelScope) -> bool:
        with scope:
            await limits.on_call_tool(context, tool)
        return scope.cancelled_caught

    rules = {"busy": Rule(Places(3), per="server")} | ({"costs": Rule(Fixed(10, per=3600), cost=cost)} if cost else {})
    cell = AsyncCell(client, pipelined=not timeout)
    limits = RateLimits(cell, rules, timeout=timeout, client=lambda context: "ann")
    for passes in range(61):
        await client.flushall()
        scope = anyio.CancelScope()
        task = asyncio.ensure_future(call(limits, scope))
        for _ in range(passes):
            await asyncio.sleep(0)
        if passes < 60:
            scope.cancel() if by_scope else task.cancel()
        await asyncio.wait([task])
        outcomes.add(task.cancelled() or task.result())
        left = {row["name"]: row["remaining"] for row in await limits.limits(context)}
        assert left == {"busy": 3} | ({"costs": 8 if passes in finished else 10} if cost else {}), passes
    assert outcomes == {True, False}


async def test_a_misspelt_tool_is_an_error_when_the_server_starts(caplog: pytest.LogCaptureFixture) -> None:
    def made(*tools: str) -> FastMCP[Any]:
        made = FastMCP[Any]("limited")
        RateLimits(AsyncFakeCell(), {"calls": Rule(Rate.per_minute(1), tools=tools)}).add_to(made)
        made.tool(lambda: "found", name="search")
        made.tool(lambda: "found", name="hidden", auth=lambda context: False)
        made.disable(names={"hidden"})
        return made

    async with Client(made("search", "hidden")) as client:
        assert await client.list_tools()
    for tool, hint in (("searches", "did you mean 'search'?"), ("x", "its tools are hidden, search")):
        text = f"the rule 'calls' names the tool {tool!r}, which the server does not have: {re.escape(hint)}"
        with pytest.raises(Exception, match=text):
            async with Client(made("search", tool)):
                pass
    assert not caplog.records
    mounting = made("search", "other_render", "other_rendre")
    other = FastMCP[Any]("other")
    other.tool(lambda: "drawn", name="render")
    mounting.mount(other, namespace="other")
    async with Client(mounting) as client:
        for _ in range(2):
            await client.list_tools()
    assert [record.message for record in caplog.records] == [
        "the rule 'calls' names the tool 'other_rendre', which the server does not have: did you mean 'other_render'?"
    ]


def test_mistakes_are_named() -> None:
    rate, cell = Rate.per_minute(1), AsyncFakeCell()

    def limits(**options: Any) -> RateLimits:
        return RateLimits(cell, **{"rules": {"a": Rule(rate)}, **options})

    mistakes: list[tuple[str, Any]] = [
        ("per must be client, session, tool, server, not 'user'", lambda: Rule(rate, per="user")),  # type: ignore[arg-type]
        ("limit must be a limit, such as .*, or Places, not 5", lambda: Rule(5)),  # type: ignore[arg-type]
        ("tools must be several names, not 'search'", lambda: Rule(rate, tools="search")),
        ("cost is for a limit of units", lambda: Rule(Places(3), cost=1)),
        ("cost must be at least 0 and at most 1, not 2", lambda: Rule(rate, cost=2)),
        ("each of tools must be text, not None", lambda: Rule(rate, tools=[None])),
        ("places must be at least 1, not 0", lambda: Places(0)),
        ("unexpected keyword argument 'pre'", lambda: Rule(rate, pre="client")),  # type: ignore[call-arg]
        ("rules must have at least one rule", lambda: RateLimits(cell, {})),
        ("rules must map names to Rules, and 'a' not to Rate", lambda: RateLimits(cell, {"a": rate})),  # type: ignore[dict-item]
        ("with cost, a Log has a limit of at most 10000, not 10001", lambda: Rule(Log(10_001, per=60), cost=1)),
        ("RateLimits needs an AsyncCell or an AsyncGuard", lambda: RateLimits(FakeCell(), {"a": Rule(rate)})),  # type: ignore[arg-type]
        ("units must be at least 0, not -1", lambda: report_cost(-1)),
        ("rules must be Mapping", lambda: RateLimits(cell, [Rule(rate)])),
        ("the name of a rule must be text, not 1", lambda: limits(rules={1: Rule(rate)})),
        ("client must be a function", lambda: limits(client=None)),
        ("session must be a function", lambda: limits(session=1)),
        ("timeout must be seconds", lambda: limits(timeout=True)),
        ("server must be FastMCP, not 'x'", lambda: limits().add_to("x")),
        ("period must be at least", lambda: RateLimits(cell, {"a": Rule(Fixed(1, per=1), cost=1)}, period=0)),
    ]
    for prefix in ("", None, 5, b"x", "a{b}c"):
        mistakes.append((f"prefix must .*{prefix!r}", partial(limits, prefix=prefix)))
    for text, mistake in mistakes:
        with pytest.raises((TypeError, ValueError), match=text):
            mistake()
