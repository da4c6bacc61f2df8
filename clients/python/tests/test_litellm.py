"""LiteLLM's proxy, four processes of it, in front of an upstream that has limits of its own."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import random
import re
import secrets
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import redis
from fastapi import HTTPException
from litellm import Router
from litellm.llms.custom_httpx.http_handler import AsyncHTTPHandler
from litellm.proxy import proxy_server
from litellm.proxy._types import UserAPIKeyAuth
from litellm.proxy.openai_files_endpoints.common_utils import encode_file_id_with_model

import servers
from redis_cell import FailClosed, Rate, Take
from redis_cell.litellm import Estimate, Limiter, Limits, estimate, micro_dollars
from upstream import Upstream, serving

PROXIES = 4
MODELS = ["requests", "used", "month", "money", "places", "fair", "long", "paused", "again", "unlimited"]
MODELS += ["first", "second", "killed", "responses", "claude", "warm", "ways", "loose", "wild/*"]
MODELS += ["stranded", "dear", "cheap", "tagged", "small", "polite", "ordered", "ours", "batched"]
MODELS += ["embedder", "mirrored", "broken", "sdk", "sdk2", "odd"]
TOO_LONG = (400, {"x-error": "This model's maximum context length is 5 tokens"})
NOT_ALLOWED = (400, {"x-error": "invalid_request_error: content_policy_violation"})
FAILED = (500, dict[str, str]())
BROKEN = (200, {"x-error": "overloaded"})
"""A stream that ends with an error before its first word."""
HERE = Path(__file__).parent / "proxy"
PRICE = {"input_cost_per_token": 1e-6, "output_cost_per_token": 2.5e-6}


class Proxies:
    """The proxies, the server, and an upstream for each model."""

    def __init__(self, server: servers.Server, urls: list[str], upstreams: dict[str, Upstream]) -> None:
        self.server, self.urls, self.upstreams = server, urls, upstreams
        self.processes: list[subprocess.Popen[bytes]] = []

    async def ask(
        self,
        client: httpx.AsyncClient,
        model: str,
        key: str = "sk-free-anybody",
        text: str = "hello",
        path: str = "chat/completions",
        **more: Any,
    ) -> Any:
        body: dict[str, Any] = {"messages": [{"role": "user", "content": text}], "max_tokens": 20}
        if path in ("completions", "images/generations"):
            body = {"prompt": text}
        elif path in ("embeddings", "moderations", "responses", "audio/speech"):
            body = {"input": text}
        elif ":" in path:
            body = {"contents": [{"role": "user", "parts": [{"text": text}]}]}
        body |= {"model": model, **more}
        url = f"{random.choice(self.urls)}/{'v1beta/models' if ':' in path else 'v1'}/{path}"
        return await client.post(url, json=body, headers={"authorization": f"Bearer {key}"})

    async def ask_until_answered(self, client: httpx.AsyncClient, model: str, **more: Any) -> Any:
        """Asks again while the proxy is too busy to have heard from the server within its timeout of a second."""
        while (response := await self.ask(client, model, **more)).status_code == 503:
            pass
        return response

    async def ask_all(self, model: str, keys: list[str], **more: Any) -> list[httpx.Response]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(timeout=60, limits=limits) as client:
            return await asyncio.gather(*(self.ask(client, model, key, **more) for key in keys))

    def number(self, scope: str, name: str, kind: str) -> int:
        """What a limiter has counted."""
        key = f"{{litellm}}:{scope}:{name}:{kind}"
        with self.server.admin as admin:
            return int(admin.get(key) or 0) if kind in ("month", "money") else int(admin.zcard(key))


@pytest.fixture(scope="module")
def proxies() -> Iterator[Proxies]:
    with ExitStack() as stack:
        server = stack.enter_context(servers.running())
        upstreams = {model: stack.enter_context(serving(Upstream())) for model in MODELS}
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        models = [
            {
                "model_name": model,
                "model_info": {"id": f"id-of-{model}"},
                "litellm_params": {
                    "model": {"wild/*": "openai/*", "claude": "anthropic/fake"}.get(model, "openai/fake"),
                    "api_base": upstream.url + ("" if model == "claude" else "/v1"),
                    "api_key": "k",
                    "num_retries": 2 if model == "again" else 0,
                    **PRICE,
                },
            }
            for model, upstream in upstreams.items()
        ]
        by_name = {model["model_name"]: model for model in models}
        second = {"model_info": {"id": "second-of-ordered"}, "litellm_params": by_name["ordered"]["litellm_params"]}
        by_name["ordered"]["litellm_params"] = {**second["litellm_params"], "order": 1}
        second["litellm_params"]["order"] = 2
        by_name["ours"] |= {"model_name": "model_name_free4_1"}
        by_name["ours"]["model_info"] |= {"team_id": "free4", "team_public_model_name": "ours"}
        tiers = dict.fromkeys(("SIMPLE", "MEDIUM", "COMPLEX", "REASONING"), "ways")
        auto = {"model": "auto_router/complexity_router", "complexity_router_config": {"tiers": tiers}}
        models += [{"model_name": "ordered", **second}, {"model_name": "auto", "litellm_params": auto}]
        by_name["mirrored"]["litellm_params"]["silent_model"] = "ways"
        routes = [{"name": "ways", "utterances": ["greetings"]}]
        semantic = {"auto_router_config": json.dumps({"routes": routes}), "auto_router_default_model": "unlimited"}
        semantic |= {"model": "auto_router/semantic", "auto_router_embedding_model": "embedder"}
        models += [{"model_name": "semantic", "litellm_params": semantic}]
        config = {
            "model_list": models,
            "litellm_settings": {
                "callbacks": "rules.limiter",
                "num_retries": 0,
                "cache": True,
                "cache_params": {"type": "local", "mode": "default_off"},
            },
            "router_settings": {
                "disable_cooldowns": True,
                "num_retries": 0,
                "fallbacks": [{"first": ["second"]}, {"loose": ["ways"]}, {"broken": ["ways"]}],
                "context_window_fallbacks": [{"small": ["ways"]}],
                "content_policy_fallbacks": [{"polite": ["ways"]}],
                "model_group_alias": {"alias": "ways"},
                "routing_groups": [{"group_name": "group", "models": ["ways"], "routing_strategy": "simple-shuffle"}],
            },
            "general_settings": {"custom_auth": "rules.auth", "allow_client_side_credentials": True},
        }
        (folder / "config.yaml").write_text(json.dumps(config))
        for file in HERE.glob("*.py"):
            (folder / file.name).write_text(file.read_text())
        environment = {
            **os.environ,
            "CONFIG_FILE_PATH": str(folder / "config.yaml"),
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "LITELLM_MASTER_KEY": "sk-" + secrets.token_hex(32),
            "OPENAI_API_KEY": "k",  # of batches
            "OPENAI_BASE_URL": upstreams["tagged"].url + "/v1",
            "REDIS_URL": f"redis://127.0.0.1:{server.port}",
        }
        made = Proxies(server, [], upstreams)
        for _ in range(PROXIES):
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=500))
            command = [sys.executable, "-m", "uvicorn", "litellm.proxy.proxy_server:app", "--log-level", "warning"]
            command += ["--fd", str(listener.fileno())]
            log = stack.enter_context((folder / "log").open("ab"))
            process = subprocess.Popen(
                command, env=environment, pass_fds=[listener.fileno()], stdout=log, stderr=log, cwd=folder
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            made.processes.append(process)
            made.urls.append(f"http://127.0.0.1:{listener.getsockname()[1]}")
        for url in made.urls:
            # The proxy listens when it has started; the kernel holds the request until then.
            httpx.get(url + "/health/liveliness", timeout=300).raise_for_status()
            # The first request of a process takes seconds, in which others would not be answered.
            body = {"model": "warm", "messages": [{"role": "user", "content": "hello"}]}
            headers = {"authorization": "Bearer sk-free-anybody"}
            httpx.post(url + "/v1/chat/completions", json=body, headers=headers, timeout=300)
        yield made


def limiter_of(server: servers.Server, limits: Any, **more: Any) -> Limiter:
    return Limiter(f"redis://127.0.0.1:{server.port}", when_unavailable=FailClosed(), limits=limits, **more)


def counts(responses: list[httpx.Response]) -> Counter[int]:
    return Counter(response.status_code for response in responses)


async def test_requests_of_a_model_are_exact(proxies: Proxies) -> None:
    upstream = proxies.upstreams["requests"]
    upstream.limit = 50
    responses = await proxies.ask_all("requests", ["sk-free-anybody"] * 200)
    assert counts(responses) == {200: 50, 429: 150}
    assert (len(upstream.seen), upstream.refused) == (50, 0)
    refused = next(response for response in responses if response.status_code == 429)
    assert 30 <= int(refused.headers["retry-after"]) <= 60
    assert "requests of the model" in refused.text
    assert refused.headers["x-ratelimit-limit-requests"] == "50"


async def test_all_scopes_are_one_decision(proxies: Proxies) -> None:
    teams = [f"sk-red-{index}" for index in range(30)] + [f"sk-blue-{index}" for index in range(30)]
    responses = await proxies.ask_all("unlimited", [*teams, *["sk-blue-tight"] * 20])
    # The organisation has 40, of which the team red has 15 at most and the user tight 2.
    assert counts(responses) == {200: 40, 429: 40}
    assert len(proxies.upstreams["unlimited"].seen) == 40
    # A request that one limit refuses has taken nothing from the others.
    assert proxies.number("organisation", "acme", "rpm") == 40
    assert proxies.number("team", "red", "rpm") <= 15
    assert proxies.number("user", "tight", "rpm") <= 2
    responses = await proxies.ask_all("unlimited", ["sk-free-tight"] * 5)
    assert counts(responses)[200] == 2 - (proxies.number("user", "tight", "rpm") - counts(responses)[200])


async def test_what_is_used_is_settled(proxies: Proxies) -> None:
    upstream = proxies.upstreams["used"]
    await proxies.ask_all("used", ["sk-free-anybody"] * 40)
    await proxies.ask_all("used", ["sk-free-anybody"] * 40, stream=True)
    upstream.faults.extend([(500, {})] * 10)
    assert counts(await proxies.ask_all("used", ["sk-free-anybody"] * 10)) == {500: 10}
    assert upstream.tokens == 80 * 15
    servers.wait_until(lambda: proxies.number("model", "used", "month") == upstream.tokens)
    servers.wait_until(lambda: proxies.number("model", "used", "money") == 80 * (5 + 25))


@pytest.mark.parametrize(("model", "kind", "limit"), [("month", "month", 1000), ("money", "money", 1000)])
async def test_a_month_is_never_exceeded(proxies: Proxies, model: str, kind: str, limit: int) -> None:
    upstream = proxies.upstreams[model]
    seen: set[int] = {200}
    while 200 in seen:  # estimates that are held refuse others at first
        seen = set(counts(await proxies.ask_all(model, ["sk-free-anybody"] * 50)))
        assert seen <= {200, 429}
    used = upstream.tokens if kind == "month" else 30 * len(upstream.seen)
    servers.wait_until(lambda: proxies.number("model", model, kind) == used)
    # The units left are fewer than the estimate of one more request.
    assert limit - 60 < used <= limit


async def test_calls_at_once(proxies: Proxies) -> None:
    upstream = proxies.upstreams["places"]
    upstream.delay = 0.02
    assert counts(await proxies.ask_all("places", ["sk-free-anybody"] * 100)) == {200: 100}
    assert counts(await proxies.ask_all("places", ["sk-free-anybody"] * 20, stream=True)) == {200: 20}
    upstream.faults.extend([(500, {})] * 10)
    assert counts(await proxies.ask_all("places", ["sk-free-anybody"] * 10)) == {500: 10}
    assert upstream.busiest == 5
    servers.wait_until(lambda: proxies.number("model", "places", "busy") == 0)


async def test_clients_that_go_away_leave_no_place(proxies: Proxies) -> None:
    upstream = proxies.upstreams["places"]
    upstream.delay = 0.2

    async def leave(stream: bool) -> None:
        async with httpx.AsyncClient(timeout=30) as client:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(proxies.ask(client, "places", stream=stream, max_tokens=100), 1)

    await asyncio.gather(*(leave(True) for _ in range(5)))
    servers.wait_until(lambda: proxies.number("model", "places", "busy") == 0)
    upstream.delay = 2
    await asyncio.gather(*(leave(False) for _ in range(5)))
    upstream.delay = 0
    servers.wait_until(lambda: proxies.number("model", "places", "busy") == 0)


async def test_a_long_call_keeps_its_place(proxies: Proxies) -> None:
    upstream, key = proxies.upstreams["long"], "{litellm}:model:long:busy"
    upstream.delay = 0.25
    streams = asyncio.ensure_future(proxies.ask_all("long", ["sk-free-anybody"] * 5, stream=True, max_tokens=40))
    seen = set[int]()
    with proxies.server.admin as admin:
        while not streams.done():
            await asyncio.sleep(0.05)
            before, held = upstream.busy, admin.zcount(key, time.time() * 1e6, "inf")
            if before == upstream.busy == 5:
                seen.add(held)
    assert counts(streams.result()) == {200: 5}
    assert seen == {5}


async def test_a_request_that_is_cancelled_takes_nothing(proxies: Proxies) -> None:
    limits = Limits(tokens_per_month=100_000, calls_at_once=100)
    limiter = limiter_of(proxies.server, {"model": limits}, prefix="cancelled")
    user = UserAPIKeyAuth(api_key="k")
    for steps in range(60):
        data = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "litellm_call_id": str(steps)}

        async def request(data: dict[str, Any] = data) -> None:
            await limiter.async_pre_call_hook(user, None, data, "completion")
            await limiter.async_post_call_failure_hook(data, Exception(), user)

        task = asyncio.ensure_future(request())
        for _ in range(steps % 12):
            await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    while limiter._tasks.running:
        await asyncio.wait(limiter._tasks.running, timeout=1, return_when=asyncio.FIRST_COMPLETED)
    await limiter.guard.cell.pool.disconnect()
    with proxies.server.admin as admin:
        assert admin.zcard("{cancelled}:model:m:busy") == 0
        assert int(admin.get("{cancelled}:model:m:month") or 0) == 0
        assert proxies.server.calls("cl.msettle")


async def test_a_reply_after_the_503_is_given_back() -> None:
    with servers.running() as server, server.admin as admin:
        limits = Limits(tokens_per_month=100_000, requests_per_minute=10, dollars_per_month="9")
        limiter = limiter_of(server, {"key": limits}, prefix="late")
        user, data = UserAPIKeyAuth(api_key="k"), {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
        await limiter.guard.mpeek(Take("{late}", Rate(1, per=1)))
        server.freeze()
        with pytest.raises(HTTPException) as refused:
            await limiter.async_pre_call_hook(user, None, data, "completion")
        assert refused.value.status_code == 503
        server.thaw()
        servers.wait_until(lambda: admin.info("commandstats").get("cmdstat_cl.mtake"))
        await servers.until(
            lambda: int(admin.get("{late}:key:k:month") or 0) == 0 and not admin.zcard("{late}:key:k:rpm")
        )
        await limiter.guard.cell.pool.disconnect()


async def test_teams_wait_fairly(proxies: Proxies) -> None:
    upstream = proxies.upstreams["fair"]
    upstream.delay = 0.05
    async with httpx.AsyncClient(timeout=60, limits=httpx.Limits(max_connections=None)) as client:
        many = [asyncio.ensure_future(proxies.ask(client, "fair", "sk-free1-a", "many")) for _ in range(60)]
        while len(upstream.seen) < 4:
            await asyncio.sleep(0.01)
        few = [asyncio.ensure_future(proxies.ask(client, "fair", "sk-free2-b", "few")) for _ in range(8)]
        responses = await asyncio.gather(*many, *few)
    assert counts(responses) == {200: 68}, Counter(response.text for response in responses)
    last = max(index for index, who in enumerate(upstream.who) if who == "few")
    # They take turns: 8 of the one team, as many of the other, and those who were there before.
    assert upstream.who[:last].count("many") <= 30
    assert upstream.busiest == 2


async def test_teams_share_the_tokens_that_they_use(proxies: Proxies) -> None:
    """One team uses all that is estimated, and another one a tenth. By requests, that one would get a tenth."""
    used, weights = {"all": 50, "tenth": 5, "double": 50}, {"double": 2, "*": 1}
    limits = {"model": Limits(tokens_per_minute=50)}  # one request at a time
    limiter = limiter_of(proxies.server, limits, max_wait=1e6, weights=weights, prefix="shares")
    turns = asyncio.Queue[str]()

    async def request(team: str, number: int) -> None:
        data = {"model": "m", "prompt": "", "max_tokens": 50, "litellm_call_id": f"{team}-{number}"}
        user = UserAPIKeyAuth(api_key="k", team_id=team)
        await limiter.async_pre_call_hook(user, None, data, "completion")
        response = SimpleNamespace(usage={"total_tokens": used[team]}, _hidden_params={})
        await limiter.async_post_call_success_hook(data, user, response)
        turns.put_nowait(team)

    with proxies.server.admin as admin:
        admin.execute_command("CL.CHARGE", "{shares}:model:m:tpm", 49, 50, 60, 50)
        # More of each team than have a turn below, so that all three wait at any time.
        calls = [asyncio.ensure_future(request(team, number)) for team in used for number in range(50)]
        await servers.until(lambda: proxies.server.counted("blocked_clients") == len(calls))
        got = Counter[str]()
        while got["double"] < 400:
            admin.delete("{shares}:model:m:tpm")
            team = await asyncio.wait_for(turns.get(), 60)
            got[team] += used[team]
    for call in calls:
        call.cancel()
    await asyncio.wait(calls)
    await limiter.guard.cell.pool.disconnect()
    assert abs(got["all"] - 200) <= 50 and abs(got["tenth"] - 200) <= 50, got


def test_an_estimate_counts_all_choices_and_the_longest_length() -> None:
    def tokens(**request: Any) -> tuple[int, int]:
        estimated = estimate({"messages": [{"role": "user", "content": "hello"}], **request})
        return estimated.prompt, estimated.answer

    assert tokens() == (5, 1000)
    assert tokens(max_tokens=None) == (5, 1000)
    assert tokens(max_tokens=50) == (5, 50)
    assert tokens(max_tokens=50, n=20) == (5, 1000)
    assert tokens(max_tokens=50, max_completion_tokens=500) == (5, 500)
    assert tokens(max_tokens=-5) == (5, 0)
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 10_000}}
    assert tokens(messages=[{"content": [picture]}], max_tokens=1)[0] < 20
    assert estimate({"input": ["two words", "日本"]}) == Estimate(8, 0)


async def test_a_tool_that_a_request_waits_for_is_another_request(server: servers.Server) -> None:
    limits = Limits(tokens_per_month=9000, requests_per_minute=9, calls_at_once=9)
    limiter = limiter_of(server, {"key": limits})
    user, tool = UserAPIKeyAuth(api_key="k"), {"model": "mcp-tool-call", "messages": [{"content": "search"}]}
    data = {"model": "m", "messages": [], "litellm_call_id": "1"}
    await limiter.async_pre_call_hook(user, None, data, "acompletion")
    for _ in range(3):
        await limiter.async_pre_call_hook(user, None, tool, "call_mcp_tool")
    response = SimpleNamespace(usage={"total_tokens": 15}, _hidden_params={})
    await limiter.async_post_call_success_hook(data, user, response)
    with server.admin as admin:
        assert (admin.get("{litellm}:key:k:month"), admin.zcard("{litellm}:key:k:rpm")) == ("15", 4)


GOOGLE: dict[str, Any] = {"contents": [{"parts": [{"text": "hello"}, {"inlineData": {"data": "A" * 10_000}}]}]}
GOOGLE |= {"generationConfig": {"maxOutputTokens": 50, "candidateCount": 2}}


@pytest.mark.parametrize(
    ("api", "body", "held"),
    [
        ("aresponses", {"input": "hello"}, 3 + 1000),
        ("aembedding", {"input": "hello"}, 3),
        ("agenerate_content", GOOGLE, 3 + 2 * 50),
    ],
)
async def test_the_estimate_of_an_api(server: servers.Server, api: str, body: Any, held: int) -> None:
    limits = {"tag": Limits(tokens_per_month=9000), "user": Limits(tokens_per_minute=1)}
    limiter = limiter_of(server, limits, timeout=30, flow="tag")
    assert limiter.guard.cell.pool.connection_kwargs["socket_timeout"] == 60
    data = {**body, "litellm_call_id": "1", "metadata": {"tags": ["long" * 999]}}
    await limiter.async_pre_call_hook(UserAPIKeyAuth(api_key="k"), None, data, api)
    with server.admin as admin:
        (key,) = admin.keys("{litellm}:tag:*")
        assert (admin.get(key), len(key) < 300) == (str(held), True)
    for status, user, more in (
        (400, {}, {"metadata": {"tags": [str(number) for number in range(101)]}}),
        (413, {"user_id": "u"}, {"messages": [], "n": 10**9, "max_tokens": 1}),
    ):
        with pytest.raises(HTTPException) as refused:
            await limiter.async_pre_call_hook(UserAPIKeyAuth(api_key="k", **user), None, {**body, **more}, api)
        assert refused.value.status_code == status


async def test_a_request_that_can_never_be_admitted_is_told_so(proxies: Proxies) -> None:
    before = len(proxies.upstreams["month"].seen)
    (response,) = await proxies.ask_all("month", ["sk-free-anybody"], max_tokens=1001)
    assert (response.status_code, response.headers.get("retry-after")) == (413, None)
    assert "the request alone exceeds the limit: tokens of the model" in response.text
    assert len(proxies.upstreams["month"].seen) == before


async def test_a_429_of_the_upstream_stops_all_processes(proxies: Proxies) -> None:
    upstream = proxies.upstreams["paused"]
    upstream.faults.append((429, {"retry-after": "2"}))
    assert counts(await proxies.ask_all("paused", ["sk-free-anybody"])) == {429: 1}
    with proxies.server.admin as admin:
        servers.wait_until(lambda: admin.exists("{litellm}:model:paused:pause"))
    assert counts(await proxies.ask_all("paused", ["sk-free-anybody"] * 20)) == {200: 20}
    assert min(upstream.seen[1:]) - upstream.seen[0] >= 1.9


async def test_a_429_for_the_credentials_of_a_caller_stops_nobody(proxies: Proxies) -> None:
    proxies.upstreams["odd"].faults.append((429, {"retry-after": "600"}))
    assert counts(await proxies.ask_all("odd", ["sk-free-anybody"], api_key="the caller's")) == {429: 1}
    for _ in range(3):
        assert counts(await proxies.ask_all("odd", ["sk-free-anybody"])) == {200: 1}
    charges(proxies)


async def test_attempts_of_the_router_are_requests(proxies: Proxies) -> None:
    upstream = proxies.upstreams["again"]
    upstream.faults.extend([(500, {})] * 6)
    await proxies.ask_all("again", ["sk-free-anybody"])
    assert len(upstream.seen) == 2
    assert proxies.number("model", "again", "rpm") == 2


@pytest.mark.parametrize(
    ("path", "more", "requests"),
    [
        ("chat/completions", {}, 1),
        ("chat/completions", {"num_retries": 2}, 3),
        ("completions", {"stream": True}, 1),
        ("messages", {}, 1),
        ("responses", {}, 1),
        # LiteLLM's router asks for 0, but these have retries of the SDK.
        ("embeddings", {}, 3),
        ("embeddings", {"num_retries": 1}, 6),
        ("images/generations", {}, 3),
        ("moderations", {}, 3),
        ("audio/speech", {"voice": "alloy"}, 3),
    ],
)
async def test_retries_of_the_sdk_are_requests(
    proxies: Proxies, path: str, more: dict[str, Any], requests: int
) -> None:
    upstream = proxies.upstreams["sdk"]
    upstream.seen.clear()
    before = proxies.number("model", "sdk", "rpm")
    upstream.faults.extend([FAILED] * requests)
    assert counts(await proxies.ask_all("sdk", ["sk-free-anybody"], path=path, max_retries=2, **more)) == {500: 1}
    assert len(upstream.seen) == proxies.number("model", "sdk", "rpm") - before == requests


async def test_the_limits_end_the_retries_of_the_sdk(proxies: Proxies) -> None:
    upstream = proxies.upstreams["sdk2"]
    upstream.faults.extend([FAILED] * 10)
    (response,) = await proxies.ask_all("sdk2", ["sk-free-anybody"], path="embeddings")
    assert response.status_code == 429 and "a limit of the model sdk2 is reached" in response.text
    assert len(upstream.seen) == proxies.number("model", "sdk2", "rpm") == 2
    with proxies.server.admin as admin:
        assert not admin.exists("{litellm}:model:sdk2:pause")  # the upstream has not answered 429


async def test_a_request_that_is_sent_again_on_a_new_connection_counts(server: servers.Server) -> None:
    """LiteLLM's own client does so if the connection is reset. The requests of logs and guardrails are none."""
    limiter, seen = limiter_of(server, {"model": Limits(requests_per_minute=9)}), list[bytes]()

    async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.close()

    data = {"model": "m", "messages": [], "litellm_call_id": "1"}
    await limiter.async_pre_call_hook(UserAPIKeyAuth(api_key="k"), None, data, "completion")
    await limiter.async_pre_call_deployment_hook(data, "acompletion")
    async with await asyncio.start_server(reset, "127.0.0.1") as upstream:
        url = f"http://127.0.0.1:{upstream.sockets[0].getsockname()[1]}"
        for logging_obj, requests in ((None, 2), (object(), 4)):
            with pytest.raises(httpx.TransportError):
                await AsyncHTTPHandler().post(url, json={}, logging_obj=logging_obj)
            assert len(seen) == requests
    with server.admin as admin:
        assert admin.zcard("{litellm}:model:m:rpm") == 2


