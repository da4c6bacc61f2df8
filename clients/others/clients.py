"""One way to call a command on each client, however its library names it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Protocol

import coredis
import glide
import redis.asyncio
import valkey.asyncio
from coredis.typing import Key


class Client(Protocol):
    async def call(self, *words: Any) -> Any: ...


class Pooled:
    """redis-py or valkey-py."""

    def __init__(self, client: Any) -> None:
        self.client = client

    async def call(self, *words: Any) -> Any:
        return await self.client.execute_command(*words)


class Coredis:
    def __init__(self, client: Any, keys: bool = False) -> None:
        self.client = client
        self.keys = keys

    async def call(self, name: str, *words: Any) -> Any:
        if self.keys:
            # In a cluster, it must be told which arguments are keys. Here, they have a hash tag or come first.
            words = tuple(Key(word) if at == 0 or str(word).startswith("{") else word for at, word in enumerate(words))
        return await self.client.create_request(name.encode(), *words, callback=lambda reply, **_: reply)


class Glide:
    def __init__(self, client: Any) -> None:
        self.client = client

    async def call(self, *words: Any) -> Any:
        return await self.client.custom_command([str(word) for word in words])


@asynccontextmanager
async def connect(name: str, port: int, **options: Any) -> AsyncIterator[Client]:
    """A client of the library, with its defaults but for the options."""
    if name == "glide":
        config = glide.GlideClientConfiguration([glide.NodeAddress("127.0.0.1", port)], **options)
        client = await glide.GlideClient.create(config)
        try:
            yield Glide(client)
        finally:
            await client.close()
    elif name == "coredis":
        async with coredis.Redis(port=port, **options) as client:
            yield Coredis(client)
    else:
        library = {"redis-py": redis.asyncio.Redis, "valkey-py": valkey.asyncio.Valkey}[name]
        client = library(port=port, **options)
        try:
            yield Pooled(client)
        finally:
            await client.aclose()


@asynccontextmanager
async def connect_to_cluster(name: str, port: int) -> AsyncIterator[Client]:
    """A client of the library for a cluster, with its defaults."""
    if name == "glide":
        address = [glide.NodeAddress("127.0.0.1", port)]
        client = await glide.GlideClusterClient.create(
            glide.GlideClusterClientConfiguration(address, request_timeout=10_000)
        )
        try:
            yield Glide(client)
        finally:
            await client.close()
    elif name == "coredis":
        async with coredis.RedisCluster("127.0.0.1", port) as client:
            yield Coredis(client, keys=True)
    else:
        library = {"redis-py": redis.asyncio.RedisCluster, "valkey-py": valkey.asyncio.ValkeyCluster}[name]
        client = library(host="127.0.0.1", port=port)
        try:
            yield Pooled(client)
        finally:
            await client.aclose()
