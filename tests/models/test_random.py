"""Models with random layers: train and eval mode where they belong, masks that a seed, round, client and step name."""

from __future__ import annotations

import random
import threading
import warnings
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import is_in_torch_dispatch_mode
from torch.utils.checkpoint import checkpoint

import fedsmoo
from fedsmoo import FedAvg, FedsmooError
from fedsmoo.analysis.functions.fairness import fairness
from fedsmoo.analysis.functions.objective import objective
from fedsmoo.core.errors import FedsmooWarning
from fedsmoo.core.random.noise import Noise, key_of
from fedsmoo.data.batches.plan import make_plan, merge
from fedsmoo.data.dataset import Dataset
from fedsmoo.engines import serial
from fedsmoo.engines.batched import Batched
from fedsmoo.engines.contract import Engine
from fedsmoo.engines.distributed.engine import part_of
from fedsmoo.engines.serial import Serial, client_batch
from fedsmoo.engines.task import Task
from fedsmoo.models import FlatModel, build, examine, make_module
from fedsmoo.runs.build import assemble
from fedsmoo.runs.config import Config
from fedsmoo.runs.results.finished import open_finished
from fedsmoo.runs.resume import reopen
from fedsmoo.runs.run import Run

SMALL = {"clients": 6, "cohort": 3, "rounds": 3, "local_steps": 3, "batch_size": 10, "partition": "iid", "lr": 0.1}


class Net(nn.Module):
    """Two linear layers around what a test puts between them."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(64, 16), nn.Linear(16, 10)

    def middle(self, h: Tensor) -> Tensor:
        return h

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.middle(torch.tanh(self.a(x.flatten(1)))))


class Functional(Net):
    def middle(self, h: Tensor) -> Tensor:
        return F.dropout(h, 0.5, training=self.training)


class DropPath(Net):
    def middle(self, h: Tensor) -> Tensor:
        return h * torch.rand(len(h), 1).add(0.7).floor() / 0.7 if self.training else h


class Attention(Net):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, dropout=0.4, batch_first=True)

    def middle(self, h: Tensor) -> Tensor:
        h = h.view(-1, 4, 4)
        return self.attention(h, h, h, need_weights=False)[0].flatten(1)


class Recurrent(Net):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 4, num_layers=2, dropout=0.4, batch_first=True)

    def middle(self, h: Tensor) -> Tensor:
        return self.lstm(h.view(-1, 4, 4))[0].flatten(1)


class Sampling(Net):
    """Random in evaluation, too."""

    def middle(self, h: Tensor) -> Tensor:
        return h + 0.1 * torch.randn_like(h)


def layered(layer: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), layer, nn.Linear(16, 10))


RANDOM = {
    "F.dropout": Functional,
    "nn.Dropout": lambda: layered(nn.Dropout(0.5)),
    "AlphaDropout": lambda: layered(nn.AlphaDropout(0.3)),
    "RReLU": lambda: layered(nn.RReLU()),
    "DropPath": DropPath,
    "attention": Attention,
    "LSTM": Recurrent,
    "sampling": Sampling,
}


def run(module: nn.Module, algorithm: str = "fedavg", **settings: object) -> fedsmoo.runs.record.Result:
    return fedsmoo.simulate(module, "digits", algorithm, **SMALL | settings)


@pytest.mark.parametrize("name", RANDOM)
def test_a_seed_gives_the_same_bits_and_another_does_not(name: str) -> None:
    module, before = make_module(RANDOM[name], 3), torch.get_rng_state()
    one, same, other = (run(module, "fedsmoo", seed=s) for s in (0, 0, 1))
    assert one.simulation.engine.name == "vmap"
    assert torch.equal(one.server.w, same.server.w)
    assert [replace(r, seconds_train=0.0, seconds_eval=0.0) for r in one.history] == [
        replace(r, seconds_train=0.0, seconds_eval=0.0) for r in same.history
    ]
    assert not torch.equal(one.server.w, other.server.w)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("name", [n for n in RANDOM if n != "sampling"])
def test_an_evaluation_is_that_of_the_module_in_eval_mode(name: str) -> None:
    result = run(make_module(RANDOM[name], 3), rounds=8, local_steps=10)
    task = result.simulation.setup.task
    module = RANDOM[name]()
    module.load_state_dict(result.model.state_dict())
    with torch.no_grad():
        out = module.eval()(task.inputs(task.data.x_test))
    right = out.argmax(1) == task.data.y_test
    assert result.accuracy == right.double().mean().item()
    assert result.history[-1].test_loss == pytest.approx(F.cross_entropy(out, task.data.y_test).item(), rel=1e-5)
    w, measured = result.server.w, objective(task, "test")
    task.model.train()  # as a step leaves it
    assert torch.equal(measured.outputs(w), out)
    task.model.train()
    assert measured.evaluate_many(w[None])[1].item() == pytest.approx(result.accuracy, abs=1e-12)
    classes = [right[task.data.y_test == k].double().mean().item() for k in range(10)]
    assert fairness(task, w, result.simulation.indices).classes.tolist() == pytest.approx(classes)


def test_measured_gradients_are_those_of_eval_mode_and_steps_come_back_to_train_mode() -> None:
    module = make_module(Functional, 3)
    result = run(module, rounds=1)
    task, w = result.simulation.setup.task, result.server.w
    loss = objective(task, "train", 50)
    plain = result.model
    F.cross_entropy(plain(task.inputs(loss.x)), loss.y).backward()
    expected = task.model.layout.join({n: p.grad for n, p in plain.named_parameters()})
    assert torch.allclose(loss.gradient(w), expected, atol=1e-6)
    # Measured in between or not, rounds are the same.
    probed = run(module, rounds=3, probe="sharpness:1,fairness:1,consistency:1")
    assert torch.equal(probed.server.w, run(module, rounds=3).server.w)


def test_deterministic_modules_too_are_told_when_they_train() -> None:
    class Louder(Net):
        def middle(self, h: Tensor) -> Tensor:
            return 3 * h if self.training else h

    module = make_module(Louder, 0)
    runs = {e: run(module, engine=e) for e in ("serial", "vmap")}
    assert torch.allclose(runs["serial"].server.w, runs["vmap"].server.w, atol=1e-6)
    assert runs["serial"].simulation.setup.task.model.random is False
    for result in runs.values():
        task = result.simulation.setup.task
        out = result.model(task.inputs(task.data.x_test))
        assert result.accuracy == (out.argmax(1) == task.data.y_test).double().mean().item()


def ones(n: int = 40) -> Dataset:
    return Dataset("ones", torch.ones(n, 12), torch.zeros(n).long(), torch.ones(2, 12), torch.zeros(2).long(), 12)


class Mask(nn.Module):
    """Its outputs are the weights under a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(12))

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x * self.w, 0.5, self.training)


