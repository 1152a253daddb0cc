"""What a killed export or measurement had half written goes when the next one starts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import fedsmoo
from fedsmoo.runs.config import Config
from fedsmoo.runs.storage.lease import LEASE
from fedsmoo.sweeps.queue import lease_batch
from fedsmoo.sweeps.results import export

SETTINGS = {"rounds": 2, "clients": 5, "cohort": 2, "model": "softmax", "device": "cpu"}


def leave(path: Path, old: bool = True) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("{")
    if old:
        os.utime(path, (0, 0))
    return path


def test_half_written_results_and_measurements_are_removed(tmp_path: Path) -> None:
    run, to = tmp_path / "run", tmp_path / "results"
    fedsmoo.run(SETTINGS, run)
    to.mkdir()
    gone = [
        leave(to / "a.json.part"),
        leave(to / "superseded" / "b.json.part"),
        leave(run / "analysis" / "x.json.part"),
    ]
    kept = [leave(to / "young.json.part", old=False), leave(to / "mine.part"), leave(to / "notes.txt")]
    export([run], to)
    fedsmoo.analyse("fairness", run)
    assert [path.exists() for path in gone] == [False] * 3
    assert [path.exists() for path in kept] == [True] * 3


def test_a_run_that_somebody_finished_in_between_is_nobodys_again(tmp_path: Path) -> None:
    path = tmp_path / "run"
    assert lease_batch([path], {path: Config()}, 1, is_open=lambda _: False) == {}
    again = lease_batch([path], {path: Config()}, 1, is_open=lambda _: True)
    assert list(again) == [path]
    again[path].release()


def test_a_disk_that_does_not_answer_takes_no_lease_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run"
    lease = lease_batch([path], {path: Config()}, 1)[path]
    for error, ours in ((OSError(5, "no answer"), True), (FileNotFoundError(), False)):

        def fails(_: Path, error: OSError = error) -> None:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr("fedsmoo.runs.storage.lease.owner_of", fails)
            assert lease.ours() is ours
    assert lease.ours()
    lease.release()


def test_nothing_stays_leased_when_the_search_ends_in_an_error(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"

    def check(path: Path) -> None:
        if path == second:
            raise KeyError(path.name)

    with pytest.raises(KeyError, match="b"):
        lease_batch([first, second], dict.fromkeys((first, second), Config()), 2, check=check)
    assert [p.name for p in first.iterdir() if p.name == LEASE] == []
    again = lease_batch([first], {first: Config()}, 2)
    assert (first / LEASE).is_file()
    again[first].release()
