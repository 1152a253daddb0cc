"""The three products of a convolution whose groups have few channels, with a client axis: of each channel alone, say.

Matrix units have nothing to do there: an output is a sum over taps and the few inputs of its group. As in
:mod:`.products`, images are ``[C, B, H, W, channels]`` and weights tap-major, ``[C, kh, kw, IG, outputs]``; groups have
``IG`` inputs and ``OG`` outputs. A program makes a tile of pixels and channels, and nothing is copied. Sums are in
float32, in a fixed order.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedsmoo.kernels.conv.conv import are_far
from fedsmoo.kernels.conv.geometry import Geometry, Pair
from fedsmoo.kernels.conv.products import SIZES, behind, finished, of_tap, reaching
from fedsmoo.kernels.conv.tiles import parts_for
from fedsmoo.kernels.runtime import launch


@triton.jit
def across_from(channel, k, OWN: tl.constexpr, OTHER: tl.constexpr):
    """Return the ``k``-th channel on the other side of a channel's group: ``OWN`` on this side, ``OTHER`` on that."""
    found = channel
    if OWN > 1 or OTHER > 1:  # else channels follow each other, and the compiler sees that they do
        found = channel // OWN * OTHER + k
    return found


@triton.jit
def weights_of(w, row, cols, COUT, EVEN: tl.constexpr):
    """Return weights in float32, ``[1, channels]``; zeros where there are none."""
    if EVEN:
        found = tl.load(w + row * COUT + cols)
    else:
        found = tl.load(w + row * COUT + cols, mask=cols < COUT, other=0.0)
    return found.to(tl.float32)[None, :]


