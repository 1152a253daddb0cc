"""Small things in few places: no long module, no long function, no crowded room; and tests lie where the code does."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from architecture import ROOT

PACKAGE, TESTS = ROOT / "src" / "fedsmoo", ROOT / "tests"
LINES, BODY, MODULES = 300, 50, 12
A_FILE_PER_ENTRY = {"algorithms", "commands"}  # rooms that may be crowded

# Test folders that are no rooms of the package, and what they are about.
NO_ROOMS = {
    "benchmarks": "the scripts of benchmarks/ (no __init__.py: the package of that name is theirs)",
    "examples": "the scripts of examples/, and what CONTRIBUTING.md shows",
    "fixtures": "run folders that older code left, and the script that makes them",
    "website": "the documentation site, and the code that documents show",
    "gpu": "what needs a CUDA device, of several rooms",
    "tools": "the scripts of tools/, and what the public sees of the repository: workflows, forms, container",
    "algorithms/boxes": "literal transcriptions of the methods' boxes",
}


def python(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


# What of other packages tests must replace, for want of another way: Triton's interpreter, Flower's identity of a task.
FOREIGN = {"kernels/interpreted.py", "deploy/conftest.py"}

SCRIPTS = ("benchmarks", "examples", "tools", "website")
SOURCES = [*python(PACKAGE), *(path for folder in SCRIPTS for path in python(ROOT / folder))]


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))


def length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Count the lines of a function from ``def`` to the last of its body, docstring included."""
    assert function.end_lineno is not None
    return function.end_lineno - function.lineno + 1


def test_lengths_are_counted_from_def_to_the_last_line() -> None:
    (one,) = functions(ast.parse("@decorated\ndef f(\n    a,\n):\n    '''Say.'''\n\n    return a\n\n\nx = 1\n"))
    assert length(one) == 6


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_modules_and_functions_are_short(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= LINES, f"{path} is too long: split it by what its parts are about"
    long = {f.name: length(f) for f in functions(ast.parse(text)) if length(f) > BODY}
    assert not long, f"{path}: too long: {long}"


def test_no_room_is_crowded() -> None:
    for folder in {p.parent for p in (*python(PACKAGE), *python(ROOT / "benchmarks"))}:
        beside = [p for p in folder.glob("*.py") if p.name != "__init__.py"]
        if folder.name not in A_FILE_PER_ENTRY:
            assert len(beside) <= MODULES, f"{folder} has {len(beside)} modules beside each other"


def test_every_test_folder_is_a_room() -> None:
    folders = {p.parent.relative_to(TESTS).as_posix() for p in TESTS.rglob("*.py")} - {"."}
    for folder in sorted(folders - {*NO_ROOMS}):
        room = PACKAGE / folder
        assert room.is_dir() or room.with_suffix(".py").is_file(), f"tests/{folder}: there is no such room"
    assert {*NO_ROOMS} <= folders
    rooms = {p.relative_to(PACKAGE).parts[0] for p in PACKAGE.glob("*/__init__.py")}
    assert rooms <= {f.split("/")[0] for f in folders}, "a room without tests"


def private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def assigned(tree: ast.AST) -> Iterator[str]:
    """Find private names that are assigned from outside: ``engine._x = ...``, ``setattr(engine, "_x", ...)``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and private(node.attr):
            if not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")):
                yield ast.unparse(node)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("setattr"):
            texts = [a.value for a in node.args[:2] if isinstance(a, ast.Constant) and isinstance(a.value, str)]
            yield from (t for t in texts if any(private(word) for word in t.split(".")))


def test_assignments_of_private_names_are_seen() -> None:
    text = (
        "a._x = 1\nself._y = 2\nm.setattr(b, '_z', 3)\nm.setattr('b._q.c', 4)\na.x = b._w\nm.setattr(b, '__len__', 5)"
    )
    assert set(assigned(ast.parse(text))) == {"a._x", "_z", "b._q.c"}


@pytest.mark.parametrize("path", python(TESTS), ids=lambda p: p.relative_to(TESTS).as_posix())
def test_tests_assign_no_private_names(path: Path) -> None:
    if path.relative_to(TESTS).as_posix() not in FOREIGN:
        found = sorted(assigned(ast.parse(path.read_text(encoding="utf-8"))))
        assert not found, f"{path} assigns {found}: make it an argument"
