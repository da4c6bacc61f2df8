"""The public names of the package with their parameters. What goes or is renamed belongs in the changelog."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import redis_cell

KEPT = Path(__file__).parent / "public.txt"


def described(name: str, value: Any) -> str:
    if inspect.isclass(value) or inspect.isroutine(value):
        return f"{name}({', '.join(inspect.signature(value).parameters)})"
    return name


def public() -> str:
    """A line for each public name, with the members of a class behind it."""
    lines: list[str] = []
    for name in sorted(redis_cell.__all__):
        value = getattr(redis_cell, name)
        words = [described(name, value)]
        if inspect.isclass(value):
            owners = [owner for owner in value.__mro__ if owner.__module__.startswith("redis_cell")]
            members = {member for owner in owners for member in vars(owner) if not member.startswith("_")}
            words += [described(member, getattr(value, member, None)) for member in sorted(members)]
        lines.append("; ".join(words) + "\n")
    return "".join(lines)


def test_public_names_are_kept() -> None:
    """After a change on purpose, this file as a program writes the names again."""
    assert public() == KEPT.read_text()


if __name__ == "__main__":
    KEPT.write_text(public())
