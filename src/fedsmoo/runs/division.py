"""Who holds which samples, by a config: what its settings come to, and which contradict each other."""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from fedsmoo.core import FedsmooError
from fedsmoo.core.errors import FedsmooWarning, unknown
from fedsmoo.core.user_code import is_in_file
from fedsmoo.data.check import check_indices
from fedsmoo.data.dataset import Dataset
from fedsmoo.data.division import partition as partitions
from fedsmoo.data.division.own import OwnPartition, Rule, own_rule, refuse_changed_inputs
from fedsmoo.data.division.splitfile import load_split, read_split, refuse_contradiction
from fedsmoo.data.names import is_drawn
from fedsmoo.data.own import is_own
from fedsmoo.data.targets import CLASSES, classes_to_divide_by, names_to_divide_by
from fedsmoo.engines.client_state.memory import refuse_too_many_clients
from fedsmoo.runs.config import DIVISION, FIELDS, RULE_OPTIONS, Config, default_partition
from fedsmoo.runs.origin.user_files import load_data, refuse_missing
from fedsmoo.runs.settings.fields import refuse_beyond
from fedsmoo.runs.storage.files import DiskError, make_folder, reason, write_durably

SHOWN = 1000  # clients that a picture of who holds what has room for


def make_partition(config: Config) -> partitions.Partition:
    """Return the rule that a config names; ``dirichlet-0.6`` says its own concentration."""
    if is_in_file(config.partition):
        return OwnPartition(config.partition, config.partition_options)
    kind, _, value = config.partition.partition("-")
    if kind not in partitions.PARTITIONS:
        raise unknown("partition", config.partition, [*partitions.PARTITIONS, "natural"])
    rule = partitions.PARTITIONS[kind]
    names = [f.name for f in dataclasses.fields(rule)]
    own = {n: getattr(config, n) for n in names} if rule.in_settings else config.partition_options
    if value and rule.in_settings:
        own = {n: v for n, v in own.items() if n not in ("u", "c")}
    elif value and own.get(names[0], said := getattr(partitions.parse(config.partition), names[0])) != said:
        raise FedsmooError(
            f"{names[0]} is {own[names[0]]}, but the partition {config.partition!r} says {said}: leave {names[0]} out"
        )
    return partitions.parse(config.partition, **own)


def division_settings(config: Config) -> dict[str, Any]:
    """Return the settings of the partition rule, were there no split file, with ``dirichlet-0.6`` taken apart."""
    plain = {n: getattr(config, n) for n in DIVISION}
    rule = {"name": "natural"} if config.partition == "natural" else partitions.to_rule(make_partition(config))
    return {**plain, "partition": rule.pop("name"), **rule}


def resolve_division(config: Config, given: Iterable[str]) -> Config:
    """Fill in what a config's partition says by its name (``dirichlet-0.6``: u) and what the settings leave open.

    iid is without replacement unless somebody asks for it, and a split file says how many clients there are. Settings
    that contradict each other, or the file, are refused. ``given`` are the names of the settings that somebody chose:
    the others are defaults, which a partition's name or a split overrules.
    """
    refuse_beyond(config.to_dict())
    refuse_missing(config)
    names = set(given)
    if "partition" not in names and config.partition != (
        default := default_partition(config.dataset, config.dataset_options)
    ):
        config = config.replace(partition=default)  # which the data set decides, and that may have changed since
    asked = division_settings(config)
    refuse_other_number(config, names)
    if config.split is None:
        if config.partition == "natural" and "clients" in names and config.clients == Config.clients:
            refuse_other_count(config, load_data(config))  # else make_clients sees it
        own = {"replacement": False} if asked["partition"] == "iid" and "replacement" not in names else {}
        return with_changes(config, {"u": asked["u"], "c": asked["c"], **own, **settings_of_rule(config, names)})
    if "partition" in names and "-" in config.partition and not is_in_file(config.partition):
        names.add(dataclasses.fields(partitions.PARTITIONS[asked["partition"]])[0].name)
    names.update(config.partition_options)
    content = read_split(config.split)
    refuse_contradiction(config.split, content, {n: v for n, v in asked.items() if n in names})
    return with_changes(config, {"clients": content["clients"]})


