"""Accounts: chains and holds in every backend, in guards and in the fakes, for blocking code and for asyncio."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.backoff import ConstantBackoff
from redis.retry import Retry

import servers
from conftest import awaited, close
from redis_cell import (
    Account,
    AsyncAccount,
    AsyncCell,
    AsyncGuard,
    Cell,
    Else,
    FailClosed,
    FailOpen,
    Fixed,
    Guard,
    Held,
    Hold,
    Lease,
    Local,
    Log,
    Rate,
    RateLimited,
    RefusedForever,
    Spill,
    Take,
    wire,
)
from redis_cell.testing import AsyncFakeCell, FakeCell
from test_using import same

WAYS = [f"{way}-{what}" for way in ("sync", "asyncio") for what in ("module", "functions", "guard", "local", "fake")]
INCLUDED, BOUGHT, CENTS = "{a}:included", "{a}:bought", "{a}:cents"
HOLDS = "{a}:holds"


class Way:
    """A cell or a guard of one way, and accounts on it, whose methods are awaited."""

    def __init__(self, cell: Any, is_async: bool) -> None:
        self.cell, self.is_async = cell, is_async

    async def run(self, call: wire.Call[Any]) -> Any:
        return await awaited(self.cell.run(call))

    def account(self, pools: Callable[[int], Any], **options: Any) -> Any:
        return (AsyncAccount if self.is_async else Account)(self.cell, pools, **{"holds": HOLDS, **options})

    @asynccontextmanager
    async def block(self, hold: Any) -> AsyncIterator[Any]:
        if self.is_async:
            async with hold:
                yield hold
        else:
            with hold:
                yield hold

    async def left(self, *takes: Any) -> list[int]:
        return [row.remaining for row in (await self.run(wire.mpeek(*takes))).values()]


@pytest.fixture(params=WAYS)
async def way(server: servers.Server, request: pytest.FixtureRequest) -> AsyncIterator[Way]:
    how, what = request.param.split("-")
    is_async = how == "asyncio"
    if what == "fake":
        yield Way(AsyncFakeCell() if is_async else FakeCell(), is_async)
        return
    server.load_functions()
    port = 1 if what == "local" else server.port  # no server has this port
    client: Any = (redis.asyncio.Redis if is_async else redis.Redis)(port=port, socket_timeout=5, retry=None)
    backend: Any = "functions" if what == "functions" else "module"
    cell: Any = (AsyncCell if is_async else Cell)(client, backend=backend)
    if what in ("guard", "local"):
        choice = FailClosed() if what == "guard" else Local(share=1, ask_again=600)
        cell = (AsyncGuard if is_async else Guard)(cell, when_unavailable=choice)
    yield Way(cell, is_async)
    await close(client, how)


def plan(tokens: int) -> Else:
    """1000 tokens are included and 500 bought; then 100 tokens cost 3 cents."""
    own = Spill(Take(INCLUDED, Fixed(1000, per=86400), tokens), Take(BOUGHT, Fixed.total(500), tokens))
    return Else(own, Take(CENTS, Fixed.total(60), -(-tokens * 3 // 100)))


async def test_pools_are_drawn_on_in_order_and_settled(way: Way) -> None:
    account = way.account(plan)
    async with way.block(account.hold(1200)) as hold:
        assert [hold.answer.taken(key) for key in (INCLUDED, BOUGHT, CENTS)] == [1000, 200, 0]
        assert hold.answer.combined.limit == 1500
        async with way.block(account.hold(400)) as dearer:
            assert [dearer.answer.taken(key) for key in (INCLUDED, BOUGHT, CENTS)] == [0, 0, 12]
        assert dearer.settled.taken(CENTS) == 12
        with pytest.raises(RateLimited) as refusal:
            async with way.block(account.hold(2000)):
                raise AssertionError("60 cents are not enough")
        assert isinstance(refusal.value.answer, RefusedForever)
        hold.used(600)
        hold.used(50)
    assert [hold.settled.taken(key) for key in (INCLUDED, BOUGHT, CENTS)] == [650, 0, 0]
    assert await way.left(plan(0)) == [350, 500, 48]
    assert (await awaited(account.peek(10))).taken(INCLUDED) == 10


async def test_what_a_block_has_used_is_charged_however_it_ends(way: Way) -> None:
    wallet = Take("{a}:wallet", Fixed.total(1000), 100)
    account = way.account(lambda units: Take(wallet.key, wallet.limit, units))
    ends: list[tuple[int | None, bool, int]] = [
        (None, False, 100),
        (30, False, 30),
        (130, False, 130),
        (None, True, 0),
        (7, True, 7),
        (0, False, 0),
    ]
    left = 1000
    for used, fails, charged in ends:
        try:
            async with way.block(account.hold(100)) as hold:
                assert await way.left(wallet) == [left - 100]
                if used is not None:
                    hold.used(used)
                if fails:
                    raise KeyError
        except KeyError:
            assert fails
        left -= charged
        assert await way.left(wallet) == [left], (used, fails)
        assert hold.settled.combined.remaining == left
    with pytest.raises(ValueError, match="quantity must be at least 0, not -1"):
        hold.used(-1)


@pytest.mark.parametrize("used", [20_000, 10**16])
async def test_usage_beyond_the_largest_quantity_is_charged_as_far_as_possible(way: Way, used: int) -> None:
    log, total = Log(5000, per=60), Fixed.total(10_000)

    def pools(units: int) -> tuple[wire.Pools, ...]:
        return Spill(Take("{a}:log", log, units), Take("{a}:all", total, units)), Take("{a}:own", log, units)

    async with way.block(way.account(pools).hold(1)) as hold:
        hold.used(used)
    charged = [hold.settled.taken(key) for key in ("{a}:log", "{a}:all", "{a}:own")]
    assert charged == [5000, min(used, 1_000_000) - 5000, 10_001]


async def test_a_hold_is_topped_up_from_its_pool(way: Way) -> None:
    """Units of a second pool would be charged for the whole usage too."""
    account = way.account(plan)
    async with way.block(account.hold(0)) as hold:
        await awaited(hold.more(1200))
        with pytest.raises(RateLimited):
            await awaited(hold.more(400))
        await awaited(hold.more(300))
        assert hold.quantity == 1500
    assert await way.left(plan(0)) == [0, 0, 60]


async def test_a_hold_is_topped_up_and_renewed_while_a_stream_lasts(
    way: Way, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    wallet = Take("{a}:wallet", Fixed.total(1000), 0)
    busy = Lease(1, lease=60, holder="me")
    account = way.account(lambda units: (Take(wallet.key, wallet.limit, units), Take("{a}:busy", busy)), period=30)

    async def items() -> AsyncIterator[int]:
        for item in range(3):
            yield item

    async with way.block(account.hold(100)) as hold:
        if way.is_async:
            await hold.more(50)
            await hold.renew()
            hold._again = 0.0
            assert [item async for item in hold.over(items())] == [0, 1, 2]
        else:
            hold.more(50)
            hold.renew()
            hold._again = 0.0
            assert list(hold.over(range(3))) == [0, 1, 2]
        assert hold._again and hold.quantity == 150 and await way.left(wallet) == [850]
        # A renewal that fails does not end the stream.
        hold._again = 0.0
        with monkeypatch.context() as patch:
            patch.setattr(way.cell, "run", None)
            assert [item async for item in hold.over(items())] if way.is_async else list(hold.over(range(3)))
        assert caplog.text.count("a hold of '{a}:holds' was not renewed") == 1
        hold.used(120)
    assert await way.left(wallet, Take("{a}:busy", busy)) == [880, 1]


@pytest.mark.parametrize("what", ["module", "functions", "fake"])
def test_a_hold_runs_out_and_is_settled_late_exactly(server: servers.Server, blocking: redis.Redis, what: Any) -> None:
    server.load_functions()
    cell: Any = FakeCell() if what == "fake" else Cell(blocking, backend=what)
    fixed, slow = Fixed(100, per=86400), Rate(100, per=8_640_000)

    def pools(units: int) -> tuple[Take, ...]:
        return Take("{a}:k", fixed, units), Take("{a}:slow", slow, units)

    account = Account(cell, pools, holds=HOLDS, period=0.05)
    with account.hold(60) as late:
        if what == "fake":
            cell.advance(0.05)
        servers.wait_until(lambda: [row.remaining for row in account.peek().values()] == [100, 40])
        # The units have come back, and somebody else holds them.
        with Account(cell, pools, holds=HOLDS).hold(40) as other:
            late.used(45)
            late._leave(False)
            assert late.settled and late.settled["{a}:k"].remaining == 15
            assert late.settled["{a}:slow"].remaining == 0  # what a rate has given was never given back
            other.used(40)
        late._leave = lambda failed: None  # type: ignore[method-assign]
    assert account.peek()["{a}:k"].remaining == 15


def test_a_settlement_whose_reply_is_lost_charges_once(server: servers.Server) -> None:
    with servers.lossy(server, 0.2) as proxy, redis.Redis(port=proxy.port) as client:
        account = Account(Cell(client), lambda n: Take("{a}:k", Fixed.total(1000), n), holds=HOLDS, period=0.5)
        held = list[Held]()
        for _ in range(30):
            with suppress(redis.ConnectionError), account.hold(10) as hold:
                hold.used(7)
                held.append(hold)
        charged = 7 * len(held)
        assert proxy.lost > 5 and sum(hold.settled is None for hold in held) <= 1
        sound = Account(Cell(redis.Redis(port=server.port)), lambda n: Take("{a}:k", Fixed.total(1000), n), holds=HOLDS)
        servers.wait_until(lambda: sound.peek().combined.remaining == 1000 - charged)


def test_a_settlement_begins_no_attempt_after_five_seconds(caplog: pytest.LogCaptureFixture) -> None:
    """By a client that tries for two seconds to connect, as redis-py 8 does by default."""
    slow = Retry(ConstantBackoff(2), 1)
    with servers.running() as server, redis.Redis(port=server.port, retry=slow) as client:
        with Account(Cell(client), lambda n: Take("{a}:k", Fixed.total(100), n), holds=HOLDS).hold(10):
            server.stop()
            begun = time.monotonic()
        assert time.monotonic() - begun < 8
    assert "a hold of '{a}:holds' runs out, and 10 was not charged" in caplog.text


async def test_a_cancelled_block_settles(client: redis.asyncio.Redis) -> None:
    account = AsyncAccount(AsyncCell(client), lambda n: Take("{a}:k", Fixed.total(100), n), holds=HOLDS)
    begun = asyncio.Event()

    async def work() -> None:
        async with account.hold(80) as hold:
            hold.used(3)
            begun.set()
            await asyncio.sleep(60)

    task = asyncio.ensure_future(work())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await client.get("{a}:k") == b"3" and not await client.exists(HOLDS)


def test_an_unavailable_server_is_the_choice_of_the_guard(caplog: pytest.LogCaptureFixture) -> None:
    with servers.running() as server, redis.Redis(port=server.port, socket_timeout=1, retry=None) as client:
        pools: Any = lambda n: Take("{a}:k", Fixed.total(100), n)  # noqa: E731
        account = Account(Cell(client), pools, holds=HOLDS)
        guard = Guard(Cell(client), when_unavailable=FailOpen(600))
        guarded = Account(guard, pools, holds=HOLDS)
        with caplog.at_level(logging.WARNING), account.hold(10) as own, guarded.hold(10) as hold:
            own.used(5)
            server.stop()
        assert own.settled is None and hold.settled and hold.settled.combined.remaining == 100
        assert "a hold of '{a}:holds' runs out, and 5 was not charged" in caplog.text
        with guarded.hold(70) as hold:
            assert hold.answer.combined.decided_by == "fail_open"
        with pytest.raises(RateLimited):
            guarded.hold(101).__enter__()
        closed = Account(Guard(Cell(client), when_unavailable=FailClosed()), pools, holds=HOLDS)
        with pytest.raises(RateLimited):
            closed.hold(1).__enter__()


def test_a_hold_is_for_one_block(blocking: redis.Redis) -> None:
    account = Account(Cell(blocking), lambda n: Take("{a}:k", Fixed.total(100), n), holds=HOLDS)
    hold = account.hold(5)
    with hold:
        hold.used(3)
    with pytest.raises(RuntimeError, match="a hold is for one block"), hold:
        pass
    for late in (hold.used, hold.more):
        with pytest.raises(RuntimeError, match="the block of this hold has ended"):
            late(1)
    for _ in range(3):  # an owner may come again
        with account.hold(5, owner="me"):
            pass
    assert account.peek().combined.remaining == 100 - 3 - 15


def _calls(seed: int) -> Iterator[wire.Call[Any]]:
    """A random history of owners, with chains of every shape. Holds neither run out nor do windows end."""
    pick = random.Random(seed)
    keys = {
        "{a}:0": Fixed(60, per=864_000),
        "{a}:1": Fixed.total(80),
        "{a}:2": Fixed.total(50, idle=864_000),
        "{a}:3": Rate(40, per=400_000_000),
        "{a}:4": Lease(2, lease=864_000, holder="x"),
    }

    def take(key: str, quantity: int, owner: str) -> Take:
        limit = keys[key]
        return Take(key, Lease(2, lease=864_000, holder=owner)) if key == "{a}:4" else Take(key, limit, quantity)  # type: ignore[arg-type]

    for _ in range(60):
        names, owner = pick.sample(sorted(keys), 4), pick.choice("xyz")
        spilled = [name for name in names if name != "{a}:4"][:2]
        others = [name for name in names if name not in spilled]
        quantity = pick.choice([0, 1, 7, 20, 45])
        spill = Spill(*(take(name, quantity, owner) for name in spilled))
        chains: list[wire.Pools] = [
            Else(spill, take(others[0], pick.choice([0, 3, 9]), owner)),
            take(others[1], pick.choice([0, 2, 5]), owner),
        ]
        if pick.random() < 0.3:
            chains = [spill, *(take(name, pick.choice([0, 2, 5]), owner) for name in others)]
        hold = Hold(HOLDS, owner, 86400)
        kind = pick.random()
        if kind < 0.15:
            yield wire.mpeek(*chains, holds=HOLDS)
        elif kind < 0.6:
            yield wire.mtake(*chains, hold=hold)
        else:
            yield wire.settle(*chains, hold=hold)


def test_the_fake_answers_as_the_server_does(blocking: redis.Redis) -> None:
    for seed in range(40):
        blocking.flushall()
        fake, calls = FakeCell(), list(_calls(seed))
        for call, real in zip(calls, Cell(blocking).pipeline(*calls), strict=True):
            same(real, fake.run(call))


def test_holds_of_the_fake_run_out_and_outlast_windows_as_in_the_server() -> None:
    def take(key: str, units: int) -> Take:
        return Take(
            key, {"window": Fixed(10, per=1), "total": Fixed.total(10), "rate": Rate(8, per=1, burst=7)}[key], units
        )

    fake, hold = FakeCell(), Hold(HOLDS, "me", 4)
    fake.mtake(*(take(key, 5) for key in ("window", "total", "rate")), hold=hold)
    fake.advance(0.001)
    assert fake.settle(take("rate", 0), hold=hold)["rate"].remaining == 8
    assert fake.mpeek(take("total", 0), holds=HOLDS)["total"].remaining == 10
    assert fake.mpeek(take("total", 0))["total"].remaining == 5  # what comes back is not taken by looking
    fake.mtake(take("window", 3), hold=hold)
    fake.advance(1.5)
    fake.mtake(take("window", 0), hold=hold)
    assert fake.settle(take("window", 3), hold=hold)["window"].remaining == 10  # charged to the window that has ended
    # What was held of a total that was forgotten does not come back to its next life.
    total = Fixed.total(10, idle=5)
    fake.mtake(Take("idle", total, 5), hold=Hold(HOLDS, "dead", 1))
    fake.advance(6)
    fake.mtake(Take("idle", total, 6))
    assert fake.mpeek(Take("idle", total, 0), holds=HOLDS)["idle"].remaining == 4
