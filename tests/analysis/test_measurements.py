"""Measurements by hand: a run whose vectors are known, and what pages take of files that anybody may have written."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fedsmoo.algorithms import FedAvg, FedSMOO, FedSpeed
from fedsmoo.analysis.consistency import ConsistencyMeasurement
from fedsmoo.analysis.fairness import FairnessMeasurement, PartitionMeasurement
from fedsmoo.analysis.functions.landscape import axis_around, centred_axis
from fedsmoo.analysis.functions.objective import Objective
from fedsmoo.analysis.functions.sharpness import average_case
from fedsmoo.analysis.hessian import HessianMeasurement
from fedsmoo.analysis.landscape import LandscapeMeasurement, LineMeasurement, PlaneMeasurement
from fedsmoo.analysis.measurement import Measurement
from fedsmoo.analysis.privacy import PrivacyMeasurement
from fedsmoo.analysis.probes import Schedule
from fedsmoo.core import Vectors, unit
from fedsmoo.core.errors import FedsmooError
from fedsmoo.core.untrusted import numbers
from fedsmoo.runs.analyse import measure_runs

from .conftest import Small, small_task


def subject(algorithm: Any = None, scale: float = 1.0, name: str = "run", **rows: dict[int, dict]) -> SimpleNamespace:
    """A finished run of a small task: the initial model times ``scale``, eight clients of twenty samples."""
    task = small_task("softmax")
    w = scale * task.model.initial() + 0.01
    indices = [np.arange(20 * i, 20 * i + 20) for i in range(8)]
    server = Vectors(w=w, **{n: torch.zeros_like(w) for n in rows.pop("server", ())})
    mine = rows.get("clients", {})
    return SimpleNamespace(
        path=Path(name), name=name, task=task, w=w, indices=indices, algorithm=algorithm or FedAvg(),
        vectors=lambda: (server, mine),
    )  # fmt: skip


def client_gradients(run: SimpleNamespace, clients: list[int]) -> torch.Tensor:
    data = run.task.data
    held = [torch.from_numpy(run.indices[i]) for i in clients]
    return torch.stack([Objective(run.task, data.x_train[i], data.y_train[i]).gradient(run.w) for i in held])


@pytest.mark.parametrize(
    ("algorithm", "radius", "expected"),
    [(FedAvg(), None, 0.1), (FedAvg(), 0.25, 0.25), (FedSpeed(rho=0.4), None, 0.4), (FedSpeed(rho=0.4), 0.3, 0.3)],
)
def test_the_radius_asked_for_is_the_one_taken(algorithm, radius, expected) -> None:
    """Distances are counted in radii: of r u_i from r u, with u the unit vectors of gradients, they hang on no r."""
    zero = torch.zeros_like(small_task("softmax").model.initial())
    run = subject(algorithm, clients={i: {"lam": zero} for i in (6, 1, 4)}, server=("lam",))
    found = ConsistencyMeasurement(radius=radius, clients=2).measure(run)
    assert found["radius"] == expected
    assert (found["clients_met"], found["clients_taken"]) == (3, 2)
    gradients = client_gradients(run, [1, 4])
    apart = (unit(gradients) - unit(gradients.mean(0))).norm(dim=1)
    assert found["perturbation_distance_mean"] == pytest.approx(apart.mean().item(), rel=1e-6)
    assert found["perturbation_distance_max"] == pytest.approx(apart.max().item(), rel=1e-6)
    assert found["dual_gap_lam"] == 0.0
    assert ConsistencyMeasurement().measure(subject(algorithm)) == {}
    with pytest.raises(FedsmooError, match="radius of 0"):
        ConsistencyMeasurement(radius=0.0).measure(run)


def test_a_method_that_perturbs_nothing_has_no_radius() -> None:
    assert FedSMOO(r=0.3).radius == 0.3
    assert FedSMOO(r=0.3, sam=False).radius is None
    assert FedAvg().radius is None


def test_every_so_many_rounds_may_be_every_round() -> None:
    schedule = Schedule.parse("sharpness:1,hessian:3")
    assert [schedule.due(k, 7) for k in (1, 2, 3, 6, 7)] == [
        ["sharpness"], ["sharpness"], ["sharpness", "hessian"], ["sharpness", "hessian"], ["sharpness", "hessian"]
    ]  # fmt: skip
    with pytest.raises(FedsmooError, match="twice"):
        Schedule.parse("sharpness:1,sharpness:2")


def test_four_draws_are_two_pairs_and_enough_for_an_error(small: Small) -> None:
    mean, error = average_case(small.loss, small.w, draws=4)
    assert math.isfinite(mean)
    assert error > 0
    with pytest.raises(FedsmooError, match="at least 4"):
        average_case(small.loss, small.w, draws=3)


def test_a_plane_marks_its_models_where_they_lie() -> None:
    runs = [subject(scale=s, name=n) for s, n in ((1.0, "a"), (2.0, "b"), (-1.0, "c"))]
    runs[2].w[0] += 3.0
    found = PlaneMeasurement(points=5, samples=20).measure(*runs)
    marks = found["models"]
    assert [m["name"] for m in marks] == ["a", "b", "c"]
    assert (marks[0]["a"], marks[0]["b"]) == (0.0, 0.0)
    assert (marks[1]["a"], marks[1]["b"]) == pytest.approx((1.0, 0.0), abs=1e-9)
    # The third by Gram and Schmidt: its part along b - a, and what is left of it, in lengths of b - a.
    across, third = runs[1].w - runs[0].w, runs[2].w - runs[0].w
    along = torch.dot(third, across) / across.square().sum()
    rest = (third - along * across).norm() / across.norm()
    assert (marks[2]["a"], abs(marks[2]["b"])) == pytest.approx((along.item(), rest.item()), rel=1e-9)
    assert found["samples"] == 20
    for k, axis in enumerate("ab"):
        places = [m[axis] for m in marks]
        margin = 0.3 * max(max(places) - min(places), 0.5)
        assert found[axis] == pytest.approx(np.linspace(min(places) - margin, max(places) + margin, 5)), k
    assert PlaneMeasurement.together == (2, 3)


def test_a_line_has_two_ends_and_their_middle() -> None:
    runs = [subject(scale=s, name=n) for s, n in ((1.0, "a"), (2.0, "b"))]
    found = LineMeasurement(points=4, samples=30).measure(*runs)
    assert found["t"] == pytest.approx([-0.25, 0.0, 0.25, 0.5, 0.75, 1.0, 1.25])
    loss = LineMeasurement(points=4, samples=30).loss(runs[0])
    for t, value in zip(found["t"], found["loss"], strict=True):
        assert value == pytest.approx(loss.evaluate((1 - t) * runs[0].w + t * runs[1].w)[0], rel=1e-9)
    ends = [f"{found['loss'][k]:.4f}" for k in (1, 3, 5)]
    assert LineMeasurement().rows("", found) == [["a to b", *ends]]
    assert LineMeasurement.together == (2, 2)


def test_axes() -> None:
    assert centred_axis(5, 2.0).tolist() == [-2.0, -1.0, 0.0, 1.0, 2.0]
    assert axis_around([1.0, 3.0], 3) == pytest.approx([0.4, 2.0, 3.6])
    assert axis_around([1.0], 2) == pytest.approx([0.85, 1.15])
    for points in (1, 2, 4):
        with pytest.raises(FedsmooError, match="odd number from 3"):
            centred_axis(points, 1.0)


def test_samples_per_client_and_class() -> None:
    run = subject()
    counts = PartitionMeasurement().measure(run)["counts"]
    labels = run.task.data.y_train
    expected = [[int((labels[20 * i : 20 * i + 20] == k).sum()) for k in range(10)] for i in range(8)]
    assert counts == expected
    assert PartitionMeasurement().rows("x", {"counts": counts}) == [["x", "8", "10"]]
    assert PartitionMeasurement.trusted({"counts": counts}) is None


def test_pages_take_so_much_of_a_file_and_no_more() -> None:
    many = list(range(30_000))
    found = HessianMeasurement.trusted({"eigenvalues": many, "density": {"grid": many, "values": many}, "trace": "x"})
    assert found["eigenvalues"] == many[:50]
    assert (found["grid"], found["density"]) == (many[:2000], many[:2000])
    assert found["trace"] is None
    names = [f"class {k}" for k in many]
    found = FairnessMeasurement.trusted({"classes": many, "clients": many, "class_names": names, "mean": 0.5, "x": "<"})
    assert (found["classes"], found["clients"], found["mean"]) == (many[:2000], many[:20_000], 0.5)
    assert found["class_names"] == names[:2000]
    assert "x" not in found
    models = [{"name": f"m{k}", "a": k, "b": -k} for k in range(12)]
    surface = {"a": many, "b": many, "loss": [[1, 2, 3], [4, 5, 6]], "models": [*models[:2], 7, *models[2:]]}
    for kind in (LandscapeMeasurement, PlaneMeasurement):
        found = kind.trusted(surface)
        assert (found["a"], found["b"], found["loss"]) == ([0, 1], [0, 1, 2], [[1, 2, 3], [4, 5, 6]])
        assert found["models"] == models[:9]  # of the first ten, which one is no model
        assert kind.trusted({"loss": "no table"}) is None
    found = LineMeasurement.trusted({"t": [0, 1], "loss": [2, 3], "accuracy": "?", "models": ["a", "b", "c"]})
    assert found == {"t": [0, 1], "loss": [2, 3], "accuracy": [], "models": ["a", "b"]}
    assert numbers([1, "2", 3.0, None], limit=3) == [1, None, 3]
    assert numbers("12") == []


def test_how_many_runs_a_measurement_goes_through() -> None:
    several = ((PlaneMeasurement, 1, "2 or 3"), (PlaneMeasurement, 4, "2 or 3"), (LineMeasurement, 3, "2"))
    for kind, given, words in several:
        with pytest.raises(FedsmooError, match=f"goes through {words} runs, but {given} are given"):
            next(measure_runs([Path(f"run{k}") for k in range(given)], kind()))


@pytest.mark.parametrize(
    ("kind", "option", "value", "allowed"),
    [
        (PrivacyMeasurement, "delta", 2.0, "above 0 and below 1"),  # at which every epsilon is 0
        (PrivacyMeasurement, "delta", 0.0, "above 0 and below 1"),
        (PrivacyMeasurement, "delta", math.nan, "above 0 and below 1"),
        (HessianMeasurement, "tol", -1.0, "above 0"),
        (HessianMeasurement, "density", -1, "at least 0"),
        (ConsistencyMeasurement, "clients", 0, "above 0"),
    ],
)
def test_options_outside_their_interval_are_refused(kind: type[Measurement], option: str, value: Any, allowed: str):
    with pytest.raises(FedsmooError, match=f"^{option} is {value}, but must be {allowed}$"):
        kind(**{option: value})
