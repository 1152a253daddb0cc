"""Hessian products, Lanczos, traces and densities against the dense Hessian in float64."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from fedsmoo.analysis.functions import hessian
from fedsmoo.analysis.functions.objective import objective
from fedsmoo.core.errors import FedsmooError
from fedsmoo.core.random.streams import stream

from .conftest import Small, small_task


def vectors(small: Small, count: int) -> torch.Tensor:
    return torch.from_numpy(stream(1, "test vectors").standard_normal((count, len(small.w))))


def test_products_are_those_of_the_dense_hessian(small: Small) -> None:
    v = vectors(small, 3)
    expected = v @ small.dense
    torch.testing.assert_close(small.loss.products(small.w, v), expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(small.loss.products(small.w, v[0]), expected[0], rtol=1e-10, atol=1e-12)


def test_gradient_and_loss_do_not_depend_on_the_batches(small: Small) -> None:
    whole = type(small.loss)(small.loss.task, small.loss.x, small.loss.y, size=1000)
    torch.testing.assert_close(small.loss.gradient(small.w), whole.gradient(small.w), rtol=1e-12, atol=1e-14)
    assert small.loss.evaluate(small.w) == pytest.approx(whole.evaluate(small.w), rel=1e-13)


def test_a_loss_without_curvature_gives_zero() -> None:
    task = dataclasses.replace(small_task("softmax"), loss=lambda out, y: out.sum(-1))
    w = task.model.initial()
    loss = objective(task, "train", samples=20)
    assert loss.gradient(w).norm() > 0
    assert not loss.products(w, torch.ones_like(w)).any()


def test_top_eigenvalues_and_vectors(small: Small) -> None:
    true = torch.linalg.eigvalsh(small.dense).flip(0)
    products = lambda v: small.loss.products(small.w, v)  # noqa: E731
    values, found, taken = hessian.top_eigenvalues(products, small.w, k=3, tol=1e-9)
    np.testing.assert_allclose(values, true[:3].numpy(), rtol=1e-7)
    torch.testing.assert_close(found @ small.dense, torch.from_numpy(values)[:, None] * found, rtol=0, atol=1e-6)
    assert taken < len(small.w)
    lowest, _, _ = hessian.top_eigenvalues(products, small.w, k=1, tol=1e-9, which="SA")
    assert lowest[0] == pytest.approx(true[-1].item(), rel=1e-6)


@pytest.mark.parametrize("method", list(hessian.TRACES))
def test_trace_within_its_stated_error(small: Small, method: str) -> None:
    true = small.dense.trace().item()
    estimates = [hessian.trace(lambda v: v @ small.dense, small.w, 60, seed, method) for seed in range(30)]
    off = np.array([e.value for e in estimates]) - true
    stated = np.array([e.error for e in estimates])
    # The stated error is the spread one sees, and the mean over 30 seeds is unbiased to four of its own errors.
    assert abs(off.mean()) < 4 * stated.mean() / np.sqrt(30)
    assert 0.5 < off.std() / stated.mean() < 2.0


def test_hutch_plus_plus_is_exact_on_low_rank() -> None:
    u = torch.linalg.qr(torch.from_numpy(stream(2, "test").standard_normal((40, 5)))).Q
    matrix = u @ torch.diag(torch.tensor([9.0, 5.0, 1.0, -2.0, 0.5], dtype=torch.float64)) @ u.T
    estimate = hessian.hutch_plus_plus(lambda v: v @ matrix, torch.zeros(40, dtype=torch.float64), probes=18)
    assert estimate.value == pytest.approx(13.5, abs=1e-9)
    assert estimate.error < 1e-9


def test_trace_from_real_products(small: Small) -> None:
    estimate = hessian.hutchinson(lambda v: small.loss.products(small.w, v), small.w, probes=20)
    literal = hessian.hutchinson(lambda v: v @ small.dense, small.w, probes=20)
    assert estimate.value == pytest.approx(literal.value, rel=1e-8)
    assert abs(estimate.value - small.dense.trace().item()) < 4 * estimate.error


def test_lanczos_quadrature_matches_moments(small: Small) -> None:
    """m steps integrate polynomials up to degree 2m - 1 exactly: v'H^k v for k = 0..7 from four steps."""
    start = vectors(small, 1)[0]
    diagonal, beside = hessian.lanczos(lambda v: v @ small.dense, start, 4)
    values, ritz = np.linalg.eigh(np.diag(diagonal) + np.diag(beside, 1) + np.diag(beside, -1))
    power, unit_start = start / start.norm(), start / start.norm()
    for k in range(8):
        assert (ritz[0] ** 2 * values**k).sum() == pytest.approx((unit_start @ power).item(), rel=1e-8, abs=1e-10)
        power = small.dense @ power


def test_density_has_mass_one_and_the_spectrum_s_mean(small: Small) -> None:
    found = hessian.density(lambda v: v @ small.dense, small.w, steps=25, vectors=40, seed=3)
    true = torch.linalg.eigvalsh(small.dense).numpy()
    assert found.weights.sum() == pytest.approx(1.0, abs=1e-9)
    assert np.trapezoid(found.values, found.grid) == pytest.approx(1.0, abs=0.02)
    assert found.nodes.max() == pytest.approx(true.max(), rel=1e-3)
    spread = np.sqrt((true**2).mean())
    assert (found.weights * found.nodes).sum() == pytest.approx(true.mean(), abs=0.1 * spread)


@pytest.mark.parametrize("units", [1.0, 1e-2, 1e-6])
def test_density_of_flat_losses_is_no_single_point(units: float) -> None:
    """Few eigenvalues far above the many near zero, as in trained networks, in float32 and whatever their size."""
    eigenvalues = torch.linspace(0, 0.01, 20000)
    eigenvalues[:10] = torch.linspace(1, 5, 10)
    found = hessian.density(lambda v: v * units * eigenvalues, torch.zeros(20000), vectors=2)
    assert len(found.nodes) == 60
    assert found.nodes.max() == pytest.approx(5 * units, rel=1e-3)


def test_lanczos_stops_where_the_space_is_exhausted() -> None:
    eigenvalues = torch.tensor([3.0, 3.0, 1.0, 1.0, 0.0, 0.0]) * 1e-3
    diagonal, beside = hessian.lanczos(lambda v: v * eigenvalues, torch.ones(6), 6)
    assert (len(diagonal), len(beside)) == (3, 2)
    assert [len(v) for v in hessian.lanczos(lambda v: 0 * v, torch.ones(6), 6)] == [1, 0]


def test_impossible_questions_are_refused() -> None:
    like = torch.zeros(3)
    with pytest.raises(FedsmooError, match="choose from 1 to 2"):
        hessian.top_eigenvalues(lambda v: v, like, k=3)
    with pytest.raises(FedsmooError, match="at least 2"):
        hessian.hutchinson(lambda v: v, like, probes=1)
    with pytest.raises(FedsmooError, match=r"did you mean 'hutch\+\+'"):
        hessian.trace(lambda v: v, like, method="hutch+")
