"""Modules that read or write tensors behind the back of their names: trained as a plain loop does, or refused."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from small_task import LR, SmallTask, gap
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from fedsmoo import simulate
from fedsmoo.analysis.functions.objective import objective
from fedsmoo.core import FedsmooError
from fedsmoo.core.errors import FedsmooWarning
from fedsmoo.runs.results.result import Result

RADIUS = 0.05
TASK = SmallTask(6, 4, 7)
N, X, Y, WORDS = TASK.n, TASK.x, TASK.y, TASK.words


class Net(nn.Module):
    """Two layers, and what a test does between them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.below, self.above = nn.Linear(8, 8), nn.Linear(8, 3)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.above(torch.tanh(self.middle(x)))

    def middle(self, x: Tensor) -> Tensor:
        return self.below(x)


def trained(net: nn.Module, engine: str = "serial", method: str = "fedavg", x: Tensor = X, **options: Any) -> Result:
    data = tuple(v.clone() for v in TASK.parts(x))
    result = simulate(net, data, method, engine=engine, **TASK.settings, **options)
    held = result.simulation.setup.task.data
    assert torch.equal(held.x_train, x[:N])
    assert torch.equal(held.x_test, x[N:])
    assert all(torch.equal(a, b) for a, b in zip(data, TASK.parts(x), strict=True))
    return result


def by_a_plain_loop(make: Callable[[], nn.Module], radius: float = 0.0) -> nn.Module:
    """FedAvg, or FedSAM, on modules themselves."""
    return TASK.by_a_plain_loop(make, lambda net, x, y: step(net, x, y, radius))


def step(net: nn.Module, x: Tensor, y: Tensor, radius: float) -> None:
    net.zero_grad()
    F.cross_entropy(net(x.clone()), y).backward()
    before = [p.detach().clone() for p in net.parameters()]
    if radius:
        length = math.sqrt(sum(float(p.grad.square().sum()) for p in net.parameters()))
        with torch.no_grad():
            for p in net.parameters():
                p += radius * p.grad / length
        net.zero_grad()
        F.cross_entropy(net(x.clone()), y).backward()
    with torch.no_grad():
        for p, b in zip(net.parameters(), before, strict=True):
            p.copy_(b - LR * p.grad)


# -- passes that are made again in the backward pass


class Checkpointed(Net):
    def middle(self, x: Tensor) -> Tensor:
        return checkpoint(lambda v: torch.tanh(self.below(v)), x, use_reentrant=False)


class CheckpointedNorm(Net):
    """With statistics inside, which such a pass must not write to again."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8).double()

    def middle(self, x: Tensor) -> Tensor:
        return checkpoint(lambda v: self.norm(torch.tanh(self.below(v))), x, use_reentrant=False)


class PlainNorm(CheckpointedNorm):
    def middle(self, x: Tensor) -> Tensor:
        return self.norm(torch.tanh(self.below(x)))


@pytest.mark.parametrize("engine", ["serial", "threads", "auto"])
@pytest.mark.parametrize(("method", "radius"), [("fedavg", 0.0), ("fedsam", RADIUS)])
def test_activation_checkpointing_computes_with_the_client_s_weights(engine: str, method: str, radius: float) -> None:
    """They were those of the module before the run, from the second step on."""
    options = {"rho": radius} if radius else {}
    result = trained(Checkpointed(), engine, method, **options)
    assert gap(result, by_a_plain_loop(Checkpointed, radius)) < 1e-14
    assert result.simulation.setup.task.model.recomputes


def test_checkpointed_layers_with_statistics_are_those_without_checkpointing() -> None:
    one, other = trained(CheckpointedNorm()), trained(PlainNorm())
    assert torch.equal(one.server.statistics, other.server.statistics)
    assert torch.equal(one.server.w, other.server.w)
    assert one.simulation.setup.task.model.recomputes
    assert not other.simulation.setup.task.model.recomputes


def test_measurements_of_checkpointed_models_are_those_of_plain_ones() -> None:
    class Plain(Net):
        def middle(self, x: Tensor) -> Tensor:
            return torch.tanh(self.below(x))

    gradients = []
    for net in (Checkpointed(), Plain()):
        result = trained(net)
        task = result.simulation.setup.task
        gradients.append(objective(task).gradient(task.model.initial() + 0.1))
    assert float(gradients[1].norm()) > 0.1
    assert torch.equal(*gradients)


def test_reentrant_checkpointing_which_loses_gradients_is_refused() -> None:
    class Reentrant(Net):
        def middle(self, x: Tensor) -> Tensor:
            return checkpoint(self.below, x.requires_grad_(), use_reentrant=True)

    with pytest.raises(FedsmooError, match=r"^the model Reentrant .*use_reentrant=True.*write use_reentrant=False$"):
        trained(Reentrant())


# -- parameters that are read elsewhere, and others'


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


# -- what a pass writes to


class Words(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.words, self.out = nn.Embedding(12, 4, **options), nn.Linear(4, 3)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.words(x).mean(1))


class Clamped(Net):
    def middle(self, x: Tensor) -> Tensor:
        self.below.weight.data.clamp_(-0.1, 0.1)
        return self.below(x)


def test_passes_that_change_parameters_are_refused() -> None:
    """The server's own vector was changed by its clients, and by evaluations."""
    with pytest.raises(FedsmooError, match=r"^the model Words changes its parameter 'words.weight' in forward"):
        trained(Words(max_norm=1.0), x=WORDS)
    with pytest.raises(FedsmooError, match=r"^the model Clamped changes its parameter 'below.weight' in forward"):
        trained(Clamped())


