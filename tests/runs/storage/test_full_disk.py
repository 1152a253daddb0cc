"""A disk that is full at the end of a run, or when it fails: one line, and the line that matters."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import fedsmoo
from fedsmoo.core import FedsmooError
from fedsmoo.runs.config import Config
from fedsmoo.runs.resume import reopen
from fedsmoo.runs.run import Run
from fedsmoo.runs.storage.checkpoint import Checkpoints
from fedsmoo.runs.storage.files import DiskError
from fedsmoo.runs.storage.folder import record_failure
from fedsmoo.runs.storage.names import FAILED, MODEL, SUMMARY

TINY = Config(
    algorithm="fedavg", model="softmax", clients=4, cohort=2, rounds=3, local_steps=1, batch_size=8, partition="iid",
    engine="serial", device="cpu",
)  # fmt: skip


@contextmanager
def no_file_over(size: int) -> Iterator[None]:
    """Writing beyond ``size`` bytes fails, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def parts(folder: Path) -> list[Path]:
    return list(folder.rglob("*.part"))


def test_a_disk_that_is_full_at_the_end_is_one_line_and_the_run_resumes(tmp_path: Path) -> None:
    run = Run.begin(TINY, tmp_path / "a")
    with no_file_over(1900), pytest.raises(DiskError, match=r"the model into .*a: .*File too large.* resume"):
        run.go(save_every=0)
    assert not (tmp_path / "a" / SUMMARY).exists()
    assert parts(tmp_path) == []
    reopen(tmp_path / "a").go(save_every=0)
    Run.begin(TINY, tmp_path / "b").go(save_every=0)
    assert (tmp_path / "a" / MODEL).read_bytes() == (tmp_path / "b" / MODEL).read_bytes()


def diverging(run: Run) -> Callable[[object], None]:
    """Break a run after its second round."""

    def watch(record: object) -> None:
        if len(run.simulation.history) == 2:
            run.simulation.server = run.simulation.server.map(lambda v: v * float("inf"))

    return watch


def test_a_full_disk_does_not_hide_why_a_run_failed(tmp_path: Path) -> None:
    run = Run.begin(TINY, tmp_path / "a")
    with no_file_over(1900), pytest.raises(FedsmooError, match="round 3: the training loss or the model is no longer"):
        run.go(diverging(run), save_every=0)
    assert parts(tmp_path) == []


def test_the_note_of_a_failure_that_cannot_be_written_is_told_with_it(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with no_file_over(10), pytest.raises(DiskError, match=r"the loss is nan; nor can a note .* File too large"):
        record_failure(tmp_path / "a", "the loss is nan")
    assert not (tmp_path / "a" / FAILED).exists()
    assert parts(tmp_path) == []


def test_a_disk_that_fills_while_a_run_begins_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedsmoo.runs.run.RunFolder", lambda path, *_: path.mkdir())
    with no_file_over(10), pytest.raises(DiskError, match=r"cannot write into .*analysis: File too large"):
        Run.begin(TINY, tmp_path / "a")


def test_a_folder_that_cannot_be_made_is_the_disks_fault(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    with pytest.raises(DiskError, match=r"cannot write the run folder .*inside: Not a directory"):
        fedsmoo.run(TINY, tmp_path / "file" / "inside")


def test_results_are_on_the_disk_before_the_checkpoints_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, log = Run.begin(TINY, tmp_path / "a"), []
    fsync, rename, remove = os.fsync, os.replace, Checkpoints.remove

    def synced(fd: int) -> None:
        log.append("sync " + Path(f"/proc/self/fd/{fd}").readlink().name)
        fsync(fd)

    def renamed(old: Path, new: Path) -> None:
        log.append(f"rename {Path(new).name}")
        rename(old, new)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    monkeypatch.setattr(Checkpoints, "remove", lambda self: log.append("remove") or remove(self))
    run.go(save_every=1, keep=False)
    written = [line for name in (MODEL, SUMMARY) for line in (f"sync {name}.part", f"rename {name}", "sync a")]
    assert log[log.index("remove") - 6 : log.index("remove")] == written
