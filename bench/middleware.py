"""What the middleware of FastMCP adds to a call of a tool: make bench-scale, the part middleware.

REDIS_URL names the server, and the argument a file for the numbers of each round, in milliseconds. A client of fastmcp
calls a tool in the same process: without the middleware, with a rule, and with two rules of which one settles costs, in
turns; the second row without it shows the noise. Over HTTP, delayed acknowledgements of 40 ms hide the times.
"""

import asyncio
import os
import statistics
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import redis.asyncio
from fastmcp import Client, FastMCP

from redis_cell import AsyncCell, AsyncGuard, FailClosed, Fixed
from redis_cell.fastmcp import RateLimits, Rule

ROUNDS, CALLS = 21, 300
CALLS_RULE = Rule(Fixed(10**9, per=3600))
WAYS = {
    "without": {},
    "without, again": {},
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
    found = [list[list[float]]() for _ in WAYS]
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(Client(server(cell, rules))) for rules in WAYS.values()]
        for number in range(ROUNDS + 1):
            times = [list[tuple[float, float]]() for _ in WAYS]
            for _ in range(CALLS):
                for client, row in zip(clients, times, strict=True):
                    begun, used = time.perf_counter(), time.process_time()
                    await client.call_tool("nothing")
                    row.append(((time.perf_counter() - begun) * 1000, (time.process_time() - used) * 1000))
            for row, rounds in zip(times, found, strict=True):
                if number > 0:  # the first round is for what is loaded and connected
                    walls, used = (sorted(column) for column in zip(*row, strict=True))
                    rounds.append([walls[CALLS // 2], walls[CALLS * 99 // 100], used[CALLS // 2]])
    names = [f"{way}: {value}" for way in WAYS for value in ("p50", "p99", "processor")]
    rows = [[f"{value:.3f}" for times in row for value in times] for row in zip(*found, strict=True)]
    Path(sys.argv[1]).write_text("".join("\t".join(row) + "\n" for row in [names, *rows]))
    print(f"medians of {ROUNDS} rounds of {CALLS} calls, and the quartiles of what p99 is above the first row\n")
    print("| middleware | p50 | p99 | processor | p50, added | p99, added | quartiles |")
    print("| --- | --: | --: | --: | --: | --: | --: |")
    for way, rounds in zip(WAYS, found, strict=True):
        p50, p99, used = (statistics.median(column) for column in zip(*rounds, strict=True))
        added = [[own - base for own, base in zip(*pair, strict=True)] for pair in zip(rounds, found[0], strict=True)]
        more = [statistics.quantiles(column, n=4) for column in zip(*added, strict=True)]
        print(
            f"| {way} | {p50:.2f} ms | {p99:.2f} ms | {used:.2f} ms | {more[0][1]:.2f} ms | {more[1][1]:.2f} ms "
            f"| {more[1][0]:.2f} to {more[1][2]:.2f} |"
        )


asyncio.run(main())
