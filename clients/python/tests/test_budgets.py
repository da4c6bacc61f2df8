"""Budgets of runs: what a child takes, its parents take; who used what; warnings once; typing errors that are named."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal, localcontext
from typing import Any

import pytest
import redis
import redis.asyncio

import servers
from conftest import awaited
from redis_cell import (
    Account,
    AsyncBudget,
    AsyncCell,
    AsyncGuard,
    Budget,
    BudgetExceeded,
    BudgetWarning,
    Cell,
    FailClosed,
    Fixed,
    Guard,
    Local,
    RateLimited,
    Take,
)
from redis_cell.testing import FakeCell
from test_accounts import Way, way

__all__ = ["way"]


def budget_of(way: Way, **options: Any) -> Any:
    kind: Any = AsyncBudget if way.is_async else Budget
    return kind(way.cell, "run:4", **{"tokens": 10_000, "dollars": "3.00", **options})


async def test_what_a_child_takes_its_parents_take(way: Way) -> None:
    budget = budget_of(way)
    child = budget.child("subagent", tokens=4000, steps=5)
    deeper = child.child("planner", tokens=1000)
    async with way.block(deeper.step("search", tokens=800, dollars="0.10")) as step:
        assert await awaited(budget.left()) == {"tokens": 9200, "dollars": Decimal("2.9")}
        assert await awaited(deeper.left()) == {"tokens": 200, "dollars": Decimal("2.9"), "steps": 4}
        step.used(tokens=300, dollars="0.0123456")
        step.used(tokens=400)
    async with way.block(budget.step("search", tokens=100)) as step:
        step.used(tokens=50, dollars=Decimal("0.5"))
    for asks, tool in ((budget, "subagent/a%2F"), (child, "a/"), (child, "a%2F")):
        async with way.block(asks.step(tool, tokens=0)):
            pass
    assert await awaited(budget.left()) == {"tokens": 9250, "dollars": Decimal("2.487654")}
    assert await awaited(child.left()) == {"tokens": 3300, "dollars": Decimal("2.487654"), "steps": 2}
    rows = {
        "search": {"tokens": 50, "dollars": Decimal("0.5")},
        "subagent/planner/search": {"tokens": 700, "dollars": Decimal("0.012346")},
        # A slash in the name of a tool does not make a child.
        **{key: {"tokens": 0, "dollars": 0} for key in ("subagent%2Fa%252F", "subagent/a%2F", "subagent/a%252F")},
    }
    assert await awaited(budget.used()) == rows
    assert (await awaited(child.used()))["planner/search"] == {**rows["subagent/planner/search"], "steps": 1}
    for tokens, whose, left in ((400, deeper, 300), (3301, child, 3300), (9251, budget, 9250)):
        with pytest.raises(BudgetExceeded) as refusal:
            async with way.block(whose.step("fetch", tokens=tokens)):
                raise AssertionError("there are too few")
        exceeded = pickle.loads(pickle.dumps(refusal.value))
        assert (exceeded.budget, exceeded.unit, exceeded.left, exceeded.step) == (whose.name, "tokens", left, "fetch")
        assert str(exceeded) == f"the step 'fetch' needs more tokens than the budget {whose.name!r} has: {left} left"
        assert isinstance(exceeded, RateLimited)


async def test_a_loop_ends_with_its_budget(way: Way) -> None:
    """A step that fails is a step, and what it did not report is free. A budget that is used up refuses any step."""
    budget = budget_of(way, tokens=100, steps=4)
    with pytest.raises(BudgetExceeded, match="needs more steps than the budget 'run:4' has: 0 left"):
        for number in range(9):
            try:
                async with way.block(budget.step("search", tokens=10)):
                    if number % 2:
                        raise KeyError
            except KeyError:
                pass
    assert number == 4 and await awaited(budget.left()) == {"tokens": 80, "dollars": 3, "steps": 0}
    dear = budget.child("dear", dollars="0.01")
    with pytest.raises(BudgetExceeded):
        async with way.block(dear.step("x")):
            pass
    other = (AsyncBudget if way.is_async else Budget)(way.cell, "run:5", dollars="0.01")  # type: ignore[arg-type]
    async with way.block(other.step("x")) as step:
        step.used(dollars=0.02)
    with pytest.raises(BudgetExceeded, match="more dollars than the budget 'run:5' has: 0 left"):
        async with way.block(other.step("x")):
            pass


def test_a_warning_comes_once(blocking: redis.Redis) -> None:
    """Two processes, and holds that pass the threshold and go back."""
    warnings = list[BudgetWarning]()
    one, two = (
        Budget(Cell(blocking), "run:4", tokens=1000, warn_at=(0.5, 0.8), on_warning=warnings.append) for _ in range(2)
    )
    for budget, asked, used, seen in (
        (one, 900, 100, []),
        (two, 600, 399, []),
        (one, 300, 1, [(0.5, 500)]),
        (two, 100, 1, [(0.5, 500)]),
        (two, 499, 498, [(0.5, 500), (0.8, 1)]),
        (one, 1, 1, [(0.5, 500), (0.8, 1)]),
    ):
        with budget.step("search", tokens=asked) as step:
            step.used(tokens=used)
        assert [(warning.share, warning.left) for warning in warnings] == seen
    assert str(warnings[1]) == "the budget 'run:4' has used 80% of its tokens: 1 of 1000 left"
    assert 86_000 < blocking.ttl("{run:4}:tokens") <= 86_400
    assert all(blocking.ttl(key) > 0 for key in blocking.scan_iter())


@pytest.mark.parametrize("choice", [FailClosed(ask_again=0), Local(10, ask_again=0)])
def test_only_the_usage_that_the_server_knows_is_a_reason_for_a_warning(
    choice: FailClosed | Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings, settled = list[BudgetWarning](), list[bool]()
    with servers.running() as server, redis.Redis(port=server.port, retry=None) as client:
        guard = Guard(Cell(client), when_unavailable=choice)
        budget = Budget(guard, "run:4", tokens=1000, warn_at=(0.5,), on_warning=warnings.append)
        with budget.step("search", tokens=10):
            server.stop()
        assert not warnings
        server.start()
        run = guard.run

        def stops(call: Any) -> Any:
            if any(settled):
                server.stop()
            settled.append(call.name in ("CL.MSETTLE", "ZRANGE"))
            return run(call)

        with monkeypatch.context() as patch:
            patch.setattr(guard, "run", stops)
            with budget.step("search", tokens=600):
                pass
        assert settled == [False, True, False] and not warnings
        server.start()
        with budget.step("search", tokens=600):
            pass
        assert budget.used() == {"search": {"tokens": 600}}
        settled.clear()
        with monkeypatch.context() as patch:
            patch.setattr(guard, "run", stops)
            used = budget.used()  # the server stops before it is asked for the row
        assert used == ({} if isinstance(choice, FailClosed) else {"search": {"tokens": 10}})  # by this process
    assert [warning.left for warning in warnings] == [400]


def test_money_is_exact_whatever_the_precision_of_the_caller(blocking: redis.Redis) -> None:
    with localcontext() as context:
        context.prec = 3
        budget = Budget(Cell(blocking), "run:4", dollars="100.00")
        with budget.step("search", dollars="0.00") as step:
            step.used(dollars="12.3456781")
        left = budget.left()["dollars"]
    assert (left, blocking.get("{run:4}:dollars")) == (Decimal("87.654321"), "12345679")


def test_threads_that_share_a_step_lose_no_usage() -> None:
    budget = Budget(FakeCell(), "run:4", tokens=10**9)
    account = Account(FakeCell(), lambda units: Take("wallet", Fixed.total(10**9), units), holds="holds")
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with budget.step("search") as step, account.hold(1) as hold, ThreadPoolExecutor(4) as threads:

            def uses() -> None:
                for _ in range(30_000):
                    step.used(tokens=1)
                    hold.used(1)

            for _ in range(4):
                threads.submit(uses)
    finally:
        sys.setswitchinterval(interval)
    assert budget.left() == {"tokens": 10**9 - 120_000}
    assert account.peek().combined.remaining == 10**9 - 120_000


def test_a_run_that_begins_again_warns_again() -> None:
    class Slow(Cell):
        def run(self, call: Any, *others: Any) -> Any:
            answer = super().run(call, *others)
            time.sleep(0.3 if ":warned:" in str(call.key) else 0)  # the server forgets sooner
            return answer

    warnings = list[BudgetWarning]()
    with servers.running() as server, redis.Redis(port=server.port) as client:
        budget = Budget(Slow(client), "run:4", tokens=10, idle=1.1, period=1, on_warning=warnings.append)
        for _ in range(2):
            with budget.step("search", tokens=9):
                pass
            servers.wait_until(lambda: not client.exists("{run:4}:tokens", "{run:4}:tokens:warned:0.8"))
    assert [warning.left for warning in warnings] == [1, 1]


def test_a_warning_that_fails_changes_no_charge(caplog: pytest.LogCaptureFixture) -> None:
    def fails(warning: BudgetWarning) -> None:
        raise KeyError(warning.share)

    budget = Budget(FakeCell(), "run:4", tokens=1000, warn_at=(0.5,), on_warning=fails)
    with budget.step("search", tokens=600) as step:
        pass
    assert step.settled and "was not charged" not in caplog.text
    assert "was settled, but its warnings failed" in caplog.text and "KeyError: 0.5" in caplog.text
    with pytest.raises(RuntimeError, match="the block of this hold has ended"):
        step.used(tokens=1)


def test_what_a_process_that_is_killed_has_held_comes_back_after_the_period(
    server: servers.Server, blocking: redis.Redis
) -> None:
    def child(client: redis.Redis) -> Budget:
        return Budget(Cell(client), "run:4", tokens=1000, period=1).child("subagent", tokens=700)

    def dies() -> None:
        with redis.Redis(port=server.port) as client:
            child(client).step("search", tokens=600).__enter__()
            os.kill(os.getpid(), signal.SIGKILL)

    assert not servers.in_child(dies)
    keys = ("{run:4}:tokens", "{run:4}/subagent:tokens")
    assert blocking.mget(*keys) == ["600", "600"]
    left = child(blocking)
    servers.wait_until(lambda: left.left() == {"tokens": 700})
    with left.step("search", tokens=700) as step:
        step.used(tokens=650)
    assert blocking.mget(*keys) == ["650", "650"] and left.used() == {"search": {"tokens": 650}}
    assert not blocking.exists("{run:4}:holds")


def test_limits_of_one_name_may_differ_and_each_process_has_its_own(blocking: redis.Redis) -> None:
    small, large = (Budget(Cell(blocking), "run:4", tokens=tokens) for tokens in (100, 300))
    with small.step("search", tokens=100):
        pass
    with large.step("search", tokens=150):
        pass
    assert (small.left(), large.left()) == ({"tokens": 0}, {"tokens": 50})
    with pytest.raises(BudgetExceeded, match="more tokens than the budget 'run:4' has: 0 left"):
        small.step("search", tokens=1).__enter__()


def test_mistakes_are_named() -> None:
    cell: Any = FakeCell()

    def budget(**options: Any) -> Budget:
        return Budget(cell, **{"name": "run:4", "tokens": 100, **options})

    mistakes: list[tuple[str, Any]] = [
        ("'run:4' needs tokens, dollars or steps", lambda: budget(tokens=None)),
        ("dollars must be a number of dollars, not '3,00'", lambda: budget(dollars="3,00")),
        ("the name of a run must not be empty, nor have any of {}", lambda: budget(name="run{4")),
        ("idle must be longer than period, not 60", lambda: budget(idle=60)),
        ("a share of warn_at must be float or int, not True", lambda: budget(warn_at=(True,))),
        ("AsyncBudget needs an AsyncCell", lambda: AsyncBudget(cell, "run:4", tokens=1)),
        ("has no tool 'finds': its tools are search", lambda: budget(tools=["search"]).step("finds")),
        ("'search' names dollars, which the budget 'run:4' does not have", lambda: budget().step("search", dollars=1)),
        ("used names dollars, which the budget", lambda: budget().step("search").used(dollars=1)),
        ("the name of a child must not be empty, nor have any of", lambda: budget().child("a:b", tokens=1)),
        (
            "tokens of the budget 'run:4/a' are 101, and those of its parents 100",
            lambda: budget().child("a", tokens=101),
        ),
    ]
    for text, mistake in mistakes:
        with pytest.raises((TypeError, ValueError), match=text):
            mistake()


async def test_without_the_server_a_budget_is_what_the_guard_says(caplog: pytest.LogCaptureFixture) -> None:
    """The log says it as the page of errors does."""
    with servers.running() as server:
        async with redis.asyncio.Redis(port=server.port) as client:
            guard = AsyncGuard(AsyncCell(client), when_unavailable=FailClosed(), timeout=0.5)
            budget = AsyncBudget(guard, "run:4", tokens=100)
            async with budget.step("search", tokens=100) as step:
                step.used(tokens=1)
            server.freeze()
            with pytest.raises(RateLimited, match="the server is unavailable, so the step 'search'"):
                await budget.step("search").__aenter__()
            server.thaw()
    (record,) = caplog.records
    said = record.message.removeprefix("the server is unavailable, and FailClosed decides: ")
    assert f"`{said}`" in (servers.REPOSITORY / "docs/errors.md").read_text()
