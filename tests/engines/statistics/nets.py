"""Models with running statistics, as a user's file has them."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def normed(features: int = 64, classes: int = 10) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(features, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, classes))


def maps(classes: int = 3) -> nn.Module:
    """BatchNorm of maps, which can be had of one sample, too; and a constant beside it."""
    net = nn.Sequential(
        nn.Unflatten(1, (1, 2, 4)), nn.Conv2d(1, 3, 2), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(),
        nn.Linear(9, 4), nn.BatchNorm1d(4, affine=False, momentum=0.3), nn.Linear(4, classes),
    )  # fmt: skip
    net.register_buffer("temperature", torch.full((1,), 2.0))
    return net


class Centred(nn.Module):
    """Statistics of a user's own: a running mean that training reads, too, and a count; one is assigned anew."""

    def __init__(self, features: int = 8, classes: int = 3) -> None:
        super().__init__()
        self.below, self.above = nn.Linear(features, 5), nn.Linear(5, classes)
        self.register_buffer("middle", torch.zeros(5))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        h = self.below(x)
        if self.training:
            self.middle = 0.9 * self.middle + 0.1 * h.detach().mean(0)
            self.seen += len(x)
        return self.above(torch.tanh(h - self.middle))


class Averaging(nn.Module):
    """No statistics, but samples that see each other."""

    def __init__(self) -> None:
        super().__init__()
        self.below, self.above = nn.Linear(8, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.below(x)
        return self.above(torch.tanh(h - h.mean(0)) if self.training else torch.tanh(h))
