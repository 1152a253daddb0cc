"""Losses and metrics that write to what they are given, or keep something: nobody else may see it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedsmoo import simulate
from fedsmoo.core import FedsmooError

X, Y = torch.randint(3, (2, 40, 5), generator=torch.Generator().manual_seed(0))
Y[::3, 1:3] = -100  # no label there
SETTINGS: dict[str, Any] = {
    "clients": 4, "cohort": 4, "partition": "iid", "rounds": 3, "local_steps": 2, "batch_size": 4, "lr": 0.1,
    "dtype": "float64", "device": "cpu", "progress": False,
}  # fmt: skip


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Embedding(3, 4), nn.Linear(4, 3)).double()


def plain(out: Tensor, y: Tensor) -> Tensor:
    counts = y >= 0
    each = F.cross_entropy(out.flatten(0, 1), y.clamp(min=0).flatten(), reduction="none").view(y.shape)
    return (each * counts).sum(1)


def writes_labels(out: Tensor, y: Tensor) -> Tensor:
    counts = y >= 0
    y.clamp_(min=0)
    each = F.cross_entropy(out.flatten(0, 1), y.flatten(), reduction="none").view(y.shape)
    return (each * counts).sum(1)


def writes_outputs(out: Tensor, y: Tensor) -> Tensor:
    found = plain(out, y)
    out.mul_(-1.0)
    return found


@pytest.mark.parametrize("engine", ["serial", "threads", "vmap"])
@pytest.mark.parametrize("method", ["fedavg", "fedsam"])
@pytest.mark.parametrize("loss", [writes_labels, writes_outputs])
def test_what_a_loss_writes_to_is_a_copy(loss: Any, method: str, engine: str) -> None:
    """Positions without a label became those of class 0, in the data itself: the next evaluation counted them."""
    own = [lambda out, y: (out.argmax(-1) == y).double().mean().item()]  # of outputs that are kept until the end
    for metrics in (None, own):
        labels = Y.clone()
        data = (X[:28], labels[:28], X[28:], labels[28:])
        run, truth = (
            simulate(net(), data, method, loss=one, metrics=metrics, engine=engine, **SETTINGS) for one in (loss, plain)
        )
        assert torch.equal(labels, Y)
        assert torch.equal(run.server.w, truth.server.w)
        assert [r.test_accuracy for r in run.history] == [r.test_accuracy for r in truth.history]
        assert [r.test_loss for r in run.history] == [r.test_loss for r in truth.history]
        assert [r.metrics for r in run.history] == [r.metrics for r in truth.history]


def test_what_a_metric_writes_to_is_a_copy() -> None:
    """It wrote to the test part itself, and to what the next metric read."""

    def right(out: Tensor, y: Tensor) -> float:
        return (out.argmax(-1) == y).double().mean().item()

    def wipes(out: Tensor, y: Tensor) -> float:
        out.zero_()
        y.zero_()
        return 0.5

    labels = Y.clone()
    data = (X[:28], labels[:28], X[28:], labels[28:])
    run, truth = (simulate(net(), data, "fedavg", metrics=m, **SETTINGS) for m in ([wipes, right], [right]))
    assert torch.equal(labels, Y)
    assert [r.metrics["right"] for r in run.history] == [r.metrics["right"] for r in truth.history]
    expected = right(run.model(X[28:]), Y[28:])
    assert run.history[-1].metrics["right"] == pytest.approx(expected)


class Centres(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.centres = nn.Parameter(torch.zeros(10, 10))

    def forward(self, out: Tensor, y: Tensor) -> Tensor:
        return (out - self.centres[y]).square().sum(1)


class Running(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(10))

    def forward(self, out: Tensor, y: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * out.detach().mean(0)
        return F.cross_entropy(out - self.mean, y, reduction="none")


def drawing(out: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(out + torch.randn_like(out), y, reduction="none")


def of_numpy(out: Tensor, y: Tensor) -> Tensor:
    return np.random.default_rng().random() * F.cross_entropy(out, y, reduction="none")


@pytest.mark.parametrize("model", ["softmax", nn.Sequential(nn.Flatten(), nn.Linear(64, 10))])
@pytest.mark.parametrize("loss", [Running(), drawing, of_numpy])
def test_a_loss_of_two_answers_is_refused(loss: Any, model: Any) -> None:
    """With a model of ours, which is not looked at, and with one's own, which is not blamed."""
    with pytest.raises(FedsmooError, match=r"^the loss draws random numbers, or keeps something from one"):
        simulate(model, "digits", "fedavg", loss=loss, engine="serial", **SETTINGS)


def test_parameters_of_a_loss_are_refused_unless_they_are_frozen() -> None:
    with pytest.raises(FedsmooError, match=r"^the loss Centres has the parameter 'centres', which would not be train"):
        simulate("softmax", "digits", "fedavg", loss=Centres(), **SETTINGS)
    simulate("softmax", "digits", "fedavg", loss=Centres().requires_grad_(False), **SETTINGS)
