"""Which operators convolve C clients: of all channels, of groups of few, or of groups in the place of clients.

Images are ``[C, B, H, W, channels]``, weights ``[C, kh, kw, inputs / groups, outputs]``.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from fedsmoo.operators.convolution import Sizes, conv, conv_data, conv_weight, patches
from fedsmoo.operators.groups.grouped import grouped, grouped_data, grouped_weight

FEW = 8  # channels, below which loads of a pixel are no whole pieces
# Channels of a group, below which a GPU's library is faster with the groups of all clients than our kernels with groups
# in the place of clients, for which images are copied: measured with 4, 8 and 16.
FEW_ON_A_GPU = 32
MOST = 65535  # clients that one launch has room for
ONCE = ([1, 1], [0, 0], [1, 1])  # stride, padding and dilation of a product of pixels


def is_few(x: Tensor) -> bool:
    """Whether images have so few channels that patches of them are multiplied: a stem's."""
    return x.shape[-1] < FEW


def has_few(x: Tensor, inside: int, outside: int, groups: int) -> bool:
    """Whether groups have so few channels (so many in all, before and behind) that matrix products are not for them.

    Groups of more channels are taken for such, too, where they are too many to be further clients than ``x`` has.
    """
    few = FEW_ON_A_GPU if x.is_cuda else FEW
    return inside * outside < (few * groups) ** 2 or len(x) * groups > MOST


def by_group(v: Tensor, groups: int) -> Tensor:
    """``[C, .., groups * n] -> [C * groups, .., n]``: each group of channels in the place of a client."""
    return v.unflatten(-1, (groups, -1)).movedim(-2, 1).flatten(0, 1)


def together(v: Tensor, groups: int) -> Tensor:
    """``[C * groups, .., n] -> [C, .., groups * n]``: the channels of a client beside each other again."""
    return v.unflatten(0, (-1, groups)).movedim(1, -2).flatten(-2)


def convolved(x: Tensor, w: Tensor, stride: Sizes, padding: Sizes, dilation: Sizes, groups: int = 1) -> Tensor:
    """Return the outputs."""
    how = stride, padding, dilation
    if groups > 1:
        if has_few(x, x.shape[-1], w.shape[-1], groups):
            return grouped(x, w, *how, groups)
        return together(convolved(by_group(x, groups), by_group(w, groups), *how), groups)
    if not is_few(x):
        return conv(x, w, *how)
    columns = patches(x, list(w.shape[1:3]), *how)
    rows = F.pad(w.flatten(1, 3), (0, 0, 0, columns.shape[-1] - w.shape[1:4].numel()))
    return conv(columns, rows[:, None, None], *ONCE)


def data_gradient(
    dy: Tensor, w: Tensor, size: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, groups: int = 1
) -> Tensor:
    """Return the gradient by images of a size."""
    how = size, stride, padding, dilation
    if groups == 1:
        return conv_data(dy, w, *how)
    if has_few(dy, w.shape[-2] * groups, dy.shape[-1], groups):
        return grouped_data(dy, w, *how, groups)
    return together(conv_data(by_group(dy, groups), by_group(w, groups), *how), groups)


def weight_gradient(
    x: Tensor, dy: Tensor, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, groups: int = 1
) -> Tensor:
    """Return the gradient by the weights."""
    how = stride, padding, dilation
    if groups > 1:
        if has_few(x, x.shape[-1], dy.shape[-1], groups):
            return grouped_weight(x, dy, kernel, *how, groups)
        return together(weight_gradient(by_group(x, groups), by_group(dy, groups), kernel, *how), groups)
    if not is_few(x):
        return conv_weight(x, dy, kernel, *how)
    rows = conv_weight(patches(x, kernel, *how), dy, [1, 1], *ONCE)[:, 0, 0]
    return rows[:, : kernel[0] * kernel[1] * x.shape[-1]].unflatten(1, (*kernel, x.shape[-1]))
