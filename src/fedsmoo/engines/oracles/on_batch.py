"""What a method may ask of the model on the batch of a local step, besides gradients of the run's loss."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor

from fedsmoo.core.gradient import Loss, Running
from fedsmoo.engines.oracles.oracle import Oracle
from fedsmoo.engines.oracles.products import products
from fedsmoo.engines.task import Batch


def carried(batch: Batch, running: Running | None) -> Batch:
    """Return a batch beside the running statistics of the models that see it."""
    return batch if running is None else Batch(batch.x, batch.y, batch.weight, batch.noise, batch.real, running)


class OnBatch:
    """An oracle's model, or those of C clients, on a step's batch.

    ``sees_features`` says whether the method declares that it reads features. ``compiled`` steps have the precision of
    products set around them.
    """

    def __init__(self, oracle: Oracle, batch: Batch, sees_features: bool, compiled: bool = False) -> None:
        self.oracle, self.batch, self.sees_features, self.compiled = oracle, batch, sees_features, compiled

    def carrying(self, running: Running) -> OnBatch:
        return OnBatch(self.oracle, carried(self.batch, running), self.sees_features, self.compiled)

    def _products(self) -> AbstractContextManager[None]:
        return nullcontext() if self.compiled else products(self.oracle.task)

    def own(self, v: Tensor, loss: Loss, given: Sequence[Any]) -> tuple[Tensor, Tensor]:
        with self._products():
            return self.oracle.own(v, self.batch, loss, given, self.sees_features)

    def outputs(self, v: Tensor) -> Tensor:
        with self._products():
            return self.oracle.look(v, self.batch, False)

    def features(self, v: Tensor) -> Tensor:
        with self._products():
            return self.oracle.look(v, self.batch, True)[1]
