"""Tests wait for conditions, not for the clock: none sleeps for some time and then looks."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from architecture import ROOT

TESTS = ROOT / "tests"
SLEEPS = ("sleep", "wait_for_timeout")
FOREVER = 600  # seconds: longer than any test; such a process is there to be ended
# A kill that comes at any moment: the delay is drawn, and what is asserted holds wherever it falls.
AT_ANY_MOMENT = {"runs/storage/driver.py"}


def naps(node: ast.AST, looping: bool = False) -> Iterator[str]:
    """Find calls that sleep a while outside of a loop that asks again; also in programs that tests hold as text."""
    if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in SLEEPS and not looping:
        seconds = node.args[0] if node.args else None
        if not (isinstance(seconds, ast.Constant) and isinstance(seconds.value, int) and seconds.value > FOREVER):
            yield ast.unparse(node)
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and "(" in node.value:
        with suppress(SyntaxError, ValueError):
            yield from naps(ast.parse(node.value))
    inside = looping or isinstance(node, ast.While | ast.For)
    inside = inside and not isinstance(node, ast.FunctionDef | ast.Lambda)
    for child in ast.iter_child_nodes(node):
        yield from naps(child, inside)


def test_naps_are_seen() -> None:
    text = (
        "time.sleep(1)\nassert there()\n"
        "while not there():\n    time.sleep(0.1)\n"
        "sleep(3600)\n"
        "PROGRAM = 'import time; time.sleep(2)'\n"
        "tab.wait_for_timeout(500)\n"
        "def sleep(seconds):\n    pass\n"
    )
    assert [*naps(ast.parse(text))] == ["time.sleep(1)", "time.sleep(2)", "tab.wait_for_timeout(500)"]


def test_no_test_sleeps_and_then_looks() -> None:
    """Else: wait for a condition (tests/patience.py), however busy the machine is."""
    files = {p.relative_to(TESTS).as_posix(): p for p in TESTS.rglob("*.py") if p != Path(__file__)}
    texts = {name: p.read_text(encoding="utf-8") for name, p in files.items() if name not in AT_ANY_MOMENT}
    some = {name: text for name, text in texts.items() if any(word in text for word in SLEEPS)}
    assert {name: found for name, text in some.items() if (found := [*naps(ast.parse(text))])} == {}
