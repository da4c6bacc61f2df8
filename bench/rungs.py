"""The ways in which the Python client makes fewer calls and writes, beside others: make bench-scale.

REDIS_URL names the server, and the argument a file for the numbers of all rows. 64 tasks of one event loop, or 8
threads, take units of one key as fast as they can: of a limit that refuses nothing, and of one of 1,000 units a second
with a burst of 100. *Above* is the largest number of units that were certainly admitted beyond `burst + time * rate` in
any stretch of time, and *unused* the share of what the limit brings. The last table has a flood of refusals on 1,000
keys.
"""

import asyncio
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import limits
import limits.aio.storage
import limits.aio.strategies
import redis
import redis.asyncio

from redis_cell import AsyncCell, AsyncLeased, AsyncMerged, AsyncRefusals, Cell, Leased, Merged, Rate

URL = os.environ["REDIS_URL"]
SECONDS = 2.0
TASKS, THREADS = 64, 8
PLENTY = Rate.per_second(100_000_000, burst=9_999_999)
SCARCE = Rate.per_second(1_000, burst=99)
HOLD, BATCH, FEW = 0.3, (100, 1_000), (5, 20)
"""How long leases are held, in seconds, and of how many units: of the one limit, and of the other."""
KEYS, FLOOD = 1_000, 500_000
COLUMNS = (
    "callers",
    "limit_per_s",
    "way",
    "decisions_per_s",
    "per_processor_s",
    "calls_per_s",
    "refused_share",
)
COLUMNS += ("p50_ms", "p99_ms", "above", "bound", "unused_share")

Take = Callable[[str], Any]
AsyncTake = Callable[[str], Awaitable[Any]]


def calls() -> int:
    with redis.Redis.from_url(URL) as admin:
        stats = admin.info("commandstats")
    return sum(
        row["calls"] for name, row in stats.items() if name.startswith(("cmdstat_cl.", "cmdstat_eval"))
    )


def most_beyond(rate: float, units: list[tuple[float, float]]) -> float:
    """Returns the largest number of units in a stretch of time, beyond what the rate brings in it. A unit counts for the
    stretches that contain the instants before its call and after its answer."""
    units.sort(key=lambda unit: unit[1])
    most = 0.0
    for begin, _ in units:
        ends = (after for before, after in units if before >= begin)
        most = max([most, *(count - (end - begin) * rate for count, end in enumerate(ends, 1))])
    return most


