"""Estimate what runs will cost, from a measured step."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedsmoo.core import Algorithm
from fedsmoo.core.contract.inputs import FIRST, ask, given
from fedsmoo.engines.choose import one_step_inputs
from fedsmoo.engines.contract import Engine, Setup
from fedsmoo.runs.build import assemble, make_algorithm
from fedsmoo.runs.config import Config
from fedsmoo.runs.origin.provenance import device_name

REPEAT = 3  # steps that are timed; the first warms up
PATIENCE = 12.0  # seconds that these may take in all on a CPU


@dataclass(frozen=True)
class Cost:
    """Runs, their rounds and steps, and the seconds of local training they should take."""

    runs: int
    rounds: int
    steps: int
    seconds: float
    device: str
    measured: bool = True  # else some step was too long to take for a look, and is what a part of it comes to

    def __str__(self) -> str:
        time = f"{self.seconds / 3600:.2f} hours" if self.seconds > 360 else f"{self.seconds:.0f} seconds"
        each = f"{1000 * self.seconds / max(self.steps, 1):.1f} ms a step of a cohort"
        how = "measured" if self.measured else "extrapolated from a part of a step"
        return f"{self.runs} runs, {self.rounds:,} rounds: about {time} on {self.device} ({each}, {how})"


def gradients_of_a_step(algorithm: Algorithm) -> int:
    """Count how often a method asks for a gradient in one local step."""
    method = algorithm.at(0)
    x = given(method, FIRST)
    ask(method, "direction", x)
    return len(x.grad.losses)


def seconds_of_a_step(engine: Engine, setup: Setup, cohort: int, batch_size: int) -> tuple[float, bool]:
    """Time one local step of a cohort, after a warm-up; leaves rows in the engine's table.

    Also returns whether a whole step was taken. On a CPU, where one may take minutes, some samples of one client are
    tried first, more and more of them: if whole steps do not fit into ``PATIENCE``, the time goes by their number.
    """

    def seconds(clients: int, samples: int) -> float:
        work, began = one_step_inputs(setup, clients, samples), time.perf_counter()
        engine.run_round(work)  # ends with a transfer to the host, so the clock reads true on a GPU too
        return time.perf_counter() - began

    samples, spent = 1, 0.0
    if setup.task.device.type == "cpu":
        seconds(1, samples)
        while REPEAT * (whole := (part := seconds(1, samples)) * cohort * batch_size / samples) > PATIENCE:
            spent += part
            if samples == batch_size or 3 * (spent + part) > PATIENCE:
                return whole, False
            samples = min(2 * samples, batch_size)
    return min([seconds(cohort, batch_size) for _ in range(REPEAT)][1:]), True


def estimate(configs: Sequence[Config]) -> Cost:
    """Estimate the cost of runs; a plain step is timed once for each model, data set, cohort and batch size."""
    steps_of: dict[tuple[object, ...], tuple[float, float]] = {}
    seconds, steps_in_all, device, measured = 0.0, 0, "this machine", True
    for config in configs:
        key = (
            config.model,
            str(config.model_options),
            config.dataset,
            config.cohort,
            config.clients,
            config.batch_size,
        )
        if key not in steps_of:
            plain = config.replace(algorithm="fedavg", algorithm_options={}, relaxed=0.0)
            simulation = assemble(plain)
            device = device_name(simulation.setup.task.device)
            step, whole = seconds_of_a_step(simulation.engine, simulation.setup, config.cohort, config.batch_size)
            measured = measured and whole
            steps_of[key] = (step, float(np.mean([-(-len(i) // config.batch_size) for i in simulation.indices])))
        step, batches = steps_of[key]
        steps = round(config.rounds * (config.local_steps or batches * (config.epochs or 1)))
        steps_in_all += steps
        seconds += steps * step * gradients_of_a_step(make_algorithm(config.algorithm, config.algorithm_options).at(0))
    return Cost(len(configs), sum(c.rounds for c in configs), steps_in_all, seconds, device, measured)
