"""q-FedAvg: fair resource allocation in federated learning (Li et al., ICLR 2020, Algorithm 2)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedsmoo.core import Algorithm, Round, Vectors, norm, option


@dataclass(frozen=True)
class QFedAvg(Algorithm):
    """Clients count by how badly the global model serves them.

    client   as FedAvg;   F_i: its loss at w over its samples;   d_i = (w - w_i) / lr
             sends F_i^q d_i and h_i = q F_i^(q-1) ||d_i||^2 + F_i^q / lr
    server   w <- w - mean(F_i^q d_i) / mean(h_i)
    """

    q: float = option(1.0, "how much more clients with large losses count; 0 is FedAvg", within="[0, inf)")
    asks = ("loss",)
    up = ("d", "h")
    scalars = ("h",)

    def finish(self, w: Tensor, down: Vectors, me: Vectors, rnd: Round) -> tuple[Vectors, Vectors]:
        F, d = rnd.loss + 1e-10, (down.w - w) / rnd.lr
        h = self.q * F ** (self.q - 1) * norm(d) ** 2 + F**self.q / rnd.lr
        return me, Vectors(d=F**self.q * d, h=h)

    def aggregate(self, srv: Vectors, mean: Vectors, rnd: Round) -> Vectors:
        return srv.replace(w=srv.w - mean.d / mean.h)
