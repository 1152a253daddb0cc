"""Small networks of the kinds whose convolutions have groups, as graphs that a compiled step takes whole, and by every
engine: each gradient is that of a client alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedsmoo import simulate
from fedsmoo.core.gradient import Running
from fedsmoo.data.check import from_arrays
from fedsmoo.engines.oracles import recorded
from fedsmoo.engines.oracles.oracle import single_oracle, vmap_oracle
from fedsmoo.engines.oracles.traced import TracedOracle
from fedsmoo.engines.task import Batch, Task
from fedsmoo.models import FlatModel, make_module
from fedsmoo.operators.trace import called

SIDE, CLASSES, REAL, WIDTH = 8, 4, (5, 3, 2), 5  # two of three clients have padding


class Inverted(nn.Module):
    """A block of MobileNetV2."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        wide = 3 * inside
        self.body = nn.Sequential(
            nn.Conv2d(inside, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU6(),
            nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False), nn.BatchNorm2d(wide), nn.ReLU6(),
            nn.Conv2d(wide, outside, 1, bias=False), nn.BatchNorm2d(outside),
        )  # fmt: skip
        self.short = stride == 1 and inside == outside

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.short else self.body(x)


class Next(nn.Module):
    """A block of ConvNeXt."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.deep, self.norm = nn.Conv2d(width, width, 7, padding=3, groups=width), nn.LayerNorm(width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        rows = self.norm(self.deep(x).permute(0, 2, 3, 1))
        return x + (self.scale * self.narrow(F.gelu(self.wide(rows)))).permute(0, 3, 1, 2)


class Cardinal(nn.Module):
    """A block of ResNeXt."""

    def __init__(self, inside: int, width: int, groups: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inside, width, 1, bias=False), nn.GroupNorm(2, width), nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, groups=groups, bias=False), nn.GroupNorm(2, width), nn.ReLU(),
            nn.Conv2d(width, inside, 1, bias=False), nn.GroupNorm(2, inside),
        )  # fmt: skip
        self.short = nn.Conv2d(inside, inside, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.short(x))


class Shuffled(nn.Module):
    """A unit of ShuffleNet: half of the channels pass, the others are convolved, and all are mixed."""

    def __init__(self, width: int) -> None:
        super().__init__()
        half = width // 2
        self.body = nn.Sequential(nn.Conv2d(half, half, 3, 1, 1, groups=half), nn.Conv2d(half, half, 1), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        left, right = x.chunk(2, 1)
        return torch.cat([left, self.body(right)], 1).unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2)


def network(width: int, *blocks: nn.Module) -> nn.Module:
    head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, CLASSES)
    return nn.Sequential(nn.Conv2d(3, width, 3, 2, 1), *blocks, *head)


# a model, and how often its graph has a convolution of groups of few channels
MODELS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "MobileNetV2": (lambda: network(8, Inverted(8, 8, 1), Inverted(8, 8, 2)), 2),
    "ConvNeXt": (lambda: network(8, Next(8), Next(8)), 2),
    "ResNeXt of groups of four": (lambda: network(8, Cardinal(8, 12, 3, 1), Cardinal(8, 8, 2, 2)), 2),
    "ResNeXt of groups of eight": (lambda: network(8, Cardinal(8, 16, 2, 2)), 0),
    "ShuffleNet": (lambda: network(8, Shuffled(8), Shuffled(8)), 2),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_graph_gives_each_client_its_own_gradient(name: str) -> None:
    make, few = MODELS[name]
    draw = torch.Generator().manual_seed(3)
    x, y = torch.randn(15, 3, SIDE, SIDE, generator=draw), torch.randint(CLASSES, (15,), generator=draw)
    task = Task(FlatModel(make_module(make, 0)), from_arrays(x, y, x, y, "noise"), torch.device("cpu"), torch.float64)
    model, real, oracle = task.model, torch.tensor(REAL), TracedOracle(vmap_oracle(task))
    w = model.initial().double() + 0.1 * torch.randn(3, model.layout.size, generator=draw, dtype=torch.float64)
    weight = (torch.arange(WIDTH) < real[:, None]).double() / real[:, None]
    given, running = oracle.batch(torch.arange(15).view(3, WIDTH), weight), None
    if model.statistics is not None:
        running = Running(torch.rand(3, model.statistics.size, generator=draw, dtype=torch.float64) + 0.5)
    model.train()
    with mock.patch("fedsmoo.engines.oracles.traced.register_operators"):  # for a compiler, whose import takes seconds
        in_step = oracle.ready(w, given)
    assert not oracle.slower
    gradients, losses = in_step(w, Batch(given.x, given.y, weight, None, given.real, running), None)
    for c, n in enumerate(REAL):
        own = None if running is None else Running(running.before[c].clone())
        mine = Batch(given.x[c, :n], given.y[c, :n], weight[c, :n], running=own)
        want, loss = single_oracle(task)(w[c], mine)
        torch.testing.assert_close(gradients[c], want, rtol=0, atol=1e-11)
        torch.testing.assert_close(losses[c], loss, rtol=0, atol=1e-12)
    (graph,) = (c.cell_contents for c in in_step.__closure__ if isinstance(c.cell_contents, torch.fx.GraphModule))
    names = called(graph)
    for operator in ("grouped", "grouped_data", "grouped_weight_parts"):
        assert names.count(f"fedsmoo.{operator}.default") == few
    assert not [n for n in names if "aten.convolution" in n]


@pytest.mark.parametrize("name", ["MobileNetV2", "ConvNeXt", "ResNeXt of groups of four"])
def test_every_engine_comes_to_the_vector_of_serial(name: str) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((14, 3, SIDE, SIDE)), np.arange(14) % CLASSES
    options: dict[str, Any] = {
        "clients": 3, "cohort": 3, "rounds": 1, "local_steps": 2, "batch_size": 4, "partition": "iid",
        "device": "cpu", "dtype": "float64", "lr": 0.1,
    }  # fmt: skip

    def trained(engine: str) -> Tensor:
        with torch.random.fork_rng(devices=[]):
            module = make_module(MODELS[name][0], 0)
            return simulate(module, (x, y, x[:3], y[:3]), engine=engine, algorithm="fedavg", **options).server.w

    serial = trained("serial")
    with mock.patch.object(recorded, "AFTER", 0):  # operations are recorded at once
        at_once = trained("batched")
    for found in (trained("vmap"), at_once):
        assert float((found - serial).abs().max()) < 1e-10
