"""The loss around a model: on a plane of filter-normalised random directions, through models, and along lines.

Filter normalisation scales a random direction, filter by filter, to the model's own filters,
``d_jk <- d_jk / ||d_jk|| * ||w_jk||`` for filter k of layer j, and leaves biases and norms alone (zero). Then two
models that differ only by the scales of their filters, which a ReLU network cannot tell apart, look the same.

Reference: Li et al., "Visualizing the loss landscape of neural nets", NeurIPS 2018; planes through models: Garipov et
al., "Loss surfaces, mode connectivity, and fast ensembling of DNNs", NeurIPS 2018.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsmoo.analysis.measurement import OnSamples, Subject, Values, finite, positive
from fedsmoo.analysis.objective import Objective
from fedsmoo.core import FedsmooError, option
from fedsmoo.core.streams import stream
from fedsmoo.core.untrusted import matrix, number, numbers, text
from fedsmoo.models.base import FlatModel


@dataclass(frozen=True)
class Surface:
    """Loss and accuracy at ``origin + a[i] * across + b[j] * along``."""

    a: np.ndarray
    b: np.ndarray
    loss: np.ndarray  # [len(a), len(b)]
    accuracy: np.ndarray


@dataclass(frozen=True)
class Plane:
    """A plane through models: where it starts, what spans it, and where the models lie on it."""

    origin: Tensor
    across: Tensor
    along: Tensor
    places: list[tuple[float, float]]


def filter_normalised(model: FlatModel, w: Tensor, direction: Tensor) -> Tensor:
    """Return a direction with every filter as long as the model's; vectors (biases, norms) are left alone.

    A filter is what makes one output: a row of a linear layer, a kernel of a convolution, in the exported layout.
    """
    weights, drawn = model.state_dict(w), model.state_dict(direction)
    out = {}
    for name, d in drawn.items():
        if d.dim() < 2:
            out[name] = torch.zeros_like(d)
            continue
        length = d.flatten(1).norm(dim=1)
        scale = weights[name].flatten(1).norm(dim=1) / torch.where(length > 0, length, 1)
        out[name] = d * scale.view(-1, *[1] * (d.dim() - 1))
    return model.flatten(out).to(w)


def random_direction(like: Tensor, seed: int, number: int) -> Tensor:
    """Return the same Gaussian direction for every model of this size."""
    draws = stream(seed, "landscape direction", number).standard_normal(like.numel(), dtype=np.float32)
    return torch.from_numpy(draws).to(like.device, like.dtype)


def random_plane(model: FlatModel, w: Tensor, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Two filter-normalised directions; the seed alone decides the draw, so that methods are seen in the same ones."""
    across, along = (filter_normalised(model, w, random_direction(w, seed, k)) for k in range(2))
    return across, along


def plane_through(models: Sequence[Tensor], seed: int = 0) -> Plane:
    """Return the plane through two or three models, in units of the distance of the first two.

    With two, the second axis is a random direction at right angles. The axes have the same length and are orthogonal,
    so that distances on the plane are true.
    """
    if len(models) not in (2, 3):
        raise FedsmooError(f"a plane goes through two or three models, not {len(models)}")
    origin, across = models[0], models[1] - models[0]
    size = across.norm()
    if size == 0:
        raise FedsmooError("the first two models are the same: no plane is defined by them")
    third = models[2] - origin if len(models) == 3 else random_direction(origin, seed, 0)
    rest = third - (torch.dot(third, across) / size**2) * across
    if rest.norm() <= 1e-6 * third.norm():
        raise FedsmooError("the three models lie on a line: no plane is defined by them")
    along = rest / rest.norm() * size
    places = [(torch.dot(m - origin, across) / size**2, torch.dot(m - origin, along) / size**2) for m in models]
    return Plane(origin, across, along, [(a.item(), b.item()) for a, b in places])


