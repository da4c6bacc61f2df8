"""Leases of units on a real server: few calls, a limit that holds, and nothing left behind."""

from __future__ import annotations

import asyncio
import functools
import math
import time
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.retry import Retry

import redis_cell.leased as leased_module
import servers
from conftest import PATIENCE, THREADS, Awaitable, aside, close
from redis_cell import AsyncCell, AsyncLeased, Cell, Fixed, Leased, Rate, Verdict, Window

LONG = 3600.0
RATE = Rate.per_day(100)


@pytest.fixture
def server(server: servers.Server, monkeypatch: pytest.MonkeyPatch) -> servers.Server:
    """For tests in which the server answers."""
    monkeypatch.setattr(leased_module, "_TIMEOUT", PATIENCE)
    return server


class Threaded(Awaitable):
    """A Leased with the methods of an AsyncLeased. Each call is made by a thread."""

    def __getattr__(self, name: str) -> Any:
        return functools.partial(aside, self, name)

    @property
    def keys_in_use(self) -> int:
        return self.cell.keys_in_use  # type: ignore[no-any-return]


WAYS = ["asyncio", "threads"]


def made(way: str, client: Any, limit: Any, least: int, most: int, hold: float = LONG, **options: Any) -> Any:
    """Makes an AsyncLeased, or a Leased whose methods are awaited."""
    if way == "asyncio":
        return AsyncLeased(AsyncCell(client), limit, least=least, most=most, hold=hold, **options)
    return Threaded(Leased(Cell(client), limit, least=least, most=most, hold=hold, **options))


@pytest.fixture(params=WAYS)
def leased(client: Any, blocking: redis.Redis, request: pytest.FixtureRequest) -> Any:
    return functools.partial(made, request.param, client if request.param == "asyncio" else blocking)


def left(client: Any, key: str = "hot") -> int:
    return Cell(client).peek(key, RATE).remaining


def pause(verdict: Verdict) -> float:
    """The pause after a batch that was not filled. The server refuses the call that follows."""
    wait = verdict.retry_after or 0
    return wait if wait < 1 else 0


@pytest.mark.parametrize(("callers", "calls"), [(1, 10_000), (20, 50)])
async def test_a_batch_is_spent_without_calls_and_a_refusal_is_remembered(
    server: servers.Server, blocking: redis.Redis, leased: Any, callers: int, calls: int
) -> None:
    one = leased(RATE, 10, 40)

    async def hammer() -> list[Verdict]:
        verdicts = list[Verdict]()
        for _ in range(calls):
            verdicts.append(await one.take("hot"))
            await asyncio.sleep(pause(verdicts[-1]))
        return verdicts

    verdicts = [verdict for part in await asyncio.gather(*(hammer() for _ in range(callers))) for verdict in part]
    assert sum(map(bool, verdicts)) == 100
    assert left(blocking) == 0
    assert 800 < max(verdict.retry_after or 0 for verdict in verdicts) <= 864
    assert 3 <= server.calls("cl.throttle") <= 12


async def test_what_is_left_goes_back_when_the_hold_is_over(blocking: redis.Redis, leased: Any) -> None:
    day = Window(100, per=86400)
    rate, hour, window = (leased(limit, 20, 20, hold=0.05) for limit in (RATE, Fixed(100, per=3600), day))
    assert await rate.take("hot", 3) and await window.take("day", 3)
    # The call opens the window, which is younger than the hold and the time in which an answer may come.
    assert await hour.take("hour", 3)

    def back() -> bool:
        # One unit may have leaked by the time that the server hears of it.
        there = left(blocking) in (96, 97) and blocking.get("hour") == "3"
        return there and Cell(blocking).window("day", day, 0).remaining == 97

    await servers.until(back)
    await servers.until(lambda: not rate.keys_in_use and not hour.keys_in_use and not window.keys_in_use)
    if isinstance(rate, Threaded):
        # No thread waits for the end of a hold any more, and the next key starts one again.
        await servers.until(lambda: not rate.cell._tended and not hour.cell._tended)
    assert await rate.take("hot", 3)
    await servers.until(lambda: not rate.keys_in_use)


