"""Gradient oracles: the only things that know a model. ``oracle(w, batch) -> (gradients, losses)``."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from fedsmoo.core import FedsmooError
from fedsmoo.engines.task import Batch, Task

Oracle = Callable[[Tensor, Batch], tuple[Tensor, Tensor]]


def single_oracle(task: Task) -> Oracle:
    """One client: ``w [P]``, by plain autograd."""
    model, layout = task.model, task.model.layout

    def oracle(w: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        parts = {n: p.detach().requires_grad_() for n, p in layout.split(w).items()}
        with torch.enable_grad():
            loss = (batch.weight * task.loss(model.forward(parts, batch.x), batch.y)).sum()
            grads = torch.autograd.grad(loss, list(parts.values()), materialize_grads=True)
        return layout.join(dict(zip(parts, grads, strict=True))), loss.detach()

    return oracle


def vmap_oracle(task: Task) -> Oracle:
    """C clients: ``w [C, P]``, by ``torch.func.vmap`` over any module."""
    model, layout = task.model, task.model.layout

    def loss(parts: dict[str, Tensor], x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        return (weight * task.loss(model.forward(parts, x), y)).sum()

    many = vmap(grad_and_value(loss), randomness="error")

    def oracle(w: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        grads, losses = many(layout.split(w), batch.x, batch.y, batch.weight)
        return layout.join(grads), losses

    return oracle


def hand_oracle(task: Task) -> Oracle:
    """C clients: ``w [C, P]``, by the model's own hand-batched forward and one backward for all."""
    layout, batched = task.model.layout, task.model.batched
    if batched is None:
        raise FedsmooError(f"the model {type(task.model.module).__name__} has no hand-batched forward: use engine=vmap")

    def oracle(w: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        parts = {n: p.detach().requires_grad_() for n, p in layout.split(w).items()}
        with torch.enable_grad():
            out = batched(parts, batch.x).flatten(0, 1)
            each = task.loss(out, batch.y.flatten(0, 1)).view(batch.weight.shape)
            losses = (batch.weight * each).sum(1)
            grads = torch.autograd.grad(losses.sum(), list(parts.values()), materialize_grads=True)
        return layout.join(dict(zip(parts, grads, strict=True))), losses.detach()

    return oracle
