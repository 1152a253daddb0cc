"""Modules that hold unusual things and train as a plain loop does: none of them is refused, or told of."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import small_task
import torch
from small_task import SmallTask, each, sgd
from torch import Tensor, nn

from fedsmoo import simulate
from fedsmoo.core import FedsmooError
from fedsmoo.core.errors import FedsmooWarning
from fedsmoo.models.modules.copies import refuse_lost
from fedsmoo.models.modules.states import states
from fedsmoo.runs.results.result import Result

TASK = SmallTask(6, 4, 7)
N, X, Y = TASK.n, TASK.x, TASK.y


@pytest.fixture(autouse=True)
def _nothing_is_told() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error", FedsmooWarning)
        yield


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.below, self.above = nn.Linear(8, 8), nn.Linear(8, 3)
        self.hold()
        self.double()

    def hold(self) -> None:
        """Keep what a test is about."""

    def forward(self, x: Tensor) -> Tensor:
        return self.above(torch.tanh(self.middle(x)))

    def middle(self, x: Tensor) -> Tensor:
        return self.below(x)


def trained(net: nn.Module, engine: str = "auto", loss: Any = each, **options: Any) -> Result:
    return simulate(net, TASK.parts(), "fedavg", engine=engine, loss=loss, **TASK.settings, **options)


def gap(result: Result, make: Callable[[], nn.Module], loss: Any = each) -> float:
    """How far a run is from FedAvg on modules themselves, their buffers included."""
    return small_task.gap(result, TASK.by_a_plain_loop(make, partial(sgd, loss=loss)))


class Columns(Net):
    """Parameters that are columns of one matrix, of which none is in two."""

    def hold(self) -> None:
        self.left, self.right = map(nn.Parameter, (torch.randn(8, 16).double() / 4).chunk(2, 1))

    def middle(self, x: Tensor) -> Tensor:
        return torch.tanh(self.below(x) @ self.left) * (x @ self.right)


class Graph(Net):
    """The edges of a graph as a sparse matrix, in a plain attribute."""

    def hold(self) -> None:
        self.edges = (torch.rand(8, 8) > 0.5).double().to_sparse()

    def middle(self, x: Tensor) -> Tensor:
        return self.below((self.edges @ x.mT).mT)


class OtherKinds(Net):
    """Tensors without numbers that could be summed, and containers that hold themselves."""

    def hold(self) -> None:
        self.template = torch.empty(3, device="meta")
        self.small = torch.ones(3).to(torch.float8_e4m3fn)
        self.registry: dict[str, Any] = {"name": "net"}
        self.registry["all"] = self.registry
        self.parts: list[Any] = []
        self.parts.append(self.parts)


@pytest.mark.parametrize("make", [Columns, Graph, OtherKinds])
def test_modules_that_hold_unusual_things(make: type[Net]) -> None:
    assert gap(trained(make()), make) < 1e-14


def test_columns_that_do_have_numbers_in_common_are_refused() -> None:
    net, whole = Net(), torch.randn(8, 16)
    net.left, net.right = nn.Parameter(whole[:, :9]), nn.Parameter(whole[:, 8:])
    with pytest.raises(FedsmooError, match=r"'left' and 'right' of Net lie in one memory"):
        refuse_lost(net)
    net.right = nn.Parameter(whole[:, 9:])
    refuse_lost(net)


def test_lengths_that_depend_on_the_longest_of_a_batch() -> None:
    """Two halves of a batch were put together, which have other lengths."""

    class Cut(Net):
        def forward(self, x: Tensor) -> Tensor:
            longest = int((x[:, 1:] > 0).sum(1).max()) + 1
            return torch.stack([super(Cut, self).forward(x) + k for k in range(longest)], 1)

    def first(out: Tensor, y: Tensor) -> Tensor:
        return each(out[:, 0], y)

    def right(out: Any, y: Any) -> float:
        return float((out[:, 0].argmax(1) == y).float().mean())

    lengths = {Cut()(part).shape[1] for part in (X[:4], X[4:8])}
    assert len(lengths) == 2
    assert gap(trained(Cut(), loss=first, metrics=[right]), Cut, first) < 1e-14


def test_a_parameter_that_begins_without_a_number_is_named() -> None:
    net = Net()
    net.unused = nn.Parameter(torch.full((3,), torch.nan, dtype=torch.float64))
    with pytest.raises(FedsmooError, match="holds NaN or infinite values in unused before training"):
        trained(net)


def test_long_lists_are_compared_by_their_length() -> None:
    """A list of words took longer than all passes."""
    net = Net()
    net.words, net.table = [f"word {k}" for k in range(2000)], torch.ones(4, 2)
    found = states(net)
    assert found["words"] == 2000
    assert found["table"] == ([4, 2], "8.0")
    net.words.append("one more")
    assert states(net)["words"] == 2001


@pytest.mark.filterwarnings("ignore:.*Sparse CSR tensor support is in beta:UserWarning")
def test_what_cannot_be_copied_is_said_in_a_line() -> None:
    net = Net()
    net.edges = torch.eye(3).to_sparse_csr()
    with pytest.raises(FedsmooError, match=r"^the model Net cannot be copied"):
        trained(net)


# -- parts with two names, and buffers that come late


class Twice(Net):
    """A part with two names beside a buffer, as prompts of peft have the embedding of the model that they are for."""

    def hold(self) -> None:
        self.again = self.below
        self.norm = nn.Module()
        self.norm.register_buffer("scale", torch.full((8,), 0.5))
        self.other = self.norm

    def middle(self, x: Tensor) -> Tensor:
        return self.again(torch.tanh(self.below(x * self.norm.scale)) * self.other.scale)


class Moving(Twice):
    """The same with statistics, which are exchanged for others."""

    def middle(self, x: Tensor) -> Tensor:
        if self.training:
            self.norm.scale = 0.9 * self.norm.scale + 0.1 * x.detach().abs().mean(0)
        return super().middle(x)


class Late(Net):
    """Registers its buffer in the first pass."""

    def middle(self, x: Tensor) -> Tensor:
        if not hasattr(self, "turn"):
            self.register_buffer("turn", torch.arange(x.shape[1], dtype=x.dtype).cos(), persistent=False)
        return self.below(x * self.turn)


@pytest.mark.parametrize("engine", ["serial", "threads", "vmap", "auto"])
@pytest.mark.parametrize("make", [Twice, Moving, Late])
def test_parts_with_two_names_and_late_buffers(make: type[Net], engine: str) -> None:
    """Tensors of a pass were left in a part with two names, and a late buffer was a traceback."""
    net = make()
    result = trained(net, engine)
    assert gap(result, make) < 1e-14
    flat = result.simulation.setup.task.model
    own = dict(net.named_parameters())
    assert all(torch.equal(p, own[n]) for n, p in flat.module.named_parameters())
    truth = copy.deepcopy(net)
    truth(X[:1])
    truth.load_state_dict(flat.state_dict(result.server.w))
    assert torch.equal(result.model(X), truth.eval()(X))
