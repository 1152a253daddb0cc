"""Gradients of models that a compiler cannot follow, though they are plain PyTorch: BatchNorm, and what no trace takes.

To ``torch.compile`` such a gradient is one operator, which runs as it is written; a CUDA graph records what it does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from fedsmoo.core import Round
from fedsmoo.core.gradient import Running
from fedsmoo.core.random.layers import ClientsNoise
from fedsmoo.engines.oracles.drawing import Axes, noise_of, sample_axes
from fedsmoo.engines.oracles.layers import needs_layers
from fedsmoo.engines.oracles.oracle import Oracle
from fedsmoo.engines.statistics.passes import begin, end
from fedsmoo.engines.task import Batch

# Whose gradient the operator below computes, and which of PyTorch's layers (autograd, autocast) were in force outside.
_current: ContextVar[tuple[SealedOracle, Any, Any]] = ContextVar("current")


@torch.library.custom_op("fedsmoo::sealed_gradient", mutates_args=())
def _gradient(
    w: Tensor,
    x: Tensor,
    y: Tensor,
    weight: Tensor,
    keys: Tensor | None,
    steps: Tensor | None,
    real: Tensor | None,
    before: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    oracle, include, exclude = _current.get()
    with torch._C._ForceDispatchKeyGuard(include, exclude):  # an operator has no autograd inside
        gradients, losses, after = oracle.taken(w, x, y, weight, keys, steps, real, before)
    return gradients.contiguous(), losses.contiguous(), w.new_empty(0) if after is None else after.contiguous()


@_gradient.register_fake
def _(w: Tensor, x: Tensor, y: Tensor, weight: Tensor, *beside: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    after = w.new_empty(0 if beside[-1] is None else beside[-1].shape)
    return w.new_empty(w.shape), w.new_empty(len(w)), after


def tensors(w: Tensor, batch: Batch) -> tuple[Any, ...]:
    """Return all tensors that a gradient depends on, as :meth:`SealedOracle.taken` takes them."""
    n, begun = batch.noise, begin(batch)
    keys, steps = (n.keys, n.steps) if isinstance(n, ClientsNoise) else (None, None)
    return w, batch.x, batch.y, batch.weight, keys, steps, batch.real, begun[0] if begun else None


def sealed(oracle: Oracle) -> Oracle:
    """Return an oracle of C clients by ``vmap``, sealed if its model has layers that are computed in another form."""
    model = oracle.task.model
    return SealedOracle(oracle) if needs_layers(model) or model.padding == "masked" else oracle


class SealedOracle(Oracle):
    """An oracle of C clients whose gradient is one operator to ``torch.compile``, and whose model may draw."""

    def __init__(self, oracle: Oracle) -> None:
        super().__init__(oracle.task, oracle.function, oracle._own, oracle._look)
        self.axes: Axes = sample_axes(oracle.task) if oracle.task.model.random else ()

    def with_noise(self, batch: Batch, rnd: Round) -> Batch:
        if not self.task.model.random:
            return batch
        return Batch(batch.x, batch.y, batch.weight, noise_of(self.axes, rnd, batch), batch.real)

    def taken(
        self, w: Tensor, x: Tensor, y: Tensor, weight: Tensor, *beside: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return gradients, losses and statistics as functions of tensors alone."""
        keys, steps, real, before = beside
        noise = None
        if keys is not None and steps is not None and real is not None:
            noise = ClientsNoise(keys, steps, real, weight.shape[1], self.axes)
        running = None if before is None else Running(before)
        gradients, losses = self.function(w, Batch(x, y, weight, noise, real, running))
        return gradients, losses, None if running is None else running.now

    def in_step(self, w: Tensor, batch: Batch, working: Tensor | None = None) -> tuple[Tensor, Tensor]:
        gradients, losses, after = torch.ops.fedsmoo.sealed_gradient(*tensors(w, batch))
        end(batch, (after,))
        return gradients, losses

    @contextmanager
    def serving(self) -> Iterator[None]:
        keys = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
        token = _current.set((self, *keys))
        try:
            yield
        finally:
            _current.reset(token)
