"""GroupNorm of C clients as a function of autograd; that of one client is in :mod:`fedsmoo.operators.norm`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedsmoo.operators.norm import GroupNorm, GroupNormBackward, norm, norm_backward


class GroupNorms(torch.autograd.Function):
    """GroupNorm of images ``[C, B, P, CH]``; ``vmap`` folds a further axis into that of clients."""

    generate_vmap_rule = True
    setup_context = staticmethod(GroupNorm.setup_context)

    @staticmethod
    def forward(x: Tensor, gamma: Tensor, beta: Tensor, groups: int, eps: float) -> tuple[Tensor, Tensor, Tensor]:
        return norm(x, gamma, beta, groups, eps)

    @staticmethod
    def backward(ctx: Any, dy: Tensor, *_: Any) -> Any:
        dx, dgamma, dbeta = GroupNormsBackward.apply(dy.contiguous(), *ctx.saved_tensors, ctx.groups)
        kind = ctx.saved_tensors[1].dtype
        return dx, dgamma.sum(1).to(kind), dbeta.sum(1).to(kind), None, None


class GroupNormsBackward(torch.autograd.Function):
    """The gradients of :class:`GroupNorms`, of each sample where weights are."""

    generate_vmap_rule = True
    setup_context = staticmethod(GroupNormBackward.setup_context)
    backward = staticmethod(GroupNormBackward.backward)

    @staticmethod
    def forward(dy: Tensor, x: Tensor, gamma: Tensor, mean: Tensor, rstd: Tensor, groups: int) -> tuple[Tensor, ...]:
        return norm_backward(dy, x, gamma, mean, rstd, groups)[:3]
