"""Times of the models in docs/models.md: a round on each engine against a plain loop of PyTorch clients, in one run.

PYTHONPATH=src python -m benchmarks.cpu.models --out results/models.json   # then: python -m benchmarks.documents.tables
PYTHONPATH=src python -m benchmarks.cpu.models --device cuda --out models_gpu.json
OMP_NUM_THREADS=1 PYTHONPATH=src python -m benchmarks.cpu.models --only LSTM   # in one thread, where others are at work
PYTHONPATH=src python -m benchmarks.cpu.models --module mine.py:factory --inputs 3x32x32 --classes 10   # a row of yours
PYTHONPATH=src python -m benchmarks.cpu.models --module mine.py:factory --inputs 80 --tokens 90 --classes 0   # tokens

The table is printed at the end. On a GPU, with the cohorts and batches of docs/gpu.md: benchmarks/gpu/modules.py.
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

from benchmarks.cpu.plain import plain_round
from benchmarks.cpu.zoo import ZOO, Own, Tried
from benchmarks.documents.machines import models_table
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


def row_of(which: int | Own) -> Tried:
    """Return a row of the table by its number, or one's own."""
    return ZOO[which] if isinstance(which, int) else which.row()


def simulation(row: Tried, engine: str, rounds: int, device: str) -> Simulation:
    settings = {**SETTINGS, "engine": engine, "rounds": rounds, "device": device, "eval_every": rounds}
    made, _ = assemble_objects(row.module(), row.data(SAMPLES), "fedavg", "auto", "uniform", None, settings)
    return made


@contextmanager
def plain_loop(which: int | Own, device: str) -> Iterator[Callable[[int], float]]:
    """Seconds of a round of the loop, by its number, in a process of its own: an engine keeps the memory that it frees,
    from which a loop in its process would gain."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    child = context.Process(target=answer, args=(there, which, device))
    child.start()

    def seconds(t: int) -> float:
        here.send(t)
        return here.recv()

    try:
        yield seconds
    finally:
        here.send(None)
        child.join()


def answer(pipe: Connection, which: int | Own, device: str) -> None:
    """Take rounds of the loop as long as they are asked for."""
    warnings.simplefilter("ignore")
    drawn = simulation(row_of(which), "serial", 10**6, device)
    task = drawn.setup.task
    plain = task.model.export(task.model.initial()).to(task.device)
    while (t := pipe.recv()) is not None:
        _, plan = drawn.draw_round(t)
        began = time.perf_counter()
        plain = plain_round(plain, task.data, plan, drawn.lr, 0.0, math.inf)
        if task.device.type == "cuda":
            torch.cuda.synchronize(task.device)
        pipe.send(time.perf_counter() - began)


def measure(which: int | Own, turns: int, device: str) -> dict[str, Any]:
    """The fastest of some rounds by each way, interleaved so that a noisy machine is noisy for all of them.

    Before that come a round of each, and of those that record operations as many as they need for that.
    """
    row = row_of(which)
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
    with plain_loop(which, device) as seconds:
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
    parser.add_argument(
        "--module", default="", help="path/to/file.py:factory of a module of your own, instead of these"
    )
    parser.add_argument("--inputs", default="3x32x32", help="shape of an input of that module")
    parser.add_argument("--tokens", type=int, default=0, help="its inputs are whole numbers below this")
    parser.add_argument("--classes", type=int, default=10, help="of that module; 0: it says the next token everywhere")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    warnings.simplefilter("ignore")
    load = os.getloadavg()[0]  # of other work, before this
    results: list[dict[str, Any]] = []
    own = [Own(args.module, args.inputs, args.tokens, args.classes)] if args.module else []
    for which in own or range(len(ZOO)):
        row = row_of(which)
        if args.only not in row.name:
            continue
        if row.missing:
            print(f"{row.name}: left out, {row.missing} is not installed", flush=True)
            continue
        try:
            results.append(measure(which, args.turns, args.device))
        except FedsmooError as e:
            results.append({"name": row.name, "about": row.about, "fails": str(e)})
        print(json.dumps(results[-1]), flush=True)
        if args.out:
            args.out.write_text(json.dumps(report(results, args, load), indent=1) + "\n")
    print(models_table(report(results, args, load)))


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
