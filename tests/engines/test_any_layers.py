"""Models of random layers, in sizes that nobody chose, and methods of every kind on models of three kinds: every engine
comes to the vector of `serial`."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kinds import EACH_KIND, settings_of
from torch import Tensor, nn

from fedsmoo import simulate
from fedsmoo.algorithms import ALGORITHMS
from fedsmoo.core.gradient import Running
from fedsmoo.core.random.layers import ClientsNoise
from fedsmoo.core.random.noise import Noise, key_of
from fedsmoo.data.check import from_arrays
from fedsmoo.engines.oracles import recorded
from fedsmoo.engines.oracles.oracle import single_oracle, vmap_oracle
from fedsmoo.engines.oracles.traced import TracedOracle
from fedsmoo.engines.task import Batch, Task
from fedsmoo.models import FlatModel

SETTINGS: dict[str, Any] = {
    "clients": 3, "cohort": 3, "rounds": 1, "local_steps": 2, "batch_size": 4, "partition": "iid", "device": "cpu",
    "dtype": "float64", "weight_decay": 0.01, "lr": 0.1,
}  # fmt: skip
Layer = tuple[nn.Module, tuple[int, ...]]  # and the shape of a sample behind it


class Sequence(nn.Module):
    """A layer of sequences that returns more than its outputs."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        attends = isinstance(self.layer, nn.MultiheadAttention)
        return self.layer(x, x, x)[0] if attends else self.layer(x)[0]


def size(n: int, kernel: int, stride: int, padding: int) -> int:
    return (n + 2 * padding - kernel) // stride + 1


