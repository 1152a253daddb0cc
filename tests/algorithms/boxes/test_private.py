"""DP-FedAvg (McMahan et al., ICLR 2018, Algorithm 1) against the wrapper around FedAvg: same batches and noise.

Algorithm 1 takes every client with probability q, bounds its update to the norm S, divides the sum by the fixed q W and
adds N(0, (z S / q W)^2). Its clients project onto the ball around the received model after every local step; the
wrapper bounds the update once, before it is sent, to the same norm. Both are the same box with one step.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from fedsmoo.algorithms import FedAvg
from fedsmoo.algorithms.privacy import Private
from fedsmoo.core import LocalRule, Round
from fedsmoo.core.random.noise import key_of
from fedsmoo.data.batches.cohort import cohort
from fedsmoo.data.batches.plan import make_plan
from fedsmoo.engines.batched import Batched
from fedsmoo.engines.contract import Setup
from fedsmoo.engines.serial import Serial
from fedsmoo.engines.task import Task
from fedsmoo.models.base import FlatModel
from fedsmoo.runs.settings.training import Training
from fedsmoo.runs.simulation import Simulation

from .layers import LossGrad, Model, each, norm
from .task import cnn, gradients, weights_of
from .test_boxes import BATCH, DATA, DECAY, INDICES, LR, SEED, TASK, M

ROUNDS, Q_W, S, Z = 5, 3, 0.35, 0.8


def gaussian(t: int) -> Model:
    """The standard normals that the server draws in a round, by parameter: an input of the box."""
    layout = FlatModel(cnn()).layout
    rnd = Round(t, LR, 1.0, 1.0, key=torch.tensor(key_of(SEED, "noise of the server", t)))
    return layout.split(rnd.normal("privacy of w", torch.zeros(layout.size, dtype=torch.float64)))


def flat_clip(delta: Model) -> Model:
    """FlatClip: Delta min(1, S / ||Delta||)."""
    factor = min(1.0, S / norm(delta))
    return each(lambda d: d * factor, delta)


def dp_fedavg(loss_grad: LossGrad, w0: Model, rounds: list[dict[int, list[Any]]], every_step: bool) -> Iterator[Any]:
    """Algorithm 1 with w_k = 1, FlatClip and the estimator of a fixed denominator; yields models and ||Delta_k||."""
    theta = w0
    for t, users in enumerate(rounds):
        total, sizes = each(torch.zeros_like, theta), []
        for batches in users.values():
            mine = theta
            for b in batches:
                mine = each(lambda p, g, lr=LR * DECAY**t: p - lr * g, mine, loss_grad(mine, b))
                if every_step:
                    mine = each(lambda p, d: p + d, theta, flat_clip(each(lambda a, c: a - c, mine, theta)))
            delta = each(lambda a, c: a - c, mine, theta)
            sizes.append(norm(delta))
            total = each(lambda a, d: a + d, total, flat_clip(delta))
        theta = each(lambda p, d, e: p + d / Q_W + (Z * S / Q_W) * e, theta, total, gaussian(t))
        yield theta, sizes


@pytest.mark.parametrize("engine", [Serial, Batched])
@pytest.mark.parametrize(("sampling", "steps"), [("bernoulli", 3), ("uniform", 3), ("bernoulli", 1)])
def test_the_wrapper_is_the_box(engine: Any, sampling: str, steps: int) -> None:
    """Cohorts of random size are divided by the expected one; with one local step it is Algorithm 1 to the letter."""
    rounds = []
    for t in range(ROUNDS):
        clients = cohort(SEED, t, M, Q_W, sampling)
        plan = make_plan(SEED, t, clients, INDICES, BATCH, steps=steps)
        picked = {
            i: [plan.index[k, c, : plan.count[k, c]] for k in range(int(plan.steps[c]))] for c, i in enumerate(clients)
        }
        rounds.append({i: [(TASK.x[r], TASK.y[r]) for r in rows] for i, rows in picked.items()})
    net = cnn()
    box = list(dp_fedavg(gradients(net), weights_of(net), rounds, every_step=steps == 1))
    task = Task(FlatModel(cnn()), DATA, torch.device("cpu"), torch.float64)
    method = Private(FedAvg(), bound=S, noise=Z, expected=Q_W if sampling == "bernoulli" else None)
    setup = Setup(task, method, LocalRule(0.0, None))
    training = Training(
        rounds=ROUNDS, cohort=Q_W, sampling=sampling, local_steps=steps, batch_size=BATCH, lr=LR, lr_decay=DECAY,
        seed=SEED, eval_every=ROUNDS,
    )  # fmt: skip
    run = Simulation(setup, engine(setup), training, INDICES)
    for theta, _ in box:
        run.advance()
        ours = task.model.layout.split(run.server.w)
        assert max(float((ours[n] - p).abs().max()) for n, p in theta.items()) < 1e-10
    sizes = [size for _, found in box for size in found]
    if steps > 1:
        assert 0.2 < sum(size > S for size in sizes) / len(sizes) < 1  # the bound binds for some
