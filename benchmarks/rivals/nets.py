"""Networks of the workloads, by name. Needs torch alone: rivals live in environments without our package.

Ours are loaded from their files; the two others are what rivals' own benchmarks train.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

MODELS = Path(__file__).parents[2] / "src" / "fedsmoo" / "models"


@cache
def ours(file: str) -> Any:
    """Return a file of our models as a module; once, so that a class is one class."""
    spec = importlib.util.spec_from_file_location(f"rivals_models_{file}", MODELS / f"{file}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Dropped(nn.Sequential):
    """Two 3x3 convolutions and a hidden layer, with dropout: the network of Reddi et al. (2021) on EMNIST.

    pfl-research's CIFAR-10 benchmark and FedJAX's EMNIST example both train it, initialised by Glorot's rule.
    """

    def __init__(self, channels: int, side: int, classes: int) -> None:
        convolutions = (nn.Conv2d(channels, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU())
        hidden = (nn.Linear(64 * ((side - 4) // 2) ** 2, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, classes))
        super().__init__(*convolutions, nn.MaxPool2d(2), nn.Dropout(0.25), nn.Flatten(), *hidden)
        for layer in self:
            if isinstance(layer, nn.Conv2d | nn.Linear):
                nn.init.xavier_uniform_(layer.weight)


def emnist() -> nn.Module:
    """That of FedJAX's example, for ``benchmarks/gpu/modules.py``."""
    return Dropped(1, 28, 62)


class Tutorial(nn.Module):
    """The small CNN of PyTorch's CIFAR-10 tutorial, which BlazeFL's benchmark trains."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(channels, 6, 5), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2).flatten(1)
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))


def build(name: str, shape: tuple[int, ...], classes: int, seed: int | None = None) -> nn.Module:
    """Return a network for inputs of a shape (images: channels first); with a seed, its weights follow from it."""
    if seed is not None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return build(name, shape, classes)
    if name == "mlp":
        return ours("small").MLP(shape[0], classes)
    if name == "resnet18_gn":
        return ours("resnet").ResNet18GN(classes, shape[0], 2)
    if name == "tutorial":
        return Tutorial(shape[0], classes)
    return Dropped(shape[0], shape[1], classes)
