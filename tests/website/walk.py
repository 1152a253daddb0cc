"""Read a document with a terminal beside it: write its files, run its Python, type its commands, from top to bottom."""

from __future__ import annotations

import glob
import shlex
import shutil
from pathlib import Path
from typing import Any

import torch

from fedsmoo import analyse, simulate
from fedsmoo.cli import main

from .blocks import ROOT, Block, blocks, commands
from .not_run import NOT_RUN_PYTHON, why_not

FEW = {"--rounds": "1", "--seeds": "0", "--scale": "0.002"}
TRAINS = {"run": ("--rounds", "--local-steps"), "compare": ("--rounds", "--local-steps", "--seeds"),
          "demo": ("--rounds", "--seeds"), "sweep": ("--rounds", "--local-steps")}  # fmt: skip
VALUES = {"--rounds": "1", "--local-steps": "1", "--seeds": "0"}
SMALL: dict[str, Any] = {"clients": 4, "cohort": 2, "rounds": 1, "local_steps": 1}
# Names that a reader has: what the package and its files import.
GIVEN = "from dataclasses import dataclass\nimport torch\nfrom torch import nn\nimport fedsmoo\nfrom fedsmoo import *\n"


def walk(document: str) -> int:
    """Carry out a document's blocks in the present folder; returns how many commands and pieces of Python."""
    names: dict[str, Any] = {}
    exec(GIVEN, names)
    prepare(document, names)
    done = 0
    for block in blocks(document):
        if block.file:
            Path(block.file).parent.mkdir(parents=True, exist_ok=True)
            Path(block.file).write_text(block.text, encoding="utf-8")
        elif block.language == "python" and not skipped(document, block):
            exec(compile(block.text.replace("rounds=40", "rounds=2"), block.place, "exec"), names)
            done += 1
        elif block.is_shell:
            for words in commands(block):
                if why_not(document, " ".join(words)) is None:
                    typed(words, block)
                    done += 1
    return done


def skipped(document: str, block: Block) -> bool:
    return any(document == place and block.text.startswith(start) for place, start, _ in NOT_RUN_PYTHON)


def typed(words: list[str], block: Block) -> None:
    """Type a command, with fewer rounds, steps and seeds; it has to succeed."""
    words = [found for word in words for found in (sorted(glob.glob(word)) or [word])]
    program, name, *_ = words
    assert program == "fedsmoo", f"{block.place}: name {program} in not_run.py, with the reason"
    for flag, value in FEW.items():
        if flag in words:
            words[words.index(flag) + 1] = value
    for flag in TRAINS.get(name, ()):
        if flag not in words and (flag != "--local-steps" or "--local-epochs" not in words):
            words += [flag, VALUES[flag]]
    try:
        main(words[1:])
    except SystemExit as ended:
        assert not ended.code, f"{block.place}: {shlex.join(words)} ends with {ended.code}"  # noqa: PT017


def prepare(document: str, names: dict[str, Any]) -> None:
    """Lay out what a document takes as given: runs, results, files and names of one's own."""
    for folder in RUNS.get(document, ()):
        simulate("mlp", "digits", "fedsmoo", out=folder, **SMALL)
    if document == "docs/report.md":
        analyse("landscape", "runs/a", points=3, samples=50)
    if document in ("docs/analysis.md", "docs/experiments.md", "experiments/README.md"):
        shutil.copytree(ROOT / "results", "results")  # some commands write there
        Path("docs/figures").mkdir(parents=True)
        Path("docs/results.md").write_bytes((ROOT / "docs/results.md").read_bytes())
    for name, text in FILES.get(document, {}).items():
        Path(name).write_text(text, encoding="utf-8")
    if document == "docs/data.md":
        from .own import own_names

        names |= own_names()
        Path("docs/figures").mkdir(parents=True)
    if document == "docs/models.md":  # my_factory.py's network, whose head is left out
        body = {"1.weight": torch.zeros(32, 64), "1.bias": torch.zeros(32)}
        torch.save(body, "body.pt")


RUNS = {
    "docs/analysis.md": ["runs/fedsmoo"],
    "docs/report.md": ["runs/fedsmoo-digits-seed0", "runs/a", "runs/b"],
    "docs/models.md": ["runs/a"],
}
FILES = {
    "docs/experiments.md": {"settings.toml": 'model = "softmax"\nclients = 4\ncohort = 2\n'},
    "docs/metrics.md": {
        "mine.py": "import numpy as np\nfrom fedsmoo.data.check import from_arrays\n\n\ndef houses():\n"
        "    x = np.eye(200, 8, 0, 'f4')\n    return from_arrays(x, x[:, 0], x, x[:, 0], target='numbers')\n\n\n"
        "def regret(outputs, targets):\n    return outputs.mean()\n"
    },
}
