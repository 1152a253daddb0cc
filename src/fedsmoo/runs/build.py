"""From names to objects: the algorithm, model, data, clients and engine that a config describes."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn

from fedsmoo.algorithms import ALGORITHMS, Relaxed
from fedsmoo.algorithms.wired import Wired
from fedsmoo.core import Algorithm, FedsmooError, LocalRule
from fedsmoo.core.algorithm import kinds
from fedsmoo.core.blame import in_brief, place_of, stack_of
from fedsmoo.core.contract import Scale, refuse_unsound
from fedsmoo.core.errors import first_line, unknown
from fedsmoo.data.dataset import Dataset
from fedsmoo.data.division.holdout import hold_out
from fedsmoo.data.sources import load
from fedsmoo.engines.client_state.tiers import make_table
from fedsmoo.engines.contract import Setup
from fedsmoo.engines.distributed.engine import engine_for
from fedsmoo.engines.distributed.ranks import own_device
from fedsmoo.engines.task import SampleLoss, Samples, Task, cross_entropy
from fedsmoo.engines.threads import fix_threads
from fedsmoo.models import MODELS, FlatModel, build, make_module, model_options, wrap
from fedsmoo.runs.config import FIELDS, Config, brief, converted, default_partition, named_tables, read_toml
from fedsmoo.runs.division import make_clients, refuse_unused_options, resolve_division
from fedsmoo.runs.simulation import Simulation


def user_object(spec: str, kind: str) -> Any:
    """``path/to/file.py:Name`` from a user's own file."""
    file, _, name = spec.rpartition(":")
    path = Path(file)
    if not path.is_file():
        raise FedsmooError(f"{kind} {spec!r}: there is no file {file!r}")
    module = import_file(path, kind)
    if not hasattr(module, name):
        raise unknown(f"{kind} in {file}", name, [n for n in vars(module) if not n.startswith("_")])
    return getattr(module, name)


_imported: dict[tuple[Path, str], ModuleType] = {}


