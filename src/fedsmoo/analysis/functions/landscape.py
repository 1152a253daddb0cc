"""The loss around a model: on a plane of filter-normalised random directions, through models, and along lines.

Filter normalisation scales a random direction, filter by filter, to the model's own filters,
``d_jk <- d_jk / ||d_jk|| * ||w_jk||`` for filter k of layer j, and leaves biases and norms alone (zero). Then two
models that differ only by the scales of their filters, which a ReLU network cannot tell apart, look the same.

Reference: Li et al., "Visualizing the loss landscape of neural nets", NeurIPS 2018; planes through models: Garipov et
al., "Loss surfaces, mode connectivity, and fast ensembling of DNNs", NeurIPS 2018.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedsmoo.analysis.functions.objective import Objective
from fedsmoo.analysis.measurement import refuse_not_positive
from fedsmoo.core import FedsmooError
from fedsmoo.core.random.streams import stream
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
        if d.dim() < 2 or not d.is_floating_point():  # buffers may hold whole numbers
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
    """Return two filter-normalised directions; they depend on the seed alone, so that all methods share them."""
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


def centred_axis(points: int, span: float) -> np.ndarray:
    """Return an axis with the model itself among its points."""
    if points < 3 or points % 2 == 0:
        raise FedsmooError(f"a grid of {points} points has no middle for the model: take an odd number from 3")
    refuse_not_positive("span", span)
    return np.linspace(-span, span, points)


def axis_around(places: list[float], points: int) -> np.ndarray:
    """Return an axis that shows all models with a margin."""
    low, high = min(places), max(places)
    margin = 0.3 * max(high - low, 0.5)
    return np.linspace(low - margin, high + margin, points)


def axis_beyond(points: int) -> np.ndarray:
    """Return an axis from before one model, at 0, to behind another, at 1; both and the middle are among its points."""
    return np.unique(np.round([*np.linspace(-0.25, 1.25, points), 0.0, 0.5, 1.0], 12))
