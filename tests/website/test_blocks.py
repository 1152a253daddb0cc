"""Every block of code in the documents is run, or, if it needs what tests do not have, at least read as it would be."""

from __future__ import annotations

import re
import shlex
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import click
import pytest
import typer

from fedsmoo import simulate
from fedsmoo.cli import app, main
from fedsmoo.commands.options import gather
from fedsmoo.runs.build import make_config
from fedsmoo.runs.config import FIELDS
from fedsmoo.sweeps.grid import expand

from .blocks import DOCUMENTS, ROOT, Block, blocks, commands

# Documents whose Python blocks other tests run, or hold to the code that they show.
ELSEWHERE = {
    "CONTRIBUTING.md": "examples/test_contributing.py",
    "docs/data.md": "data/forms/test_forms.py",
    "docs/experiments.md": "sweeps/test_library.py",
    "docs/flower.md": "deploy/test_tutorial.py",
    "docs/models.md": "models/test_table.py",
    "docs/python.md": "examples/test_python_page.py",
    "docs/resume.md": "runs/test_library.py",
}
# Documents that are read from top to bottom with a terminal beside them: all of their commands are carried out.
WALKED = ["docs/first-steps.md", *(d for d in DOCUMENTS if d.startswith("docs/tutorials/"))]
PYTHON = ["docs/analysis.md", "docs/metrics.md"]  # of these the Python alone
KNOWN = ("git", "cat", "export", "printf", "until", "for", "done", "flwr", "flower-superlink", "flower-supernode", ".",
         "docker", "kubectl", "sbatch", "ssh")  # fmt: skip
FEW = {"--rounds": "1", "--seeds": "0"}


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
                    gather(None, values.get("sets") or (), given)
            elif words[0] == "make":
                assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.M), block.place
            elif words[:2] == ["pip", "install"]:
                refuse_unknown_extras(" ".join(words[2:]), block)
            elif words[0] in ("python", "python3"):
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


def test_blocks_of_python_are_run_here_or_in_a_test_that_names_the_document() -> None:
    for document, test in ELSEWHERE.items():
        assert document.rpartition("/")[2] in (ROOT / "tests" / test).read_text(encoding="utf-8"), document
    to_run = {d for d in DOCUMENTS if any(b.language == "python" and not b.not_run for b in blocks(d))}
    assert to_run - set(ELSEWHERE) <= {"README.md", *WALKED, *PYTHON}


@pytest.mark.parametrize("document", ["README.md", *WALKED, *PYTHON])
def test_a_document_is_walked_through(document: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files are written, its Python run and its commands typed, from top to bottom, with fewer rounds and seeds."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    if document == "docs/analysis.md":  # which looks at a run
        simulate("softmax", "digits", "fedavg", clients=4, cohort=2, rounds=1, local_steps=1, out="runs/fedsmoo")
    names: dict[str, Any] = {}
    for block in blocks(document):
        if block.file:
            Path(block.file).write_text(block.text, encoding="utf-8")
        elif block.language == "python" and not block.not_run and "class FedCM" not in block.text:  # see test_docs.py
            exec(compile(block.text.replace("rounds=40", "rounds=2"), block.place, "exec"), names)
        elif block.is_shell and not block.not_run and document in WALKED:
            for words in commands(block):
                typed(words, block)


def typed(words: list[str], block: Block) -> None:
    """Type a command, with fewer rounds and seeds; it has to succeed."""
    for flag, value in FEW.items():
        if flag in words:
            words[words.index(flag) + 1] = value
    with pytest.raises(SystemExit) as ended:
        main(words[1:])
    assert not ended.value.code, f"{block.place}: {shlex.join(words)}"
