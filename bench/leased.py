"""How many decisions the Python client makes with leases of units in a second of processor time: make bench-scale.

REDIS_URL names the server. The table has rows for one thread and for one event loop, on one core.
"""

import asyncio
import os
import time
from collections.abc import Callable

import redis
import redis.asyncio

from redis_cell import AsyncCell, AsyncLeased, Cell, Leased, Rate

DECISIONS = 500_000
ROUNDS = 5
CASES = [
    ("all admitted", Rate.per_second(100_000_000, burst=9_999_999), 10_000),
    ("nearly all refused", Rate.per_second(1_000, burst=99), 100),
]


def blocking(name: str, rate: Rate, most: int) -> tuple[int, float]:
    """Admitted, and the processor time."""
    cell = Cell(redis.Redis.from_url(os.environ["REDIS_URL"]))
    leased = Leased(cell, rate, least=100, most=most, hold=0.3)
    leased.take(name)
    started = time.process_time()
    admitted = sum(leased.take(name).admitted for _ in range(DECISIONS))
    return admitted, time.process_time() - started


def asynchronous(name: str, rate: Rate, most: int) -> tuple[int, float]:
    """The same for asyncio."""

    async def run() -> tuple[int, float]:
        leased = AsyncLeased(
            AsyncCell(redis.asyncio.Redis.from_url(os.environ["REDIS_URL"])), rate, least=100, most=most, hold=0.3
        )
        await leased.take(name)
        started = time.process_time()
        admitted = 0
        for place in range(DECISIONS):
            admitted += (await leased.take(name)).admitted
            # A call that does not wait lets no other task run.
            if place % 64 == 0:
                await asyncio.sleep(0)
        return admitted, time.process_time() - started

    return asyncio.run(run())


def main() -> None:
    print("| requests | class | decisions per second of processor time | admitted |")
    print("|---|---|--:|--:|")
    ways: list[tuple[str, Callable[[str, Rate, int], tuple[int, float]]]] = [
        ("Leased", blocking),
        ("AsyncLeased", asynchronous),
    ]
    for name, rate, most in CASES:
        for kind, run in ways:
            rounds = sorted(run(f"python:{name}:{kind}", rate, most)[::-1] for _ in range(ROUNDS))
            seconds, admitted = rounds[ROUNDS // 2]
            print(f"| {name} | `{kind}` | {DECISIONS / seconds:,.0f} | {admitted / DECISIONS:.0%} |")


main()
