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


def of_classes(out, y):
    """Each sample's features, in the row of its class: ``[B, 3, 6]``."""
    outputs, z = out
    mine = F.one_hot(y, outputs.shape[-1]).to(z.dtype)
    return mine[:, :, None] * z[:, None]


def near_prototypes(out, y, prototypes, mu):
    outputs, z = out
    return F.cross_entropy(outputs, y, reduction="none") + mu * (z - prototypes[y]).square().mean(-1)


@dataclass(frozen=True)
class Prototypes(FedAvg):
    """Features near the mean of their class over all clients, as in FedProto: of 3 classes and 6 features."""

    mu: float = option(1.0, "weight of the distance")
    down: ClassVar[tuple[str, ...]] = ("w", "protos")
    up: ClassVar[tuple[str, ...]] = ("w", "sums", "counts")
    local: ClassVar[tuple[str, ...]] = ("sums", "counts")
    sizes: ClassVar[dict[str, int]] = {"protos": 18, "sums": 18, "counts": 3}
    features: ClassVar[bool] = True

    def direction(self, w, grad, down, me):
        rows = down.protos.expand(*w.shape[:-1], 18).unflatten(-1, (3, 6))
        g = grad(w, near_prototypes, rows, self.mu)
        counts = me.counts + grad.mean(w, lambda out, y: F.one_hot(y, 3))
        return g, me.replace(sums=me.sums + grad.mean(w, of_classes), counts=counts)

    def finish(self, w, down, me, rnd):
        return me, Vectors(w=w, sums=me.sums, counts=me.counts)

    def aggregate(self, srv, mean, rnd):
        sums, n = mean.sums.unflatten(-1, (3, 6)), mean.counts[..., None]
        protos = torch.where(n > 0, sums / n, srv.protos.unflatten(-1, (3, 6))).flatten(-2)
        return super().aggregate(srv, mean, rnd).replace(protos=protos)


@dataclass(frozen=True)
class ZerothOrder(FedAvg):
    """No gradient, only losses at two points, as in FedZO."""

    mu: float = option(0.01, "how far the points are from the model")

    def direction(self, w, grad, down, me):
        z = grad.rnd.normal("z", w)
        return (grad.loss(w + self.mu * z) - grad.loss(w - self.mu * z)) / (2 * self.mu) * z, me


@dataclass(frozen=True)
class Polyak(FedAvg):
    """Steps by the loss, as in FedSPS: at most lr, and as long as would bring a linear loss to zero."""

    c: float = option(20.0, "how little a step trusts the loss")

    def direction(self, w, grad, down, me):
        g = grad(w)
        far = grad.loss(w) / (self.c * (g * g).sum(-1, keepdim=True) + 1e-12)
        return g * (far / grad.rnd.lr).clamp(max=1), me


def centred_outputs(out, y, mean):
    return (out - mean).square()


@dataclass(frozen=True)
class Spread(FedAvg):
    """A mean that is given a row for each client, another mean."""

    own: ClassVar[tuple[str, ...]] = ("spread",)
    sizes: ClassVar[dict[str, int]] = {"spread": 3}

    def direction(self, w, grad, down, me):
        spread = grad.mean(w, centred_outputs, grad.mean(w, lambda out, y: out))
        return grad(w) * (1 + me.spread.sum(-1, keepdim=True)), me.replace(spread=spread)


OWN: dict[str, Algorithm] = {
    "outputs": Distilled(),
    "labels and step": Calibrated(),
    "features": Contrasted(),
    "loss": Fair(),
    "means of classes": Prototypes(),
    "losses alone": ZerothOrder(),
    "a step by the loss": Polyak(),
    "a mean of means": Spread(),
}