def import_file(path: Path, kind: str) -> ModuleType:
    """A user's file as a module; one module while its content stays, so that runs of its classes can share a batch."""
    try:
        source = path.read_bytes()
    except OSError as e:
        raise FedsmooError(f"{kind}: {path} cannot be read: {e.strerror}") from e
    content = hashlib.sha256(source).hexdigest()
    key = (path.absolute(), content)
    if key in _imported:
        return _imported[key]
    name = f"fedsmoo_user_{path.stem}_{content[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise FedsmooError(f"{kind}: {path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up here
    try:
        # Not by the loader: the compiled copy that it keeps is taken for a file edited within the same second.
        exec(compile(source, str(path), "exec"), module.__dict__)
    except Exception as e:
        del sys.modules[name]
        place = place_of(stack_of(e))
        line = f" (line {place.line})" if place is not None else ""
        raise FedsmooError(f"{kind}: {path} cannot be imported: {in_brief(e)}{line}") from e
    _imported[key] = module
    return module


def algorithm_class(spec: str) -> type[Algorithm]:
    """A method by name, or from a user's file."""
    if ":" in spec:
        cls = user_object(spec, "algorithm")
        if not (isinstance(cls, type) and issubclass(cls, Algorithm)):
            raise FedsmooError(f"algorithm {spec!r} is not a class derived from fedsmoo.Algorithm")
        return cls
    if spec.lower() not in ALGORITHMS:
        raise unknown("algorithm", spec, ALGORITHMS)
    return ALGORITHMS[spec.lower()]


def make_algorithm(spec: str, options: dict[str, Any]) -> Algorithm:
    """A method with some of its hyper-parameters set; wrong names, types and ranges are refused."""
    cls = algorithm_class(spec)
    known = {f.name for f in dataclasses.fields(cls)}
    kind = kinds(cls)  # type: ignore[arg-type]  # a class can be hashed, whatever its objects do
    values = {}
    for name, value in options.items():
        if name not in known:
            raise unknown(f"hyper-parameter of {cls.__name__}", name, known)
        values[name] = converted(name, value, *kind[name]) if name in kind else value
    try:
        return cls(**values)  # which checks types, choices and ranges
    except FedsmooError:
        raise
    except Exception as e:
        if cls in ALGORITHMS.values():
            raise
        place = place_of(stack_of(e)) or f"algorithm {spec!r} cannot be made"
        raise FedsmooError(f"{place}: {in_brief(e)}") from e


def make_model(spec: str, data: Dataset, seed: int, options: dict[str, Any]) -> FlatModel:
    """A model by name, or from a user's file: ``factory(**options)`` returns an ``nn.Module``."""
    if ":" not in spec:
        return build(spec, data, seed, **options)
    factory = user_object(spec, "model")
    try:
        module = make_module(lambda: factory(**options), seed)
    except Exception as e:  # the user's own code
        raise FedsmooError(f"model {spec!r} cannot be made: {type(e).__name__}: {e}") from e
    if not isinstance(module, nn.Module):
        raise FedsmooError(f"model {spec!r} made a {type(module).__name__}, not an nn.Module")
    return wrap(module, data)


def make_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as e:
        raise FedsmooError(f"device {name!r} cannot be used here: use cpu or auto ({first_line(e)[:80]})") from e
    return device


def assemble(
    config: Config,
    algorithm: Algorithm | None = None,
    data: Dataset | None = None,
    model: FlatModel | None = None,
    indices: Sequence[np.ndarray] | None = None,
    loss: SampleLoss = cross_entropy,
) -> Simulation:
    """The run that a config describes; objects given beside it take the place of what it names."""
    data = data or load(config.dataset, config.data, config.seed)
    indices = make_clients(config, data) if indices is None else indices
    setup = make_setup(config, data, algorithm, model, loss)
    if config.holdout:
        indices, held = hold_out(indices, config.holdout, config.seed)
        setup = dataclasses.replace(setup, task=with_held(setup.task, held))
    if model is not None or ":" in config.model:
        refuse_few_outputs(setup.task)
    cohort = min(config.cohort, len(indices))
    table = make_table(config.table, setup, len(indices), cohort, config.rounds)
    engine = engine_for(config.engine, setup, config.chunk, cohort, config.batch_size, config.exact, table)
    return Simulation(setup, engine, config, indices)


def make_setup(
    config: Config,
    data: Dataset,
    algorithm: Algorithm | None = None,
    model: FlatModel | None = None,
    loss: SampleLoss = cross_entropy,
) -> Setup:
    """The method with its options, the model and the data on their device: what any engine needs."""
    device = own_device(make_device(config.device))
    fix_threads()
    algorithm = algorithm or make_algorithm(config.algorithm, config.algorithm_options)
    if config.relaxed:
        algorithm = Relaxed(algorithm, config.relaxed)
    if config.wire != "exact":
        algorithm = Wired(algorithm, config.wire)
    model = model or make_model(config.model, data, config.seed, config.model_options)
    dtype = getattr(torch, config.dtype)
    model.module.to(dtype)
    refuse_unsound(algorithm, Scale(model.layout.size, dtype, device))
    augment = data.augment if config.augment is None else config.augment
    if augment and not data.is_image:
        raise FedsmooError(f"augment: the samples of {data.name!r} are not uint8 images")
    task = Task(model, data.to(device), device, dtype, loss, augment, config.precision)
    return Setup(task, algorithm, LocalRule(config.weight_decay, config.clip, config.clip_scope))


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
    if isinstance(config, Config) and not settings:
        chosen = set(changed_settings(config))
        resolved = resolve_division(config, chosen)
        refuse_unused_options(resolved, chosen)
        return resolved
    settings, values = settings or {}, settings_of(config)
    given = {n: v for n, v in settings.items() if n in FIELDS}
    for kind in ("algorithm", "model"):
        named = given.get(kind)
        if named is not None and str(named).lower() != str(values.get(kind, "")).lower():
            values.pop(f"{kind}_options", None)  # they belong to the other method, or model
    if given.get("partition") is not None:  # the config's numbers belong to its own partition
        kept = {"dirichlet": "u", "pathological": "c"}.get(given["partition"])  # dirichlet-0.6 says its own
        values = {name: value for name, value in values.items() if name not in ("u", "c") or name == kept}
    # Run folders write every setting down: what a file leaves at its default is nobody's choice.
    chosen = {n for n, v in values.items() if v != FIELDS[n].default} | {*settings}
    values |= given
    own = {n: v for n, v in settings.items() if n not in FIELDS}
    resolved = resolve_division(Config(**with_options(values, own, untyped)), {*values, *settings})
    refuse_unused_options(resolved, chosen)
    return resolved


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


def changed_settings(config: Config) -> dict[str, Any]:
    """Return the settings of a config that are not at their defaults: what somebody chose."""
    plain: dict[str, Any] = {n: {} if n.endswith("_options") else f.default for n, f in FIELDS.items()}
    plain["partition"] = default_partition(config.dataset)
    return {n: v for n, v in config.to_dict().items() if v != plain[n]}


def with_options(values: dict[str, Any], options: Mapping[str, Any], untyped: Callable[[Any], Any]) -> dict[str, Any]:
    """Return settings with options added to those of the method or of the model, whichever has one of that name."""
    algorithm, model = (values.get(n, getattr(Config, n)) for n in ("algorithm", "model"))
    if not options or not isinstance(algorithm, str) or not isinstance(model, str):
        return values  # a name that is no text is refused with the other settings
    cls: Any = algorithm_class(algorithm)
    hyper, kind = [f.name for f in dataclasses.fields(cls)], kinds(cls)
    declared = model_options(model) if model in MODELS else {}
    found: dict[str, dict[str, Any]] = {f"{n}_options": {} for n in ("algorithm", "model")}
    for name, value in options.items():
        if name in hyper:
            found["algorithm_options"][name] = converted(name, value, *kind[name]) if name in kind else value
        elif name in declared:
            found["model_options"][name] = converted(name, value, type(declared[name]), optional=False)
        elif model not in MODELS:
            found["model_options"][name] = untyped(value)
        else:
            raise unknown("setting", name, [n for n in (*FIELDS, *hyper, *declared) if not n.endswith("_options")])
    return values | {n: {**(values.get(n) or {}), **own} for n, own in found.items() if own}


def with_held(task: Task, held: np.ndarray) -> Task:
    """The task with some of its training samples, by index, to validate on."""
    index, data = torch.from_numpy(held).to(task.device), task.data
    return dataclasses.replace(task, held=Samples(data.x_train[index], data.y_train[index]))


def refuse_few_outputs(task: Task) -> None:
    """Refuse a model of one's own with fewer outputs than there are classes, where the loss needs one for each."""
    if task.loss is not cross_entropy:
        return
    task.model.eval()
    try:
        with torch.no_grad():
            out = task.model.forward(
                task.model.layout.split(task.model.initial().to(task.device, task.dtype)),
                task.inputs(task.data.x_test[:1]),
            )
    except Exception:  # the model does not fit the samples, or fails: the first round says so
        return
    largest = max(int(task.data.y_train.max()), int(task.data.y_test.max()))
    if isinstance(out, torch.Tensor) and out.dim() > 1 and out.shape[-1] <= largest:
        raise FedsmooError(
            f"the model has {out.shape[-1]} outputs, but the labels of {task.data.name!r} go up to {largest}: it needs "
            f"{largest + 1} outputs, one for each class from 0"
        )