@dataclass
class Run:
    """What the callers of one way see."""

    name: str
    rate: Rate
    callers: int
    times: list[float] = field(default_factory=list)
    units: list[tuple[float, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.before = calls()
        self.begun, self.processor = time.perf_counter(), time.process_time()
        self.key = f"{self.name}:{self.rate.count}"

    def goes_on(self) -> bool:
        return time.perf_counter() < self.begun + SECONDS

    def note(self, sent: float, answer: Any) -> None:
        now = time.perf_counter()
        self.times.append(now - sent)
        if answer:
            self.units.append((sent, now))

    def row(self) -> None:
        elapsed, own = time.perf_counter() - self.begun, time.process_time() - self.processor
        made, count = calls() - self.before, len(self.times)
        self.times.sort()
        p50, p99 = (self.times[int((count - 1) * part)] * 1000 for part in (0.5, 0.99))
        above, bound, unused = 0.0, 0.0, ""
        if self.rate is SCARCE:
            above = max(0.0, most_beyond(SCARCE.count, self.units) - SCARCE.limit)
            bound = min(HOLD * SCARCE.count, FEW[1]) if "Leased" in self.name else 0.0
            brought = SCARCE.limit + elapsed * SCARCE.count
            unused = f"{max(0.0, 1 - len(self.units) / brought):.4f}"
            assert above <= bound + 1, f"{self.name}: {above} units above the limit, and the bound is {bound}"
        refused = 1 - len(self.units) / count
        numbers = f"{count / elapsed:.0f}\t{count / own:.0f}\t{made / elapsed:.0f}\t{refused:.4f}\t{p50:.4f}\t{p99:.4f}"
        RAW.write(
            f"{self.callers}\t{self.rate.count}\t{self.name}\t{numbers}\t{above:.0f}\t{bound:.0f}\t{unused}\n"
        )
        limit = f"{self.rate.count:,}/s"
        above_text = "-" if self.rate is PLENTY else f"{above:.0f} of {bound:.0f}"
        unused_text = f"{float(unused):.1%}" if unused else "-"
        print(
            f"| `{self.name}` | {limit} | {count / elapsed:,.0f} | {count / own:,.0f} | {made / elapsed:,.0f} "
            f"| {p50:.2f} ms | {p99:.2f} ms | {refused:.0%} | {above_text} | {unused_text} |"
        )


async def tasks(name: str, rate: Rate, take: AsyncTake) -> None:
    await take("warm")
    run = Run(name, rate, TASKS)

    async def caller() -> None:
        while run.goes_on():
            sent = time.perf_counter()
            run.note(sent, await take(run.key))
            await asyncio.sleep(0)  # a call that does not wait lets no other task run

    await asyncio.gather(*(caller() for _ in range(TASKS)))
    run.row()


def threads(name: str, rate: Rate, take: Take) -> None:
    run = Run(name, rate, THREADS)

    def caller() -> None:
        while run.goes_on():
            sent = time.perf_counter()
            run.note(sent, take(run.key))

    callers = [threading.Thread(target=caller) for _ in range(THREADS)]
    for thread in callers:
        thread.start()
    for thread in callers:
        thread.join()
    run.row()


def heading(first: str) -> None:
    print(
        f"| {first} | limit | decisions/s | per second of processor time | calls/s | p50 | p99 | refused | above, of "
        "the bound | unused |"
    )
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|")


def lease(kind: Any, cell: Any, rate: Rate) -> Any:
    least, most = BATCH if rate is PLENTY else FEW
    return kind(cell, rate, least=least, most=most, hold=HOLD)


async def asynchronous() -> None:
    client = redis.asyncio.Redis.from_url(URL)
    heading(f"{TASKS} tasks")
    storage = limits.aio.storage.RedisStorage("async+" + URL, implementation="redispy")
    strategy = limits.aio.strategies.FixedWindowRateLimiter(storage)
    item = limits.RateLimitItemPerSecond(100_000_000)
    await tasks("limits, FixedWindowRateLimiter", PLENTY, lambda name: strategy.hit(item, name))
    for rate in (PLENTY, SCARCE):
        arguments = (rate.burst, rate.count, 1)

        async def plain(name: str, arguments: tuple[int, ...] = arguments) -> bool:
            return not (await client.execute_command("CL.THROTTLE", name, *arguments))[0]

        await tasks("redis-py, execute_command", rate, plain)
        for name, cell in (
            ("AsyncCell", AsyncCell(client)),
            ("AsyncCell, pipelined", AsyncCell(client, pipelined=True)),
            ("AsyncMerged", AsyncMerged(client)),
        ):
            await tasks(name, rate, lambda key, cell=cell, rate=rate: cell.throttle(key, rate))
        leased = lease(AsyncLeased, AsyncCell(client), rate)
        await tasks("AsyncLeased", rate, leased.take)
        await leased.give_back()
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


def blocking() -> None:
    print()
    heading(f"{THREADS} threads")
    for rate in (PLENTY, SCARCE):
        for kind in (Cell, Merged):
            cell = kind(redis.Redis.from_url(URL))
            threads(kind.__name__, rate, lambda key, cell=cell, rate=rate: cell.throttle(key, rate))
        leased = lease(Leased, Cell(redis.Redis.from_url(URL)), rate)
        threads("Leased", rate, leased.take)
        leased.give_back()


with open(sys.argv[1], "w") as RAW:
    RAW.write("\t".join(COLUMNS) + "\n")
    asyncio.run(asynchronous())
    blocking()
    asyncio.run(flood())
