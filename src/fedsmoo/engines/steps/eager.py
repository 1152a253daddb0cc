"""K local steps of C clients, eagerly: the form that needs no compiler and no graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedsmoo.core import Algorithm, LocalRule, Round, Vectors
from fedsmoo.core.local import local_end, masked_step
from fedsmoo.data.batches.plan import Plan
from fedsmoo.engines.oracles import Oracle
from fedsmoo.engines.task import Batch, Task


@dataclass(frozen=True)
class Stage:
    """What C clients train with: the method (numbers may be ``[C, 1]``), the step rule, and what they were sent."""

    algorithm: Algorithm
    rule: LocalRule
    down: Vectors
    lr: Any
    tag: tuple[int, ...] = ()  # which runs these are: a recording is for them only
    varies: bool = False  # whether other rounds may have other numbers of clients


class DevicePlan:
    """A plan copied to the device once, read step by step."""

    def __init__(self, plan: Plan, task: Task) -> None:
        self.index = torch.from_numpy(plan.index).to(task.device)
        self.draws = None
        if plan.draws is not None:
            self.draws = {n: torch.from_numpy(d).to(task.device) for n, d in plan.draws.items()}
        count = torch.from_numpy(plan.count)[..., None]
        weight = (torch.arange(plan.index.shape[2]) < count).to(task.dtype) / count.clamp(min=1).to(task.dtype)
        self.weight = weight.to(task.device)  # made on the host: the device is waiting
        self.running = None if (plan.count > 0).all() else (count > 0).to(task.device)  # [K, C, 1]

    @property
    def shape(self) -> tuple[Any, ...]:
        """What a recording depends on besides the clients: the width of a batch, and which draws there are."""
        return (self.index.shape[2], None if self.draws is None else tuple(self.draws))

    def batch(self, k: int, oracle: Oracle) -> Batch:
        draws = None if self.draws is None else {n: d[k] for n, d in self.draws.items()}
        return oracle.batch(self.index[k], self.weight[k], draws)


class Feed(NamedTuple):
    """What a step is fed: a batch, and which clients are still running (``None``: all)."""

    batch: Batch
    active: Tensor | None


def one_step(
    stage: Stage, gradient: Any, w: Tensor, me: Vectors, batch: Batch | None, active: Tensor | None
) -> tuple[Tensor, Vectors, Tensor]:
    """One local step of C clients, and their losses; those that are not active stay where they are."""
    losses: list[Tensor] = []

    def grad(v: Tensor) -> Tensor:
        g, loss = gradient(v if v.dim() == w.dim() else v.expand_as(w), batch)  # one model for all, such as down.w
        losses.append(loss)
        return g

    s = stage
    new_w, new_me = masked_step(s.algorithm, s.rule, w, grad, s.down, me, s.lr, active)
    return new_w, new_me, losses[0]  # the loss of a client without samples is an empty sum: zero


def eager_steps(
    oracle: Oracle,
    stage: Stage,
    w: Tensor,
    me: Vectors,
    plan: DevicePlan,
    meanwhile: Callable[[], None] | None = None,
) -> tuple[Tensor, Vectors, Tensor]:
    """All local steps: the clients' models, vectors, and summed minibatch losses."""
    total = torch.zeros(len(w), dtype=w.dtype, device=w.device)
    for k in range(len(plan.index)):
        active = None if plan.running is None else plan.running[k]
        w, me, loss = one_step(stage, oracle, w, me, plan.batch(k, oracle), active)
        total = total + loss
    if meanwhile is not None:
        meanwhile()
    return w, me, total


def plain_end(stage: Stage, w: Tensor, me: Vectors, rnd: Round) -> tuple[Vectors, Vectors, Tensor]:
    """Finish a round as the method is written: the clients' own vectors, what they send, and ``||w_i - w||^2``."""
    me, up = local_end(stage.algorithm, w, stage.down, me, rnd)
    return me, up, (w - stage.down.w).square().sum(-1)
