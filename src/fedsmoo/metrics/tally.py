"""The mean loss and the metrics of a model on samples, from sums over batches or from all outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedsmoo.core.errors import FedsmooError
from fedsmoo.metrics.average import finite_or_none
from fedsmoo.metrics.metric import Metric

MOST_KEPT = 2**28  # numbers that are kept for metrics of all outputs: 1 GiB


@dataclass(frozen=True)
class Scores:
    """What an evaluation finds: the mean loss of samples and each metric by its name, the first of which leads.

    A metric that is no finite number for these outputs (the AUC of samples of one class) is ``None``.
    """

    loss: float
    metrics: dict[str, float | None]

    @property
    def lead(self) -> float | None:
        """The value of the metric that leads."""
        return next(iter(self.metrics.values()))


class Tally(NamedTuple):
    """Sums over samples, left on the device: of losses, then those of each metric, so many as ``lengths`` say."""

    metrics: tuple[Metric, ...]
    sums: Tensor
    lengths: tuple[int, ...]
    outputs: Tensor | None = None  # of all samples, on the host, where a metric needs them

    def scores(self, y: Tensor) -> Scores:
        """Return what they come to; ``y`` are the targets of the samples."""
        totals = np.array(self.sums.tolist())  # one transfer
        loss = float(totals[0] / len(y))
        parts = iter(np.split(totals[1:], np.cumsum(self.lengths)[:-1]) if self.lengths else [])
        targets = y if self.outputs is None else y.cpu()
        found: dict[str, float | None] = {}
        for m in self.metrics:
            value = loss
            if m.sums is not None:
                value = m.value(next(parts), len(y))
            elif m.whole is not None and self.outputs is not None:
                given = self.outputs, targets  # a user's function may write to what it is given
                value = m.whole(*(t.clone() for t in given)) if m.mine else m.whole(*given)
            found[m.name] = finite_or_none(value)
        return Scores(loss, found)


class Tallying:
    """Adds up losses and metrics of batches of samples; ``loss`` is of outputs and targets, one a sample."""

    def __init__(
        self, metrics: tuple[Metric, ...], loss: Callable[[Tensor, Tensor], Tensor], samples: int, device: torch.device
    ) -> None:
        self.metrics, self.each_loss, self.samples = metrics, loss, samples
        self.loss = torch.zeros((), dtype=torch.float64, device=device)
        self.totals: list[Tensor] = []
        self.kept: list[Tensor] = []

    def add(self, out: Tensor, y: Tensor) -> None:
        """Add a batch: outputs, and targets as the data set has them."""
        each = [m.sums(out, y) for m in self.metrics if m.sums is not None]
        self.totals = [a + b for a, b in zip(self.totals, each, strict=True)] if self.totals else each
        self.loss += self.each_loss(out, y).sum()
        if names := [m.name for m in self.metrics if m.whole is not None]:
            refuse_many(self.samples * (out.numel() // max(len(out), 1)), names)
            self.kept.append(out.detach().cpu())

    def tally(self) -> Tally:
        """Return the sums so far."""
        sums = torch.cat([self.loss[None], *self.totals])
        return Tally(self.metrics, sums, tuple(map(len, self.totals)), torch.cat(self.kept) if self.kept else None)


def refuse_many(numbers: int, names: Sequence[str]) -> None:
    """Refuse to keep more outputs than the memory should hold."""
    if numbers > MOST_KEPT:
        raise FedsmooError(
            f"metrics: {', '.join(names)} needs all outputs at once, which are {numbers:,} numbers, more than "
            f"{MOST_KEPT:,}: leave it out, or test on fewer samples"
        )
