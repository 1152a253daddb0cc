"""SCAFFOLD (Karimireddy et al., ICML 2020, Algorithm 1, option II)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedsmoo.algorithms.fedavg import FedAvg
from fedsmoo.core import Gradient, Round, Vectors


@dataclass(frozen=True)
class SCAFFOLD(FedAvg):
    """Control variates: each client replaces its own mean gradient c_i by the mean over all, c.

    client   w_i <- w_i - lr [g(w_i) - c_i + c]              K times, from w
             c_i' = c_i - c + (w - w_i) / (K lr);   sends w_i and c_i' - c_i
    server   w as FedAvg;   c <- c + (n/m) mean(c_i' - c_i)
    """

    down = ("w", "c")
    own: ClassVar[tuple[str, ...]] = ("c",)
    up = ("w", "dc")

    def direction(self, w: Tensor, grad: Gradient, down: Vectors, me: Vectors) -> tuple[Tensor, Vectors]:
        g, me = self.slope(w, grad, down, me)
        return g - me.c + down.c, me

    def finish(self, w: Tensor, down: Vectors, me: Vectors, rnd: Round) -> tuple[Vectors, Vectors]:
        dc = (down.w - w) / (rnd.steps * rnd.lr) - down.c
        return me.replace(c=me.c + dc), Vectors(w=w, dc=dc)

    def aggregate(self, srv: Vectors, mean: Vectors, rnd: Round) -> Vectors:
        return super().aggregate(srv, mean, rnd).replace(c=srv.c + rnd.share * mean.dc)
