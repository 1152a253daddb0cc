"""A tiny model on a tiny batch, for methods that ask for outputs and have losses of their own."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from fedsmoo.core.contract.form import CLIENTS, SCALE, to_scale
from fedsmoo.core.gradient import Loss, Running, row_axes, sample_losses
from fedsmoo.core.random.streams import torch_stream

SAMPLES, CLASSES, FEATURES = 5, 3, 4
FEW = 2  # of the samples


@cache
def seed_of(place: int) -> int:
    return torch_stream(0, "contract", place).initial_seed()


def generator_of(place: int) -> torch.Generator:
    """Return the generator of one kind of input; a check asks for hundreds, so its seed is kept."""
    return torch.Generator().manual_seed(seed_of(place))


class TinyModel:
    """Outputs and features that are linear in the first weights, of one client or of all of them at once.

    ``sees_features`` says whether losses see features, too.
    """

    def __init__(self, client: int | None, sees_features: bool) -> None:
        self.several, self.sees_features, self.used = client is None, sees_features, min(SCALE.get().size, 7)
        generator = generator_of(10)
        shape = (CLIENTS, SAMPLES, CLASSES + FEATURES, self.used)
        x = to_scale(torch.randn(shape, generator=generator, dtype=torch.float64))
        y = (torch.arange(CLIENTS * SAMPLES).view(CLIENTS, SAMPLES) ** 2 % CLASSES).to(x.device)
        self.x, self.y = (x, y) if client is None else (x[client], y[client])
        self.weight = torch.full_like(self.y, 1 / SAMPLES, dtype=x.dtype)
        self.asked: list[tuple[Tensor, Loss, Sequence[Any]]] = []  # for gradients of losses of the method's own

    def carrying(self, running: Running) -> TinyModel:
        return self

    def forward(self, v: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        out, features = (x @ v[: self.used]).split([CLASSES, FEATURES], -1)
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
        slope = grad_and_value(value)
        slope = vmap(slope, (0, 0, 0, 0, *row_axes(given)), randomness="error") if self.several else slope
        return slope(v, self.x, self.y, self.weight, *given)

    def sees_others(self, v: Tensor, loss: Loss, given: Sequence[Any]) -> bool:
        """Return whether a loss of one client says otherwise of a sample in a longer batch: it would see padding."""

        def losses(n: int) -> Tensor:
            both = self.forward(v.detach(), self.x[:n])
            mine = [g[:n] if isinstance(g, Tensor) and g.dim() and len(g) == SAMPLES else g for g in given]
            return sample_losses(loss, both if self.sees_features else both[0], self.y[:n], mine)

        return not torch.allclose(losses(SAMPLES)[:FEW], losses(FEW), rtol=1e-3, equal_nan=True)
