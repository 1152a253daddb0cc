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


@dataclass(frozen=True)
class Cost:
    """Runs, their rounds and steps, and the seconds of local training they should take."""

    runs: int
    rounds: int
    steps: int
    seconds: float
    device: str

    def __str__(self) -> str:
        time = f"{self.seconds / 3600:.2f} hours" if self.seconds > 360 else f"{self.seconds:.0f} seconds"
        each = f"{1000 * self.seconds / max(self.steps, 1):.1f} ms a step of a cohort"
        return f"{self.runs} runs, {self.rounds:,} rounds: about {time} on {self.device} ({each}, measured)"


def gradients_of_a_step(algorithm: Algorithm) -> int:
    """Count how often a method asks for a gradient in one local step."""
    method = algorithm.at(0)
    x = given(method, FIRST)
    ask(method, "direction", x)
    return len(x.grad.losses)


def seconds_of_a_step(engine: Engine, setup: Setup, cohort: int, batch_size: int, repeat: int = 2) -> float:
    """Time one local step of a cohort, after a warm-up; leaves rows in the engine's table."""
    work, best = one_step_inputs(setup, cohort, batch_size), float("inf")
    for i in range(repeat + 1):
        began = time.perf_counter()
        engine.run_round(work)  # ends with a transfer to the host, so the clock reads true on a GPU too
        if i:
            best = min(best, time.perf_counter() - began)
    return best


def estimate(configs: Sequence[Config]) -> Cost:
    """Estimate the cost of runs; a plain step is timed once for each model, data set, cohort and batch size."""
    steps_of: dict[tuple[object, ...], tuple[float, float]] = {}
    seconds, steps_in_all, device = 0.0, 0, "this machine"
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
            step = seconds_of_a_step(simulation.engine, simulation.setup, config.cohort, config.batch_size)
            steps_of[key] = (step, float(np.mean([-(-len(i) // config.batch_size) for i in simulation.indices])))
        step, batches = steps_of[key]
        steps = round(config.rounds * (config.local_steps or batches * (config.epochs or 1)))
        steps_in_all += steps
        seconds += steps * step * gradients_of_a_step(make_algorithm(config.algorithm, config.algorithm_options).at(0))
    return Cost(len(configs), sum(c.rounds for c in configs), steps_in_all, seconds, device)
