"""Arguments that are checked before anything is sent."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from conftest import FLAVORS, client_class
from redis_cell import AsyncCell, Bucket, Cell, Fixed, Lease, Log, Rate, Release, Renew, Settle, Take, wire
from redis_cell.times import micros, micros_up


def test_a_rate_without_a_burst_admits_its_count_at_once() -> None:
    assert Rate.per_minute(30).limit == 30
    assert Rate.per_minute(30) == Rate(30, per=60, burst=29)
    assert Rate.per_second(1).per == 1 and Rate.per_hour(1).per == 3600 and Rate.per_day(1).per == 86400


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Rate(0, per=1), "count must be at least 1"),
        (lambda: Rate(1, per=0), "per must be at least"),
        (lambda: Rate(1, per=float("nan")), "per must be a finite number"),
        (lambda: Rate(1, per=1, burst=-1), "burst must be at least 0"),
        (lambda: Bucket(0, count=1, per=1), "capacity must be at least 1"),
        (lambda: Log(0, per=1), "limit must be at least 1"),
        (lambda: Fixed.until(1, datetime(2100, 1, 1)), "time zone"),
        (lambda: Fixed.per_day(1, utc_offset=timedelta(seconds=1)), "whole number of minutes"),
        (lambda: Lease(1, lease=0, holder="a"), "lease must be at least"),
        (lambda: Take("k", Lease(1, lease=1, holder="a"), 2), "the quantity of a lease is 1"),
        (lambda: Take("k", Rate(1, per=1), -1), "quantity must be at least 0"),
        (lambda: wire.throttle("k", Rate(1, per=1), -1), "quantity must be at least 0"),
        (lambda: wire.mpeek(Take("k", Rate(1, per=1), shadow=True)), "shadow is for mtake"),
        (lambda: wire.bthrottle("k", Rate(1, per=1), timeout=0), "timeout must be at least"),
        (lambda: wire.top(0), "count must be at least 1"),
    ],
)
def test_what_cannot_be_is_an_error(build: object, message: str) -> None:
    assert callable(build)
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize("key", [None, 7, ["k"]])
def test_a_key_is_text_or_bytes(key: Any) -> None:
    lease = Lease(1, lease=1, holder="a")
    builders: list[Callable[[], Any]] = [
        lambda: wire.throttle(key, Rate(1, per=1)),
        lambda: wire.fixed(key, Fixed.per(1, per=1)),
        lambda: wire.charge(key, Rate(1, per=1)),
        lambda: wire.reserve(key, Rate(1, per=1)),
        lambda: wire.acquire(key, lease),
        lambda: wire.renew(key, lease),
        lambda: wire.release(key, "a"),
        lambda: wire.mtake(Take("k", Rate(1, per=1)), Take(key, Rate(1, per=1))),
        lambda: wire.msettle(Settle(key, Rate(1, per=1), 1)),
        lambda: wire.msettle(Renew("k", lease), Release(key, lease)),
    ]
    for build in builders:
        with pytest.raises(TypeError, match="a key is a str or bytes"):
            build()


@pytest.mark.parametrize(("library", "way"), FLAVORS)
def test_a_pipeline_is_not_a_client(library: str, way: str) -> None:
    cell = AsyncCell if way == "asyncio" else Cell
    with pytest.raises(TypeError, match="pipeline"):
        cell(client_class(library, way)().pipeline())
    if way == "asyncio":
        with pytest.raises(TypeError, match="pipeline"):
            cell(client_class(library, way, clustered=True)(host="localhost").pipeline())


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
