"""A method around another one: the base of options that any method may have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fedsmoo.algorithms.fedavg import FedAvg
from fedsmoo.core import Algorithm, Round, Vectors
from fedsmoo.core.algorithm import Gradient, option


@dataclass(frozen=True)
class Around(Algorithm):
    """The inner method itself; what wraps it overrides what it changes."""

    inner: Any = option(FedAvg(), "the method inside")

    down = property(lambda self: self.inner.down)  # type: ignore[assignment]
    server = property(lambda self: self.inner.server)  # type: ignore[assignment]
    own = property(lambda self: self.inner.own)  # type: ignore[assignment]
    local = property(lambda self: self.inner.local)  # type: ignore[assignment]
    up = property(lambda self: self.inner.up)  # type: ignore[assignment]

    @property
    def radius(self) -> float | None:
        return self.inner.radius

    def agreement(self, server: Vectors, me: Vectors) -> tuple[Tensor, Tensor] | None:
        return self.inner.agreement(server, me)

    def init(self, w: Tensor) -> Vectors:
        return self.inner.init(w)

    def sent(self, srv: Vectors) -> Vectors:
        return self.inner.sent(srv)

    def first_contact(self, down: Vectors) -> Vectors:
        return self.inner.first_contact(down)

    def start(self, down: Vectors, me: Vectors) -> Tensor:
        return self.inner.start(down, me)

    def direction(self, w: Tensor, grad: Gradient, down: Vectors, me: Vectors) -> tuple[Tensor, Vectors]:
        return self.inner.direction(w, grad, down, me)

    def pull(self, w: Tensor, down: Vectors) -> Tensor | None:
        return self.inner.pull(w, down)

    def finish(self, w: Tensor, down: Vectors, me: Vectors, rnd: Round) -> tuple[Vectors, Vectors]:
        return self.inner.finish(w, down, me, rnd)

    def aggregate(self, srv: Vectors, mean: Vectors, rnd: Round) -> Vectors:
        return self.inner.aggregate(srv, mean, rnd)
