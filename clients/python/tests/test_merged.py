"""Merged calls on a real server: few calls, the answers of calls of their own, and callers that give up."""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.retry import Retry

import servers
from conftest import PATIENCE
from redis_cell import (
    Admitted,
    Answer,
    AsyncCell,
    AsyncGuard,
    AsyncMerged,
    Bucket,
    Cell,
    FailClosed,
    Fixed,
    Funnel,
    Guard,
    Hold,
    Lease,
    Log,
    Merged,
    Rate,
    Refused,
    RefusedForever,
    Spill,
    Take,
    Together,
    Window,
)
from redis_cell.merged import Grants, tail
from redis_cell.merged import _Caller as Caller
from redis_cell.merged import _Mix as Mix
from redis_cell.wire import mtake

RATE = Rate.per_day(100)


@pytest.fixture
def merged(client: redis.asyncio.Redis) -> AsyncMerged:
    return AsyncMerged(client)


@pytest.fixture
def threaded(blocking: redis.Redis) -> Merged:
    return Merged(blocking)


def close(one: float, other: float) -> bool:
    return abs(one - other) < 60


def same(one: Answer, other: Answer) -> bool:
    """Whether two answers, of which one is a little older, are the same. Limits of these tests are per day."""
    return (
        type(one) is type(other)
        and (one.limit, one.remaining) == (other.limit, other.remaining)
        and getattr(one, "taken", 0) == getattr(other, "taken", 0)
        and close(one.reset_after, other.reset_after)
        and close(one.retry_after or 0, other.retry_after or 0)
    )


def test_a_row_is_divided_where_one_call_would_leave_a_unit() -> None:
    def taken(row: list[int], available: int) -> int:
        total = 0
        for quantity in row:
            total += quantity if total + quantity <= available else 0
        return total

    def complete(row: list[int]) -> bool:
        return all(taken(row, available) == min(sum(row), available) for available in range(sum(row) + 2))

    chance = random.Random(43)
    for _ in range(2000):
        row = [chance.choice((1, 1, 1, 2, 3, chance.randint(1, 20))) for _ in range(chance.randint(1, 9))]
        ends = [length for length in range(len(row) + 1) if complete(row[len(row) - length :])]
        assert tail(row) == max(1, ends[-1]), row


def test_the_arithmetic_is_that_of_the_core() -> None:
    # The example of core/src/merged.rs, and clients that wait.
    rate = Rate(1, per=1, burst=9)
    grants = Grants(rate, [0, 10, 0, -1, 10_000_000, 2])
    first, second, third = (grants.next(1) for _ in range(3))
    assert first == Admitted(limit=10, remaining=1, reset_after=9, taken=1)
    assert second == Admitted(limit=10, remaining=0, reset_after=10, taken=1)
    assert third == Refused(limit=10, remaining=0, reset_after=10, retry_after=1)
    grants = Grants(rate, [1, 10, 0, 7_000_000, 3_000_000, 0])
    assert [grants.next(quantity).retry_after for quantity in (1, 3, 1)] == [7, 9, 7]
    # A third of a second is rounded up to whole microseconds.
    grants = Grants(Rate(3, per=1), [0, 3, 1, -1, 666_667, 2])
    assert [grants.next(1).reset_after for _ in range(2)] == [0.333334, 0.666667]


