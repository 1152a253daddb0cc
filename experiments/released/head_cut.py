"""FedSMOO as its authors' code computed it until October 2024: every layer's mu and s cut from the head of the vector.

The released simulator (revision f1d0607, utils.py, ``get_params_list_with_shape``) turned the flat vectors mu_i and s
into one tensor per layer at the start of every round, but never advanced its index: a layer of L numbers received
numbers 0..L-1 of the whole vector. Within the round each layer went on from there correctly, and its end was written
back where it belongs. Revision 502bec6 added the missing line.

    fedsmoo run --algorithm experiments/released/head_cut.py:HeadCut --set perturbation=released ...

Weights that no pixel ever meets (most of the last stage on 32x32 images) are not part of our vectors, but in the
released code they received pieces of the head, too, and those count in the norm by which the perturbation is scaled.
All of them mirror head positions, which are live; so ``nu`` follows, for every head position, what its copies become,
and ``copies`` says how many there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from fedsmoo import FedSMOO, Vectors, derived, norm
from fedsmoo.core.vectors import EPS
from fedsmoo.kernels import from_torchvision, live_layout
from fedsmoo.models.resnet import ResNet18GN


@dataclass(frozen=True)
class Heads:
    """Which number of a vector its layers' cut puts at each place, and the root of how many dead copies each has."""

    source: Tensor
    copies: Tensor


@cache
def resnet_heads(classes: int) -> Heads:
    """The layers of ResNet-18-GN in torchvision's order, on the live vector."""
    shapes = {n: p.shape for n, p in ResNet18GN(classes).named_parameters()}
    begins, total = {}, 0
    for name, shape in shapes.items():
        begins[name], total = total, total + shape.numel()
    within = {n: torch.arange(s.numel(), dtype=torch.float64).view(s) for n, s in shapes.items()}
    count, size = live_layout(classes).count, live_layout(classes).size
    place = from_torchvision({n: v + begins[n] for n, v in within.items()}).long()[:count]  # of a live number
    live = torch.full((total,), -1)
    live[place] = torch.arange(count)
    source = torch.arange(size)  # the numbers behind the last parameter stay zero
    source[:count] = live[from_torchvision(within).long()[:count]]
    copies = torch.zeros(size, dtype=torch.float64)
    for name, shape in shapes.items():
        dead = (live[begins[name] : begins[name] + shape.numel()] < 0).nonzero()[:, 0]
        copies.index_add_(0, live[dead], torch.ones(len(dead), dtype=torch.float64))
    assert (source >= 0).all(), "the longest layer reaches past the live numbers at the head"
    return Heads(source, copies.sqrt())


def two_layers(size: int) -> Heads:
    """Two layers of equal length and a dead number, for other vectors: checks of the contract have some."""
    half = -(-size // 2)
    source = torch.arange(size) % half
    copies = torch.zeros(size, dtype=torch.float64)
    copies[0] = 1
    return Heads(source, copies)


_placed: dict[tuple[int, torch.device, torch.dtype], Heads] = {}


def heads(like: Tensor) -> Heads:
    """The structure for vectors like this one, on its device; made when a run begins, never while a step is traced."""
    return _placed[like.shape[-1], like.device, like.dtype]


def place(like: Tensor) -> None:
    size = like.shape[-1]
    known = next((resnet_heads(c) for c in (10, 100) if live_layout(c).size == size), None) or two_layers(size)
    key = (size, like.device, like.dtype)
    _placed[key] = Heads(known.source.to(like.device), known.copies.to(like))


@dataclass(frozen=True)
class HeadCut(FedSMOO):
    """FedSMOO whose clients begin each round with every layer's mu_i and s cut from the head of the flat vector.

    client   mu_l <- mu_i[0 : L_l],  s_l <- s[0 : L_l]  for every layer l, dead weights included;  then as FedSMOO
    server   as FedSMOO
    """

    down = derived(lambda self: ("w", "s", "t"))  # s as the layers cut it, and t: s itself
    own = derived(lambda self: ("mu", "nu", "lam"))  # mu_i as the layers cut it; nu: its dead copies
    local = derived(lambda self: ("s_hat", "n_hat") if self.perturbation == "paper" else ())
    up = derived(lambda self: ("w", "s_tilde", "n_tilde"))

    def init(self, w: Tensor) -> Vectors:
        place(w)
        return super().init(w)

    def slope(self, w, grad, down, me):
        g = grad(w)
        x, y = g - me.mu - down.s, me.nu + down.t  # a dead number's gradient is zero: it moves along -y
        scale = self.r / ((norm(x).square() + norm(heads(w).copies * y).square()).sqrt() + EPS)
        s_hat, n_hat = scale * x, -scale * y
        me = me.replace(mu=me.mu + s_hat - down.s, nu=me.nu + n_hat - down.t)
        return grad(w + s_hat), me.replace(s_hat=s_hat, n_hat=n_hat) if self.local else me

    def finish(self, w, down, me, rnd):
        kept, up = self.base.finish(self, w, down, me, rnd)
        paper = self.perturbation == "paper"
        up = up.replace(
            s_tilde=me.mu - me.s_hat if paper else me.mu, n_tilde=me.nu - me.n_hat if paper else me.nu
        )  # fmt: skip
        return kept.replace(mu=me.mu[..., heads(w).source], nu=me.mu), up

    def aggregate(self, srv, mean, rnd):
        srv = self.base.aggregate(self, srv, mean, rnd)
        length = (norm(mean.s_tilde).square() + norm(heads(srv.w).copies * mean.n_tilde).square()).sqrt()
        t = self.r * mean.s_tilde / (length + EPS)
        return srv.replace(s=t[..., heads(srv.w).source], t=t)
