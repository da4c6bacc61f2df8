"""Leases of units on a real server: few calls, a limit that holds, and nothing left behind."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import math
import os
import time
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.retry import Retry

import redis_cell.leased as leased_module
import servers
from redis_cell import AsyncCell, AsyncLeased, Cell, Fixed, Leased, Rate, Verdict, Window

LONG = 3600.0
PATIENCE = 10.0
"""How long the tests wait for an answer, which is late on a busy machine, in seconds."""
RATE = Rate.per_day(100)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests in which the server answers."""
    monkeypatch.setattr(leased_module, "_TIMEOUT", PATIENCE)


@pytest.fixture
async def client(patient: None) -> AsyncIterator[redis.asyncio.Redis]:
    with servers.running() as server:
        client = redis.asyncio.Redis(port=server.port, decode_responses=True, socket_timeout=PATIENCE)
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


def pause(verdict: Verdict) -> float:
    """The pause after a batch that was not filled. The server refuses the call that follows."""
    wait = verdict.retry_after or 0
    return wait if wait < 1 else 0


async def test_a_batch_is_spent_without_calls_and_a_refusal_is_remembered(client: Any) -> None:
    leased = AsyncLeased(AsyncCell(client), RATE, least=10, most=40, hold=LONG)
    verdicts = []
    for _ in range(10_000):
        verdicts.append(await leased.take("hot"))
        await asyncio.sleep(pause(verdicts[-1]))
    assert sum(map(bool, verdicts)) == 100
    assert await remaining(client) == 0
    assert 800 < max(verdict.retry_after or 0 for verdict in verdicts) <= 864
    assert 3 <= await calls(client, "cl.throttle") <= 12


async def test_what_is_left_goes_back_when_the_hold_is_over(client: Any) -> None:
    rate = AsyncLeased(AsyncCell(client), RATE, least=20, most=20, hold=0.05)
    hour = AsyncLeased(AsyncCell(client), Fixed(100, per=3600), least=20, most=20, hold=0.05)
    day = AsyncLeased(AsyncCell(client), Window(100, per=86400), least=20, most=20, hold=0.05)
    assert await rate.take("hot", 3) and await day.take("day", 3)
    # The call opens the window, which is younger than the hold and the time in which an answer may come.
    assert await hour.take("hour", 3)
    assert await client.get("hour") == "20"

    async def back() -> bool:
        # One unit may have leaked by the time that the server hears of it.
        left = (await AsyncCell(client).window("day", Window(100, per=86400), 0)).remaining
        return await remaining(client) in (96, 97) and await client.get("hour") == "3" and left == 97

    async def forgotten() -> bool:
        return not rate.keys_in_use and not hour.keys_in_use and not day.keys_in_use

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


async def test_more_than_the_limit_is_refused_forever(client: Any) -> None:
    for limit in (Rate.per_day(5), Fixed.per_day(5), Window(5, per=86400)):
        leased = AsyncLeased(AsyncCell(client), limit, least=1, most=100, hold=LONG)
        for _ in range(3):
            never = await leased.take(limit.kind, 6)
            assert (never.admitted, never.retry_after) == (False, None)
        assert leased.keys_in_use == 0
        assert await leased.take(limit.kind, 5)


async def test_a_server_that_does_not_answer_ends_the_giving_back_and_the_direct_calls() -> None:
    """Each of these calls waits for half a second at most, and giving back for one of them."""
    with servers.running() as server:
        client = redis.asyncio.Redis(port=server.port)
        leased = AsyncLeased(AsyncCell(client), RATE, least=5, most=10, hold=LONG, keys=20)
        for key in range(20):
            assert await leased.take(str(key))
        server.freeze()
        started = time.monotonic()
        await leased.give_back()
        for key, quantity in (("other", 1), ("0", 11)):
            with pytest.raises(asyncio.TimeoutError):
                await leased.take(key, quantity)
        assert time.monotonic() - started < 5
        server.thaw()
        await getattr(client, "aclose", client.close)()


async def test_what_is_given_back_to_a_key_of_another_type_ends_nothing(client: Any) -> None:
    leased = AsyncLeased(AsyncCell(client), RATE, least=20, most=20, hold=LONG)
    assert await leased.take("cold") and await leased.take("hot")
    await client.delete("cold")
    await client.hset("cold", "field", "value")
    await leased.give_back()
    assert await remaining(client) in (98, 99)


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
    """The bound of docs/scaling.md holds, and the server is called for a twentieth of the requests at most."""
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


class Threads:
    """The same with threads: each call of `run` starts one, and `results` waits for all."""

    def __init__(self) -> None:
        self.pool = concurrent.futures.ThreadPoolExecutor(64)
        self.futures: list[concurrent.futures.Future[Any]] = []

    def run(self, work: Callable[[], Any]) -> None:
        self.futures.append(self.pool.submit(work))

    def results(self) -> list[Any]:
        return [future.result(30) for future in self.futures]


@pytest.fixture
def blocking(patient: None) -> Iterator[redis.Redis]:
    with servers.running() as server:
        yield redis.Redis(port=server.port, decode_responses=True, socket_timeout=PATIENCE)


