"""How well each client is served: the global model, and personal ones, on every client's own samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedsmoo.core import FedsmooError, Vectors
from fedsmoo.core.errors import unknown
from fedsmoo.engines.personal import statistics_of

if TYPE_CHECKING:
    import pandas as pd

    from fedsmoo.runs.results.result import Result

PARTS = ("auto", "train", "held", "test")


def personal_weights(result: Result, client: int, shared: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """Return the weights of a client's personal model, and its running statistics; ``shared`` are the global model's.

    ``None``: a method without such has the global weights, and a model without such no statistics.
    """
    run, row = result.simulation, result.client_state(client)
    algorithm = run.method_at(max(len(result.history) - 1, 0))
    down = run.setup.masks.sent(algorithm, result.server)
    me = algorithm.first_contact(down) if row is None else Vectors(**row).map(lambda v: v.to(result.server.w.device))
    return algorithm.personal(down, me), None if shared is None else statistics_of(me, shared)


def evaluate_clients(result: Result, on: str) -> pd.DataFrame:
    """Return one row a client: its samples, and accuracy and loss on them of the global and the personal model."""
    import pandas as pd  # late: it takes half a second

    run, rows = result.simulation, []
    personal, shared = run.setup.algorithm.has_personal, run.statistics_of(result.server)
    part, lists = parts_of(result, on)
    for client, samples in enumerate(lists):
        own = {}
        if personal:
            w, statistics = personal_weights(result, client, shared)
            own = evaluate_samples(result, result.server.w if w is None else w, part, samples, statistics)
        row = {"samples": len(samples), **evaluate_samples(result, result.server.w, part, samples, shared)}
        rows.append(row | {f"personal_{name}": value for name, value in own.items()})
    return pd.DataFrame(rows, index=pd.RangeIndex(len(rows), name="client"))


def client_scores(result: Result) -> dict[str, float]:
    """Return what :func:`evaluate_clients` finds as plain numbers: ``{"clients/3/accuracy": 0.81, ...}``."""
    rows = evaluate_clients(result, "auto").drop(columns="samples").to_dict("index")
    return {
        f"clients/{client}/{name}": float(value)
        for client, row in rows.items()
        for name, value in row.items()
        if value is not None and not np.isnan(value)
    }


def parts_of(result: Result, on: str) -> tuple[str, list[np.ndarray]]:
    """Return each client's samples to evaluate on, and which part they are of.

    Those that it trains on, that it holds out, or test samples of its own.
    """
    if on not in PARTS:
        raise unknown("part of a client's samples", on, PARTS)
    run = result.simulation
    if on == "held" and run.held is None:
        raise FedsmooError("on='held': no samples are held out: set holdout, such as 0.2, or take on='train'")
    tests = run.setup.task.data.own_tests(run.indices)
    if on == "test" and tests is None:
        raise FedsmooError("on='test': the clients have no test samples of their own: take on='train', or 'held'")
    if tests is not None and (on == "test" or (on == "auto" and run.held is None)):
        return "test", tests
    return "train", list(run.indices if run.held is None or on == "train" else run.held)


def evaluate_samples(
    result: Result, w: Tensor, part: str, samples: np.ndarray, statistics: Tensor | None
) -> dict[str, float | None]:
    """Return metrics and loss of a model on some samples of a part; nothing is known of no samples."""
    task, engine = result.simulation.setup.task, result.simulation.engine
    if not len(samples):
        return dict.fromkeys((*(m.name for m in task.metrics), "loss"), float("nan"))
    if statistics is not None:
        task.model.hold(statistics)
    with torch.no_grad():
        found = engine.evaluate(w, task.pick(torch.from_numpy(np.asarray(samples)), test=part == "test"))
    return {**found.metrics, "loss": found.loss}
