"""A measured result is never replaced silently."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from pathlib import Path

import pytest

from fedsmoo.cli import main
from fedsmoo.core import FedsmooError
from fedsmoo.runs.config import Config
from fedsmoo.runs.run import Run
from fedsmoo.sweeps import results
from fedsmoo.sweeps.index import INDEX
from fedsmoo.sweeps.queue import Worker, work
from fedsmoo.sweeps.results import SUPERSEDED, Measured, collect, export, from_folder, from_json, to_json
from fedsmoo.sweeps.sweep import sweep

TINY = Config(
    algorithm="fedavg", model="softmax", rounds=3, clients=6, cohort=2, local_steps=1, device="cpu", engine="serial"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Run.begin(TINY, tmp_path / "runs" / "a").go()
    return tmp_path / "runs" / "a"


def remeasured(folder: Path, to: str, column: str = "test_accuracy", finished: str = "2001-01-01T00:00:00Z") -> Path:
    """A copy of a run folder as another measurement of the same run: every number of a column is half as large."""
    other = folder.with_name(to)
    other.mkdir()
    for file in ("config.toml", "started.json", "summary.json"):
        (other / file).write_text((folder / file).read_text())
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    content = "".join(json.dumps({**r, column: r[column] / 2}) + "\n" for r in lines)
    (other / "metrics.jsonl").write_text(content)
    summary = json.loads((other / "summary.json").read_text())
    summary["metrics_sha256"] = hashlib.sha256(content.encode()).hexdigest()
    (other / "summary.json").write_text(json.dumps(summary))
    summary = json.loads((other / "summary.json").read_text())
    (other / "summary.json").write_text(json.dumps({**summary, "finished": finished}))
    return other


def test_export_refuses_other_numbers_and_keeps_what_it_replaces(folder: Path, tmp_path: Path) -> None:
    to, other = tmp_path / "results", remeasured(folder, "b")
    [file] = export([folder], to)
    before = file.read_text()
    with pytest.raises(FedsmooError, match=r"another measurement of the same run, best .* nothing was written"):
        export([other], to)
    assert file.read_text() == before
    assert list(to.iterdir()) == [file]
    with pytest.raises(FedsmooError, match="needs a reason"):
        export([other], to, supersede=" ")
    assert export([other], to, supersede="the seed was not set") == [file]
    assert from_json(file).curve == from_folder(other).curve
    [kept] = (to / SUPERSEDED).iterdir()
    value = json.loads(kept.read_text())
    assert value["superseded"]["reason"] == "the seed was not set"
    assert value["superseded"]["date"][:2] == "20"
    assert value["superseded"]["by"]["finished"] == "2001-01-01T00:00:00Z"
    assert from_json(kept).curve == from_folder(folder).curve
    export([folder], to, supersede="it was")
    assert {json.loads(p.read_text())["superseded"]["reason"] for p in (to / SUPERSEDED).iterdir()} == {
        "the seed was not set",
        "it was",
    }
    assert len(collect([], to)) == 1


def test_the_same_curve_is_written_again_without_fuss(folder: Path, tmp_path: Path) -> None:
    to, said = tmp_path / "results", list[str]()
    [file] = export([folder], to)
    (folder / "analysis" / "hessian.json").write_text(json.dumps({"eigenvalues": [2.0, 5.0], "trace": 7.0}))
    export([folder], to, note=said.append)
    assert from_json(file).facts["hessian"] == {"top": 5.0, "trace": 7.0}
    assert said == []


def test_of_the_same_numbers_the_first_seconds_are_kept(folder: Path, tmp_path: Path) -> None:
    to, said = tmp_path / "results", list[str]()
    [file] = export([folder], to)
    before = file.read_text()
    export([remeasured(folder, "b", "seconds_train")], to, note=said.append)
    assert file.read_text() == before
    assert "it is kept" in said[0]


def test_a_damaged_file_in_the_way_is_not_lost(folder: Path, tmp_path: Path) -> None:
    [file] = export([folder], tmp_path)
    file.write_text('{"format": "fedsmoo result 1"}')
    with pytest.raises(FedsmooError, match="once that file is moved away; nothing was written"):
        export([folder], tmp_path)


def test_of_two_measurements_the_first_counts_and_it_is_said(folder: Path, tmp_path: Path) -> None:
    earlier, said = remeasured(folder, "b"), list[str]()
    [found] = collect([tmp_path / "runs"], (), said.append).values()
    assert found.curve == from_folder(earlier).curve
    assert "the same run with different numbers" in said[0]
    assert said[0].endswith(f"the first measured counts, {earlier}")
    to = tmp_path / "results"
    export([folder], to)
    [found] = collect([earlier], to, said.append).values()  # a folder and a file
    assert found.curve == from_folder(earlier).curve
    later = remeasured(folder, "c", finished="2999-01-01T00:00:00Z")
    [found] = collect([later], to, said.append).values()
    assert found.curve == from_folder(folder).curve
    assert len(said) == 3


def test_a_folder_with_more_facts_of_the_same_run_wins_over_its_file(folder: Path, tmp_path: Path) -> None:
    export([folder], tmp_path / "results")
    (folder / "analysis" / "hessian.json").write_text(json.dumps({"eigenvalues": [2.0], "trace": 7.0}))
    [found] = collect([folder], tmp_path / "results", pytest.fail).values()
    assert found.facts["hessian"]["trace"] == 7.0


def test_what_is_marked_as_superseded_does_not_count(folder: Path, tmp_path: Path) -> None:
    result: Measured = from_folder(folder)
    value = json.loads(to_json(result))
    (tmp_path / "a.json").write_text(json.dumps({**value, "superseded": {"reason": "x", "date": "y"}}))
    assert collect([], tmp_path) == {}


def test_a_sweep_goes_on_where_a_result_may_not_be_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("two.toml").write_text(
        'algorithm = "fedavg"\nmodel = "softmax"\nrounds = 2\nclients = 4\ncohort = 2\nlocal_steps = 1\n'
        'device = "cpu"\nengine = "serial"\nseed = [0, 1]\n'
    )

    def sweep(*more: str) -> int:
        with pytest.raises(SystemExit) as ended:
            main(["sweep", "two.toml", "--to", "results", *more])
        return int(ended.value.code or 0)

    assert sweep("--out", "first") == 0
    file = next(p for p in Path("results").glob("*.json") if "seed0" in p.name)
    value = json.loads(file.read_text())
    value["curve"]["test_loss"] = [1.0, 2.0]
    file.write_text(json.dumps(value))
    capfd.readouterr()
    assert sweep("--out", "second") == 1
    said = capfd.readouterr()
    assert "not exported: results/" in said.err
    assert "2 finished, 0 failed, 0 left" in said.out
    assert json.loads(file.read_text()) == value
    assert sweep("--out", "third", "--supersede", "damaged by a test") == 0
    assert json.loads((Path("results") / SUPERSEDED / file.name).read_text())["curve"] == value["curve"]


def test_other_runs_are_exported_beside(folder: Path, tmp_path: Path) -> None:
    work([TINY.replace(seed=1)], tmp_path / "runs", Worker())
    assert len(export([tmp_path / "runs"], tmp_path / "results")) == 2


def test_what_is_set_aside_is_what_was_judged(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process exports the same at the same time: its new result is not kept as a superseded one."""
    to = tmp_path / "to"
    (path,) = export([remeasured(folder, "b")], to)
    old, inner = from_json(path), results.make_folder
    monkeypatch.setattr(results, "make_folder", lambda f: (inner(f), path.write_text(to_json(from_folder(folder)))))
    export([folder], to, "better")
    (aside,) = (to / SUPERSEDED).iterdir()
    assert from_json(aside).curve == old.curve
    assert from_json(path).curve == from_folder(folder).curve


