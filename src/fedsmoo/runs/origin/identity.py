"""Identify runs: two configs are one run if they give the same numbers, whatever machine computes them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from fedsmoo.algorithms import FedAvg
from fedsmoo.algorithms.choices import CHOICES, choice_class, options_of_choice, put_around
from fedsmoo.core import Algorithm, FedsmooError
from fedsmoo.core.user_code import is_in_file
from fedsmoo.data.division.partition import PARTITIONS, to_rule
from fedsmoo.runs.config import FIELDS, RULE_OPTIONS, Config, free_within
from fedsmoo.runs.division import make_partition
from fedsmoo.runs.origin.contents import HASHES, hash_user_files, recorded_hashes
from fedsmoo.runs.origin.method import Method, method_facts, recorded_method, resolved_options

# Settings of the machine and of the report: they change where and how fast a run goes, not what it is. Of a user's own
# data the content counts (see contents.py), of other data the name says all.
SAME_RUN = free_within("run")
LEFT_OUT = {*SAME_RUN, "partition", *RULE_OPTIONS}  # a rule and its options say one thing together
NOTHING = object()


def canonical(config: Config, held: Mapping[str, str] | None = None, method: Method | None = None) -> dict[str, Any]:
    """Return the settings that define a run's numbers, defaults filled in, so that equal runs compare equal.

    ``held`` is what the user's files held when a run began; without it, what they hold now. ``method`` is what is known
    of a method of the user's own, whose code is not run here; without it, its options are those that were written.

    >>> canonical(Config(partition="dirichlet", u=0.6)) == canonical(Config(partition="dirichlet-0.6"))
    True
    """
    return canonical_settings(config, resolved_options(config, method)[0], held)


def canonical_settings(config: Config, options: Mapping[str, Any], held: Mapping[str, str] | None) -> dict[str, Any]:
    """Return what :func:`canonical` does, for a method whose options are known already."""
    values = {k: v for k, v in config.to_dict().items() if k not in LEFT_OUT}
    values["local_epochs"] = config.epochs
    if ":" not in config.algorithm:
        values["algorithm"] = config.algorithm.lower()
    if config.precision == "bf16":  # coarse enough to be another experiment
        values["precision"] = config.precision
    values["algorithm_options"] = options
    for name in CHOICES:
        spec, options = values.pop(name, CHOICES[name][1]), values.pop(f"{name}_options", {})
        values |= choice_settings(name, spec, options)
    if config.split is None and config.partition == "natural":
        values["partition"] = "natural"
        values.pop("clients")  # the data's to say, and not known before it is read
    elif config.split is None:
        rule = make_partition(config)
        values["partition"] = to_rule(rule)
        if type(rule) in PARTITIONS.values() and not rule.in_settings:  # which its options are part of
            values.pop("partition_options", None)
    hashes = hash_user_files(config) if held is None else {k: v for k, v in held.items() if k in HASHES}
    if "split_content" in hashes:  # wherever the file lies
        values.pop("split")
    if "start_content" in hashes:
        values.pop("start")
    return {**values, **hashes}


def choice_settings(name: str, spec: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is put around a method as settings, with the options that are not at their defaults.

    Of code of a user's own, which is not run here, they are those that were written.
    """
    if spec == CHOICES[name][1] and not options:
        return {}
    values: dict[str, Any] = dict(options)
    with suppress(FedsmooError):
        if is_in_file(spec):
            raise FedsmooError(spec)
        made = put_around(FedAvg(), name, spec, options).options()
        cls = choice_class(name, spec)
        plain = {} if cls is None else options_of_choice(cls)
        values = {n: made[n] for n, default in plain.items() if made[n] != default}
    return {n: v for n, v in ((name, spec), (f"{name}_options", values)) if v not in (CHOICES[name][1], {})}


def identity(
    config: Config,
    held: Mapping[str, str] | None = None,
    method: Method | None = None,
    changes: Sequence[Any] | None = None,
) -> str:
    """Return a short hash of a run: sixteen hexadecimal digits. ``held`` and ``method`` as in :func:`canonical`.

    Settings at their defaults are left out, so that a new setting does not rename earlier runs. ``changes`` are
    what callbacks changed on the way, as a summary holds them: a run in which some were made is another one.
    """
    options, plain = resolved_options(config, method)
    values = canonical_settings(config, options, held)
    given = {k: v for k, v in values.items() if v != DEFAULTS.get(k, NOTHING) and k != "algorithm_options"}
    given["algorithm_options"] = {k: v for k, v in values["algorithm_options"].items() if v != plain.get(k)}
    if changes:
        given["changes"] = changes
    text = json.dumps(given, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


DEFAULTS = {k: v for k, v in canonical(Config()).items() if k not in ("algorithm", "model", "dataset", "partition")}


def identity_facts(config: Config, algorithm: Algorithm, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a run records of itself when it begins, so that readers need not run code: identity and method."""
    method = method_facts(config, algorithm)
    return {"identity": identity(config, recorded_hashes(facts), recorded_method({"method": method})), "method": method}


def differences(
    old: Config,
    new: Config,
    also: Sequence[str] = (),
    held: Mapping[str, str] | None = None,
    now: Mapping[str, str] | None = None,
    methods: tuple[Method | None, Method | None] = (None, None),
) -> list[str]:
    """Say what differs between two configs: ``lr was 0.1, is 0.2``.

    ``also`` names settings of the machine; ``held`` is what the old one's files held, as in :func:`canonical`, and
    ``now`` what the new one's do; ``methods`` is what is known of the methods of both.
    """
    pairs = ((old, held, methods[0]), (new, now, methods[1]))
    a, b = ({**{k: getattr(c, k) for k in also}, **canonical(c, h, m)} for c, h, m in pairs)
    return [
        f"{k} was {setting_in_words(a, k)}, is {setting_in_words(b, k)}" for k in {**a, **b} if a.get(k) != b.get(k)
    ]


def setting_in_words(values: Mapping[str, Any], key: str) -> str:
    """Say what a setting is; data of a known name without a hash of its content is the official one."""
    return "the official one" if key == "data_content" and key not in values else str(values.get(key))


def config_of(values: dict[str, Any]) -> Config:
    """Make a config from plain values that another version may have written: settings unknown here are left out."""
    return Config(**{k: v for k, v in values.items() if k in FIELDS})
