"""GroupNorm with a client axis, forward and backward: a program for each sample's group of channels.

What mostly stands behind a norm is done on the way: a second map is added, a ReLU applied; backward, the gradients that
meet there are summed and pass the ReLU. A group that fits is read once and kept in registers; a larger one is read
again, from the cache, in tiles. Sums are in float32; gamma's and beta's are of each sample, so that whoever sums them
over samples does it in a fixed order.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedsmoo.kernels.runtime import launch

WHOLE = 2**15  # numbers of a group that registers hold
WHOLE_BACK = 2**13  # of two maps: two programs a multiprocessor, one reads while the other writes
TILE = 2**13  # numbers of a tile of a larger group
ROWS = ["gamma_row", "beta_row"]  # of clients, wherever the model's parameters lie


def rows_of(name: str, v: Tensor) -> dict[str, Any]:
    """Return a parameter ``[C, CH]`` and the stride of its rows as a kernel's arguments; no copy of a part of them."""
    v = v if v.stride(-1) == 1 else v.contiguous()
    return {name: v, f"{name}_row": v.stride(0)}


@triton.jit
def block(x, n, p, P, CH, channel, there, AGAIN: tl.constexpr):
    """Return pixels ``p`` of sample ``n`` in float32, ``[pixels, channels]``; zeros where there are none.

    ``AGAIN`` tells the cache of the device whether they are read again: it keeps them, or lets them go first.
    """
    at = x + (n * P + p)[:, None] * CH + channel[None, :]
    return tl.load(at, mask=(p < P)[:, None] & there[None, :], other=0.0, eviction_policy=AGAIN).to(tl.float32)


@triton.jit
def put(y, v, n, p, P, CH, channel, there):
    """Write pixels ``p`` of sample ``n``."""
    tl.store(y + (n * P + p)[:, None] * CH + channel[None, :], v, mask=(p < P)[:, None] & there[None, :])


@triton.jit
def write(y, v, add, n, p, P, CH, channel, there, ADD: tl.constexpr, RELU: tl.constexpr):
    """Write pixels ``p`` of sample ``n``, what is added and the ReLU first."""
    if ADD:
        v += block(add, n, p, P, CH, channel, there, "evict_first")
    if RELU:
        v = tl.maximum(v, 0.0, propagate_nan=tl.PropagateNan.ALL)
    put(y, v, n, p, P, CH, channel, there)


