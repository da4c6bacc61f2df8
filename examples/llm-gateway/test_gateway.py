"""Tests of the gateway: two of them, a fake model, a Redis server with the module, and 200 clients.

REDIS_URL is the server, redis://127.0.0.1:6379 if it is not set. The tests use keys with names of their own, but hold
up all writes of the server for moments.
"""

import asyncio
import contextlib
import http.client
import json
import logging
import math
import os
import random
import secrets
import socket
import time
import unittest
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from unittest import mock

import httpx
import uvicorn
from redis.asyncio import Redis

from gateway import DEFAULT_MAX_TOKENS, LONGEST_PAUSE, PATH, Account, Admission, Gateway, Organisation
from model import Model

URL = os.environ.get("REDIS_URL", "redis://127.0.0.1:6379")
CLIENTS = 200
KEY = {"authorization": "Bearer sk-test"}
NOBODY = "127.0.0.1:1"  # nobody listens there
AMPLE = {
    "requests_a_minute": 1_000_000,
    "tokens_a_minute": 1_000_000_000,
    "tokens_at_once": 1_000_000,
    "tokens_a_month": 1_000_000_000,
    "requests_at_once": 1_000_000,
}
TIGHT = {
    "requests a minute": {"requests_a_minute": 50},
    "tokens a minute": {"tokens_a_minute": 600, "tokens_at_once": 1_000},
    "tokens a month": {"tokens_a_month": 2_000},
    "requests at once": {"requests_at_once": 7},
}


@dataclass
class Served:
    server: uvicorn.Server
    url: str


@dataclass
class Answer:
    """What a client has seen. `user` names the request, for the model as well."""

    user: str
    sent: float
    status: int = 0
    retry_after: str | None = None
    text: str = ""
    used: int = 0

    @property
    def complete(self) -> bool:
        return self.text.endswith("data: [DONE]\n\n")


@dataclass
class Load:
    """A request, and the instant at which its client goes away: after so many events."""

    fake: dict = field(default_factory=dict)
    max_tokens: int = 20
    leave_after: int | None = None


def setUpModule() -> None:
    logging.disable()  # the failures are on purpose


