"""Heterogeneous quadratics f_i(w) = (w - b_i)' A_i (w - b_i) / 2: everything about them has a closed form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from fedsmoo.core import Algorithm, LocalRule
from fedsmoo.data.dataset import Dataset
from fedsmoo.engines.batched import Batched
from fedsmoo.engines.contract import Setup
from fedsmoo.engines.serial import Serial
from fedsmoo.engines.task import Task
from fedsmoo.models.base import FlatModel
from fedsmoo.runs.settings.training import Training
from fedsmoo.runs.simulation import Simulation

DIM = 4


class Bowl(nn.Module):
    """The value of a client's quadratic at the parameters; a sample is its (A, b), flattened."""

    def __init__(self) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.zeros(DIM, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return value(self.theta, x)

    def batched(self, p: Mapping[str, Tensor], x: Tensor) -> Tensor:
        return value(p["theta"][:, None], x)


def value(theta: Tensor, x: Tensor) -> Tensor:
    """``[..., 1]`` at ``theta [..., DIM]``."""
    a, d = x[..., : DIM * DIM].unflatten(-1, (DIM, DIM)), theta - x[..., DIM * DIM :]
    return 0.5 * (d.unsqueeze(-2) @ a @ d.unsqueeze(-1))[..., 0]


@dataclass(frozen=True)
class Quadratics:
    """m clients, one sample each."""

    a: Tensor  # [m, DIM, DIM], symmetric, eigenvalues between 0.5 and 2
    b: Tensor  # [m, DIM]

    @property
    def optimum(self) -> Tensor:
        """The minimiser of the mean of the f_i: (sum A_i)^-1 sum A_i b_i."""
        return torch.linalg.solve(self.a.sum(0), torch.einsum("mij,mj->i", self.a, self.b))

    def fedavg_fixed_point(self, lr: float, steps: int) -> Tensor:
        """Where FedAvg stops: K steps map w to b_i + (I - lr A_i)^K (w - b_i), so the mean of the
        (I - (I - lr A_i)^K)(w - b_i) is zero there."""
        eye = torch.eye(DIM, dtype=torch.float64)
        q = eye - torch.matrix_power(eye - lr * self.a, steps)
        return torch.linalg.solve(q.sum(0), torch.einsum("mij,mj->i", q, self.b))


def quadratics(clients: int = 6, seed: int = 0) -> Quadratics:
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.standard_normal((clients, DIM, DIM)))[0]
    spectrum = rng.uniform(0.5, 2.0, (clients, 1, DIM))
    a = (basis * spectrum) @ basis.transpose(0, 2, 1)
    return Quadratics(torch.from_numpy(a), torch.from_numpy(rng.standard_normal((clients, DIM))))


def federation(
    problem: Quadratics, algorithm: Algorithm, lr: float = 0.1, steps: int = 5, cohort: int | None = None, **training
) -> Simulation:
    """A run on the quadratics with full gradients, no clip and no weight decay."""
    m = len(problem.a)
    x = torch.cat([problem.a.flatten(1), problem.b], 1)
    y = torch.zeros(m, dtype=torch.int64)
    data = Dataset("quadratics", x, y, x, y, 1)
    task = Task(FlatModel(Bowl()), data, torch.device("cpu"), torch.float64, lambda out, y: out[:, 0])
    setup = Setup(task, algorithm, LocalRule())
    settings = {"rounds": 10, "eval_every": 10**6, "lr_decay": 1.0, "batch_size": 1, **training}
    engine = Serial(setup) if settings.pop("serial", False) else Batched(setup)
    t = Training(cohort=cohort or m, local_steps=steps, lr=lr, **settings)
    return Simulation(setup, engine, t, [np.array([i]) for i in range(m)])
