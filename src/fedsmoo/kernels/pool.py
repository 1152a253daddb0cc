"""Maximum pooling of images, channels last: a byte says which pixel of its window each maximum was.

Backward, a pixel asks the windows that it lies in whether it was their maximum: nothing is written twice. Windows whose
maximum is not positive can pass no gradient, as if a ReLU stood before them; sums of the gradient over each sample's
pixels, which a bias before that ReLU wants, are made on the way.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedsmoo.kernels.conv.geometry import Geometry, Pair
from fedsmoo.kernels.runtime import launch

NOBODY = tl.constexpr(255)  # in place of a pixel of the window: no gradient passes
SIZES = ["H", "W", "HO", "WO"]


@triton.jit(do_not_specialize=SIZES)
def maxima_kernel(
    x, y, which,  # [N, H, W, CH], [N, HO, WO, CH] twice
    H, W, HO, WO, CH: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    POSITIVE: tl.constexpr, EVEN: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    tiles = tl.cdiv(HO * WO, BP)
    n = (tl.program_id(0) // tiles).to(tl.int64)
    p = tl.program_id(0) % tiles * BP + tl.arange(0, BP)
    channel = tl.program_id(1) * BC + tl.arange(0, BC)
    live = p < HO * WO
    top = p // WO * SH - PH
    left = p % WO * SW - PW
    x += n * H * W * CH
    best = tl.full((BP, BC), float("-inf"), tl.float32)
    at = tl.full((BP, BC), NOBODY, tl.int32)
    for tap in tl.static_range(KH * KW):
        h = top + tap // KW
        v = left + tap % KW
        seen = live & (h >= 0) & (h < H) & (v >= 0) & (v < W)
        mask = seen[:, None] if EVEN else seen[:, None] & (channel < CH)[None, :]
        found = tl.load(x + (h * W + v)[:, None] * CH + channel[None, :], mask=mask, other=0.0).to(tl.float32)
        # As PyTorch has it: the first of equal ones; nan is more than any number.
        more = ((found > best) | (found != found) | (at == NOBODY)) & seen[:, None]
        best = tl.where(more, found, best)
        at = tl.where(more, tap, at)
    if POSITIVE:
        at = tl.where(best <= 0.0, NOBODY, at)
    there = (n * HO * WO + p)[:, None] * CH + channel[None, :]
    mask = live[:, None] if EVEN else live[:, None] & (channel < CH)[None, :]
    tl.store(y + there, best, mask=mask)
    tl.store(which + there, at.to(tl.uint8), mask=mask)


@triton.jit(do_not_specialize=SIZES)
def maxima_backward_kernel(
    dy, which, dx, sums,  # [N, HO, WO, CH] twice, [N, H, W, CH], [N, CH] float32
    H, W, HO, WO, CH: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    EVEN: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * BC + tl.arange(0, BC)
    dy += n * HO * WO * CH
    which += n * HO * WO * CH
    dx += n * H * W * CH
    total = tl.zeros((BC,), tl.float32)
    for start in range(0, H * W, BP):
        p = start + tl.arange(0, BP)
        live = p < H * W
        h = p // W + PH
        v = p % W + PW
        d = tl.zeros((BP, BC), tl.float32)
        for step in tl.static_range(((KH + SH - 1) // SH) * ((KW + SW - 1) // SW)):  # windows that may hold a pixel
            oh = h // SH - step // ((KW + SW - 1) // SW)
            ov = v // SW - step % ((KW + SW - 1) // SW)
            th = h - oh * SH
            tv = v - ov * SW
            seen = live & (th < KH) & (tv < KW) & (oh >= 0) & (oh < HO) & (ov >= 0) & (ov < WO)
            mask = seen[:, None] if EVEN else seen[:, None] & (channel < CH)[None, :]
            here = (oh * WO + ov)[:, None] * CH + channel[None, :]
            mine = tl.load(which + here, mask=mask, other=NOBODY).to(tl.int32) == (th * KW + tv)[:, None]
            d += tl.where(mine, tl.load(dy + here, mask=mask, other=0.0).to(tl.float32), 0.0)
        d = d.to(dx.dtype.element_ty)
        mask = live[:, None] if EVEN else live[:, None] & (channel < CH)[None, :]
        tl.store(dx + p[:, None] * CH + channel[None, :], d, mask=mask)
        total += tl.sum(d.to(tl.float32), 0)
    tl.store(sums + n * CH + channel, total, mask=channel < CH)


@triton.jit(do_not_specialize=SIZES)
def windows_backward_kernel(
    dy, which, dx, sums,  # as above
    H, W, HO, WO, CH: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    EVEN: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """The same where no pixel is in two windows: each window is read once, and writes all pixels up to the next."""
    n = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * BC + tl.arange(0, BC)
    dy += n * HO * WO * CH
    which += n * HO * WO * CH
    dx += n * H * W * CH
    wide = tl.cdiv(W + PW, SW)
    cells = tl.cdiv(H + PH, SH) * wide
    total = tl.zeros((BC,), tl.float32)
    for start in range(0, cells, BP):
        p = start + tl.arange(0, BP)
        oh = p // wide
        ov = p % wide
        live = p < cells
        seen = live & (oh < HO) & (ov < WO)
        mask = seen[:, None] if EVEN else seen[:, None] & (channel < CH)[None, :]
        here = (oh * WO + ov)[:, None] * CH + channel[None, :]
        mine = tl.load(which + here, mask=mask, other=NOBODY).to(tl.int32)
        d = tl.load(dy + here, mask=mask, other=0.0).to(dx.dtype.element_ty)
        for step in tl.static_range(SH * SW):
            h = oh * SH + step // SW - PH
            v = ov * SW + step % SW - PW
            inside = live & (h >= 0) & (h < H) & (v >= 0) & (v < W)
            tap = step // SW * KW + step % SW if step // SW < KH and step % SW < KW else -1
            mask = inside[:, None] if EVEN else inside[:, None] & (channel < CH)[None, :]
            tl.store(dx + (h * W + v)[:, None] * CH + channel[None, :], tl.where(mine == tap, d, 0.0), mask=mask)
        total += tl.sum(tl.where(mine == NOBODY, 0.0, d.to(tl.float32)), 0)
    tl.store(sums + n * CH + channel, total, mask=channel < CH)


def tile(pixels: int, channels: int, most: int) -> tuple[int, int]:
    """Return pixels and channels of a block of at most so many numbers."""
    cols = min(128, triton.next_power_of_2(channels))
    return min(triton.next_power_of_2(max(1, pixels)), most // cols), cols


def windows(g: Geometry) -> dict[str, int]:
    """Return what kernels are compiled for."""
    return {n: v for n, v in g.constants().items() if not n.startswith("D")}


def forward(g: Geometry, x: Tensor, size: Pair, positive: bool) -> tuple[Tensor, Tensor]:
    """Return ``fedsmoo::pool`` of images ``[C, B, H, W, CH]``."""
    (height, width, channels), images = x.shape[2:], x.shape[0] * x.shape[1]
    y = x.new_empty(*x.shape[:2], *size, channels)
    which = torch.empty_like(y, dtype=torch.uint8)
    rows, cols = tile(size[0] * size[1], channels, 1024)
    launch(
        maxima_kernel, (images * triton.cdiv(size[0] * size[1], rows), triton.cdiv(channels, cols)),
        x=x, y=y, which=which, H=height, W=width, HO=size[0], WO=size[1], CH=channels, **windows(g),
        POSITIVE=positive, EVEN=channels % cols == 0, BP=rows, BC=cols, num_warps=4,
    )  # fmt: skip
    return y, which


def backward(g: Geometry, dy: Tensor, which: Tensor, size: Pair) -> tuple[Tensor, Tensor]:
    """Return ``fedsmoo::pool_backward``: the gradient by images of a size, and its sums ``[C, B, CH]``."""
    (high, wide, channels), images = dy.shape[2:], dy.shape[0] * dy.shape[1]
    dx = dy.new_empty(*dy.shape[:2], *size, channels)
    sums = dy.new_empty(*dy.shape[:2], channels, dtype=torch.float32)
    apart = g.kernel[0] <= g.stride[0] and g.kernel[1] <= g.stride[1]
    area = g.stride[0] * g.stride[1] if apart else 1
    rows, cols = tile(size[0] * size[1] // area, channels, 2048 if apart else 4096)
    launch(
        windows_backward_kernel if apart else maxima_backward_kernel, (images, triton.cdiv(channels, cols)),
        dy=dy, which=which, dx=dx, sums=sums, H=size[0], W=size[1], HO=high, WO=wide, CH=channels, **windows(g),
        EVEN=channels % cols == 0, BP=rows, BC=cols, num_warps=8 if rows * cols > 2048 else 4,
    )  # fmt: skip
    return dx, sums
