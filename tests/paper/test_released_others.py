"""experiments/released/others.py: what it does by hand, on the layers of the network that docs/audit.md measures."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

from fedsmoo import Vectors
from fedsmoo.models.small import MLP

FILE = Path(__file__).parents[2] / "experiments" / "released" / "others.py"


@pytest.fixture(scope="module")
def others() -> ModuleType:
    spec = importlib.util.spec_from_file_location("released_others", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def flat() -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(3, sum(p.numel() for p in MLP(64, 10).parameters()), dtype=torch.float64)


def test_layers_are_cut_from_the_head_or_shifted_by_one_number(others: ModuleType, flat: torch.Tensor) -> None:
    """As the released loops do it: a list of tensors with the layers' shapes, added to the parameters one by one."""
    layers = list(MLP(64, 10).parameters())
    for row, cut, shifted in zip(flat, others.heads(flat), others.numbered(flat, 0.1), strict=True):
        pieces, index = [], 0
        for p in layers:
            pieces.append(row[index : index + p.numel()].reshape(p.shape))  # index stays
        assert torch.equal(cut, torch.cat([piece.flatten() for piece in pieces]))
        length = sum(row[k].norm(p=2) for k in range(len(layers)))
        each = [torch.zeros(p.shape, dtype=torch.float64) + row[k] * (0.1 / length) for k, p in enumerate(layers)]
        torch.testing.assert_close(shifted, torch.cat([piece.flatten() for piece in each]))


@pytest.mark.parametrize("name", ["NormFedDyn", "NormFedSMOO", "HeadFedLESAMD"])
def test_the_pull_is_the_gradient_of_the_distance_that_is_not_squared(others, flat, name: str) -> None:
    sent = torch.zeros_like(flat[0]) + 0.1
    w = flat[0].clone().requires_grad_()
    (wanted,) = torch.autograd.grad((1 / 4.0) / 2 * torch.norm(w - sent, 2), w)
    torch.testing.assert_close(getattr(others, name)(beta=4.0).pull(flat[0], Vectors(w=sent)), wanted)


def test_clients_climb_against_the_servers_last_step(others: ModuleType) -> None:
    before, mean = torch.tensor([1.0, 2.0, 2.0]), torch.tensor([1.0, 5.0, -2.0])
    method = others.AlongServer(rho=0.5)
    after = method.aggregate(Vectors(w=before, u=torch.zeros(3)), Vectors(w=mean), None)
    assert after.u.tolist() == [0.0, -3.0, 4.0]
    seen: list[torch.Tensor] = []
    method.slope(torch.zeros(3), seen.append, Vectors(w=after.w, u=after.u), Vectors())
    torch.testing.assert_close(seen[0], torch.tensor([0.0, -0.3, 0.4]))


def test_a_correction_and_a_count_of_steps_are_scaled(others: ModuleType) -> None:
    down, me = (
        Vectors(w=torch.zeros(2), c=torch.tensor([1.0, 3.0])),
        Vectors(c=torch.tensor([2.0, 1.0]), w_old=torch.zeros(2)),
    )
    g, _ = others.WeakFedLESAMS(lamb=0.1).direction(torch.zeros(2), lambda w: torch.ones(2), down, me)
    torch.testing.assert_close(g, torch.tensor([1 - 0.1, 1 + 0.2]))
    rnd = SimpleNamespace(steps=12, lr=0.1)
    moved = Vectors(w=torch.tensor([-2.0]))
    new = others.FractionalFedCM(steps=10.65).aggregate(Vectors(w=torch.zeros(1), D=torch.zeros(1)), moved, rnd)
    torch.testing.assert_close(new.D, torch.tensor([2.0 / (10.65 * 0.1)]))
