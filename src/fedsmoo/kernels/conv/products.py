"""The three products of a convolution with a client axis, in Triton.

Images are channels last, ``[C, B, H, W, channels]``; weights are tap-major, ``[C, kh, kw, inputs, outputs]``, a
client's being one matrix ``[kh * kw * inputs, outputs]``. No patches are copied: a tile of rows (pixels) gathers what
it needs, tap by tap. Sizes that differ between layers are arguments, so that layers of one kernel size share a compiled
kernel; sums are in float32, in a fixed order. Places within a client's images are counted in 32 bits, and in 64 where
these have more numbers than that (``FAR``).
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

# Sizes that no address's alignment depends on: layers that differ in them only share a compiled kernel.
SIZES = ["B", "H", "W", "HO", "WO", "parts", "bias_row"]


def behind(bias: Tensor | None, y: Tensor) -> dict[str, Any]:
    """Return the bias ``[C, channels]`` of outputs as a kernel's arguments."""
    if bias is None:
        return {"bias": y, "bias_row": 0, "BIAS": False}
    bias = bias if bias.stride(-1) == 1 else bias.contiguous()
    return {"bias": bias, "bias_row": bias.stride(0), "BIAS": True}


@triton.jit
def reaching(at, FAR: tl.constexpr):
    """Return numbers of pixels or samples in the type that their products, with as many channels, are counted in."""
    return at.to(tl.int64) if FAR else at


@triton.jit
def of_tap(x, sample, h, v, live, channel, H, W, CIN, EVEN: tl.constexpr):
    """Return channels of the pixels ``h, v`` of samples, ``[pixels, channels]``; zeros outside the image."""
    seen = live & (h >= 0) & (h < H) & (v >= 0) & (v < W)
    pixel = (sample * H + h) * W + v
    mask = seen[:, None] if EVEN else seen[:, None] & (channel < CIN)[None, :]
    return tl.load(x + pixel[:, None] * CIN + channel[None, :], mask=mask, other=0.0)


@triton.jit
def finished(acc, bias, cols, COUT, BIAS: tl.constexpr, RELU: tl.constexpr):
    """Return sums of products with what stands behind a convolution: a bias for each channel, a ReLU."""
    if BIAS:
        acc += tl.load(bias + cols, mask=cols < COUT, other=0.0).to(tl.float32)[None, :]
    if RELU:
        acc = tl.maximum(acc, 0.0, propagate_nan=tl.PropagateNan.ALL)
    return acc


