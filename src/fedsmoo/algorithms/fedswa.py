"""FedSWA and FedMoSWA: improving generalization in federated learning with highly heterogeneous data via momentum-based
stochastic controlled weight averaging (Liu et al., ICML 2025)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedsmoo.algorithms.fedavg import FedAvg
from fedsmoo.core import Gradient, Round, Vectors, option


@dataclass(frozen=True)
class FedSWA(FedAvg):
    """FedAvg with a learning rate that falls within every round.

    client   w_i <- w_i - lr (1 - k/K + rho k/K) g(w_i)          k = 0 ... K - 1, from w
    server   as FedAvg
    """

    rho: float = option(0.1, "what the learning rate falls to within a round, as a share of it", within="[0, 1]")

    def update(self, w: Tensor, d: Tensor, me: Vectors, rnd: Round) -> tuple[Tensor, Vectors]:
        t = rnd.step / rnd.steps
        return super().update(w, (1 - t + self.rho * t) * d, me, rnd)


@dataclass(frozen=True)
class FedMoSWA(FedSWA):
    """FedSWA with control variates, whose mean c moves as a momentum does.

    client   w_i <- w_i - lr (1 - k/K + rho k/K) [g(w_i) - c_i + c]     k = 0 ... K - 1, from w
             c_i <- c_i - c + (w - w_i) / (K lr (1 + rho) / 2);   sends w_i and c_i - c
    server   w as FedAvg;   c <- c + gamma mean(c_i - c)
    """

    gamma: float = option(0.4, "how fast c follows the clients", within="(0, 1]")
    down = ("w", "c")
    own = ("c",)
    up = ("w", "dc")

    def direction(self, w: Tensor, grad: Gradient, down: Vectors, me: Vectors) -> tuple[Tensor, Vectors]:
        g, me = self.slope(w, grad, down, me)
        return g - me.c + down.c, me

    def finish(self, w: Tensor, down: Vectors, me: Vectors, rnd: Round) -> tuple[Vectors, Vectors]:
        c = me.c - down.c + (down.w - w) / (rnd.steps * rnd.lr * (1 + self.rho) / 2)
        return me.replace(c=c), Vectors(w=w, dc=c - down.c)

    def aggregate(self, srv: Vectors, mean: Vectors, rnd: Round) -> Vectors:
        return super().aggregate(srv, mean, rnd).replace(c=srv.c + self.gamma * mean.dc)
