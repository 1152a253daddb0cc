"""FedNova: tackling the objective inconsistency problem in heterogeneous federated optimization (Wang et al.,
NeurIPS 2020)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedsmoo.algorithms.fedavg import FedAvg
from fedsmoo.core import Round, Vectors


@dataclass(frozen=True)
class FedNova(FedAvg):
    """Updates are averaged per step, so that clients with many steps do not weigh more.

    client   as FedAvg;   sends d_i = (w_i - w) / K_i and K_i
    server   w <- w + lr_server mean(K_i) mean(d_i)
    """

    up = ("d", "k")
    scalars = ("k",)
    public = ("k",)

    def finish(self, w: Tensor, down: Vectors, me: Vectors, rnd: Round) -> tuple[Vectors, Vectors]:
        return me, Vectors(d=(w - down.w) / rnd.steps, k=rnd.steps)

    def aggregate(self, srv: Vectors, mean: Vectors, rnd: Round) -> Vectors:
        return srv.replace(w=srv.w + self.lr_server * mean.k * mean.d)
