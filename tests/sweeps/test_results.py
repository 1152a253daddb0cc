"""What a result file keeps of a run: the numbers of the folder, rounded, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedsmoo.core import FedsmooError
from fedsmoo.paper.tables import last, last_ten
from fedsmoo.runs.config import Config
from fedsmoo.runs.record import Record
from fedsmoo.runs.results.columns import round_digits
from fedsmoo.runs.storage.folder import config_text
from fedsmoo.runs.storage.names import STARTED, SUMMARY
from fedsmoo.sweeps.results import COLUMNS, Measured, collect, export, from_folder, from_json, to_json

SEVENTH = 1 / 7  # 0.14285714285714285


def record(number: int, **changes: float | None) -> Record:
    values = dict.fromkeys(COLUMNS, SEVENTH) | {"bytes_up": 1000 * number, "bytes_down": 500} | changes
    return Record(round=number, lr=0.1, cohort=[0], **values)


def folder(path: Path, rounds: int = 3, hessian: dict | None = None, **config) -> Path:
    path.mkdir(parents=True)
    (path / "config.toml").write_text(config_text(Config(rounds=rounds, **config)))
    lines = [record(k, seconds_train=float(k)).__dict__ for k in range(1, rounds + 1)]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (path / STARTED).write_text(json.dumps({"device": "a machine", "versions": {"torch": "9"}, "secret": 1}))
    (path / SUMMARY).write_text(json.dumps({"parameters": 650, "engine": "serial"}))
    if hessian:
        (path / "analysis").mkdir()
        (path / "analysis" / "hessian.json").write_text(json.dumps(hessian))
    return path


def test_the_largest_eigenvalue_is_the_top_of_the_spectrum(tmp_path: Path) -> None:
    run = folder(tmp_path / "a", hessian={"eigenvalues": [3.0, 11.5, -2.0], "trace": 40.0, "samples": 9})
    assert from_folder(run).facts["hessian"] == {"top": 11.5, "trace": 40.0}
    (path,) = export([run], tmp_path / "results")
    assert from_json(path).facts["hessian"] == {"top": 11.5, "trace": 40.0}
    assert "hessian" not in from_folder(folder(tmp_path / "b")).facts


def test_a_file_holds_the_folders_numbers_rounded(tmp_path: Path) -> None:
    run = folder(tmp_path / "a")
    (path,) = export([run], tmp_path / "results")
    text = json.loads(path.read_text())
    curve = text["curve"]
    assert curve["round"] == [1, 2, 3]
    assert curve["test_accuracy"] == [0.14285714] * 3
    assert curve["test_loss"] == curve["train_loss"] == curve["drift"] == [0.142857] * 3
    assert curve["seconds_train"] == [1.0, 2.0, 3.0]
    assert curve["seconds_eval"] == [0.1429] * 3
    assert (curve["bytes_up"], curve["bytes_down"]) == ([1000, 2000, 3000], 500)
    assert (text["rounds"], text["seconds_per_round"]) == (3, 2.0)
    assert (text["device"], text["parameters"], text["engine"]) == ("a machine", 650, "serial")
    assert "secret" not in text
    read = from_json(path)
    assert (read.config, read.curve) == (from_folder(run).config, from_folder(run).curve)
    assert [r.bytes_down for r in read.history] == [500] * 3


def test_numbers_are_rounded_and_equal_ones_said_once() -> None:
    assert round_digits(SEVENTH, 3) == 0.143
    assert (round_digits(7, 1), round_digits(None, 3)) == (7, None)
    curve = {"round": [1, 2], "seconds_train": [0.5, 0.5], "bytes_up": [2, 2], "bytes_down": [2, 3]}
    written = json.loads(to_json(Measured(Config(), curve)))["curve"]
    assert (written["bytes_up"], written["bytes_down"], written["seconds_train"]) == (2, [2, 3], [0.5, 0.5])


def test_the_last_and_the_mean_of_the_last_ten() -> None:
    """Evaluated every second of 26 rounds: thirteen squares, of which the last ten are 4^2 .. 13^2, 805 in all."""
    curve = {n: [0.0] * 26 for n in ("round", *COLUMNS)}
    curve["test_accuracy"] = [None if k % 2 else ((k + 2) // 2) ** 2 / 1000 for k in range(26)]
    run = Measured(Config(rounds=26), curve)
    assert len(run.scores) == 13
    assert last(run) == pytest.approx(16.9)
    assert last_ten(run) == pytest.approx(8.05)


def test_a_folder_wins_over_a_file_and_other_files_are_passed_over(tmp_path: Path) -> None:
    run = folder(tmp_path / "runs" / "deep" / "a")
    (path,) = export([run], tmp_path / "results")
    (tmp_path / "results" / "cpu.json").write_text('{"format": "else"}')
    text = json.loads(path.read_text())
    path.write_text(json.dumps(text | {"engine": "old"}))
    (known,) = collect((), tmp_path / "results").values()
    assert known.facts["engine"] == "old"
    (known,) = collect([tmp_path / "runs"], tmp_path / "results").values()
    assert known.facts["engine"] == "serial"


@pytest.mark.parametrize("column", ["round", *COLUMNS])
def test_two_measurements_agree_where_all_but_their_seconds_do(column: str) -> None:
    curve = {n: [0.5, 0.25] for n in ("round", *COLUMNS)}
    one, other = Measured(Config(), curve), Measured(Config(), curve | {column: [0.5, 0.125]})
    assert one.agrees(Measured(Config(), dict(curve)))
    assert one.agrees(other) == column.startswith("seconds")
    assert one.agrees(Measured(Config(), curve | {"drift_after": [1.0, 2.0]}))  # which only one of them has


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"round": [1, 2, 2]}, "its rounds are not 1, 2, 3"),
        ({"round": [2, 3, 4]}, "its rounds are not 1, 2, 3"),
        ({"rounds": 4}, "is cut: it has 3 of 4 rounds"),
        ({"a_setting_of_later": 2}, "has a setting 'a_setting_of_later', which this version does not know"),
    ],
)
def test_a_file_that_would_be_taken_for_another_run_is_refused(tmp_path: Path, change: dict, words: str) -> None:
    """In a table a setting that is left out would make it a seed of the run without, and a round its last."""
    (path,) = export([folder(tmp_path / "a")], tmp_path / "results")
    value = json.loads(path.read_text())
    value["curve" if "round" in change else "config"].update(change)
    path.write_text(json.dumps(value))
    with pytest.raises(FedsmooError, match=words):
        from_json(path)
    notes: list[str] = []
    assert collect((), tmp_path / "results", notes.append) == {}
    assert words in notes[0]


def test_a_finished_run_whose_last_rounds_are_lost_has_no_result(tmp_path: Path) -> None:
    """Older runs have no checksum of their metrics."""
    metrics = folder(tmp_path / "a") / "metrics.jsonl"
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(FedsmooError, match="is cut: it has 2 of 3 rounds"):
        from_folder(tmp_path / "a")


def test_a_file_with_a_column_cut_short_is_damaged(tmp_path: Path) -> None:
    (path,) = export([folder(tmp_path / "a")], tmp_path / "results")
    text = json.loads(path.read_text())
    for name in ("drift", "seconds_eval"):
        path.write_text(json.dumps(text | {"curve": text["curve"] | {name: text["curve"][name][:-1]}}))
        with pytest.raises(FedsmooError, match="differ in length"):
            from_json(path)
    path.write_text(json.dumps(text))
    assert from_json(path).curve["drift"] == [0.142857] * 3
