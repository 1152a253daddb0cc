"""Ditto: fair and robust federated learning through personalization (Li et al., ICML 2021, Algorithm 1)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedsmoo.algorithms.fedavg import FedAvg
from fedsmoo.core import Gradient, Vectors, option


@dataclass(frozen=True)
class Ditto(FedAvg):
    """FedAvg, and beside it a model for each client that stays near the global one.

    client   v_i <- v_i - lr [g(v_i) + lam (v_i - w)]        K times, from where it was;   v_i serves the client
             w_i as FedAvg, on the same batches
    server   as FedAvg
    """

    lam: float = option(1.0, "how near a client's own model stays to the global one", within="[0, inf)")
    own = ("v",)

    def first_contact(self, down: Vectors) -> Vectors:
        return Vectors(v=down.w)

    def direction(self, w: Tensor, grad: Gradient, down: Vectors, me: Vectors) -> tuple[Tensor, Vectors]:
        d, me = super().direction(w, grad, down, me)
        return d, me.replace(v=me.v - grad.rnd.lr * (grad(me.v) + self.lam * (me.v - down.w)))

    def personal(self, down: Vectors, me: Vectors) -> Tensor | None:
        return me.v
