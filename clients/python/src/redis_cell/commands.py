"""The commands as methods of cells and guards, for blocking code and for asyncio."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, cast

from . import steps, wire
from .answers import Key
from .steps import Method, shown
from .times import Seconds
from .wire import Call

if TYPE_CHECKING:
    from .places import AsyncPlace, Place

P = ParamSpec("P")
T = TypeVar("T")
H = TypeVar("H")


class _Holds(Generic[H]):
    """The common part of all cells and guards."""

    def _place(self, *arguments: Any) -> H:
        raise NotImplementedError

    def place(
        self, key: Key, places: int, *, lease: Seconds, holder: str | bytes | None = None, timeout: Seconds | None = 0
    ) -> H:
        """Returns a context manager that holds a place in a `with` block, or for asyncio, in an `async with` block.
        Raises RateLimited if none is free.

        It waits up to `timeout` for a place. If the block takes longer than `lease`, the place is lost unless the block
        renews it with the place's method `renew`.
        """
        return self._place(key, places, lease, holder, timeout)


class Blocking(steps.Blocking, _Holds["Place"]):
    """The common part of a Cell and a Guard."""

    def _place(self, *arguments: Any) -> Place:
        from .places import Place

        return Place(cast(Any, self), *arguments)


class Asyncio(steps.Asyncio, _Holds["AsyncPlace"]):
    """The common part of an AsyncCell and an AsyncGuard."""

    def _place(self, *arguments: Any) -> AsyncPlace:
        from .places import AsyncPlace

        return AsyncPlace(cast(Any, self), *arguments)


class Command(Method[P, T]):
    """A function of `wire` as a method, which returns the answer, or for asyncio a coroutine that returns it."""

    def __init__(self, build: Callable[P, Call[T]]) -> None:
        def method(self: Any, *args: P.args, **kwargs: P.kwargs) -> Any:
            return self.run(build(*args, **kwargs))

        shown(method, build, inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY))
        self.method = method
        self.__doc__ = build.__doc__


class Decisions:
    """The commands that admit or refuse, and the commands for places, with the arguments of the functions in `wire`."""

    throttle = Command(wire.throttle)
    bucket = Command(wire.bucket)
    funnel = Command(wire.funnel)
    fixed = Command(wire.fixed)
    window = Command(wire.window)
    log = Command(wire.log)
    peek = Command(wire.peek)
    bthrottle = Command(wire.bthrottle)
    acquire = Command(wire.acquire)
    renew = Command(wire.renew)
    release = Command(wire.release)
    mtake = Command(wire.mtake)
    bmtake = Command(wire.bmtake)
    mpeek = Command(wire.mpeek)
    settle = Command(wire.settle)


class Commands(Decisions):
    """All commands."""

    charge = Command(wire.charge)
    refund = Command(wire.refund)
    pause = Command(wire.pause)
    reserve = Command(wire.reserve)
    msettle = Command(wire.msettle)
    top = Command(wire.top)
    reset_top = Command(wire.reset_top)
