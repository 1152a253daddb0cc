"""Metrics of a finished run that are not those it wrote: nobody takes them for its numbers."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import fedsmoo
from fedsmoo import FedsmooError
from fedsmoo.pages.gather import gather
from fedsmoo.runs.storage.reader import read_run
from fedsmoo.sweeps.results import collect, export


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "run"
    small = {"algorithm": "fedavg", "model": "softmax", "clients": 4, "cohort": 2, "rounds": 4, "local_steps": 1}
    fedsmoo.run(small, out=folder)
    return folder


@pytest.mark.parametrize("how", ["cut", "torn", "edited"])
def test_metrics_that_were_changed_are_refused(run: Path, how: str, tmp_path: Path) -> None:
    """Cut after round 2, the file still reads as a run whose last round is the second."""
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    assert len(read_run(folder).history) == 4
    content = (folder / "metrics.jsonl").read_bytes()
    lines = content.splitlines(keepends=True)
    other = {"cut": b"".join(lines[:2]), "torn": content[:-30], "edited": content.replace(b'"round": 4', b'"round": 5')}
    (folder / "metrics.jsonl").write_bytes(other[how])
    with pytest.raises(FedsmooError, match=r"metrics\.jsonl is not as it was written"):
        _ = read_run(folder).history
    said: list[str] = []
    assert collect([folder], note=said.append) == {}
    assert export([folder], tmp_path / "results", note=said.append) == []
    assert len(said) == 2
    assert all("metrics.jsonl is not as it was written" in line for line in said)
    (shown,) = gather([folder])["runs"]
    assert any("metrics.jsonl is not as it was written" in line for line in shown["skipped"])