def surface(
    objective: Objective, origin: Tensor, across: Tensor, along: Tensor, a: np.ndarray, b: np.ndarray, models: int = 32
) -> Surface:
    """Return loss and accuracy on a grid, ``models`` grid points evaluated at once as a batch of models."""
    first, second = (g.ravel() for g in np.meshgrid(a, b, indexing="ij"))
    losses, accuracies = evaluate_points(objective, origin, (across, along), np.stack([first, second], 1), models)
    shape = (len(a), len(b))
    return Surface(a, b, losses.reshape(shape), accuracies.reshape(shape))


def line(
    objective: Objective, start: Tensor, end: Tensor, t: np.ndarray, models: int = 32
) -> tuple[np.ndarray, np.ndarray]:
    """Return losses and accuracies at ``(1 - t) start + t end``."""
    return evaluate_points(objective, start, (end - start,), t[:, None], models)


def evaluate_points(
    objective: Objective, origin: Tensor, axes: Sequence[Tensor], places: np.ndarray, models: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return losses and accuracies at ``origin + places @ axes``, a batch of models at a time.

    The last batch is filled up with the origin, so that kernels made for one number of models serve them all.
    """
    span = torch.stack(list(axes))
    at = torch.from_numpy(places).to(span)
    models = min(models, len(at))
    evaluate = objective.evaluator(models)
    losses, accuracies = [], []
    for part in at.split(models):
        filled = torch.cat([part, part.new_zeros(models - len(part), part.shape[1])])
        loss, accuracy = evaluate(origin + filled @ span)
        losses.append(loss[: len(part)])
        accuracies.append(accuracy[: len(part)])
    return torch.cat(losses).cpu().numpy(), torch.cat(accuracies).cpu().numpy()


def trusted_surface(values: Mapping[str, Any]) -> Values | None:
    """Return what a page shows of a surface; nothing where its losses are no table."""
    loss, models = matrix(values.get("loss")), values.get("models")
    if loss is None:
        return None
    return {
        "a": numbers(values.get("a"), 5)[: len(loss)],
        "b": numbers(values.get("b"), 5)[: len(loss[0])],
        "loss": loss,
        "accuracy": matrix(values.get("accuracy")),
        "part": text(values.get("part", ""), 40),
        "samples": number(values.get("samples")),
        "models": [
            {"name": text(m.get("name", ""), 200), "a": number(m.get("a")), "b": number(m.get("b"))}
            for m in (models if isinstance(models, list) else [])[:10]
            if isinstance(m, dict)
        ],
    }


def surface_values(found: Surface) -> Values:
    return {
        "a": found.a.tolist(),
        "b": found.b.tolist(),
        "loss": [finite(row) for row in found.loss],
        "accuracy": [finite(row) for row in found.accuracy],
    }


def centred(points: int, span: float) -> np.ndarray:
    """Return an axis with the model itself among its points."""
    if points < 3 or points % 2 == 0:
        raise FedsmooError(f"a grid of {points} points has no middle for the model: take an odd number from 3")
    positive("span", span)
    return np.linspace(-span, span, points)


def around(places: list[float], points: int) -> np.ndarray:
    """Return an axis that shows all models with a margin."""
    low, high = min(places), max(places)
    margin = 0.3 * max(high - low, 0.5)
    return np.linspace(low - margin, high + margin, points)


def refuse_other_shapes(runs: Sequence[Subject]) -> None:
    for run in runs[1:]:
        if run.task.model.layout != runs[0].task.model.layout:
            raise FedsmooError(f"{run.path} and {runs[0].path} hold models of different shape: no line joins them")


@dataclass(frozen=True)
class AtPoints(OnSamples):
    """A measurement of many models that lie on a grid or a line."""

    part: str = option("test", "measure on the train or the test part")
    size: int = option(500, "samples in memory at a time", within="(0, inf)")
    points: int = option(51, "points on each axis")
    models: int = option(32, "models evaluated at once", within="(0, inf)")


@dataclass(frozen=True)
class LandscapeMeasurement(AtPoints):
    """Loss and accuracy on a grid of filter-normalised directions; the same seed shows every run in the same ones."""

    name = "landscape"
    help = "Loss and accuracy around a model, in directions that all runs share."
    columns = ("loss at the model", "highest loss", "samples", "seconds")

    span: float = option(1.0, "how far to go, in lengths of the filters")

    def measure(self, run: Subject, *others: Subject) -> Values:
        loss, began = self.loss(run), time.perf_counter()
        across, along = random_plane(run.task.model, run.w, self.seed)
        axis = centred(self.points, self.span)
        values = surface_values(surface(loss, run.w, across, along, axis, axis, self.models))
        if values["loss"][self.points // 2][self.points // 2] is None:
            raise FedsmooError(f"{run.path}: the loss at the model is not finite; has the run diverged?")
        seconds = time.perf_counter() - began
        return {**values, "directions_seed": self.seed, "seconds": seconds, **self.about(loss)}

    def rows(self, name: str, values: Values) -> list[list[str]]:
        centre = values["loss"][self.points // 2][self.points // 2]
        highest = max(v for row in values["loss"] for v in row if v is not None)
        return [[name, f"{centre:.4f}", f"{highest:.4f}", self.measured_on(values), f"{values['seconds']:.1f}"]]

    @classmethod
    def trusted(cls, values: Mapping[str, Any]) -> Values | None:
        return trusted_surface(values)


@dataclass(frozen=True)
class PlaneMeasurement(AtPoints):
    """Loss and accuracy on the plane through the final models of two or three runs."""

    name = "plane"
    help = "Loss on the plane through the models of two or three runs."
    columns = ("lowest loss", "highest loss", "samples")
    together = (2, 3)

    def measure(self, run: Subject, *others: Subject) -> Values:
        runs, loss = [run, *others], self.loss(run)
        refuse_other_shapes(runs)
        if self.points < 2:
            raise FedsmooError(f"a plane of {self.points} points per axis: take at least 2")
        plane = plane_through([r.w for r in runs], self.seed)
        a, b = (around([p[k] for p in plane.places], self.points) for k in range(2))
        found = surface(loss, plane.origin, plane.across, plane.along, a, b, self.models)
        marks = [{"name": r.name, "a": p[0], "b": p[1]} for r, p in zip(runs, plane.places, strict=True)]
        return {**surface_values(found), "models": marks, **self.about(loss)}

    def rows(self, name: str, values: Values) -> list[list[str]]:
        known = [v for row in values["loss"] for v in row if v is not None]
        names = " and ".join(m["name"] for m in values["models"])
        return [[names, f"{min(known):.4f}", f"{max(known):.4f}", self.measured_on(values)]] if known else []

    @classmethod
    def trusted(cls, values: Mapping[str, Any]) -> Values | None:
        return trusted_surface(values)


@dataclass(frozen=True)
class LineMeasurement(AtPoints):
    """Loss and accuracy between (0..1) and beyond the final models of two runs."""

    name = "line"
    help = "Loss on the straight line between the models of two runs."
    columns = ("loss here", "half-way", "there")
    together = (2, 2)

    def measure(self, run: Subject, *others: Subject) -> Values:
        (other,), loss = others, self.loss(run)
        refuse_other_shapes([run, other])
        if self.points < 2:
            raise FedsmooError(f"a line of {self.points} points: take at least 2")
        # The models themselves and the middle are always among the points, whatever the number asked for.
        t = np.unique(np.round([*np.linspace(-0.25, 1.25, self.points), 0.0, 0.5, 1.0], 12))
        losses, accuracies = line(loss, run.w, other.w, t, self.models)
        found = {"t": t.tolist(), "loss": losses.tolist(), "accuracy": accuracies.tolist()}
        return {**found, "models": [run.name, other.name], **self.about(loss)}

    def rows(self, name: str, values: Values) -> list[list[str]]:
        ends = [values["loss"][values["t"].index(t)] for t in (0.0, 0.5, 1.0)]
        return [[" to ".join(values["models"]), *(f"{v:.4f}" for v in ends)]]

    @classmethod
    def trusted(cls, values: Mapping[str, Any]) -> Values | None:
        names = values.get("models")
        return {
            **{n: numbers(values.get(n), 5) for n in ("t", "loss", "accuracy")},
            "models": [text(n, 200) for n in names[:2]] if isinstance(names, list) else [],
        }
