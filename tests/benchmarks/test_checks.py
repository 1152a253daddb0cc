"""The scripts that hold the package to itself: what they call equal, a crossing, and quick."""

from __future__ import annotations

import hashlib
import importlib
import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from safetensors.numpy import save_file

ROOT = Path(__file__).parents[2]


@pytest.fixture
def script(request: pytest.FixtureRequest) -> ModuleType:
    """A script of ``benchmarks/``."""
    return importlib.import_module(f"benchmarks.{request.param}")


def with_script(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("script", [name], indirect=True)


def leave(folder: Path, weight: float, note: str = "", **columns: object) -> None:
    """A finished run with one tensor and two rounds."""
    folder.mkdir(parents=True)
    save_file({"w": np.array([weight, 2.0], np.float32)}, folder / "model.safetensors", {"note": note})
    rows = [{"round": n, "seconds_train": weight + n, **columns} for n in (1, 2)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@with_script("checks.hashes")
def test_runs_are_equal_whatever_the_clock_and_the_note_but_not_with_another_bit(
    script: ModuleType, tmp_path: Path
) -> None:
    smallest = float(np.nextafter(np.float32(1), np.float32(2)))
    leave(tmp_path / "a" / "run", 1.0, "one", loss=0.5)
    leave(tmp_path / "b" / "run", 1.0, "another", loss=0.5, fresh=3)
    leave(tmp_path / "c" / "run", smallest, loss=0.5)
    leave(tmp_path / "d" / "other", 1.0, loss=0.25)
    leave(tmp_path / "e" / "run", 1.0, loss=0.25)
    a, b, c, d, e = (script.hash_folder(tmp_path / name) for name in "abcde")
    known = hashlib.sha256(b"w float32 (2,) " + np.array([1, 2], "<f4").tobytes()).hexdigest()
    assert a.models == {"run": known}
    assert script.differences(a, b) == []  # a new column is no other bit
    assert a.short(b) == b.short(a)
    assert script.differences(b, a) == ["column fresh"]  # but one that is lost is
    assert script.differences(a, c) == ["1 of 1 models"]
    assert a.short(c) != c.short(a)
    assert script.differences(a, e) == ["column loss"]
    assert [line.split()[2] for line in script.differences(a, d)] == ["other", "run"]


@with_script("checks.hashes")
def test_every_configuration_says_what_it_is_for(script: ModuleType) -> None:
    assert len(script.CONFIGURATIONS) >= 10
    words = [word for c in script.CONFIGURATIONS.values() for command in c.commands for word in command]
    assert {"serial", "batched", "vmap", "auto", "sweep", "resume", "torch.distributed.run", "float64"} <= set(words)
    assert all(c.what and c.runs for c in script.CONFIGURATIONS.values())


WALK = [  # depth, module, function
    (0, "cli.py", "main"),
    (1, "commands/run.py", "run"),
    (2, "runs/loop.py", "go"),
    (3, "runs/record.py", "write"),
    (3, "engines/serial.py", "step"),
    (4, "core/vectors.py", "norm"),
    (3, "engines/serial.py", "step"),
    (4, "core/vectors.py", "norm"),
    (2, "core/late.py", "<module>"),
    (3, "core/late.py", "made"),
    (2, "core/vectors.py", "norm"),
]


@with_script("checks.crossings")
def test_a_crossing_is_a_pair_of_functions_in_two_rooms(script: ModuleType) -> None:
    found = script.count(WALK)
    assert (found["crossings"], found["calls"], found["rooms"]) == (5, 7, 5)
    assert found["modules"] == 7  # a module's own loading is no walk, what it calls in itself is
    assert found["pairs"] == {
        "cli -> commands": 1, "commands -> core": 1, "commands -> runs": 1, "engines -> core": 1, "runs -> engines": 1,
    }  # fmt: skip


@with_script("checks.crossings")
def test_the_walk_is_a_tree_of_rooms(script: ModuleType) -> None:
    walk = [call for call in WALK if call[1] != "core/late.py"]
    lines = [line for node in script.tree(walk).below.values() for line in node.lines()]
    assert lines == [
        "cli x1 (cli)",
        "  commands x1 (run)",
        "    runs x1 (loop, record)",
        "      engines x2 (serial)",
        "        core x2 (vectors)",
        "    core x1 (vectors)",
    ]


@with_script("checks.startup")
def test_a_third_of_importing_torch_is_quick(script: ModuleType) -> None:
    rows = script.judge({script.TORCH: 3.0, "fedsmoo --version": 0.9, "fedsmoo --help": 1.0, "fedsmoo run --help": 1.2})
    assert {name: row["quick"] for name, row in rows.items()} == {
        "fedsmoo --version": True, "fedsmoo --help": True, "fedsmoo run --help": False,
    }  # fmt: skip
    assert rows["fedsmoo run --help"] == {"seconds": 1.2, "ratio": 0.4, "quick": False}
    assert [script.completion(w)[1]["COMP_CWORD"] for w in ("fedsmoo ", "fedsmoo ru", "fedsmoo data ")] == [
        "1",
        "1",
        "2",
    ]


@with_script("checks.startup")
def test_an_entry_of_the_same_commit_is_replaced(script: ModuleType, tmp_path: Path) -> None:
    place = tmp_path / "kept.json"
    for commit, value in (("a", 1), ("b", 2), ("a", 3)):
        script.add(place, {"commit": commit, "value": value}, ("commit",))
    assert [(e["commit"], e["value"]) for e in json.loads(place.read_text())] == [("b", 2), ("a", 3)]


@with_script("campaign.mend_results")
def test_results_say_what_was_not_recorded_and_nothing_else_is_changed(script: ModuleType) -> None:
    assert script.mended_text('{\n "rows": [1]\n}\n') == '{\n "commit": "not recorded",\n "rows": [1]\n}\n'
    recorded = '{\n "code": {"commit": "abc", "dirty": false},\n "rows": [1]\n}\n'
    assert script.mended_text(recorded) == recorded
    assert script.unmended() == {}
