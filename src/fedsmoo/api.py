"""The Python entry point: one call from a model and data to a trained model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from fedsmoo.core import Algorithm, FedsmooError
from fedsmoo.core.errors import brief
from fedsmoo.data.batches.cohort import Sampling, own_sampling
from fedsmoo.data.check import check, checked, from_arrays, refuse_untrained_classes
from fedsmoo.data.dataset import Dataset
from fedsmoo.data.division.own import Rule, own_rule
from fedsmoo.data.division.partition import Partition
from fedsmoo.data.sources import load
from fedsmoo.models import FlatModel, wrap
from fedsmoo.models.base import copied
from fedsmoo.models.loss import SampleLoss, cross_entropy
from fedsmoo.runs.build import assemble
from fedsmoo.runs.config import DIVISION, Config
from fedsmoo.runs.division import refuse_other_count, refuse_unused_options, resolve_division
from fedsmoo.runs.record import Callback, Result


def simulate(
    model: str | nn.Module = "mlp",
    data: str | Dataset | Sequence[Any] = "digits",
    algorithm: str | Algorithm = "fedsmoo",
    *,
    clients: int | None = None,
    partition: str | Partition | Rule | None = None,
    client_indices: Sequence[Sequence[int] | np.ndarray] | None = None,
    loss: str | SampleLoss = cross_entropy,
    sampling: str | Sampling = "uniform",
    dtype: str | torch.dtype = "float32",
    device: str | torch.device = "auto",
    callback: Callback | None = None,
    **settings: Any,
) -> Result:
    """Train a model by a federated method on simulated clients.

    Args:
        model: a name, or any ``nn.Module`` without buffers (its present weights are the start; parameters with
            ``requires_grad=False`` stay as they are; what dropout and ``torch.rand`` draw follows the seed).
        data: a name, a ``Dataset``, or ``(x_train, y_train, x_test, y_test)`` as tensors or arrays.
        algorithm: a name, or a method with its hyper-parameters such as ``FedSMOO(r=0.1, beta=10.0)``.
        clients: how many clients there are (default 100; the data's own where it has some).
        partition: who holds which samples: ``"dirichlet-0.1"``, ``"pathological-3"``, ``"iid"``, ``"natural"``, or a
            rule such as ``Dirichlet(0.1, replacement=False)``, or a function of ``(labels, classes, clients, seed)``
            that returns each client's indices. Default: the data's own clients where it has some, else
            ``"dirichlet-0.1"``.
        client_indices: instead of ``clients``, ``partition`` and ``split``: each client's samples.
        loss: outputs and labels of a batch -> one loss per sample (PyTorch's losses with ``reduction="none"``).
        sampling: how a round's cohort is drawn: a name, or a function of ``(seed, round, clients, cohort)`` that
            returns the clients of the round.
        callback: called with every round's record; returning ``False`` stops the run: ``lambda r: not r.reached(0.9)``.
            Where ``eval_every`` is above 1, ``r.test_accuracy`` is ``None`` in most rounds.
        settings: any other setting of a run: ``cohort``, ``rounds``, ``local_epochs`` or ``local_steps``,
            ``batch_size``, ``lr``, ``lr_decay``, ``weight_decay``, ``clip``, ``seed``, ``engine``, ... (see
            ``fedsmoo.Config``).

    >>> result = simulate("softmax", "digits", "fedavg", clients=4, cohort=2, rounds=2, local_steps=1)
    >>> len(result.history)
    2
    """
    if not isinstance(algorithm, str | Algorithm):
        hint = f"{algorithm.__name__}()" if isinstance(algorithm, type) else "FedSMOO() or 'fedsmoo'"
        raise FedsmooError(f"algorithm is {algorithm!r}, but must be a method or its name: write {hint}")
    if not isinstance(model, str | nn.Module):
        hint = f"{model.__name__}(...)" if isinstance(model, type) else "nn.Linear(64, 10) or 'mlp'"
        raise FedsmooError(f"model is {model!r}, but must be an nn.Module or a model's name: write {hint}")
    if callback is not None and not callable(callback):
        raise FedsmooError(f"callback is {callback!r}, but must be a function of a round's record")
    if not callable(loss) and not isinstance(loss, str):
        raise FedsmooError(f"loss is {loss!r}, but must be a function of outputs and labels: one loss per sample")
    if not callable(sampling) and not isinstance(sampling, str):
        raise FedsmooError(f"sampling is {brief(sampling)}, but must be a name such as 'uniform', or a function")
    refuse_misplaced(settings, model, algorithm, partition, client_indices)
    dtype = str(dtype).removeprefix("torch.")
    settings |= {n: v for n, v in (("clients", clients), ("partition", partition)) if v is not None}
    refuse_two_divisions(settings, client_indices)
    settings |= {n: v for n, v in (("loss", loss), ("sampling", sampling)) if isinstance(v, str)}
    plain = {n: v for n, v in settings.items() if n != "partition" or isinstance(v, str)}
    config = Config(dtype=dtype, device=str(device)).replace(**plain)
    data = as_dataset(data, config)
    config = divided(config, data, plain, client_indices is not None or not isinstance(partition, str | None))
    flat: FlatModel | None = None
    if isinstance(model, str):
        config = config.replace(model=model)
    else:
        flat = wrap(copied(model), data)  # training and dtype must not reach the caller's own module
    if isinstance(algorithm, str):
        config, algorithm = config.replace(algorithm=algorithm), None  # type: ignore[assignment]
    indices = given_clients(config, data, partition, client_indices)
    losses = None if isinstance(loss, str) else loss
    drawing = None if isinstance(sampling, str) else own_sampling(sampling)
    return assemble(config, algorithm, data, flat, indices, losses, drawing).run(callback)  # type: ignore[arg-type]


def as_dataset(data: str | Dataset | Sequence[Any], config: Config) -> Dataset:
    """The data set that a caller names, has, or gives as four arrays."""
    if isinstance(data, str):
        return load(data, config.data, config.seed, config.dataset_options)
    if isinstance(data, Dataset):
        return check(data)
    if not isinstance(data, list | tuple):
        raise FedsmooError(
            f"data is {brief(data)}, but must be a data set's name, a Dataset, or (x_train, y_train, x_test, y_test)"
        )
    if len(data) != 4:
        raise FedsmooError(f"data has {len(data)} parts, but must be (x_train, y_train, x_test, y_test)")
    own = from_arrays(*data)
    refuse_untrained_classes(own)
    return own


def refuse_misplaced(settings: Mapping[str, Any], model: Any, algorithm: Any, partition: Any, clients: Any) -> None:
    """Refuse settings that an argument takes the place of, which would change nothing, and divisions that are none."""
    given = {"model": model, "algorithm": algorithm, "partition": partition or ""}
    objects = [name for name, value in given.items() if not isinstance(value, str)]
    for name, argument in {"dataset": "data", **{f"{name}_options": name for name in objects}}.items():
        if settings.get(name):
            raise FedsmooError(f"{name} is {brief(settings[name])}, but {argument} says it all: leave {name} out")
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


def divided(config: Config, data: Dataset, given: Mapping[str, Any], elsewhere: bool) -> Config:
    """The config with its division resolved: the data's own clients, where it has some and nobody says otherwise.

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


def refuse_two_divisions(
    settings: Mapping[str, Any], client_indices: Sequence[Sequence[int] | np.ndarray] | None
) -> None:
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


def given_clients(
    config: Config,
    data: Dataset,
    partition: str | Partition | Rule | None,
    client_indices: Sequence[Sequence[int] | np.ndarray] | None,
) -> list[np.ndarray] | None:
    """Each client's samples as a caller gives them, or as a rule of theirs does; ``None`` where the config says it."""
    if client_indices is not None:
        return checked(client_indices, len(data.x_train), "client_indices")
    if partition is None or isinstance(partition, str):
        return None
    rule = partition.split if isinstance(partition, Partition) else own_rule(partition)
    return rule(data.y_train.cpu().numpy(), data.classes, config.clients, config.seed)
