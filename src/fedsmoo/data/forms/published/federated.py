"""The published federated data sets by name: what they are, where their files come from, who reads them.

Nothing is downloaded: LEAF's files are made by LEAF's own scripts, with a sample of the users that one chooses, and the
archive of Stack Overflow has tens of gigabytes. No checksum of any of them is known here, so none counts as official:
runs on them are told apart by their content.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedsmoo.core.errors import FedsmooError
from fedsmoo.data.dataset import Dataset
from fedsmoo.data.files.cache import user_cache
from fedsmoo.data.forms.leaf import LeafOptions, leaf
from fedsmoo.data.forms.published.stackoverflow import TagOptions, stackoverflow_tags

LEAFS = "clone https://github.com/TalwalkarLab/leaf and run ./preprocess.sh -s niid --sf 1.0 -k 0 -t sample in data/{}"


@dataclass(frozen=True)
class Published:
    """A published data set: a line about it, how its files are had, its reader, and the reader's options."""

    about: str
    get: str
    read: Callable[[str, Mapping[str, Any]], Dataset]
    options: Mapping[str, Any]


FEDERATED: dict[str, Published] = {
    "femnist": Published(
        "LEAF's FEMNIST: digits and letters of 28x28 in 62 classes, one client per writer (from LEAF's files)",
        LEAFS.format("femnist"),
        leaf,
        asdict(LeafOptions()),
    ),
    "shakespeare": Published(
        "LEAF's Shakespeare: the character after each 80, one client per role (from LEAF's files)",
        LEAFS.format("shakespeare"),
        leaf,
        asdict(LeafOptions()),
    ),
    "stackoverflow-tags": Published(
        "Stack Overflow's posts and their tags, one client per user (from TensorFlow Federated's SQLite)",
        "get https://storage.googleapis.com/tff-datasets-public/stackoverflow.sqlite.lzma and unpack it",
        stackoverflow_tags,
        asdict(TagOptions()),
    ),
}


def federated(name: str, path: str | Path | None, options: Mapping[str, Any]) -> Dataset:
    """Return a published data set from a path, or from the folder of its name in the data folder."""
    place = user_cache() / name if path is None else Path(path).expanduser()
    if not place.exists():
        raise FedsmooError(
            f"data set {name}: {place} does not exist; {how_to_get(name)}, or say where it is with --data"
        )
    return FEDERATED[name].read(str(place), options).renamed(name)


def how_to_get(name: str) -> str:
    """Return in words how the files of a published data set are had, and where they are looked for."""
    return f"{FEDERATED[name].get}, and put what it makes into {user_cache() / name}"