async def test_a_fallback_takes_from_the_limits_of_its_model(proxies: Proxies) -> None:
    first, second = proxies.upstreams["first"], proxies.upstreams["second"]
    first.faults.extend([(500, {})] * 1000)
    responses = await proxies.ask_all("first", ["sk-free-anybody"] * 30)
    assert counts(responses)[200] == 10, counts(responses)
    assert (len(first.seen), len(second.seen)) == (30, 10)
    assert proxies.number("model", "first", "rpm") == 30
    assert proxies.number("model", "second", "rpm") == 10
    # Units that the first model has not used are given back to it.
    servers.wait_until(lambda: proxies.number("model", "second", "month") == second.tokens)
    servers.wait_until(lambda: proxies.number("model", "first", "month") == 0)
    servers.wait_until(lambda: proxies.number("model", "first", "busy") == 0)
    servers.wait_until(lambda: proxies.number("model", "second", "busy") == 0)


async def test_a_dear_model_is_used_while_its_month_lasts_and_then_a_cheap_one(proxies: Proxies) -> None:
    dear, cheap = proxies.upstreams["dear"], proxies.upstreams["cheap"]
    seen: set[int] = {200}
    while 200 in seen:  # estimates that are held refuse others at first
        seen = set(counts(await proxies.ask_all("dear", ["sk-free-anybody"] * 30)))
        assert seen <= {200, 429}
    servers.wait_until(lambda: proxies.number("model", "dear", "money") == 30 * len(dear.seen))
    servers.wait_until(lambda: proxies.number("model", "cheap", "month") == cheap.tokens)
    assert 1000 - 53 < 30 * len(dear.seen) <= 1000 and 500 - 25 < cheap.tokens <= 500


