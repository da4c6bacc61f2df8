"""The Python on the pages runs: each page from its top to its end, as a reader types it, against a real server."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import limits.storage
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

import redis_cell
import servers
from redis_cell.limits import ASYNC_SCHEMES, SCHEMES
from upstream import Upstream, serving

PAGES = ["clients/python/README.md", "docs/client-python.md", "docs/adapters.md", "docs/migrating.md"]
"""The pages of this client, whose expressions and storages are tested too."""
PROGRAMS = {
    "docs/agents.md": "cl.mtake",
    "docs/language-models.md": "cl.mtake",
    **dict.fromkeys(PAGES[:2], "cl.throttle"),
    **dict.fromkeys(PAGES[2:], None),
    "README.md": "cl.throttle",
    "README.zh-CN.md": "cl.throttle",
    "docs/clients.md": "cl.bthrottle",
    "docs/recipes.md": "cl.fixed",
    "docs/tutorial.md": "cl.throttle",
}
"""The pages with programs, and a command that these call."""
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CLASSES = [name for name in redis_cell.__all__ if isinstance(getattr(redis_cell, name), type)]
OUTPUT = re.compile(r"^```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EXPRESSION = re.compile(rf"`((?:redis\.Redis|{'|'.join(CLASSES)})(?:\.\w+)?\([^`]*\))`")
STORAGE = re.compile(r"(?:async\+)?\brediss?-cell(?:\+\w+)?://[^\s\"'`]*")


@pytest.fixture(scope="module")
def upstream() -> Iterator[str]:
    with serving(Upstream()) as upstream:
        yield upstream.url


def text(page: str) -> str:
    return (servers.REPOSITORY / page).read_text()


def on_ports(code: str, server: int, cluster: int, upstream: str = "") -> str:
    """The code with these ports. A page has the port that everybody knows."""
    code = code.replace("http://localhost:9000", upstream or "http://localhost:9000")
    code = re.sub(r"63(79|80)", str(server), code.replace("7000", str(cluster)))
    return re.sub(r"\bRedis\((?!port=)", f"Redis(port={server}, ", code)


@pytest.mark.filterwarnings("error::RuntimeWarning", "error::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("page", PROGRAMS)
async def test_the_programs_of_a_page_run(
    server: servers.Server, cluster: list[servers.Server], upstream: str, page: str, capsys: pytest.CaptureFixture[str]
) -> None:
    # What the application knows of a request is the reader's own.
    namespace: dict[str, Any] = {"__name__": "page"}
    namespace |= {"client": server.admin, "user": 7} if page.startswith("README") else {}
    for block in BLOCK.finditer(text(page)):
        code = on_ports(block[1], server.port, cluster[0].port, upstream)
        if code.startswith("limited"):  # the body of a handler
            code = f"def handler():\n{textwrap.indent(code, '    ')}\nhandler()"
        # The empty lines make the line numbers of a failure the page's.
        lines = "\n" * text(page)[: block.start(1)].count("\n")
        program = compile(lines + code, servers.REPOSITORY / page, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        result = eval(program, namespace)
        if inspect.iscoroutine(result):
            await result
    command = PROGRAMS[page]
    assert command is None or server.calls(command)
    if page == "docs/agents.md":
        async with pytest.importorskip("fastmcp").Client(namespace["mcp"]) as tools:
            assert (await tools.call_tool("render", {"page": "a"})).data == "<h1>a</h1>"
        assert OUTPUT.findall(text(page)) == [capsys.readouterr().out]


@pytest.mark.parametrize("page", PAGES)
def test_the_expressions_of_a_page_can_be_evaluated(page: str) -> None:
    namespace = {**vars(redis_cell), "redis": redis, "Retry": Retry, "NoBackoff": NoBackoff}
    namespace["end"] = datetime.now(timezone.utc) + timedelta(hours=1)
    expressions = EXPRESSION.findall(text(page))
    for expression in expressions:
        eval(expression, namespace)
    assert len(expressions) >= 10 or page != "docs/client-python.md"


@pytest.mark.parametrize("page", PAGES)
def test_the_storages_of_a_page_can_be_made(page: str) -> None:
    storages = STORAGE.findall(text(page))
    for uri in storages:
        if uri.endswith("://"):  # a scheme by itself
            assert uri.removesuffix("://") in SCHEMES + ASYNC_SCHEMES
        else:
            limits.storage.storage_from_string(uri)
    assert storages
