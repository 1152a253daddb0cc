"""Rules by which ``torch.func.vmap`` takes PyTorch's own operators to those with a client axis.

vmap makes a convolution of C clients a convolution of C groups, or C times as many as it has, which no library does
well. While :func:`client_rules` are in force, it becomes one of ``fedsmoo.operators``. A rule is given tensors of all
clients and the place of the client axis in each (``None``: all clients share it); it works below autograd, so
derivatives are PyTorch's own.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fedsmoo.operators.convolution import conv
from fedsmoo.operators.embedding import embedding, embedding_backward
from fedsmoo.operators.fold import front
from fedsmoo.operators.groups.choose import convolved, data_gradient, weight_gradient

aten = torch.ops.aten


def two(v: Sequence[int]) -> list[int]:
    """Return sizes for rows and columns; one size is for both."""
    return list(v) * 2 if len(v) == 1 else list(v)


def last(x: Tensor) -> Tensor:
    """``[C, B, channels, H, W] -> [C, B, H, W, channels]``: no copy, where memory is in that order."""
    return x.permute(0, 1, 3, 4, 2).contiguous()


def first(x: Tensor) -> Tensor:
    """``[C, B, H, W, channels] -> [C, B, channels, H, W]``, a view."""
    return x.permute(0, 1, 4, 2, 3)


def taps(w: Tensor) -> Tensor:
    """``[C, O, I, kh, kw] -> [C, kh, kw, I, O]``."""
    return w.permute(0, 3, 4, 2, 1).contiguous()


def with_rest(x: Tensor, more: Sequence[int], stride: Sequence[int]) -> Tensor:
    """Return inputs ``[C, B, I, H, W]`` of a transposed convolution as large as its outputs would be convolved to.

    Zeros stand behind them where the outputs are padded by a stride or more, which a larger dilation allows.
    """
    high, wide = (more[i] // stride[i] for i in (0, 1))
    return F.pad(x, (0, wide, 0, high)) if high or wide else x


def is_ours(w: Tensor) -> bool:
    """Whether a convolution of weights ``[C, O, I / groups, kh, kw]`` has an operator: two-dimensional."""
    return w.dim() == 5


def convolution(
    info: Any, axes: Any, x: Tensor, w: Tensor, b: Tensor | None, stride: Any, padding: Any, dilation: Any,
    transposed: bool, more: Any, groups: int,
) -> tuple[Tensor, int]:  # fmt: skip
    """Convolve C batches ``[C, B, I, ..]``, each with its client's weights; ``more`` is the output's padding."""
    n = info.batch_size
    x = front(x, axes[0], n)
    if axes[1] is None and (b is None or axes[2] is None):  # frozen weights: one larger batch
        y = aten.convolution(x.flatten(0, 1), w, b, stride, padding, dilation, transposed, more, groups)
        return y.unflatten(0, x.shape[:2]), 0
    w = front(w, axes[1], n)
    if not is_ours(w):
        y = aten.convolution(folded(x), w.flatten(0, 1), None, stride, padding, dilation, transposed, more, groups * n)
        y = y.unflatten(1, (n, -1)).transpose(0, 1)
    elif transposed:  # a data gradient
        s, p, d, o = (two(v) for v in (stride, padding, dilation, more))
        size = [(x.shape[3 + i] - 1) * s[i] - 2 * p[i] + d[i] * (w.shape[3 + i] - 1) + o[i] + 1 for i in (0, 1)]
        y = first(data_gradient(last(with_rest(x, o, s)), taps(w), size, s, p, d, groups))
    else:
        y = first(convolved(last(x), taps(w), two(stride), two(padding), two(dilation), groups))
    if b is not None:
        y = y + front(b, axes[2], n).view(n, 1, -1, *[1] * (y.dim() - 3))
    return y, 0


def folded(x: Tensor) -> Tensor:
    """``[C, B, I, ..] -> [B, C * I, ..]``: the channels of all clients beside each other."""
    return x.transpose(0, 1).flatten(1, 2)


def convolution_backward(
    info: Any, axes: Any, dy: Tensor, x: Tensor, w: Tensor, biases: Any, stride: Any, padding: Any, dilation: Any,
    transposed: bool, more: Any, groups: int, mask: Sequence[bool],
) -> tuple[tuple[Tensor | None, ...], tuple[int | None, ...]]:  # fmt: skip
    """Return the gradients by inputs, weights and biases that ``mask`` asks for."""
    n, dx, dw, db = info.batch_size, None, None, None
    dy, x, w = (front(v, axis, n) for v, axis in zip((dy, x, w), axes, strict=False))
    if is_ours(w):
        how, size, kernel = (two(stride), two(padding), two(dilation)), list(x.shape[-2:]), list(w.shape[-2:])
        dys, xs, ws = last(dy), last(with_rest(x, two(more), how[0]) if transposed else x), taps(w)
        if mask[0] and transposed:
            dx = first(conv(dys, ws, *how) if groups == 1 else convolved(dys, ws, *how, groups))
            dx = dx if list(dx.shape[-2:]) == size else dx[..., : size[0], : size[1]]
        elif mask[0]:
            dx = first(data_gradient(dys, ws, size, *how, groups))
        if mask[1]:
            found = weight_gradient(*((dys, xs) if transposed else (xs, dys)), kernel, *how, groups)
            dw = found.permute(0, 4, 3, 1, 2)
    else:
        asked = [mask[0], mask[1], False]
        dx, dw, _ = aten.convolution_backward(
            folded(dy), folded(x), w.flatten(0, 1), None, stride, padding, dilation, transposed, more, groups * n, asked
        )
        dx = dx.unflatten(1, (n, -1)).transpose(0, 1) if mask[0] else None
        dw = dw.unflatten(0, (n, -1)) if mask[1] else None
    if mask[2]:
        db = dy.sum((1, *range(3, dy.dim())))
    gradients = dx, dw, db
    return gradients, tuple(None if v is None else 0 for v in gradients)


RULES: dict[str, Callable[..., Any]] = {
    "convolution": convolution,
    "convolution_backward": convolution_backward,
    "embedding": embedding,
    "embedding_dense_backward": embedding_backward,
}


@contextmanager
def client_rules() -> Iterator[None]:
    """Put the rules in the place of PyTorch's own, for as long as this lasts."""
    library = torch.library.Library("aten", "IMPL")
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*[Oo]verrid.*")  # that is what it is for
            for name, rule in RULES.items():
                torch.library.register_vmap(f"aten::{name}", rule, lib=library)
        yield
    finally:
        library._destroy()
