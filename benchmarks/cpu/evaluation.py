"""Evaluations on a CPU: 1,000 samples at once with channels first, and in the portions and the order of `engine=auto`.

PYTHONPATH=src python -m benchmarks.cpu.evaluation --out results/evaluation.json
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import nn

from benchmarks.cpu.report import keep
from benchmarks.rivals.nets import build
from fedsmoo.api import assemble_objects
from fedsmoo.data.check import from_arrays
from fedsmoo.engines.looking import portions
from fedsmoo.models.resnet import ResNet18GN, ResNet18GNCifar
from fedsmoo.models.small import CNN

TASK = "test_loss and accuracy of one model on 2,000 images of 32x32"
TESTED = 2000
MODELS: dict[str, Callable[[], nn.Module]] = {
    "CNN with dropout of pfl-research": lambda: build("dropped", (3, 32, 32), 10, 0),
    "CNN of PyTorch's tutorial": lambda: build("tutorial", (3, 32, 32), 10, 0),
    "`cnn`": lambda: CNN(3, 32, 10),
    "`resnet18_gn`": lambda: ResNet18GN(10, 3, 2),
    "`resnet18_gn_cifar`": lambda: ResNet18GNCifar(10, 3, 2),
}


def rows(turns: int) -> Iterator[dict[str, Any]]:
    """Seconds of an evaluation in both ways, interleaved, the fastest of some turns each."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(256, (TESTED + 200, 32, 32, 3), dtype=torch.uint8, generator=draw)
    y = torch.randint(10, (len(x),), generator=draw)
    data = from_arrays(x[:200], y[:200], x[200:], y[200:], "noise")
    settings = {"clients": 2, "cohort": 2, "rounds": 1, "batch_size": 10, "partition": "iid", "device": "cpu"}
    for name, make in MODELS.items():
        run, _ = assemble_objects(make(), data, "fedavg", "auto", "uniform", None, settings)
        task, w = run.setup.task, run.server.w
        times: dict[str, list[float]] = {"whole": [], "rule": []}
        for _ in range(turns):
            began = time.perf_counter()
            with mock.patch.object(portions, "BYTES", 2**62):
                whole = task.evaluate(w)
            half = time.perf_counter()
            rule = run.engine.evaluate(w)
            for way, seconds in (("whole", half - began), ("rule", time.perf_counter() - half)):
                times[way].append(seconds)
        assert abs(whole.loss - rule.loss) < 1e-4 * whole.loss, "both ways evaluate the same model"
        seconds = {way: min(found) for way, found in times.items()}
        yield {
            "model": name, "engine": run.engine.name, "at_once": portions.evaluated_at_once(task, w),
            "seconds": seconds, "faster": seconds["whole"] / seconds["rule"],
        }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    keep({"task": TASK, "turns": args.turns, "results": list(rows(args.turns))}, args.out)


if __name__ == "__main__":
    main()