def settings_of_rule(config: Config, given: Iterable[str]) -> dict[str, Any]:
    """Return the settings of a rule whose options are no settings, in one way of writing: classwise-0.5.

    A rule that says how many clients there are (the sizes of all) is refused beside another number of them.
    """
    if config.partition == "natural" or is_in_file(config.partition):
        return {}
    rule = make_partition(config)
    if rule.count is not None and "clients" in given and config.clients != rule.count:
        raise FedsmooError(
            f"clients is {config.clients}, but the partition {rule.label!r} has {rule.count}: leave clients out"
        )
    count = {} if rule.count is None else {"clients": rule.count}
    return count if rule.in_settings else {**rule.to_settings(), **count}


def cut_cohort(config: Config, given: Iterable[str] = (), clients: int | None = None) -> Config:
    """Return the config with a cohort of at most all clients, and say so if it asks for more.

    What is cut is the setting itself, so that a run is the one in which all clients were asked for, by name and number.

    Args:
        config: with its division resolved.
        given: the names of the settings that somebody chose.
        clients: how many there are, if that is known; else as the config says, or its data.
    """
    if clients is None:
        natural = config.split is None and config.partition == "natural" and "clients" not in given
        clients = natural_clients(config) if natural else config.clients
    if clients is None or config.cohort <= clients:
        return config
    said = f"a cohort of {config.cohort} is more than the {clients} clients there are: all of them take part"
    warnings.warn(f"{said} (cohort = {clients})", FedsmooWarning, stacklevel=2)
    return config.replace(cohort=clients)


def natural_clients(config: Config) -> int | None:
    """Count the clients that the data of a config has of its own; ``None`` if only code of the user's could say."""
    if is_own(config.dataset) or config.dataset_options:
        return None
    seed = config.seed if is_drawn(config.dataset) else 0
    with suppress(FedsmooError):  # which is said where the data is needed
        return count_natural_clients(config.dataset, config.data, seed)
    return None


@lru_cache(maxsize=64)
def count_natural_clients(dataset: str, data: str | None, seed: int) -> int | None:
    """Count a data set's own clients, once for all runs of a sweep."""
    natural = load_data(Config(dataset=dataset, data=data, seed=seed)).natural
    return None if natural is None else len(natural)


def with_changes(config: Config, values: Mapping[str, Any]) -> Config:
    """Return the config with these settings; itself, if it has them."""
    changes = {n: v for n, v in values.items() if getattr(config, n) != v}
    return config.replace(**changes) if changes else config


def for_other_partition(values: Mapping[str, Any], partition: str) -> dict[str, Any]:
    """Return the settings of a config that hold for a partition given over its own: ``u`` and ``c`` may not.

    Nor does ``replacement`` as its own partition has it by default, which configs of runs write down: iid has another.
    """
    kept, own = {"dirichlet": "u", "pathological": "c"}.get(partition), values.get("partition")  # iid, dirichlet-0.6
    others = {"u", "c"} - {kept}
    if own is not None and (own == "iid") != (partition == "iid") and values.get("replacement") is (own != "iid"):
        others.add("replacement")
    return {name: value for name, value in values.items() if name not in others}


def refuse_other_number(config: Config, given: Iterable[str]) -> None:
    """Refuse ``u`` or ``c`` beside a partition whose name says another number."""
    said = division_settings(config)
    for name in {"u", "c"}.intersection(given):
        if getattr(config, name) != said[name]:
            raise FedsmooError(
                f"{name} is {getattr(config, name)}, but the partition {config.partition!r} says {said[name]}: "
                f"leave {name} out, or write the partition as {said['partition']!r}"
            )


def refuse_unused_options(config: Config, given: Iterable[str]) -> None:
    """Refuse options of a partition that the one in force does not have: they would change nothing."""
    if config.split is not None:
        return  # which refuses what it contradicts
    kind = division_settings(config)["partition"]
    rule = partitions.PARTITIONS.get(kind)  # none: the data's own clients, or a rule of the user's
    has = set() if rule is None else {f.name for f in dataclasses.fields(rule)}
    for name in RULE_OPTIONS:
        if name in given and name not in has:
            owner = {"u": "dirichlet", "c": "pathological"}.get(name, "dirichlet or pathological")
            raise FedsmooError(
                f"{name} is {getattr(config, name)}, but the partition {kind!r} has no {name}: leave it out, or name "
                f"the partition that has it ({owner})"
            )
    if "refill" in given and config.refill and not config.replacement:
        raise FedsmooError("refill is of a division with replacement: leave out refill, or set replacement to true")


