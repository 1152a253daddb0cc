"""Two CPU cores: the batched engine against a plain loop of eager PyTorch clients, in one run, on the same batches.

PYTHONPATH=src python -m benchmarks.cpu.round --out cpu.json
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.cpu.plain import plain_round
from benchmarks.cpu.report import keep
from fedsmoo.data.digits import digits
from fedsmoo.runs.build import assemble
from fedsmoo.runs.config import Config
from fedsmoo.runs.simulation import Simulation


def simulation(model: str, engine: str, rounds: int, data: Any) -> Simulation:
    config = Config(
        algorithm="fedavg", model=model, engine=engine, clients=100, cohort=10, rounds=rounds, local_epochs=5,
        batch_size=10, device="cpu", partition="iid", replacement=False, eval_every=10**6,
    )  # fmt: skip
    return assemble(config, data=data)


def compare(model: str, rounds: int) -> dict[str, Any]:
    """Median seconds of a round by each way, interleaved so that a noisy machine is noisy for all of them."""
    data = digits()
    engines = ["batched", "vmap", "serial"]
    runs = {e: simulation(model, e, rounds + 1, data) for e in engines}
    plain = runs["serial"].setup.task.model.export(runs["serial"].server.w)
    times: dict[str, list[float]] = {e: [] for e in ["plain loop", *engines]}
    for t in range(rounds + 1):
        first = runs["serial"]
        _, plan = first.draw_round(t)
        began = time.perf_counter()
        plain = plain_round(plain, data, plan, first.lr, first.training.weight_decay, first.training.clip or np.inf)
        times["plain loop"].append(time.perf_counter() - began)
        for e in engines:
            times[e].append(runs[e].advance().seconds_train)
    flat = runs["serial"].setup.task.model.flatten(dict(plain.named_parameters()))
    error = float((flat.detach() - runs["batched"].server.w).norm() / flat.detach().norm())
    seconds = {name: statistics.median(values[1:]) for name, values in times.items()}
    return {
        "model": model,
        "seconds_per_round": seconds,
        "faster_than_plain_loop": {e: seconds["plain loop"] / seconds[e] for e in engines},
        "weights_differ_from_plain_loop_by": error,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", default="mlp,cnn_gn")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(2)
    results = [compare(m, args.rounds) for m in args.models.split(",")]
    keep({"task": "FedAvg on digits, 100 clients, 10 per round, 5 epochs, batch 10", "results": results}, args.out)


if __name__ == "__main__":
    main()
