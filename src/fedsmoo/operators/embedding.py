"""Embeddings with a client axis: rows are read where a client's weights lie, and summed in a fixed order."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedsmoo.operators.convolution import by_kernels
from fedsmoo.operators.fold import front

aten = torch.ops.aten
FEW = 8  # rows, such as kinds of tokens, that are each read so often that plain sums are quicker than a sort


@torch.library.custom_op("fedsmoo::embedding_weight", mutates_args=())
def embedding_weight(dy: Tensor, index: Tensor, rows: int, by_count: bool) -> Tensor:
    """Return the gradient by the weights ``[C, rows, D]`` from that by the outputs ``[C, N, D]`` of indices ``[C, N]``.

    One operator, because a compiler would add in any order; PyTorch's own sorts the indices. ``by_count`` divides a
    row's gradient by how often it was read.
    """
    if by_kernels(dy) and not by_count:
        from fedsmoo.kernels import embedding as kernels  # late: it imports Triton

        if kernels.ON:
            found = kernels.embedding_weight(dy, index, rows)
            return found.squeeze(1) if found.shape[1] == 1 else found.sum(1).to(dy.dtype)
    clients = len(index)
    at = index + torch.arange(clients, device=index.device)[:, None] * rows
    found = aten.embedding_dense_backward(dy.flatten(0, 1), at.flatten(), clients * rows, -1, by_count)
    return found.unflatten(0, (clients, rows))


@embedding_weight.register_fake
def _(dy: Tensor, index: Tensor, rows: int, by_count: bool) -> Tensor:
    return dy.new_empty(len(index), rows, dy.shape[-1])


def embedding(info: Any, axes: Any, w: Tensor, index: Tensor, *how: Any) -> tuple[Tensor, int]:
    """Return rows of each client's weights, without a copy of all that lies between them."""
    n = info.batch_size
    index = front(index, axes[1], n)
    if axes[0] is None:
        return aten.embedding(w, index, *how), 0
    clients = torch.arange(n, device=index.device).view(n, *[1] * (index.dim() - 1))
    index = index & torch.iinfo(index.dtype).max  # -1, which would be the last row, is beyond all rows: an error
    return aten.index(w.movedim(axes[0], 0), [clients, index]), 0


def embedding_backward(
    info: Any, axes: Any, dy: Tensor, index: Tensor, rows: int, padding: int, by_count: bool
) -> tuple[Tensor, int]:
    """Return the gradient by each client's weights; the row of ``padding`` has none."""
    n = info.batch_size
    dy, index = front(dy, axes[0], n), front(index, axes[1], n)
    if padding >= 0:
        dy = torch.where((index == padding)[..., None], 0.0, dy)
    dy, index = dy.reshape(n, -1, dy.shape[-1]), index.reshape(n, -1)
    if rows > FEW or by_count:
        return embedding_weight(dy, index, rows, by_count), 0
    read = index[:, None] == torch.arange(rows, device=index.device)[:, None]
    return torch.where(read[..., None], dy[:, None], 0.0).sum(2), 0
