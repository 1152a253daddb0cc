"""What a module's own ``train()`` and ``eval()`` do beside setting the mode: a run has taken its parameters before."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


def has_own_modes(module: nn.Module) -> bool:
    """Return whether a part of a module has a ``train`` or an ``eval`` of its own."""
    plain = (nn.Module.train, nn.Module.eval)
    return any((type(part).train, type(part).eval) != plain for part in module.modules())


def without_zeros(t: Tensor) -> Tensor:
    """Return numbers with small ones in the place of zeros: of LoRA's product, which begins as 0, all can be seen."""
    small = 0.01 * torch.arange(t.numel(), device=t.device).to(t.dtype).cos().view(t.shape)
    return torch.where(t == 0, small, t)


@contextmanager
def held_without_zeros(module: nn.Module) -> Iterator[None]:
    """Let a module's trained parameters hold no zeros, inside this context."""
    own = [(p, p.detach().clone()) for p in module.parameters() if p.requires_grad]
    for p, kept in own:
        p.data.copy_(without_zeros(kept))
    try:
        yield
    finally:
        for p, kept in own:
            p.data.copy_(kept)


def changed_by_modes(module: nn.Module, trained: Collection[str]) -> str:
    """Return what is wrong with a module that trains other parameters, or has other values, by its mode; or nothing.

    ``trained`` are the names of the parameters that a run trains.
    """
    if not has_own_modes(module):
        return ""
    with held_without_zeros(module):
        return changed_parameter(module, trained)


def changed_parameter(module: nn.Module, trained: Collection[str]) -> str:
    """Return what :func:`changed_by_modes` does of a module whose parameters hold no zeros."""
    held: list[dict[str, Tensor]] = []
    for on in (True, False):
        (module.train if on else module.eval)()
        if on:
            found = {n: p.requires_grad for n, p in module.named_parameters()}
            for name in (n for n, does in found.items() if does != (n in trained)):
                return (
                    f"{'freezes' if name in trained else 'unfreezes'} its parameter {name!r} in train(), after the run "
                    f"has taken it for one that {'trains' if name in trained else 'is frozen'}: call the module's "
                    "train() before you give it, or set requires_grad before"
                )
        held.append({n: p.detach().clone() for n, p in module.named_parameters()})
    for name in (n for n, p in held[0].items() if not torch.equal(p.nan_to_num(), held[1][n].nan_to_num())):
        return (
            f"changes its parameter {name!r} in train() or eval(), as layers that merge LoRA's weights do, and would "
            "be evaluated with values of before training: leave it as it is, such as by merge_weights=False"
        )
    return ""
