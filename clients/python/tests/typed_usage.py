"""What the type checkers infer for callers. Nothing runs this file: tests/test_types.py checks it."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import redis
import redis.asyncio
import valkey
import valkey.asyncio
from typing_extensions import assert_type

from redis_cell import (
    Account,
    Admitted,
    Answer,
    AsyncAccount,
    AsyncCell,
    AsyncGuard,
    AsyncHeld,
    Balance,
    Booked,
    Booking,
    Budget,
    Cell,
    FailOpen,
    Fixed,
    Held,
    Hold,
    Once,
    Rate,
    Refused,
    RefusedForever,
    Spill,
    Step,
    Take,
    Together,
    TopKey,
)


def blocking() -> None:
    cell = Cell(redis.Redis())
    Cell(redis.RedisCluster())
    Cell(valkey.Valkey())
    Cell(valkey.ValkeyCluster())
    answer = cell.throttle("user123", Rate.per_minute(30, burst=15), saturate=True)
    assert_type(answer, Answer)
    assert_type(answer.retry_after, float | None)
    match answer:
        case Admitted():
            assert_type(answer.taken, int)
        case Refused():
            assert_type(answer.retry_after, float)
        case RefusedForever():
            assert_type(answer.limit, int)
    assert_type(cell.charge(b"user123", Rate(1, per=timedelta(hours=1))), Balance)
    assert_type(cell.bthrottle("user123", Rate.per_second(1), timeout=2), Answer | None)
    booking = cell.reserve("user123", Rate.per_second(1), max_wait=5)
    assert_type(booking, Booking)
    if isinstance(booking, Booked):
        assert_type(booking.wait, float)
    together = cell.mtake(Take("a", Rate.per_second(1)), Take("b", Fixed.per_month(100), 3, shadow=True))
    assert_type(together, Together[Answer])
    assert_type(together["a"], Answer)
    waited = cell.bmtake(Take("a", Rate.per_second(1)), timeout=2, flow="f", weight=2, once=Once("b", period=60))
    assert_type(waited, Together[Answer] | None)
    spill = Spill(Take("a", Fixed.per_month(100), 3), Take("b", Fixed.total(100), 3))
    assert_type(cell.settle(spill, hold=Hold("h", "me", 60)), Together[Balance])
    with Account(cell, lambda units: Take("a", Fixed.total(9), units), holds="h").hold(3) as held:
        assert_type(held, Held)
        assert_type(list(held.over(["text"])), list[str])
    with Budget(cell, "run:4", tokens=9).child("a", tokens=3).step("search") as step:
        assert_type(step, Step)
    assert_type(cell.top(3), list[TopKey])
    assert_type(cell.release("jobs", "me"), bool)


async def awaiting() -> None:
    cell = AsyncCell(redis.asyncio.Redis())
    AsyncCell(redis.asyncio.RedisCluster(host="localhost"))
    AsyncCell(valkey.asyncio.Valkey())
    AsyncCell(valkey.asyncio.ValkeyCluster(host="localhost"))
    assert_type(await cell.throttle("user123", Rate.per_minute(30)), Answer)
    assert_type(asyncio.create_task(cell.throttle("user123", Rate.per_minute(30))), asyncio.Task[Answer])
    guard = AsyncGuard(cell, when_unavailable=FailOpen())
    assert_type(asyncio.create_task(guard.throttle("user123", Rate.per_minute(30))), asyncio.Task[Answer])
    async with AsyncAccount(guard, lambda units: Take("a", Fixed.total(9), units), holds="h").hold(3) as held:
        assert_type(held, AsyncHeld)
        await held.more(2)
    assert_type(await guard.bthrottle("user123", Rate.per_second(1), timeout=2), Answer | None)
    assert_type(await guard.bmtake(Take("a", Rate.per_second(1)), timeout=2), Together[Answer] | None)


def mistakes() -> None:
    cell = Cell(redis.Redis())
    Cell(redis.asyncio.Redis())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    AsyncCell(redis.Redis())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Rate.per_minute(30, 15)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    cell.throttle("k", Fixed.per_day(1))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    cell.bthrottle("k", Rate.per_second(1))  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
