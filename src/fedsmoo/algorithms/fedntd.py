"""FedNTD: preservation of the global knowledge by not-true distillation in federated learning (Lee et al., NeurIPS
2022)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from fedsmoo.algorithms.fedavg import FedAvg
from fedsmoo.core import Gradient, Vectors, option


def not_true(out: Tensor, y: Tensor, teacher: Tensor, beta: float, tau: float) -> Tensor:
    """Return cross-entropy, and the divergence from the teacher over the classes that are not true."""
    p, q = ((v / tau).scatter(-1, y[:, None], -1e9).log_softmax(-1) for v in (teacher, out))
    return F.cross_entropy(out, y, reduction="none") + beta * tau**2 * (p.exp() * (p - q)).sum(-1)


@dataclass(frozen=True)
class FedNTD(FedAvg):
    """Local models keep what the global one says of the classes that are not a sample's own.

    client   w_i <- w_i - lr g(w_i),   g: of CE + beta tau^2 KL(q(w) || q(w_i))       K times, from w
             q(v): softmax of v's outputs / tau without the true class
    server   as FedAvg
    """

    beta: float = option(1.0, "weight of the distillation", within="[0, inf)")
    tau: float = option(1.0, "temperature of the distillation", within="(0, inf)")
    of_classes = True

    def slope(self, w: Tensor, grad: Gradient, down: Vectors, me: Vectors) -> tuple[Tensor, Vectors]:
        return grad(w, not_true, grad.outputs(down.w), self.beta, self.tau), me
