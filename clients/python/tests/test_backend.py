"""The same calls by the module's commands and by the functions of functions/redis_cell.lua."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from limits import RateLimitItemPerHour
from limits.storage import storage_from_string
from limits.strategies import FixedWindowRateLimiter

import redis_cell.limits
import servers
from conftest import Awaitable, cell_of, client_class, close
from redis_cell import Admitted, AsyncGuard, FailOpen, Fixed, Guard, Rate, Refused, RefusedForever

LIBRARY = Path(__file__).parents[3] / "functions" / "redis_cell.lua"
RATE = Rate(8, per=1000)


@pytest.fixture(scope="module", params=[False, True], ids=["without the module", "with it"])
def library(request: pytest.FixtureRequest) -> Iterator[servers.Server]:
    """A server with the function library, and without or with the module."""
    with servers.running(module=request.param) as server:
        with server.admin as admin:
            admin.execute_command("FUNCTION", "LOAD", LIBRARY.read_text())
        yield server


async def test_the_functions_answer_as_the_commands(library: servers.Server, flavor: tuple[str, str]) -> None:
    with library.admin as admin:
        admin.flushdb()
    client = client_class(*flavor)(port=library.port)
    cell = cell_of(client, flavor[1], backend="functions")
    assert (await cell.throttle("k", RATE, 3)).remaining == 5
    assert (await cell.throttle("k", RATE, 9, saturate=True)).taken == 5
    refused = await cell.throttle("k", RATE)
    assert isinstance(refused, Refused) and 0 < refused.retry_after <= 125
    assert isinstance(await cell.throttle("k", RATE, 9), RefusedForever)
    assert isinstance(await cell.peek("k", RATE), Refused)
    assert (await cell.charge("k", RATE, 1)).in_debt
    assert (await cell.refund("k", RATE, 4)).remaining == 3
    assert isinstance(await cell.peek("k", RATE), Admitted)
    assert (await cell.fixed("f", Fixed.per_month(100, first_day=15), 4)).remaining == 96
    with pytest.raises(NotImplementedError, match=r"CL.RESERVE needs the module"):
        await cell.reserve("k", RATE)
    assert library.calls("cl.throttle") == 0
    await close(client, flavor[1])


async def test_auto_asks_once(library: servers.Server, flavor: tuple[str, str]) -> None:
    client = client_class(*flavor)(port=library.port)
    auto = cell_of(client, flavor[1], backend="auto")
    before = library.calls("command|info")
    for _ in range(3):
        assert await auto.throttle(f"auto-{flavor}", RATE)
    assert library.calls("command|info") == before + 1
    assert (library.calls("cl.throttle") > 0) == library.module
    await close(client, flavor[1])


async def test_a_key_goes_from_one_to_the_other(server: servers.Server, flavor: tuple[str, str]) -> None:
    with server.admin as admin:
        admin.execute_command("FUNCTION", "LOAD", "REPLACE", LIBRARY.read_text())
    client = client_class(*flavor)(port=server.port)
    cells: list[Any] = [cell_of(client, flavor[1], backend=backend) for backend in ("module", "functions")]
    left = [(await cells[n % 2].throttle(f"both-{flavor}", RATE)).remaining for n in range(9)]
    assert left == [7, 6, 5, 4, 3, 2, 1, 0, 0]
    await close(client, flavor[1])


async def test_auto_asks_again_when_the_module_is_gone(flavor: tuple[str, str]) -> None:
    with servers.running() as server:
        client = client_class(*flavor)(port=server.port)
        auto = cell_of(client, flavor[1], backend="auto")
        assert await auto.throttle("k", RATE)
        server.stop()
        server.module = False
        assert server.start()
        await asyncio.sleep(0.05)  # the event loop reads that the connection is closed
        with pytest.raises(Exception, match="unknown command"):
            await auto.throttle("k", RATE)
        with pytest.raises(Exception, match="Function not found"):
            await auto.throttle("k", RATE)
        with server.admin as admin:
            admin.execute_command("FUNCTION", "LOAD", LIBRARY.read_text())
        assert (await auto.throttle("k", RATE)).remaining == 7
        await close(client, flavor[1])


@pytest.mark.parametrize("backend", ["module", "functions", "auto"])
async def test_a_server_that_has_neither_is_an_error_of_the_set_up(flavor: tuple[str, str], backend: Any) -> None:
    with servers.running(module=False) as server:
        client = client_class(*flavor)(port=server.port)
        cell = cell_of(client, flavor[1], backend=backend)
        guard: Any = AsyncGuard(cell, away=FailOpen())
        if flavor[1] == "sync":
            guard = Awaitable(Guard(cell.cell, away=FailOpen()))
        for _ in range(2):
            with pytest.raises(Exception, match=r"unknown command|Function not found"):
                await guard.throttle("k", RATE)
        await close(client, flavor[1])


def test_a_storage_of_limits(library: servers.Server) -> None:
    storage = storage_from_string(f"redis-cell://127.0.0.1:{library.port}?away=fail_closed&backend=auto")
    assert isinstance(storage, redis_cell.limits.RedisCellStorage)
    storage.reset()
    limiters = [FixedWindowRateLimiter(storage), redis_cell.limits.GcraRateLimiter(storage)]
    for limiter in limiters:
        assert sum(limiter.hit(RateLimitItemPerHour(5), "user") for _ in range(20)) == 5
        assert limiter.get_window_stats(RateLimitItemPerHour(5), "user").remaining == 0
