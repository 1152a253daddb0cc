"""Files and names that outlive a power cut: nothing counts as written before the disk has it."""

from __future__ import annotations

import errno
import os
import re
import time
from contextlib import suppress
from pathlib import Path

SILENCE = 120.0  # seconds after which a file that is still being written is taken for abandoned
NO_FOLDER_SYNC = (errno.EINVAL, errno.ENOTSUP)  # of file systems that have no such thing


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder to the disk; ``OSError`` if that fails. Some systems cannot and need not."""
    if os.name == "nt":
        return
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    except OSError as e:
        if e.errno not in NO_FOLDER_SYNC:
            raise
    finally:
        os.close(fd)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, if they are not there, and flush their names; ``OSError`` if that fails."""
    new = []
    while not folder.exists():
        new.append(folder)
        folder = folder.parent
    for path in reversed(new):
        path.mkdir(exist_ok=True)
        sync_folder(path.parent)


def rename_durably(part: Path, path: Path) -> None:
    """Give a written file its name, both flushed to the disk: the name never stands for half of it."""
    with part.open("rb+") as f:
        os.fsync(f.fileno())
    os.replace(part, path)
    sync_folder(path.parent)


def temporary_name(path: Path, kind: str = "") -> Path:
    """Return the name that this process gives a file while it writes it."""
    return path.with_name(f".{path.name}.{os.getpid()}{kind}.tmp")


def remove_leftovers(path: Path) -> None:
    """Remove the unfinished copies of a file that processes which have ended left beside it."""
    ours = re.compile(rf"\.{re.escape(path.name)}\.(\d{{1,9}})(\.\w+)?\.tmp")
    with suppress(OSError):
        for beside in path.parent.iterdir():
            if (name := ours.fullmatch(beside.name)) and not is_alive(int(name[1])):
                remove_old(beside)


def remove_old(path: Path) -> None:
    """Remove a file that nobody has written to for two minutes: processes of other machines may share the folder."""
    with suppress(OSError):
        if abs(time.time() - path.lstat().st_mtime) > SILENCE:
            path.unlink()


def is_alive(pid: int) -> bool:
    """Return whether there is a process of that number on this machine."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
