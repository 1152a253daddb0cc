"""ARCHITECTURE.md is true: every function of its walks is called where and when the page says, every place exists."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
from architecture import PAGE, ROOT, section, table, walk

import fedsmoo

PACKAGE = ROOT / "src" / "fedsmoo"


def resolve(name: str) -> Any:
    """Return the object with a dotted name inside the package.

    Raises:
        AttributeError: if there is none.
    """
    parts = name.split(".")
    for k in range(len(parts), 0, -1):
        if (PACKAGE / "/".join(parts[:k])).with_suffix(".py").is_file() or (PACKAGE / "/".join(parts[:k])).is_dir():
            found = importlib.import_module(".".join(["fedsmoo", *parts[:k]]))
            for part in parts[k:]:
                found = getattr(found, part)
            return found
    raise AttributeError(f"there is no module of {name}")


def named_functions() -> set[str]:
    """Return every dotted name on the page that begins with a room of the package."""
    rooms = {p.name for p in PACKAGE.iterdir() if p.is_dir()}
    return {n for n in re.findall(r"\b[a-z_0-9]+(?:\.\w+)+", PAGE) if n.split(".")[0] in rooms} | {
        n for title in ("The walk of a run", "The walk of a round") for _, n in walk(title)
    }


@pytest.mark.parametrize("name", sorted(named_functions()))
def test_what_the_page_names_exists(name: str) -> None:
    assert callable(resolve(name))


@contextmanager
def first_calls(names: set[str]) -> Iterator[list[tuple[str, ...]]]:
    """Note the stack of named functions whenever it is seen for the first time, outermost first."""
    codes = {getattr(resolve(n), "__wrapped__", resolve(n)).__code__: n for n in names}
    stack: list[tuple[FrameType, str]] = []
    seen: dict[tuple[str, ...], None] = {}
    out: list[tuple[str, ...]] = []

    def note(frame: FrameType, event: str, arg: Any) -> None:
        if event == "call" and frame.f_code in codes:
            stack.append((frame, codes[frame.f_code]))
            seen.setdefault(tuple(n for _, n in stack))
        elif event == "return" and stack and stack[-1][0] is frame:
            stack.pop()

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield out
    finally:
        sys.setprofile(before)
        out.extend(seen)


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, ...]]:
    """A run of SCAFFOLD on a CPU, as the page tells it."""
    names = {n for title in ("The walk of a run", "The walk of a round") for _, n in walk(title)}
    settings = {"algorithm": "scaffold", "model": "mlp", "clients": 4, "cohort": 3, "local_steps": 1, "rounds": 2}
    with first_calls(names) as found:
        fedsmoo.run(settings, tmp_path_factory.mktemp("walk") / "run", save_every=1)
    return found


@pytest.mark.parametrize("title", ["The walk of a run", "The walk of a round"])
def test_a_walk_is_walked_as_it_is_written(title: str, calls: list[tuple[str, ...]]) -> None:
    """Each function is called by the one it is indented under, not by another of the walk, and after those above it."""
    written = [(*above, name) for above, name in walk(title)]
    root = written[0]
    below = [c[c.index(root[0]) :] for c in calls if root[0] in c]
    walked = [c for c in dict.fromkeys(below) if c in written]
    assert walked == written


def test_the_places_of_new_things_exist() -> None:
    """Each file and folder of the table is there, and the file that lists new things has the list of that name."""
    places = set(re.findall(r"`([\w/]+(?:\.\w+|/))`", section("Where a new thing goes"))) - {"file.py"}
    for place in (p for p in places if not re.search(r"NAME|NETWORK|ROOM", p)):
        assert (PACKAGE / place).exists() or (ROOT / place).exists(), place
    for thing, _, where in table("Where a new thing goes"):
        for name, file in re.findall(r"`([\w]+)` in `([\w/]+\.py)`", where):
            assert re.search(rf"^(def )?{name}\b", (PACKAGE / file).read_text(encoding="utf-8"), re.M), (thing, name)


def test_the_page_is_linked_and_short() -> None:
    for name in ("README.md", "CONTRIBUTING.md"):
        assert "(ARCHITECTURE.md)" in (ROOT / name).read_text(encoding="utf-8"), name
    assert len(PAGE.splitlines()) <= 130
