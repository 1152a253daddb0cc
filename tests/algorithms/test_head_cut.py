"""The variant of FedSMOO that the released code computed until October 2024, against that code's own steps."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedsmoo.core import Round, Vectors
from fedsmoo.core.user_code import user_object
from fedsmoo.kernels import from_torchvision, live_layout, to_torchvision
from fedsmoo.models.resnet import ResNet18GN

FILE = Path(__file__).parents[2] / "experiments/released/head_cut.py"
HeadCut = user_object(f"{FILE}:HeadCut", "algorithm")
home = sys.modules[HeadCut.__module__]


def cut(flat: Tensor, shapes: list[torch.Size]) -> list[Tensor]:
    """The released function, with its error: the index does not advance."""
    idx = 0
    return [flat[idx : idx + s.numel()].reshape(s) for s in shapes]


def test_the_layers_of_resnet_on_the_live_vector() -> None:
    """The cut of a full vector, in torchvision's layout, is ours on the live numbers; the rest is in the copies."""
    heads, size = home.resnet_heads(10), live_layout(10).size
    mu = torch.randn(size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mu[live_layout(10).count :] = 0
    names = [n for n, _ in ResNet18GN(10).named_parameters()]
    full = to_torchvision(mu)
    shapes = [full[n].shape for n in names]
    pieces = dict(zip(names, cut(torch.cat([full[n].flatten() for n in names]), shapes), strict=True))
    live = from_torchvision(pieces)
    assert torch.equal(live, mu[heads.source])
    everything = sum(p.square().sum() for p in pieces.values())
    assert (heads.copies * mu).square().sum() == pytest.approx(float(everything - live.square().sum()), rel=1e-12)
    assert int(heads.copies.square().sum().round()) == sum(s.numel() for s in shapes) - live_layout(10).count == 6946816


@pytest.mark.parametrize("perturbation", ["released", "paper"])
def test_rounds_are_the_released_code_s(perturbation: str) -> None:
    """Two layers of four numbers and a dead one; two clients, three rounds of three steps, literally."""
    method = HeadCut(r=0.3, beta=4.0, perturbation=perturbation)
    a = torch.linspace(1, 3, 16, dtype=torch.float64).view(2, 8)
    b = torch.randn(2, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    w = torch.zeros(8, dtype=torch.float64)
    srv = method.init(w)
    rows = [method.first_contact(method.sent(srv)) for _ in range(2)]
    shapes = [torch.Size([4]), torch.Size([4]), torch.Size([1])]  # the third layer is the dead number
    lr, beta = 0.1, 4.0
    mu, s = torch.zeros(2, 9, dtype=torch.float64), torch.zeros(9, dtype=torch.float64)
    lam, lam_i, model = torch.zeros_like(w), torch.zeros(2, 8, dtype=torch.float64), w
    for number in range(3):
        ups, ends, tildes = [], [], []
        for i in range(2):
            me = rows[i].replace(**{n: torch.zeros_like(w) for n in method.local})
            v, down = srv.w, method.sent(srv)
            mine, theirs, u = torch.cat(cut(mu[i], shapes)), torch.cat(cut(s, shapes)), model
            for _ in range(3):
                d, me = method.direction(v, lambda x, i=i: a[i] * (x - b[i]), down, me)
                v = v - lr * (d + method.pull(v, down))
                g = torch.cat([a[i] * (u - b[i]), torch.zeros(1, dtype=torch.float64)]) - (mine + theirs)
                e = g * 0.3 / (g.norm() + 1e-12)
                mine = mine + e - theirs
                u = u - lr * (a[i] * (u + e[:8] - b[i]) - lam_i[i] + (u - model) / beta)
            rows[i], up = method.finish(v, down, me, Round(number, lr, 3, 1.0))
            assert torch.allclose(v, u, atol=1e-13, rtol=0)
            mu[i], lam_i[i] = mine, lam_i[i] - (u - model) / beta
            ups.append(up)
            ends.append(u)
            tildes.append(mine if perturbation == "released" else mine - e)
        mean = Vectors(**{n: torch.stack([getattr(x, n) for x in ups]).mean(0) for n in method.up})
        srv = method.aggregate(srv, mean, Round(number, lr, 3, 1.0))
        lam = lam - (torch.stack(ends).mean(0) - model) / beta
        model = torch.stack(ends).mean(0) - beta * lam
        s = torch.stack(tildes).mean(0)
        s = s * 0.3 / (s.norm() + 1e-12)
        assert torch.allclose(srv.w, model, atol=1e-12, rtol=0)
        assert torch.allclose(srv.t, s[:8], atol=1e-12, rtol=0)
    assert (s[:4] - s[4:8]).abs().max() > 1e-3  # the cut changes something
