"""Methods with losses of their own, which ask for outputs, features, counts of classes and losses of clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch.nn import functional as F

from fedsmoo.algorithms import FedAvg
from fedsmoo.core import Algorithm, Vectors, option


def not_true(out, y, teacher, beta, tau):
    """Cross-entropy, and the divergence from a teacher over the classes that are not true."""
    p, q = ((v / tau).scatter(-1, y[:, None], -1e9).log_softmax(-1) for v in (teacher, out))
    return F.cross_entropy(out, y, reduction="none") + beta * tau**2 * (p.exp() * (p - q)).sum(-1)


@dataclass(frozen=True)
class Distilled(FedAvg):
    """Keeps what the global model knows of other classes, as FedNTD does."""

    beta: float = option(0.5, "weight of the distillation")
    tau: float = option(2.0, "temperature")

    def slope(self, w, grad, down, me):
        return grad(w, not_true, grad.outputs(down.w), self.beta, self.tau), me


def calibrated(out, y, labels, tau):
    return F.cross_entropy(out - tau * labels.clamp(min=0.1) ** -0.25, y, reduction="none")


@dataclass(frozen=True)
class Calibrated(FedAvg):
    """Margins by how many samples of each class a client holds, as in FedLC; weaker from step to step."""

    tau: float = option(1.0, "width of the margins")

    def slope(self, w, grad, down, me):
        return grad(w, calibrated, grad.rnd.labels, self.tau / (1 + grad.rnd.step)), me


def contrasted(out, y, near, far, mu):
    outputs, z = out
    towards = torch.stack([F.cosine_similarity(z, v, dim=-1) for v in (near, far)], -1) / 0.5
    return F.cross_entropy(outputs, y, reduction="none") - mu * towards.log_softmax(-1)[..., 0]


@dataclass(frozen=True)
class Contrasted(FedAvg):
    """Features near those of the global model and far from those of the client's last one, as in MOON."""

    mu: float = option(0.5, "weight of the contrast")
    own: ClassVar[tuple[str, ...]] = ("last",)
    features: ClassVar[bool] = True

    def first_contact(self, down):
        return Vectors(last=0.5 * down.w)

    def slope(self, w, grad, down, me):
        return grad(w, contrasted, grad.features(down.w), grad.features(me.last), self.mu), me

    def finish(self, w, down, me, rnd):
        return me.replace(last=w), Vectors(w=w)


@dataclass(frozen=True)
class Fair(FedAvg):
    """Clients that fare badly count for more, as in q-FedAvg."""

    q: float = option(1.0, "how much more")
    up: ClassVar[tuple[str, ...]] = ("w", "weight")
    scalars: ClassVar[tuple[str, ...]] = ("weight",)
    asks: ClassVar[tuple[str, ...]] = ("loss",)

    def finish(self, w, down, me, rnd):
        return me, Vectors(w=rnd.loss**self.q * (w - down.w), weight=rnd.loss**self.q)

    def aggregate(self, srv, mean, rnd):
        return srv.replace(w=srv.w + mean.w / mean.weight)


OWN: dict[str, Algorithm] = {
    "outputs": Distilled(),
    "labels and step": Calibrated(),
    "features": Contrasted(),
    "loss": Fair(),
}
