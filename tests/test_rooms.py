"""Who may import whom; what a run imports from outside; and that the examples in docstrings are true."""

from __future__ import annotations

import ast
import doctest
import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from architecture import arrows, room_name, table, top

SOURCE = Path(__file__).parent.parent / "src"
PACKAGE = SOURCE / "fedsmoo"

ARROWS = arrows()  # a room, and the rooms it imports besides itself: ARCHITECTURE.md is the home of this rule
TOP = top()  # nothing below imports these

# What a machine that runs `fedsmoo run` from source is sure to have, besides the standard library.
ALLOWED = {
    "torch", "triton", "numpy", "scipy", "sklearn", "matplotlib", "pandas", "pyarrow", "PIL", "rich", "typer", "tqdm",
    "yaml", "safetensors", "tensorboard", "einops",
}  # fmt: skip


def modules() -> list[str]:
    files = sorted(PACKAGE.rglob("*.py"))
    names = [".".join(f.relative_to(SOURCE).with_suffix("").parts) for f in files]
    return [n.removesuffix(".__init__") for n in names]


def source(module: str) -> Path:
    path = SOURCE / (module.replace(".", "/") + ".py")
    return path if path.is_file() else SOURCE / module.replace(".", "/") / "__init__.py"


def room(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def imports(module: str) -> set[str]:
    """Modules of ours that a module imports anywhere in its text, except for type checking only."""
    tree = ast.parse(source(module).read_text(encoding="utf-8"))
    typing_only = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.dump(block.test)
        for node in ast.walk(block)
    }
    found: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            found |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports relatively"
            found |= {f"{node.module}.{a.name}" if node.module == "fedsmoo" else str(node.module) for a in node.names}
    return {n for n in found if n.split(".")[0] == "fedsmoo"}


@pytest.mark.parametrize("floor", ARROWS)
def test_a_room_imports_what_the_page_says(floor: str) -> None:
    inside = [m for m in modules() if room(m) == floor]
    assert inside
    used: set[str] = set()
    for module in inside:
        outside = {room(i) for i in imports(module)} - {floor, "version", "lazy"}
        assert outside <= ARROWS[floor], f"{module} imports {sorted(outside - ARROWS[floor])}"
        used |= outside
    assert used == ARROWS[floor], f"ARCHITECTURE.md: nothing in {floor} imports {sorted(ARROWS[floor] - used)}"


def test_rooms_import_only_rooms_further_up_in_the_table() -> None:
    """So there are no cycles: every room can be read knowing only those before it."""
    below: set[str] = set()
    for floor, imported in ARROWS.items():
        assert imported <= below, floor
        below.add(floor)


def test_the_page_has_every_room_and_the_rooms_within() -> None:
    assert {room(m) for m in modules()} == {*ARROWS, *TOP, "__init__", "version", "lazy"}
    for cell, about, _ in table("Rooms"):
        inside = sorted(p.name for p in (PACKAGE / room_name(cell)).glob("*/") if p.name != "__pycache__")
        assert sorted(re.findall(r"`(\w+)/`", about)) == inside, f"ARCHITECTURE.md: the rooms within {cell}"


def test_nothing_but_the_top_imports_the_command_line() -> None:
    for module in modules():
        if room(module) not in TOP:
            assert not {room(i) for i in imports(module)} & TOP, module


def test_the_reader_of_imports_sees_them() -> None:
    assert "fedsmoo.core" in imports("fedsmoo.algorithms.fedavg")
    assert {room(i) for i in imports("fedsmoo.cli")} >= {"commands", "core", "version"}


RUN = """
import sys
before = set(sys.modules)
from fedsmoo.cli import main
try:
    main(["run", "--algorithm", "fedavg", "--model", "softmax", "--rounds", "1", "--clients", "4", "--cohort", "2",
          "--local-steps", "1", "--engine", "serial", "--out", sys.argv[1]])
except SystemExit as e:
    assert not e.code, e.code
import json
loaded = [m for m in list(sys.modules.values()) if hasattr(m, "__name__")]
print("\\n" + json.dumps(sorted({(m.__name__.split(".")[0], getattr(m, "__file__", None) or "") for m in loaded})))
"""


def test_a_run_imports_nothing_that_a_plain_gpu_machine_lacks(tmp_path: Path) -> None:
    """Outside packages: only the allowed ones, and what those themselves bring along."""
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(tmp_path / "run")], capture_output=True, text=True, env=environment, check=True
    )
    loaded = json.loads(done.stdout.strip().splitlines()[-1])
    outside = {name for name, file in loaded if "site-packages" in file} - ALLOWED - {"fedsmoo"}
    ours = {i.split(".")[0] for m in modules() for i in third_party(m)}
    assert not outside & ours - {"click"}, "imported by the package itself on the path of a run"
    assert {"torch", "numpy", "typer", "safetensors"} <= {name for name, _ in loaded}


def third_party(module: str) -> set[str]:
    """Everything outside the standard library that a module imports, wherever in its text."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source(module).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(str(node.module))
    return {n for n in found if n.split(".")[0] not in sys.stdlib_module_names | {"fedsmoo", "__future__"}}


def top_level_imports(module: str) -> set[str]:
    """Third-party packages that a module imports when it is itself imported, not later inside a function."""
    found: set[str] = set()
    for node in ast.parse(source(module).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            found |= {a.name.split(".")[0] for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(str(node.module).split(".")[0])
    return found - sys.stdlib_module_names - {"fedsmoo", "__future__"}


@pytest.mark.parametrize("module", [m for m in modules() if room(m) != "deploy"])
def test_other_packages_are_imported_lazily(module: str) -> None:
    """Deployment alone needs more than the allowed packages, and its modules are imported by its command only."""
    assert top_level_imports(module) <= ALLOWED | {"click"}


DOCTESTED = [m for m in modules() if ">>>" in source(m).read_text(encoding="utf-8")]


def test_there_are_examples() -> None:
    assert {"fedsmoo.api", "fedsmoo.core.vectors", "fedsmoo.core.random.streams", "fedsmoo.data.batches.cohort"} <= set(
        DOCTESTED
    )
    assert doctest.testmod(importlib.import_module("fedsmoo.core.vectors")).attempted == 2


@pytest.mark.parametrize("module", DOCTESTED)
def test_examples_in_docstrings(module: str) -> None:
    if module.startswith("fedsmoo.kernels"):
        pytest.importorskip("triton", reason="the kernels need Triton")
    assert not doctest.testmod(importlib.import_module(module)).failed
