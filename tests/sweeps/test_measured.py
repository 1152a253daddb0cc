"""A sweep that leaves out what has a result already, wherever it was measured."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import fedsmoo
from fedsmoo.core import FedsmooError

GRID = {"model": "softmax", "clients": 3, "cohort": 2, "rounds": 1, "local_steps": 1, "device": "cpu",
        "engine": "serial", "methods": {"FedAvg": {}, "FedSAM": {"rho": [0.1, 0.2]}}}  # fmt: skip


def test_runs_with_a_result_in_a_folder_or_below_it_are_left_out(tmp_path: Path) -> None:
    first = fedsmoo.sweep(GRID, tmp_path / "there", to=tmp_path / "results")
    one, two, three = sorted((tmp_path / "results").glob("*.json"))
    below = tmp_path / "results" / "variants" / "more"
    below.mkdir(parents=True)
    one.rename(below / one.name)
    two.unlink()
    notes: list[str] = []
    again = fedsmoo.sweep(GRID, tmp_path / "here", measured=tmp_path / "results", note=notes.append)
    assert [run.name for run in again.finished] == [two.stem]
    assert {run.name for run in first.finished} == {one.stem, two.stem, three.stem}
    assert notes == [f"2 of 3 runs are left out: their results lie below {tmp_path / 'results'}"]
    shutil.move(two := again.finished[0] / "summary.json", tmp_path)  # a run folder is no result file
    assert len(fedsmoo.sweep(GRID, tmp_path / "other", measured=tmp_path / "here").finished) == 3


def test_superseded_results_do_not_count_and_all_measured_is_nothing_to_do(tmp_path: Path) -> None:
    fedsmoo.sweep(GRID, tmp_path / "there", to=tmp_path / "results")
    nothing = fedsmoo.sweep(GRID, tmp_path / "here", measured=tmp_path / "results")
    assert (nothing.finished, nothing.left, nothing.failed) == ([], [], {})
    assert not (tmp_path / "here").exists()
    for path in (tmp_path / "results").glob("*.json"):
        path.write_text(path.read_text().replace("{", '{"superseded": "by a test",', 1))
    assert len(fedsmoo.sweep(GRID, tmp_path / "here", measured=tmp_path / "results").finished) == 3


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(FedsmooError, match="measured: there is no folder"):
        fedsmoo.sweep(GRID, tmp_path / "here", measured=tmp_path / "nowhere")
