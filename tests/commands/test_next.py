"""What commands end with: the next command to type; and no word of documents that an installed package lacks."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from fedsmoo.cli import tree
from fedsmoo.commands.describe import KINDS, TRY

from .conftest import TINY, Call

PACKAGE = Path(__file__).parents[2] / "src" / "fedsmoo"
SWEEP = 'model = "softmax"\nclients = 4\ncohort = 2\nrounds = 1\nlocal_steps = 1\nlr = [0.1, 0.2]\n'
ENDS = {  # by what was typed; of the folder "runs/a" and the split "s.json"
    "run --out runs/a": "fedsmoo report runs/a",
    "run --out 'runs/b c'": "fedsmoo report 'runs/b c'",
    "runs runs": "fedsmoo report runs",
    "runs empty": "fedsmoo run --algorithm fedsmoo --dataset digits",
    "ledger runs/a": "fedsmoo figure accuracy --axis bytes runs/a",
    "verify runs": "fedsmoo report runs",
    "figure accuracy runs --out a.svg": "fedsmoo report runs",
    "report runs --out page.html": "python3 -m webbrowser page.html",
    "results export runs --to 'my results'": "fedsmoo report 'my results'",
    "analyse fairness runs/a": "fedsmoo report runs/a",
    "data split digits --clients 4 --out s.json": "fedsmoo data show s.json",
    "data show s.json": "fedsmoo run --split s.json",
    "data split mine --data m.npz --clients 4 --out m.json": "fedsmoo data show m.json --data m.npz",
    "data show m.json --data m.npz": "fedsmoo run --split m.json --dataset mine --data m.npz",
    "data split text:a.txt --out t.json": "fedsmoo data show t.json",
    "data show t.json --data a.txt": "fedsmoo run --split t.json --dataset text:a.txt",
    "sweep grid.toml --dry-run": "fedsmoo sweep grid.toml",
    "sweep grid.toml": "fedsmoo runs runs/grid",
    "table accuracy --no-run --columns cifar10": "fedsmoo table accuracy --columns cifar10 --dry-run",
    "list": "fedsmoo show fedsmoo",
    "show fedsmoo": "fedsmoo run --algorithm fedsmoo --dataset digits",
}  # fmt: skip


def test_commands_end_with_the_next_one(call: Call) -> None:
    Path("grid.toml").write_text(SWEEP)
    Path("empty").mkdir()
    Path("a.txt").write_text("to be or not to be, that is the question. " * 40)
    x, y = np.zeros((12, 3), np.float32), np.arange(12) % 2
    np.savez("m.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    for words, expected in ENDS.items():
        answer = call(*shlex.split(words), *(TINY if words.startswith("run ") else []))
        assert answer.code == 0, answer
        said = [line.split(maxsplit=1) for line in (*answer.out.splitlines(), *answer.err.splitlines())]
        assert [line[1] for line in said if line[:1] in (["next:"], ["next"])] == [expected], words
        known(expected)


def known(words: str) -> None:
    """Fail unless a command of ours is one."""
    program, *rest = shlex.split(words)
    commands = tree()
    while program == "fedsmoo" and hasattr(commands, "commands"):
        commands = commands.commands[rest.pop(0)]


@pytest.mark.parametrize("kind", TRY)
def test_what_a_list_says_to_try_can_be_tried(kind: str, call: Call) -> None:
    quick = "--algorithm fedavg --model softmax --cohort 2 --rounds 1 --local-steps 1"
    answer = call("run", *quick.split(), *TRY[kind].split(), "--out", kind)
    assert answer.code == 0, answer.err


def test_every_kind_has_something_to_try() -> None:
    assert {*TRY, "algorithms"} == {*KINDS}


def strings(path: Path) -> list[str]:
    """Return the strings of a module but for its docstrings, which are for those who read the code."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documents = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
    return [
        n.value
        for n in ast.walk(tree)
        if isinstance(n, ast.Constant) and isinstance(n.value, str) and id(n) not in documents
    ]


def test_no_message_names_a_document_that_only_a_checkout_has() -> None:
    found = {(path.name, s) for path in PACKAGE.rglob("*.py") for s in strings(path) if re.search(r"\w+\.md\b", s)}
    # Files that it writes or reads: of an app, of a model; and a user's own in an example.
    assert {path for path, _ in found} == {"app.py", "card.py", "document.py"}, found
    assert not [s for _, s in found if "docs/" in s]
    assert not [path for path in PACKAGE.rglob("*.toml") if "docs/" in path.read_text(encoding="utf-8")]
