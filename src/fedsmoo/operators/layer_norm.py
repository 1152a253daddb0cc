"""LayerNorm with a client axis: PyTorch's own forward, and a backward that is one operator.

The forward stays operations that a compiler fuses with what is around them. Backward, a compiler makes several passes:
one for the gradient by the inputs, others for sums over all rows. The operator reads everything once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fedsmoo.operators.convolution import by_kernels
from fedsmoo.operators.fold import folds_clients


@torch.library.custom_op("fedsmoo::layer_norm_backward", mutates_args=())
def layer_norm_backward(
    dy: Tensor, x: Tensor, gamma: Tensor, mean: Tensor, rstd: Tensor, more: Tensor | None = None, rounded: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of LayerNorm of rows ``[C, .., D]``; ``gamma [C, D]``, statistics ``[C, .., 1]``.

    By the inputs, with ``more`` added; by gamma and beta, as parts that are still to be summed, ``[C, parts, D]``; and
    the first again in bfloat16, if that is asked for. ``dy`` may be in bfloat16, and its axes in any order in memory.
    """
    if by_kernels(x) and x.numel():
        from fedsmoo.kernels.layer_norm import WIDEST, backward

        if x.shape[-1] <= WIDEST:
            return backward(dy, x, gamma, mean, rstd, more, rounded)
    kind = torch.promote_types(x.dtype, torch.float32)
    hat, d = (x.to(kind) - mean) * rstd, dy.to(kind)
    g = d * gamma.reshape(len(gamma), *[1] * (x.dim() - 2), -1)
    dx = rstd * (g - g.mean(-1, keepdim=True) - hat * (g * hat).mean(-1, keepdim=True))
    dx = (dx if more is None else dx + more).to(x.dtype)
    rows = list(range(1, x.dim() - 1))
    dgamma, dbeta = ((v.sum(rows) if rows else v).unsqueeze(1) for v in (d * hat, d))
    return dx.contiguous(), dgamma, dbeta.clone(), dx.to(torch.bfloat16) if rounded else nothing(x)


def nothing(x: Tensor) -> Tensor:
    """Return the bfloat16 copy that nobody asked for."""
    return x.new_empty(0, dtype=torch.bfloat16)


@layer_norm_backward.register_fake
def _(
    dy: Tensor, x: Tensor, gamma: Tensor, mean: Tensor, rstd: Tensor, more: Tensor | None = None, rounded: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    parts = 1
    if by_kernels(x) and x.numel():
        from fedsmoo.kernels.layer_norm import WIDEST, parts_of, tile_of

        if x.shape[-1] <= WIDEST:
            parts = parts_of(x.shape[0], x.shape[1:-1].numel(), tile_of(x.shape[-1]))
    dgamma, dbeta = (x.new_empty(x.shape[0], parts, x.shape[-1], dtype=rstd.dtype) for _ in range(2))
    coarse = x.new_empty(x.shape, dtype=torch.bfloat16) if rounded else nothing(x)
    return x.new_empty(x.shape), dgamma, dbeta, coarse


folds_clients(layer_norm_backward)


class LayerNorm(torch.autograd.Function):
    """LayerNorm of one client's rows ``[.., D]``; ``vmap`` makes it that of C clients."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, gamma: Tensor, beta: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
        return torch.native_layer_norm(x, [x.shape[-1]], gamma, beta, eps)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs[:2], *output[1:])
        ctx.mark_non_differentiable(*output[1:])

    @staticmethod
    def backward(ctx: Any, dy: Tensor, *_: Any) -> Any:
        dx, dgamma, dbeta = LayerNormBackward.apply(dy, *ctx.saved_tensors)
        kind = ctx.saved_tensors[1].dtype
        return dx, dgamma.sum(0).to(kind), dbeta.sum(0).to(kind), None


class LayerNormBackward(torch.autograd.Function):
    """The gradients of :class:`LayerNorm`, those by weights in parts; they have no derivative of their own."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*given: Tensor) -> tuple[Tensor, ...]:
        return tuple(v[0] for v in layer_norm_backward(*(v[None] for v in given))[:3])

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise NotImplementedError("second derivatives: take PyTorch's own layer_norm")


def is_ours(x: Tensor, shape: Any, *weights: Tensor | None) -> bool:
    """Whether the operator is to be taken: for widths that were timed, where kernels compute, with both weights."""
    if x.dim() < 2 or len(shape) != 1 or any(w is None for w in weights) or not by_kernels(x):
        return False
    from fedsmoo.kernels.layer_norm import TILES, padded

    return padded(x.shape[-1]) in TILES


def layer_norm(
    input: Tensor, normalized_shape: Any, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """Compute ``F.layer_norm``, with the operator as its backward where that is worth it."""
    if not is_ours(input, normalized_shape, weight, bias):
        return F.layer_norm(input, normalized_shape, weight, bias, eps)
    rows = input.float() if torch.is_autocast_enabled(input.device.type) else input  # autocast has norms in float32
    return LayerNorm.apply(rows, weight, bias, eps)[0]
