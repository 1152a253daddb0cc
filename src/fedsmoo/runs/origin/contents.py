"""What the files of a user's own hold, as hashes: other content makes another run, another place does not."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedsmoo.core import FedsmooError
from fedsmoo.core.user_code import file_of
from fedsmoo.data.catalog import OFFICIAL, SPECS
from fedsmoo.data.dataset import Dataset
from fedsmoo.data.fingerprint import SHORT, Fingerprint
from fedsmoo.data.names import is_drawn
from fedsmoo.data.own import is_own
from fedsmoo.data.sources import depends_on_seed, load
from fedsmoo.metrics.quantity import own_metrics
from fedsmoo.runs.config import Config
from fedsmoo.runs.origin.hashes import content_hash
from fedsmoo.runs.origin.samples import data_facts, kind_of_data, own_data_path
from fedsmoo.runs.settings.fields import AROUND, BROUGHT

SAMPLES = "samples_content"  # what a function of the user's returned, whatever it read
HASHES = ("data_content", SAMPLES, "split_content", "start_content", *(f"{setting}_content" for setting in BROUGHT))
HASHES += tuple(f"metric{k}_content" for k in range(100))  # of several, each in a file of its own


def hash_user_files(config: Config, data: Dataset | None = None) -> dict[str, str]:
    """Hash each file of the user's own that a config names: data, split, code; absent ones are left out.

    What the package or a publisher defines (``digits``, ``cifar10``) is the same wherever it lies, and has none.
    Whether it is that is known only once it was read: ``data`` is then what was read, and other content under such a
    name has a hash like a file of the user's own. So has what a function of the user's returned, beside its code's.
    """
    hashes = {name: content_hash(place) for name, place in user_file_paths(config).items() if place is not None}
    found = {name: value[:SHORT] for name, value in hashes.items() if value is not None}
    return found | ({} if data is None else hash_samples(config, data))


def hash_samples(config: Config, data: Dataset) -> dict[str, str]:
    """Hash the samples that were read, where neither a name nor a file says which they are."""
    name = SAMPLES if is_own(config.dataset) else "data_content" if kind_of_data(config, data) == "other" else None
    return {} if name is None else {name: data.fingerprint.short}


def user_file_paths(config: Config) -> dict[str, Path | None]:
    """Return the paths of the user's own files, by the name of their hash; none of what we or a publisher define."""
    return {
        "data_content": own_data_path(config.dataset, config.data),
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


def edited_files(config: Config, held: Mapping[str, str] | None, now: Mapping[str, str] | None = None) -> list[str]:
    """Return the names of files that no longer hold what they ``held``; none if that was not recorded.

    ``now`` is what they hold. Without it the data of a known name, which would have to be read, is not looked at.
    """
    now, where = hash_files_but_data(config, held) if now is None else now, user_file_paths(config)
    names = [] if held is None else [n for n in where if now.get(n) != held.get(n)]
    if not names and len({each[SAMPLES] for each in (held or {}, now) if SAMPLES in each}) > 1:
        return [f"what {config.dataset} reads"]
    return [str(where[n] or config.data or config.dataset) for n in names]


def refuse_edited(
    config: Config, held: Mapping[str, str] | None, since: str, now: Mapping[str, str] | None = None
) -> None:
    """Refuse files that no longer hold what they ``held``, where that is known; ``now`` is what they hold."""
    files = edited_files(config, held, now)
    if files:
        raise FedsmooError(
            f"{', '.join(files)} was edited since {since}: choose another folder, or put back what it held to go on"
        )


def input_hashes(config: Config, data: Dataset) -> dict[str, dict[str, str]]:
    """Return what a run records of its inputs when it begins: its data, and hashes of the user's files."""
    held = hash_user_files(config, data)
    return {"data": data_facts(config, data)} | ({"contents": held} if held else {})


def hash_files_and_data(configs: Sequence[Config]) -> list[dict[str, str]]:
    """Hash the user's files of each config, and its data as it lies here now; each data set is read once.

    Data that is missing or cannot be read has no hash here: the run itself will say what is wrong.
    """
    read: dict[str, dict[str, str]] = {}
    return [hash_user_files(config) | hash_readable_samples(config, read) for config in configs]


def hash_readable_samples(config: Config, read: dict[str, dict[str, str]]) -> dict[str, str]:
    """Hash the samples of a known name, or of a user's function; nothing if they cannot be read. ``read`` caches."""
    own = is_own(config.dataset)
    with suppress(FedsmooError), warnings.catch_warnings(action="ignore"):
        seed = config.seed if own and depends_on_seed(config.dataset) else 0
        name = (config.dataset, config.data, seed, config.dataset_options)
        key = json.dumps(name, sort_keys=True, default=str)
        if key not in read and (own or config.dataset in SPECS):
            read[key] = {}  # also if it cannot be read
            read[key] = hash_samples(config, load(*name))
        return read.get(key, {})
    return {}


def recorded_hashes(facts: Mapping[str, Any]) -> dict[str, str] | None:
    """Return the hashes of a run's files from its records; ``None`` in records of older versions, which had none."""
    return facts.get("contents", {} if "data" in facts else None)


def hash_files_but_data(config: Config, held: Mapping[str, str] | None) -> dict[str, str]:
    """Hash the user's files of a config as they are now; for data that was not read yet, take the recorded hash."""
    found = hash_user_files(config)
    name = SAMPLES if is_own(config.dataset) else "data_content"
    if held and name in held and (name == SAMPLES or own_data_path(config.dataset, config.data) is None):
        found[name] = held[name]
    return found


def without_unrecorded(held: Mapping[str, str], like: Mapping[str, str] | None) -> dict[str, str]:
    """Leave out the hash of samples where an older record, ``like``, has none: older versions did not take it."""
    return {k: v for k, v in held.items() if k != SAMPLES or (like is not None and k in like)}


def refuse_damaged(config: Config, facts: Mapping[str, Any], where: str) -> None:
    """Refuse notes of a run's data that are no fingerprint, or that contradict what the run passes for."""
    if "data" not in facts:
        return  # made before there were fingerprints
    found = Fingerprint.read(facts["data"], where)
    kind, known = facts["data"].get("kind"), OFFICIAL.get(config.dataset)
    passes = (recorded_hashes(facts) or {}).get("data_content")
    wrong = {
        "official": passes is not None or ("by" not in facts["data"] and known != found.content),
        "other": passes != found.short or known == found.content,
        "own": passes is None or (recorded_hashes(facts) or {}).get(SAMPLES, found.short) != found.short,
        "drawn": passes is not None or not is_drawn(config.dataset),
    }
    if wrong.get(str(kind), True):
        raise FedsmooError(
            f"{where} is damaged: the fingerprint of its data is not that of {config.dataset!r} as {kind!r} content; "
            "make the run again"
        )
