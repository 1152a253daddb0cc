"""The operators that convolve (:mod:`fedsmoo.operators.groups.choose`) as functions of autograd, to any order.

The gradients of each of the three products are the other two. ``vmap`` folds a further axis into that of clients.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedsmoo.operators.convolution import Sizes
from fedsmoo.operators.groups.choose import convolved, data_gradient, weight_gradient

# Parameters are named one by one: torch.compile tells by their number whether ``forward`` takes a context.


class Convolution(torch.autograd.Function):
    """Outputs ``[C, B, Ho, Wo, O]`` of images ``[C, B, H, W, I]`` and weights ``[C, kh, kw, I / groups, O]``."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, w: Tensor, stride: Sizes, padding: Sizes, dilation: Sizes, groups: int) -> Tensor:
        return convolved(x, w, stride, padding, dilation, groups)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, w, *ctx.how = inputs
        ctx.save_for_backward(x, w)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        (x, w), dx, dw = ctx.saved_tensors, None, None
        if ctx.needs_input_grad[0]:
            dx = DataGradient.apply(dy, w, list(x.shape[2:4]), *ctx.how)
        if ctx.needs_input_grad[1]:
            dw = WeightGradient.apply(x, dy, list(w.shape[1:3]), *ctx.how)
        return dx, dw, None, None, None, None


class DataGradient(torch.autograd.Function):
    """The gradient by images of a size, from that by the outputs; a transposed convolution."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        dy: Tensor, w: Tensor, size: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, groups: int
    ) -> Tensor:
        return data_gradient(dy, w, size, stride, padding, dilation, groups)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        dy, w, _, *ctx.how = inputs
        ctx.save_for_backward(dy, w)

    @staticmethod
    def backward(ctx: Any, x: Tensor) -> Any:
        (dy, w), ddy, dw = ctx.saved_tensors, None, None
        if ctx.needs_input_grad[0]:
            ddy = Convolution.apply(x, w, *ctx.how)
        if ctx.needs_input_grad[1]:
            dw = WeightGradient.apply(x, dy, list(w.shape[1:3]), *ctx.how)
        return ddy, dw, None, None, None, None, None


class WeightGradient(torch.autograd.Function):
    """The gradient by weights of a kernel, from the images and the gradient by the outputs."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor, dy: Tensor, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, groups: int
    ) -> Tensor:
        return weight_gradient(x, dy, kernel, stride, padding, dilation, groups)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, dy, _, *ctx.how = inputs
        ctx.save_for_backward(x, dy)

    @staticmethod
    def backward(ctx: Any, w: Tensor) -> Any:
        (x, dy), dx, ddy = ctx.saved_tensors, None, None
        if ctx.needs_input_grad[0]:
            dx = DataGradient.apply(dy, w, list(x.shape[2:4]), *ctx.how)
        if ctx.needs_input_grad[1]:
            ddy = Convolution.apply(x, w, *ctx.how)
        return dx, ddy, None, None, None, None, None
