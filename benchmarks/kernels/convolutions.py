"""Ways to convolve with a client axis, layer by layer, on one GPU: which is fastest where.

PYTHONPATH=src python3 -m benchmarks.kernels.convolutions --out convolutions.json
PYTHONPATH=src python3 -m benchmarks.kernels.convolutions --precision tf32 --out convolutions_tf32.json

The layers are those of ResNet-18 with a 3x3 stem on 32x32 images, of a CNN with 5x5 kernels, and the second one of
FedJAX's EMNIST example; 10 clients of 50 samples. Each way is captured as a CUDA graph and replayed, so that the host
does not count: ``grouped`` is what ``torch.func.vmap`` makes of a convolution, ``loop`` calls cuDNN once a client
(channels last), ``streams`` does so on four streams, ``patches`` copies patches and multiplies matrices, ``products``
and ``boxes`` are the Triton kernels of ``fedsmoo.kernels.conv``, each with its best tile of a few; ``turned`` are
boxes whose products are transposed. Of layers with groups, as MobileNet and ResNeXt have, ``few`` are the kernels for
groups of few channels, and ``folded`` puts groups in the place of clients, copies of images included
(``fedsmoo.operators.groups``). Results are checked before they are timed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import astuple
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.kernels.layers import BATCH, CLIENTS, KINDS, LAYERS, Layer, Way
from benchmarks.kernels.timing import replay_time
from fedsmoo.kernels.runtime import compiling
from fedsmoo.runs.origin.provenance import code_facts


def compile_layer(job: tuple[str, str, str]) -> None:
    """Compile the candidates of a product into Triton's cache on disk; runs in a process of its own."""
    name, kind, precision = job
    layer = Layer(name, precision)
    for way, tile in layer.candidates(kind):
        try:
            with compiling(1):
                layer.way(way, kind, tile)()
        except Exception as e:
            print("  does not compile:", *job, way, tile, str(e).splitlines()[0][:90], flush=True)


def time_of(way: Way, replays: int = 5, calls: int = 10) -> float:
    """Return microseconds of a call, captured and replayed."""
    way()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            way()
    graph.replay()
    return min(replay_time(graph) for _ in range(replays)) * 1000 / calls


def truth_of(layer: Layer, kind: str) -> Tensor:
    """Return a product by PyTorch in float32, in our order of axes."""
    each = [layer.one(kind, *(v.float() for v in parts)) for parts in zip(*layer.nchw, layer.oihw, strict=True)]
    return torch.stack(each).permute((0, 3, 4, 2, 1) if kind == "weight" else (0, 1, 3, 4, 2))


def measure(name: str, kind: str, precision: str) -> dict[str, Any]:
    """Return the times of all ways of a product of a layer."""
    layer, row = Layer(name, precision), {}
    side = [torch.cuda.Stream() for _ in range(4)]
    fold = [v.transpose(0, 1).flatten(1, 2).contiguous() for v in layer.nchw]
    flat = layer.oihw.flatten(0, 1).contiguous()
    plain: dict[str, Way] = {
        "grouped": lambda: layer.one(kind, *fold, flat, CLIENTS),
        "loop": lambda: layer.loop(kind),
        "streams": lambda: layer.streams(kind, side),
    }
    if layer.groups == 1:
        plain["patches"] = lambda: layer.patches(kind)
    for way, call in plain.items():
        try:
            row[way] = time_of(call)
        except Exception as e:
            print("  failed:", name, kind, way, str(e).splitlines()[0][:90], flush=True)
    truth = truth_of(layer, kind)
    for way, tile in layer.candidates(kind):
        try:
            error = float((layer.way(way, kind, tile)().float() - truth).norm() / truth.norm())
            if not error < 0.01:
                print("  WRONG:", name, kind, way, tile, error, flush=True)
                continue
            micros = time_of(layer.way(way, kind, tile), replays=3)
        except Exception as e:
            print("  failed:", name, kind, way, tile, str(e).splitlines()[0][:90], flush=True)
            continue
        if micros < row.get(way, float("inf")):
            row[way] = micros
            if tile is not None:
                row[f"{way}_tile"] = [int(side) for side in astuple(tile)]
    best = min(v for v in row.values() if isinstance(v, float))
    return {"layer": name, "kind": kind, **row, "tflops": layer.flops / best / 1e6}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="", help="layers, separated by commas")
    parser.add_argument("--precision", default="bf16", choices=("bf16", "tf32"))
    parser.add_argument("--stage", choices=("compile", "time"), help="one of the two; both without it")
    args = parser.parse_args()
    names = args.only.split(",") if args.only else list(LAYERS)
    jobs = [(n, k, args.precision) for n, k in product(names, KINDS) if not (LAYERS[n][1] == 3 and k == "data")]
    begun = time.perf_counter()
    if args.stage != "time":
        with ProcessPoolExecutor(min(15, len(jobs)), mp_context=multiprocessing.get_context("spawn")) as pool:
            list(pool.map(compile_layer, jobs))
        print(f"compiled in {time.perf_counter() - begun:.0f} s", flush=True)
    if args.stage == "compile":
        return
    torch.backends.cudnn.benchmark = torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = True
    facts = {"code": code_facts(), "clients": CLIENTS, "batch": BATCH, "precision": args.precision}
    rows = []
    for job in jobs:
        rows.append(measure(*job))
        print(json.dumps(rows[-1]), flush=True)
        args.out.write_text(json.dumps({**facts, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