class Line:
    """The callers of a mix, with the functions of `Line` in core/src/merged.rs."""

    def __init__(self, *numbers: int) -> None:
        def limit(kind: int, most: int, count: int, period: int) -> Any:
            per = period / 1_000_000
            return Rate(count, per=per, at_once=most) if kind else Fixed(most, per=per)

        limits = [limit(*numbers[at : at + 4]) for at in range(0, len(numbers), 4)]
        self.name = tuple((f"{{m}}:{at}", limit) for at, limit in enumerate(limits))
        self.mix: Mix[Any] = Mix(self.name)
        self.callers: dict[int, Caller[Any]] = {}
        self.part: list[Caller[Any]] = []

    def push(self, number: int, *quantities: int) -> str:
        takes = [Take(key, limit, quantity) for (key, limit), quantity in zip(self.name, quantities, strict=True)]
        self.callers[number] = Caller(mtake(*takes), None, concurrent.futures.Future())
        self.mix.waiting.append(self.callers[number])
        return ""

    def decided(self, told: list[tuple[Any, Any]]) -> str:
        def five(row: Answer) -> str:
            wait = -1 if row.retry_after is None else round(row.retry_after * 1_000_000)
            return f"{int(not row)} {row.limit} {row.remaining} {wait} {round(row.reset_after * 1_000_000)}"

        rows = {caller: answer for caller, answer in told if isinstance(answer, Together)}
        found = [(number, rows[caller]) for number, caller in self.callers.items() if caller in rows]
        return ", ".join(f"{number}: {' '.join(map(five, answer.each.values()))}" for number, answer in found)

    def next(self) -> str:
        before = [caller for caller in self.callers.values() if not caller.ticket.done()]
        parts = self.mix.begin()
        shared = self.mix.call(parts[0]) if parts else None
        self.part = parts[0] if shared else []
        sums = shared.mix if shared else ()
        alone = [number for number, caller in self.callers.items() if [caller] in parts[bool(shared) :]]
        told = [(caller, caller.ticket.result()) for caller in before if caller.ticket.done()]
        return f"{' '.join(str(take.quantity) for take in sums)}; {' '.join(map(str, alone))}; {self.decided(told)}"

    def answered(self, admitted: int, *numbers: int) -> str:
        rows = [[0, 0, 0, -1, 0]] if admitted else [[1, 0, 0, 0, 0]]
        for at, (_, limit) in enumerate(self.name):
            remaining, wait, reset = numbers[3 * at : 3 * at + 3]
            rows.append([int(wait >= 0), limit.limit, remaining, wait, reset])
        shared = self.mix.call(self.part)
        assert shared is not None
        return self.decided(shared.read(rows))

    def failed(self) -> str:
        failed = self.mix.failed(self.part)
        return " ".join(str(number) for number, caller in self.callers.items() if caller in failed)

    def leave(self) -> str:
        gone = [caller for number, caller in self.callers.items() if number % 3 == 0]
        self.mix.waiting = [caller for caller in self.mix.waiting if caller not in gone]
        return str(not self.mix.waiting).lower()


def test_the_callers_of_a_mix_are_decided_as_in_the_core() -> None:
    line = Line()
    for name, arguments, result in servers.transcript("line"):
        numbers = list(map(int, arguments.split()))
        if name == "new":
            line = Line(*numbers)
        else:
            assert getattr(line, name)(*numbers) == result, (name, arguments)


async def test_calls_that_come_meanwhile_share_a_call(server: servers.Server, merged: AsyncMerged) -> None:
    answers = await asyncio.gather(*(merged.throttle("hot", RATE) for _ in range(110)))
    assert server.calls("cl.throttle") == 2
    for place, answer in enumerate(answers):
        left = max(0, 99 - place)
        if place < 100:
            assert isinstance(answer, Admitted) and (answer.remaining, answer.taken) == (left, 1)
        else:
            assert isinstance(answer, Refused) and close(answer.retry_after, 864)
        assert close(answer.reset_after, 864 * (100 - left))
    # A caller that is alone sends its own call.
    assert not await merged.throttle("hot", RATE)
    assert server.calls("cl.throttle") == 3
    assert merged._rows == {}


ROWS = [[3, 1, 1, 2, 1, 1, 1, 1], [2, 4, 1, 2, 1, 1, 2, 1], [5, 1, 7, 9, 1, 5], [9, 9, 1, 1]]


@pytest.mark.parametrize("row", ROWS, ids=str)
async def test_every_caller_gets_the_answer_of_its_own_call(
    server: servers.Server, merged: AsyncMerged, row: list[int]
) -> None:
    direct: Any = AsyncCell(merged._link.client)
    day = 86400
    limits = {
        "throttle": Rate.per_day(9),
        "bucket": Bucket(9, count=9, per=day),
        "funnel": Funnel(9, count=9, per=day),
        "fixed": Fixed(9, per=day),
        "window": Window(9, per=day),
        "log": Log(9, per=day),
    }
    for name, limit in limits.items():
        take: Any = getattr(merged, name)
        # Windows and logs are not merged. On connections of their own, their calls may come in any order.
        if name in ("window", "log"):
            answers = [await take(f"merged:{name}", limit, quantity) for quantity in row]
        else:
            answers = await asyncio.gather(*(take(f"merged:{name}", limit, quantity) for quantity in row))
        own = [await getattr(direct, name)(f"direct:{name}", limit, quantity) for quantity in row]
        if row == ROWS[0]:
            assert server.calls(f"cl.{name}") == len(row) + (2 if name not in ("window", "log") else len(row))
        if row == ROWS[2] and name not in ("window", "log"):
            # Several calls at the same time, in any order: the sum of what they take is what can be had.
            assert sum(answer.taken for answer in answers if isinstance(answer, Admitted)) <= 9
            continue
        assert all(itertools.starmap(same, zip(answers, own, strict=True))), (name, answers, own)


