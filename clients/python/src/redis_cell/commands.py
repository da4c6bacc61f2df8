"""The commands as methods of cells and guards, for blocking code and for asyncio."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, cast, overload

from . import wire
from .answers import Key
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


class Blocking(_Holds["Place"]):
    """The common part of a Cell and a Guard."""

    def _place(self, *arguments: Any) -> Place:
        from .places import Place

        return Place(cast(Any, self), *arguments)


class Asyncio(_Holds["AsyncPlace"]):
    """The common part of an AsyncCell and an AsyncGuard."""

    def _place(self, *arguments: Any) -> AsyncPlace:
        from .places import AsyncPlace

        return AsyncPlace(cast(Any, self), *arguments)


def as_method(build: Callable[..., Call[Any]]) -> Callable[..., Any]:
    """Makes a method of a function of `wire`, with the signature for help()."""

    @functools.wraps(build)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self.run(build(*args, **kwargs))

    of = inspect.signature(build)
    answer = str(of.return_annotation).removeprefix("Call[").removesuffix("]")
    parameters = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY), *of.parameters.values()]
    method.__dict__["__signature__"] = of.replace(parameters=parameters, return_annotation=answer)
    return method


class Command(Generic[P, T]):
    """A function of `wire` as a method, which returns the answer, or for asyncio a coroutine that returns it."""

    def __init__(self, build: Callable[P, Call[T]]) -> None:
        self.method = as_method(build)
        self.__doc__ = build.__doc__

    @overload
    def __get__(self, cell: None, owner: type) -> Command[P, T]: ...
    @overload
    def __get__(self, cell: Blocking, owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, cell: Asyncio, owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(
        self, cell: Blocking | Asyncio | None, owner: type
    ) -> Command[P, T] | Callable[P, T] | Callable[P, Coroutine[Any, Any, T]]:
        method: Callable[..., Any] = self.method if cell is None else self.method.__get__(cell)
        return method


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
