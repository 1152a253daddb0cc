"""The stem with a client axis: 7x7 convolution, GroupNorm, ReLU and 3x3 max-pooling, forward and backward.

Images are stored with ``CS = 4`` channels, the last of zeros, and a row of seven taps is read as eight pixels, the
first of which has no weight: it begins at an even pixel, so that two pixels (16 bytes in bfloat16) are one aligned load
that is inside the image or outside as a whole. The reduction has 7 * 8 * 4 = 224 steps for 147 weights. One program
holds a whole sample of 16x16 pixels, so that its GroupNorm is fused.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from fedsmoo.core.errors import FedsmooError
from fedsmoo.kernels.resnet18.conv import epilogue_forward
from fedsmoo.kernels.resnet18.norm import NormLayer
from fedsmoo.kernels.resnet18.shapes import Conv
from fedsmoo.kernels.resnet18.tiles import Tile
from fedsmoo.kernels.runtime import launch

REGISTERS = 128  # a thread: then two programs of eight warps share a multiprocessor; the compiler would take up to 156
NOT_TAKEN = 9  # the pooling window's largest number was not positive: no gradient passes


@triton.jit
def patch(
    x,  # [B, HI, HI, CS], of one client
    rows, live,  # [BM]: output pixels of all samples, and which of them there are
    k,  # [BK]: reduction indices
    CS: tl.constexpr, TAPS: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr,
    HI: tl.constexpr, HO: tl.constexpr,
):  # fmt: skip
    """Load the numbers ``[rows, k]`` that reduction indices ``k = (tap_h, pixel, channel)`` meet at output pixels.

    Pixel 0 of a row is the one before its first tap. The compiler is told what is contiguous and what is masked alike:
    eight numbers, two pixels.
    """
    ROW: tl.constexpr = (TAPS + 1) * CS
    across = tl.max_contiguous(tl.multiple_of(k % ROW, 8), 8)
    two = tl.max_constancy(k % ROW // (2 * CS), 8)
    down = tl.max_constancy(k // ROW, 8)
    h = ((rows % (HO * HO)) // HO * STRIDE - PAD)[:, None] + down[None, :]
    pair = (rows % HO * (STRIDE // 2) - (PAD + 1) // 2)[:, None] + two[None, :]
    seen = live[:, None] & (down < TAPS)[None, :] & (h >= 0) & (h < HI) & (pair >= 0) & (pair < HI // 2)
    first = (rows // (HO * HO) * (HI * HI) + rows % HO * STRIDE - (PAD + 1)) * CS
    return tl.load(x + first[:, None] + h * (HI * CS) + across[None, :], mask=seen, other=0.0)


@triton.jit
def weights_of(k, CIN: tl.constexpr, CS: tl.constexpr, TAPS: tl.constexpr):
    """Return the rows of ``[TAPS * TAPS * CIN, COUT]`` that reduction indices ``k`` meet, and where there is one."""
    ROW: tl.constexpr = (TAPS + 1) * CS
    pixel = k % ROW // CS
    at = (k // ROW * TAPS + pixel - 1) * CIN + k % CS
    return at, (k < TAPS * ROW) & (pixel > 0) & (k % CS < CIN)


@triton.jit
def stem_forward_kernel(
    x,  # [C, B, HI, HI, CS]
    w, w_row, w_off,  # [C, w_row]: the kernel [TAPS, TAPS, CIN, COUT] begins at w_off
    xhat, rstd,  # [C, B, HO, HO, COUT]; [C, B, COUT / GW] float32
    B, eps,
    CIN: tl.constexpr, CS: tl.constexpr, COUT: tl.constexpr,
    TAPS: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr,
    HI: tl.constexpr, HO: tl.constexpr, GW: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(1).to(tl.int64)
    tile = tl.program_id(0) // (COUT // BN)
    cols = (tl.program_id(0) % (COUT // BN)) * BN + tl.arange(0, BN)
    rows = tile * BM + tl.arange(0, BM)
    x += client * B * HI * HI * CS
    w += client * w_row + w_off
    acc = tl.zeros((BM, BN), tl.float32)
    for first in range(0, TAPS * (TAPS + 1) * CS, BK):
        k = first + tl.arange(0, BK)
        a = patch(x, rows, rows < B * HO * HO, k, CS=CS, TAPS=TAPS, STRIDE=STRIDE, PAD=PAD, HI=HI, HO=HO)
        at, real = weights_of(k, CIN, CS, TAPS)
        b = tl.load(w + at[:, None] * COUT + cols[None, :], mask=real[:, None], other=0.0)
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
    epilogue_forward(
        acc, client, tile, rows, cols,
        residual=x, p=w, p_row=0, p_off=0, out=xhat, xhat=xhat, rstd=rstd, B=B, eps=eps,
        CH=COUT, HW=HO * HO, GW=GW, NG=BN // GW, BM=BM, OUT=False, RELU=False, RESIDUAL=False, SAVE=True,
    )  # fmt: skip


def readable(conv: Conv, x: Tensor) -> None:
    """Refuse images and convolutions that :func:`patch` would read wrongly (FedsmooError)."""
    if x.shape[-1] != 4 or conv.stride != 2 or conv.pad % 2 == 0 or conv.taps % 2 == 0 or conv.side_in % 2:
        raise FedsmooError(
            f"the stem's kernels read images of even sides with four stored channels by odd kernels of stride 2, not "
            f"{tuple(x.shape)} by {conv}"
        )


def stem_forward(
    conv: Conv, x: Tensor, w: Tensor, w_off: int, xhat: Tensor, rstd: Tensor, tile: Tile, *,
    precision: str = "ieee", eps: float = 1e-5,
) -> None:  # fmt: skip
    """Compute the normalised convolution of images ``x [C, B, H, H, 4]``; :func:`pool` applies gamma and beta."""
    clients, batch = x.shape[:2]
    readable(conv, x)
    width = conv.outside // rstd.shape[-1]
    tile.fits("stem's forward product", conv.outside, tile.inner, group=width, pixels=conv.side_out**2)
    launch(
        stem_forward_kernel, (-(-batch * conv.side_out**2 // tile.rows) * (conv.outside // tile.cols), clients),
        x=x, w=w, w_row=w.stride(0), w_off=w_off, xhat=xhat, rstd=rstd, B=batch, eps=eps,
        CIN=conv.inside, CS=x.shape[-1], COUT=conv.outside, TAPS=conv.taps, STRIDE=conv.stride, PAD=conv.pad,
        HI=conv.side_in, HO=conv.side_out, GW=width,
        BM=tile.rows, BN=tile.cols, BK=tile.inner, PRECISION=precision, num_warps=tile.warps, num_stages=tile.stages,
        maxnreg=REGISTERS,
    )  # fmt: skip


@triton.jit
def pool_kernel(
    xhat,  # [C, B, HI, HI, CH]
    p, p_row, p_off,  # [C, p_row] float32: gamma, then beta, CH numbers each, from p_off on
    out, taken,  # [C, B, HO, HO, CH]; the same in uint8: the tap that won, or NONE
    B,
    CH: tl.constexpr, HI: tl.constexpr, HO: tl.constexpr, BM: tl.constexpr, NONE: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.arange(0, CH)
    live = rows < B * HO * HO
    scale = tl.load(p + client * p_row + p_off + cols)[None, :]
    shift = tl.load(p + client * p_row + p_off + CH + cols)[None, :]
    best = tl.zeros((BM, CH), tl.float32)
    which = tl.full((BM, CH), NONE, tl.int32)
    for tap in range(9):
        h = (rows % (HO * HO)) // HO * 2 - 1 + tap // 3
        v = rows % HO * 2 - 1 + tap % 3
        seen = live & (h >= 0) & (h < HI) & (v >= 0) & (v < HI)
        at = client * B * HI * HI * CH + ((rows // (HO * HO) * HI + h) * HI + v)[:, None] * CH + cols[None, :]
        z = tl.load(xhat + at, mask=seen[:, None], other=0.0).to(tl.float32) * scale + shift
        better = seen[:, None] & (z > best)
        best = tl.where(better, z, best)
        which = tl.where(better, tap, which)
    at = client * B * HO * HO * CH + rows[:, None] * CH + cols[None, :]
    tl.store(out + at, best, mask=live[:, None])
    tl.store(taken + at, which.to(tl.uint8), mask=live[:, None])


def pool(xhat: Tensor, p: Tensor, p_off: int, out: Tensor, taken: Tensor, rows: int = 64) -> None:
    """Write ``out = maxpool(relu(gamma * xhat + beta))``, 3x3, stride 2; ``taken`` (uint8) keeps the winning taps."""
    clients, batch, side, _, channels = xhat.shape
    launch(
        pool_kernel, (-(-batch * out.shape[2] ** 2 // rows), clients),
        xhat=xhat, p=p, p_row=p.stride(0), p_off=p_off, out=out, taken=taken, B=batch,
        CH=channels, HI=side, HO=out.shape[2], BM=rows, NONE=NOT_TAKEN, num_warps=4,
    )  # fmt: skip


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


def pool_backward(d: Tensor, taken: Tensor, layer: NormLayer, warps: int = 8) -> None:
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


@triton.jit
def stem_weight_kernel(
    x,  # [C, B, HI, HI, CS]
    dy,  # [C, B, HO, HO, COUT]
    out, out_row, out_split, out_off,  # [splits, C, *]: client c's part s of [TAPS, TAPS, CIN, COUT] begins at out_off
    B, splits,
    CIN: tl.constexpr, CS: tl.constexpr, COUT: tl.constexpr,
    TAPS: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr,
    HI: tl.constexpr, HO: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(1).to(tl.int64)
    split = tl.program_id(0) % splits
    k = tl.program_id(0) // splits * BN + tl.arange(0, BN)
    cols = tl.arange(0, COUT)
    x += client * B * HI * HI * CS
    dy += client * B * HO * HO * COUT
    total = B * HO * HO
    blocks = tl.cdiv(tl.cdiv(total, BK), splits)
    acc = tl.zeros((COUT, BN), tl.float32)
    for block in range(blocks):
        rows = (split * blocks + block) * BK + tl.arange(0, BK)
        a = tl.load(dy + rows[:, None] * COUT + cols[None, :], mask=(rows < total)[:, None], other=0.0)
        b = patch(x, rows, rows < total, k, CS=CS, TAPS=TAPS, STRIDE=STRIDE, PAD=PAD, HI=HI, HO=HO)
        acc = tl.dot(tl.trans(a), b, acc, input_precision=PRECISION)
    out += client * out_row + split.to(tl.int64) * out_split + out_off
    at, real = weights_of(k, CIN, CS, TAPS)
    tl.store(out + at[:, None] * COUT + cols[None, :], tl.trans(acc), mask=real[:, None])


def stem_weight_tiles(conv: Conv, tile: Tile) -> int:
    """Return how many programs share the reduction's indices: all taps, eight pixels of four channels a row."""
    return -(-conv.taps * (conv.taps + 1) * 4 // tile.cols)


def stem_weight(
    conv: Conv, x: Tensor, dy: Tensor, out: Tensor, offset: int, tile: Tile, *, precision: str = "ieee"
) -> None:
    """Compute the gradient of the stem's weights; part ``s`` of the reduction goes to ``out[s, c, offset:]``."""
    clients, batch = x.shape[:2]
    readable(conv, x)
    launch(
        stem_weight_kernel, (stem_weight_tiles(conv, tile) * out.shape[0], clients),
        x=x, dy=dy, out=out, out_row=out.stride(1), out_split=out.stride(0), out_off=offset,
        B=batch, splits=out.shape[0],
        CIN=conv.inside, CS=x.shape[-1], COUT=conv.outside, TAPS=conv.taps, STRIDE=conv.stride, PAD=conv.pad,
        HI=conv.side_in, HO=conv.side_out, BN=tile.cols, BK=tile.inner, PRECISION=precision,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