async def test_merged_calls_of_many_keys_share_a_write(server: servers.Server, client: redis.asyncio.Redis) -> None:
    merged = AsyncMerged(client, pipelined=True)
    answers = await asyncio.gather(*(merged.throttle(f"k{n % 4}", RATE) for n in range(80)))
    assert [answer.remaining for answer in answers] == [99 - n // 4 for n in range(80)]
    assert server.calls("cl.throttle") == 8


async def test_what_cannot_be_merged_is_sent_directly(server: servers.Server, merged: AsyncMerged) -> None:
    totals = await asyncio.gather(*(merged.fixed("total", Fixed.total(9)) for _ in range(12)))
    assert server.calls("cl.fixed") == 12
    assert sorted(answer.remaining for answer in totals) == [0, 0, 0, *range(9)]
    answers = await asyncio.gather(
        merged.throttle("k", RATE),
        merged.throttle("k", RATE, 101),
        merged.throttle("k", RATE, 0),
        merged.throttle("k", RATE, 5, saturate=True),
        merged.peek("k", RATE),
    )
    assert server.calls("cl.throttle") == 4
    assert [answer.admitted for answer in answers] == [True, False, True, True, True]
    assert (await merged.peek("k", RATE)).remaining == 94


DAY = 86400


def mix(units: int = 1, most: int = 20) -> list[Take]:
    """A mix of limiters that callers share."""
    limits = (Rate.per_day(100), 1), (Bucket(100, count=100, per=DAY), 1), (Fixed(most, per=DAY), units)
    return [Take(f"{{m}}:{type(limit).__name__}", limit, quantity) for limit, quantity in limits]


def same_rows(one: Together[Answer], other: Together[Answer]) -> bool:
    return list(one) == list(other) and same(one.combined, other.combined) and all(same(one[k], other[k]) for k in one)


@pytest.mark.parametrize("units", [[1] * 40, [3, 1, 1, 9, 2, 20, 1, 1, 1, 5, 1]], ids=str)
async def test_every_caller_of_a_mix_gets_the_answer_of_its_own_call(
    server: servers.Server, merged: AsyncMerged, units: list[int]
) -> None:
    answers = await asyncio.gather(*(merged.mtake(*mix(quantity)) for quantity in units))
    assert server.calls("cl.mtake") <= 4
    server.empty()
    direct = AsyncCell(merged._link.client)
    for answer, quantity in zip(answers, units, strict=True):
        own = await direct.mtake(*mix(quantity))
        assert same_rows(answer, own), (quantity, answer, own)
    assert merged._rows == {}


async def test_what_cannot_be_merged_of_a_mix_goes_by_itself(server: servers.Server, merged: AsyncMerged) -> None:
    more: list[tuple[Any, dict[str, Any]]] = [
        (Take("{m}:place", Lease(9, lease=DAY, holder="holder")), {}),
        (Take("{m}:shadow", RATE, shadow=True), {}),
        (Take("{m}:log", Log(9, per=DAY)), {}),
        (Spill(Take("{m}:first", Fixed(9, per=DAY)), Take("{m}:second", Fixed(9, per=DAY))), {}),
        (Take("{m}:look", RATE, 0), {}),
        (Take("{m}:held", RATE), {"hold": Hold("{m}:holds", "owner", DAY)}),
    ]
    for nth, (take, options) in enumerate(more, 1):
        answers = await asyncio.gather(*(merged.mtake(*mix(1, 50), take, **options) for _ in range(6)))
        assert all(answers) and server.calls("cl.mtake") == 6 * nth, take
    answers = await asyncio.gather(*(merged.mtake(*mix(units, 50)) for units in (1, 1, 51, 1)))
    assert [answer.combined.admitted for answer in answers] == [True, True, False, True]
    assert isinstance(answers[2].combined, RefusedForever)
    with server.admin as admin:
        admin.delete("{m}:Fixed")
        admin.hset("{m}:Fixed", "field", "value")
    errors = await asyncio.gather(*(merged.mtake(*mix(1, 50)) for _ in range(6)), return_exceptions=True)
    assert all(isinstance(error, redis.ResponseError) and "WRONGTYPE" in str(error) for error in errors)


async def a_call(merged: AsyncMerged, is_mix: bool) -> Any:
    return await (merged.mtake(*mix()) if is_mix else merged.throttle("{m}:Rate", RATE))


async def taken(server: servers.Server, units: int, month: int) -> None:
    """Waits until as many units are taken."""
    with server.admin as admin:
        rate = 100 - units
        await servers.until(lambda: Cell(admin).peek("{m}:Rate", RATE).remaining == rate)
        await servers.until(lambda: int(admin.get("{m}:Fixed") or 0) == month)


@pytest.mark.parametrize("is_mix", [False, True])
async def test_a_call_that_is_cancelled_takes_nothing(
    server: servers.Server, merged: AsyncMerged, is_mix: bool
) -> None:
    for turns, gone in itertools.product(range(1, 40, 3), range(4)):
        server.empty()
        tasks = [asyncio.create_task(a_call(merged, is_mix)) for _ in range(4)]
        for _ in range(turns):
            await asyncio.sleep(0)
        tasks[gone].cancel()
        answers = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), PATIENCE)
        admitted = [answer for answer in answers if not isinstance(answer, BaseException)]
        assert len(admitted) >= 3 and all(admitted)
        await taken(server, len(admitted), len(admitted) if is_mix else 0)