class Shifted(Net):
    """Writes to its inputs, as models that normalise them in place do."""

    def middle(self, x: Tensor) -> Tensor:
        return self.below(x.sub_(1.0).div_(2.0))


@pytest.mark.parametrize("engine", ["serial", "threads", "vmap"])
@pytest.mark.parametrize(("method", "radius"), [("fedavg", 0.0), ("fedsam", RADIUS)])
def test_inputs_that_are_written_to_are_copies(engine: str, method: str, radius: float) -> None:
    result = trained(Shifted(), engine, method, **({"rho": radius} if radius else {}))
    truth = by_a_plain_loop(Shifted, radius)
    assert gap(result, truth) < 1e-14
    expected = F.cross_entropy(truth(X[N:].clone()), Y[N:]).item()
    assert result.history[-1].test_loss == pytest.approx(expected, rel=1e-12)


class Following(Net):
    """A frozen layer that follows a trained one, as momentum encoders do; the server's was everybody's."""

    def __init__(self, by_data: bool) -> None:
        super().__init__()
        self.slow, self.by_data = nn.Linear(8, 8).double().requires_grad_(False), by_data

    def middle(self, x: Tensor) -> Tensor:
        if self.training and self.by_data:
            self.slow.weight.data = 0.9 * self.slow.weight.data + 0.1 * self.below.weight.data
        elif self.training:
            with torch.no_grad():
                self.slow.weight.mul_(0.9).add_(self.below.weight, alpha=0.1)
        return self.below(x) + self.slow(x)


class Replaced(Net):
    def middle(self, x: Tensor) -> Tensor:
        self.below.weight = nn.Parameter(F.normalize(self.below.weight.detach()))
        return self.below(x)


def test_passes_that_change_frozen_parameters_or_replace_some_are_refused() -> None:
    for by_data in (False, True):
        with pytest.raises(FedsmooError, match=r"^the model Following changes its parameter 'slow.weight' in forward"):
            trained(Following(by_data))
    with pytest.raises(
        FedsmooError, match=r"^the model Replaced puts another tensor in the place of its .*below.weight"
    ):
        trained(Replaced())


# -- what a module does when its mode is set


class Merged(nn.Linear):
    """LoRA as loralib writes it: its product is part of the frozen weight in eval mode. It begins as 0 there."""

    def __init__(self, up: float = 0.3) -> None:
        super().__init__(8, 8, dtype=torch.float64)
        self.weight.requires_grad_(False)
        self.down, self.up = (nn.Parameter(0.3 * torch.randn(n, dtype=torch.float64)) for n in ((2, 8), (8, 2)))
        nn.init.constant_(self.up, up) if not up else None
        self.merged = False

    def train(self, mode: bool = True) -> Merged:
        if self.merged is mode:
            self.weight.data += (-1 if mode else 1) * self.up @ self.down
        self.merged = not mode
        return super().train(mode)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if self.merged else super().forward(x) + x @ self.down.T @ self.up.T


class FrozenInTraining(Net):
    def train(self, mode: bool = True) -> FrozenInTraining:
        self.below.requires_grad_(not mode)
        return super().train(mode)


def test_parameters_that_a_mode_changes_or_freezes_are_refused() -> None:
    """Evaluations had the frozen weight without the product; what train() froze was trained."""
    for up, mode in ((0.3, True), (0.3, False), (0.0, True)):
        net = nn.Sequential(Merged(up), nn.Linear(8, 3, dtype=torch.float64))
        with pytest.raises(
            FedsmooError, match=r"^the model Sequential changes its parameter '0.weight' in train\(\) or"
        ):
            trained(net.train(mode))
    with pytest.raises(
        FedsmooError, match=r"^the model FrozenInTraining freezes its parameter 'below.weight' in train"
    ):
        trained(FrozenInTraining())
    result, truth = trained(FrozenInTraining().train()), TASK.by_a_plain_loop(lambda: FrozenInTraining().train())
    assert gap(result, truth) < 1e-14


class OwnEval(Net):
    """Its ``eval`` does something else than ``train(False)``, and returns nothing, as users write it."""

    share = 1.0

    def train(self, mode: bool = True) -> OwnEval:
        self.share = 1.0 if mode else self.share
        return super().train(mode)

    def eval(self) -> None:  # type: ignore[override]
        self.share = 0.5
        super().eval()

    def middle(self, x: Tensor) -> Tensor:
        return self.share * self.below(x)


def test_a_module_s_own_eval_is_called() -> None:
    result, truth = trained(OwnEval()), by_a_plain_loop(OwnEval)
    truth.eval()
    expected = truth(X[N:])
    assert result.history[-1].test_loss == pytest.approx(F.cross_entropy(expected, Y[N:]).item(), rel=1e-12)
    torch.testing.assert_close(result.model(X[N:]), expected, rtol=1e-12, atol=0.0)


# -- what is kept from one pass to the next


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
