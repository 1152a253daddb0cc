"""What a method may ask of the model on the batch of a local step, besides gradients of the run's loss."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from fedsmoo.core.gradient import Each, Loss, Running, row_axes, sample_rows, weighed
from fedsmoo.engines.oracles.oracle import Oracle
from fedsmoo.engines.oracles.products import products
from fedsmoo.engines.statistics.passes import by_length, cut_given
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

    def mean(self, v: Tensor, each: Each, given: Sequence[Any]) -> Tensor:
        with self._products():
            return self._mean(self.oracle.look(v, self.batch, self.sees_features), each, given)

    def loss(self, v: Tensor) -> Tensor:
        with self._products():
            return self._mean(self.oracle.look(v, self.batch, False), self.oracle.task.loss, ())

    def _mean(self, out: Any, each: Each, given: Sequence[Any]) -> Tensor:
        b = self.batch
        with torch.no_grad():
            if b.weight.dim() == 1:
                return weighed(sample_rows(each, out, b.y, given).to(b.weight), b.weight)
            model = self.oracle.task.model
            groups: dict[int, Any] = by_length(model, b) or {b.weight.shape[1]: slice(None)}
            parts = []
            for n, rows in groups.items():
                theirs = [cut_given(v, model, b, rows, n) for v in given]
                found = rows_of_clients(each, cut_outputs(out, rows, n), b.y[rows, :n], theirs)
                parts.append((rows, weighed(found.to(b.weight), b.weight[rows, :n])))
            whole = b.weight.new_zeros(len(b.weight), parts[0][1].shape[-1])  # clients that have finished are in none
            for rows, found in parts:
                whole[rows] = found
            return whole

    def outputs(self, v: Tensor) -> Tensor:
        with self._products():
            return self.oracle.look(v, self.batch, False)

    def features(self, v: Tensor) -> Tensor:
        with self._products():
            return self.oracle.look(v, self.batch, True)[1]


def rows_of_clients(each: Each, out: Any, y: Tensor, given: Sequence[Any]) -> Tensor:
    """Return what a function of one client makes of the samples of C of them, ``[C, B, D]``."""

    def of_one(out: Any, y: Tensor, *given: Any) -> Tensor:
        return sample_rows(each, out, y, given)

    return vmap(of_one, (0, 0, *row_axes(given)), randomness="error")(out, y, *given)


def cut_outputs(out: Any, rows: Tensor, n: int) -> Any:
    """Return outputs, or outputs and features, of some clients, which have ``n`` samples each."""
    return tuple(v[rows, :n] for v in out) if isinstance(out, tuple) else out[rows, :n]
