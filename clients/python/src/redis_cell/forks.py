"""Objects that are reset in a forked process, which has none of the parent's threads, calls, connections or units."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

_all: weakref.WeakKeyDictionary[Any, Callable[[Any], None]] = weakref.WeakKeyDictionary()


def in_each_child(thing: T, begin: Callable[[T], None]) -> None:
    """Calls `begin` with an object, which is not kept alive, in each process that is forked from now on."""
    _all[thing] = begin


def _after_fork() -> None:
    for thing, begin in list(_all.items()):
        begin(thing)


os.register_at_fork(after_in_child=_after_fork)
