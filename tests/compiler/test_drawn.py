"""Methods of random arithmetic: compiled passes do what the methods say, step by step and at the end of a round."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import pytest
import torch
from engines.opaque import RoundedToFloat
from engines.small import largest_gap, simulation, trace

from fedsmoo.algorithms import FedAvg
from fedsmoo.core import Schedule
from fedsmoo.engines.batched import Batched
from fedsmoo.engines.contract import Setup
from fedsmoo.engines.oracles.opaque import OpaqueOracle
from fedsmoo.engines.oracles.oracle import hand_oracle
from fedsmoo.engines.steps.eager import EagerStepper
from fedsmoo.engines.steps.replay import ReplayStepper
from fedsmoo.engines.task import Batch, Task
from fedsmoo.kernels.gradients import GradientBuffers

from .drawn import Drawn

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="in float64, by the interpreter"),
    pytest.mark.filterwarnings("ignore:divide by zero:RuntimeWarning"),  # of the interpreter: a norm of zeros
]


class Exact(OpaqueOracle):
    """Reads all weights where they lie, and rounds nothing."""

    def __init__(self, task: Task) -> None:
        super().__init__(task, task.dtype, task.model.layout.size)
        self.plain = hand_oracle(task).gradient

    def launch(self, working: torch.Tensor, fine: torch.Tensor, batch: Batch, into: GradientBuffers) -> None:
        gradient, loss = self.plain(working, batch)
        into.coarse.copy_(gradient)
        into.loss.copy_(loss)


@dataclass(frozen=True)
class Limits(FedAvg):
    """Numbers that float32 does not have, where Triton's functions take them."""

    def direction(self, w, grad, down, me):
        g = grad(w)
        return g.clamp(min=-0.1) + torch.where(g.clamp(max=0.05) > 1 / 30, g, 0.3 * g), me

    def finish(self, w, down, me, rnd):
        return super().finish(w.clamp(-0.1, 0.1), down, me, rnd)


@dataclass(frozen=True)
class OfZero(FedAvg):
    """The sign of a zero, which decides on which side its reciprocal is."""

    local: ClassVar[tuple[str, ...]] = ("m",)

    def direction(self, w, grad, down, me):
        return grad(w) * (1 - (1 / -me.m).clamp(-0.5, 0.5)), me

    def finish(self, w, down, me, rnd):
        return super().finish(w * (1 - (1 / -me.m).clamp(-0.1, 0.1)), down, me, rnd)


FIXED = {"sampling": "uniform", "local_epochs": None, "rounds": 2}
COHORTS = [  # and how many groups step beside each other
    (FIXED | {"cohort": 2, "local_steps": 3}, 1),
    (FIXED | {"cohort": 1, "local_steps": 2, "rounds": 3}, 1),
    (FIXED | {"cohort": 5, "local_epochs": 1}, 2),
    ({"rounds": 4, "local_epochs": 2}, 2),  # cohorts of several sizes, one of them empty
]
RULES = [{"clip": None}, {"clip": 0.3}, {"clip": 1.0, "scope": "released"}, {"clip": 1e3}]


@pytest.mark.parametrize("seed", range(12))
def test_passes_are_the_method(seed, device, monkeypatch):
    """In float64; where the gradient's weights are rounded, a last bit may decide how."""
    for name, size in (("BLOCK", 64), ("FEW", 2), ("PARTS", 4)):  # five blocks of a client
        monkeypatch.setattr(f"fedsmoo.compiler.codegen.{name}", size)
    settings, groups = COHORTS[seed % len(COHORTS)]
    draw = random.Random(seed)
    rule, oracle = draw.choice(RULES), (Exact, RoundedToFloat)[seed // 4 % 2]
    method = Drawn(seed=seed, r=draw.choice([0.3, Schedule(0.4, 0.1, 3)]))
    compared(method, oracle, rule, settings, groups)


def test_limits_are_not_rounded_to_float32(device):
    compared(Limits(), Exact, {"clip": 0.1}, COHORTS[0][0], 1)


def test_zeros_have_their_signs(device):
    compared(OfZero(), Exact, {"clip": 1.0}, COHORTS[0][0], 1)


def compared(method, oracle, rule, settings, groups):
    def run(stepper):
        def engine(setup: Setup) -> Batched:
            return Batched(setup, oracle=oracle(setup.task), stepper=stepper)

        return simulation(engine, "mlp", method, rule=rule, **settings)

    eager, passed = run(EagerStepper), run(partial(ReplayStepper, compile=False, groups=groups))
    assert largest_gap(trace(eager), trace(passed)) < (1e-11 if oracle is Exact else 1e-6)
    assert all(r.cut for r in passed.engine.stepper.recordings.values())
    assert all(passed.engine.stepper.endings.values())
