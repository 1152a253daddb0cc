"""Layers with weights of their own for each client, and the ways to compute their three products on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fedsmoo.kernels.conv import boxes
from fedsmoo.kernels.conv.conv import Convolution
from fedsmoo.kernels.conv.geometry import Geometry
from fedsmoo.kernels.conv.tiles import Tile, parts_for
from fedsmoo.kernels.runtime import PRECISIONS
from fedsmoo.operators.groups import choose
from fedsmoo.operators.groups.grouped import grouped, grouped_data, grouped_weight

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
