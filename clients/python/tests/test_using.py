"""The interface for applications: decorators, places, waits, errors in place of answers, pipelines, URLs, fakes."""

from __future__ import annotations

import asyncio
import inspect
import pickle
import pydoc
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.retry import Retry

import servers
from redis_cell import (
    AsyncCell,
    AsyncGuard,
    Booked,
    Bucket,
    Cell,
    FailClosed,
    FailOpen,
    Fixed,
    Funnel,
    Guard,
    Lease,
    Local,
    Log,
    Once,
    Rate,
    RateLimited,
    RefusedForever,
    Release,
    Renew,
    Settle,
    Take,
    Together,
    async_wait,
    limited,
    observe,
    wait,
    wire,
)
from redis_cell.testing import AsyncFakeCell, FakeCell
from redis_cell.waiting import _waiting
from test_unavailable import over_tls

HOURLY = Rate(1, per=3600, burst=0)


@pytest.fixture(params=["cell", "guard"])
def cell(blocking: redis.Redis, request: pytest.FixtureRequest) -> Any:
    if request.param == "guard":
        return Guard(Cell(blocking), when_unavailable=FailClosed())
    return Cell(blocking)


def test_refusals_are_raised_where_that_is_wanted(blocking: redis.Redis) -> None:
    cell = Cell(blocking)
    assert cell.throttle("a", HOURLY).or_raise().taken == 1
    with pytest.raises(RateLimited, match="try again in") as refusal:
        cell.throttle("a", HOURLY).or_raise()
    assert 3590 < (refusal.value.retry_after or 0) <= 3600
    with pytest.raises(RateLimited, match="no wait helps") as refusal:
        cell.throttle("b", HOURLY, 2).or_raise()
    assert isinstance(refusal.value.answer, RefusedForever)
    with pytest.raises(RateLimited) as refusal:
        cell.mtake(Take("b", HOURLY), Take("a", HOURLY)).or_raise()
    assert refusal.value.key == "a"


def test_a_function_with_a_limit(cell: Any) -> None:
    @limited(cell, lambda name, **_: f"greet:{name}", HOURLY)
    def greet(name: str, *, loud: bool = False) -> str:
        """Greets."""
        return name.upper() if loud else name

    assert greet("ann", loud=True) == "ANN"
    assert greet("bob") == "bob"
    with pytest.raises(RateLimited):
        greet("ann")
    assert greet.__doc__ == "Greets."
    assert list(inspect.signature(greet).parameters) == ["name", "loud"]


async def test_a_place_and_a_coroutine_function_with_a_limit(client: Any, blocking: redis.Redis) -> None:
    for cell in (AsyncCell(client), AsyncGuard(AsyncCell(client), when_unavailable=FailClosed())):
        async with cell.place("jobs", 1, lease=60) as place:
            assert await place.renew()
            with pytest.raises(RateLimited):
                async with cell.place("jobs", 1, lease=60):
                    raise AssertionError("there is one place")
        assert blocking.zcard("jobs") == 0

        @limited(cell, f"{type(cell).__name__}", HOURLY)
        async def greet() -> str:
            return "hello"

        assert await greet() == "hello"
        with pytest.raises(RateLimited):
            await greet()


def test_a_place_is_released_whatever_happens(cell: Any, blocking: redis.Redis) -> None:
    with cell.place("jobs", 1, lease=60) as place:
        assert place.renew()
        with pytest.raises(RateLimited), cell.place("jobs", 1, lease=60):
            raise AssertionError("there is one place")
    with pytest.raises(KeyError), cell.place("jobs", 1, lease=60):
        raise KeyError
    assert blocking.zcard("jobs") == 0


