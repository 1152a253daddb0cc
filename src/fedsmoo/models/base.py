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

    Parameters with ``requires_grad=False`` are frozen: no part of ``w``, no client trains or sends them, and they stay
    as they were when the model was wrapped. A module may bring its own hand-batched forward, as a method
    ``batched(parameters, x)`` that takes every parameter with a leading client axis; without one the engines use
    ``torch.func.vmap``.
    """

    def __init__(self, module: nn.Module) -> None:
        refuse_buffers(module)
        self.module = module
        self.random = False  # whether a step draws random numbers (dropout): then clients train one after the other
        self.layout = Layout({n: tuple(p.shape) for n, p in module.named_parameters() if p.requires_grad})
        self._frozen = {n: p.detach().clone() for n, p in module.named_parameters() if not p.requires_grad}
        if self.layout.size == 0:
            what = "only frozen parameters (requires_grad=False)" if self._frozen else "no parameters"
            raise FedsmooError(f"the model {type(module).__name__} has {what}: nothing to train")
        if self._frozen and type(self).forward is not FlatModel.forward:
            raise FedsmooError(
                f"{next(iter(self._frozen))!r} of {type(module).__name__} is frozen (requires_grad=False), but this "
                "model's vector holds every parameter: put it inside a module of your own, or unfreeze it"
            )
        whole: BatchedForward | None = getattr(module, "batched", None)
        self.batched: BatchedForward | None = whole
        if whole is not None and self._frozen:
            self.batched = lambda parameters, x: whole(self._with_frozen(parameters, batched=True), x)

    def place(self, device: torch.device, dtype: torch.dtype) -> None:
        """Keep the frozen parameters where a run computes, so that no step copies or converts them."""
        self._frozen = {n: _like(p, device, dtype) for n, p in self._frozen.items()}

    def _with_frozen(self, parameters: Mapping[str, Tensor], batched: bool = False) -> dict[str, Tensor]:
        """All parameters of the module: those given, and the frozen ones beside them (for every client, if batched)."""
        if not self._frozen:
            return dict(parameters)
        first = next(iter(parameters.values()))
        frozen = {n: _like(p, first.device, first.dtype) for n, p in self._frozen.items()}
        if batched:
            frozen = {n: p.expand(len(first), *p.shape) for n, p in frozen.items()}
        return {**frozen, **parameters}

    def same_frozen(self, other: FlatModel) -> bool:
        """Whether two models have the same frozen parameters, so that one can stand in for the other."""
        mine, theirs = self._frozen, other._frozen
        return mine.keys() == theirs.keys() and all(
            torch.equal(p, _like(theirs[n], p.device, p.dtype)) for n, p in mine.items()
        )

    def same_function(self, other: FlatModel, w: Tensor, x: Tensor) -> bool:
        """Whether two models answer alike at the weights ``w``: modules may hold tensors that are no parameters."""
        with torch.no_grad():
            mine, theirs = (model.forward(model.layout.split(w), x) for model in (self, other))
        return torch.equal(mine, theirs)

    @property
    def full_size(self) -> int:
        """How many numbers the exported model has; more than ``layout.count`` where dead or frozen weights are left
        out."""
        return sum(p.numel() for p in self.module.parameters())

    def initial(self) -> Tensor:
        """The module's present parameters as a flat vector, without the frozen ones."""
        return self.layout.join({n: p.detach() for n, p in self.module.named_parameters()})

    def forward(self, parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """One model's outputs on a batch ``[B, ...]``."""
        return functional_call(self.module, self._with_frozen(parameters), (x,))

    def state_dict(self, w: Tensor) -> dict[str, Tensor]:
        """The trained and the frozen parameters under the module's own names, ready for ``load_state_dict``."""
        parts = self._with_frozen(self.layout.split(w))
        return {n: parts[n].detach().clone() for n, _ in self.module.named_parameters()}

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


def _like(p: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
    """A frozen parameter where it is needed; whole numbers stay what they are."""
    return p.to(device, dtype if p.is_floating_point() else p.dtype)


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
