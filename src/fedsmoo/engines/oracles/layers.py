"""Layers that ``torch.func.vmap`` cannot take as PyTorch has them, in a form that it can: of the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from fedsmoo.engines.oracles.recurrent import RECURRENT
from fedsmoo.models.base import FlatModel
from fedsmoo.models.draws import AnyNoise, drawing

FILLED = (torch.empty, torch.zeros, torch.ones, torch.full)  # what draws in place is made by


class ClientLayers(TorchFunctionMode):
    """While this lasts inside ``vmap``, some functions of PyTorch are computed in another way.

    Tensors that a model makes have a row for each client, as ``like`` has, so that each can draw its own numbers into
    them.
    """

    def __init__(self, like: Tensor) -> None:
        super().__init__()
        self.like = like

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in FILLED and "out" not in kwargs:
            made = func(*args, **kwargs)
            return self.like.new_empty(made.shape, dtype=made.dtype, device=made.device).copy_(made)
        return LAYERS.get(func, func)(*args, **kwargs)


def permutation(n: int, *, dtype: torch.dtype = torch.int64, device: Any = None, **_: Any) -> Tensor:
    """``torch.randperm`` as one draw of all clients: the order of random numbers."""
    return torch.randint(0, 2**62, (n,), device=device).argsort(stable=True).to(dtype)


def rrelu(
    x: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, inplace: bool = False
) -> Tensor:
    """``F.rrelu``, which has no rule for ``vmap``."""
    if not training:
        return F.leaky_relu(x, (lower + upper) / 2, inplace)
    u = torch.rand_like(x, dtype=torch.float32).to(x.dtype)
    out = x * torch.where(x <= 0, u * (upper - lower) + lower, torch.ones_like(x))
    return x.copy_(out) if inplace else out


LAYERS: dict[Any, Callable[..., Any]] = {
    torch.randperm: permutation,
    F.rrelu: rrelu,
    torch.rrelu: rrelu,
    torch.rrelu_: partial(rrelu, inplace=True),
    **RECURRENT,
}


def needs_layers(model: FlatModel) -> bool:
    """Return whether a model has layers that ``vmap`` takes in another form only: random or recurrent ones."""
    return bool(model.random) or any(isinstance(m, nn.RNNBase | nn.RNNCellBase) for m in model.module.modules())


def forward_of_many(model: FlatModel, pair: bool = False) -> Callable[..., Any]:
    """Return a model's forward, with features if a ``pair`` is asked for, for use inside ``vmap`` over clients."""
    forward = model.with_features if pair else model.forward
    if not needs_layers(model):
        return forward

    def run(parts: dict[str, Tensor], *given: Any) -> Any:
        with ClientLayers(next(iter(parts.values()))):
            return forward(parts, *given)

    return run


def over_clients(
    function: Callable[..., Any], model: FlatModel, noise: AnyNoise | None, axes: tuple[int | None, ...] | int = 0
) -> Callable[..., Any]:
    """Return ``vmap`` of a function that calls a model's :func:`forward_of_many`; random layers draw from ``noise``."""
    if noise is None:
        return vmap(function, axes, randomness="error")
    many = vmap(function, axes, randomness="different")

    def run(*given: Any) -> Any:
        with drawing(model.module, noise):
            return many(*given)

    return run
