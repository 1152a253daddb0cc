"""FedLC: federated learning with label distribution skew via logits calibration (Zhang et al., ICML 2022)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from fedsmoo.algorithms.fedavg import FedAvg
from fedsmoo.core import Gradient, Vectors, option


def calibrated(out: Tensor, y: Tensor, labels: Tensor, tau: float) -> Tensor:
    """Return cross-entropy of outputs with a margin for each class, the wider the rarer it is."""
    return F.cross_entropy(out - tau * labels.clamp(min=1e-8) ** -0.25, y, reduction="none")


@dataclass(frozen=True)
class FedLC(FedAvg):
    """Outputs are calibrated by how many samples of each class a client holds.

    client   w_i <- w_i - lr g(w_i),   g: of CE(out_c - tau max(n_ic, 1e-8)^(-1/4))       K times, from w
    server   as FedAvg                                             n_ic: samples of class c
    """

    tau: float = option(1.0, "width of the margins", within="[0, inf)")
    of_classes = True

    def slope(self, w: Tensor, grad: Gradient, down: Vectors, me: Vectors) -> tuple[Tensor, Vectors]:
        return grad(w, calibrated, grad.rnd.labels, self.tau), me
