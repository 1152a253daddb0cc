"""Read the measurements beside a run (``analysis/*.json``), checked field by field for a page."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from fedsmoo.analysis.measurement import measurements
from fedsmoo.core.errors import FedsmooError
from fedsmoo.core.untrusted import matrix, text
from fedsmoo.paper.experiments import published
from fedsmoo.runs.analyse import FOLDER
from fedsmoo.runs.storage.files import parse_table
from fedsmoo.runs.storage.reader import Files

# What a page calls a number, and what the paper's table does.
PRINTED = {"drift": "client_drift", "top": "hessian_top_eigenvalue", "trace": "hessian_trace"}


def printed() -> list[dict[str, Any]]:
    """Return what the paper printed of its final models: drift of the clients, top eigenvalue and trace."""
    table = published()["flatness"]
    rows = [dict(zip(("method", "partition"), column.split(), strict=True)) for column in table["columns"]]
    return [{**row, **{name: table[theirs][k] for name, theirs in PRINTED.items()}} for k, row in enumerate(rows)]


def read_all(files: Files) -> dict[str, Any]:
    """Return what has been measured of one run, as far as a page may trust it."""
    return trusted({name: files.table(f"{FOLDER}/{name}.json") for name in measurements()})


def trusted(found: dict[str, Any]) -> dict[str, Any]:
    """Return what a page shows of measurements, by name, that anybody may have written."""
    known = measurements()
    read = {name: known[name].trusted(v) for name, v in found.items() if name in known and isinstance(v, dict)}
    return {name: values for name, values in read.items() if values is not None}


# Data sets that are made from the config alone: no file is opened and nothing is downloaded to show who holds what.
BUILT_IN = ("digits", "synthetic")
DIVISION = ("dataset", "partition", "u", "c", "replacement", "refill", "clients", "seed", "partition_options")


def partition(files: Files, config: dict[str, Any]) -> dict[str, Any] | None:
    """Return samples per client and class: as written beside the run, or recomputed for a built-in data set."""
    name = f"{FOLDER}/partition.json"
    kept = counted(files.content(name) or b"{}")
    if kept is None:
        files.table(name)  # notes what is wrong with it
    return kept or rebuilt(config)


@lru_cache(maxsize=64)  # many runs of a page share their clients
def counted(content: bytes) -> dict[str, Any] | None:
    """Return the partition in the bytes of a file, checked; ``None`` if they hold none."""
    try:
        kept = parse_table(content, Path(), "replace")
    except FedsmooError:
        return None
    counts, names = matrix(kept.get("counts"), 9, limit=20_000), kept.get("class_names")
    if counts is None:
        return None
    return {"counts": counts, "names": [text(n, 60) for n in names[:2000]] if isinstance(names, list) else None}


def rebuilt(config: dict[str, Any]) -> dict[str, Any] | None:
    """Recompute the partition that a config describes, if that needs nothing but the package."""
    dataset = config.get("dataset")
    if not isinstance(dataset, str) or dataset.partition(":")[0].partition("(")[0] not in BUILT_IN:
        return None
    if config.get("split") is not None or config.get("data") is not None:
        return None
    if ":" in dataset or ":" in str(config.get("partition")):  # code in a file: a page runs none
        return None
    try:
        return class_counts(json.dumps({k: config[k] for k in DIVISION if k in config}))
    except Exception:  # whatever a config written by others asks for, the page is shown without it
        return None


@lru_cache(maxsize=64)
def class_counts(division: str) -> dict[str, Any] | None:
    """Compute samples per client and class from the settings in ``DIVISION``, as JSON."""
    from fedsmoo.data.sources import load
    from fedsmoo.data.targets import classes_to_divide_by, names_to_divide_by
    from fedsmoo.runs.config import Config
    from fedsmoo.runs.division import make_clients
    from fedsmoo.runs.settings.toml import named_tables

    settings = Config(**named_tables(json.loads(division), "config"))
    if settings.clients > 1000:
        return None
    data = load(settings.dataset, None, settings.seed)
    labels, classes = classes_to_divide_by(data)
    counts = np.stack([np.bincount(labels[i], minlength=classes) for i in make_clients(settings, data)])
    names = names_to_divide_by(data)
    return {"counts": counts.tolist(), "names": list(names) if names else None}
