"""The server is unavailable: the decisions of each choice, for calls and for the storages of limits."""

from __future__ import annotations

import asyncio
import importlib
import logging
import subprocess
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import limits.aio.strategies
import limits.strategies
import pytest
import redis
import redis.asyncio
from limits import RateLimitItemPerHour
from limits.errors import ConfigurationError, StorageError
from limits.storage import storage_from_string
from limits.strategies import FixedWindowRateLimiter

import redis_cell.limits
import servers
from conftest import FLAVORS, PAIR, Awaitable, aside, awaited, cell_of, client_class, close, guard_of, plain
from redis_cell import (
    Admitted,
    AsyncCell,
    AsyncGuard,
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
    Rate,
    Refused,
    RefusedForever,
    Take,
    WhenUnavailable,
    Window,
    traffic,
)
from redis_cell.connecting import async_connection_of, connection_of
from redis_cell.limits import ASYNC_SCHEMES, SCHEMES

RATE = Rate(8, per=1000)
NEVER = 1000.0


@pytest.fixture(params=PAIR, ids="-".join)
def flavor(request: pytest.FixtureRequest) -> tuple[str, str]:
    """What a guard decides depends on the exceptions of a library and on the way, and not on both together."""
    return request.param


def once(library: str, way: str) -> Any:
    """The retries of a client that connects once: by default redis-py 8 tries for seconds."""
    module = importlib.import_module(library + (".asyncio" if way == "asyncio" else "") + ".retry")
    return module.Retry(importlib.import_module(library + ".backoff").NoBackoff(), 0)


@pytest.fixture
def guarded(flavor: tuple[str, str], make: Any) -> Any:
    """Makes guards by the port of a server, a choice, and options of the client."""

    def guard(port: int, choice: WhenUnavailable, timeout: float = 5, **options: Any) -> Any:
        client = make(port, socket_timeout=timeout, retry=once(*flavor), **options)
        return guard_of(cell_of(client, flavor[1]), choice)

    return guard


async def by_server(call: Any) -> bool:
    """Whether the server decides a call."""
    return (await call).decided_by == "server"


LIMITERS = [
    ("throttle", RATE),
    ("bucket", Bucket(8, count=8, per=1000)),
    ("funnel", Funnel(8, count=8, per=1000)),
    ("fixed", Fixed(8, per=1000)),
    ("fixed", Fixed.per_day(8)),
    ("window", Window(8, per=1000)),
    ("log", Log(8, per=1000)),
]


async def test_nobody_listens(guarded: Any) -> None:
    port = servers.NOBODY
    open_ = guarded(port, FailOpen(ask_again=NEVER))
    closed = guarded(port, FailClosed(ask_again=NEVER))
    local = guarded(port, Local(share=2, ask_again=NEVER))
    for index, (name, limiter) in enumerate(LIMITERS):
        key = f"k{index}"
        for _ in range(3):
            answer = await getattr(open_, name)(key, limiter)
            assert isinstance(answer, Admitted) and answer.decided_by == "fail_open" and answer.taken == 1
            answer = await getattr(closed, name)(key, limiter)
            assert isinstance(answer, Refused) and answer.decided_by == "fail_closed" and answer.retry_after > 0
        # Half of the limit of 8.
        answers = [await getattr(local, name)(key, limiter) for _ in range(20)]
        assert [answer.admitted for answer in answers] == [True] * 4 + [False] * 16, name
        assert [answer.remaining for answer in answers[:4]] == [3, 2, 1, 0]
        assert {answer.decided_by for answer in answers} == {"local"} and {answer.limit for answer in answers} == {4}
        assert isinstance(answers[-1], Refused) and answers[-1].retry_after > 0
        assert isinstance(await getattr(local, name)(key, limiter, 5), RefusedForever)
        assert (await getattr(local, name)(key + "s", limiter, 9, saturate=True)).taken == 4


