"""Every block of code in the documents is run, or, if it needs what tests do not have, at least read as it would be."""

from __future__ import annotations

import os
import re
import shlex
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import click
import pytest
import typer

from fedsmoo.cli import app
from fedsmoo.commands.options import gather_config
from fedsmoo.runs.config import FIELDS
from fedsmoo.runs.settings.merge import make_config
from fedsmoo.sweeps.grid import expand

from .blocks import DOCUMENTS, ROOT, Block, blocks, commands
from .not_run import NOT_RUN, NOT_RUN_PYTHON, why_not
from .walk import skipped, walk

# Documents that the suite walks through; the others take longer, and `make docs-commands` walks through all.
QUICK = ["README.md", "docs/first-steps.md", *(d for d in DOCUMENTS if d.startswith("docs/tutorials/")),
         "docs/around.md", "docs/metrics.md", "docs/report.md", "docs/resume.md"]  # fmt: skip
# Of these the suite has tests of their own that run the Python.
ELSEWHERE = {
    "CONTRIBUTING.md": "examples/test_contributing.py",
    "docs/experiments.md": "sweeps/test_library.py",
    "docs/models.md": "models/test_table.py",
    "docs/operators.md": "operators/test_functional.py",
    "docs/python.md": "examples/test_python_page.py",
}
KNOWN = ("git", "python3", "cat", "export", "printf", "until", "for", "done", "flwr", "flower-superlink",
         "flower-supernode", ".", "docker", "kubectl", "sbatch", "ssh")  # fmt: skip


def fedsmoo_words(words: list[str]) -> list[str] | None:
    """The words after ``fedsmoo``, if this command calls it, by itself or by torchrun."""
    if words[0] == "fedsmoo":
        return words[1:]
    at = next((k for k in range(1, len(words)) if words[k - 1 : k + 1] == ["-m", "fedsmoo"]), None)
    return None if at is None else words[at + 1 :]


@cache
def parser() -> click.Command:
    return typer.main.get_command(app)


def parsed(words: list[str]) -> tuple[click.Command, dict[str, Any]]:
    """The command and the values that the command line's own parser makes of some words."""
    command = parser()
    rest = list(words)
    while isinstance(command, click.Group):
        command = command.commands[rest.pop(0)]
    return command, command.make_context(command.name, rest).params


@pytest.mark.parametrize("document", [d for d in DOCUMENTS if d != "CONTRIBUTING.md"])
def test_every_command_is_one_that_there_is(document: str) -> None:
    for block in (b for b in blocks(document) if b.is_shell):
        for words in commands(block):
            ours = fedsmoo_words(words)
            if ours is not None:
                command, values = parsed(ours)
                own = [v for v in values.values() if isinstance(v, str) and (".py:" in v or v.startswith("$"))]
                if command.name == "run" and not own and not values.get("config"):
                    given = {n: v for n, v in values.items() if n in FIELDS and v is not None}
                    gather_config(None, values.get("sets") or (), given)
            elif words[0] == "make":
                assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.M), block.place
            elif words[:2] == ["pip", "install"]:
                refuse_unknown_extras(" ".join(words[2:]), block)
            elif words[1:2] == ["-m"] and words[2].startswith("benchmarks."):
                assert (ROOT / f"{words[2].replace('.', '/')}.py").is_file(), block.place
            elif words[0] in ("python", "python3") and words[1] != "-m":
                assert (ROOT / words[1]).is_file(), block.place
            elif words[0].startswith("examples/"):
                assert (ROOT / words[0]).is_file(), block.place
            else:
                assert words[0] in KNOWN, f"{block.place}: {shlex.join(words)}"


def refuse_unknown_extras(text: str, block: Block) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    asked = re.search(r"(?:fedsmoo|\.)\[([\w,]+)\]", text)
    assert not asked or set(asked[1].split(",")) <= set(extras), block.place


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_configuration_is_one(document: str, tmp_path: Path) -> None:
    for block in (b for b in blocks(document) if b.language == "toml"):
        table = tomllib.loads(block.text)
        if any(isinstance(v, list) for v in table.values()) or "methods" in table:
            assert expand(table, block.place).cells
        else:
            (tmp_path / "settings.toml").write_text(block.text)
            make_config(tmp_path / "settings.toml")


def test_every_block_is_run_or_named_with_a_reason() -> None:
    """Each entry of the table is of a command that stands there, and no document is left to nobody."""
    for document, start, why in NOT_RUN:
        lines = [" ".join(words) for block in blocks(document) if block.is_shell for words in commands(block)]
        assert why
        assert any(line.startswith(start) for line in lines), f"{document} has no command {start!r} any more"
    for document, start, _ in NOT_RUN_PYTHON:
        assert any(block.text.startswith(start) for block in blocks(document)), document
    for document, test in ELSEWHERE.items():
        assert document.rpartition("/")[2] in (ROOT / "tests" / test).read_text(encoding="utf-8"), document
    assert {*QUICK, *ELSEWHERE} <= {*DOCUMENTS}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_a_document_is_walked_through(document: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files are written, its Python run and its commands typed, from top to bottom, with fewer rounds and seeds."""
    if document not in QUICK and not os.environ.get("FEDSMOO_TEST_DOCS"):
        pytest.skip("make docs-commands runs this")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    left = [w for b in blocks(document) if b.is_shell for w in commands(b) if not why_not(document, " ".join(w))]
    python = [b for b in blocks(document) if b.language == "python" and not b.file and not skipped(document, b)]
    assert walk(document) == len(left) + len(python)
