"""Convolutions and pools of C clients, in PyTorch's order of axes: images ``[C, B, channels, H, W]``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from fedsmoo.core import FedsmooError
from fedsmoo.operators.functional.convolution import Convolution, DataGradient
from fedsmoo.operators.functional.shapes import check
from fedsmoo.operators.rules import first, last, taps, with_rest

Sizes = int | tuple[int, ...] | list[int]


def pair(v: Sizes) -> list[int]:
    """Return a size for rows and one for columns; one size is for both."""
    return [v, v] if isinstance(v, int) else [*v] * (2 // len(v))


def with_bias(y: Tensor, bias: Tensor | None) -> Tensor:
    """Return outputs ``[C, B, O, H, W]`` with a bias ``[C, O]`` added."""
    return y if bias is None else y + bias[:, None, :, None, None]


def padded(x: Tensor, kernel: tuple[int, ...], padding: Sizes | str, stride: list[int], dilation: list[int]) -> Any:
    """Return images and how far to pad them; ``"same"`` is uneven for even kernels, and padded here."""
    if padding == "valid":
        return x, [0, 0]
    if not isinstance(padding, str):
        return x, pair(padding)
    if padding != "same" or stride != [1, 1]:
        raise FedsmooError(f"padding={padding!r}: numbers, 'valid', or with a stride of 1 'same'")
    high, wide = (dilation[i] * (kernel[i] - 1) for i in (0, 1))
    return F.pad(x, (wide // 2, wide - wide // 2, high // 2, high - high // 2)), [0, 0]


def conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Tensor:
    """Convolve images ``[C, B, I, H, W]`` with weights ``[C, O, I / groups, kh, kw]``; a bias is ``[C, O]``."""
    check("conv2d", x, "C B I H W", weight=(weight, "C O I/groups kh kw"), bias=(bias, "C O"))
    if weight.shape[2] * groups != x.shape[2] or weight.shape[1] % groups:
        raise FedsmooError(
            f"conv2d: {x.shape[2]} channels in {groups} groups do not fit weights of {list(weight.shape)}"
        )
    stride, dilation = pair(stride), pair(dilation)
    x, around = padded(x, weight.shape[3:], padding, stride, dilation)
    return with_bias(first(Convolution.apply(last(x), taps(weight), stride, around, dilation, groups)), bias)


def conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Tensor:
    """Convolve sequences ``[C, B, I, L]`` with weights ``[C, O, I / groups, k]``; a bias is ``[C, O]``."""
    check("conv1d", x, "C B I L", weight=(weight, "C O I/groups k"), bias=(bias, "C O"))
    along = [[1, pair(v)[1]] for v in (stride, dilation)]
    around = padding if isinstance(padding, str) else [0, pair(padding)[1]]
    row = conv2d(x.unsqueeze(3), weight.unsqueeze(3), bias, along[0], around, along[1], groups)
    return row.squeeze(3)


def conv_transpose2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> Tensor:
    """Return ``F.conv_transpose2d`` of images ``[C, B, I, H, W]`` and weights ``[C, I, O / groups, kh, kw]``."""
    check("conv_transpose2d", x, "C B I H W", weight=(weight, "C I O/groups kh kw"), bias=(bias, "C O"))
    if weight.shape[1] != x.shape[2] or x.shape[2] % groups:
        raise FedsmooError(
            f"conv_transpose2d: {x.shape[2]} channels in {groups} groups do not fit weights of {list(weight.shape)}"
        )
    s, p, more, d = (pair(v) for v in (stride, padding, output_padding, dilation))
    reach = [d[i] * (weight.shape[3 + i] - 1) + more[i] + 1 for i in (0, 1)]
    size = [(x.shape[3 + i] - 1) * s[i] - 2 * p[i] + reach[i] for i in (0, 1)]
    if min(size) < 1 or any(more[i] >= max(s[i], d[i]) for i in (0, 1)):
        raise FedsmooError(
            f"conv_transpose2d: outputs of {size[0]}x{size[1]} with output_padding={output_padding}: there must be "
            "some, and their padding must be smaller than the stride or the dilation"
        )
    x = with_rest(x, more, s)
    return with_bias(first(DataGradient.apply(last(x), taps(weight), size, s, p, d, groups)), bias)


def by_sample(function: Callable[..., Tensor], x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Return a function without weights of images ``[C, B, CH, H, W]``: clients are further samples."""
    check(function.__name__, x, "C B CH H W")
    return function(x.flatten(0, 1), *args, **kwargs).unflatten(0, x.shape[:2])


def max_pool2d(
    x: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
) -> Tensor:
    """Return ``F.max_pool2d`` of images ``[C, B, CH, H, W]``."""
    return by_sample(F.max_pool2d, x, kernel_size, stride, padding, dilation, ceil_mode)


def avg_pool2d(
    x: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    """Return ``F.avg_pool2d`` of images ``[C, B, CH, H, W]``."""
    return by_sample(F.avg_pool2d, x, kernel_size, stride, padding, ceil_mode, count_include_pad)


def adaptive_avg_pool2d(x: Tensor, output_size: Any) -> Tensor:
    """Return ``F.adaptive_avg_pool2d`` of images ``[C, B, CH, H, W]``."""
    return by_sample(F.adaptive_avg_pool2d, x, output_size)
