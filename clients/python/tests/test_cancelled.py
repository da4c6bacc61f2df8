"""Calls for asyncio that are cancelled at any point: they leave no units, no place, no client in a queue, and no
connection behind, or the log says what they left."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest
import redis
import redis.asyncio

import servers
from redis_cell import (
    AsyncCell,
    AsyncGuard,
    AsyncLeased,
    Bucket,
    FailClosed,
    FailOpen,
    Fixed,
    Funnel,
    Lease,
    Log,
    Rate,
    Take,
    Window,
    async_wait,
    steps,
)

RATE, RATE_OF_100 = Rate(3, per=3600), Rate(100, per=3600)
TAKES = (
    Take("a", RATE, 2),
    Take("b", Fixed(3, per=3600)),
    Take("c", Log(3, per=3600), 2),
    Take("d", RATE, shadow=True),
)
POINTS = 30
"""The passes of the event loop after which a call is cancelled."""

Work = Callable[[Any], Coroutine[Any, Any, Any]]
CALLS: dict[str, Work] = {
    "throttle": lambda cell: cell.throttle("a", RATE, 2),
    "saturate": lambda cell: cell.throttle("a", RATE, 9, saturate=True),
    "fixed": lambda cell: cell.fixed("a", Fixed(3, per=3600), 2),
    "window": lambda cell: cell.window("a", Window(3, per=3600), 2),
    "log": lambda cell: cell.log("a", Log(3, per=3600), 2),
    "reserve": lambda cell: cell.reserve("a", RATE, 2),
    "mtake": lambda cell: cell.mtake(*TAKES),
    "bthrottle": lambda cell: cell.bthrottle("a", RATE, 2, timeout=9000),
    "bmtake": lambda cell: cell.bmtake(*TAKES, timeout=9000, flow="f"),
    "wait": lambda cell: async_wait(cell, *TAKES, timeout=9000),
}
KEYS = ("a", "b", "c", "d")


def users(client: redis.asyncio.Redis) -> list[tuple[str, Any]]:
    cell = AsyncCell(client)
    timed = AsyncGuard(cell, when_unavailable=FailOpen(), timeout=5)
    return [("cell", cell), ("guard", AsyncGuard(cell, when_unavailable=FailClosed())), ("timed guard", timed)]


async def cancelled(work: Coroutine[Any, Any, Any], passes: int) -> bool:
    """Runs work, and cancels it after this many passes of the event loop. Returns whether it was cancelled."""
    task = asyncio.ensure_future(work)
    for _ in range(passes):
        await asyncio.sleep(0)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    return task.cancelled()


def taken(server: servers.Server) -> dict[str, Any]:
    """The keys with units or places. A limiter of which nothing is taken has no key, or one that expires after the time
    between sending the call and its decision; a unit takes 20 minutes to come back."""
    with server.admin as admin:
        return {key: admin.pttl(key) for key in admin.scan_iter() if admin.pttl(key) > 60_000}


@pytest.mark.parametrize("name", CALLS)
async def test_no_units_are_left(
    server: servers.Server, client: redis.asyncio.Redis, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    for name_of_user, user in users(client)[: 1 if name == "reserve" else 3]:  # a guard books nothing
        done = 0
        for passes in range(POINTS):
            if not await cancelled(CALLS[name](user), passes):
                done += 1
                server.empty()
            assert taken(server) == {}, (name_of_user, passes)
            assert not client.connection_pool._in_use_connections, (name_of_user, passes)
        assert done < POINTS - 5, "it was never cancelled"
    assert not caplog.records


async def test_a_bucket_keeps_no_more_than_the_unit_that_is_coming(
    server: servers.Server, client: redis.asyncio.Redis
) -> None:
    cell, bucket, funnel = AsyncCell(client), Bucket(3, count=1, per=3600), Funnel(3, count=1, per=3600)
    for passes in range(POINTS):
        for key, work in (("a", cell.bucket("a", bucket, 3)), ("b", cell.funnel("b", funnel, 3))):
            if await cancelled(work, passes):
                assert (await cell.mpeek(Take(key, bucket if key == "a" else funnel))).combined.remaining >= 2, passes
            server.empty()


@pytest.mark.parametrize("name", ["bthrottle", "bmtake", "wait"])
async def test_a_waiting_call_leaves_its_queue(server: servers.Server, client: redis.asyncio.Redis, name: str) -> None:
    with server.admin as admin:
        for name_of_user, user in users(client):
            for passes in range(POINTS):
                admin.flushall()
                admin.execute_command("CL.THROTTLE", "a", 2, 3, 3600, 3)
                assert await cancelled(CALLS[name](user), passes)
                servers.wait_until(lambda: server.counted("blocked_clients") == 0, 5)
                assert admin.execute_command("CL.PEEK", "a", 2, 3, 3600, 3)[4] > 3500, (name_of_user, passes)
                assert taken(server).keys() == {"a"}, (name_of_user, passes)


@pytest.mark.parametrize("name", ["bthrottle", "bmtake", "wait"])
async def test_a_turn_that_comes_with_the_cancellation_goes_back(
    server: servers.Server, client: redis.asyncio.Redis, name: str
) -> None:
    with server.admin as admin:
        for name_of_user, user in users(client):
            for _ in range(5):
                admin.flushall()
                admin.execute_command("CL.THROTTLE", "a", 2, 3, 3600, 3)
                task = asyncio.ensure_future(CALLS[name](user))
                while not server.counted("blocked_clients"):
                    await asyncio.sleep(0.01)
                admin.execute_command("DEL", "a")
                servers.wait_until(lambda: server.counted("blocked_clients") == 0, 5)  # the reply is under way
                assert not task.done()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert taken(server) == {}, name_of_user


class Leaving(AsyncLeased):
    """Cancels calls in the same turn of the event loop in which they get their units."""

    leaving: tuple[asyncio.Task[Any], ...] = ()

    def _answered(self, *answer: Any) -> int:
        units = super()._answered(*answer)
        for task in self.leaving:
            task.cancel()
        return units


@pytest.mark.parametrize("limit", [RATE_OF_100, Fixed(100, per=3600), Window(100, per=86400)])
async def test_leased_units_are_not_lost(server: servers.Server, client: redis.asyncio.Redis, limit: Any) -> None:
    leased = Leaving(AsyncCell(client), limit, least=10, most=10, hold=60)
    used = 0
    for passes in range(POINTS):
        used += not await cancelled(leased.take("a"), passes)
    for leaving in (1, 9, 10):  # of ten callers of a batch
        tasks = [asyncio.ensure_future(leased.take(f"b{leaving}")) for _ in range(10)]
        leased.leaving = tuple(tasks[:leaving])
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert sum(isinstance(answer, asyncio.CancelledError) for answer in answers) == leaving
        leased.leaving = ()
    for key, spent in (("a", used), ("b1", 9), ("b9", 1), ("b10", 0)):
        while await leased.take(key):
            spent += 1
        assert spent == 100, key
    await leased.give_back()


async def test_what_may_be_left_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The server freezes, so it is unknown what the call takes. The cancellation ends nevertheless."""
    with servers.running() as server:
        async with redis.asyncio.Redis(port=server.port) as client:
            cell = AsyncCell(client)
            await cell.throttle("a", RATE)
            server.freeze()
            begun = time.monotonic()
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(cell.throttle("a", RATE), 0.1)
            assert time.monotonic() - begun < 2
            server.thaw()
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "CL.THROTTLE 'a' was cancelled, and units may remain taken" in caplog.text


