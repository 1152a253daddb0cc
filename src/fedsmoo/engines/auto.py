"""Which engine to use: the named one, or the fastest of a few timed steps."""

from __future__ import annotations

import time

import numpy as np

from fedsmoo.core import FedsmooError
from fedsmoo.core.errors import unknown
from fedsmoo.data.augment import draws
from fedsmoo.data.plan import make_plan
from fedsmoo.engines.base import Engine, Setup, Work
from fedsmoo.engines.batched import Batched
from fedsmoo.engines.failure import of_the_method, of_the_model
from fedsmoo.engines.serial import Serial
from fedsmoo.engines.table import ClientTable

ENGINES = {
    "auto": "the fastest of the others, by timing a step of each",
    "serial": "one client after the other: the readable reference",
    "batched": "all clients of a cohort at once, by the model's hand-batched forward (vmap if it has none)",
    "vmap": "all clients of a cohort at once, by torch.func.vmap over any module",
}


def make_engine(
    name: str, setup: Setup, chunk: int | None, cohort: int, batch_size: int, table: ClientTable | None = None
) -> Engine:
    """An engine by name; ``auto`` times a step of each on a cohort of this size."""
    if name not in ENGINES:
        raise unknown("engine", name, ENGINES)
    if name == "serial" or (name == "auto" and setup.task.model.random):  # the others refuse random layers
        return Serial(setup, table)
    if name == "vmap":
        return Batched(setup, table, oracle="vmap", chunk=chunk)
    if name == "batched" or setup.task.device.type == "cuda":  # on a GPU one by one is never faster
        return Batched(setup, table, chunk=chunk)
    best = fastest(setup, chunk, cohort, batch_size)
    best.table = table or ClientTable(setup.algorithm.own)  # the timed clients were never met
    return best


def fastest(setup: Setup, chunk: int | None, cohort: int, batch_size: int) -> Engine:
    """The engine whose timed step is shortest; one that cannot run this model is left out."""
    kinds = ["hand", "vmap"] if setup.task.model.batched is not None else ["vmap"]
    engines: list[Engine] = [Serial(setup), *(Batched(setup, oracle=k, chunk=chunk) for k in kinds)]
    times: dict[int, float] = {}
    reasons = []
    for i, engine in enumerate(engines):
        try:
            times[i] = seconds_of_a_step(engine, setup, cohort, batch_size)
        except FedsmooError:
            raise
        except Exception as e:  # vmap cannot take every module: then the others remain
            if method := of_the_method(e):
                raise FedsmooError(method) from e
            model = of_the_model(e)
            if model is None:
                raise
            reasons.append(f"{engine.name}: {model}")
    if not times:
        raise FedsmooError("no engine can run this model with this method. " + "; ".join(reasons))
    return engines[min(times, key=times.__getitem__)]


def seconds_of_a_step(engine: Engine, setup: Setup, cohort: int, batch_size: int, repeat: int = 2) -> float:
    """Seconds of one local step of a cohort, after a warm-up; leaves rows in the engine's table."""
    clients = list(range(cohort))
    samples = [np.arange(min(batch_size, len(setup.task.data.x_train)))] * cohort
    plan = make_plan(0, 0, clients, samples, batch_size, steps=1, draw=draws if setup.task.augment else None)
    w = setup.task.model.initial().to(setup.task.device, setup.task.dtype)
    down = setup.algorithm.init(w).pick(setup.algorithm.down)
    work = Work(0, down, clients, plan, 1e-3, 1.0, [1 / cohort] * cohort)  # methods may divide by the learning rate
    best = float("inf")
    for i in range(repeat + 1):
        began = time.perf_counter()
        engine.run_round(work)  # ends with a transfer to the host, so the clock reads true on a GPU too
        if i:
            best = min(best, time.perf_counter() - began)
    return best
