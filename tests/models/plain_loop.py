"""Modules that read or write tensors behind the back of their names, trained by a run and by a plain loop."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from small_task import LR, SmallTask
from torch import Tensor, nn
from torch.nn import functional as F

from fedsmoo import simulate
from fedsmoo.runs.results.result import Result

RADIUS = 0.05
TASK = SmallTask(6, 4, 7)
N, X, Y, WORDS = TASK.n, TASK.x, TASK.y, TASK.words


class Net(nn.Module):
    """Two layers, and what a test does between them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.below, self.above = nn.Linear(8, 8), nn.Linear(8, 3)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.above(torch.tanh(self.middle(x)))

    def middle(self, x: Tensor) -> Tensor:
        return self.below(x)


class Words(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.words, self.out = nn.Embedding(12, 4, **options), nn.Linear(4, 3)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.words(x).mean(1))


def trained(net: nn.Module, engine: str = "serial", method: str = "fedavg", x: Tensor = X, **options: Any) -> Result:
    data = tuple(v.clone() for v in TASK.parts(x))
    result = simulate(net, data, method, engine=engine, **TASK.settings, **options)
    held = result.simulation.setup.task.data
    assert torch.equal(held.x_train, x[:N])
    assert torch.equal(held.x_test, x[N:])
    assert all(torch.equal(a, b) for a, b in zip(data, TASK.parts(x), strict=True))
    return result


def by_a_plain_loop(make: Callable[[], nn.Module], radius: float = 0.0) -> nn.Module:
    """FedAvg, or FedSAM, on modules themselves."""
    return TASK.by_a_plain_loop(make, lambda net, x, y: step(net, x, y, radius))


def step(net: nn.Module, x: Tensor, y: Tensor, radius: float) -> None:
    net.zero_grad()
    F.cross_entropy(net(x.clone()), y).backward()
    before = [p.detach().clone() for p in net.parameters()]
    if radius:
        length = math.sqrt(sum(float(p.grad.square().sum()) for p in net.parameters()))
        with torch.no_grad():
            for p in net.parameters():
                p += radius * p.grad / length
        net.zero_grad()
        F.cross_entropy(net(x.clone()), y).backward()
    with torch.no_grad():
        for p, b in zip(net.parameters(), before, strict=True):
            p.copy_(b - LR * p.grad)
