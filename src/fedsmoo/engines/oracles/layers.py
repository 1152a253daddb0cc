"""Layers that ``torch.func.vmap`` cannot take as PyTorch has them, in a form that it can: of the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn import functional as F

from fedsmoo.engines.oracles.recurrent import RECURRENT
from fedsmoo.models.base import FlatModel
from fedsmoo.models.draws import AnyNoise, drawing
from fedsmoo.operators.attention import fold_attention
from fedsmoo.operators.layers import Instead

FILLED = (torch.empty, torch.zeros, torch.ones, torch.full)  # what draws in place is made by


class ClientLayers(Instead):
    """While this lasts inside ``vmap``, some functions of PyTorch are computed in another way.

    If it ``fills`` them, tensors that a model makes have a row for each client, as ``like`` has, so that each can draw
    its own numbers into them.
    """

    def __init__(self, like: Tensor, fills: bool) -> None:
        super().__init__(LAYERS)
        self.like, self.fills = like, fills

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.fills and func in FILLED and "out" not in kwargs:
            made = func(*args, **kwargs)
            return self.like.new_empty(made.shape, dtype=made.dtype, device=made.device).copy_(made)
        return super().__torch_function__(func, types, args, kwargs)


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


def embedding_bag(x: Tensor, weight: Tensor, offsets: Tensor | None = None, *args: Any, **kwargs: Any) -> Tensor:
    """``F.embedding_bag`` of bags of one length, ``[B, L]``, as sums over embeddings; PyTorch's own for all others."""
    names = "max_norm", "norm_type", "scale_grad_by_freq", "mode", "sparse", "per_sample_weights"
    given = dict(zip((*names, "include_last_offset", "padding_idx"), args, strict=False)) | kwargs
    if x.dim() != 2 or given.get("max_norm") is not None or given.get("scale_grad_by_freq"):
        return F.embedding_bag(x, weight, offsets, **given)
    found, mode, padding = F.embedding(x, weight), given.get("mode", "mean"), given.get("padding_idx")
    real = torch.ones_like(x) if padding is None else (x != padding % len(weight)).to(x.dtype)
    count = real.sum(1, keepdim=True)
    if mode == "max":
        largest = torch.where(real[..., None] > 0, found, -torch.inf).max(1).values
        return torch.where(count > 0, largest, 0.0)
    each = real.to(found.dtype)
    each = each if given.get("per_sample_weights") is None else each * given["per_sample_weights"]
    total = (each[..., None] * found).sum(1)
    return total / count.clamp(min=1) if mode == "mean" else total


LAYERS: dict[Any, Callable[..., Any]] = {
    torch.randperm: permutation,
    F.embedding_bag: embedding_bag,
    F.rrelu: rrelu,
    torch.rrelu: rrelu,
    torch.rrelu_: partial(rrelu, inplace=True),
    **RECURRENT,
}


def needs_layers(model: FlatModel) -> bool:
    """Return whether a model has layers that ``vmap`` takes in another form only: random or recurrent ones, or bags."""
    kinds = nn.RNNBase | nn.RNNCellBase | nn.EmbeddingBag
    return bool(model.random) or any(isinstance(m, kinds) for m in model.module.modules())


def forward_of_many(model: FlatModel, features: bool = False, evaluates: bool = False) -> Callable[..., Any]:
    """Return a model's forward, with ``features`` if these are asked for, for use inside ``vmap`` over clients.

    In evaluation PyTorch has a kernel for attention that knows no clients; where functions are computed in another way,
    as :class:`ClientLayers` does, it does not take it.
    """
    fold_attention()
    forward = model.with_features if features else model.forward
    if not needs_layers(model) and not evaluates:
        return forward

    def run(parts: dict[str, Tensor], *given: Any) -> Any:
        with ClientLayers(next(iter(parts.values())), bool(model.random)), unflattened(model):
            return forward(parts, *given)

    return run


def unflattened(model: FlatModel) -> AbstractContextManager[Any]:
    """Keep recurrent layers from laying their weights out for cuDNN, which looks at addresses: clients have none."""
    cudnn = torch.backends.cudnn
    if not any(isinstance(m, nn.RNNBase) for m in model.module.modules()):
        return nullcontext()
    return cudnn.flags(enabled=False, allow_tf32=cudnn.allow_tf32)


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
