"""The measurements that are kept beside a run, each as one dictionary ready for JSON."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedsmoo.algorithms import ALGORITHMS
from fedsmoo.analysis import bound, consistency, hessian, landscape, sharpness
from fedsmoo.analysis.fairness import fairness
from fedsmoo.analysis.objective import Objective, objective
from fedsmoo.core import FedsmooError
from fedsmoo.experiment.runfolder import device_name
from fedsmoo.experiment.saved import SavedRun
from fedsmoo.report.measured import FOLDER


def measure_hessian(
    run: SavedRun, loss: Objective, k: int = 5, probes: int = 30, tol: float = 1e-3, steps: int = 0, seed: int = 0
) -> dict[str, Any]:
    """Top eigenvalues and trace; with ``steps``, the spectral density by so many Lanczos steps."""

    def products(v: torch.Tensor) -> torch.Tensor:
        return loss.products(run.w, v)

    began = time.perf_counter()
    values, _, taken = hessian.top_eigenvalues(products, run.w, k, tol, seed=seed)
    found = time.perf_counter()
    trace = hessian.trace(products, run.w, probes, seed)
    traced = time.perf_counter()
    out: dict[str, Any] = {
        "eigenvalues": values.tolist(),
        "trace": trace.value,
        "trace_error": trace.error,
        "trace_method": "hutch++",
        "products": taken + trace.products,
        "tolerance": tol,
        "seconds_eigenvalues": found - began,
        "seconds_trace": traced - found,
    }
    if steps:
        spectrum = hessian.density(products, run.w, steps, seed=seed)
        out["density"] = {"grid": spectrum.grid.tolist(), "values": spectrum.values.tolist()}
    return out


def measure_landscape(
    run: SavedRun, loss: Objective, points: int = 51, span: float = 1.0, seed: int = 0, models: int = 32
) -> dict[str, Any]:
    """The loss on a grid of filter-normalised directions; the same seed shows every run in the same directions."""
    began = time.perf_counter()
    across, along = landscape.random_plane(run.task.model, run.w, seed)
    axis = centred(points, span)
    found = landscape.surface(loss, run.w, across, along, axis, axis, models)
    return {**surface_values(found), "directions_seed": seed, "seconds": time.perf_counter() - began}


def measure_plane(
    runs: Sequence[SavedRun], loss: Objective, points: int = 51, seed: int = 0, models: int = 32
) -> dict[str, Any]:
    """The loss on the plane through the final models of two or three runs."""
    same_task(runs)
    if points < 2:
        raise FedsmooError(f"a plane of {points} points per axis: take at least 2")
    plane = landscape.plane_through([r.w for r in runs], seed)
    a, b = (around([p[k] for p in plane.places], points) for k in range(2))
    found = landscape.surface(loss, plane.origin, plane.across, plane.along, a, b, models)
    marks = [{"name": r.name, "a": p[0], "b": p[1]} for r, p in zip(runs, plane.places, strict=True)]
    return {**surface_values(found), "models": marks}


def measure_line(one: SavedRun, other: SavedRun, loss: Objective, points: int = 51, models: int = 32) -> dict[str, Any]:
    """Loss and accuracy between (0..1) and beyond the final models of two runs."""
    same_task([one, other])
    if points < 2:
        raise FedsmooError(f"a line of {points} points: take at least 2")
    # The models themselves and the middle are always among the points, whatever the number asked for.
    t = np.unique(np.round([*np.linspace(-0.25, 1.25, points), 0.0, 0.5, 1.0], 12))
    losses, accuracies = landscape.line(loss, one.w, other.w, t, models)
    return {"t": t.tolist(), "loss": losses.tolist(), "accuracy": accuracies.tolist(), "models": [one.name, other.name]}


def measure_sharpness(
    run: SavedRun, loss: Objective, radius: float = 0.1, steps: int = 20, draws: int = 32
) -> dict[str, Any]:
    """Worst-case and average-case rise of the loss within a radius."""
    positive("the radius", radius)
    average, error = sharpness.average_case(loss, run.w, radius, draws)
    return {
        "sharpness": sharpness.worst_case(loss, run.w, radius, steps).value,
        "average": average,
        "average_error": error,
        "radius": radius,
    }


def measure_bound(run: SavedRun, loss: Objective, eps: float = 0.1, r: float = 0.1, p: float = 0.05) -> dict[str, Any]:
    """The capacity term, the margin error at the perturbed model, and the bound's second term."""
    positive("the radius", r)
    positive("eps", eps)
    module = run.task.model.export(run.w)
    x = next(loss.batches())[0]
    layers = bound.weight_layers(module, x)
    input_norm = max(x.flatten(1).norm(dim=1).max().item() for x, _ in loss.batches())
    s = bound.sam_perturbation(loss, run.w, r)
    return {
        "log10_capacity": bound.log_capacity(layers) / math.log(10),
        "margin_error": bound.margin_error(loss, run.w, s, eps),
        "log10_bound_term": bound.bound_term(layers, loss.samples, input_norm, eps, p) / math.log(10),
        "eps": eps,
        "radius": r,
        "p": p,
        "layers": [asdict(layer) for layer in layers],
    }


