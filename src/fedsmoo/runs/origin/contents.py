"""What the files of a user's own hold, as hashes: other content makes another run, another place does not."""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsmoo.core import FedsmooError
from fedsmoo.core.user_code import file_of
from fedsmoo.data.catalog import OFFICIAL, SPECS
from fedsmoo.data.dataset import Dataset
from fedsmoo.data.files.cache import fingerprint, user_cache
from fedsmoo.data.files.readers import SUFFIXES
from fedsmoo.data.files.tree import file_tree, folder_tree
from fedsmoo.data.fingerprint import SHORT, Fingerprint
from fedsmoo.data.names import files_of, is_drawn
from fedsmoo.data.own import is_own
from fedsmoo.data.sources import SOURCES, depends_on_seed, load
from fedsmoo.metrics.quantity import own_metrics
from fedsmoo.runs.config import Config
from fedsmoo.runs.settings.fields import AROUND, BROUGHT

ANY = "any"  # seed: what a function without such an argument makes is the same for all of them
RECENT = 100_000_000  # nanoseconds: a file that changed just now may change again within one tick of its clock
# A look at a folder of many files that took longer than this many seconds is good for so many times as long. Few files
# are looked at every time: how busy the machine is must not decide whether a change is seen.
MANY, SLOW, REST = 1000, 0.05, 20
PLAIN = re.compile(r"(data/)?(train|test)(/[^/]+\.json|\.csv|\.parquet)")  # what other folders of data hold
HASHES = ("data_content", "split_content", "start_content", *(f"{setting}_content" for setting in BROUGHT))
HASHES += tuple(f"metric{k}_content" for k in range(100))  # of several, each in a file of its own


def contents(config: Config, data: Dataset | None = None) -> dict[str, str]:
    """Hash each file of the user's own that a config names: data, split, code; absent ones are left out.

    What the package or a publisher defines (``digits``, ``cifar10``) is the same wherever it lies, and has none.
    Whether it is that is known only once it was read: ``data`` is then what was read, and other content under such a
    name has a hash like a file of the user's own.
    """
    hashes = {name: content_hash(place) for name, place in places(config).items() if place is not None}
    found = {name: value[:SHORT] for name, value in hashes.items() if value is not None}
    if data is not None and kind_of_data(config, data) == "other":
        found["data_content"] = data.fingerprint.short
    return found


def places(config: Config) -> dict[str, Path | None]:
    """Return the paths of the user's own files, by the name of their hash; none of what we or a publisher define."""
    return {
        "data_content": data_place(config.dataset, config.data),
        "split_content": None if config.split is None else Path(config.split),
        "start_content": None if config.start is None else Path(config.start),
        "algorithm_content": file_of(config.algorithm),
        "model_content": file_of(config.model),
        "loss_content": file_of(config.loss),
        "partition_content": file_of(config.partition) if config.split is None else None,
        "sampling_content": file_of(config.sampling),
        **{f"{name}_content": file_of(getattr(config, name)) for name in AROUND},
        **{f"metric{k}_content": file_of(spec) for k, spec in enumerate(own_metrics(config.metrics))},
    }


def edited(config: Config, held: Mapping[str, str] | None, now: Mapping[str, str] | None = None) -> list[str]:
    """Return the names of files that no longer hold what they ``held``; none if that was not recorded.

    ``now`` is what they hold. Without it the data of a known name, which would have to be read, is not looked at.
    """
    now, where = same_data(config, held) if now is None else now, places(config)
    names = [] if held is None else [n for n in where if now.get(n) != held.get(n)]
    return [str(where[n] or config.data or config.dataset) for n in names]


def refuse_edited(
    config: Config, held: Mapping[str, str] | None, since: str, now: Mapping[str, str] | None = None
) -> None:
    """Refuse files that no longer hold what they ``held``, where that is known; ``now`` is what they hold."""
    files = edited(config, held, now)
    if files:
        raise FedsmooError(
            f"{', '.join(files)} was edited since {since}: choose another folder, or put back what it held to go on"
        )


def kind_of_data(config: Config, data: Dataset) -> str:
    """Return how the data of a run relates to the name that its config has for it.

    ``official``: what the publisher published; ``drawn`` from the seed; the user's ``own``, whose file counts; or
    ``other`` than the name says.
    """
    if data_place(config.dataset, config.data) is not None:
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


