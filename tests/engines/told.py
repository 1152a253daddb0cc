"""Methods of the kinds that ask for more than vectors: where a client is, its facts, and its step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedsmoo.algorithms import FedAvg
from fedsmoo.algorithms.around import Around
from fedsmoo.core import Algorithm, Vectors, derived, norm, option


@dataclass(frozen=True)
class Falling(FedAvg):
    """A learning rate that falls within the round."""

    rho: float = option(0.1, "share of the learning rate at the end of a round")

    def update(self, w, d, me, rnd):
        t = rnd.step / rnd.steps
        return super().update(w, (1 - t + t * self.rho) * d, me, rnd)


@dataclass(frozen=True)
class Ahead(FedAvg):
    """Gradients at a point that depends on the step: the first of a step, and one that waits for a norm."""

    far: float = option(0.05, "how far")
    twice: bool = option(False, "a second gradient, at a perturbed point")

    def slope(self, w, grad, down, me):
        g = grad(w + self.far * grad.rnd.step * (w - down.w) + 0.01 * grad.rnd.step)
        return (grad(w + self.far * (1 + grad.rnd.step) * g / (1 + norm(g))) if self.twice else g), me


@dataclass(frozen=True)
class Known(FedAvg):
    """Reads every fact of a client, in every function that is told of it."""

    by: float = option(0.1, "how much it matters")
    own: ClassVar[tuple[str, ...]] = ("seen",)

    def direction(self, w, grad, down, me):
        r = grad.rnd
        most = r.labels.amax(-1, keepdim=True) / r.samples
        return grad(w) * (1 + self.by * most) + 0.01 * r.client * w / (1 + r.number), me

    def update(self, w, d, me, rnd):
        return w - rnd.lr * d / (1 + self.by * rnd.samples / (1 + rnd.client)) * rnd.share, me

    def finish(self, w, down, me, rnd):
        seen = me.seen + rnd.samples + 10 * rnd.client + 100 * rnd.labels[..., :1] + 1000 * rnd.steps
        return me.replace(seen=seen), Vectors(w=w + 1e-6 * seen + 0.01 * rnd.lr * rnd.number)


@dataclass(frozen=True)
class Placed(FedAvg):
    """The same, of numbers that generated passes can read: no counts of classes."""

    by: float = option(0.1, "how much it matters")

    def direction(self, w, grad, down, me):
        return grad(w) * (1 + self.by * grad.rnd.samples / (1 + grad.rnd.client) + 0.1 * grad.rnd.number), me

    def finish(self, w, down, me, rnd):
        return me, Vectors(w=w + 0.01 * rnd.client * (w - down.w) / rnd.samples)


@dataclass(frozen=True)
class Heavy(Around):
    """Any method, with momentum in its local steps, that stays or lives for a round."""

    beta: float = option(0.7, "momentum")
    keep: bool = option(False, "whether it stays")
    own = derived(lambda self: (*self.inner.own, *("m",) * self.keep))
    local = derived(lambda self: (*self.inner.local, *("m",) * (not self.keep)))

    def first_contact(self, down):
        own = self.inner.first_contact(down)
        return own.replace(m=self.zeros("m", down.w)) if self.keep else own

    def update(self, w, d, me, rnd):
        m = self.beta * me.m + d
        return self.inner.update(w, m, me.replace(m=m), rnd)


@dataclass(frozen=True)
class Adam(Around):
    """Any method, with Adam in its local steps: powers of numbers to the step."""

    local = derived(lambda self: (*self.inner.local, "a", "b"))

    def update(self, w, d, me, rnd):
        a, b, k = 0.9 * me.a + 0.1 * d, 0.99 * me.b + 0.01 * d * d, rnd.step + 1
        u = a / (1 - 0.9**k) / ((b / (1 - 0.99**k)).sqrt() + 1e-3)
        return self.inner.update(w, 0.1 * u, me.replace(a=a, b=b), rnd)


@dataclass(frozen=True)
class Noisy(FedAvg):
    """Noise in every function that may draw: by the step, at the end of the round, and of the server."""

    by: float = option(0.1, "how much noise")

    def direction(self, w, grad, down, me):
        return grad(w) + self.by * grad.rnd.normal("gradient", down.w), me

    def update(self, w, d, me, rnd):
        return torch.where(rnd.uniform("mask", w) < 0.7, w - rnd.lr * d, w), me

    def finish(self, w, down, me, rnd):
        return me, Vectors(w=w + self.by * rnd.normal("reply", w) * rnd.uniform("scale", w[..., :1]))

    def aggregate(self, srv, mean, rnd):
        return srv.replace(w=mean.w + self.by / rnd.n * rnd.normal("server", srv.w))


KINDS: dict[str, Algorithm] = {
    "step": Falling(),
    "point of the step": Ahead(),
    "two points of the step": Ahead(twice=True),
    "facts": Known(),
    "facts in passes": Placed(),
    "momentum": Heavy(FedAvg()),
    "momentum that stays, falling": Heavy(Falling(), keep=True),
    "adam": Adam(FedAvg()),
    "noise": Noisy(),
}