def test_a_run_that_finished_before_its_result_was_written_is_exported_by_the_next_sweep(tmp_path: Path) -> None:
    table = {**TINY.to_dict(), "seed": [0, 1]}
    sweep({k: v for k, v in table.items() if v is not None}, tmp_path / "runs", to=tmp_path / "results")
    whole = {p.name: p.read_bytes() for p in (tmp_path / "results").iterdir()}
    assert len(whole) == 2
    (tmp_path / "results" / min(whole)).unlink()  # as if its process had been killed before
    sweep({k: v for k, v in table.items() if v is not None}, tmp_path / "runs", to=tmp_path / "results")
    assert {p.name: p.read_bytes() for p in (tmp_path / "results").iterdir()} == whole


@pytest.mark.parametrize("name", [INDEX, f"{INDEX}-journal"])
def test_an_index_that_cannot_be_used_does_not_end_a_sweep(tmp_path: Path, name: str) -> None:
    table = {k: v for k, v in TINY.to_dict().items() if v is not None}
    (tmp_path / "runs" / name / "not empty").mkdir(parents=True)
    assert len(sweep(table, tmp_path / "runs").finished) == 1


def test_a_full_disk_under_the_index_does_not_end_a_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner, notes = sqlite3.connect, list[str]()

    def connect(path: str | Path, **more: object) -> sqlite3.Connection:
        if str(path) != ":memory:":
            raise sqlite3.OperationalError("database or disk is full")
        return inner(path, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(sqlite3, "connect", connect)
    table = {k: v for k, v in TINY.to_dict().items() if v is not None}
    assert len(sweep(table, tmp_path / "runs", note=notes.append).finished) == 1
    assert [INDEX in note for note in notes] == [True]
