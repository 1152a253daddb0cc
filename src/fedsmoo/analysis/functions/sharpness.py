"""How much the loss can rise, and rises on average, within a radius of a model.

    worst case     max over ||e|| <= r of f(w + e) - f(w)
    average case   mean over ||e|| = r of f(w + e) - f(w)

Reference: Foret et al., "Sharpness-aware minimization for efficiently improving generalization", ICLR 2021.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fedsmoo.core import FedsmooError, unit
from fedsmoo.core.random.streams import stream


class Loss(Protocol):
    """What sharpness needs of a loss."""

    def evaluate(self, w: Tensor) -> tuple[float, float]: ...
    def gradient(self, w: Tensor) -> Tensor: ...
    def evaluate_many(self, w: Tensor) -> tuple[Tensor, Tensor]: ...


@dataclass(frozen=True)
class Sharpness:
    """The rise of the loss, and the perturbation that causes it."""

    value: float
    perturbation: Tensor


def random_on_sphere(like: Tensor, count: int, radius: float, seed: int, purpose: str) -> Tensor:
    draws = stream(seed, purpose).standard_normal((count, like.numel()))
    return radius * unit(torch.from_numpy(draws).to(like.device, like.dtype))


def worst_case(
    loss: Loss, w: Tensor, radius: float = 0.1, steps: int = 20, starts: int = 2, seed: int = 0
) -> Sharpness:
    """Return the largest rise that ascent finds: ``e <- r * unit(f'(w + e))``, the best of all points seen.

    Each step maximises the linearised loss over the ball; where the loss is convex no step goes down, and at a minimum
    it is power iteration on the Hessian. One ascent starts at SAM's own perturbation ``r * unit(f'(w))``, the others
    at random points. The result is a lower bound of the maximum, and never below zero (e = 0).
    """
    if radius <= 0:
        raise FedsmooError(f"the radius is {radius:g}, but must be above 0")
    here = loss.evaluate(w)[0]
    best, where = here, torch.zeros_like(w)
    sam = radius * unit(loss.gradient(w))
    for e in [sam, *random_on_sphere(w, max(0, starts - 1), radius, seed, "sharpness start")]:
        for _ in range(steps):
            value = loss.evaluate(w + e)[0]
            if value > best:
                best, where = value, e
            e = radius * unit(loss.gradient(w + e))
        value = loss.evaluate(w + e)[0]
        if value > best:
            best, where = value, e
    return Sharpness(best - here, where)


def average_case(
    loss: Loss, w: Tensor, radius: float = 0.1, draws: int = 32, seed: int = 0, models: int = 8
) -> tuple[float, float]:
    """Return the mean rise over random perturbations of length ``radius``, and its standard error.

    Perturbations come in pairs ``e, -e``: the first-order term of the loss then cancels exactly.
    """
    pairs = draws // 2
    if pairs < 2:
        raise FedsmooError(f"{draws} draws for an average: at least 4 are needed to state an error")
    here = loss.evaluate(w)[0]
    rises: list[Tensor] = []
    for first in range(0, pairs, models // 2):
        count = min(models // 2, pairs - first)
        e = random_on_sphere(w, count, radius, seed, f"average sharpness {first}")
        found = loss.evaluate_many(torch.cat([w + e, w - e]))[0]
        rises.append((found[:count] + found[count:]) / 2 - here)
    values = torch.cat(rises).double()
    return values.mean().item(), values.std().item() / math.sqrt(pairs)
