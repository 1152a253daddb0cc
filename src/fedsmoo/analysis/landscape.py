"""Measure the loss around a model: on planes in directions that runs share, through models, and along lines."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedsmoo.analysis.measurement import OnSamples, Subject, Values, json_numbers
from fedsmoo.core.errors import FedsmooError
from fedsmoo.core.hyper.options import option
from fedsmoo.core.untrusted import matrix, number, numbers, text

if TYPE_CHECKING:
    from fedsmoo.analysis.functions.landscape import Surface


def surface_values(found: Surface) -> Values:
    return {
        "a": found.a.tolist(),
        "b": found.b.tolist(),
        "loss": [json_numbers(row) for row in found.loss],
        "accuracy": [json_numbers(row) for row in found.accuracy],
    }


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
class OnGrid(AtPoints):
    """A measurement whose result is a surface."""

    @classmethod
    def trusted(cls, values: Mapping[str, Any]) -> Values | None:
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


@dataclass(frozen=True)
class LandscapeMeasurement(OnGrid):
    """Loss and accuracy on a grid of filter-normalised directions; the same seed shows every run in the same ones."""

    name = "landscape"
    help = "Loss and accuracy around a model, in directions that all runs share."
    columns = ("loss at the model", "highest loss", "samples", "seconds")

    span: float = option(1.0, "how far to go, in lengths of the filters")

    def measure(self, run: Subject, *others: Subject) -> Values:
        from fedsmoo.analysis.functions.landscape import centred_axis, random_plane, surface

        loss, began = self.loss(run), time.perf_counter()
        across, along = random_plane(run.task.model, run.w, self.seed)
        axis = centred_axis(self.points, self.span)
        values = surface_values(surface(loss, run.w, across, along, axis, axis, self.models))
        if values["loss"][self.points // 2][self.points // 2] is None:
            raise FedsmooError(f"{run.path}: the loss at the model is not finite; has the run diverged?")
        seconds = time.perf_counter() - began
        return {**values, "directions_seed": self.seed, "seconds": seconds, **self.about(loss)}

    def rows(self, name: str, values: Values) -> list[list[str]]:
        centre = values["loss"][self.points // 2][self.points // 2]
        highest = max(v for row in values["loss"] for v in row if v is not None)
        return [[name, f"{centre:.4f}", f"{highest:.4f}", self.measured_on(values), f"{values['seconds']:.1f}"]]


@dataclass(frozen=True)
class PlaneMeasurement(OnGrid):
    """Loss and accuracy on the plane through the final models of two or three runs."""

    name = "plane"
    help = "Loss on the plane through the models of two or three runs."
    columns = ("lowest loss", "highest loss", "samples")
    together = (2, 3)

    def measure(self, run: Subject, *others: Subject) -> Values:
        from fedsmoo.analysis.functions.landscape import axis_around, plane_through, surface

        runs, loss = [run, *others], self.loss(run)
        refuse_other_shapes(runs)
        if self.points < 2:
            raise FedsmooError(f"a plane of {self.points} points per axis: take at least 2")
        plane = plane_through([r.w for r in runs], self.seed)
        a, b = (axis_around([p[k] for p in plane.places], self.points) for k in range(2))
        found = surface(loss, plane.origin, plane.across, plane.along, a, b, self.models)
        marks = [{"name": r.name, "a": p[0], "b": p[1]} for r, p in zip(runs, plane.places, strict=True)]
        return {**surface_values(found), "models": marks, **self.about(loss)}

    def rows(self, name: str, values: Values) -> list[list[str]]:
        known = [v for row in values["loss"] for v in row if v is not None]
        names = " and ".join(m["name"] for m in values["models"])
        return [[names, f"{min(known):.4f}", f"{max(known):.4f}", self.measured_on(values)]] if known else []


@dataclass(frozen=True)
class LineMeasurement(AtPoints):
    """Loss and accuracy between (0..1) and beyond the final models of two runs."""

    name = "line"
    help = "Loss on the straight line between the models of two runs."
    columns = ("loss here", "half-way", "there")
    together = (2, 2)

    def measure(self, run: Subject, *others: Subject) -> Values:
        from fedsmoo.analysis.functions.landscape import axis_beyond, line

        (other,), loss = others, self.loss(run)
        refuse_other_shapes([run, other])
        if self.points < 2:
            raise FedsmooError(f"a line of {self.points} points: take at least 2")
        t = axis_beyond(self.points)
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