def test_masks_follow_the_seed_the_round_the_client_and_the_step() -> None:
    task = Task(FlatModel(Mask()), ones(), torch.device("cpu"))
    task.model.train()
    indices = [np.arange(40)] * 5

    def masks(seed: int, number: int, clients: list[int], position: int, step: int) -> tuple[float, ...]:
        plan = make_plan(seed, number, clients, indices, 4, steps=3).select(slice(position, position + 1))
        batch = client_batch(task, plan, step)
        out = task.model.forward(task.model.layout.split(torch.ones(12)), batch.x, batch.noise)
        return tuple(out.flatten().tolist())

    first = masks(0, 0, [1], 0, 0)
    noise = Noise(key_of(0, "noise", 0, 1), 0)
    assert first == tuple(2.0 * (((w >> 9) + 0.5) / 2**23 < 0.5) for w in noise.words("layers", 48).tolist())
    assert first == masks(0, 0, [4, 2, 1], 2, 0)  # whoever else is in the cohort
    others = [masks(1, 0, [1], 0, 0), masks(0, 1, [1], 0, 0), masks(0, 0, [2], 0, 0), masks(0, 0, [1], 0, 1)]
    assert len({first, *others}) == 5


def test_a_local_step_is_sgd_under_the_mask_by_hand() -> None:
    """Three local steps of FedAvg on one client, against autograd on the module's own formula with masks by hand."""
    module = make_module(Functional, 1).double()
    result = run(module, cohort=1, clients=1, rounds=1, dtype="float64", weight_decay=0.0, clip=None)
    task, t = result.simulation.setup.task, result.simulation.training
    plan = make_plan(0, 0, [0], result.simulation.indices, 10, steps=3)
    w = {n: p.detach().clone().requires_grad_() for n, p in module.named_parameters()}
    for k in range(3):
        index = torch.from_numpy(plan.index[k, 0])
        x, y = task.inputs(task.data.x_train[index]), task.data.y_train[index]
        words = Noise(key_of(0, "noise", 0, 0), k).words("layers", 160).tolist()
        mask = torch.tensor([((v >> 9) + 0.5) / 2**23 < 0.5 for v in words]).view(10, 16).double() / 0.5
        h = torch.tanh(x.flatten(1) @ w["a.weight"].T + w["a.bias"]) * mask
        loss = F.cross_entropy(h @ w["b.weight"].T + w["b.bias"], y)
        grads = torch.autograd.grad(loss, list(w.values()))
        w = {n: (p - t.lr * g).detach().requires_grad_() for (n, p), g in zip(w.items(), grads, strict=True)}
    assert torch.allclose(result.server.w, task.model.layout.join(w), atol=1e-12)


