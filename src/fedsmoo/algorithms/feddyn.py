"""FedDyn: federated learning based on dynamic regularisation (Acar et al., ICLR 2021, Algorithm 1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedsmoo.core import Algorithm, Gradient, Round, Vectors, option


@dataclass(frozen=True)
class FedDyn(Algorithm):
    """Each client's objective gets a linear term lam_i and a proximal term, so that its optimum is the global one.

    client   w_i <- w_i - lr [g(w_i) - lam_i + (w_i - w) / beta]   K times, from w
             lam_i <- lam_i - (w_i - w) / beta;   sends w_i
    server   lam <- lam - (n/m) mean(w_i - w) / beta;   w <- mean(w_i) - beta lam
    """

    beta: float = option(10.0, "penalty of the dynamic regulariser; larger holds local models less", within="(0, inf)")
    server: ClassVar[tuple[str, ...]] = ("lam",)
    own: ClassVar[tuple[str, ...]] = ("lam",)

    def direction(self, w: Tensor, grad: Gradient, down: Vectors, me: Vectors) -> tuple[Tensor, Vectors]:
        g, me = self.slope(w, grad, down, me)
        return g - me.lam, me

    def pull(self, w: Tensor, down: Vectors) -> Tensor | None:
        return (w - down.w) / self.beta

    def finish(self, w: Tensor, down: Vectors, me: Vectors, rnd: Round) -> tuple[Vectors, Vectors]:
        return me.replace(lam=me.lam - (w - down.w) / self.beta), Vectors(w=w)

    def aggregate(self, srv: Vectors, mean: Vectors, rnd: Round) -> Vectors:
        lam = srv.lam - rnd.share * (mean.w - srv.w) / self.beta
        return srv.replace(w=mean.w - self.beta * lam, lam=lam)
