"""Leases of units on a real server: few calls, a limit that holds, and nothing left behind."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import redis
import redis.asyncio

import servers
from redis_cell import AsyncCell, AsyncLeased, Fixed, Rate

LONG = 3600.0
RATE = Rate.per_day(100)


@pytest.fixture
async def client() -> AsyncIterator[redis.asyncio.Redis]:
    with servers.running() as server:
        client = redis.asyncio.Redis(port=server.port, decode_responses=True)
        yield client
        await getattr(client, "aclose", client.close)()


async def calls(client: Any, command: str) -> int:
    stats = await client.info("commandstats")
    return int(stats.get(f"cmdstat_{command}", {"calls": 0})["calls"])


async def until(condition: Callable[[], Any]) -> None:
    """Waits until a condition holds, for ten seconds at most."""
    deadline = time.monotonic() + 10
    while not await condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def remaining(client: Any, key: str = "hot") -> int:
    return (await AsyncCell(client).peek(key, RATE)).remaining


async def test_a_batch_is_spent_without_calls_and_a_refusal_is_remembered(client: Any) -> None:
    leased = AsyncLeased(AsyncCell(client), RATE, least=10, most=40, hold=LONG)
    verdicts = [await leased.take("hot") for _ in range(10_000)]
    assert sum(map(bool, verdicts)) == 100
    assert await remaining(client) == 0
    assert 800 < max(verdict.retry_after or 0 for verdict in verdicts) <= 864
    assert 3 <= await calls(client, "cl.throttle") <= 12


async def test_what_is_left_goes_back_when_the_hold_is_over(client: Any) -> None:
    rate = AsyncLeased(AsyncCell(client), RATE, least=20, most=20, hold=0.05)
    year = AsyncLeased(AsyncCell(client), Fixed.per_year(100), least=20, most=20, hold=0.05)
    assert await rate.take("hot", 3)
    assert await year.take("year", 3)
    assert await client.get("year") == "20"

    async def back() -> bool:
        # One unit may have leaked by the time that the server hears of it.
        return await remaining(client) in (96, 97) and await client.get("year") == "3"

    async def forgotten() -> bool:
        return not rate.keys_in_use and not year.keys_in_use

    await until(back)
    await until(forgotten)


async def test_units_are_given_back_before_the_process_ends(client: Any) -> None:
    leased = AsyncLeased(AsyncCell(client), RATE, least=20, most=20, hold=LONG)
    assert await leased.take("hot", 3)
    assert await remaining(client) == 80
    await leased.give_back()
    assert await remaining(client) in (96, 97)


async def test_what_cannot_be_held_is_taken_directly(client: Any) -> None:
    leased = AsyncLeased(AsyncCell(client), RATE, least=1, most=10, hold=LONG, keys=1)
    assert await leased.take("hot", 11)
    assert leased.keys_in_use == 0
    never = await leased.take("hot", 101)
    assert (never.admitted, never.retry_after) == (False, None)
    assert await leased.take("hot")
    # The only place for a key is used.
    for _ in range(5):
        assert await leased.take("other")
    assert leased.keys_in_use == 1
    assert await remaining(client, "other") == 95


async def test_calls_that_wait_are_served_in_order(client: Any) -> None:
    leased = AsyncLeased(AsyncCell(client), Rate.per_day(100, burst=9), least=10, most=10, hold=LONG)
    served: list[int] = []

    async def call(place: int) -> bool:
        verdict = await leased.take("hot")
        served.append(place)
        return verdict.admitted

    admitted = await asyncio.gather(*map(call, range(15)))
    assert served == list(range(15))
    assert admitted == [True] * 10 + [False] * 5


async def test_a_caller_that_gives_up_takes_nothing(client: Any) -> None:
    leased = AsyncLeased(AsyncCell(client), Rate.per_day(100, burst=9), least=10, most=10, hold=LONG)
    for _ in range(5):
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(leased.take("hot"), 0)
    for _ in range(10):
        assert await leased.take("hot")


async def test_a_server_that_does_not_answer_is_an_error_that_is_remembered() -> None:
    with servers.running() as server:
        client = redis.asyncio.Redis(port=server.port, socket_timeout=0.2)
        leased = AsyncLeased(AsyncCell(client), Rate.per_second(1000), least=10, most=10, hold=LONG)
        server.stop()
        # The pause doubles with each attempt; within it, no attempt is made.
        deadline = time.monotonic() + 60
        for _ in range(300):
            with pytest.raises((redis.ConnectionError, asyncio.TimeoutError)):
                await leased.take("hot")
            assert time.monotonic() < deadline
        await getattr(client, "aclose", client.close)()


async def test_a_key_of_another_type_is_an_error(client: Any) -> None:
    await client.hset("hot", "field", "value")
    leased = AsyncLeased(AsyncCell(client), RATE, least=1, most=10, hold=LONG)
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        await leased.take("hot")


@pytest.mark.parametrize(("least", "most", "hold"), [(0, 10, 1), (11, 10, 1), (1, 10, 0), (1, 10, math.inf)])
def test_bad_numbers_are_errors(least: int, most: int, hold: float) -> None:
    with pytest.raises(ValueError):
        AsyncLeased(AsyncCell(redis.asyncio.Redis()), RATE, least=least, most=most, hold=hold)


async def test_many_clients_of_a_hot_key_stay_within_the_bound(client: Any) -> None:
    """The bound is that of docs/scaling.md, and the server is called for a twentieth of the requests at most."""
    rate, hold, most, count, requests = Rate.per_second(2000, burst=99), 0.3, 50, 20, 100_000
    leased = [AsyncLeased(AsyncCell(client), rate, least=5, most=most, hold=hold) for _ in range(count)]
    started = time.monotonic()

    async def hammer(one: AsyncLeased) -> int:
        admitted = 0
        for _ in range(requests // count):
            admitted += bool(await one.take("hot"))
            await asyncio.sleep(0)
        return admitted

    admitted = sum(await asyncio.gather(*map(hammer, leased)))
    elapsed = time.monotonic() - started
    assert 100 <= admitted <= 100 + elapsed * 2000 + min(hold * 2000, count * most)
    assert await calls(client, "cl.throttle") * 20 <= requests
