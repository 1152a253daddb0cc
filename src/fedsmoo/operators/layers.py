"""Layers that PyTorch takes apart before ``vmap`` sees them, as operators with a client axis."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from fedsmoo.operators.attention import multi_head_attention
from fedsmoo.operators.norm import group_norm, layer_norm


class Instead(TorchFunctionMode):
    """While this lasts, functions of PyTorch that a table names are computed in the way it says."""

    def __init__(self, layers: Mapping[Any, Callable[..., Any]]) -> None:
        super().__init__()
        self.layers = layers

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.layers.get(func, func)(*args, **(kwargs or {}))


def average(x: Tensor, output_size: Any) -> Tensor:
    """``F.adaptive_avg_pool2d``; to one pixel it is a mean, which needs no loop over clients."""
    if output_size in (1, (1, 1), [1, 1]):
        return x.mean((-2, -1), keepdim=True)
    return F.adaptive_avg_pool2d(x, output_size)


LAYERS: dict[Any, Callable[..., Any]] = {
    F.adaptive_avg_pool2d: average,
    F.group_norm: group_norm,
    F.layer_norm: layer_norm,
    F.multi_head_attention_forward: multi_head_attention,
    torch.group_norm: group_norm,
}