@pytest.mark.parametrize("is_mix", [False, True])
async def test_a_call_that_is_cancelled_before_it_is_sent_is_not_sent(
    server: servers.Server, merged: AsyncMerged, is_mix: bool
) -> None:
    tasks = [asyncio.create_task(a_call(merged, is_mix)) for _ in range(4)]
    await asyncio.sleep(0)
    tasks[2].cancel()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert [isinstance(answer, asyncio.CancelledError) for answer in answers] == [False, False, True, False]
    await taken(server, 3, 3 if is_mix else 0)
    assert not server.calls("cl.msettle")  # nothing had to be given back


@pytest.mark.parametrize("is_mix", [False, True])
async def test_a_call_that_is_cancelled_as_its_answer_comes_takes_nothing(
    server: servers.Server, merged: AsyncMerged, is_mix: bool
) -> None:
    tasks: list[asyncio.Task[Any]] = []

    async def first() -> None:
        # The answers of both calls behind it come in the same turn, and this one reads its own before.
        await a_call(merged, is_mix)
        tasks[2].cancel()

    tasks += map(asyncio.create_task, (a_call(merged, is_mix), first(), a_call(merged, is_mix)))
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(answers[2], asyncio.CancelledError)
    await taken(server, 2, 2 if is_mix else 0)


async def test_each_call_has_its_own_time_limit(server: servers.Server, merged: AsyncMerged) -> None:
    await merged.throttle("hot", RATE)
    server.freeze()
    tasks = [asyncio.create_task(asyncio.wait_for(merged.throttle("hot", RATE), 0.1 + 60 * n)) for n in range(3)]
    with pytest.raises(asyncio.TimeoutError):
        await tasks[0]
    assert not tasks[1].done()
    server.thaw()
    assert (await tasks[1]).admitted and (await tasks[2]).admitted


async def test_an_error_is_the_error_of_each_call(server: servers.Server, merged: AsyncMerged) -> None:
    with server.admin as admin:
        admin.hset("hot", "field", "value")
    answers = await asyncio.gather(*(merged.throttle("hot", RATE) for _ in range(4)), return_exceptions=True)
    assert all(isinstance(answer, redis.ResponseError) and "WRONGTYPE" in str(answer) for answer in answers)
    assert merged._rows == {}


async def test_a_guard_decides_for_each_call_of_a_row(server: servers.Server, merged: AsyncMerged) -> None:
    guard = AsyncGuard(merged, when_unavailable=FailClosed(), timeout=2)
    answers = await asyncio.gather(*(guard.throttle("hot", RATE) for _ in range(5)))
    assert [answer.remaining for answer in answers] == [99, 98, 97, 96, 95]
    server.freeze()
    answers = await asyncio.gather(*(guard.throttle("hot", RATE) for _ in range(5)))
    assert {answer.decided_by for answer in answers} == {"fail_closed"}
    server.thaw()