def samples_held(facts: Mapping[str, Any]) -> str | None:
    """Return a part of the fingerprint of what a user's function made, where every seed should have the same of it.

    Its code is the same in runs between which somebody edited a file that it reads.
    """
    data = facts.get("data")
    with suppress(FedsmooError):
        return Fingerprint.read(data, "").short[:8] if isinstance(data, dict) and data.get("seed") == ANY else None
    return None


def unlike_data(runs: Mapping[str, Mapping[int, Any]]) -> list[str]:
    """Say in a line that runs of one table, by method and seed, were trained on different samples; in folders, only."""
    first: dict[str, str] = {}
    for method, mine in runs.items():
        for seed, run in mine.items():
            if (held := samples_held(getattr(run, "started", {}))) is not None:
                first.setdefault(held, f"{method} of seed {seed}")
    told = f"data: what it is read from changed between {' and '.join(first.values())}: they cannot be compared"
    return [told] if len(first) > 1 else []


def files_held(config: Config, data: Dataset) -> dict[str, dict[str, str]]:
    """Return what a run records about its data and the user's files when it begins; edited, they make another run."""
    held = contents(config, data)
    return {"data": data_facts(config, data)} | ({"contents": held} if held else {})


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


def contents_here(configs: Sequence[Config]) -> list[dict[str, str]]:
    """Return the contents of each config, with the data that lies here now; each data set is read once.

    Where there is none, or none that can be read, the name is taken at its word: the run itself will say what is wrong.
    """
    other: dict[tuple[str, str | None], Dataset | None] = {}
    for config in configs:
        key = (config.dataset, config.data)
        if key not in other and config.dataset in SPECS:
            other[key] = None
            with suppress(FedsmooError):
                data = load(*key)
                other[key] = None if data.official else data
    return [contents(c, other.get((c.dataset, c.data))) for c in configs]


def held_in(facts: Mapping[str, Any]) -> dict[str, str] | None:
    """Return the hashes of a run's files from its records; ``None`` in records of older versions, which had none."""
    return facts.get("contents", {} if "data" in facts else None)


def same_data(config: Config, held: Mapping[str, str] | None) -> dict[str, str]:
    """Return the contents of a config now, but for the data, whose recorded hash is taken: it was not read yet."""
    found = contents(config)
    if held and "data_content" in held and data_place(config.dataset, config.data) is None:
        found["data_content"] = held["data_content"]
    return found


def refuse_damaged(config: Config, facts: Mapping[str, Any], where: str) -> None:
    """Refuse notes of a run's data that are no fingerprint, or that contradict what the run passes for."""
    if "data" not in facts:
        return  # made before there were fingerprints
    found = Fingerprint.read(facts["data"], where)
    kind, known = facts["data"].get("kind"), OFFICIAL.get(config.dataset)
    passes = (held_in(facts) or {}).get("data_content")
    wrong = {
        "official": passes is not None or ("by" not in facts["data"] and known != found.content),
        "other": passes != found.short or known == found.content,
        "own": passes is None,
        "drawn": passes is not None or not is_drawn(config.dataset),
    }
    if wrong.get(str(kind), True):
        raise FedsmooError(
            f"{where} is damaged: the fingerprint of its data is not that of {config.dataset!r} as {kind!r} content; "
            "make the run again"
        )


def data_label(dataset: str, facts: Mapping[str, Any]) -> str:
    """Return a data set's name in tables, with a part of its fingerprint where it is not what the name says.

    >>> data_label("cifar10", {"contents": {"data_content": "1a2b3c4d5e6f7a8b"}, "data": {"kind": "other"}})
    'cifar10 (other content 1a2b3c4d)'
    """
    data, held = facts.get("data"), facts.get("contents")
    if not isinstance(data, dict) or data.get("kind") != "other" or not isinstance(held, dict):
        return dataset
    return other_content(dataset, str(held.get("data_content")))


def other_content(dataset: str, content: str) -> str:
    """Return the name in tables of data that is not what its name says."""
    return f"{dataset} (other content {content[:8]})"


def data_place(name: str, path: str | None) -> Path | None:
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
        return hashlib.file_digest(f, "sha256").hexdigest()  # type: ignore[arg-type]


def folder_hash(folder: Path, names: list[str]) -> str:
    """Hash the images of class folders, else LEAF's files or tables; what else lies there is not read either."""
    total = hashlib.sha256()
    images = [n for n in names if n.count("/") >= 2 and n.lower().endswith(SUFFIXES)]
    for name in sorted(images or (n for n in names if PLAIN.fullmatch(n))):
        total.update(f"{name}\0{file_hash(folder / name)}\0".encode("utf-8", "surrogateescape"))
    return total.hexdigest()
