"""pFedMe: personalised federated learning with Moreau envelopes (Dinh et al., NeurIPS 2020, Algorithm 1)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedsmoo.algorithms.fedavg import FedAvg
from fedsmoo.core import Gradient, Round, Vectors, option


@dataclass(frozen=True)
class PFedMe(FedAvg):
    """Each client has a model of its own near the global one, and the global one follows where these are.

    client   t_i <- t_i - lr_own [g(t_i) + lam (t_i - w_i)]     steps_own times on each batch, at first from w
             w_i <- w_i - lr lam (w_i - t_i)                    K times, from w;   t_i serves the client
    server   as FedAvg
    """

    lam: float = option(15.0, "how near a client's own model stays to the global one", within="[0, inf)")
    lr_own: float = option(0.1, "learning rate of a client's own model", within="(0, inf)")
    steps_own: int = option(5, "steps of a client's own model on each batch", within="[1, inf)", counts=True)
    own = ("theta",)
    local = ("moved",)  # t_i - w, which begins at zero in every round

    def first_contact(self, down: Vectors) -> Vectors:
        return Vectors(theta=down.w)

    def slope(self, w: Tensor, grad: Gradient, down: Vectors, me: Vectors) -> tuple[Tensor, Vectors]:
        theta = down.w + me.moved
        for _ in range(self.steps_own):
            theta = theta - self.lr_own * (grad(theta) + self.lam * (theta - w))
        return self.lam * (w - theta), me.replace(moved=theta - down.w)

    def finish(self, w: Tensor, down: Vectors, me: Vectors, rnd: Round) -> tuple[Vectors, Vectors]:
        return me.replace(theta=down.w + me.moved), Vectors(w=w)

    def personal(self, down: Vectors, me: Vectors) -> Tensor | None:
        return me.theta
