"""Cheap measurements during training, every so many rounds: ``hessian:50,sharpness:10``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedsmoo.analysis import consistency, sharpness
from fedsmoo.analysis.fairness import fairness
from fedsmoo.analysis.objective import Objective, objective
from fedsmoo.core import FedsmooError, Vectors
from fedsmoo.core.errors import unknown
from fedsmoo.engines.base import Setup, Work
from fedsmoo.engines.distributed import ShardedTable
from fedsmoo.engines.table import ClientTable

SAMPLES = 1000  # of the training part: enough to follow a trend, cheap enough to be asked often
RADIUS = 0.1


@dataclass(frozen=True)
class Moment:
    """What a probe may look at: the state after a round, and the round that led to it."""

    setup: Setup
    server: Vectors
    table: ClientTable
    indices: Sequence[np.ndarray]
    work: Work

    @property
    def loss(self) -> Objective:
        return objective(self.setup.task, "train", SAMPLES, size=min(SAMPLES, 500))


def probe_hessian(now: Moment) -> dict[str, float]:
    """The Hessian's largest eigenvalue to some per cent, and its trace."""
    from fedsmoo.analysis import hessian

    loss, w = now.loss, now.server.w

    def products(v: Tensor) -> Tensor:
        return loss.products(w, v)

    values, _, _ = hessian.top_eigenvalues(products, w, tol=0.03)
    return {"hessian_top": float(values[0]), "hessian_trace": hessian.trace(products, w, probes=12).value}


def probe_sharpness(now: Moment) -> dict[str, float]:
    """SAM's sharpness by a short ascent."""
    return {"sharpness": sharpness.worst_case(now.loss, now.server.w, RADIUS, steps=3, starts=1).value}


def probe_consistency(now: Moment) -> dict[str, float]:
    """Whether the round's clients, sent the new model, would pull the same way; and whether the duals balance."""
    work = dataclasses.replace(now.work, down=now.setup.algorithm.sent(now.server))
    out = {f"dual_gap_{n}": v for n, v in gaps(now).items()}
    if work.clients:
        models = consistency.client_models(now.setup, now.table, work)
        out["cosine"] = consistency.cosines(models - work.down.w)["pairwise"]
        out["perturbation_distance"] = consistency.perturbations(client_losses(now), now.server.w, RADIUS)["mean"]
    return out


def gaps(now: Moment) -> dict[str, float]:
    return consistency.dual_gaps(now.server, dict(now.table.items()), len(now.indices))


def client_losses(now: Moment) -> list[Objective]:
    task = now.setup.task
    held = [torch.from_numpy(now.indices[i]).to(task.device) for i in now.work.clients]
    return [Objective(task, task.data.x_train[i], task.data.y_train[i], "train") for i in held]


def probe_fairness(now: Moment) -> dict[str, float]:
    """Accuracy of the worst tenth of the clients, and the spread over clients."""
    found = fairness(now.setup.task, now.server.w, now.indices)
    return {"worst_tenth": found.worst_tenth, "client_deviation": found.deviation}


PROBES: dict[str, Callable[[Moment], dict[str, float]]] = {
    "hessian": probe_hessian,
    "sharpness": probe_sharpness,
    "consistency": probe_consistency,
    "fairness": probe_fairness,
}


@dataclass(frozen=True)
class Schedule:
    """Which probes are due in which rounds."""

    every: dict[str, int]

    @classmethod
    def parse(cls, text: str) -> Schedule:
        """``hessian:50,sharpness:10``.

        >>> Schedule.parse("sharpness:10").due(20, 100), Schedule.parse("sharpness:10").due(21, 100)
        (['sharpness'], [])
        """
        every: dict[str, int] = {}
        for word in text.split(","):
            name, _, rounds = word.strip().partition(":")
            if name not in PROBES:
                raise unknown("probe", name, PROBES)
            if not rounds.isdecimal() or int(rounds) < 1:
                raise FedsmooError(f"probe {word.strip()!r} must be NAME:ROUNDS, such as {name}:10")
            every[name] = int(rounds)
        return cls(every)

    def suits(self, table: ClientTable) -> Schedule:
        """The schedule itself, if its probes can see what they need."""
        if "consistency" in self.every and isinstance(table, ShardedTable):
            raise FedsmooError("the consistency probe reads all clients' vectors in one process: leave it out here")
        return self

    def due(self, number: int, rounds: int) -> list[str]:
        """The probes of round ``number`` (counted from 1): every so many rounds, and in the last."""
        return [n for n, k in self.every.items() if number % k == 0 or number == rounds]

    def measure(self, now: Moment, rounds: int) -> dict[str, float]:
        """What is due after the moment's round."""
        out: dict[str, float] = {}
        for name in self.due(now.work.number + 1, rounds):
            out |= PROBES[name](now)
        return out
