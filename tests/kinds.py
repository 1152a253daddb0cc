"""Every kind of run, and a small method of each kind that the contract can say, as a user would write them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from fedsmoo import FedAvg, Vectors
from fedsmoo.core import derived, norm, option

# One of each kind that a run can be, as settings: for tests in which each costs seconds. Beside it stands what makes it
# a kind of its own; a method that is of no kind here belongs here, too.
EACH_KIND: dict[str, dict[str, Any]] = {
    "fedavg": {},  # the model, and nothing else
    "fedadam": {},  # vectors that the server keeps
    "scaffold": {},  # vectors in every place: sent, kept by clients, and sent back
    "fedlesam": {},  # what a client keeps is the model that it saw last
    "fedsmoo": {},  # two gradients in a step, a vector for a round, vectors of the server's and of the clients' own
    "fedwmsam": {},  # single numbers: sent, kept and sent back
    "median": {},  # a server that sees every reply
    "ditto": {},  # a personal model beside the global one
    "fedrep": {},  # masks: parameters that stay with their clients
    "fedlc": {},  # a loss of the method's own, which knows a client's counts of classes
    "moon": {},  # a loss of the method's own, which looks at features
    "qfedavg": {},  # clients' losses, which a method asks for
    "schedule": {"algorithm": "fedsmoo", "algorithm_options": {"r": "linear:0.02:0.3:20", "beta": "steps:10:1:2"}},
    "noise": {"algorithm": "fedavg", "privacy": "client", "weighted": False},  # drawn by clients, to hide them
    "error feedback": {"algorithm": "fedcm", "compression": "topk"},  # a wrapper that keeps vectors
    "momentum": {"algorithm": "fedprox", "local_optimizer": "momentum", "relaxed": 0.1},  # wrappers in a wrapper
    "rounded": {"algorithm": "scaffold", "wire": "int8"},  # numbers that travel as integers
}


def settings_of(kind: str) -> dict[str, Any]:
    """The settings of one of the kinds, or of a method by its name."""
    return {"algorithm": kind, **EACH_KIND.get(kind, {})}


@dataclass(frozen=True)
class Numbers(FedAvg):
    """Single numbers in every place: sent, kept on the server and by clients, local, and sent back.

    client   d = (1 + t) g(w_i);   k <- k + 1;   v_i <- v_i + 1;   sends w + (w_i - w) / v_i and k ||w_i - w||
    server   w <- mean;   t <- far / (1 + far);   s <- s + n
    """

    down = ("w", "t")
    server = ("s",)
    own = ("v",)
    local = ("k",)
    up = ("w", "far")
    scalars = ("t", "s", "v", "k", "far")

    def direction(self, w, grad, down, me):
        return (1 + down.t) * grad(w), me.replace(k=me.k + 1)

    def finish(self, w, down, me, rnd):
        visits = me.v + 1
        return me.replace(v=visits), Vectors(w=down.w + (w - down.w) / visits, far=me.k * norm(w - down.w))

    def aggregate(self, srv, mean, rnd):
        return srv.replace(w=mean.w, t=mean.far / (1 + mean.far), s=srv.s + rnd.n)


@dataclass(frozen=True)
class Stretched(FedAvg):
    """A server step as long as the clients disagree, as in FedExP.

    server   w <- w + max(1, mean ||w_i - w||^2 / (2 (||mean(w_i - w)||^2 + eps))) mean(w_i - w)
    """

    eps: float = option(1e-3, "keeps the step finite", within="(0, inf)")
    up = ("w", "far")
    scalars = ("far",)

    def finish(self, w, down, me, rnd):
        return me, Vectors(w=w, far=norm(w - down.w) ** 2)

    def aggregate(self, srv, mean, rnd):
        d = mean.w - srv.w
        return srv.replace(w=srv.w + (mean.far / (2 * (norm(d) ** 2 + self.eps))).clamp(min=1) * d)


@dataclass(frozen=True)
class Median(FedAvg):
    """The median of each coordinate; beside it, a plain mean and what the server knows of each client.

    client   sends w_i, g_i = w_i - w and ||g_i||
    server   w <- median(w_i);   e <- mean(g_i);   z <- (sum_i weight_i i samples_i steps_i r_i, n)
    """

    server = ("e", "z")
    up = ("w", "g", "r")
    rows = ("w", "r")
    scalars = ("r", "z")

    def finish(self, w, down, me, rnd):
        return me, Vectors(w=w, g=w - down.w, r=norm(w - down.w))

    def combine(self, srv, rows, weights, rnd):
        middle = rows.w.sort(0).values[[(rnd.n - 1) // 2, rnd.n // 2]].mean(0)
        return Vectors(w=middle, r=(weights * rnd.client * rnd.samples * rnd.steps * rows.r).sum(0) + rnd.n)

    def aggregate(self, srv, mean, rnd):
        return srv.replace(w=mean.w, e=mean.g, z=mean.r)


@dataclass(frozen=True)
class Ditto(FedAvg):
    """A personal model beside the global one.

    client   v_i <- v_i - lr [g(v_i) + lam (v_i - w)];   w_i as FedAvg
    """

    lam: float = option(0.1, "how near the personal model stays", within="[0, inf)")
    own = ("v",)
    local = ("p",)

    def first_contact(self, down):
        return Vectors(v=down.w)

    def direction(self, w, grad, down, me):
        d, me = super().direction(w, grad, down, me)
        return d, me.replace(p=grad(me.v) + self.lam * (me.v - down.w))

    def update(self, w, d, me, rnd):
        w, me = super().update(w, d, me, rnd)
        return w, me.replace(v=me.v - rnd.lr * me.p)

    def personal(self, down, me):
        return me.v


@dataclass(frozen=True)
class Heads(FedAvg):
    """Each client keeps some parameters of its own, as in FedPer.

    client   starts at w with its own head, which stays
    """

    head: str = option("fc3.*", "parameters that stay, by name")
    own = ("v",)
    stays = ("head",)
    masks = derived(lambda self: {"head": self.head})

    def first_contact(self, down):
        return Vectors(v=down.w)

    def start(self, down, me):
        return torch.where(down.head > 0, me.v, down.w)

    def finish(self, w, down, me, rnd):
        return me.replace(v=w), Vectors(w=w)

    def personal(self, down, me):
        return self.start(down, me)
