"""GroupNorm with a client axis, as operators of PyTorch: sums in float32, images in the type they come in."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

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
        from fedsmoo.kernels.norm import forward

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
        from fedsmoo.kernels.norm import backward

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
