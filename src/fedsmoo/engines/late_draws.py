"""Refuse models that draw random numbers in some local steps only, which the check before training does not see."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fedsmoo.core import FedsmooError
from fedsmoo.core.gradient import Loss
from fedsmoo.core.random.noise import Noise
from fedsmoo.engines.oracles.oracle import Oracle
from fedsmoo.engines.task import Batch, Task
from fedsmoo.models.draws import drawing


def generator_state(device: torch.device) -> Tensor:
    """Return the state of PyTorch's global generator, which no step of a run should advance."""
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def refuse_late_draws(task: Task, before: Tensor, train: Callable[[Oracle], object], oracle: Oracle) -> None:
    """Refuse a model that advanced PyTorch's global generator since the state ``before``.

    Another thread or the method may have done it: ``train``, which trains with an oracle, is run once more with the
    model's draws counted, to find out.

    Raises:
        FedsmooError: if it was the model.
    """
    if task.model.random or not task.model.examined or torch.equal(before, generator_state(task.device)):
        return
    counts: list[int] = []

    def counted(w: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        with drawing(task.model.module, Noise((0, 0))) as draws:
            out = oracle.gradient(w, batch)
        counts.append(draws.count)
        return out

    def own(w: Tensor, batch: Batch, loss: Loss, given: Sequence[Any], features: bool) -> tuple[Tensor, Tensor]:
        with drawing(task.model.module, Noise((0, 0))) as draws:
            out = oracle.own(w, batch, loss, given, features)
        counts.append(draws.count)
        return out

    train(Oracle(task, counted, own, oracle.look))
    if any(counts):
        raise FedsmooError(
            f"the model {type(task.model.module).__name__} draws random numbers in some local steps only, which the "
            "look before training did not see: let it draw whatever the samples are"
        )
