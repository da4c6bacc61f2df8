"""A call is sent once, whatever happens to it, and to the right node of a cluster."""

from __future__ import annotations

import asyncio
import functools
import importlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

import servers
from conftest import LIBRARIES, PATIENCE, awaited, cell_of, client_class, close
from redis_cell import AsyncCell, Cell, Lease, Rate, Take, wire
from redis_cell.connecting import connection_of, patience

RATE = Rate(5, per=1000)


async def test_a_call_without_a_reply_is_not_sent_again(connect: Any) -> None:
    with servers.running() as server:
        cell = connect(server.port, socket_timeout=0.4)
        await cell.throttle("k", RATE)
        server.freeze()
        # A retry reaches the server after it continues, and is then a second call.
        timer = threading.Timer(1.2, server.thaw)
        timer.start()
        with pytest.raises(Exception, match="Timeout reading"):
            await cell.throttle("k", RATE)
        timer.join()
        servers.wait_until(lambda: server.calls("cl.throttle") == 2)
        assert (await cell.throttle("k", RATE)).remaining == 2
        assert server.calls("cl.throttle") == 3


@pytest.mark.parametrize("clustered", [False, True], ids=["server", "cluster"])
async def test_idle_connections_that_the_server_has_closed_fail_no_call(
    request: pytest.FixtureRequest, connect: Any, clustered: bool
) -> None:
    nodes = request.getfixturevalue("cluster") if clustered else [request.getfixturevalue("server")]
    cell = connect(nodes[0].port, socket_timeout=30, clustered=clustered)
    keys = [f"k{n}" for n in range(20)]
    await asyncio.gather(*(cell.throttle(key, RATE) for key in keys))
    for node in nodes:
        with node.admin as admin:
            admin.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    await asyncio.sleep(0.05)  # the event loop reads what the sockets have
    answers = await asyncio.gather(*(cell.throttle(key, RATE) for key in keys))
    assert [answer.remaining for answer in answers] == [3] * 20


async def test_a_waiting_call_may_outlast_the_timeout_of_the_client(server: servers.Server, connect: Any) -> None:
    cell, rate = connect(server.port, socket_timeout=0.2), Rate(1, per=0.7)
    # Not commandstats, which on Redis 7.0 also counts the checks of the module at a client's turn.
    before = server.counted("bthrottle_admitted")
    assert await cell.bthrottle("k", rate, timeout=10)
    assert await cell.bthrottle("k", rate, timeout=10)
    assert await cell.bthrottle("k", rate, timeout=None)
    assert await cell.bmtake(Take("k", rate), timeout=10)
    assert server.counted("bthrottle_admitted") == before + 3


async def fails_in_time(cell: Any, method: str, *arguments: Any, margin: float = 0.3, **options: Any) -> None:
    """Makes a call that fails because the server does not answer. A blocking one is made by another thread."""
    call = functools.partial(getattr(getattr(cell, "cell", cell), method), *arguments, **options)
    said = r"(?i)no (reply|connection)|timeout|timed out|not known|cannot|no master"
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Exception, match=said):
        patch.setattr("redis_cell.sending.MARGIN", margin)
        await asyncio.wait_for(call() if isinstance(cell, AsyncCell) else asyncio.to_thread(call), 30)


@pytest.mark.parametrize("connection", ["fresh", "used", "lost", "unchecked"])
@pytest.mark.parametrize("kind", ["plain", "waiting", "pipelined"])
async def test_a_call_of_a_frozen_server_ends(flavor: tuple[str, str], make: Any, kind: str, connection: str) -> None:
    """Whatever the client's own timeout and retries are. redis-py 5 and valkey-py have no timeout."""
    _, way = flavor
    options: dict[str, Any] = {"pipelined": True} if kind == "pipelined" and way == "asyncio" else {}
    with servers.running() as server:
        client = make(server.port, socket_timeout=None, health_check_interval=60)
        # A client may be used before it has a cell, and by others.
        await awaited(client.ping())
        cell = cell_of(client, way, **options)
        pool = client.connection_pool
        if connection in ("fresh", "lost"):
            await awaited(pool.disconnect())
        if connection == "fresh":
            pool.reset()
        if connection == "unchecked":
            pool._available_connections[0].next_health_check = -1
        server.freeze()
        if kind == "waiting":
            await fails_in_time(cell, "bthrottle", "k", RATE, timeout=0.2)
        else:
            await fails_in_time(cell, "throttle", "k", RATE)
        server.thaw()
        # Its timeout is what it was.
        assert await cell.throttle("after", RATE)
        (idle,) = pool._available_connections
        assert idle.socket_timeout is None
        if way == "sync":
            assert idle._sock.gettimeout() is None


