"""Times of the models in docs/models.md: a round on each engine against a plain loop of PyTorch clients, in one run.

PYTHONPATH=src python benchmarks/models.py --out results/models.json    # then: python benchmarks/tables.py
PYTHONPATH=src python benchmarks/models.py --device cuda --out models_gpu.json
OMP_NUM_THREADS=1 PYTHONPATH=src python benchmarks/models.py --only LSTM   # in one thread, where others are at work
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import platform
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from plain import plain_round
from zoo import ZOO, Tried

from fedsmoo.api import assemble_objects
from fedsmoo.core import FedsmooError
from fedsmoo.engines.oracles.recorded import AFTER
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


@contextmanager
def plain_loop(row: Tried, device: str) -> Iterator[Callable[[int], float]]:
    """Seconds of a round of the loop, by its number, in a process of its own: an engine keeps the memory that it frees,
    from which a loop in its process would gain."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    child = context.Process(target=answer, args=(there, ZOO.index(row), device))
    child.start()

    def seconds(t: int) -> float:
        here.send(t)
        return here.recv()

    try:
        yield seconds
    finally:
        here.send(None)
        child.join()


def answer(pipe: Connection, index: int, device: str) -> None:
    """Take rounds of the loop as long as they are asked for."""
    warnings.simplefilter("ignore")
    drawn = simulation(ZOO[index], "serial", 10**6, device)
    task = drawn.setup.task
    plain = task.model.export(task.model.initial()).to(task.device)
    while (t := pipe.recv()) is not None:
        _, plan = drawn.draw_round(t)
        began = time.perf_counter()
        plain = plain_round(plain, task.data, plan, drawn.lr, 0.0, math.inf)
        if task.device.type == "cuda":
            torch.cuda.synchronize(task.device)
        pipe.send(time.perf_counter() - began)


def measure(row: Tried, turns: int, device: str) -> dict[str, Any]:
    """The fastest of some rounds by each way, interleaved so that a noisy machine is noisy for all of them.

    Before that come a round of each, and of those that record operations as many as they need for that.
    """
    chosen = simulation(row, "auto", 10**6, device)
    task, engine = chosen.setup.task, chosen.engine.name
    others = ["serial", "threads", "vmap", *(["batched"] if task.model.batched is not None else [])]
    if device != "cpu":
        others.remove("threads")
    runs = {e: chosen if e == engine else simulation(row, e, 10**6, device) for e in others}
    times: dict[str, list[float]] = {"plain loop": [], **{e: [] for e in runs}}
    for run in (run for name, run in runs.items() if name in ("vmap", "batched")):
        for _ in range(1 + -(-AFTER // SETTINGS["local_steps"])):
            run.advance()
    with plain_loop(row, device) as seconds:
        for t in range(turns + 1):
            times["plain loop"].append(seconds(t))
            for name, run in runs.items():
                times[name].append(run.advance().seconds_train)
    return {
        "name": row.name,
        "about": row.about,
        "trained": task.model.layout.count,
        "parameters": task.model.full_size,
        "auto": engine,
        "why": chosen.engine.why,
        "seconds_per_round": {name: min(values[1:]) for name, values in times.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--turns", type=int, default=9)
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
            results.append(measure(row, args.turns, args.device))
        except FedsmooError as e:
            results.append({"name": row.name, "about": row.about, "fails": str(e)})
        print(json.dumps(results[-1]), flush=True)
        if args.out:
            args.out.write_text(json.dumps(report(results, args, load), indent=1) + "\n")


def report(results: list[dict[str, Any]], args: argparse.Namespace, load: float) -> dict[str, Any]:
    """What was measured so far, and with what."""
    threads = f"{torch.get_num_threads()} thread{'s' * (torch.get_num_threads() > 1)}"
    on_cpu = args.device == "cpu"
    return {
        "task": TASK,
        "turns": args.turns,
        "results": results,
        "load": load,
        "hardware": f"CPU, {platform.machine()}, {threads}" if on_cpu else torch.cuda.get_device_name(),
        "versions": {"fedsmoo": __version__, "torch": torch.__version__},
        **code_facts(),
    }


if __name__ == "__main__":
    main()
