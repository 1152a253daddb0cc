"""Convolutions whose groups have few channels, of each channel alone say, with a client axis, as operators of PyTorch.

As in :mod:`fedsmoo.operators.convolution`, images are ``[C, B, H, W, channels]``; weights are
``[C, kh, kw, inputs / groups, outputs]``. Where each input channel is a group of its own, the kernels of
``fedsmoo.kernels.conv.grouped`` compute bfloat16 and float32 on a GPU. Everything else is one convolution of PyTorch
with the groups of all clients, which the libraries do well (``results/gpu/convolutions.json``).
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedsmoo.operators.convolution import Sizes, by_client, by_kernels, geometry
from fedsmoo.operators.fold import folds_clients

aten = torch.ops.aten


def by_channel(x: Tensor, inputs: int) -> bool:
    """Return whether the kernels of this package convolve: groups of so many inputs, where and in what ``x`` lies."""
    return inputs == 1 and by_kernels(x)


def beside(x: Tensor) -> Tensor:
    """``[C, B, H, W, I] -> [B, C * I, H, W]``: the channels of all clients beside each other."""
    y = x.permute(1, 0, 4, 2, 3).flatten(1, 2)
    if y.shape[2:].numel() > 1:
        return y
    return y.clone(memory_format=torch.contiguous_format)  # a CPU takes strides of one pixel for an order of memory


def apart(y: Tensor, clients: int) -> Tensor:
    """``[B, C * O, H, W] -> [C, B, H, W, O]``."""
    return y.unflatten(1, (clients, -1)).permute(1, 0, 3, 4, 2).contiguous()


def rows(w: Tensor) -> Tensor:
    """``[C, kh, kw, I / groups, O] -> [C * O, I / groups, kh, kw]``."""
    return w.permute(0, 4, 3, 1, 2).flatten(0, 1)


@torch.library.custom_op("fedsmoo::grouped", mutates_args=())
def grouped(
    x: Tensor, w: Tensor, stride: Sizes, padding: Sizes, dilation: Sizes, groups: int, bias: Tensor | None = None,
    relu: bool = False,
) -> Tensor:  # fmt: skip
    """Return the outputs ``[C, B, Ho, Wo, O]``; a bias ``[C, O]`` is added and a ReLU applied where asked for."""
    if by_channel(x, w.shape[-2]):
        from fedsmoo.kernels.conv import grouped as kernels  # late: it imports Triton

        g = geometry(w.shape[1:3], stride, padding, dilation)
        return kernels.forward(g, x.contiguous(), by_client(w), groups, bias, relu)
    n = len(x)
    y = aten.convolution(beside(x), rows(w), None, stride, padding, dilation, False, [0, 0], groups * n)
    out = apart(y, n)
    out = out if bias is None else (out + bias[:, None, None, None]).to(out.dtype)
    return out.relu() if relu else out


@grouped.register_fake
def _(
    x: Tensor, w: Tensor, stride: Sizes, padding: Sizes, dilation: Sizes, groups: int, bias: Tensor | None = None,
    relu: bool = False,
) -> Tensor:  # fmt: skip
    g = geometry(w.shape[1:3], stride, padding, dilation)
    return x.new_empty(*x.shape[:2], *g.outputs((x.shape[2], x.shape[3])), w.shape[-1])


@torch.library.custom_op("fedsmoo::grouped_data", mutates_args=())
def grouped_data(
    dy: Tensor, w: Tensor, size: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, groups: int
) -> Tensor:
    """Return the gradient by the inputs ``[C, B, H, W, I]``, ``size = [H, W]``, from that by the outputs."""
    if by_channel(dy, w.shape[-2]):
        from fedsmoo.kernels.conv import grouped as kernels

        g = geometry(w.shape[1:3], stride, padding, dilation)
        return kernels.data(g, dy.contiguous(), by_client(w), groups, (size[0], size[1]))
    n = len(dy)
    like = dy.new_empty(1).expand(dy.shape[1], n * groups * w.shape[-2], *size)
    how = stride, padding, dilation, False, [0, 0], groups * n
    return apart(aten.convolution_backward(beside(dy), like, rows(w), None, *how, [True, False, False])[0], n)


@grouped_data.register_fake
def _(dy: Tensor, w: Tensor, size: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, groups: int) -> Tensor:
    return dy.new_empty(*dy.shape[:2], *size, w.shape[-2] * groups)


@torch.library.custom_op("fedsmoo::grouped_weight", mutates_args=())
def grouped_weight(
    x: Tensor, dy: Tensor, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, groups: int
) -> Tensor:
    """Return the gradient by the weights ``[C, kh, kw, I / groups, O]``."""
    if by_channel(x, x.shape[-1] // groups):
        parts = parts_of(x, dy, kernel, groups)
        found = grouped_weight_parts(x, dy, kernel, stride, padding, dilation, groups, parts)
        return (found[0] if parts == 1 else found.sum(0)).unflatten(1, kernel).to(x.dtype)
    n, inside, outside = len(x), x.shape[-1] // groups, dy.shape[-1]
    like = dy.new_empty(1).expand(n * outside, inside, *kernel)
    how = stride, padding, dilation, False, [0, 0], groups * n
    found = aten.convolution_backward(beside(dy), beside(x), like, None, *how, [False, True, False])[1]
    return found.unflatten(0, (n, outside)).permute(0, 3, 4, 2, 1).contiguous()


@grouped_weight.register_fake
def _(x: Tensor, dy: Tensor, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, groups: int) -> Tensor:
    return x.new_empty(x.shape[0], *kernel, x.shape[-1] // groups, dy.shape[-1])


def parts_of(x: Tensor, dy: Tensor, kernel: Sizes, groups: int) -> int:
    """Return in how many parts a weight gradient is summed."""
    if not by_channel(x, x.shape[-1] // groups):
        return 1
    from fedsmoo.kernels.conv import grouped as kernels

    return kernels.parts_of(geometry(kernel, [1, 1], [0, 0], [1, 1]), x, dy, groups)


@torch.library.custom_op("fedsmoo::grouped_weight_parts", mutates_args=())
def grouped_weight_parts(
    x: Tensor, dy: Tensor, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, groups: int, parts: int
) -> Tensor:
    """Return ``grouped_weight`` as parts that are still to be summed, ``[parts, C, taps, I / groups, O]``.

    Several are in float32 at least; one alone has the type of products, as PyTorch's own.
    """
    if by_channel(x, x.shape[-1] // groups):
        from fedsmoo.kernels.conv import grouped as kernels

        g = geometry(kernel, stride, padding, dilation)
        return kernels.weight_parts(g, x.contiguous(), dy.contiguous(), groups, parts).flatten(2, 3)
    return grouped_weight(x, dy, kernel, stride, padding, dilation, groups).flatten(1, 2)[None]


@grouped_weight_parts.register_fake
def _(
    x: Tensor, dy: Tensor, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, groups: int, parts: int
) -> Tensor:
    kind = x.dtype if parts == 1 else torch.promote_types(x.dtype, torch.float32)
    return x.new_empty(parts, x.shape[0], kernel[0] * kernel[1], x.shape[-1] // groups, dy.shape[-1], dtype=kind)


for operator in (grouped, grouped_data, grouped_weight):
    folds_clients(operator)
