"""Calls that wait for several limiters, and calls that may be repeated: CL.BMTAKE, FLOW and ONCE."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
import redis.asyncio

import servers
from conftest import PATIENCE, aside
from redis_cell import AsyncCell, Bucket, Fixed, Lease, Once, Rate, RefusedForever, Settle, Take, wire
from redis_cell.backend import as_function
from redis_cell.client import _Attempts

SLOW = Rate(1, per=1000)
MONTH = Fixed(1000, per=10_000)
ONE = Fixed(1, per=10_000)


def busy(holder: str) -> Take:
    return Take("{g}:busy", Lease(1, lease=100, holder=holder))


async def blocked(server: servers.Server, count: int) -> None:
    """Waits until this many clients wait."""
    await servers.until(lambda: server.counted("blocked_clients") == count)


async def test_a_mix_that_waits(cell: Any) -> None:
    answer = await cell.bmtake(busy("a"), Take("{g}:month", MONTH, 5), timeout=10, flow="acme", weight=2)
    assert answer and answer["{g}:busy"].taken == 1 and answer["{g}:month"].remaining == 995
    assert await cell.bmtake(busy("b"), timeout=0.1) is None
    refused = await cell.bmtake(busy("b"), Take("{g}:month", MONTH, 5), timeout=None, flow=b"acme", maxlen=0)
    assert not refused and refused["{g}:month"].admitted and refused["{g}:busy"].retry_after > 90
    never = await cell.bmtake(Take("{g}:other", SLOW, 2), timeout=1)
    assert isinstance(never.combined, RefusedForever)
    # A call whose units will not be available in time returns None at once.
    assert await cell.bmtake(Take("{g}:new", SLOW), timeout=None)
    assert await cell.bmtake(Take("{g}:new", SLOW), timeout=900) is None


async def test_the_age_of_what_was_waited_for_is_that_of_its_turn(cell: Any) -> None:
    """Units that were taken at the end of a long wait are still owed."""
    rate = Rate(100, per=1)
    assert await cell.throttle("k", rate, 100)
    answer = await cell.bmtake(Take("k", rate, 70), timeout=10)
    settled = await cell.msettle(Settle("k", rate, -60), taken=answer)
    # Nothing would come back if the wait counted: 700 ms of 1000 have passed since the call.
    assert settled["k"].remaining >= 50


@pytest.mark.parametrize("library", ["module", "functions"])
async def test_calls_whose_replies_are_lost_count_once(connect: Any, library: str) -> None:
    with servers.running() as server, servers.lossy(server, 0.3) as way_there:
        server.load_functions()
        cell = connect(way_there.port, backend=library)
        bucket = Bucket(1000, count=1, per=10_000)
        for number in range(30):
            once = Once(f"{{p}}:payment-{number}", period=600, tries=30, pause=0.001)
            assert await cell.mtake(Take("{p}:paid", MONTH, 25), Take("{p}:b", bucket, 10), once=once)
            once = Once(f"{{p}}:settlement-{number}", period=600, tries=30, pause=0.001)
            settled = await cell.msettle(Settle("{p}:paid", MONTH, -5), Settle("{p}:b", bucket, 3), ago=0, once=once)
        assert way_there.lost > 10
        assert settled["{p}:paid"].remaining == 1000 - 30 * 20 and settled["{p}:b"].remaining == 1000 - 30 * 13
        if library == "module":
            repeated = server.counted("mtake_repeated") + server.counted("msettle_repeated")
            assert repeated == way_there.lost


async def test_a_call_that_waits_is_repeated_for_the_rest_of_its_timeout(connect: Any) -> None:
    with servers.running() as server, servers.lossy(server, 0.3) as way_there:
        cell = connect(way_there.port)
        takes = (Take("{w}:rate", Rate(1, per=0.01)), Take("{w}:all", MONTH))
        for number in range(30):
            once = Once(f"{{w}}:{number}", period=600, tries=30, pause=0.001)
            answer = await cell.bmtake(*takes, timeout=20, flow="f", maxlen=5, once=once)
            assert answer
        assert way_there.lost > 5
        assert answer["{w}:all"].remaining == 970 and server.counted("bmtake_admitted") == 30
        assert server.counted("bmtake_repeated") == way_there.lost


async def test_a_reply_that_never_comes_is_asked_for_once_more() -> None:
    with servers.running() as server, servers.lossy(server, 1, silent=True) as way_there:
        async with redis.asyncio.Redis(port=way_there.port) as client:
            once = Once("{s}:id", period=600)
            call = asyncio.ensure_future(AsyncCell(client).bmtake(Take("{s}:k", ONE), timeout=0.1, once=once))
            while not way_there.lost:
                await asyncio.sleep(0.01)
            way_there.share = 0
            assert await call and server.counted("bmtake_repeated") == 1


async def test_a_waiting_call_whose_connection_breaks_waits_again(connect: Any) -> None:
    with servers.running() as server, server.admin as admin:
        cell = connect(server.port)
        assert await cell.fixed("{c}:k", ONE)

        for once in (Once("{c}:id", period=600), None):
            call = aside(cell, "bmtake", Take("{c}:k", ONE), timeout=None, once=once)
            await blocked(server, 1)
            sent = server.calls("cl.bmtake")
            admin.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            if once is None:
                with pytest.raises(Exception, match=r"(?i)connection|closed"):
                    await asyncio.wait_for(call, PATIENCE)
                assert server.calls("cl.bmtake") == sent
                continue
            while server.calls("cl.bmtake") < 2:
                await asyncio.sleep(0.01)
            await blocked(server, 1)
            admin.delete("{c}:k")
            assert await call
        # A demoted server ends the wait with an error, and so does the end of the attempts.
        once = Once("{c}:2", period=600, tries=5, pause=0)
        call = aside(cell, "bmtake", Take("{c}:k", ONE), timeout=None, once=once)
        await blocked(server, 1)
        admin.replicaof("127.0.0.1", str(servers.NOBODY))
        with pytest.raises(Exception, match="read only replica"):
            await call


async def test_the_end_of_the_attempts_is_the_error(connect: Any) -> None:
    with servers.running() as server, servers.lossy(server, 1) as way_there:
        cell = connect(way_there.port)
        with pytest.raises(Exception, match=r"(?i)connection|closed"):
            await cell.mtake(Take("{e}:k", MONTH), once=Once("{e}:1", period=600, tries=4, pause=0))
        assert way_there.lost == 4
        # Half of the period has passed after the third attempt: 100 ms, 200 ms.
        with pytest.raises(Exception, match=r"(?i)connection|closed"):
            await cell.mtake(Take("{e}:k", MONTH), once=Once("{e}:2", period=1, tries=100, pause=0.1))
        assert way_there.lost in (6, 7)
        # An error of the call is no reason for another attempt.
        way_there.share = 0
        with server.admin as admin:
            admin.rpush("{e}:list", "x")
        with pytest.raises(Exception, match="WRONGTYPE"):
            await cell.mtake(Take("{e}:list", MONTH), once=Once("{e}:3", period=600))
        assert server.counted("mtake_errors") == 1
        with server.admin as admin:
            assert admin.get("{e}:k") == "2"


def test_a_repetition_waits_for_the_rest_of_the_timeout() -> None:
    call = wire.bmtake(busy("a"), timeout=10, flow="f", weight=2, once=Once("{g}:id", period=60))
    assert call.waiting and not callable(call.arguments)
    shorter = tuple("6.000000" if argument == "10.000000" else argument for argument in call.arguments)
    assert call.waiting.within(6).arguments == shorter
    late = call.waiting.within(0.000_001)
    assert late.held == 0.000_001 and "0.000001" in late.arguments
    assert call.waiting.within(None).held is None
    attempts = _Attempts(call, Once("{g}:id", period=60))
    assert attempts.next() is call
    time.sleep(0.001)
    assert 0 < (attempts.next().held or 0) < 10


def test_a_flow_needs_the_module() -> None:
    with pytest.raises(NotImplementedError, match="a flow needs the module"):
        as_function(wire.msettle(Settle("k", SLOW, 1), flow="f"))
