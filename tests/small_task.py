"""A few clients with few samples, a run's settings for them, and FedAvg on modules themselves: a plain loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedsmoo.data.batches.plan import client_batches
from fedsmoo.runs.results.result import Result

BATCH, LR, SEED, ROUNDS, TESTED = 4, 0.1, 3, 2, 12
Step = Callable[[nn.Module, Tensor, Tensor], None]


def each(out: Tensor, y: Tensor) -> Tensor:
    """The loss of every sample."""
    return F.cross_entropy(out, y, reduction="none")


def sgd(net: nn.Module, x: Tensor, y: Tensor, loss: Any = each) -> None:
    """Make one step."""
    net.zero_grad()
    loss(net(x), y).mean().backward()
    with torch.no_grad():
        for p in net.parameters():
            p -= 0 if p.grad is None else LR * p.grad


class SmallTask:
    """Clients of these sizes: numbers ``x [N, 8]`` in float64 or six words a sample, labels of three classes."""

    def __init__(self, *sizes: int) -> None:
        self.n, rng = sum(sizes), np.random.default_rng(5)
        self.clients = [np.arange(e - n, e) for n, e in zip(sizes, np.cumsum(sizes), strict=True)]
        self.x = torch.from_numpy(rng.standard_normal((self.n + TESTED, 8)) * 2 + 0.3)
        self.y = torch.from_numpy((self.x.numpy() @ rng.standard_normal((8, 3))).argmax(1))
        self.words = torch.from_numpy(rng.integers(12, size=(self.n + TESTED, 6)))
        self.settings: dict[str, Any] = {
            "client_indices": self.clients, "cohort": len(sizes), "rounds": ROUNDS, "local_epochs": 1,
            "batch_size": BATCH, "lr": LR, "lr_decay": 1.0, "weight_decay": 0.0, "clip": None, "weighted": True,
            "dtype": "float64", "device": "cpu", "seed": SEED, "progress": False,
        }  # fmt: skip

    def parts(self, x: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Training and test samples, of these numbers or of others, with their labels."""
        x = self.x if x is None else x
        return x[: self.n], self.y[: self.n], x[self.n :], self.y[self.n :]

    def by_a_plain_loop(self, make: Callable[[], nn.Module], step: Step = sgd, x: Tensor | None = None) -> nn.Module:
        """FedAvg on modules themselves, their buffers included; none is copied."""
        server, (x, y, _, _) = make(), self.parts(x)
        for number in range(ROUNDS):
            mean = {n: torch.zeros_like(v) for n, v in server.state_dict().items() if v.is_floating_point()}
            for i, samples in enumerate(self.clients):
                net = make().train()
                net.load_state_dict(server.state_dict())
                for batch in client_batches(SEED, number, i, samples, BATCH, 1, None):
                    step(net, x[batch], y[batch])
                for n in mean:
                    mean[n] += len(samples) / self.n * net.state_dict()[n]
            server.load_state_dict(mean, strict=False)
        return server


def gap(result: Result, truth: nn.Module) -> float:
    """How far a run's model is from another."""
    layout = result.simulation.setup.task.model.layout
    return float((layout.join(dict(truth.named_parameters())).detach() - result.server.w).abs().max())
