"""The stem with a client axis: 7x7 convolution, GroupNorm, ReLU and 3x3 max-pooling, forward and backward.

Images are stored with ``CS`` channels, of which ``CIN`` are real: with a fourth channel of zeros, the reduction over
taps and channels (196, padded to a multiple of the step) is gathered pixel by pixel instead of number by number. One
program holds a whole sample of 16x16 pixels, so that its GroupNorm is fused.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from fedsmoo.kernels.resnet18.conv import epilogue_forward
from fedsmoo.kernels.resnet18.norm import NormLayer, epilogue_backward
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
    """Load the numbers ``[rows, k]`` that reduction indices ``k = (tap_h, tap_v, channel)`` meet at output pixels."""
    h = ((rows % (HO * HO)) // HO * STRIDE - PAD)[:, None] + (k // (TAPS * CS))[None, :]
    v = (rows % HO * STRIDE - PAD)[:, None] + (k // CS % TAPS)[None, :]
    seen = live[:, None] & (k < TAPS * TAPS * CS)[None, :] & (h >= 0) & (h < HI) & (v >= 0) & (v < HI)
    at = (((rows // (HO * HO) * HI)[:, None] + h) * HI + v) * CS + (k % CS)[None, :]
    return tl.load(x + at, mask=seen, other=0.0)


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
    for first in range(0, TAPS * TAPS * CS, BK):
        k = first + tl.arange(0, BK)
        a = patch(x, rows, rows < B * HO * HO, k, CS=CS, TAPS=TAPS, STRIDE=STRIDE, PAD=PAD, HI=HI, HO=HO)
        real = (k < TAPS * TAPS * CS) & (k % CS < CIN)
        b = tl.load(w + (k // CS * CIN + k % CS)[:, None] * COUT + cols[None, :], mask=real[:, None], other=0.0)
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
    epilogue_forward(
        acc, client, tile, rows, cols,
        residual=x, p=w, p_row=0, p_off=0, out=xhat, xhat=xhat, rstd=rstd, B=B, eps=eps,
        CH=COUT, HW=HO * HO, GW=GW, NG=BN // GW, BM=BM, OUT=False, RELU=False, RESIDUAL=False, SAVE=True,
    )  # fmt: skip


def stem_forward(
    conv: Conv, x: Tensor, w: Tensor, w_off: int, xhat: Tensor, rstd: Tensor, tile: Tile, *,
    precision: str = "ieee", eps: float = 1e-5,
) -> None:  # fmt: skip
    """Compute the normalised convolution of images ``x [C, B, H, H, CS]``; :func:`pool` applies gamma and beta."""
    clients, batch = x.shape[:2]
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
def pool_backward_kernel(
    d, taken,  # [C, B, HO, HO, CH]: gradient of the pooled map; the taps that won, uint8
    xhat, rstd, p, p_row, p_off, dy, part, part_row, part_off,  # as in epilogue_backward
    B,
    CH: tl.constexpr, HI: tl.constexpr, HO: tl.constexpr, GW: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(1).to(tl.int64)
    tile = tl.program_id(0) // (CH // GW)
    cols = (tl.program_id(0) % (CH // GW)) * GW + tl.arange(0, GW)
    rows = tile * BM + tl.arange(0, BM)
    live = rows < B * HI * HI
    h = (rows % (HI * HI)) // HI
    v = rows % HI
    acc = tl.zeros((BM, GW), tl.float32)
    # A pixel lies in the window at half its coordinate (as tap 1 if that is even, else as tap 2) and, if odd, also in
    # the next one (as tap 0): four windows at most, not nine taps of which parity rules out three in four.
    for window in tl.static_range(4):
        down = window // 2
        right = window % 2
        wh = h // 2 + down
        wv = v // 2 + right
        inside = (wh < HO) & (wv < HO) & (h % 2 >= down) & (v % 2 >= right)
        tap = (h % 2 + 1 - 2 * down) * 3 + v % 2 + 1 - 2 * right
        mask = (live & inside)[:, None]
        pixel = (rows // (HI * HI) * HO + wh) * HO + wv
        at = client * B * HO * HO * CH + pixel[:, None] * CH + cols[None, :]
        won = tl.load(taken + at, mask=mask, other=255).to(tl.int32) == tap[:, None]
        acc += tl.where(won, tl.load(d + at, mask=mask, other=0.0).to(tl.float32), 0.0)
    epilogue_backward(
        acc, client, tile, rows, cols, act=xhat, xhat=xhat, rstd=rstd, p=p, p_row=p_row, p_off=p_off, dz=dy, dy=dy,
        part=part, part_row=part_row, part_off=part_off, B=B,
        CH=CH, HW=HI * HI, GW=GW, NG=1, BM=BM, RELU=False, KEEP=False,
    )  # fmt: skip


def pool_backward(d: Tensor, taken: Tensor, layer: NormLayer, rows: int, warps: int = 8) -> None:
    """Take the pooled map's gradient ``d`` back through pooling, ReLU and GroupNorm to the stem's convolution."""
    clients, batch, side, _, channels = layer.xhat.shape
    width = layer.group_width
    launch(
        pool_backward_kernel, (-(-batch * side * side // rows) * (channels // width), clients),
        d=d, taken=taken, xhat=layer.xhat, rstd=layer.rstd, dy=layer.dy, B=batch,
        p=layer.p, p_row=layer.p.stride(0), p_off=layer.p_off,
        part=layer.part, part_row=layer.part.stride(0), part_off=layer.part_off,
        CH=channels, HI=side, HO=d.shape[2], GW=width, BM=rows, num_warps=warps, maxnreg=REGISTERS,
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
    real = (k < TAPS * TAPS * CS) & (k % CS < CIN)
    tl.store(out + (k // CS * CIN + k % CS)[:, None] * COUT + cols[None, :], tl.trans(acc), mask=real[:, None])


def stem_weight(
    conv: Conv, x: Tensor, dy: Tensor, out: Tensor, offset: int, tile: Tile, *, precision: str = "ieee"
) -> None:
    """Compute the gradient of the stem's weights; part ``s`` of the reduction goes to ``out[s, c, offset:]``."""
    clients, batch = x.shape[:2]
    tiles = -(-(conv.taps**2) * x.shape[-1] // tile.cols)
    launch(
        stem_weight_kernel, (tiles * out.shape[0], clients),
        x=x, dy=dy, out=out, out_row=out.stride(1), out_split=out.stride(0), out_off=offset,
        B=batch, splits=out.shape[0],
        CIN=conv.inside, CS=x.shape[-1], COUT=conv.outside, TAPS=conv.taps, STRIDE=conv.stride, PAD=conv.pad,
        HI=conv.side_in, HO=conv.side_out, BN=tile.cols, BK=tile.inner, PRECISION=precision,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
