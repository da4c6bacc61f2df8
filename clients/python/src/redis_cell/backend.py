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

_LENGTHS = {"THROTTLE": 4, "FUNNEL": 4, "BUCKET": 4, "WINDOW": 3, "LOG": 3, "LEASE": 3}
"""The number of arguments of each kind of limiter except FIXED."""


def as_command(call: Call[Any]) -> Arguments:
    """Returns the module's command for a call."""
    head: tuple[Argument, ...] = (call.name,) if call.key is None else (call.name, call.key)
    arguments = call.arguments
    return (lambda: (*head, *arguments())) if callable(arguments) else (*head, *arguments)


def as_function(call: Call[Any]) -> Arguments:
    """Returns the command that calls the function library: keys come first."""
    if call.key is None or call.name in MODULE_ONLY:
        raise NotImplementedError(f"{call.name} needs the module: the function library does not have it")
    fcall = "FCALL_RO" if call.name in READ_ONLY else "FCALL"
    head = (fcall, call.name.lower().replace(".", "_"))
    key, arguments, once = call.key, call.arguments, call.once is not None
    place = _keys_first if call.name in {*SEVERAL, "CL.BMTAKE"} else _key_first
    if callable(arguments):
        return lambda: (*head, *place(key, arguments(), once))
    return (*head, *place(key, arguments, once))


def _key_first(key: Key, arguments: tuple[Argument, ...], once: bool) -> tuple[Argument, ...]:
    return (1, key, *arguments)


def _keys_first(key: Key, rest: tuple[Argument, ...], once: bool) -> tuple[Argument, ...]:
    """Puts the keys of all limiters first. The key of ONCE follows them if the call has this option, the last one."""
    keys, arguments = list[Argument]([key]), list[Argument]()
    length = _length(rest)
    while length:
        arguments += rest[:length]
        rest = rest[length:]
        length = _length(rest[1:])
        if length:
            keys.append(rest[0])
            rest = rest[1:]
    if "FLOW" in (rest[:-4] if once else rest):
        raise NotImplementedError("a flow needs the module: the function library has no clients that wait")
    if once:
        keys.append(rest[-3])
        rest = (*rest[:-3], *rest[-2:])
    return (len(keys), *keys, *arguments, *rest)


def _length(arguments: tuple[Argument, ...]) -> int:
    """Returns the number of arguments of the first limiter, or 0 if there is none."""
    begin = 0
    if arguments[:1] == ("RESET",):
        begin = 2
    if arguments[begin : begin + 1] == ("SHADOW",):
        begin += 1
    kind = arguments[begin] if len(arguments) > begin else None
    if kind != "FIXED":
        own = _LENGTHS.get(kind) if isinstance(kind, str) else None
        return begin + 1 + own if own else 0
    end = begin + (4 if arguments[begin + 2] == "UNTIL" else 3)  # the position of the quantity or of an option
    while arguments[end] in ("UTC", "FROM", "IDLE"):
        end += 2
    return end + 1


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
    """Returns an error of the server that says what a user needs to know, or the error itself."""
    if is_unknown_command(error):
        return type(error)(f"the server has not loaded redis-cell, which {call.name} needs")
    if "WRONGTYPE" in str(error):
        return type(error)(f"{error}: {call.name} {call.key!r}{' ...' if call.name in {*SEVERAL, 'CL.BMTAKE'} else ''}")
    return error


def is_unknown_command(error: Exception) -> bool:
    return "unknown command" in str(error) or "has not loaded redis-cell" in str(error)


def is_unknown_function(error: Exception) -> bool:
    return "Function not found" in str(error)
