"""The drills notice what they are for, and their table is made from what was kept."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
Part = Callable[[str], ModuleType]


@pytest.fixture
def part() -> Iterator[Part]:
    """A module of ``benchmarks/drills``; nobody waits for the disk, and nothing is patched afterwards."""
    yield lambda name: import_module(f"benchmarks.drills.{name}")
    for name in [n for n in sys.modules if n.startswith(("benchmarks.drills", "benchmarks.checks"))]:
        del sys.modules[name]


def careless(flushes: bool, renames: bool) -> Callable[[Path], None]:
    """A program that replaces a file, and does so as it should only if told to."""

    def go(root: Path) -> None:
        target = root / "file.new" if renames else root / "file"
        with open(target, "w") as f:
            f.write("new content")
            f.flush()
            if flushes:
                os.fsync(f.fileno())
        if renames:
            os.replace(target, root / "file")
        if flushes:
            fd = os.open(root, os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)

    return go


def program(part: Part, **how: bool) -> Any:
    def torn(root: Path) -> str:
        return "" if (root / "file").read_text() in ("old", "new content") else "torn"

    return part("parts.programs").Program(
        "careless", careless(**how), lambda root: {}, lambda root: (root / "file").write_text("old"), sound=torn
    )


@pytest.mark.parametrize(("renames", "held"), [(True, True), (False, False)])
def test_a_kill_in_the_middle_of_writing_is_noticed(part: Part, tmp_path: Path, renames: bool, held: bool) -> None:
    lines = list(part("parts.faults").cases(program(part, flushes=True, renames=renames), "killed", True, 0, tmp_path))
    assert len(lines) >= 4
    assert [line for line in lines if line] == [] if held else any("then torn" in line for line in lines)


@pytest.mark.parametrize(("flushes", "held"), [(True, True), (False, False)])
def test_a_rename_without_a_flush_is_noticed(
    part: Part, tmp_path: Path, flushes: bool, held: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = set[str]()
    for seed in range(6):
        (tmp_path / str(seed)).mkdir()
        lines = part("power_cuts").cases(program(part, flushes=flushes, renames=True), 50, seed, tmp_path / str(seed))
        wrong |= {line.partition(": ")[2] for line in lines if line}
    assert wrong == (set() if held else {"torn"})


def test_a_full_disk_stays_full_and_an_error_comes_once(part: Part, tmp_path: Path) -> None:
    operations, failed = part("parts.operations"), dict[int, list[str]]()
    for error in (28, 5):
        failed[error] = []
        with operations.Operations(tmp_path, operations.fail_at(2, error)).installed():
            for name in ("a", "b", "c"):
                try:
                    (tmp_path / f"{error}{name}").write_text("four")
                except OSError as e:
                    failed[e.errno].append(name)
    assert failed == {28: ["a", "b", "c"], 5: ["a"]}
    assert (tmp_path / "5a").read_text() == "fo"  # half of what was to be written
    assert (tmp_path / "5b").read_text() == "four"


def test_every_program_comes_to_the_same_end_twice(part: Part, tmp_path: Path) -> None:
    programs = part("parts.programs")
    for number, each in enumerate(programs.PROGRAMS):
        truth = programs.carried_out(each, tmp_path / str(number))
        assert truth
        assert programs.difference(each, tmp_path / str(number), truth) == ""


def test_a_sample_is_spread_over_all_cases_and_drawn_from_the_seed(part: Part) -> None:
    sample = part("parts.outcome").sample
    first, second = (sample(range(100), 0.1, seed) for seed in (0, 1))
    assert [n // 10 for n in first] == list(range(10))
    assert first == sample(range(100), 0.1, 0) != second


def test_an_outcome_says_what_was_tried_and_what_did_not_hold(part: Part) -> None:
    outcome = part("parts.outcome").judged("x", ["", "broken", ""])
    assert outcome == {"drill": "x", "tried": 3, "held": 2, "failures": ["broken"]}
    wrong = part("parts.outcome").wrong
    assert wrong(outcome) == ""
    assert "nothing was tried" in wrong({**outcome, "tried": 0})
    assert "not every other is named" in wrong({**outcome, "failures": []})
    assert "no outcome" in wrong({"drill": "x"})


def test_the_table_is_made_from_what_was_kept(part: Part, tmp_path: Path) -> None:
    kept = {"date": "2026-11-16T01:02:03Z", "commit": "0123456789", "full": True}
    for tried in (7, 3):  # the later one counts
        part("run").keep({**kept, "drill": "b", "tried": tried, "held": 2, "full": False}, tmp_path / "x.json")
    part("run").keep({**kept, "drill": "a", "tried": 1200, "held": 1200}, tmp_path / "x.json")
    assert part("table").drills(tmp_path).splitlines()[2:] == [
        "| b | 3 | 2 | a sample | 2026-11-16 | 0123456 |",
        "| a | 1,200 | 1,200 | all | 2026-11-16 | 0123456 |",
        "| all | 1,203 | 1,202 | | | |",
    ]


def test_every_drill_is_in_the_table(part: Part) -> None:
    kept = {p.stem: json.loads(p.read_text()) for p in (ROOT / "results" / "drills").glob("*.json")}
    assert kept.keys() == set(part("run").modules())
    keys = part("parts.outcome").Outcome.__annotations__
    for outcome in (o for each in kept.values() for o in each["outcomes"]):
        assert part("parts.outcome").wrong({k: outcome[k] for k in keys}) == ""
