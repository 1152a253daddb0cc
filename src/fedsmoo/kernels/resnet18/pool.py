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
def pool_tile(
    xhat,  # of one client: [B, HI, HI, CH], the normalised map
    p,  # gamma, then beta, CH numbers each, of this client
    out, taken,  # of this client: [B, HO, HO, CH]; the same in uint8: the tap that won, or NONE
    rows, live, cols,  # pooled pixels of all samples, and which of them there are; channels
    CH: tl.constexpr, HI: tl.constexpr, HO: tl.constexpr, NONE: tl.constexpr,
):  # fmt: skip
    """Write ``maxpool(relu(gamma * xhat + beta))``, 3x3 of stride 2, and the taps that won."""
    scale = tl.load(p + cols)[None, :]
    shift = tl.load(p + CH + cols)[None, :]
    best = tl.zeros((rows.shape[0], cols.shape[0]), tl.float32)
    which = tl.full((rows.shape[0], cols.shape[0]), NONE, tl.int32)
    for tap in range(9):
        h = (rows % (HO * HO)) // HO * 2 - 1 + tap // 3
        v = rows % HO * 2 - 1 + tap % 3
        seen = live & (h >= 0) & (h < HI) & (v >= 0) & (v < HI)
        at = ((rows // (HO * HO) * HI + h) * HI + v)[:, None] * CH + cols[None, :]
        z = tl.load(xhat + at, mask=seen[:, None], other=0.0).to(tl.float32) * scale + shift
        which = tl.where(seen[:, None] & (z > best), tap, which)
        best = tl.where(seen[:, None], tl.maximum(best, z, propagate_nan=tl.PropagateNan.ALL), best)
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
def unpool(d, taken, pixel, right, below, cols, CH: tl.constexpr, HO: tl.constexpr):
    """Return the gradient behind the pooling by the parity of row and column, ``[HO * HO, channels]`` each.

    A pixel of even row and column lies in one window only, the others in two or four, each of which is loaded once;
    ``right`` and ``below`` say which windows have neighbours.
    """
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
def pool_backward_kernel(
    d, taken,  # [C, B, HO, HO, CH]: gradient of the pooled map; the taps that won, uint8
    xhat, rstd, p, p_row, p_off, dy, part, part_row, part_off,  # as in epilogue_backward; a tile is a sample
    B,
    CH: tl.constexpr, HO: tl.constexpr, GW: tl.constexpr,
):  # fmt: skip
    """Take the gradient of one sample's group back through pooling, ReLU and GroupNorm.

    The map has ``2 * HO`` pixels a side. As ``sum(g) = sum_channels gamma * sum_pixels(d)``, the sums of GroupNorm's
    backward come from those of beta and gamma.
    """
    client = tl.program_id(1).to(tl.int64)
    sample = tl.program_id(0) // (CH // GW)
    group = tl.program_id(0) % (CH // GW)
    cols = group * GW + tl.arange(0, GW)
    pixel = tl.arange(0, HO * HO)
    row, col = pixel // HO, pixel % HO
    d += (client * B + sample) * HO * HO * CH
    taken += (client * B + sample) * HO * HO * CH
    d00, d01, d10, d11 = unpool(d, taken, pixel, col + 1 < HO, row + 1 < HO, cols, CH, HO)
    first = (row * (4 * HO) + col * 2) * CH  # of four neighbours, the one of even row and column
    at = (client * B + sample) * (4 * HO * HO * CH) + first[:, None] + cols[None, :]
    x00 = tl.load(xhat + at).to(tl.float32)
    x01 = tl.load(xhat + at + CH).to(tl.float32)
    x10 = tl.load(xhat + at + 2 * HO * CH).to(tl.float32)
    x11 = tl.load(xhat + at + 2 * HO * CH + CH).to(tl.float32)
    dgamma = tl.sum(d00 * x00 + d01 * x01 + d10 * x10 + d11 * x11, axis=0)
    dbeta = tl.sum(d00 + d01 + d10 + d11, axis=0)
    share = part + client * part_row + part_off + sample * 2 * CH + cols
    tl.store(share, dgamma)
    tl.store(share + CH, dbeta)

    gamma = tl.load(p + client * p_row + p_off + cols)
    mean = tl.sum(dbeta * gamma, axis=0) / (4 * HO * HO * GW)
    along = tl.sum(dgamma * gamma, axis=0) / (4 * HO * HO * GW)
    r = tl.load(rstd + (client * B + sample) * (CH // GW) + group)
    gamma = gamma[None, :]
    tl.store(dy + at, (d00 * gamma - mean - x00 * along) * r)
    tl.store(dy + at + CH, (d01 * gamma - mean - x01 * along) * r)
    tl.store(dy + at + 2 * HO * CH, (d10 * gamma - mean - x10 * along) * r)
    tl.store(dy + at + 2 * HO * CH + CH, (d11 * gamma - mean - x11 * along) * r)


def pool_backward(d: Tensor, taken: Tensor, layer: NormLayer, warps: int = 16) -> None:
    """Take the pooled map's gradient ``d`` back through pooling, ReLU and GroupNorm to the stem's convolution."""
    clients, batch, side, _, channels = layer.xhat.shape
    if side != 2 * d.shape[2]:
        raise FedsmooError(f"pooling maps of {side} pixels a side to {d.shape[2]}: the kernel halves even sides")
    width = layer.group_width
    launch(
        pool_backward_kernel, (batch * (channels // width), clients),
        d=d, taken=taken, xhat=layer.xhat, rstd=layer.rstd, dy=layer.dy, B=batch,
        p=layer.p, p_row=layer.p.stride(0), p_off=layer.p_off,
        part=layer.part, part_row=layer.part.stride(0), part_off=layer.part_off,
        CH=channels, HO=d.shape[2], GW=width, num_warps=warps,
    )  # fmt: skip
