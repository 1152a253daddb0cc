"""GroupNorm with a client axis, as operators of PyTorch: sums in float32, images in the type they come in.

Of LayerNorm only the backward is an operator. The forward stays operations that a compiler fuses with what is around
them; backward, a compiler makes several passes, and the operator reads everything once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fedsmoo.operators.convolution import by_kernels
from fedsmoo.operators.fold import folds_clients


def grouped(x: Tensor, groups: int) -> Tensor:
    """``[C, B, P, CH] -> [C, B, P, groups, CH / groups]``, in at least float32."""
    return x.unflatten(-1, (groups, -1)).to(torch.promote_types(x.dtype, torch.float32))


@torch.library.custom_op("fedsmoo::norm", mutates_args=())
def norm(
    x: Tensor, gamma: Tensor, beta: Tensor, groups: int, eps: float, add: Tensor | None = None, relu: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalise images ``[C, B, P, CH]`` by their groups of channels, scale and shift; ``gamma, beta [C, CH]``.

    Returns the outputs, with images added and a ReLU applied where asked for, and the mean and reciprocal deviation of
    each group, ``[C, B, groups]``.
    """
    if by_kernels(x):
        from fedsmoo.kernels.norms.group import forward

        return forward(x, gamma, beta, groups, eps, add, relu)
    v = grouped(x, groups)
    mean = v.mean((2, 4))
    rstd = (v.var((2, 4), correction=0) + eps).rsqrt()
    out = ((v - mean[:, :, None, :, None]) * rstd[:, :, None, :, None]).flatten(3)
    out = (out * gamma[:, None, None] + beta[:, None, None]).to(x.dtype)
    out = out if add is None else out + add
    return out.relu() if relu else out, mean, rstd