async def test_tags_end_users_and_members_have_limits(proxies: Proxies) -> None:
    for key, more, most in (
        ("sk-free-anybody", {"metadata": {"tags": ["eval", "other", "eval"]}}, 4),
        ("sk-free-anybody", {"user": "ann"}, 3),
        ("sk-free3-member", {}, 2),
    ):
        assert counts(await proxies.ask_all("tagged", [key] * 6, **more)) == {200: most, 429: 6 - most}


def charges(proxies: Proxies) -> list[int]:
    """The tokens and the money of the model of the tests below since they were last read, and its calls now."""
    keys = [f"{{litellm}}:model:odd:{kind}" for kind in ("month", "money")]
    with proxies.server.admin as admin:
        servers.wait_until(lambda: proxies.number("model", "odd", "busy") == 0)
        return [int(admin.getdel(key) or 0) for key in keys]


MOST = 2**63 - 1


@pytest.mark.parametrize(
    ("report", "charged"),
    [
        ({"prompt_tokens": 5, "completion_tokens": 10}, [15, 30]),
        ({}, [25, 55]),  # as estimated
        ({"prompt_tokens": -5, "completion_tokens": -10, "total_tokens": -15}, [25, 55]),
        ({"prompt_tokens": 5, "completion_tokens": 10, "total_tokens": MOST + 1}, [MOST, 30]),
        ({"prompt_tokens": 5, "completion_tokens": 10**16, "total_tokens": 10**16 + 5}, [10**16 + 5, 55]),
    ],
)
async def test_the_usage_that_an_upstream_reports_may_be_odd(
    proxies: Proxies, report: dict[str, int], charged: list[int]
) -> None:
    proxies.upstreams["odd"].report = report
    assert counts(await proxies.ask_all("odd", ["sk-free-anybody"])) == {200: 1}
    proxies.upstreams["odd"].report = None
    assert charges(proxies) == charged