def measure_fairness(run: SavedRun) -> dict[str, Any]:
    """Accuracy per class and per client, and of the worst and best tenth."""
    found = fairness(run.task, run.w, run.indices)
    return {
        "mean": found.mean,
        "deviation": found.deviation,
        "worst_tenth": found.worst_tenth,
        "best_tenth": found.best_tenth,
        "classes": finite(found.classes),
        "clients": finite(found.clients),
        "own": finite(found.own),
        "class_names": list(run.task.data.class_names or [str(k) for k in range(run.task.data.classes)]),
    }


def radius_of(run: SavedRun) -> float:
    """The radius of the run's own method, the paper's r or rho; 0.1 where it has none."""
    known = ALGORITHMS.get(run.config.algorithm.lower())
    defaults = {f.name: f.default for f in fields(known)} if known else {}
    options = {**defaults, **run.config.algorithm_options}
    return float(options.get("r", options.get("rho", 0.1)))


def measure_consistency(run: SavedRun, radius: float | None = None, clients: int = 20) -> dict[str, Any]:
    """Dual gaps from the newest checkpoint, and how far clients' perturbations are from the global one.

    The radius is the method's own unless said. Perturbations are those of so many clients, the first that were met.
    A method whose clients keep no vectors has nothing to measure: the result is empty.
    """
    r = radius_of(run) if radius is None else radius
    if not 0 < r < math.inf:
        raise FedsmooError(f"{run.path}: a radius of {r:g} is no unit of distance: say one above 0 with --radius")
    server, rows = run.vectors()
    if not rows:
        return {}
    met = sorted(rows)[:clients]
    data = run.task.data
    losses = []
    for i in met:
        held = torch.from_numpy(run.indices[i]).to(run.task.device)
        losses.append(Objective(run.task, data.x_train[held], data.y_train[held], "train"))
    s = getattr(server, "s", None) if "s" in server.names() else None
    duals = torch.stack([rows[i]["mu"] for i in met]) if s is not None and "mu" in rows[met[0]] else None
    out: dict[str, Any] = {f"dual_gap_{n}": v for n, v in consistency.dual_gaps(server, rows, len(run.indices)).items()}
    found = consistency.perturbations(losses, server.w, r, s if duals is not None else None, duals)
    out |= {f"perturbation_distance_{n}": v for n, v in found.items()}
    return {**out, "clients_met": len(rows), "clients_taken": len(met), "radius": r}


def measure_partition(run: SavedRun) -> dict[str, Any]:
    """Samples per client and class."""
    labels, classes = run.task.data.y_train.cpu().numpy(), run.task.data.classes
    table = [np.bincount(labels[held].reshape(-1), minlength=classes).tolist() for held in run.indices]
    return {"counts": table, "class_names": list(run.task.data.class_names or []) or None}


def centred(points: int, span: float) -> np.ndarray:
    """An axis with the model itself among its points."""
    if points < 3 or points % 2 == 0:
        raise FedsmooError(f"a grid of {points} points has no middle for the model: take an odd number from 3")
    positive("span", span)
    return np.linspace(-span, span, points)


def positive(name: str, value: float) -> None:
    """Refuse a length that is none, nan and inf among them."""
    if not 0 < value < math.inf:
        raise FedsmooError(f"{name} is {value:g}, but must be above 0 and finite")


def around(places: list[float], points: int) -> np.ndarray:
    """An axis that shows all models with a margin."""
    low, high = min(places), max(places)
    margin = 0.3 * max(high - low, 0.5)
    return np.linspace(low - margin, high + margin, points)


def surface_values(found: landscape.Surface) -> dict[str, Any]:
    return {
        "a": found.a.tolist(),
        "b": found.b.tolist(),
        "loss": [finite(row) for row in found.loss],
        "accuracy": [finite(row) for row in found.accuracy],
    }


def finite(values: np.ndarray) -> list[float | None]:
    """Numbers for JSON, which knows no nan."""
    return [v if math.isfinite(v) else None for v in np.asarray(values, float).tolist()]


def same_task(runs: Sequence[SavedRun]) -> None:
    for run in runs[1:]:
        if run.task.model.layout != runs[0].task.model.layout:
            raise FedsmooError(f"{run.path} and {runs[0].path} hold models of different shape: no line joins them")


def loss_of(run: SavedRun, part: str, samples: int | None, seed: int = 0, size: int = 1000) -> Objective:
    return objective(run.task, part, samples, seed, size)


def keep(run: SavedRun, name: str, values: dict[str, Any], loss: Objective | None = None) -> Path:
    """Write a measurement beside its run, with what it was measured on."""
    facts: dict[str, Any] = {"device": device_name(run.task.device), "precision": run.task.precision}
    if loss is not None:
        facts |= {"part": loss.part, "samples": loss.samples}
    path = run.path / FOLDER / f"{name}.json"
    try:
        path.parent.mkdir(exist_ok=True)
        part = path.with_suffix(".part")
        part.write_text(json.dumps({**values, **facts}, allow_nan=False) + "\n", encoding="utf-8")
        os.replace(part, path)
    except OSError as e:
        raise FedsmooError(f"cannot write {path}: {e.strerror}") from e
    except ValueError as e:
        raise FedsmooError(f"{run.path}: the {name} has numbers that are not finite; has the run diverged?") from e
    return path
