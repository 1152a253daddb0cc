"""What released code of other methods does against its box, as methods: see docs/audit.md.

    fedsmoo run --algorithm experiments/released/others.py:NormFedDyn ...

Those that cut a vector by layers know the layers of ``mlp`` on the digits, where
benchmarks/studies/audited.py measures them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedsmoo import FedAvg, FedCM, FedDyn, FedLESAMS, FedSMOO, FedWMSAM, option, unit
from fedsmoo.core.vectors import EPS
from fedsmoo.models.small import MLP

LAYERS = [p.numel() for p in MLP(64, 10).parameters()]


def layers(size: int) -> list[int]:
    """The lengths of a vector's layers; of other vectors, which checks of the contract have, two."""
    return LAYERS if size == sum(LAYERS) else [size - size // 2, size // 2]


def heads(v: Tensor) -> Tensor:
    """Every layer cut from the head of the vector."""
    return torch.cat([v[..., :length] for length in layers(v.shape[-1])], -1)


def numbered(v: Tensor, rho: float) -> Tensor:
    """Every layer shifted by the one number whose index is the layer's, over the sum of these numbers' sizes."""
    lengths = layers(v.shape[-1])
    v = rho * v / (v[..., : len(lengths)].abs().sum(-1, keepdim=True) + EPS)
    return torch.cat([v[..., k : k + 1].expand(*v.shape[:-1], length) for k, length in enumerate(lengths)], -1)


@dataclass(frozen=True)
class NormFedDyn(FedDyn):
    """FedDyn in FL-SAM: the proximal term is the distance over 2 beta, not its square, so its pull has one length."""

    def pull(self, w, down):
        return unit(w - down.w) / (2 * self.beta)


@dataclass(frozen=True)
class NormFedSMOO(FedSMOO):
    """FedSMOO in FL-SAM: as NormFedDyn."""

    def pull(self, w, down):
        return unit(w - down.w) / (2 * self.beta)


@dataclass(frozen=True)
class AlongServer(FedAvg):
    """FedLESAM whose clients all perturb along the server's last update u = w_before - w.

    client   w_i <- w_i - lr g(w_i + rho unit(u))           K times, from w
    server   as FedAvg;   u <- w - w_new
    """

    rho: float = option(0.1, "radius of the perturbation", within="[0, inf)")
    down = ("w", "u")

    def slope(self, w, grad, down, me):
        return grad(w + self.shift(down.u)), me

    def shift(self, u: Tensor) -> Tensor:
        return self.rho * unit(u)

    def aggregate(self, srv, mean, rnd):
        new = super().aggregate(srv, mean, rnd)
        return new.replace(u=srv.w - new.w)


@dataclass(frozen=True)
class Numbered(AlongServer):
    """FedLESAM as its authors' code computes it: layer k is shifted by number k of the server's update."""

    def shift(self, u):
        return numbered(u, self.rho)


@dataclass(frozen=True)
class HeadFedLESAMD(FedDyn):
    """FedLESAM-D in FL-SAM: every layer's perturbation is the head of the server's last update; NormFedDyn's pull."""

    rho: float = option(0.1, "radius of the perturbation", within="[0, inf)")
    down = ("w", "u")

    def slope(self, w, grad, down, me):
        return grad(w + self.rho * unit(heads(down.u))), me

    def pull(self, w, down):
        return unit(w - down.w) / (2 * self.beta)

    def aggregate(self, srv, mean, rnd):
        new = super().aggregate(srv, mean, rnd)
        return new.replace(u=srv.w - new.w)


@dataclass(frozen=True)
class WeakFedLESAMS(FedLESAMS):
    """FedLESAM-S whose correction c - c_i is multiplied by lamb, the penalty of other methods."""

    lamb: float = option(0.1, "factor of the correction", within="[0, inf)")

    def direction(self, w, grad, down, me):
        g, me = self.slope(w, grad, down, me)
        return g + self.lamb * (down.c - me.c), me


@dataclass(frozen=True)
class FractionalFedCM(FedCM):
    """FedCM whose K is epochs times samples over the batch size, a fraction, where a short batch is a step, too."""

    steps: float = option(20.0, "K, by which the momentum is divided", within="(0, inf)")

    def aggregate(self, srv, mean, rnd):
        new = super().aggregate(srv, mean, rnd)
        return new.replace(D=new.D * rnd.steps / self.steps)


@dataclass(frozen=True)
class NumberedFedWMSAM(FedWMSAM):
    """FedWMSAM as its authors' code computes it: with the other sign, and layer k is shifted by number k."""

    def direction(self, w, grad, down, me):
        D = down.D + down.a / (1 - down.a) * (down.c - me.c)
        g = grad(w - numbered(down.w + grad.rnd.step * D - w, self.rho))
        return down.a * g + (1 - down.a) * D, me