async def test_units_are_given_back_before_the_process_ends(blocking: redis.Redis, leased: Any) -> None:
    one = leased(RATE, 20, 20)
    assert await one.take("hot", 3)
    assert left(blocking) == 80
    await one.give_back()
    assert left(blocking) in (96, 97)


async def test_what_cannot_be_held_is_taken_directly(blocking: redis.Redis, leased: Any) -> None:
    one = leased(RATE, 1, 10, keys=1)
    assert await one.take("hot", 11)
    assert one.keys_in_use == 0
    never = await one.take("hot", 101)
    assert (never.admitted, never.retry_after) == (False, None)
    assert await one.take("hot")
    # The only place for a key is used.
    for _ in range(5):
        assert await one.take("other")
    assert one.keys_in_use == 1
    assert left(blocking, "other") == 95


async def test_more_than_the_limit_is_refused_forever(leased: Any) -> None:
    for limit in (Rate.per_day(5), Fixed.per_day(5), Window(5, per=86400)):
        one = leased(limit, 1, 100)
        for _ in range(3):
            never = await one.take(limit.kind, 6)
            assert (never.admitted, never.retry_after) == (False, None)
        assert one.keys_in_use == 0
        assert await one.take(limit.kind, 5)


async def test_a_total_that_is_used_up_is_refused_forever(blocking: redis.Redis, leased: Any) -> None:
    one = leased(Fixed.total(5), 1, 10, hold=0.2)
    assert await one.take("total", 5)
    for _ in range(3):  # remembered or not
        never = await one.take("total")
        assert (never.admitted, never.retry_after) == (False, None)
    blocking.delete("total")
    await servers.until(lambda: one.take("total"))
    # A total that is forgotten when it was not used for a time has a wait.
    idle = leased(Fixed.total(5, idle=3600), 1, 10)
    assert await idle.take("idle", 5)
    for _ in range(3):
        refused = await idle.take("idle")
        assert not refused and 0 < refused.retry_after <= 3600


async def test_clients_of_a_window_spend_at_most_its_limit(blocking: redis.Redis, leased: Any) -> None:
    """What they hold of a window that ends is not spent in the next one."""
    assert Cell(blocking).fixed("hot", Fixed(100, per=1))
    # The window that is open ends as the call that opened it says, and the next one lasts for an hour.
    own = [leased(Fixed(100, per=3600), 20, 20) for _ in range(4)]
    assert all([await one.take("hot") for one in own])
    held = 4 * 20
    assert blocking.get("hot") == str(1 + held)
    await servers.until(lambda: not blocking.exists("hot"))
    assert await spent(own) == 100 and blocking.get("hot") == "100"


async def test_clients_of_a_sliding_window_spend_at_most_its_limit(blocking: redis.Redis, leased: Any) -> None:
    """By the server's clock, of units that were certainly spent in the window."""
    limit, units = Window(100, per=1), 0
    window = lambda: math.floor(time.time())  # noqa: E731
    own, direct, first = [leased(limit, 20, 20) for _ in range(4)], Cell(blocking), window() + 1
    await servers.until(lambda: window() >= first)
    assert all([await one.take("hot") for one in own])
    first = window()
    await servers.until(lambda: window() > first)
    second = window()
    for one in own:
        for _ in range(20):
            units += bool(await one.take("hot")) and window() == second
    while window() == second:
        units += direct.window("hot", limit).admitted and window() == second
        await asyncio.sleep(0.001)
    assert units <= 100


