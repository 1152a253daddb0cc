"""Folders that older code left: they open, resume to the bits that older code came to, report, and give the same table.

``tests/fixtures/make.py`` says how they were made. All is done through commands, as a user would.
"""

from __future__ import annotations

import json
import platform
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from fedsmoo.cli import main

FIXTURES = Path(__file__).parents[1] / "fixtures"
BEFORE = sorted(FIXTURES.glob("made_by_*"))
TIMES = {"seconds_train", "seconds_eval"}
Call = Callable[..., str]


@pytest.fixture(params=BEFORE, ids=lambda path: path.name)
def before(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What one commit left; a copy of what it had begun is where the test is."""
    shutil.copytree(request.param / "begun", tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    return request.param


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """Run ``fedsmoo`` with some words; it must succeed, and what it prints is returned."""

    def calling(*words: str) -> str:
        capsys.readouterr()
        try:
            main(list(words))
        except SystemExit as e:
            assert not e.code, capsys.readouterr().err  # noqa: PT017
        return capsys.readouterr().out

    return calling


def test_there_are_folders_of_two_commits() -> None:
    assert {path.name for path in BEFORE} >= {"made_by_34f1e82", "made_by_f76911e"}
    assert sum(f.stat().st_size for path in BEFORE for f in path.rglob("*") if f.is_file()) < 300_000


def same_machine(made: dict[str, Any]) -> bool:
    """Whether the last bits may be expected here: the same torch on the same processor, one thread (the run's own)."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    cpu = next((x.partition(":")[2].strip() for x in lines if x.startswith("model name")), platform.machine())
    return (made["torch"], made["cpu"]) == (torch.__version__, cpu)


def same_ends(folder: Path, ended: Path, to_the_bit: bool) -> None:
    """The model and all of the old columns are what older code came to; elsewhere up to rounding."""
    found, wanted = load_file(folder / "model.safetensors"), load_file(ended / "model.safetensors")
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert torch.equal(found[name], tensor) or not to_the_bit, name
        torch.testing.assert_close(found[name], tensor, rtol=1e-4, atol=1e-5)
    rows, known = ([json.loads(x) for x in (f / "metrics.jsonl").read_text().splitlines()] for f in (folder, ended))
    assert [row["round"] for row in rows] == list(range(1, 25))
    for row, old in zip(rows, known, strict=True):
        for name, value in old.items():
            if name not in TIMES:
                assert row[name] == (value if to_the_bit else pytest.approx(value, rel=1e-3)), (name, row["round"])


def made(before: Path) -> dict[str, Any]:
    return json.loads((before / "made.json").read_text())


def test_a_run_that_was_stopped_goes_on_to_the_same_end(before: Path, call: Call) -> None:
    rounds = len(Path("run/metrics.jsonl").read_text().splitlines())
    assert 0 < rounds < 24
    (row,) = json.loads(call("runs", "run", "--json"))
    assert (row["done"], row["rounds"], row["seed"]) == (rounds, 24, 0)
    assert row["state"] != "finished"
    call("resume", "run")
    same_ends(Path("run"), before / "ended" / "run", same_machine(made(before)))
    sessions = json.loads(Path("run/started.json").read_text())["sessions"]
    assert [s["round"] for s in sessions] == [0, rounds]
    assert sessions[0]["commit"] == made(before)["commit"]


def names_in(folder: Path) -> set[str]:
    return {path.parent.name for path in folder.rglob("config.toml")}


def rows_of(call: Call) -> list[dict[str, Any]]:
    """The index of the sweep's folder."""
    return json.loads(call("runs", "sweep", "--json"))


def same_result(new: dict[str, Any], old: dict[str, Any], to_the_bit: bool) -> None:
    """A result file says of a run what it said, besides who computed it when and how long that took."""
    assert {name: new["config"].get(name) for name in old["config"]} == old["config"]
    assert (new["format"], new["rounds"], new["parameters"]) == (old["format"], old["rounds"], old["parameters"])
    for name, column in old["curve"].items():
        if name not in TIMES:
            assert new["curve"][name] == (column if to_the_bit else pytest.approx(column, rel=1e-3)), name


def test_a_sweep_goes_on_where_it_was_stopped(before: Path, call: Call) -> None:
    names = {path.name for path in (before / "ended" / "sweep").iterdir()}
    assert (len(names), len(names_in(Path("sweep")))) == (3, 2)
    (finished,) = (path.parent for path in Path("sweep").rglob("summary.json"))
    kept = {path: path.read_bytes() for path in finished.iterdir() if path.is_file() and path.name[0] != "."}
    done = {row["path"].rpartition("/")[2]: row["state"] == "finished" for row in rows_of(call)}
    assert done == {name: name == finished.name for name in names_in(Path("sweep"))}
    call("sweep", "grid.toml", "--out", "sweep")
    assert names_in(Path("sweep")) == names  # a run has the name that it had
    for name in names:
        same_ends(Path("sweep") / name, before / "ended" / "sweep" / name, same_machine(made(before)))
    assert {path: path.read_bytes() for path in kept} == kept  # what was finished was not touched
    assert {row["state"] for row in rows_of(call)} == {"finished"}
    call("results", "export", "sweep", "--to", "results")
    exported = {path.name: json.loads(path.read_text()) for path in Path("results").iterdir()}
    assert exported.keys() == {f"{name}.json" for name in names}
    for name, result in exported.items():
        old = json.loads((before / "ended" / "results" / name).read_text())
        same_result(result, old, same_machine(made(before)))


def test_what_was_finished_reports_and_agrees_with_its_old_result(before: Path, call: Call) -> None:
    (finished,) = (path.parent for path in Path("sweep").rglob("summary.json"))
    shutil.copytree(before / "ended" / "results", "results")
    old = (Path("results") / f"{finished.name}.json").read_bytes()
    call("results", "export", str(finished), "--to", "results")  # other numbers would be refused
    same_result(json.loads((Path("results") / f"{finished.name}.json").read_text()), json.loads(old), True)
    call("report", "run", str(finished), "--out", "page.html")
    page = Path("page.html").read_text()
    assert "FedSMOO" in page
    assert "SCAFFOLD" in page
    ledger = call("ledger", "run", str(finished))
    assert f"{24 * 2 * 2 * 650 * 4 / 1000:.1f} kB" in ledger  # rounds, clients, vectors, parameters, bytes
