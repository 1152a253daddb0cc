"""A small task with everything that trips an implementation: GroupNorm, unequal clients, short last batches, skew."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from .layers import Model


class SmallCNN(nn.Module):
    """conv 3x3 (1 -> 4), GroupNorm, ReLU; conv 3x3 stride 2 (4 -> 8), GroupNorm, ReLU; mean over the map; linear."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3, padding=1)
        self.norm1 = nn.GroupNorm(2, 4)
        self.conv2 = nn.Conv2d(4, 8, 3, stride=2, padding=1)
        self.norm2 = nn.GroupNorm(2, 8)
        self.head = nn.Linear(8, classes)

    def features(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm1(self.conv1(x)))
        x = torch.relu(self.norm2(self.conv2(x)))
        return x.mean(dim=(2, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


@dataclass(frozen=True)
class Task:
    """Samples, and which of them each client holds."""

    x: Tensor
    y: Tensor
    clients: tuple[tuple[int, ...], ...]
    classes: int


def cnn(seed: int = 0) -> SmallCNN:
    """The network in float64, its weights drawn from ``seed`` alone (the global generator is left untouched)."""
    model = SmallCNN().double()
    rng = np.random.default_rng(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            fan = p[0].numel() if p.dim() > 1 else 1
            scale = (2.0 / fan) ** 0.5 if p.dim() > 1 else 0.1
            centre = 1.0 if "norm" in name and name.endswith("weight") else 0.0
            p.copy_(torch.from_numpy(centre + scale * rng.standard_normal(tuple(p.shape))))
    return model


def small_task(seed: int = 0, sizes: tuple[int, ...] = (13, 5, 9, 17, 7, 11), classes: int = 3) -> Task:
    """Clients of unequal sizes; each leans to one class and sees the world with its own offset and contrast."""
    rng = np.random.default_rng(seed)
    patterns = rng.standard_normal((classes, 1, 6, 6))
    xs, ys, clients, first = [], [], [], 0
    for i, size in enumerate(sizes):
        skew = np.full(classes, 0.15)
        skew[i % classes] += 1.0 - 0.15 * classes
        labels = rng.choice(classes, size=size, p=skew)
        offset, contrast = 0.3 * rng.standard_normal(), 1.0 + 0.3 * rng.random()
        xs.append(contrast * patterns[labels] + offset + 0.5 * rng.standard_normal((size, 1, 6, 6)))
        ys.append(labels)
        clients.append(tuple(range(first, first + size)))
        first += size
    x = torch.from_numpy(np.concatenate(xs))
    y = torch.from_numpy(np.concatenate(ys)).long()
    return Task(x, y, tuple(clients), classes)


def weights_of(model: nn.Module) -> Model:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


class Both(nn.Module):
    """A network, its outputs and what its head reads."""

    def __init__(self, net: SmallCNN) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.net.features(x)
        return self.net.head(z), z


def gradients(model: nn.Module):
    """``loss_grad(w, (x, y))`` of the mean cross-entropy, by autograd on a functional call.

    ``loss_grad(w, batch, loss)`` is that of ``loss(outputs, y)`` or, with ``pair``, ``loss((outputs, features), y)``;
    ``loss_grad.outputs(w, batch)`` and ``loss_grad.features(w, batch)`` are those of a model.
    """
    both = Both(model)

    def at(w: Model, x: Tensor) -> tuple[Tensor, Tensor]:
        return functional_call(both, {f"net.{name}": p for name, p in w.items()}, (x,))

    def loss_grad(
        w: Model, batch: tuple[Tensor, Tensor], loss: Any = nn.functional.cross_entropy, pair: bool = False
    ) -> Model:
        x, y = batch
        live = {name: p.detach().clone().requires_grad_() for name, p in w.items()}
        out = at(live, x)
        grads = torch.autograd.grad(loss(out if pair else out[0], y), list(live.values()))
        return dict(zip(live, grads, strict=True))

    loss_grad.outputs = lambda w, batch: at(w, batch[0])[0].detach()  # type: ignore[attr-defined]
    loss_grad.features = lambda w, batch: at(w, batch[0])[1].detach()  # type: ignore[attr-defined]
    return loss_grad