async def spent(own: list[Any]) -> int:
    """What clients spend by turns until each of them is refused until the window ends."""
    units, left = 0, list(own)
    while left:
        for one in list(left):
            verdict = await one.take("hot")
            units += bool(verdict)
            if (verdict.retry_after or 0) > 60:
                left.remove(one)
            await asyncio.sleep(pause(verdict))
    return units


@asynccontextmanager
async def of_a_server(way: str, *arguments: Any, **options: Any) -> AsyncIterator[tuple[servers.Server, Any]]:
    """A server that will not answer, and what leases its units. A client for threads has a timeout of its own."""
    with servers.running() as server:
        if way == "asyncio":
            client: Any = redis.asyncio.Redis(port=server.port)
        else:
            client = redis.Redis(port=server.port, socket_timeout=2, retry=Retry(NoBackoff(), 0))
        yield server, made(way, client, *arguments, **options)
        await close(client, "asyncio" if way == "asyncio" else "sync")


@pytest.mark.parametrize("way", WAYS)
async def test_a_server_that_does_not_answer_ends_the_giving_back_and_the_direct_calls(way: str) -> None:
    """Each direct call waits for half a second at most, and giving back for one call."""
    async with of_a_server(way, RATE, 5, 10, keys=20) as (server, one):
        for key in range(20):
            assert await one.take(str(key))
        server.freeze()
        started = time.monotonic()
        await one.give_back()
        for key, quantity in (("other", 1), ("0", 11)):
            with pytest.raises((TimeoutError, asyncio.TimeoutError)):
                await one.take(key, quantity)
        assert time.monotonic() - started < 5
        server.thaw()


async def test_an_answer_that_comes_too_late_delays_nobody_and_takes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redis_cell.client.LEAVING", 60)
    with servers.running() as server, redis.Redis(port=server.port) as blocking:
        async with redis.asyncio.Redis(port=server.port) as client:
            one = made("asyncio", client, RATE, 10, 10)
            assert await one.take("warm", 11)
            server.freeze()
            for quantity in (1, 11):  # by a batch, and directly
                begun = time.monotonic()
                with pytest.raises(asyncio.TimeoutError):
                    await one.take("hot", quantity)
                assert time.monotonic() - begun < 20
            server.thaw()
            await servers.until(lambda: server.calls("cl.msettle") and left(blocking) == 100)


async def test_what_is_given_back_to_a_key_of_another_type_ends_nothing(client: Any, blocking: redis.Redis) -> None:
    leased = AsyncLeased(AsyncCell(client), RATE, least=20, most=20, hold=LONG)
    assert await leased.take("cold") and await leased.take("hot")
    await client.delete("cold")
    await client.hset("cold", "field", "value")
    await leased.give_back()
    assert left(blocking) in (98, 99)


async def test_a_caller_that_gives_up_takes_nothing(client: Any) -> None:
    leased = AsyncLeased(AsyncCell(client), Rate.per_day(100, burst=9), least=10, most=10, hold=LONG)
    for _ in range(5):
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(leased.take("hot"), 0)
    for _ in range(10):
        assert await leased.take("hot")


@pytest.mark.parametrize("way", WAYS)
async def test_a_server_that_is_gone_is_an_error_that_is_remembered_and_does_not_grow(way: str) -> None:
    async with of_a_server(way, Rate.per_second(1000), 10, 10) as (server, one):
        server.stop()
        # The pause doubles with each attempt; within it, no attempt is made.
        deadline, lengths = time.monotonic() + 60, set[int]()
        for _ in range(300):
            with pytest.raises((redis.ConnectionError, asyncio.TimeoutError)) as caught:
                await one.take("hot")
            lengths.add(len(traceback.extract_tb(caught.value.__traceback__)))
        assert time.monotonic() < deadline and max(lengths) < 50


async def test_a_key_of_another_type_is_an_error(client: Any) -> None:
    await client.hset("hot", "field", "value")
    leased = AsyncLeased(AsyncCell(client), RATE, least=1, most=10, hold=LONG)
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        await leased.take("hot")


