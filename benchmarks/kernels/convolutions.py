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
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import astuple
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.kernels.timing import replay_time
from fedsmoo.kernels.conv import boxes
from fedsmoo.kernels.conv.conv import Convolution
from fedsmoo.kernels.conv.geometry import Geometry
from fedsmoo.kernels.conv.tiles import Tile, parts_for
from fedsmoo.kernels.runtime import PRECISIONS, compiling
from fedsmoo.operators.groups import choose
from fedsmoo.operators.groups.grouped import grouped, grouped_data, grouped_weight
from fedsmoo.runs.origin.provenance import code_facts

CLIENTS, BATCH = 10, 50
# name: (side, inputs, outputs, kernel, stride, how many there are in the network)
LAYERS = {
    "stem": (32, 3, 64, 3, 1, 1),
    "64": (32, 64, 64, 3, 1, 4),
    "64-128": (32, 64, 128, 3, 2, 1),
    "128": (16, 128, 128, 3, 1, 3),
    "128-256": (16, 128, 256, 3, 2, 1),
    "256": (8, 256, 256, 3, 1, 3),
    "256-512": (8, 256, 512, 3, 2, 1),
    "512": (4, 512, 512, 3, 1, 3),
    "cnn 1": (32, 3, 64, 5, 1, 0),
    "cnn 2": (14, 64, 64, 5, 1, 0),
    "emnist 2": (26, 32, 64, 3, 1, 0),
    "depthwise 96": (32, 96, 96, 3, 1, 0),
    "depthwise 144 by 2": (32, 144, 144, 3, 2, 0),
    "depthwise 96 of 7x7": (16, 96, 96, 7, 1, 0),
    "32 groups of 4": (16, 128, 128, 3, 1, 0),
    "16 groups of 8": (16, 128, 128, 3, 1, 0),
    "8 groups of 16": (16, 128, 128, 3, 1, 0),
}
GROUPS = {
    "depthwise 96": 96, "depthwise 144 by 2": 144, "depthwise 96 of 7x7": 96, "32 groups of 4": 32,
    "16 groups of 8": 16, "8 groups of 16": 8,
}  # fmt: skip
PRODUCTS: dict[str, tuple[Callable[..., Tensor], ...]] = {
    "few": (grouped, grouped_data, grouped_weight),
    "folded": (choose.convolved, choose.data_gradient, choose.weight_gradient),
}
KINDS = ("forward", "data", "weight")
Way = Callable[[], Any]


def tiles(kind: str, rows: int, cols: int, precision: str) -> list[Tile]:
    """The tiles that are tried: rows, columns, step, warps, stages; of tf32 also such as load four numbers at once."""
    sides = [(64, 64), (64, 128), (64, 256), (128, 64), (128, 128), (128, 256), (256, 64), (256, 128)]
    fit = [(r, c) for r, c in sides if r <= max(64, rows) and c <= max(64, cols)]
    inner = (64, 128) if kind == "weight" else (64,)
    if precision == "bf16":
        return [Tile(r, c, k, 8 if r * c > 8192 else 4, s) for (r, c), k, s in product(fit, inner, (3, 4))]
    large = [Tile(r, c, 32, 8 if r * c > 8192 else 4, s) for (r, c), s in product(fit, (2, 3))]
    sides = [(r, c) for r, c in ((32, 32), (32, 64), (64, 32), (64, 64), (32, 128)) if c <= max(32, cols)]
    small = [Tile(r, c, k, 2, s, kind == "weight") for (r, c), (k, s) in product(sides, ((32, 3), (32, 4), (64, 2)))]
    return large + small