async def test_a_request_that_times_out_is_charged_as_estimated(proxies: Proxies) -> None:
    proxies.upstreams["odd"].delay = 2
    assert counts(await proxies.ask_all("odd", ["sk-free-anybody"], timeout=0.5)) == {408: 1}
    proxies.upstreams["odd"].delay = 0
    assert charges(proxies) == [25, 55]


async def test_an_answer_that_is_there_already_is_not_charged_again(proxies: Proxies) -> None:
    """An answer from the cache, and a response that is retrieved."""
    headers, cache = {"authorization": "Bearer sk-free-anybody"}, {"use-cache": True}
    one = Proxies(proxies.server, proxies.urls[:1], proxies.upstreams)
    async with httpx.AsyncClient(timeout=60, headers=headers) as client:
        for charged in ([15, 30], [0, 0], [0, 0]):
            (await one.ask(client, "odd", cache=cache)).raise_for_status()
            assert charges(proxies) == charged
        (await one.ask(client, "odd,odd", cache=cache)).raise_for_status()
        assert charges(proxies) == [0, 0]
        response = await proxies.ask(client, "odd", path="responses")
        assert charges(proxies) == [10, 18]
        for _ in range(2):
            (await client.get(f"{one.urls[0]}/v1/responses/{response.json()['id']}")).raise_for_status()
            assert charges(proxies) == [0, 0]


