"""Mutations of the sources: which are drawn, what is copied to be mutated, and what became of them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from benchmarks.mutation.draw import ROOMS, drawn, of_file
from benchmarks.mutation.related import FOLDERS
from benchmarks.mutation.warm import copy_tree

ROOT = Path(__file__).parents[2]
SOURCE = "def mean(values, count):\n    return sum(values) / count\n"


def test_every_mutation_of_a_function_is_one_that_can_be_read() -> None:
    after = {m.applied(SOURCE.encode()).decode().splitlines()[1].strip() for m in of_file(SOURCE.encode(), "mean.py")}
    assert after == {
        "return sum(values) * count",
        "return values / count",
        "return max(values) / count",
        "return None",
        "return values",
    }


def test_rooms_that_are_mutated_are_there_and_have_tests() -> None:
    assert set(FOLDERS) == set(ROOMS)
    assert all((ROOT / "src/fedsmoo" / room).is_dir() for room in ROOMS)
    assert all((ROOT / "tests" / folder).is_dir() for folders in FOLDERS.values() for folder in folders)


def test_a_draw_takes_a_line_once_and_stays_when_other_lines_come(tmp_path: Path) -> None:
    file = tmp_path / "src/fedsmoo/metrics/some.py"
    file.parent.mkdir(parents=True)
    file.write_text("".join(f"def f{i}(x, y):\n    return x[1:] + {i} * min(x, y)\n" for i in range(30)))
    first = drawn(tmp_path, 0, 17)
    assert len({m.line for m in first}) == 17
    assert {m.id for m in drawn(tmp_path, 1, 17)} != {m.id for m in first}
    file.write_text("import math\n\n" + file.read_text())
    assert [(m.id, m.line) for m in drawn(tmp_path, 0, 17)] == [(m.id, m.line + 2) for m in first]


def test_a_draw_can_keep_to_some_rooms_and_to_lines_that_a_commit_did_not_have(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        mine = ["-c", "user.name=me", "-c", "user.email=me@here", *words]
        return subprocess.run(["git", "-C", tmp_path, *mine], capture_output=True, text=True, check=True).stdout.strip()

    for room in ("core", "metrics"):
        file = tmp_path / f"src/fedsmoo/{room}/some.py"
        file.parent.mkdir(parents=True)
        file.write_text("def f(x, y):\n    return x + y\n\n\ndef g(x, y):\n    return x * y\n")
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "some")
    since = git("rev-parse", "HEAD")
    for room in ("core", "metrics"):
        file = tmp_path / f"src/fedsmoo/{room}/some.py"
        file.write_text(file.read_text().replace("x * y", "x - y") + "\n\ndef h(x, y):\n    return x / y\n")
    assert {(m.file, m.line) for m in drawn(tmp_path, 0, 17, since=since)} == {
        (f"src/fedsmoo/{room}/some.py", line) for room in ("core", "metrics") for line in (6, 10)
    }
    assert {(m.file, m.line) for m in drawn(tmp_path, 0, 17, ("core",))} == {
        ("src/fedsmoo/core/some.py", line) for line in (2, 6, 10)
    }


def test_runs_at_the_top_are_left_behind_and_the_room_of_that_name_is_copied(tmp_path: Path) -> None:
    for name in ("runs/a", "build/b", "src/fedsmoo/runs/c", "tests/runs/d", "src/.mypy_cache/e"):
        (tmp_path / "here" / name).parent.mkdir(parents=True)
        (tmp_path / "here" / name).touch()
    copy = copy_tree(tmp_path / "here", tmp_path / "there")
    assert {str(p.relative_to(copy)) for p in copy.rglob("?")} == {"src/fedsmoo/runs/c", "tests/runs/d"}


@pytest.mark.parametrize(("file", "count", "most"), [("mutants", 300, 9), ("mutants-since-5cb92a57", 150, 12)])
def test_the_outcome_that_is_kept(file: str, count: int, most: int) -> None:
    """Few survive, each with a reason; CONTRIBUTING.md says the numbers of the files."""
    outcome = json.loads((ROOT / f"results/{file}.json").read_text())
    survivors = [m for m in outcome["mutants"] if m["killed_by"] is None]
    assert len({m["id"] for m in outcome["mutants"]}) == outcome["count"] == count
    assert outcome["survived"] == len(survivors) <= most
    assert outcome["killed"] == count - len(survivors)
    assert all(m.get("why") for m in survivors)
    assert all(c["killed_by"] is None for c in outcome["controls"])
    words = " ".join((ROOT / "CONTRIBUTING.md").read_text().split())
    assert f"{outcome['killed']} of {outcome['count']} were noticed" in words
