"""The programs of docs/recipes.md for many clients that wait, and for a way to the server that loses replies."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

import servers
from redis_cell import Cell, Lease, Take
from redis_cell.testing import FakeCell
from test_pages import BLOCK, on_ports, text


@pytest.fixture(scope="module")
def recipes(shared_server: servers.Server) -> dict[str, Any]:
    """The functions of the page."""
    namespace: dict[str, Any] = {}
    for block in BLOCK.finditer(text("docs/recipes.md")):
        exec(on_ports(block[1], shared_server.port, 0), namespace)
    return namespace


@pytest.fixture
def cell(server: servers.Server) -> Cell:
    return Cell(redis.Redis(port=server.port))


def at_once(count: int, work: Callable[[int], Any]) -> list[Any]:
    """Runs this many calls, each in a thread of its own."""
    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(work, range(count)))


def test_tenants_share_a_gpu_by_their_weights(recipes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Which the server does, and test_tenants_share_an_account_by_the_tokens_that_they_use shows it."""
    fake, told, busy = FakeCell(), list[Any](), Take("gpu:busy", Lease(8, lease=120, holder="other"))
    run = fake.run
    monkeypatch.setattr(fake, "run", lambda call: (told.append(call.arguments), run(call))[1])
    assert recipes["on_the_gpu"](fake, "large", 4, lambda: fake.mpeek(busy).combined.remaining) == 7
    assert fake.mpeek(busy).combined.remaining == 8
    assert {("FLOW", "tenant:large"), ("WEIGHT", 4)} <= set(itertools.pairwise(told[0]))


def test_workers_pace_an_upstream_together(recipes: dict[str, Any], cell: Cell, server: servers.Server) -> None:
    sent = list[float]()
    at_once(40, lambda index: recipes["send_job"](cell, f"c{index % 4}", lambda: sent.append(time.monotonic())))
    assert len(sent) == 40
    # Four at once, and 36 at 50 a second. A thread that is late makes no other call earlier.
    assert max(sent) - min(sent) >= 36 / 50 - 0.02


def test_a_flood_is_shed_and_harms_no_other_tenant(recipes: dict[str, Any], cell: Cell) -> None:
    statuses = at_once(41, lambda index: recipes["status"](cell, "flood" if index < 40 else "small"))
    # Five at once, 20 that wait, and the clients of the 50 that come when some of these have had their turn.
    assert statuses.count(429) >= 5 and statuses[40] == 200
    assert statuses.count(200) >= 25 and statuses.count(503) == 0


def test_tenants_share_an_account_by_the_tokens_that_they_use(recipes: dict[str, Any], cell: Cell) -> None:
    """One uses all that it has estimated, and another one a tenth. By requests, that one would get a tenth."""
    words, weights, most = {"all": 40, "tenth": 4, "double": 40}, {"all": 1, "tenth": 1, "double": 2}, 2800
    used, waiting, lock = Counter[str](), Counter[str](), threading.Lock()
    at_first = Counter[str]()

    def client(index: int) -> None:
        tenant = list(words)[index % 3]

        def ask() -> tuple[None, int]:
            with lock:
                waiting[tenant] -= 1
                # While all three have requests that wait: the last ones of a tenant have no others beside them.
                if min(waiting.values()) > 0 and len(waiting) == 3:
                    used[tenant] += words[tenant]
                # Nor the first second, in which the clients connect.
                if sum(used.values()) < 400:
                    at_first.update(used - at_first)
            return None, words[tenant]

        while sum(used.values()) < most:
            with lock:
                waiting[tenant] += 1
            recipes["complete"](cell, tenant, weights[tenant], 40, ask)

    at_once(36, client)
    used -= at_first
    share = sum(used.values()) / 4
    for tenant, weight in weights.items():
        assert abs(used[tenant] - weight * share) < 0.25 * weight * share, used


def test_payments_are_taken_once_through_lost_replies(recipes: dict[str, Any], server: servers.Server) -> None:
    with servers.lossy(server, 0.3) as way_there:
        cell = Cell(redis.Redis(port=way_there.port))
        paid = [recipes["pay"](cell, f"customer{n // 5}", f"payment-{n}", 25) for n in range(50)]
    # Four of five payments of each customer: the fifth would be more than 100.
    assert paid == [True, True, True, True, False] * 10 and way_there.lost > 10
    with server.admin as admin:
        assert {admin.get(f"{{customer{n}}}:spent") for n in range(10)} == {"100"}
