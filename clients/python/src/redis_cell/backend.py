"""The function library in place of the module: the calls of its functions, and its version. No I/O."""

from __future__ import annotations

import re
from typing import Any, Literal, TypeAlias, get_args

from .answers import Key
from .limiters import Argument, Arguments
from .wire import Call

Backend: TypeAlias = Literal["module", "functions", "auto"]
"""Where calls go: to the module, to the function library, or, with auto, to the one that the first call finds."""


def check(backend: object) -> None:
    if backend not in get_args(Backend):
        raise ValueError(f"backend must be {', '.join(map(repr, get_args(Backend)))}, not {backend!r}")


MODULE_ONLY = {"CL.BTHROTTLE", "CL.BMTAKE", "CL.TOP"}
"""The commands that the function library does not have."""

READ_ONLY = {"CL.PEEK", "CL.MPEEK"}
SEVERAL = {"CL.MTAKE", "CL.MPEEK", "CL.MSETTLE"}

OLDEST = (1, 0, 0)
"""The oldest library that this package supports."""


def as_command(call: Call[Any]) -> Arguments:
    """Returns the module's command for a call."""
    head: tuple[Argument, ...] = (call.name,) if call.key is None else (call.name, call.key)
    arguments = call.arguments
    return (lambda: (*head, *arguments())) if callable(arguments) else (*head, *arguments)


def as_function(call: Call[Any]) -> Arguments:
    """Returns the command that calls the function library: keys come first."""
    if call.native:
        return as_command(call)
    if call.key is None or call.name in MODULE_ONLY:
        raise NotImplementedError(f"{call.name} needs the module: the function library does not have it")
    if call.flow:
        raise NotImplementedError("a flow needs the module: the function library has no clients that wait")
    fcall = "FCALL_RO" if call.name in READ_ONLY else "FCALL"
    head = (fcall, call.name.lower().replace(".", "_"), 1 + len(call.keys), call.key)
    arguments, keys = call.arguments, call.keys
    if callable(arguments):
        return lambda: (*head, *_keys_first(arguments(), keys))
    return (*head, *_keys_first(arguments, keys))


def _keys_first(arguments: tuple[Argument, ...], keys: tuple[int, ...]) -> tuple[Argument, ...]:
    others = [word for index, word in enumerate(arguments) if index not in keys]
    return (*(arguments[index] for index in keys), *others)


def version(key: Key) -> Arguments:
    """Returns the call that reads the library's version from the node of a key."""
    return ("FCALL_RO", "cl_version", 1, key)


def too_old(reply: Any) -> str | None:
    """Returns an error text if the library is too old for this package, or states no version, otherwise None."""
    text = reply.decode(errors="replace") if isinstance(reply, bytes) else str(reply)
    numbers = re.match(r"([0-9]{1,9})\.([0-9]{1,9})\.([0-9]{1,9})(?![^-])", text)
    if numbers and tuple(map(int, numbers.groups())) >= OLDEST:
        return None
    return f"the function library redis_cell is too old: the server has {text!r}, and this client needs 1.0.0 or newer"


NOT_LOADED = "Function not found: the function library redis_cell is not loaded, or older than 1.0.0"


def explained(error: Exception, call: Call[Any]) -> Exception:
    """Returns an error that explains an error of the server to the user, or the error itself."""
    if is_unknown_command(error, call):
        return type(error)(f"the server has not loaded redis-cell, which {call.name} needs")
    if "WRONGTYPE" in str(error) or "does not hold this limiter's state" in str(error):
        return type(error)(f"{error}: {call.name} {call.key!r}{' ...' if call.name in {*SEVERAL, 'CL.BMTAKE'} else ''}")
    return error


def is_unknown_command(error: Exception, call: Call[Any]) -> bool:
    """Whether the server does not know the module's command. A client may send others before it, such as SENTINEL."""
    return "unknown command" in str(error) and call.name.lower() in str(error).lower()


def is_unknown_function(error: Exception) -> bool:
    return "Function not found" in str(error)
