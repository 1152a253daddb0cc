"""The data gradient of a block's first convolution and shortcut of stride 2, through the layer before, by boxes.

Pixels of one parity (of row and column) meet the same taps, so that each of the four parities is a product by itself.
One program has all four of some samples: with them it has whole samples, whose GroupNorm it passes before it writes.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from fedsmoo.kernels.resnet18.boxes import image_boxes, weight_boxes
from fedsmoo.kernels.resnet18.norm import NormLayer, group_mean, spread
from fedsmoo.kernels.resnet18.shapes import Conv
from fedsmoo.kernels.resnet18.tiles import Tile
from fedsmoo.kernels.runtime import launch


@triton.jit
def parity_products(
    acc,  # [BM, BN]: the tile's input gradients of one parity, in registers
    dy, w,  # boxes [1, samples, HO, HO, BK] of gradients and [1, BN, BK] of kernels
    client, sample, col,  # which client; the tile's first sample and input channel
    PH: tl.constexpr, PV: tl.constexpr,  # the parity of rows and columns
    CIN: tl.constexpr, COUT: tl.constexpr, TAPS: tl.constexpr, PAD: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return ``acc`` plus the transposed convolution of ``dy``: products over the parity's taps and output channels."""
    FIRST_H: tl.constexpr = (PH + PAD) % 2
    FIRST_V: tl.constexpr = (PV + PAD) % 2
    TAPS_H: tl.constexpr = (TAPS - FIRST_H + 1) // 2
    TAPS_V: tl.constexpr = (TAPS - FIRST_V + 1) // 2
    if TAPS_H * TAPS_V > 0:
        for step in range(TAPS_H * TAPS_V * (COUT // BK)):
            tap = step // (COUT // BK)
            k = step % (COUT // BK) * BK
            tap_h = FIRST_H + tap // TAPS_V * 2
            tap_v = FIRST_V + tap % TAPS_V * 2
            a = dy.load([client, sample, (PH + PAD - tap_h) // 2, (PV + PAD - tap_v) // 2, k])
            b = w.load([client, (tap_h * TAPS + tap_v) * CIN + col, k])
            acc = tl.dot(tl.reshape(a, (BM, BK)), tl.trans(tl.reshape(b, (BN, BK))), acc, input_precision=PRECISION)
    return acc


@triton.jit
def input_gradient(
    dy, dy_down, w, w_down, tile, PARITY: tl.constexpr,  # as in the kernel
    CIN: tl.constexpr, COUT: tl.constexpr, TAPS: tl.constexpr, PAD: tl.constexpr, HO: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return the gradient of the tile's inputs of one parity; the shortcut meets even rows and columns only."""
    client, sample, col = tl.program_id(1), tile * (BM // (HO * HO)), (tl.program_id(0) % (CIN // BN)) * BN
    d = tl.zeros((BM, BN), tl.float32)
    if PARITY == 0:
        d = parity_products(
            d, dy_down, w_down, client, sample, col, PH=0, PV=0,
            CIN=CIN, COUT=COUT, TAPS=1, PAD=0, BM=BM, BN=BN, BK=BK, PRECISION=PRECISION,
        )  # fmt: skip
    return parity_products(
        d, dy, w, client, sample, col, PH=PARITY // 2, PV=PARITY % 2,
        CIN=CIN, COUT=COUT, TAPS=TAPS, PAD=PAD, BM=BM, BN=BN, BK=BK, PRECISION=PRECISION,
    )  # fmt: skip


@triton.jit
def scales(
    rstd, tile, cols, B,
    CH: tl.constexpr, HO: tl.constexpr, GW: tl.constexpr, NG: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """Load one client's ``rstd [B, CH / GW]`` of the tile's samples and groups."""
    samples = tile * (BM // (HO * HO)) + tl.arange(0, BM // (HO * HO))
    groups = tl.min(cols) // GW + tl.arange(0, NG)
    return tl.load(rstd + samples[:, None] * (CH // GW) + groups[None, :], mask=(samples < B)[:, None], other=0.0)


@triton.jit
def strided_backward_kernel(
    dy, dy_down,  # boxes of the gradients [C, B, HO, HO, COUT] of the convolution's and the shortcut's output
    w, w_down,  # boxes of their kernels
    act, xhat, rstd, p, p_row, p_off, dz, dx, part, part_row, part_off,  # as in epilogue_backward; dx: its dy
    B,
    CIN: tl.constexpr, COUT: tl.constexpr, TAPS: tl.constexpr, PAD: tl.constexpr, HO: tl.constexpr, GW: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    NG: tl.constexpr = BN // GW
    client = tl.program_id(1).to(tl.int64)
    tile = tl.program_id(0) // (CIN // BN)
    cols = (tl.program_id(0) % (CIN // BN)) * BN + tl.arange(0, BN)
    rows = tile * BM + tl.arange(0, BM)
    live = (rows < B * HO * HO)[:, None]
    pixel = rows // HO * (4 * HO) + rows % HO * 2  # of four neighbours, the one of even row and column
    at = client * B * (4 * HO * HO) * CIN + pixel[:, None] * CIN + cols[None, :]
    gamma = tl.load(p + client * p_row + p_off + cols)[None, :]
    share = part + client * part_row + part_off + tile * 2 * CIN + cols
    dgamma, dbeta = tl.zeros((BN,), tl.float32), tl.zeros((BN,), tl.float32)
    mean, along = tl.zeros((BM // (HO * HO), NG), tl.float32), tl.zeros((BM // (HO * HO), NG), tl.float32)
    kept = ()
    for parity in tl.static_range(4):
        d = input_gradient(
            dy, dy_down, w, w_down, tile, parity,
            CIN=CIN, COUT=COUT, TAPS=TAPS, PAD=PAD, HO=HO, BM=BM, BN=BN, BK=BK, PRECISION=PRECISION,
        )  # fmt: skip
        there = at + (parity // 2 * 2 * HO + parity % 2) * CIN
        d = tl.where(tl.load(act + there, mask=live, other=0.0) > 0, d, 0.0)
        tl.store(dz + there, d, mask=live)
        normed = tl.load(xhat + there, mask=live, other=0.0).to(tl.float32)
        dgamma += tl.sum(d * normed, axis=0)
        dbeta += tl.sum(d, axis=0)
        d *= gamma
        mean += group_mean(d, HO * HO, GW, NG, BM) / 4
        along += group_mean(d * normed, HO * HO, GW, NG, BM) / 4
        kept = kept + (d,)  # type: ignore[assignment]  # noqa: RUF005
    tl.store(share, dgamma)
    tl.store(share + CIN, dbeta)
    r = spread(scales(rstd + client * B * (CIN // GW), tile, cols, B, CIN, HO, GW, NG, BM), HO * HO, GW, NG, BM)
    mean, along = spread(mean, HO * HO, GW, NG, BM), spread(along, HO * HO, GW, NG, BM)
    for parity in tl.static_range(4):
        there = at + (parity // 2 * 2 * HO + parity % 2) * CIN
        normed = tl.load(xhat + there, mask=live, other=0.0).to(tl.float32)
        tl.store(dx + there, (kept[parity] - mean - normed * along) * r, mask=live)


def strided_backward(
    conv: Conv, down: Conv, dy: Tensor, dy_down: Tensor, w: Tensor, w_off: int, down_off: int, tile: Tile,
    before: NormLayer, *, precision: str = "ieee",
) -> None:  # fmt: skip
    """Take gradients of a convolution and a 1x1 shortcut of stride 2 back through the ReLU and GroupNorm before them.

    Args:
        dy, dy_down: ``[C, B, Ho, Ho, Cout]``, of their outputs.
        w: flat parameters ``[C, >= P]``; the kernels begin at ``w_off`` and ``down_off``.
        tile: its rows are pixels of a parity.
    """
    clients, batch = dy.shape[:2]
    what = f"data gradient of {conv.name}"
    tile.fits(what, conv.inside, conv.outside, group=before.group_width, pixels=conv.side_out**2)
    tiles = -(-batch * conv.side_out**2 // tile.rows)
    layer = before.arguments(unread=dy)
    layer["dx"] = layer.pop("dy")
    launch(
        strided_backward_kernel, (tiles * (conv.inside // tile.cols), clients),
        dy=image_boxes(dy, tile.rows, tile.inner), dy_down=image_boxes(dy_down, tile.rows, tile.inner),
        w=weight_boxes(w, w_off, conv, tile.cols, tile.inner),
        w_down=weight_boxes(w, down_off, down, tile.cols, tile.inner), **layer, B=batch,
        CIN=conv.inside, COUT=conv.outside, TAPS=conv.taps, PAD=conv.pad, HO=conv.side_out,
        BM=tile.rows, BN=tile.cols, BK=tile.inner, PRECISION=precision,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
