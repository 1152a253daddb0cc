"""Methods whose server sends the model one momentum step ahead: FedACG (Kim et al., CVPR 2024) and FedNSAM (Liu et al.,
ACM MM 2025)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedsmoo.algorithms.sam import SAM
from fedsmoo.core import Algorithm, Round, Vectors, option


@dataclass(frozen=True)
class Lookahead(Algorithm):
    """Momentum on the server, which clients feel already: they start where it would carry the model."""

    lam: float = option(0.85, "server momentum, and how far ahead the model is sent", within="[0, 1)")
    server = ("m",)

    def sent(self, srv: Vectors) -> Vectors:
        return Vectors(w=srv.w + self.lam * srv.m)

    def momentum(self, m: Tensor, d: Tensor, rnd: Round) -> Tensor:
        """Return the next m, from the mean of the clients' updates."""
        return self.lam * m + d

    def aggregate(self, srv: Vectors, mean: Vectors, rnd: Round) -> Vectors:
        m = self.momentum(srv.m, mean.w - self.sent(srv).w, rnd)
        return srv.replace(w=srv.w + m, m=m)


@dataclass(frozen=True)
class FedACG(Lookahead):
    """Clients start at a model that looks ahead, and stay near it.

    server   sends v = w + lam m
    client   w_i <- w_i - lr [g(w_i) + mu (w_i - v)]        K times, from v
    server   m <- lam m + mean(w_i - v);   w <- w + m
    """

    mu: float = option(0.002, "weight of the proximal term", within="[0, inf)")

    def pull(self, w: Tensor, down: Vectors) -> Tensor:
        return self.mu * (w - down.w)


@dataclass(frozen=True)
class FedNSAM(SAM, Lookahead):
    """FedSAM from a model that looks ahead.

    server   sends v = w + lam m
    client   w_i <- w_i - lr g(w_i + rho unit(g(w_i)))      K times, from v
    server   m <- lam m + mean(w_i - v);   w <- w + m

    ``form = "released"``: the authors' code, whose m keeps no memory: (1 + lam) mean(w_i - v) after the first round.
    """

    rho: float = option(0.05, "radius of the local perturbation", within="[0, inf)")
    form: str = option(
        "accumulated", "a momentum over rounds, or the authors' released code", ("accumulated", "released")
    )

    def momentum(self, m: Tensor, d: Tensor, rnd: Round) -> Tensor:
        if self.form == "released":
            factor: Tensor | float = 1 + self.lam * (rnd.number > 0)
            return factor * d
        return super().momentum(m, d, rnd)
