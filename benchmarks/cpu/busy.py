"""A round by one thread and by one for each core, on an idle machine and beside other programs that only count.

PYTHONPATH=src python -m benchmarks.cpu.busy --out results/busy.json    # then: python -m benchmarks.documents.tables
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from benchmarks.checks.repeat import COUNT, ROOT, child
from benchmarks.cpu.report import keep
from benchmarks.cpu.round import simulation
from fedsmoo.data.digits import digits

WARM, TIMED = 10, 20  # rounds


def rounds(model: str) -> list[float]:
    """Return the seconds of some rounds, by as many threads as PyTorch takes here."""
    run = simulation(model, "batched", WARM + TIMED, digits())
    return [run.advance().seconds_train for _ in range(WARM + TIMED)][WARM:]


def in_process(model: str, threads: int) -> list[float]:
    """Return such seconds from a process of its own: how OpenMP waits is settled when it starts."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, "-m", "benchmarks.cpu.busy", "--rounds-of", model]
    found = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    seconds: list[float] = json.loads(found.stdout)
    return seconds


def measure(models: list[str], turns: int, cores: int) -> list[dict[str, Any]]:
    """The median round of each model by one thread and by all, in turns, with no, one and two others a core."""
    rows = []
    for others in (0, cores, 2 * cores):
        with ExitStack() as stack:
            for _ in range(others):
                stack.enter_context(child([sys.executable, "-c", COUNT]))
            for model in models:
                times: dict[int, list[float]] = {1: [], cores: []}
                for _ in range(turns):
                    for threads, seconds in times.items():
                        seconds += in_process(model, threads)
                medians = {str(threads): statistics.median(s) for threads, s in times.items()}
                rows.append({"model": model, "others": others, "seconds_by_threads": medians})
                print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", default="mlp,cnn_gn")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--rounds-of", help="print the seconds of rounds of this model, and do nothing else")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.rounds_of:
        print(json.dumps(rounds(args.rounds_of)))
        return
    cores = torch.get_num_threads()
    task = f"FedAvg on digits, 100 clients, 10 per round, 5 epochs, batch 10; median of {args.turns * TIMED} rounds"
    keep({"task": task, "cores": cores, "results": measure(args.models.split(","), args.turns, cores)}, args.out)


if __name__ == "__main__":
    main()