@dataclass(frozen=True)
class Twice(FedAvg):
    """Asks for the gradient of a step twice."""

    def direction(self, w, grad, down, me):
        return 2 * grad(w) - grad(w), me  # to the bit the gradient, if both are the same


def test_all_gradients_of_a_step_see_the_same_masks() -> None:
    module = make_module(Functional, 1)
    assert torch.equal(run(module, Twice()).server.w, run(module).server.w)


def test_a_run_that_was_stopped_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    made = "nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 10))"
    (tmp_path / "net.py").write_text(f"from torch import nn\n\n\ndef net():\n    return {made}\n")
    config = Config(
        algorithm="fedsmoo", dataset="digits", model=f"{tmp_path / 'net.py'}:net", device="cpu", **SMALL | {"rounds": 4}
    )
    whole = Run.begin(config, tmp_path / "whole").go()
    seen: list[int] = []
    Run.begin(config, tmp_path / "stopped").go(lambda r: seen.append(r.round), stop=lambda: len(seen) == 2)
    resumed = reopen(tmp_path / "stopped").go()
    assert len(seen) == 2
    assert all(torch.equal(v, getattr(resumed.server, n)) for n, v in whole.server.items())
    assert [r.test_accuracy for r in resumed.history] == [r.test_accuracy for r in whole.history]
    saved = open_finished(tmp_path / "stopped")
    assert torch.equal(saved.w, whole.server.w)
    assert saved.task.evaluate(saved.w).lead == whole.accuracy


@pytest.mark.parametrize("kind", [Serial, Batched])
def test_clients_keep_their_noise_when_they_are_divided_or_brought_together(kind: type[Engine]) -> None:
    simulation = assemble(
        Config(algorithm="fedavg", dataset="digits", device="cpu", engine="auto", **SMALL),
        model=FlatModel(make_module(Functional, 1)),
    )
    work, engine = simulation.prepare(), kind(simulation.setup)
    whole = engine.run_round(work).mean.w
    parts = [engine.run_round(part_of(work, p)).mean.w for p in ([2], [0, 1])]
    assert torch.allclose(whole, parts[0] + parts[1], atol=1e-6)
    assert not torch.allclose(parts[0] * 2, parts[1], atol=1e-4)
    both = merge([work.plan.select(slice(2, 3)), work.plan.select(slice(0, 2))])
    assert np.array_equal(both.keys, work.plan.keys[[2, 0, 1]])


def test_a_dropout_of_nothing_draws_nothing() -> None:
    assert run(layered(nn.Dropout(0.0)), rounds=1).simulation.setup.task.model.random is False


# -- what cannot follow the seed


class Escaping(Net):
    def __init__(self, draw) -> None:
        super().__init__()
        self.inner = Chance(draw)

    def middle(self, h: Tensor) -> Tensor:
        return self.inner(h)


class Chance(nn.Module):
    def __init__(self, draw) -> None:
        super().__init__()
        self.rng, self.numpy_rng, self.old_rng = random.Random(0), np.random.default_rng(0), np.random.RandomState(0)
        self.draw = draw

    def forward(self, h: Tensor) -> Tensor:
        return h * 2 if self.draw(self) < 1e-9 else h  # never, so outputs agree by chance


ESCAPES = {
    "Python's random": lambda m: random.random(),
    "numpy.random": lambda m: np.random.rand(),
    "its own generator inner.rng": lambda m: m.rng.random(),
    "its own generator inner.numpy_rng": lambda m: m.numpy_rng.random(),
    "its own generator inner.old_rng": lambda m: m.old_rng.rand(),
}


