"""Random, recurrent and attention layers: a gradient of C clients at once against a loop over clients in plain PyTorch.

PYTHONPATH=src python -m benchmarks.cpu.layers --out layers.json
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.cpu.engines import CLASSES, Mean
from benchmarks.cpu.report import measure
from fedsmoo.core import Round
from fedsmoo.data.check import from_arrays
from fedsmoo.engines.batched import make_oracle
from fedsmoo.engines.contract import Setup
from fedsmoo.engines.oracles.oracle import Oracle
from fedsmoo.engines.task import Batch, Task
from fedsmoo.models import FlatModel, make_module
from fedsmoo.runs.build import make_algorithm

STEPS, WIDTH = 20, 16


def transformer(dropout: float) -> nn.Module:
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout, batch_first=True)
    return Mean(nn.Sequential(nn.Linear(WIDTH, 32), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)), 32)


def mlp(dropout: float) -> nn.Module:
    first = nn.Flatten(), nn.Linear(STEPS * WIDTH, 64), nn.ReLU(), nn.Dropout(dropout)
    return nn.Sequential(*first, nn.Linear(64, CLASSES))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "linear layers": lambda: mlp(0.0),
    "linear layers with dropout": lambda: mlp(0.5),
    "nn.LSTM": lambda: Mean(nn.LSTM(WIDTH, 32, batch_first=True), 32),
    "nn.LSTM, 2 layers with dropout": lambda: Mean(nn.LSTM(WIDTH, 32, 2, batch_first=True, dropout=0.2), 32),
    "nn.LSTM, both directions": lambda: Mean(nn.LSTM(WIDTH, 32, batch_first=True, bidirectional=True), 64),
    "nn.GRU": lambda: Mean(nn.GRU(WIDTH, 32, batch_first=True), 32),
    "nn.RNN": lambda: Mean(nn.RNN(WIDTH, 32, batch_first=True), 32),
    "Transformer": lambda: transformer(0.0),
    "Transformer with dropout": lambda: transformer(0.1),
}


def at_once(oracle: Oracle, w: Tensor, batch: Batch) -> Callable[[], Tensor]:
    """The gradient of all clients, by the engine's oracle."""
    clients = len(w)
    keys = torch.arange(2 * clients).view(clients, 2)
    rnd = Round(0, 0.1, 1, 1.0, step=torch.zeros(clients, 1), key=keys)
    given = oracle.with_noise(batch, rnd)
    return lambda: oracle(w, given)[0]


def one_by_one(module: nn.Module, batch: Batch) -> Callable[[], Tensor]:
    """The same by a copy of the module for each client, as one would write it, PyTorch's own dropout included."""
    modules = [copy.deepcopy(module).train() for _ in batch.x]

    def run() -> Tensor:
        rows = []
        for mine, x, y in zip(modules, batch.x, batch.y, strict=True):
            mine.zero_grad()
            F.cross_entropy(mine(x), y).backward()
            rows.append(torch.cat([p.grad.flatten() for p in mine.parameters()]))  # type: ignore[union-attr]
        return torch.stack(rows)

    return run


def measured(make: Callable[[], nn.Module], clients: int, samples: int, turns: int) -> dict[str, float]:
    """Median processor milliseconds of both, in turns, and how far their gradients are apart where none is drawn."""
    module = make_module(make, 0)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(clients * samples, STEPS, WIDTH, generator=generator)
    y = torch.arange(len(x)) % CLASSES
    task = Task(FlatModel(copy.deepcopy(module)), from_arrays(x, y, x[:10], y[:10]), torch.device("cpu"))
    _, oracle = make_oracle(Setup(task, make_algorithm("fedavg", {}), None), "vmap")  # type: ignore[arg-type]
    index = torch.arange(len(x)).view(clients, samples)
    batch = oracle.batch(index, torch.full((clients, samples), 1 / samples))
    task.model.train()
    ways = at_once(oracle, task.model.initial().expand(clients, -1), batch), one_by_one(module, batch)
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(turns + 1):
        for way, found in zip(ways, times, strict=True):
            began = time.process_time()
            way()
            found.append(time.process_time() - began)
    batched, loop = (1000 * statistics.median(t[1:]) for t in times)
    gap = {} if task.model.random else {"gap": float((ways[0]() - ways[1]()).abs().max())}
    return {"batched_ms": batched, "loop_ms": loop, "faster": loop / batched, **gap}


def rows(turns: int) -> Iterator[dict[str, Any]]:
    for name, make in MODELS.items():
        for clients, samples in ((10, 10), (10, 50), (50, 10)):
            row = {"model": name, "clients": clients, "samples": samples}
            yield row | measured(make, clients, samples, turns)


if __name__ == "__main__":
    task = f"a gradient of all clients, sequences of {STEPS} x {WIDTH} numbers: processor milliseconds"
    measure(rows, task, 21, __doc__)