async def test_embeddings_of_which_a_part_is_cached_are_charged(server: servers.Server) -> None:
    """LiteLLM marks the whole answer as cached, and then logs the usage of the rest."""
    limiter, user = limiter_of(server, {"key": Limits(tokens_per_month=9000)}), UserAPIKeyAuth(api_key="k")
    data = {"model": "m", "input": ["known", "new"], "litellm_call_id": "1"}
    await limiter.async_pre_call_hook(user, None, data, "aembedding")
    whole = SimpleNamespace(usage={"total_tokens": 10}, _hidden_params={"cache_hit": True})
    await limiter.async_post_call_success_hook(data, user, whole)
    await limiter.async_log_success_event(data, SimpleNamespace(usage={"total_tokens": 5}), None, None)
    with server.admin as admin:
        assert admin.get("{litellm}:key:k:month") == "5"


async def test_what_litellm_itself_refuses_is_given_back(proxies: Proxies) -> None:
    """Its limiter follows this one: it refuses the second request for `loose`, and the third for the fallback too."""
    begin_ways(proxies)
    proxies.upstreams["loose"].faults.clear()
    one = Proxies(proxies.server, proxies.urls[:1], proxies.upstreams)
    for status, ways, user in ((200, 0, 15), (200, 15, 30), (429, 15, 30)):
        assert counts(await one.ask_all("loose", ["sk-free5-all"])) == {status: 1}
        servers.wait_until(lambda ways=ways: proxies.number("model", "ways", "month") == ways)
        servers.wait_until(lambda user=user: proxies.number("user", "all", "month") == user)


async def test_a_batch_is_charged_once(proxies: Proxies) -> None:
    """To the months of its user and its model, whatever its id. Its requests have used 70 tokens, by their rows."""
    headers = {"authorization": "Bearer sk-free-batcher"}
    three = encode_file_id_with_model("three", "batched", id_type="batch")
    async with httpx.AsyncClient(timeout=60, headers=headers) as client:
        for batch, charged in (("one", 70), ("one", 70), ("two", 140), (three, 210), ("three", 210), (three, 210)):
            (await client.get(f"{random.choice(proxies.urls)}/v1/batches/{batch}")).raise_for_status()
            servers.wait_until(lambda charged=charged: proxies.number("user", "batcher", "month") >= charged)
    servers.wait_until(lambda: proxies.number("user", "batcher", "month") == 210)
    assert proxies.number("model", "fake", "month") == 140  # no deployment, but the rows have a model
    # A batch has half the price.
    assert (proxies.number("model", "batched", "month"), proxies.number("model", "batched", "money")) == (70, 80)
    with proxies.server.admin as admin:
        assert not admin.keys("*batche*:tpm")


