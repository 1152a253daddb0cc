"""MOON: model-contrastive federated learning (Li et al., CVPR 2021, Algorithm 1)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from fedsmoo.algorithms.fedavg import FedAvg
from fedsmoo.core import Gradient, Round, Vectors, option


def contrast(out: tuple[Tensor, Tensor], y: Tensor, near: Tensor, far: Tensor, mu: float, tau: float) -> Tensor:
    """Return cross-entropy, and how much more features are like the last local model's than the global one's."""
    outputs, z = out
    pull, push = (F.cosine_similarity(z, v, dim=-1) / tau for v in (near, far))
    return F.cross_entropy(outputs, y, reduction="none") + mu * F.softplus(push - pull)


@dataclass(frozen=True)
class MOON(FedAvg):
    """Features of local models are drawn to the global model's, and away from those of the client's last one.

    client   w_i <- w_i - lr g(w_i),   g: of CE - mu log(e^a / (e^a + e^b))        K times, from w;   then last_i = w_i
             a = cos(z(w_i), z(w)) / tau,   b = cos(z(w_i), z(last_i)) / tau;      z(v): what v's last layer reads
    server   as FedAvg
    """

    mu: float = option(1.0, "weight of the contrast", within="[0, inf)")
    tau: float = option(0.5, "temperature of the contrast", within="(0, inf)")
    features = of_classes = True
    own = ("last",)

    def first_contact(self, down: Vectors) -> Vectors:
        return Vectors(last=down.w)  # as like the global model as can be: no contrast yet

    def slope(self, w: Tensor, grad: Gradient, down: Vectors, me: Vectors) -> tuple[Tensor, Vectors]:
        return grad(w, contrast, grad.features(down.w), grad.features(me.last), self.mu, self.tau), me

    def finish(self, w: Tensor, down: Vectors, me: Vectors, rnd: Round) -> tuple[Vectors, Vectors]:
        return me.replace(last=w), Vectors(w=w)
