"""Convolution with a client axis as implicit matrix products: forward with GroupNorm, and the data gradient.

Rows are output pixels, columns output channels, and the reduction runs over taps and channels: no patches are
copied. A tile covers whole samples and whole GroupNorm groups, so the norm, the shortcut and the ReLU (forward) or
their backward passes happen in registers before the tile is written.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from fedsmoo.core.errors import FedsmooError
from fedsmoo.kernels.resnet18.norm import Behind, finish_backward, group_mean, spread
from fedsmoo.kernels.resnet18.shapes import Conv
from fedsmoo.kernels.resnet18.tiles import Tile
from fedsmoo.kernels.runtime import launch


@triton.jit
def finish_forward(
    acc, client, tile, rows, cols, B, res, p, p_row, p_off, out, xhat, rstd, eps,
    CH: tl.constexpr, HW: tl.constexpr, GW: tl.constexpr, NG: tl.constexpr, BM: tl.constexpr,
    OUT: tl.constexpr, RELU: tl.constexpr, RESIDUAL: tl.constexpr, SAVE: tl.constexpr,
):  # fmt: skip
    """GroupNorm of a tile of convolution outputs, then the shortcut and the ReLU; keeps what backward needs."""
    acc -= spread(group_mean(acc, HW, GW, NG, BM), HW, GW, NG, BM)
    r = 1.0 / tl.sqrt(group_mean(acc * acc, HW, GW, NG, BM) + eps)
    normed = acc * spread(r, HW, GW, NG, BM)
    live = (rows < B * HW)[:, None]
    at = client * B * HW * CH + rows[:, None] * CH + cols[None, :]
    if SAVE:
        samples = tile * (BM // HW) + tl.arange(0, BM // HW)
        groups = tl.min(cols) // GW + tl.arange(0, NG)
        at_group = client * B * (CH // GW) + samples[:, None] * (CH // GW) + groups[None, :]
        tl.store(rstd + at_group, r, mask=(samples < B)[:, None] & (groups < CH // GW)[None, :])
        tl.store(xhat + at, normed, mask=live)
    if OUT:
        scale = tl.load(p + client * p_row + p_off + cols)
        shift = tl.load(p + client * p_row + p_off + CH + cols)
        z = normed * scale[None, :] + shift[None, :]
        if RESIDUAL:
            z += tl.load(res + at, mask=live, other=0.0)
        if RELU:
            z = tl.maximum(z, 0.0)
        tl.store(out + at, z, mask=live)


@triton.jit
def conv_forward_kernel(
    x, w, p, res, out, xhat, rstd, B, w_row, w_off, p_row, p_off, eps,
    CIN: tl.constexpr, COUT: tl.constexpr, TAPS: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr,
    HI: tl.constexpr, HO: tl.constexpr, GW: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    RELU: tl.constexpr, RESIDUAL: tl.constexpr, SAVE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(1).to(tl.int64)
    tile = tl.program_id(0) // (COUT // BN)
    cols = (tl.program_id(0) % (COUT // BN)) * BN + tl.arange(0, BN)
    rows = tile * BM + tl.arange(0, BM)
    live = rows < B * HO * HO
    sample = rows // (HO * HO)
    top = (rows % (HO * HO)) // HO * STRIDE - PAD
    left = rows % HO * STRIDE - PAD
    k = tl.arange(0, BK)
    x += client * B * HI * HI * CIN
    w += client * w_row + w_off
    acc = tl.zeros((BM, BN), tl.float32)
    for step in range(TAPS * TAPS * (CIN // BK)):
        tap = step // (CIN // BK)
        h = top + tap // TAPS
        v = left + tap % TAPS
        seen = live & (h >= 0) & (h < HI) & (v >= 0) & (v < HI)
        pixel = (sample * HI + h) * HI + v
        a = tl.load(x + pixel[:, None] * CIN + (step % (CIN // BK) * BK + k)[None, :], mask=seen[:, None], other=0.0)
        b = tl.load(w + (step * BK + k)[:, None] * COUT + cols[None, :])
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
    finish_forward(
        acc, client, tile, rows, cols, B, res, p, p_row, p_off, out, xhat, rstd, eps,
        COUT, HO * HO, GW, BN // GW, BM, True, RELU, RESIDUAL, SAVE,
    )  # fmt: skip


def conv_forward(
    conv: Conv, x: Tensor, w: Tensor, w_off: int, p: Tensor, p_off: int, out: Tensor, tile: Tile, *,
    groups: int = 2, residual: Tensor | None = None, relu: bool = True,
    xhat: Tensor | None = None, rstd: Tensor | None = None, precision: str = "ieee", eps: float = 1e-5,
) -> None:  # fmt: skip
    """``out = relu(groupnorm(conv(x)) + residual)`` for all clients, written into ``out [C, B, Ho, Ho, Cout]``.

    Args:
        x: ``[C, B, Hi, Hi, Cin]``.
        w: working copy of the flat parameters ``[C, >= P]``; the kernel begins at ``w_off``.
        p: float32 flat parameters ``[C, P]``; gamma then beta begin at ``p_off``.
        xhat, rstd: where to keep the normalised output and ``[C, B, groups]``, for backward (None: nowhere).
    """
    clients, batch = x.shape[:2]
    width = conv.outside // groups
    tile.fits(f"forward product of {conv.name}", conv.outside, conv.inside, group=width, pixels=conv.side_out**2)
    grid = (-(-batch * conv.side_out**2 // tile.rows) * (conv.outside // tile.cols), clients)
    launch(
        conv_forward_kernel, grid,
        x, w, p, x if residual is None else residual, out, out if xhat is None else xhat, p if rstd is None else rstd,
        batch, w.stride(0), w_off, p.stride(0), p_off, eps,
        CIN=conv.inside, COUT=conv.outside, TAPS=conv.taps, STRIDE=conv.stride, PAD=conv.pad,
        HI=conv.side_in, HO=conv.side_out, GW=width,
        BM=tile.rows, BN=tile.cols, BK=tile.inner,
        RELU=relu, RESIDUAL=residual is not None, SAVE=xhat is not None, PRECISION=precision,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip


@triton.jit
def live_taps(at, TAPS: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr):
    """First tap, and number of taps, that link an input pixel of residue ``at`` (mod the stride) to outputs."""
    first = (at + PAD) % STRIDE
    return first, (TAPS - first + STRIDE - 1) // STRIDE


@triton.jit
def conv_backward_kernel(
    dy, w, dy_down, add, act, xhat, rstd, p, dz, out, part,
    B, w_row, w_off, down_off, p_row, p_off, part_row, part_off,
    CIN: tl.constexpr, COUT: tl.constexpr, TAPS: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr,
    HI: tl.constexpr, HO: tl.constexpr, GW: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    ADD: tl.constexpr, DOWN: tl.constexpr, NORM: tl.constexpr, KEEP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    # With stride 2 the pixels of one parity meet the same taps: each parity is a set of rows of its own.
    HQ: tl.constexpr = HI // STRIDE
    client = tl.program_id(1).to(tl.int64)
    per_class = tl.cdiv(B * HQ * HQ, BM)
    tile = tl.program_id(0) // (CIN // BN)
    parity = tile // per_class
    tile = tile % per_class
    cols = (tl.program_id(0) % (CIN // BN)) * BN + tl.arange(0, BN)
    rows = tile * BM + tl.arange(0, BM)
    live = rows < B * HQ * HQ
    sample = rows // (HQ * HQ)
    h = (rows % (HQ * HQ)) // HQ * STRIDE + parity // STRIDE
    v = rows % HQ * STRIDE + parity % STRIDE
    k = tl.arange(0, BK)
    dy += client * B * HO * HO * COUT
    w += client * w_row
    acc = tl.zeros((BM, BN), tl.float32)
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
    if DOWN:
        # The 1x1 shortcut with the same stride touches the pixels of even row and column only.
        steps = tl.where(parity == 0, COUT // BK, 0)
        pixel = (sample * HO + h // STRIDE) * HO + v // STRIDE
        for step in range(steps):
            inner = step * BK + k
            at = client * B * HO * HO * COUT + pixel[:, None] * COUT + inner[None, :]
            a = tl.load(dy_down + at, mask=live[:, None], other=0.0)
            b = tl.load(w + down_off + cols[:, None] * COUT + inner[None, :])
            acc = tl.dot(a, tl.trans(b), acc, input_precision=PRECISION)
    where = client * B * HI * HI * CIN + ((sample * HI + h) * HI + v)[:, None] * CIN + cols[None, :]
    if ADD:
        acc += tl.load(add + where, mask=live[:, None], other=0.0)
    if NORM:
        finish_backward(
            acc, client, tile, rows, cols, B, act, xhat, rstd, p, p_row, p_off, dz, out, part, part_row, part_off,
            CIN, HI * HI, GW, BN // GW, BM, True, KEEP,
        )  # fmt: skip
    else:
        tl.store(out + where, acc, mask=live[:, None])


def conv_backward(
    conv: Conv, dy: Tensor, w: Tensor, w_off: int, tile: Tile, *,
    out: Tensor | None = None, behind: Behind | None = None, add: Tensor | None = None,
    dy_down: Tensor | None = None, down_off: int = 0, precision: str = "ieee",
) -> None:  # fmt: skip
    """The data gradient of a convolution for all clients, optionally with the backward pass of the layer before it.

    The gradient of the input is ``conv^T(dy) + down^T(dy_down) + add``. Without ``behind`` it is written into
    ``out [C, B, Hi, Hi, Cin]``; with it (stride 1 only), it goes on through that layer's ReLU and GroupNorm.

    Args:
        dy: ``[C, B, Ho, Ho, Cout]``.
        dy_down: gradient of the 1x1 shortcut's output, whose weights begin at ``down_off`` of ``w``.
        add: gradient that came over an identity shortcut, shaped as the input.
    """
    clients, batch = dy.shape[:2]
    classes = conv.stride**2
    group, pixels = (1, 1) if behind is None else (behind.group_width, conv.side_in**2)
    if behind is not None and conv.stride > 1:
        raise FedsmooError(
            f"{conv.name} has stride {conv.stride}: its data gradient cannot pass the layer before at once"
        )
    tile.fits(f"data gradient of {conv.name}", conv.inside, conv.outside, group=group, pixels=pixels)
    tiles = classes * -(-batch * (conv.side_in // conv.stride) ** 2 // tile.rows)
    target = behind.dy if behind is not None else out
    b = behind
    launch(
        conv_backward_kernel, (tiles * (conv.inside // tile.cols), clients),
        dy, w, dy if dy_down is None else dy_down, dy if add is None else add,
        dy if b is None or b.act is None else b.act, dy if b is None else b.xhat, dy if b is None else b.rstd,
        dy if b is None else b.p, dy if b is None or b.dz is None else b.dz, target, dy if b is None else b.part,
        batch, w.stride(0), w_off, down_off, 0 if b is None else b.p.stride(0), 0 if b is None else b.p_off,
        0 if b is None else b.part.stride(0), 0 if b is None else b.part_off,
        CIN=conv.inside, COUT=conv.outside, TAPS=conv.taps, STRIDE=conv.stride, PAD=conv.pad,
        HI=conv.side_in, HO=conv.side_out, GW=tile.cols if b is None else b.group_width,
        BM=tile.rows, BN=tile.cols, BK=tile.inner,
        ADD=add is not None, DOWN=dy_down is not None, NORM=b is not None, KEEP=b is not None and b.dz is not None,
        PRECISION=precision, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
