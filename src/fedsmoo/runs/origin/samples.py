"""What the data of a run is: the one that its name says, or another, by the fingerprint of its samples."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedsmoo.core import FedsmooError
from fedsmoo.core.user_code import file_of
from fedsmoo.data.catalog import OFFICIAL
from fedsmoo.data.dataset import Dataset
from fedsmoo.data.files.cache import user_cache
from fedsmoo.data.fingerprint import Fingerprint
from fedsmoo.data.names import files_of, is_drawn
from fedsmoo.data.own import is_own
from fedsmoo.data.sources import SOURCES, depends_on_seed
from fedsmoo.runs.config import Config

ANY = "any"  # seed: what a function without such an argument makes is the same for all of them


def kind_of_data(config: Config, data: Dataset) -> str:
    """Return how the data of a run relates to the name that its config has for it.

    ``official``: what the publisher published; ``drawn`` from the seed; the user's ``own``, whose file counts; or
    ``other`` than the name says.
    """
    if own_data_path(config.dataset, config.data) is not None:
        return "own"
    if is_drawn(config.dataset) and is_drawn(data.name):
        return "drawn"
    return "official" if data.name == config.dataset and data.official else "other"


def data_facts(config: Config, data: Dataset) -> dict[str, str]:
    """Return what a run records about its data."""
    found, kind = data.fingerprint, kind_of_data(config, data)
    by = {"by": "checksums of the files"} if kind == "official" and data.name not in OFFICIAL else {}
    if is_own(config.dataset) and not depends_on_seed(config.dataset):
        by = {"seed": ANY}
    return {"kind": kind, **by, "train": found.train, "test": found.test, "order": found.order}


def seedless_fingerprint(facts: Mapping[str, Any]) -> str | None:
    """Return the first digits of the recorded fingerprint of a user's function that takes no seed; else ``None``.

    All seeds should have the same. The code does not show it when somebody edits a file that the function reads.
    """
    data = facts.get("data")
    known = recorded_fingerprint(facts) if isinstance(data, dict) and data.get("seed") == ANY else None
    return None if known is None else known[:8]


def recorded_fingerprint(facts: Mapping[str, Any]) -> str | None:
    """Return the short fingerprint of a run's samples from its records; ``None`` in records of older versions."""
    with suppress(FedsmooError):
        return Fingerprint.read(facts.get("data"), "").short
    return None


def say_data_differs(runs: Mapping[str, Mapping[int, Any]]) -> list[str]:
    """Return a line if runs of one table, by method and seed, were trained on different samples; else nothing.

    Only runs in folders record their samples. Of data that depends on the seed, runs of one seed should have the same.
    """
    first: dict[Any, dict[str, str]] = {}
    for method, mine in runs.items():
        for seed, run in mine.items():
            data = getattr(run, "started", {}).get("data")
            if isinstance(data, dict) and data.get("kind") == "own" and (held := recorded_fingerprint(run.started)):
                first.setdefault(data.get("seed", seed), {}).setdefault(held, f"{method} of seed {seed}")
    unlike = next((list(names.values()) for names in first.values() if len(names) > 1), [])
    told = f"data: what it is read from changed between {' and '.join(unlike)}: they cannot be compared"
    return [told] if unlike else []


def refuse_other_data(notes: Mapping[str, Any], data: Dataset, path: Path) -> None:
    """Refuse to go on with a run on data that is not what its notes say, where they say it."""
    if "data" not in notes:
        return
    old, new = Fingerprint.read(notes["data"], str(path)), data.fingerprint
    if old != new:
        what = "order of the samples" if old.content == new.content else "content"
        raise FedsmooError(
            f"the data or its division among clients is not what {path} was started with: the {what} is another; put "
            "it back, or start a new run; nothing was changed"
        )


def data_label(dataset: str, facts: Mapping[str, Any]) -> str:
    """Return a data set's name in tables, with a part of its fingerprint where it is not what the name says.

    >>> data_label("cifar10", {"contents": {"data_content": "1a2b3c4d5e6f7a8b"}, "data": {"kind": "other"}})
    'cifar10 (other content 1a2b3c4d)'
    """
    data, held = facts.get("data"), facts.get("contents")
    if not isinstance(data, dict) or data.get("kind") != "other" or not isinstance(held, dict):
        return dataset
    return other_content_label(dataset, str(held.get("data_content")))


def other_content_label(dataset: str, content: str) -> str:
    """Return the name in tables of data that is not what its name says."""
    return f"{dataset} (other content {content[:8]})"


def own_data_path(name: str, path: str | None) -> Path | None:
    """Return the path of a data set of the user's own: a text, code, an ``.npz``, or a folder of class folders."""
    if (place := files_of(name)) is not None:
        return place
    if is_own(name):
        return file_of(name)
    if name in SOURCES or is_drawn(name):
        return None
    home = user_cache()
    places = [Path(path).expanduser()] if path is not None else [home / name, home / f"{name}.npz"]
    place = next((p for p in places if os.path.exists(p)), None)  # false also for a name too long for a file
    if place is None:
        return None
    inner = place / f"{name}.npz"
    return inner if inner.is_file() else place