def of_images(draw: Any, shape: tuple[int, ...]) -> Layer:
    c, h, w = shape
    small, kind = min(h, w), draw(st.sampled_from(["conv", "transposed", "norm", "pool", "activation", "dropout"]))
    if kind == "conv":
        kernel, stride = draw(st.integers(1, min(3, small))), draw(st.integers(1, 2))
        padding, groups = draw(st.integers(0, 1)), draw(st.sampled_from([g for g in (1, 2, c) if c % g == 0]))
        out = groups * draw(st.integers(1, 3))
        layer = nn.Conv2d(c, out, kernel, stride, padding, groups=groups, bias=draw(st.booleans()))
        return layer, (out, size(h, kernel, stride, padding), size(w, kernel, stride, padding))
    if kind == "transposed":
        return nn.ConvTranspose2d(c, 2, 2, 2), (2, 2 * h, 2 * w)
    if kind == "pool" and small > 1:
        pools: list[Layer] = [
            (nn.MaxPool2d(2), (c, h // 2, w // 2)), (nn.AvgPool2d(2, 1), (c, h - 1, w - 1)),
            (nn.AdaptiveAvgPool2d(1), (c, 1, 1)), (nn.AdaptiveAvgPool2d((2, 1)), (c, 2, 1)),
        ]  # fmt: skip
        return draw(st.sampled_from(pools))
    if kind == "norm" and h * w > 1:
        return draw(st.sampled_from([nn.GroupNorm(1, c), nn.InstanceNorm2d(c, affine=True), nn.BatchNorm2d(c)])), shape
    layer = nn.Dropout2d(0.3) if kind == "dropout" else draw(st.sampled_from([nn.ReLU(), nn.GELU(), nn.PReLU(c)]))
    return layer, shape


def of_sequences(draw: Any, shape: tuple[int, ...]) -> Layer:
    steps, width = shape
    kind = draw(st.sampled_from(["linear", "norm", "recurrent", "attention", "activation", "dropout"]))
    if kind == "linear":
        out = draw(st.integers(1, 7))
        return nn.Linear(width, out, bias=draw(st.booleans())), (steps, out)
    if kind == "recurrent":
        out, both = draw(st.integers(1, 5)), draw(st.booleans())
        layer = draw(st.sampled_from([nn.LSTM, nn.GRU, nn.RNN]))
        made = layer(width, out, draw(st.integers(1, 2)), batch_first=True, bidirectional=both)
        return Sequence(made), (steps, (1 + both) * out)
    if kind == "attention":
        return Sequence(nn.MultiheadAttention(width, 2 - width % 2, batch_first=True)), shape
    layers = {"norm": nn.LayerNorm(width), "activation": nn.Tanh(), "dropout": nn.Dropout(0.3)}
    return layers[kind], shape


@st.composite
def models(draw: Any) -> tuple[nn.Module, np.ndarray]:
    """A module of two to five layers and a linear one, and ten samples for it."""
    torch.manual_seed(draw(st.integers(0, 9)))
    rng, what = np.random.default_rng(0), draw(st.sampled_from(["images", "sequences", "tokens"]))
    if what == "images":
        shape: tuple[int, ...] = draw(st.integers(1, 4)), draw(st.integers(3, 7)), draw(st.integers(3, 7))
        x, layers = rng.standard_normal((13, *shape)), list[nn.Module]()
    else:
        shape = draw(st.integers(2, 5)), draw(st.integers(2, 5))
        x, layers = rng.standard_normal((13, *shape)), []
    if what == "tokens":
        x, layers = rng.integers(0, 11, (13, shape[0])), [nn.Embedding(11, shape[1])]
    for _ in range(draw(st.integers(2, 5))):
        layer, shape = (of_images if what == "images" else of_sequences)(draw, shape)
        layers.append(layer)
    return nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(3)), x


def trained(module: nn.Module, x: np.ndarray, engine: str, **more: Any) -> Tensor:
    y = np.arange(len(x)) % 3
    with torch.random.fork_rng(devices=[]):
        options = {"algorithm": "fedavg", **SETTINGS, **more}
        return simulate(module, (x, y, x[:3], y[:3]), engine=engine, **options).server.w


@given(models())
@settings(max_examples=5, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_models_of_random_layers_agree_with_serial(drawn: tuple[nn.Module, np.ndarray]) -> None:
    """By `vmap` as it comes, and by `batched` with its operations recorded at once; clients of 4 and 5 samples."""
    serial = trained(*drawn, "serial")
    before, recorded.AFTER = recorded.AFTER, 0
    try:
        at_once = trained(*drawn, "batched")
    finally:
        recorded.AFTER = before
    assert bool(serial.isfinite().all())
    for found in (trained(*drawn, "vmap"), at_once):
        assert float((found - serial).abs().max()) < 1e-10


REAL = torch.tensor([4, 3, 2])  # samples of three clients, whose batches have room for four


@given(models())
@settings(max_examples=4, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_models_of_random_layers_as_graphs_of_operators_agree_with_serial(drawn: tuple[nn.Module, np.ndarray]) -> None:
    """The graph that a GPU's step takes in, with our operators in it: each client's gradient is its own."""
    module, x = drawn[0].double(), torch.as_tensor(drawn[1])
    module.eval()(x[:2])  # lazy layers
    y = torch.arange(len(x)) % 3
    task = Task(FlatModel(module), from_arrays(x, y, x, y, "noise"), torch.device("cpu"), torch.float64)
    model, oracle = task.model, TracedOracle(vmap_oracle(task))
    w = model.initial().double() + 0.1 * torch.randn(3, model.layout.size, dtype=torch.float64)
    weight = (torch.arange(4) < REAL[:, None]).double() / REAL[:, None]
    at, keys = oracle.batch(torch.arange(12).view(3, 4), weight), [key_of(0, "layers", 1, c) for c in range(3)]
    model.train()
    with mock.patch("fedsmoo.engines.oracles.traced.register_operators"):  # for a compiler, whose import takes seconds
        in_step = oracle.ready(w, at)
    noise, running = None, None
    assert not oracle.slower
    if model.random:
        noise = ClientsNoise(torch.tensor(keys), torch.full((3,), 5), REAL, 4, oracle.axes)
    if model.statistics is not None:
        running = Running(torch.rand(3, model.statistics.size, dtype=torch.float64) + 0.5)
    gradients, losses = in_step(w, Batch(at.x, at.y, weight, noise, at.real, running), None)
    for c, n in enumerate(REAL.tolist()):
        own = None if running is None else Running(running.before[c].clone())
        mine = Batch(at.x[c, :n], at.y[c, :n], weight[c, :n], Noise(keys[c], 5) if noise else None, running=own)
        want, loss = single_oracle(task)(w[c], mine)
        torch.testing.assert_close(gradients[c], want, rtol=0, atol=1e-10)
        torch.testing.assert_close(losses[c], loss, rtol=0, atol=1e-10)


def conv() -> nn.Module:
    layers = nn.Conv2d(2, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(16, 3))


class Attending(nn.Module):
    def __init__(self, layer: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.layer, self.head = layer(), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        out = self.layer(x.flatten(2))
        return self.head((out[0] if isinstance(out, tuple) else out).mean(1))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "convolutions": conv,
    "attention": lambda: Attending(lambda: nn.Sequential(nn.Linear(16, 4), nn.TransformerEncoderLayer(
        4, 2, 5, 0.0, batch_first=True))),
    "recurrence": lambda: Attending(lambda: nn.LSTM(16, 4, batch_first=True)),
}  # fmt: skip
EVERYWHERE = ("scaffold", "fedsmoo", "moon")  # the others on one model each, in turn
PAIRS = [(k, m) for i, k in enumerate(EACH_KIND) for j, m in enumerate(MODELS) if k in EVERYWHERE or i % 3 == j]
if os.environ.get("FEDSMOO_TEST_METHODS"):  # make test-methods: every method on every model
    PAIRS = [(k, m) for k in dict.fromkeys([*ALGORITHMS, *EACH_KIND]) for m in MODELS]
    PAIRS.remove(("fedbn", "recurrence"))  # which has no norms


@pytest.mark.parametrize(("kind", "model"), PAIRS)
def test_methods_of_every_kind_on_models_of_three_kinds(kind: str, model: str) -> None:
    torch.manual_seed(0)
    module, x = MODELS[model](), np.random.default_rng(0).standard_normal((13, 2, 4, 4))
    more = {**settings_of(kind), "rounds": 2 if kind in EVERYWHERE else 1}
    first = simulate_start(module)
    serial = trained(module, x, "serial", **more)
    assert float((serial - first).abs().max()) > 1e-6 or kind == "fedrep"  # whose first steps are of heads, which stay
    for engine in ("vmap", "threads"):
        assert float((trained(module, x, engine, **more) - serial).abs().max()) < 1e-10


def simulate_start(module: nn.Module) -> Tensor:
    return torch.cat([p.detach().double().flatten() for p in module.parameters()])