async def test_several_limiters_are_decided_here_from_all_or_from_none(guarded: Any) -> None:
    guard = guarded(servers.NOBODY, Local(share=2, ask_again=NEVER))
    takes = (Take("a", Rate(20, per=1000), 2), Take("b", Fixed(8, per=1000), 3), Take("c", RATE, 4, shadow=True))
    first = await guard.mtake(*takes)
    assert first and [row.remaining for row in first.values()] == [8, 1, 0]
    assert [row.taken for row in first.values()] == [2, 3, 4] and first.combined.remaining == 1
    second = await guard.mtake(*takes)
    assert isinstance(second.combined, Refused) and second["a"].remaining == 8 and second["a"].taken == 0
    third = await guard.mtake(Take("a", Rate(20, per=1000), 2), Take("c", RATE, 1, shadow=True))
    assert third and isinstance(third["c"], Refused)
    assert (await guard.mpeek(Take("a", Rate(20, per=1000), 2)))["a"].remaining == 6
    assert (await guard.peek("a", Rate(20, per=1000))).remaining == 6
    for holder, admitted in (("x", True), ("y", True), ("z", False), ("x", True)):
        assert bool(await guard.acquire("jobs", Lease(4, lease=60, holder=holder))) is admitted


@pytest.mark.parametrize("choice", [FailOpen(NEVER), FailClosed(NEVER), Local(share=2, ask_again=NEVER)])
async def test_limiters_in_shadow_refuse_nothing_and_count_for_nothing(guarded: Any, choice: WhenUnavailable) -> None:
    guard = guarded(servers.NOBODY, choice)
    shadow = Take("shadow", Rate(2, per=1000), shadow=True)
    for _ in range(3):
        answer = await guard.mtake(shadow)
        assert isinstance(answer.combined, Admitted)
    if isinstance(choice, Local):
        assert isinstance(answer["shadow"], Refused) and answer.combined.remaining == 0
        answer = await guard.mtake(Take("wide", Rate(20, per=1000)), shadow)
        assert (answer.combined.limit, answer.combined.remaining) == (10, 9)


@pytest.mark.parametrize("choice", [FailOpen(NEVER), FailClosed(NEVER), Local(share=1, ask_again=NEVER)])
async def test_errors_of_a_call_are_errors_in_every_choice(
    server: servers.Server, guarded: Any, choice: WhenUnavailable
) -> None:
    """With the server and without it."""
    for port in (server.port, servers.NOBODY):
        guard = guarded(port, choice)
        for name, limiter in LIMITERS:
            answer = await getattr(guard, name)(f"more-{limiter.kind}", limiter, 9)
            assert isinstance(answer, RefusedForever), (name, answer)
            with pytest.raises(ValueError, match="quantity"):
                await getattr(guard, name)("k", limiter, 2**63)
            with pytest.raises(TypeError, match="a key is a str or bytes"):
                await getattr(guard, name)(None, limiter)
        assert (await guard.throttle("fill", RATE, 9, saturate=True)).retry_after != 0
        with pytest.raises(ValueError, match="quantity must be at most 10000"):
            await guard.log("k", Log(100_000, per=60), 10_001)


async def test_what_the_server_rejects_of_a_log_is_rejected_here_too(cell: Any) -> None:
    """The error that `wire` raises before anything is sent is the server's."""
    saturated = await cell.log("k", Log(100_000, per=60), 10_001, saturate=True)
    assert saturated.taken > 0
    call = redis_cell.wire.log("k", Log(100_000, per=60))
    arguments = (100_000, 60_000_000, 10_001, "US")
    with pytest.raises(Exception, match="quantity"):
        await cell.run(redis_cell.Call(call.name, "k", arguments, call.read))


async def test_places_are_kept_and_given_back_here(guarded: Any) -> None:
    port = servers.NOBODY
    guard, lease = guarded(port, Local(share=1, ask_again=NEVER)), Lease(1, lease=60, holder="x")
    assert await guard.acquire("jobs", lease)
    assert await guard.renew("jobs", lease) is True
    assert await guard.renew("jobs", Lease(1, lease=60, holder="w")) is False
    assert await guard.release("jobs", lease) is True
    assert await guard.release("jobs", "x") is False
    for choice, kept in ((FailOpen(NEVER), True), (FailClosed(NEVER), False)):
        guard = guarded(port, choice)
        assert await guard.renew("jobs", lease) is kept
        assert await guard.release("jobs", "x") is False


