"""Short batches among longer ones, and models and losses whose samples see each other: a plain loop is the truth."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import small_task
import torch
from small_task import SmallTask, each, sgd
from torch import Tensor, nn
from torch.nn import functional as F

from fedsmoo import FedAvg, simulate
from fedsmoo.core import FedsmooError
from fedsmoo.core.contract import inputs
from fedsmoo.data.check import from_arrays
from fedsmoo.data.sources import load
from fedsmoo.engines.statistics.padding import in_full_precision
from fedsmoo.engines.task import Task
from fedsmoo.models import build
from fedsmoo.models.base import FlatModel
from fedsmoo.runs.results.result import Result

TASK = SmallTask(10, 6, 7, 1, 11)  # last batches of 2, 2, 3, 1 and 3 samples
N, X, Y, WORDS, CLIENTS, SETTINGS = TASK.n, TASK.x, TASK.y, TASK.words, TASK.clients, TASK.settings


def centred(out: Tensor, y: Tensor) -> Tensor:
    """A loss whose samples see each other."""
    return F.cross_entropy(out, y, reduction="none") + (out - out.mean(0)).square().sum(1)


def trained(net: nn.Module, engine: str, x: Tensor = X, loss: Any = each, method: Any = "fedavg") -> Result:
    return simulate(net, TASK.parts(x), method, loss=loss, engine=engine, **SETTINGS)


def gap(result: Result, net: nn.Module, x: Tensor = X, loss: Any = each) -> float:
    """How far a run is from FedAvg on modules themselves."""
    truth = TASK.by_a_plain_loop(lambda: copy.deepcopy(net), partial(sgd, loss=loss), x)
    return small_task.gap(result, truth)


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.below, self.norm, self.above = nn.Linear(8, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.above(torch.tanh(self.middle(self.below(x))))

    def middle(self, h: Tensor) -> Tensor:
        return h


class Spared(Layers):
    """Leaves out a norm that cannot be had of one sample."""

    def middle(self, h: Tensor) -> Tensor:
        return self.norm(h) if len(h) > 1 or not self.training else h


class Few(Layers):
    def middle(self, h: Tensor) -> Tensor:
        return 2 * h if len(h) < 3 else h


class Frozen(Layers):
    """Keeps its norm in eval mode by a ``train`` of its own."""

    def train(self, mode: bool = True) -> Frozen:
        super().train(mode)
        self.norm.eval()
        return self

    def middle(self, h: Tensor) -> Tensor:
        return self.norm(h)


class Counted(nn.Module):
    """Gradients of words are divided by how often a batch has them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.words, self.out = nn.Embedding(12, 4, scale_grad_by_freq=True), nn.Linear(4, 3)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.words(x).mean(1))


@pytest.mark.parametrize("engine", ["serial", "vmap", "auto"])
@pytest.mark.parametrize("net", [Spared, Few, Frozen], ids=lambda net: net.__name__)
def test_models_that_do_otherwise_with_few_samples(net: type[Layers], engine: str) -> None:
    result = trained(net(), engine)
    assert gap(result, net()) < 1e-14
    assert result.simulation.setup.task.model.padding == ("free" if net is Frozen else "equal")


@pytest.mark.parametrize("engine", ["serial", "vmap"])
def test_gradients_that_see_other_samples(engine: str) -> None:
    assert gap(trained(Counted(), engine, WORDS), Counted(), WORDS) < 1e-14


@pytest.mark.parametrize("engine", ["serial", "threads", "vmap", "batched", "auto"])
def test_losses_whose_samples_see_each_other(engine: str) -> None:
    """Padding was counted by them, and all clients at once where the model has a hand-batched forward."""
    data = from_arrays(X[:N], Y[:N], X[N:], Y[N:])
    by_hand = build("mlp", data, 0, hidden=6).module.double()
    for net in (Layers(), by_hand):
        result = trained(net, engine, loss=centred)
        assert gap(result, net, loss=centred) < 1e-14
    named = simulate("mlp", data, "fedavg", hidden=6, loss=centred, engine=engine, **SETTINGS)
    flat = named.simulation.setup.task.model  # which is not looked at otherwise
    assert gap(named, flat.export(flat.initial()), loss=centred) < 1e-14


def scaled(out: Tensor, y: Tensor) -> Tensor:
    """A loss that divides by a deviation over the batch, which a single sample has not: NaN, as Barlow twins have."""
    return each((out - out.mean(0)) / (out.std(0) + 0.1), y)