@pytest.mark.filterwarnings("error:unclosed <socket:ResourceWarning", "error::pytest.PytestUnraisableExceptionWarning")
async def test_a_name_that_is_looked_up_forever_delays_nobody(
    server: servers.Server, connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, look_up, looked_up = threading.Event(), socket.getaddrinfo, list[Any]()

    def late(*arguments: Any, **options: Any) -> Any:
        found.wait(60)
        looked_up.append(arguments)
        return look_up(*arguments, **options)

    with server.admin as admin:
        clients, cell = admin.info("clients")["connected_clients"], connect(server.port, host="localhost")
        with monkeypatch.context() as patch:
            patch.setattr(socket, "getaddrinfo", late)
            try:
                await fails_in_time(cell, "throttle", "k", RATE)
                assert not looked_up
            finally:
                found.set()
            servers.wait_until(lambda: looked_up)
        # A connection that was made too late is closed.
        await servers.until(lambda: admin.info("clients")["connected_clients"] <= clients)
    assert await cell.throttle("k", RATE)


def test_callers_share_the_lookup_of_a_name(server: servers.Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call ends in time, and the name server that never answers keeps one thread, also after further calls."""
    found, look_up, looked_up = threading.Event(), socket.getaddrinfo, list[Any]()

    def late(host: str, *arguments: Any, **options: Any) -> Any:
        if host == "localhost":
            looked_up.append(host)
            found.wait(60)
        return look_up(host, *arguments, **options)

    def call() -> None:
        with redis.Redis("localhost", server.port, socket_timeout=0.3) as client:
            with pytest.raises(redis.TimeoutError):
                Cell(client).throttle("k", RATE)
            found.wait(60)
            assert Cell(client).throttle("k", Rate(100, per=1))

    def child() -> bool:
        """A forked process has no such thread, so it looks the name up by itself."""
        found.set()
        with redis.Redis("localhost", server.port) as client:
            return bool(Cell(client).throttle("k", Rate(100, per=1)))

    before = threading.active_count()
    with monkeypatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", late)
        with ThreadPoolExecutor(20) as threads:
            try:
                calls = [threads.submit(call) for _ in range(20)]
                servers.wait_until(lambda: looked_up)
                for _ in range(2):
                    client = redis.Redis("localhost", server.port, socket_timeout=0.3)
                    with client, pytest.raises(redis.TimeoutError):
                        Cell(client).throttle("k", RATE)
                assert threading.active_count() <= before + 20 + 1 and len(looked_up) == 1
                assert servers.in_child(child)
            finally:
                found.set()
        for each in calls:
            each.result()


def test_a_process_that_ends_connects_without_a_thread(server: servers.Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    with redis.Redis(port=server.port) as client, monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        assert Cell(client).throttle("k", RATE)


async def test_who_is_refused_is_told_at_the_first_attempt(server: servers.Server, connect: Any) -> None:
    """By default, redis-py 8 would make ten more, which takes seconds."""
    with server.admin as admin:
        admin.acl_setuser("ann", enabled=True, passwords=["+secret"])
        attempts = admin.info("stats")["total_connections_received"]
        with pytest.raises(Exception, match="invalid username-password pair"):
            await connect(server.port, username="ann", password="wrong").throttle("k", RATE)
        assert admin.info("stats")["total_connections_received"] == attempts + 1
        admin.acl_deluser("ann")


async def test_a_write_to_a_frozen_server_ends(connect: Any) -> None:
    """The buffers of the sockets are full before the server has read all calls of a pipeline."""
    with servers.running() as server:
        cell = connect(server.port, socket_timeout=None)
        await cell.throttle("k", RATE)
        server.freeze()
        await fails_in_time(cell, "pipeline", *[wire.throttle("k" * 10_000, RATE)] * 2000)
        server.thaw()


@pytest.mark.parametrize("is_alone", [True, False], ids=["alone", "with another"])
async def test_the_search_for_a_primary_ends_when_a_sentinel_is_frozen(
    server: servers.Server, flavor: tuple[str, str], is_alone: bool
) -> None:
    """Another Sentinel is asked then."""
    library, way = flavor
    module = importlib.import_module(library + (".sentinel" if way == "sync" else ".asyncio.sentinel"))
    with servers.sentinel(server) as frozen, servers.sentinel(server) as other:
        ports = [frozen] if is_alone else [frozen, other]
        own: dict[str, Any] = {"socket_timeout": None}
        sentinel = module.Sentinel([("127.0.0.1", port) for port in ports], sentinel_kwargs=own, **own)
        client = sentinel.master_for("mymaster")
        cell = cell_of(client, way)
        await cell.throttle("k", RATE)
        await awaited(client.connection_pool.disconnect())
        with redis.Redis(port=frozen) as admin:
            process = admin.info("server")["process_id"]
        os.kill(process, signal.SIGSTOP)
        if is_alone:
            await fails_in_time(cell, "throttle", "k", RATE)
        else:
            assert (await cell.throttle("k", RATE)).remaining == 3
        os.kill(process, signal.SIGCONT)
        assert await cell.throttle("k", RATE)
        await close(client, way)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_socket_has_its_own_timeout_between_waits(server: servers.Server, library: str) -> None:
    """A connection of a Sentinel is in its pool again, and may be another thread's, before the deadline of the call."""
    without_handshake = {f"{library}_connect_func": lambda connection: connection._parser.on_connect(connection)}
    client = client_class(library, "sync")(port=server.port, socket_timeout=None, **without_handshake)
    pool = client.connection_pool
    connection = connection_of(pool, 5)
    assert connection._sock.gettimeout() is None
    with patience(connection, 5):
        connection.send_command("PING")
        assert connection._sock.gettimeout() is None
        connection.read_response()
        assert connection._sock.gettimeout() is None
        connection._sock.settimeout(0)  # by another thread
    assert connection._sock.gettimeout() == 0
    pool.disconnect()


async def test_the_search_for_the_nodes_of_a_cluster_ends(connect: Any) -> None:
    with servers.cluster(1) as (node,):
        cell = connect(node.port, clustered=True, socket_timeout=None)
        assert await cell.throttle("k", RATE)
        node.freeze()
        # The first call has no reply, and the second one looks for the nodes.
        for _ in range(2):
            await fails_in_time(cell, "throttle", "k", RATE)
        node.thaw()
        assert await cell.throttle("after", RATE)


async def test_all_replies_of_a_handshake_have_one_time(server: servers.Server, connect: Any) -> None:
    """Each of them comes in time, and together they do not."""
    with servers.lossy(server, 0) as slow:
        cell = connect(slow.port, client_name="slow", db=1, socket_timeout=None)
        slow.delay = 0.4
        await fails_in_time(cell, "throttle", "slow", RATE, margin=1)
        slow.delay = 0


def decorated(kind: Any) -> Any:
    def connect(self: Any) -> Any:  # no coroutine function, and returns a coroutine of a client for asyncio
        return kind.connect(self)

    return type(kind.__name__, (kind,), {"connect": connect})


@pytest.mark.parametrize("made", [decorated, functools.partial])
async def test_connections_of_a_class_of_the_application(
    server: servers.Server, flavor: tuple[str, str], connect: Any, made: Any
) -> None:
    cell = connect(server.port)
    pool = (cell.cell if flavor[1] == "sync" else cell).pool
    pool.connection_class = made(pool.connection_class)
    assert await cell.throttle("k", RATE)


def caching(monkeypatch: pytest.MonkeyPatch, port: int, **options: Any) -> Any:
    """A client that caches replies."""
    cache = pytest.importorskip("redis.cache")
    monkeypatch.setattr("redis.connection.CacheProxyConnection.MIN_ALLOWED_VERSION", "7.0.0")
    return redis.Redis(port=port, protocol=3, cache_config=cache.CacheConfig(), **options)


@pytest.mark.parametrize("cached", [False, True], ids=["function", "cached"])
async def test_a_connection_from_before_the_first_call_ends_a_call(
    server: servers.Server, cached: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of a class that the pool does not know."""
    with servers.lossy(server, 0) as slow:
        make = functools.partial(caching, monkeypatch) if cached else redis.Redis
        client = make(port=slow.port, socket_timeout=None)
        pool = client.connection_pool
        if not cached:
            pool.connection_class = functools.partial(pool.connection_class)
        client.ping()
        slow.delay = 0.8
        await fails_in_time(cell_of(client, "sync"), "throttle", "before", RATE)
        pool.disconnect()


@pytest.mark.parametrize("cached", [False, True], ids=["", "cached"])
async def test_the_calls_of_the_application_are_tried_again(
    server: servers.Server, flavor: tuple[str, str], cached: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections that a call of this package has made are tried again like others, and after the same errors."""
    library, way = flavor
    if cached and flavor != ("redis", "sync"):
        pytest.skip("this client has no cache")
    error = importlib.import_module(library + ".exceptions").BusyLoadingError
    make = functools.partial(caching, monkeypatch) if cached else client_class(library, way)
    client = make(port=server.port, retry_on_error=[error])
    assert await cell_of(client, way).throttle("k", RATE)
    (idle,) = client.connection_pool._available_connections
    assert error in idle.retry._supported_errors
    assert idle.retry is getattr(idle, "_conn", idle).retry
    await close(client, way)


@pytest.mark.parametrize("library", LIBRARIES)
async def test_a_task_that_a_connection_starts_outlives_the_deadline(server: servers.Server, library: str) -> None:
    """Such as one that renews credentials, and uses the same client."""
    client = client_class(library, "asyncio")(port=server.port, socket_timeout=None)
    pool, ended, tasks = client.connection_pool, asyncio.Event(), list[asyncio.Task[tuple[Any, Any]]]()
    kind: Any = pool.connection_class

    async def later() -> tuple[Any, Any]:
        await ended.wait()
        (idle,) = pool._available_connections
        return idle.socket_timeout, idle.retry

    async def connect(self: Any) -> None:
        tasks.append(asyncio.create_task(later()))
        await kind.connect(self)

    pool.connection_class = type(kind.__name__, (kind,), {"connect": connect})
    assert await AsyncCell(client).throttle("k", RATE)
    ended.set()
    (idle,) = pool._available_connections
    assert [await task for task in tasks] == [(None, idle.retry)] * len(tasks) != []
    await close(client, "asyncio")


def test_an_attempt_after_a_long_pause_has_time(server: servers.Server, monkeypatch: pytest.MonkeyPatch) -> None:
    from redis.backoff import ConstantBackoff
    from redis.retry import Retry

    kind, attempts = redis.Connection, list[None]()

    def connect(self: Any) -> Any:
        attempts.append(None)
        if len(attempts) == 1:
            raise redis.ConnectionError
        return real(self)

    real: Any = kind._connect  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(kind, "_connect", connect)
    monkeypatch.setattr("redis_cell.sending.MARGIN", 2)
    with redis.Redis(port=server.port, retry=Retry(ConstantBackoff(60), 3), socket_timeout=5) as client:
        assert Cell(client).throttle("pause", RATE)
    assert len(attempts) == 2


async def test_a_reply_that_comes_late_is_no_error(connect: Any) -> None:
    """The end of a wait is the server's: its reply comes after the timeout, and how long after depends on its load."""
    with servers.running() as server:
        cell = connect(server.port)
        assert await cell.acquire("jobs", Lease(1, lease=600, holder="holder"))

        def be_late() -> None:
            servers.wait_until(lambda: server.counted("blocked_clients"))
            server.freeze()
            time.sleep(1)
            server.thaw()

        thread = threading.Thread(target=be_late)
        thread.start()
        assert await cell.bmtake(Take("jobs", Lease(1, lease=600, holder="other")), timeout=0.5) is None
        thread.join()


async def test_replies_as_text_and_over_resp3(server: servers.Server, connect: Any) -> None:
    for key, options in (("text", {"decode_responses": True}), ("3", {"protocol": 3}), ("2", {"protocol": 2})):
        cell = connect(server.port, **options)
        assert (await cell.throttle(key, RATE)).remaining == 4
        assert (await cell.mtake(Take(key, RATE), Take(key + "2", RATE)))[key].remaining == 3
        assert await cell.bthrottle(key, RATE, 5, timeout=0.1) is None
        assert any(row.key == key for row in await cell.top(100))


async def test_a_call_of_a_cluster_goes_to_its_nodes(connect: Any, cluster: list[servers.Server]) -> None:
    cell = connect(cluster[0].port, clustered=True, socket_timeout=PATIENCE)
    await cell.reset_top()
    for number in range(40):
        assert (await cell.throttle(f"user:{number}", RATE, 5)).remaining == 0
    # Each call reached one node at once: a node that redirects counts the call as rejected.
    calls = [node.calls("cl.throttle") for node in cluster]
    assert sum(calls) == 40 and all(calls)
    assert await cell.mtake(*(Take(f"{{u}}:{n}", RATE) for n in range(3)))
    with pytest.raises(Exception, match="same slot"):
        await cell.mtake(*(Take(f"u:{n}", RATE) for n in range(3)))
    # Every primary is asked for what was refused.
    for number in range(20):
        assert not await cell.throttle(f"user:{number}", RATE)
    assert {row.key for row in await cell.top(100)} == {f"user:{number}" for number in range(20)}


async def test_a_demoted_server_loses_its_connections(connect: Any) -> None:
    """Behind a proxy or a name, a new connection leads to the server that was promoted."""
    with servers.running() as server, server.admin as admin:
        cell = connect(server.port, client_name="cell")
        await cell.throttle("k", RATE)
        assert "cell" in [row["name"] for row in admin.client_list()]
        admin.replicaof("127.0.0.1", str(servers.NOBODY))
        with pytest.raises(Exception, match="read only replica"):
            await cell.throttle("k", RATE)
        await asyncio.sleep(0)  # the event loop closes the connection
        servers.wait_until(lambda: "cell" not in [row["name"] for row in admin.client_list()])
        admin.replicaof("NO", "ONE")
        assert (await cell.throttle("k", RATE)).remaining == 3


async def test_a_slot_that_has_moved_and_one_that_moves(flavor: tuple[str, str], connect: Any) -> None:
    _, way = flavor
    module = way == "sync"  # the others call the functions, because a cluster takes seconds to start
    with servers.cluster(2, module=module) as (source, target):
        cell = connect(source.port, clustered=True, backend="auto")
        with source.admin as old, target.admin as new:
            if not module:
                source.load_functions()
                target.load_functions()
            key = next(f"k{n}" for n in range(100) if old.execute_command("CLUSTER", "KEYSLOT", f"k{n}") < 8000)
            slot = old.execute_command("CLUSTER", "KEYSLOT", key)
            old_id, new_id = old.execute_command("CLUSTER", "MYID"), new.execute_command("CLUSTER", "MYID")
            assert (await cell.throttle(key, RATE)).remaining == 4
            new.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", old_id)
            old.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", new_id)
            old.execute_command("MIGRATE", "127.0.0.1", target.port, key, 0, 5000)
            # The state is on the new node, and the slot still belongs to the old one, which answers ASK.
            assert (await cell.throttle(key, RATE)).remaining == 3
            for node in (new, old):
                node.execute_command("CLUSTER", "SETSLOT", slot, "NODE", new_id)
            # The client's map of the slots is out of date: the old node answers MOVED.
            assert (await cell.throttle(key, RATE)).remaining == 2
            assert (await cell.throttle(key, RATE)).remaining == 1


def promote(primary: servers.Server, replica: servers.Server) -> None:
    """Stops a primary, and promotes its replica."""
    primary.stop()
    with replica.admin as admin:
        admin.execute_command("CLUSTER", "FAILOVER", "TAKEOVER")
        servers.wait_until(lambda: admin.info("replication")["role"] == "master")


async def succeeded(call: Callable[[], Any]) -> Any:
    """The answer to a call that is made until it succeeds."""
    end = time.monotonic() + 20
    while True:
        try:
            return await call()
        except Exception:
            assert time.monotonic() < end
            await asyncio.sleep(0.1)


async def test_a_cluster_whose_replica_is_promoted(connect: Any) -> None:
    with servers.cluster(1, replicas=1) as (primary, replica):
        cell = connect(primary.port, socket_timeout=1, clustered=True)
        assert (await cell.throttle("k", RATE, 3)).remaining == 2
        with primary.admin as admin:
            admin.execute_command("WAIT", 1, 5000)
        promote(primary, replica)
        with pytest.raises(Exception, match=r"(?i)connect|closed|timeout"):
            await cell.throttle("k", RATE)
        answer = await succeeded(lambda: cell.throttle("k", RATE))
        assert answer.remaining == 1 and replica.calls("cl.throttle") == 1


async def test_top_finds_the_replica_that_is_promoted(connect: Any) -> None:
    with servers.cluster(1, replicas=1) as (primary, replica):
        cell = connect(primary.port, socket_timeout=1, clustered=True)
        await cell.top()
        promote(primary, replica)
        await succeeded(cell.reset_top)
        assert await cell.top() == [] and replica.calls("cl.top")
