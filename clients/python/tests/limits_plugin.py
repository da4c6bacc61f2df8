"""Runs the tests of limits for storages and strategies against the storages of redis_cell, without changing a file.

The tests of limits name each storage by its address, with a fixture that starts its server. This plugin of pytest puts
the storages of redis_cell in their places. `limits_tests` in scripts/test.sh runs them with it.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest
import redis
import tests.utils as theirs  # of limits
from pytest_lazy_fixtures import lf

import servers
from redis_cell.limits import AsyncRedisCellStorage, RedisCellStorage

_ROUNDING = "CL.WINDOW rounds to the nearest unit: the next one is available half a unit later than limits expects"
DO_NOT_APPLY = {
    "MovingWindow::test_moving_window_huge_cost": "CL.LOG takes at most 10,000 units in one call, this test 999,999",
    "SlidingWindow::test_sliding_window_counter": _ROUNDING,
    "SlidingWindow::test_sliding_window_counter_stats": _ROUNDING,
    "SlidingWindow::test_sliding_window_counter_previous_window": _ROUNDING,
}
"""The tests that do not apply, and why. docs/client-python.md lists them too."""

stack = ExitStack()
SERVER = f"127.0.0.1:{stack.enter_context(servers.running()).port}"
CLUSTER = f"127.0.0.1:{stack.enter_context(servers.cluster(2))[0].port}"
CLOSED = {"when_unavailable": "fail_closed", "socket_timeout": 10}


def storages(start: str) -> dict[str, Any]:
    return {
        "redis": pytest.param(f"{start}redis-cell://{SERVER}", CLOSED, lf("cell_server"), id="redis-cell"),
        "redis-cluster": pytest.param(
            f"{start}redis-cell+cluster://{CLUSTER}", CLOSED, lf("cell_cluster"), id="redis-cell-cluster"
        ),
    }


def replace(names: dict[str, Any], marks: list[Any], start: str) -> None:
    """Replaces the storages in a table of limits' tests, and in the marks that were made from it.

    Not the cluster, with which the waits of these tests would take twice as long: the tests in place have it.
    """
    names.clear()
    names["redis"] = storages(start)["redis"]
    for mark in marks:
        if isinstance(mark.args[1], list):
            mark.args[1][:] = names.values()


replace(theirs.ALL_STORAGES, [theirs.moving_window_storage], "")
replace(theirs.ALL_STORAGES_ASYNC, [theirs.async_moving_window_storage], "async+")


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Replaces the storages that limits' tests name in place."""
    for mark in metafunc.definition.iter_markers("parametrize"):
        if mark.args[0] == "uri, args, expected_instance, fixture":
            asynchronous = "aio" in metafunc.module.__name__
            expected = AsyncRedisCellStorage if asynchronous else RedisCellStorage
            mark.args[1][:] = [
                pytest.param(param.values[0], param.values[1], expected, param.values[2], id=param.id)
                for param in storages("async+" if asynchronous else "").values()
            ]


def _why_not(item: pytest.Item) -> str | None:
    name = item.nodeid.partition("[")[0]
    return next((why for end, why in DO_NOT_APPLY.items() if name.endswith(end)), None)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out the tests that do not apply, and says so."""
    out = [item for item in items if _why_not(item)]
    items[:] = [item for item in items if item not in out]
    config.hook.pytest_deselected(items=out)
    for item in out:
        print(f"does not apply: {item.nodeid}: {_why_not(item)}")


def pytest_unconfigure() -> None:
    stack.close()


@pytest.fixture
def cell_server() -> redis.Redis:
    client = redis.Redis.from_url(f"redis://{SERVER}")
    client.flushall()
    return client


@pytest.fixture
def cell_cluster() -> redis.RedisCluster:
    client = redis.RedisCluster.from_url(f"redis://{CLUSTER}")
    client.flushall()
    return client