def test_mistakes_are_told_as_such(blocking: redis.Redis) -> None:
    cell, choice = Cell(blocking), FailOpen()
    other = AsyncCell(redis.asyncio.Redis())
    blocking.rpush("list", 1)
    mistakes: list[tuple[str, Any]] = [
        (r"'list'", lambda: cell.throttle("list", HOURLY)),
        (r"CL.MTAKE 'list' ...", lambda: cell.mtake(Take("list", HOURLY), Take("b", HOURLY))),
        (r"CL.THROTTLE 'list'", lambda: cell.pipeline(wire.throttle("list", HOURLY))),
        (r"FailOpen\(\), not the class", lambda: Guard(cell, when_unavailable=FailOpen)),  # type: ignore[arg-type]
        (r"not 'open'", lambda: Guard(cell, when_unavailable="open")),  # type: ignore[arg-type]
        (r"Guard\(Cell\(client\)", lambda: Guard(blocking, when_unavailable=choice)),  # type: ignore[arg-type]
        (r"use AsyncCell", lambda: Cell(redis.asyncio.Redis())),  # type: ignore[arg-type]
        (r"use Cell", lambda: AsyncCell(blocking)),  # type: ignore[arg-type]
        (r"a client of redis-py or valkey-py is needed", lambda: Cell("redis://localhost")),  # type: ignore[arg-type]
        (r"use AsyncGuard", lambda: Guard(other, when_unavailable=choice)),  # type: ignore[arg-type]
        (r"use Guard", lambda: AsyncGuard(cell, when_unavailable=choice)),  # type: ignore[arg-type]
        (r"len needs a Cell or a Guard, not AsyncCell", lambda: limited(other, "k", HOURLY)(len)),
        (r"not Redis", lambda: limited(blocking, "k", HOURLY)(len)),  # type: ignore[arg-type]
        (r"'function'", lambda: Cell(blocking, backend="function")),  # type: ignore[arg-type]
        (r"'abc'", lambda: Cell.from_url("redis://localhost/abc")),
        (r"'http'", lambda: AsyncCell.from_url("http://localhost")),
    ]
    for text, mistake in mistakes:
        with pytest.raises((TypeError, ValueError, redis.ResponseError), match=text):
            mistake()


def test_a_server_without_the_module_is_told_as_such() -> None:
    with servers.running(module=False) as bare, redis.Redis(port=bare.port) as client:
        cell = Cell(client)
        guard = Guard(cell, when_unavailable=FailOpen())
        calls: list[Any] = [
            lambda: cell.throttle("k", HOURLY),
            lambda: cell.pipeline(wire.throttle("k", HOURLY)),
            lambda: cell.top(),
            lambda: guard.mtake(Take("k", HOURLY)),
            lambda: wait(cell, Take("k", HOURLY), timeout=1),
        ]
        for call in calls:
            with pytest.raises(
                redis.ResponseError, match=r"^the server has not loaded redis-cell, which CL\.\w+ needs$"
            ):
                call()
        # Sentinel's clients ask for the primary first.
        with pytest.raises(redis.ResponseError, match=r"unknown command .SENTINEL"):
            Cell.from_url(f"redis+sentinel://127.0.0.1:{bare.port}/main").throttle("k", HOURLY)


def test_the_first_errors_are_those_of_the_page(server: servers.Server, blocking: redis.Redis) -> None:
    page = (Path(__file__).parents[3] / "docs/errors.md").read_text()
    blocking.execute_command("ACL", "SETUSER", "ann", "on", ">secret", "~user*", "+@all", "-cl.throttle")
    blocking.execute_command("ACL", "SETUSER", "bob", "on", ">secret", "~other*", "+@all")
    blocking.rpush("user123", 1)
    blocking.set("user124", "a text")

    def throttled(port: int, key: str = "user123", **options: Any) -> Any:
        with redis.Redis(port=port, retry=Retry(NoBackoff(), 0), **options) as made:
            return Cell(made).throttle(key, HOURLY)

    with servers.running(module=False) as bare, redis.Redis(port=bare.port) as without:
        mistakes: list[Callable[[], Any]] = [
            lambda: throttled(bare.port),
            lambda: Cell(without, backend="functions").throttle("user123", HOURLY),
            lambda: throttled(server.port, username="ann", password="secret"),
            lambda: throttled(server.port, username="bob", password="secret"),
            lambda: throttled(server.port, username="ann", password="wrong"),
            lambda: throttled(server.port),
            lambda: throttled(server.port, "user124"),
            lambda: throttled(servers.NOBODY),
            lambda: Cell.from_url("http://localhost"),
            lambda: Cell.from_url("redis://localhost/abc"),
            lambda: (without.config_set("requirepass", "secret"), throttled(bare.port)),
        ]
        for mistake in mistakes:
            with pytest.raises((redis.RedisError, ValueError)) as error:
                mistake()
            # From 7.2 on, the server names the user, and HELLO has a protocol.
            said = re.sub("User (ann|bob)", "this user", str(error.value)).replace(f":{servers.NOBODY}", ":6379")
            said = said.replace("user124", "user123").replace("HELLO <proto>", "HELLO")
            assert f"`{said}`" in page
    blocking.execute_command("ACL", "DELUSER", "ann", "bob")


