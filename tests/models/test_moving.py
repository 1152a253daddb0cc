"""A module that moves or casts another one in forward: refused at the first look; under vmap it ended the process."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import fedsmoo
from fedsmoo import FedsmooError

SMALL = {"clients": 4, "cohort": 2, "rounds": 1, "local_steps": 2, "dtype": "float64", "progress": False}


class Casting(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.fc = how, nn.Linear(64, 10)
        self.__dict__["other"] = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        other = self.__dict__["other"]
        other.to(x) if self.how == "to" else other.double()
        return self.fc(torch.tanh(other(x.flatten(1))))


@pytest.mark.parametrize("how", ["to", "double"])
def test_it_is_refused_with_a_line(how: str) -> None:
    plain = nn.Module._apply
    with pytest.raises(FedsmooError, match=r"the model Casting moves or casts Linear in forward .* before the run"):
        fedsmoo.simulate(Casting(how), "digits", "fedavg", **SMALL)
    assert nn.Module._apply is plain