@pytest.mark.parametrize("choice", [FailClosed(), FailOpen()])
async def test_a_late_answer_to_a_refused_call_is_given_back(choice: Any) -> None:
    """A call that was admitted without the server stays charged."""
    with servers.running() as server:
        async with redis.asyncio.Redis(port=server.port) as client:
            guard = AsyncGuard(AsyncCell(client), when_unavailable=choice, timeout=0.2)
            await guard.peek("a", RATE)
            server.freeze()
            answer = await guard.throttle("a", RATE)
            assert answer.decided_by != "server"
            server.thaw()
            with server.admin as admin:
                servers.wait_until(lambda: admin.info("commandstats").get("cmdstat_cl.throttle"), 5)
                await asyncio.sleep(0.2)
                assert (admin.execute_command("CL.PEEK", "a", 2, 3, 3600)[4] > 1000) == answer.admitted


async def test_a_place_that_was_renewed_is_kept(server: servers.Server, client: redis.asyncio.Redis) -> None:
    cell, lease = AsyncCell(client), Lease(1, lease=60, holder="me")
    assert await cell.acquire("a", lease)
    for passes in range(POINTS):
        await cancelled(cell.mtake(Take("a", lease), Take("b", RATE)), passes)
        with server.admin as admin:
            assert admin.zcard("a") == 1
            admin.delete("b")


async def test_what_runs_to_its_end_wakes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a scope of anyio, which cancels its tasks again in each turn of the event loop."""
    anyio = pytest.importorskip("anyio")
    waits, ended, wait = list[None](), list[None](), asyncio.wait

    def counted(*arguments: Any) -> Any:
        waits.append(None)
        return wait(*arguments)

    async def end() -> None:
        for _ in range(50):
            await asyncio.sleep(0)
        ended.append(None)

    monkeypatch.setattr(asyncio, "wait", counted)
    with anyio.CancelScope() as scope:
        scope.cancel()
        await steps.to_its_end(end())
    assert len(ended) == 1 and len(waits) == 1
