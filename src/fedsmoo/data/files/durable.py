"""Files and names that outlive a power cut: nothing counts as written before the disk has it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

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
