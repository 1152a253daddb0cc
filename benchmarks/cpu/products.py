"""Products of a CPU by MKL, by oneDNN and in bf16, and rounds of `engine=threads` with each, in one run.

PYTHONPATH=src python -m benchmarks.cpu.products --out results/products.json
python -m benchmarks.documents.tables
"""

from __future__ import annotations

import argparse
import os
import platform
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from benchmarks.cpu.models import SETTINGS, simulation
from benchmarks.cpu.report import keep
from benchmarks.cpu.zoo import ZOO
from fedsmoo.engines import threads
from fedsmoo.engines.oracles.cpu.library import LIBRARY, Way, best_way, onednn_is_wider
from fedsmoo.engines.oracles.products import cpu_has_bf16

# Rows, inputs and outputs of a linear layer: of the ViT, of the CNN, of the network that pfl-research trains.
SHAPES = ((640, 192, 768), (50, 1600, 384), (10, 12544, 128))
MODELS = ("`cnn`", "ViT, patches of 4x4")
REPEATS = 40


def ways() -> list[str]:
    """The ways that this machine has, in the order in which they are compared."""
    return ["MKL", *(["oneDNN"] if onednn_is_wider() else []), *(["bf16"] if cpu_has_bf16() else [])]


def gigaflops(way: str, m: int, k: int, n: int) -> float:
    """The speed of a linear layer's three products in one thread, in the fastest of some passes."""
    dtype = torch.bfloat16 if way == "bf16" else torch.float32
    x, w, g = (torch.randn(shape).to(dtype) for shape in ((m, k), (n, k), (m, n)))

    def seconds(product: Callable[[], Any]) -> float:
        began = time.perf_counter()
        product()
        return time.perf_counter() - began

    products = (lambda: x @ w.t(), lambda: g @ w, lambda: g.t() @ x)
    with LIBRARY.taken(Way(onednn=way == "oneDNN")):
        return 6 * m * k * n / 1e9 / sum(min(seconds(p) for _ in range(REPEATS)) for p in products)


def rounds(turns: int) -> Iterator[dict[str, Any]]:
    """Seconds of a round of each model by each way, interleaved, the fastest of some."""
    for row in (row for row in ZOO if row.name in MODELS):
        for size in (10, 50):
            runs = {}
            for way in ways():
                settings = {"batch_size": size, "precision": "bf16" if way == "bf16" else "fp32"}
                by_rule = Way() if way == "MKL" else mock.DEFAULT
                with (
                    mock.patch.dict(SETTINGS, settings),
                    mock.patch.object(threads, "best_way", wraps=best_way) as rule,
                ):
                    rule.return_value = by_rule
                    runs[way] = simulation(row, "threads", 10**6, "cpu")
            times: dict[str, list[float]] = {way: [] for way in runs}
            for _ in range(turns + 1):
                for way, run in runs.items():
                    times[way].append(run.advance().seconds_train)
            yield {"model": row.name, "batch": size, "seconds": {way: min(found[1:]) for way, found in times.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    load, number = os.getloadavg()[0], torch.get_num_threads()
    torch.set_num_threads(1)
    products = [{"shape": shape, "gigaflops": {way: gigaflops(way, *shape) for way in ways()}} for shape in SHAPES]
    torch.set_num_threads(number)
    found = {"products": products, "rounds": list(rounds(args.turns)), "turns": args.turns, "load": load}
    keep(found | {"machine": platform.machine()}, args.out)


if __name__ == "__main__":
    main()