@norm.register_fake
def _(
    x: Tensor, gamma: Tensor, beta: Tensor, groups: int, eps: float, add: Tensor | None = None, relu: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    shape, kind = (*x.shape[:2], groups), torch.promote_types(x.dtype, torch.float32)
    return x.new_empty(x.shape), x.new_empty(shape, dtype=kind), x.new_empty(shape, dtype=kind)


@torch.library.custom_op("fedsmoo::norm_backward", mutates_args=())
def norm_backward(
    dy: Tensor, x: Tensor, gamma: Tensor, mean: Tensor, rstd: Tensor, groups: int,
    y: Tensor | None = None, more: Tensor | None = None, keep: bool = False, beta: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients by the inputs of :func:`norm`, and by ``gamma`` and ``beta`` of each sample, ``[C, B, CH]``.

    ``dy`` is the gradient by the outputs; with ``more``, their sum is. With ``y``, the outputs, it first passes a ReLU;
    so it does with ``beta``, where the outputs are the norm's alone and need not be read: their sign is known.
    What came so far, the gradient by what was added, is the last result, if it is to be kept.
    """
    if by_kernels(x):
        from fedsmoo.kernels.norms.group import backward

        return backward(dy, x, gamma, mean, rstd, groups, y, more, keep, beta)
    r = rstd[:, :, None, :, None]
    hat = (grouped(x, groups) - mean[:, :, None, :, None]) * r
    if beta is not None:
        y = hat.flatten(3) * gamma[:, None, None] + beta[:, None, None]
    dy = dy if more is None else dy + more
    dy = dy.clone() if y is None else torch.where(y <= 0, 0.0, dy)
    d = grouped(dy, groups)
    scaled = d * gamma[:, None, None].unflatten(-1, (groups, -1))
    inner = scaled.mean((2, 4), keepdim=True) + hat * (scaled * hat).mean((2, 4), keepdim=True)
    dx = (r * (scaled - inner)).flatten(3)
    return dx.to(x.dtype), (d * hat).sum(2).flatten(2), d.sum(2).flatten(2), dy if keep else dy.new_empty(0)


@norm_backward.register_fake
def _(
    dy: Tensor, x: Tensor, gamma: Tensor, mean: Tensor, rstd: Tensor, groups: int,
    y: Tensor | None = None, more: Tensor | None = None, keep: bool = False, beta: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    dgamma, dbeta = (x.new_empty(*x.shape[:2], x.shape[3], dtype=mean.dtype) for _ in range(2))
    return x.new_empty(x.shape), dgamma, dbeta, dy.new_empty(dy.shape if keep else 0)


folds_clients(norm)
folds_clients(norm_backward)


class GroupNorm(torch.autograd.Function):
    """GroupNorm of one client's images ``[B, P, CH]``; ``vmap`` makes it that of C clients."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, gamma: Tensor, beta: Tensor, groups: int, eps: float) -> tuple[Tensor, Tensor, Tensor]:
        return tuple(v[0] for v in norm(x[None], gamma[None], beta[None], groups, eps))  # type: ignore[return-value]

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, gamma, _, ctx.groups, _ = inputs
        ctx.save_for_backward(x, gamma, *output[1:])
        ctx.mark_non_differentiable(*output[1:])

    @staticmethod
    def backward(ctx: Any, dy: Tensor, *_: Any) -> Any:
        dx, dgamma, dbeta = GroupNormBackward.apply(dy.contiguous(), *ctx.saved_tensors, ctx.groups)
        kind = ctx.saved_tensors[1].dtype
        return dx, dgamma.sum(0).to(kind), dbeta.sum(0).to(kind), None, None


class GroupNormBackward(torch.autograd.Function):
    """The gradients of :class:`GroupNorm`, of each sample where weights are; they have no derivative of their own."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*given: Any) -> tuple[Tensor, ...]:
        return tuple(v[0] for v in norm_backward(*(v[None] for v in given[:-1]), given[-1])[:3])

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise NotImplementedError("second derivatives: take PyTorch's own group_norm")


def group_norm(
    x: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5, *_: Any
) -> Tensor:
    """Compute ``F.group_norm`` of ``[B, CH, ..]``; the outputs are channels last in memory."""
    gamma = torch.ones_like(x[0, :, ..., 0].flatten(1)[:, 0]) if weight is None else weight
    beta = torch.zeros_like(gamma) if bias is None else bias
    pixels = x.flatten(2).transpose(1, 2).contiguous()
    out, _, _ = GroupNorm.apply(pixels, gamma, beta, num_groups, eps)
    return out.transpose(1, 2).unflatten(2, x.shape[2:]) if x.dim() > 2 else out[:, 0]


@torch.library.custom_op("fedsmoo::layer_norm_backward", mutates_args=())
def layer_norm_backward(
    dy: Tensor, x: Tensor, gamma: Tensor, mean: Tensor, rstd: Tensor, more: Tensor | None = None, rounded: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of LayerNorm of rows ``[C, .., D]``; ``gamma [C, D]``, statistics ``[C, .., 1]``.

    By the inputs, with ``more`` added; by gamma and beta, as parts that are still to be summed, ``[C, parts, D]``; and
    the first again in bfloat16, if that is asked for. ``dy`` may be in bfloat16, and its axes in any order in memory.
    """
    if by_kernels(x) and x.numel():
        from fedsmoo.kernels.norms.layer import WIDEST, backward

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
        from fedsmoo.kernels.norms.layer import WIDEST, parts_of, tile_of

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
    from fedsmoo.kernels.norms.layer import TILES, padded

    return padded(x.shape[-1]) in TILES


def layer_norm(
    input: Tensor, normalized_shape: Any, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """Compute ``F.layer_norm``, with the operator as its backward where that is worth it."""
    if not is_ours(input, normalized_shape, weight, bias):
        return F.layer_norm(input, normalized_shape, weight, bias, eps)
    rows = input.float() if torch.is_autocast_enabled(input.device.type) else input  # autocast has norms in float32
    return LayerNorm.apply(rows, weight, bias, eps)[0]