@triton.jit(do_not_specialize=SIZES, do_not_specialize_on_alignment=["bias"])
def forward_kernel(
    x, x_row,  # [C, B, H, W, CIN]; stride of a client
    w, w_row,  # [C, KH * KW * CIN, COUT]; stride of a client
    bias, bias_row,  # [C, COUT]; stride of a client; wherever the model's parameters lie
    y,  # [C, B, HO, WO, COUT]
    B, H, W, HO, WO, CIN, COUT,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    PH: tl.constexpr, PW: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    EVEN_K: tl.constexpr,  # whether BK divides CIN
    EVEN_N: tl.constexpr,  # whether BN divides COUT
    BIAS: tl.constexpr, RELU: tl.constexpr, PRECISION: tl.constexpr, FAR: tl.constexpr,
):  # fmt: skip
    """Rows are output pixels, columns output channels; the reduction runs over taps and input channels."""
    client = tl.program_id(1).to(tl.int64)
    across = tl.cdiv(COUT, BN)
    rows = (tl.program_id(0) // across) * BM + tl.arange(0, BM)
    cols = (tl.program_id(0) % across) * BN + tl.arange(0, BN)
    live = rows < B * HO * WO
    sample = reaching(rows // (HO * WO), FAR)
    top = rows % (HO * WO) // WO * SH - PH
    left = rows % WO * SW - PW
    k = tl.arange(0, BK)
    x += client * x_row
    w += client * w_row
    acc = tl.zeros((BM, BN), tl.float32)
    blocks = tl.cdiv(CIN, BK)
    for step in range(KH * KW * blocks):
        tap, channel = step // blocks, step % blocks * BK + k
        a = of_tap(x, sample, top + tap // KW * DH, left + tap % KW * DW, live, channel, H, W, CIN, EVEN_K)
        here = w + (tap * CIN + channel)[:, None] * COUT + cols[None, :]
        if EVEN_K and EVEN_N:
            b = tl.load(here)
        else:
            b = tl.load(here, mask=(channel < CIN)[:, None] & (cols < COUT)[None, :], other=0.0)
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
    acc = finished(acc, bias + client * bias_row, cols, COUT, BIAS, RELU)
    out = y + client * B * HO * WO * COUT + reaching(rows, FAR)[:, None] * COUT + cols[None, :]
    tl.store(out, acc, mask=live[:, None] if EVEN_N else live[:, None] & (cols < COUT)[None, :])


@triton.jit
def met_by(at, TAPS: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr, DILATION: tl.constexpr):
    """Return how many taps link input pixels of residue ``at`` (mod the stride) to outputs."""
    count = 0
    for tap in tl.static_range(TAPS):
        count += ((at + PAD - tap * DILATION) % STRIDE == 0).to(tl.int32)
    return count


@triton.jit
def tap_of(number, at, TAPS: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr, DILATION: tl.constexpr):
    """Return the ``number``-th tap, from 0, that links input pixels of residue ``at`` to outputs."""
    found = 0
    count = 0
    for tap in tl.static_range(TAPS):
        meets = (at + PAD - tap * DILATION) % STRIDE == 0
        found = tl.where(meets & (count == number), tap, found)
        count += meets.to(tl.int32)
    return found


@triton.jit(do_not_specialize=SIZES)
def data_kernel(
    dy, dy_row,  # [C, B, HO, WO, COUT]; stride of a client
    w, w_row,  # [C, KH * KW * CIN, COUT]; stride of a client
    dx,  # [C, B, H, W, CIN]
    B, H, W, HO, WO, CIN, COUT,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    PH: tl.constexpr, PW: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    EVEN: tl.constexpr,  # whether BK divides COUT and BN divides CIN
    PRECISION: tl.constexpr, FAR: tl.constexpr,
):  # fmt: skip
    """Rows are input pixels, columns input channels; the reduction runs over taps and output channels.

    With strides, a tile has pixels of one residue only, which meet the same taps; other taps are left out.
    """
    client = tl.program_id(1).to(tl.int64)
    across = tl.cdiv(CIN, BN)
    # Where the stride does not divide the side, residues differ in size: each gets the tiles of the largest.
    HQ, WQ = tl.cdiv(H, SH), tl.cdiv(W, SW)
    per = tl.cdiv(B * HQ * WQ, BM)
    tile = tl.program_id(0) // across
    rh, rv = tile // per // SW, tile // per % SW
    rows = tile % per * BM + tl.arange(0, BM)
    cols = (tl.program_id(0) % across) * BN + tl.arange(0, BN)
    sample = reaching(rows // (HQ * WQ), FAR)
    h = rows % (HQ * WQ) // WQ * SH + rh
    v = rows % WQ * SW + rv
    live = (sample < B) & (h < H) & (v < W)
    k = tl.arange(0, BK)
    dy, w = dy + client * dy_row, w + client * w_row
    acc = tl.zeros((BM, BN), tl.float32)
    blocks = tl.cdiv(COUT, BK)
    wide = met_by(rv, KW, SW, PW, DW)
    for step in range(met_by(rh, KH, SH, PH, DH) * wide * blocks):
        number = step // blocks
        th = tap_of(number // tl.maximum(wide, 1), rh, KH, SH, PH, DH)
        tv = tap_of(number % tl.maximum(wide, 1), rv, KW, SW, PW, DW)
        channel = step % blocks * BK + k
        # Exact: pixels of this residue meet this tap. Before the first output the quotient may be 0 by rounding.
        before = (h + PH < th * DH) | (v + PW < tv * DW)
        oh, ov = (h + PH - th * DH) // SH, (v + PW - tv * DW) // SW
        a = of_tap(dy, sample, oh, ov, live & ~before, channel, HO, WO, COUT, EVEN)
        here = w + ((th * KW + tv) * CIN + cols)[:, None] * COUT + channel[None, :]
        if EVEN:
            b = tl.load(here)
        else:
            b = tl.load(here, mask=(cols < CIN)[:, None] & (channel < COUT)[None, :], other=0.0)
        acc = tl.dot(a, tl.trans(b), acc, input_precision=PRECISION)
    out = dx + client * B * H * W * CIN + ((sample * H + h) * W + v)[:, None] * CIN + cols[None, :]
    tl.store(out, acc, mask=live[:, None] & (cols < CIN)[None, :])


@triton.jit
def across_tap(x, sample, h, v, live, channel, H, W, CIN, EVEN: tl.constexpr):
    """Return what :func:`of_tap` does the other way round, ``[channels, pixels]``."""
    seen = live & (h >= 0) & (h < H) & (v >= 0) & (v < W)
    pixel = (sample * H + h) * W + v
    mask = seen[None, :] if EVEN else seen[None, :] & (channel < CIN)[:, None]
    return tl.load(x + pixel[None, :] * CIN + channel[:, None], mask=mask, other=0.0)


@triton.jit(do_not_specialize=SIZES)
def weight_kernel(
    x, x_row,  # [C, B, H, W, CIN]; stride of a client
    dy, dy_row,  # [C, B, HO, WO, COUT]; stride of a client
    dw, dw_row, dw_part,  # [parts, C, KH * KW * CIN, COUT]; strides of a client and of a part
    parts, B, H, W, HO, WO, CIN, COUT,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    PH: tl.constexpr, PW: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    EVEN: tl.constexpr,  # whether BM divides CIN and BN divides COUT
    ACROSS: tl.constexpr, PRECISION: tl.constexpr, FAR: tl.constexpr,
):  # fmt: skip
    """Rows are taps and input channels, columns output channels; the reduction runs over output pixels, in parts."""
    client = tl.program_id(1).to(tl.int64)
    part = tl.program_id(0) % parts
    tile = tl.program_id(0) // parts
    across = tl.cdiv(COUT, BN)
    cols = tile % across * BN + tl.arange(0, BN)
    strip = tile // across
    per = tl.cdiv(CIN, BM)
    tap = strip // per
    channels = strip % per * BM + tl.arange(0, BM)
    rows = tap * CIN + channels
    x += client * x_row
    dy += client * dy_row
    total = B * HO * WO
    blocks = tl.cdiv(tl.cdiv(total, BK), parts)
    acc = tl.zeros((BM, BN), tl.float32)
    for block in range(blocks):
        p = (part * blocks + block) * BK + tl.arange(0, BK)
        live = p < total
        sample = reaching(p // (HO * WO), FAR)
        top = p % (HO * WO) // WO * SH - PH
        left = p % WO * SW - PW
        h, v = top + tap // KW * DH, left + tap % KW * DW
        if ACROSS:
            a = across_tap(x, sample, h, v, live, channels, H, W, CIN, EVEN)
        else:
            a = tl.trans(of_tap(x, sample, h, v, live, channels, H, W, CIN, EVEN))
        mask = live[:, None] if EVEN else live[:, None] & (cols < COUT)[None, :]
        b = tl.load(dy + reaching(p, FAR)[:, None] * COUT + cols[None, :], mask=mask, other=0.0)
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
    out = dw + client * dw_row + part.to(tl.int64) * dw_part + rows[:, None] * COUT + cols[None, :]
    tl.store(out, acc, mask=(channels < CIN)[:, None] & (cols < COUT)[None, :])


@triton.jit(do_not_specialize=SIZES)
def patches_kernel(
    x,  # [C, B, H, W, CIN]
    out,  # [C, B, HO, WO, WIDTH]: taps and channels, and zeros up to WIDTH
    B, H, W, HO, WO,
    CIN: tl.constexpr, WIDTH: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    PH: tl.constexpr, PW: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr,
    INSIDE: tl.constexpr,  # whether there is no padding, so that every tap meets a pixel
    BM: tl.constexpr, BK: tl.constexpr, FAR: tl.constexpr,
):  # fmt: skip
    """Copy what meets each output pixel beside each other: for few channels, whose pixels are no whole pieces."""
    client = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    at = tl.arange(0, BK)
    live = rows < B * HO * WO
    tap = at // CIN
    top = rows % (HO * WO) // WO * SH - PH
    left = rows % WO * SW - PW
    down = tap // KW * DH
    right = tap % KW * DW
    seen = live[:, None] & (at < KH * KW * CIN)[None, :]
    if not INSIDE:
        h = top[:, None] + down[None, :]
        v = left[:, None] + right[None, :]
        seen = seen & (h >= 0) & (h < H) & (v >= 0) & (v < W)
    # The corner of a patch, and how far from there a number is.
    corner = ((reaching(rows // (HO * WO), FAR) * H + top) * W + left) * CIN
    along = (down * W + right) * CIN + at % CIN
    found = tl.load(x + client * B * H * W * CIN + corner[:, None] + along[None, :], mask=seen, other=0.0)
    there = out + client * B * HO * WO * WIDTH + reaching(rows, FAR)[:, None] * WIDTH + at[None, :]
    tl.store(there, found, mask=live[:, None] & (at < WIDTH)[None, :])
