"""An oracle that a compiler cannot look into, for tests of what surrounds one."""

from __future__ import annotations

import torch
from torch import Tensor

from fedsmoo.engines.oracles.opaque import OpaqueOracle
from fedsmoo.engines.oracles.oracle import hand_oracle
from fedsmoo.engines.task import Batch, Task
from fedsmoo.kernels.gradients import GradientBuffers

FINE = 7  # the last weights are read as they are, the others rounded


class Rounded(OpaqueOracle):
    """Gradients at rounded weights, themselves rounded, as the kernels make them, by the hand-batched model."""

    rounds_to = torch.bfloat16

    def __init__(self, task: Task) -> None:
        super().__init__(task, self.rounds_to, task.model.layout.size - FINE)
        self.unrounded = hand_oracle(task).gradient

    def launch(self, working: Tensor, fine: Tensor, batch: Batch, into: GradientBuffers) -> None:
        assert working.dtype == self.dtype  # a kernel takes what lies there for numbers of its type
        g, loss = self.unrounded(torch.cat([working[:, :-FINE].to(fine.dtype), fine], dim=1), batch)
        into.coarse.copy_(g.to(self.dtype))
        into.fine.copy_(g[:, -FINE:])
        into.loss.copy_(loss)


class RoundedToFloat(Rounded):
    """The same for vectors of float64: Triton's interpreter rounds to float32 as PyTorch does."""

    rounds_to = torch.float32