async def test_a_batch_is_charged_when_its_usage_is_final(server: servers.Server) -> None:
    """Not when it is created or runs, and not before its answers have arrived, whose price is unknown until then."""
    limiter = limiter_of(server, {"key": Limits(tokens_per_month=9000, dollars_per_month="1")})
    managed = base64.urlsafe_b64encode(b"litellm_proxy;model_id:m;llm_batch_id:b").decode()

    async def call(call_type: str, name: str, status: str, output: str | None, tokens: int, dollars: float) -> None:
        data = {"litellm_call_id": secrets.token_hex(8)}
        await limiter.async_pre_call_hook(UserAPIKeyAuth(api_key="batches"), None, data, call_type)
        usage = SimpleNamespace(total_tokens=tokens)
        batch = SimpleNamespace(object="batch", id=name, status=status, output_file_id=output, usage=usage)
        done = {**data, "call_type": call_type, "response_cost": dollars}
        await limiter.async_log_success_event(done, batch, None, None)

    def charged() -> list[str | None]:
        with server.admin as admin:
            return [admin.get(f"{{litellm}}:key:batches:{kind}") for kind in ("month", "money")]

    for early in (
        ("acreate_batch", "b", "validating", None, 0, 0.0),
        ("aretrieve_batch", "b", "in_progress", None, 40, 0.0),
        ("aretrieve_batch", "b", "completed", None, 70, 0.0),
        ("acancel_batch", "b", "cancelled", "out", 70, 0.0),
    ):
        await asyncio.create_task(call(*early))
        assert not any(int(units or 0) for units in charged()), early
    for name in ("b", managed, "b"):
        await asyncio.create_task(call("aretrieve_batch", name, "completed", "out", 70, 0.5))
        assert charged() == ["70", "500000"], name


def begin_ways(proxies: Proxies, model: str = "ways") -> None:
    """The limits of a model are as new, and its upstream has seen nothing."""
    keys = [f"{{litellm}}:model:{model}:{kind}" for kind in ("rpm", "month", "money")]
    with proxies.server.admin as admin:
        admin.delete(*keys, "{litellm}:user:all:month")
    proxies.upstreams[model].seen.clear()
    proxies.upstreams[model].tokens = 0


@pytest.mark.parametrize(
    ("name", "model", "more", "fault"),
    [
        ("ways", "ways", {}, None),
        ("id-of-ways", "ways", {}, None),
        ("alias", "ways", {}, None),
        ("of-key", "ways", {}, None),
        ("of-team", "ways", {}, None),
        ("ours", "ours", {"key": "sk-free4-all"}, None),
        ("wild/any", "wild/*", {}, None),
        ("group", "ways", {}, None),
        ("auto", "ways", {}, None),
        ("semantic", "ways", {}, None),
        ("auto", "ways", {"api_key": "the caller's"}, None),
        ("ordered", "ordered", {}, FAILED),
        ("loose", "ways", {}, FAILED),
        ("loose", "ways", {"fallbacks": ["alias"]}, FAILED),
        ("loose", "ways", {"fallbacks": [{"*": ["ways"]}]}, FAILED),  # as default_fallbacks
        ("broken", "ways", {"stream": True}, BROKEN),
        ("broken", "ways", {"stream": True, "path": "messages"}, BROKEN),
        ("small", "ways", {}, TOO_LONG),
        ("polite", "ways", {}, NOT_ALLOWED),
        ("ways", "ways", {"priority": 1}, None),
        ("alias", "ways", {"stream": True}, None),
        ("id-of-ways", "ways", {"path": "messages"}, None),
        ("alias", "ways", {"path": "completions"}, None),
        ("group", "ways", {"path": "embeddings"}, None),
        ("alias", "ways", {"path": "alias:generateContent"}, None),  # which LiteLLM sends under another id
        ("ways", "ways", {"path": "ways:streamGenerateContent"}, None),
        ("ways,alias", "ways", {}, None),
        ("ways,id-of-ways", "ways", {"fastest_response": True}, None),
        ("alias,ways", "ways", {"messages": [[{"role": "user", "content": text}] for text in "ab"]}, None),
    ],
)
async def test_limits_are_those_of_the_deployment_that_is_called(
    proxies: Proxies, name: str, model: str, more: dict[str, Any], fault: tuple[int, dict[str, str]] | None
) -> None:
    begin_ways(proxies, model)
    upstream = proxies.upstreams[model]
    if fault is not None:
        proxies.upstreams[name].faults.extend([fault] * 8)
    key = more.get("key", "sk-free-all")
    responses = await proxies.ask_all(name, [key] * 8, **{name: more[name] for name in more if name != "key"})
    assert len(upstream.seen) == 3, [(response.status_code, response.text) for response in responses]
    assert proxies.number("model", model, "rpm") == 3
    if not more or ":" in more.get("path", ""):
        servers.wait_until(lambda: proxies.number("model", model, "month") == upstream.tokens)
        servers.wait_until(lambda: proxies.number("user", "all", "month") == upstream.tokens)
        dollars = sum(5 + 2.5 * (tokens - 5) for tokens in [upstream.tokens / 3] * 3)
        servers.wait_until(lambda: model != "ways" or dollars <= proxies.number("model", model, "money") < dollars + 3)


@pytest.mark.parametrize(
    ("name", "more"),
    [("ways", {}), ("mine", {"model_group_alias": {"mine": "ways"}}), ("gone", {"fallbacks": [{"gone": ["ways"]}]})],
)
async def test_a_configuration_in_the_request_has_the_limits_of_its_names(
    proxies: Proxies, name: str, more: dict[str, Any]
) -> None:
    upstream = proxies.upstreams["ways"]
    begin_ways(proxies)
    gone = {"model_name": "gone", "litellm_params": {"model": "openai/fake", "api_base": "http://127.0.0.1:9/v1"}}
    ways = {"model_name": "ways", "litellm_params": {"model": "openai/fake", "api_base": upstream.url + "/v1"}}
    for deployment in (gone, ways):
        deployment["litellm_params"] |= {"api_key": "k"}  # type: ignore[operator]
    config = {"model_list": [gone, ways], "num_retries": 0, **more}
    responses = await proxies.ask_all(name, ["sk-free-all"] * 8, user_config=config)
    assert len(upstream.seen) == 3, [(response.status_code, response.text) for response in responses]
    assert proxies.number("model", "ways", "rpm") == 3


async def test_requests_that_litellm_adds_take_from_the_limits_of_their_model(proxies: Proxies) -> None:
    """To embed for an auto-router, and to mirror requests. The requests themselves are not refused for it."""
    begin_ways(proxies)
    upstream, embedder = proxies.upstreams["ways"], proxies.upstreams["embedder"]
    upstream.faults.append(FAILED)
    refused = proxies.server.counted("mtake_refused")
    assert counts(await proxies.ask_all("mirrored", ["sk-free-all"] * 8, stream=True)) == {200: 8}
    await servers.until(lambda: proxies.server.counted("mtake_refused") == refused + 5)
    await servers.until(lambda: len(upstream.seen) == 3 and proxies.number("model", "ways", "month") == 2 * 15)
    assert proxies.number("model", "ways", "rpm") == 3

    requests, tokens = (proxies.number("model", "embedder", kind) for kind in ("rpm", "month"))
    assert len(await proxies.ask_all("semantic", ["sk-free-all"] * 8, text="a question")) == 8
    assert embedder.who.count("['a question']") == 8
    assert proxies.number("model", "embedder", "rpm") == requests + 8
    await servers.until(lambda: proxies.number("model", "embedder", "month") == tokens + 8 * 5)


