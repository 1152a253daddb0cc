"""What a method is given as ``grad``: gradients on the batch of a local step, and where the client is."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from fedsmoo.core.round import Round


class StepGradient:
    """The gradient of a local step at any vector, on the step's batch: ``grad(v)``.

    ``grad.rnd`` is the :class:`Round` at this step. Engines make one for each step, whose loss is that of its first
    gradient.

    Args:
        take: returns gradients and losses at a vector, of one client or of C at once.
        rnd: the round at this step.
    """

    def __init__(self, take: Callable[[Tensor], tuple[Tensor, Tensor]], rnd: Round) -> None:
        self.take, self.rnd = take, rnd
        self.losses: list[Tensor] = []

    def __call__(self, v: Tensor) -> Tensor:
        gradient, loss = self.take(v)
        self.losses.append(loss)
        return gradient