@pytest.mark.parametrize("name", ESCAPES)
def test_other_generators_are_found_even_where_outputs_agree(name: str) -> None:
    with pytest.raises(FedsmooError, match=f"^Chance at 'inner' draws from {name}, which does not follow") as caught:
        run(Escaping(ESCAPES[name]))
    assert "\n" not in str(caught.value)


def test_the_module_that_draws_is_named_not_the_one_it_feeds() -> None:
    hidden = np.random.default_rng(0)

    class Feeding(Net):
        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.a(x.flatten(1)) * float(hidden.random()))

    with pytest.raises(FedsmooError, match=r"^the model Feeding gives other outputs for the same inputs"):
        run(Feeding())
    with pytest.raises(FedsmooError, match=r"^Noisy at '2' gives other outputs for the same inputs and weights"):
        run(layered(Noisy(hidden)))


class Noisy(nn.Module):
    def __init__(self, rng: np.random.Generator) -> None:
        super().__init__()
        self.draw = partial(rng.standard_normal)

    def forward(self, h: Tensor) -> Tensor:
        return h + float(self.draw())


def test_randomness_in_evaluation_alone_is_found() -> None:
    class Late(Net):
        def middle(self, h: Tensor) -> Tensor:
            return h if self.training else h * (1 + np.random.rand())

    with pytest.raises(FedsmooError, match=r"^the model Late draws from numpy.random"):
        run(Late())


