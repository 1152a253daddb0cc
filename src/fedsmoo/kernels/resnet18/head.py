"""The last layer with a client axis, in float32: logits, cross-entropy and their gradients.

On 32x32 images the last map is one pixel, so the average pool is the identity. With sample weights ``a_b`` and
``q = softmax(logits)``, the loss is ``sum_b a_b * (-log q_b[label_b])`` and the logits' gradient
``a_b * (q_b - onehot(label_b))``.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from fedsmoo.core.errors import FedsmooError
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
def head_kernel(
    x,  # [C, B, CH]: features
    p, p_row, p_off,  # [C, p_row] float32: weights [CH, classes], then the bias [classes], from p_off on
    labels, weight,  # [C, B] int64 and float32; read if GRAD
    logits,  # [C, B, classes]; written unless GRAD
    loss, dlogits, dx,  # [C, B], [C, B, BN], [C, B, CH]; written if GRAD
    B, classes,
    CH: tl.constexpr, BN: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr, GRAD: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    live = rows < B
    cols = tl.arange(0, BN)
    x += client * B * CH
    w = p + client * p_row + p_off
    acc = tl.zeros((BM, BN), tl.float32)
    for first in range(0, CH, BK):
        k = first + tl.arange(0, BK)
        a = tl.load(x + rows[:, None] * CH + k[None, :], mask=live[:, None], other=0.0).to(tl.float32)
        b = tl.load(w + k[:, None] * classes + cols[None, :], mask=(cols < classes)[None, :], other=0.0)
        acc = tl.dot(a, b, acc, input_precision="ieee")
    acc += tl.load(w + CH * classes + cols, mask=cols < classes, other=0.0)[None, :]
    real = live[:, None] & (cols < classes)[None, :]
    if GRAD:
        label = tl.load(labels + client * B + rows, mask=live, other=0)
        share = tl.load(weight + client * B + rows, mask=live, other=0.0)
        hit = cols[None, :] == label[:, None]
        acc = tl.where((cols < classes)[None, :], acc, float("-inf"))
        top = tl.max(acc, axis=1)
        e = tl.exp(acc - top[:, None])
        total = tl.sum(e, axis=1)
        own = tl.sum(tl.where(hit, acc, 0.0), axis=1)
        tl.store(loss + client * B + rows, share * (tl.log(total) + top - own), mask=live)
        d = share[:, None] * (e / total[:, None] - tl.where(hit, 1.0, 0.0))
        tl.store(dlogits + client * B * BN + rows[:, None] * BN + cols[None, :], d, mask=live[:, None])
        for first in range(0, CH, BK):
            k = first + tl.arange(0, BK)
            b = tl.load(w + k[None, :] * classes + cols[:, None], mask=(cols < classes)[:, None], other=0.0)
            back = tl.dot(d, b, input_precision="ieee")
            tl.store(dx + client * B * CH + rows[:, None] * CH + k[None, :], back, mask=live[:, None])
    else:
        tl.store(logits + client * B * classes + rows[:, None] * classes + cols[None, :], acc, mask=real)


def _step(columns: int, channels: int) -> int:
    """Return the channels at a time: few long steps, since each waits for memory, but what registers hold."""
    return min(channels, max(16, min(256, 8192 // columns)))


def head_logits(x: Tensor, p: Tensor, p_off: int, logits: Tensor) -> None:
    """Compute ``logits [C, B, classes]`` of features ``x [C, B, Ch]``; weights, then the bias, begin at ``p_off``."""
    clients, batch, classes = logits.shape
    columns = padded_classes(classes)
    launch(
        head_kernel, (-(-batch // ROWS), clients),
        x=x, p=p, p_row=p.stride(0), p_off=p_off, labels=p, weight=p, logits=logits, loss=p, dlogits=p, dx=p,
        B=batch, classes=classes,
        CH=x.shape[-1], BN=columns, BM=ROWS, BK=_step(columns, x.shape[-1]), GRAD=False, num_warps=8,
    )  # fmt: skip


def head_gradient(
    x: Tensor, p: Tensor, p_off: int, classes: int, labels: Tensor, weight: Tensor,
    loss: Tensor, dlogits: Tensor, dx: Tensor,
) -> None:  # fmt: skip
    """Compute weighted losses ``[C, B]``, the logits' gradients ``[C, B, padded classes]`` and the features' ``dx``."""
    clients, batch = labels.shape
    columns = padded_classes(classes)
    launch(
        head_kernel, (-(-batch // ROWS), clients),
        x=x, p=p, p_row=p.stride(0), p_off=p_off, labels=labels, weight=weight, logits=loss, loss=loss,
        dlogits=dlogits, dx=dx, B=batch, classes=classes,
        CH=x.shape[-1], BN=columns, BM=ROWS, BK=_step(columns, x.shape[-1]), GRAD=True, num_warps=8,
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
        acc = tl.dot(a, b, acc, input_precision="ieee")
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
