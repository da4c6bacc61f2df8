"""The Holding of this package decides as core/src/holding.rs does: it replays calls of that Holding."""

from __future__ import annotations

import pytest

import servers
from redis_cell import Rate
from redis_cell.holding import Batch, Holding, Terms

MILLISECOND = 1_000_000


def rounds() -> list[list[list[str]]]:
    """The calls of each holding, as core/examples/transcripts.rs prints them: instant, function, arguments, result."""
    found: list[list[list[str]]] = []
    for row in servers.transcript("holding"):
        if row[1] == "new":
            found.append([])
        found[-1].append(row)
    return found


def call(holding: Holding, parts: list[Batch | None], now: int, name: str, numbers: list[int]) -> str:
    match name:
        case "spend":
            part, wait = holding.part(now, *numbers), holding.spend(now, *numbers)
            if not wait and wait is not None:
                parts.append(part)
            return "short" if wait is None else str(wait) if wait else "spent"
        case "unspend":
            if parts and (part := parts.pop()):
                holding.unspend(now, part)
        case "ask":
            return str(holding.ask(now, *numbers))
        case "answered":
            holding.answered(now, *numbers)
        case "lost":
            holding.lost(now)
        case "end":
            holding.end(now)
        case "give_back":
            return " ".join(map(str, holding.give_back(now) or ()))
        case "returned":
            holding.returned()
            return str(int(holding.idle(now)))
        case _:
            raise AssertionError(name)
    return str(holding.held())


@pytest.mark.parametrize("calls", rounds(), ids=lambda calls: calls[0][2].replace(" ", "-"))
def test_a_holding_decides_as_in_the_core(calls: list[list[str]]) -> None:
    kind, *numbers = calls[0][2].split()
    count, period, least, most, hold, reply = map(int, numbers)
    rate = Rate(count, per=period / 1_000_000) if kind == "rate" else None
    holding = Holding(Terms(rate, least, most, hold * MILLISECOND, reply * MILLISECOND))
    parts: list[Batch | None] = []
    for now, name, arguments, result in calls[1:]:
        assert call(holding, parts, int(now), name, list(map(int, arguments.split()))) == result, (now, name, arguments)


def test_units_of_a_window_go_back_unless_another_window_may_have_opened() -> None:
    terms = Terms(None, 10, 10, 100 * MILLISECOND, 500 * MILLISECOND)
    for lasts, age in ((530, 700), (531, 170), (100_000, 170)):
        holding = Holding(terms)
        assert holding.ask(0, 1) == 10
        holding.answered(30 * MILLISECOND, 10, 0, lasts * MILLISECOND)
        assert holding.spend(40 * MILLISECOND, 3) == 0
        # From the answer, or from the call with the time in which the server may hear of it.
        assert holding.give_back(200 * MILLISECOND) == (7, age * MILLISECOND)
