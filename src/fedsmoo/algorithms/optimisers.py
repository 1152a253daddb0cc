"""Local optimisers, an option of any method: what a client makes of its directions (Sutskever et al., ICML 2013; Kingma
and Ba, ICLR 2015; Loshchilov and Hutter, ICLR 2019), step by step as ``torch.optim`` does."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedsmoo.algorithms.around import Around
from fedsmoo.core import Round, Vectors, derived, option


@dataclass(frozen=True)
class Optimiser(Around, ABC):
    """Any method, with directions that an optimiser turns into steps; what it remembers lives for a round, or stays.

    Where a step moves a part of the model, as in FedRep, each part has an optimiser of its own, which rests with it.
    """

    state: str = option(
        "round", "what it remembers: forgotten after the round, or kept by the client", ("round", "stays")
    )

    memory: ClassVar[tuple[str, ...]] = ()  # names of what it remembers; ``opt_t`` counts steps
    local = derived(lambda self: (*self.inner.local, *(self.memory if self.state == "round" else ())))
    own = derived(lambda self: (*self.inner.own, *(self.memory if self.state == "stays" else ())))
    scalars = derived(lambda self: (*self.inner.scalars, *(n for n in self.memory if n == "opt_t" and not self.moving)))

    def first_contact(self, down: Vectors) -> Vectors:
        mine = self.memory if self.state == "stays" else ()
        return self.inner.first_contact(down).replace(**{n: self.zeros(n, down.w) for n in mine})

    @abstractmethod
    def step(self, w: Tensor, d: Tensor, me: Vectors) -> tuple[Tensor, dict[str, Any]]:
        """Return what to subtract, before the learning rate, and what is remembered from now on."""

    def update(self, w: Tensor, d: Tensor, me: Vectors, rnd: Round) -> tuple[Tensor, Vectors]:
        d, new = self.step(w, d, me)
        if self.moving is not None:
            moves = getattr(me, self.moving) > 0
            new = {n: torch.where(moves, v, getattr(me, n)) for n, v in new.items()}
        return self.inner.update(w, d, me.replace(**new), rnd)

    @property
    def label(self) -> str:
        return f"{self.inner.label}+{type(self).__name__.lower()}"


@dataclass(frozen=True)
class Momentum(Optimiser):
    """Heavy-ball momentum.

    client   m_i <- momentum m_i + d,   w_i <- w_i - lr m_i          d: the method's direction, clipped
    """

    momentum: float = option(0.9, "how much of the last step stays", within="[0, 1)")
    memory = ("opt_m",)

    def step(self, w: Tensor, d: Tensor, me: Vectors) -> tuple[Tensor, dict[str, Any]]:
        m = self.momentum * me.opt_m + d
        return m, {"opt_m": m}


@dataclass(frozen=True)
class Nesterov(Momentum):
    """Nesterov's momentum, which looks a step ahead.

    client   m_i <- momentum m_i + d,   w_i <- w_i - lr (d + momentum m_i)
    """

    def step(self, w: Tensor, d: Tensor, me: Vectors) -> tuple[Tensor, dict[str, Any]]:
        m = self.momentum * me.opt_m + d
        return d + self.momentum * m, {"opt_m": m}


@dataclass(frozen=True)
class Adam(Optimiser):
    """Adam; the run's weight decay is part of the direction, as in ``torch.optim.Adam``.

    client   m_i <- beta1 m_i + (1 - beta1) d,   v_i <- beta2 v_i + (1 - beta2) d^2,   t_i <- t_i + 1
             w_i <- w_i - lr [m_i / (1 - beta1^t_i)] / (sqrt(v_i / (1 - beta2^t_i)) + eps)
    """

    beta1: float = option(0.9, "decay of the first moment", within="[0, 1)")
    beta2: float = option(0.999, "decay of the second moment", within="[0, 1)")
    eps: float = option(1e-8, "added to the root of the second moment", within="(0, inf)")
    memory = ("opt_m", "opt_v", "opt_t")

    def step(self, w: Tensor, d: Tensor, me: Vectors) -> tuple[Tensor, dict[str, Any]]:
        t = me.opt_t + 1
        m = self.beta1 * me.opt_m + (1 - self.beta1) * d
        v = self.beta2 * me.opt_v + (1 - self.beta2) * d * d
        root = (v / (1 - self.beta2**t)).sqrt()
        return m / (1 - self.beta1**t) / (root + self.eps), {"opt_m": m, "opt_v": v, "opt_t": t}


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with a weight decay beside it, not in its moments.

    client   as Adam, and w_i <- w_i - lr weight_decay w_i           the run's weight_decay becomes this one
    """

    weight_decay: float | None = option(None, "decoupled weight decay (default: the run's)", within="[0, inf)")

    def step(self, w: Tensor, d: Tensor, me: Vectors) -> tuple[Tensor, dict[str, Any]]:
        d, new = super().step(w, d, me)
        return d if self.weight_decay is None else d + self.weight_decay * w, new


# The name of the setting local_optimizer -> what is put around the method; sgd is the method itself.
OPTIMISERS: dict[str, type[Around]] = {"momentum": Momentum, "nesterov": Nesterov, "adam": Adam, "adamw": AdamW}
