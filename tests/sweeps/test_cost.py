"""What runs will cost, where a step is known to take a quarter of a second."""

from __future__ import annotations

import math

import pytest

from fedsmoo import FedSMOO, Schedule
from fedsmoo.runs.build import assemble, make_algorithm
from fedsmoo.runs.config import Config
from fedsmoo.sweeps import cost
from fedsmoo.sweeps.cost import estimate, gradients_of_a_step, seconds_of_a_step

STEP = 0.25
CONFIG = Config(
    dataset="digits", model="softmax", algorithm="fedavg", clients=4, cohort=2, rounds=5, local_steps=3, batch_size=8,
    device="cpu", engine="batched",
)  # fmt: skip


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[tuple]:
    """The cohorts and batch sizes of which a step was timed."""
    calls: list[tuple] = []

    def step(engine, setup, cohort: int, batch_size: int) -> tuple[float, bool]:
        calls.append((setup.algorithm.label, cohort, batch_size))
        return STEP, batch_size < 64

    monkeypatch.setattr(cost, "seconds_of_a_step", step)
    return calls


def test_gradients_of_methods_that_move_and_that_have_losses_of_their_own() -> None:
    assert gradients_of_a_step(FedSMOO(r=Schedule(0.0, 0.1, 5), beta=Schedule(1.0, 2.0, 5))) == 2
    assert [gradients_of_a_step(make_algorithm(name, {})) for name in ("fedntd", "moon", "ditto")] == [1, 1, 2]


@pytest.mark.parametrize(
    ("method", "gradients"),
    [("fedavg", 1), ("feddyn", 1), ("scaffold", 1), ("fedsam", 2), ("mofedsam", 2), ("fedsmoo", 2)],
)
def test_a_method_with_a_perturbation_costs_twice(method: str, gradients: int, timed: list[tuple]) -> None:
    assert gradients_of_a_step(make_algorithm(method, {})) == gradients
    found = estimate([CONFIG.replace(algorithm=method)])
    assert (found.runs, found.rounds, found.steps) == (1, 5, 5 * 3)
    assert found.seconds == 5 * 3 * STEP * gradients
    assert timed == [("FedAvg", 2, 8)]  # a plain step, whatever the method


def test_the_runs_of_a_list_add_up_and_equal_steps_are_timed_once(timed: list[tuple]) -> None:
    runs = [CONFIG, CONFIG.replace(algorithm="fedsmoo", rounds=7), CONFIG.replace(batch_size=16)]
    found = estimate(runs)
    assert (found.runs, found.rounds, found.steps) == (3, 5 + 7 + 5, 3 * (5 + 7 + 5))
    assert found.seconds == 3 * STEP * (5 + 2 * 7 + 5)
    assert [batch for _, _, batch in timed] == [8, 16]


def test_epochs_are_counted_in_the_batches_of_a_mean_client(timed: list[tuple]) -> None:
    config = CONFIG.replace(local_steps=None, local_epochs=2, partition="dirichlet-0.1")
    batches = [math.ceil(len(samples) / 8) for samples in assemble(config).indices]
    found = estimate([config])
    assert found.steps == round(5 * 2 * sum(batches) / 4)
    assert found.seconds == found.steps * STEP


@pytest.mark.parametrize("each", [0.001, 0.5, 30.0])
def test_looking_takes_seconds_however_long_a_step_is(each: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that a sample of a client moves by some seconds, and a call by a tenth of that."""
    simulation, now, calls = assemble(CONFIG), [0.0], []

    def run_round(work) -> None:
        calls.append((len(work.clients), int(work.plan.count.max())))
        now[0] += each * (0.1 + calls[-1][0] * calls[-1][1])

    monkeypatch.setattr(simulation.engine, "run_round", run_round)
    monkeypatch.setattr(cost.time, "perf_counter", lambda: now[0])
    seconds, measured = seconds_of_a_step(simulation.engine, simulation.setup, 10, 50)
    assert measured == (each == 0.001)
    assert ((10, 50) in calls) == measured
    assert seconds == pytest.approx(500 * each, rel=0.001 if measured else 0.11)
    assert now[0] <= max(2 * cost.PATIENCE, 2.2 * each)


def test_an_estimate_says_whether_it_was_measured(timed: list[tuple]) -> None:
    assert "step of a cohort, measured)" in str(estimate([CONFIG]))
    assert "extrapolated from a part of a step)" in str(estimate([CONFIG, CONFIG.replace(batch_size=64)]))