class GatewayTest(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self) -> None:
        asyncio.get_running_loop().set_debug(False)  # unittest sets it, which makes everything slow
        self.redis = Redis.from_url(URL)
        self.addAsyncCleanup(self.redis.aclose)
        await away_from_the_end_of_the_month()

    async def start(self, redis_url: str = URL, upstream: str | None = None, **limits: int) -> None:
        """Starts a model and two gateways for an organisation that nobody has used."""
        self.limits = AMPLE | limits
        self.organisation = Organisation(f"test-{secrets.token_hex(4)}", **self.limits)
        self.model = Model()
        served = await self.serve(self.model)
        patient = f"{redis_url}?timeout=120&socket_timeout=120&socket_connect_timeout=120"  # on a busy machine
        self.gateways = []
        for _ in range(2):
            gateway = Gateway(patient, upstream or served.url, {"sk-test": self.organisation})
            gateway.model.timeout = 120
            self.gateways.append(await self.serve(gateway))
        self.http = httpx.AsyncClient(timeout=120, limits=httpx.Limits(max_keepalive_connections=0))
        self.addAsyncCleanup(self.http.aclose)
        self.begin = time.monotonic()

    async def serve(self, app) -> "Served":
        sock = socket.create_server(("127.0.0.1", 0), backlog=1024)
        config = uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=1)
        served = Served(uvicorn.Server(config), f"http://127.0.0.1:{sock.getsockname()[1]}")
        serving = asyncio.create_task(served.server.serve(sockets=[sock]))

        async def stop() -> None:
            served.server.should_exit = True
            await serving

        self.addAsyncCleanup(stop)
        return served

    async def ask(self, load: Load = Load(), stream: bool = True, key: dict[str, str] = KEY) -> Answer:
        answer = Answer(secrets.token_hex(8), time.monotonic())
        url = random.choice(self.gateways).url + PATH
        request = {
            "model": "fake",
            "user": answer.user,
            "messages": [{"role": "user", "content": "say a few words"}],
            "max_tokens": load.max_tokens,
            "stream": stream,
            "fake": load.fake,
        }
        async with self.http.stream("POST", url, json=request, headers=key) as response:
            answer.status, answer.retry_after = response.status_code, response.headers.get("retry-after")
            async for text in response.aiter_text():
                answer.text += text
                if load.leave_after is not None and answer.text.count("\n\n") >= load.leave_after:
                    break
        for line in answer.text.rpartition("\n\n")[0].splitlines():
            if "total_tokens" in line:
                answer.used = json.loads(line.removeprefix("data: "))["usage"]["total_tokens"]
        return answer

    async def storm(self) -> list[Answer]:
        """200 clients that ask twice each, whatever they are told."""

        async def client() -> list[Answer]:
            return [await self.ask(Load({"pause": 0.005})) for _ in range(2)]

        return sum(await asyncio.gather(*(client() for _ in range(CLIENTS))), [])

    async def month(self) -> int:
        return int(await self.redis.get(self.organisation.key("month")) or 0)

    async def minute(self) -> int:
        """The tokens of the minute that are taken now."""
        limit, rate = self.limits["tokens_at_once"], self.limits["tokens_a_minute"]
        reply = await self.redis.execute_command("CL.PEEK", self.organisation.key("tpm"), limit - 1, rate, 60)
        return limit - reply[2]

    async def held(self) -> int:
        return await self.redis.zcard(self.organisation.key("busy"))

    async def until(self, what: str, condition) -> None:
        """Waits for a condition."""
        deadline = time.monotonic() + 120
        while not await condition():
            self.assertLess(time.monotonic(), deadline, what)
            await asyncio.sleep(0.02)

    async def all_released(self) -> None:
        async def free() -> bool:
            return await self.held() == 0 and self.model.running == 0

        await self.until("places are still held", free)

    def assert_within_limits(self, answers: list[Answer]) -> None:
        """Compares what the model has seen with the limits. A decision was made after its client has sent the request
        and before the model has seen it, so the limits must hold for these instants."""
        limits = self.limits
        self.assertLessEqual(self.model.most_running, limits["requests_at_once"])
        self.assertLessEqual(len(self.model.tokens), limits["tokens_a_month"])

        seen = sorted((self.model.requests[a.user], a.sent) for a in answers if a.user in self.model.requests)
        self.assertEqual(len(seen), len(self.model.requests))
        most, rate = limits["requests_a_minute"], limits["requests_a_minute"] / 60
        for since in {sent for _, sent in seen}:
            inside = (arrived for arrived, sent in seen if sent >= since)
            excess = max(count - most - rate * (arrived - since) for count, arrived in enumerate(inside, 1))
            self.assertLessEqual(excess, 0, "requests a minute")

        most, rate = limits["tokens_at_once"], limits["tokens_a_minute"] / 60
        excess = max(count - most - rate * (instant - self.begin) for count, instant in enumerate(self.model.tokens, 1))
        self.assertLessEqual(excess, 0, "tokens a minute")

    # Waiting for an account

    async def start_with_account(self, organisations: dict[str, dict], **limits: float) -> None:
        """Starts a model and a gateway for organisations that share an account. A name is also a key."""
        account = Account(f"test-{secrets.token_hex(4)}", **limits)
        self.model = Model()
        of = {name: Organisation(name, **AMPLE | own, account=account) for name, own in organisations.items()}
        self.organisation = next(iter(of.values()))
        self.gateways = [await self.serve(Gateway(URL, (await self.serve(self.model)).url, of)) for _ in range(2)]
        self.http = httpx.AsyncClient(timeout=120, limits=httpx.Limits(max_keepalive_connections=0))
        self.addAsyncCleanup(self.http.aclose)

    async def test_organisations_share_an_account_by_the_tokens_that_they_use(self) -> None:
        """One uses all that it asks for, and the other one a tenth. Both wait, and none of them is refused."""
        limits = {"tokens_a_minute": 24_000, "tokens_at_once": 300, "wait": 100, "most_waiting": 100}
        await self.start_with_account({"all": {}, "tenth": {}, "double": {"weight": 2}}, **limits)
        words, most = {"all": 40, "tenth": 4, "double": 40}, 2_400
        used = dict.fromkeys(words, 0)

        async def client(name: str) -> None:
            key = {"authorization": f"Bearer {name}"}
            while sum(used.values()) < most:
                answer = await self.ask(Load({"tokens": words[name]}, max_tokens=40), key=key)
                self.assertEqual(answer.status, 200)
                if sum(used.values()) < most:  # all three wait
                    used[name] += answer.used

        await asyncio.gather(*(client(name) for name in words for _ in range(12)))
        share = most / 4
        for name, parts in {"all": 1, "tenth": 1, "double": 2}.items():
            # By requests, a tenth of the tokens would be those of the second one. Some answers are under way.
            self.assertLess(abs(used[name] - parts * share), 0.3 * parts * share, used)
        await self.all_released()

    async def test_a_request_waits_only_so_long_and_behind_so_many(self) -> None:
        limits = {"tokens_a_minute": 60, "tokens_at_once": 1_000, "wait": 0.5, "most_waiting": 3}
        await self.start_with_account({"sk-test": {}}, **limits)
        self.assertEqual((await self.ask(Load({"tokens": 500}, max_tokens=700))).status, 200)
        redis_key = f"{{{self.organisation.account.name}}}:account"
        await self.redis.execute_command("CL.CHARGE", redis_key, 999, 60, 60, 1_000)
        # Nothing will be free within the wait, so the answer comes at once.
        answer = await self.ask(Load(max_tokens=700))
        self.assertEqual((answer.status, answer.retry_after), (429, "1"))
        await self.redis.execute_command("CL.REFUND", redis_key, 999, 60, 60, 2_000)
        self.assertEqual((await self.ask(Load(max_tokens=100_000))).status, 413)
        self.assertEqual((await self.ask(Load({"tokens": 1}, max_tokens=1))).status, 200)
        await self.all_released()

    # The limits

    async def test_200_clients_never_exceed_a_limit(self) -> None:
        """One limit at a time is tight, so that the others cannot hide that it is not kept."""
        for name, limit in TIGHT.items():
            with self.subTest(name):
                await self.start(**limit)
                answers = await self.storm()
                await self.all_released()
                self.assert_within_limits(answers)
                self.assertEqual({answer.status for answer in answers}, {200, 429})
                refused = [answer for answer in answers if answer.status == 429]
                self.assertEqual({json.loads(a.text)["error"]["message"] for a in refused}, {f"no more {name}"})
                self.assertTrue(all(int(answer.retry_after) > 0 for answer in refused))
                if name == "requests at once":  # not the rest of a lease
                    self.assertEqual({answer.retry_after for answer in refused}, {"1"})
                self.assertTrue(all(answer.complete for answer in answers if answer.status == 200))
                self.assertEqual(await self.month(), len(self.model.tokens))
                self.assertEqual(await self.month(), sum(answer.used for answer in answers))
                # The limit was not only kept, but reached.
                if name == "requests a minute":
                    self.assertGreaterEqual(len(self.model.requests), 50)
                elif name == "requests at once":
                    self.assertEqual(self.model.most_running, 7)

    async def test_200_clients_never_exceed_all_limits_together(self) -> None:
        await self.start(**{name: value for limit in TIGHT.values() for name, value in limit.items()})
        answers = await self.storm()
        await self.all_released()
        self.assert_within_limits(answers)
        self.assertEqual({answer.status for answer in answers}, {200, 429})
        self.assertEqual(await self.month(), len(self.model.tokens))

    # Nothing stays charged or held

    def stop_gateways(self) -> None:
        """As SIGTERM does."""
        for gateway in self.gateways:
            gateway.server.should_exit = True

    async def test_nothing_stays_when_200_clients_vanish_in_mid_stream(self) -> None:
        await self.start(tokens_a_minute=1)  # nothing leaks away while the test runs
        load = Load({"tokens": 40, "stall_after": 7}, leave_after=8)
        answers = await asyncio.gather(*(self.ask(load) for _ in range(CLIENTS)))
        self.assertFalse(any(answer.complete for answer in answers))
        await self.all_released()
        self.assertEqual(len(self.model.requests), CLIENTS)
        self.assertEqual(len(self.model.tokens), CLIENTS * (4 + 7))  # of the prompt and of the answer
        self.assertEqual(await self.month(), len(self.model.tokens))
        self.assertLessEqual(len(self.model.tokens) - await self.minute(), self.leaked())
        self.assertLessEqual(await self.minute(), len(self.model.tokens))

    def leaked(self) -> int:
        return math.ceil((time.monotonic() - self.begin) * self.limits["tokens_a_minute"] / 60)

    async def test_nothing_stays_when_all_kinds_of_failures_meet(self) -> None:
        await self.start(requests_at_once=50)
        loads = [
            Load({"pause": 0.005}),
            Load({"tokens": 40, "pause": 0.005}, leave_after=5),
            Load({"tokens": 40, "stall_after": 9}, leave_after=0),
            Load({"tokens": 40, "break_after": 9}),
            Load({"status": 500}),
        ]
        answers = []
        for _ in range(2):
            # The loads alternate, so that each gets some of the places.
            answers += await asyncio.gather(*(self.ask(load) for _ in range(40) for load in loads))
        await self.all_released()
        self.assertEqual({answer.status for answer in answers}, {200, 429, 500})
        # A client that has left may have missed the last words.
        self.assertLessEqual(sum(answer.used for answer in answers), await self.month())
        self.assertLessEqual(await self.month(), len(self.model.tokens))

    async def test_nothing_stays_when_clients_vanish_during_the_decision(self) -> None:
        for stream in True, False:
            await self.start(tokens_a_minute=1)
            async with self.decisions_delayed(by=0.5, stream=stream) as asking:
                for each in asking:
                    each.cancel()

    async def test_nothing_stays_when_the_gateway_is_stopped_during_the_decision(self) -> None:
        await self.start(tokens_a_minute=1)
        async with self.decisions_delayed(by=5) as asking:  # the gateway cancels its requests after a second
            self.stop_gateways()
        stopping = error(503, "the gateway is stopping")
        self.assertEqual({(each.result().status, each.result().text) for each in asking}, {(503, stopping)})

    @contextlib.asynccontextmanager
    async def decisions_delayed(self, by: float, stream: bool = True):
        """Delays the decisions about 20 requests. Each must be taken and settled afterwards."""
        taken, settled = await self.calls("mtake"), await self.calls("msettle")
        async with self.writes_delayed(by):
            asking = [asyncio.create_task(self.ask(Load({"stall_after": 0}), stream)) for _ in range(20)]
            await self.until("the calls are not made", self.twenty_wait)
            yield asking

        async def all_settled() -> bool:
            return await self.calls("mtake") >= taken + 20 and await self.calls("msettle") >= settled + 20

        await self.until("the calls are not settled", all_settled)
        await asyncio.wait(asking)
        await self.all_released()
        self.assertLessEqual(await self.month(), len(self.model.tokens))
        # The age begins before the decision. For the time until that, nothing comes back.
        late = math.ceil(20 * (time.monotonic() - self.begin) * self.limits["tokens_a_minute"] / 60)
        self.assertLessEqual(await self.minute(), len(self.model.tokens) + late)

    @contextlib.asynccontextmanager
    async def writes_delayed(self, by: float):
        await self.redis.execute_command("CLIENT", "PAUSE", 60_000, "WRITE")
        try:
            yield
            await asyncio.sleep(by)
        finally:
            await self.redis.execute_command("CLIENT", "UNPAUSE")

    async def twenty_wait(self) -> bool:
        return (await self.redis.info("clients"))["blocked_clients"] >= 20

    async def calls(self, command: str) -> int:
        return (await self.redis.info("commandstats")).get(f"cmdstat_cl.{command}", {}).get("calls", 0)

    async def test_nothing_stays_when_the_model_fails(self) -> None:
        await self.start(tokens_a_minute=1)
        answer = await self.ask(Load({"tokens": 40, "break_after": 6}))
        self.assertEqual((answer.status, answer.complete), (200, False))
        self.assertEqual(answer.text.split("\n\n")[-2], f"data: {error(502, 'the model has failed')}")
        for stream in True, False:
            answer = await self.ask(Load({"status": 500}), stream)
            self.assertEqual((answer.status, answer.text), (500, '{"error": {"message": "as asked for"}}'))
        await self.all_released()
        self.assertEqual(await self.month(), 4 + 6)
        self.assertLessEqual(await self.minute(), 4 + 6)

    async def test_nothing_stays_when_the_model_is_not_there(self) -> None:
        await self.start(upstream=f"http://{NOBODY}", tokens_a_minute=1)
        for stream in True, False:
            self.assertEqual((await self.ask(stream=stream)).status, 502)
        await self.all_released()
        self.assertEqual(await self.month(), 0)
        self.assertLessEqual(await self.minute(), 1)  # the milliseconds by which the age is too long

    async def test_nothing_stays_when_the_gateway_is_stopped(self) -> None:
        await self.start(tokens_a_minute=1)
        asking = await self.stalled_streams()
        self.assertEqual(await self.held(), 20)
        self.stop_gateways()
        await asyncio.wait(asking)
        last = {each.result().text.split("\n\n")[-2] for each in asking}
        self.assertEqual(last, {f"data: {error(503, 'the gateway is stopping')}"})
        await self.all_released()
        self.assertEqual(await self.month(), len(self.model.tokens))
        self.assertLessEqual(await self.minute(), len(self.model.tokens))

    async def test_nothing_stays_when_the_gateway_is_stopped_while_it_settles(self) -> None:
        await self.start(tokens_a_minute=1)
        asking = await self.stalled_streams()
        async with self.writes_delayed(by=1.5):  # the gateway cancels its requests after a second
            for each in asking:
                each.cancel()
            await self.until("the calls are not made", self.twenty_wait)
            self.stop_gateways()
        await self.all_released()
        self.assertEqual(await self.month(), len(self.model.tokens))
        self.assertLessEqual(await self.minute(), len(self.model.tokens))

    async def test_nothing_stays_when_the_server_has_closed_its_connections(self) -> None:
        await self.start(tokens_a_minute=1)
        asking = await self.stalled_streams()
        await self.redis.execute_command("CLIENT", "KILL", "TYPE", "normal")
        for each in asking:
            each.cancel()
        await self.all_released()
        self.assertEqual(await self.month(), len(self.model.tokens))
        await self.redis.execute_command("CLIENT", "KILL", "TYPE", "normal")
        answers = await asyncio.gather(*(self.ask() for _ in range(20)))
        self.assertEqual({answer.status for answer in answers}, {200})

    async def test_nothing_stays_when_a_client_does_not_read(self) -> None:
        await self.start(tokens_a_minute=1)
        request = {"stream": True, "max_tokens": 3000, "messages": [], "fake": {"tokens": 3000, "word": "x" * 10_000}}
        address = self.gateways[0].url.removeprefix("http://")
        with mock.patch("gateway.WRITE_TIMEOUT", 1):
            client = http.client.HTTPConnection(address)
            self.addCleanup(client.close)
            client.request("POST", PATH, json.dumps(request), KEY)
            await self.until("the stream has not begun", self.a_place_is_held)
            await self.all_released()
        self.assertLess(len(self.model.tokens), 3000)
        self.assertLessEqual(await self.month(), len(self.model.tokens))
        self.assertEqual((await self.ask()).status, 200)

    async def test_nothing_stays_when_a_client_sends_more_and_vanishes(self) -> None:
        """Regression: uvicorn did not read the end of the connection behind bytes of another request."""
        await self.start(tokens_a_minute=1)
        request = {"stream": True, "messages": [], "fake": {"stall_after": 0}}
        address = self.gateways[0].url.removeprefix("http://")
        client = http.client.HTTPConnection(address)
        client.request("POST", PATH, json.dumps(request), KEY)
        await self.until("the model is not asked", self.the_model_runs)
        client.sock.sendall(b"\r\n")
        await asyncio.sleep(0.2)  # until it has been read
        client.close()
        await self.all_released()
        self.assertEqual(await self.month(), 0)

    async def stalled_streams(self) -> list[asyncio.Task]:
        """Returns 20 requests to which the model has given 7 words, and gives no more."""
        asking = [asyncio.create_task(self.ask(Load({"tokens": 40, "stall_after": 7}))) for _ in range(20)]

        async def all_stalled() -> bool:
            return len(self.model.tokens) == 20 * (4 + 7)

        await self.until("the streams have not begun", all_stalled)
        return asking

    # One request

    async def test_an_answer_is_streamed_as_it_comes(self) -> None:
        await self.start()
        asking = asyncio.create_task(self.ask(Load({"tokens": 5, "stall_after": 3}, leave_after=4)))
        answer = await asyncio.wait_for(asking, 120)  # the model sends no more before the client has gone
        self.assertEqual(answer.text.count('"word "'), 3)

    async def test_an_answer_in_one_piece_is_charged_too(self) -> None:
        await self.start()
        answer = await self.ask(Load({"tokens": 5}), stream=False)
        self.assertEqual(json.loads(answer.text)["choices"][0]["message"]["content"], "word " * 5)
        await self.all_released()
        self.assertEqual(await self.month(), 4 + 5)

    async def test_an_answer_in_one_piece_that_nobody_waits_for_is_charged_as_estimated(self) -> None:
        await self.start()
        asking = asyncio.create_task(self.ask(Load({"tokens": 5, "stall_after": 3}), stream=False))
        await self.until("the model is not asked", self.the_model_runs)
        estimate = await self.month()
        asking.cancel()
        await self.all_released()
        self.assertEqual(await self.month(), estimate)
        self.assertGreater(estimate, 20)

    async def test_a_model_that_does_not_stream_is_charged_too(self) -> None:
        await self.start()
        answer = await self.ask(Load({"tokens": 5, "piece": True}))
        self.assertEqual(json.loads(answer.text)["choices"][0]["message"]["content"], "word " * 5)
        await self.all_released()
        self.assertEqual(await self.month(), 4 + 5)

    async def test_no_report_before_the_end_is_asked_for_several_choices(self) -> None:
        """vLLM reports the tokens of one choice in each event, and those of all in the last one."""
        await self.start()
        request = {"stream": True, "n": 2, "max_tokens": 10, "messages": [], "fake": {"tokens": 5, "stall_after": 3}}
        body = json.dumps(request)
        async with self.http.stream("POST", self.gateways[0].url + PATH, content=body, headers=KEY) as response:
            text = ""
            async for piece in response.aiter_text():
                text += piece
                if text.count("\n\n") == 4:
                    break
        await self.all_released()
        self.assertEqual(await self.month(), len(body) + 4)

    async def test_a_model_that_reports_its_usage_last_is_charged_by_the_word_until_then(self) -> None:
        await self.start()
        self.assertTrue((await self.ask(Load({"tokens": 5, "usage": "last"}))).complete)
        await self.all_released()
        self.assertEqual(await self.month(), 4 + 5)
        load = Load({"tokens": 5, "usage": "last", "stall_after": 3})
        asking = asyncio.create_task(self.ask(load))
        await self.until("the model is not asked", self.the_model_runs)
        prompt = await self.month() - (4 + 5) - load.max_tokens  # of the estimate
        asking.cancel()
        await self.all_released()
        before = await self.month()
        load.leave_after = 4
        await self.ask(load)
        await self.all_released()
        self.assertEqual(await self.month() - before, prompt + 1 + 3)  # the event before the first word counts as one

    async def test_a_stream_is_read_however_it_is_written(self) -> None:
        await self.start()
        for usage in "each", "last":
            before = await self.month()
            self.assertEqual((await self.ask(Load({"tokens": 5, "odd": True, "usage": usage}))).status, 200)
            await self.all_released()
            self.assertEqual(await self.month() - before, 4 + 5)

    async def test_a_report_that_cannot_be_is_ignored(self) -> None:
        admission = Admission(self.redis, Organisation("test", **AMPLE), prompt=100, longest=20)
        admission.read(b'data: {"usage": {"total_tokens": 7}}', streamed=True)
        for total in b"1e999", b"1" * 30, b"-1", b"true", b"null", b'"8"', b"[" * 99999:
            admission.read(b'data: {"usage": {"total_tokens": ' + total + b"}}", streamed=True)
            self.assertEqual(admission.used, 7)

    async def test_an_answer_longer_than_its_estimate_is_charged(self) -> None:
        await self.start()
        await self.ask(Load({"tokens": 1000}, max_tokens=1))
        await self.all_released()
        self.assertEqual(await self.month(), 4 + 1000)

    async def test_a_stream_that_outlives_its_lease_keeps_its_place(self) -> None:
        await self.start(requests_at_once=1, lease=3)
        long = asyncio.create_task(self.ask(Load({"tokens": 40, "pause": 0.15})))
        await self.until("the stream has not begun", self.a_place_is_held)
        while not long.done():
            await self.ask()
            await asyncio.sleep(0.1)
        self.assertTrue(long.result().complete)
        self.assertEqual(self.model.most_running, 1)

    async def test_a_stream_that_has_lost_its_place_ends(self) -> None:
        await self.start(lease=3)
        asking = asyncio.create_task(self.ask(Load({"tokens": 5, "stall_after": 3})))
        await self.until("the stream has not begun", self.a_place_is_held)
        await self.redis.delete(self.organisation.key("busy"))
        answer = await asyncio.wait_for(asking, 120)
        self.assertIn('"message": "the place among the requests at once was lost"', answer.text)

        async def settled() -> bool:
            return await self.month() == 4 + 3

        await self.until("the stream is not settled", settled)

    async def test_a_renewal_that_hides_its_cancellation_does_not_go_on(self) -> None:
        """Regression: some places were renewed for ever, because asyncio.wait_for in redis-py hid the cancellation."""
        asked = asyncio.Event()

        class HidesTheFirst:
            async def execute_command(self, *_) -> int:
                with contextlib.nullcontext() if asked.is_set() else contextlib.suppress(asyncio.CancelledError):
                    asked.set()
                    await asyncio.sleep(0.1)
                return 1

        admission = Admission(HidesTheFirst(), Organisation("test", **AMPLE, lease=1), prompt=1, longest=1)
        admission.since = time.monotonic()
        hold = asyncio.create_task(admission.hold())
        await asked.wait()
        hold.cancel()
        await asyncio.wait([hold], timeout=10)
        self.assertTrue(hold.cancelled())

    async def test_a_stream_whose_place_could_not_be_renewed_ends(self) -> None:
        await self.start(lease=3)
        asking = asyncio.create_task(self.ask(Load({"tokens": 5, "stall_after": 3})))
        await self.until("the stream has not begun", self.a_place_is_held)
        async with self.writes_delayed(by=0):  # for a minute, unless the answer ends before
            answer = await asyncio.wait_for(asking, 30)
        self.assertIn('"message": "the place among the requests at once was lost"', answer.text)
        await self.all_released()

    async def a_place_is_held(self) -> bool:
        return await self.held() == 1

    async def the_model_runs(self) -> bool:
        return self.model.running == 1

    # Refusals

    async def test_a_refused_request_is_told_when_to_come_back(self) -> None:
        await self.start(requests_a_minute=1)
        self.assertEqual((await self.ask()).status, 200)
        answer = await self.ask()
        self.assertEqual((answer.status, answer.text), (429, error(429, "no more requests a minute")))
        self.assertIn(int(answer.retry_after), range(1, 61))
        self.assertEqual(len(self.model.requests), 1)

    async def test_an_estimate_above_the_limit_is_refused_for_ever(self) -> None:
        await self.start(tokens_at_once=1000, tokens_a_month=500)
        answer = await self.ask(Load(max_tokens=600))
        self.assertEqual((answer.status, answer.retry_after), (413, None))
        self.assertRegex(answer.text, "is never admitted: the limit is 500 tokens a month")
        answer = await self.ask(Load(max_tokens=1_000))
        self.assertRegex(answer.text, "is never admitted: the limit is 1000 tokens a minute and 500 tokens a month")
        self.assertEqual((await self.held(), await self.month(), len(self.model.requests)), (0, 0, 0))

    async def test_an_estimate_counts_all_choices_and_both_lengths(self) -> None:
        await self.start()

        async def longest(fields: dict) -> int:
            body = json.dumps({"messages": [], "stream": True, "fake": {"stall_after": 0}} | fields)
            before = await self.month()
            async with self.http.stream("POST", self.gateways[0].url + PATH, content=body, headers=KEY):
                charged = await self.month() - before
            await self.all_released()
            return charged - len(body)

        self.assertEqual(await longest({}), DEFAULT_MAX_TOKENS)
        self.assertEqual(await longest({"max_tokens": None}), DEFAULT_MAX_TOKENS)
        self.assertEqual(await longest({"max_tokens": 50}), 50)
        self.assertEqual(await longest({"max_tokens": 50, "n": 20}), 1000)
        self.assertEqual(await longest({"max_tokens": 50, "max_completion_tokens": 500}), 500)

    async def test_when_the_model_refuses_all_requests_wait(self) -> None:
        await self.start()
        answer = await self.ask(Load({"status": 429, "retry_after": 30}))
        self.assertEqual((answer.status, answer.retry_after), (429, "30"))
        answer = await self.ask()
        self.assertEqual((answer.status, len(self.model.requests)), (429, 1))
        self.assertIn(int(answer.retry_after), range(1, 31))
        await self.all_released()
        self.assertEqual(await self.month(), 0)

    async def test_a_model_may_refuse_for_a_day_at_most(self) -> None:
        await self.start()
        answer = await self.ask(Load({"status": 429, "retry_after": 10**12}))
        self.assertEqual((answer.status, answer.retry_after), (429, str(LONGEST_PAUSE)))
        answer = await self.ask()
        self.assertEqual((answer.status, len(self.model.requests)), (429, 1))

    async def test_a_model_that_is_away_says_until_when(self) -> None:
        await self.start()
        answer = await self.ask(Load({"status": 503, "retry_after": 7}))
        self.assertEqual((answer.status, answer.retry_after), (503, "7"))
        self.assertEqual((await self.ask()).status, 200)  # only a 429 pauses

    async def test_without_a_decision_nothing_is_asked_of_the_model(self) -> None:
        await self.start(redis_url=f"redis://{NOBODY}")
        answer = await self.ask()
        self.assertEqual((answer.status, answer.text), (503, error(503, "the limits cannot be checked")))
        self.assertEqual(len(self.model.requests), 0)

    async def test_a_bad_request_is_told_what_is_wrong(self) -> None:
        await self.start()
        url = self.gateways[0].url + PATH
        utf16 = '{"messages": [{"content": "日本"}]}'.encode("utf-16")  # two bytes for what can be three tokens
        bodies = [utf16, b"", b"[]", b"{", b"\xff", b'{"x": NaN}', b"[" * 99999]
        bodies += [b'{"max_tokens": 0}', b'{"max_tokens": true}', b'{"n": 0}', b'{"n": 1000000, "max_tokens": 1000000}']
        bodies += [b'{"stream": "false"}', b'{"stream": 1}']
        for body in bodies:
            response = await self.http.post(url, content=body, headers=KEY)
            self.assertEqual(response.status_code, 400, body[:20])
        self.assertEqual((await self.http.post(url, content=b" " * 1_000_001, headers=KEY)).status_code, 413)
        response = await self.http.post(url, json={})
        self.assertEqual((response.status_code, response.headers["www-authenticate"]), (401, "Bearer"))
        response = await self.http.get(url, headers={"authorization": "bearer sk-test"})
        self.assertEqual((response.status_code, response.headers["allow"]), (405, "POST"))
        self.assertEqual((await self.http.get(url + "/", headers=KEY)).status_code, 404)
        self.assertEqual((await self.held(), await self.month(), len(self.model.requests)), (0, 0, 0))


def error(code: int, message: str) -> str:
    return json.dumps({"error": {"code": code, "message": message}})


async def away_from_the_end_of_the_month() -> None:
    """Waits for the next month, and its first seconds, if this one is nearly over: the counter begins again then, and
    what was taken before is not given back to it."""
    margins = timedelta(minutes=1), -timedelta(seconds=5)
    while len({(datetime.now(timezone.utc) + margin).month for margin in margins}) > 1:
        await asyncio.sleep(1)


if __name__ == "__main__":
    unittest.main()
