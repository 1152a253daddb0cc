"""A tiny model on a tiny batch, for methods that ask for outputs and have losses of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, grad_and_value, vmap
from torch.nn import functional as F

from fedsmoo.core.contract.form import CLIENTS, SCALE, to_scale
from fedsmoo.core.gradient import Each, Loss, Running, row_axes, sample_losses, sample_rows, weighed
from fedsmoo.core.random.streams import torch_stream

FEW = 2  # of the samples


@cache
def seed_of(place: int) -> int:
    return torch_stream(0, "contract", place).initial_seed()


def generator_of(place: int) -> torch.Generator:
    """Return the generator of one kind of input; a check asks for hundreds, so its seed is kept."""
    return torch.Generator().manual_seed(seed_of(place))


class TinyModel:
    """Outputs and features that are linear in the first weights, of one client or of all of them at once.

    ``sees_features`` says whether losses see features, too. Clients may have ``unequal`` batches, each one sample less
    than the one before, which are filled up where all of them are computed at once.
    """

    def __init__(self, client: int | None, sees_features: bool, unequal: bool = False) -> None:
        scale = SCALE.get()
        self.several, self.sees_features, self.used = client is None, sees_features, min(scale.size, 7)
        self.parts, self.samples = [scale.classes, scale.features], scale.samples
        generator = generator_of(10)
        shape = (CLIENTS, scale.samples, sum(self.parts), self.used)
        x = to_scale(torch.randn(shape, generator=generator, dtype=torch.float64))
        y = (torch.arange(CLIENTS * scale.samples).view(CLIENTS, -1) ** 2 % scale.classes).to(x.device)
        real = scale.samples - torch.arange(CLIENTS, device=x.device) * unequal
        weight = (torch.arange(scale.samples, device=x.device) < real[:, None]) / real[:, None].to(x.dtype)
        n = scale.samples if client is None else int(real[client])
        one = slice(None) if client is None else client
        self.x, self.y, self.weight = x[one][..., :n, :, :], y[one][..., :n], weight[one][..., :n]
        self.lengths = real.tolist() if self.several and unequal else []
        self.asked: list[tuple[Tensor, Each, Sequence[Any]]] = []  # of losses of its own, and means

    def carrying(self, running: Running) -> TinyModel:
        return self

    def forward(self, v: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        out, features = (x @ v[: self.used]).split(self.parts, -1)
        return out, features

    def look(self, v: Tensor) -> tuple[Tensor, Tensor]:
        return (vmap(self.forward) if self.several else self.forward)(v.detach(), self.x)

    def outputs(self, v: Tensor) -> Tensor:
        return self.look(v)[0]

    def features(self, v: Tensor) -> Tensor:
        return self.look(v)[1]

    def own(self, v: Tensor, loss: Loss, given: Sequence[Any]) -> tuple[Tensor, Tensor]:
        def value(v: Tensor, x: Tensor, y: Tensor, weight: Tensor, *given: Any) -> Tensor:
            both = self.forward(v, x)
            return (weight * sample_losses(loss, both if self.sees_features else both[0], y, given)).sum()

        self.asked.append((v, loss, given))
        found: tuple[Tensor, Tensor] = self._each(grad_and_value(value), v, given)
        return found

    def mean(self, v: Tensor, each: Each, given: Sequence[Any]) -> Tensor:
        self.asked.append((v, each, given))
        return self._mean(v, each, given, self.sees_features)

    def loss(self, v: Tensor) -> Tensor:
        return self._mean(v, partial(F.cross_entropy, reduction="none"), (), False)

    def _mean(self, v: Tensor, each: Each, given: Sequence[Any], features: bool) -> Tensor:
        def value(v: Tensor, x: Tensor, y: Tensor, weight: Tensor, *given: Any) -> Tensor:
            both = self.forward(v, x)
            return weighed(sample_rows(each, both if features else both[0], y, given).to(weight), weight)

        found: Tensor = self._each(value, v.detach(), given)
        return found

    def _each(self, function: Callable[..., Any], v: Tensor, given: Sequence[Any]) -> Any:
        """Return what a function of one client says of one, or of all: each on its own samples alone."""
        if not self.several:
            return function(v, self.x, self.y, self.weight, *given)
        many = vmap(function, (0, 0, 0, 0, *row_axes(given)), randomness="error")
        if not self.lengths:
            return many(v, self.x, self.y, self.weight, *given)
        found = []
        for c, n in enumerate(self.lengths):
            mine = [cut(g, c, n, self.samples) if isinstance(g, Tensor) and g.dim() else g for g in given]
            one = slice(c, c + 1)
            found.append(many(v[one], self.x[one, :n], self.y[one, :n], self.weight[one, :n], *mine))
        return torch.cat(found) if isinstance(found[0], Tensor) else tuple(map(torch.cat, zip(*found, strict=True)))

    def sees_others(self, v: Tensor, each: Each, given: Sequence[Any]) -> bool:
        """Return whether a loss, or what a mean is of, says otherwise of a sample in a longer batch: it sees padding.

        Slopes are looked at, too, and closely: what samples make of each other may be a small part of a loss.
        """

        def first(v: Tensor, n: int) -> tuple[Tensor, Tensor]:
            both = self.forward(v, self.x[:n])
            mine = [g[:n] if isinstance(g, Tensor) and g.dim() and len(g) == self.samples else g for g in given]
            rows = sample_rows(each, both if self.sees_features else both[0], self.y[:n], mine)[:FEW].to(v)
            return (rows.T @ torch.arange(1, FEW + 1).to(rows)).sum(), rows  # a plain sum may be 0 whatever they are

        def same(a: Tensor, b: Tensor) -> bool:
            near = 1e-9 if a.dtype == torch.float64 else 1e-5
            return torch.allclose(a, b, rtol=0, atol=near * float(a.nan_to_num().abs().max()), equal_nan=True)

        slope = grad(first, has_aux=True)
        return not all(map(same, slope(v.detach(), self.samples), slope(v.detach(), FEW)))


def cut(v: Tensor, client: int, n: int, samples: int) -> Tensor:
    """Return the row of a client, with its own samples alone where it has a row for each."""
    one = v[client : client + 1]
    return one[:, :n] if one.dim() > 1 and one.shape[1] == samples else one
