"""All calls of a turn of the event loop in one write: each keeps its own answer, error and time limit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

import servers
from conftest import LIBRARIES, client_class, close
from redis_cell import AsyncCell, Rate

RATE = Rate.per_day(100)


@pytest.fixture(params=LIBRARIES)
async def client(request: pytest.FixtureRequest, server: servers.Server) -> AsyncIterator[Any]:
    client = client_class(request.param, "asyncio")(port=server.port, socket_timeout=10)
    yield client
    await close(client, "asyncio")


def counted(server: servers.Server, name: str, section: str) -> int:
    with server.admin as admin:
        return int(admin.info(section)[name])


async def test_the_calls_of_a_turn_share_a_connection_and_a_write(server: servers.Server, client: Any) -> None:
    cell = AsyncCell(client, pipelined=True)
    answers = await asyncio.gather(*(cell.throttle(f"k{n % 3}", RATE) for n in range(60)))
    assert [answer.remaining for answer in answers] == [99 - n // 3 for n in range(60)]
    assert len(client.connection_pool._available_connections) == 1
    reads = counted(server, "total_reads_processed", "stats")
    await asyncio.gather(*(cell.throttle("k0", RATE) for _ in range(60)))
    # The server reads the write in at most a few pieces, and what INFO needs.
    assert counted(server, "total_reads_processed", "stats") - reads < 20


async def test_an_error_is_that_of_its_own_call(server: servers.Server, client: Any) -> None:
    with server.admin as admin:
        admin.hset("other", "field", "value")
    cell = AsyncCell(client, pipelined=True)
    keys = ["a", "other", "a", "other", "a"]
    answers: list[Any] = await asyncio.gather(*(cell.throttle(key, RATE) for key in keys), return_exceptions=True)
    assert [getattr(answer, "remaining", None) for answer in answers] == [99, None, 98, None, 97]
    assert "WRONGTYPE" in str(answers[1]) and "WRONGTYPE" in str(answers[3])


async def test_a_call_that_is_cancelled_before_the_write_is_not_sent(server: servers.Server, client: Any) -> None:
    cell = AsyncCell(client, pipelined=True)
    await cell.throttle("k", RATE)  # the pool has a connection
    tasks = [asyncio.create_task(cell.throttle("k", RATE)) for _ in range(4)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(answers[1], asyncio.CancelledError)
    assert [getattr(answer, "remaining", None) for answer in answers] == [98, None, 97, 96]
    assert server.calls("cl.throttle") == 4


async def test_a_call_that_is_cancelled_later_leaves_the_others_their_replies(
    server: servers.Server, client: Any
) -> None:
    cell = AsyncCell(client, pipelined=True)
    await cell.throttle("k", RATE)
    server.freeze()
    try:
        tasks = [asyncio.create_task(asyncio.wait_for(cell.throttle("k", RATE), 0.2 + 60 * n)) for n in range(3)]
        with pytest.raises(asyncio.TimeoutError):
            await tasks[0]
    finally:
        server.thaw()
    # The first call was sent, and has taken its unit.
    assert [(await task).remaining for task in tasks[1:]] == [97, 96]
    # No reply is left behind on the connection.
    assert (await cell.throttle("other", RATE)).remaining == 99


async def test_a_broken_connection_is_an_error_of_each_call_and_of_no_later_one(
    server: servers.Server, client: Any
) -> None:
    cell = AsyncCell(client, pipelined=True)
    await cell.throttle("k", RATE)
    server.freeze()
    tasks = [asyncio.create_task(cell.throttle("k", RATE)) for _ in range(3)]
    await asyncio.sleep(0.1)
    (connection,) = client.connection_pool._in_use_connections
    connection._writer.transport.abort()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    server.thaw()
    assert all(isinstance(answer, (cell.errors.ConnectionError, OSError)) for answer in answers), answers
    assert (await cell.throttle("other", RATE)).remaining == 99


async def test_calls_that_wait_have_a_connection_of_their_own(client: Any) -> None:
    cell = AsyncCell(client, pipelined=True)
    await cell.throttle("k", Rate(1, per=0.3))
    waiting = asyncio.create_task(cell.bthrottle("k", Rate(1, per=0.3), timeout=20))
    await asyncio.sleep(0)
    assert await cell.throttle("other", RATE)
    assert not waiting.done()
    assert await waiting


async def test_a_cluster_has_a_write_for_each_node(cluster: list[servers.Server]) -> None:
    for library in LIBRARIES:
        client = client_class(library, "asyncio", clustered=True)(host="127.0.0.1", port=cluster[0].port)
        cell = AsyncCell(client, pipelined=True)
        keys = [f"{library}{n}" for n in range(40)]
        for left in (99, 98):
            answers = await asyncio.gather(*(cell.throttle(key, RATE) for key in keys))
            assert [answer.remaining for answer in answers] == [left] * 40
        await close(client, "asyncio")
