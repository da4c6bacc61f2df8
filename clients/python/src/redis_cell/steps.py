"""Functions written once for blocking code and for asyncio: generators that yield their I/O as steps."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Generator
from contextlib import nullcontext
from typing import Any, TypeAlias, TypeVar, cast

T = TypeVar("T")

Step: TypeAlias = Callable[[], Any]
"""A function that does some I/O, or for asyncio, a function that returns a coroutine."""
Steps: TypeAlias = Generator[Step, Any, T]
"""A generator of steps that receives the result of each step, and returns a result."""


def run(steps: Steps[T]) -> T:
    """Runs the steps one after the other. The error of a step is raised where the generator yielded the step."""
    try:
        step = next(steps)
        while True:
            try:
                result = step()
            except BaseException as error:
                step = steps.throw(error)
            else:
                step = steps.send(result)
    except StopIteration as end:
        return cast(T, end.value)


async def to_its_end(work: Coroutine[Any, Any, None]) -> None:
    """Runs work to its end even if the caller is cancelled, and raises the cancellation then."""
    task, cancelled = asyncio.ensure_future(work), None
    # A scope of anyio that is cancelled cancels its tasks again in each turn of the event loop.
    anyio: Any = sys.modules.get("anyio")
    with anyio.CancelScope(shield=True) if anyio else nullcontext():
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError as error:
                cancelled = error
    task.result()
    if cancelled is not None:
        raise cancelled


async def async_run(steps: Steps[T]) -> T:
    """Like `run`, for asyncio."""
    try:
        step = next(steps)
        while True:
            try:
                result = await step()
            except BaseException as error:
                step = steps.throw(error)
            else:
                step = steps.send(result)
    except StopIteration as end:
        return cast(T, end.value)
