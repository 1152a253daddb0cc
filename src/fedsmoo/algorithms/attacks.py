"""Simulated attackers, an option of any method, to try servers that withstand them: flipped signs, scaled changes,
noise and flipped labels (Blanchard et al., NeurIPS 2017; Fang et al., USENIX Security 2020), and "a little is enough"
(ALIE: Baruch et al., NeurIPS 2019)."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fedsmoo.algorithms.around import Around
from fedsmoo.core import Gradient, Round, Vectors, derived, norm, option
from fedsmoo.core.gradient import BatchModel, Each, Loss, Take


@dataclass(frozen=True)
class Attacked(Around):
    """Any method, some of whose clients attack: those with the numbers below ``attackers``."""

    attackers: int = option(1, "how many clients attack, the first ones", within="[0, inf)")

    @property
    def label(self) -> str:
        return f"{self.inner.label} under {type(self).__name__.lower()}"


@dataclass(frozen=True)
class Sender(Attacked, ABC):
    """Attackers that train as others do and send something else; single numbers they leave as they are.

    client   an attacker sends v + A(v_i - v)  where v was received too (w), else A(v_i); of a code, A of the code
    """

    @abstractmethod
    def sends(self, change: Tensor, name: str, rnd: Round) -> Tensor:
        """Return what an attacker makes of a change."""

    def finish(self, w: Tensor, down: Vectors, me: Vectors, rnd: Round) -> tuple[Vectors, Vectors]:
        me, up = self.inner.finish(w, down, me, rnd)
        vectors = [n for n in self.up if n not in self.scalars]
        bad = rnd.client < self.attackers
        wrong = {}
        for n in vectors:
            v = getattr(up, n)
            before = getattr(down, n) if n in self.shared else torch.zeros_like(v)
            wrong[n] = torch.where(bad, before + self.sends(v - before, n, rnd), v)
        return me, up.replace(**wrong)


@dataclass(frozen=True)
class SignFlip(Sender):
    """Attackers that push the other way.

    client   A(u) = -scale u
    """

    scale: float = option(1.0, "how far", within="(0, inf)")

    def sends(self, change: Tensor, name: str, rnd: Round) -> Tensor:
        return -self.scale * change


@dataclass(frozen=True)
class Scaled(Sender):
    """Attackers that push too far.

    client   A(u) = scale u
    """

    scale: float = option(10.0, "how far", within="(0, inf)")

    def sends(self, change: Tensor, name: str, rnd: Round) -> Tensor:
        return self.scale * change


@dataclass(frozen=True)
class Gaussian(Sender):
    """Attackers that send noise.

    client   A(u) = scale ||u|| N(0, 1 / P)                as long as a change, times the scale
    """

    scale: float = option(10.0, "how long, in lengths of the client's own change", within="(0, inf)")

    def sends(self, change: Tensor, name: str, rnd: Round) -> Tensor:
        drawn = rnd.normal(f"attack on {name}", change)
        return (self.scale / math.sqrt(change.shape[-1])) * norm(change) * drawn


@dataclass(frozen=True)
class ALIE(Attacked):
    """Attackers that know all replies and stay within their spread: a little is enough.

    client   attackers send mean_h - z sd_h             mean and deviation of each coordinate over the others,
                                                        or over all replies if nobody else sent one
             z = Phi^-1((n - f - s) / (n - f)),   s = floor(n / 2 + 1) - f        f attackers among n replies
    """

    z: float = option(0.0, "deviations from the mean; 0: as many as hide among half of the replies", within="[0, inf)")

    rows = derived(lambda self: tuple(n for n in self.inner.up if n in self.inner.rows or n not in self.inner.scalars))
    columnwise = False

    def combine(self, srv: Vectors, rows: Vectors, weights: Tensor, rnd: Round) -> Vectors:
        bad = rnd.client < self.attackers
        f, n = bad.sum().to(weights.dtype), len(weights)
        s = math.floor(n / 2 + 1) - f
        hidden = torch.special.ndtri(((n - f - s) / (n - f).clamp(min=1)).clamp(1e-3, 1 - 1e-3))
        z = torch.where(torch.as_tensor(self.z, dtype=weights.dtype) > 0, self.z, hidden)
        honest = (~bad | bad.all()).to(weights.dtype)

        def attacked(v: Tensor) -> Tensor:
            mean = (honest * v).sum(0) / honest.sum()
            sd = ((honest * (v - mean).square()).sum(0) / honest.sum()).sqrt()
            return torch.where(bad, mean - z * sd, v)

        wrong = rows.map(attacked)
        mine = self.inner.combine(srv, wrong.pick(self.inner.rows), weights, rnd) if self.inner.rows else Vectors()
        rest = wrong.pick(tuple(n for n in self.rows if n not in self.inner.rows))
        return rest.map(lambda v: (weights * v).sum(0)).replace(**dict(mine.items()))


@dataclass(frozen=True)
class LabelFlip(Attacked):
    """Attackers that train on wrong labels, as others train on right ones.

    client   an attacker has class K - 1 - y for class y                        K classes, cross-entropy

    So it counts its samples of each class, too (FedLC). The loss that q-FedAvg asks for is of the right labels.
    """

    of_classes = True

    def direction(self, w: Tensor, grad: Gradient, down: Vectors, me: Vectors) -> tuple[Tensor, Vectors]:
        bad = (grad.rnd.client < self.attackers).to(grad.rnd.client.dtype)
        if isinstance(labels := grad.rnd.labels, Tensor):
            grad = grad.told(dataclasses.replace(grad.rnd, labels=torch.where(bad > 0, labels.flip(-1), labels)))
        return self.inner.direction(w, Mirrored(grad, bad), down, me)


class Mirrored(Gradient):
    """A step's ``grad`` in which clients that are ``bad`` see the labels in the opposite order; so do its copies."""

    def __init__(self, grad: Gradient, bad: Tensor) -> None:
        super().__init__(grad.take, grad.rnd, grad.model, grad.clients)
        self.losses, self.looked, self.copied, self.bad = grad.losses, grad.looked, grad, bad

    def _copy(self, take: Take, rnd: Round, model: BatchModel | None) -> Mirrored:
        return Mirrored(super()._copy(take, rnd, model), self.bad)

    def __call__(self, v: Tensor, loss: Loss | None = None, *given: Any) -> Tensor:
        return super().__call__(v, mirrored, self.bad, loss, *given)

    def mean(self, v: Tensor, each: Each, *given: Any) -> Tensor:
        return super().mean(v, mirrored, self.bad, each, *given)

    def loss(self, v: Tensor) -> Tensor:
        value = super().mean(v, mirrored, self.bad, None)
        self.looked.append(value[..., 0])
        return value


def mirrored(out: Any, y: Tensor, bad: Tensor, loss: Loss | None, *given: Any) -> Tensor:
    """Return a loss of one client, whose labels are the others if it is ``bad``."""
    outputs = out[0] if isinstance(out, tuple) else out
    y = torch.where(bad > 0, outputs.shape[-1] - 1 - y, y)
    return F.cross_entropy(outputs, y, reduction="none") if loss is None else loss(out, y, *given)


# The name of the setting attack -> what is put around the method; off is the method itself.
ATTACKS: dict[str, type[Around]] = {
    "sign-flip": SignFlip,
    "scaled": Scaled,
    "gaussian": Gaussian,
    "label-flip": LabelFlip,
    "alie": ALIE,
}
