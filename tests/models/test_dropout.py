"""Masks of dropout drawn without following all operations: the same numbers as with it, whatever a model draws."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fedsmoo.core.random.noise import Noise, key_of
from fedsmoo.models import dropout
from fedsmoo.models.draws import drawing
from fedsmoo.models.dropout import DROPS, draw_through, replace_dropout

NOISES = [Noise(key_of(1, "layers", 0, c), step) for c, step in ((3, 0), (3, 1), (4, 0))]


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 5, 2, batch_first=True, dropout=0.4)

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(x)[0]


class Paths(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * x.new_empty(len(x), 1, 1).bernoulli_(0.7)


MODULES = {
    "dropout": lambda: nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.3), nn.Linear(6, 4), nn.Dropout(0.1)),
    "channels": lambda: nn.Sequential(nn.Linear(6, 6), nn.Dropout1d(0.3)),
    "recurrent": Recurrent,
    "attention": lambda: nn.TransformerEncoderLayer(6, 2, 8, dropout=0.2, batch_first=True),
    "paths": lambda: nn.Sequential(nn.Linear(6, 6), Paths()),
}


@pytest.mark.parametrize("name", MODULES)
def test_masks_are_those_of_a_pass_that_is_followed(name: str) -> None:
    torch.manual_seed(0)
    module, before = MODULES[name](), torch.get_rng_state()
    for i, noise in enumerate(NOISES):
        given = torch.randn(4, 3, 6, generator=torch.Generator().manual_seed(i))
        with drawing(module, noise):
            expected = module(given)
        found = draw_through(module, noise, lambda given=given: module(given))
        assert torch.equal(found, expected)
        found.sum().backward()
        assert dropout._plain[module]  # from the first pass on
    assert torch.equal(before, torch.get_rng_state())
    assert not torch.equal(found, module.eval()(given))


def test_a_model_that_draws_in_another_way_later_is_followed_again() -> None:
    class Late(nn.Module):
        late = False

        def forward(self, x: Tensor) -> Tensor:
            x = nn.functional.dropout(x, 0.5)
            return x + torch.randn(3) if self.late else x

    module, x = Late(), torch.ones(4, 3)
    for late in (False, False, True, True, False, False):
        module.late = late
        before = torch.get_rng_state()
        found = draw_through(module, NOISES[0], lambda: module(x))
        assert torch.equal(before, torch.get_rng_state())  # nothing but the noise is drawn from
        with drawing(module, NOISES[0]):
            assert torch.equal(found, module(x))


def test_elsewhere_bernoulli_is_pytorch_s() -> None:
    replace_dropout()
    torch.manual_seed(3)
    found = torch.empty(50).bernoulli_(0.3)
    torch.manual_seed(3)
    cpu = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
    assert torch.equal(found, DROPS.redispatch(cpu, torch.empty(50), 0.3))
    module = nn.Dropout(0.5)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):  # after which nobody draws from the noise any more
            draw_through(module, NOISES[0], lambda: module(torch.ones(3)) / (1 // 0))
        draw_through(module, NOISES[0], lambda: module(torch.ones(3)))
    assert dropout._current.numbers is None
