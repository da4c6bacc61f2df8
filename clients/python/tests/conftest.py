from __future__ import annotations

import asyncio
import functools
import importlib.util
import inspect
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis.asyncio

import servers
from redis_cell import AsyncCell, AsyncGuard, Cell, Guard, WhenUnavailable

LIBRARIES = [name for name in ("redis", "valkey") if importlib.util.find_spec(name)]
FLAVORS = [(library, way) for library in LIBRARIES for way in ("sync", "asyncio")]
PAIR = [(LIBRARIES[0], "sync"), (LIBRARIES[-1], "asyncio")]
"""Each library once, and each way once."""
THREADS = ThreadPoolExecutor(64)
PATIENCE = 10.0
"""How long clients wait for an answer, which is late on a busy machine, in seconds."""


def client_class(library: str, way: str, clustered: bool = False) -> Any:
    module = importlib.import_module(library if way == "sync" else library + ".asyncio")
    return getattr(module, library.title() + ("Cluster" if clustered else ""))


class Awaitable:
    """A Cell with the methods of an AsyncCell, so that one test is for both."""

    def __init__(self, cell: Any) -> None:
        self.cell = cell

    def __getattr__(self, name: str) -> Any:
        async def method(*args: Any, **kwargs: Any) -> Any:
            return getattr(self.cell, name)(*args, **kwargs)

        return method


def plain(cell: Any) -> Any:
    """The cell or the guard itself."""
    return cell.cell if isinstance(cell, Awaitable) else cell


def aside(cell: Any, name: str, *args: Any, **kwargs: Any) -> asyncio.Future[Any]:
    """A call that runs while the test continues: a blocking one in a thread."""
    method = functools.partial(getattr(plain(cell), name), *args, **kwargs)
    if isinstance(cell, Awaitable):
        return asyncio.get_running_loop().run_in_executor(THREADS, method)
    return asyncio.ensure_future(method())


def cell_of(client: Any, way: str, **options: Any) -> Any:
    return AsyncCell(client, **options) if way == "asyncio" else Awaitable(Cell(client, **options))


def guard_of(cell: Any, choice: WhenUnavailable) -> Any:
    """A guard over what `cell_of` has returned, whose methods are awaited too."""
    if isinstance(cell, Awaitable):
        return Awaitable(Guard(cell.cell, when_unavailable=choice))
    return AsyncGuard(cell, when_unavailable=choice)


async def awaited(result: Any) -> Any:
    """What a method returns, of a blocking client or of one for asyncio."""
    return await result if inspect.isawaitable(result) else result


async def close(client: Any, way: str) -> None:
    await awaited((client.close if way == "sync" else getattr(client, "aclose", client.close))())  # new in 5.0.1


@pytest.fixture(scope="session")
def shared_server() -> Iterator[servers.Server]:
    with servers.running() as server:
        yield server


@pytest.fixture
def server(shared_server: servers.Server) -> servers.Server:
    """A server that is empty when the test begins."""
    shared_server.empty()
    return shared_server


@pytest.fixture(scope="session")
def shared_cluster() -> Iterator[list[servers.Server]]:
    with servers.cluster(2) as nodes:
        yield nodes


@pytest.fixture
def cluster(shared_cluster: list[servers.Server]) -> list[servers.Server]:
    """A cluster that is empty when the test begins."""
    for node in shared_cluster:
        node.empty()
    return shared_cluster


@pytest.fixture
def blocking(server: servers.Server) -> Iterator[redis.Redis]:
    with redis.Redis(port=server.port, decode_responses=True, socket_timeout=PATIENCE) as client:
        yield client


@pytest.fixture
async def client(server: servers.Server) -> AsyncIterator[redis.asyncio.Redis]:
    async with redis.asyncio.Redis(port=server.port, socket_timeout=PATIENCE) as client:
        yield client


@pytest.fixture(params=FLAVORS, ids="-".join)
def flavor(request: pytest.FixtureRequest) -> tuple[str, str]:
    """A library, and whether its client is for asyncio."""
    return request.param


@pytest.fixture
async def make(flavor: tuple[str, str]) -> AsyncIterator[Any]:
    """Makes clients by the port of a server, and closes them when the test has ended."""
    clients: list[Any] = []

    def made(port: int, *, clustered: bool = False, **options: Any) -> Any:
        clients.append(client_class(*flavor, clustered)(**{"host": "127.0.0.1", "port": port, **options}))
        return clients[-1]

    yield made
    for client in clients:
        await close(client, flavor[1])


@pytest.fixture
def connect(flavor: tuple[str, str], make: Any) -> Any:
    """Makes cells by the port of a server."""

    def connected(port: int, *, backend: str = "module", **options: Any) -> Any:
        return cell_of(make(port, **options), flavor[1], backend=backend)

    return connected


@pytest.fixture
def cell(server: servers.Server, connect: Any) -> Any:
    """All commands, by every library."""
    return connect(server.port, socket_timeout=PATIENCE)
