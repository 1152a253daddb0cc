"""Landscapes: the centre is the recorded loss, filter normalisation is blind to scales, planes go through models."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedsmoo.analysis.functions.landscape import (
    filter_normalised,
    line,
    plane_through,
    random_direction,
    random_plane,
    surface,
)
from fedsmoo.analysis.functions.objective import Objective, objective
from fedsmoo.core.errors import FedsmooError
from fedsmoo.engines.task import Task

from .conftest import Small, small_task

GRID = np.linspace(-1, 1, 5)


def test_centre_is_the_recorded_loss_and_points_are_single_evaluations(small: Small) -> None:
    task = small.loss.task
    test = objective(task, "test", size=100)
    across, along = random_plane(task.model, small.w)
    found = surface(test, small.w, across, along, GRID, GRID, models=7)
    scores = task.evaluate(small.w)  # what a run records
    accuracy, loss = scores.lead, scores.loss
    assert found.loss[2, 2] == pytest.approx(loss, rel=1e-12)
    assert found.accuracy[2, 2] == accuracy
    scores = task.evaluate(small.w + GRID[1] * across + GRID[4] * along)
    accuracy, loss = scores.lead, scores.loss
    assert found.loss[1, 4] == pytest.approx(loss, rel=1e-11)
    assert found.accuracy[1, 4] == accuracy


def test_a_model_without_batched_forward_gives_the_same(small: Small) -> None:
    task = small.loss.task
    plain = type(task.model)(task.model.module)
    plain.batched = None
    bare = Objective(Task(plain, task.data, task.device, task.dtype), small.loss.x, small.loss.y, size=25)
    w = small.w + 0.1 * torch.arange(3.0, dtype=torch.float64)[:, None]
    for one, other in zip(bare.evaluate_many(w), small.loss.evaluate_many(w), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=0)


def test_every_filter_of_a_direction_is_as_long_as_the_model_s(small: Small) -> None:
    model = small.loss.task.model
    d = filter_normalised(model, small.w, random_direction(small.w, 0, 0))
    weights, parts = model.layout.split(small.w), model.layout.split(d)
    for name, part in parts.items():
        if part.dim() > 1:
            torch.testing.assert_close(part.flatten(1).norm(dim=1), weights[name].flatten(1).norm(dim=1))
        else:
            assert not part.any()
    again = filter_normalised(model, small.w, 17.0 * random_direction(small.w, 0, 0))
    torch.testing.assert_close(again, d)  # the draw's own length does not matter


def test_rescaled_relu_network_has_the_same_landscape() -> None:
    """Scaling a hidden unit's incoming weights by c and its outgoing ones by 1/c changes neither f nor the picture."""
    task = small_task("mlp", hidden=5)
    layout, w = task.model.layout, task.model.initial()
    c = torch.tensor([0.2, 3.0, 1.0, 7.0, 0.5], dtype=torch.float64)
    parts = {n: p.clone() for n, p in layout.split(w).items()}
    parts["fc1.weight"] *= c[:, None]
    parts["fc1.bias"] *= c
    parts["fc2.weight"] /= c
    twin = layout.join(parts)
    loss = objective(task, "test", samples=50)
    assert loss.evaluate(twin)[0] == pytest.approx(loss.evaluate(w)[0], rel=1e-12)

    def picture(v: torch.Tensor, normalise: bool) -> np.ndarray:
        # The draw in the twin's own coordinates, as the symmetry maps it; filters of fc2 mix scales, so only fc1 moves.
        d = layout.split(random_direction(v, 0, 0))
        only = layout.join({n: p if n == "fc1.weight" else torch.zeros_like(p) for n, p in d.items()})
        d1 = filter_normalised(task.model, v, only) if normalise else only
        return surface(loss, v, d1, torch.zeros_like(d1), GRID, GRID[:1]).loss

    np.testing.assert_allclose(picture(w, True), picture(twin, True), rtol=1e-10)
    assert np.abs(picture(w, False) - picture(twin, False)).max() > 1e-3  # without it the picture changes


def test_the_same_seed_gives_methods_the_same_draw(small: Small) -> None:
    model = small.loss.task.model
    one, other = random_plane(model, small.w, 3)[0], random_plane(model, 2 * small.w, 3)[0]
    torch.testing.assert_close(2 * one, other)
    assert not torch.allclose(one, random_plane(model, small.w, 4)[0])


def test_plane_through_three_models(small: Small) -> None:
    w = small.w
    models = [w, w + random_direction(w, 1, 0), w - 0.5 * random_direction(w, 1, 1)]
    plane = plane_through(models)
    assert plane.places[0] == (0.0, 0.0)
    assert plane.places[1] == pytest.approx((1.0, 0.0), abs=1e-12)
    for (a, b), model in zip(plane.places, models, strict=True):
        torch.testing.assert_close(plane.origin + a * plane.across + b * plane.along, model)
    assert torch.dot(plane.across, plane.along).abs() < 1e-9 * plane.across.norm() ** 2
    assert plane.across.norm().item() == pytest.approx(plane.along.norm().item())
    with pytest.raises(FedsmooError, match="on a line"):
        plane_through([w, 2 * w, 3 * w])
    with pytest.raises(FedsmooError, match="the same"):
        plane_through([w, w])
    assert len(plane_through(models[:2]).places) == 2


def test_line_ends_at_the_models(small: Small) -> None:
    other = small.w + 0.3 * random_direction(small.w, 2, 0)
    losses, accuracies = line(small.loss, small.w, other, np.array([0.0, 0.5, 1.0]))
    assert losses[0] == pytest.approx(small.loss.evaluate(small.w)[0], rel=1e-12)
    assert losses[2] == pytest.approx(small.loss.evaluate(other)[0], rel=1e-12)
    assert losses[1] == pytest.approx(small.loss.evaluate((small.w + other) / 2)[0], rel=1e-12)
    assert accuracies[2] == small.loss.evaluate(other)[1]


def test_subsample_is_drawn_from_its_stream(small: Small) -> None:
    task = small.loss.task
    one, same, other = (objective(task, "train", 30, seed) for seed in (0, 0, 1))
    assert torch.equal(one.x, same.x)
    assert not torch.equal(one.x, other.x)
    assert objective(task, "test", 10**9).samples == len(task.data.x_test)
    with pytest.raises(FedsmooError, match="unknown part"):
        objective(task, "validation")
