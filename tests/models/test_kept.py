"""What a module keeps from one pass to the next, or answers by other samples or weights than it is given."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from small_task import gap
from torch import Tensor, nn

from fedsmoo.core import FedsmooError
from fedsmoo.core.errors import FedsmooWarning

from .plain_loop import Net, X, by_a_plain_loop, trained


class Cached(Net):
    """Keeps something of the first weights that it meets; ``in_evaluation``: until it trains again."""

    def __init__(self, in_evaluation: bool) -> None:
        super().__init__()
        self.in_evaluation, self.kept = in_evaluation, {}

    def middle(self, x: Tensor) -> Tensor:
        if self.in_evaluation and self.training:
            self.kept.clear()
        self.kept.setdefault("weight", self.below.weight.detach())
        return self.below(x) @ self.kept["weight"]


def test_what_a_model_keeps_of_the_first_weights_is_found() -> None:
    """Clients trained with a weight of before the run; with threads, evaluations were of an earlier round's."""
    for in_evaluation in (False, True):
        with pytest.raises(FedsmooError, match=r"gives other outputs for the same inputs.*keeps something"):
            trained(Cached(in_evaluation))


class Asking(Net):
    def __init__(self, ask: Callable[[Any], bool]) -> None:
        super().__init__()
        self.ask = ask

    def middle(self, x: Tensor) -> Tensor:
        return self.below(x) * (2 if self.ask(self.below.weight) else 1)


def test_models_that_ask_for_parameters_are_refused() -> None:
    """They took the other branch in a run, where a client's vector is in the place of its parameters."""
    for ask in (lambda w: isinstance(w, nn.Parameter), lambda w: type(w) is Tensor, lambda w: w.requires_grad):
        with pytest.raises(FedsmooError, match=r"^the model Asking answers otherwise with its own parameters"):
            trained(Asking(ask))


def test_what_a_model_remembers_of_other_samples_is_found() -> None:
    class Largest(Net):
        def __init__(self) -> None:
            super().__init__()
            self.largest = torch.zeros(8, dtype=torch.float64)

        def middle(self, x: Tensor) -> Tensor:
            if self.training:
                self.largest = torch.maximum(self.largest, x.detach().abs().amax(0))
            return self.below(x / (1 + self.largest))

    class InEvaluation(Largest):
        def middle(self, x: Tensor) -> Tensor:
            found = super().middle(x)
            return self.below(x) if self.training else found

    for net in (Largest(), InEvaluation()):
        with pytest.raises(FedsmooError, match=r"gives other outputs for the same inputs.*keeps something"):
            trained(net)


@pytest.mark.parametrize("first", [0, (0,)])
def test_a_count_of_passes_is_said(first: Any) -> None:
    class Counting(Net):
        def __init__(self) -> None:
            super().__init__()
            self.calls: Any = first

        def middle(self, x: Tensor) -> Tensor:
            self.calls = self.calls + 1 if isinstance(first, int) else (*self.calls, 1)
            return self.below(x)

    with pytest.warns(FedsmooWarning, match=r"the model Counting keeps 'calls' from one pass to the next"):
        trained(Counting())


def test_what_a_model_keeps_of_its_last_pass_is_its_own_business() -> None:
    class Showing(Net):
        def middle(self, x: Tensor) -> Tensor:
            self.seen = self.below(x)
            self.again = self.seen[:1]
            return self.seen

    net = Showing()
    net(X)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FedsmooWarning)
        assert gap(trained(net), by_a_plain_loop(Showing)) < 1e-14


# -- a hand-batched forward


class ByHand(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.out = nn.Linear(8, 3)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x)

    def batched(self, p: Any, x: Tensor) -> Tensor:
        return torch.baddbmm(p["out.bias"][:, None], x, p["out.weight"].mT)


class Stale(ByHand):
    """Reads a weight from the module itself."""

    def batched(self, p: Any, x: Tensor) -> Tensor:
        return x @ self.out.weight.mT + p["out.bias"][:, None]


class InTraining(ByHand):
    def batched(self, p: Any, x: Tensor) -> Tensor:
        return super().batched(p, x) * (2 if self.training else 1)


def test_a_hand_batched_forward_must_be_the_module() -> None:
    assert gap(trained(ByHand(), "batched"), by_a_plain_loop(ByHand)) < 1e-14
    said = r"^batched of the model {} does not give what forward gives each client, in {} mode"
    with pytest.raises(FedsmooError, match=said.format("Stale", "eval")):
        trained(Stale(), "batched")
    with pytest.raises(FedsmooError, match=said.format("InTraining", "train")):
        trained(InTraining(), "batched")


# -- samples that are evaluated together


class Series(nn.Module):
    """Forgets batch_first, so that a sample is a step of time."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.series, self.out = nn.GRU(2, 4), nn.Linear(16, 3)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.series(x.unflatten(1, (4, 2)))[0].flatten(1))


def test_answers_that_depend_on_other_samples_are_said() -> None:
    class Centred(Net):
        def middle(self, x: Tensor) -> Tensor:
            h = self.below(x)
            return h - h.mean(0)

    said = r"the model {} answers otherwise to a sample if others are evaluated with it.*: {}$"
    with pytest.warns(FedsmooWarning, match=said.format("Centred", "in eval mode let each stand for itself")):
        trained(Centred())
    with pytest.warns(FedsmooWarning, match=said.format("Series", "set batch_first=True in nn.GRU")):
        trained(Series())
