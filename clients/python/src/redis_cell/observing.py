"""OpenTelemetry spans for calls, and a function that is called for each refusal."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, TypeVar, cast

from .answers import Decision, Refused, RefusedForever, Together
from .limiters import function
from .wire import Call

C = TypeVar("C")


def observe(
    cell: C, *, on_refusal: Callable[[Call[Any], Refused | RefusedForever], None] | None = None, tracer: Any = None
) -> C:
    """Makes the calls of a Cell, AsyncCell, Guard or AsyncGuard observed from now on, and returns it.

    `on_refusal` is called with each refused call and its refusal, which for several limiters is the combined one.
    `tracer` is an OpenTelemetry tracer. Each call is a span with the name of its command, its key, the decision, and
    where it was made.
    """
    if on_refusal is not None:
        function(on_refusal, "on_refusal")
    observed: Any = cell
    if not callable(getattr(observed, "run", None)):
        raise TypeError(f"observe needs a cell or a guard, not {type(cell).__name__}")
    run: Callable[..., Any] = observed.run

    def span_of(call: Call[Any]) -> Any:
        if tracer is None:
            return nullcontext()
        key = call.key.decode("utf-8", "replace") if isinstance(call.key, bytes) else call.key or ""
        attributes = {"db.system.name": "redis", "db.operation.name": call.name, "redis_cell.key": key}
        return tracer.start_as_current_span(call.name, attributes=attributes)

    def note(span: Any, call: Call[Any], answer: Any) -> Any:
        decision: Any = cast(Any, answer).combined if isinstance(answer, Together) else answer
        if isinstance(decision, Decision):
            if span is not None:
                span.set_attribute("redis_cell.admitted", decision.admitted)
                span.set_attribute("redis_cell.decided_by", decision.decided_by)
            if on_refusal is not None and isinstance(decision, (Refused, RefusedForever)):
                on_refusal(call, decision)
        return cast(Any, answer)

    def called(call: Call[Any], *more: Any) -> Any:
        with span_of(call) as span:
            return note(span, call, run(call, *more))

    async def awaited(call: Call[Any], *more: Any) -> Any:
        with span_of(call) as span:
            return note(span, call, await run(call, *more))

    observed.run = awaited if inspect.iscoroutinefunction(run) else called
    return cell
