"""What a data set may have beside samples and labels: names of several inputs, weights of samples, its own clients."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedsmoo.core.errors import FedsmooError, brief
from fedsmoo.data.dataset import Dataset


def check_beside(dataset: Dataset) -> None:
    """Refuse names of inputs that are none or do not fit the samples, and weights or clients that are none."""
    _check_inputs(dataset)
    _check_weights(dataset)
    _check_clients(dataset)


def _check_inputs(dataset: Dataset) -> None:
    """Names of inputs are words, each once, and as many as there are inputs on axis 1."""
    names, x = dataset.inputs, dataset.x_train
    if names is None:
        return
    where = f"data set {dataset.name}: inputs is {names!r}"
    words = isinstance(names, tuple) and all(isinstance(n, str) and n.isidentifier() for n in names)
    if not words or not names or len(set(names)) != len(names):
        raise FedsmooError(f'{where}, but must be names, each once, as a model\'s forward has them: ("input_ids", ...)')
    if x.dim() < 3 or x.shape[1] != len(names) or dataset.is_image:
        raise FedsmooError(
            f"{where}, but the samples have the shape {list(x.shape[1:])}: stack {len(names)} inputs of one shape and "
            "type on axis 1, torch.stack(..., 1)"
        )


def _check_weights(dataset: Dataset) -> None:
    """Weights of samples are one number above 0 for each training sample."""
    weights, n = dataset.weights, len(dataset.x_train)
    if weights is None:
        return
    where = f"data set {dataset.name}: weights"
    if not isinstance(weights, Tensor) or not weights.is_floating_point() or weights.shape != (n,):
        found = f"{weights.dtype} {list(weights.shape)}" if isinstance(weights, Tensor) else type(weights).__name__
        raise FedsmooError(f"{where} are {found}, but must be one float for each of the {n} training samples: [{n}]")
    bad = ~(torch.isfinite(weights) & (weights >= 0))
    if bool(bad.any()):
        first = int(bad.nonzero()[0])
        value = weights[first].item()
        raise FedsmooError(f"{where}: sample {first} has the weight {value:g}, but it must be 0 or above")
    mean = float(weights.double().mean())
    if abs(mean - 1) > 1e-4:
        how = "divide by it, or use from_arrays" if mean else "some samples must count"
        raise FedsmooError(f"{where} have the mean {mean:g}, but must have 1: {how}")


def _check_clients(dataset: Dataset) -> None:
    """Natural clients have training samples; their own test samples, if any, are of the test part."""
    mine, tests, count = dataset.natural, dataset.natural_test, len(dataset.x_test)
    for name, lists in (("natural", mine), ("natural_test", tests)):
        for i, samples in enumerate(lists or ()):
            whole = isinstance(samples, Tensor) and samples.dtype in (torch.int64, torch.int32, torch.int16)
            if not isinstance(samples, Tensor) or samples.dim() != 1 or not (whole or not samples.numel()):
                raise FedsmooError(
                    f"data set {dataset.name}: {name}[{i}] is {brief(samples)}, but must be the numbers of client "
                    f"{i}'s samples, an int64 tensor [n]: of a mask use mask.nonzero()[:, 0]"
                )
    for i, samples in enumerate(mine or ()):
        if samples.numel() == 0:
            raise FedsmooError(f"data set {dataset.name}: natural client {i} is empty")
    if (far := _first_outside(mine, len(dataset.x_train))) is not None:
        raise FedsmooError(f"data set {dataset.name}: natural client {far} points outside the data")
    if tests is None:
        return
    if mine is None or len(tests) != len(mine):
        raise FedsmooError(f"data set {dataset.name}: natural_test is of {len(tests)} clients, but natural of others")
    if (far := _first_outside(tests, count)) is not None:
        raise FedsmooError(f"data set {dataset.name}: client {far} points outside the test part")


def _first_outside(lists: Sequence[Tensor] | None, count: int) -> int | None:
    """Return the first client one of whose samples is not among ``count``; ``None`` if there is none."""
    if not (some := [samples for samples in lists or () if samples.numel()]):
        return None
    everyone_s = torch.cat(some)  # at once: clients may be hundreds of thousands
    places = ((everyone_s < 0) | (everyone_s >= count)).nonzero()
    if not lists or not len(places):
        return None
    ends = torch.tensor([len(samples) for samples in lists]).cumsum(0)
    return int(torch.searchsorted(ends, places[0], right=True))


def with_mean_one(weights: Tensor) -> Tensor:
    """Return weights of samples divided by their mean, so that how large they are in all changes nothing."""
    found = weights.double()
    sound = found.numel() > 0 and bool((torch.isfinite(found) & (found >= 0)).all()) and float(found.sum()) > 0
    return found / found.mean() if sound else found  # what is not sound is refused by `check_beside`
