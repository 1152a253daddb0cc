"""A power cut at any moment: the run goes on to the same bits, and a finished one stays finished."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import fedsmoo
from fedsmoo.core import FedsmooError
from fedsmoo.runs.resume import reopen
from fedsmoo.runs.run import Run
from fedsmoo.runs.settings.toml import LostSettings
from fedsmoo.runs.storage.checkpoint import manifests_in, newest, read_manifest, seal
from fedsmoo.runs.storage.files import DiskError, make_folder, sync_folder, write_durably
from fedsmoo.runs.storage.names import CHECKPOINT, CONFIG, METRICS, MODEL, STARTED, SUMMARY
from fedsmoo.runs.storage.reader import read_config, read_run
from fedsmoo.runs.storage.verify import verify
from fedsmoo.sweeps.queue import open_run

from .power import Disk, recorded, restore
from .test_checkpoint import SMALL, finished, stopped

FEW = SMALL.replace(rounds=4)
CUTS = 14


def test_every_run_goes_on_after_a_cut_and_a_finished_one_stays_finished(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    counted = Disk(tmp_path / "disk", 0, lambda cut: False)
    with recorded(counted):
        Run.begin(FEW, tmp_path / "disk" / "a" / "run").go(save_every=1)
    model = (tmp_path / "disk" / "a" / "run" / MODEL).read_bytes()
    every = counted.cuts // CUTS
    disk = Disk(tmp_path / "disk", 1, lambda cut: cut % every == 0)
    with recorded(disk):
        Run.begin(FEW, tmp_path / "disk" / "b" / "run").go(save_every=1)
        disk.images.append(dict(disk.left(os.stat(disk.root).st_ino, "")))
    assert len(disk.images) > CUTS
    for number, image in enumerate(disk.images):
        folder = restore(image, tmp_path / f"image{number}") / "b" / "run"
        if not (folder / SUMMARY).exists():
            assert number < len(disk.images) - 1, "it had finished"
            open_run(folder, FEW, {}).go(save_every=1)
        assert (folder / MODEL).read_bytes() == model
        assert [r.round for r in read_run(folder).history] == [1, 2, 3, 4]
        assert read_config(folder) == FEW


@pytest.mark.parametrize("content", [None, b"", b"\0" * 40, "half"])
def test_a_lost_config_and_start_are_put_back_from_the_checkpoint(tmp_path: Path, content: bytes | str | None) -> None:
    folder = stopped(tmp_path / "a")
    whole = {name: (folder / name).read_bytes() for name in (CONFIG, STARTED)}
    for name, was in whole.items():
        (folder / name).unlink()
        if content is not None:
            (folder / name).write_bytes(was[: len(was) // 2] if content == "half" else content)
    with pytest.raises(LostSettings):
        read_config(folder)
    run = reopen(folder)
    assert [note.split(" was lost")[0] for note in run.notes[:2]] == [str(folder / STARTED), str(folder / CONFIG)]
    assert (folder / CONFIG).read_bytes() == whole[CONFIG]
    now, was = (json.loads(c) for c in ((folder / STARTED).read_bytes(), whole[STARTED]))
    assert {k: v for k, v in now.items() if k != "sessions"} == was
    run.go()
    assert (folder / MODEL).read_bytes() == finished(tmp_path / "b")


def test_a_checkpoint_of_before_puts_back_what_it_holds(tmp_path: Path) -> None:
    folder = stopped(tmp_path / "a")
    for path in manifests_in(folder / CHECKPOINT):
        manifest = read_manifest(path)
        del manifest["about"]["started"]
        path.write_bytes(seal(manifest))
    engine = json.loads((folder / STARTED).read_bytes())["engine"]
    for name in (CONFIG, STARTED):
        (folder / name).write_bytes(b"")
    fedsmoo.resume(folder)
    assert json.loads((folder / STARTED).read_bytes())["engine"] == engine
    assert (folder / MODEL).read_bytes() == finished(tmp_path / "b")


def test_a_lost_config_without_a_checkpoint_is_one_line_and_a_sweep_begins_again(tmp_path: Path) -> None:
    folder = stopped(tmp_path / "a", every=0, after=2)
    for path in (folder / CHECKPOINT).iterdir():
        path.unlink()
    (folder / CONFIG).write_bytes(b"")
    with pytest.raises(FedsmooError, match=r"config.toml is empty"):
        fedsmoo.resume(folder)
    with pytest.raises(FedsmooError, match=r"config.toml is empty"):
        read_run(folder)
    open_run(folder, SMALL, {}).go()
    assert (folder / MODEL).read_bytes() == finished(tmp_path / "b")


def test_a_file_is_flushed_before_it_gets_its_name_and_its_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[str] = []
    rename = os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: log.append(Path(f"/proc/self/fd/{fd}").readlink().name))
    monkeypatch.setattr(os, "replace", lambda a, b: (log.append("rename"), rename(a, b)))
    write_durably(tmp_path / "x", "text")
    assert log == ["x.part", "rename", tmp_path.name]
    del log[:]
    make_folder(tmp_path / "a" / "b")
    assert log == [tmp_path.name, "a"]


def test_a_folder_that_cannot_be_flushed_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(fd: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{fd}"):
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(OSError, match="Input/output"):
        sync_folder(tmp_path)
    with pytest.raises(DiskError, match="Input/output"):
        Run.begin(SMALL, tmp_path / "a")


@pytest.mark.parametrize("newest", [True, False])
def test_either_checkpoint_suffices_whatever_happens_to_the_other(tmp_path: Path, newest: bool) -> None:
    folder = stopped(tmp_path / "a", every=1)
    good, bad = manifests_in(folder / CHECKPOINT)[:: 1 if newest else -1]
    mine, others = ({p.name, *read_manifest(p)["files"]} for p in (good, bad))
    assert not mine & others, "they have no file in common"
    for name in others:
        (folder / CHECKPOINT / name).write_bytes(b"damaged")
    (folder / METRICS).write_bytes(b"")
    run = reopen(folder)
    assert len(run.simulation.history) == int(good.stem)
    run.go()
    assert (folder / MODEL).read_bytes() == finished(tmp_path / "b")


def test_a_cut_while_checkpoints_are_removed_leaves_a_finished_run_without_damage(tmp_path: Path) -> None:
    """No manifest comes back whose files do not: that would look like damage."""
    (tmp_path / "disk").mkdir()
    for seed in range(4):
        disk = Disk(tmp_path / "disk", seed, lambda cut: (tmp_path / "disk" / f"{seed}" / SUMMARY).exists())  # noqa: B023
        with recorded(disk):
            Run.begin(FEW, tmp_path / "disk" / f"{seed}").go(save_every=1, keep=False)
        assert len(disk.images) > 8
        for number, image in enumerate(disk.images):
            folder = restore(image, tmp_path / f"image{seed}-{number}") / f"{seed}"
            if (folder / SUMMARY).exists():
                assert verify(folder).damaged == []


def test_a_cut_at_the_first_checkpoint_leaves_none_or_a_whole_one(tmp_path: Path) -> None:
    seen, root = 0, tmp_path / "disk"
    root.mkdir()
    for seed in range(6):
        disk = Disk(root, seed, lambda cut: (root / f"{seed}" / CHECKPOINT / "000001.json").exists())  # noqa: B023
        with recorded(disk):
            Run.begin(FEW.replace(rounds=1), root / f"{seed}").go(save_every=1)
        for number, image in enumerate(disk.images):
            folder = restore(image, tmp_path / f"image{seed}-{number}") / f"{seed}" / CHECKPOINT
            if manifests_in(folder):
                seen += 1
                assert newest(folder)[1] == []
    assert seen > 10
