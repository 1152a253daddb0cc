"""Losses of a method's own, outputs, features and losses of clients: by hand, and what is refused."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass

import pytest
import torch
from torch.nn import functional as F

from fedsmoo.algorithms import FedAvg
from fedsmoo.core import FedsmooError
from fedsmoo.core.contract import findings
from fedsmoo.engines.batched import OWN_LOSS, Batched
from fedsmoo.engines.facts import Facts
from fedsmoo.engines.oracles.on_batch import OnBatch
from fedsmoo.engines.oracles.oracle import hand_oracle, single_oracle, vmap_oracle
from fedsmoo.engines.steps.replay import ReplayStepper
from fedsmoo.engines.task import Batch
from fedsmoo.models.base import FlatModel
from fedsmoo.runs.simulation import Simulation

from .own_losses import OWN, Contrasted, Distilled, Fair
from .small import indices, largest_gap, make_setup, simulation, trace

TOLERANCE = 1e-10


def test_gradients_of_an_own_loss_by_hand() -> None:
    """Softmax regression, where the gradient is known; padded samples count for nothing, whatever they hold."""
    task = make_setup("softmax", FedAvg()).task
    generator = torch.Generator().manual_seed(0)
    w = torch.randn(2, task.model.layout.size, generator=generator, dtype=torch.float64)
    x, y = task.data.x_train[:6].view(2, 3, 1, 6, 6), task.data.y_train[:6].view(2, 3)
    weight = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]], dtype=torch.float64)
    scale = torch.tensor([[2.0], [5.0]], dtype=torch.float64)

    def squares(out, y, scale):
        return scale * (out - torch.eye(3, dtype=out.dtype)[y]).square().sum(-1)

    for oracle in (vmap_oracle(task), hand_oracle(task)):
        found, losses = oracle.own(w, Batch(x, y, weight), squares, (scale,), False)
        for c in range(2):
            parts = task.model.layout.split(w[c])
            matrix, bias = (next(p for p in parts.values() if p.dim() == d) for d in (2, 1))
            far = x[c].flatten(1) @ matrix.T + bias - F.one_hot(y[c], 3)
            errors = 2 * scale[c] * weight[c][:, None] * far
            expected = {n: errors.T @ x[c].flatten(1) if p.dim() == 2 else errors.sum(0) for n, p in parts.items()}
            torch.testing.assert_close(found[c], task.model.layout.join(expected), rtol=1e-12, atol=1e-12)
            assert losses[c].item() == pytest.approx((weight[c] * scale[c] * far.square().sum(-1)).sum().item())


def test_features_are_what_the_last_layer_reads() -> None:
    task = make_setup("mlp", Contrasted()).task
    w, index = task.model.initial().double(), torch.arange(4)
    batch = task.batch(index, torch.full((4,), 0.25, dtype=torch.float64))
    parts = task.model.layout.split(w)
    *_, matrix, bias = parts.values()
    on = OnBatch(single_oracle(task), batch, True)
    torch.testing.assert_close(on.features(w) @ matrix.T + bias, on.outputs(w))
    assert not on.features(w).requires_grad
    several = Batch(batch.x[None], batch.y[None], batch.weight[None])
    for oracle in (vmap_oracle(task), hand_oracle(task)):
        torch.testing.assert_close(OnBatch(oracle, several, True).features(w[None])[0], on.features(w))


def test_a_client_s_loss_is_that_of_its_own_samples() -> None:
    task, method = make_setup("mlp", Fair()).task, Fair()
    w = task.model.initial().double()
    for i, loss in zip((4, 1), Facts(task, indices()).of([4, 1], method, w)["loss"], strict=True):
        x, y = (v[torch.from_numpy(indices()[i])] for v in (task.data.x_train, task.data.y_train))
        out = task.model.forward(task.model.layout.split(w), x)
        assert loss.item() == pytest.approx(F.cross_entropy(out, y).item(), rel=1e-12)


@dataclass(frozen=True)
class Silent(Fair):
    asks = ()


def test_the_loss_of_clients_must_be_asked_for() -> None:
    with pytest.raises(FedsmooError, match=r"own_losses.py:\d+ in finish: rnd.loss: .* asks = \('loss',\)"):
        simulation("serial", "mlp", Silent()).advance()


@dataclass(frozen=True)
class Reduced(FedAvg):
    def slope(self, w, grad, down, me):
        return grad(w, lambda out, y: F.cross_entropy(out, y)), me


@dataclass(frozen=True)
class Averaged(FedAvg):
    def slope(self, w, grad, down, me):
        return grad(w) * grad.mean(w, lambda out, y: out.mean()), me


@dataclass(frozen=True)
class Closed(FedAvg):
    """Closes over outputs of all clients, which would broadcast."""

    def slope(self, w, grad, down, me):
        teacher = grad.outputs(down.w)
        return grad(w, lambda out, y: (out - teacher).square().sum(-1)), me


@dataclass(frozen=True)
class Rowless(FedAvg):
    def slope(self, w, grad, down, me):
        return grad(w, calibrated_by, torch.ones(7, dtype=w.dtype)), me


def calibrated_by(out, y, by):
    return F.cross_entropy(out + by.sum(), y, reduction="none")


@dataclass(frozen=True)
class Undeclared(Contrasted):
    features = False


@pytest.mark.parametrize(
    ("method", "kinds", "words"),
    [
        (Reduced(), ("serial", "hand", "vmap"), r"test_own_losses.py:\d+ in <lambda>: the loss of \d .* \[\]"),
        (Averaged(), ("serial", "hand", "vmap"), r"in <lambda>: what grad.mean is given .* \[\] for \d samples"),
        (Closed(), ("hand", "vmap"), r"in <lambda>: the loss of 4 .* shape \[\d, 4\].*grad\(v, loss, tensor\)"),
        (Rowless(), ("hand", "vmap"), r"test_own_losses.py:\d+ in slope: a loss is given .* \[7\] for \d clients"),
        (Undeclared(), ("serial", "vmap"), r"in slope: reads features, which a method must declare: features = True"),
    ],
)  # fmt: skip
def test_what_is_refused_names_the_line(method, kinds, words) -> None:
    for kind in kinds:
        with pytest.raises(FedsmooError, match=words):
            simulation(kind, "mlp", method).advance()


@dataclass(frozen=True)
class Branching(Distilled):
    def slope(self, w, grad, down, me):
        return super().slope(w, grad, down, me) if grad.rnd.step > 1 else (grad(w), me)


@dataclass(frozen=True)
class Drawn(FedAvg):
    def slope(self, w, grad, down, me):
        return grad(w, noisy), me


def noisy(out, y):
    return F.cross_entropy(out + torch.randn_like(out), y, reduction="none")


@dataclass(frozen=True)
class Curious(Fair):
    asks = ("loss", "age")
    features = "yes"


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (Reduced(), r"in <lambda>: the loss of 5 samples has the shape \[\]"),
        (Closed(), r"in <lambda>: the loss of 5 samples has the shape \[3, 5\]"),
        (Rowless(), r"in slope: a loss is given a tensor of shape \[7\] for 3 clients at once"),
        (Undeclared(), r"in slope: reads features, which a method must declare"),
        (Silent(), r"in finish: rnd.loss: .* asks = \('loss',\)"),
        (Branching(), r"in slope: branches on the value of a vector"),
        (Drawn(), r"in noisy: draws at random from PyTorch's global generator"),
        (Curious(), r"asks is \('loss', 'age'\), but must be a tuple of these names: loss"),
        (Curious(), r"features is 'yes', but must be True or False"),
    ],
    ids=lambda v: type(v).__name__ if isinstance(v, FedAvg) else "",
)
def test_the_check_before_a_run_refuses_it_too(method, words) -> None:
    """Once, with the user's line, whatever the engine is."""
    found = findings(method)
    assert re.search(words, "\n".join(found)), found
    assert all(line.startswith(("tests/engines/", "/")) and "Error" not in line for line in found), found


