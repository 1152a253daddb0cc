"""Sharpness on quadratics, where the answer is known, and on a network against brute force."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from fedsmoo.analysis.functions.sharpness import average_case, worst_case
from fedsmoo.core.errors import FedsmooError
from fedsmoo.core.random.streams import stream

from .conftest import Small


class Quadratic:
    """``f(w) = w'A w / 2 + b'w``."""

    def __init__(self, a: Tensor, b: Tensor) -> None:
        self.a, self.b = a, b

    def evaluate(self, w: Tensor) -> tuple[float, float]:
        return self.evaluate_many(w[None])[0].item(), 0.0

    def gradient(self, w: Tensor) -> Tensor:
        return self.a @ w + self.b

    def evaluate_many(self, w: Tensor) -> tuple[Tensor, Tensor]:
        values = 0.5 * ((w @ self.a) * w).sum(1) + w @ self.b
        return values, torch.zeros_like(values)


def spd(size: int) -> Tensor:
    q = torch.linalg.qr(torch.from_numpy(stream(0, "test").standard_normal((size, size)))).Q
    return q @ torch.diag(torch.linspace(1, 10, size, dtype=torch.float64)) @ q.T


def test_at_a_minimum_it_is_half_the_top_eigenvalue_times_radius_squared() -> None:
    a = spd(8)
    found = worst_case(Quadratic(a, torch.zeros(8, dtype=a.dtype)), torch.zeros(8, dtype=a.dtype), 0.3, steps=200)
    assert found.value == pytest.approx(0.5 * 0.3**2 * 10.0, rel=1e-6)
    assert found.perturbation.norm().item() == pytest.approx(0.3)


def test_with_a_slope_it_solves_the_secular_equation() -> None:
    """The maximum of a convex quadratic over a sphere: (t I - A) e = b with t > lambda_max and ||e|| = r."""
    a, b, r = spd(6), torch.arange(1.0, 7.0, dtype=torch.float64), 0.5
    values, vectors = np.linalg.eigh(a.numpy())
    along = vectors.T @ b.numpy()
    low, high = values[-1] + 1e-9, values[-1] + 1e3
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.linalg.norm(along / (middle - values)) > r else (low, middle)
    e = torch.from_numpy(vectors @ (along / (low - values)))
    loss = Quadratic(a, b)
    found = worst_case(loss, torch.zeros(6, dtype=a.dtype), r, steps=300)
    assert found.value == pytest.approx(loss.evaluate(e)[0], rel=1e-9)


def test_average_case_is_the_trace() -> None:
    """On the sphere the mean of e'A e / 2 is r^2 tr A / (2 P)."""
    a = spd(12)
    value, error = average_case(Quadratic(a, torch.zeros(12, dtype=a.dtype)), torch.zeros(12, dtype=a.dtype), 0.5, 4000)
    assert value == pytest.approx(0.5 * 0.25 * a.trace().item() / 12, abs=4 * error)
    assert error < 0.01 * value


def test_on_a_network_no_random_perturbation_beats_it(small: Small) -> None:
    found = worst_case(small.loss, small.w, 0.2, steps=10)
    here = small.loss.evaluate(small.w)[0]
    assert small.loss.evaluate(small.w + found.perturbation)[0] - here == pytest.approx(found.value, rel=1e-12)
    e = torch.from_numpy(stream(5, "test").standard_normal((100, len(small.w))))
    random = small.loss.evaluate_many(small.w + 0.2 * e / e.norm(dim=1, keepdim=True))[0] - here
    assert found.value > random.max().item() > 0
    average, error = average_case(small.loss, small.w, 0.2, draws=100, seed=9)
    assert average == pytest.approx(random.mean().item(), abs=5 * random.std().item() / 10)
    assert error < random.std().item() / 10  # pairs cancel the slope, so they know better than as many single draws


def test_radius_and_draws_are_checked(small: Small) -> None:
    with pytest.raises(FedsmooError, match="above 0"):
        worst_case(small.loss, small.w, 0.0)
    with pytest.raises(FedsmooError, match="at least 4"):
        average_case(small.loss, small.w, draws=3)


def test_the_best_point_of_an_ascent_counts_even_if_it_goes_on_to_a_worse_one() -> None:
    """sin(2 x) from 0 with a radius of 1: the first step finds sin 2 = 0.909, the next one goes to -1 and stays."""

    class Wave:
        def evaluate(self, w: Tensor) -> tuple[float, float]:
            return torch.sin(2 * w).item(), 0.25

        def gradient(self, w: Tensor) -> Tensor:
            return 2 * torch.cos(2 * w)

    for steps in (0, 1, 2, 5):
        found = worst_case(Wave(), torch.zeros(1, dtype=torch.float64), 1.0, steps, starts=1)
        assert found.value == pytest.approx(np.sin(2.0))
        assert found.perturbation.tolist() == pytest.approx([1.0])
