"""Functions written once for blocking code and for asyncio: generators that yield their I/O as steps."""

from __future__ import annotations

import asyncio
import functools
import inspect
import sys
from collections.abc import Callable, Coroutine, Generator
from contextlib import nullcontext
from typing import Any, ClassVar, Concatenate, Generic, ParamSpec, Protocol, TypeAlias, TypeVar, cast, overload

P = ParamSpec("P")
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


async def to_its_end(work: Coroutine[Any, Any, object]) -> None:
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


class Tasks:
    """Tasks that run to their end: the event loop itself keeps only a weak reference to a task."""

    def __init__(self) -> None:
        self.running = set[asyncio.Task[Any]]()

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self.running.add(task)
        task.add_done_callback(self.running.discard)
        return task


class Ticket(Protocol):
    """What a caller waits for: a Future of asyncio or of concurrent.futures."""

    def done(self) -> bool: ...
    def set_result(self, result: Any, /) -> None: ...
    def set_exception(self, exception: BaseException, /) -> None: ...


def unread(ticket: asyncio.Future[Any]) -> Any:
    """Returns the answer to an admitted call that its caller was cancelled before it could read, or None."""
    if not ticket.done() or ticket.cancelled() or ticket.exception() is not None:
        return None
    return ticket.result() or None


class Blocking:
    """The objects whose methods run steps."""

    _runs: ClassVar[Callable[[Steps[Any]], Any]] = staticmethod(run)


class Asyncio:
    """The objects whose methods return coroutines that run steps."""

    _runs: ClassVar[Callable[[Steps[Any]], Any]] = staticmethod(async_run)


def shown(method: Callable[..., Any], function: Callable[..., Any], *parameters: inspect.Parameter) -> None:
    """Gives a method the documentation of a function, and its signature for help() with these parameters. A function
    that returns a call or steps is shown with what these return."""
    functools.update_wrapper(method, function)
    of = inspect.signature(function)
    answer = str(of.return_annotation).partition("[")[2].removesuffix("]")
    method.__dict__["__signature__"] = of.replace(
        parameters=[*parameters, *of.parameters.values()], return_annotation=answer
    )


class Method(Generic[P, T]):
    """A method that is written once. A Blocking runs its steps, and an Asyncio returns a coroutine that runs them."""

    def __init__(self, plan: Callable[Concatenate[Any, P], Steps[T]]) -> None:
        def method(self: Any, *args: P.args, **kwargs: P.kwargs) -> Any:
            return self._runs(plan(self, *args, **kwargs))

        shown(method, plan)
        self.method: Callable[..., Any] = method
        self.__doc__ = plan.__doc__

    @overload
    def __get__(self, owner: None, kind: type) -> Method[P, T]: ...
    @overload
    def __get__(self, owner: Blocking, kind: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, owner: Asyncio, kind: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, owner: Blocking | Asyncio | None, kind: type) -> Any:
        return self.method if owner is None else self.method.__get__(owner)
