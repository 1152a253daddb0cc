"""What a loss and a model must be to each other: probabilities under cross-entropy are warned of."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn

from fedsmoo import simulate
from fedsmoo.core.errors import FedsmooWarning
from fedsmoo.models.loss import LOSSES, cross_entropy, make_loss

SETTINGS = {"clients": 4, "cohort": 2, "rounds": 1, "local_steps": 1, "device": "cpu"}


class Functional(nn.Module):
    """A model whose softmax is no module."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.flatten(1)).softmax(-1)


def ending(*last: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10), *last)


@pytest.mark.parametrize(
    ("model", "what"),
    [(ending(nn.Softmax(-1)), "a softmax"), (Functional(), "a softmax"), (ending(nn.Sigmoid()), "a sigmoid")],
)
def test_probabilities_under_cross_entropy_are_warned_of(model: nn.Module, what: str) -> None:
    with pytest.warns(FedsmooWarning, match=f"the model ends in {what}, but cross_entropy applies a softmax itself"):
        simulate(model, "digits", "fedavg", **SETTINGS)


@pytest.mark.parametrize("model", [ending(), ending(nn.LogSoftmax(-1)), ending(nn.Tanh()), ending(nn.ReLU())])
def test_other_models_are_not(model: nn.Module) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", FedsmooWarning)
        simulate(model, "digits", "fedavg", **SETTINGS)


def test_nor_are_probabilities_under_a_loss_of_probabilities() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", FedsmooWarning)
        loss = nn.NLLLoss(reduction="none")
        simulate(ending(nn.Softmax(-1)), "digits", "fedavg", loss=lambda out, y: loss(out.log(), y), **SETTINGS)


def test_logarithms_of_probabilities_train_as_logits_do() -> None:
    """Log-softmax leaves its own values as they are, so there is nothing to warn of."""
    torch.manual_seed(0)
    plain, logs = ending(), ending(nn.LogSoftmax(-1))
    logs.load_state_dict(plain.state_dict())
    results = [simulate(m, "digits", "fedavg", **SETTINGS | {"dtype": "float64", "rounds": 3}) for m in (plain, logs)]
    torch.testing.assert_close(*(r.server.w for r in results), rtol=0, atol=1e-14)


def test_losses_by_name_are_the_functions_themselves() -> None:
    """Fused kernels compute cross-entropy, and know it by being that function."""
    assert make_loss("cross_entropy") is cross_entropy is LOSSES["cross_entropy"]