class Convolved(torch.nn.Module):
    def __init__(self, name: str | None = None) -> None:
        super().__init__()
        self.last = torch.nn.Conv2d(1, 3, 6)
        if name is not None:
            self.feature_layer = name

    def forward(self, x):
        return self.last(x).flatten(1)


def test_a_model_without_features_is_refused_before_training() -> None:
    def run(module, method=None):
        setup = make_setup("mlp", method or Contrasted())
        task = dataclasses.replace(setup.task, model=FlatModel(module.double()))
        setup = dataclasses.replace(setup, task=task)
        training = simulation("serial", "mlp", FedAvg()).training
        return Simulation(setup, Batched(setup, oracle="vmap"), training, indices())

    with pytest.raises(FedsmooError, match=r"the model Convolved has no nn.Linear.*feature_layer = 'NAME'"):
        run(Convolved())
    with pytest.raises(FedsmooError, match="unknown feature_layer of the model Convolved 'lats'"):
        run(Convolved("lats"))
    run(Convolved("last")).advance()
    run(Convolved(), FedAvg()).advance()  # which reads none


def test_own_losses_compile_into_one_graph(monkeypatch) -> None:
    """Traced whole, on the buffers of recorded steps, as a GPU compiles them."""
    torch.compiler.reset()
    compile, seen = torch.compile, []

    def backend(module, inputs):
        seen.append(module)
        return module.forward

    monkeypatch.setattr(torch, "compile", lambda f, **k: compile(f, fullgraph=True, dynamic=False, backend=backend))
    equal = {"cohort": 2, "sampling": "uniform", "local_epochs": None, "local_steps": 2, "rounds": 2}
    for name, oracle in [*((name, "hand") for name in OWN), ("outputs", "vmap"), ("features", "vmap")]:
        run = simulation(
            lambda s, oracle=oracle: Batched(s, oracle=oracle, stepper=ReplayStepper), "mlp", OWN[name], **equal
        )
        expected = trace(simulation("serial", "mlp", OWN[name], **equal))
        assert largest_gap(trace(run), expected) < TOLERANCE, name
        assert run.engine.stepper.compile, (name, oracle)
    assert len(seen) >= len(OWN) + 2
    torch.compiler.reset()


def test_the_engine_says_why_the_kernels_do_not_serve(monkeypatch) -> None:
    monkeypatch.setattr("fedsmoo.engines.batched.fused_reason", lambda task: "")
    for name, method in OWN.items():
        why = Batched(make_setup("mlp", method), why="a rule").why
        assert (OWN_LOSS in why) == (name != "loss"), name
    assert Batched(make_setup("mlp", FedAvg()), why="a rule").why == "a rule"
