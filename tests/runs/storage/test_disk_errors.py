"""A disk that does not answer: one line, nothing is lost, and no run is blamed for it."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fedsmoo
from fedsmoo.runs.resume import reopen
from fedsmoo.runs.run import Run
from fedsmoo.runs.storage.checkpoint import manifests_in, newest
from fedsmoo.runs.storage.files import DiskError
from fedsmoo.runs.storage.lease import LOCK, leased
from fedsmoo.runs.storage.names import CHECKPOINT, FAILED, MODEL, SUMMARY
from fedsmoo.runs.storage.reader import state
from fedsmoo.runs.storage.verify import verify
from fedsmoo.sweeps.grid import run_name
from fedsmoo.sweeps.queue import Worker, work

from .test_checkpoint import SMALL, finished, stopped

Silent = Callable[[Callable[[str], bool]], None]


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Silent:
    """Lets the disk answer no more for files whose path satisfies a condition."""

    def install(condition: Callable[[str], bool]) -> None:
        def failing(inner: Callable[..., Any]) -> Callable[..., Any]:
            def called(path: Any, *args: Any, **kwargs: Any) -> Any:
                if condition(str(path)):
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
                return inner(path, *args, **kwargs)

            return called

        for owner, name in ((os, "open"), (io, "open"), (os, "unlink")):
            monkeypatch.setattr(owner, name, failing(getattr(owner, name)))

    return install


def test_a_lock_that_cannot_be_opened_is_one_line(tmp_path: Path, silent: Silent) -> None:
    with leased(tmp_path / "a") as lease:
        run = Run.begin(SMALL, tmp_path / "a", lease=lambda _: lease)
        silent(lambda path: path.endswith(LOCK))
        with pytest.raises(DiskError, match=r"cannot lock the run folder .*a: Input/output error"):
            run.go()


def test_a_save_that_cannot_read_what_it_should_keep_removes_nothing(
    tmp_path: Path, silent: Silent, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, broken = Run.begin(SMALL, tmp_path / "a"), list[bool]()
    silent(lambda path: bool(broken) and path.endswith("000004.json"))

    def watch(record: Any) -> None:
        broken[:] = [True] if record.round == 4 else []

    run.go(watch, lambda: len(run.simulation.history) == 6, save_every=1)
    assert verify(tmp_path / "a").damaged == []
    monkeypatch.undo()
    reopen(tmp_path / "a").go()
    assert (tmp_path / "a" / MODEL).read_bytes() == finished(tmp_path / "b")


def test_the_checkpoint_before_is_used_where_the_disk_does_not_give_the_last(tmp_path: Path, silent: Silent) -> None:
    folder = stopped(tmp_path / "a")
    silent(lambda path: path.endswith("000006.json"))
    saved, problems = newest(folder / CHECKPOINT)
    assert saved is not None
    assert saved.round == 4
    assert problems[0].endswith("000006.json cannot be read: Input/output error")


@pytest.mark.parametrize("file", [".json", "-server.safetensors"])
def test_no_checkpoint_because_of_the_disk_is_the_disks_fault(tmp_path: Path, silent: Silent, file: str) -> None:
    folder = stopped(tmp_path / "a")
    before = sorted(folder.rglob("*"))
    silent(lambda path: CHECKPOINT in path and path.endswith(file))
    with pytest.raises(DiskError, match="Input/output error"):
        fedsmoo.resume(folder)
    assert [p for p in sorted(folder.rglob("*")) if p.name != LOCK] == before


def test_a_sweep_does_not_call_a_run_failed_because_the_disk_did_not_answer(
    tmp_path: Path, silent: Silent, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = SMALL.replace(rounds=2)
    folder = tmp_path / run_name(config)
    Run.begin(config, folder)
    silent(lambda path: path.endswith("started.json"))
    with pytest.raises(DiskError, match=r"started.json cannot be read: Input/output error"):
        work([config], tmp_path, Worker())
    assert not (folder / FAILED).exists()
    monkeypatch.undo()
    assert work([config], tmp_path, Worker()).finished == [folder]


def test_a_finished_run_whose_checkpoints_cannot_be_removed_has_finished(tmp_path: Path, silent: Silent) -> None:
    silent(lambda path: (tmp_path / "a" / SUMMARY).exists() and CHECKPOINT in path)
    Run.begin(SMALL, tmp_path / "a").go(save_every=1, keep=False)
    assert state(tmp_path / "a") == "finished"
    assert manifests_in(tmp_path / "a" / CHECKPOINT)


def test_a_note_that_cannot_be_removed_is_one_line(tmp_path: Path, silent: Silent) -> None:
    folder = stopped(tmp_path / "a")
    silent(lambda path: path.endswith(FAILED))
    with pytest.raises(DiskError, match=r"cannot remove a file from .*a: Input/output error"):
        fedsmoo.resume(folder)
