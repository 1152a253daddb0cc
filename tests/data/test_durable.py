"""Splits, decoded data and downloads: a file is flushed before it gets its name, and its folder after."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedsmoo.data.division.splitfile import save_split
from fedsmoo.data.files.cache import save
from fedsmoo.data.files.durable import rename_durably
from fedsmoo.data.files.readers import Arrays
from fedsmoo.data.sources import load


def split(path: Path) -> None:
    data = load("digits")
    save_split(path, [np.arange(len(data.x_train))], data, {"name": "iid"}, 0)


def decoded(path: Path) -> None:
    x, y = np.zeros((2, 3), np.float32), np.zeros(2, np.int64)
    save(path, "key", Arrays(x, y, x, y, class_names=None))


def downloaded(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.with_suffix(".part").write_bytes(b"content")
    rename_durably(path.with_suffix(".part"), path)


@pytest.mark.parametrize("write", [split, decoded, downloaded])
def test_nothing_is_renamed_before_it_is_on_the_disk(
    write: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, rename = list[str](), os.replace

    def flushed(fd: int) -> None:
        path = Path(f"/proc/self/fd/{fd}").readlink()
        log.append("the folder" if path == tmp_path / "new" else "above it" if path == tmp_path else "the file")

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(os, "replace", lambda a, b: (log.append("rename"), rename(a, b)))
    write(tmp_path / "new" / "file")
    assert log[-3:] == ["the file", "rename", "the folder"]
    assert "above it" in log[:-3] or write is downloaded
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["file"]


def dead() -> int:
    """The number of a process that is no more."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return pid


@pytest.mark.parametrize("write", [split, decoded])
def test_what_a_killed_process_left_is_removed_by_the_next_and_nothing_else(
    write: Callable[[Path], None], tmp_path: Path
) -> None:
    path, gone = tmp_path / "x.bin", dead()
    left = f".{path.name}.{gone}.tmp"
    kept = [
        f".{path.name}.{os.getppid()}.tmp",  # its process is there
        f".other.{gone}.tmp",  # of another file
        f"{path.name}.{gone}.tmp.bak",  # the user's own
        f".{path.name}.{gone}.young.tmp",  # written a moment ago, perhaps by another machine
    ]
    for name in [left, *kept]:
        (tmp_path / name).touch()
        os.utime(tmp_path / name, None if "young" in name else (time.time() - 150,) * 2)
    write(path)
    assert {p.name for p in tmp_path.iterdir()} == {path.name, *kept}
