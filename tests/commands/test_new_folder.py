"""The folder of a run that was given none."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from fedsmoo.runs import run
from fedsmoo.runs.build import assemble
from fedsmoo.runs.config import Config
from fedsmoo.runs.run import Run
from fedsmoo.runs.simulation import Simulation
from fedsmoo.runs.storage.files import DiskError
from fedsmoo.runs.storage.folder import new_folder
from fedsmoo.runs.storage.reader import read_config

from .conftest import TINY, Call, tiny


def test_runs_that_start_together_have_a_folder_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    together = Barrier(8)

    def choose(_: int) -> Path:
        together.wait()
        return new_folder(Config())

    with ThreadPoolExecutor(8) as pool:
        chosen = list(pool.map(choose, range(8)))
    stem = "fedsmoo-digits-seed0"
    assert {p.name for p in chosen} == {stem, *(f"{stem}-{i}" for i in range(2, 9))}
    assert all(p.is_dir() for p in chosen)


def test_a_run_that_starts_while_another_reads_its_data_goes_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tiny = Config(model="softmax", clients=4, cohort=2, rounds=2, local_steps=1, engine="serial", device="cpu")
    others: list[Run] = []

    def slow(config: Config) -> Simulation:
        if not others:
            others.append(Run.begin(config, new_folder(config), assemble(config)))
        return assemble(config)

    monkeypatch.setattr(run, "assemble", slow)
    mine, other = Run.begin(tiny).folder.path, others[0].folder.path
    assert (mine.name, other.name) == ("fedsmoo-digits-seed0-2", "fedsmoo-digits-seed0")
    assert read_config(mine) == read_config(other) == tiny


def test_a_run_that_is_refused_leaves_no_folder(call: Call, tmp_path: Path) -> None:
    answer = call("run", "--algorithm", "fedavg", *tiny("--model", "lenet"))  # whose images are too small
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert list(tmp_path.iterdir()) == []
    assert call("run", "--algorithm", "fedavg", *TINY).code == 0
    assert [p.name for p in (tmp_path / "runs").iterdir()] == ["fedavg-digits-seed0"]


def test_a_file_in_the_way_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("runs").write_text("")
    with pytest.raises(DiskError, match="cannot write the run folder runs/fedsmoo-digits-seed0: Not a directory"):
        new_folder(Config())