@pytest.mark.filterwarnings("ignore:std:UserWarning")
@pytest.mark.parametrize("engine", ["serial", "threads", "vmap", "auto"])
def test_a_loss_that_is_no_number_of_one_sample(engine: str) -> None:
    """It could not be compared, and padding counted in all of its batches."""
    task = SmallTask(10, 6, 7, 11)  # last batches of 2, 2, 3 and 3 samples
    result = simulate(Layers(), task.parts(), "fedavg", loss=scaled, engine=engine, **task.settings)
    assert small_task.gap(result, task.by_a_plain_loop(Layers, partial(sgd, loss=scaled))) < 1e-14


class Centred(FedAvg):
    """The same loss, as a method's own."""

    def slope(self, w: Any, grad: Any, down: Any, me: Any) -> Any:
        return grad(w, centred), me


class Plain(FedAvg):
    def slope(self, w: Any, grad: Any, down: Any, me: Any) -> Any:
        return grad(w, near, grad.outputs(down.w)), me


def near(out: Tensor, y: Tensor, teacher: Tensor) -> Tensor:
    return each(out, y) + (out - teacher).square().sum(1)


@pytest.mark.parametrize("engine", ["serial", "threads", "vmap", "batched", "auto"])
def test_a_method_s_own_loss_whose_samples_see_each_other(engine: str) -> None:
    by_hand = build("mlp", from_arrays(X[:N], Y[:N], X[N:], Y[N:]), 0, hidden=6).module.double()
    for net in (Layers(), by_hand):
        result = trained(net, engine, method=Centred())
        assert gap(result, net, loss=centred) < 1e-14
    assert trained(Layers(), engine, method=Plain()).simulation.setup.task.model.padding == "free"


def faintly(out: Tensor, y: Tensor) -> Tensor:
    """A loss whose samples see each other in a hundred-thousandth of it."""
    return each(out, y) + 1e-5 * (out - out.mean(0)).square().sum(1)


class Faintly(FedAvg):
    def slope(self, w: Any, grad: Any, down: Any, me: Any) -> Any:
        return grad(w, faintly), me


def decorrelated(out: tuple[Tensor, Tensor], y: Tensor) -> Tensor:
    """FedDecorr's loss with its usual weight, 0.1."""
    z = out[1] - out[1].mean(0)
    z = z / (z.var(0) + 1e-8).sqrt() if len(z) > 1 else 0 * z
    return each(out[0], y) + 0.1 * (z.T @ z / len(z)).square().mean()


class Decorrelated(FedAvg):
    features = True

    def slope(self, w: Any, grad: Any, down: Any, me: Any) -> Any:
        return grad(w, decorrelated), me


@pytest.mark.parametrize("engine", ["vmap", "batched", "auto"])
def test_losses_whose_samples_see_each_other_in_a_small_part_of_them(engine: str) -> None:
    """What was under a thousandth of a loss went unseen, and padding was counted."""
    serial, other = (trained(Layers(), name, method=Decorrelated()) for name in ("serial", engine))
    assert float((serial.server.w - other.server.w).abs().max()) < 1e-14
    by_hand = build("mlp", from_arrays(X[:N], Y[:N], X[N:], Y[N:]), 0, hidden=6).module.double()
    assert gap(trained(by_hand, engine, method=Faintly()), by_hand, loss=faintly) < 1e-14
    assert gap(trained(by_hand, engine, loss=faintly), by_hand, loss=faintly) < 1e-14


class Spread(FedAvg):
    """A mean over samples of what looks at all of them; and the same, by sums."""

    local = ("spread", "square", "mean")
    scalars = ("spread", "square", "mean")

    def slope(self, w: Any, grad: Any, down: Any, me: Any) -> Any:
        spread = grad.mean(w, lambda out, y: (out - out.mean(0)).square().sum(-1))
        square, mean = grad.mean(w, lambda out, y: out.square()), grad.mean(w, lambda out, y: out)
        by_sums = (square - mean.square()).sum(-1, keepdim=True)
        return grad(w) * (1 + spread - by_sums), me


@pytest.mark.parametrize("engine", ["serial", "threads", "vmap", "batched", "auto"])
def test_a_mean_of_what_looks_at_a_whole_batch(engine: str) -> None:
    """Mean squares less squared means are the same: so this is FedAvg."""
    for net in (Layers(), build("mlp", from_arrays(X[:N], Y[:N], X[N:], Y[N:]), 0, hidden=6).module.double()):
        assert gap(trained(net, engine, method=Spread()), net) < 1e-13


