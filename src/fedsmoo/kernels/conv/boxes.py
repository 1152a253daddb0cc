"""The three products of a convolution of stride 1, with tiles that the tensor memory unit of Hopper brings.

A tile of pixels is a box ``[RB, RH, RW]`` of samples, rows and columns. The unit copies such a box of an image at any
offset, with zeros where it leaves the image: that is all that padding needs. As :mod:`.products`, images are
``[C, B, H, W, channels]`` and weights tap-major; channels are a multiple of 8 (16 bytes of bfloat16).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from fedsmoo.kernels.awaited import box_dot
from fedsmoo.kernels.conv.geometry import Geometry, Pair
from fedsmoo.kernels.conv.products import SIZES, behind, finished
from fedsmoo.kernels.runtime import launch


@dataclass(frozen=True)
class Box:
    """A tile: samples, rows and columns of its pixels, its channels, the step of its reduction, warps and stages.

    ``turned``: the product's transpose is computed, so that both operands stay in shared memory: of bfloat16, and of
    float32 in the data gradient. It was not timed yet, and is chosen by nobody.
    """

    samples: int
    height: int
    width: int
    cols: int
    inner: int
    warps: int = 8
    stages: int = 3
    turned: bool = False

    @property
    def pixels(self) -> int:
        return self.samples * self.height * self.width

    def count(self, batch: int, size: Pair) -> int:
        """How many boxes cover the images of a batch."""
        return triton.cdiv(batch, self.samples) * triton.cdiv(size[0], self.height) * triton.cdiv(size[1], self.width)

    def is_row(self, size: Pair) -> bool:
        """Whether the pixels of each box of images of a size follow each other in memory."""
        return size[1] == self.width and size[0] % self.height == 0 and (self.samples == 1 or size[0] == self.height)


def box_of(pixels: int, size: Pair) -> tuple[int, int, int]:
    """Return samples, rows and columns of a box of so many pixels (a power of two) for images of a size.

    >>> box_of(128, (32, 32)), box_of(128, (4, 4)), box_of(64, (5, 7))
    ((1, 4, 32), (8, 4, 4), (1, 8, 8))
    """
    width = min(pixels, 1 << (size[1] - 1).bit_length())
    height = min(pixels // width, 1 << (size[0] - 1).bit_length())
    return pixels // width // height, height, width


@triton.jit(do_not_specialize=SIZES, do_not_specialize_on_alignment=["bias"])
def pixels_kernel(
    x,  # boxes of images [C, B, H, W, channels reduced]
    w,  # boxes of weights [C, KH * KW, CIN, COUT]
    bias, bias_row,  # [C, channels]; stride of a client
    y,  # boxes of images [C, B, HO, WO, channels]
    B, HO, WO, REDUCED, CHANNELS,
    KH: tl.constexpr, KW: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr,
    FROM_H: tl.constexpr, FROM_W: tl.constexpr,  # where the first tap's box lies
    RB: tl.constexpr, RH: tl.constexpr, RW: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    BACK: tl.constexpr,  # the data gradient: taps from last to first, weights transposed
    BIAS: tl.constexpr, RELU: tl.constexpr, TURNED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Rows are pixels, columns channels; the reduction runs over taps and channels."""
    client = tl.program_id(1)
    across = tl.cdiv(CHANNELS, BN)
    tile = tl.program_id(0) // across
    col = tl.program_id(0) % across * BN
    down = tl.cdiv(HO, RH)
    right = tl.cdiv(WO, RW)
    b = tile // (down * right) * RB
    h = tile % (down * right) // right * RH
    v = tile % right * RW
    acc = tl.zeros((BN, RB * RH * RW) if TURNED else (RB * RH * RW, BN), tl.float32)
    blocks = tl.cdiv(REDUCED, BK)
    for step in range(KH * KW * blocks):
        tap = step // blocks
        k = step % blocks * BK
        a = x.load([client, b, h + FROM_H + tap // KW * DH, v + FROM_W + tap % KW * DW, k])
        a = tl.reshape(a, (RB * RH * RW, BK))
        if BACK:
            m = tl.trans(tl.reshape(w.load([client, KH * KW - 1 - tap, col, k]), (BN, BK)))
        else:
            m = tl.reshape(w.load([client, tap, k, col]), (BK, BN))
        acc = box_dot(a, m, acc, step, TURNED, PRECISION)
    if TURNED:
        acc = tl.trans(acc)
    acc = finished(acc, bias + client.to(tl.int64) * bias_row, col + tl.arange(0, BN), CHANNELS, BIAS, RELU)
    y.store([client, b, h, v, col], tl.reshape(acc.to(y.dtype), (1, RB, RH, RW, BN)))


@triton.jit(do_not_specialize=SIZES)
def weight_boxes_kernel(
    x, dy,  # boxes of images [C, B, H, W, CIN] and [C, B, HO, WO, COUT], or if TURNED [C, B * HO * WO, COUT]
    dw, dw_row, dw_part,  # [parts, C, KH * KW * CIN, COUT]; strides of a client and of a part
    parts, B, HO, WO, CIN, COUT,
    KH: tl.constexpr, KW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr,
    RB: tl.constexpr, RH: tl.constexpr, RW: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    TURNED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Rows are input channels of one tap, columns output channels; the reduction runs over boxes of pixels."""
    client = tl.program_id(1)
    part = tl.program_id(0) % parts
    tile = tl.program_id(0) // parts
    across = tl.cdiv(COUT, BN)
    col = tile % across * BN
    per = tl.cdiv(CIN, BM)
    tap = tile // across // per
    channel = tile // across % per * BM
    down = tl.cdiv(HO, RH)
    right = tl.cdiv(WO, RW)
    blocks = tl.cdiv(tl.cdiv(B, RB) * down * right, parts)
    acc = tl.zeros((BN, BM) if TURNED else (BM, BN), tl.float32)
    for block in range(blocks):
        p = part * blocks + block
        b = p // (down * right) * RB  # beyond the last sample: zeros
        h = p % (down * right) // right * RH
        v = p % right * RW
        a = x.load([client, b, h + tap // KW * DH - PH, v + tap % KW * DW - PW, channel])
        m = dy.load([client, (b * HO + h) * WO, col]) if TURNED else dy.load([client, b, h, v, col])
        a = tl.reshape(a, (RB * RH * RW, BM))
        m = tl.reshape(m, (RB * RH * RW, BN))
        acc = box_dot(tl.trans(a), m, acc, block, TURNED, PRECISION)
    if TURNED:
        acc = tl.trans(acc)
    rows = tap * CIN + channel + tl.arange(0, BM)
    cols = col + tl.arange(0, BN)
    out = dw + client.to(tl.int64) * dw_row + part.to(tl.int64) * dw_part + rows[:, None] * COUT + cols[None, :]
    tl.store(out, acc, mask=(channel + tl.arange(0, BM) < CIN)[:, None] & (cols < COUT)[None, :])


def images(x: Tensor, box: Box, channels: int) -> TensorDescriptor:
    """Return a descriptor of the boxes of images ``[C, B, H, W, channels]``."""
    return TensorDescriptor.from_tensor(x, [1, box.samples, box.height, box.width, channels])


def forward_by_boxes(
    g: Geometry, x: Tensor, w: Tensor, box: Box, precision: str = "ieee", bias: Tensor | None = None, relu: bool = False
) -> Tensor:
    """Return the outputs of a convolution of stride 1: as ``Convolution.forward``."""
    y = x.new_empty(*x.shape[:2], *g.outputs((x.shape[2], x.shape[3])), w.shape[-1])
    weights = TensorDescriptor.from_tensor(w.flatten(1, 2), [1, 1, box.inner, box.cols])
    start = (-g.padding[0], -g.padding[1])
    by_boxes(g, images(x, box, box.inner), weights, y, start, x.shape[-1], box, False, precision, bias, relu)
    return y


def data_by_boxes(g: Geometry, dy: Tensor, w: Tensor, size: Pair, box: Box, precision: str = "ieee") -> Tensor:
    """Return the gradient by the inputs of a convolution of stride 1: as ``Convolution.data``."""
    dx = dy.new_empty(*dy.shape[:2], *size, w.shape[-2])
    weights = TensorDescriptor.from_tensor(w.flatten(1, 2), [1, 1, box.cols, box.inner])
    high, wide = (g.padding[i] - g.dilation[i] * (g.kernel[i] - 1) for i in (0, 1))
    by_boxes(g, images(dy, box, box.inner), weights, dx, (high, wide), dy.shape[-1], box, True, precision)
    return dx


def by_boxes(
    g: Geometry, x: TensorDescriptor, w: TensorDescriptor, y: Tensor, start: Pair, reduced: int, box: Box, back: bool,
    precision: str, bias: Tensor | None = None, relu: bool = False,
) -> None:  # fmt: skip
    """Launch a product whose rows are the pixels of ``y``."""
    clients, batch, high, wide, channels = y.shape
    launch(
        pixels_kernel, (box.count(batch, (high, wide)) * triton.cdiv(channels, box.cols), clients),
        x=x, w=w, **behind(bias, y), RELU=relu, y=images(y, box, box.cols),
        B=batch, HO=high, WO=wide, REDUCED=reduced, CHANNELS=channels,
        KH=g.kernel[0], KW=g.kernel[1], DH=g.dilation[0], DW=g.dilation[1], FROM_H=start[0], FROM_W=start[1],
        RB=box.samples, RH=box.height, RW=box.width, BN=box.cols, BK=box.inner, BACK=back, TURNED=box.turned,
        PRECISION=precision, num_warps=box.warps, num_stages=box.stages,
    )  # fmt: skip


def weight_by_boxes(
    g: Geometry, x: Tensor, dy: Tensor, box: Box, parts: Callable[[int, int], int], precision: str = "ieee"
) -> Tensor:
    """Return the gradient by the weights of a convolution of stride 1: as ``Convolution.weight_parts``.

    ``box.inner`` is the number of input channels in a tile; the reduction's step are the box's pixels.
    """
    (clients, batch), (high, wide, outside), inside = x.shape[:2], dy.shape[2:], x.shape[-1]
    programs = g.taps * triton.cdiv(inside, box.inner) * triton.cdiv(outside, box.cols)
    cut, turned = parts(programs, box.count(batch, (high, wide))), box.turned and box.is_row((high, wide))
    dw = x.new_empty(cut, clients, *g.kernel, inside, outside, dtype=torch.float32 if cut > 1 else x.dtype)
    # A reshaped box would come to the left of a turned product, too, in registers; a row of pixels does not.
    row = TensorDescriptor.from_tensor(dy.flatten(1, 3), [1, box.pixels, box.cols]) if turned else None
    launch(
        weight_boxes_kernel, (programs * cut, clients),
        x=images(x, box, box.inner), dy=row or images(dy, box, box.cols),
        dw=dw, dw_row=dw.stride(1), dw_part=dw.stride(0),
        parts=cut, B=batch, HO=high, WO=wide, CIN=inside, COUT=outside, KH=g.kernel[0], KW=g.kernel[1],
        PH=g.padding[0], PW=g.padding[1], DH=g.dilation[0], DW=g.dilation[1],
        RB=box.samples, RH=box.height, RW=box.width, BM=box.inner, BN=box.cols, TURNED=turned,
        PRECISION=precision, num_warps=box.warps, num_stages=box.stages,
    )  # fmt: skip
    return dw
