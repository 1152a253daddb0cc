"""Losses of numbers and of several labels, and which loss a run has that names none."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedsmoo.core.errors import FedsmooError
from fedsmoo.models.loss import LOSSES, make_loss

NAMED = {
    "mse": nn.MSELoss(reduction="none"),
    "mae": nn.L1Loss(reduction="none"),
    "huber": nn.HuberLoss(reduction="none"),
    "bce": nn.BCEWithLogitsLoss(reduction="none"),
}


@pytest.mark.parametrize("name", NAMED)
def test_losses_of_numbers_and_labels_are_those_of_pytorch(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    out = 3 * torch.randn(5, 4, generator=generator, dtype=torch.float64)
    y = torch.randint(2, (5, 4), generator=generator).double()
    torch.testing.assert_close(make_loss(name)(out, y), NAMED[name](out, y).mean(1), rtol=0, atol=1e-14)
    one = NAMED[name](out[:, 0], y[:, 0])
    for o, t in ((out[:, 0], y[:, 0]), (out[:, :1], y[:, 0]), (out[:, 0], y[:, :1]), (out[:, :1], y[:, :1])):
        torch.testing.assert_close(make_loss(name)(o, t), one, rtol=0, atol=1e-14)
    with pytest.raises(FedsmooError, match=r"cannot compare outputs of the shape \[5, 4\] with targets of \[5\]"):
        make_loss(name)(out, y[:, 0])


def test_a_run_that_names_no_loss_has_that_of_its_targets() -> None:
    found = [make_loss("auto", None, target) for target in ("classes", "numbers", "labels")]
    assert found == [LOSSES["cross_entropy"], LOSSES["mse"], LOSSES["bce"]]
    with pytest.raises(FedsmooError, match="loss is 'cross_entropy', but the targets are numbers: use mse or mae or h"):
        make_loss("cross_entropy", None, "numbers")
