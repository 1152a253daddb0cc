"""Methods whose slope is the gradient at a locally perturbed point: FedSAM and MoFedSAM (Qu et al., ICML 2022)
and FedGamma (Dai et al., TNNLS 2023)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedsmoo.algorithms.fedavg import FedAvg
from fedsmoo.algorithms.fedcm import FedCM
from fedsmoo.algorithms.scaffold import SCAFFOLD
from fedsmoo.core import Algorithm, Gradient, Vectors, option, unit


@dataclass(frozen=True)
class SAM(Algorithm):
    """The sharpness-aware slope g(w + rho unit(g(w))), for any method to inherit (Foret et al., ICLR 2021)."""

    rho: float = option(0.01, "radius of the local perturbation", within="[0, inf)")

    @property
    def radius(self) -> float | None:
        return self.rho

    def slope(self, w: Tensor, grad: Gradient, down: Vectors, me: Vectors) -> tuple[Tensor, Vectors]:
        return grad(w + self.rho * unit(grad(w))), me


@dataclass(frozen=True)
class FedSAM(SAM, FedAvg):
    """FedAvg with the SAM gradient on every client.

    client   w_i <- w_i - lr g(w_i + rho unit(g(w_i)))
    server   as FedAvg
    """


@dataclass(frozen=True)
class MoFedSAM(SAM, FedCM):
    """FedCM with the SAM gradient.

    client   w_i <- w_i - lr [alpha g(w_i + rho unit(g(w_i))) + (1 - alpha) D]
    server   as FedCM
    """


@dataclass(frozen=True)
class FedGamma(SAM, SCAFFOLD):
    """SCAFFOLD with the SAM gradient.

    client   w_i <- w_i - lr [g(w_i + rho unit(g(w_i))) - c_i + c]
    server   as SCAFFOLD
    """
