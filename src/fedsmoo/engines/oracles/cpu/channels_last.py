"""The oracle of one client whose images have their channels last in memory: convolutions on a CPU are faster there."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from fedsmoo.core.gradient import Loss
from fedsmoo.core.random.noise import Noise
from fedsmoo.engines.oracles.oracle import Oracle, single_oracle
from fedsmoo.engines.task import Batch, Task
from fedsmoo.models.hidden import largest

CHANNELS_LAST = torch.channels_last
POOLED = torch.ops.aten.max_pool2d_with_indices_backward.default
ATEN = torch.library.Library("aten", "IMPL")  # whose rules last as long as it does
HERE = torch._C.DispatchKey.BackendSelect  # below autograd, and in every call of an operator


def takes_channels_last(task: Task) -> bool:
    """Whether a model has convolutions over images, and the same gradient and outputs where channels are last.

    Code that looks at memory, such as ``x.view(len(x), -1)``, fails there.
    """
    if not any(isinstance(m, nn.Conv2d) for m in task.model.module.modules()) or len(task.data.x_train) < 2:
        return False
    weight = torch.full((2,), 0.5, dtype=task.dtype, device=task.device)
    batch = task.batch(torch.arange(2, device=task.device), weight)
    if batch.x.dim() != 4:
        return False
    task = replace(task, precision="fp32")  # whose gradients can be compared
    batch, w = replace(batch, noise=Noise((0, 0)) if task.model.random else None), task.model.initial().to(weight)

    def answers(order: torch.memory_format) -> Tensor:
        return task.model.forward(task.model.layout.split(w), batch.x.contiguous(memory_format=order)).detach()

    try:
        task.model.train()
        gradients = [oracle(task)(w, batch)[0] for oracle in (single_oracle, ChannelsLastOracle)]
        task.model.eval()
        outputs = [answers(order) for order in (torch.contiguous_format, CHANNELS_LAST)]
    except Exception:  # the user's own code: the first round says what is wrong, if anything is
        return False
    return all(torch.allclose(a, b, rtol=1e-2, atol=1e-3 * largest(a)) for a, b in (gradients, outputs))


class ChannelsLastOracle(Oracle):
    """The oracle of one client whose images have their channels last in memory."""

    def __init__(self, task: Task) -> None:
        inner = single_oracle(task)
        lay_out_gradients()

        def laid(batch: Batch) -> Batch:
            return replace(batch, x=batch.x.contiguous(memory_format=CHANNELS_LAST))

        def own(w: Tensor, batch: Batch, loss: Loss, given: Any, features: bool) -> tuple[Tensor, Tensor]:
            return inner.own(w, laid(batch), loss, given, features)

        def look(w: Tensor, batch: Batch, features: bool) -> Any:
            return inner.look(w, laid(batch), features)

        super().__init__(task, lambda w, batch: inner.function(w, laid(batch)), own, look)

    def answers(self, w: Tensor, x: Tensor) -> Tensor:
        return self.task.answers(w, x, CHANNELS_LAST)


@cache
def lay_out_gradients() -> None:
    """Give max-pooling on a CPU gradients in the order of its images, from now on: the same numbers, to the bit.

    A network that flattens pooled images hands back gradients with their channels first. For these PyTorch's own way
    takes five times as long as with a copy in the other order.
    """
    below = torch._C._dispatch_keyset_full_after(HERE)

    def pooled(keys: Any, gradient: Tensor, x: Tensor, *given: Any) -> Tensor:
        if x.dim() == 4 and x.device.type == "cpu" and x.is_contiguous(memory_format=CHANNELS_LAST):
            gradient = gradient.contiguous(memory_format=CHANNELS_LAST)
        found: Tensor = POOLED.redispatch(keys & below, gradient, x, *given)
        return found

    ATEN.impl("max_pool2d_with_indices_backward", pooled, "BackendSelect", with_keyset=True)
