"""FedWMSAM: fast and flat federated learning via weighted momentum and sharpness-aware minimization (Li et al.,
NeurIPS 2025)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedsmoo.algorithms.fedavg import FedAvg
from fedsmoo.core import Gradient, Round, Vectors, norm, option, unit


@dataclass(frozen=True)
class FedWMSAM(FedAvg):
    """FedCM with a momentum for each client, which also says where to take the gradient, and a weight that adapts.

    client   D_i = D + a / (1 - a) (c - c_i)
             e_k = rho unit(w + k D_i - w_i)                           k = 0 ... K - 1
             w_i <- w_i - lr [a g(w_i + e_k) + (1 - a) D_i]            K times, from w
             c_i' = c_i - c + (w - w_i) / (K lr);   sends w_i, c_i' - c_i and t_i = 1 + cos(w_i - w, D), or 0 without D
    server   w as FedAvg;   D <- mean(w - w_i) / (K lr);   c <- c + (n/m) mean(c_i' - c_i)
             a <- 0.99 a + 0.01 clamp(mean(t_i), 0.1, 0.9), from alpha

    ``form = "released"``: the authors' code has the perturbation with the other sign, -e_k.
    """

    alpha: float = option(0.1, "weight of a client's own gradient in the first round", within="(0, 1)")
    rho: float = option(0.01, "radius of the perturbation", within="[0, inf)")
    form: str = option("paper", "the perturbation's sign: the paper's, or the released code's", ("paper", "released"))
    down = ("w", "D", "c", "a")
    own = ("c",)
    up = ("w", "dc", "turn")
    scalars = ("a", "turn")

    @property
    def radius(self) -> float | None:
        return self.rho

    def init(self, w: Tensor) -> Vectors:
        srv = super().init(w)
        return srv.replace(a=srv.a + self.alpha)

    def direction(self, w: Tensor, grad: Gradient, down: Vectors, me: Vectors) -> tuple[Tensor, Vectors]:
        D = down.D + down.a / (1 - down.a) * (down.c - me.c)
        e = self.rho * unit(down.w + grad.rnd.step * D - w)
        g = grad(w - e if self.form == "released" else w + e)
        return down.a * g + (1 - down.a) * D, me

    def finish(self, w: Tensor, down: Vectors, me: Vectors, rnd: Round) -> tuple[Vectors, Vectors]:
        dc = (down.w - w) / (rnd.steps * rnd.lr) - down.c
        lengths = norm(w - down.w) * norm(down.D)
        cosine = ((w - down.w) * down.D).sum(-1, keepdim=True) / torch.where(lengths > 0, lengths, 1)
        return me.replace(c=me.c + dc), Vectors(w=w, dc=dc, turn=torch.where(lengths > 0, 1 + cosine, 0))

    def aggregate(self, srv: Vectors, mean: Vectors, rnd: Round) -> Vectors:
        D = (srv.w - mean.w) / (rnd.steps * rnd.lr)
        a = 0.99 * srv.a + 0.01 * mean.turn.clamp(0.1, 0.9)
        return super().aggregate(srv, mean, rnd).replace(D=D, a=a, c=srv.c + rnd.share * mean.dc)
