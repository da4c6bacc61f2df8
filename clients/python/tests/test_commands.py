"""Every command and its function: the arguments that are sent, and the answer, with every client library."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

import servers
from conftest import PATIENCE
from redis_cell import (
    Admitted,
    Booked,
    Bucket,
    Calendar,
    Fixed,
    Funnel,
    Hold,
    Lease,
    Log,
    Rate,
    Refused,
    RefusedForever,
    Release,
    Renew,
    Settle,
    Take,
    Window,
    answers,
)

MINUTE = 60.0
MODULE_ONLY = pytest.mark.parametrize("cell", ["module"], indirect=True)


@pytest.fixture(params=["module", "functions"])
def cell(server: servers.Server, connect: Any, request: pytest.FixtureRequest) -> Any:
    if request.param == "functions":
        server.load_functions()
    return connect(server.port, backend=request.param, socket_timeout=PATIENCE)


def test_a_reply_that_says_limited_is_a_refusal_whatever_its_wait() -> None:
    rows = {"a": answers.answer([1, 5, 0, 0, 0], 1), "b": answers.answer([0, 5, 4, -1, 0], 1)}
    assert [type(row) for row in (*rows.values(), answers.combined(rows, rows))] == [Refused, Admitted, Refused]


async def test_throttle(cell: Any) -> None:
    rate = Rate.per_minute(30, burst=15)
    answer = await cell.throttle("user123", rate)
    assert answer == Admitted(limit=16, remaining=15, reset_after=2.0, taken=1)
    assert answer and answer.admitted and answer.retry_after is None
    answer = await cell.throttle("user123", rate, 17)
    assert isinstance(answer, RefusedForever) and not answer and answer.retry_after is None
    assert isinstance(await cell.throttle("user123", rate, 15), Admitted)
    answer = await cell.throttle("user123", rate)
    assert isinstance(answer, Refused) and not answer
    assert 0 < answer.retry_after <= 2 and answer.decided_by == "server"
    assert await cell.throttle(b"user123", rate, 0)


async def test_saturate_takes_what_is_left(cell: Any) -> None:
    limits = [
        (cell.throttle, Rate(5, per=MINUTE)),
        (cell.bucket, Bucket(5, count=1, per=MINUTE)),
        (cell.funnel, Funnel(5, count=1, per=MINUTE)),
        (cell.fixed, Fixed(5, per=MINUTE)),
        (cell.window, Window(5, per=86400)),
        (cell.log, Log(5, per=MINUTE)),
    ]
    for index, (command, limit) in enumerate(limits):
        assert (await command(f"k{index}", limit, 2)).taken == 2
        answer = await command(f"k{index}", limit, 2**63 - 1, saturate=True)
        assert (answer.limit, answer.remaining, answer.taken) == (5, 0, 3)
        answer = await command(f"k{index}", limit)
        assert isinstance(answer, Refused) and answer.retry_after > 0


async def test_bucket_and_funnel(cell: Any) -> None:
    answer = await cell.bucket("tokens", Bucket(30, count=20, per=timedelta(hours=1)), 10)
    assert answer == Admitted(limit=30, remaining=20, reset_after=1800.0, taken=10)
    answer = await cell.funnel("water", Funnel(15, count=30, per=3600), 5)
    assert answer == Admitted(limit=15, remaining=10, reset_after=600.0, taken=5)


async def test_fixed_windows(cell: Any) -> None:
    answer = await cell.fixed("period", Fixed(5, per=timedelta(minutes=1)))
    assert (answer.remaining, answer.taken) == (4, 1) and 55 < answer.reset_after <= 60
    now = datetime.now(timezone.utc)
    answer = await cell.fixed("until", Fixed(5, until=now + timedelta(days=3)))
    assert 3 * 86400 - 5 < answer.reset_after <= 3 * 86400 + 1
    offset = timedelta(hours=5, minutes=30)
    lower: Any = "week"  # as the server accepts it
    longest = {
        Fixed.per_hour(5, utc_offset=offset): 1 / 24,
        Fixed.per_day(5, utc_offset=-offset): 1,
        Fixed.per_week(5, first_day=7, utc_offset=offset): 7,
        Fixed.per_month(5, first_day=15, utc_offset=offset): 31,
        Fixed.per_year(5): 366,
        Fixed(5, per=Calendar(lower, first_day=3)): 7,
    }
    for index, (limit, days) in enumerate(longest.items()):
        answer = await cell.fixed(f"calendar{index}", limit, 2)
        assert answer.remaining == 3 and 0 < answer.reset_after <= days * 86400
        # The window may end before the next call.
        assert (await cell.mpeek(Take(f"calendar{index}", limit))).combined.remaining == 3 or answer.reset_after < 5


async def test_the_end_of_a_calendar_window(cell: Any) -> None:
    offset = timedelta(hours=9)
    answer = await cell.fixed("month", Fixed.per_month(5, first_day=15, utc_offset=offset))
    end = datetime.now(timezone(offset)) + timedelta(seconds=answer.reset_after)
    assert (end + timedelta(minutes=1)).day == 15 and (end - timedelta(minutes=1)).day == 14


async def test_window_and_log(cell: Any) -> None:
    answer = await cell.window("estimate", Window(5, per=timedelta(days=300)), 3)
    assert (answer.limit, answer.remaining) == (5, 2)
    answer = await cell.log("exact", Log(5, per=MINUTE), 3)
    assert answer == Admitted(limit=5, remaining=2, reset_after=60.0, taken=3)
    assert isinstance(await cell.log("exact", Log(5, per=MINUTE), 6), RefusedForever)


async def test_peek_charge_refund(cell: Any) -> None:
    rate = Rate(10, per=10_000)
    assert (await cell.charge("k", rate, 10)).over_limit is False
    assert isinstance(await cell.peek("k", rate), Refused)
    balance = await cell.charge("k", rate, 5)
    assert balance.over_limit and 5_900 < balance.retry_after <= 6_000 and balance.remaining == 0
    balance = await cell.refund("k", rate, 8)
    assert not balance.over_limit and balance.retry_after is None and balance.remaining == 3
    peeked = await cell.peek("k", rate, 2)
    assert isinstance(peeked, Admitted) and peeked.taken == 0 and peeked.remaining == 3


async def test_pause(cell: Any) -> None:
    balance = await cell.pause("k", Rate.per_minute(60), timedelta(hours=1))
    assert balance.over_limit and 3595 < balance.retry_after <= 3600
    refused = await cell.throttle("k", Rate.per_minute(60))
    assert 3595 < refused.retry_after <= 3600


async def test_reserve(cell: Any) -> None:
    rate = Rate(1, per=1000)
    booked = await cell.reserve("k", rate)
    assert isinstance(booked, Booked) and booked.wait == 0
    booked = await cell.reserve("k", rate)
    assert isinstance(booked, Booked) and 995 < booked.wait <= 1000
    refused = await cell.reserve("k", rate, max_wait=timedelta(minutes=1))
    assert isinstance(refused, Refused) and 1995 < refused.retry_after <= 2000
    assert isinstance(await cell.reserve("k", rate, 2), RefusedForever)
    assert isinstance(await cell.reserve("other", rate, 6, prepay=True), Booked)
    booked = await cell.reserve("other", rate, prepay=True)
    assert isinstance(booked, Booked) and 5995 < booked.wait <= 6000


@MODULE_ONLY
async def test_bthrottle(cell: Any) -> None:
    rate = Rate(1, per=0.3)
    assert await cell.bthrottle("k", rate, timeout=10)
    assert await cell.bthrottle("k", rate, timeout=None)
    assert await cell.bthrottle("slow", Rate(1, per=1000), timeout=10)
    assert await cell.bthrottle("slow", Rate(1, per=1000), timeout=timedelta(seconds=0.1)) is None
    assert isinstance(await cell.bthrottle("slow", Rate(1, per=1000), 2, timeout=1), RefusedForever)


async def test_leases(cell: Any) -> None:
    def lease(holder: str) -> Lease:
        return Lease(2, lease=timedelta(minutes=1), holder=holder)

    assert await cell.acquire("jobs", lease("a")) == Admitted(limit=2, remaining=1, reset_after=60.0, taken=1)
    assert await cell.acquire("jobs", lease("b"))
    refused = await cell.acquire("jobs", lease("c"))
    assert isinstance(refused, Refused) and 0 < refused.retry_after <= 60
    assert await cell.renew("jobs", lease("a")) is True
    assert await cell.release("jobs", "a") is True
    assert await cell.release("jobs", "a") is False
    assert await cell.renew("jobs", lease("a")) is False


async def test_several(cell: Any) -> None:
    takes = (
        Take("{7}:rpm", Rate.per_hour(10), 1),
        Take("{7}:tokens", Bucket(1000, count=1, per=3600), 600),
        Take("{7}:funnel", Funnel(1000, count=1, per=3600), 600),
        Take("{7}:month", Fixed.per_month(10_000, first_day=3, utc_offset=timedelta(hours=1)), 600),
        Take("{7}:day", Fixed(10_000, until=datetime(2100, 1, 1, tzinfo=timezone.utc)), 600),
        Take("{7}:window", Window(10_000, per=timedelta(days=300)), 600),
        Take("{7}:log", Log(10_000, per=3600), 600),
        Take("{7}:busy", Lease(20, lease=120, holder="req-1")),
    )
    answer = await cell.mtake(*takes)
    assert answer and len(answer) == 8
    assert answer.combined.remaining == 9
    assert [row.remaining for row in answer.values()] == [9, 400, 400, 9400, 9400, 9400, 9400, 19]
    assert [row.taken for row in answer.values()] == [1, 600, 600, 600, 600, 600, 600, 1]
    refused = await cell.mtake(*takes)
    assert not refused and isinstance(refused.combined, Refused)
    assert isinstance(refused["{7}:tokens"], Refused)
    assert refused["{7}:rpm"] == Admitted(limit=10, remaining=9, reset_after=refused["{7}:rpm"].reset_after, taken=0)
    peeked = await cell.mpeek(*takes)
    assert not peeked and peeked["{7}:tokens"].remaining == 400
    settled = await cell.msettle(
        Settle("{7}:tokens", Bucket(1000, count=1, per=3600), -350),
        Settle("{7}:log", Log(10_000, per=3600), -350),
        Settle("{7}:rpm", Rate.per_hour(10), 12),
        Renew("{7}:busy", Lease(20, lease=300, holder="req-1")),
        ago=timedelta(0),
    )
    assert settled["{7}:tokens"].remaining == 750 and settled["{7}:log"].remaining == 9750
    assert settled["{7}:rpm"].over_limit and settled.combined.over_limit
    assert 295 < settled["{7}:busy"].reset_after <= 300
    settled = await cell.msettle(Release("{7}:busy", Lease(20, lease=300, holder="req-1")))
    assert settled["{7}:busy"].remaining == 20


async def test_more_was_used_than_a_call_may_take(cell: Any) -> None:
    late = Take("{m}:rate", Rate(1, per=3600), 2**63 - 1)
    assert (await cell.settle(late, hold=Hold("{m}:holds", "a", 60)))["{m}:rate"].remaining == 1


async def test_what_is_settled_after_a_take_is_what_is_still_owed(cell: Any) -> None:
    """By the row of the take and its age, which the settlement sends by itself."""
    rate, bucket, hour = Rate(100, per=10_000), Bucket(100, count=100, per=10_000), Fixed(100, per=3600)
    await cell.charge("{s}:rate", rate, 30)  # a busy limiter: what is taken now is owed after that
    takes = (Take("{s}:rate", rate, 20), Take("{s}:bucket", bucket, 20), Take("{s}:hour", hour, 20))
    answer = await cell.mtake(*takes, Take("{s}:busy", Lease(5, lease=60, holder="a")))
    changes = (Settle("{s}:rate", rate, -15), Settle("{s}:bucket", bucket, -15), Settle("{s}:hour", hour, -15))
    settled = await cell.msettle(*changes, Release("{s}:busy", Lease(5, lease=60, holder="a")), taken=answer)
    assert settled["{s}:rate"].remaining == 65 and settled["{s}:bucket"].remaining in (94, 95)
    # The call has opened the window.
    assert settled["{s}:hour"].remaining == 95 and settled["{s}:busy"].remaining == 5
    # No more than the rest of the units that were taken, whatever is requested.
    again = await cell.mtake(Take("{s}:hour", hour, 3))
    assert (await cell.msettle(Settle("{s}:hour", hour, -50), taken=again))["{s}:hour"].remaining == 95


async def test_shadow_refuses_nothing(cell: Any) -> None:
    takes = (Take("{8}:old", Rate.per_hour(10)), Take("{8}:new", Fixed(1, per=3600), shadow=True))
    assert (await cell.mtake(*takes))["{8}:new"].taken == 1
    answer = await cell.mtake(*takes)
    assert answer and isinstance(answer["{8}:new"], Refused) and answer["{8}:old"].taken == 1


@MODULE_ONLY
async def test_top(cell: Any) -> None:
    await cell.reset_top()
    rate = Rate(1, per=1000)
    for _ in range(3):
        await cell.throttle("often", rate)
    for _ in range(2):
        await cell.throttle("seldom", rate)
    often, seldom = await cell.top()
    assert (often.key, often.refusals, often.error) == ("often", 2, 0)
    assert (seldom.key, seldom.refusals) == ("seldom", 1)
    assert abs(often.last_refusal - datetime.now().timestamp()) < 60
    assert [row.key for row in await cell.top(1)] == ["often"]
    await cell.reset_top()
    assert await cell.top() == []


async def test_errors_of_the_server_are_raised(cell: Any, server: servers.Server) -> None:
    with server.admin as admin:
        admin.lpush("list", "x")
    with pytest.raises(Exception, match="WRONGTYPE"):
        await cell.throttle("list", Rate.per_minute(1))
    with pytest.raises(Exception, match="UNTIL must be an integer"):
        await cell.fixed("past", Fixed(5, until=datetime(2000, 1, 1, tzinfo=timezone.utc)))
    assert await cell.throttle("fine", Rate.per_minute(1))