async def test_a_request_that_litellm_adds_counts_once_although_it_is_translated(server: servers.Server) -> None:
    limiter = limiter_of(server, {"model": Limits(requests_per_minute=9)}, prefix="own")
    data = {"model": "outer", "messages": [], "litellm_call_id": "1"}
    await limiter.async_pre_call_hook(UserAPIKeyAuth(api_key="k"), None, data, "completion")
    own = {"litellm_call_id": "2", "metadata": {"model_group": "m"}, "input": "hello"}
    with server.admin as admin:
        for call_type, requests in (("aresponses", 1), ("acompletion", 1), ("aresponses", 2)):  # the last is a retry
            await limiter.async_pre_call_deployment_hook(own, call_type)
            assert admin.zcard("{own}:model:m:rpm") == requests


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"limits": {"organization": Limits(requests_per_minute=1)}}, "'organization'"),
        ({"limits": {"keys": Limits(requests_per_minute=1)}}, "'keys'"),
        ({"limits": {"key": Limits(tokens_per_month=1, otherwise="gpt")}}, "otherwise is for the limits of a model"),
        ({"limits": {"model": {"a": Limits(tokens_per_month=1, otherwise="b")}}}, "otherwise='b'"),
        ({"limits": {"model": {"a": Limits(tokens_per_month=1, otherwise="a")}}}, "otherwise='a'"),
        ({"limits": {"key": {"requests_per_minute": 1}}}, "'requests_per_minute'"),
        ({"limits": {"model": {"gpt": {"requests_per_minute": 1}}}}, "'gpt'"),
        ({"limits": Limits(requests_per_minute=1)}, "limits must map scopes"),
        ({"when_unavailable": FailClosed}, r"FailClosed\(\)"),
        ({"when_unavailable": "open"}, "'open'"),
        ({"url": "http://localhost:6379"}, "'http'"),
        ({"url": "localhost:6379"}, "'localhost'"),
        ({"url": "redis://localhost/abc"}, "'abc'"),
        ({"url": None}, "url must be"),
        ({"flow": "teams"}, "'teams'"),
        ({"weights": {"red": 0}}, "'red'"),
        ({"weights": {"red": "3"}}, "'red'"),
        ({"weights": ["red"]}, "weights"),
        ({"estimate": 5}, "estimate"),
        ({"max_wait": -1}, "max_wait"),
        ({"lease": 0}, "lease"),
        ({"timeout": 0}, "timeout"),
        ({"prefix": "a{b}"}, "prefix"),
    ],
)
def test_what_is_configured_wrongly_is_an_error_that_names_it(arguments: dict[str, Any], named: str) -> None:
    right: dict[str, Any] = {"url": "redis://localhost", "when_unavailable": FailClosed(), "limits": {}}
    Limiter(**right)
    with pytest.raises((TypeError, ValueError), match=named):
        Limiter(**{**right, **arguments})


async def test_limits_of_a_model_that_no_deployment_has_are_an_error(
    server: servers.Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """When the proxy loads its configuration, or in the log if it may get other models later."""
    monkeypatch.setattr(proxy_server.proxy_config, "config", {})
    ours = {"model_name": "model_name_t_1", "model_info": {"team_id": "t", "team_public_model_name": "ours"}}
    models: list[Any] = [{"model_name": name} for name in ("gpt", "openai/*")]
    models = [{**each, "litellm_params": {"model": "openai/fake", "api_key": "k"}} for each in (*models, ours)]
    named = r"no deployment is called '{}'. Deployments are called 'gpt', 'openai/\*', 'ours'"

    async def load(**settings: Any) -> None:
        configured = {"model_list": models, "general_settings": settings}
        (tmp_path / "config.yaml").write_text(json.dumps(configured))
        await proxy_server.proxy_config.get_config(str(tmp_path / "config.yaml"))

    def made(*names: str) -> Limiter:
        return limiter_of(server, {"model": dict.fromkeys(names, Limits(requests_per_minute=9))})

    await load()
    made("gpt", "openai/*", "ours", "*", "gpt-4o-mini")  # a batch can name the last, which LiteLLM knows
    for wrong in ("gtp", "openai/any", "model_name_t_1"):
        with pytest.raises(ValueError, match=named.format(wrong)):
            made("gpt", wrong)
    await load(store_model_in_db=True)
    limiter = made("gpt", "gtp")
    monkeypatch.setattr(proxy_server, "llm_router", Router(models))
    for number in range(2):
        data = {"model": "gpt", "messages": [], "litellm_call_id": str(number)}
        await limiter.async_pre_call_hook(UserAPIKeyAuth(api_key="k"), None, data, "acompletion")
    assert len(re.findall(named.format("gtp"), caplog.text)) == 1


@pytest.mark.parametrize("limit", ["requests_per_minute", "tokens_per_minute", "tokens_per_month", "calls_at_once"])
@pytest.mark.parametrize("value", [0, -1, "60", 1.5, True, 2**63])
def test_limits_are_whole_numbers(limit: str, value: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=limit):
        Limits(**{limit: value})


@pytest.mark.parametrize("limit", [{"requests_per_minute": 10**6 + 1}, {"tokens_per_minute": 60 * 10**9 + 1}])
def test_limits_are_those_that_the_server_accepts(limit: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(limit))):
        Limits(**limit)


@pytest.mark.parametrize("limits", [{}, {"calls_at_once": 1}, {"tokens_per_month": 1, "calls_at_once": 1}])
def test_otherwise_is_beside_one_limit_of_a_month(limits: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="otherwise must be a model, beside one limit of a month"):
        Limits(otherwise="b", **limits)


def test_limits_in_dollars_and_in_metadata() -> None:
    prices = (0.1 + 0.2, 1.5e-4 + 1e-19, 100 * 1.5e-6, "0.0000011")
    assert [micro_dollars(value) for value in prices] == [300000, 150, 150, 2]
    for value in (0, -1, "ten", "nan", float("inf"), True, [1]):
        with pytest.raises((TypeError, ValueError), match="dollars_per_month"):
            Limits(dollars_per_month=value)
    assert Limits.of({}) == Limits()  # for a name that the limits of all others are not for
    wrong: Any = ({"request_per_minute": 1}, {"requests_per_minute": "1"}, {"tokens_per_month": 1, "otherwise": "b"}, 5)
    for metadata in wrong:
        with pytest.raises((TypeError, ValueError)):
            Limits.of(metadata)


