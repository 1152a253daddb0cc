"""GroupNorm inside a tile: the pieces that convolutions fuse, GroupNorm backward alone, and its parameters' gradient.

A tile holds ``BM`` rows (pixels of whole samples, ``HW`` each) by ``BN`` channels (``NG`` whole groups of ``GW``), so
every group's sums stay inside one program. With ``n = HW * GW`` and ``g = gamma * dz``,

    dy = rstd * (g - sum(g) / n - xhat * sum(g * xhat) / n).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from fedsmoo.kernels.runtime import launch


@triton.jit
def group_mean(v, HW: tl.constexpr, GW: tl.constexpr, NG: tl.constexpr, BM: tl.constexpr):
    """Return the means over each sample's groups: ``[BM, NG * GW] -> [BM / HW, NG]``."""
    s = tl.sum(tl.reshape(v, (BM, NG, GW)), axis=2)
    s = tl.sum(tl.reshape(s, (BM // HW, HW, NG)), axis=1)
    return s / (HW * GW)


@triton.jit
def spread(s, HW: tl.constexpr, GW: tl.constexpr, NG: tl.constexpr, BM: tl.constexpr):
    """Broadcast each sample's group values to all its elements: ``[BM / HW, NG] -> [BM, NG * GW]``."""
    s = tl.reshape(tl.broadcast_to(s[:, None, :], (BM // HW, HW, NG)), (BM, NG))
    return tl.reshape(tl.broadcast_to(s[:, :, None], (BM, NG, GW)), (BM, NG * GW))


@triton.jit
def epilogue_forward(
    acc,  # [BM, NG * GW]: a tile of convolution outputs, in registers
    client, tile,  # which client; which of its tiles of BM rows
    rows, cols, group,  # [BM], [NG * GW]: the tile's pixels (of all samples) and channels; the first of its groups
    residual,  # [C, B, HW, CH]; read if RESIDUAL
    p, p_row, p_off,  # [C, p_row] float32: gamma, then beta, CH numbers each, from p_off on; read if OUT
    out,  # [C, B, HW, CH]; written if OUT
    xhat,  # [C, B, HW, CH]: the normalised outputs; written if SAVE
    rstd,  # [C, B, CH / GW] float32; written if SAVE
    B, eps,
    CH: tl.constexpr,  # channels
    HW: tl.constexpr,  # pixels of a sample
    GW: tl.constexpr,  # channels of a GroupNorm group
    NG: tl.constexpr,  # groups in the tile
    BM: tl.constexpr,  # rows of the tile
    OUT: tl.constexpr, RELU: tl.constexpr, RESIDUAL: tl.constexpr, SAVE: tl.constexpr,
):  # fmt: skip
    """Normalise a tile of convolution outputs, add the shortcut, apply the ReLU; keep what backward needs."""
    live = (rows < B * HW)[:, None]
    at = client * B * HW * CH + rows[:, None] * CH + cols[None, :]
    if OUT:  # loaded before the first sum, so that nothing waits for it
        scale = tl.load(p + client * p_row + p_off + cols)
        shift = tl.load(p + client * p_row + p_off + CH + cols)
        if RESIDUAL:
            short = tl.load(residual + at, mask=live, other=0.0)
    acc -= spread(group_mean(acc, HW, GW, NG, BM), HW, GW, NG, BM)
    r = 1.0 / tl.sqrt(group_mean(acc * acc, HW, GW, NG, BM) + eps)
    normed = acc * spread(r, HW, GW, NG, BM)
    if SAVE:
        samples = tile * (BM // HW) + tl.arange(0, BM // HW)
        groups = group + tl.arange(0, NG)
        at_group = client * B * (CH // GW) + samples[:, None] * (CH // GW) + groups[None, :]
        tl.store(rstd + at_group, r, mask=(samples < B)[:, None] & (groups < CH // GW)[None, :])
        tl.store(xhat + at, normed, mask=live)
    if OUT:
        z = normed * scale[None, :] + shift[None, :]
        if RESIDUAL:
            z += short
        if RELU:
            z = tl.maximum(z, 0.0, propagate_nan=tl.PropagateNan.ALL)
        tl.store(out + at, z, mask=live)


@triton.jit
def norm_inputs(
    client, tile, rows, cols, group, act, xhat, rstd, p, p_row, p_off, B,  # as in epilogue_backward
    CH: tl.constexpr, HW: tl.constexpr, GW: tl.constexpr, NG: tl.constexpr, BM: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    """Load what a tile's way back through ReLU and GroupNorm reads: all of it at once, to be waited for together."""
    at = client * B * HW * CH + rows[:, None] * CH + cols[None, :]
    mask = (rows < B * HW)[:, None] & (cols < CH)[None, :]
    normed = tl.load(xhat + at, mask=mask, other=0.0)
    above = normed
    if RELU:
        above = tl.load(act + at, mask=mask, other=0.0)
    gamma = tl.load(p + client * p_row + p_off + cols)
    samples = tile * (BM // HW) + tl.arange(0, BM // HW)
    groups = group + tl.arange(0, NG)
    at_group = client * B * (CH // GW) + samples[:, None] * (CH // GW) + groups[None, :]
    r = tl.load(rstd + at_group, mask=(samples < B)[:, None] & (groups < CH // GW)[None, :], other=0.0)
    return above, normed, gamma, r


@triton.jit
def norm_gradient(
    d, inputs,  # [BM, NG * GW]: gradient of a tile of outputs, in registers; what norm_inputs loaded for it
    client, tile, rows, cols, dz, dy, part, part_row, part_off, B,  # as in epilogue_backward
    CH: tl.constexpr, HW: tl.constexpr, GW: tl.constexpr, NG: tl.constexpr, BM: tl.constexpr,
    RELU: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """Do what :func:`epilogue_backward` does, with inputs that were loaded before."""
    above, normed, gamma, r = inputs
    at = client * B * HW * CH + rows[:, None] * CH + cols[None, :]
    mask = (rows < B * HW)[:, None] & (cols < CH)[None, :]
    if RELU:
        d = tl.where(above > 0, d, 0.0)
    if KEEP:
        tl.store(dz + at, d, mask=mask)
    normed = normed.to(tl.float32)
    share = part + client * part_row + part_off + tile * 2 * CH + cols
    tl.store(share, tl.sum(d * normed, axis=0))
    tl.store(share + CH, tl.sum(d, axis=0))
    g = d * gamma[None, :]
    mean = spread(group_mean(g, HW, GW, NG, BM), HW, GW, NG, BM)
    along = spread(group_mean(g * normed, HW, GW, NG, BM), HW, GW, NG, BM)
    tl.store(dy + at, (g - mean - normed * along) * spread(r, HW, GW, NG, BM), mask=mask)


@triton.jit
def epilogue_backward(
    d,  # [BM, NG * GW]: gradient of a tile of outputs, in registers
    client, tile,  # which client; which of its tiles of BM rows
    rows, cols, group,  # [BM], [NG * GW]: the tile's pixels (of all samples) and channels; the first of its groups
    act,  # [C, B, HW, CH]: output of the ReLU; read if RELU
    xhat, rstd,  # [C, B, HW, CH]; [C, B, CH / GW] float32
    p, p_row, p_off,  # [C, p_row] float32: gamma, CH numbers from p_off on
    dz,  # [C, B, HW, CH]: gradient behind the ReLU; written if KEEP
    dy,  # [C, B, HW, CH]: gradient of the convolution's output
    part, part_row, part_off,  # [C, part_row] float32: from part_off on, [tiles, 2, CH]
    B,
    CH: tl.constexpr, HW: tl.constexpr, GW: tl.constexpr, NG: tl.constexpr, BM: tl.constexpr,
    RELU: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """Take the gradient ``d`` of a tile of outputs back through the ReLU and the GroupNorm.

    Stores the gradient behind the ReLU in ``dz`` (if ``KEEP``: a shortcut needs it), that of the convolution's
    output in ``dy``, and this tile's share of the gradients of gamma and beta in ``part``.
    """
    inputs = norm_inputs(
        client, tile, rows, cols, group, act=act, xhat=xhat, rstd=rstd, p=p, p_row=p_row, p_off=p_off, B=B,
        CH=CH, HW=HW, GW=GW, NG=NG, BM=BM, RELU=RELU,
    )  # fmt: skip
    norm_gradient(
        d, inputs, client, tile, rows, cols, dz=dz, dy=dy, part=part, part_row=part_row, part_off=part_off, B=B,
        CH=CH, HW=HW, GW=GW, NG=NG, BM=BM, RELU=RELU, KEEP=KEEP,
    )  # fmt: skip


@triton.jit
def norm_backward_kernel(
    d,  # [C, B, HW, CH]: gradient of the layer's output; the others as in epilogue_backward
    act, xhat, rstd, p, p_row, p_off, dz, dy, part, part_row, part_off, B,
    CH: tl.constexpr, HW: tl.constexpr, GW: tl.constexpr, BM: tl.constexpr,
    RELU: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(1).to(tl.int64)
    tile = tl.program_id(0) // (CH // GW)
    group = tl.program_id(0) % (CH // GW)
    cols = group * GW + tl.arange(0, GW)
    rows = tile * BM + tl.arange(0, BM)
    at = client * B * HW * CH + rows[:, None] * CH + cols[None, :]
    value = tl.load(d + at, mask=(rows < B * HW)[:, None], other=0.0).to(tl.float32)
    epilogue_backward(
        value, client, tile, rows, cols, group, act=act, xhat=xhat, rstd=rstd, p=p, p_row=p_row, p_off=p_off,
        dz=dz, dy=dy, part=part, part_row=part_row, part_off=part_off, B=B,
        CH=CH, HW=HW, GW=GW, NG=1, BM=BM, RELU=RELU, KEEP=KEEP,
    )  # fmt: skip


@dataclass(frozen=True)
class NormLayer:
    """A layer's GroupNorm (and ReLU) that a gradient passes backwards: what forward kept, and where results go.

    Args:
        act: output of the ReLU; None where there is none.
        xhat, rstd: normalised convolution output ``[C, B, H, W, Ch]`` and ``[C, B, groups]``.
        p, p_off: flat parameters ``[C, P]``; gamma begins at ``p_off``.
        dz: where to keep the gradient behind the ReLU; None: nowhere.
        dy: where the gradient of the convolution's output goes.
        part, part_off: rows of partial sums ``[C, *]`` for gamma and beta; this layer's tiles begin at ``part_off``.
    """

    act: Tensor | None
    xhat: Tensor
    rstd: Tensor
    p: Tensor
    p_off: int
    dz: Tensor | None
    dy: Tensor
    part: Tensor
    part_off: int

    @property
    def group_width(self) -> int:
        return self.xhat.shape[-1] // self.rstd.shape[-1]

    def arguments(self, unread: Tensor) -> dict[str, Any]:
        """Return what kernels are given of the layer; ``unread`` stands for pointers that they do not read."""
        return {
            "act": unread if self.act is None else self.act, "xhat": self.xhat, "rstd": self.rstd,
            "p": self.p, "p_row": self.p.stride(0), "p_off": self.p_off,
            "dz": unread if self.dz is None else self.dz, "dy": self.dy,
            "part": self.part, "part_row": self.part.stride(0), "part_off": self.part_off, "GW": self.group_width,
        }  # fmt: skip


def norm_backward(d: Tensor, layer: NormLayer, rows: int, warps: int = 4) -> None:
    """Take the gradient ``d [C, B, H, W, Ch]`` of a layer's output back to its convolution's output.

    ``rows`` pixels make a program's tile: a power of two and a multiple of ``H * W``.
    """
    clients, batch, side, _, channels = d.shape
    width = layer.group_width
    launch(
        norm_backward_kernel, (-(-batch * side * side // rows) * (channels // width), clients),
        d=d, **layer.arguments(unread=d), B=batch,
        CH=channels, HW=side * side, BM=rows, RELU=layer.act is not None, KEEP=layer.dz is not None,
        num_warps=warps,
    )  # fmt: skip


@triton.jit
def sum_parts_kernel(
    part, part_row,  # [C, part_row] float32
    table,  # [n, 4] int32: where tiles begin in part, how many, how far apart, and where the sum goes
    grad, grad_row,  # [C, grad_row]
    BT: tl.constexpr, BC: tl.constexpr,  # tiles added at once; channels of an entry
):  # fmt: skip
    client = tl.program_id(1).to(tl.int64)
    entry = table + tl.program_id(0) * 4
    source, tiles, step, target = tl.load(entry), tl.load(entry + 1), tl.load(entry + 2), tl.load(entry + 3)
    cols = tl.arange(0, BC)
    acc = tl.zeros((BT, BC), tl.float32)
    for first in range(0, tiles, BT):
        t = first + tl.arange(0, BT)
        at = part + client * part_row + source + t[:, None] * step + cols[None, :]
        acc += tl.load(at, mask=(t < tiles)[:, None], other=0.0)
    tl.store(grad + client * grad_row + target + cols, tl.sum(acc, axis=0))


def sum_parts(part: Tensor, table: Tensor, grad: Tensor, columns: int = 64) -> None:
    """Add up all layers' tiles of gamma's and beta's gradients, in a fixed order, into ``grad [C, *]``.

    ``table [n, 4]`` (int32) names, for each run of ``columns`` channels, where its tiles begin in ``part``, how many
    they are, how far apart, and where the sum goes in ``grad``.
    """
    launch(
        sum_parts_kernel, (table.shape[0], grad.shape[0]),
        part=part, part_row=part.stride(0), table=table, grad=grad, grad_row=grad.stride(0),
        BT=16, BC=columns, num_warps=4,
    )  # fmt: skip
