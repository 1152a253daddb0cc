"""Modules that read tensors behind the back of their names: trained as a plain loop does, or refused."""

from __future__ import annotations

import warnings

import pytest
import torch
from small_task import gap
from torch import Tensor, nn
from torch.nn import functional as F

from fedsmoo.core import FedsmooError
from fedsmoo.core.errors import FedsmooWarning

from .plain_loop import WORDS, Net, Words, by_a_plain_loop, trained


class InList(Net):
    def __init__(self) -> None:
        super().__init__()
        self.tied = [self.below.weight]

    def middle(self, x: Tensor) -> Tensor:
        return F.linear(self.below(x), self.tied[0])


class AsData(Net):
    def __init__(self) -> None:
        super().__init__()
        self.anchor = self.below.weight.data

    def middle(self, x: Tensor) -> Tensor:
        return self.below(x) + self.anchor.sum()


def test_parameters_that_are_read_elsewhere_are_refused() -> None:
    """They would stay as they were before the run, whatever clients train."""
    with pytest.raises(FedsmooError, match=r"^the model InList reads its parameter 'below.weight' elsewhere"):
        trained(InList())
    with pytest.raises(FedsmooError, match=r"'below.weight' and 'anchor' of AsData lie in one memory.*clone"):
        trained(AsData())


def test_a_copy_of_a_parameter_is_nobody_else_s() -> None:
    class Anchored(AsData):
        def __init__(self) -> None:
            super().__init__()
            self.anchor = self.anchor.clone()

    assert gap(trained(Anchored()), by_a_plain_loop(Anchored)) < 1e-14


def test_parameters_of_others_are_said() -> None:
    """As of a function that closes over a module which is copied, or of layers in a plain list."""
    net, loose = Net(), nn.Linear(8, 8).double()
    net.middle = lambda x: loose(x)  # type: ignore[method-assign]
    said = r"reads parameters \[8, 8\], \[8\] that are none of its own, and are not trained"
    with pytest.warns(FedsmooWarning, match=said):
        trained(net)
    loose.requires_grad_(False)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FedsmooWarning)
        trained(net)


def test_a_module_that_trains_nothing_of_its_own_is_refused() -> None:
    """Its copy computed with the layers of the module that it was copied from."""

    class Closed(Net):
        def __init__(self) -> None:
            super().__init__()
            self.whole = lambda x: self.above(torch.tanh(self.below(x)))

        def forward(self, x: Tensor) -> Tensor:
            return self.whole(x)

    with pytest.raises(FedsmooError, match=r"^the model Closed computes with parameters that are none of its own"):
        trained(Closed())


def test_parameters_that_share_memory_are_refused() -> None:
    net = Net()
    net.extra = nn.Linear(8, 8).double()
    net.extra.weight.data = net.below.weight.data
    with pytest.raises(FedsmooError, match=r"'below.weight' and 'extra.weight' of Net lie in one memory.*tie"):
        trained(net)
    net.extra = nn.Linear(8, 8).double()
    net.extra.register_buffer("same", net.below.weight.data)
    with pytest.raises(FedsmooError, match=r"'below.weight' and 'extra.same' of Net lie in one memory"):
        trained(net)
    flat = torch.zeros(24, dtype=torch.float64)  # neighbours in one memory are two parameters all the same
    net.extra = nn.ParameterList([flat[:8].view(8), flat[8:16], flat[16:]])
    trained(net)


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
class Graph(Net):
    """The links of a graph are sparse, and kept as no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.links = (0.5 * torch.eye(8, dtype=torch.float64)).to_sparse()

    def middle(self, x: Tensor) -> Tensor:
        return self.below((self.links @ x.T).T)


def test_what_has_no_memory_of_its_own_shares_none() -> None:
    """Sparse and lazy tensors have no block of it to ask for."""
    assert gap(trained(Graph()), by_a_plain_loop(Graph)) < 1e-14
    assert trained(nn.Sequential(nn.LazyBatchNorm1d(), nn.LazyLinear(3))).server.w.numel() == 8 + 8 + 8 * 3 + 3


def test_scripted_modules_are_refused() -> None:
    net = nn.Sequential(nn.Tanh(), torch.jit.script(nn.Linear(8, 3)))
    with pytest.raises(FedsmooError, match=r"scripted or traced by torch\.jit at '1': give it as a plain nn\.Module"):
        trained(net)


def test_weights_that_hooks_make_anew_are_nobody_else_s() -> None:
    net = Net()
    nn.utils.spectral_norm(net.below)
    nn.utils.weight_norm(net.above)
    assert float((trained(net, "auto").server.w - trained(net, "threads").server.w).abs().max()) < 1e-14


def test_hooks_on_gradients_of_parameters_are_refused() -> None:
    net = Net()
    net.below.weight.register_hook(lambda g: 0 * g)
    with pytest.raises(FedsmooError, match=r"'below.weight' of Net has a hook on its gradient"):
        trained(net)


def test_complex_parameters_are_refused() -> None:
    """Their imaginary parts were lost."""
    net = Net()
    net.turn = nn.Parameter(torch.ones(2, dtype=torch.complex128))
    with pytest.raises(FedsmooError, match=r"'turn' of Net is complex.*view_as_complex"):
        trained(net)


def test_sparse_gradients_are_refused() -> None:
    with pytest.raises(FedsmooError, match=r"^Embedding at 'words' has sparse gradients.*set sparse=False"):
        trained(Words(sparse=True), x=WORDS)


# -- what a look at a model must not stumble over


class Force(Net):
    """Computes with a gradient, as models of physics do."""

    def middle(self, x: Tensor) -> Tensor:
        return torch.func.vmap(torch.func.grad(lambda v: torch.tanh(self.below(v)).square().sum()))(x)


@pytest.mark.parametrize("engine", ["serial", "threads", "vmap"])
def test_gradients_in_forward_train_as_in_a_plain_loop(engine: str) -> None:
    """They were refused: what goes into a layer there has no numbers to copy."""
    assert gap(trained(Force(), engine), by_a_plain_loop(Force)) < 1e-14


class Tape(Net):
    """The same by ``torch.autograd.grad``, of its parameters."""

    def middle(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            (g,) = torch.autograd.grad(self.below(x).square().sum(), self.below.weight, create_graph=True)
        return self.below(x) + x @ g


def test_gradients_of_parameters_by_autograd_are_refused_with_what_to_write() -> None:
    with pytest.raises(FedsmooError, match=r"^the model Tape runs, but .*; take its gradients by torch.func.grad$"):
        trained(Tape())


class Edges(Net):
    """Mixes the inputs by a sparse matrix."""

    def __init__(self, as_buffer: bool) -> None:
        super().__init__()
        edges = torch.eye(8, dtype=torch.float64).flip(0).to_sparse()
        if as_buffer:
            self.register_buffer("edges", edges)
        else:
            self.edges = edges

    def middle(self, x: Tensor) -> Tensor:
        return self.below(torch.sparse.mm(self.edges, x.T).T)


def test_sparse_buffers_are_refused_and_sparse_attributes_are_not() -> None:
    with pytest.raises(FedsmooError, match=r"^the buffer 'edges' of Edges is sparse.*plain attribute"):
        trained(Edges(as_buffer=True))
    for engine in ("serial", "auto"):
        assert gap(trained(Edges(as_buffer=False), engine), by_a_plain_loop(lambda: Edges(as_buffer=False))) < 1e-14
