"""Time of single kernels of ResNet-18-GN's gradient by tile, loaded by pointers or by boxes, on one GPU.

PYTHONPATH=src python3 -m benchmarks.kernels.tiles --out tiles.json
PYTHONPATH=src python3 -m benchmarks.kernels.tiles --clients 80 --keys forward:256,weight:64 --out tiles_80.json
PYTHONPATH=src python3 -m benchmarks.kernels.tiles --keys pool-backward,head,stem-pool --out changes.json  # in no table
PYTHONPATH=src python3 -m benchmarks.kernels.tiles --precision tf32 --out tiles_tf32.json
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.kernels.candidates import CHANGES, tf32_tiles, variants
from benchmarks.kernels.timing import replay_time
from fedsmoo.kernels.resnet18.gradient import ResNet18Gradient
from fedsmoo.kernels.resnet18.shapes import CONVS
from fedsmoo.kernels.resnet18.tiles import TABLES, Tile, tiles_for
from fedsmoo.kernels.runtime import Launch, noting
from fedsmoo.runs.origin.provenance import code_facts

BATCH, TIMES = 50, 20
# Of each entry of the table, the convolution that is timed.
LAYER = {64: "layer1.1.conv2", 128: "layer2.1.conv2", 256: "layer3.1.conv2", 512: "layer4.1.conv2"}
STRIDED = {128: "layer2.0.conv1", 256: "layer3.0.conv1", 512: "layer4.0.conv1"}  # by channels of the output
KERNEL = {
    "forward": "conv_forward_kernel", "backward": "conv_backward_kernel",
    "weight": "conv_weight_kernel", "stem": "stem_forward_kernel", "stem-weight": "stem_weight",
    "pool-backward": "pool_backward_kernel", "head": "head_norm_kernel", "stem-pool": "stem_forward_kernel",
}  # fmt: skip

# An entry of the table and its tile, or a launch and changes of it; how many clients, and the precision.
Variant = tuple[str, Tile | dict[str, int], int, str]


def the_launch(variant: Variant, device: str = "cuda") -> tuple[Launch, ResNet18Gradient]:
    """The launch that a variant is about, of a gradient with its tile, and what holds its buffers."""
    key, tile, clients, precision = variant
    told: dict[str, Any] = {"tiles": {key: tile}, "boxes": tile.boxes} if isinstance(tile, Tile) else {}
    gradient = ResNet18Gradient(clients, BATCH, 10, device, precision, overlap=False, **told)
    w = torch.zeros(clients, gradient.layout.size, device=device)
    _, images, labels, weight = fake(gradient, device)
    out = gradient.output(torch.empty_like(w, dtype=gradient.dtype))
    with noting() as noted:
        gradient(gradient.weights(w), images, labels, weight, out)
    kind = key.split(":")[0]
    found = [launch for launch in noted if launch[0].__name__.startswith(KERNEL[kind.removesuffix("/2")])]
    if not isinstance(tile, Tile):
        kernel, grid, args, meta = found[0]
        return (kernel, grid, args, meta | tile), gradient
    width = int(key.split(":")[1])
    if not kind.startswith("stem"):
        strided = STRIDED.get(2 * width if kind == "backward/2" else width, "")
        conv = CONVS[strided if "/" in kind else LAYER[width]]
        wanted = {"CIN": conv.inside, "COUT": conv.outside, "STRIDE": conv.stride, "TAPS": conv.taps}
        found = [launch for launch in found if all(launch[3].get(k, v) == v for k, v in wanted.items())]
        if kind == "forward":
            found = [launch for launch in found if launch[3]["RESIDUAL"]]
        if kind == "backward":
            found = [launch for launch in found if launch[3]["NORM"]]
    return found[0], gradient


def fake(gradient: ResNet18Gradient, device: str) -> tuple[torch.Tensor, ...]:
    shape = (gradient.clients, BATCH)
    images = torch.zeros(*shape, 32, 40, 4, dtype=gradient.dtype, device=device)
    labels, weight = torch.zeros(shape, dtype=torch.int64, device=device), torch.zeros(shape, device=device)
    return weight, images, labels, weight


def compile_some(variants: list[Variant]) -> None:
    for variant in variants:
        try:
            (kernel, grid, args, meta), _ = the_launch(variant)
            kernel.warmup(*args, grid=grid, **meta)
        except Exception as error:  # met again where it matters
            print("  does not compile:", variant, str(error).splitlines()[:1], flush=True)


def microseconds(variant: Variant) -> float:
    """Median time of one of twenty such launches after one another."""
    (kernel, grid, args, meta), gradient = the_launch(variant)
    for unit in gradient.buffers.units():
        for t in (unit.out, unit.xhat, unit.dy, unit.dz):
            if t is not None:
                t.normal_()
    for value in meta.values():
        base = getattr(value, "base", value)
        if isinstance(base, torch.Tensor) and base.dtype == gradient.dtype and base.abs().max() == 0:
            base.normal_(std=0.05)
    kernel[grid](*args, **meta)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(TIMES):
            kernel[grid](*args, **meta)
    times = [replay_time(graph) * 1000 / TIMES for _ in range(9)]
    return statistics.median(times[2:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--keys", default="", help="entries of the table, or of CHANGES; all of the table without it")
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--precision", default="bf16", choices=("bf16", "tf32"))
    parser.add_argument("--turned", action="store_true", help="boxes with their products turned")
    parser.add_argument("--processes", type=int, default=14)
    parser.add_argument("--only", choices=("compile", "time"), help="one of the two; both without it")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to time, after compiling")
    args = parser.parse_args()
    bf16 = args.precision == "bf16"
    keys = args.keys.split(",") if args.keys else list(TABLES[args.precision])
    tried = {k: variants(k, args.turned) if bf16 or k in CHANGES else tf32_tiles(k) for k in keys}
    chosen = [(key, tile, args.clients, args.precision) for key in keys for tile in tried[key]]
    begun, rows = time.perf_counter(), []
    if args.only != "time":
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(args.processes, mp_context=spawn) as pool:
            list(pool.map(compile_some, [chosen[i :: 3 * args.processes] for i in range(3 * args.processes)]))
        print(f"{len(chosen)} variants compiled in {time.perf_counter() - begun:.1f} s", flush=True)
        begun = time.perf_counter()
    for variant in chosen if args.only != "compile" else []:
        if time.perf_counter() - begun > args.seconds:
            break
        key, tile, *_ = variant
        try:
            took = round(microseconds(variant), 2)
        except Exception as error:
            print("  no:", variant, str(error).splitlines()[:1], flush=True)
            continue
        how = asdict(tile) if isinstance(tile, Tile) else tile
        is_tables = tile == tiles_for(args.precision, args.clients, bf16).get(key, {})
        row: dict[str, Any] = {"key": key, "tile": how, "us": took, "table": is_tables}
        rows.append(row)
        print(f"{took:7.2f} {key:14s} {tile} {'*' if row['table'] else ''}", flush=True)
        facts = {"code": code_facts(), "clients": args.clients, "batch": BATCH, "precision": args.precision}
        args.out.write_text(json.dumps({**facts, "rows": rows}, indent=1))
    for key in dict.fromkeys(row["key"] for row in rows):
        best, was = fastest([row for row in rows if row["key"] == key])
        print(f"{key:14s} {was or 0:7.2f} us -> {best['us']:7.2f} us  {best['tile']}", flush=True)


def fastest(rows: list[dict[str, Any]]) -> tuple[dict[str, Any], float | None]:
    """Return the fastest of some tiles, and the time of the table's own where it was timed."""
    return min(rows, key=lambda row: row["us"]), next((row["us"] for row in rows if row["table"]), None)


if __name__ == "__main__":
    main()
