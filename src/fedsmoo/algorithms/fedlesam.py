"""FedLESAM: locally estimated global perturbations (Fan et al., ICML 2024), plain and with SCAFFOLD's
or FedDyn's correction. One gradient a step: the ascent direction is the way the global model has come."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedsmoo.algorithms.fedavg import FedAvg
from fedsmoo.algorithms.feddyn import FedDyn
from fedsmoo.algorithms.scaffold import SCAFFOLD
from fedsmoo.core import Algorithm, Gradient, Round, Vectors, option, unit


@dataclass(frozen=True)
class LocallyEstimated(Algorithm):
    """The slope g(w_i + rho unit(w_old_i - w)), w_old_i being the global model that client i received last."""

    rho: float = option(0.01, "radius of the perturbation", within="[0, inf)")

    def first_contact(self, down: Vectors) -> Vectors:
        return super().first_contact(down).replace(w_old=down.w)  # nothing known yet: no perturbation

    @property
    def radius(self) -> float | None:
        return self.rho

    def slope(self, w: Tensor, grad: Gradient, down: Vectors, me: Vectors) -> tuple[Tensor, Vectors]:
        return grad(w + self.rho * unit(me.w_old - down.w)), me

    def finish(self, w: Tensor, down: Vectors, me: Vectors, rnd: Round) -> tuple[Vectors, Vectors]:
        me, up = super().finish(w, down, me, rnd)
        return me.replace(w_old=down.w.expand_as(w)), up


@dataclass(frozen=True)
class FedLESAM(LocallyEstimated, FedAvg):
    """FedAvg at the locally estimated global perturbation.

    client   w_i <- w_i - lr g(w_i + rho unit(w_old_i - w));   then w_old_i = w
    server   as FedAvg
    """

    own = ("w_old",)


@dataclass(frozen=True)
class FedLESAMS(LocallyEstimated, SCAFFOLD):
    """FedLESAM-S: SCAFFOLD at the locally estimated global perturbation.

    client   w_i <- w_i - lr [g(w_i + rho unit(w_old_i - w)) - c_i + c];   then w_old_i = w
    server   as SCAFFOLD
    """

    own = (*SCAFFOLD.own, "w_old")


@dataclass(frozen=True)
class FedLESAMD(LocallyEstimated, FedDyn):
    """FedLESAM-D: FedDyn at the locally estimated global perturbation.

    client   w_i <- w_i - lr [g(w_i + rho unit(w_old_i - w)) - lam_i + (w_i - w) / beta];   then w_old_i = w
    server   as FedDyn
    """

    own = (*FedDyn.own, "w_old")
