"""What docs/clients.md says about redis-py, valkey-py, coredis and valkey-glide, with their newest versions."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import coredis
import glide
import pytest
import redis
import redis.asyncio
import servers
import valkey
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.maint_notifications import MaintNotificationsConfig
from redis.retry import Retry

from clients import connect, connect_to_cluster

ALL = ("redis-py", "valkey-py", "coredis", "glide")
POOLED = ("redis-py", "valkey-py")
SHARED = ("coredis", "glide")

# One unit an hour: no client is admitted by the passage of time.
TAKE = ("CL.THROTTLE", "k", 0, 1, 3600)
GIVE_BACK = ("CL.REFUND", "k", 0, 1, 3600)
WAIT = ("CL.BTHROTTLE", "k", 0, 1, 3600, 1, 0)


@pytest.fixture
def server() -> Iterator[servers.Server]:
    """A server whose key `k` has no units left."""
    with servers.running() as server:
        with server.admin as admin:
            admin.execute_command(*TAKE)
        yield server


async def wait_until(condition: Callable[[], bool]) -> None:
    for _ in range(3_000):
        if condition():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("waited for a minute")


def queue(server: servers.Server) -> set[str]:
    """The connections that wait in the server. What INFO commandstats counts of them differs between servers."""
    with server.admin as admin:
        return {client["id"] for client in admin.client_list() if "b" in client["flags"]}


def waiting(server: servers.Server) -> int:
    return len(queue(server))


def call(server: servers.Server, *words: Any) -> Any:
    with server.admin as admin:
        return admin.execute_command(*words)


@contextlib.asynccontextmanager
async def started(awaitable: Any) -> AsyncIterator[asyncio.Task[Any]]:
    task = asyncio.ensure_future(awaitable)
    try:
        yield task
    finally:
        task.cancel()
        with contextlib.suppress(BaseException):
            await task


# Timeouts and retries: the table.


def test_the_defaults_of_redis_py() -> None:
    for module in (redis, redis.asyncio):
        client = module.Redis()
        assert client.get_connection_kwargs()["socket_timeout"] == 5
        assert client.get_retry()._retries > 0


@pytest.mark.parametrize("notifications", [True, False])
async def test_connections_that_the_server_has_closed(server: servers.Server, notifications: bool) -> None:
    options = {} if notifications else {"maint_notifications_config": MaintNotificationsConfig(enabled=False)}
    client = redis.asyncio.Redis(port=server.port, retry=AsyncRetry(NoBackoff(), 0), **options)
    blocking = redis.Redis(port=server.port, retry=Retry(NoBackoff(), 0))
    await client.ping()
    blocking.ping()
    with server.admin as admin:
        admin.execute_command("CLIENT", "KILL", "TYPE", "normal")
    blocking.ping()
    blocking.close()
    await asyncio.sleep(0.2)
    with pytest.raises(redis.ConnectionError) if notifications else contextlib.nullcontext():
        await client.ping()
    await client.aclose()


def test_the_defaults_of_valkey_py() -> None:
    options = valkey.Valkey().get_connection_kwargs()
    assert options.get("socket_timeout") is None and options.get("retry") is None


def test_the_defaults_of_coredis() -> None:
    parameters = inspect.signature(coredis.Redis.__init__).parameters
    assert parameters["stream_timeout"].default is None
    assert "retries=2" in str(parameters["retry_policy"].default)


OPTIONS: dict[str, dict[str, Any]] = {
    "redis-py": {"socket_timeout": 0.3},
    "valkey-py": {"socket_timeout": 0.3},
    "coredis": {"stream_timeout": 0.3},
    "glide": {"request_timeout": 300},
}
OFF: dict[str, dict[str, Any]] = {
    "redis-py": {"retry": redis.asyncio.retry.Retry(NoBackoff(), 0)},
    "valkey-py": {},
    "coredis": {"retry_policy": coredis.retry.NoRetryPolicy()},
    "glide": {},
}


@pytest.mark.parametrize(("name", "off", "again"), [
    ("redis-py", False, True), ("redis-py", True, False), ("valkey-py", False, False), ("glide", False, False),
    ("coredis", False, True), ("coredis", True, False),
])  # fmt: skip
async def test_a_call_without_a_reply(server: servers.Server, name: str, off: bool, again: bool) -> None:
    """The call has waited in the socket of a frozen server, which continues and counts it, after the timeout."""
    async with connect(name, server.port, **OPTIONS[name], **(OFF[name] if off else {})) as client:
        await client.call("CL.PEEK", "k", 0, 1, 3600)
        server.freeze()
        async with started(client.call(*TAKE)) as call_:
            await asyncio.sleep(0.6)
            server.thaw()
            if again:
                assert (await call_)[0] == 1
            else:
                with pytest.raises(Exception, match=r"(?i)time"):
                    await call_
        await wait_until(lambda: server.calls("cl.throttle") >= (3 if again else 2))
        assert again or server.calls("cl.throttle") == 2


@pytest.mark.parametrize(("name", "off", "again"), [
    ("redis-py", False, True), ("redis-py", True, False), ("valkey-py", False, False),
    ("coredis", False, True), ("coredis", True, False),
])  # fmt: skip
async def test_a_call_whose_connection_breaks(server: servers.Server, name: str, off: bool, again: bool) -> None:
    options = OFF[name] if off else {}
    async with connect(name, server.port, **options) as client, started(client.call(*WAIT)) as call_:
        await wait_until(lambda: waiting(server) == 1)
        call(server, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        if again:
            await wait_until(lambda: waiting(server) == 1)
        else:
            with pytest.raises(Exception, match=r"(?i)connection|closed|lost|reset"):
                await call_
            assert waiting(server) == 0


# Waiting calls.


async def test_redis_py_gives_up_and_calls_again_behind_the_others(server: servers.Server) -> None:
    async with (
        connect("redis-py", server.port, socket_timeout=0.5) as impatient,
        connect("valkey-py", server.port) as patient,
        started(impatient.call(*WAIT)) as first,
    ):
        await wait_until(lambda: waiting(server) == 1)
        lost = queue(server)
        async with started(patient.call(*WAIT)) as second:
            await wait_until(lambda: waiting(server) == 2 and not lost & queue(server))
            call(server, *GIVE_BACK)
            assert (await second)[0] == 0
            assert not first.done()


async def test_glide_keeps_its_connection_and_loses_the_units(server: servers.Server) -> None:
    async with connect("glide", server.port) as client:
        start = asyncio.get_running_loop().time()
        with pytest.raises(Exception, match="timed out"):
            await client.call(*WAIT)
        assert asyncio.get_running_loop().time() - start >= 0.25
        assert waiting(server) == 1
        call(server, *GIVE_BACK)
        await wait_until(lambda: waiting(server) == 0)
        assert call(server, "CL.PEEK", "k", 0, 1, 3600)[0] == 1  # admitted, and nobody has read it


@pytest.mark.parametrize(("name", "options"), [
    ("redis-py", {"socket_timeout": 20, **OFF["redis-py"]}), ("valkey-py", {}),
    ("coredis", OFF["coredis"]), ("glide", {"request_timeout": 20_000}),
])  # fmt: skip
async def test_a_timeout_above_that_of_the_call(server: servers.Server, name: str, options: dict[str, Any]) -> None:
    async with connect(name, server.port, **options) as client:
        assert await client.call("CL.BTHROTTLE", "k", 0, 1, 3600, 1, 0.6) is None
        async with started(client.call(*WAIT)) as call_:
            await wait_until(lambda: waiting(server) == 1)
            call(server, *GIVE_BACK)
            assert [int(number) for number in (await call_)[:4]] == [0, 1, 0, -1]


def test_the_waiting_client_of_the_page(server: servers.Server) -> None:
    waiting_client = redis.Redis(port=server.port, socket_timeout=35, retry=Retry(NoBackoff(), 0))
    assert waiting_client.execute_command("CL.BTHROTTLE", "mailer", 0, 10, 1, 1, 30)[0] == 0
    assert waiting_client.execute_command(*WAIT[:-1], 0.1) is None
    waiting_client.close()


# Shared connections.

PATIENT: dict[str, dict[str, Any]] = {"glide": {"request_timeout": 60_000}}
OTHER = ("CL.PEEK", "other", 0, 1, 3600)


@pytest.mark.parametrize("name", SHARED)
async def test_later_calls_of_a_client_wait_behind_a_waiting_call(server: servers.Server, name: str) -> None:
    async with connect(name, server.port, **PATIENT.get(name, {})) as client:
        assert (await client.call(*OTHER))[0] == 0
        async with started(client.call(*WAIT)):
            await wait_until(lambda: waiting(server) == 1)
            peeks = server.calls("cl.peek")
            async with started(client.call(*OTHER)) as later:
                # A second client is served meanwhile.
                async with connect(name, server.port, **PATIENT.get(name, {})) as second:
                    assert (await second.call(*OTHER))[0] == 0
                assert (later.done(), server.calls("cl.peek")) == (False, peeks + 1)
                call(server, *GIVE_BACK)
                assert (await later)[0] == 0


@pytest.mark.parametrize("name", SHARED)
async def test_a_cancelled_call_waits_until_the_connection_is_closed(server: servers.Server, name: str) -> None:
    async with connect(name, server.port, **PATIENT.get(name, {})) as client:
        async with started(client.call(*WAIT)) as call_:
            await wait_until(lambda: waiting(server) == 1)
            call_.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call_
        assert (await connected(server, name))[0] == 0
        assert waiting(server) == 1
    await wait_until(lambda: waiting(server) == 0)


async def connected(server: servers.Server, name: str) -> Any:
    """What another client is told, for which the server has had time to notice a connection that was closed."""
    async with connect(name, server.port) as other:
        return await other.call(*OTHER)


@pytest.mark.parametrize("name", SHARED)
async def test_coredis_and_glide_send_the_calls_of_all_tasks_over_one_connection(
    server: servers.Server, name: str
) -> None:
    async with connect(name, server.port) as client:
        await client.call(*OTHER)
        with server.admin as admin:
            before = admin.info("stats")["total_connections_received"]
            await asyncio.gather(*(client.call(*OTHER) for _ in range(20)))
            assert admin.info("stats")["total_connections_received"] == before


@pytest.mark.parametrize("name", POOLED)
async def test_a_pool_takes_one_connection_for_each_waiting_call(server: servers.Server, name: str) -> None:
    async with connect(name, server.port, max_connections=2) as client, started(client.call(*WAIT)):
        await wait_until(lambda: waiting(server) == 1)
        assert (await client.call(*OTHER))[0] == 0
        async with started(client.call(*WAIT)):
            await wait_until(lambda: waiting(server) == 2)
            with pytest.raises(Exception, match=r"(?i)too many connections|no connection available"):
                await client.call(*OTHER)


# Several keys, and clusters.


@pytest.fixture(scope="module")
def cluster() -> Iterator[list[servers.Server]]:
    with servers.cluster(3) as nodes:
        yield nodes


def take_of_two(user: int) -> tuple[Any, ...]:
    second, hour = f"{{user{user}}}:second", f"{{user{user}}}:hour"
    return ("CL.MTAKE", second, "THROTTLE", 4, 1, 3600, 1, hour, "THROTTLE", 9, 1, 3600, 1)


def redirected(nodes: list[servers.Server]) -> int:
    def moved(node: servers.Server) -> int:
        with node.admin as admin:
            return int(admin.info("errorstats").get("errorstat_MOVED", {}).get("count", 0))

    return sum(moved(node) for node in nodes)


@pytest.mark.parametrize(("name", "asks"), [
    ("redis-py", 2), ("valkey-py", 1), ("coredis", 0), ("glide", 0),
])  # fmt: skip
async def test_calls_with_several_keys(cluster: list[servers.Server], name: str, asks: int) -> None:
    """They reach the node of their slot at once; some libraries ask the server for the keys of each call."""

    def asked() -> int:
        return sum(node.calls("command|getkeys") for node in cluster)

    async with connect_to_cluster(name, cluster[0].port) as client:
        await client.call("CL.THROTTLE", "any", 0, 1, 3600, 0)
        moved, before = redirected(cluster), asked()
        for user in range(20):
            rows = await client.call(*take_of_two(user + 100 * ALL.index(name)))
            assert [int(number) for number in rows[0][:2]] == [0, 5]
            await client.call("CL.THROTTLE", f"user{user}", 0, 1, 3600, 0)
        assert redirected(cluster) == moved
        assert asked() - before == 20 * asks
        with pytest.raises(Exception, match=r"(?i)slot"):
            await client.call("CL.MTAKE", "a", "THROTTLE", 4, 1, 3600, 1, "b", "THROTTLE", 9, 1, 3600, 1)


async def test_coredis_must_be_told_the_keys(cluster: list[servers.Server]) -> None:
    async with connect_to_cluster("coredis", cluster[0].port) as client:
        client.keys = False  # type: ignore[attr-defined]
        with pytest.raises(Exception, match=r"Could not map CL\.THROTTLE"):
            await client.call("CL.THROTTLE", "k", 0, 1, 3600)


async def test_top_replies_for_one_node(cluster: list[servers.Server]) -> None:
    client = redis.RedisCluster(host="127.0.0.1", port=cluster[0].port)
    for key in range(30):
        for _ in range(2):
            client.execute_command("CL.THROTTLE", f"top:{key}", 0, 1, 3600)
    primaries = [client.get_redis_connection(node) for node in client.get_primaries()]
    rows = [row for primary in primaries for row in primary.execute_command("CL.TOP", 100)]
    assert {f"top:{key}".encode() for key in range(30)} <= {row[0] for row in rows}
    client.close()
    async with connect_to_cluster("glide", cluster[0].port) as one:
        reply = await one.call("CL.TOP", 100)
        assert isinstance(reply, list) and len(reply) < len(rows)


# Replies.


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("name", ["redis-py", "valkey-py", "glide"])
async def test_replies_are_the_same_over_both_protocols(server: servers.Server, name: str, protocol: int) -> None:
    version = glide.ProtocolVersion.RESP2 if protocol == 2 else glide.ProtocolVersion.RESP3
    async with connect(name, server.port, protocol=version if name == "glide" else protocol) as client:
        key = f"{name}:{protocol}"
        assert await client.call("CL.THROTTLE", key, 15, 30, 60) == [0, 16, 15, -1, 2]
        assert await client.call("CL.BTHROTTLE", "k", 0, 1, 3600, 1, 0.01) is None
        assert (await client.call(*take_of_two(0)))[1][:4] == [0, 5, 4, -1]


async def test_replies_to_coredis(server: servers.Server) -> None:
    async with connect("coredis", server.port) as client:
        assert list(await client.call("CL.THROTTLE", "coredis", 15, 30, 60)) == [0, 16, 15, -1, 2]
        assert await client.call("CL.BTHROTTLE", "k", 0, 1, 3600, 1, 0.01) is None