def test_local_limits_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    from redis_cell import local
    from redis_cell.wire import log, throttle

    monkeypatch.setattr(local, "KEYS", 10)
    limiters = local.LocalLimiters(1)

    def admitted(call: Any) -> bool:
        return bool(call.decide(limiters))

    day = Rate.per_day(2)
    assert [admitted(throttle("hot", day)) for _ in range(3)] == [True, True, False]
    for number in range(100):
        assert admitted(throttle(f"address {number}", day))
        # A key that is in use is not forgotten.
        assert not admitted(throttle("hot", day))
    assert len(limiters.states) == 10
    # The calls of a thousandth of the period are one entry of a log.
    assert all(admitted(log("log", Log(10_000, per=86400))) for _ in range(5000))
    (state,) = (state for state in limiters.states.values() if isinstance(state, local._Log))
    assert len(state.entries) == 1 and state.count == 5000
    assert not admitted(log("log", Log(10_000, per=86400), 5001))


async def test_a_full_pool_is_not_an_absence(server: servers.Server, flavor: tuple[str, str], guarded: Any) -> None:
    guard = guarded(server.port, FailOpen(), max_connections=1)
    pool = plain(guard).cell.pool
    held = await async_connection_of(pool, 5) if flavor[1] == "asyncio" else connection_of(pool, 5)
    with pytest.raises(Exception, match="Too many connections"):
        await guard.throttle("k", RATE)
    await awaited(pool.release(held))
    assert await by_server(guard.throttle("k", RATE))


def blocking_pool(flavor: tuple[str, str], port: int, **options: Any) -> Any:
    library, way = flavor
    module = importlib.import_module(library + (".asyncio" if way == "asyncio" else ""))
    return module.BlockingConnectionPool(host="localhost", port=port, **options)