def refuse_idle_everywhere(configs: Sequence[Config], where: str) -> None:
    """Refuse an option of a partition that no run of the sweep has: its values would be the same run."""
    configs = [config for config in configs if config.split is None]
    rules = {
        name
        for config in configs
        if config.partition != "natural"
        for name in partitions.to_rule(make_partition(config))
    }
    for config in configs:
        for name in RULE_OPTIONS:
            if name not in rules and getattr(config, name) != FIELDS[name].default:
                raise FedsmooError(f"{where}: {name} is {getattr(config, name)}, but no partition of the sweep has it")


def refuse_other_count(config: Config, data: Dataset) -> None:
    """Refuse a number of clients that is not that of the data's own."""
    count = len(data.natural or ())
    if config.clients != count:
        raise FedsmooError(
            f"clients is {config.clients}, but {data.name!r} has {count} natural clients: leave it out, or name a "
            "partition, such as iid"
        )


def clients_of(config: Config, data: Dataset, indices: Sequence[np.ndarray] | None) -> int:
    """Return how many clients there are: those given, the data's own, or as many as the config says."""
    natural = config.split is None and config.partition == "natural"
    given = data.natural if indices is None and natural else indices
    return config.clients if given is None else len(given)


def make_clients(config: Config, data: Dataset) -> list[np.ndarray]:
    """Return each client's samples, from a split file, the data's own clients, or by a rule."""
    if config.split is not None:
        plain = division_settings(Config(dataset=config.dataset))
        resolve_division(config, [n for n, v in division_settings(config).items() if v != plain.get(n)])
        return load_split(config.split, data)
    if config.partition == "natural":
        if data.natural is None:
            raise FedsmooError(f"the data set {data.name!r} has no natural clients: choose another partition")
        if config.clients != Config.clients:  # the default is nobody's choice
            refuse_other_count(config, data)
        return [i.numpy() for i in data.natural]
    rule = make_partition(config)
    return divide(rule.split, config, data)


def divide(rule: Rule, config: Config, data: Dataset) -> list[np.ndarray]:
    """Return each client's samples by a rule."""
    labels, classes = classes_to_divide_by(data)
    refuse_too_many_clients(config.clients, classes)
    found: list[np.ndarray] = rule(labels, classes, config.clients, config.seed)
    return found


def given_clients(
    config: Config,
    data: Dataset,
    partition: str | partitions.Partition | Rule | None,
    client_indices: Sequence[Sequence[int] | np.ndarray] | None,
) -> list[np.ndarray] | None:
    """Return each client's samples as a caller gives them, or as their rule does; ``None`` where the config says it."""
    if client_indices is not None:
        return check_indices(client_indices, len(data.x_train), "client_indices")
    if partition is None or isinstance(partition, str):
        return None
    refuse_changed_inputs(partition)
    rule = partition.split if isinstance(partition, partitions.Partition) else own_rule(partition)
    return divide(rule, config, data)


def rule_in_force(config: Config) -> tuple[partitions.Partition | None, int]:
    """Return the rule that divides the samples of a config, and its seed; none, if none of ours does."""
    if config.split is not None:
        content = read_split(config.split)
        ours = content["rule"].get("name") in partitions.PARTITIONS
        return (partitions.from_rule(content["rule"]) if ours else None), content["seed"]
    if config.partition == "natural" or is_in_file(config.partition):
        return None, config.seed
    return make_partition(config), config.seed


def with_client_inputs(config: Config, data: Dataset, indices: Sequence[np.ndarray]) -> Dataset:
    """Return the data as its clients see it: by some partitions with noise, or turned."""
    rule, seed = rule_in_force(config)
    return data if rule is None else rule.with_inputs(data, indices, seed)


def write_counts(data: Dataset, indices: Sequence[np.ndarray], path: Path) -> None:
    """Write the samples per client and class, as partitions see them, into a run's folder, for pages and figures.

    Not of more clients than a picture shows, nor of sequences.
    """
    if (data.target == CLASSES and data.y_train.dim() != 1) or len(indices) > SHOWN:
        return
    labels, classes = classes_to_divide_by(data)
    counts = [np.bincount(labels[i], minlength=classes).tolist() for i in indices]
    names = names_to_divide_by(data)
    text = json.dumps({"counts": counts, "class_names": list(names) if names else None}, separators=(",", ":"))
    try:
        make_folder(path / "analysis")
        write_durably(path / "analysis" / "partition.json", text + "\n")
    except OSError as e:
        raise DiskError(f"cannot write into {path / 'analysis'}: {reason(e)}") from e
