"""Weight gradients with a client axis: products that reduce over pixels.

The stored kernel is one matrix ``[taps * taps * Cin, Cout]``, so each tile lies inside one tap. Where there are too
few tiles to fill the device the reduction is cut into parts, summed afterwards in a fixed order: no atomics.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from fedsmoo.core.errors import FedsmooError
from fedsmoo.kernels.resnet18.boxes import image_boxes, pixel_rows, weight_products
from fedsmoo.kernels.resnet18.shapes import Conv
from fedsmoo.kernels.resnet18.tiles import Tile
from fedsmoo.kernels.runtime import launch


@triton.jit
def pointer_products(
    acc,  # [BM, BN]: a tile of one tap's weights, in registers
    x, dy, total,  # of this client: [B, HI, HI, CIN]; [B, HO, HO, COUT], so many pixels
    first, blocks, shift_h, shift_v,  # the first of so many steps of BK pixels; the tap's shift
    channels, cols,  # [BM], [BN]: the tile's input and output channels
    CIN: tl.constexpr, COUT: tl.constexpr, STRIDE: tl.constexpr, HI: tl.constexpr, HO: tl.constexpr,
    BK: tl.constexpr, ACROSS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return ``acc`` plus products over some steps of pixels."""
    for block in range(blocks):
        rows = (first + block) * BK + tl.arange(0, BK)
        live = rows < total
        h = (rows % (HO * HO)) // HO * STRIDE + shift_h
        v = rows % HO * STRIDE + shift_v
        seen = live & (h >= 0) & (h < HI) & (v >= 0) & (v < HI)
        pixel = (rows // (HO * HO) * HI + h) * HI + v
        if ACROSS:
            a = tl.load(x + pixel[None, :] * CIN + channels[:, None], mask=seen[None, :], other=0.0)
        else:
            a = tl.trans(tl.load(x + pixel[:, None] * CIN + channels[None, :], mask=seen[:, None], other=0.0))
        b = tl.load(dy + rows[:, None] * COUT + cols[None, :], mask=live[:, None], other=0.0)
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
    return acc


@triton.jit
def conv_weight_kernel(
    x,  # [C, B, HI, HI, CIN], or boxes of it
    dy,  # [C, B, HO, HO, COUT], or boxes of its rows
    out, out_row, out_split, out_off,  # [splits, C, *]: client c's part s of [TAPS, TAPS, CIN, COUT] begins at out_off
    B, splits,
    CIN: tl.constexpr, COUT: tl.constexpr, TAPS: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr,
    HI: tl.constexpr, HO: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    BOXES: tl.constexpr, TURNED: tl.constexpr, ACROSS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(1).to(tl.int64)
    split = tl.program_id(0) % splits
    tile = tl.program_id(0) // splits
    strip = tile // (COUT // BN)
    cols = (tile % (COUT // BN)) * BN + tl.arange(0, BN)
    tap = strip // (CIN // BM)
    shift_h = tap // TAPS - PAD
    shift_v = tap % TAPS - PAD
    blocks = tl.cdiv(tl.cdiv(B * HO * HO, BK), splits)
    acc = tl.zeros((BN, BM) if TURNED else (BM, BN), tl.float32)
    if BOXES:
        acc = weight_products(
            acc, x, dy, tl.program_id(1), split * blocks, blocks, shift_h, shift_v, strip % (CIN // BM) * BM,
            (tile % (COUT // BN)) * BN, HO=HO, BM=BM, BN=BN, BK=BK, TURNED=TURNED, PRECISION=PRECISION,
        )  # fmt: skip
    else:
        # As a product with BM the compiler sees that loads are aligned; as a remainder by CIN it does not.
        channels = strip % (CIN // BM) * BM + tl.arange(0, BM)
        acc = pointer_products(
            acc, x + client * B * HI * HI * CIN, dy + client * B * HO * HO * COUT, B * HO * HO, split * blocks, blocks,
            shift_h, shift_v, channels, cols,
            CIN=CIN, COUT=COUT, STRIDE=STRIDE, HI=HI, HO=HO, BK=BK, ACROSS=ACROSS, PRECISION=PRECISION,
        )  # fmt: skip
    out += client * out_row + split.to(tl.int64) * out_split + out_off
    tl.store(out + (strip * BM + tl.arange(0, BM))[:, None] * COUT + cols[None, :], acc)


def conv_weight(
    conv: Conv, x: Tensor, dy: Tensor, out: Tensor, offset: int, tile: Tile, *, precision: str = "ieee"
) -> None:
    """Compute the gradient of a convolution's weights from its input ``x`` and the gradient ``dy`` of its output.

    Args:
        out: ``[S, C, *]`` float32; part ``s`` of the reduction goes to ``out[s, c, offset:]``.
    """
    clients, batch = x.shape[:2]
    tile.fits(f"weight gradient of {conv.name}", conv.outside, tile.inner, rows=conv.inside)
    if tile.boxes and (conv.stride > 1 or tile.inner % conv.side_out**2):
        raise FedsmooError(f"boxes of the weight gradient of {conv.name} would not hold whole samples of stride 1")
    tiles = conv.taps**2 * (conv.inside // tile.rows) * (conv.outside // tile.cols)
    launch(
        conv_weight_kernel, (tiles * out.shape[0], clients),
        x=image_boxes(x, tile.inner, tile.rows) if tile.boxes else x,
        dy=pixel_rows(dy, tile.inner, tile.cols) if tile.boxes else dy,
        out=out, out_row=out.stride(1), out_split=out.stride(0), out_off=offset,
        B=batch, splits=out.shape[0],
        CIN=conv.inside, COUT=conv.outside, TAPS=conv.taps, STRIDE=conv.stride, PAD=conv.pad,
        HI=conv.side_in, HO=conv.side_out, BM=tile.rows, BN=tile.cols, BK=tile.inner,
        BOXES=tile.boxes, TURNED=tile.turned, ACROSS=tile.across, PRECISION=precision,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip


@triton.jit
def sum_splits_kernel(
    parts, part_row, part_split,  # [splits, C, count] float32; strides of a client and of a part
    grad, grad_row, grad_off,  # [C, grad_row]: the sum begins at grad_off
    splits, count, BC: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BC + tl.arange(0, BC)
    here = parts + client * part_row + at
    acc = tl.zeros((BC,), tl.float32)
    for _ in range(splits):
        acc += tl.load(here, mask=at < count, other=0.0)
        here += part_split
    tl.store(grad + client * grad_row + grad_off + at, acc, mask=at < count)


def sum_splits(parts: Tensor, grad: Tensor, offset: int) -> None:
    """Add parts in the order of ``s``: ``grad[c, offset + i] = sum_s parts[s, c, i]``."""
    splits, clients, count = parts.shape
    launch(
        sum_splits_kernel, (-(-count // 1024), clients),
        parts=parts, part_row=parts.stride(1), part_split=parts.stride(0),
        grad=grad, grad_row=grad.stride(0), grad_off=offset, splits=splits, count=count, BC=1024, num_warps=4,
    )  # fmt: skip
