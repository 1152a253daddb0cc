"""A user's file with one of everything that a setting can name, each with an option."""

from pathlib import Path

TEXT = '''"""All my own."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

import fedsmoo


@dataclass(frozen=True)
class Half(fedsmoo.FedAvg):
    part: float = fedsmoo.option(0.5, "share of the step that is taken")

    def direction(self, w, grad, down, me):
        return self.part * grad(w), me


def blobs(seed, noise=0.5):
    rng = np.random.default_rng(seed)
    y = np.arange(120) % 3
    x = np.eye(3)[y] + noise * rng.normal(size=(120, 3))
    return x[:90], y[:90], x[90:], y[90:]


def dealt(labels, classes, clients, seed, shuffle=True):
    order = fedsmoo.stream(seed, "deal").permutation(len(labels)) if shuffle else np.arange(len(labels))
    return np.array_split(order, clients)


def squared(outputs, labels, scale=1.0):
    return scale * (outputs - torch.eye(3, dtype=outputs.dtype)[labels]).square().sum(-1)


def in_turn(seed, round, clients, cohort, step=1):
    return [(round * step + i) % clients for i in range(cohort)]


def linear(bias=True):
    return nn.Linear(3, 3, bias=bias)
'''
FLAGS = [
    "--algorithm", "mine.py:Half", "--model", "mine.py:linear", "--dataset", "mine.py:blobs", "--partition",
    "mine.py:dealt", "--loss", "mine.py:squared", "--sampling", "mine.py:in_turn", "--clients", "6", "--cohort", "2",
    "--rounds", "4", "--local-steps", "2", "--batch-size", "8", "--dtype", "float64", "--engine", "serial",
]  # fmt: skip
KINDS = {
    "dataset": "blobs",
    "partition": "dealt",
    "loss": "squared",
    "sampling": "in_turn",
    "algorithm": "Half",
    "model": "linear",
}


def written(text: str = TEXT, name: str = "mine.py") -> Path:
    """Write the file into the present folder."""
    path = Path(name)
    path.write_text(text)
    return path