def left(client: Any, key: str = "hot") -> int:
    return Cell(client).peek(key, RATE).remaining


def called(client: Any, command: str) -> int:
    return int(client.info("commandstats").get(f"cmdstat_{command}", {"calls": 0})["calls"])


def test_threads_share_a_batch_and_a_refusal_is_remembered(blocking: Any) -> None:
    leased, threads = Leased(Cell(blocking), RATE, least=10, most=40, hold=LONG), Threads()

    def hammer() -> list[Verdict]:
        verdicts = []
        for _ in range(500):
            verdicts.append(leased.take("hot"))
            time.sleep(pause(verdicts[-1]))
        return verdicts

    for _ in range(20):
        threads.run(hammer)
    verdicts = [verdict for part in threads.results() for verdict in part]
    assert sum(map(bool, verdicts)) == 100
    assert left(blocking) == 0
    assert 800 < max(verdict.retry_after or 0 for verdict in verdicts) <= 864
    assert 3 <= called(blocking, "cl.throttle") <= 12


def test_what_threads_leave_goes_back_when_the_hold_is_over(blocking: Any) -> None:
    rate = Leased(Cell(blocking), RATE, least=20, most=20, hold=0.05)
    hour = Leased(Cell(blocking), Fixed(100, per=3600), least=20, most=20, hold=0.05)
    assert rate.take("hot", 3)
    # The call opens the window, which is younger than the hold and the time in which an answer may come.
    assert hour.take("hour", 3)
    # One unit may have leaked by the time that the server hears of it.
    servers.wait_until(lambda: left(blocking) in (96, 97) and blocking.get("hour") == "3")
    servers.wait_until(lambda: not rate.keys_in_use and not hour.keys_in_use)
    # No thread waits for the end of a hold any more, and the next key starts one again.
    servers.wait_until(lambda: not rate._tended and not hour._tended)
    assert rate.take("hot", 3)
    servers.wait_until(lambda: not rate.keys_in_use)


def test_a_thread_gives_units_back_before_the_process_ends(blocking: Any) -> None:
    leased = Leased(Cell(blocking), RATE, least=20, most=20, hold=LONG)
    assert leased.take("hot", 3)
    assert left(blocking) == 80
    leased.give_back()
    assert left(blocking) in (96, 97)


def test_threads_take_directly_what_cannot_be_held(blocking: Any) -> None:
    leased = Leased(Cell(blocking), RATE, least=1, most=10, hold=LONG, keys=1)
    assert leased.take("hot", 11)
    assert leased.keys_in_use == 0
    never = leased.take("hot", 101)
    assert (never.admitted, never.retry_after) == (False, None)
    assert leased.take("hot")
    for _ in range(5):
        assert leased.take("other")
    assert leased.keys_in_use == 1
    assert left(blocking, "other") == 95


def test_threads_are_served_in_order(blocking: Any) -> None:
    """The server is frozen until all of them wait."""
    with servers.running() as server:
        client = redis.Redis(port=server.port)
        client.ping()
        leased = Leased(Cell(client), Rate.per_day(100, burst=9), least=10, most=10, hold=LONG)
        threads = Threads()
        waiting = leased._shares
        server.freeze()
        for place in range(10):
            threads.run(lambda: leased.take("hot"))
            servers.wait_until(lambda place=place: "hot" in waiting and len(waiting["hot"].waiting) == place + 1)
        tickets = [call.ticket for call in waiting["hot"].waiting]
        order: list[int] = []
        for place, ticket in enumerate(tickets):
            ticket.add_done_callback(lambda _, place=place: order.append(place))
        server.thaw()
        threads.results()
        assert order == list(range(10))


def test_threads_are_told_of_a_server_that_does_not_answer() -> None:
    """The client has no timeout of its own: no thread waits much longer than half a second."""
    with servers.running() as server:
        client = redis.Redis(port=server.port)
        assert Cell(client).throttle("other", RATE)
        leased, threads = Leased(Cell(client), Rate.per_second(1000), least=10, most=10, hold=LONG), Threads()
        server.freeze()
        for _ in range(20):
            threads.run(lambda: leased.take("hot"))
        for future in threads.futures:
            with pytest.raises(TimeoutError):
                future.result(30)
        server.thaw()

        def admitted() -> bool:
            try:
                return bool(leased.take("hot"))
            except TimeoutError:
                return False

        servers.wait_until(admitted)


def test_threads_ask_for_many_keys_at_once() -> None:
    with servers.running() as server:
        client = redis.Redis(port=server.port, socket_timeout=PATIENCE)
        leased, threads = Leased(Cell(client), RATE, least=1, most=10, hold=LONG), Threads()
        server.freeze()
        for key in range(40):
            threads.run(lambda key=key: leased.take(str(key)))
        servers.wait_until(lambda: leased._workers._threads == 40)
        server.thaw()


