"""What a module keeps from one pass to the next, or answers by other samples or weights than it is given."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from small_task import gap
from torch import Tensor, nn
from torch.nn import functional as F

from fedsmoo.core import FedsmooError
from fedsmoo.core.errors import FedsmooWarning

from .plain_loop import TASK, N, Net, X, Y, by_a_plain_loop, trained


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


class Product(Net):
    """Keeps LoRA's product, which begins as 0, until it trains again."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(8, 2, bias=False).double(), nn.Parameter(torch.zeros(8, 2).double())
        self.kept: Tensor | None = None

    def middle(self, x: Tensor) -> Tensor:
        self.kept = self.up @ self.down.weight if self.training or self.kept is None else self.kept
        return self.below(x) + x @ self.kept.T


def test_what_a_model_keeps_of_the_first_weights_is_found() -> None:
    """Clients trained with a weight of before the run; with threads, evaluations were of an earlier round's.

    Personal models were all evaluated with the product of one.
    """
    for net in (Cached(in_evaluation=False), Cached(in_evaluation=True), Product()):
        with pytest.raises(FedsmooError, match=r"gives other outputs for the same inputs.*keeps something"):
            trained(net)


class Low(Net):
    """LoRA."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(8, 2, bias=False).double(), nn.Parameter(torch.zeros(8, 2).double())

    def product(self) -> Tensor:
        return self.up @ self.down.weight

    def middle(self, x: Tensor) -> Tensor:
        return self.below(x) + x @ self.product().T


class Emptied(Low):
    """Keeps the product in eval mode, which its ``train`` forgets, as LeViT does with biases of its attention."""

    kept: Tensor | None = None

    def train(self, mode: bool = True) -> Emptied:
        self.kept = None if mode else self.kept
        return super().train(mode)

    def product(self) -> Tensor:
        if self.training:
            return super().product()
        self.kept = super().product() if self.kept is None else self.kept
        return self.kept


@pytest.mark.parametrize("engine", ["serial", "threads", "vmap"])
def test_what_a_model_keeps_until_it_trains_is_of_the_weights_that_are_evaluated(engine: str) -> None:
    """Clients' own models are evaluated one after the other, or at once, without a step in between."""
    kept, plain = (trained(net, engine, "ditto") for net in (Emptied(), Low()))
    assert float((kept.server.w - plain.server.w).abs().max()) < 1e-14
    own = [run.evaluate_clients()["personal_loss"] for run in (kept, plain)]
    assert own[0].nunique() > 1
    assert own[0].tolist() == pytest.approx(own[1].tolist(), rel=1e-12)
    torch.testing.assert_close(kept.model(X[N:]), plain.model(X[N:]), rtol=1e-12, atol=0.0)
    assert kept.history[-1].test_loss == pytest.approx(F.cross_entropy(plain.model(X[N:]), Y[N:]).item(), rel=1e-12)


@torch.jit.script
def swish(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


class Scripted(Net):
    def middle(self, x: Tensor) -> Tensor:
        return swish(swish(self.below(x)))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_function_of_torchscript_is_no_randomness() -> None:
    """It is compiled after its first calls, and rounds otherwise from then on."""
    for engine in ("serial", "auto"):
        assert gap(trained(Scripted(), engine), TASK.by_a_plain_loop(Scripted)) < 1e-14


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
