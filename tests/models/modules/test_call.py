"""Modules called with other parameters: what ``torch.func.functional_call`` returns, and the module as it was."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedsmoo.models.modules.call import call_with, places_of


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.inner = nn.Embedding(5, 4), nn.Sequential(nn.Linear(4, 4), nn.LSTM(4, 4))
        self.out, self.scale = nn.Linear(4, 5), nn.Parameter(torch.ones(4))
        self.out.weight = self.words.weight

    def forward(self, ids: Tensor, fails: bool = False) -> Tensor:
        if fails:
            raise ValueError("on purpose")
        return self.out(self.inner(self.words(ids) * self.scale)[0])


def test_tied_nested_and_missing_parameters() -> None:
    torch.manual_seed(0)
    module, ids = Tied(), torch.tensor([0, 3, 4])
    own = dict(module.named_parameters())
    others = {n: torch.randn_like(p) for n, p in own.items() if n != "out.bias"}
    places = places_of(module)
    assert places is not None
    before, expected = module(ids), functional_call(module, others, (ids,))
    assert torch.equal(call_with(module, places, others, (), {"ids": ids}), expected)
    with pytest.raises(ValueError, match="on purpose"):
        call_with(module, places, others, (ids, True), {})
    assert all(p is own[n] for n, p in module.named_parameters())
    assert torch.equal(module(ids), before)
    assert not torch.equal(before, expected)


def test_scripted_parts_have_no_places() -> None:
    assert places_of(nn.Sequential(torch.jit.script(nn.Linear(2, 2)))) is None
