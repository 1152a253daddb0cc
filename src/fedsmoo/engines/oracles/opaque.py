"""Oracles that a compiler cannot look into: hand-written kernels, which write gradients into buffers.

Such an oracle reads weights in the type of its products, ``dtype`` (bfloat16, say), except those from ``begin`` on,
which it reads in full precision (norms and the last layer, say). The first form is called ``working``, the second one
``fine``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

from fedsmoo.engines.oracles.oracle import Oracle
from fedsmoo.engines.task import Batch, Task
from fedsmoo.kernels.gradients import GradientBuffers

_current: ContextVar[OpaqueOracle] = ContextVar("current")  # whose gradient the operator below computes


@torch.library.custom_op("fedsmoo::gradient", mutates_args=())
def _gradient(working: Tensor, fine: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return _current.get().gradient_at(working, fine, Batch(x, y, weight))


@_gradient.register_fake
def _(working: Tensor, fine: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return fine.new_empty(working.shape), fine.new_empty(len(working))


class OpaqueOracle(Oracle, ABC):
    """An oracle whose gradient is one operator to ``torch.compile``."""

    _own = _look = None  # the kernels know cross-entropy only
    whole = False  # batches are made in a compiled pass

    def __init__(self, task: Task, dtype: torch.dtype, begin: int) -> None:
        self.task, self.dtype, self.begin = task, dtype, begin

    @property
    def kernels(self) -> OpaqueOracle:
        return self

    def gradient(self, w: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        return self.gradient_at(self.working(w), self.fine(w), batch)

    def gradient_at(self, working: Tensor, fine: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return gradients in full precision, and losses, at weights given in the oracle's two forms."""
        into = self._whole(fine.new_zeros(working.shape))
        self.launch(working, fine, batch, into)
        return into.coarse, into.loss

    def in_step(self, w: Tensor, batch: Batch, working: Tensor | None = None) -> tuple[Tensor, Tensor]:
        working = self.working(w) if working is None else working
        return torch.ops.fedsmoo.gradient(working, self.fine(w), batch.x, batch.y, batch.weight)

    @contextmanager
    def serving(self) -> Iterator[None]:
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    def replicas(self, groups: int) -> list[Oracle]:
        return [self, *(type(self)(self.task) for _ in range(groups - 1))]  # type: ignore[call-arg]

    def working(self, w: Tensor) -> Tensor:
        return w.to(self.dtype)

    def fine(self, w: Tensor) -> Tensor:
        """Copy the weights ``[C, begin:]``, which are read in full precision."""
        return w[:, self.begin :].contiguous()

    def buffers(self, w: Tensor) -> GradientBuffers:
        """Make zero-filled buffers for gradients at ``w``: in the type of products, and in full from ``begin`` on."""
        if w.dtype == self.dtype:
            return self._whole(torch.zeros_like(w))
        return GradientBuffers(
            torch.zeros_like(w, dtype=self.dtype), torch.zeros_like(self.fine(w)), w.new_zeros(len(w))
        )

    def _whole(self, gradients: Tensor) -> GradientBuffers:
        return GradientBuffers(gradients, gradients[:, self.begin :], gradients.new_empty(len(gradients)))

    @abstractmethod
    def launch(self, working: Tensor, fine: Tensor, batch: Batch, into: GradientBuffers) -> None:
        """Write gradients and losses at weights given in the oracle's two forms."""
