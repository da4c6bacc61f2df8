"""What the middleware of FastMCP adds to a call of a tool: make bench-scale, the part middleware.

REDIS_URL names the server. A client of fastmcp calls a tool in the same process: without the middleware, with a rule,
and with two rules of which one settles costs, in turns. Over HTTP, delayed acknowledgements of 40 ms hide the times.
"""

import asyncio
import os
import time
from typing import Any

import redis.asyncio
from fastmcp import Client, FastMCP

from redis_cell import AsyncCell, AsyncGuard, FailClosed, Fixed
from redis_cell.fastmcp import RateLimits, Rule

CALLS = 2_000
WARM = 100
CALLS_RULE = Rule(Fixed(10**9, per=3600))
WAYS = {
    "without": {},
    "a rule": {"calls": CALLS_RULE},
    "two rules, and costs": {"calls": CALLS_RULE, "costs": Rule(Fixed(10**9, per=3600), cost=1)},
}


def server(cell: AsyncGuard, rules: dict[str, Rule]) -> FastMCP[Any]:
    made = FastMCP[Any]("measured")
    if rules:
        RateLimits(cell, rules).add_to(made)

    @made.tool
    async def nothing() -> None:
        pass

    return made


async def main() -> None:
    cell = AsyncGuard(AsyncCell(redis.asyncio.Redis.from_url(os.environ["REDIS_URL"])), when_unavailable=FailClosed())
    clients = [Client(server(cell, rules)) for rules in WAYS.values()]
    times = [list[float]() for _ in WAYS]
    async with clients[0], clients[1], clients[2]:
        for number in range(WARM + CALLS):
            for client, row in zip(clients, times, strict=True):
                begun = time.perf_counter()
                await client.call_tool("nothing")
                if number >= WARM:
                    row.append(time.perf_counter() - begun)
    print("| middleware | p50 | p99 | p50, ratio | p99, ratio |\n| --- | --: | --: | --: | --: |")
    base: list[float] = []
    for way, row in zip(WAYS, times, strict=True):
        row.sort()
        found = [row[int((len(row) - 1) * part)] * 1000 for part in (0.5, 0.99)]
        base = base or found
        ratios = [f"{each / first:.2f}" for each, first in zip(found, base, strict=True)]
        print(f"| {way} | {found[0]:.2f} ms | {found[1]:.2f} ms | {ratios[0]} | {ratios[1]} |")


asyncio.run(main())
