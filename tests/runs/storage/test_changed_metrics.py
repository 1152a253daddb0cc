"""Metrics of a finished run that are not those it wrote: nobody takes them for its numbers."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import fedsmoo
from fedsmoo import FedsmooError
from fedsmoo.core.errors import FedsmooWarning
from fedsmoo.pages.figures.sources import drawable, find
from fedsmoo.pages.gather import gather
from fedsmoo.runs.storage.reader import read_run
from fedsmoo.sweeps.results import collect, export


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "run"
    small = {"algorithm": "fedavg", "model": "softmax", "clients": 4, "cohort": 2, "rounds": 4, "local_steps": 1}
    fedsmoo.run(small, out=folder)
    return folder


def expanded(rounds: int | list[int]) -> list[int]:
    return list(range(1, rounds + 1)) if isinstance(rounds, int) else rounds


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
    (shown,), (whole,) = (gather([each])["runs"] for each in (folder, run))
    assert [len(expanded(page["rounds"])) for page in (shown, whole)] == [0, 4]
    assert (shown["acc"], shown["loss"], shown["probes"]) == ([], [], {})
    assert any("metrics.jsonl is not as it was written" in line for line in shown["skipped"])


def test_pages_and_figures_say_so(run: Path, tmp_path: Path) -> None:
    """A figure would be of fewer seeds than it says; a page has a line for each run."""
    pytest.importorskip("plotly")
    folder = tmp_path / "changed"
    shutil.copytree(run, folder)
    (folder / "metrics.jsonl").write_bytes((run / "metrics.jsonl").read_bytes().replace(b'"round": 4', b'"round": 5'))
    with pytest.warns(FedsmooWarning, match="changed: its metrics are not as it wrote them: the page has no curve of"):
        fedsmoo.report([run, folder], tmp_path / "page.html")
    with pytest.raises(FedsmooError, match="changed: its metrics are not as it wrote them: leave this run out, or"):
        drawable(find([run, folder]))
    assert len(drawable(find([run]))["runs"]) == 1