class Layer:
    """Inputs, weights and gradients of one layer, in both orders of axes."""

    def __init__(self, name: str, precision: str = "bf16", device: str = "cuda") -> None:
        side, inside, outside, kernel, stride, _ = LAYERS[name]
        pad = 0 if name in ("cnn 2", "emnist 2") else kernel // 2
        self.precision, (dtype, how) = precision, PRECISIONS[precision]
        self.g = Geometry((kernel, kernel), (stride, stride), (pad, pad))
        self.size, out = (side, side), self.g.outputs((side, side))
        self.groups = GROUPS.get(name, 1)
        self.flops = 2 * CLIENTS * BATCH * out[0] * out[1] * kernel * kernel * inside * outside // self.groups
        draw = torch.Generator(device).manual_seed(0)

        def new(*shape: int) -> Tensor:
            return torch.randn(shape, generator=draw, device=device).to(dtype)

        wide = -(-inside // 8) * 8 if inside > 3 else inside
        self.x = new(CLIENTS, BATCH, side, side, wide)
        self.w = new(CLIENTS, kernel, kernel, wide // self.groups, outside)
        self.dy = new(CLIENTS, BATCH, *out, outside)
        self.conv = Convolution(self.g, how)
        self.nchw = [v.permute(0, 1, 4, 2, 3) for v in (self.x, self.dy)]  # channels last in memory
        rows = self.w.permute(0, 4, 3, 1, 2).contiguous().flatten(0, 1).contiguous(memory_format=torch.channels_last)
        self.oihw = rows.unflatten(0, (CLIENTS, outside))

    def backward(self, dy: Tensor, x: Tensor, w: Tensor, groups: int, mask: list[bool]) -> Tensor:
        g = self.g
        found = torch.ops.aten.convolution_backward(
            dy, x, w, None, g.stride, g.padding, g.dilation, False, [0, 0], groups, mask
        )
        return found[0] if mask[0] else found[1]

    def one(self, kind: str, x: Tensor, dy: Tensor, w: Tensor, clients: int = 1) -> Tensor:
        groups = clients * self.groups
        if kind == "forward":
            return F.conv2d(x, w, None, self.g.stride, self.g.padding, self.g.dilation, groups)
        return self.backward(dy, x, w, groups, [kind == "data", kind == "weight", False])

    def loop(self, kind: str) -> list[Tensor]:
        return [self.one(kind, *each) for each in zip(*self.nchw, self.oihw, strict=True)]

    def streams(self, kind: str, side: list[torch.cuda.Stream]) -> list[Tensor]:
        here, out = torch.cuda.current_stream(), []
        for s in side:
            s.wait_stream(here)
        for i, each in enumerate(zip(*self.nchw, self.oihw, strict=True)):
            with torch.cuda.stream(side[i % len(side)]):
                out.append(self.one(kind, *each))
        for s in side:
            here.wait_stream(s)
        return out

    def patches(self, kind: str) -> Tensor:
        x, dy, (kh, kw), s, p = self.x, self.dy.flatten(1, 3), self.g.kernel, self.g.stride[0], self.g.padding[0]
        (high, wide), w = self.dy.shape[2:4], self.w.flatten(1, 3)
        if kind == "data":
            cols = torch.bmm(dy, w.mT).view(CLIENTS, BATCH, high, wide, kh, kw, -1)
            out = x.new_zeros(CLIENTS, BATCH, self.size[0] + 2 * p, self.size[1] + 2 * p, x.shape[-1])
            for i, j in product(range(kh), range(kw)):
                out[:, :, i : i + (high - 1) * s + 1 : s, j : j + (wide - 1) * s + 1 : s] += cols[:, :, :, :, i, j]
            return out
        x = F.pad(x, (0, 0, p, p, p, p))
        cuts = [
            x[:, :, i : i + (high - 1) * s + 1 : s, j : j + (wide - 1) * s + 1 : s]
            for i in range(kh)
            for j in range(kw)
        ]
        cols = torch.cat(cuts, -1).flatten(1, 3).flatten(2)
        return torch.bmm(cols, w) if kind == "forward" else torch.bmm(cols.mT, dy)

    def by_groups(self, way: str, kind: str) -> Tensor:
        how = [[*v] for v in (self.g.stride, self.g.padding, self.g.dilation)]
        (forward, data, weight), groups = PRODUCTS[way], self.groups if way == "few" else 1
        x, w, dy = (v if way == "few" else choose.by_group(v, self.groups) for v in (self.x, self.w, self.dy))
        if kind == "forward":
            found = forward(x, w, *how, groups)
        elif kind == "data":
            found = data(dy, w, [*self.size], *how, groups)
        else:
            found = weight(x, dy, [*self.g.kernel], *how, groups)
        return found if way == "few" else choose.together(found, self.groups)

    def by_products(self, kind: str, tile: Tile | None) -> Tensor:
        if kind == "forward":
            return self.conv.forward(self.x, self.w, tile)
        if kind == "data":
            return self.conv.data(self.dy, self.w, self.size, tile)
        return self.conv.weight(self.x, self.dy, tile)

    def by_boxes(self, kind: str, tile: Tile, turned: bool) -> Tensor:
        size = self.size if kind == "data" else (self.dy.shape[2], self.dy.shape[3])
        pixels = tile.inner if kind == "weight" else tile.rows
        box = boxes.Box(*boxes.box_of(pixels, size), tile.cols, tile.rows if kind == "weight" else tile.inner,
                        tile.warps, tile.stages, turned)  # fmt: skip
        if kind == "forward":
            return boxes.forward_by_boxes(self.g, self.x, self.w, box, self.conv.precision)
        if kind == "data":
            return boxes.data_by_boxes(self.g, self.dy, self.w, self.size, box, self.conv.precision)
        parts = partial(parts_for, CLIENTS)
        return boxes.weight_by_boxes(self.g, self.x, self.dy, box, parts, self.conv.precision).sum(0)

    def candidates(self, kind: str) -> Iterator[tuple[str, Tile | None]]:
        if self.groups > 1:
            return (yield from ((way, None) for way in PRODUCTS))
        pixels, cols = BATCH * self.dy.shape[2] * self.dy.shape[3], self.dy.shape[-1]
        if kind == "data":
            pixels, cols = BATCH * self.size[0] * self.size[1], self.x.shape[-1]
        if kind == "weight":
            pixels = self.x.shape[-1]
        for tile in tiles(kind, pixels, cols, self.precision):
            yield "products", tile
            if tile.warps > 2 and self.g.stride == (1, 1) and self.x.shape[-1] % 8 == 0:
                yield from (("boxes", tile), ("turned", tile))

    def way(self, name: str, kind: str, tile: Tile | None) -> Way:
        if tile is None:
            return lambda: self.by_groups(name, kind)
        by_boxes = partial(self.by_boxes, turned=name == "turned")
        return partial(self.by_products if name == "products" else by_boxes, kind, tile)


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
