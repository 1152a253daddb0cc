"""Times of the models in docs/models.md: a round on each engine against a plain loop of PyTorch clients, in one run.

PYTHONPATH=src python benchmarks/models.py --out results/models.json    # then: python benchmarks/tables.py
PYTHONPATH=src python benchmarks/models.py --device cuda --out models_gpu.json
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from zoo import ZOO, Tried, plain_round

from fedsmoo.api import assemble_objects
from fedsmoo.core import FedsmooError
from fedsmoo.runs.origin.provenance import code_facts
from fedsmoo.runs.simulation import Simulation
from fedsmoo.version import __version__

SETTINGS: dict[str, Any] = {
    "clients": 20, "cohort": 10, "local_steps": 5, "batch_size": 10, "partition": "iid", "lr": 0.05, "clip": None,
    "weight_decay": 0.0, "precision": "fp32",
}  # fmt: skip
SAMPLES = 400
TASK = "FedAvg, 10 of 20 clients, 5 steps of batches of 10, float32, evaluation left out"


def simulation(row: Tried, engine: str, rounds: int, device: str) -> Simulation:
    settings = {**SETTINGS, "engine": engine, "rounds": rounds, "device": device, "eval_every": rounds}
    made, _ = assemble_objects(row.module(), row.data(SAMPLES), "fedavg", "auto", "uniform", None, settings)
    return made


def measure(row: Tried, rounds: int, device: str) -> dict[str, Any]:
    """Median seconds of a round by each way, interleaved so that a noisy machine is noisy for all of them."""
    serial = simulation(row, "serial", rounds + 1, device)
    task = serial.setup.task
    engines = {"serial": serial, "vmap": simulation(row, "vmap", rounds + 1, device)}
    if task.model.batched is not None:
        engines["batched"] = simulation(row, "batched", rounds + 1, device)
    plain = task.model.export(task.model.initial()).to(task.device)
    times: dict[str, list[float]] = {"plain loop": [], **{e: [] for e in engines}}
    for t in range(rounds + 1):
        _, plan = serial.draw_round(t)
        began = time.perf_counter()
        plain = plain_round(plain, task.data, plan, serial.lr, 0.0, math.inf)
        if task.device.type == "cuda":
            torch.cuda.synchronize(task.device)
        times["plain loop"].append(time.perf_counter() - began)
        for name, run in engines.items():
            times[name].append(run.advance().seconds_train)
    return {
        "name": row.name,
        "about": row.about,
        "trained": task.model.layout.count,
        "parameters": task.model.full_size,
        "seconds_per_round": {name: statistics.median(values[1:]) for name, values in times.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", default="", help="a part of the names of the models to measure")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    warnings.simplefilter("ignore")
    load = os.getloadavg()[0]  # of other work, before this
    results: list[dict[str, Any]] = []
    for row in ZOO:
        if args.only not in row.name:
            continue
        if row.missing:
            print(f"{row.name}: left out, {row.missing} is not installed", flush=True)
            continue
        try:
            results.append(measure(row, args.rounds, args.device))
        except FedsmooError as e:
            results.append({"name": row.name, "about": row.about, "fails": str(e)})
        print(json.dumps(results[-1]), flush=True)
    gpu = args.device.startswith("cuda")
    threads = f"{torch.get_num_threads()} thread{'s' * (torch.get_num_threads() > 1)}"
    report = {
        "task": TASK,
        "rounds": args.rounds,
        "results": results,
        "load": load,
        "hardware": torch.cuda.get_device_name() if gpu else f"CPU, {platform.machine()}, {threads}",
        "versions": {"fedsmoo": __version__, "torch": torch.__version__},
        **code_facts(),
    }
    if args.out:
        args.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
