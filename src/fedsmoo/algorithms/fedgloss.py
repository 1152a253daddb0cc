"""FedGloSS: communication-efficient global sharpness-aware minimization for federated learning (Caldarola et al.,
CVPR 2025)."""

from __future__ import annotations

from dataclasses import dataclass

from fedsmoo.algorithms.feddyn import FedDyn
from fedsmoo.algorithms.sam import SAM
from fedsmoo.core import Round, Vectors, option, unit


@dataclass(frozen=True)
class FedGloSS(SAM, FedDyn):
    """FedDyn whose server climbs first, along the last round's pseudo-gradient: SAM of the global loss.

    server   sends v = w + rho_server unit(D)
    client   w_i <- w_i - lr [g(w_i + rho unit(g(w_i))) - lam_i + (w_i - v) / beta]     K times, from v
             lam_i <- lam_i - (w_i - v) / beta;   sends w_i
    server   D <- mean(v - w_i);   lam <- lam + (n/m) D / beta;   w <- w - D - beta lam

    ``dual = "released"``: the authors' code, which divides lam's step by n once more.
    """

    rho: float = option(0.15, "radius of the clients' perturbation; 0 for plain gradients", within="[0, inf)")
    rho_server: float = option(0.15, "radius of the server's perturbation", within="[0, inf)")
    dual: str = option("paper", "lam's step: the paper's, or the released code's", ("paper", "released"))
    server = (*FedDyn.server, "D")

    def sent(self, srv: Vectors) -> Vectors:
        return Vectors(w=srv.w + self.rho_server * unit(srv.D))

    def aggregate(self, srv: Vectors, mean: Vectors, rnd: Round) -> Vectors:
        d = self.sent(srv).w - mean.w
        lam = srv.lam + rnd.share * d / self.beta / (rnd.n if self.dual == "released" else 1)
        return srv.replace(w=srv.w - d - self.beta * lam, lam=lam, D=d)
