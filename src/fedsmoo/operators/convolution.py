"""Two-dimensional convolution with a client axis, as operators of PyTorch: forward, data and weight gradients.

Images are ``[C, B, H, W, channels]``, weights ``[C, kh, kw, inputs, outputs]``. On a GPU the kernels of
``fedsmoo.kernels.conv`` compute bfloat16 and float32; elsewhere, and in float64, patches are multiplied as matrices.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor

from fedsmoo.kernels.conv.geometry import Geometry
from fedsmoo.operators.fold import folds_clients

Sizes = list[int]


def geometry(kernel: Sequence[int], stride: Sizes, padding: Sizes, dilation: Sizes) -> Geometry:
    """Return the shape of a convolution from an operator's arguments."""
    pairs = ((int(v[0]), int(v[1])) for v in (kernel, stride, padding, dilation))
    return Geometry(*pairs)


def by_kernels(x: Tensor) -> bool:
    """Whether the hand-written kernels compute this tensor's type, where it lies."""
    if x.device.type != "cuda" or x.dtype not in (torch.bfloat16, torch.float32):
        return False
    from fedsmoo.kernels import available

    return available(x.device)[0]


def precision_of(x: Tensor) -> str:
    """Return how the kernels multiply numbers of a tensor's type, in the precision of products that is in force."""
    return "tf32x3" if x.dtype == torch.float32 and not torch.backends.cudnn.allow_tf32 else "tf32"


def by_client(w: Tensor) -> Tensor:
    """Return weights, each client's contiguous; clients may lie apart, by whole pieces of 16 bytes."""
    apart = w.stride(0) * w.itemsize % 16 == 0 and w.storage_offset() * w.itemsize % 16 == 0
    return w if apart and w[0].is_contiguous() else w.contiguous()


def cuts(x: Tensor, g: Geometry, size: tuple[int, int]) -> list[Tensor]:
    """Return, for each tap, the pixels of padded images ``[C, B, H, W, I]`` that meet the outputs of a size."""
    (sh, sw), (dh, dw) = g.stride, g.dilation
    ends = (size[0] - 1) * sh + 1, (size[1] - 1) * sw + 1
    taps = product(range(g.kernel[0]), range(g.kernel[1]))
    return [x[:, :, i * dh : i * dh + ends[0] : sh, j * dw : j * dw + ends[1] : sw] for i, j in taps]


def whole(x: Tensor, g: Geometry) -> Tensor:
    """Return what meets each output pixel: ``[C, B, H, W, I] -> [C, B * Ho * Wo, kh * kw * I]``."""
    (ph, pw), size = g.padding, g.outputs((x.shape[2], x.shape[3]))
    return torch.cat(cuts(F.pad(x, (0, 0, pw, pw, ph, ph)), g, size), -1).flatten(1, 3)


def width_of(taps: int, inside: int) -> int:
    """Return the width of patches: a multiple of 8, which the kernels' loads like."""
    return -(-taps * inside // 8) * 8


@torch.library.custom_op("fedsmoo::patches", mutates_args=())
def patches(x: Tensor, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes) -> Tensor:
    """Return what meets each output pixel of a convolution, ``[C, B, Ho, Wo, width]``: taps, channels, then zeros."""
    g = geometry(kernel, stride, padding, dilation)
    width = width_of(g.taps, x.shape[-1])
    if by_kernels(x):
        from fedsmoo.kernels.conv import conv as kernels

        return kernels.patches(g, x.contiguous(), width)
    found = F.pad(whole(x, g), (0, width - g.taps * x.shape[-1]))
    return found.unflatten(1, (x.shape[1], *g.outputs((x.shape[2], x.shape[3]))))


@patches.register_fake
def _(x: Tensor, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes) -> Tensor:
    g = geometry(kernel, stride, padding, dilation)
    return x.new_empty(*x.shape[:2], *g.outputs((x.shape[2], x.shape[3])), width_of(g.taps, x.shape[-1]))


@torch.library.custom_op("fedsmoo::conv", mutates_args=())
def conv(
    x: Tensor, w: Tensor, stride: Sizes, padding: Sizes, dilation: Sizes, bias: Tensor | None = None, relu: bool = False
) -> Tensor:
    """Return the outputs ``[C, B, Ho, Wo, O]``; a bias ``[C, O]`` is added and a ReLU applied where asked for."""
    g = geometry(w.shape[1:3], stride, padding, dilation)
    if by_kernels(x):
        from fedsmoo.kernels.conv import choose  # late: it imports Triton

        return choose.forward(g, x.contiguous(), by_client(w), precision_of(x), bias, relu)
    out = torch.bmm(whole(x, g), w.flatten(1, 3))
    out = out if bias is None else (out + bias[:, None]).to(out.dtype)
    out = out.relu() if relu else out
    return out.unflatten(1, (x.shape[1], *g.outputs((x.shape[2], x.shape[3]))))


@conv.register_fake
def _(
    x: Tensor, w: Tensor, stride: Sizes, padding: Sizes, dilation: Sizes, bias: Tensor | None = None, relu: bool = False
) -> Tensor:
    g = geometry(w.shape[1:3], stride, padding, dilation)
    return x.new_empty(*x.shape[:2], *g.outputs((x.shape[2], x.shape[3])), w.shape[-1])


@torch.library.custom_op("fedsmoo::conv_data", mutates_args=())
def conv_data(dy: Tensor, w: Tensor, size: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes) -> Tensor:
    """Return the gradient by the inputs ``[C, B, H, W, I]``, ``size = [H, W]``, from that by the outputs."""
    g = geometry(w.shape[1:3], stride, padding, dilation)
    if by_kernels(dy):
        from fedsmoo.kernels.conv import choose

        return choose.data(g, dy.contiguous(), by_client(w), (size[0], size[1]), precision_of(dy))
    high, wide = dy.shape[2:4]
    columns = torch.bmm(dy.flatten(1, 3), w.flatten(1, 3).mT).unflatten(1, (dy.shape[1], high, wide))
    (ph, pw), inside = g.padding, w.shape[-2]
    padded = dy.new_zeros(*dy.shape[:2], size[0] + 2 * ph, size[1] + 2 * pw, inside)
    for there, given in zip(cuts(padded, g, (high, wide)), columns.split(inside, -1), strict=True):
        there += given
    return padded[:, :, ph : ph + size[0], pw : pw + size[1]].contiguous()


@conv_data.register_fake
def _(dy: Tensor, w: Tensor, size: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes) -> Tensor:
    return dy.new_empty(*dy.shape[:2], *size, w.shape[-2])


@torch.library.custom_op("fedsmoo::conv_weight", mutates_args=())
def conv_weight(x: Tensor, dy: Tensor, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes) -> Tensor:
    """Return the gradient by the weights ``[C, kh, kw, I, O]``, from the inputs and the gradient by the outputs."""
    g = geometry(kernel, stride, padding, dilation)
    if by_kernels(x):
        from fedsmoo.kernels.conv import choose

        return choose.weight(g, x.contiguous(), dy.contiguous(), precision_of(x)).to(x.dtype)
    return torch.bmm(whole(x, g).mT, dy.flatten(1, 3)).unflatten(1, (*g.kernel, x.shape[-1]))


@conv_weight.register_fake
def _(x: Tensor, dy: Tensor, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes) -> Tensor:
    return x.new_empty(x.shape[0], *kernel, x.shape[-1], dy.shape[-1])


for operator in (patches, conv, conv_data, conv_weight):
    folds_clients(operator)