def test_what_is_public_can_be_pickled(blocking: redis.Redis) -> None:
    cell = Cell(blocking)
    with pytest.raises(RateLimited) as refusal:
        cell.mtake(Take("b", HOURLY), Take("c", HOURLY, 2)).or_raise()
    answers: list[Any] = [
        cell.throttle("a", HOURLY),
        cell.throttle("a", HOURLY),
        cell.mtake(Take("a", HOURLY), Take("e", Lease(1, lease=9, holder="x"))),
        cell.reserve("d", HOURLY),
        cell.pause("d", HOURLY, 1),
        cell.top(),
        *(HOURLY, Fixed.per_month(3), Funnel(1, count=1, per=1), Log(2, per=3), Once("k", 1), Settle("k", HOURLY, 1)),
        *(FailOpen(), FailClosed(), Local(2)),
    ]
    for answer in answers:
        assert pickle.loads(pickle.dumps(answer)) == answer
    for error in (refusal.value, RateLimited(refusal.value.answer)):
        copied = pickle.loads(pickle.dumps(error))
        assert (str(copied), copied.answer, copied.key) == (str(error), error.answer, error.key)


@pytest.mark.parametrize("timeout", [0, None])
async def test_a_place_that_is_cancelled_at_any_point_is_not_lost(
    client: Any, blocking: redis.Redis, timeout: float | None
) -> None:
    held = 0
    for steps in range(40):
        inside = asyncio.Event()

        async def hold(inside: asyncio.Event = inside) -> None:
            async with AsyncCell(client).place("jobs", 5, lease=600, timeout=timeout):
                inside.set()

        task = asyncio.ensure_future(hold())
        if steps % 2:  # cancelled while it releases, otherwise while it acquires
            await inside.wait()
        for _ in range(steps // 2):
            await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        held += inside.is_set()
        assert blocking.zcard("jobs") == 0
    assert 20 <= held < 40


def test_a_wait_for_a_place_ends_when_it_is_released(cell: Any, server: servers.Server) -> None:
    held = cell.place("jobs", 1, lease=600)
    held.__enter__()

    def release() -> None:
        servers.wait_until(lambda: server.counted("blocked_clients"))
        held.__exit__(None, None, None)

    thread = threading.Thread(target=release)
    thread.start()
    with cell.place("jobs", 1, lease=600, timeout=60):
        thread.join()


def test_a_wait_has_a_timeout(cell: Any) -> None:
    rate = Rate(1, per=0.05, burst=0)
    begun = time.monotonic()
    for _ in range(4):
        assert wait(cell, Take("a", rate), timeout=10)
    assert time.monotonic() - begun >= 0.15
    assert wait(cell, Take("b", HOURLY), timeout=None)
    assert not wait(cell, Take("b", HOURLY), timeout=0.01)
    assert isinstance(wait(cell, Take("b", HOURLY, 2), timeout=None).combined, RefusedForever)


def test_a_guard_waits_as_a_cell_does(cell: Any) -> None:
    rate, begun = Rate(1, per=0.05, burst=0), time.monotonic()
    for _ in range(3):
        assert cell.bthrottle("a", rate, timeout=10)
    assert cell.bmtake(Take("a", rate), timeout=None, flow="f", weight=2)
    assert time.monotonic() - begun >= 0.15
    assert cell.bmtake(Take("b", HOURLY), timeout=10)
    assert cell.bthrottle("b", HOURLY, timeout=10) is None
    assert cell.bmtake(Take("b", HOURLY), timeout=0.01) is None
    refused = cell.bmtake(Take("b", HOURLY), timeout=None, maxlen=0)
    assert refused is not None and refused.combined.retry_after > 3590
    assert isinstance(cell.bthrottle("b", HOURLY, 2, timeout=None), RefusedForever)
    once = Once("once", period=60)
    for _ in range(2):
        assert cell.bmtake(Take("c", HOURLY), timeout=1, once=once)["c"].taken == 1


async def test_waits_beyond_half_of_the_pool_ask_again(server: servers.Server) -> None:
    async with redis.asyncio.Redis(port=server.port, max_connections=4) as other:
        guard, rate = AsyncGuard(AsyncCell(other), when_unavailable=FailClosed()), Rate(1, per=0.02, burst=0)
        assert all(await asyncio.gather(*(async_wait(guard, Take("a", rate), timeout=30) for _ in range(20))))


def test_a_wait_for_a_place_ends_with_its_timeout(cell: Any) -> None:
    """The place may be free at any time, so that the call waits in the server, and not to the end of the lease."""
    with cell.place("jobs", 1, lease=600):
        begun = time.monotonic()
        assert not wait(cell, Take("jobs", Lease(1, lease=600, holder="other")), timeout=0.5)
        assert 0.5 <= time.monotonic() - begun < 10


def test_each_wait_gives_its_connection_back(server: servers.Server, blocking: redis.Redis) -> None:
    """Half of a pool may wait in the server: here one call, however the waits before it have ended."""
    with redis.Redis(port=server.port, max_connections=2) as other:
        cell, busy = Cell(other), Take("jobs", Lease(1, lease=600, holder="waits"))
        with cell.place("jobs", 1, lease=600):
            assert not wait(cell, busy, timeout=0.5)
            assert _waiting[cell.pool] == 0, "after a timeout"
        assert wait(cell, Take("rate", Rate(1, per=0.05, burst=0)), timeout=10)
        assert wait(cell, Take("rate", Rate(1, per=0.05, burst=0)), timeout=10)
        assert _waiting[cell.pool] == 0, "after an admission"
        with cell.place("jobs", 1, lease=600), pytest.raises(redis.ResponseError):

            def replace() -> None:
                servers.wait_until(lambda: server.counted("blocked_clients"))
                blocking.set("jobs", "x")

            thread = threading.Thread(target=replace)
            thread.start()
            wait(cell, busy, timeout=60)
        thread.join()
        assert _waiting[cell.pool] == 0, "after an error"


def test_a_wait_without_the_server_is_the_choice_of_the_guard() -> None:
    with servers.running() as server, redis.Redis(port=server.port, socket_timeout=1) as client:
        guard = Guard(Cell(client), when_unavailable=FailClosed())
        take = Take("a", Rate(1, per=60, burst=0))
        assert wait(guard, take, timeout=1)

        def stop() -> None:
            servers.wait_until(lambda: server.counted("blocked_clients"))
            server.stop()

        thread = threading.Thread(target=stop)
        thread.start()
        answer = guard.bmtake(take, timeout=90)
        thread.join()
        assert answer is not None and answer.combined.decided_by == "fail_closed"


@pytest.mark.parametrize("backend", ["module", "auto"])
async def test_a_pipeline_is_one_request(
    server: servers.Server, connect: Any, blocking: redis.Redis, backend: Any
) -> None:
    cell = connect(server.port, backend=backend)
    calls = [wire.throttle("a", Rate.per_hour(2)) for _ in range(3)]
    answers = await cell.pipeline(*calls, wire.mtake(Take("b", HOURLY)), wire.release("c", "me"))
    assert [bool(answer) for answer in answers] == [True, True, False, True, False]
    await cell.msettle(Settle("b", HOURLY, -1), taken=answers[3])
    blocking.set("text", "no limiter")
    with pytest.raises(Exception, match="does not hold this limiter's state"):
        await cell.pipeline(wire.throttle("text", HOURLY), wire.throttle("d", HOURLY))
    assert not await cell.throttle("d", HOURLY)  # the connection is in order, and the other call was made
    with pytest.raises(ValueError, match="wait"):
        await cell.pipeline(wire.bthrottle("a", HOURLY, timeout=1))
    assert await cell.pipeline() == []


def test_a_pipeline_is_not_for_clusters(cluster: list[servers.Server]) -> None:
    with redis.RedisCluster(host="127.0.0.1", port=cluster[0].port) as client, pytest.raises(NotImplementedError):
        Cell(client).pipeline(wire.throttle("a", HOURLY))


async def test_sentinels_over_tls(tmp_path: Path) -> None:
    watched, certificate, tls = over_tls(tmp_path)
    port = servers.free_port()
    files = [f"{name[2:]} {value}" for name, value in zip(tls[::2], tls[1::2], strict=True)][1:]
    with (
        servers.running(*tls) as server,
        servers.sentinel(server, f"tls-port {port}", "tls-replication yes", *files, watched=watched),
    ):
        url = f"redis+sentinel://localhost:{port}/mymaster/3"
        options: dict[str, Any] = {"socket_timeout": 5, "ssl": True, "ssl_ca_certs": certificate}
        cell = Cell.from_url(url, **options)
        assert cell.throttle("a", HOURLY)
        other = AsyncCell.from_url(url, **options)
        assert not await other.throttle("a", HOURLY)
        await other.pool.disconnect()
        cell.pool.disconnect()
        with pytest.raises(redis.ConnectionError):
            Cell.from_url(url, socket_timeout=5).throttle("a", HOURLY)


async def test_cells_of_urls(server: servers.Server) -> None:
    with ExitStack() as stack:
        sentinel = stack.enter_context(servers.sentinel(server))
        for url in (
            f"redis://127.0.0.1:{server.port}/3",
            f"redis+sentinel://127.0.0.1:{sentinel},127.0.0.1:1/mymaster/3",
        ):
            with server.admin as admin:
                admin.flushall()
            cell = Cell.from_url(url, socket_timeout=5)
            assert cell.throttle("a", HOURLY)
            other = AsyncCell.from_url(url, socket_timeout=5)
            assert not await other.throttle("a", HOURLY)
            await other.pool.disconnect()
            cell.pool.disconnect()
            with redis.Redis(port=server.port, db=3) as client:
                assert client.exists("a")
    with pytest.raises(ValueError, match="name of the primary"):
        Cell.from_url("redis+sentinel://127.0.0.1:26379")


def test_a_function_hears_of_refusals(cell: Any) -> None:
    heard: list[tuple[str, Any, bool]] = []
    observe(cell, on_refusal=lambda call, refusal: heard.append((call.name, call.key, refusal.admitted)))
    cell.throttle("a", HOURLY)
    cell.throttle("a", HOURLY)
    cell.mtake(Take("b", HOURLY), Take("a", HOURLY))
    assert heard == [("CL.THROTTLE", "a", False), ("CL.MTAKE", "b", False)]


def test_help_shows_the_arguments() -> None:
    for owner in (Cell, AsyncCell, Guard, AsyncGuard, FakeCell):
        signature = inspect.signature(owner.throttle)
        assert list(signature.parameters) == ["self", "key", "rate", "quantity", "saturate"]
        assert signature.return_annotation == "Answer"
        text = pydoc.plain(pydoc.render_doc(owner))
        assert "throttle(self, /, key: 'Key', rate: 'Rate', quantity: 'int' = 1" in text
        assert "Takes units from a rate limiter: CL.THROTTLE." in text
    assert list(inspect.signature(FakeCell().throttle).parameters) == ["key", "rate", "quantity", "saturate"]


HOUR = datetime.now(timezone.utc) + timedelta(hours=1)
LIMITS: list[tuple[Any, Any]] = [
    (Rate(7, per=10_000, burst=9), Rate(7, per=10_000, burst=4)),
    (Bucket(10, count=7, per=10_000), Bucket(5, count=7, per=10_000)),
    (Funnel(10, count=7, per=10_000), Funnel(5, count=7, per=10_000)),
    (Fixed(10, per=10_000), Fixed(5, per=10_000)),
    (Fixed(10, until=HOUR), Fixed(5, until=HOUR)),
    (Log(10, per=10_000), Log(5, per=10_000)),
]


def same(real: Any, faked: Any) -> None:
    """Compares answers. The server's clock advances by less than a unit."""
    assert type(faked) is type(real)
    if isinstance(real, Together):
        assert faked.parts == real.parts and list(faked) == list(real)
        for row, other in zip((real.combined, *real.values()), (faked.combined, *faked.values()), strict=True):
            same(row, other)
        return
    for fact in ("limit", "remaining", "taken", "over_limit"):
        assert getattr(faked, fact, None) == getattr(real, fact, None), fact
    for name in ("reset_after", "retry_after", "wait"):
        mine, own = getattr(faked, name, None), getattr(real, name, None)
        assert (mine is None) == (own is None) and (mine or 0) == pytest.approx(own or 0, abs=30), name


def calls_of_units(dice: random.Random, large: Any, small: Any) -> Iterator[wire.Call[Any]]:
    """Calls for a limit that changes at times. What only rates have stands among them."""
    for _ in range(100):
        limit, quantity = dice.choice([large, large, small]), dice.randrange(0, 7)
        yield wire.mpeek(Take("k", limit, quantity))
        yield wire.take("k", limit, quantity, saturate=dice.random() < 0.2)
        if dice.random() < 0.4:
            yield wire.msettle(Settle("k", limit, dice.randrange(-12, 5)))
        if isinstance(limit, Rate):
            prepaid = {"max_wait": dice.choice([None, 0, 500, 5000]), "prepay": dice.random() < 0.3}
            others: list[wire.Call[Any]] = [
                wire.reserve("k", limit, quantity, **prepaid),
                wire.peek("k", limit, quantity),
                wire.charge("k", limit, quantity),
                wire.refund("k", limit, 7),
                wire.refund("k", limit, 12),
                wire.pause("k", limit, 3000),
            ]
            yield dice.choice(others)


def calls_of_leases(dice: random.Random) -> Iterator[wire.Call[Any]]:
    for _ in range(200):
        lease = Lease(dice.randrange(1, 4), lease=dice.choice([1000, 2000, 3000]), holder=dice.choice("vwxyz"))
        own = [Release("k", lease), Renew("k", lease)]
        calls: list[wire.Call[Any]] = [wire.acquire("k", lease), wire.renew("k", lease), wire.release("k", lease)]
        yield dice.choice([*calls, *map(wire.msettle, own)])


@pytest.mark.parametrize("limits", [*LIMITS, None], ids=lambda limits: limits[0].kind if limits else "LEASE")
def test_the_fake_decides_as_the_server(blocking: redis.Redis, limits: Any) -> None:
    dice, cell, fake = random.Random(7), Cell(blocking), FakeCell()
    kinds = set[str]()
    for call in calls_of_units(dice, *limits) if limits else calls_of_leases(dice):
        real = cell.run(call)
        same(real, fake.run(call))
        kinds.add(type(real).__name__)
    if limits == LIMITS[0]:
        assert kinds == {"Together", "Admitted", "Refused", "RefusedForever", "Balance", "Booked"}


def test_the_clock_of_the_fake_moves_when_it_is_told() -> None:
    fake = FakeCell()
    assert fake.throttle("a", HOURLY)
    fake.advance(3599)
    assert fake.throttle("a", HOURLY).retry_after == 1
    fake.advance(1)
    assert fake.throttle("a", HOURLY)
    assert wait(fake, Take("a", HOURLY), timeout=None)
    assert fake.clock() == 7200
    assert not wait(fake, Take("a", HOURLY), timeout=3599)
    fake.pause("a", HOURLY, 7200)
    fake.advance(7199)
    assert not fake.throttle("a", HOURLY)
    fake.advance(1)
    assert fake.throttle("a", HOURLY)
    with pytest.raises(NotImplementedError):
        fake.top()


def test_a_wait_of_the_fake_moves_its_clock() -> None:
    fake, place = FakeCell(), Lease(1, lease=60, holder="a")
    assert fake.bthrottle("a", HOURLY, timeout=10)
    assert fake.bthrottle("a", HOURLY, timeout=3599) is None and fake.clock() == 0
    assert fake.bthrottle("a", HOURLY, timeout=3600) and fake.clock() == 3600
    assert fake.bmtake(Take("a", HOURLY), Take("b", HOURLY), timeout=None, flow="f", weight=2)
    assert fake.clock() == 7200
    quick = Rate.per_second(100_000, burst=0)
    assert all(fake.bthrottle("quick", quick, timeout=1) for _ in range(11)) and fake.clock() == 7200.0001
    assert not fake.bmtake(Take("b", HOURLY), timeout=None, maxlen=0)
    assert isinstance(fake.bthrottle("b", HOURLY, 2, timeout=None), RefusedForever)
    assert fake.acquire("jobs", place)
    assert fake.bmtake(Take("jobs", Lease(1, lease=60, holder="b")), timeout=None)
    assert 7260 <= fake.clock() < 7261


def test_places_and_settlements_of_the_fake() -> None:
    fake, month = FakeCell(), Fixed.per_month(100)
    with fake.place("jobs", 1, lease=60) as place:
        assert not fake.acquire("jobs", Lease(1, lease=60, holder="other"))
        fake.advance(61)
        assert fake.msettle(Renew("jobs", place.lease))["jobs"].over_limit
    taken = fake.mtake(Take("month", month, 40), Take("jobs", Lease(1, lease=60, holder="me")))
    fake.msettle(Settle("month", month, -15), Release("jobs", Lease(1, lease=60, holder="me")), taken=taken)
    assert fake.fixed("month", month, 0).remaining == 75
    assert fake.acquire("jobs", Lease(1, lease=60, holder="other"))


async def test_the_fake_for_asyncio() -> None:
    fake = AsyncFakeCell()
    assert await fake.throttle("a", HOURLY)
    assert await async_wait(fake, Take("a", HOURLY), timeout=3600)
    async with fake.place("jobs", 1, lease=60):
        assert fake.clock() == 3600
    assert await fake.bthrottle("a", HOURLY, timeout=3600) and fake.clock() == 7200
    booked = await fake.reserve("a", HOURLY)
    assert isinstance(booked, Booked) and booked.wait == 3600