@dataclass(frozen=True)
class Counting(FedAvg):
    """Adds rows of outputs up by itself, those of filled-up batches, too."""

    def slope(self, w: Any, grad: Any, down: Any, me: Any) -> Any:
        return grad(w) * (1 + grad.outputs(w).square().mean((-2, -1))[..., None]), me


@dataclass(frozen=True)
class Means(FedAvg):
    def slope(self, w: Any, grad: Any, down: Any, me: Any) -> Any:
        return grad(w) * (1 + grad.mean(w, lambda out, y: out.square().mean(-1))), me


def test_rows_that_are_no_samples_are_not_added_up() -> None:
    """Where clients share a batch, the mean over its rows counted what fills it up: other numbers, and not a word."""
    with pytest.raises(FedsmooError, match=r"test_padding.py:\d+ in slope: counts samples that are none: .* grad.mean"):
        trained(Layers(), "vmap", method=Counting())

    def scaled(out: Tensor, y: Tensor) -> Tensor:
        return each(out, y) * (1 + out.detach().square().mean())

    for engine in ("serial", "vmap", "auto"):
        assert gap(trained(Layers(), engine, method=Means()), Layers(), loss=scaled) < 1e-14


def apart(out: Tensor, y: Tensor, codes: Tensor) -> Tensor:
    """A loss whose samples see each other, of outputs and four codes, as many as there are samples in a batch."""
    return centred(out, y) + (out[:, None] - codes).square().mean((1, 2))


@dataclass(frozen=True)
class Coded(FedAvg):
    def slope(self, w: Any, grad: Any, down: Any, me: Any) -> Any:
        codes = torch.arange(12.0).to(w).view(4, 3).expand(*w.shape[:-1], 4, 3)
        mean = grad.mean(w, lambda out, y, codes: out + 0 * (out - out.mean(0)) + codes.sum(), codes)
        return grad(w, apart, codes) * (1 + 0 * mean.sum(-1, keepdim=True)), me


def apart_alone(out: Tensor, y: Tensor) -> Tensor:
    return apart(out, y, torch.arange(12.0, dtype=torch.float64).view(4, 3))


@pytest.mark.parametrize("engine", ["serial", "vmap", "auto"])
def test_as_many_codes_as_samples_are_no_rows_of_samples(engine: str) -> None:
    """They were cut to as many as a short batch has samples, and not a word."""
    assert gap(trained(Layers(), engine, method=Coded()), Layers(), loss=apart_alone) < 1e-14


def sure(out: Tensor, y: Tensor, certain: Tensor) -> Tensor:
    """The same loss, given a number of each sample, which changes nothing."""
    return centred(out, y) + 0 * certain.view(certain.shape[:1])


@dataclass(frozen=True)
class Sure(FedAvg):
    keepdim: bool = False

    def slope(self, w: Any, grad: Any, down: Any, me: Any) -> Any:
        return grad(w, sure, grad.outputs(down.w).amax(-1, keepdim=self.keepdim)), me


def test_numbers_of_samples_that_such_a_loss_is_given() -> None:
    """Of C clients ``[C, B]`` may be labels ``[C, K]`` as well, and is not cut: refused, not counted with padding."""
    for engine in ("serial", "vmap"):
        assert gap(trained(Layers(), engine, method=Sure(keepdim=True)), Layers(), loss=centred) < 1e-14
    assert gap(trained(Layers(), "serial", method=Sure()), Layers(), loss=centred) < 1e-14
    with pytest.raises(FedsmooError, match="must be one per sample"):
        trained(Layers(), "vmap", method=Sure())


def test_such_a_loss_of_a_model_that_draws_is_trained_one_by_one() -> None:
    net = nn.Sequential(nn.Linear(8, 5), nn.Dropout(0.5), nn.Linear(5, 3)).double()
    for method, loss in (("fedavg", centred), (Centred(), each)):
        serial, auto = (trained(net, engine, loss=loss, method=method) for engine in ("serial", "auto"))
        assert auto.simulation.engine.name == "serial"
        assert torch.equal(serial.server.w, auto.server.w)
        with pytest.raises(FedsmooError, match="samples see each other in it or in the loss: use engine=serial"):
            trained(net, "vmap", loss=loss, method=method)