def test_a_call_that_was_given_up_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redis_cell.leased._WORKERS", 1)
    with servers.running() as server:
        client, admin = (redis.Redis(port=server.port, socket_timeout=PATIENCE) for _ in range(2))
        leased, threads = Leased(Cell(client), RATE, least=10, most=20, hold=LONG, keys=5), Threads()
        server.freeze()
        # Five keys whose batch is requested, one that is beyond `keys`, and a quantity that is above `most`.
        for key in range(6):
            threads.run(lambda key=key: leased.take(str(key)))
        servers.wait_until(lambda: len(leased._shares) == 5)
        threads.run(lambda: leased.take("0", 21))
        for future in threads.futures:
            with pytest.raises(TimeoutError):
                future.result(30)
        server.thaw()
        servers.wait_until(lambda: not leased._workers._work and leased._workers._idle == 1)
        # Only the call that was under way has reached the server.
        assert called(admin, "cl.throttle") == 1


def test_threads_are_refused_forever_more_than_the_limit(blocking: Any) -> None:
    for limit in (Rate.per_day(5), Fixed.per_day(5)):
        leased = Leased(Cell(blocking), limit, least=1, most=100, hold=LONG)
        for _ in range(3):
            never = leased.take(limit.kind, 6)
            assert (never.admitted, never.retry_after) == (False, None)
        assert leased.keys_in_use == 0
        assert leased.take(limit.kind, 5)


def test_threads_wait_for_one_answer_when_they_give_back() -> None:
    with servers.running() as server:
        client = redis.Redis(port=server.port, socket_timeout=0.5, retry=Retry(NoBackoff(), 0))
        leased = Leased(Cell(client), RATE, least=5, most=10, hold=LONG)
        for key in range(20):
            assert leased.take(str(key))
        server.freeze()
        started = time.monotonic()
        leased.give_back()
        assert time.monotonic() - started < 5
        server.thaw()


def test_threads_wait_for_direct_calls_as_for_batches() -> None:
    with servers.running() as server:
        client = redis.Redis(port=server.port, socket_timeout=PATIENCE)
        leased = Leased(Cell(client), RATE, least=5, most=10, hold=LONG, keys=1)
        assert leased.take("hot")
        server.freeze()
        for key, quantity in (("other", 1), ("hot", 11)):
            with pytest.raises(TimeoutError, match="no answer within"):
                leased.take(key, quantity)
        server.thaw()


def test_the_error_of_a_pause_does_not_grow() -> None:
    with servers.running() as server:
        client = redis.Redis(port=server.port, retry=Retry(NoBackoff(), 0))
        leased = Leased(Cell(client), RATE, least=1, most=10, hold=LONG)
        server.stop()
        lengths = set[int]()
        for _ in range(300):
            with pytest.raises(redis.ConnectionError) as caught:
                leased.take("hot")
            lengths.add(len(traceback.extract_tb(caught.value.__traceback__)))
        assert max(lengths) < 50


def test_a_child_of_a_fork_begins_with_nothing(blocking: Any) -> None:
    leased = Leased(Cell(blocking), RATE, least=20, most=20, hold=LONG)
    assert leased.take("hot")
    child = os.fork()
    if child == 0:
        status = 1
        with contextlib.suppress(BaseException):
            # Nothing is held, the lock is free, and its threads run.
            status = 0 if leased.keys_in_use == 0 and leased.take("hot") else 2
        os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert left(blocking) == 60
    assert leased.keys_in_use == 1


def test_bad_numbers_are_errors_for_threads_too() -> None:
    with pytest.raises(ValueError):
        Leased(Cell(redis.Redis()), RATE, least=0, most=10, hold=1)
    with pytest.raises(ValueError):
        Leased(Cell(redis.Redis()), RATE, least=1, most=10, hold=1).take("hot", -1)


def test_many_threads_of_a_hot_key_stay_within_the_bound(blocking: Any) -> None:
    rate, hold, most, count, requests = Rate.per_second(2000, burst=99), 0.3, 50, 20, 100_000
    leased = [Leased(Cell(blocking), rate, least=5, most=most, hold=hold) for _ in range(count)]
    threads = Threads()
    started = time.monotonic()
    for one in leased:
        threads.run(lambda one=one: sum(bool(one.take("hot")) for _ in range(requests // count)))
    admitted = sum(threads.results())
    elapsed = time.monotonic() - started
    assert 100 <= admitted <= 100 + elapsed * 2000 + min(hold * 2000, count * most)
    assert called(blocking, "cl.throttle") * 20 <= requests


def test_a_call_does_not_pass_those_that_wait() -> None:
    with servers.running() as server:
        client = redis.Redis(port=server.port)
        leased, threads = Leased(Cell(client), RATE, least=10, most=20, hold=LONG), Threads()
        assert leased.take("hot")
        waiting = leased._shares["hot"].waiting
        server.freeze()
        # Nine units are there, enough for the second call and not for the first.
        threads.run(lambda: leased.take("hot", 15))
        servers.wait_until(lambda: len(waiting) == 1)
        threads.run(lambda: leased.take("hot"))
        servers.wait_until(lambda: len(waiting) == 2)
        server.thaw()
        assert all(threads.results())
