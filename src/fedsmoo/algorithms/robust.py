"""Servers that withstand some wrong replies, around any method: the median and trimmed mean of coordinates (Yin et al.,
ICML 2018), Krum and Multi-Krum (Blanchard et al., NeurIPS 2017), the geometric median (RFA: Pillutla et al., IEEE TSP
2022) and the norm-bounded mean (Sun et al., 2019)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedsmoo.algorithms.around import Around
from fedsmoo.core import Round, Vectors, derived, norm, option
from fedsmoo.core.share import count_of_share


@dataclass(frozen=True)
class Robust(Around):
    """Any method, of whose replies the server makes something else than the mean; single numbers keep theirs."""

    rows = derived(lambda self: tuple(n for n in self.inner.up if n not in self.inner.scalars))
    columnwise = False
    weighs = True  # whether clients count by the weights of the mean, or all alike
    share = ""  # the option that says which part of the replies may be wrong, if there is one

    @property
    def label(self) -> str:
        return f"{self.inner.label}+{type(self).__name__}"


@dataclass(frozen=True)
class Median(Robust):
    """The median of each coordinate; all clients count alike.

    server   goes on with median_i(v_i) for mean(v_i)        v_i: each vector that is sent
    """

    weighs = False
    columnwise = True

    def combine(self, srv: Vectors, rows: Vectors, weights: Tensor, rnd: Round) -> Vectors:
        return rows.map(lambda v: v.sort(0).values[[(len(v) - 1) // 2, len(v) // 2]].mean(0))


@dataclass(frozen=True)
class TrimmedMean(Robust):
    """The mean of each coordinate without its extremes; all clients count alike.

    server   goes on with the mean of v_i without the floor(trim n) largest and as many smallest, for mean(v_i)
    """

    trim: float = option(0.2, "share of the replies that is left out at either end", within="[0, 0.5)")

    columnwise = True
    weighs = False
    share = "trim"

    def combine(self, srv: Vectors, rows: Vectors, weights: Tensor, rnd: Round) -> Vectors:
        def inner(v: Tensor) -> Tensor:
            cut = count_of_share(len(v), self.trim)
            return v.sort(0).values[cut : len(v) - cut].mean(0)

        return rows.map(inner)


@dataclass(frozen=True)
class Krum(Robust):
    """The reply that is nearest to its neighbours.

    server   goes on with v_k for mean(v_i),   k = argmin_i of the sum of the n - f - 2 least ||v_i - v_j||^2, j != i
             f = floor(attackers n)
    """

    attackers: float = option(0.2, "share of the replies that may be wrong", within="[0, 0.5)")

    weighs = False
    share = "attackers"

    def scores(self, rows: Vectors) -> Tensor:
        """Return how far each reply, all of its vectors together, is from its nearest ones."""
        whole = torch.cat([v for _, v in rows.items()], -1)
        apart = torch.stack([(whole - one).square().sum(-1) for one in whole])
        nearest = apart.sort(1).values[:, 1:]  # the first is the reply itself
        return nearest[:, : max(len(whole) - self.wrong(len(whole)) - 2, 1)].sum(1)

    def wrong(self, n: int) -> int:
        """Return how many of n replies may be wrong."""
        return count_of_share(n, self.attackers)

    def combine(self, srv: Vectors, rows: Vectors, weights: Tensor, rnd: Round) -> Vectors:
        best = self.scores(rows).argmin()
        return rows.map(lambda v: v[best])


@dataclass(frozen=True)
class MultiKrum(Krum):
    """The mean of the replies that are nearest to their neighbours; those clients count alike.

    server   goes on with the mean of the n - f replies with Krum's least sums, for mean(v_i)
    """

    def combine(self, srv: Vectors, rows: Vectors, weights: Tensor, rnd: Round) -> Vectors:
        scores = self.scores(rows)
        best = scores.argsort(stable=True)[: len(scores) - self.wrong(len(scores))].sort().values
        return rows.map(lambda v: v[best].mean(0))


@dataclass(frozen=True)
class RFA(Robust):
    """The geometric median of the replies, by the smoothed Weiszfeld algorithm.

    server   goes on with z for mean(v_i):   z = mean(v_i), then z <- sum_i b_i v_i / sum_i b_i     steps times
             b_i = p_i / max(nu, ||v_i - z||),   p_i: the weights of the mean
    """

    nu: float = option(1e-6, "a distance below which a reply counts no more", within="(0, inf)")
    steps: int = option(3, "steps of Weiszfeld's algorithm", within="[1, inf)", counts=True)

    def combine(self, srv: Vectors, rows: Vectors, weights: Tensor, rnd: Round) -> Vectors:
        whole = torch.cat([v for _, v in rows.items()], -1)
        share = weights
        for _ in range(self.steps):
            z = (share * whole).sum(0)
            share = weights / norm(whole - z).clamp(min=self.nu)
            share = share / share.sum()
        return rows.map(lambda v: (share * v).sum(0))


@dataclass(frozen=True)
class NormBounded(Robust):
    """The mean of replies none of which moves far.

    server   goes on with v + mean(u_i min(1, bound / ||u_i||)) for mean(v_i)
             u_i = v_i - v,   v: what the client received by that name, or 0
    """

    bound: float = option(3.0, "largest norm of what a client changes", within="(0, inf)")

    def combine(self, srv: Vectors, rows: Vectors, weights: Tensor, rnd: Round) -> Vectors:
        sent = self.inner.sent(srv)

        def bounded(name: str, v: Tensor) -> Tensor:
            base = getattr(sent, name) if name in self.shared else torch.zeros_like(v[0])
            u = v - base
            return base + (weights * u * (self.bound / norm(u)).clamp(max=1)).sum(0)

        return Vectors(**{n: bounded(n, v) for n, v in rows.items()})
