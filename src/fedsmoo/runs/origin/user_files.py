"""What a config names in files of the user's: whether it is there, and which options it has."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from fedsmoo.core.errors import FedsmooError
from fedsmoo.core.user_code import is_in_file, options_of, user_object
from fedsmoo.data.batches import cohort
from fedsmoo.data.dataset import Dataset
from fedsmoo.data.division import own as division
from fedsmoo.data.division.partition import PARTITIONS
from fedsmoo.data.own import bind_options, is_own
from fedsmoo.data.sources import form_options, load
from fedsmoo.metrics.quantity import own_metrics
from fedsmoo.models import Start, loss
from fedsmoo.runs.config import Config

# What is always given to a function of the user's, beside its options.
ARGUMENTS: dict[str, tuple[str, ...]] = {
    "model": (),
    "partition": division.ARGUMENTS,
    "loss": loss.ARGUMENTS,
    "sampling": cohort.ARGUMENTS,
}


def start_of(config: Config) -> Start | None:
    """Return where the model's weights are taken from, if the settings name a file."""
    if config.start_skip is not None and config.start is None:
        raise FedsmooError(f"start_skip is {config.start_skip!r}, but there is no start: name a file, or leave it out")
    return None if config.start is None else Start(config.start, config.start_skip)


def load_data(config: Config) -> Dataset:
    """Return the data set that a config names."""
    return load(config.dataset, config.data, config.seed, config.dataset_options)


def refuse_missing(config: Config) -> None:
    """Refuse a data set, partition, loss or sampling whose file, name or options are not there, before anything runs.

    Nothing of it is called yet. Methods and models are looked at where they are made.
    """
    if is_own(config.dataset):
        bind_options(config.dataset, config.dataset_options)
    elif config.dataset_options and not form_options(config.dataset):
        raise no_options("data set", config.dataset, config.dataset_options)
    if is_in_file(config.partition):
        division.OwnPartition(config.partition, config.partition_options).rule()
    elif config.partition_options and not rule_options(config.partition):
        raise no_options("partition", config.partition, config.partition_options)
    loss.make_loss(config.loss, config.loss_options)
    for spec in own_metrics(config.metrics):
        user_object(spec, "metric")
    cohort.make_sampling(config.sampling, config.sampling_options)


def rule_options(partition: str) -> dict[str, Any]:
    """Return the options, with their defaults, that a partition of ours has beside the settings of every run."""
    rule = PARTITIONS.get(partition.partition("-")[0].lower())
    fields = () if rule is None or rule.in_settings else dataclasses.fields(rule)
    return {f.name: f.default for f in fields}


def no_options(kind: str, name: str, options: dict[str, Any]) -> FedsmooError:
    """Return the error for options of something that has none."""
    return FedsmooError(f"{kind} {name!r} has no options: leave out {', '.join(options)}")


def own_options(named: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return the options, with their defaults, of each thing that is taken from a file, by the setting that names it.

    Those of a loss or a sampling of ours are among them; the method's, which are its fields, are not.
    """
    found: dict[str, dict[str, Any]] = {}
    found |= {"dataset": dict(options)} if (options := form_options(named["dataset"])) else {}
    if is_own(named["dataset"]):
        known = options_of(user_object(named["dataset"], "data set")) or {}
        found["dataset"] = {n: v for n, v in known.items() if n != "seed"}
    for kind, given in ARGUMENTS.items():
        if is_in_file(named[kind]):
            thing = user_object(named[kind], kind)
            found[kind] = options_of(thing, () if cohort.has_rule(thing) else given) or {}
    if of_rule := rule_options(named["partition"]):
        found["partition"] = of_rule
    if ours := loss.loss_options(named["loss"]):
        found["loss"] = ours
    if isinstance(rule := cohort.SAMPLINGS.get(named["sampling"]), type):
        found["sampling"] = options_of(rule) or {}
    return found


def kind_of_default(default: Any) -> tuple[type, bool] | None:
    """Return the plain type of an option's default, and that it may not be none; ``None`` if it has no such type."""
    return (type(default), False) if type(default) in (bool, int, float, str) else None
