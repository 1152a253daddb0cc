"""Curvature of a loss at a model: largest eigenvalues, trace and spectral density of the Hessian, never formed.

All of it uses Hessian-vector products only. References: Lanczos as implemented in ARPACK (Lehoucq, Sorensen, Yang,
1998); Hutchinson, "A stochastic estimator of the trace", 1990; Meyer et al., "Hutch++: optimal stochastic trace
estimation", SOSA 2021; Ubaru, Chen, Saad, "Fast estimation of tr(f(A)) via stochastic Lanczos quadrature", 2017.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedsmoo.core import FedsmooError
from fedsmoo.core.errors import unknown
from fedsmoo.core.random.streams import stream

# v [P] or [K, P] -> H v
Products = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Estimate:
    """A number with its standard error, and how many products it took."""

    value: float
    error: float
    products: int


@dataclass(frozen=True)
class Density:
    """A spectral density as a sum of weighted points (they sum to 1), and smoothed on a grid."""

    nodes: np.ndarray
    weights: np.ndarray
    grid: np.ndarray
    values: np.ndarray


def signs(like: Tensor, count: int, seed: int, purpose: str) -> Tensor:
    """Return random vectors of +1 and -1, ``[count, P]``, from a named stream."""
    draws = stream(seed, purpose).integers(0, 2, (count, like.numel()), dtype=np.int8)
    return torch.from_numpy(draws).to(like.device, like.dtype) * 2 - 1


def top_eigenvalues(
    products: Products, like: Tensor, k: int = 1, tol: float = 1e-3, which: str = "LA", seed: int = 0
) -> tuple[np.ndarray, Tensor, int]:
    """Return the k largest eigenvalues in falling order, their eigenvectors ``[k, P]``, and how many products it took.

    Args:
        products: the symmetric operator.
        like: a vector of the operator's size, device and type.
        k: how many.
        tol: relative accuracy.
        which: ``LA`` algebraically largest, ``LM`` largest in size, ``SA`` most negative.
        seed: names the stream of the starting vector.
    """
    from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh  # half a second, only when asked

    size, taken = like.numel(), 0
    if not 1 <= k < size:
        raise FedsmooError(f"{k} eigenvalues of a model with {size} parameters: choose from 1 to {size - 1}")

    def matvec(v: np.ndarray) -> np.ndarray:
        nonlocal taken
        taken += 1
        along = torch.from_numpy(np.ascontiguousarray(v).reshape(-1)).to(like.device, like.dtype)
        return products(along).double().cpu().numpy()

    operator = LinearOperator((size, size), matvec=matvec, dtype=np.float64)
    start = stream(seed, "lanczos start").standard_normal(size)
    basis = min(size, max(2 * k + 1, 12))  # a small basis restarts more often but looks at the answer sooner
    try:
        values, vectors = eigsh(operator, k=k, which=which, tol=tol, v0=start, ncv=basis, maxiter=50 * k)
    except ArpackNoConvergence as e:
        raise FedsmooError(f"Lanczos found {len(e.eigenvalues)} of {k} eigenvalues: raise tol or take fewer") from e
    order = np.argsort(-values if which != "LM" else -np.abs(values))
    return values[order], torch.from_numpy(vectors.T[order].copy()).to(like.device, like.dtype), taken


def hutchinson(products: Products, like: Tensor, probes: int = 30, seed: int = 0, group: int = 5) -> Estimate:
    """``tr H`` as the mean of ``v' H v`` over random signs v; the error is its standard error.

    ``group`` vectors go through the model together.
    """
    if probes < 2:
        raise FedsmooError(f"{probes} probes for a trace: at least 2 are needed to state an error")
    values: list[float] = []
    for first in range(0, probes, group):
        v = signs(like, min(group, probes - first), seed, f"hutchinson {first}")
        values += (v * products(v)).sum(1).double().tolist()
    return Estimate(float(np.mean(values)), float(np.std(values, ddof=1)) / math.sqrt(probes), probes)


def hutch_plus_plus(products: Products, like: Tensor, probes: int = 30, seed: int = 0) -> Estimate:
    """``tr H`` with the part in a random sketch's range exact, and Hutchinson's estimate of the rest.

    A third of the probes make the sketch Q, a third its exact trace ``tr Q'HQ``, a third the rest. Much better than
    Hutchinson's where a few eigenvalues hold most of the trace, as they do in trained networks.
    """
    third = probes // 3
    if third < 2:
        raise FedsmooError(f"{probes} probes for Hutch++: at least 6 are needed")
    third = min(third, like.numel())
    q = torch.linalg.qr(products(signs(like, third, seed, "hutch++ sketch")).T, mode="reduced").Q.T
    exact = (q * products(q)).sum().item()
    v = signs(like, third, seed, "hutch++ rest")
    v = v - (v @ q.T) @ q
    rest = (v * products(v)).sum(1).double().cpu().numpy()
    return Estimate(exact + float(rest.mean()), float(rest.std(ddof=1)) / math.sqrt(third), 3 * third)


TRACES = {"hutchinson": hutchinson, "hutch++": hutch_plus_plus}


def trace(products: Products, like: Tensor, probes: int = 30, seed: int = 0, method: str = "hutch++") -> Estimate:
    """Return the trace by a named estimator."""
    if method not in TRACES:
        raise unknown("trace estimator", method, TRACES)
    return TRACES[method](products, like, probes, seed)


def lanczos(products: Products, start: Tensor, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the tridiagonal matrix of ``steps`` Lanczos steps from a vector: its diagonal and off-diagonal.

    Every vector is made orthogonal to all before it, twice, since rounding would otherwise bring copies of converged
    eigenvalues. Stops early where the Krylov space is exhausted.
    """
    q = start / start.norm()
    basis, diagonal, beside = [q], [], []
    largest = 0.0  # product so far: rounding is of its size, whatever units the operator has
    steps = min(steps, start.numel())
    for j in range(steps):
        v = products(basis[j])
        largest = max(largest, v.norm().item())
        diagonal.append(torch.dot(v, basis[j]).item())
        known = torch.stack(basis)
        for _ in range(2):
            v = v - (known @ v) @ known
        length = v.norm().item()
        if length <= 10 * torch.finfo(v.dtype).eps * largest or j + 1 == steps:
            break
        beside.append(length)
        basis.append(v / length)
    return np.array(diagonal), np.array(beside)


def density(
    products: Products, like: Tensor, steps: int = 30, vectors: int = 4, points: int = 400, seed: int = 0
) -> Density:
    """Return the spectral density ``(1/P) sum_j delta(x - eigenvalue_j)`` by stochastic Lanczos quadrature.

    Each random vector gives ``steps`` Ritz values with the squares of the first components as weights; on the grid they
    are Gaussians of a hundredth of the spectrum's width.
    """
    nodes: list[float] = []
    weights: list[float] = []
    for start in signs(like, vectors, seed, "density"):
        diagonal, beside = lanczos(products, start, steps)
        matrix = np.diag(diagonal) + np.diag(beside, 1) + np.diag(beside, -1)
        values, ritz = np.linalg.eigh(matrix)
        nodes += values.tolist()
        weights += (ritz[0] ** 2 / vectors).tolist()
    at, mass = np.array(nodes), np.array(weights)
    width = max(float(at.max() - at.min()), 1e-12)
    sigma = width / 100
    grid = np.linspace(at.min() - 0.05 * width, at.max() + 0.05 * width, points)
    bells = np.exp(-((grid[:, None] - at) ** 2) / (2 * sigma**2)) / (sigma * math.sqrt(2 * math.pi))
    return Density(at, mass, grid, bells @ mass)
