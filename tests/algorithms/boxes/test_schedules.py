"""Hyper-parameters that move with the round, against the transcription of the box with other numbers in each round."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from fedsmoo import FedSMOO, Relaxed, Schedule
from fedsmoo.core import Algorithm, LocalRule
from fedsmoo.engines.batched import Batched
from fedsmoo.engines.contract import Setup
from fedsmoo.engines.serial import Serial
from fedsmoo.engines.steps.replay import ReplayStepper
from fedsmoo.engines.task import Task
from fedsmoo.models.base import FlatModel
from fedsmoo.runs.settings.training import Training
from fedsmoo.runs.simulation import Simulation

from .reference import BOXES
from .task import cnn, gradients, weights_of
from .test_boxes import CLIP, DATA, INDICES, ROUNDS, WEIGHT_DECAY, M, numbers, reference_rounds

METHOD = Relaxed(
    FedSMOO(r=Schedule(0.0, 0.3, 4, "cosine"), beta=Schedule(2.0, steps={2: 1.0, 5: 4.0})), Schedule(0.4, warmup=4)
)


def in_round(t: int) -> dict[str, float]:
    """The numbers of ``METHOD`` in a round, by hand."""
    r = 0.3 if t >= 4 else 0.15 * (1 - math.cos(math.pi * t / 4))
    return {"r": r, "beta": [2.0, 2.0, 1.0, 1.0, 1.0, 4.0][t], "relaxed": [0.1, 0.2, 0.3, 0.4, 0.4, 0.4][t]}


def expected() -> list[dict[str, torch.Tensor]]:
    """The model after each round of the box, whose numbers are tensors that are filled anew before each."""
    net, moving = cnn(), {n: torch.zeros((), dtype=torch.float64) for n in in_round(0)}
    hyper = {"clip": CLIP["FedSMOO"], "weight_decay": WEIGHT_DECAY, **moving}
    states, models = BOXES["FedSMOO"](gradients(net), weights_of(net), reference_rounds(), M, hyper), []
    for t in range(ROUNDS):
        for name, value in in_round(t).items():
            moving[name].fill_(value)
        models.append(next(states)["w"])
    return models


def simulation(algorithm: Algorithm, engine_of: Any) -> Simulation:
    task = Task(FlatModel(cnn()), DATA, torch.device("cpu"), torch.float64)
    setup = Setup(task, algorithm, LocalRule(WEIGHT_DECAY, CLIP["FedSMOO"]))
    return Simulation(setup, engine_of(setup), Training(**numbers(weighted=False)), INDICES)


def recorded(setup: Setup) -> Batched:
    return Batched(setup, stepper=lambda oracle: ReplayStepper(oracle, compile=False, capture=True))


@pytest.mark.parametrize("engine_of", [Serial, Batched, recorded])
def test_engines_follow_the_box_with_moving_numbers(engine_of) -> None:
    run, worst = simulation(METHOD, engine_of), 0.0
    for want in expected():
        run.advance()
        got = run.setup.task.model.layout.split(run.server.w)
        worst = max(worst, *(float((got[k] - want[k]).abs().max()) for k in want))
    assert worst < 1e-10


def test_a_schedule_matters() -> None:
    """The numbers of the first round, kept, lead elsewhere: the test above would notice."""
    moving, still = simulation(METHOD, Batched), simulation(METHOD.at(0), Batched)
    moving.run()
    still.run()
    assert float((moving.server.w - still.server.w).norm()) > 0.01
