"""Relaxed initialisation of local training, an option of any method: FedInit (Sun et al., NeurIPS 2023)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fedsmoo.algorithms.fedavg import FedAvg
from fedsmoo.core import Algorithm, Round, Vectors
from fedsmoo.core.algorithm import option


@dataclass(frozen=True)
class Relaxed(Algorithm):
    """Any method, with local training started a little past the global model, away from where the client last ended.

    client   w_i starts at w + b (w - w_last_i);   after K steps w_last_i = w_i
    """

    inner: Any = option(FedAvg(), "the method to start differently")
    b: float = option(0.1, "how far past the global model to start; 0 is the method itself")

    down = property(lambda self: self.inner.down)  # type: ignore[assignment]
    server = property(lambda self: self.inner.server)  # type: ignore[assignment]
    own = property(lambda self: (*self.inner.own, "w_last"))  # type: ignore[assignment]
    local = property(lambda self: self.inner.local)  # type: ignore[assignment]
    up = property(lambda self: self.inner.up)  # type: ignore[assignment]

    def init(self, w: Tensor) -> Vectors:
        return self.inner.init(w)

    def first_contact(self, down: Vectors) -> Vectors:
        return self.inner.first_contact(down).replace(w_last=down.w)

    def start(self, down: Vectors, me: Vectors) -> Tensor:
        return down.w + self.b * (down.w - me.w_last)

    def direction(self, w, grad, down, me):
        return self.inner.direction(w, grad, down, me)

    def pull(self, w: Tensor, down: Vectors) -> Tensor | None:
        return self.inner.pull(w, down)

    def finish(self, w: Tensor, down: Vectors, me: Vectors, rnd: Round) -> tuple[Vectors, Vectors]:
        me, up = self.inner.finish(w, down, me, rnd)
        return me.replace(w_last=w), up

    def aggregate(self, srv: Vectors, mean: Vectors, rnd: Round) -> Vectors:
        return self.inner.aggregate(srv, mean, rnd)

    @property
    def label(self) -> str:
        return f"{self.inner.label}+relaxed"
