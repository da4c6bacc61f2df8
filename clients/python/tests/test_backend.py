"""The same calls by the module's commands and by the functions of the function library."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest
from limits import RateLimitItemPerHour
from limits.storage import storage_from_string
from limits.strategies import FixedWindowRateLimiter

import redis_cell.limits
import servers
from conftest import guard_of
from redis_cell import (
    FailClosed,
    FailOpen,
    Rate,
    Take,
)
from redis_cell.backend import too_old

RATE = Rate(8, per=1000)


@pytest.fixture(scope="module", params=[False, True], ids=["without the module", "with it"])
def shared_library(request: pytest.FixtureRequest) -> Iterator[servers.Server]:
    with servers.running(module=request.param) as server:
        server.load_functions()
        yield server


@pytest.fixture
def library(shared_library: servers.Server) -> servers.Server:
    """An empty server with the function library, and without or with the module."""
    shared_library.empty()
    return shared_library


def test_a_library_without_a_version_is_too_old() -> None:
    assert too_old(b"1.0.0") is None and too_old("2.1.0-rc.1") is None
    for reply in (b"0.9.9", b"", b"@VERSION@", b"1.0", b"1.0.0.1", b"1.0.\xff", 7):
        assert too_old(reply), reply


async def test_functions_are_called_also_where_the_module_is(library: servers.Server, connect: Any) -> None:
    cell = connect(library.port, backend="functions")
    assert await cell.throttle("k", RATE)
    with pytest.raises(NotImplementedError, match=r"CL.BTHROTTLE needs the module"):
        await cell.bthrottle("k", RATE, timeout=1)
    assert library.calls("cl.throttle") == 0


async def test_auto_finds_out_once(library: servers.Server, connect: Any) -> None:
    auto = connect(library.port, backend="auto")
    for _ in range(3):
        assert await auto.throttle("k", RATE)
    # Without the module it reads the version of the library.
    expected = [3, 0, 0] if library.module else [0, 3, 1]
    assert [library.calls(name) for name in ("cl.throttle", "fcall", "fcall_ro")] == expected


async def test_waits_without_the_module_ask_again(library: servers.Server, connect: Any) -> None:
    rate, guard = Rate(1, per=0.05, burst=0), guard_of(connect(library.port, backend="auto"), FailClosed())
    begun = time.monotonic()
    for _ in range(4):
        assert await guard.bmtake(Take("wait", rate), timeout=10, flow="f")
    assert time.monotonic() - begun >= 0.15
    full = Take("full", Rate(1, per=3600))
    assert await guard.bmtake(full, timeout=10)
    assert await guard.bthrottle("full", Rate(1, per=3600), timeout=10) is None
    if not library.module:
        soon = Take("soon", Rate(1, per=2))
        assert await guard.bmtake(soon, timeout=10)
        with pytest.raises(NotImplementedError, match=r"CL\.BMTAKE needs the module"):
            await guard.bmtake(soon, timeout=10, maxlen=5)


async def test_a_user_who_may_run_functions_alone(connect: Any) -> None:
    with servers.running(module=False) as server, server.admin as admin:
        commands = "+fcall +fcall_ro +time +get +set +del +pexpiretime +client +hello"
        admin.execute_command("ACL", "SETUSER", "app", "on", ">secret", "~*", "-@all", *commands.split())
        cell = connect(server.port, backend="auto", username="app", password="secret")
        server.load_functions(servers.functions().replace("local VERSION = '1.", "local VERSION = '0."))
        with pytest.raises(Exception, match=r"too old: the server has '0\.0\.0', and this client needs 1\.0\.0"):
            await cell.throttle("k", RATE)
        server.load_functions()
        assert await cell.throttle("k", RATE)


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
        server.load_functions()
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
