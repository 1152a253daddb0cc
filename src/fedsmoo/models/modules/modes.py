"""What a module's own ``train()`` and ``eval()`` do beside setting the mode: a run has taken its parameters before."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor, nn


def has_own_modes(module: nn.Module) -> bool:
    """Return whether a part of a module has a ``train`` or an ``eval`` of its own."""
    plain = (nn.Module.train, nn.Module.eval)
    return any((type(part).train, type(part).eval) != plain for part in module.modules())


def changed_by_modes(module: nn.Module, trained: Collection[str]) -> str:
    """Return what is wrong with a module that trains other parameters, or has other values, by its mode; or nothing.

    ``trained`` are the names of the parameters that a run trains.
    """
    if not has_own_modes(module):
        return ""
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
