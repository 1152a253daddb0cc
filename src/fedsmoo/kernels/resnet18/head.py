"""The last layer with a client axis, in float32: logits, cross-entropy and their gradients.

Products are three of tf32 each, which keeps float32's accuracy and is faster than plain arithmetic.
On 32x32 images the last map is one pixel, so the average pool is the identity. With sample weights ``a_b`` and
``q = softmax(logits)``, the loss is ``sum_b a_b * (-log q_b[label_b])`` and the logits' gradient
``a_b * (q_b - onehot(label_b))``.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from fedsmoo.core.errors import FedsmooError
from fedsmoo.kernels.resnet18.norm import NormLayer, norm_gradient, norm_inputs
from fedsmoo.kernels.resnet18.shapes import MOST_CLASSES
from fedsmoo.kernels.runtime import launch

ROWS = 16


def padded_classes(classes: int) -> int:
    """Return the columns of a tile that holds all classes: a power of two, at least 16.

    Raises:
        FedsmooError: for no class, or more than the kernels hold.
    """
    if not 1 <= classes <= MOST_CLASSES:
        raise FedsmooError(
            f"the kernels' last layer holds 1 to {MOST_CLASSES} classes, not {classes}: use another oracle"
        )
    return max(16, triton.next_power_of_2(classes))


@triton.jit
def logits_tile(
    x, w,  # of one client: [B, CH]; weights [CH, classes], then the bias
    rows, live, cols, classes,  # samples, and which of them there are; columns of a tile that holds all classes
    CH: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Return the logits ``[BM, BN]`` of some samples: quarters of the channels do not wait for each other."""
    sums = (tl.zeros((BM, BN), tl.float32),) * 4
    for first in range(0, CH // 4, BK):
        added = ()
        for quarter in tl.static_range(4):
            k = quarter * (CH // 4) + first + tl.arange(0, BK)
            a = tl.load(x + rows[:, None] * CH + k[None, :], mask=live[:, None], other=0.0).to(tl.float32)
            b = tl.load(w + k[:, None] * classes + cols[None, :], mask=(cols < classes)[None, :], other=0.0)
            one = (tl.dot(a, b, sums[quarter], input_precision="tf32x3"),)
            added = added + one  # type: ignore[assignment]
        sums = added  # type: ignore[assignment]
    acc = (sums[0] + sums[1]) + (sums[2] + sums[3])
    return acc + tl.load(w + CH * classes + cols, mask=cols < classes, other=0.0)[None, :]


@triton.jit
def logits_inputs(
    x, w, rows, live, cols, classes,  # as in logits_tile
    CH: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Load all that logits need, in as many parts of the channels as there are warps: features, weights and bias."""
    k = tl.arange(0, PARTS)[:, None] * (CH // PARTS) + tl.arange(0, CH // PARTS)[None, :]
    real = cols < classes
    bias = tl.load(w + CH * classes + cols, mask=real, other=0.0)
    b = tl.load(w + k[:, :, None] * classes + cols[None, None, :], mask=real[None, None, :], other=0.0)
    # Last, as the compiler waits for it at once, to bring it to shared memory.
    a = tl.load(x + rows[None, :, None] * CH + k[:, None, :], mask=live[None, :, None], other=0.0)
    return a, b, bias


@triton.jit
def cross_entropy(logits, label, share, cols, classes):
    """Return the weighted losses of a tile's samples and the gradient by its logits."""
    hit = cols[None, :] == label[:, None]
    logits = tl.where((cols < classes)[None, :], logits, float("-inf"))
    top = tl.max(logits, axis=1)
    e = tl.exp(logits - top[:, None])
    total = tl.sum(e, axis=1)
    own = tl.sum(tl.where(hit, logits, 0.0), axis=1)
    d = share[:, None] * (e / total[:, None] - tl.where(hit, 1.0, 0.0))
    return share * (tl.log(total) + top - own), d


@triton.jit
def head_kernel(
    x,  # [C, B, CH]: features
    p, p_row, p_off,  # [C, p_row] float32: weights [CH, classes], then the bias [classes], from p_off on
    labels, weight,  # [C, B] int64 and float32; read if GRAD
    logits,  # [C, B, classes]; written unless GRAD
    loss, dlogits,  # [C, B], [C, B, BN]; written if GRAD
    dx,  # [C, B, CH]; written if GRAD
    B, classes,
    CH: tl.constexpr, BN: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr, BACK: tl.constexpr, GRAD: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    live = rows < B
    cols = tl.arange(0, BN)
    w = p + client * p_row + p_off
    acc = logits_tile(x + client * B * CH, w, rows, live, cols, classes, CH=CH, BM=BM, BN=BN, BK=BK)
    if GRAD:
        label = tl.load(labels + client * B + rows, mask=live, other=0)
        share = tl.load(weight + client * B + rows, mask=live, other=0.0)
        each, d = cross_entropy(acc, label, share, cols, classes)
        tl.store(loss + client * B + rows, each, mask=live)
        tl.store(dlogits + client * B * BN + rows[:, None] * BN + cols[None, :], d, mask=live[:, None])
        for first in range(0, CH, BACK):
            k = first + tl.arange(0, BACK)
            b = tl.load(w + k[None, :] * classes + cols[:, None], mask=(cols < classes)[:, None], other=0.0)
            back = tl.dot(d, b, input_precision="tf32x3")
            tl.store(dx + client * B * CH + rows[:, None] * CH + k[None, :], back, mask=live[:, None])
    else:
        real = live[:, None] & (cols < classes)[None, :]
        tl.store(logits + client * B * classes + rows[:, None] * classes + cols[None, :], acc, mask=real)


@triton.jit
def head_norm_kernel(
    x, p, p_row, p_off, labels, weight, loss, dlogits,  # as in head_kernel
    act, xhat, rstd, norm, norm_row, norm_off, dz, dy, part, part_row, part_off,  # as in epilogue_backward
    B, classes,
    CH: tl.constexpr, GW: tl.constexpr, BN: tl.constexpr, BM: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Go to the loss and back to one GroupNorm group before the features; every group's program has all logits.

    There are few programs, which wait for memory most of the time: nothing is loaded after the first product.
    """
    client = tl.program_id(1).to(tl.int64)
    tile, group = tl.program_id(0) // (CH // GW), tl.program_id(0) % (CH // GW)
    rows = tile * BM + tl.arange(0, BM)
    live = rows < B
    cols = tl.arange(0, BN)
    k = group * GW + tl.arange(0, GW)
    w = p + client * p_row + p_off
    label = tl.load(labels + client * B + rows, mask=live, other=0)
    share = tl.load(weight + client * B + rows, mask=live, other=0.0)
    a, b, bias = logits_inputs(x + client * B * CH, w, rows, live, cols, classes, CH=CH, PARTS=PARTS)
    w_back = tl.load(w + k[None, :] * classes + cols[:, None], mask=(cols < classes)[:, None], other=0.0)
    inputs = norm_inputs(
        client, tile, rows, k, group, act=act, xhat=xhat, rstd=rstd, p=norm, p_row=norm_row, p_off=norm_off, B=B,
        CH=CH, HW=1, GW=GW, NG=1, BM=BM, RELU=True,
    )  # fmt: skip
    logits = tl.sum(tl.dot(a.to(tl.float32), b, input_precision="tf32x3"), axis=0) + bias[None, :]
    each, d = cross_entropy(logits, label, share, cols, classes)
    if group == 0:
        tl.store(loss + client * B + rows, each, mask=live)
        tl.store(dlogits + client * B * BN + rows[:, None] * BN + cols[None, :], d, mask=live[:, None])
    back = tl.dot(d, w_back, input_precision="tf32x3")
    norm_gradient(
        back, inputs, client, tile, rows, k, dz=dz, dy=dy, part=part, part_row=part_row, part_off=part_off, B=B,
        CH=CH, HW=1, GW=GW, NG=1, BM=BM, RELU=True, KEEP=True,
    )  # fmt: skip


def _launch(x: Tensor, p: Tensor, p_off: int, classes: int, **rest: Any) -> None:
    """Launch the kernel; pointers that it does not read have to be some all the same."""
    clients, batch, columns = x.shape[0], x.shape[1], padded_classes(classes)
    unread: dict[str, Any] = dict.fromkeys(("labels", "weight", "logits", "loss", "dlogits", "dx"), p)
    back = min(x.shape[-1], max(16, min(256, 8192 // columns)))  # few long steps, but what registers hold
    launch(
        head_kernel, (-(-batch // ROWS), clients),
        x=x, p=p, p_row=p.stride(0), p_off=p_off, B=batch, classes=classes, **(unread | rest),
        CH=x.shape[-1], BN=columns, BM=ROWS, BK=min(32, x.shape[-1] // 4), BACK=back,
        num_warps=4 if columns < 256 else 8,
    )  # fmt: skip


def head_logits(x: Tensor, p: Tensor, p_off: int, logits: Tensor) -> None:
    """Compute ``logits [C, B, classes]`` of features ``x [C, B, Ch]``; weights, then the bias, begin at ``p_off``."""
    _launch(x, p, p_off, logits.shape[-1], logits=logits, GRAD=False)


def passes_norm(classes: int, layer: NormLayer) -> bool:
    """Return whether :func:`head_gradient` can pass the layer before it: where registers hold all weights at once."""
    return padded_classes(classes) <= 32 and layer.group_width <= 256


def head_gradient(
    x: Tensor, p: Tensor, p_off: int, classes: int, labels: Tensor, weight: Tensor, loss: Tensor, dlogits: Tensor, *,
    dx: Tensor | None = None, before: NormLayer | None = None, warps: int = 8,
) -> None:  # fmt: skip
    """Compute weighted losses ``[C, B]``, the logits' gradients ``[C, B, padded classes]`` and the features' ``dx``.

    With ``before``, the features' gradient goes on through the ReLU and GroupNorm that made them, ``ROWS`` samples a
    tile; ``warps`` of a program share the logits' sums by channels.
    """
    given: dict[str, Any] = {"labels": labels, "weight": weight, "loss": loss, "dlogits": dlogits}
    if before is None:
        _launch(x, p, p_off, classes, **given, dx=dx, GRAD=True)
        return
    clients, batch, channels = x.shape
    layer = before.arguments(unread=p)
    layer |= {"norm": layer.pop("p"), "norm_row": layer.pop("p_row"), "norm_off": layer.pop("p_off")}
    launch(
        head_norm_kernel, (-(-batch // ROWS) * (channels // before.group_width), clients),
        x=x, p=p, p_row=p.stride(0), p_off=p_off, **given, **layer, B=batch, classes=classes,
        CH=channels, BN=dlogits.shape[-1], BM=ROWS, PARTS=min(warps, channels // 16), num_warps=warps,
    )  # fmt: skip


@triton.jit
def head_weight_kernel(
    x,  # [C, B, CH]
    dlogits,  # [C, B, BN]
    loss, total_loss,  # [C, B]; their sums [C]
    grad, grad_row, grad_off,  # [C, grad_row]: weights [CH, classes], then the bias, from grad_off on
    B, classes,
    CH: tl.constexpr, BN: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(1).to(tl.int64)
    channels = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    bias = tl.zeros((BN,), tl.float32)
    sum_loss = tl.zeros((BK,), tl.float32)
    for first in range(0, B, BK):
        rows = first + tl.arange(0, BK)
        live = rows < B
        at = x + client * B * CH + rows[None, :] * CH + channels[:, None]
        a = tl.load(at, mask=live[None, :], other=0.0).to(tl.float32)
        at = dlogits + client * B * BN + rows[:, None] * BN + cols[None, :]
        b = tl.load(at, mask=live[:, None], other=0.0)
        acc = tl.dot(a, b, acc, input_precision="tf32x3")
        bias += tl.sum(b, axis=0)
        sum_loss += tl.load(loss + client * B + rows, mask=live, other=0.0)
    grad += client * grad_row + grad_off
    real = cols < classes
    tl.store(grad + channels[:, None] * classes + cols[None, :], acc, mask=real[None, :])
    if tl.program_id(0) == 0:
        tl.store(grad + CH * classes + cols, bias, mask=real)
        tl.store(total_loss + client, tl.sum(sum_loss))


def head_weight(
    x: Tensor, dlogits: Tensor, loss: Tensor, grad: Tensor, offset: int, classes: int, total_loss: Tensor
) -> None:
    """Compute the gradients of the last layer, into ``grad [C, *]`` at ``offset``, and the losses' sums ``[C]``."""
    clients, batch, channels = x.shape[0], x.shape[1], x.shape[-1]
    rows = 32
    launch(
        head_weight_kernel, (channels // rows, clients),
        x=x, dlogits=dlogits, loss=loss, total_loss=total_loss, grad=grad, grad_row=grad.stride(0), grad_off=offset,
        B=batch, classes=classes,
        CH=channels, BN=dlogits.shape[-1], BM=rows, BK=16, num_warps=4,
    )  # fmt: skip
