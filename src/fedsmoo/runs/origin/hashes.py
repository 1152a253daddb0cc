"""Hashes of files and folders, kept while they look the same."""

from __future__ import annotations

import hashlib
import re
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fedsmoo.core import FedsmooError
from fedsmoo.data.files.cache import fingerprint
from fedsmoo.data.files.readers import SUFFIXES
from fedsmoo.data.files.tree import file_tree, folder_tree

RECENT = 100_000_000  # nanoseconds: a file that changed just now may change again within one tick of its clock
# A look at a folder of many files that took longer than this many seconds is good for so many times as long. Few files
# are looked at every time: how busy the machine is must not decide whether a change is seen.
MANY, SLOW, REST = 1000, 0.05, 20
PLAIN = re.compile(r"(data/)?(train|test)(/[^/]+\.json|\.csv|\.parquet)")  # what other folders of data hold


@dataclass(frozen=True)
class Known:
    """A hash, what the files looked like when it was taken, and until when there is no need to look again."""

    stamp: str
    value: str
    until: float


HASHED: dict[Path, Known] = {}  # by this process


def content_hash(place: Path, hashed: dict[Path, Known] = HASHED) -> str | None:
    """Return the SHA-256 of a file, or of the images in a folder and their names; ``None`` if it is not there.

    Cached in ``hashed``; computed again when a size or a time of change differs.
    """
    place, began, today = place.absolute(), time.monotonic(), time.time_ns()
    known = hashed.get(place)
    if known is not None and began < known.until:
        return known.value
    with suppress(OSError, FedsmooError):
        tree = folder_tree(place) if place.is_dir() else file_tree(place)
        stamp, looked = fingerprint(tree), time.monotonic()
        rest = REST * (looked - began) if len(tree.sizes) > MANY and looked - began > SLOW else 0.0
        if known is not None and known.stamp == stamp:
            value = known.value
        else:
            value = folder_hash(place, list(tree.sizes)) if place.is_dir() else file_hash(place)
        if abs(today - max(tree.times.values(), default=0)) > RECENT:  # when we looked, however long reading took
            hashed[place] = Known(stamp, value, time.monotonic() + rest)
        return value
    return None


def file_hash(path: Path) -> str:
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def folder_hash(folder: Path, names: list[str]) -> str:
    """Hash the images of class folders, else LEAF's files or tables; what else lies there is not read either."""
    total = hashlib.sha256()
    images = [n for n in names if n.count("/") >= 2 and n.lower().endswith(SUFFIXES)]
    for name in sorted(images or (n for n in names if PLAIN.fullmatch(n))):
        total.update(f"{name}\0{file_hash(folder / name)}\0".encode("utf-8", "surrogateescape"))
    return total.hexdigest()
