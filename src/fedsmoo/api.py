"""The Python entry point: one call from a model and data to a trained model."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Collection, Mapping, Sequence
from os import PathLike
from typing import Any

import numpy as np
from torch import nn

from fedsmoo.core import Algorithm, FedsmooError
from fedsmoo.core.errors import FedsmooWarning, as_path, brief, unknown
from fedsmoo.data import sources
from fedsmoo.data.batches.cohort import Sampling, has_rule, own_sampling
from fedsmoo.data.dataset import Dataset
from fedsmoo.data.division.own import Rule
from fedsmoo.data.division.partition import PARTITIONS, Partition
from fedsmoo.data.forms import read_data
from fedsmoo.data.forms.options import Options
from fedsmoo.metrics.metric import Own, as_list
from fedsmoo.models import wrap
from fedsmoo.models.loss import LOSSES, SampleLoss
from fedsmoo.models.modules.copies import own_copy
from fedsmoo.runs.build import algorithm_class, assemble
from fedsmoo.runs.config import DIVISION, FIELDS, Config, changed_settings
from fedsmoo.runs.division import (
    clients_of,
    cut_cohort,
    given_clients,
    refuse_other_count,
    refuse_unused_options,
    resolve_division,
)
from fedsmoo.runs.origin.objects import PREFIX, name_objects, objects_in
from fedsmoo.runs.origin.user_files import start_of
from fedsmoo.runs.record import Callback, refuse_wrong_arguments
from fedsmoo.runs.results.carry import carry_out_simulation
from fedsmoo.runs.results.loaded import load_result
from fedsmoo.runs.results.result import Result
from fedsmoo.runs.settings.merge import add_options
from fedsmoo.runs.simulation import Simulation

# What simulate takes as an object or by its name, and the setting that has the name.
OBJECTS = {n: n for n in ("model", "algorithm", "loss", "sampling")} | {"data": "dataset"}


def simulate(
    model: str | nn.Module = "mlp",
    data: Any = "digits",
    algorithm: str | Algorithm = "fedsmoo",
    *,
    clients: int | None = None,
    partition: str | Partition | Rule | None = None,
    client_indices: Sequence[Sequence[int] | np.ndarray] | None = None,
    loss: str | SampleLoss = "auto",
    sampling: str | Sampling = "uniform",
    metrics: str | Own | Sequence[str | Own] | None = None,
    callback: Callback | None = None,
    out: str | PathLike[str] | None = None,
    progress: bool | str | None = "auto",
    **settings: Any,
) -> Result:
    """Train a model by a federated method on simulated clients.

    Args:
        model: a name, or any ``nn.Module``; its present weights are the start, parameters with ``requires_grad=False``
            and constant buffers stay as they are, and what dropout and ``torch.rand`` draw follows the seed.
        data: a name, a ``Dataset``, ``(x_train, y_train, x_test, y_test)`` as tensors or arrays, or data in any form
            that :func:`fedsmoo.read_data` takes: torch and HuggingFace data sets, pandas, a list of clients' data. Its
            options (``x``, ``y``, ``client``, ``test``, ``pad``) can be given here, such as ``y="label"``.
        algorithm: a name, or a method with its hyper-parameters such as ``FedSMOO(r=0.1, beta=10.0)``.
        clients: how many clients there are (default 100; the data's own where it has some).
        partition: who holds which samples: ``"dirichlet-0.1"``, ``"pathological-3"``, ``"iid"``, ``"natural"``, a rule
            such as ``Dirichlet(0.1, replacement=False)``, or a function of ``(labels, classes, clients, seed)`` that
            returns each client's indices. Default: the data's own clients where it has some, else ``"dirichlet-0.1"``.
        client_indices: instead of ``clients``, ``partition`` and ``split``: each client's samples.
        loss: a name, or a function: outputs and labels of a batch -> one loss per sample (PyTorch's losses with
            ``reduction="none"``). Default: by the targets, cross-entropy, squared error, or binary cross-entropy.
        sampling: how a cohort is drawn: a name, a function of ``(seed, round, clients, cohort)``, or a rule's object.
        metrics: names, or functions of all ``(outputs, targets)`` of the test part; the first leads.
        callback: called with every round's record (and a :class:`RoundState`, if it takes two); ``False`` stops.
        out: also keep the run in this new folder; it can be resumed if settings name all of the above.
        progress: ``"auto"``: a bar in a terminal or notebook, else the log ``fedsmoo``; ``True``: lines; ``False``.
        settings: any other of ``fedsmoo.Config``, or an option of what is named: ``algorithm="fedprox", mu=0.1``.

    Returns:
        The result. Ctrl-C lets the round end and returns what there is; ``result.continue_()`` goes on.

    >>> len(simulate("softmax", "digits", "fedavg", clients=4, cohort=2, rounds=2, local_steps=1).history)
    2
    """
    settings |= told(clients=clients, partition=partition, metrics=metrics)
    refuse_wrong_kinds(model, algorithm, loss, sampling, callback)
    refuse_misplaced(settings, model, algorithm, loss, partition, client_indices)
    simulation, config = assemble_objects(model, data, algorithm, loss, sampling, client_indices, settings)
    return carry_out_simulation(simulation, config, callback, None if out is None else as_path(out, "out"), progress)


def load(path: str | PathLike[str], *, trust: bool = False, **objects: Any) -> Result:
    """Load the result in a run folder, of ``result.save``, :func:`fedsmoo.run` or the command line.

    Args:
        path: the folder.
        trust: run the code that it names although you have not run it before.
        objects: what no setting names, as it was given to :func:`simulate`: ``model=net, data=(x, y, x_test, y_test)``.

    Returns:
        A result: history and curves at once; its model, its clients' vectors and ``continue_`` once they are asked for,
        as far as the folder holds them.
    """
    places = {**OBJECTS, "partition": "split", "client_indices": "split"}
    for name in objects:
        if name not in places:
            raise unknown("object of a run", name, places)

    def make(config: Config) -> Simulation:
        named = objects_in(config)
        for name in objects:
            if places[name] not in named:
                raise FedsmooError(f"{name} is named by the run's settings: leave it out")
        if not named:
            return assemble(config)
        plain = {n: v for n, v in changed_settings(config).items() if n not in (*named, *OBJECTS.values())}
        if "split" in named:
            plain = {n: v for n, v in plain.items() if n not in DIVISION} | {"clients": config.clients}
        values = {n: objects.get(n, getattr(config, setting)) for n, setting in OBJECTS.items()}
        plain |= {"partition": objects["partition"]} if "partition" in objects else {}
        return assemble_objects(**values, client_indices=objects.get("client_indices"), settings=plain)[0]

    return load_result(as_path(path, "path"), make, [places[name] for name in objects], trust)


def told(**given: Any) -> dict[str, Any]:
    """Return the arguments that somebody gave."""
    return {n: v for n, v in given.items() if v is not None}


def assemble_objects(
    model: str | nn.Module,
    data: Any,
    algorithm: str | Algorithm,
    loss: str | SampleLoss,
    sampling: str | Sampling,
    client_indices: Sequence[Sequence[int] | np.ndarray] | None,
    settings: Mapping[str, Any],
) -> tuple[Simulation, Config]:
    """Return the simulation of what :func:`simulate` is given, and the config that a folder of it would hold."""
    named: dict[str, Any] = {"algorithm": algorithm, "model": model, "loss": loss, "sampling": sampling}
    named["loss"] = next((name for name, ours in LOSSES.items() if loss is ours), loss)
    plain, objects = settings_and_objects(named, data, settings)
    config = Config().replace(**with_named_options(plain, data, objects))
    own = as_dataset(data, config)
    if not isinstance(data, str):
        config = config.replace(dataset_options={})  # how it was read: the content counts
        objects["dataset"] = own
    config = with_division(config, own, plain, client_indices is not None or "partition" in objects)
    if client_indices is not None:
        objects["split"] = client_indices
    indices = given_clients(config, own, objects.get("partition"), client_indices)
    config = cut_cohort(config, clients=clients_of(config, own, indices))
    # Training and dtype must not reach the caller's own module.
    flat = None
    if isinstance(model, nn.Module):
        flat = wrap(own_copy(model), own, config.seed, output=config.output, start=start_of(config))
    drawing = own_sampling(objects["sampling"]) if "sampling" in objects else None
    brought = (objects.get("algorithm"), own, flat, indices, objects.get("loss"), drawing, objects.get("metrics"))
    simulation = assemble(config, *brought)
    return simulation, name_objects(config, objects, indices)


def settings_and_objects(
    named: Mapping[str, Any], data: Any, settings: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Tell what is named by settings, or has some that say the same, from objects that no setting names."""
    partition = settings.get("partition")
    objects = {n: v for n, v in named.items() if not isinstance(v, str)}
    plain = {n: str(v).removeprefix("torch.") if n in ("dtype", "device") else v for n, v in settings.items()}
    plain |= {n: v for n, v in named.items() if isinstance(v, str)}
    plain["dataset"] = data if isinstance(data, str) else f"{PREFIX}data"
    if isinstance(partition, Partition) and type(partition) in PARTITIONS.values() and not partition.in_settings:
        plain |= {n: v for n, v in partition.to_settings().items() if v}
    elif partition is not None and not isinstance(partition, str):
        objects["partition"] = plain.pop("partition")
    if not all(isinstance(one, str) for one in as_list(plain.get("metrics"))):
        objects["metrics"] = as_list(plain.pop("metrics"))
    return plain, objects


def with_named_options(settings: dict[str, Any], data: Any, objects: Collection[str]) -> dict[str, Any]:
    """Return settings in which what is no setting is an option: a hyper-parameter of the method, of the model, ..."""
    of_form = () if isinstance(data, str) else {f.name for f in dataclasses.fields(Options)} - FIELDS.keys()
    plain = {n: v for n, v in settings.items() if n in FIELDS}
    more = {n: v for n, v in settings.items() if n not in FIELDS and n not in of_form}
    stand = [*objects, *([] if isinstance(data, str) else ["dataset"])]
    found = add_options(plain, more, lambda value: value, stand)
    if reading := {n: settings[n] for n in of_form if n in settings}:
        found["dataset_options"] = {**(plain.get("dataset_options") or {}), **reading}
    for name, options in found.items():
        before = plain.get(name) if name.endswith("_options") else None
        for key in (n for n, v in (before or {}).items() if options[n] != v):
            raise FedsmooError(f"{key} is given twice, by its name and in {name}: choose one")
    return found


def refuse_wrong_kinds(model: Any, algorithm: Any, loss: Any, sampling: Any, callback: Any) -> None:
    """Refuse arguments that are neither a name nor an object of the right kind."""
    if not isinstance(algorithm, str | Algorithm):
        hint = f"{algorithm.__name__}()" if isinstance(algorithm, type) else "FedSMOO() or 'fedsmoo'"
        raise FedsmooError(f"algorithm is {brief(algorithm)}, but must be a method or its name: write {hint}")
    if not isinstance(model, str | nn.Module):
        hint = f"{model.__name__}(...)" if isinstance(model, type) else "nn.Linear(64, 10) or 'mlp'"
        raise FedsmooError(f"model is {brief(model)}, but must be an nn.Module or a model's name: write {hint}")
    refuse_wrong_arguments(callback=callback)
    if not callable(loss) and not isinstance(loss, str):
        raise FedsmooError(f"loss is {brief(loss)}, but must be a function of outputs and labels: one loss per sample")
    if isinstance(loss, type):
        hint = f"{loss.__name__}(reduction='none')" if issubclass(loss, nn.Module) else f"{loss.__name__}()"
        raise FedsmooError(f"loss is the class {loss.__name__}, but must be a function or an object: write {hint}")
    if not callable(sampling) and not isinstance(sampling, str) and not has_rule(sampling):
        raise FedsmooError(f"sampling is {brief(sampling)}, but must be a name such as 'uniform', or a function")


def as_dataset(data: Any, config: Config) -> Dataset:
    """Return the data set that a caller names, or has in any form; options of a form are ``dataset_options``."""
    if isinstance(data, str):
        return sources.load(data, config.data, config.seed, config.dataset_options)
    return read_data(data, **config.dataset_options)


def refuse_misplaced(
    settings: Mapping[str, Any], model: Any, algorithm: Any, loss: Any, partition: Any, clients: Any
) -> None:
    """Refuse settings that an argument takes the place of, which would change nothing, and divisions that are none."""
    given = {"model": model, "algorithm": algorithm, "partition": partition or ""}
    given["loss"] = "" if any(loss is ours for ours in LOSSES.values()) else loss  # one of ours has a name, and options
    objects = [name for name, value in given.items() if not isinstance(value, str)]
    for name, argument in {"dataset": "data", **{f"{name}_options": name for name in objects}}.items():
        if settings.get(name):
            raise FedsmooError(f"{name} is {brief(settings[name])}, but {argument} says it all: leave {name} out")
    method = algorithm_class(algorithm) if isinstance(algorithm, str) else type(algorithm)
    for name in settings.keys() & {f.name for f in dataclasses.fields(method)}:
        refuse_given_to_object(name, settings[name], algorithm, method)
    rule = isinstance(partition, str | Partition) or (callable(partition) and not isinstance(partition, type))
    if partition is not None and not rule:
        hint = f"{partition.__name__}()" if isinstance(partition, type) else "'dirichlet-0.1' or Dirichlet(0.1)"
        raise FedsmooError(f"partition is {brief(partition)}, but must be a rule or its name: write {hint}")
    if getattr(partition, "refill", False) and not getattr(partition, "replacement", True):
        raise FedsmooError(f"partition={partition!r}: refill is of a division with replacement: leave it out")
    if clients is not None and not isinstance(clients, list | tuple | np.ndarray):
        raise FedsmooError(
            f"client_indices is {brief(clients)}, but must be a list with each client's samples, [[0, 1], [2, 3]]"
        )
    refuse_two_divisions(settings, clients)


def refuse_given_to_object(name: str, value: Any, algorithm: str | Algorithm, method: type[Algorithm]) -> None:
    """Refuse a hyper-parameter beside a method that was made with its own; warn of one that is a setting, too."""
    cls = method.__name__
    if isinstance(algorithm, Algorithm) and name not in FIELDS:
        say = f"write {cls}({name}={value!r})"
        raise FedsmooError(f"{name} is a hyper-parameter of {cls}, no setting of simulate: {say}")
    if isinstance(algorithm, str) and name in FIELDS:
        say = f"algorithm_options={{{name!r}: {value!r}}}"
        told = f"{name} is a setting of every run, and a hyper-parameter of {cls}, too: taken as the setting"
        warnings.warn(f"{told}; the method's is {say}", FedsmooWarning, stacklevel=4)


def with_division(config: Config, data: Dataset, given: Mapping[str, Any], elsewhere: bool) -> Config:
    """Return the config with its division resolved: the data's own clients, if it has some and nobody says otherwise.

    ``elsewhere``: who holds what is not for the config to say.
    """
    names = set(given)
    if not elsewhere and config.split is None and data.natural is not None and "partition" not in names:
        config, names = config.replace(partition="natural"), names | {"partition"}
    if not elsewhere and config.partition == "natural" and data.natural is not None and "clients" in names:
        refuse_other_count(config, data)
    config = resolve_division(config, names - {"clients"} if config.partition == "natural" else names)
    refuse_unused_options(config, names)
    return config


def refuse_two_divisions(settings: Mapping[str, Any], client_indices: Any) -> None:
    """Refuse settings beside each client's samples, or beside a rule, that say otherwise who holds what."""
    others, rule = ["split", *DIVISION], settings.get("partition")
    if client_indices is not None:
        what = "client_indices"
    elif rule is not None and not isinstance(rule, str):
        what, others = f"partition={rule!r}", [n for n in others if n not in ("clients", "partition")]
    else:
        return
    for name in others:
        same = name == "clients" and client_indices is not None and settings.get(name) == len(client_indices)
        if settings.get(name) is not None and not same:
            raise FedsmooError(f"both {what} and {name}={settings[name]!r} say who holds which samples: choose one")
