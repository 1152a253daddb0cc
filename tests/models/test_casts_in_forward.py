"""A module that moves or casts another one in forward: refused at the first look; under vmap it ended the process."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn

import fedsmoo
from fedsmoo import FedsmooError
from fedsmoo.models.hidden import unmoved

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


class Placed(nn.Module):
    """Tells a part of its own where to be, as some published models do."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.fc, self.dtype = nn.Linear(64, 10), dtype

    def forward(self, x: Tensor) -> Tensor:
        return self.fc.to(x.device, self.dtype)(x.flatten(1))


def test_a_part_that_is_already_there_may_be_told_so() -> None:
    result = fedsmoo.simulate(Placed(torch.float32), "digits", "fedavg", **{**SMALL, "dtype": "float32"})
    assert result.simulation.engine.name == "serial"  # vmap cannot
    with pytest.raises(FedsmooError, match="moves or casts Linear in forward"):
        fedsmoo.simulate(Placed(torch.float16), "digits", "fedavg", **{**SMALL, "dtype": "float32"})


def test_other_threads_move_their_modules() -> None:
    with unmoved(nn.Linear(2, 2)), ThreadPoolExecutor(1) as pool:
        assert pool.submit(nn.Linear(2, 2).double).result().weight.dtype == torch.float64