def test_threads_are_served_in_order(server: servers.Server, blocking: redis.Redis) -> None:
    """The server is frozen until all of them wait."""
    leased = Leased(Cell(blocking), Rate.per_day(100, burst=9), least=10, most=10, hold=LONG)
    calls, shares = list[Any](), leased._shares
    server.freeze()
    for place in range(10):
        calls.append(THREADS.submit(leased.take, "hot"))
        servers.wait_until(lambda place=place: "hot" in shares and len(shares["hot"].waiting) == place + 1)
    order: list[int] = []
    for place, call in enumerate(shares["hot"].waiting):
        call.ticket.add_done_callback(lambda _, place=place: order.append(place))
    server.thaw()
    assert all(call.result(30) for call in calls) and order == list(range(10))


def test_threads_are_told_of_a_server_that_does_not_answer() -> None:
    """The client has no timeout of its own: no thread waits much longer than half a second."""
    with servers.running() as server:
        client = redis.Redis(port=server.port)
        assert Cell(client).throttle("other", RATE)
        leased = Leased(Cell(client), Rate.per_second(1000), least=10, most=10, hold=LONG)
        server.freeze()
        for call in [THREADS.submit(leased.take, "hot") for _ in range(20)]:
            with pytest.raises(TimeoutError):
                call.result(30)
        server.thaw()

        def admitted() -> bool:
            try:
                return bool(leased.take("hot"))
            except TimeoutError:
                return False

        servers.wait_until(admitted)


def test_threads_ask_for_many_keys_at_once(server: servers.Server, blocking: redis.Redis) -> None:
    leased = Leased(Cell(blocking), RATE, least=1, most=10, hold=LONG)
    server.freeze()
    calls = [THREADS.submit(leased.take, str(key)) for key in range(40)]
    servers.wait_until(lambda: leased._workers._threads == 40)
    server.thaw()
    assert all(call.result(30) for call in calls)


def test_a_call_that_was_given_up_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redis_cell.leased._WORKERS", 1)
    with servers.running() as server:
        client = redis.Redis(port=server.port, socket_timeout=PATIENCE)
        leased = Leased(Cell(client), RATE, least=10, most=20, hold=LONG, keys=5)
        server.freeze()
        # Five keys whose batch is requested, one that is beyond `keys`, and a quantity that is above `most`.
        calls = [THREADS.submit(leased.take, str(key)) for key in range(6)]
        servers.wait_until(lambda: len(leased._shares) == 5)
        calls.append(THREADS.submit(leased.take, "0", 21))
        for call in calls:
            with pytest.raises(TimeoutError):
                call.result(30)
        server.thaw()
        servers.wait_until(lambda: not leased._workers._work and leased._workers._idle == 1)
        # Only the call that was under way has reached the server.
        assert server.calls("cl.throttle") == 1


def test_a_child_of_a_fork_begins_with_nothing(blocking: Any) -> None:
    leased = Leased(Cell(blocking), RATE, least=20, most=20, hold=LONG)
    assert leased.take("hot")
    # Nothing is held, the lock is free, and its threads run.
    assert servers.in_child(lambda: leased.keys_in_use == 0 and leased.take("hot"))
    assert left(blocking) == 60
    assert leased.keys_in_use == 1


def test_a_call_does_not_pass_those_that_wait(server: servers.Server, blocking: redis.Redis) -> None:
    leased = Leased(Cell(blocking), RATE, least=10, most=20, hold=LONG)
    assert leased.take("hot")
    waiting, calls = leased._shares["hot"].waiting, list[Any]()
    server.freeze()
    # Nine units are there, enough for the second call and not for the first.
    for place, quantity in enumerate((15, 1)):
        calls.append(THREADS.submit(leased.take, "hot", quantity))
        servers.wait_until(lambda place=place: len(waiting) == place + 1)
    server.thaw()
    assert all(call.result(30) for call in calls)
