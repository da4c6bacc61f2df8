from __future__ import annotations

import importlib.util
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import servers
from redis_cell import AsyncCell, Cell

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


async def close(client: Any, way: str) -> None:
    if way == "asyncio":
        await getattr(client, "aclose", client.close)()  # aclose is new in redis-py 5.0.1
    else:
        client.close()


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
async def cell(server: servers.Server, flavor: tuple[str, str]) -> AsyncIterator[Any]:
    """All commands, by every library, on an empty server."""
    with server.admin as admin:
        admin.flushall()
    library, way = flavor
    client = client_class(library, way)(port=server.port, socket_timeout=TIMEOUT)
    yield cell_of(client, way)
    await close(client, way)


@pytest.fixture
async def cluster_cell(cluster: list[servers.Server], flavor: tuple[str, str]) -> AsyncIterator[Any]:
    """All commands, by every library's client for clusters."""
    for node in cluster:
        with node.admin as admin:
            admin.flushall()
    library, way = flavor
    client = client_class(library, way, clustered=True)(host="127.0.0.1", port=cluster[0].port, socket_timeout=TIMEOUT)
    yield cell_of(client, way)
    await close(client, way)
