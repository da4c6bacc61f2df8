"""The same calls by the module's commands and by the functions of the function library."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from limits import RateLimitItemPerHour
from limits.storage import storage_from_string
from limits.strategies import FixedWindowRateLimiter

import redis_cell.limits
import servers
from conftest import Awaitable, guard_of
from redis_cell import (
    Admitted,
    AsyncLeased,
    FailClosed,
    FailOpen,
    Fixed,
    Lease,
    Leased,
    Log,
    Rate,
    Refused,
    RefusedForever,
    Release,
    Settle,
    Take,
)
from redis_cell.backend import too_old

BUILD = Path(__file__).parents[3] / "scripts" / "functions.sh"
LIBRARY = Path(subprocess.run([BUILD], check=True, capture_output=True, text=True).stdout.strip())
RATE = Rate(8, per=1000)


@pytest.fixture(scope="module", params=[False, True], ids=["without the module", "with it"])
def library(request: pytest.FixtureRequest) -> Iterator[servers.Server]:
    """A server with the function library, and without or with the module."""
    with servers.running(module=request.param) as server:
        with server.admin as admin:
            admin.execute_command("FUNCTION", "LOAD", LIBRARY.read_text())
        yield server


@pytest.mark.parametrize(
    ("reply", "fits"),
    [
        (b"1.0.0", True),
        ("2.1.0-rc.1", True),
        (b"0.9.9", False),
        (b"", False),
        (b"@VERSION@", False),
        (b"1.0", False),
        (b"1.0.0.1", False),
        (b"1.0.\xff", False),
        (7, False),
    ],
)
def test_a_library_without_a_version_is_too_old(reply: Any, fits: bool) -> None:
    assert (too_old(reply) is None) == fits


async def test_the_functions_answer_as_the_commands(library: servers.Server, connect: Any) -> None:
    with library.admin as admin:
        admin.flushdb()
    cell = connect(library.port, backend="functions")
    assert (await cell.throttle("k", RATE, 3)).remaining == 5
    assert (await cell.throttle("k", RATE, 9, saturate=True)).taken == 5
    refused = await cell.throttle("k", RATE)
    assert isinstance(refused, Refused) and 0 < refused.retry_after <= 125
    assert isinstance(await cell.throttle("k", RATE, 9), RefusedForever)
    assert isinstance(await cell.peek("k", RATE), Refused)
    assert (await cell.charge("k", RATE, 1)).over_limit
    assert (await cell.refund("k", RATE, 4)).remaining == 3
    assert isinstance(await cell.peek("k", RATE), Admitted)
    assert (await cell.fixed("f", Fixed.per_month(100, first_day=15), 4)).remaining == 96
    assert (await cell.log("l", Log(5, per=60), 2)).remaining == 3
    lease = Lease(1, lease=60, holder="a")
    assert await cell.acquire("p", lease)
    assert not await cell.acquire("p", Lease(1, lease=60, holder="b"))
    assert await cell.renew("p", lease) and await cell.release("p", "a")
    ends = Fixed(10, until=datetime.now(timezone.utc) + timedelta(hours=1))
    takes = (
        Take("u", ends, 3),
        Take("l", Log(5, per=60), 1, shadow=True),
        Take("f", Fixed.per_month(100, first_day=15)),
    )
    taken = await cell.mtake(*takes, Take("p", lease))
    assert taken and [row.remaining for row in taken.each.values()] == [7, 2, 95, 0]
    settled = await cell.msettle(Settle("u", ends, -2), Release("p", lease), Settle("l", Log(5, per=60), 1), ago=1)
    assert [row.remaining for row in settled.each.values()] == [9, 1, 1]
    with pytest.raises(NotImplementedError, match=r"CL.BTHROTTLE needs the module"):
        await cell.bthrottle("k", RATE, timeout=1)
    assert library.calls("cl.throttle") == 0


async def test_auto_finds_out_once(library: servers.Server, flavor: tuple[str, str], connect: Any) -> None:
    auto = connect(library.port, backend="auto")
    before = [library.calls(name) for name in ("cl.throttle", "fcall", "fcall_ro")]
    for _ in range(3):
        assert await auto.throttle(f"auto-{flavor}", RATE)
    after = [library.calls(name) for name in ("cl.throttle", "fcall", "fcall_ro")]
    # Without the module it reads the version of the library.
    expected = [3, 0, 0] if library.module else [0, 3, 1]
    assert [now - then for now, then in zip(after, before, strict=True)] == expected


async def test_waits_without_the_module_ask_again(
    library: servers.Server, flavor: tuple[str, str], connect: Any
) -> None:
    rate, guard = Rate(1, per=0.05, burst=0), guard_of(connect(library.port, backend="auto"), FailClosed())
    begun = time.monotonic()
    for _ in range(4):
        assert await guard.bmtake(Take(f"wait-{flavor}", rate), timeout=10, flow="f")
    assert time.monotonic() - begun >= 0.15
    full = Take(f"full-{flavor}", Rate(1, per=3600))
    assert await guard.bmtake(full, timeout=10)
    assert await guard.bthrottle(f"full-{flavor}", Rate(1, per=3600), timeout=10) is None
    if not library.module:
        soon = Take(f"soon-{flavor}", Rate(1, per=2))
        assert await guard.bmtake(soon, timeout=10)
        with pytest.raises(NotImplementedError, match=r"CL\.BMTAKE needs the module"):
            await guard.bmtake(soon, timeout=10, maxlen=5)


@pytest.mark.parametrize("limit", [Rate.per_day(100), Fixed.per_month(100)], ids=["rate", "fixed"])
async def test_leases_of_units(
    library: servers.Server, flavor: tuple[str, str], connect: Any, limit: Rate | Fixed
) -> None:
    key, cell = f"leased-{flavor}-{limit}", connect(library.port, backend="auto")
    leased: Any = AsyncLeased(cell, limit, least=30, most=30, hold=3600)
    if flavor[1] == "sync":
        leased = Awaitable(Leased(cell.cell, limit, least=30, most=30, hold=3600))
    before = [library.calls(name) for name in ("fcall", "cl.throttle", "cl.fixed")]
    for _ in range(10):
        assert await leased.take(key)
    after = [library.calls(name) for name in ("fcall", "cl.throttle", "cl.fixed")]
    assert sum(after) - sum(before) == 1 and (after[0] == before[0]) == library.module
    assert (await cell.mpeek(Take(key, limit))).combined.remaining == 70
    await leased.give_back()
    assert (await cell.mpeek(Take(key, limit))).combined.remaining == 90


async def test_a_user_who_may_run_functions_alone(
    library: servers.Server, flavor: tuple[str, str], connect: Any
) -> None:
    if library.module:
        return
    with library.admin as admin:
        commands = "+fcall +fcall_ro +time +get +set +del +pexpiretime +client +hello"
        admin.execute_command("ACL", "SETUSER", "app", "on", ">secret", "~*", "-@all", *commands.split())
    cell = connect(library.port, backend="auto", username="app", password="secret")
    assert await cell.throttle(f"acl-{flavor}", RATE)


async def test_an_older_library_is_an_error(connect: Any) -> None:
    with servers.running(module=False) as server:
        cell = connect(server.port, backend="auto")
        with server.admin as admin:
            text = LIBRARY.read_text()
            admin.execute_command("FUNCTION", "LOAD", text.replace("local VERSION = '1.", "local VERSION = '0."))
            with pytest.raises(Exception, match=r"too old: the server has '0\.0\.0', and this client needs 1\.0\.0"):
                await cell.throttle("k", RATE)
            admin.execute_command("FUNCTION", "LOAD", "REPLACE", text)
        assert await cell.throttle("k", RATE)


async def test_a_key_goes_from_one_to_the_other(server: servers.Server, flavor: tuple[str, str], connect: Any) -> None:
    with server.admin as admin:
        admin.execute_command("FUNCTION", "LOAD", "REPLACE", LIBRARY.read_text())
    cells = [connect(server.port, backend=backend) for backend in ("module", "functions")]
    left = [(await cells[n % 2].throttle(f"both-{flavor}", RATE)).remaining for n in range(9)]
    assert left == [7, 6, 5, 4, 3, 2, 1, 0, 0]


async def test_auto_determines_the_backend_again_when_the_module_is_gone(connect: Any) -> None:
    with servers.running() as server:
        auto = connect(server.port, backend="auto")
        assert await auto.throttle("k", RATE)
        server.stop()
        server.module = False
        assert server.start()
        await asyncio.sleep(0.05)  # the event loop reads that the connection is closed
        with pytest.raises(Exception, match="Function not found"):
            await auto.throttle("k", RATE)
        with server.admin as admin:
            admin.execute_command("FUNCTION", "LOAD", LIBRARY.read_text())
        assert (await auto.throttle("k", RATE)).remaining == 7


@pytest.mark.parametrize("backend", ["module", "functions", "auto"])
async def test_a_server_that_has_neither_is_an_error_of_the_set_up(
    flavor: tuple[str, str], connect: Any, backend: Any
) -> None:
    with servers.running(module=False) as server:
        cell = connect(server.port, backend=backend)
        guard = guard_of(cell, FailOpen())
        for _ in range(2):
            with pytest.raises(Exception, match=r"has not loaded redis-cell|Function not found"):
                await guard.throttle("k", RATE)


def test_a_storage_of_limits(library: servers.Server) -> None:
    storage = storage_from_string(f"redis-cell://127.0.0.1:{library.port}?when_unavailable=fail_closed&backend=auto")
    assert isinstance(storage, redis_cell.limits.RedisCellStorage)
    storage.reset()
    limiters = [FixedWindowRateLimiter(storage), redis_cell.limits.GcraRateLimiter(storage)]
    for limiter in limiters:
        assert sum(limiter.hit(RateLimitItemPerHour(5), "user") for _ in range(20)) == 5
        assert limiter.get_window_stats(RateLimitItemPerHour(5), "user").remaining == 0
