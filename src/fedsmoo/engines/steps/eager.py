"""Local steps of C clients, one PyTorch operation after the other: no compiler and no graph is needed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedsmoo.core import Vectors
from fedsmoo.core.gradient import Running, StepGradient
from fedsmoo.core.local import local_end, masked_step
from fedsmoo.engines.contract import Meanwhile
from fedsmoo.engines.oracles.on_batch import OnBatch, carried
from fedsmoo.engines.oracles.oracle import Oracle
from fedsmoo.engines.steps.stepper import Assignment, DevicePlan, Ended, Stepped


class EagerStepper:
    """Takes local steps as the method is written."""

    def __init__(self, oracle: Oracle) -> None:
        self.oracle = oracle

    def steps(
        self, given: Assignment, w: Tensor, me: Vectors, plan: DevicePlan, meanwhile: Meanwhile | None = None
    ) -> Stepped:
        total = torch.zeros(len(w), dtype=w.dtype, device=w.device)
        steps = torch.arange(len(plan.index), dtype=w.dtype, device=w.device)
        for k in range(len(plan.index)):
            active = None if plan.running is None else plan.running[k]
            model = OnBatch(self.oracle, plan.batch(k, self.oracle), given.algorithm.features)
            w, me, loss = one_step(given, self.oracle, w, me, model, active, steps[k])
            total = total + loss
        if meanwhile is not None:
            meanwhile()
        return w, me, total

    def ahead(self, plan: DevicePlan) -> None:
        return

    def end(self, given: Assignment, w: Tensor, me: Vectors) -> Ended:
        me, up = local_end(given.algorithm, w, given.down, me, given.rnd)
        return me, up, (w - given.down.w).square().sum(-1)


def one_step(
    given: Assignment, gradient: Any, w: Tensor, me: Vectors, model: OnBatch, active: Tensor | None, step: Tensor
) -> Stepped:
    """Take one local step of C clients and return their losses; clients that are not active stay as they are."""

    def take(v: Tensor, running: Running | None = None) -> tuple[Tensor, Tensor]:
        v = v if v.dim() == w.dim() else v.expand_as(w)  # one model for all, such as down.w
        return gradient(v, carried(model.batch, running))

    rnd = given.rnd.at_step(step.expand(len(w), 1))
    model.batch = model.oracle.with_noise(model.batch, rnd)
    grad = StepGradient(take, rnd, model, len(w))
    new_w, new_me = masked_step(given.algorithm, given.rule, w, grad, given.down, me, active)
    return new_w, new_me, grad.first_loss  # the loss of a client without samples is an empty sum: zero
