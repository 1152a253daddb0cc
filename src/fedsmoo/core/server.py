"""The server's half of a round, written once for simulated clients and for those of a real federation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch

from fedsmoo.core.algorithm import Algorithm
from fedsmoo.core.errors import FedsmooError
from fedsmoo.core.round import Round
from fedsmoo.core.vectors import Vectors


class ServerSettings(Protocol):
    """The settings of a run that its server needs, round after round."""

    @property
    def rounds(self) -> int: ...
    @property
    def lr(self) -> float: ...
    @property
    def lr_decay(self) -> float: ...
    @property
    def weighted(self) -> bool: ...
    @property
    def eval_every(self) -> int: ...


def lr_of(settings: ServerSettings, number: int) -> float:
    """Return the local learning rate of a round, counted from 0."""
    return settings.lr * settings.lr_decay**number


def is_evaluated(settings: ServerSettings, number: int) -> bool:
    """Whether the model is evaluated after a round, counted from 0: every so many rounds, and after the last one."""
    return (number + 1) % settings.eval_every == 0 or number + 1 >= settings.rounds


def weights_of(settings: ServerSettings, samples: Sequence[int]) -> list[float]:
    """Return what each client counts in the mean, by its samples or all alike; they sum to 1."""
    sizes = np.array([n if settings.weighted else 1 for n in samples], float)
    return (sizes / sizes.sum()).tolist() if len(sizes) else []


def mean_steps(steps: Sequence[int] | np.ndarray, weights: Sequence[float]) -> float:
    """Return the mean number of local steps over a cohort, with the weights of the vectors' mean.

    >>> mean_steps([2, 4], [0.5, 0.5]), mean_steps([2, 4], [0.25, 0.75])
    (3.0, 3.5)
    """
    if len(set(weights)) == 1:
        return float(np.mean(steps))
    return float(np.dot(np.asarray(steps, float), np.asarray(weights)))


def round_of(
    settings: ServerSettings, number: int, steps: Sequence[int] | np.ndarray, weights: Sequence[float], share: float
) -> Round:
    """Return what ``aggregate`` may know of a round: number, learning rate, mean steps, share and count of clients."""
    return Round(number, lr_of(settings, number), mean_steps(steps, weights), share, n=len(weights))


def server_step(
    algorithm: Algorithm, server: Vectors, mean: Vectors, rnd: Round, size: int, loss: float
) -> Vectors | None:
    """Return the server's new vectors from the mean of what was sent; ``None`` if they, or the loss, are not finite.

    Raises:
        FedsmooError: if what was sent does not have the declared shape.
    """
    refuse_other_shapes(algorithm, mean, size)
    new = algorithm.aggregate(server, mean, rnd)
    finite = math.isfinite(loss) and bool(torch.stack([torch.isfinite(v).all() for _, v in new.items()]).all())
    return new if finite else None


def refuse_other_shapes(algorithm: Algorithm, sent: Vectors, size: int) -> None:
    """Refuse to count and use what does not have the declared shape: a vector of the model's size, or one number."""
    for name, v in sent.items():
        want = algorithm.length(name, size)
        if v.numel() != want:
            raise FedsmooError(f"{algorithm.label}.finish sends {v.numel()} numbers as {name}, but declares {want}")
