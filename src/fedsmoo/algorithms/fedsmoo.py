"""FedSMOO: dynamic regularised sharpness aware minimization in federated learning (Sun et al., ICML 2023,
Algorithm 1). Its ablation is three switches; with all of them off it is FedAvg."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedsmoo.algorithms.feddyn import FedDyn
from fedsmoo.core import Algorithm, Gradient, Round, Vectors, derived, option, unit


@dataclass(frozen=True)
class FedSMOO(FedDyn):
    """FedDyn at a perturbation that all clients agree on, by a second dual variable mu_i.

    client   s_hat = r unit(g(w_i) - mu_i - s);   mu_i <- mu_i + s_hat - s
             w_i <- w_i - lr [g(w_i + s_hat) - lam_i + (w_i - w) / beta]     K times, from w
             lam_i <- lam_i - (w_i - w) / beta;   sends w_i and s~_i = mu_i - s_hat
    server   s <- r unit(mean(s~_i));   lam <- lam - (n/m) mean(w_i - w) / beta;   w <- mean(w_i) - beta lam
    """

    r: float = option(0.1, "radius of the perturbation; a smaller one starts earlier", within="[0, inf)")
    regularise: bool = option(True, "ablation: the dynamic regulariser (off: FedAvg's update)")
    sam: bool = option(True, "ablation: the perturbed gradient (off: plain gradients)")
    correct: bool = option(True, "ablation: the perturbation's correction by mu_i and s (off: each client's own SAM)")
    perturbation: str = option(
        "paper",
        "what the server normalises: mean(mu_i - s_hat), or the released code's mean(mu_i)",
        ("paper", "released"),
    )

    @property
    def agrees(self) -> bool:
        return self.sam and self.correct

    # What travels and stays follows the switches, so that an ablated run is charged only for what it sends.
    down = derived(lambda self: ("w", "s") if self.agrees else ("w",))
    server = derived(lambda self: ("lam",) if self.regularise else ())
    own = derived(lambda self: ("mu",) * self.agrees + ("lam",) * self.regularise)
    local = derived(lambda self: ("s_hat",) * (self.agrees and self.perturbation == "paper"))
    up = derived(lambda self: ("w", "s_tilde") if self.agrees else ("w",))

    @property
    def radius(self) -> float | None:
        return self.r if self.sam else None

    def agreement(self, server: Vectors, me: Vectors) -> tuple[Tensor, Tensor] | None:
        return (server.s, me.mu) if self.agrees else None

    def slope(self, w: Tensor, grad: Gradient, down: Vectors, me: Vectors) -> tuple[Tensor, Vectors]:
        g = grad(w)
        if not self.sam:
            return g, me
        if not self.correct:
            return grad(w + self.r * unit(g)), me
        s_hat = self.r * unit(g - me.mu - down.s)
        me = me.replace(mu=me.mu + s_hat - down.s)
        return grad(w + s_hat), me.replace(s_hat=s_hat) if self.local else me

    @property
    def base(self) -> type[Algorithm]:
        return FedDyn if self.regularise else Algorithm

    def direction(self, w: Tensor, grad: Gradient, down: Vectors, me: Vectors) -> tuple[Tensor, Vectors]:
        return self.base.direction(self, w, grad, down, me)

    def pull(self, w: Tensor, down: Vectors) -> Tensor | None:
        return self.base.pull(self, w, down)

    def finish(self, w: Tensor, down: Vectors, me: Vectors, rnd: Round) -> tuple[Vectors, Vectors]:
        me, up = self.base.finish(self, w, down, me, rnd)
        if self.agrees:
            up = up.replace(s_tilde=me.mu - me.s_hat if self.perturbation == "paper" else me.mu)
        return me, up

    def aggregate(self, srv: Vectors, mean: Vectors, rnd: Round) -> Vectors:
        srv = self.base.aggregate(self, srv, mean, rnd)
        return srv.replace(s=self.r * unit(mean.s_tilde)) if self.agrees else srv
