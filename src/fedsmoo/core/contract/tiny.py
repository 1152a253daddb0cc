"""A tiny model on a tiny batch, for methods that ask for outputs and have losses of their own."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, grad_and_value, vmap

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

    ``pair`` says whether losses see features, too.
    """

    def __init__(self, client: int | None, to: torch.dtype | None, pair: bool) -> None:
        self.several, self.pair, self.used = client is None, pair, min(SCALE.get().size, 7)
        generator = generator_of(10)
        shape = (CLIENTS, SAMPLES, CLASSES + FEATURES, self.used)
        x = to_scale(torch.randn(shape, generator=generator, dtype=torch.float64), to)
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
            return (weight * sample_losses(loss, both if self.pair else both[0], y, given)).sum()

        self.asked.append((v, loss, given))
        slope = grad_and_value(value)
        slope = vmap(slope, (0, 0, 0, 0, *row_axes(given)), randomness="error") if self.several else slope
        return slope(v, self.x, self.y, self.weight, *given)

    def sees_others(self, v: Tensor, loss: Loss, given: Sequence[Any]) -> bool:
        """Return whether a loss of one client says otherwise of a sample in a longer batch: it would see padding.

        Its slopes are looked at, too, and closely: what samples make of each other may be a small part of a loss.
        """

        def first(v: Tensor, n: int) -> tuple[Tensor, Tensor]:
            both = self.forward(v, self.x[:n])
            mine = [g[:n] if isinstance(g, Tensor) and g.dim() and len(g) == SAMPLES else g for g in given]
            each = sample_losses(loss, both if self.pair else both[0], self.y[:n], mine)[:FEW]
            return each @ torch.arange(1, FEW + 1).to(each), each  # no plain sum: it may be 0 whatever they are

        def same(a: Tensor, b: Tensor) -> bool:
            near = 1e-9 if a.dtype == torch.float64 else 1e-5
            return torch.allclose(a, b, rtol=0, atol=near * float(a.nan_to_num().abs().max()), equal_nan=True)

        slope = grad(first, has_aux=True)
        return not all(map(same, slope(v.detach(), SAMPLES), slope(v.detach(), FEW)))
