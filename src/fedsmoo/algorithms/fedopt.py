"""Server-side optimisers: FedAvgM (Hsu et al., 2019) and FedAdam, FedYogi, FedAdagrad (Reddi et al., ICLR 2021,
Algorithm 2), all from the pseudo-gradient D = mean(w_i - w)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsmoo.algorithms.fedavg import FedAvg
from fedsmoo.core import Round, Vectors, option


@dataclass(frozen=True)
class FedAvgM(FedAvg):
    """FedAvg with momentum on the server.

    server   p <- beta1 p + D,   w <- w + lr_server p        D = mean(w_i - w)
    """

    beta1: float = option(0.9, "server momentum", within="[0, 1)")
    server = ("p",)

    def aggregate(self, srv: Vectors, mean: Vectors, rnd: Round) -> Vectors:
        p = self.beta1 * srv.p + (mean.w - srv.w)
        return srv.replace(w=srv.w + self.lr_server * p, p=p)


@dataclass(frozen=True)
class Adaptive(FedAvg, ABC):
    """A server step divided by the root of a second moment v of the pseudo-gradients, from v = tau^2.

    server   p <- beta1 p + (1 - beta1) D,   w <- w + lr_server p / (sqrt(v) + tau)
    """

    lr_server: float = option(0.1, "server learning rate", within="(0, inf)")
    beta1: float = option(0.9, "decay of the first moment", within="[0, 1)")
    tau: float = option(1e-3, "degree of adaptivity: added to sqrt(v)", within="(0, inf)")
    server = ("p", "v")

    def init(self, w: Tensor) -> Vectors:
        return super().init(w).replace(v=torch.zeros_like(w) + self.tau**2)

    @abstractmethod
    def second_moment(self, v: Tensor, d2: Tensor) -> Tensor:
        """Return the next v, from the squares of the pseudo-gradient."""

    def aggregate(self, srv: Vectors, mean: Vectors, rnd: Round) -> Vectors:
        d = mean.w - srv.w
        p = self.beta1 * srv.p + (1 - self.beta1) * d
        v = self.second_moment(srv.v, d * d)
        return srv.replace(w=srv.w + self.lr_server * p / (v.sqrt() + self.tau), p=p, v=v)


@dataclass(frozen=True)
class FedAdam(Adaptive):
    """Adam on the server, without bias correction, from v = tau^2.

    server   p <- beta1 p + (1 - beta1) D,   v <- beta2 v + (1 - beta2) D^2
             w <- w + lr_server p / (sqrt(v) + tau)
    """

    beta2: float = option(0.99, "decay of the second moment", within="[0, 1)")

    def second_moment(self, v: Tensor, d2: Tensor) -> Tensor:
        return self.beta2 * v + (1 - self.beta2) * d2


@dataclass(frozen=True)
class FedYogi(FedAdam):
    """FedAdam whose second moment moves additively.

    server   v <- v - (1 - beta2) D^2 sign(v - D^2),   the rest as FedAdam
    """

    def second_moment(self, v: Tensor, d2: Tensor) -> Tensor:
        return v - (1 - self.beta2) * d2 * (v - d2).sign()


@dataclass(frozen=True)
class FedAdagrad(Adaptive):
    """FedAdam whose second moment only grows; no momentum by default.

    server   v <- v + D^2,   the rest as FedAdam
    """

    beta1: float = option(0.0, "decay of the first moment", within="[0, 1)")

    def second_moment(self, v: Tensor, d2: Tensor) -> Tensor:
        return v + d2
