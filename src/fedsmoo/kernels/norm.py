"""GroupNorm with a client axis, forward and backward: a program for each sample's group of channels.

A group that fits is read once and kept in registers; a larger one is read again for each pass. Sums are in float32, and
those of gamma's and beta's gradients over samples are taken afterwards, in a fixed order.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedsmoo.kernels.runtime import launch

WHOLE = 2**15  # numbers of a group that registers hold


@triton.jit
def block(x, n, p, P, CH, channel, there):
    """Return pixels ``p`` of sample ``n`` in float32, ``[pixels, channels]``; zeros where there are none."""
    return tl.load(
        x + (n * P + p)[:, None] * CH + channel[None, :], mask=(p < P)[:, None] & there[None, :], other=0.0
    ).to(tl.float32)


@triton.jit(do_not_specialize=["B"])
def norm_kernel(
    x, gamma, beta, y, mean, rstd,  # [C * B, P, CH], [C, CH] twice, [C * B, P, CH], [C * B, CH / GW] float32 twice
    B, P, eps, CH: tl.constexpr, GW: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1)
    lane = tl.arange(0, BC)
    there = lane < GW
    channel = group * GW + lane
    p = tl.arange(0, BP)
    count = P * GW
    if WHOLE:
        v = block(x, n, p, P, CH, channel, there)
        m = tl.sum(tl.sum(v, 1), 0) / count
        v = tl.where((p < P)[:, None] & there[None, :], v - m, 0.0)
        r = 1.0 / tl.sqrt(tl.sum(tl.sum(v * v, 1), 0) / count + eps)
    else:
        total = tl.zeros((BP,), tl.float32)
        for start in range(0, P, BP):
            total += tl.sum(block(x, n, start + p, P, CH, channel, there), 1)
        m = tl.sum(total, 0) / count
        total = tl.zeros((BP,), tl.float32)
        for start in range(0, P, BP):
            v = block(x, n, start + p, P, CH, channel, there) - m
            total += tl.sum(tl.where((start + p < P)[:, None] & there[None, :], v * v, 0.0), 1)
        r = 1.0 / tl.sqrt(tl.sum(total, 0) / count + eps)
    client = n // B
    scale = tl.load(gamma + client * CH + channel, mask=there, other=0.0).to(tl.float32)
    shift = tl.load(beta + client * CH + channel, mask=there, other=0.0).to(tl.float32)
    if WHOLE:
        out = y + (n * P + p)[:, None] * CH + channel[None, :]
        tl.store(out, v * r * scale[None, :] + shift[None, :], mask=(p < P)[:, None] & there[None, :])
    else:
        for start in range(0, P, BP):
            v = (block(x, n, start + p, P, CH, channel, there) - m) * r * scale[None, :] + shift[None, :]
            out = y + (n * P + start + p)[:, None] * CH + channel[None, :]
            tl.store(out, v, mask=(start + p < P)[:, None] & there[None, :])
    tl.store(mean + n * (CH // GW) + group, m)
    tl.store(rstd + n * (CH // GW) + group, r)


@triton.jit(do_not_specialize=["B"])
def norm_backward_kernel(
    dy, x, gamma, mean, rstd,  # [C * B, P, CH] twice, [C, CH], [C * B, CH / GW] float32 twice
    dx, dgamma, dbeta,  # [C * B, P, CH], [C * B, CH] float32 twice: of each sample
    B, P, CH: tl.constexpr, GW: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1)
    lane = tl.arange(0, BC)
    there = lane < GW
    channel = group * GW + lane
    p = tl.arange(0, BP)
    m = tl.load(mean + n * (CH // GW) + group)
    r = tl.load(rstd + n * (CH // GW) + group)
    scale = tl.load(gamma + n // B * CH + channel, mask=there, other=0.0).to(tl.float32)
    hats = tl.zeros((BC,), tl.float32)
    ones = tl.zeros((BC,), tl.float32)
    for start in range(0, P, BP):
        d = block(dy, n, start + p, P, CH, channel, there)
        hats += tl.sum(d * (block(x, n, start + p, P, CH, channel, there) - m) * r, 0)
        ones += tl.sum(d, 0)
    tl.store(dgamma + n * CH + channel, hats, mask=there)
    tl.store(dbeta + n * CH + channel, ones, mask=there)
    inner = tl.sum(ones * scale, 0) / (P * GW)
    along = tl.sum(hats * scale, 0) / (P * GW)
    for start in range(0, P, BP):
        d = block(dy, n, start + p, P, CH, channel, there)
        hat = (block(x, n, start + p, P, CH, channel, there) - m) * r
        at = (n * P + start + p)[:, None] * CH + channel[None, :]
        out = r * (d * scale[None, :] - inner - hat * along)
        tl.store(dx + at, out, mask=(start + p < P)[:, None] & there[None, :])


def tile(pixels: int, width: int) -> tuple[int, int, bool, int]:
    """Return pixels and channels of a block, whether it is a whole group, and warps."""
    cols = triton.next_power_of_2(width)
    rows = triton.next_power_of_2(pixels)
    whole = rows * cols <= WHOLE
    rows = rows if whole else max(1, WHOLE // 4 // cols)
    return rows, cols, whole, max(1, min(16, rows * cols // 1024))


def forward(x: Tensor, gamma: Tensor, beta: Tensor, groups: int, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``fedsmoo::norm`` of images ``[C, B, P, CH]``."""
    clients, batch, pixels, channels = x.shape
    x, gamma, beta = x.contiguous(), gamma.contiguous(), beta.contiguous()
    y = torch.empty_like(x)
    mean, rstd = (x.new_empty(clients, batch, groups, dtype=torch.float32) for _ in range(2))
    rows, cols, whole, warps = tile(pixels, channels // groups)
    launch(
        norm_kernel, (clients * batch, groups),
        x=x, gamma=gamma, beta=beta, y=y, mean=mean, rstd=rstd, B=batch, P=pixels, eps=eps,
        CH=channels, GW=channels // groups, BP=rows, BC=cols, WHOLE=whole, num_warps=warps,
    )  # fmt: skip
    return y, mean, rstd


def backward(
    dy: Tensor, x: Tensor, gamma: Tensor, mean: Tensor, rstd: Tensor, groups: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``fedsmoo::norm_backward`` of images ``[C, B, P, CH]``."""
    clients, batch, pixels, channels = x.shape
    dy, x, gamma = dy.contiguous(), x.contiguous(), gamma.contiguous()
    dx = torch.empty_like(x)
    dgamma, dbeta = (x.new_empty(clients, batch, channels, dtype=torch.float32) for _ in range(2))
    rows, cols, _, warps = tile(pixels, channels // groups)
    launch(
        norm_backward_kernel, (clients * batch, groups),
        dy=dy, x=x, gamma=gamma, mean=mean.contiguous(), rstd=rstd.contiguous(), dx=dx, dgamma=dgamma, dbeta=dbeta,
        B=batch, P=pixels, CH=channels, GW=channels // groups, BP=rows, BC=cols, num_warps=warps,
    )  # fmt: skip
    return dx, dgamma.sum(1).to(gamma.dtype), dbeta.sum(1).to(gamma.dtype)
