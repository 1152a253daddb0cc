"""A model as a function of one flat vector."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedsmoo.core.errors import FedsmooError
from fedsmoo.core.layout import Layout

# parameters {name: [C, *shape]}, inputs [C, B, ...] -> outputs [C, B, ...]: C models at once, each on its own batch
BatchedForward = Callable[[Mapping[str, Tensor], Tensor], Tensor]


class FlatModel:
    """An ``nn.Module`` seen as a function of its flat parameter vector ``w``.

    A module may bring its own hand-batched forward, as a method ``batched(parameters, x)`` that takes every parameter
    with a leading client axis; without one the engines use ``torch.func.vmap``.
    """

    def __init__(self, module: nn.Module) -> None:
        refuse_buffers(module)
        self.module = module
        self.layout = Layout({n: tuple(p.shape) for n, p in module.named_parameters()})
        if self.layout.size == 0:
            raise FedsmooError(f"the model {type(module).__name__} has no parameters: nothing to train")
        self.batched: BatchedForward | None = getattr(module, "batched", None)

    @property
    def full_size(self) -> int:
        """How many numbers the exported model has; more than ``layout.count`` where dead weights are left out."""
        return sum(p.numel() for p in self.module.parameters())

    def initial(self) -> Tensor:
        """The module's present parameters as a flat vector."""
        return self.layout.join({n: p.detach() for n, p in self.module.named_parameters()})

    def forward(self, parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """One model's outputs on a batch ``[B, ...]``."""
        return functional_call(self.module, dict(parameters), (x,))

    def state_dict(self, w: Tensor) -> dict[str, Tensor]:
        """The trained parameters under the module's own names, ready for ``load_state_dict``."""
        return {n: p.detach().clone() for n, p in self.layout.split(w).items()}

    def flatten(self, state: Mapping[str, Tensor]) -> Tensor:
        """The flat vector of a state dict of the module: the inverse of :meth:`state_dict`."""
        return self.layout.join(state)

    def export(self, w: Tensor) -> nn.Module:
        """The module itself with the parameters ``w`` loaded."""
        with torch.no_grad():
            state = self.state_dict(w)
            for name, p in self.module.named_parameters():
                p.copy_(state[name])
        return self.module


def refuse_buffers(module: nn.Module) -> None:
    """Running statistics have no place in a flat vector that clients average, nor random layers in a run that must
    repeat: say so, and what to do."""
    for name, part in module.named_modules():
        if isinstance(part, nn.modules.batchnorm._NormBase) and (
            part.track_running_stats or "Batch" in type(part).__name__
        ):
            raise FedsmooError(
                f"{type(part).__name__} at {name or 'the top'!r}: running statistics of heterogeneous clients cannot "
                "be averaged; use nn.GroupNorm instead (for a ResNet, GroupNorm with 2 groups)"
            )
    for name, part in module.named_modules():
        if isinstance(part, nn.modules.dropout._DropoutNd) and part.p > 0 and part.training:
            raise FedsmooError(
                f"{type(part).__name__} at {name or 'the top'!r}: random layers would not follow a run's seed on every "
                "engine; remove it, or set its p to 0"
            )
    buffers = [n for n, _ in module.named_buffers()]
    if buffers:
        raise FedsmooError(
            f"the model has buffers ({', '.join(buffers[:3])}), which clients cannot average: remove them"
        )
