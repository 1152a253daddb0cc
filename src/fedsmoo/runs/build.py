"""From names to objects: the algorithm, model, data, clients and engine that a config describes."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from fedsmoo.algorithms import ALGORITHMS, Relaxed
from fedsmoo.algorithms.choices import decay_of_steps, look_at_method, put_choices_around
from fedsmoo.algorithms.quantised import Quantised
from fedsmoo.algorithms.statistics import with_statistics
from fedsmoo.core import Algorithm, FedsmooError, LocalRule
from fedsmoo.core.blame import in_brief, place_of, stack_of
from fedsmoo.core.contract import refuse_unsound
from fedsmoo.core.errors import FedsmooWarning, unknown
from fedsmoo.core.hyper.options import read_options, refuse_ignored_values
from fedsmoo.core.user_code import is_in_file, user_object
from fedsmoo.data.batches.cohort import Sampling, make_sampling
from fedsmoo.data.dataset import Dataset, refuse_beyond_type
from fedsmoo.data.division.holdout import held_by, hold_out
from fedsmoo.engines.client_state.memory import refuse_too_large_plan
from fedsmoo.engines.client_state.tiers import make_table
from fedsmoo.engines.contract import Setup
from fedsmoo.engines.devices import make_device, slow_threads, staged
from fedsmoo.engines.distributed.engine import engine_for
from fedsmoo.engines.distributed.ranks import own_device
from fedsmoo.engines.looking.fitting import (
    note_on_other_tensor,
    note_on_probabilities,
    refuse_other_outputs,
    refuse_other_targets,
    scale_of,
)
from fedsmoo.engines.statistics.recompute import refuse_lone_samples
from fedsmoo.engines.task import Task
from fedsmoo.engines.threads import fix_threads
from fedsmoo.metrics.metric import Own, metrics_for
from fedsmoo.models import FlatModel, make_model
from fedsmoo.models.buffers import cast
from fedsmoo.models.loss import SampleLoss, cross_entropy, make_loss
from fedsmoo.runs.config import Config
from fedsmoo.runs.division import make_clients, with_client_inputs
from fedsmoo.runs.origin.user_files import load_data, start_of
from fedsmoo.runs.record import refuse_taken_names
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
        for note in (note_on_probabilities(setup.task), note_on_other_tensor(setup.task)):
            if note is not None:
                warnings.warn(note, FedsmooWarning, stacklevel=2)
    refuse_lone_samples(setup.task, indices, config.batch_size, config.epochs, config.local_steps)
    cohort = min(config.cohort, len(indices))
    sizes = [len(samples) for samples in indices]
    refuse_too_large_plan(sizes, cohort, config.batch_size, config.epochs, config.local_steps, setup.task.augment)
    look_at_method(setup.algorithm, len(indices), cohort, setup.task.loss is cross_entropy)
    table = make_table(config.table, setup, len(indices), cohort, config.rounds)
    engine = engine_for(config.engine, setup, config.chunk, cohort, config.batch_size, config.exact, table)
    if note := slow_threads(engine.name, setup.task.device):
        warnings.warn(note, FedsmooWarning, stacklevel=2)
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
    refuse_unsound(algorithm, scale_of(model, data, dtype, device))
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