async def test_a_server_without_the_module_is_told_to_the_log_only(caplog: pytest.LogCaptureFixture) -> None:
    data = {"model": "secret", "messages": [], "litellm_call_id": "1"}
    with servers.running(module=False) as bare:
        limiter = limiter_of(bare, {"model": Limits(requests_per_minute=1)})
        with pytest.raises(HTTPException) as error:
            await limiter.async_pre_call_hook(UserAPIKeyAuth(api_key="k"), None, data, "completion")
        await limiter.guard.cell.pool.disconnect()
    assert (error.value.status_code, error.value.detail) == (503, "redis_cell: the rate limiter cannot decide")
    assert "the server has not loaded redis-cell" in caplog.text


@pytest.mark.parametrize("model", ["responses", "claude"])  # LiteLLM asks Anthropic by another API
async def test_responses_are_limited_too(proxies: Proxies, model: str) -> None:
    upstream = proxies.upstreams[model]
    responses = await proxies.ask_all(model, ["sk-free-anybody"] * 20, path="responses", max_output_tokens=20)
    assert counts(responses) == {200: 5, 429: 15}, [response.text for response in responses]
    assert (len(upstream.seen), upstream.tokens) == (5, 5 * 15)
    servers.wait_until(lambda: proxies.number("model", model, "month") == upstream.tokens)


async def test_without_the_server_nothing_is_admitted(proxies: Proxies) -> None:
    before = len(proxies.upstreams["paused"].seen)
    proxies.server.freeze()
    try:
        responses = await proxies.ask_all("paused", ["sk-free-anybody"] * 20)
    finally:
        proxies.server.thaw()
    assert counts(responses) == {503: 20}
    assert len(proxies.upstreams["paused"].seen) == before
    end = time.monotonic() + 30
    while counts(await proxies.ask_all("paused", ["sk-free-anybody"])) != {200: 1}:
        assert time.monotonic() < end


def test_the_server_is_not_asked_for_what_has_no_limit(proxies: Proxies) -> None:
    with redis.Redis(port=proxies.server.port) as client:
        calls = proxies.server.calls("cl.mtake")
        assert set(counts(asyncio.run(proxies.ask_all("unlimited", ["sk-free-anybody"] * 4)))) == {200}
        assert proxies.server.calls("cl.mtake") == calls
        assert client.ping()


async def test_a_server_that_is_killed_and_started_again(proxies: Proxies) -> None:
    """Streams continue, new requests are refused as configured, and the limits hold afterwards."""
    upstream = proxies.upstreams["killed"]
    upstream.delay = 1
    async with httpx.AsyncClient(timeout=60) as client:
        streams = (proxies.ask_until_answered(client, "killed", stream=True, max_tokens=40) for _ in range(10))
        running = asyncio.ensure_future(asyncio.gather(*streams))
        await servers.until(lambda: upstream.busy == 10)
        proxies.server.stop()
        upstream.delay = 0.1
        assert counts(await proxies.ask_all("killed", ["sk-free-anybody"] * 20)) == {503: 20}
        assert counts(await running) == {200: 10}
    assert all(response.text.rstrip().endswith("[DONE]") for response in running.result())
    assert (len(upstream.seen), upstream.busiest) == (10, 10)
    upstream.delay = 0.02
    assert proxies.server.start()
    begin, seen = time.monotonic(), Counter[int]()
    while seen[200] < 30:  # every process asks the server again after a moment
        assert time.monotonic() < begin + 120
        seen += counts(await proxies.ask_all("killed", ["sk-free-anybody"] * 20))
    # The server that has started knows nothing of before: 30 requests a minute, of which 10 at once.
    minutes = int((time.monotonic() - begin) // 60)
    assert 30 <= seen[200] <= 30 * (1 + minutes) and len(upstream.seen) == 10 + seen[200] and upstream.busiest == 10
    servers.wait_until(lambda: proxies.number("model", "killed", "busy") == 0)
    # A settlement of a stream that ended without the server, 25 tokens, may have been sent again to the new one.
    late = range(0, 10 * 25 + 1, 25)
    servers.wait_until(lambda: proxies.number("model", "killed", "month") - seen[200] * 15 in late)


async def test_a_process_that_is_killed_strands_nothing(proxies: Proxies) -> None:
    """Five streams have places, and fifty hold tokens and money, for four seconds at most."""
    upstream, other, key = proxies.upstreams["long"], proxies.upstreams["stranded"], "{litellm}:model:long:busy"
    before, upstream.delay, other.delay = len(upstream.seen), 0.2, 0.2

    last = Proxies(proxies.server, proxies.urls[-1:], proxies.upstreams)

    async def stream(model: str) -> None:
        async with httpx.AsyncClient(timeout=60) as client:
            with pytest.raises(httpx.HTTPError):
                await last.ask_until_answered(client, model, text="a", stream=True, max_tokens=1000)

    streams = asyncio.gather(*(stream(model) for model in ["long"] * 5 + ["stranded"] * 50))
    await servers.until(lambda: len(upstream.seen) == before + 5 and len(other.seen) == 50)
    assert proxies.number("model", "stranded", "month") == 50 * (3 + 1000)
    assert proxies.number("model", "stranded", "money") == 50 * (3 + 2500)
    with proxies.server.admin as admin:
        assert admin.zcount(key, time.time() * 1e6, "inf") == 5
        proxies.processes[-1].kill()
        proxies.urls.pop()
        await streams
        upstream.delay = other.delay = 0
        # All five wait until the leases of four seconds have ended, as nobody renews them.
        assert counts(await proxies.ask_all("long", ["sk-free-anybody"] * 5)) == {200: 5}
        servers.wait_until(lambda: admin.zcount(key, time.time() * 1e6, "inf") == 0)
    # What ran out comes back with a call that names it, and then only that one's usage is charged.
    assert counts(await proxies.ask_all("stranded", ["sk-free-anybody"])) == {200: 1}
    servers.wait_until(lambda: proxies.number("model", "stranded", "month") == 15)
    servers.wait_until(lambda: proxies.number("model", "stranded", "money") == 30)


def test_the_rules_of_the_page_can_be_made() -> None:
    page = (Path(__file__).parents[3] / "docs/language-models.md").read_text()
    program = page.split("```py\n")[1].split("```")[0]
    namespace: dict[str, Any] = {}
    exec(program, namespace)
    limiter = namespace["limiter"]
    data = {"model": "gpt", "messages": [{"role": "user", "content": "hello"}], "litellm_call_id": "1"}
    user = UserAPIKeyAuth(api_key="k", user_id="u", team_id="other", org_id="acme")
    parts = limiter._admission_of(user, data, "acompletion").parts
    assert [(part.scope, part.unit) for part in parts] == [
        ("model", "tokens"),
        ("model", "requests"),
        ("model", "calls at once"),
        ("key", "requests"),
        ("team", "micro-dollars"),
        ("organisation", "tokens"),
        ("model", "pause"),
    ]
    assert parts[4].take.limit.limit == 100_000_000
