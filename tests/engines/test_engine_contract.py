"""The engine contract is closed: other rooms call it, assign nothing of an engine and never ask which one they have."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from fedsmoo.core import FedsmooError
from fedsmoo.engines.contract import Engine

from .small import make_engine, make_setup, simulation

ROOT = Path(__file__).parents[2]
ENGINES = ROOT / "src" / "fedsmoo" / "engines"
OUTSIDE = [
    p
    for folder in ("src", "tests", "benchmarks", "examples")
    for p in sorted((ROOT / folder).rglob("*.py"))
    if ENGINES not in p.parents
]
SOURCE = [p for p in OUTSIDE if ROOT / "src" in p.parents]


def classes_of_engines() -> set[str]:
    trees = [ast.parse(p.read_text(encoding="utf-8")) for p in ENGINES.rglob("*.py")]
    return {node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}


def is_engine(node: ast.expr) -> bool:
    """Whether an expression is called an engine: ``engine``, ``s.engine``, ``engines[0]``, ``self.engines[i]``."""
    if isinstance(node, ast.Subscript):
        return is_engine(node.value)
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    return name in ("engine", "engines")


def assigned(tree: ast.AST) -> Iterator[ast.Attribute]:
    """Attributes of engines, or of what they hold, that a text assigns; an engine may be called by another name."""
    aliases = {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign | ast.For | ast.comprehension)
        and is_engine(node.value if isinstance(node, ast.Assign) else node.iter)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            holder: ast.expr = node.value
            while True:
                if is_engine(holder) or (isinstance(holder, ast.Name) and holder.id in aliases):
                    yield node
                if not isinstance(holder, ast.Attribute | ast.Subscript):
                    break
                holder = holder.value


def asked(tree: ast.AST, names: set[str]) -> Iterator[ast.Call]:
    """Calls of ``isinstance`` that ask for a class of engines/, or anything of an engine."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("isinstance", "type"):
            words = {n.id for a in node.args[1:] for n in ast.walk(a) if isinstance(n, ast.Name)}
            words |= {n.attr for a in node.args[1:] for n in ast.walk(a) if isinstance(n, ast.Attribute)}
            if words & names or (node.args and is_engine(node.args[0])):
                yield node


def trees(paths: Iterable[Path], words: Iterable[str]) -> dict[Path, ast.AST]:
    """The texts in which one of some words occurs, read as Python: the others cannot name what is looked for."""
    texts = {p: p.read_text(encoding="utf-8") for p in paths}
    return {p: ast.parse(text) for p, text in texts.items() if any(word in text for word in words)}


def test_no_other_room_assigns_what_an_engine_holds() -> None:
    found = {p: [ast.unparse(a) for a in assigned(tree)] for p, tree in trees(OUTSIDE, ["engine"]).items()}
    wrong = {str(p): texts for p, texts in found.items() if texts}
    assert not wrong, "give it to the constructor, or to a method of Engine"


def test_no_other_room_asks_which_engine_it_has() -> None:
    names = classes_of_engines()
    found = {p: [ast.unparse(c) for c in asked(t, names)] for p, t in trees(SOURCE, ["engine", *names]).items()}
    wrong = {str(p): texts for p, texts in found.items() if texts}
    assert not wrong, "let the class say it itself"


BAD = """
simulation.engine.why = "because"
engine.chunk = engine.chunk or 3
for e in self.engines:
    e.oracle, e.steps = first.oracle, first.steps
inner = simulation.engine
inner.stepper.compile = False
engines[0].table.rows += 1
"""


def test_the_reader_of_texts_sees_what_is_forbidden() -> None:
    found = {ast.unparse(a) for a in assigned(ast.parse(BAD))}
    expected = {"simulation.engine.why", "engine.chunk", "e.oracle", "e.steps", "inner.stepper.compile"}
    assert found == expected | {"engines[0].table.rows"}
    text = "isinstance(x, Batched), isinstance(t, tables.ShardedTable), type(s.engine), isinstance(x, int)"
    assert len(list(asked(ast.parse(text), classes_of_engines()))) == 3
    assert {"Batched", "Serial", "Distributed", "ShardedTable", "Oracle"} <= classes_of_engines()


@pytest.mark.parametrize(("kind", "at_once"), [("serial", None), ("chunk3", 3)])
def test_what_is_pinned_and_what_settings_name(kind: str, at_once: int | None) -> None:
    from fedsmoo.algorithms import FedAvg

    engine: Engine = make_engine(kind, make_setup("softmax", FedAvg()))
    engine.pin(2, why="as before")
    assert (engine.clients_at_once, engine.why) == (at_once, "as before")
    engine.pin(7)
    assert (engine.clients_at_once, engine.why) == (at_once, "as before")
    free: Engine = make_engine("hand", make_setup("softmax", FedAvg()))
    free.pin(2)
    free.pin(5)  # the first word counts
    assert free.clients_at_once == 2


def test_an_engine_that_cannot_share_says_so() -> None:
    from fedsmoo.algorithms import FedAvg

    serial, batched = (simulation(kind, "softmax", FedAvg()).engine for kind in ("serial", "hand"))
    assert (serial.can_share, batched.can_share) == (False, True)
    for first, other in ((serial, batched), (batched, serial)):
        with pytest.raises(FedsmooError, match="the serial engine trains one run at a time: use engine=batched"):
            first.share([other])
    serial.serve()  # nobody waits in one process
