"""FedExP: speeding up federated averaging via extrapolation (Jhunjhunwala et al., ICLR 2023, Algorithm 1)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedsmoo.core import Algorithm, Round, Vectors, norm, option


@dataclass(frozen=True)
class FedExP(Algorithm):
    """FedAvg whose server steps farther the more the clients' updates cancel each other.

    client   as FedAvg;   sends w_i and ||w_i - w||^2
    server   w <- w + max(1, mean(||w_i - w||^2) / (2 (||D||^2 + eps))) D        D = mean(w_i - w)
    """

    eps: float = option(1e-3, "keeps the step finite where updates cancel", within="(0, inf)")
    up = ("w", "far")
    scalars = ("far",)

    def finish(self, w: Tensor, down: Vectors, me: Vectors, rnd: Round) -> tuple[Vectors, Vectors]:
        return me, Vectors(w=w, far=norm(w - down.w) ** 2)

    def aggregate(self, srv: Vectors, mean: Vectors, rnd: Round) -> Vectors:
        d = mean.w - srv.w
        stretch = mean.far / (2 * (norm(d) ** 2 + self.eps))
        return srv.replace(w=srv.w + stretch.clamp(min=1) * d)
