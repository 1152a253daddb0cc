"""What an engine is given each round, and what it returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from fedsmoo.core import Algorithm, LocalRule, Vectors
from fedsmoo.data.batches.plan import Plan
from fedsmoo.engines.client_state.table import ClientTable
from fedsmoo.engines.task import Samples, Task


def identity(v: Tensor) -> Tensor:
    """The same: what one process knows is all there is."""
    return v


@dataclass(frozen=True)
class Work:
    """One round: what is sent, to whom, on which batches. ``weights`` sum to 1 over the cohort, whose size ``varies``
    from round to round, or does not."""

    number: int
    down: Vectors
    clients: list[int]
    plan: Plan
    lr: float
    share: float
    weights: list[float]
    varies: bool = False


@dataclass(frozen=True)
class Outcome:
    """The weighted mean of what the cohort sent, and measurements of the local training."""

    mean: Vectors
    loss: float  # mean minibatch loss over clients and their steps
    drift: float  # mean ||w_i - w||^2
    clients: int = 0  # how many there were
    moved: Tensor | None = None  # sum of w_i - w over the clients of this process
    everywhere: Callable[[Tensor], Tensor] = identity  # adds a number up over all processes

    def drift_from(self, before: Tensor, after: Tensor) -> float | None:
        """mean ||w_i - w'||^2, w' being the model ``after`` the server's step; ``before`` is w. None: not known.

        Nobody keeps all the w_i until then. With d_i = w_i - w and g = w' - w it is mean ||d_i||^2 - 2 mean <d_i, g> +
        ||g||^2, of which the first is the drift: exact up to the rounding of that.
        """
        if self.moved is None:
            return None
        step = (after - before).double()
        product = self.everywhere(self.moved.double() @ step) / self.clients
        found = torch.stack([product, step @ step]).tolist()  # one transfer
        return max(self.drift - 2 * found[0] + found[1], 0.0)


class Engine(Protocol):
    """Runs the local steps of a cohort and averages what it sends."""

    name: str
    why: str  # it was taken, in a few words
    table: ClientTable

    @property
    def at_once(self) -> int | None:
        """How many clients train at once, in cohorts that have as many; none: one after the other."""
        ...

    def run_round(self, work: Work, meanwhile: Callable[[], None] | None = None) -> Outcome:
        """One round of local training; ``meanwhile`` is called where the host would otherwise wait for the device."""
        ...

    def evaluate(self, w: Tensor, on: Samples | None = None) -> tuple[float, float]:
        """Accuracy and loss of a model on the test part, or on other samples."""
        ...


def mean_steps(steps: Sequence[int] | np.ndarray, weights: Sequence[float]) -> float:
    """The mean number of local steps over a cohort, with the weights of the vectors' mean.

    >>> mean_steps([2, 4], [0.5, 0.5]), mean_steps([2, 4], [0.25, 0.75])
    (3.0, 3.5)
    """
    if len(set(weights)) == 1:
        return float(np.mean(steps))
    return float(np.dot(np.asarray(steps, float), np.asarray(weights)))


@dataclass
class Sums:
    """Weighted sums over clients, in the order in which clients are added."""

    up: Vectors | None = None
    loss: Tensor | float = 0.0
    drift: Tensor | float = 0.0
    moved: Tensor | None = None

    def add(self, up: Vectors, loss: Tensor, drift: Tensor, moved: Tensor | None = None) -> None:
        """A client's part, or the sums of several; ``moved`` is w_i - w, the path of a client's model."""
        self.up = up if self.up is None else Vectors(**{n: getattr(self.up, n) + v for n, v in up.items()})
        self.loss, self.drift = self.loss + loss, self.drift + drift
        self.moved = moved if self.moved is None or moved is None else self.moved + moved

    def outcome(self, clients: int) -> Outcome:
        assert self.up is not None
        both = torch.stack([torch.as_tensor(self.loss), torch.as_tensor(self.drift)]).tolist()  # one transfer
        return Outcome(self.up, both[0] / clients, both[1] / clients, clients, self.moved)


@dataclass(frozen=True)
class Setup:
    """Everything an engine needs for a whole run."""

    task: Task
    algorithm: Algorithm
    rule: LocalRule
