"""The type checkers have nothing to say: about the package, and about code that uses it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent
CHECKED = ["src", "tests/typed_usage.py"]


@pytest.mark.parametrize(
    "checker",
    [
        ["mypy", "--strict", "--warn-unused-ignores"],
        ["basedpyright", "--pythonpath", sys.executable],
        ["ruff", "check"],
        ["ruff", "format", "--check"],
    ],
    ids=["mypy", "pyright", "lints", "format"],
)
def test_a_checker_has_nothing_to_say(checker: list[str]) -> None:
    files = ["."] if checker[0] == "ruff" else CHECKED
    program = Path(sys.executable).parent / checker[0]
    result = subprocess.run([program, *checker[1:], *files], cwd=PACKAGE, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
