"""From names to objects: the algorithm, model, data, clients and engine that a config describes."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedsmoo.algorithms import ALGORITHMS, Relaxed
from fedsmoo.algorithms.choices import CHOICES, choice_class, decay_of_steps, look_at_method, put_choices_around
from fedsmoo.algorithms.quantised import Quantised
from fedsmoo.algorithms.statistics import with_statistics
from fedsmoo.core import Algorithm, FedsmooError, LocalRule
from fedsmoo.core.blame import in_brief, place_of, stack_of
from fedsmoo.core.contract import Scale, refuse_unsound
from fedsmoo.core.errors import FedsmooWarning, brief, unknown, unknown_setting
from fedsmoo.core.hyper.options import convert, kinds, read_hyper_parameter, read_options, refuse_ignored_values
from fedsmoo.core.user_code import is_in_file, user_object
from fedsmoo.data.batches.cohort import Sampling, make_sampling
from fedsmoo.data.dataset import Dataset, refuse_beyond_type
from fedsmoo.data.division.holdout import held_by, hold_out
from fedsmoo.engines.client_state.memory import refuse_too_large_plan
from fedsmoo.engines.client_state.tiers import make_table
from fedsmoo.engines.contract import Setup
from fedsmoo.engines.devices import make_device, staged
from fedsmoo.engines.distributed.engine import engine_for
from fedsmoo.engines.distributed.ranks import own_device
from fedsmoo.engines.looking.fitting import mistaken, refuse_other_outputs, refuse_other_targets, squashed
from fedsmoo.engines.statistics.recompute import refuse_lone_samples
from fedsmoo.engines.task import Task
from fedsmoo.engines.threads import fix_threads
from fedsmoo.metrics.metric import Own, metrics_for
from fedsmoo.models import MODELS, FlatModel, make_model, model_options
from fedsmoo.models.buffers import cast
from fedsmoo.models.loss import SampleLoss, cross_entropy, make_loss
from fedsmoo.runs.config import FIELDS, Config, changed_settings
from fedsmoo.runs.division import (
    cut_cohort,
    for_other_partition,
    make_clients,
    refuse_unused_options,
    resolve_division,
    with_client_inputs,
)
from fedsmoo.runs.origin.objects import refuse_objects
from fedsmoo.runs.origin.user_files import kind_of_default, load_data, own_options, start_of
from fedsmoo.runs.record import refuse_taken_names
from fedsmoo.runs.settings.fields import BROUGHT, refuse_twice
from fedsmoo.runs.settings.toml import named_tables, naming_file, read_toml
from fedsmoo.runs.simulation import Simulation

NOT_HELD = "{} has personal models, which are evaluated on samples held out: set holdout, such as 0.2"


def algorithm_class(spec: str) -> type[Algorithm]:
    """Return a method's class by name, or from a user's file."""
    if is_in_file(spec):
        cls = user_object(spec, "algorithm")
        if not (isinstance(cls, type) and issubclass(cls, Algorithm)):
            raise FedsmooError(f"algorithm {spec!r} is not a class derived from fedsmoo.Algorithm")
        refuse_ignored_values(cls)
        return cls
    if spec.lower() not in ALGORITHMS:
        raise unknown("algorithm", spec, ALGORITHMS)
    return ALGORITHMS[spec.lower()]


def make_algorithm(spec: str, options: dict[str, Any]) -> Algorithm:
    """Make a method with some of its hyper-parameters set; wrong names, types and ranges are refused."""
    cls, values = algorithm_class(spec), dict(options)
    if isinstance(inner := values.get("inner"), str):
        values["inner"] = make_algorithm(inner, {})
    values = read_options(cls, values)
    try:
        return cls(**values)  # which checks types, choices and ranges
    except FedsmooError:
        raise
    except Exception as e:
        if cls in ALGORITHMS.values():
            raise
        place = place_of(stack_of(e)) or f"algorithm {spec!r} cannot be made"
        raise FedsmooError(f"{place}: {in_brief(e)}") from e


def make_method(config: Config, algorithm: Algorithm | None = None) -> Algorithm:
    """Return the method of a run, named or given, inside what other settings put around it."""
    method = put_choices_around(algorithm or make_algorithm(config.algorithm, config.algorithm_options), config)
    if config.relaxed:
        method = Relaxed(method, config.relaxed)
    return Quantised(method, config.wire) if config.wire != "exact" else method


def classes_of(named: Mapping[str, str]) -> dict[str, Any]:
    """Return the classes of a method and of what is put around it, by the setting that names each."""
    classes: dict[str, Any] = {kind: choice_class(kind, named[kind]) for kind in CHOICES}
    classes = {"algorithm": algorithm_class(named["algorithm"]) if named["algorithm"] else None} | classes
    return {kind: cls for kind, cls in classes.items() if cls is not None}


def schedules_as_text(config: Config) -> Config:
    """Return the config with schedules that are tables, as TOML files have them, as the text that stands for them."""
    kinds_of = {n: getattr(config, f"{n}_options") for n in ("algorithm", *CHOICES)}
    if not any(isinstance(v, Mapping) for options in kinds_of.values() for v in options.values()):
        return config
    changes = {}
    for kind, cls in classes_of({n: getattr(config, n) for n in kinds_of}).items():
        tables = {n: v for n, v in kinds_of[kind].items() if n in kinds(cls) and isinstance(v, Mapping)}
        changes[f"{kind}_options"] = {**kinds_of[kind], **read_options(cls, tables)}
    return config.replace(**changes)


def named_model(config: Config, data: Dataset) -> FlatModel:
    """Make the model that a config names, with the weights that it starts from."""
    return make_model(config.model, data, config.seed, config.model_options, config.output, start_of(config))


def assemble(
    config: Config,
    algorithm: Algorithm | None = None,
    data: Dataset | None = None,
    model: FlatModel | None = None,
    indices: Sequence[np.ndarray] | None = None,
    loss: SampleLoss | None = None,
    sampling: Sampling | None = None,
    metrics: Sequence[str | Own] | None = None,
) -> Simulation:
    """Make the simulation that a config describes; objects given beside it take the place of what it names."""
    data = data or load_data(config)
    if indices is None:  # else a caller holds the samples, as they are to be seen
        indices = make_clients(config, data)
        data = with_client_inputs(config, data, indices)
    setup = make_setup(config, data, algorithm, model, loss, metrics)
    parts = None
    if config.holdout:
        everything, (indices, held) = indices, hold_out(indices, config.holdout, config.seed)
        setup, parts = dataclasses.replace(setup, task=setup.task.holding(held)), held_by(everything, held)
    elif setup.algorithm.has_personal and data.own_tests(indices) is None:
        warnings.warn(NOT_HELD.format(setup.algorithm.label), FedsmooWarning, stacklevel=2)
    if model is not None or is_in_file(config.model):
        refuse_other_outputs(setup.task)
        for note in (squashed(setup.task), mistaken(setup.task)):
            if note is not None:
                warnings.warn(note, FedsmooWarning, stacklevel=2)
    refuse_lone_samples(setup.task, indices, config.batch_size, config.epochs, config.local_steps)
    cohort = min(config.cohort, len(indices))
    sizes = [len(samples) for samples in indices]
    refuse_too_large_plan(sizes, cohort, config.batch_size, config.epochs, config.local_steps, setup.task.augment)
    look_at_method(setup.algorithm, len(indices), cohort, setup.task.loss is cross_entropy)
    table = make_table(config.table, setup, len(indices), cohort, config.rounds)
    engine = engine_for(config.engine, setup, config.chunk, cohort, config.batch_size, config.exact, table)
    sampling = sampling or make_sampling(config.sampling, config.sampling_options)
    return Simulation(setup, engine, config, indices, sampling=sampling, held=parts)


def make_setup(
    config: Config,
    data: Dataset,
    algorithm: Algorithm | None = None,
    model: FlatModel | None = None,
    loss: SampleLoss | None = None,
    metrics: Sequence[str | Own] | None = None,
) -> Setup:
    """Make what any engine needs: the method with its options, the model, and the data on their device."""
    device = own_device(make_device(config.device))
    fix_threads()
    algorithm = make_method(config, algorithm)
    dtype = getattr(torch, config.dtype)
    refuse_beyond_type(data, dtype)
    model = model or named_model(config, data)
    cast(model.module, dtype)
    refuse_unsound(algorithm, Scale(model.layout.size, dtype, device))
    augment = data.augment if config.augment is None else config.augment
    if augment and not data.is_image:
        raise FedsmooError(f"augment: the samples of {data.name!r} are not uint8 images")
    loss = loss or make_loss(config.loss, config.loss_options, data.target)
    found = metrics_for(data, config.metrics if metrics is None else metrics, config.holdout > 0)
    refuse_taken_names(found)
    host = staged(config.samples_in, data, device)
    data = data.to(device, host)
    task = Task(model, data, device, dtype, loss, augment, config.precision, metrics=found, staged=host)
    refuse_other_targets(task, algorithm)
    task.lead.refuse_target(config.target)
    algorithm = with_statistics(algorithm, config, None if model.statistics is None else model.statistics.first)
    rule = LocalRule(decay_of_steps(algorithm, config), config.clip, config.clip_scope)
    return Setup(task, algorithm, rule)


def make_config(
    config: Config | Mapping[str, Any] | str | PathLike[str] | None = None,
    settings: Mapping[str, Any] | None = None,
    untyped: Callable[[Any], Any] = lambda value: value,
) -> Config:
    """Return the config of a run: what ``config`` says, overridden by ``settings``, with its division resolved.

    Args:
        config: a ``Config``, a mapping, or the path of a TOML file.
        settings: any setting by its name, or a hyper-parameter of the method or model by its own.
        untyped: applied to options of a user's own model, which declares no types for them.

    Raises:
        FedsmooError: if a setting is unknown, wrong, contradicts another, or would change nothing.
    """
    merged, said, chosen = merge(config, settings or {}, untyped)
    refuse_objects(merged, "this config")
    resolved = resolve_division(schedules_as_text(merged), said)
    refuse_unused_options(resolved, chosen)
    return cut_cohort(resolved, said)


def merge(
    config: Config | Mapping[str, Any] | str | PathLike[str] | None,
    settings: Mapping[str, Any],
    untyped: Callable[[Any], Any],
) -> tuple[Config, set[str], set[str]]:
    """Return a config with settings over it, the names of those that either says, and of those that somebody chose."""
    if isinstance(config, Config) and not settings:
        return config, {*changed_settings(config)}, {*changed_settings(config)}
    values = settings_of(config)
    given = {n: v for n, v in settings.items() if n in FIELDS}
    own_names = {kind: getattr(config, kind) for kind in BROUGHT} if isinstance(config, Config) else values
    for kind in (k for k in BROUGHT if given.get(k) is not None):
        if str(given[kind]).lower() != str(own_names.get(kind, given[kind])).lower():
            values.pop(f"{kind}_options", None)  # they belong to what the config names, if it names anything
    if given.get("partition") is not None:  # the config's numbers belong to its own partition
        values = for_other_partition(values, str(given["partition"]))
    if isinstance(config, str | PathLike) and values.get("algorithm_options"):
        with naming_file(str(config)):  # where an option of the method that is wrong stands
            make_algorithm(str({**given, **values}.get("algorithm", Config.algorithm)), values["algorithm_options"])
    # Run folders write every setting down: what a file leaves at its default is nobody's choice.
    chosen = {n for n, v in values.items() if v != FIELDS[n].default} | {*settings}
    values |= given
    own = {n: v for n, v in settings.items() if n not in FIELDS}
    return Config(**add_options(values, own, untyped)), {*values, *settings}, chosen


def settings_of(config: Config | Mapping[str, Any] | str | PathLike[str] | None) -> dict[str, Any]:
    """Return the settings that a config, a mapping or a TOML file holds, by name."""
    if config is None:
        return {}
    if isinstance(config, Config):
        return changed_settings(config)
    if isinstance(config, Mapping):
        return named_tables(dict(config), "config")
    if isinstance(config, str | PathLike):
        return read_toml(Path(config))
    raise FedsmooError(f"config is {brief(config)}, but must be a Config, a mapping, or the path of a TOML file")


def add_options(
    values: dict[str, Any], options: Mapping[str, Any], untyped: Callable[[Any], Any], objects: Collection[str] = ()
) -> dict[str, Any]:
    """Return settings with options added to those of the method, the model, the loss, ..., whichever has one so named.

    ``loss.gamma`` says whose option it is, where several have one of that name. ``objects`` have no options.
    """
    named = {kind: "" if kind in objects else values.get(kind, FIELDS[kind].default) or "" for kind in BROUGHT}
    if not options or not all(isinstance(name, str) for name in named.values()):
        return values  # a name that is no text is refused with the other settings
    classes = classes_of(named)
    known = {kind: {f.name: f.default for f in dataclasses.fields(cls)} for kind, cls in classes.items()}
    known |= own_options(named)
    if named["model"] in MODELS:
        known["model"] = model_options(named["model"])
    found: dict[str, dict[str, Any]] = {}
    for key, value in options.items():
        kind, name = owner_of_option(key, known, named)
        ours = kind in classes
        of = kinds(classes[kind]).get(name) if ours else kind_of_default(known.get(kind, {}).get(name))
        plain, read = (value, read_hyper_parameter) if ours else (untyped(value), convert)
        mine = {name: plain if of is None else read(name, value, *of)}
        refuse_twice(kind, found.setdefault(f"{kind}_options", {}), mine)
        found[f"{kind}_options"] |= mine
    return values | {n: {**(values.get(n) or {}), **own} for n, own in found.items()}


def owner_of_option(key: str, known: Mapping[str, Mapping[str, Any]], named: Mapping[str, str]) -> tuple[str, str]:
    """Return whose option a key is, such as ``"model"``, and its name there; refuse one that nobody or several have.

    A model from a file may take any (``**options``): what nobody else has is its.
    """
    kind, dot, name = key.partition(".")
    if dot and kind in named:
        return kind, name
    having = [kind for kind, options in known.items() if key in options]
    if len(having) > 1:
        both = " and ".join(f"{kind}.{key}" for kind in having)
        raise FedsmooError(f"{key}: several have an option of that name; write which one: {both}")
    if not having and named["model"] in ("", *MODELS):
        owners = {(k != "algorithm") * f"{k} " + named[k]: options for k, options in known.items()}
        raise unknown_setting(key, owners, [n for n in FIELDS if not n.endswith("_options")])
    return having[0] if having else "model", key