def test_operators_checkpoints_and_losses_that_cannot_follow_are_refused() -> None:
    class Poisson(Net):
        def middle(self, h: Tensor) -> Tensor:
            return h * torch.poisson(torch.ones_like(h))

    class Checkpointed(Net):
        def middle(self, h: Tensor) -> Tensor:
            return checkpoint(lambda v: F.dropout(torch.tanh(v), 0.5), h, use_reentrant=False)

    def loss(out: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(out + torch.randn_like(out), y, reduction="none")

    with pytest.raises(FedsmooError, match=r"^the model Poisson draws random numbers by poisson"):
        run(Poisson())
    with pytest.raises(FedsmooError, match=r"^the model Checkpointed draws .* backward pass.*leave checkpointing out"):
        run(Checkpointed())
    with pytest.raises(FedsmooError, match=r"^the loss draws random numbers"):
        run(Net(), loss=loss)


def test_compiled_modules_draw_as_plain_ones() -> None:
    plain = make_module(Functional, 1)
    expected = run(plain).server.w
    result = run(torch.compile(plain, backend="eager"))
    assert result.simulation.setup.task.model.random
    assert torch.equal(result.server.w, expected)


def test_draws_in_some_steps_only_are_found_in_the_round() -> None:
    class Sometimes(Net):
        def middle(self, h: Tensor) -> Tensor:
            return F.dropout(h, 0.5, self.training) if len(h) > 8 else h  # a look takes eight samples

    with pytest.raises(FedsmooError, match=r"^the model Sometimes draws random numbers in some local steps only"):
        run(Sometimes(), engine="serial")


def test_a_generator_that_somebody_else_moves_stops_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    module = make_module(Net, 0)
    expected = run(module, engine="serial").server.w
    monkeypatch.setattr(serial, "client_batch", lambda *given: (torch.rand(1), client_batch(*given))[1])
    assert torch.equal(run(module, engine="serial").server.w, expected)


def test_a_model_that_cannot_be_looked_at_is_refused() -> None:
    class Shy(Net):
        def middle(self, h: Tensor) -> Tensor:
            if is_in_torch_dispatch_mode():
                raise RuntimeError("not while somebody looks\nor else")
            return F.dropout(h, 0.5, self.training)

    with pytest.raises(FedsmooError, match=r"^the model Shy runs, but .* RuntimeError: not while somebody looks; give"):
        run(Shy())


def test_a_model_that_cannot_be_copied_is_refused() -> None:
    net = Net()
    net.lock = threading.Lock()
    with pytest.raises(FedsmooError, match=r"^the model Net cannot be copied: TypeError: cannot pickle"):
        run(net)


def test_another_thread_s_draws_are_not_the_model_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """A generator that moves in one pass, as another thread may do, and not in the next."""
    calls = []

    class Visited(Net):
        def middle(self, h: Tensor) -> Tensor:
            calls.append(1)
            if len(calls) in (1, 4):
                random.random()
            return h

    assert run(Visited(), rounds=1).simulation.setup.task.model.random is False


def test_a_look_is_taken_at_models_of_users_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    data = ones()
    model = FlatModel(Mask())
    assert model.random is None
    assert Task(model, data, torch.device("cpu")).model.random is True
    monkeypatch.setattr("fedsmoo.engines.task.examine", None)
    assert Task(build("softmax", data, 0), data, torch.device("cpu")).model.random is False


@pytest.mark.parametrize("training", [True, None])
def test_dropout_that_is_never_off_is_said(training: bool | None) -> None:
    """``F.dropout(x)`` drops in eval mode, too: a number that is not the model's own is not reported in silence."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(64, 10)

        def forward(self, x):
            return self.fc(F.dropout(x.flatten(1), 0.5, **({} if training is None else {"training": self.training})))

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        fedsmoo.simulate(Net(), "digits", "fedavg", clients=4, cohort=2, rounds=1, local_steps=1)
    said = [str(w.message) for w in seen if issubclass(w.category, FedsmooWarning)]
    assert any("Net draws random numbers in evaluation, too" in line for line in said) == (training is None)


def test_models_that_are_random_in_evaluation_are_evaluated_with_one_noise() -> None:
    result = run(make_module(Sampling, 3), seed=5)
    task = result.simulation.setup.task
    assert task.model.random_in_evaluation
    assert task.evaluate(result.server.w) == task.evaluate(result.server.w)
    found = objective(task, "test").evaluate(result.server.w)
    scores = task.evaluate(result.server.w)
    assert found == pytest.approx((scores.loss, scores.lead), rel=1e-5)


# -- what a run gives back


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.out = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 10)
        self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        self.last = self.a(x.flatten(1))  # kept, with its history
        return self.out(torch.tanh(self.b(torch.tanh(self.last))))


def test_the_model_of_a_result_is_a_fresh_copy_in_eval_mode() -> None:
    module = make_module(Tied, 0)
    module(torch.zeros(1, 64))
    result = run(module, rounds=2)
    result.simulation.setup.task.model.train()
    one, other = result.model, result.model
    inner = result.simulation.setup.task.model.module
    assert len({id(one), id(other), id(inner), id(module)}) == 4
    assert not any(part.training for part in one.modules())
    assert one.b.weight is one.a.weight
    assert one.a.weight is not other.a.weight
    assert torch.equal(FlatModel(one).initial(), result.server.w)
    with torch.no_grad():
        one.a.weight.zero_()
    one.train()
    assert torch.equal(FlatModel(result.model).initial(), result.server.w)
    assert not result.model.training
    state = result.simulation.setup.task.model.state_dict(result.server.w)
    assert set(state) == set(module.state_dict())
    other.load_state_dict(state)


def test_a_result_s_model_does_not_change_when_the_run_goes_on() -> None:
    config = Config(algorithm="fedavg", dataset="digits", device="cpu", engine="serial", **SMALL)
    simulation = assemble(config, model=FlatModel(make_module(Functional, 1)))
    first = simulation.run(lambda record: False)
    kept = first.model
    before = FlatModel(kept).initial().clone()
    simulation.run()
    assert torch.equal(FlatModel(kept).initial(), before)


def test_a_compiled_model_is_looked_at_as_it_was_written() -> None:
    """It was compiled for every length of a batch that the look before a run tries, which took half a minute."""
    seen: list[int] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> torch.fx.GraphModule:
        seen.extend(len(t) for t in inputs if isinstance(t, Tensor) and t.shape[1:] == (64,))
        return graph

    make = partial(make_module, lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), 1)
    config = Config(algorithm="fedavg", dataset="digits", device="cpu", engine="serial", **SMALL)
    plain, compiled = (assemble(config, model=FlatModel(m)) for m in (make(), torch.compile(make(), backend=backend)))
    assert not seen
    assert float((compiled.run().server.w - plain.run().server.w).abs().max()) < 1e-6


def test_on_a_gpu_rounding_is_no_randomness():
    t = torch.tensor([1000.0, 1e-3, 0.0])
    assert examine.nearly(t + torch.tensor([0.5, 0.4, 0.3]), t)  # of sums whose terms reach a thousand
    assert not examine.nearly(t * torch.tensor([0.0, 1.0, 1.0]), t)
    assert not examine.nearly(torch.tensor([1]), torch.tensor([2]))
