"""FedGMT: sharpness-aware minimization for federated learning via global model trajectory (Li et al., ICML 2025)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from fedsmoo.algorithms.feddyn import FedDyn
from fedsmoo.core import Gradient, Round, Vectors, option


def trajectory(out: Tensor, y: Tensor, teacher: Tensor, gamma: float, tau: float) -> Tensor:
    """Return cross-entropy, and the divergence from the outputs of the averaged model."""
    p, q = ((v / tau).log_softmax(-1) for v in (teacher, out))
    return F.cross_entropy(out, y, reduction="none") + gamma * tau**2 * (p.exp() * (p - q)).sum(-1)


@dataclass(frozen=True)
class FedGMT(FedDyn):
    """Clients learn from an average of the global models so far, with FedDyn's dual variables.

    client   w_i <- w_i - lr [g(w_i) - lam_i],   g: of CE + gamma tau^2 KL(q(e) || q(w_i))     K times, from w
             lam_i <- lam_i - (w_i - w) / beta;   sends w_i;      q(v): softmax of v's outputs / tau
    server   w as FedDyn;   e <- alpha e + (1 - alpha) w, from the first w
    """

    gamma: float = option(1.0, "weight of the averaged model's outputs", within="[0, inf)")
    tau: float = option(3.0, "temperature of the outputs", within="(0, inf)")
    alpha: float = option(0.95, "how slowly the average moves", within="[0, 1)")
    of_classes = True
    down = ("w", "e")

    def init(self, w: Tensor) -> Vectors:
        return super().init(w).replace(e=w.clone())

    def slope(self, w: Tensor, grad: Gradient, down: Vectors, me: Vectors) -> tuple[Tensor, Vectors]:
        return grad(w, trajectory, grad.outputs(down.e), self.gamma, self.tau), me

    def pull(self, w: Tensor, down: Vectors) -> Tensor | None:
        return None

    def aggregate(self, srv: Vectors, mean: Vectors, rnd: Round) -> Vectors:
        new = super().aggregate(srv, mean, rnd)
        return new.replace(e=self.alpha * srv.e + (1 - self.alpha) * new.w)
