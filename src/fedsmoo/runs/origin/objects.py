"""Names in a run's folder for the objects of a Python program: settings where there are some, else a name of its own.

A method of ours with its hyper-parameters, or a partition of ours, has settings that say the same: such a run is the
one that ``fedsmoo run`` makes, and can be resumed. A module, a data set, a loss or a rule of the program has none. It
is written as ``python:Name@1f3a9c2b``. The digits are random for code, which cannot be compared, and a hash of the
content for a division; the content of data is noted beside. So such a run is never taken for another one, and only its
program can make it again.
"""

from __future__ import annotations

import dataclasses
import hashlib
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from fedsmoo.algorithms import ALGORITHMS
from fedsmoo.core import Algorithm, FedsmooError, Schedule
from fedsmoo.data.dataset import Dataset
from fedsmoo.data.division.partition import PARTITIONS
from fedsmoo.runs.config import FIELDS, Config

PREFIX = "python:"


def name_objects(config: Config, objects: Mapping[str, Any], indices: Sequence[np.ndarray] | None) -> Config:
    """Return the config of a run whose settings of these names are objects; ``indices`` are each client's samples.

    >>> from fedsmoo import Dirichlet, FedSMOO
    >>> named = name_objects(Config(), {"algorithm": FedSMOO(r=0.2), "partition": Dirichlet(0.3)}, None)
    >>> named.algorithm, named.algorithm_options, named.partition, named.u
    ('fedsmoo', {'r': 0.2}, 'dirichlet', 0.3)
    """
    changes: dict[str, Any] = {}
    for setting, value in objects.items():
        if setting == "algorithm":
            changes |= method_settings(value)
        elif setting == "partition" and type(value) in PARTITIONS.values():
            changes |= value.to_settings()
        elif setting in ("partition", "split"):
            assert indices is not None
            what = name_of(value) if setting == "partition" else "client_indices"
            changes |= {"split": f"{PREFIX}{what}@{hash_of(indices)}", "clients": len(indices)}
        elif setting == "metrics":
            names = (one if isinstance(one, str) else name_of(one) for one in value)
            changes[setting] = f"{PREFIX}{'+'.join(names)}@{secrets.token_hex(4)}"
        elif isinstance(value, Dataset):
            changes[setting] = f"{PREFIX}{value.name}"  # its fingerprint is noted beside, and counts
        else:
            changes[setting] = unique_name(value)
    return config.replace(**changes)


def method_settings(algorithm: Algorithm) -> dict[str, Any]:
    """Return the settings that make a method; of one that is not ours, a name that no other run has."""
    name = next((n for n, cls in ALGORITHMS.items() if type(algorithm) is cls), None)
    cls: Any = type(algorithm)
    values = {n: v.item() if isinstance(v, np.generic) else v for n, v in algorithm.options().items()}
    plain = {f.name: f.default for f in dataclasses.fields(cls)}
    changed = {n: v for n, v in values.items() if v is not plain[n] and (isinstance(v, Tensor) or v != plain[n])}
    if isinstance(inside := changed.get("inner"), Algorithm) and not method_settings(inside)["algorithm_options"]:
        changed["inner"] = method_settings(inside)["algorithm"]  # by its name, as a setting gives it
    if name is None or not all(isinstance(v, bool | int | float | str | Schedule) for v in changed.values()):
        return {"algorithm": unique_name(algorithm), "algorithm_options": {}}
    return {"algorithm": name, "algorithm_options": changed}


def unique_name(value: Any) -> str:
    """Return a name for an object that no other run has: what code does cannot be compared."""
    return f"{PREFIX}{name_of(value)}@{secrets.token_hex(4)}"


def name_of(value: Any) -> str:
    return getattr(value, "__name__", type(value).__name__)


def hash_of(indices: Sequence[np.ndarray]) -> str:
    """Return a short hash of who holds which samples."""
    digest = hashlib.sha256()
    for samples in indices:
        digest.update(np.asarray(samples, np.int64).tobytes() + b"|")
    return digest.hexdigest()[:16]


def objects_in(config: Config) -> dict[str, str]:
    """Return the settings of a config that stand for objects of a Python program, and the objects' names."""
    values = {n: getattr(config, n) for n in FIELDS}
    return {n: v.removeprefix(PREFIX) for n, v in values.items() if isinstance(v, str) and v.startswith(PREFIX)}


def refuse_objects(config: Config, what: str) -> None:
    """Refuse settings that stand for objects of a Python program: only that program can make them again."""
    found = ", ".join(f"{n} {v}" for n, v in objects_in(config).items())
    if found:
        raise FedsmooError(f"{what} is of a Python program with objects that no setting names ({found}): run it again")
