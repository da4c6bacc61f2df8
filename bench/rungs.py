"""The ways in which the Python client makes fewer calls and writes, beside others: make bench-scale.

REDIS_URL names the server. 64 tasks of one event loop, or 8 threads, take units of one key as fast as they can. The
last table has a flood of refusals on 1,000 keys.
"""

import asyncio
import os
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import limits
import limits.aio.storage
import limits.aio.strategies
import redis
import redis.asyncio

from redis_cell import AsyncCell, AsyncMerged, AsyncRefusals, Cell, Merged, Rate

URL = os.environ["REDIS_URL"]
SECONDS = 2.0
TASKS, THREADS = 64, 8
RATE = Rate.per_second(100_000_000, burst=9_999_999)
KEYS, FLOOD = 1_000, 500_000

Take = Callable[[str], Awaitable[Any]]


def calls() -> int:
    with redis.Redis.from_url(URL) as admin:
        stats = admin.info("commandstats")
    return sum(row["calls"] for name, row in stats.items() if name.startswith(("cmdstat_cl.", "cmdstat_eval")))


def row(name: str, times: list[float], begun: tuple[float, float, int]) -> None:
    wall, processor, before = begun
    elapsed, own = time.perf_counter() - wall, time.process_time() - processor
    made = calls() - before
    times.sort()
    p50, p99 = (times[int((len(times) - 1) * part)] * 1000 for part in (0.5, 0.99))
    print(
        f"| {name} | {len(times) / elapsed:,.0f} | {len(times) / own:,.0f} | {made / elapsed:,.0f} "
        f"| {p50:.2f} ms | {p99:.2f} ms |"
    )


def begin() -> tuple[float, float, int]:
    before = calls()
    return time.perf_counter(), time.process_time(), before


async def tasks(name: str, take: Take) -> None:
    times: list[float] = []
    await take(name)
    begun = begin()
    end = time.perf_counter() + SECONDS

    async def caller() -> None:
        while (sent := time.perf_counter()) < end:
            await take(name)
            times.append(time.perf_counter() - sent)

    await asyncio.gather(*(caller() for _ in range(TASKS)))
    row(name, times, begun)


def threads(name: str, take: Callable[[str], Any]) -> None:
    times: list[float] = []
    begun = begin()
    end = time.perf_counter() + SECONDS

    def caller() -> None:
        while (sent := time.perf_counter()) < end:
            take(name)
            times.append(time.perf_counter() - sent)

    callers = [threading.Thread(target=caller) for _ in range(THREADS)]
    for thread in callers:
        thread.start()
    for thread in callers:
        thread.join()
    row(name, times, begun)


def heading(first: str) -> None:
    print(f"| {first} | decisions/s | decisions per second of processor time | calls/s | p50 | p99 |")
    print("|---|--:|--:|--:|--:|--:|")


async def asynchronous() -> None:
    client = redis.asyncio.Redis.from_url(URL)
    heading(f"{TASKS} tasks")
    storage = limits.aio.storage.RedisStorage("async+" + URL, implementation="redispy")
    strategy = limits.aio.strategies.FixedWindowRateLimiter(storage)
    item = limits.RateLimitItemPerSecond(100_000_000)
    await tasks("`limits`, `FixedWindowRateLimiter`", lambda name: strategy.hit(item, name))
    arguments = (9_999_999, 100_000_000, 1)
    await tasks("redis-py, `execute_command`", lambda name: client.execute_command("CL.THROTTLE", name, *arguments))
    for name, cell in (
        ("`AsyncCell`", AsyncCell(client)),
        ("`AsyncCell`, `pipelined`", AsyncCell(client, pipelined=True)),
        ("`AsyncMerged`", AsyncMerged(client)),
    ):
        await tasks(name, lambda key, cell=cell: cell.throttle(key, RATE))
    await client.aclose()


async def flood() -> None:
    client = redis.asyncio.Redis.from_url(URL)
    cell = AsyncCell(client)
    refusals = AsyncRefusals(cell)
    rate = Rate.per_day(1)
    before, started = calls(), time.perf_counter()
    for place in range(FLOOD):
        await cell.throttle(f"flood:{place % KEYS}", rate)
        if place % 64 == 0:
            await asyncio.sleep(0)  # a call that does not wait lets no other task run
    elapsed, made = time.perf_counter() - started, calls() - before
    print("\n| flood of refusals | decisions/s | refused without the server | calls | of the decisions |")
    print("|---|--:|--:|--:|--:|")
    print(
        f"| {FLOOD:,} on {KEYS:,} keys, `AsyncRefusals` | {FLOOD / elapsed:,.0f} | {refusals.recalled:,} | {made:,} "
        f"| {made / FLOOD:.1%} |"
    )
    await refusals.aclose()
    await client.aclose()


def main() -> None:
    asyncio.run(asynchronous())
    print()
    heading(f"{THREADS} threads")
    for name, cell in (("`Cell`", Cell(redis.Redis.from_url(URL))), ("`Merged`", Merged(redis.Redis.from_url(URL)))):
        threads(name, lambda key, cell=cell: cell.throttle(key, RATE))
    asyncio.run(flood())


main()