@triton.jit(do_not_specialize=SIZES, do_not_specialize_on_alignment=["bias"])
def grouped_kernel(
    x,  # [C, B, H, W, CIN]
    w, w_row,  # [C, KH * KW * IG, COUT]; stride of a client
    bias, bias_row,  # [C, COUT]; stride of a client
    y,  # [C, B, HO, WO, COUT]
    B, H, W, HO, WO, CIN, COUT, IG: tl.constexpr, OG: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    PH: tl.constexpr, PW: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr,
    BP: tl.constexpr, BC: tl.constexpr,
    EVEN: tl.constexpr,  # whether BC divides COUT
    BIAS: tl.constexpr, RELU: tl.constexpr, FAR: tl.constexpr,
):  # fmt: skip
    """A tile of output pixels and output channels."""
    client = tl.program_id(1).to(tl.int64)
    across = tl.cdiv(COUT, BC)
    rows = (tl.program_id(0) // across) * BP + tl.arange(0, BP)
    cols = (tl.program_id(0) % across) * BC + tl.arange(0, BC)
    live = rows < B * HO * WO
    sample = reaching(rows // (HO * WO), FAR)
    top = rows % (HO * WO) // WO * SH - PH
    left = rows % WO * SW - PW
    x += client * B * H * W * CIN
    w += client * w_row
    acc = tl.zeros((BP, BC), tl.float32)
    for step in range(KH * IG):
        i, k = step // IG, step % IG
        channel = across_from(cols, k, OG, IG)
        for j in tl.static_range(KW):
            a = of_tap(x, sample, top + i * DH, left + j * DW, live, channel, H, W, CIN, EVEN)
            acc += a.to(tl.float32) * weights_of(w, (i * KW + j) * IG + k, cols, COUT, EVEN)
    acc = finished(acc, bias + client * bias_row, cols, COUT, BIAS, RELU)
    out = y + client * B * HO * WO * COUT + reaching(rows, FAR)[:, None] * COUT + cols[None, :]
    tl.store(out, acc, mask=live[:, None] if EVEN else live[:, None] & (cols < COUT)[None, :])


@triton.jit(do_not_specialize=SIZES)
def grouped_data_kernel(
    dy,  # [C, B, HO, WO, COUT]
    w, w_row,  # [C, KH * KW * IG, COUT]; stride of a client
    dx,  # [C, B, H, W, CIN]
    B, H, W, HO, WO, CIN, COUT, IG: tl.constexpr, OG: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    PH: tl.constexpr, PW: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr,
    BP: tl.constexpr, BC: tl.constexpr,
    EVEN: tl.constexpr,  # whether BC divides CIN
    FAR: tl.constexpr,
):  # fmt: skip
    """A tile of input pixels and input channels; each asks every tap whether it links it to an output."""
    client = tl.program_id(1).to(tl.int64)
    across = tl.cdiv(CIN, BC)
    rows = (tl.program_id(0) // across) * BP + tl.arange(0, BP)
    cols = (tl.program_id(0) % across) * BC + tl.arange(0, BC)
    sample = reaching(rows // (H * W), FAR)
    h = rows % (H * W) // W + PH
    v = rows % W + PW
    live = rows < B * H * W
    dy += client * B * HO * WO * COUT
    w += client * w_row
    acc = tl.zeros((BP, BC), tl.float32)
    for step in range(KH * OG):
        i, k = step // OG, step % OG
        channel = across_from(cols, k, IG, OG)
        down = h - i * DH
        meets = live & (down >= 0) & (down % SH == 0)
        for j in tl.static_range(KW):
            right = v - j * DW
            seen = meets & (right >= 0) & (right % SW == 0)
            a = of_tap(dy, sample, down // SH, right // SW, seen, channel, HO, WO, COUT, EVEN)
            here = ((i * KW + j) * IG + cols % IG) * COUT
            acc += a.to(tl.float32) * weights_of(w + here, 0, channel, COUT, EVEN)
    out = dx + client * B * H * W * CIN + reaching(rows, FAR)[:, None] * CIN + cols[None, :]
    tl.store(out, acc, mask=live[:, None] if EVEN else live[:, None] & (cols < CIN)[None, :])


@triton.jit(do_not_specialize=SIZES)
def grouped_weight_kernel(
    x,  # [C, B, H, W, CIN]
    dy,  # [C, B, HO, WO, COUT]
    dw, dw_row, dw_part,  # [parts, C, KH * KW * IG, COUT]; strides of a client and of a part
    parts, B, H, W, HO, WO, CIN, COUT, IG: tl.constexpr, OG: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    PH: tl.constexpr, PW: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr,
    BK: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
    EVEN: tl.constexpr,  # whether BC divides COUT
    FAR: tl.constexpr,
):  # fmt: skip
    """A row of the kernel's taps, one input of the groups, a tile of output channels; sums over pixels, in parts.

    The outputs' gradient is read once for all taps of the row. Programs of one part follow each other: they read the
    same pixels, which the cache still has.
    """
    client = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) % (KH * IG)
    i, k = row // IG, row % IG
    tile = tl.program_id(0) // (KH * IG)
    across = tl.cdiv(COUT, BC)
    cols = tile % across * BC + tl.arange(0, BC)
    part = tile // across
    channel = across_from(cols, k, OG, IG)
    j = tl.arange(0, BK)
    x += client * B * H * W * CIN
    dy += client * B * HO * WO * COUT
    total = B * HO * WO
    blocks = tl.cdiv(tl.cdiv(total, BP), parts)
    acc = tl.zeros((BK, BP, BC), tl.float32)
    for block in range(blocks):
        p = (part * blocks + block) * BP + tl.arange(0, BP)
        live = p < total
        mask = live[:, None] if EVEN else live[:, None] & (cols < COUT)[None, :]
        d = tl.load(dy + reaching(p, FAR)[:, None] * COUT + cols[None, :], mask=mask, other=0.0).to(tl.float32)
        h = p % (HO * WO) // WO * SH - PH + i * DH
        v = (p % WO * SW - PW)[None, :] + (j * DW)[:, None]
        seen = (live & (h >= 0) & (h < H))[None, :] & (v >= 0) & (v < W) & (j < KW)[:, None]
        pixel = ((reaching(p // (HO * WO), FAR) * H + h) * W)[None, :] + v
        mask = seen[:, :, None] if EVEN else seen[:, :, None] & (cols < COUT)[None, None, :]
        a = tl.load(x + pixel[:, :, None] * CIN + channel[None, None, :], mask=mask, other=0.0)
        acc += a.to(tl.float32) * d[None, :, :]
    out = dw + client * dw_row + part.to(tl.int64) * dw_part + ((i * KW + j) * IG + k)[:, None] * COUT + cols[None, :]
    tl.store(out, tl.sum(acc, 1), mask=(j < KW)[:, None] & (cols < COUT)[None, :])


def tile(pixels: int, channels: int) -> dict[str, int]:
    """Return pixels and channels of a program's tile, and its warps: by a rule that was not timed."""
    cols = min(64, triton.next_power_of_2(channels))
    return {"BP": min(triton.next_power_of_2(max(1, pixels)), 2048 // cols), "BC": cols, "num_warps": 4}


def weight_tile(pixels: int, channels: int, taps: int) -> dict[str, int]:
    """Return taps of a row, pixels and channels of a weight gradient's tile, and its warps: not timed either."""
    cols, width = min(64, triton.next_power_of_2(channels)), triton.next_power_of_2(taps)
    rows = min(triton.next_power_of_2(max(1, pixels)), max(1, 4096 // (cols * width)))
    return {"BK": width, "BP": rows, "BC": cols, "num_warps": 4}


def sizes(x: Tensor, y: Tensor, groups: int) -> dict[str, int | bool]:
    """Return the sizes of images ``[C, B, H, W, I]`` and outputs ``[C, B, Ho, Wo, O]`` as a kernel's arguments."""
    names = {"B": x.shape[1], "H": x.shape[2], "W": x.shape[3], "HO": y.shape[2], "WO": y.shape[3]}
    inside, outside = x.shape[-1], y.shape[-1]
    channels = {"CIN": inside, "COUT": outside, "IG": inside // groups, "OG": outside // groups}
    return {**names, **channels, "FAR": are_far(x, y)}


def forward(g: Geometry, x: Tensor, w: Tensor, groups: int, bias: Tensor | None = None, relu: bool = False) -> Tensor:
    """Return outputs ``[C, B, Ho, Wo, O]`` of images ``[C, B, H, W, I]`` and weights ``[C, kh, kw, I / groups, O]``."""
    size, outside = g.outputs((x.shape[2], x.shape[3])), w.shape[-1]
    y = x.new_empty(*x.shape[:2], *size, outside)
    pixels = y.shape[1:4].numel()
    cut = tile(pixels, outside)
    launch(
        grouped_kernel, (triton.cdiv(pixels, cut["BP"]) * triton.cdiv(outside, cut["BC"]), len(x)),
        x=x, w=w, w_row=w.stride(0), **behind(bias, y), RELU=relu, y=y, **sizes(x, y, groups), **g.constants(),
        EVEN=outside % cut["BC"] == 0, **cut,
    )  # fmt: skip
    return y


def data(g: Geometry, dy: Tensor, w: Tensor, groups: int, size: Pair) -> Tensor:
    """Return the gradient by images of a size from that by the outputs."""
    inside = w.shape[-2] * groups
    dx = dy.new_empty(*dy.shape[:2], *size, inside)
    pixels = dx.shape[1:4].numel()
    cut = tile(pixels, inside)
    launch(
        grouped_data_kernel, (triton.cdiv(pixels, cut["BP"]) * triton.cdiv(inside, cut["BC"]), len(dy)),
        dy=dy, w=w, w_row=w.stride(0), dx=dx, **sizes(dx, dy, groups), **g.constants(),
        EVEN=inside % cut["BC"] == 0, **cut,
    )  # fmt: skip
    return dx


def parts_of(g: Geometry, x: Tensor, dy: Tensor, groups: int) -> int:
    """Return in how many parts the sums of a weight gradient are cut: from shapes alone."""
    pixels, outside = dy.shape[1:4].numel(), dy.shape[-1]
    cut = weight_tile(pixels, outside, g.kernel[1])
    programs = g.kernel[0] * (x.shape[-1] // groups) * triton.cdiv(outside, cut["BC"])
    return parts_for(len(x), programs, triton.cdiv(pixels, cut["BP"]), each=5)


def weight_parts(g: Geometry, x: Tensor, dy: Tensor, groups: int, parts: int) -> Tensor:
    """Return the gradient by the weights as parts to be summed, ``[parts, C, kh, kw, I / groups, O]``."""
    inside, outside = x.shape[-1] // groups, dy.shape[-1]
    kind = torch.float32 if parts > 1 else x.dtype  # one part alone is rounded as PyTorch's own
    dw = x.new_empty(parts, len(x), *g.kernel, inside, outside, dtype=kind)
    cut = weight_tile(dy.shape[1:4].numel(), outside, g.kernel[1])
    launch(
        grouped_weight_kernel, (g.kernel[0] * inside * triton.cdiv(outside, cut["BC"]) * parts, len(x)),
        x=x, dy=dy, dw=dw, dw_row=dw.stride(1), dw_part=dw.stride(0), parts=parts,
        **sizes(x, dy, groups), **g.constants(), EVEN=outside % cut["BC"] == 0, **cut,
    )  # fmt: skip
    return dw
