"""Evaluations on a CPU: 1,000 samples at once with channels first, portions one after the other, and by the rule.

PYTHONPATH=src python -m benchmarks.cpu.evaluation --out results/evaluation.json
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.cpu.report import keep
from benchmarks.rivals.nets import build
from fedsmoo.api import assemble_objects
from fedsmoo.data.check import from_arrays
from fedsmoo.engines.looking.portions import MOST
from fedsmoo.engines.serial import Serial
from fedsmoo.metrics.tally import Scores
from fedsmoo.models.resnet import ResNet18GN, ResNet18GNCifar
from fedsmoo.models.small import CNN
from fedsmoo.runs.simulation import Simulation

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
    """Seconds of an evaluation in each way, interleaved, the fastest of some turns."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(256, (TESTED + 200, 32, 32, 3), dtype=torch.uint8, generator=draw)
    y = torch.randint(10, (len(x),), generator=draw)
    data = from_arrays(x[:200], y[:200], x[200:], y[200:], "noise")
    settings = {"clients": 2, "cohort": 2, "rounds": 1, "batch_size": 10, "partition": "iid", "device": "cpu"}
    for name, make in MODELS.items():
        run, _ = assemble_objects(make(), data, "fedavg", "auto", "uniform", None, settings)
        run.advance()  # from its first round on, a run keeps the memory that it frees
        ways = ways_of(run)
        times: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(turns):
            losses = []
            for way, evaluate in ways.items():
                began = time.perf_counter()
                losses.append(evaluate().loss)
                times[way].append(time.perf_counter() - began)
            assert max(losses) - min(losses) < 1e-4 * losses[0], "all ways evaluate the same model"
        seconds = {way: min(taken) for way, taken in times.items()}
        yield {
            "model": name, "engine": run.engine.name, "at_once": run.setup.task.portion, "seconds": seconds,
            "faster": {way: seconds[way] / seconds["rule"] for way in ("whole", "portions")},
        }  # fmt: skip


def ways_of(run: Simulation) -> dict[str, Callable[[], Scores]]:
    """Return the ways to evaluate a run's model."""
    task, w, in_turn = run.setup.task, run.server.w, Serial(run.setup)
    in_turn.oracle, test = run.engine.oracle, task.test

    def whole() -> Scores:
        return task.tally((task.answers(w, x) for x in test.x.split(MOST)), MOST, test).scores(test.y)

    return {"whole": whole, "portions": lambda: in_turn.evaluate(w), "rule": lambda: run.engine.evaluate(w)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    keep({"task": TASK, "turns": args.turns, "results": list(rows(args.turns))}, args.out)


if __name__ == "__main__":
    main()
