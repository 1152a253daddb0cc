"""A small federation with everything that trips an engine: unequal clients, a client of one sample, short batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsmoo.core import Algorithm, LocalRule
from fedsmoo.data.dataset import Dataset
from fedsmoo.engines.batched import Batched
from fedsmoo.engines.contract import Engine, Setup
from fedsmoo.engines.oracles.oracle import Oracle
from fedsmoo.engines.serial import Serial
from fedsmoo.engines.steps.replay import ReplayStepper
from fedsmoo.engines.task import Task
from fedsmoo.models import build
from fedsmoo.runs.record import Record
from fedsmoo.runs.settings.training import Training
from fedsmoo.runs.simulation import Simulation

SIZES = (9, 5, 7, 1, 4, 11)
# Bernoulli cohorts of these rounds under this seed: one is empty, the others differ in size (checked by a test).
SEED, ROUNDS = 68, 4

OPTIONS: dict[str, dict[str, Any]] = {"mlp": {"hidden": 6}, "cnn_gn": {"width": 4}, "softmax": {}, "lenet": {}}


def dataset(side: int = 6, classes: int = 3, seed: int = 0) -> Dataset:
    """Noisy patterns whose classes lean with the client."""
    rng = np.random.default_rng(seed)
    labels = np.concatenate([rng.choice(classes, n, p=np.roll([0.7, 0.2, 0.1], i)) for i, n in enumerate(SIZES)])
    x = rng.standard_normal((classes, 1, side, side))[labels] + rng.standard_normal((len(labels), 1, side, side))
    x_, y_ = torch.from_numpy(x), torch.from_numpy(labels)
    return Dataset("small", x_, y_, x_[:10], y_[:10], classes)


def indices() -> list[np.ndarray]:
    ends = np.cumsum(SIZES)
    return [np.arange(end - n, end) for end, n in zip(ends, SIZES, strict=True)]


def make_setup(model: str, algorithm: Algorithm, clip: float | None = 1.0, scope: str = "all") -> Setup:
    data = dataset(side=16 if model == "lenet" else 6)
    flat = build(model, data, 0, **OPTIONS[model])
    flat.module.double()
    return Setup(Task(flat, data, torch.device("cpu"), torch.float64), algorithm, LocalRule(0.01, clip, scope))


def make_engine(kind: str, setup: Setup) -> Any:
    if kind == "serial":
        return Serial(setup)
    if kind in ("hand", "vmap"):
        return Batched(setup, oracle=kind)
    if kind.startswith("chunk"):
        return Batched(setup, chunk=int(kind[5:]))
    chunk = int(kind[8:]) if kind[8:] else None  # "recorded", "recorded2": CUDA's buffers
    return Batched(setup, chunk=chunk, stepper=recorded)


def recorded(oracle: Oracle) -> ReplayStepper:
    """Steps on CUDA's buffers, neither compiled nor captured."""
    return ReplayStepper(oracle, compile=False, capture=True)


def simulation(
    kind: str | Callable[[Setup], Engine],
    model: str,
    algorithm: Algorithm,
    rule: dict[str, Any] | None = None,
    **training: Any,
) -> Simulation:
    """A run of the small federation on a kind of engine, or on the one that a function makes."""
    setup = make_setup(model, algorithm, **(rule or {}))
    settings = {"rounds": ROUNDS, "cohort": 3, "sampling": "bernoulli", "local_epochs": 1, "batch_size": 4, "lr": 0.2}
    settings |= {"lr_decay": 0.9, "seed": SEED, "eval_every": 10**6}
    engine = make_engine(kind, setup) if isinstance(kind, str) else kind(setup)
    return Simulation(setup, engine, Training(**settings | training), indices())


def on_engine(run: Simulation, engine: Engine) -> Simulation:
    """The same run from its start on another engine."""
    return Simulation(run.setup, engine, run.training, run.indices)


Trace = list[dict[str, Tensor]]


def trace(run: Simulation) -> Trace:
    """All that a run holds after every round: server, client rows, loss and drift."""
    out: Trace = []
    for _ in range(run.training.rounds):
        record = run.advance()
        out.append(state(run, record))
    return out


def state(run: Simulation, record: Record) -> dict[str, Tensor]:
    """What a run holds after a round."""
    held = {f"server {n}": v for n, v in run.server.items()}
    for i, row in run.engine.table.items():
        held |= {f"client {i} {n}": v.clone() for n, v in row.items()}
    numbers = [record.train_loss or 0.0, record.drift or 0.0, record.drift_after or 0.0]
    return {**held, "loss, drifts": torch.tensor(numbers, dtype=torch.float64)}


def largest_gap(a: Trace, b: Trace) -> float:
    """The largest difference of two runs; they must hold the same things."""
    worst = 0.0
    for x, y in zip(a, b, strict=True):
        assert x.keys() == y.keys()
        worst = max(worst, *(float((x[k] - y[k]).abs().max()) for k in x))
    return worst
