"""Convolution with a client axis as implicit matrix products: forward with GroupNorm, and the data gradient.

Rows are output pixels, columns output channels, and the reduction runs over taps and channels: no patches are
copied. A tile covers whole samples and whole GroupNorm groups, so the norm, the shortcut and the ReLU (forward) or
their backward passes happen in registers before the tile is written.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from fedsmoo.core.errors import FedsmooError
from fedsmoo.kernels.early import after_the_last, launched
from fedsmoo.kernels.resnet18.boxes import backward_products, forward_products, image_boxes, row_pairs, weight_boxes
from fedsmoo.kernels.resnet18.norm import NormLayer, epilogue_backward, epilogue_forward
from fedsmoo.kernels.resnet18.shapes import Conv
from fedsmoo.kernels.resnet18.tiles import Tile
from fedsmoo.kernels.runtime import launch


@triton.jit
def pointer_products(
    acc,  # [BM, BN]: a tile of outputs, in registers
    x, w,  # of this client: [B, HI, HI, CIN]; the kernel [TAPS, TAPS, CIN, COUT]
    rows, live, cols,  # [BM]: the tile's pixels, and which of them there are; [BN]: its output channels
    CIN: tl.constexpr, COUT: tl.constexpr, TAPS: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr,
    HI: tl.constexpr, HO: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return ``acc`` plus the convolution of ``x``: products over taps and input channels."""
    sample = rows // (HO * HO)
    top = (rows % (HO * HO)) // HO * STRIDE - PAD
    left = rows % HO * STRIDE - PAD
    k = tl.arange(0, BK)
    for step in range(TAPS * TAPS * (CIN // BK)):
        tap = step // (CIN // BK)
        h = top + tap // TAPS
        v = left + tap % TAPS
        seen = live & (h >= 0) & (h < HI) & (v >= 0) & (v < HI)
        pixel = (sample * HI + h) * HI + v
        a = tl.load(x + pixel[:, None] * CIN + (step % (CIN // BK) * BK + k)[None, :], mask=seen[:, None], other=0.0)
        b = tl.load(w + (step * BK + k)[:, None] * COUT + cols[None, :])
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
    return acc


@triton.jit
def conv_forward_kernel(
    x,  # [C, B, HI, HI, CIN], or boxes of it
    w, w_row, w_off,  # [C, w_row]: the kernel [TAPS, TAPS, CIN, COUT] begins at w_off; or boxes of the kernel
    p, p_row, p_off,  # [C, p_row] float32: gamma, then beta, COUT numbers each, from p_off on
    residual,  # [C, B, HO, HO, COUT]; read if RESIDUAL
    out,  # [C, B, HO, HO, COUT]
    xhat, rstd,  # as out, and [C, B, COUT / GW] float32; written if SAVE
    B, eps,
    CIN: tl.constexpr, COUT: tl.constexpr, TAPS: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr,
    HI: tl.constexpr, HO: tl.constexpr, GW: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    RELU: tl.constexpr, RESIDUAL: tl.constexpr, SAVE: tl.constexpr,
    BOXES: tl.constexpr, TURNED: tl.constexpr, PRECISION: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    after_the_last(EARLY)
    client = tl.program_id(1).to(tl.int64)
    tile = tl.program_id(0) // (COUT // BN)
    block = tl.program_id(0) % (COUT // BN)
    cols = block * BN + tl.arange(0, BN)
    rows = tile * BM + tl.arange(0, BM)
    acc = tl.zeros((BN, BM) if TURNED else (BM, BN), tl.float32)
    if BOXES:
        acc = forward_products(
            acc, x, w, tl.program_id(1), tile * (BM // (HO * HO)), block * BN,
            B, CIN=CIN, TAPS=TAPS, STRIDE=STRIDE, PAD=PAD, BM=BM, BN=BN, BK=BK, TURNED=TURNED, PRECISION=PRECISION,
        )  # fmt: skip
    else:
        acc = pointer_products(
            acc, x + client * B * HI * HI * CIN, w + client * w_row + w_off, rows, rows < B * HO * HO, cols,
            CIN=CIN, COUT=COUT, TAPS=TAPS, STRIDE=STRIDE, PAD=PAD, HI=HI, HO=HO, BK=BK, PRECISION=PRECISION,
        )  # fmt: skip
    epilogue_forward(
        acc, client, tile, rows, cols, block * (BN // GW),
        residual=residual, p=p, p_row=p_row, p_off=p_off, out=out, xhat=xhat, rstd=rstd, B=B, eps=eps,
        CH=COUT, HW=HO * HO, GW=GW, NG=BN // GW, BM=BM, OUT=True, RELU=RELU, RESIDUAL=RESIDUAL, SAVE=SAVE,
    )  # fmt: skip


def conv_forward(
    conv: Conv, x: Tensor, w: Tensor, w_off: int, p: Tensor, p_off: int, out: Tensor, tile: Tile, *,
    groups: int = 2, residual: Tensor | None = None, relu: bool = True,
    xhat: Tensor | None = None, rstd: Tensor | None = None, precision: str = "ieee", eps: float = 1e-5,
    early: bool = False,
) -> None:  # fmt: skip
    """Write ``out = relu(groupnorm(conv(x)) + residual)``, ``[C, B, Ho, Ho, Cout]``, for all clients.

    Args:
        x: ``[C, B, Hi, Hi, Cin]``.
        w: working copy of the flat parameters ``[C, >= P]``; the kernel begins at ``w_off``.
        p: float32 flat parameters ``[C, P]``; gamma then beta begin at ``p_off``.
        xhat, rstd: where to keep the normalised output and ``[C, B, groups]``, for backward (None: nowhere).
        early: place the kernel before the one in front of it has ended.
    """
    clients, batch = x.shape[:2]
    described = image_boxes if conv.stride == 1 else row_pairs
    width = conv.outside // groups
    tile.fits(f"forward product of {conv.name}", conv.outside, conv.inside, group=width, pixels=conv.side_out**2)
    grid = (-(-batch * conv.side_out**2 // tile.rows) * (conv.outside // tile.cols), clients)
    launch(
        conv_forward_kernel, grid,
        x=described(x, tile.rows, tile.inner) if tile.boxes else x,
        w=weight_boxes(w, w_off, conv, tile.inner, tile.cols) if tile.boxes else w, w_row=w.stride(0), w_off=w_off,
        p=p, p_row=p.stride(0), p_off=p_off,
        residual=x if residual is None else residual,  # a pointer that is not read has to be one all the same
        out=out, xhat=out if xhat is None else xhat, rstd=p if rstd is None else rstd, B=batch, eps=eps,
        CIN=conv.inside, COUT=conv.outside, TAPS=conv.taps, STRIDE=conv.stride, PAD=conv.pad,
        HI=conv.side_in, HO=conv.side_out, GW=width,
        BM=tile.rows, BN=tile.cols, BK=tile.inner,
        RELU=relu, RESIDUAL=residual is not None, SAVE=xhat is not None,
        BOXES=tile.boxes, TURNED=tile.turned, PRECISION=precision,
        num_warps=tile.warps, num_stages=tile.stages, **launched(early),
    )  # fmt: skip


@triton.jit
def live_taps(at, TAPS: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr):
    """Return the first tap, and how many, link an input pixel of residue ``at`` (mod the stride) to outputs."""
    first = (at + PAD) % STRIDE
    return first, (TAPS - first + STRIDE - 1) // STRIDE


@triton.jit
def tap_products(
    acc,  # [BM, BN]: a tile of input gradients, in registers
    dy, w, w_off,  # of this client: [B, HO, HO, COUT]; the kernel [TAPS, TAPS, CIN, COUT] begins at w_off
    sample, h, v, live,  # [BM]: the tile's pixels, and which of them there are
    cols, parity,  # [BN]: the tile's input channels; the residue of its pixels
    CIN: tl.constexpr, COUT: tl.constexpr, TAPS: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr,
    HO: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return ``acc`` plus the transposed convolution of ``dy``: products over taps and output channels."""
    k = tl.arange(0, BK)
    first_h, taps_h = live_taps(parity // STRIDE, TAPS, STRIDE, PAD)
    first_v, taps_v = live_taps(parity % STRIDE, TAPS, STRIDE, PAD)
    for step in range(taps_h * taps_v * (COUT // BK)):
        tap = step // (COUT // BK)
        tap_h = first_h + tap // tl.maximum(taps_v, 1) * STRIDE
        tap_v = first_v + tap % tl.maximum(taps_v, 1) * STRIDE
        oh = (h + PAD - tap_h) // STRIDE
        ov = (v + PAD - tap_v) // STRIDE
        seen = live & (h + PAD >= tap_h) & (oh < HO) & (v + PAD >= tap_v) & (ov < HO)
        pixel = (sample * HO + oh) * HO + ov
        inner = step % (COUT // BK) * BK + k
        a = tl.load(dy + pixel[:, None] * COUT + inner[None, :], mask=seen[:, None], other=0.0)
        b = tl.load(w + w_off + ((tap_h * TAPS + tap_v) * CIN + cols)[:, None] * COUT + inner[None, :])
        acc = tl.dot(a, tl.trans(b), acc, input_precision=PRECISION)
    return acc


@triton.jit
def shortcut_products(
    acc,  # [BM, BN]: a tile of input gradients, in registers
    dy_down, w, down_off,  # of this client: [B, HO, HO, COUT]; the shortcut's weights [CIN, COUT] begin at down_off
    sample, h, v, live, cols, parity,  # as in tap_products
    COUT: tl.constexpr, STRIDE: tl.constexpr, HO: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return ``acc`` plus the transposed 1x1 shortcut of ``dy_down``: it meets pixels of even row and column only."""
    k = tl.arange(0, BK)
    pixel = (sample * HO + h // STRIDE) * HO + v // STRIDE
    for step in range(tl.where(parity == 0, COUT // BK, 0)):
        inner = step * BK + k
        a = tl.load(dy_down + pixel[:, None] * COUT + inner[None, :], mask=live[:, None], other=0.0)
        b = tl.load(w + down_off + cols[:, None] * COUT + inner[None, :])
        acc = tl.dot(a, tl.trans(b), acc, input_precision=PRECISION)
    return acc


@triton.jit
def pointed_gradient(
    acc, dy, dy_down, w, w_off, down_off, sample, h, v, live, cols, parity,  # as in tap_products, shortcut_products
    CIN: tl.constexpr, COUT: tl.constexpr, TAPS: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr,
    HO: tl.constexpr, BK: tl.constexpr, DOWN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return ``acc`` plus the gradients that come over the convolution and, if ``DOWN``, over the shortcut."""
    acc = tap_products(
        acc, dy, w, w_off, sample, h, v, live, cols, parity,
        CIN=CIN, COUT=COUT, TAPS=TAPS, STRIDE=STRIDE, PAD=PAD, HO=HO, BK=BK, PRECISION=PRECISION,
    )  # fmt: skip
    if DOWN:
        acc = shortcut_products(
            acc, dy_down, w, down_off, sample, h, v, live, cols, parity,
            COUT=COUT, STRIDE=STRIDE, HO=HO, BK=BK, PRECISION=PRECISION,
        )  # fmt: skip
    return acc


@triton.jit
def conv_backward_kernel(
    dy,  # [C, B, HO, HO, COUT], or boxes of it
    w, w_row, w_off, down_off,  # [C, w_row]: the kernel from w_off on; the shortcut's [CIN, COUT] from down_off on
    dy_down,  # [C, B, HO, HO, COUT]: gradient of the 1x1 shortcut's output; read if DOWN
    add,  # [C, B, HI, HI, CIN]: gradient over an identity shortcut; read if ADD
    out,  # [C, B, HI, HI, CIN]: gradient of the input or, if NORM, of the convolution before
    act, xhat, rstd,  # of the layer before: [C, B, HI, HI, CIN] twice, [C, B, CIN / GW] float32; read if NORM
    p, p_row, p_off,  # [C, p_row] float32: gamma of the layer before, CIN numbers from p_off on; read if NORM
    dz,  # as act: gradient behind its ReLU; written if KEEP
    part, part_row, part_off,  # [C, part_row] float32: shares of gamma's and beta's gradients; written if NORM
    B,
    CIN: tl.constexpr, COUT: tl.constexpr, TAPS: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr,
    HI: tl.constexpr, HO: tl.constexpr, GW: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    ADD: tl.constexpr, DOWN: tl.constexpr, NORM: tl.constexpr, KEEP: tl.constexpr,
    BOXES: tl.constexpr, TURNED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    HQ: tl.constexpr = HI // STRIDE  # with stride 2, pixels of a parity meet the same taps: rows of their own
    client = tl.program_id(1).to(tl.int64)
    per_class = tl.cdiv(B * HQ * HQ, BM)
    tile = tl.program_id(0) // (CIN // BN)
    parity, tile, block = tile // per_class, tile % per_class, tl.program_id(0) % (CIN // BN)
    cols = block * BN + tl.arange(0, BN)
    rows = tile * BM + tl.arange(0, BM)
    live = rows < B * HQ * HQ
    sample = rows // (HQ * HQ)
    h = (rows % (HQ * HQ)) // HQ * STRIDE + parity // STRIDE
    v = rows % HQ * STRIDE + parity % STRIDE
    acc = tl.zeros((BN, BM) if TURNED else (BM, BN), tl.float32)
    if BOXES:
        acc = backward_products(
            acc, dy, w, tl.program_id(1), tile * (BM // (HO * HO)), block * BN,
            CIN=CIN, COUT=COUT, TAPS=TAPS, PAD=PAD, BM=BM, BN=BN, BK=BK, TURNED=TURNED, PRECISION=PRECISION,
        )  # fmt: skip
    else:
        begin = client * B * HO * HO * COUT
        acc = pointed_gradient(
            acc, dy + begin, dy_down + begin, w + client * w_row, w_off, down_off, sample, h, v, live, cols, parity,
            CIN=CIN, COUT=COUT, TAPS=TAPS, STRIDE=STRIDE, PAD=PAD, HO=HO, BK=BK, DOWN=DOWN, PRECISION=PRECISION,
        )  # fmt: skip
    where = client * B * HI * HI * CIN + ((sample * HI + h) * HI + v)[:, None] * CIN + cols[None, :]
    if ADD:
        acc += tl.load(add + where, mask=live[:, None], other=0.0)
    if NORM:
        epilogue_backward(
            acc, client, tile, rows, cols, block * (BN // GW), act=act, xhat=xhat, rstd=rstd, p=p, p_row=p_row,
            p_off=p_off, dz=dz, dy=out, part=part, part_row=part_row, part_off=part_off, B=B,
            CH=CIN, HW=HI * HI, GW=GW, NG=BN // GW, BM=BM, RELU=True, KEEP=KEEP,
        )  # fmt: skip
    else:
        tl.store(out + where, acc, mask=live[:, None])


def conv_backward(
    conv: Conv, dy: Tensor, w: Tensor, w_off: int, tile: Tile, *,
    out: Tensor | None = None, before: NormLayer | None = None, add: Tensor | None = None,
    dy_down: Tensor | None = None, down_off: int = 0, precision: str = "ieee",
) -> None:  # fmt: skip
    """Compute the data gradient of a convolution for all clients, optionally through the layer before it as well.

    The gradient of the input is ``conv^T(dy) + down^T(dy_down) + add``. Without ``before`` it is written into
    ``out [C, B, Hi, Hi, Cin]``; with it (stride 1 only), it goes on through that layer's ReLU and GroupNorm.

    Args:
        dy: ``[C, B, Ho, Ho, Cout]``.
        dy_down: gradient of the 1x1 shortcut's output, whose weights begin at ``down_off`` of ``w``.
        add: gradient that came over an identity shortcut, shaped as the input.
    """
    clients, batch = dy.shape[:2]
    classes = conv.stride**2
    group, pixels = (1, 1) if before is None else (before.group_width, conv.side_in**2)
    if before is not None and conv.stride > 1:
        raise FedsmooError(
            f"{conv.name} has stride {conv.stride}: its data gradient cannot pass the layer before at once"
        )
    tile.fits(f"data gradient of {conv.name}", conv.inside, conv.outside, group=group, pixels=pixels)
    tiles = classes * -(-batch * (conv.side_in // conv.stride) ** 2 // tile.rows)
    layer: dict[str, Any]
    if before is None:  # pointers that are not read have to be some all the same
        layer = dict.fromkeys(("act", "xhat", "rstd", "p", "dz", "part"), dy)
        layer |= dict.fromkeys(("p_row", "p_off", "part_row", "part_off"), 0)
        layer |= {"out": out, "GW": tile.cols, "NORM": False, "KEEP": False}
    else:
        layer = before.arguments(unread=dy)
        layer |= {"out": layer.pop("dy"), "NORM": True, "KEEP": before.dz is not None}
    launch(
        conv_backward_kernel, (tiles * (conv.inside // tile.cols), clients),
        dy=image_boxes(dy, tile.rows, tile.inner) if tile.boxes else dy,
        w=weight_boxes(w, w_off, conv, tile.cols, tile.inner) if tile.boxes else w,
        w_row=w.stride(0), w_off=w_off, down_off=down_off,
        dy_down=dy if dy_down is None else dy_down, add=dy if add is None else add, B=batch, **layer,
        CIN=conv.inside, COUT=conv.outside, TAPS=conv.taps, STRIDE=conv.stride, PAD=conv.pad,
        HI=conv.side_in, HO=conv.side_out, BM=tile.rows, BN=tile.cols, BK=tile.inner,
        ADD=add is not None, DOWN=dy_down is not None,
        BOXES=tile.boxes, TURNED=tile.turned, PRECISION=precision,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
