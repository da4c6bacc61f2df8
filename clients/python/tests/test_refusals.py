"""Refusals that are remembered, on a real server: few calls, and none refused that the server would admit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import redis

import servers
from conftest import Awaitable, client_class, close
from redis_cell import (
    AsyncCell,
    AsyncGuard,
    AsyncMerged,
    AsyncRefusals,
    Bucket,
    Cell,
    FailClosed,
    Fixed,
    Funnel,
    Log,
    Rate,
    Refusals,
    Refused,
    Take,
    Window,
)

RATE = Rate.per_day(1)


class Both:
    """A cell of one library, and what remembers its refusals."""

    def __init__(self, server: servers.Server, flavor: Any, backend: Any = "module", **options: Any) -> None:
        self.server, self.way = server, (way := flavor[1])
        self.client = client_class(*flavor)(port=server.port, socket_timeout=10, **options)
        own: Any = (AsyncCell if way == "asyncio" else Cell)(self.client, backend=backend)
        self.refusals: Any = (AsyncRefusals if way == "asyncio" else Refusals)(own)
        self.cell: Any = own if way == "asyncio" else Awaitable(own)

    async def refused(self, key: str, limit: Any = RATE, name: str = "throttle") -> None:
        """Takes all units of a key, and waits until its refusal is remembered."""
        take = getattr(self.cell, name)
        assert await take(key, limit)
        await self.remembered(key, limit, name)

    async def remembered(self, key: str, limit: Any = RATE, name: str = "throttle", quantity: int = 1) -> None:
        async def known() -> bool:
            assert not await getattr(self.cell, name)(key, limit, quantity)
            return self.refusals.recall(Take(key, limit, quantity)) is not None

        await servers.until(known, 5)

    async def until_admitted(self, key: str, limit: Any = RATE, name: str = "throttle") -> None:
        await servers.until(lambda: getattr(self.cell, name)(key, limit), 5)

    async def __aenter__(self) -> Both:
        return self

    async def __aexit__(self, *error: object) -> None:
        if self.way == "asyncio":
            await self.refusals.aclose()
        else:
            self.refusals.close()
        await close(self.client, self.way)


@pytest.fixture
async def both(server: servers.Server, flavor: tuple[str, str]) -> AsyncIterator[Both]:
    async with Both(server, flavor) as both:
        yield both


async def test_a_flood_of_refusals_hardly_reaches_the_server(server: servers.Server, both: Both) -> None:
    for n in range(20):
        await both.refused(f"k{n}")
    before = server.calls("cl.throttle")
    waits: list[Any] = []
    for n in range(4000):
        answer = await both.cell.throttle(f"k{n % 20}", RATE)
        assert isinstance(answer, Refused) and (answer.limit, answer.remaining) == (1, 0)
        waits.append(answer.retry_after)
    # On a busy machine, signs of life are late for a while; then calls go to the server.
    assert server.calls("cl.throttle") - before < 400
    assert both.refusals.recalled > 3600
    # The wait becomes shorter, and is that of the server.
    assert 86300 < waits[-1] < waits[19] <= 86400
    with server.admin as admin:
        assert abs(Cell(admin).peek("k19", RATE).retry_after - waits[-1]) < 1  # type: ignore[operator]


LIMITS = [
    ("throttle", RATE),
    ("bucket", Bucket(1, count=1, per=86400)),
    ("funnel", Funnel(1, count=1, per=86400)),
    ("fixed", Fixed(1, per=86400)),
    ("window", Window(1, per=86400)),
    ("log", Log(1, per=86400)),
]


@pytest.mark.parametrize(("name", "limit"), LIMITS, ids=[name for name, _ in LIMITS])
async def test_what_gives_units_back_is_learned_at_once(both: Both, name: str, limit: Any) -> None:
    await both.refused("k", limit, name)
    with both.server.admin as admin:
        admin.delete("k")
        await both.until_admitted("k", limit, name)
        await both.remembered("k", limit, name)
        admin.flushall()
        await both.until_admitted("k", limit, name)


async def test_a_refund_and_an_own_deletion_are_learned(both: Both) -> None:
    await both.refused("k")
    await both.cell.refund("k", RATE)
    await both.until_admitted("k")


async def test_other_quantities_and_limits_are_decided_by_the_server(both: Both) -> None:
    limit = Rate.per_day(10)
    assert await both.cell.throttle("k", limit, 8)
    await both.remembered("k", limit, quantity=3)
    before = both.server.calls("cl.throttle")
    assert await both.cell.throttle("k", limit, 2)
    assert both.server.calls("cl.throttle") == before + 1


async def test_a_call_after_the_wait_is_admitted(both: Both) -> None:
    limit = Rate(1, per=0.4)
    await both.refused("k", limit)
    answer = await both.cell.throttle("k", limit)
    assert isinstance(answer, Refused)
    await asyncio.sleep(answer.retry_after)
    assert await both.cell.throttle("k", limit)


async def test_short_waits_are_not_remembered(both: Both) -> None:
    limit = Rate(1, per=0.005)
    for _ in range(20):
        await both.cell.throttle("k", limit)
    assert both.refusals.keys_in_use == 0


@pytest.mark.parametrize("which", ["pubsub", "normal"])
async def test_a_lost_connection_forgets_all(both: Both, which: str) -> None:
    await both.refused("k")
    with both.server.admin as admin:
        if which == "pubsub":
            admin.client_kill_filter(_type="pubsub")
        else:
            for row in admin.client_list():
                if row["cmd"].lower().startswith(("ping", "cl.mpeek")):
                    admin.client_kill_filter(_id=row["id"])
        servers.wait_until(lambda: both.server.calls("client|kill") > 0)
        await servers.until(lambda: not both.refusals.keys_in_use, 5)
        admin.delete("k")
    await both.until_admitted("k")
    # It is remembered again.
    await both.remembered("k")


async def test_nothing_is_remembered_while_the_server_is_silent(flavor: tuple[str, str]) -> None:
    with servers.running() as server:
        async with Both(server, flavor) as both:
            await both.refused("k")
            server.freeze()
            await servers.until(lambda: both.refusals.recall(Take("k", RATE)) is None, 5)
            server.thaw()


async def test_a_change_before_the_reply_is_not_missed(both: Both) -> None:
    await both.refused("k")
    refusals, take = both.refusals, Take("k", RATE)
    reply = [[1, 1, 0, 50_000_000, 50_000_000]] * 2
    for changed in (None, [b"k"]):
        refusals._told([b"message", b"", [b"k"]])
        assert refusals._asks(take, Refused(limit=1, remaining=0, reset_after=50, retry_after=50))
        refusals._told([b"message", b"", changed])
        refusals._answered(take, reply, time.monotonic())
        assert refusals.recall(take) is None
    assert refusals._asks(take, Refused(limit=1, remaining=0, reset_after=50, retry_after=50))
    refusals._told([b"message", b"", [b"other"]])
    refusals._answered(take, reply, time.monotonic())
    assert refusals.recall(take) is not None


async def test_nothing_is_recalled_after_a_pause_of_the_process(both: Both) -> None:
    await both.refused("k")
    take, heard = Take("k", RATE), both.refusals._heard
    for place in (0, 1):
        before, heard[place] = heard[place], time.monotonic() - 1.1
        assert both.refusals.recall(take) is None
        heard[place] = before
    assert both.refusals.recall(take) is not None


def test_more_keys_than_the_limit_go_to_the_server(blocking: redis.Redis) -> None:
    cell = Cell(blocking)
    refusals = Refusals(cell, keys=3)
    for _ in range(3):
        for n in range(6):
            cell.throttle(f"k{n}", RATE)
        time.sleep(0.1)
    assert 0 < refusals.keys_in_use <= 3
    refusals.close()
    assert not cell.throttle("k0", RATE)


def test_a_child_process_remembers_nothing(blocking: redis.Redis) -> None:
    cell = Cell(blocking)
    refusals = Refusals(cell)
    servers.wait_until(lambda: not cell.throttle("k", RATE) and refusals.keys_in_use)
    assert servers.in_child(lambda: not refusals.keys_in_use)
    refusals.close()


async def test_guards_and_merged_calls_use_it(server: servers.Server, client: Any) -> None:
    merged = AsyncMerged(client, pipelined=True)
    refusals = AsyncRefusals(merged)
    guard = AsyncGuard(merged, when_unavailable=FailClosed())
    await asyncio.gather(*(guard.throttle("k", RATE) for _ in range(10)))
    await servers.until(lambda: refusals.recall(Take("k", RATE)) is not None, 5)
    before = server.calls("cl.throttle")
    answers = await asyncio.gather(*(guard.throttle("k", RATE) for _ in range(100)))
    assert {type(answer) for answer in answers} == {Refused}
    assert server.calls("cl.throttle") == before
    await refusals.aclose()


@pytest.mark.parametrize("turns", range(5))
async def test_a_refusal_that_comes_as_it_is_closed_holds_up_nothing(server: servers.Server, turns: int) -> None:
    both = Both(server, ("redis", "asyncio"))
    await both.refused("k")
    both.refusals._more.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    closing = asyncio.create_task(both.refusals.aclose())
    done, _ = await asyncio.wait({closing}, timeout=5)
    assert done
    await close(both.client, "asyncio")


async def test_functions_are_tracked_too(flavor: tuple[str, str]) -> None:
    with servers.running(module=False) as server:
        server.load_functions()
        async with Both(server, flavor, "functions") as both:
            await both.refused("k")
            with server.admin as admin:
                admin.delete("k")
            await both.until_admitted("k")


async def test_the_permissions_that_the_page_names_suffice(flavor: tuple[str, str], server: servers.Server) -> None:
    with server.admin as admin:
        allowed = ["+cl.throttle", "+cl.mpeek", "+client", "+subscribe", "+ping", "&__redis__:invalidate"]
        admin.execute_command("ACL", "SETUSER", "limits", "on", ">secret", "~*", "resetchannels", *allowed)
        async with Both(server, flavor, username="limits", password="secret", decode_responses=True) as both:
            await both.refused("k")
            admin.delete("k")
            await both.until_admitted("k")


async def test_not_for_clusters(cluster: list[servers.Server], flavor: tuple[str, str]) -> None:
    client = client_class(*flavor, clustered=True)(host="127.0.0.1", port=cluster[0].port)
    with pytest.raises(NotImplementedError, match="slots move"):
        (AsyncRefusals(AsyncCell(client)) if flavor[1] == "asyncio" else Refusals(Cell(client)))
    await close(client, flavor[1])
