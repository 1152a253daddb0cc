"""What the files of a user's own hold, as hashes: other content makes another run, another place does not."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fedsmoo.core import FedsmooError
from fedsmoo.data.cache import fingerprint, user_cache
from fedsmoo.data.readers import SUFFIXES
from fedsmoo.data.sources import SOURCES, drawn
from fedsmoo.data.tree import file_tree, folder_tree
from fedsmoo.experiment.config import Config

DIGITS = 16
SETTLED = 100_000_000  # nanoseconds: a file that changed just now may change again within one tick of its clock
# A look at a folder of many files that took longer than this many seconds is good for so many times as long. Few files
# are looked at every time: how busy the machine is must not decide whether a change is seen.
MANY, SLOW, REST = 1000, 0.05, 20


def contents(config: Config) -> dict[str, str]:
    """A hash for each file of the user's own that a config names: data, split, method, model; absent ones are left out.

    What the package or a publisher defines (``digits``, ``cifar10``) is the same wherever it lies, and has none.
    """
    hashes = {name: content_hash(place) for name, place in places(config).items() if place is not None}
    return {name: value[:DIGITS] for name, value in hashes.items() if value is not None}


def places(config: Config) -> dict[str, Path | None]:
    """Where the user's own files lie, by the name of their hash; none where the package or a publisher defines it."""
    return {
        "data_content": data_place(config.dataset, config.data),
        "split_content": None if config.split is None else Path(config.split),
        "algorithm_content": code_place(config.algorithm),
        "model_content": code_place(config.model),
    }


def edited(config: Config, held: Mapping[str, str] | None) -> list[str]:
    """The user's files that no longer hold what they ``held``, by name; none if nobody wrote down what that was."""
    now, where = contents(config), places(config)
    names = [] if held is None else [n for n in where if now.get(n) != held.get(n)]
    return [str(where[n] or config.data or config.dataset) for n in names]


def code_place(spec: str) -> Path | None:
    """The file in ``path/to/file.py:Name``."""
    return Path(spec.rpartition(":")[0]) if ":" in spec else None


def data_place(name: str, path: str | None) -> Path | None:
    """Where a data set of the user's own lies: a text, an ``.npz``, or a folder of class folders."""
    if name.startswith("text:"):
        return Path(name.removeprefix("text:")).expanduser()
    if name in SOURCES or drawn(name):
        return None
    home = user_cache()
    places = [Path(path).expanduser()] if path is not None else [home / name, home / f"{name}.npz"]
    place = next((p for p in places if p.exists()), None)
    if place is None:
        return None
    inner = place / f"{name}.npz"
    return inner if inner.is_file() else place


@dataclass(frozen=True)
class Known:
    """A hash, what the files looked like when it was taken, and until when there is no need to look again."""

    stamp: str
    value: str
    until: float


_known: dict[Path, Known] = {}


def content_hash(place: Path) -> str | None:
    """SHA-256 of a file, or of the images in a folder and their names; ``None`` if it is not there.

    It is taken again only when a size or a time of change is another.
    """
    place, began, today = place.absolute(), time.monotonic(), time.time_ns()
    known = _known.get(place)
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
        if abs(today - max(tree.times.values(), default=0)) > SETTLED:  # when we looked, however long reading took
            _known[place] = Known(stamp, value, time.monotonic() + rest)
        return value
    return None


def file_hash(path: Path) -> str:
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()  # type: ignore[arg-type]


def folder_hash(folder: Path, names: list[str]) -> str:
    """A hash of the class folders' images; what else lies there is not read by a run either."""
    total = hashlib.sha256()
    for name in sorted(n for n in names if n.count("/") >= 2 and n.lower().endswith(SUFFIXES)):
        total.update(f"{name}\0{file_hash(folder / name)}\0".encode("utf-8", "surrogateescape"))
    return total.hexdigest()
