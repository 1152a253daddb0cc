"""The stem's 3x3 max-pooling with a client axis, forward and backward, with the GroupNorm and ReLU before it."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from fedsmoo.core.errors import FedsmooError
from fedsmoo.kernels.resnet18.norm import NormLayer
from fedsmoo.kernels.runtime import launch

NOT_TAKEN = 9  # the pooling window's largest number was not positive: no gradient passes


@triton.jit
def window_tap(xhat, at, inside, v, HI: tl.constexpr):
    """Load what is at one tap of windows, in columns ``v``, and say for which there is something."""
    seen = (inside & (v >= 0) & (v < HI))[:, None]
    return tl.load(xhat + at, mask=seen, other=0.0), seen


@triton.jit
def pool_tile(
    xhat,  # of one client: [B, HI, HI, CH], the normalised map
    p,  # gamma, then beta, CH numbers each, of this client
    out, taken,  # of this client: [B, HO, HO, CH]; the same in uint8: the tap that won, or NONE
    rows, live, cols,  # pooled pixels of all samples, and which of them there are; channels
    CH: tl.constexpr, HI: tl.constexpr, HO: tl.constexpr, NONE: tl.constexpr,
    UNROLL: tl.constexpr,  # rows of taps whose loads may be in flight together
):  # fmt: skip
    """Write ``maxpool(relu(gamma * xhat + beta))``, 3x3 of stride 2, and the taps that won."""
    scale = tl.load(p + cols)[None, :]
    shift = tl.load(p + CH + cols)[None, :]
    best = tl.zeros((rows.shape[0], cols.shape[0]), tl.float32)
    which = tl.full((rows.shape[0], cols.shape[0]), NONE, tl.int32)
    row = (rows % (HO * HO)) // HO * 2 - 1
    col = rows % HO * 2 - 1
    at = ((rows // (HO * HO) * HI + row) * HI + col)[:, None] * CH + cols[None, :]
    for down in tl.range(3, loop_unroll_factor=UNROLL):
        h = row + down
        inside = live & (h >= 0) & (h < HI)
        start = at + down * (HI * CH)
        taps = (  # three loads that are waited for together
            window_tap(xhat, start, inside, col, HI),
            window_tap(xhat, start + CH, inside, col + 1, HI),
            window_tap(xhat, start + 2 * CH, inside, col + 2, HI),
        )
        for across in tl.static_range(3):
            x, seen = taps[across]
            z = x.to(tl.float32) * scale + shift
            which = tl.where(seen & (z > best), 3 * down + across, which)
            best = tl.where(seen, tl.maximum(best, z, propagate_nan=tl.PropagateNan.ALL), best)
    at = rows[:, None] * CH + cols[None, :]
    tl.store(out + at, best, mask=live[:, None])
    tl.store(taken + at, which.to(tl.uint8), mask=live[:, None])


@triton.jit
def won(d, taken, at, inside, cols, CH: tl.constexpr):
    """Load gradient and winning tap of the pooled pixels ``at``; outside of the map nobody won."""
    at = at[:, None] * CH + cols[None, :]
    value = tl.load(d + at, mask=inside[:, None], other=0.0).to(tl.float32)
    return value, tl.load(taken + at, mask=inside[:, None], other=255).to(tl.int32)


@triton.jit
def unpool(d, taken, pixel, cols, CH: tl.constexpr, HO: tl.constexpr):
    """Return the gradient behind the pooling by the parity of row and column, ``[pixels, channels]`` each.

    A pixel of even row and column lies in one window only, the others in two or four.
    """
    right, below = pixel % HO + 1 < HO, pixel // HO + 1 < HO  # which windows have neighbours
    here, tap = won(d, taken, pixel, pixel >= 0, cols, CH)
    next_, tap_next = won(d, taken, pixel + 1, right, cols, CH)
    under, tap_under = won(d, taken, pixel + HO, below, cols, CH)
    across, tap_across = won(d, taken, pixel + HO + 1, right & below, cols, CH)
    d00 = tl.where(tap == 4, here, 0.0)
    d01 = tl.where(tap == 5, here, 0.0) + tl.where(tap_next == 3, next_, 0.0)
    d10 = tl.where(tap == 7, here, 0.0) + tl.where(tap_under == 1, under, 0.0)
    d11 = tl.where(tap == 8, here, 0.0) + tl.where(tap_next == 6, next_, 0.0)
    d11 = d11 + tl.where(tap_under == 2, under, 0.0) + tl.where(tap_across == 0, across, 0.0)
    return d00, d01, d10, d11


@triton.jit
def neighbours(xhat, at, CH: tl.constexpr, HO: tl.constexpr):
    """Load four neighbours of a map of ``2 * HO`` pixels a side, of which those of even row and column are ``at``."""
    x00, x01 = tl.load(xhat + at), tl.load(xhat + at + CH)
    x10, x11 = tl.load(xhat + at + 2 * HO * CH), tl.load(xhat + at + 2 * HO * CH + CH)
    return x00.to(tl.float32), x01.to(tl.float32), x10.to(tl.float32), x11.to(tl.float32)


@triton.jit
def places(first, cols, CH: tl.constexpr, HO: tl.constexpr, STEP: tl.constexpr):
    """Return ``STEP`` pooled pixels, and where they begin in a map of ``2 * HO`` pixels a side."""
    pixel = first + tl.arange(0, STEP)
    return pixel, (pixel // HO * (4 * HO) + pixel % HO * 2)[:, None] * CH + cols[None, :]


@triton.jit
def pool_backward_kernel(
    d, taken,  # [C, B, HO, HO, CH]: gradient of the pooled map; the taps that won, uint8
    xhat, rstd, p, p_row, p_off, dy, part, part_row, part_off,  # as in epilogue_backward; a tile is a sample
    B,
    CH: tl.constexpr, HO: tl.constexpr, GW: tl.constexpr,
    STEP: tl.constexpr,  # pooled pixels at once
):  # fmt: skip
    """Take the gradient of one sample's group back through pooling, ReLU and GroupNorm.

    The map has ``2 * HO`` pixels a side. As ``sum(g) = sum_channels gamma * sum_pixels(d)``, the sums of GroupNorm's
    backward come from those of beta and gamma. What is read for the sums is near when it is read again for ``dy``, so
    registers need not hold it, and more programs run at once; gradients are kept where all pixels are one step.
    """
    client = tl.program_id(1).to(tl.int64)
    tile, group = tl.program_id(0) // (CH // GW), tl.program_id(0) % (CH // GW)
    sample = client * B + tile
    cols = group * GW + tl.arange(0, GW)
    gamma = tl.load(p + client * p_row + p_off + cols)
    r = tl.load(rstd + sample * (CH // GW) + group)
    d += sample * HO * HO * CH
    taken += sample * HO * HO * CH
    xhat += sample * 4 * HO * HO * CH
    dy += sample * 4 * HO * HO * CH
    dgamma = tl.zeros((STEP, GW), tl.float32)
    dbeta = tl.zeros((STEP, GW), tl.float32)
    for first in tl.static_range(0, HO * HO, STEP):
        pixel, at = places(first, cols, CH, HO, STEP)
        x = neighbours(xhat, at, CH, HO)
        g = unpool(d, taken, pixel, cols, CH, HO)
        dgamma += g[0] * x[0] + g[1] * x[1] + g[2] * x[2] + g[3] * x[3]
        dbeta += g[0] + g[1] + g[2] + g[3]
    dgamma, dbeta = tl.sum(dgamma, axis=0), tl.sum(dbeta, axis=0)
    share = part + client * part_row + part_off + tile * 2 * CH + cols
    tl.store(share, dgamma)
    tl.store(share + CH, dbeta)

    mean = tl.sum(dbeta * gamma, axis=0) / (4 * HO * HO * GW) * r
    along = tl.sum(dgamma * gamma, axis=0) / (4 * HO * HO * GW) * r
    scale = (gamma * r)[None, :]
    for first in tl.static_range(0, HO * HO, STEP):
        pixel, at = places(first, cols, CH, HO, STEP)
        x = neighbours(xhat, at, CH, HO)
        if STEP < HO * HO:
            g = unpool(d, taken, pixel, cols, CH, HO)
        tl.store(dy + at, g[0] * scale - (x[0] * along + mean))
        tl.store(dy + at + CH, g[1] * scale - (x[1] * along + mean))
        tl.store(dy + at + 2 * HO * CH, g[2] * scale - (x[2] * along + mean))
        tl.store(dy + at + 2 * HO * CH + CH, g[3] * scale - (x[3] * along + mean))


def pool_backward(d: Tensor, taken: Tensor, layer: NormLayer, warps: int = 8, step: int | None = None) -> None:
    """Take the pooled map's gradient ``d`` back through pooling, ReLU and GroupNorm to the stem's convolution.

    Args:
        warps: of a program, which has one sample's group.
        step: pooled pixels that it has in registers at once, a power of two; default: all.
    """
    clients, batch, side, _, channels = layer.xhat.shape
    if side != 2 * d.shape[2]:
        raise FedsmooError(f"pooling maps of {side} pixels a side to {d.shape[2]}: the kernel halves even sides")
    width = layer.group_width
    launch(
        pool_backward_kernel, (batch * (channels // width), clients),
        d=d, taken=taken, xhat=layer.xhat, rstd=layer.rstd, dy=layer.dy, B=batch,
        p=layer.p, p_row=layer.p.stride(0), p_off=layer.p_off,
        part=layer.part, part_row=layer.part.stride(0), part_off=layer.part_off,
        CH=channels, HO=d.shape[2], GW=width, STEP=step or d.shape[2] ** 2, num_warps=warps,
    )  # fmt: skip