def test_lone_samples_of_a_model_that_draws_in_evaluation_are_named() -> None:
    """It cannot be looked at, but its BatchNorm still needs two samples; the client with one has such a batch."""

    class Always(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.out = nn.BatchNorm1d(8), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(F.dropout(self.norm(x), 0.3))

    with (
        pytest.warns(UserWarning, match="draws random numbers in evaluation, too"),
        pytest.raises(FedsmooError, match=r"^client 3: the last batch of its 1 sample"),
    ):
        trained(Always(), "serial")


class Refusing:
    """What PyTorch's flags do where somebody has set fp32_precision, their newer name."""

    @property
    def allow_tf32(self) -> bool:
        raise RuntimeError("you have used mix of the legacy and new APIs")


def test_flags_of_a_gpu_are_not_asked_for_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their error passed for one of the model, whose padding then counted."""
    monkeypatch.setattr(torch.backends.cuda, "matmul", Refusing())
    net = nn.Linear(8, 3).double()
    assert gap(trained(net, "vmap", loss=centred), net, loss=centred) < 1e-14


@pytest.mark.parametrize(("net", "by_cudnn"), [(nn.Linear(8, 3), True), (nn.LSTM(8, 3, 2, dropout=0.5), False)])
def test_what_a_gpu_may_round_while_a_model_is_looked_at(net: nn.Module, by_cudnn: bool) -> None:
    """Flags alone, which need no GPU. cuDNN's recurrent layers have no gradient in eval mode: a failure was no news."""

    def flags() -> tuple[bool, bool, bool]:
        return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32, torch.backends.cudnn.enabled

    before = flags()
    with in_full_precision(FlatModel(net), torch.device("cuda")):
        assert flags() == (False, False, by_cudnn)
    assert flags() == before


def test_all_looks_at_a_model_are_in_full_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forward by hand was compared with the module's own in whatever precision a GPU had, and refused for it."""
    inside, seen = [False], []

    @contextmanager
    def noted(model: FlatModel, device: torch.device) -> Iterator[None]:
        inside[0] = True
        yield
        inside[0] = False

    monkeypatch.setattr("fedsmoo.engines.task.in_full_precision", noted)
    model = build("mlp", data := load("digits"), 0)
    model.random = None  # as of a module of one's own, which nobody knows yet
    for name in ("examine", "refuse_other_batched", "judge_padding"):
        monkeypatch.setattr(f"fedsmoo.engines.task.{name}", lambda *_: seen.append(inside[0]))
    Task(model, data, torch.device("cpu"))
    assert seen == [True] * 3


class Both(FedAvg):
    """Asks for the run's gradient, too."""

    def slope(self, w: Any, grad: Any, down: Any, me: Any) -> Any:
        return grad(w) + grad(w, centred), me


SEVERAL = [samples for samples in CLIENTS if len(samples) > 1]


@pytest.mark.parametrize("engine", ["vmap", "auto"])
def test_such_a_loss_of_a_model_with_running_statistics(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It went unseen; and to look for it vectors as long as the model's were drawn, dozens of them."""
    sizes, drawn = set[int](), inputs.random_vectors

    def noted(*given: Any, **named: Any) -> Any:
        sizes.add(inputs.SCALE.get().size)
        return drawn(*given, **named)

    monkeypatch.setattr(inputs, "random_vectors", noted)
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(8, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3)).double()
    settings, data = {**SETTINGS, "client_indices": SEVERAL, "cohort": len(SEVERAL)}, (X[:N], Y[:N], X[N:], Y[N:])
    serial, other = (simulate(net, data, Both(), loss=each, engine=name, **settings) for name in ("serial", engine))
    assert other.simulation.engine.name == "vmap"
    assert float((serial.server.w - other.server.w).abs().max()) < 1e-13
    assert other.simulation.setup.task.model.padding == "equal"
    assert sizes == {7}


@pytest.mark.parametrize("seed", range(3))
def test_rounding_that_norms_of_two_samples_blow_up_is_no_other_sample(seed: int) -> None:
    """Of two samples a norm leaves little but signs, and of gradients little but rounding, layer after layer."""
    torch.manual_seed(seed)
    parts = [layer for _ in range(20) for layer in (nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU())]
    net = nn.Sequential(nn.Linear(8, 64), *parts, nn.Linear(64, 3))
    data = tuple(v if v.dtype == torch.int64 else v.float() for v in (X[:N], Y[:N], X[N:], Y[N:]))
    settings = {**SETTINGS, "dtype": "float32", "rounds": 1, "client_indices": SEVERAL, "cohort": len(SEVERAL)}
    result = simulate(net, data, "fedavg", loss=each, engine="vmap", **settings)
    assert result.simulation.setup.task.model.padding == "masked"
