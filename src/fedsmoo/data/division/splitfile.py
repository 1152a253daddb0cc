"""A partition as one small file: which samples each client holds, of which data, by which rule.

The file is JSON. Indices are written as differences, which keeps them short; a SHA-256 over the content makes any
change visible, and the hash of the data set keeps a split from being used on other data.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedsmoo.core.errors import FedsmooError
from fedsmoo.data.check import check_indices
from fedsmoo.data.dataset import Dataset
from fedsmoo.data.division.import_split import import_split, read_lists
from fedsmoo.data.files.durable import make_folder, remove_leftovers, rename_durably, temporary_name

__all__ = ["check_indices", "import_split", "load_split", "read_split", "refuse_contradiction", "save_split"]

FORMAT = "fedsmoo-split"
VERSION = 1


def save_split(
    path: str | Path, indices: Sequence[np.ndarray], dataset: Dataset, rule: dict[str, Any], seed: int
) -> None:
    """Write a split. The same split of the same data always gives the same bytes.

    Args:
        path: the file; written in one step, so that it is there whole or not at all.
        indices: samples of each client, as indices into the training part.
        dataset: what they index.
        rule: how the split was made, such as ``partition.to_rule(...)``; plain values only.
        seed: the seed it was made with.
    """
    path = Path(path)
    check_indices(indices, len(dataset.x_train), str(path))
    content = {
        "format": FORMAT,
        "version": VERSION,
        "dataset": dataset.name,
        "dataset_sha256": dataset.content_hash,
        "samples": len(dataset.x_train),
        "clients": len(indices),
        "rule": rule,
        "seed": seed,
        "indices": [np.diff(np.asarray(i), prepend=0).tolist() for i in indices],
    }
    text = json.dumps({**content, "sha256": _hash(content)}, separators=(",", ":"))
    part = temporary_name(path)
    try:
        make_folder(path.parent)
        remove_leftovers(path)
        part.write_text(text + "\n", encoding="utf-8")
        rename_durably(part, path)
    except OSError as error:
        raise FedsmooError(f"{path}: cannot be written ({error.strerror}); choose another file") from None
    finally:
        part.unlink(missing_ok=True)


def load_split(path: str | Path, dataset: Dataset) -> list[np.ndarray]:
    """Return the clients' samples from a file that ``save_split`` wrote for the same data."""
    content = read_split(path)
    if content["dataset_sha256"] != dataset.content_hash:
        raise FedsmooError(
            f"split {path}: it was made for {content['dataset']!r} with {content['samples']} training samples, which "
            f"is not the {dataset.name!r} given here ({len(dataset.x_train)} samples); make a new split for this data"
        )
    indices = [np.cumsum(i, dtype=np.int64) for i in content["indices"]]
    return check_indices(indices, len(dataset.x_train), f"split {path}")


def read_split(path: str | Path) -> dict[str, Any]:
    """Return the content of a split file without its data; refuse one that is cut or altered."""
    content = read_lists(Path(path), f"split {path}")
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise FedsmooError(f"split {path}: not a split file; for lists of other simulators use the importer")
    if content.get("version") != VERSION:
        raise FedsmooError(
            f"split {path}: version {content.get('version')}, but this release reads version {VERSION}; make it again"
        )
    stated = content.pop("sha256", None)
    if stated != _hash(content):
        raise FedsmooError(f"split {path}: its content does not match its checksum, it was altered; make it again")
    if not is_sound(content):
        raise FedsmooError(f"split {path}: its parts are not what a split's are; make it again")
    return content


def is_sound(content: dict[str, Any]) -> bool:
    """Return whether the parts of a split have the types that they should have: anybody can compute a checksum."""
    kinds = {"dataset": str, "dataset_sha256": str, "samples": int, "clients": int, "rule": dict, "seed": int}
    if not all(isinstance(content.get(name), kind) for name, kind in {**kinds, "indices": list}.items()):
        return False
    lists = content["indices"]
    whole = {*map(type, lists)} <= {list} and all({*map(type, mine)} <= {int} for mine in lists)
    near = whole and all(-content["samples"] <= min(i) and max(i) <= content["samples"] for i in lists if i)
    return near and len(lists) == content["clients"] and 0 <= content["seed"] < 2**63


def refuse_contradiction(path: str | Path, content: dict[str, Any], asked: dict[str, Any]) -> None:
    """Refuse settings (``clients``, ``partition``, the options of its rule) that are not what a split file holds."""
    rule = dict(content["rule"])
    fixed = {"clients": content["clients"], "partition": rule.pop("name", "of another kind"), **rule}
    for name, value in asked.items():
        if name not in fixed:
            raise FedsmooError(
                f"{name} is {value}, but the split {path} is {fixed['partition']} and has no {name}: leave {name} out"
            )
        if value != fixed[name]:
            raise FedsmooError(
                f"{name} is {value}, but in the split {path} it is {fixed[name]}: leave {name} out, or make a new split"
            )


def _hash(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
