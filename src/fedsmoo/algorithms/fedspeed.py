"""FedSpeed: larger local interval, less communication round, and higher generalization accuracy
(Sun et al., ICLR 2023, Algorithm 1)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedsmoo.algorithms.feddyn import FedDyn
from fedsmoo.core import Algorithm, Gradient, Round, Vectors, derived, option, unit


@dataclass(frozen=True)
class FedSpeed(FedDyn):
    """A proximal local solver whose correction travels inside the model, with gradients mixed from two points.

    client   g~ = (1 - alpha) g(w_i) + alpha g(w_i + rho g(w_i))
             w_i <- w_i - lr [g~ - lam_i + (w_i - w) / beta]       K times, from w
             lam_i <- lam_i - (w_i - w) / beta;   sends w_i - beta lam_i
    server   w <- mean of what was sent

    ``form = "released"``: the authors' code, with rho unit(g), alpha = 1, and FedDyn's server.
    """

    rho: float = option(0.1, "ascent step of the perturbed gradient", within="[0, inf)")
    alpha: float = option(1.0, "share of the perturbed gradient (1 in the released form)", within="[0, 1]")
    form: str = option("paper", "the paper's box, or the authors' released code", ("paper", "released"))

    server = derived(lambda self: FedDyn.server if self.form == "released" else ())

    @property
    def radius(self) -> float | None:
        return self.rho

    def slope(self, w: Tensor, grad: Gradient, down: Vectors, me: Vectors) -> tuple[Tensor, Vectors]:
        g = grad(w)
        if self.form == "released":
            return grad(w + self.rho * unit(g)), me
        return (1 - self.alpha) * g + self.alpha * grad(w + self.rho * g), me

    def finish(self, w: Tensor, down: Vectors, me: Vectors, rnd: Round) -> tuple[Vectors, Vectors]:
        me, up = super().finish(w, down, me, rnd)
        return (me, up) if self.form == "released" else (me, Vectors(w=w - self.beta * me.lam))

    def aggregate(self, srv: Vectors, mean: Vectors, rnd: Round) -> Vectors:
        return (FedDyn if self.form == "released" else Algorithm).aggregate(self, srv, mean, rnd)
