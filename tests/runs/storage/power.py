"""A disk whose power is cut: the worst state that it may be in after every operation of a program.

Only what was flushed is sure to be there. A file that was not is empty, cut or whole; a name in a folder that was not
is the one of before or the one of now, each file's on its own. Which, is drawn from a seed.
"""

from __future__ import annotations

import functools
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

OPERATIONS = ("replace", "rename", "unlink", "remove", "mkdir", "rmdir", "link")
Names = dict[str, int]


class Disk:
    """The files below a folder, what of them was flushed, and images of what a cut would leave."""

    def __init__(self, root: Path, seed: int, wanted: Callable[[int], bool]) -> None:
        self.root, self.random, self.wanted = root, random.Random(seed), wanted
        self.held = root.with_name(f"{root.name}-held-{seed}")  # links to all files: else their inodes are used again
        self.held.mkdir()
        self.link = os.link
        self.folders: list[int] = []  # open, for the same reason
        self.flushed: dict[int, bytes] = {}  # inode -> content
        self.seen: dict[int, bytes] = {}
        self.names: dict[int, Names] = {}  # of a folder, when it was flushed last
        self.now: dict[int, Names] = {}
        self.cuts = 0
        self.images: list[dict[str, bytes]] = []
        self.look()
        self.names = {inode: dict(names) for inode, names in self.now.items()}
        self.flushed = dict(self.seen)

    def look(self) -> None:
        """See which names and contents there are at this moment."""
        for folder, _, files in os.walk(self.root):
            entries = {}
            for entry in os.scandir(folder):
                entries[entry.name] = entry.inode()
            inode = os.stat(folder).st_ino
            if inode not in self.now:
                self.folders.append(os.open(folder, os.O_RDONLY))
            self.now[inode] = entries
            for name in files:
                if name != ".lock":
                    if entries[name] not in self.seen:
                        self.link(Path(folder, name), self.held / str(entries[name]))
                    self.seen[entries[name]] = Path(folder, name).read_bytes()

    def close(self) -> None:
        """Let go of the folders."""
        while self.folders:
            os.close(self.folders.pop())

    def flush(self, fd: int) -> None:
        self.look()
        inode = os.fstat(fd).st_ino
        if inode in self.now:
            self.names[inode] = dict(self.now[inode])
        elif inode in self.seen:
            self.flushed[inode] = self.seen[inode]

    def tick(self) -> None:
        """Note what a cut at this moment would leave, if it is wanted."""
        self.cuts += 1
        if self.wanted(self.cuts):
            self.look()
            self.images.append(dict(self.left(os.stat(self.root).st_ino, "")))

    def left(self, folder: int, where: str) -> Iterator[tuple[str, bytes]]:
        """Yield the files, by path, that a cut leaves in a folder."""
        before, now = self.names.get(folder, {}), self.now.get(folder, {})
        for name in sorted({*before, *now}):
            inode = before.get(name) if self.random.random() < 0.5 else now.get(name)
            if inode in self.now:
                yield from self.left(inode, f"{where}{name}/")
            elif inode is not None and inode in self.seen:
                yield where + name, self.content(inode)

    def content(self, inode: int) -> bytes:
        """Return what a cut leaves of a file: all that was flushed, and of the rest any part."""
        now, sure = self.seen[inode], self.flushed.get(inode)
        if sure == now:
            return now
        if sure is not None and not now.startswith(sure):
            return self.random.choice([sure, now])
        least = len(sure or b"")
        return now[: self.random.choice([least, least, self.random.randint(least, len(now)), len(now)])]


@contextmanager
def recorded(disk: Disk) -> Iterator[None]:
    """Tell a disk of every operation, and ask for an image before and after each."""
    kept = {name: getattr(os, name) for name in ("fsync", *OPERATIONS)}

    def told(inner: Callable) -> Callable:
        @functools.wraps(inner)
        def wrapped(*args, **kwargs):
            disk.tick()
            result = inner(*args, **kwargs)
            disk.tick()
            return result

        return wrapped

    def fsync(fd: int) -> None:
        disk.tick()
        kept["fsync"](fd)
        disk.flush(fd)
        disk.tick()

    try:
        os.fsync = fsync
        for name in OPERATIONS:
            setattr(os, name, told(kept[name]))
        yield
    finally:
        for name, function in kept.items():
            setattr(os, name, function)
        disk.look()
        disk.close()


def restore(image: dict[str, bytes], folder: Path) -> Path:
    """Write an image into a new folder."""
    folder.mkdir(parents=True)
    for name, content in image.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder
