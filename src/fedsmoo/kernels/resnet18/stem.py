"""The stem's 7x7 convolution with a client axis: forward with GroupNorm and pooling, and the weights' gradient.

Images are stored with ``CS = 4`` channels, the last of zeros, and with four pixels of zeros on both sides of a row. A
row of seven taps is read as eight pixels, the first of which has no weight: it begins at an even pixel, so that loads
are aligned. The reduction has 7 * 8 * 4 = 224 steps for 147 weights. One program of the forward product holds a whole
sample of 16x16 pixels, so that it normalises and pools it as well.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from fedsmoo.core.errors import FedsmooError
from fedsmoo.kernels.resnet18.norm import epilogue_forward
from fedsmoo.kernels.resnet18.pool import NOT_TAKEN, pool_tile
from fedsmoo.kernels.resnet18.shapes import Conv
from fedsmoo.kernels.resnet18.tiles import Tile, stem_weight_tiles
from fedsmoo.kernels.runtime import launch

REGISTERS = 128  # a thread: then two programs of eight warps share a multiprocessor; the compiler would take up to 156


@triton.jit
def patch(
    x,  # [B, HI, PAD + 1 + HI + PAD + 1, CS], of one client
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
    WIDE: tl.constexpr = (HI + 2 * PAD + 2) * CS
    across = tl.max_contiguous(tl.multiple_of(k % ROW, 8), 8)
    down = tl.max_constancy(k // ROW, 8)
    h = ((rows % (HO * HO)) // HO * STRIDE - PAD)[:, None] + down[None, :]
    seen = live[:, None] & (down < TAPS)[None, :] & (h >= 0) & (h < HI)
    first = rows // (HO * HO) * (HI * WIDE) + rows % HO * (STRIDE * CS)
    return tl.load(x + first[:, None] + h * WIDE + across[None, :], mask=seen, other=0.0)


@triton.jit
def weights_of(k, CIN: tl.constexpr, CS: tl.constexpr, TAPS: tl.constexpr):
    """Return the rows of ``[TAPS * TAPS * CIN, COUT]`` that reduction indices ``k`` meet, and where there is one."""
    ROW: tl.constexpr = (TAPS + 1) * CS
    pixel = k % ROW // CS
    at = (k // ROW * TAPS + pixel - 1) * CIN + k % CS
    return at, (k < TAPS * ROW) & (pixel > 0) & (k % CS < CIN)


@triton.jit
def stem_products(
    x, w,  # of one client: [B, HI, PAD + 1 + HI + PAD + 1, CS]; [TAPS * TAPS * CIN, COUT]
    rows, cols, B,  # the tile's pixels and channels
    CIN: tl.constexpr, CS: tl.constexpr, COUT: tl.constexpr,
    TAPS: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr, HI: tl.constexpr, HO: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return a tile of the convolution's outputs."""
    acc = tl.zeros((BM, BN), tl.float32)
    for first in range(0, TAPS * (TAPS + 1) * CS, BK):
        k = first + tl.arange(0, BK)
        a = patch(x, rows, rows < B * HO * HO, k, CS=CS, TAPS=TAPS, STRIDE=STRIDE, PAD=PAD, HI=HI, HO=HO)
        at, real = weights_of(k, CIN, CS, TAPS)
        b = tl.load(w + at[:, None] * COUT + cols[None, :], mask=real[:, None], other=0.0)
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
    return acc


