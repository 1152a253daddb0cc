"""Hostile files of every kind, a few of each with a fixed seed: read, or refused in a line, in little memory."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest

from benchmarks.drills import fuzz
from benchmarks.drills.parts import hostile_files as hostile
from benchmarks.drills.parts.outcome import wrong

EXAMPLES = 25
NAMES = ("config", "summary", "metrics", "manifest", "split", "npz", "result")


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, fuzz.Kind]:
    return {kind.name: kind for kind in fuzz.kinds(tmp_path_factory.mktemp("made"))}


@pytest.mark.parametrize("name", NAMES)
def test_hostile_files_are_read_or_refused(
    kinds: dict[str, fuzz.Kind], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDSMOO_DATA", str(tmp_path))
    outcome = fuzz.outcome_of(kinds[name], EXAMPLES, seed=0)
    assert outcome["failures"] == []
    assert outcome["tried"] >= EXAMPLES
    assert not wrong(outcome)


def test_kinds_are_those_that_are_drilled(kinds: dict[str, fuzz.Kind]) -> None:
    assert tuple(kinds) == NAMES


def test_what_does_not_hold_is_noticed(tmp_path: Path) -> None:
    """A traceback, code that would run, time and memory."""
    (tmp_path / "evil.py").write_text("class Method: pass\n")

    def falls_over(folder: Path) -> None:
        raise KeyError("x")

    def runs_code(folder: Path) -> None:
        fuzz.load(f"{tmp_path / 'evil.py'}:Method")

    def takes_memory(folder: Path) -> None:
        with mmap.mmap(-1, 300 * 2**20) as new:  # not what other tests took and gave back, which Python may keep
            for page in range(0, len(new), mmap.PAGESIZE):
                new[page] = 1

    for read, word in ((falls_over, "KeyError"), (runs_code, "would be run"), (takes_memory, "MB for")):
        kind = fuzz.Kind("made", hostile.ODD, lambda folder, case: None, read)
        assert word in fuzz.tried(kind, 1, tmp_path)
    kind = fuzz.Kind("made", hostile.ODD, lambda folder, case: None, lambda folder: None)
    assert fuzz.tried(kind, 1, tmp_path) == ""
