"""The function library in place of the module: its calls, and its version. No I/O."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from .answers import Key
from .limiters import Word, Words
from .wire import Call

Backend: TypeAlias = Literal["module", "functions", "auto"]
"""Where calls go: to the module's commands, or to the functions of the function library. auto finds out."""

MODULE_ONLY = {"CL.BTHROTTLE", "CL.BMTAKE", "CL.TOP"}
"""The commands that the function library does not have."""

READ_ONLY = {"CL.PEEK", "CL.MPEEK"}
SEVERAL = {"CL.MTAKE", "CL.MPEEK", "CL.MSETTLE"}

OLDEST = (1, 0, 0)
"""The oldest library that has all that this package uses."""

_WORDS = {"THROTTLE": 4, "FUNNEL": 4, "BUCKET": 4, "WINDOW": 3, "LOG": 3, "LEASE": 3}
"""The number of words of each kind of limiter, without FIXED."""


def as_command(call: Call[Any]) -> Words:
    """The words of a call of the module."""
    head: tuple[Word, ...] = (call.name,) if call.key is None else (call.name, call.key)
    words = call.words
    return (lambda: (*head, *words())) if callable(words) else (*head, *words)


def as_function(call: Call[Any]) -> Words:
    """The words of a call of the function library: the keys come first."""
    if call.key is None or call.name in MODULE_ONLY:
        raise NotImplementedError(f"{call.name} needs the module: the function library does not have it")
    fcall = "FCALL_RO" if call.name in READ_ONLY else "FCALL"
    head = (fcall, call.name.lower().replace(".", "_"))
    key, words, place = call.key, call.words, _keys_first if call.name in SEVERAL else _key_first
    once = call.once is not None
    return (lambda: (*head, *place(key, words(), once))) if callable(words) else (*head, *place(key, words, once))


def _key_first(key: Key, words: tuple[Word, ...], once: bool) -> tuple[Word, ...]:
    return (1, key, *words)


def _keys_first(key: Key, rest: tuple[Word, ...], once: bool) -> tuple[Word, ...]:
    """The keys of all limiters, and that of ONCE, which is the last option before the unit, if the call has it."""
    keys, words = list[Word]([key]), list[Word]()
    length = _length(rest)
    while length:
        words += rest[:length]
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
    return (len(keys), *keys, *words, *rest)


def _length(words: tuple[Word, ...]) -> int:
    """The number of words of the limiter that some words begin with. 0 if they do not begin with one."""
    begin = 0
    if words[:1] == ("RESET",):
        begin = 2
    if words[begin : begin + 1] == ("SHADOW",):
        begin += 1
    kind = words[begin] if len(words) > begin else None
    if kind != "FIXED":
        own = _WORDS.get(kind) if isinstance(kind, str) else None
        return begin + 1 + own if own else 0
    end = begin + (4 if words[begin + 2] == "UNTIL" else 3)  # the place of the quantity, or of an option
    while words[end] in ("UTC", "FROM"):
        end += 2
    return end + 1


def version(key: Key) -> Words:
    """The call that returns the library's version, from the node of a key."""
    return ("FCALL_RO", "cl_version", 1, key)


def too_old(reply: bytes | str) -> str | None:
    """What is wrong with the library's version, if something is."""
    text = reply.decode() if isinstance(reply, bytes) else reply
    numbers = tuple(int(number) for number in text.partition("-")[0].split("."))
    if numbers >= OLDEST:
        return None
    return f"the function library redis_cell is too old: the server has {text}, and this client needs 1.0.0 or newer"


NOT_LOADED = "Function not found: the function library redis_cell is not loaded, or older than 1.0.0"


def is_unknown_command(error: Exception) -> bool:
    return "unknown command" in str(error)


def is_unknown_function(error: Exception) -> bool:
    return "Function not found" in str(error)
