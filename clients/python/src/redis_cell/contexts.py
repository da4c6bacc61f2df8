"""The context managers of what a block takes from the server, and gives back at its end however it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

from . import steps
from .sending import MARGIN
from .steps import Asyncio, Blocking, Steps

C = TypeVar("C", bound="SyncContext")
D = TypeVar("D", bound="AsyncContext")


class _Context:
    """The common part of both."""

    _enter: Callable[[], Steps[None]]
    """Takes it, or raises the refusal."""
    _settle: Callable[[bool], Steps[None]]
    """Gives it back, with whether the block has failed."""
    _not_settled: Callable[[bool, BaseException], None]
    """Logs the error of `_settle`, which is no error of the block."""


class SyncContext(_Context, Blocking):
    """For `with` blocks."""

    def _leave(self, failed: bool) -> None:
        try:
            steps.run(self._settle(failed))
        except BaseException as failure:
            self._not_settled(failed, failure)
            if not isinstance(failure, Exception):
                raise

    def __enter__(self: C) -> C:
        try:
            steps.run(self._enter())
        except BaseException as error:
            if not isinstance(error, Exception):  # the call that was interrupted may have been admitted
                self._leave(True)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave(kind is not None)


class AsyncContext(_Context, Asyncio):
    """For `async with` blocks."""

    async def _leave(self, failed: bool) -> None:
        try:
            await asyncio.wait_for(steps.async_run(self._settle(failed)), MARGIN)
        except BaseException as failure:
            self._not_settled(failed, failure)
            if not isinstance(failure, Exception):
                raise

    async def __aenter__(self: D) -> D:
        try:
            await steps.async_run(self._enter())
        except asyncio.CancelledError:
            await steps.to_its_end(self._leave(True))
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await steps.to_its_end(self._leave(kind is not None))