def in_threads(calls: list[Callable[[], Any]]) -> list[Any]:
    """Runs calls in threads of their own. Returns what each returns or raises."""
    with concurrent.futures.ThreadPoolExecutor(len(calls)) as pool:
        return [future.exception() or future.result() for future in [pool.submit(call) for call in calls]]


def line_up(server: servers.Server, calls: list[Callable[[], Any]], merged: Merged) -> list[Any]:
    """Calls from threads, one behind the other: the server is frozen until all of them have called."""
    server.freeze()
    rows = merged._rows
    results: list[Any] = [None] * len(calls)

    def take(place: int) -> None:
        try:
            results[place] = calls[place]()
        except Exception as error:
            results[place] = error

    threads = [threading.Thread(target=take, args=(place,)) for place in range(len(calls))]
    try:
        for place, thread in enumerate(threads):
            thread.start()
            servers.wait_until(lambda place=place: len(rows) == 1 and len(next(iter(rows.values())).waiting) == place)
    finally:
        server.thaw()
    for thread in threads:
        thread.join()
    return results


def throttles(merged: Merged, quantities: list[int], limit: Rate = RATE, key: str = "hot") -> list[Callable[[], Any]]:
    return [lambda quantity=quantity: merged.throttle(key, limit, quantity) for quantity in quantities]


def test_threads_that_come_meanwhile_share_a_call(server: servers.Server, threaded: Merged) -> None:
    threaded.throttle("other", RATE)  # the pool has a connection
    answers = line_up(server, throttles(threaded, [1] * 12, Rate.per_day(10)), threaded)
    assert [answer.remaining for answer in answers] == [9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 0, 0]
    assert [answer.admitted for answer in answers] == [True] * 10 + [False] * 2
    assert server.calls("cl.throttle") == 3
    # Three calls of their own, and one for two single units.
    answers = line_up(server, throttles(threaded, [1, 30, 20, 10, 1, 1], key="mixed"), threaded)
    assert server.calls("cl.throttle") == 3 + 5
    assert all(answers) and threaded.peek("mixed", RATE).remaining == 37
    with server.admin as admin:
        admin.set("text", "no limiter")
    answers = line_up(server, throttles(threaded, [1] * 4, key="text"), threaded)
    assert all("this limiter" in str(answer) for answer in answers), answers
    assert threaded._rows == {}


@pytest.mark.parametrize("is_mix", [False, True])
def test_threads_of_several_clients_take_exactly_the_limits(
    server: servers.Server, blocking: redis.Redis, is_mix: bool
) -> None:
    limits = Rate.per_day(700), Fixed(600, per=DAY)

    def take(merged: Merged, units: int) -> list[int]:
        got, rate, fixed = [0, 0], Take("{m}:rate", limits[0], units), Take("{m}:fixed", limits[1])
        for _ in range(50):
            if merged.mtake(rate, fixed) if is_mix else merged.throttle(rate.key, limits[0], units):
                got = [got[0] + units, got[1] + is_mix]
        return got

    clients = [Merged(redis.Redis(port=server.port, socket_timeout=PATIENCE)) for _ in range(2)]
    calls = [lambda merged=merged, units=units: take(merged, units) for merged in clients for units in [3] + [1] * 9]
    got = in_threads(calls)
    units, places = (sum(each[at] for each in got) for at in (0, 1))
    left = Cell(blocking).peek("{m}:rate", limits[0]).remaining
    assert (700 - left, int(blocking.get("{m}:fixed") or 0)) == (units, places)
    assert units == 700 or places == 600
    assert server.calls("cl.mtake") < 800 if is_mix else server.calls("cl.throttle") < 1000
    assert all(merged._rows == {} for merged in clients)


def test_a_guard_of_threads_decides_for_each_call(server: servers.Server) -> None:
    merged = Merged(redis.Redis(port=server.port, socket_timeout=2, retry=Retry(NoBackoff(), 0)))
    guard = Guard(merged, when_unavailable=FailClosed())
    assert guard.throttle("hot", RATE).decided_by == "server"
    server.freeze()
    answers = in_threads([lambda: guard.throttle("hot", RATE)] * 5)
    server.thaw()
    assert {answer.decided_by for answer in answers} == {"fail_closed"}


class Gates:
    """Lets each call of a Merged wait before it is sent, and knows how many have come."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, merged: Merged, *opens: Callable[[], object]) -> None:
        self.came, self.opens = 0, opens
        run = Cell.run

        def gated(cell: Cell, call: Any, ready: Any = None) -> Any:
            if cell is merged and self.came < len(self.opens):
                self.came += 1
                self.opens[self.came - 1]()
            return run(cell, call, ready)

        monkeypatch.setattr(Cell, "run", gated)

    def wait(self, came: int) -> None:
        servers.wait_until(lambda: self.came >= came)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """A shell that runs the tests in the background lets them ignore the signal."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt() -> None:
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


