"""FedCM: federated learning with client-level momentum (Xu et al., 2021)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedsmoo.algorithms.fedavg import FedAvg
from fedsmoo.core import Gradient, Round, Vectors, option


@dataclass(frozen=True)
class FedCM(FedAvg):
    """Every local step follows the last round's mean direction D, with a share alpha of the client's own gradient.

    client   w_i <- w_i - lr [alpha g(w_i) + (1 - alpha) D]   K times, from w
    server   w as FedAvg;   D <- mean(w - w_i) / (K lr)
    """

    alpha: float = option(0.1, "weight of the client's own gradient; 1 is FedAvg", within="(0, 1]")
    down = ("w", "D")

    def direction(self, w: Tensor, grad: Gradient, down: Vectors, me: Vectors) -> tuple[Tensor, Vectors]:
        g, me = self.slope(w, grad, down, me)
        return self.alpha * g + (1 - self.alpha) * down.D, me

    def aggregate(self, srv: Vectors, mean: Vectors, rnd: Round) -> Vectors:
        return super().aggregate(srv, mean, rnd).replace(D=(srv.w - mean.w) / (rnd.steps * rnd.lr))
