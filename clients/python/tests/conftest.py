from __future__ import annotations

import importlib.util
import inspect
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import servers
from redis_cell import AsyncCell, AsyncGuard, Cell, Guard, WhenUnavailable

LIBRARIES = [name for name in ("redis", "valkey") if importlib.util.find_spec(name)]
FLAVORS = [(library, way) for library in LIBRARIES for way in ("sync", "asyncio")]
PAIR = [(LIBRARIES[0], "sync"), (LIBRARIES[-1], "asyncio")]
"""Each library once, and each way once."""
TIMEOUT = 5.0


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
def server() -> Iterator[servers.Server]:
    with servers.running() as server:
        yield server


@pytest.fixture(scope="session")
def cluster() -> Iterator[list[servers.Server]]:
    with servers.cluster(2) as nodes:
        yield nodes


@pytest.fixture(params=FLAVORS, ids="-".join)
def flavor(request: pytest.FixtureRequest) -> tuple[str, str]:
    """A library, and whether its client is for asyncio."""
    return request.param


@pytest.fixture
async def connect(flavor: tuple[str, str]) -> AsyncIterator[Any]:
    """Makes cells by the port of a server, and closes their clients when the test has ended."""
    library, way = flavor
    clients: list[Any] = []

    def connected(port: int, *, backend: str = "module", clustered: bool = False, **options: Any) -> Any:
        clients.append(client_class(library, way, clustered)(host="127.0.0.1", port=port, **options))
        return cell_of(clients[-1], way, backend=backend)

    yield connected
    for client in clients:
        await close(client, way)


@pytest.fixture
def cell(server: servers.Server, connect: Any) -> Any:
    """All commands, by every library, on an empty server."""
    with server.admin as admin:
        admin.flushall()
    return connect(server.port, socket_timeout=TIMEOUT)


@pytest.fixture
def cluster_cell(cluster: list[servers.Server], connect: Any) -> Any:
    """All commands, by every library's client for clusters."""
    for node in cluster:
        with node.admin as admin:
            admin.flushall()
    return connect(cluster[0].port, clustered=True, socket_timeout=TIMEOUT)
