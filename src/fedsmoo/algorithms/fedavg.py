"""FedAvg (McMahan et al., AISTATS 2017, Algorithm 1) and FedProx (Li et al., MLSys 2020, Algorithm 2)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedsmoo.core import Algorithm, Round, Vectors, option


@dataclass(frozen=True)
class FedAvg(Algorithm):
    """Local SGD, then the mean of the local models.

    client   w_i <- w_i - lr g(w_i)                        K times, from w
    server   w   <- w + lr_server mean(w_i - w)
    """

    lr_server: float = option(1.0, "server learning rate", within="(0, inf)")

    def aggregate(self, srv: Vectors, mean: Vectors, rnd: Round) -> Vectors:
        return srv.replace(w=srv.w + self.lr_server * (mean.w - srv.w))


@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedAvg with a proximal term that holds local models near the global one.

    client   w_i <- w_i - lr [g(w_i) + mu (w_i - w)]
    server   as FedAvg
    """

    mu: float = option(0.01, "weight of the proximal term", within="[0, inf)")

    def pull(self, w: Tensor, down: Vectors) -> Tensor:
        return self.mu * (w - down.w)