@triton.jit(do_not_specialize=["B", *ROWS], do_not_specialize_on_alignment=["gamma", "beta"])
def norm_kernel(
    x, gamma, beta, add, y, mean, rstd,  # [C * B, P, CH], [C, CH] twice, [C * B, P, CH] twice, [C * B, CH / GW] twice
    gamma_row, beta_row, B, P, eps, CH: tl.constexpr, GW: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
    WHOLE: tl.constexpr, ADD: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    n = (tl.program_id(0) // (CH // GW)).to(tl.int64)
    group = tl.program_id(0) % (CH // GW)
    lane = tl.arange(0, BC)
    there = lane < GW
    channel = group * GW + lane
    p = tl.arange(0, BP)
    count = P * GW
    if WHOLE:
        v = block(x, n, p, P, CH, channel, there, "")
        m = tl.sum(tl.sum(v, 1), 0) / count
        v = tl.where((p < P)[:, None] & there[None, :], v - m, 0.0)
        r = 1.0 / tl.sqrt(tl.sum(tl.sum(v * v, 1), 0) / count + eps)
    else:
        total = tl.zeros((BP,), tl.float32)
        for start in range(0, P, BP):
            total += tl.sum(block(x, n, start + p, P, CH, channel, there, "evict_last"), 1)
        m = tl.sum(total, 0) / count
        total = tl.zeros((BP,), tl.float32)
        for start in range(0, P, BP):
            v = block(x, n, start + p, P, CH, channel, there, "") - m
            total += tl.sum(tl.where((start + p < P)[:, None] & there[None, :], v * v, 0.0), 1)
        r = 1.0 / tl.sqrt(tl.sum(total, 0) / count + eps)
    client = n // B
    scale = tl.load(gamma + client * gamma_row + channel, mask=there, other=0.0).to(tl.float32)
    shift = tl.load(beta + client * beta_row + channel, mask=there, other=0.0).to(tl.float32)
    if WHOLE:
        v = v * r * scale[None, :] + shift[None, :]
        write(y, v, add, n, p, P, CH, channel, there, ADD, RELU)
    else:
        for start in range(0, P, BP):
            v = (block(x, n, start + p, P, CH, channel, there, "") - m) * r * scale[None, :] + shift[None, :]
            write(y, v, add, n, start + p, P, CH, channel, there, ADD, RELU)
    tl.store(mean + n * (CH // GW) + group, m)
    tl.store(rstd + n * (CH // GW) + group, r)


@triton.jit
def arriving(
    dy, more, y, kept, hat, scale, shift, n, p, P, CH, channel, there, MORE: tl.constexpr, RELU: tl.constexpr,
    KEEP: tl.constexpr = False, AGAIN: tl.constexpr = False,
):  # fmt: skip
    """Return the gradient by a norm's outputs at pixels ``p``, in the type of ``dy``: summed, past the ReLU, kept.

    With ``RELU == "sign"``, the sign of the norm's outputs is known: they are ``hat``, scaled and shifted.
    """
    d = block(dy, n, p, P, CH, channel, there, "evict_last" if AGAIN else "evict_first")
    if MORE:
        d += block(more, n, p, P, CH, channel, there, "evict_first")
    if RELU == "sign":
        d = tl.where(hat * scale[None, :] + shift[None, :] <= 0.0, 0.0, d)
    elif RELU == "outputs":
        d = tl.where(block(y, n, p, P, CH, channel, there, "evict_first") <= 0.0, 0.0, d)
    d = d.to(dy.dtype.element_ty)
    if KEEP:
        put(kept, d, n, p, P, CH, channel, there)
    return d


@triton.jit(do_not_specialize=["B", *ROWS], do_not_specialize_on_alignment=["gamma", "beta"])
def norm_backward_kernel(
    dy, more, y, x, gamma, beta, mean, rstd,  # [C * B, P, CH] four times, [C, CH] twice, [C * B, CH / GW] float32 twice
    dx, dgamma, dbeta, kept,  # [C * B, P, CH], [C * B, CH] float32 twice: of each sample; [C * B, P, CH]
    gamma_row, beta_row, B, P, CH: tl.constexpr, GW: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
    WHOLE: tl.constexpr, MORE: tl.constexpr, RELU: tl.constexpr, KEEP: tl.constexpr,
    TWICE: tl.constexpr,  # whether the gradient is of one map, which is read again and not kept
):  # fmt: skip
    n = (tl.program_id(0) // (CH // GW)).to(tl.int64)
    group = tl.program_id(0) % (CH // GW)
    there = tl.arange(0, BC) < GW
    channel = group * GW + tl.arange(0, BC)
    p = tl.arange(0, BP)
    m = tl.load(mean + n * (CH // GW) + group)
    r = tl.load(rstd + n * (CH // GW) + group)
    scale = tl.load(gamma + n // B * gamma_row + channel, mask=there, other=0.0).to(tl.float32)
    shift = scale
    if RELU == "sign":
        shift = tl.load(beta + n // B * beta_row + channel, mask=there, other=0.0).to(tl.float32)
    if WHOLE:
        hat = (block(x, n, p, P, CH, channel, there, "") - m) * r
        d = arriving(dy, more, y, kept, hat, scale, shift, n, p, P, CH, channel, there, MORE, RELU, KEEP)
        hats = tl.sum(d.to(tl.float32) * hat, 0)
        ones = tl.sum(d.to(tl.float32), 0)
    else:
        hats, ones = tl.zeros((BC,), tl.float32), tl.zeros((BC,), tl.float32)
        for start in range(0, P, BP):
            q = start + p
            hat = (block(x, n, q, P, CH, channel, there, "evict_last") - m) * r
            d = arriving(
                dy, more, y, kept, hat, scale, shift, n, q, P, CH, channel, there, MORE, RELU, not TWICE, TWICE
            )  # fmt: skip
            hats += tl.sum(d.to(tl.float32) * hat, 0)
            ones += tl.sum(d.to(tl.float32), 0)
    tl.store(dgamma + n * CH + channel, hats, mask=there)
    tl.store(dbeta + n * CH + channel, ones, mask=there)
    inner = tl.sum(ones * scale, 0) / (P * GW)
    along = tl.sum(hats * scale, 0) / (P * GW)
    if WHOLE:
        put(dx, r * (d.to(tl.float32) * scale[None, :] - inner - hat * along), n, p, P, CH, channel, there)
    else:
        tl.debug_barrier()  # bar.sync: each thread sees in memory what any thread of the program kept
        for start in range(0, P, BP):  # what is kept, in ``dx`` itself where nobody wants it, is still in the cache
            q = start + p
            hat = (block(x, n, q, P, CH, channel, there, "evict_first") - m) * r
            if TWICE:
                d = arriving(dy, more, y, kept, hat, scale, shift, n, q, P, CH, channel, there, MORE, RELU)
            else:
                d = block(kept, n, q, P, CH, channel, there, "evict_first")
            put(dx, r * (d.to(tl.float32) * scale[None, :] - inner - hat * along), n, q, P, CH, channel, there)


def tile(pixels: int, width: int, most: int) -> tuple[int, int, bool, int]:
    """Return pixels and channels of a block, whether it is a whole group, and warps."""
    cols = triton.next_power_of_2(width)
    rows = triton.next_power_of_2(pixels)
    whole = rows * cols <= most
    rows = rows if whole else max(1, TILE // cols)
    return rows, cols, whole, max(1, min(16 if whole else 8, rows * cols // 1024))


def forward(
    x: Tensor, gamma: Tensor, beta: Tensor, groups: int, eps: float, add: Tensor | None = None, relu: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``fedsmoo::norm`` of images ``[C, B, P, CH]``."""
    clients, batch, pixels, channels = x.shape
    x = x.contiguous()
    y = torch.empty_like(x)
    mean, rstd = (x.new_empty(clients, batch, groups, dtype=torch.float32) for _ in range(2))
    rows, cols, whole, warps = tile(pixels, channels // groups, WHOLE)
    launch(
        norm_kernel, (clients * batch * groups,),
        x=x, **rows_of("gamma", gamma), **rows_of("beta", beta), add=x if add is None else add.contiguous(), y=y,
        mean=mean, rstd=rstd,
        B=batch, P=pixels, eps=eps, CH=channels, GW=channels // groups, BP=rows, BC=cols, WHOLE=whole,
        ADD=add is not None, RELU=relu, num_warps=warps,
    )  # fmt: skip
    return y, mean, rstd


def backward(
    dy: Tensor, x: Tensor, gamma: Tensor, mean: Tensor, rstd: Tensor, groups: int,
    y: Tensor | None = None, more: Tensor | None = None, keep: bool = False, beta: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return ``fedsmoo::norm_backward`` of images ``[C, B, P, CH]``."""
    clients, batch, pixels, channels = x.shape
    dy, x = dy.contiguous(), x.contiguous()
    dx, kept = torch.empty_like(x), dy.new_empty(dy.shape if keep else 0)
    dgamma, dbeta = (x.new_empty(clients, batch, channels, dtype=torch.float32) for _ in range(2))
    rows, cols, whole, warps = tile(pixels, channels // groups, WHOLE_BACK)
    relu = "sign" if beta is not None else "outputs" if y is not None else ""
    launch(
        norm_backward_kernel, (clients * batch * groups,),
        dy=dy, more=dy if more is None else more.contiguous(), y=dy if y is None else y.contiguous(),
        x=x, **rows_of("gamma", gamma), **rows_of("beta", gamma if beta is None else beta),
        mean=mean.contiguous(), rstd=rstd.contiguous(), dx=dx, dgamma=dgamma, dbeta=dbeta,
        kept=kept if keep else dx, B=batch, P=pixels, CH=channels, GW=channels // groups, BP=rows, BC=cols,
        WHOLE=whole, MORE=more is not None, RELU=relu, KEEP=keep, TWICE=not keep and more is None and relu != "outputs",
        num_warps=warps,
    )  # fmt: skip
    return dx, dgamma, dbeta, kept