@pytest.mark.usefixtures("interruptible")
def test_a_thread_that_is_interrupted_holds_up_nobody(
    threaded: Merged, blocking: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The main thread is interrupted while another one sends the call for both, and that call is refused."""
    limit = Fixed.per_month(10)

    def take(cell: Cell, quantity: int) -> Any:
        return cell.mtake(Take("{k}a", limit, quantity), Take("{k}b", limit, quantity))

    first, second, gone = threading.Event(), threading.Event(), threading.Event()
    gates = Gates(monkeypatch, threaded, lambda: first.wait(PATIENCE), lambda: second.wait(PATIENCE))

    def script() -> None:
        servers.wait_until(lambda: len(row().waiting) == 2)
        first.set()
        gates.wait(2)
        interrupt()
        gone.wait(PATIENCE)
        take(Cell(blocking), 6)  # 3 are left: too few for five, and enough for the main thread
        second.set()

    with concurrent.futures.ThreadPoolExecutor() as threads:
        threads.submit(take, threaded, 1)
        gates.wait(1)
        row = lambda: next(iter(threaded._rows.values()))  # noqa: E731
        five = threads.submit(take, threaded, 5)
        servers.wait_until(lambda: row().waiting)
        done = threads.submit(script)
        with pytest.raises(KeyboardInterrupt):
            take(threaded, 1)
        gone.set()
        done.result(PATIENCE)
        assert not five.result(PATIENCE)
        assert threads.submit(take, threaded, 3).result(PATIENCE)
        assert not threaded._rows


@pytest.mark.usefixtures("interruptible")
def test_an_interruption_is_of_one_thread(threaded: Merged, monkeypatch: pytest.MonkeyPatch) -> None:
    """The main thread is interrupted while it sends the call for two."""
    first = threading.Event()

    def interrupted() -> None:
        interrupt()
        time.sleep(PATIENCE)

    gates = Gates(monkeypatch, threaded, lambda: first.wait(PATIENCE), interrupted)

    def other() -> Answer:
        servers.wait_until(lambda: row().waiting)
        caller = threads.submit(threaded.throttle, "k", RATE)
        servers.wait_until(lambda: len(row().waiting) == 2)
        first.set()
        return caller.result(PATIENCE)

    with concurrent.futures.ThreadPoolExecutor() as threads:
        threads.submit(threaded.throttle, "k", RATE)
        gates.wait(1)
        row = lambda: next(iter(threaded._rows.values()))  # noqa: E731
        told = threads.submit(other)
        with pytest.raises(KeyboardInterrupt):
            threaded.throttle("k", RATE)
        assert isinstance(told.exception(PATIENCE), InterruptedError)
        assert not threaded._rows


def test_another_event_loop_begins_without_callers(server: servers.Server, monkeypatch: pytest.MonkeyPatch) -> None:
    merged = AsyncMerged(redis.asyncio.Redis(port=server.port))
    run = AsyncCell.run

    async def never(*_: Any) -> Any:
        await asyncio.sleep(3600)

    async def begins() -> list[Any]:
        calls = [asyncio.ensure_future(merged.throttle("k", RATE)) for _ in range(2)]
        await asyncio.sleep(0)
        return calls

    monkeypatch.setattr(AsyncCell, "run", never)
    loop = asyncio.new_event_loop()
    calls = loop.run_until_complete(begins())
    loop.close()
    monkeypatch.setattr(AsyncCell, "run", run)
    assert asyncio.run(asyncio.wait_for(merged.throttle("k", RATE), PATIENCE)) and len(calls) == 2


def test_a_child_process_begins_without_callers(server: servers.Server, threaded: Merged) -> None:
    server.freeze()
    thread = threading.Thread(target=lambda: threaded.throttle("hot", RATE))
    thread.start()
    servers.wait_until(lambda: threaded._rows)
    time.sleep(0.2)  # the thread waits for its reply by now, and has no lock of the client's pool
    thaw = threading.Timer(0.2, server.thaw)
    thaw.start()
    assert servers.in_child(lambda: threaded.throttle("hot", RATE))
    thread.join()
