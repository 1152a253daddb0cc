"""Linear layers, embeddings and norms of C clients."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from fedsmoo.core import FedsmooError
from fedsmoo.operators.functional.norm import GroupNorms
from fedsmoo.operators.functional.shapes import check, fit


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Multiply rows ``[C, B, ..., I]`` by weights ``[C, O, I]``: one product of a batch of matrices."""
    check("linear", x, "C B ... I", weight=(weight, "C O I"), bias=(bias, "C O"))
    rows, wt = x.flatten(1, -2), weight.transpose(1, 2)
    y = torch.bmm(rows, wt) if bias is None else torch.baddbmm(bias.unsqueeze(1), rows, wt)
    return y.unflatten(1, x.shape[1:-1])


def embedding(
    index: Tensor, weight: Tensor, padding_idx: int | None = None, *, scale_grad_by_freq: bool = False
) -> Tensor:
    """Return the rows of weights ``[C, rows, D]`` at indices ``[C, B, ...]``; that of padding gets no gradient."""
    check("embedding", index, "C ...", weight=(weight, "C rows D"))
    clients, rows = weight.shape[:2]
    offsets = torch.arange(clients, device=index.device).view(-1, *[1] * (index.dim() - 1)) * rows
    at = torch.where((index >= 0) & (index < rows), index + offsets, clients * rows)  # no row of another client
    found = F.embedding(at, weight.flatten(0, 1), scale_grad_by_freq=scale_grad_by_freq)
    if padding_idx is None:
        return found
    return torch.where((index == padding_idx % rows).unsqueeze(-1), found.detach(), found)


def group_norm(
    x: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """Normalise ``[C, B, CH, ...]`` by groups of channels; weights and biases are ``[C, CH]``.

    It has no second derivatives.
    """
    check("group_norm", x, "C B CH ...", weight=(weight, "C CH"), bias=(bias, "C CH"))
    sizes = x.shape[0], x.shape[2]
    fit("group_norm", weight=(weight, sizes), bias=(bias, sizes))
    if num_groups < 1 or x.shape[2] % num_groups:
        raise FedsmooError(f"group_norm: {x.shape[2]} channels are not {num_groups} groups of as many each")
    gamma = x.new_ones(x.shape[0], x.shape[2]) if weight is None else weight
    beta = x.new_zeros(x.shape[0], x.shape[2]) if bias is None else bias
    pixels = x.unsqueeze(-1).flatten(3).transpose(2, 3).contiguous()
    out, _, _ = GroupNorms.apply(pixels, gamma, beta, num_groups, eps)
    return out.transpose(2, 3).reshape(x.shape)


def layer_norm(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Normalise the last axes of ``[C, B, ..., *shape]``; weights and biases are ``[C, *shape]``."""
    check("layer_norm", x, "C B ...", weight=(weight, "C ..."), bias=(bias, "C ..."))
    between = [1] * (x.dim() - 1 - len(normalized_shape))
    y = F.layer_norm(x, list(normalized_shape), eps=eps)
    y = y if weight is None else y * weight.reshape(len(weight), *between, *normalized_shape)
    return y if bias is None else y + bias.reshape(len(bias), *between, *normalized_shape)


def batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Normalise ``[C, B, CH, ...]``, each client by its own batch; the rest is ``[C, CH]``.

    In training running statistics change in place, as PyTorch's do: they must be contiguous.
    """
    others = {"running_mean": running_mean, "running_var": running_var, "weight": weight, "bias": bias}
    check("batch_norm", x, "C B CH ...", **{n: (v, "C CH") for n, v in others.items()})
    mean, var = (None if v is None else v.view(-1) for v in (running_mean, running_var))
    gamma, beta = (None if v is None else v.reshape(-1) for v in (weight, bias))
    beside = x.transpose(0, 1).flatten(1, 2)  # the channels of all clients
    y = F.batch_norm(beside, mean, var, gamma, beta, training, momentum, eps)
    return y.unflatten(1, (len(x), -1)).transpose(0, 1)
