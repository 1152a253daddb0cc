"""What the rule of ``engine=auto`` on a CPU rests on: a round by each engine, for models of several kinds, in one run.

PYTHONPATH=src python -m benchmarks.cpu.engines --out engines.json
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.cpu.report import measure
from fedsmoo.core import FedsmooError
from fedsmoo.core.errors import first_line
from fedsmoo.data.check import from_arrays
from fedsmoo.data.dataset import Dataset
from fedsmoo.models import FlatModel, build, wrap
from fedsmoo.runs.build import assemble
from fedsmoo.runs.config import Config
from fedsmoo.runs.simulation import Simulation

CLIENTS, HELD, CLASSES = 20, 100, 10


class Mean(nn.Module):
    """The mean over the positions of a sequence, and then a linear layer."""

    def __init__(self, inner: nn.Module, width: int) -> None:
        super().__init__()
        self.inner, self.last = inner, nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out = self.inner(x)
        return self.last((out[0] if isinstance(out, tuple) else out).mean(1))


class Patches(nn.Module):
    """Images as a sequence of 8x8 patches."""

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        return x.reshape(b, c, h // 8, 8, w // 8, 8).permute(0, 2, 4, 1, 3, 5).reshape(b, -1, c * 64)


def mlp(inputs: int, width: int) -> nn.Module:
    hidden = nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(width, CLASSES))


def cnn(channels: int, width: int) -> nn.Module:
    first = nn.Conv2d(channels, width, 3, padding=1), nn.GroupNorm(2, width), nn.ReLU(), nn.MaxPool2d(2)
    then = nn.Conv2d(width, 2 * width, 3, padding=1), nn.GroupNorm(2, 2 * width), nn.ReLU(), nn.AdaptiveAvgPool2d(1)
    return nn.Sequential(*first, *then, nn.Flatten(), nn.Linear(2 * width, CLASSES))


def transformer(width: int = 64) -> nn.Module:
    layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
    body = nn.Sequential(Patches(), nn.Linear(192, width), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))
    return Mean(body, width)


# A user's own modules, which have no hand-batched forward: (the shape of a sample, the module)
OWN: dict[str, tuple[tuple[int, ...], Callable[[], nn.Module]]] = {
    "linear layers, 64 wide": ((64,), lambda: mlp(64, 64)),
    "linear layers, 96 wide": ((784,), lambda: mlp(784, 96)),
    "linear layers, 128 wide": ((784,), lambda: mlp(784, 128)),
    "linear layers, 256 wide": ((784,), lambda: mlp(784, 256)),
    "linear layers, 512 wide": ((784,), lambda: mlp(784, 512)),
    "linear layers, 1024 wide": ((784,), lambda: mlp(784, 1024)),
    "linear layers with LayerNorm": ((16, 32), lambda: Mean(nn.Sequential(nn.Linear(32, 64), nn.LayerNorm(64)), 64)),
    "convolutions on 8x8": ((1, 8, 8), lambda: cnn(1, 16)),
    "convolutions on 16x16": ((3, 16, 16), lambda: cnn(3, 16)),
    "convolutions on 32x32": ((3, 32, 32), lambda: cnn(3, 16)),
    "attention on 32x32": ((3, 32, 32), transformer),
    "nn.LSTM, 20 steps": ((20, 16), lambda: Mean(nn.LSTM(16, 64, batch_first=True), 64)),
}
# The package's, which have one.
NAMED: dict[str, tuple[int, ...]] = {
    "softmax": (64,),
    "mlp": (64,),
    "mlp, 128 wide": (784,),
    "mlp, 256 wide": (784,),
    "cnn_gn": (3, 32, 32),
    "lenet": (3, 32, 32),
    "resnet18_gn": (3, 32, 32),
    "char_gru": (),
    "char_lstm": (),
}


def named(words: str, data: Dataset) -> FlatModel:
    """``mlp, 128 wide``"""
    name, _, width = words.removesuffix(" wide").partition(", ")
    return build(name, data, 0, **({"hidden": int(width)} if width else {}))


def drawn(shape: tuple[int, ...]) -> Dataset:
    """Random samples of a shape; without one, random texts of 20 characters."""
    generator, n = torch.Generator().manual_seed(0), CLIENTS * HELD
    if not shape:
        text = torch.randint(0, CLASSES, (n + 10, 21), generator=generator)
        return Dataset("text", text[:n, :-1], text[:n, 1:], text[n:, :-1], text[n:, 1:], CLASSES)
    x, y = torch.randn(n + 10, *shape, generator=generator), torch.arange(n + 10) % CLASSES
    return from_arrays(x[:n], y[:n], x[n:], y[n:])


def seconds(
    model: Callable[[Dataset], FlatModel], data: Dataset, cohort: int, batch: int, turns: int
) -> dict[str, Any]:
    """Median seconds of a round by each engine, interleaved so that a noisy machine is noisy for all of them.

    Seconds of the processor, in one thread: what other programs take is not counted.
    """
    runs: dict[str, Simulation] = {}
    times: dict[str, list[float]] = {}
    failed: dict[str, str] = {}
    for engine in ("serial", "batched", "vmap"):
        flat = model(data)
        if engine == "batched" and flat.batched is None:
            continue
        config = Config(
            algorithm="fedavg", engine=engine, clients=CLIENTS, cohort=cohort, rounds=turns + 1, local_steps=3,
            batch_size=batch, device="cpu", partition="iid", replacement=False, eval_every=10**6,
        )  # fmt: skip
        runs[engine] = assemble(config, data=data, model=flat)
    for _ in range(turns + 1):
        for engine, run in runs.items():
            if engine in failed:
                continue
            began = time.process_time()
            try:
                run.advance()
                times.setdefault(engine, []).append(time.process_time() - began)
            except FedsmooError as e:
                failed[engine] = first_line(e)
    found = {engine: statistics.median(t[1:]) for engine, t in times.items() if engine not in failed}
    return {"seconds": found, "faster_than_serial": {e: found["serial"] / s for e, s in found.items()}, **failed}


def rows(turns: int) -> Iterator[dict[str, Any]]:
    models: dict[str, tuple[tuple[int, ...], Callable[[Dataset], FlatModel]]] = {
        name: (shape, lambda d, make=make: wrap(make(), d)) for name, (shape, make) in OWN.items()
    }
    models |= {name: (shape, lambda d, name=name: named(name, d)) for name, shape in NAMED.items()}
    for name, (shape, make) in models.items():
        for cohort, batch in ((10, 10), (10, 50), (2, 10)):
            row = {"model": name, "cohort": cohort, "batch_size": batch}
            yield row | seconds(make, drawn(shape), cohort, batch, turns)


if __name__ == "__main__":
    task = f"FedAvg, {CLIENTS} clients of {HELD} random samples, 3 local steps: processor seconds of a round"
    measure(rows, task, 7, __doc__)