@pytest.mark.parametrize("blocking", [False, True], ids=["", "blocking"])
async def test_a_pool_that_fills_up_while_a_server_freezes_refuses_nobody(
    flavor: tuple[str, str], guarded: Any, blocking: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All calls are decided, and those that have waited for a connection are not sent to a server that is frozen."""
    monkeypatch.setattr(traffic, "OVERDUE", NEVER)
    with servers.running() as server:
        options: dict[str, Any] = {"max_connections": 4}
        if blocking:
            options = {"connection_pool": blocking_pool(flavor, server.port, socket_timeout=1, **options)}
        guard = guarded(server.port, FailOpen(ask_again=NEVER), timeout=1, **options)

        async def deciders() -> set[str]:
            answers = await asyncio.gather(*(aside(guard, "throttle", "k", Rate(1000, per=1000)) for _ in range(30)))
            return {answer.decided_by for answer in answers}

        # A server that answers lets all of them wait for their turn.
        assert await deciders() == {"server"}
        server.freeze()
        assert await deciders() == {"fail_open"}
        server.thaw()
        # On a busy machine, the first call may have failed before there were four.
        servers.wait_until(lambda: server.calls("cl.throttle") > 30)
        assert server.calls("cl.throttle") <= 34


async def test_calls_that_are_overdue_keep_nobody_waiting(flavor: tuple[str, str], guarded: Any) -> None:
    """Without a timeout of the client: one call waits for the frozen server, and no others wait for that one."""
    with servers.running() as server:
        guard = guarded(server.port, FailClosed(NEVER), timeout=60, max_connections=1)
        assert await by_server(guard.throttle("k", RATE))
        server.freeze()
        first = aside(guard, "throttle", "k", RATE)
        kind = traffic.AsyncTraffic if flavor[1] == "asyncio" else traffic.Traffic
        while not traffic.traffic_of(plain(guard).cell.pool, kind).under_way:
            await asyncio.sleep(0.01)
        answers = await asyncio.gather(*(aside(guard, "throttle", "k", RATE) for _ in range(5)))
        assert {answer.decided_by for answer in answers} == {"fail_closed"}
        server.thaw()
        assert await by_server(first) and await by_server(guard.throttle("k", RATE))


async def test_guards_of_one_pool_wait_for_each_other(
    server: servers.Server, flavor: tuple[str, str], guarded: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traffic, "OVERDUE", NEVER)  # however busy the machine is
    first = guarded(server.port, FailOpen(), max_connections=1)
    second = guard_of(first.cell if flavor[1] == "asyncio" else Awaitable(first.cell.cell), FailClosed())
    calls = (aside(guard, "throttle", "k", Rate(1000, per=1000)) for guard in (first, second) * 20)
    answers = await asyncio.gather(*calls)
    assert {answer.decided_by for answer in answers} == {"server"}


def test_a_child_process_does_not_wait_for_the_calls_of_its_parent() -> None:
    with servers.running() as server:
        client = redis.Redis(port=server.port, max_connections=1, socket_timeout=30)
        guard = Guard(Cell(client), when_unavailable=FailOpen(ask_again=NEVER))
        server.freeze()
        thread = threading.Thread(target=guard.throttle, args=("k", RATE))
        thread.start()
        servers.wait_until(lambda: traffic.traffic_of(client.connection_pool, traffic.Traffic).under_way)
        assert servers.in_child(lambda: not traffic.traffic_of(client.connection_pool, traffic.Traffic).under_way)
        server.thaw()
        thread.join()
        client.close()


async def test_a_frozen_server_is_asked_by_one_call_and_that_once(guarded: Any) -> None:
    with servers.running() as server:
        guard = guarded(server.port, FailOpen(ask_again=NEVER), timeout=0.5)
        assert (await guard.throttle("k", RATE)).decided_by == "server"
        server.freeze()
        answers = [await guard.throttle("k", RATE) for _ in range(20)]
        assert {answer.decided_by for answer in answers} == {"fail_open"}
        server.thaw()
        servers.wait_until(lambda: server.calls("cl.throttle") == 2)
        assert (await guard.throttle("k", RATE)).decided_by == "fail_open"


async def test_a_server_that_comes_back_decides_again(caplog: pytest.LogCaptureFixture, guarded: Any) -> None:
    with servers.running() as server:
        guard = guarded(server.port, FailClosed(ask_again=0.05))
        assert await by_server(guard.throttle("k", RATE))
        server.stop()
        assert (await guard.throttle("k", RATE)).decided_by == "fail_closed"
        plain(guard)._policy.again = 0  # another call asks, and fails
        assert (await guard.throttle("k", RATE)).decided_by == "fail_closed"
        assert server.start()
        await servers.until(lambda: by_server(guard.throttle("back", RATE)))
        assert (await guard.throttle("back", RATE)).remaining == 6
        assert server.calls("cl.throttle") == 2
    # The log names what happened once, however many calls were decided here.
    said = [(record.levelno, record.getMessage()) for record in caplog.records if record.name == "redis_cell"]
    assert len(said) == 2 and said[1] == (logging.WARNING, "the server decides again")
    assert said[0][1].startswith("the server is unavailable, and FailClosed decides: ")


async def test_a_replica_cannot_decide_until_it_is_promoted(guarded: Any) -> None:
    with servers.running() as primary, servers.running("--replicaof", f"127.0.0.1 {primary.port}") as replica:
        with replica.admin as admin:
            servers.wait_until(lambda: admin.info("replication")["master_link_status"] == "up")
            first = guarded(primary.port, FailOpen(ask_again=0.05))
            guard = guarded(replica.port, Local(share=8, ask_again=0.05))
            assert (await first.throttle("k", RATE, 6)).remaining == 2
            servers.wait_until(lambda: admin.get("k"))
            assert (await guard.throttle("k", RATE)).decided_by == "local"
            admin.execute_command("REPLICAOF", "NO", "ONE")
        await servers.until(lambda: by_server(guard.peek("k", RATE)))
        assert (await guard.throttle("k", RATE)).remaining == 1


async def test_an_error_of_the_caller_is_not_an_absence(server: servers.Server, guarded: Any) -> None:
    with server.admin as admin:
        admin.lpush("list", "x")
    guard = guarded(server.port, FailOpen())
    with pytest.raises(Exception, match="WRONGTYPE"):
        await guard.throttle("list", RATE)
    guard = guarded(server.port, FailOpen(), username="nobody", password="wrong")
    with pytest.raises(Exception, match=r"(?i)auth|password"):
        await guard.throttle("k", RATE)


async def test_a_server_that_answers_with_an_error_is_back(guarded: Any) -> None:
    with servers.running() as server:
        guard = guarded(server.port, FailOpen(ask_again=NEVER))
        policy = plain(guard)._policy
        server.stop()
        assert (await guard.throttle("k", RATE)).decided_by == "fail_open"
        assert server.start()
        with server.admin as admin:
            admin.lpush("list", "x")
        assert (await guard.throttle("k", RATE)).decided_by == "fail_open"
        policy.again = 0
        with pytest.raises(Exception, match="WRONGTYPE"):
            await guard.throttle("list", RATE)
        assert (await guard.throttle("k", RATE)).decided_by == "server"


def test_a_share_of_a_small_limit_is_one() -> None:
    client = redis.Redis(port=servers.NOBODY, retry=once("redis", "sync"))
    guard = Guard(Cell(client), when_unavailable=Local(share=8, ask_again=NEVER))
    answers = [guard.throttle("k", Rate(3, per=1000)) for _ in range(3)]
    assert [answer.admitted for answer in answers] == [True, False, False]
    assert 2600 < answers[1].retry_after <= 2667 if isinstance(answers[1], Refused) else False
    with pytest.raises(ValueError, match="share"):
        Local(share=0)


STRATEGIES = ["fixed-window", "moving-window", "sliding-window-counter", "gcra"]


def storage_of(start: str, place: str, query: str) -> Any:
    return storage_from_string(f"{start}redis-cell://{place}/0?socket_timeout=5&{query}")


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("way", ["sync", "asyncio"])
async def test_a_storage_of_limits(strategy: str, way: str) -> None:
    """20 calls against a limit of 8: with the server, without it, and with the server again."""
    module, start = (limits.strategies, "") if way == "sync" else (limits.aio.strategies, "async+")
    item = RateLimitItemPerHour(8)

    async def admitted(limiter: Any, name: str) -> int:
        return sum([bool(await awaited(limiter.hit(item, name))) for _ in range(20)])

    with servers.running() as server:
        place = f"127.0.0.1:{server.port}"
        limiters = {
            choice: module.STRATEGIES[strategy](storage_of(start, place, f"when_unavailable={choice}"))
            for choice in ("fail_open&ask_again=0.05", "fail_closed", "local&share=4")
        }
        for choice, limiter in limiters.items():
            assert await admitted(limiter, choice) == 8
            stats = await awaited(limiter.get_window_stats(item, choice))
            # A sliding window waits a sixteenth of the next one, until half a unit of eight is gone.
            assert stats.remaining == 0 and time.time() < stats.reset_time <= time.time() + 3600 * 17 / 16 + 1
            assert not await awaited(limiter.test(item, choice))
            # A refusal changes nothing: the key is as after the first eight calls.
            await awaited(limiter.clear(item, choice))
            assert (await awaited(limiter.get_window_stats(item, choice))).remaining == 8
            assert await awaited(limiter.hit(item, choice, cost=8))
        server.stop()
        expected = {"fail_open&ask_again=0.05": 20, "fail_closed": 0, "local&share=4": 2}
        for choice, limiter in limiters.items():
            assert await admitted(limiter, "unavailable") == expected[choice], choice
            assert limiter.storage.guard.unavailable
            assert bool(await awaited(limiter.test(item, "unavailable"))) == ("open" in choice)
            stats = await awaited(limiter.get_window_stats(item, "unavailable"))
            assert (stats.remaining > 0) == ("open" in choice)
        assert server.start()
        limiter = limiters["fail_open&ask_again=0.05"]
        await servers.until(lambda: by_server(awaited(limiter.storage.guard.peek("k", RATE))))
        assert await admitted(limiter, "back") == 8
        for each in limiters.values():
            await close(each.storage.client, way)


@pytest.mark.parametrize("start", ["", "async+"])
async def test_a_limit_that_the_server_refuses_is_an_error_of_the_storage(start: str) -> None:
    place = f"127.0.0.1:{servers.NOBODY}"
    storage: Any = storage_from_string(
        f"{start}redis-cell://{place}", when_unavailable="fail_closed", wrap_exceptions=True
    )
    with pytest.raises(StorageError, match="at most 1000000"):
        await awaited(storage.acquire_entry("k", 2_000_000, 3600))


async def acquired(start: str, uri: str, **options: str) -> list[bool]:
    """What three calls of a limit of two, by a storage with this address, return."""
    storage: Any = storage_from_string(start + uri, when_unavailable="fail_open", ask_again=NEVER, **options)
    results = [await awaited(storage.acquire_entry("LIMITER/k/2/1/hour", 2, 3600)) for _ in range(3)]
    await close(storage.client, "asyncio" if start else "sync")
    return results


def over_tls(folder: Path, *, days: int = 2) -> tuple[int, str, list[str]]:
    """A port, a certificate that is its own authority, and the options of a server that has both.

    A number of days below zero makes a certificate that has expired.
    """
    key, request, certificate = (str(folder / name) for name in ("key.pem", "request.pem", "certificate.pem"))
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    extensions = ["-copy_extensions", "copy"]
    for words in (
        ["req", "-new", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", request, *names],
        ["x509", "-req", "-in", request, "-signkey", key, "-days", str(days), "-out", certificate, *extensions],
    ):
        subprocess.run(["openssl", *words], check=True, capture_output=True)
    port = servers.free_port()
    files = ["--tls-cert-file", certificate, "--tls-key-file", key, "--tls-ca-cert-file", certificate]
    return port, certificate, ["--tls-port", str(port), "--tls-auth-clients", "no", *files]


@pytest.mark.parametrize(("name", "days"), [("good", 2), ("expired", -1)])
async def test_a_certificate_that_must_be_replaced_is_an_error_in_every_choice(
    name: str, days: int, tmp_path: Path
) -> None:
    port, certificate, options = over_tls(tmp_path, days=days)
    tls: dict[str, Any] = {"ssl": True, "ssl_ca_certs": certificate, "socket_timeout": 5}
    with servers.running(*options):
        for flavor in FLAVORS:
            for choice in (FailOpen(NEVER), FailClosed(NEVER), Local(share=1, ask_again=NEVER)):
                client = client_class(*flavor)(port=port, retry=once(*flavor), **tls)
                guard = guard_of(cell_of(client, flavor[1]), choice)
                for _ in range(2):
                    if name == "good":
                        assert (await guard.throttle("k", RATE)).decided_by == "server"
                    else:
                        with pytest.raises(Exception) as raised:
                            await guard.throttle("k", RATE)
                        assert "certificate has expired" in "".join(traceback.format_exception(raised.value))
                await close(client, flavor[1])


@pytest.mark.parametrize("start", ["", "async+"])
async def test_the_ways_to_connect(start: str, tmp_path: Path) -> None:
    path = tmp_path / "socket"
    port, certificate, tls = over_tls(tmp_path)
    with servers.running("--unixsocket", str(path), *tls) as server:
        with server.admin as admin:
            admin.execute_command("ACL", "SETUSER", "app", "on", ">p@ss/:?#%", "~*", "&*", "+@all")
        user = "app:p%40ss%2F%3A%3F%23%25"
        for database, uri in enumerate(
            (
                f"redis-cell://127.0.0.1:{server.port}/1?protocol=3",
                f"redis-cell://{user}@127.0.0.1:{server.port}/2?decode_responses=True",
                f"redis-cell+unix://{path}?db=3",
                f"redis-cell+unix://{user}@{path}?db=4",
                f"rediss-cell://{user}@localhost:{port}/5?ssl_ca_certs={certificate}",
            ),
            1,
        ):
            assert await acquired(start, uri) == [True, True, False], uri
            with server.admin as admin:
                assert admin.info("keyspace")[f"db{database}"]["keys"] == 1, uri
        # A certificate that nobody vouches for will not get better: an error, whatever the choice.
        # redis-py 5 has a worse text, and names the reason as the cause.
        with pytest.raises(Exception, match="connecting to localhost") as raised:
            await acquired(start, f"rediss-cell://localhost:{port}")
        assert "CERTIFICATE_VERIFY_FAILED" in "".join(traceback.format_exception(raised.value))
        assert server.calls("cl.log") == 15


@pytest.mark.parametrize("start", ["", "async+"])
async def test_a_cluster_is_found_by_any_of_its_nodes(start: str, cluster: list[servers.Server]) -> None:
    nobody = servers.NOBODY
    uri = f"redis-cell+cluster://127.0.0.1:{nobody},127.0.0.1:{cluster[0].port},[::1]:{nobody}"
    assert await acquired(start, uri) == [True, True, False]
    for place in ("127.0.0.1:many", ":7000", "[::1"):
        with pytest.raises((ConfigurationError, ValueError), match=r"host and a port|Invalid IPv6"):
            storage_from_string(f"{start}redis-cell+cluster://127.0.0.1,{place}?when_unavailable=fail_open")


def test_a_fixed_window_continues_from_limits_own_counter(server: servers.Server) -> None:
    item = RateLimitItemPerHour(8)
    before = FixedWindowRateLimiter(storage_from_string(f"redis://127.0.0.1:{server.port}"))
    after = FixedWindowRateLimiter(storage_of("", f"127.0.0.1:{server.port}", "when_unavailable=fail_closed"))
    assert all(before.hit(item, "k") for _ in range(3)) and all(after.hit(item, "k") for _ in range(3))
    assert after.get_window_stats(item, "k").remaining == 2 and before.get_window_stats(item, "k").remaining == 2
    assert not after.hit(item, "k", cost=3)
    assert after.hit(item, "k", cost=2)


async def test_a_guard_that_decides_by_itself_waits_by_itself(guarded: Any) -> None:
    server, take, slow = servers.Lossy(1, 0), Take("a", Rate(1, per=0.3, burst=0)), Rate(1, per=3600)
    guard, begun = guarded(server.port, Local(share=1, ask_again=60)), time.monotonic()
    for _ in range(3):
        assert (await guard.bmtake(take, timeout=10)).combined.decided_by == "local"
    assert time.monotonic() - begun >= 0.6
    assert await guard.bmtake(take, timeout=0.01) is None
    assert await guard.bthrottle("b", slow, timeout=None)
    assert await guard.bthrottle("b", slow, timeout=1) is None
    # Nobody listens behind the proxy. One call has asked, and none since then: not while it waited either.
    assert server.connections <= 2
    for choice, admitted in ((FailOpen(), True), (FailClosed(), False)):
        answer = await guarded(server.port, choice).bmtake(take, timeout=10)
        assert bool(answer) is admitted and answer.combined.decided_by.startswith("fail_")
    server.listener.close()


async def test_a_busy_process_does_not_take_the_server_for_frozen(server: servers.Server) -> None:
    """While the process does something else, replies arrive. Calls in the queue must not be decided before them."""
    async with redis.asyncio.Redis(port=server.port, max_connections=6) as client:
        guard = AsyncGuard(AsyncCell(client), when_unavailable=FailClosed())
        for stalls in (1, 3):
            calls = [asyncio.ensure_future(guard.throttle(f"busy:{n}", Rate(1, per=60))) for n in range(150)]
            for _ in range(stalls):
                await asyncio.sleep(0)
                time.sleep(0.7)
            answers = await asyncio.gather(*calls)
            assert [answer for answer in answers if answer.decided_by != "server"] == []


def test_first_calls_that_wait_for_a_frozen_cluster_fail_with_the_first() -> None:
    with servers.running("--cluster-enabled", "yes") as server:
        query = f"when_unavailable=fail_open&ask_again={NEVER}&socket_timeout=1"
        storage = storage_from_string(f"redis-cell+cluster://127.0.0.1:{server.port}?{query}")
        assert isinstance(storage, redis_cell.limits.RedisCellStorage)
        cell, made = storage.guard.cell, list[None]()
        assert isinstance(cell, redis_cell.limits._LateCell)  # pyright: ignore[reportPrivateUsage]
        make = cell._make  # pyright: ignore[reportPrivateUsage]
        cell._make = lambda: (made.append(None), make())  # pyright: ignore[reportPrivateUsage]
        server.freeze()
        with ThreadPoolExecutor(10) as pool:
            assert all(pool.map(lambda _: storage.acquire_entry("LIMITER/k/1/1/hour", 1, 3600), range(10)))
        assert len(made) == 1
        # A later call tries again.
        with pytest.raises(Exception, match=r"(?i)cluster"):
            _ = storage.client
        assert len(made) == 2
        server.thaw()


@pytest.mark.parametrize("start", ["", "async+"])
async def test_a_single_server_is_no_cluster(server: servers.Server, start: str) -> None:
    storage: Any = storage_from_string(
        f"{start}redis-cell+cluster://127.0.0.1:{server.port}", when_unavailable="fail_open"
    )
    for _ in range(2):
        with pytest.raises(Exception, match="Cluster mode is not enabled"):
            await awaited(storage.acquire_entry("LIMITER/k/1/1/hour", 1, 3600))


@pytest.mark.parametrize("start", ["", "async+"])
@pytest.mark.parametrize("kind", ["", "+cluster"])
def test_an_option_that_does_not_exist_is_an_error_at_once(start: str, kind: str) -> None:
    address = f"{start}redis-cell{kind}://localhost:1"
    for option in ("socket_time", "pool"):
        with pytest.raises(ConfigurationError, match=option):
            storage_from_string(address, when_unavailable="fail_open", **{option: 1})
        with pytest.raises(ConfigurationError, match=option):
            storage_from_string(f"{address}?{option}=1", when_unavailable="fail_open")
    pool: Any = redis.ConnectionPool()
    with pytest.raises(ConfigurationError, match="the storage makes its own connections"):
        storage_from_string(address, when_unavailable="fail_open", connection_pool=pool)
    assert storage_from_string(address, when_unavailable="fail_open", password="p", socket_timeout=2, max_connections=7)


@pytest.mark.parametrize("start", ["", "async+"])
@pytest.mark.parametrize("kind", ["", "+cluster"])
async def test_a_reset_deletes_the_keys_of_its_prefix(
    server: servers.Server, cluster: list[servers.Server], start: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In blocks, not one after the other."""
    monkeypatch.setattr(redis_cell.limits, "BLOCK", 100)
    nodes = cluster if kind else [server]
    storage: Any = storage_from_string(
        f"{start}redis-cell{kind}://127.0.0.1:{nodes[0].port}", when_unavailable="fail_closed"
    )
    filling: Any = storage_from_string(f"redis-cell{kind}://127.0.0.1:{nodes[0].port}", when_unavailable="fail_closed")
    filling.client.set("other", 1)
    assert await awaited(storage.reset()) == 0
    pipeline = filling.client.pipeline(transaction=False)
    for number in range(1000):
        pipeline.set(f"LIMITS:LIMITER/k{number}", 1)
    pipeline.execute()
    assert await awaited(storage.reset()) == 1000
    assert filling.client.keys("*", **({"target_nodes": "all"} if kind else {})) == [b"other"]
    if not kind:
        assert server.calls("del") <= 100
    filling.client.close()
    await close(storage.client, "asyncio" if start else "sync")


@pytest.mark.parametrize("scheme", ["redis-cell", "redis-cell+cluster", "rediss-cell+cluster"])
def test_a_storage_starts_without_a_server(scheme: str) -> None:
    storage = storage_from_string(f"{scheme}://127.0.0.1:{servers.NOBODY}?when_unavailable=fail_open")
    assert isinstance(storage, redis_cell.limits.RedisCellStorage)
    assert storage.acquire_entry("LIMITER/k/1/1/hour", 1, 3600)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("", "when_unavailable is missing: choose when_unavailable="),
        ("when_unavailable=maybe", "when_unavailable is maybe: choose when_unavailable="),
        ("when_unavailable=local", "when_unavailable=local needs share"),
        ("when_unavailable=local&share=many", "share"),
        ("when_unavailable=fail_open&ask_again=soon", "ask_again"),
        ("when_unavailable=fail_open&ask_again=nan", "ask_again"),
        ("when_unavailable=local&share=2&ask_again=-1", "ask_again"),
        ("when_unavailable=fail_open&backend=both", "backend must be"),
        ("when_unavailable=fail_open&timeout=long", "timeout must be a number"),
        ("when_unavailable=fail_open&timeout=-1", "timeout must be a number"),
        ("when_unavailable=fail_open&socket_timeout=abc", "socket_timeout"),
    ],
)
@pytest.mark.parametrize("start", ["", "async+"])
def test_a_uri_makes_the_choice(start: str, query: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        storage_from_string(f"{start}redis-cell://localhost:1?{query}")


@pytest.mark.parametrize("scheme", SCHEMES + ASYNC_SCHEMES)
def test_an_address_is_checked_when_the_storage_is_made(scheme: str) -> None:
    place = "/socket?socket_timeout=abc" if scheme.endswith("+unix") else "localhost:x?a=b"
    with pytest.raises(ConfigurationError, match=r"socket_timeout|Port"):
        storage_from_string(f"{scheme}://{place}", when_unavailable="fail_open")


def test_options_make_the_choice_as_well() -> None:
    storage = storage_from_string("redis-cell://localhost:1", when_unavailable="local", share=3)
    assert isinstance(storage, redis_cell.limits.RedisCellStorage)
    assert storage.guard._policy.choice == Local(3)  # pyright: ignore[reportPrivateUsage]
