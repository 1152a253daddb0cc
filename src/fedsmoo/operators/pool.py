"""Maximum pooling as operators of PyTorch: images ``[C, B, H, W, CH]``, and for each maximum which pixel it was."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fedsmoo.kernels.conv.geometry import Geometry
from fedsmoo.operators.convolution import Sizes, by_kernels, cuts, geometry

NOBODY = 255  # in place of a pixel of the window: no gradient passes


def shape_of(kernel: Sizes, stride: Sizes, padding: Sizes) -> Geometry:
    """Return the shape of windows."""
    return geometry(kernel, stride, padding, [1, 1])


def around(g: Geometry, size: Sizes, outputs: Sizes) -> list[int]:
    """Return how far windows reach beyond images, right, left, below and above, as ``F.pad`` takes it; none is cut."""
    ends = [(outputs[i] - 1) * g.stride[i] + g.kernel[i] - g.padding[i] - size[i] for i in (0, 1)]
    return [0, 0, g.padding[1], max(0, ends[1]), g.padding[0], max(0, ends[0])]


@torch.library.custom_op("fedsmoo::pool", mutates_args=())
def pool(x: Tensor, size: Sizes, kernel: Sizes, stride: Sizes, padding: Sizes, positive: bool) -> tuple[Tensor, Tensor]:
    """Return the maxima ``[C, B, Ho, Wo, CH]``, ``size = [Ho, Wo]``, and the number of each one's pixel in its window.

    With ``positive``, windows whose maximum is not have none: no gradient passes, as before a ReLU.
    """
    g = shape_of(kernel, stride, padding)
    if by_kernels(x):
        from fedsmoo.kernels import pool as kernels  # late: it imports Triton

        return kernels.forward(g, x.contiguous(), (size[0], size[1]), positive)
    reach, outputs = around(g, list(x.shape[2:4]), size), (size[0], size[1])
    found = cuts(F.pad(x, reach), g, outputs)
    there = cuts(F.pad(torch.ones_like(x, dtype=torch.bool), reach), g, outputs)
    best, which = torch.full_like(found[0], -torch.inf), torch.full_like(found[0], NOBODY, dtype=torch.uint8)
    for tap, (v, seen) in enumerate(zip(found, there, strict=True)):
        more = ((v > best) | v.isnan() | (which == NOBODY)) & seen
        best, which = torch.where(more, v, best), torch.where(more, tap, which)
    return best.contiguous(), (torch.where(best <= 0, NOBODY, which) if positive else which).contiguous()


@pool.register_fake
def _(x: Tensor, size: Sizes, kernel: Sizes, stride: Sizes, padding: Sizes, positive: bool) -> tuple[Tensor, Tensor]:
    y = x.new_empty(*x.shape[:2], *size, x.shape[-1])
    return y, torch.empty_like(y, dtype=torch.uint8)


@torch.library.custom_op("fedsmoo::pool_backward", mutates_args=())
def pool_backward(
    dy: Tensor, which: Tensor, size: Sizes, kernel: Sizes, stride: Sizes, padding: Sizes
) -> tuple[Tensor, Tensor]:
    """Return the gradient by the images ``[C, B, H, W, CH]``, ``size = [H, W]``, and its sums ``[C, B, CH]``."""
    g = shape_of(kernel, stride, padding)
    if by_kernels(dy):
        from fedsmoo.kernels import pool as kernels

        return kernels.backward(g, dy.contiguous(), which.contiguous(), (size[0], size[1]))
    outputs = [*dy.shape[2:4]]
    _, _, left, right, above, below = around(g, size, outputs)
    padded = dy.new_zeros(*dy.shape[:2], above + size[0] + below, left + size[1] + right, dy.shape[-1])
    for tap, there in enumerate(cuts(padded, g, (outputs[0], outputs[1]))):
        there += torch.where(which == tap, dy, 0)
    dx = padded[:, :, above : above + size[0], left : left + size[1]].contiguous()
    return dx, dx.sum((2, 3), dtype=torch.promote_types(dx.dtype, torch.float32))


@pool_backward.register_fake
def _(dy: Tensor, which: Tensor, size: Sizes, kernel: Sizes, stride: Sizes, padding: Sizes) -> tuple[Tensor, Tensor]:
    kind = torch.promote_types(dy.dtype, torch.float32)
    return dy.new_empty(*dy.shape[:2], *size, dy.shape[-1]), dy.new_empty(*dy.shape[:2], dy.shape[-1], dtype=kind)
