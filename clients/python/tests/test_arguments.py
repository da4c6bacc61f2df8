"""Arguments that are checked before anything is sent."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import math
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from typing import Any, TypeAlias

import pytest
import redis
import redis.asyncio

from conftest import FLAVORS, client_class
from redis_cell import (
    Account,
    Admitted,
    Answer,
    AsyncAccount,
    AsyncBudget,
    AsyncCell,
    AsyncLeased,
    AsyncRefusals,
    Bucket,
    Budget,
    Call,
    Cell,
    Else,
    FailClosed,
    FailOpen,
    Fixed,
    Funnel,
    Hold,
    Lease,
    Leased,
    Local,
    Log,
    Once,
    Rate,
    Refusals,
    Refused,
    Release,
    Renew,
    Settle,
    Spill,
    Take,
    Together,
    Window,
    async_wait,
    limited,
    observe,
    wait,
    wire,
)
from redis_cell.limiters import Calendar
from redis_cell.testing import AsyncFakeCell, FakeCell
from redis_cell.times import LAST, LAST_LEASE, micros, micros_up

RATE: Any = Rate(1, per=1)
CELL: Any = Cell(redis.Redis())
ASYNC_CELL: Any = AsyncCell(redis.asyncio.Redis())


def extra(name: str) -> Any:
    """Returns a module that needs another package, which the oldest versions do not have."""
    return pytest.importorskip(f"redis_cell.{name}", exc_type=ImportError)


def take(units: int) -> Take:
    return Take("{h}", RATE, units)


def test_a_rate_without_a_burst_admits_its_count_at_once() -> None:
    assert Rate.per_minute(30).limit == 30
    assert Rate.per_minute(30) == Rate(30, per=60, burst=29)
    assert Rate.per_minute(30, at_once=16) == Rate.per_minute(30, burst=15) and Rate.per_day(9, at_once=1).limit == 1
    assert Rate.per_second(1).per == 1 and Rate.per_hour(1).per == 3600 and Rate.per_day(1).per == 86400


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Rate(1, per=1, burst=1, at_once=2), "burst or at_once, not both"),
        (lambda: Fixed(1, until=datetime(2100, 1, 1)), "time zone"),
        (lambda: Fixed(1), "either per or until"),
        (lambda: Fixed(1, per=60, until=datetime(2100, 1, 1, tzinfo=timezone.utc)), "either per or until"),
        (lambda: Fixed.per_day(1, utc_offset=timedelta(seconds=1)), "whole number of minutes"),
        (lambda: Take("k", Lease(1, lease=1, holder="a"), 2), "the quantity of a lease is 1"),
        (lambda: wire.mpeek(Take("k", Rate(1, per=1), shadow=True)), "shadow is for mtake"),
        (lambda: Leased(CELL, RATE, least=11, most=10, hold=1), "most must be at least 11"),
        (lambda: Leased(CELL, RATE, least=1, most=10, hold=1).take("k", -1), "quantity must be at least 0"),
        (lambda: Account(FakeCell(), lambda n: (), holds="h").peek(), "pools must return at least one limiter"),
        (lambda: Spill(Take("a", RATE, shadow=True)), "shadow is for limiters outside chains"),
        (lambda: Else(Take("a", RATE, shadow=True)), "shadow is for limiters outside chains"),
        (lambda: Spill(Take("a", RATE), Take("b", RATE, 2)), "quantity must be the same in a Spill, not 1 and 2"),
        (lambda: Spill(Take("l", Lease(1, lease=1, holder="x"))), "a Lease cannot stand in a Spill"),
        (Spill, "a Spill needs at least one"),
        (Else, "an Else needs at least one"),
        # What the server refuses, the fakes and Local refuse too.
        (lambda: Rate(2**63, per=10**6), "count must be at least 1 and at most"),
        (lambda: Rate(2000, per=1e-6), "count must be at least 1 and at most 1000"),
        (lambda: Rate(1, per=1000, burst=9_223_372), "burst . 1 must be at least 0 and at most 9223372"),
        (lambda: Rate(1, per=10**10), "per must be at most 292 years"),
        (lambda: Bucket(9_223_373, count=1, per=1000), "capacity must be at least 0 and at most 9223372"),
        (lambda: Fixed(2**63, per=1), "limit must be at least 1 and at most"),
        (lambda: Fixed(1, until=datetime(2300, 1, 1, tzinfo=timezone.utc)), "until must be at most 292 years"),
        (lambda: Fixed.total(1, idle=10**10), "idle must be at most 292 years"),
        (lambda: Fixed.per_day(1, utc_offset=timedelta(hours=15)), "utc_offset must be at most 14 hours"),
        (lambda: Fixed.per_week(1, first_day=8), "first_day must be at least 1 and at most 7"),
        (lambda: Fixed.per_month(1, first_day=32), "first_day must be at least 1 and at most 31"),
        (lambda: Fixed(1, per=Calendar("DAY", first_day=1)), "first_day is for WEEK and MONTH"),
        (lambda: Log(1_000_001, per=1), "limit must be at least 1 and at most 1000000"),
        (lambda: Lease(2**63, lease=1, holder="a"), "places must be at least 1 and at most"),
        (lambda: wire.mtake(Take("k", Rate(1, per=1000), 9_223_373)), "quantity must be .* at most 9223372"),
        (lambda: wire.throttle("k", Rate(1, per=1000), 9_223_373), "quantity must be at least 0 and at most 9223372"),
        (lambda: wire.charge("k", Rate(1, per=1000), 9_223_373), "quantity must be at least 0 and at most 9223372"),
        (lambda: wire.refund("k", Rate(1, per=1000), 9_223_373), "quantity must be at least 0 and at most 9223372"),
        (lambda: Settle("k", Rate(1, per=1000), 9_223_373), "difference must be at least 0 and at most 9223372"),
        (lambda: Settle("k", Log(1, per=1), 10_001), "difference must be .* at most 10000"),
        (lambda: wire.mtake(Take("k", RATE), Take(b"k", Fixed(1, per=1))), "the same key is named twice"),
        (lambda: wire.mtake(Else(Take("k", RATE), Take("k", RATE))), "the same key is named twice"),
        (lambda: wire.mtake(Take("k", Fixed(1, per=1)), hold=Hold("k", "a", 1)), "the same key is named twice"),
        (lambda: wire.msettle(Settle("k", RATE, 1), Settle("k", RATE, 1)), "the same key is named twice"),
    ],
)
def test_what_cannot_be_is_an_error(build: object, message: str) -> None:
    assert callable(build)
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Rate("30", per=60), "count must be a whole number, not '30'"),
        (lambda: Rate(30, per="60"), "per must be seconds or a timedelta, not '60'"),
        (lambda: Fixed(5, until=60), "until must be datetime, not 60"),
        (lambda: Lease(1, lease=1, holder=7), "holder must be str or bytes, not 7"),
        (lambda: Take("q", 5), "limit must be Rate, Bucket, Funnel, Fixed, Window, Log or Lease, not 5"),
        (lambda: FakeCell().throttle("q", 30), "rate must be Rate, not 30"),
        (lambda: FakeCell().fixed("q", RATE), "fixed must be Fixed, not Rate(count=1, per=1, burst=0)"),
        (lambda: FakeCell().peek("q", Log(1, per=1)), "rate must be Rate, not Log(limit=1, per=1)"),
        (lambda: FakeCell().acquire("z", RATE), "lease must be Lease, not Rate(count=1, per=1, burst=0)"),
        (lambda: FakeCell().release("z", 7), "lease must be Lease, str or bytes, not 7"),
        (lambda: FakeCell().mtake("q", RATE), "a limiter of a call must be Take, Spill or Else, not 'q'"),
        (lambda: wait(None, Take("q", RATE), timeout=1), "wait needs a Cell or a Guard, not NoneType"),
        (lambda: wait(AsyncFakeCell(), Take("q", RATE), timeout=1), "wait needs a Cell or a Guard, not AsyncFakeCell"),
        (
            lambda: asyncio.run(async_wait(FakeCell(), Take("q", RATE), timeout=1)),
            "async_wait needs an AsyncCell or an AsyncGuard, not FakeCell",
        ),
        (lambda: AsyncRefusals(FakeCell()), "cell must be AsyncCell, not <"),
        (lambda: Cell.from_url(7), "url must be str, not 7"),
        (
            lambda: FakeCell().bmtake(Else(Take("q", RATE)), timeout=1),
            "the first limiter of bmtake must be Take, not Else",
        ),
        (lambda: FakeCell().msettle(Take("q", RATE)), "a change must be Settle, Renew or Release, not Take"),
        (lambda: Settle("q", 5, 1), "limit must be Rate, Bucket, Funnel, Fixed, Window or Log, not 5"),
        (lambda: Spill("q"), "a pool of a Spill must be Take, not 'q'"),
        (lambda: Else(5), "a pool of an Else must be Take or Spill, not 5"),
        (lambda: Account(AsyncFakeCell(), take, holds="h"), "Account needs a Cell or a Guard, not AsyncFake"),
        (lambda: AsyncAccount(FakeCell(), take, holds="h"), "AsyncAccount needs an AsyncCell"),
        (lambda: Account(FakeCell(), lambda n: 5, holds="h").peek(), "a limiter of a call must be Take, Spill or Else"),
        (lambda: Account(FakeCell(), take, holds="h").hold("5").__enter__(), "quantity must be a whole number"),
        (lambda: Account(FakeCell(), take, holds="h").hold(5).used("5"), "quantity must be a whole number, not '5'"),
        (lambda: Budget(FakeCell(), "r", tokens=5, warn_at=["8"]), "a share of warn_at must be float or int, not '8'"),
        (lambda: observe(FakeCell(), on_refusal="print"), "on_refusal must be a function, not 'print'"),
        (lambda: Leased(CELL, Log(1, per=1), least=1, most=1, hold=1), "limit must be Rate, Fixed or Window, not Log"),
        (lambda: Leased(CELL, RATE, least=1, most=1, hold=1).take("q", "2"), "quantity must be a whole number"),
    ],
)
def test_a_wrong_type_is_an_error_that_names_the_argument(build: Any, message: str) -> None:
    with pytest.raises(TypeError) as error:
        build()
    assert message in str(error.value)


YEARS: dict[str, tuple[int, int, Callable[[float], Call[Any]]]] = {
    "fixed": (LAST, 1, lambda time: wire.fixed("k", Fixed(5, per=time))),
    "idle": (LAST, 1, lambda time: wire.fixed("k", Fixed.total(5, idle=time))),
    "window": (LAST, 2, lambda time: wire.window("k", Window(5, per=time))),
    "log": (LAST, 1, lambda time: wire.log("k", Log(5, per=time))),
    "lease": (LAST_LEASE, 1, lambda time: wire.acquire("k", Lease(5, lease=time, holder="a"))),
    "pause": (LAST, 1, lambda time: wire.pause("k", RATE, time)),
    "hold": (LAST, 1, lambda time: wire.mtake(Take("{k}", Fixed.total(5), 1), hold=Hold("{k}h", "a", time))),
    "once": (LAST, 1, lambda time: wire.mtake(Take("{k}", Fixed.total(5), 1), once=Once("{k}o", time))),
}
"""The last instant at which they can end, how often the time must fit, and a call with this time."""


@pytest.mark.parametrize("name", YEARS)
def test_a_time_that_ends_too_late_is_refused_here_as_there(
    blocking: redis.Redis, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    last, times, build = YEARS[name]
    most = (last / 1_000_000 - time.time()) / times
    assert Cell(blocking).run(build(most - 3600))
    with pytest.raises(ValueError, match=r"to the year 22\d\d, not"):
        build(most + 3600)
    monkeypatch.setattr("redis_cell.times._time.time_ns", lambda: 0)
    blocking.flushall()
    with pytest.raises(redis.ResponseError, match=r"must be an integer|out of range"):
        Cell(blocking).run(build(most + 3600))


def test_a_pipeline_sends_calls_of_this_package() -> None:
    with pytest.raises(TypeError, match="a call of a pipeline"):
        Cell(redis.Redis()).pipeline("CL.THROTTLE")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(("library", "way"), FLAVORS)
def test_a_pipeline_is_not_a_client(library: str, way: str) -> None:
    cell = AsyncCell if way == "asyncio" else Cell
    with pytest.raises(TypeError, match="pipeline"):
        cell(client_class(library, way)().pipeline())
    if way == "asyncio":
        with pytest.raises(TypeError, match="pipeline"):
            cell(client_class(library, way, clustered=True)(host="localhost").pipeline())


def taken(sent: float | None, **rows: Answer) -> Together[Answer]:
    return Together(next(iter(rows.values())), dict(rows), sent)


def row(reset_after: float, units: int = 10) -> Admitted:
    return Admitted(limit=100, remaining=0, reset_after=reset_after, taken=units)


def sent(call: Call[Any]) -> list[Any]:
    """The arguments, with the age in whole seconds."""
    assert callable(call.arguments)
    arguments = list(call.arguments())
    assert arguments[-3] == "AGO" and arguments[-1] == "US"
    return [*arguments[:-3], arguments[-2] // 1_000_000]


def test_a_settlement_says_by_itself_what_it_knows_of_the_take() -> None:
    now = time.monotonic()
    answer = taken(now - 30, rate=row(60), window=row(50), log=row(60))
    rate, bucket, log = Rate(10, per=1), Bucket(10, count=1, per=1), Log(10, per=60)
    arguments = ["RESET", 60_000_000, "THROTTLE", 9, 10, 1_000_000, -5, 30]
    assert sent(wire.msettle(Settle("rate", rate, -5), taken=answer)) == arguments
    assert sent(wire.msettle(Settle("rate", bucket, -5), taken=answer))[:3] == ["RESET", 60_000_000, "BUCKET"]
    window = wire.msettle(Settle("window", Fixed(10, per=60), -5), taken=answer)
    assert sent(window) == ["RESET", 50_000_000, "FIXED", 10, 60_000_000, -5, 30]
    assert sent(wire.msettle(Settle("log", log, -5), taken=answer)) == ["LOG", 10, 60_000_000, -5, 30]
    # No more units than were taken go back, and a charge needs no row.
    assert sent(wire.msettle(Settle("rate", rate, -50), taken=answer))[-2] == -10
    assert sent(wire.msettle(Settle("other", rate, 5), taken=answer)) == ["THROTTLE", 9, 10, 1_000_000, 5, 30]
    refused = Refused(limit=1, remaining=0, reset_after=60, retry_after=60)
    shadow = taken(now - 30, rate=row(60), shadow=refused)
    assert sent(wire.msettle(Settle("shadow", rate, -5), taken=shadow)) == ["THROTTLE", 9, 10, 1_000_000, 0, 30]


def test_what_was_taken_without_the_server_is_not_given_back_to_it() -> None:
    answer = taken(None, rate=row(60))
    call = wire.msettle(Settle("rate", Rate(10, per=1), -5), taken=answer)
    assert callable(call.arguments) and call.arguments() == ("THROTTLE", 9, 10, 1_000_000, 0, "US")


def test_a_settlement_needs_what_it_says() -> None:
    rate, answer = Rate(10, per=1), taken(0, rate=row(60))
    settle = Settle("rate", rate, -5, reset_after=60)
    arguments = ("RESET", 60_000_000, "THROTTLE", 9, 10, 1_000_000, -5, "AGO", 1_000_001, "US")
    assert wire.msettle(settle, ago=1.0000001).arguments == arguments
    refused = Refused(limit=1, remaining=0, reset_after=60, retry_after=60)
    builders: list[tuple[Callable[[], Any], str]] = [
        (lambda: wire.msettle(settle), "reset_after needs ago"),
        (lambda: wire.msettle(settle, ago=1, taken=answer), "leave ago out"),
        (
            lambda: wire.msettle(Settle("rate", rate, -5), taken=Together(refused, {"rate": refused})),
            "nothing was taken",
        ),
        (lambda: wire.msettle(Settle("other", rate, -5), taken=answer), "no row of the key 'other'"),
        (lambda: Settle("k", Log(1, per=1), -5, reset_after=1), "reset_after is for a Rate"),
        (lambda: Settle("k", rate, -(2**63)), "difference must be at least"),
    ]
    for build, message in builders:
        with pytest.raises(ValueError, match=message):
            build()


def test_times_are_whole_microseconds() -> None:
    assert micros(0.1, "x") == 100_000
    assert micros(timedelta(days=1, microseconds=1), "x") == 86_400_000_001
    assert micros(10**9, "x") == 10**15
    assert [micros_up(time, "x") for time in (3, 0.1, 1e-9, 1.0000001, timedelta(microseconds=1))] == [
        3_000_000,
        100_000,
        1,
        1_000_001,
        1,
    ]


VALUES: dict[str, Any] = {
    "None": None,
    "negative": -1,
    "zero": 0,
    "half": 0.5,
    "number": 7,
    "nan": math.nan,
    "infinite": math.inf,
    "bool": True,
    "digit": "7",
    "empty": "",
    "bytes": b"7",
    "list": [7],
    "nothing": [],
    "mapping": {"unknown": 1},
    "object": object(),
    "class": object,
}
"""Values of which each is wrong for most arguments."""
RIGHT: dict[str, str] = {
    "name": "digit",
    "tool": "digit",
    "key": "digit",
    "prefix": "digit",
    "tokens": "None number",
    "steps": "None number",
    "dollars": "None half number digit",
    "tools": "None",
    "idle": "number",
    "period": "half number",
    "lease": "half number",
    "warn_at": "nothing",
    "on_warning": "class",
    "owner": "None digit empty bytes",
    "price": "None class",
    "estimate": "class",
    "transport": "None",
    "rate": "None",
    "max_wait": "None zero half number",
    "timeout": "None zero half number",
    "client": "class",
    "session": "None class",
    "places": "number",
    "cost": "None zero number",
    "units": "zero number",
    "prompt": "zero number",
    "answer": "zero number",
    "async_cell": "None",
}
"""The values that are right for the arguments of a name."""
SAYS = {"cell": "needs a", "budget": "needs a", "first": "must be", "holds": "a key is"}
"""How errors name an argument that they do not name by its own name."""
MADE = {"BudgetExceeded", "BudgetWarning", "RateLimitedError", "Step", "AsyncStep"}
"""The public names that only the package calls."""
CALLED = {"client_address", "client_of", "estimate", "micro_dollars", "rate_limited"}
"""Those that a framework calls, or that have a test of their own."""
Case: TypeAlias = tuple[Callable[..., Any], dict[str, Any], dict[str, str]]
"""What is called, with right arguments, and the values that are right here and not in RIGHT."""


def of_budgets() -> Iterator[Case]:
    amounts = {"tokens": 9, "dollars": "9"}
    some = {"tokens": "None zero number", "dollars": "None zero half number digit"}
    for kind, cell in ((Budget, CELL), (AsyncBudget, ASYNC_CELL)):
        options = {"tools": None, "idle": 60, "period": 6, "warn_at": (), "on_warning": print}
        yield kind, {"cell": cell, "name": "r", **amounts, "steps": 9, **options}, {}
        budget: Any = kind(cell, "r", **amounts, steps=9)  # type: ignore[arg-type]
        yield budget.child, {"name": "c", **amounts, "steps": 9}, {}
        yield budget.step, {"tool": "t", **amounts, "owner": None}, some
        yield budget.step("t").used, amounts, some


ANY, TEXT, LEASE = " ".join(VALUES), "digit empty bytes", Lease(1, lease=9, holder="me")
GIVEN: dict[str, Any] = {
    **{"key": "k", "holder": "me", "owner": "me", "flow": "f", "first": take(1), "cell": CELL},
    **dict.fromkeys(
        ("quantity", "wait", "count", "weight", "period", "tries", "pause", "per", "difference", "first_day"), 1
    ),
    **dict.fromkeys(("limit", "capacity", "places", "lease", "ask_again", "share", "by"), 9),
    **dict.fromkeys(("max_wait", "timeout", "hold", "once", "holds", "maxlen", "ago", "taken", "burst", "at_once")),
    **dict.fromkeys(("reset_after", "idle", "until", "on_refusal", "tracer")),
    **dict.fromkeys(("saturate", "prepay", "new", "shadow"), False),
    **{"rate": RATE, "bucket": Bucket(9, count=1, per=1), "funnel": Funnel(9, count=1, per=1)},
    **{"fixed": Fixed(9, per=1), "window": Window(9, per=1), "log": Log(9, per=1), "utc_offset": timedelta(0)},
}
"""Right arguments of the calls below, by their names."""
CORE: dict[str, str] = {
    **dict.fromkeys(("saturate", "prepay", "new", "shadow", "tracer"), ANY),
    **dict.fromkeys(("key", "holder", "owner", "flow"), TEXT),
    **dict.fromkeys(("limit", "capacity", "count", "places", "tries", "share", "least", "most"), "number"),
    **dict.fromkeys(("burst", "maxlen"), "None zero number"),
    **dict.fromkeys(("at_once", "weight", "first_day"), "None number"),
    **dict.fromkeys(("quantity", "keys"), "zero number"),
    **dict.fromkeys(("pause", "wait", "ask_again", "by"), "zero half number"),
    **dict.fromkeys(("timeout", "idle"), "None half number"),
    **dict.fromkeys(("once", "hold", "taken", "until"), "None"),
    **{"rate": "", "per": "half number", "ago": "None zero half number", "holds": f"None {TEXT}"},
    **{"difference": "negative zero number", "reset_after": ANY, "on_refusal": "None class"},
}
"""The values that are right for them. `reset_after` is checked by msettle."""


def given(call: Callable[..., Any], right: dict[str, str] | None = None, **own: Any) -> Case:
    names = inspect.signature(call).parameters
    return call, {name: GIVEN[name] for name in names if name in GIVEN} | own, {**CORE, **(right or {})}


def of_limiters() -> Iterator[Case]:
    rates = (Rate, Rate.per_second, Rate.per_minute, Rate.per_hour, Rate.per_day)
    calendars = (Fixed.per_hour, Fixed.per_day, Fixed.per_week, Fixed.per_month, Fixed.per_year)
    yield from map(given, (*rates, Bucket, Funnel, *calendars, Fixed.total, Fixed, Window, Log, Lease))
    yield given(Fixed, {"per": "None", "until": ""}, per=None, until=datetime(2100, 1, 1, tzinfo=timezone.utc))


def of_wire() -> Iterator[Case]:
    takes = (wire.throttle, wire.bucket, wire.funnel, wire.fixed, wire.window, wire.log, wire.bthrottle, wire.reserve)
    others = (wire.peek, wire.charge, wire.refund, wire.pause, wire.mtake, wire.mpeek, wire.bmtake, wire.holders)
    yield from map(given, (*takes, *others, wire.top, Hold, Once))
    for call in (wire.acquire, wire.renew, Renew, Release):
        yield given(call, {"lease": ""}, lease=LEASE)
    yield given(wire.release, {"lease": TEXT}, lease=LEASE)
    yield given(wire.settle, {"hold": "", "flow": f"None {TEXT}"}, hold=Hold("{h}:holds", "me", 9))
    yield given(wire.msettle, first=Settle("k", RATE, 1))
    for limiter in (Take, Settle):
        yield given(limiter, {"limit": ""}, limit=RATE)


def of_users() -> Iterator[Case]:
    for leased, cell in ((Leased, CELL), (AsyncLeased, ASYNC_CELL)):
        right = {"cell": ANY, "limit": "", "hold": "half number"}
        yield given(leased, right, cell=cell, limit=RATE, least=1, most=9, hold=1, keys=9)
    for refusals, cell in ((Refusals, Cell(redis.Redis())), (AsyncRefusals, AsyncCell(redis.asyncio.Redis()))):
        yield given(refusals, {"least": "zero half number"}, cell=cell, least=1, keys=9)
    for account, cell in ((Account, CELL), (AsyncAccount, ASYNC_CELL)):
        yield given(account, {"pools": "class", "holds": TEXT}, cell=cell, pools=take, holds="h")
    yield given(
        limited, {"cell": ANY, "limit": "", "key": f"{TEXT} class", "timeout": "None zero half number"}, limit=RATE
    )
    yield given(wait, {"timeout": "None zero half number"}, cell=FakeCell())
    yield given(FakeCell().place, {"key": ANY, "holder": f"None {TEXT}", "timeout": ANY})  # which its block checks
    yield from map(given, (observe, FailOpen, FailClosed, Local, FakeCell().advance))


def of_agents() -> Iterator[Case]:
    agents = extra("agents")
    yield agents.Estimate, {"prompt": 1, "answer": 1}, {}
    for kind, budget, cell in (
        (agents.BudgetTransport, Budget, CELL),
        (agents.AsyncBudgetTransport, AsyncBudget, ASYNC_CELL),
    ):
        own = {"budget": budget(cell, "r", tokens=9), "price": None, "estimate": agents.estimate, "transport": None}
        yield kind, own, {"budget": "class"}


def of_httpx() -> Iterator[Case]:
    httpx = extra("httpx")
    for kind, cell in ((httpx.Transport, CELL), (httpx.AsyncTransport, ASYNC_CELL)):
        yield kind, {"cell": cell, "key": "k", "rate": RATE, "max_wait": 60, "transport": None}, {}


def of_langchain() -> Iterator[Case]:
    own = {"cell": CELL, "key": "k", "limit": RATE, "timeout": 1, "async_cell": None}
    yield extra("langchain").RateLimiter, own, {"key": "digit empty bytes"}


def of_fastapi() -> Iterator[Case]:
    fastapi = extra("fastapi")
    own = {"cell": ASYNC_CELL, "limit": RATE, "key": print, "quantity": 1, "timeout": 0, "prefix": "http"}
    yield fastapi.RateLimit, own, {"key": "class", "quantity": "zero number class"}
    yield fastapi.RateLimitMiddleware, {"app": print, "limit": None}, {"app": "class", "limit": "None"}


def of_fastmcp() -> Iterator[Case]:
    fastmcp = extra("fastmcp")
    yield fastmcp.Places, {"places": 1, "lease": 1}, {}
    yield fastmcp.Rule, {"limit": RATE, "per": "client", "tools": None, "cost": None}, {"cost": "None zero"}
    rules = {"r": fastmcp.Rule(RATE)}
    own = {"timeout": 0, "client": print, "session": None, "prefix": "mcp", "period": 60}
    yield fastmcp.RateLimits, {"cell": ASYNC_CELL, "rules": rules, **own}, {}
    yield fastmcp.RateLimits(ASYNC_CELL, rules).add_to, {"server": extra("fastmcp").FastMCP("m")}, {}
    yield fastmcp.report_cost, {"units": 1}, {}
    yield fastmcp.RefusalStatus, {"app": print}, {"app": "class"}


CASES: dict[str, Callable[[], Iterator[Case]]] = {
    "limiters": of_limiters,
    "wire": of_wire,
    "users": of_users,
    "agents": of_agents,
    "budgets": of_budgets,
    "fastapi": of_fastapi,
    "fastmcp": of_fastmcp,
    "httpx": of_httpx,
    "langchain": of_langchain,
}


@pytest.mark.parametrize("module", CASES)
def test_each_argument_is_right_or_an_error_that_names_it(module: str) -> None:
    found, called = list[str](), MADE | CALLED
    for call, own, more in CASES[module]():
        named: str = call.__qualname__
        called.add(named.partition(".")[0])
        parameters = inspect.signature(call).parameters.values()
        names = {each.name for each in parameters if each.kind is not each.VAR_POSITIONAL}
        assert names == set(own), f"{named} has other arguments"
        for name, (word, value) in itertools.product(own, VALUES.items()):
            right = word in {**RIGHT, **more}.get(name, "").split(" ")
            try:
                call(**{**own, name: value})
            except (TypeError, ValueError) as error:
                if right or not any(word in str(error) for word in (name, SAYS.get(name, name))):
                    found.append(f"{named}({name}={value!r}): {type(error).__name__}: {error}")
            except Exception as error:
                found.append(f"{named}({name}={value!r}): {type(error).__name__}: {error}")
            else:
                if not right:
                    found.append(f"{named}({name}={value!r}) is accepted")
        with pytest.raises(TypeError, match="unknown"):
            call(**own, unknown=1)
    assert not found, "\n".join(found)
    if module in ("limiters", "wire", "users"):
        return
    code: Any = extra(module)
    public = [name for name in getattr(code, "__all__", vars(code)) if not name.startswith("_")]
    own_names = {name for name in public if callable(vars(code)[name]) and vars(code)[name].__module__ == code.__name__}
    assert own_names <= called, "public names without a case"