@triton.jit
def stem_forward_kernel(
    x,  # [C, B, HI, PAD + 1 + HI + PAD + 1, CS]
    w, w_row, w_off,  # [C, w_row]: the kernel [TAPS, TAPS, CIN, COUT] begins at w_off
    p, p_row, p_off,  # [C, p_row] float32: gamma, then beta, COUT numbers each, from p_off on
    xhat, rstd,  # [C, B, HO, HO, COUT]; [C, B, COUT / GW] float32
    pooled, taken,  # [C, B, HO / 2, HO / 2, COUT] twice, as in pool_tile
    B, eps,
    CIN: tl.constexpr, CS: tl.constexpr, COUT: tl.constexpr,
    TAPS: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr,
    HI: tl.constexpr, HO: tl.constexpr, GW: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, NONE: tl.constexpr, UNROLL: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(1).to(tl.int64)
    tile = tl.program_id(0) // (COUT // BN)
    block = tl.program_id(0) % (COUT // BN)
    cols = block * BN + tl.arange(0, BN)
    rows = tile * BM + tl.arange(0, BM)
    x += client * B * HI * (HI + 2 * PAD + 2) * CS
    acc = stem_products(
        x, w + client * w_row + w_off, rows, cols, B, CIN=CIN, CS=CS, COUT=COUT, TAPS=TAPS, STRIDE=STRIDE, PAD=PAD,
        HI=HI, HO=HO, BM=BM, BN=BN, BK=BK, PRECISION=PRECISION,
    )  # fmt: skip
    epilogue_forward(
        acc, client, tile, rows, cols, block * (BN // GW),
        residual=xhat, p=p, p_row=0, p_off=0, out=xhat, xhat=xhat, rstd=rstd, B=B, eps=eps,
        CH=COUT, HW=HO * HO, GW=GW, NG=BN // GW, BM=BM, OUT=False, RELU=False, RESIDUAL=False, SAVE=True,
    )  # fmt: skip
    tl.debug_barrier()  # windows have pixels that other threads of this program wrote; other programs' they have not
    rows = tile * (BM // 4) + tl.arange(0, BM // 4)
    xhat += client * B * HO * HO * COUT
    pooled += client * B * (HO * HO // 4) * COUT
    taken += client * B * (HO * HO // 4) * COUT
    pool_tile(
        xhat, p + client * p_row + p_off, pooled, taken, rows, rows < B * (HO * HO // 4), cols,
        CH=COUT, HI=HO, HO=HO // 2, NONE=NONE, UNROLL=UNROLL,
    )  # fmt: skip


def readable(conv: Conv, x: Tensor) -> None:
    """Refuse images and convolutions that :func:`patch` would read wrongly (FedsmooError)."""
    wide = conv.side_in + 2 * (conv.pad + 1)
    if x.shape[3:] != (wide, 4) or conv.stride != 2 or conv.pad % 2 == 0 or conv.taps % 2 == 0 or conv.side_in % 2:
        raise FedsmooError(
            f"the stem's kernels read images of even sides, with margins and four stored channels, by odd kernels of "
            f"stride 2, not {tuple(x.shape)} by {conv}"
        )


def stem_forward(
    conv: Conv, x: Tensor, w: Tensor, w_off: int, p: Tensor, p_off: int, xhat: Tensor, rstd: Tensor,
    pooled: Tensor, taken: Tensor, tile: Tile, *, precision: str = "ieee", eps: float = 1e-5,
    unroll: int | None = None,
) -> None:  # fmt: skip
    """Write ``pooled = maxpool(relu(groupnorm(conv(x))))`` of images ``x [C, B, H, H + 8, 4]``, 3x3 of stride 2.

    What backward needs is kept: the normalised convolution ``xhat``, ``rstd`` and the windows' winning taps ``taken``.
    ``unroll`` rows of a window's taps are loaded at once (default: what registers hold, all of them in bfloat16).
    """
    clients, batch = x.shape[:2]
    readable(conv, x)
    width = conv.outside // rstd.shape[-1]
    tile.fits("stem's forward product", conv.outside, tile.inner, group=width, pixels=conv.side_out**2)
    launch(
        stem_forward_kernel, (-(-batch * conv.side_out**2 // tile.rows) * (conv.outside // tile.cols), clients),
        x=x, w=w, w_row=w.stride(0), w_off=w_off,
        p=p, p_row=p.stride(0), p_off=p_off, xhat=xhat, rstd=rstd, pooled=pooled, taken=taken, B=batch, eps=eps,
        CIN=conv.inside, CS=4, COUT=conv.outside, TAPS=conv.taps, STRIDE=conv.stride, PAD=conv.pad,
        HI=conv.side_in, HO=conv.side_out, GW=width,
        BM=tile.rows, BN=tile.cols, BK=tile.inner, NONE=NOT_TAKEN, PRECISION=precision,
        UNROLL=unroll or (3 if xhat.element_size() == 2 else 1),
        num_warps=tile.warps, num_stages=tile.stages, maxnreg=REGISTERS,
    )  # fmt: skip


@triton.jit
def stem_weight_kernel(
    x,  # [C, B, HI, PAD + 1 + HI + PAD + 1, CS]
    dy,  # [C, B, HO, HO, COUT]
    out, out_row, out_split, out_off,  # [splits, C, *]: client c's part s of [TAPS, TAPS, CIN, COUT] begins at out_off
    B, splits,
    CIN: tl.constexpr, CS: tl.constexpr, COUT: tl.constexpr,
    TAPS: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr,
    HI: tl.constexpr, HO: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, ACROSS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(1).to(tl.int64)
    split = tl.program_id(0) % splits
    k = tl.program_id(0) // splits * BN + tl.arange(0, BN)
    cols = tl.arange(0, COUT)
    x += client * B * HI * (HI + 2 * PAD + 2) * CS
    dy += client * B * HO * HO * COUT
    total = B * HO * HO
    blocks = tl.cdiv(tl.cdiv(total, BK), splits)
    acc = tl.zeros((COUT, BN), tl.float32)
    for block in range(blocks):
        rows = (split * blocks + block) * BK + tl.arange(0, BK)
        if ACROSS:
            a = tl.load(dy + rows[None, :] * COUT + cols[:, None], mask=(rows < total)[None, :], other=0.0)
        else:
            a = tl.trans(tl.load(dy + rows[:, None] * COUT + cols[None, :], mask=(rows < total)[:, None], other=0.0))
        b = patch(x, rows, rows < total, k, CS=CS, TAPS=TAPS, STRIDE=STRIDE, PAD=PAD, HI=HI, HO=HO)
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
    out += client * out_row + split.to(tl.int64) * out_split + out_off
    at, real = weights_of(k, CIN, CS, TAPS)
    tl.store(out + at[:, None] * COUT + cols[None, :], tl.trans(acc), mask=real[:, None])


@triton.jit
def tap_row(x, sample, first, tap, PAD: tl.constexpr):
    """Load the box of what a row of taps meets in a sample, from the output row ``first`` on."""
    return x.load([sample, first + (tap + 1) // 2 - (PAD + 1) // 2, (tap + 1) % 2, 0, 0])


def row_boxes(x: Tensor, conv: Conv, rows: int) -> TensorDescriptor:
    """Describe boxes ``[1, rows, 1, Ho, 8 * 4]`` of what a row of taps meets at so many rows of outputs.

    Of an image that is pairs of rows, one of them, and for every output column the eight pixels that it meets: columns
    overlap.
    """
    clients, batch, side, wide, channels = x.shape
    row, met = wide * channels, (conv.taps + 1) * channels
    shape = [clients * batch, side // 2, 2, conv.side_out, met]
    return TensorDescriptor(
        x, shape, [side * row, 2 * row, row, 2 * channels, 1], [1, rows, 1, conv.side_out, met]
    )  # fmt: skip


@triton.jit
def stem_weight_boxes_kernel(
    x, dy,  # boxes of rows of taps, and [1, BK, COUT] of [C * B, HO * HO, COUT]
    out, out_row, out_split, out_off,  # as above
    B, splits,
    CIN: tl.constexpr, CS: tl.constexpr, COUT: tl.constexpr, TAPS: tl.constexpr, PAD: tl.constexpr, HO: tl.constexpr,
    BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """All taps at once, so that gradients are read once; a step is some rows of one sample."""
    ROW: tl.constexpr = (TAPS + 1) * CS
    STEPS: tl.constexpr = HO * HO // BK  # of a sample
    client = tl.program_id(1)
    split = tl.program_id(0)
    blocks = tl.cdiv(B * STEPS, splits)
    sums = (tl.zeros((COUT, ROW), tl.float32),) * TAPS
    for block in range(split * blocks, tl.minimum((split + 1) * blocks, B * STEPS)):
        sample = client * B + block // STEPS
        first = block % STEPS * (BK // HO)
        a = tl.trans(tl.reshape(dy.load([sample, block % STEPS * BK, 0]), (BK, COUT)))
        added = ()
        for tap in tl.static_range(TAPS):
            b = tl.reshape(tap_row(x, sample, first, tap, PAD), (BK, ROW))
            one = (tl.dot(a, b, sums[tap], input_precision=PRECISION),)
            added = added + one  # type: ignore[assignment]
        sums = added
    out += client.to(tl.int64) * out_row + split.to(tl.int64) * out_split + out_off
    for tap in tl.static_range(TAPS):
        at, real = weights_of(tap * ROW + tl.arange(0, ROW), CIN, CS, TAPS)
        cols = tl.arange(0, COUT)
        tl.store(out + at[:, None] * COUT + cols[None, :], tl.trans(sums[tap]), mask=real[:, None])


def stem_weight(
    conv: Conv, x: Tensor, dy: Tensor, out: Tensor, offset: int, tile: Tile, *, precision: str = "ieee"
) -> None:
    """Compute the gradient of the stem's weights; part ``s`` of the reduction goes to ``out[s, c, offset:]``."""
    clients, batch = x.shape[:2]
    readable(conv, x)
    rest = {
        "out": out, "out_row": out.stride(1), "out_split": out.stride(0), "out_off": offset,
        "B": batch, "splits": out.shape[0], "CIN": conv.inside, "CS": 4, "COUT": conv.outside, "TAPS": conv.taps,
        "PAD": conv.pad, "HO": conv.side_out, "BK": tile.inner, "PRECISION": precision,
        "num_warps": tile.warps, "num_stages": tile.stages,
    }  # fmt: skip
    if tile.boxes:
        pixels = TensorDescriptor.from_tensor(dy.flatten(2, 3).flatten(0, 1), [1, tile.inner, conv.outside])
        launch(
            stem_weight_boxes_kernel, (out.shape[0], clients),
            x=row_boxes(x, conv, tile.inner // conv.side_out), dy=pixels, **rest,
        )  # fmt: skip
    else:
        launch(
            stem_weight_kernel, (stem_weight_tiles(conv, tile) * out.shape[0], clients),
            x=x, dy=dy, STRIDE=conv.stride, HI=conv.side_in, BN=tile.cols, ACROSS=tile.across, **rest,
        )  # fmt: skip
