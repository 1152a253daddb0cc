"""Learning rates that move within a round, an option of any method: linear (FedSWA, Liu et al., ICML 2025), cosine
(Loshchilov and Hutter, ICLR 2017) and cyclic (Smith, WACV 2017)."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsmoo.algorithms.around import Around
from fedsmoo.core import Gradient, Round, Vectors, derived, option


@dataclass(frozen=True)
class LocalRate(Around, ABC):
    """Any method, with a learning rate that starts anew in every round and moves from step to step.

    client   w_i <- w_i - lr a(k / K) d          a(0) = 1; K: the client's steps of the round

    A method that divides by lr K, such as SCAFFOLD, divides by lr times the sum of the a: each client adds it up in
    ``rates``, a single number that it sends.
    """

    end: float = option(0.1, "the smallest share of the learning rate", within="[0, 1]")

    local = derived(lambda self: (*self.inner.local, "rates"))
    up = derived(lambda self: (*self.inner.up, "rates"))
    scalars = derived(lambda self: (*self.inner.scalars, "rates"))
    public = derived(lambda self: (*self.inner.public, "rates"))

    @abstractmethod
    def share(self, t: Tensor) -> Tensor:
        """Return the share of the learning rate when a part ``t`` of the round's steps is done."""

    def rate(self, rnd: Round) -> Tensor:
        """Return a(k / K)."""
        return self.end + (1 - self.end) * self.share(rnd.step / rnd.steps)

    def direction(self, w: Tensor, grad: Gradient, down: Vectors, me: Vectors) -> tuple[Tensor, Vectors]:
        now = dataclasses.replace(grad.rnd, lr=grad.rnd.lr * self.rate(grad.rnd))
        return self.inner.direction(w, grad.told(now), down, me)

    def update(self, w: Tensor, d: Tensor, me: Vectors, rnd: Round) -> tuple[Tensor, Vectors]:
        a = self.rate(rnd)
        return self.inner.update(w, d, me.replace(rates=me.rates + a), dataclasses.replace(rnd, lr=rnd.lr * a))

    def finish(self, w: Tensor, down: Vectors, me: Vectors, rnd: Round) -> tuple[Vectors, Vectors]:
        mean = dataclasses.replace(rnd, lr=rnd.lr * me.rates / rnd.steps)
        mine, up = self.inner.finish(w, down, me, mean)
        return mine, up.replace(rates=me.rates)

    def aggregate(self, srv: Vectors, mean: Vectors, rnd: Round) -> Vectors:
        return self.inner.aggregate(srv, mean, dataclasses.replace(rnd, lr=rnd.lr * mean.rates / rnd.steps))

    @property
    def label(self) -> str:
        return f"{self.inner.label}+{type(self).__name__.lower()}"


@dataclass(frozen=True)
class Linear(LocalRate):
    """A learning rate that falls in equal steps.

    client   a(t) = 1 - (1 - end) t
    """

    def share(self, t: Tensor) -> Tensor:
        return 1 - t


@dataclass(frozen=True)
class Cosine(LocalRate):
    """A learning rate that falls along half a cosine.

    client   a(t) = end + (1 - end) (1 + cos(pi t)) / 2
    """

    def share(self, t: Tensor) -> Tensor:
        return (1 + torch.cos(math.pi * t)) / 2


@dataclass(frozen=True)
class Cyclic(LocalRate):
    """A learning rate that falls and rises again, some times in a round.

    client   a(t) = end + (1 - end) |1 - 2 u|,   u = cycles t modulo 1
    """

    cycles: float = option(1.0, "how often it falls and rises in a round", within="(0, inf)")

    def share(self, t: Tensor) -> Tensor:
        return (1 - 2 * torch.remainder(self.cycles * t, 1)).abs()


# The name of the setting local_schedule -> what is put around the method; constant is the method itself.
RATES: dict[str, type[Around]] = {"linear": Linear, "cosine": Cosine, "cyclic": Cyclic}
