"""What is known of runs before they begin: what they will cost, from a measured step, and that they are possible."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedsmoo.algorithms.choices import refuse_too_few
from fedsmoo.core import Algorithm, FedsmooError
from fedsmoo.core.contract.inputs import FIRST, call_function, make_inputs
from fedsmoo.core.errors import unknown
from fedsmoo.core.user_code import is_in_file
from fedsmoo.data.dataset import Dataset
from fedsmoo.engines.choose import one_step_inputs
from fedsmoo.engines.contract import Engine, Setup
from fedsmoo.engines.devices import make_device, synchronize
from fedsmoo.engines.looking.fitting import refuse_no_features
from fedsmoo.models import MODELS, refuse_options
from fedsmoo.runs.analyse import refuse_unknown_probes
from fedsmoo.runs.build import assemble, make_algorithm, make_method, make_setup
from fedsmoo.runs.config import Config
from fedsmoo.runs.division import make_clients
from fedsmoo.runs.origin.provenance import device_name
from fedsmoo.runs.origin.user_files import load_data
from fedsmoo.sweeps.grid import Cell

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
    x = make_inputs(method, FIRST)
    call_function(method, "direction", x)
    return len(x.grad.losses)


def seconds_of_a_step(engine: Engine, setup: Setup, cohort: int, batch_size: int) -> tuple[float, bool]:
    """Time one local step of a cohort, after a warm-up; leaves rows in the engine's table.

    Also returns whether a whole step was taken. On a CPU, where one may take minutes, some samples of one client are
    tried first, more and more of them: if whole steps do not fit into ``PATIENCE``, the time goes by their number.
    """

    def seconds(clients: int, samples: int) -> float:
        work, began = one_step_inputs(setup, clients, samples), time.perf_counter()
        engine.run_round(work)
        synchronize(setup.task.device)
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


def refuse_impossible(cells: Sequence[Cell]) -> None:
    """Refuse runs whose method, model, loss, metrics or division do not go together, before the first one trains.

    Each data set is read once; of one that cannot be read, the run itself will say so: it may be there by then.
    """
    groups: dict[str, dict[str, Cell]] = {}
    for cell in cells:
        c = cell.config
        place = json.dumps([c.dataset, c.data, c.dataset_options], default=str)
        groups.setdefault(place, {}).setdefault(json.dumps(feasibility_key(c), sort_keys=True, default=str), cell)
    for group in groups.values():
        data = None
        with suppress(FedsmooError), warnings.catch_warnings(action="ignore"):
            data = load_data(next(iter(group.values())).config)
        for cell in group.values():
            try:
                with warnings.catch_warnings(action="ignore"):  # which its run will give
                    refuse_unfit(cell.config, data)
            except FedsmooError as e:
                if cell is cells[0]:
                    raise
                raise FedsmooError(f"{cell.method}: {e}") from e


def feasibility_key(config: Config) -> dict[str, Any]:
    """Return what decides whether a run is possible: its settings without the seed and fractions, such as rates."""
    options = {n: v for n, v in config.algorithm_options.items() if not isinstance(v, float)}
    plain = {n: v for n, v in config.to_dict().items() if n != "seed" and not isinstance(v, float)}
    return {**plain, "algorithm_options": options, "holdout": config.holdout > 0}


def refuse_unfit(config: Config, data: Dataset | None) -> None:
    """Refuse a run that cannot be begun on its data; nothing is put on a device, which alone may know its precision."""
    make_device(config.device)
    if config.model in MODELS:
        refuse_options(config.model, config.model_options)
    elif not is_in_file(config.model):
        raise unknown("model", config.model, MODELS)
    refuse_unknown_probes(config.probe)
    method = make_method(config)
    if data is None:
        return
    clients = len(make_clients(config, data))
    refuse_too_few(method, clients, min(config.cohort, clients))
    setup = make_setup(config.replace(device="cpu", precision="fp32", samples_in="auto"), data)
    refuse_no_features(setup.task, setup.algorithm)
    _ = setup.masks  # a pattern that matches nothing is refused
