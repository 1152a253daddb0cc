"""The static buffers of ResNet-18-GN's gradient, layer by layer, and the table of what is reduced where."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsmoo.core.layout import Layout
from fedsmoo.kernels.resnet18.shapes import BLOCKS, POOLED_SIDE, STEM, Conv, fine_offset
from fedsmoo.kernels.resnet18.tiles import MULTIPROCESSORS, Tile, key_of, splits_for, stem_weight_tiles

GROUPS = 2
LAYER1 = ("layer1.0.conv1.weight", "layer2.0.conv1.weight")  # from here until there, weight gradients may be split
COLUMNS = 64  # channels per entry of the table that sums gamma's and beta's gradients


def norm_rows(conv: Conv) -> int:
    """Return the pixels per program of GroupNorm backward on its own: 4096 numbers, or a whole sample."""
    return max(conv.side_out**2, 4096 // (conv.outside // GROUPS))


@dataclass(frozen=True)
class Unit:
    """A convolution and its GroupNorm: offsets in the flat vector (``w_off``) and in its fine part (``p_off``), and
    static buffers.

    ``part_tiles`` tiles of partial sums for gamma and beta begin at ``part_off`` of the common rows.
    """

    conv: Conv
    norm: str
    w_off: int
    p_off: int
    part_off: int
    part_tiles: int
    out: Tensor
    xhat: Tensor
    rstd: Tensor
    dy: Tensor
    dz: Tensor | None


@dataclass(frozen=True)
class BlockBuffers:
    """The units of a BasicBlock, and a buffer for its input's gradient where the layer before is not fused."""

    first: Unit
    second: Unit
    down: Unit | None
    dx: Tensor | None


class Buffers:
    """All buffers for C clients with batches of B: units, blocks, partial sums and their table."""

    def __init__(
        self, clients: int, batch: int, layout: Layout, tiles: Mapping[str, Tile], device: torch.device,
        dtype: torch.dtype,
    ) -> None:  # fmt: skip
        self.clients, self.batch, self.layout, self.tiles = clients, batch, layout, tiles
        self.device, self.dtype = device, dtype
        self.part_size = 0
        self.stem = self._unit(STEM, "bn1", 256, keep=False)
        self.pooled = self._map(POOLED_SIDE, STEM.outside)
        self.taken = self._map(POOLED_SIDE, STEM.outside, torch.uint8)
        self.blocks: list[BlockBuffers] = []
        for i, block in enumerate(BLOCKS):
            after = BLOCKS[i + 1].conv1 if i + 1 < len(BLOCKS) else None
            rows = norm_rows(block.conv2)
            if after is not None and after.stride == 1:
                rows = self.tile("backward", after).rows
            first = self._unit(block.conv1, f"{block.name}.bn1", self.tile("backward", block.conv2).rows, keep=False)
            second = self._unit(block.conv2, f"{block.name}.bn2", rows, keep=True)
            down = None
            if block.down is not None:
                down = self._unit(block.down, f"{block.name}.downsample.1", norm_rows(block.down), keep=False)
            alone = i == 0 or block.conv1.stride > 1
            dx = self._map(block.conv1.side_in, block.conv1.inside) if alone else None
            self.blocks.append(BlockBuffers(first, second, down, dx))
        self.parts = torch.zeros(clients, self.part_size, device=device)
        self.table = torch.tensor(self._table(), dtype=torch.int32, device=device)
        self.layer1 = (layout.offsets[LAYER1[0]], layout.offsets[LAYER1[1]])
        self.stem_parts = self._parts(self._stem_splits(), math.prod(layout.shapes[f"{STEM.name}.weight"]))
        splits = splits_for(clients, 9, self._steps("weight", BLOCKS[0].conv1))
        self.layer1_parts = self._parts(splits, self.layer1[1] - self.layer1[0]) if splits > 1 else None

    def _parts(self, splits: int, size: int) -> Tensor:
        return torch.zeros(splits, self.clients, size, device=self.device)

    def _stem_splits(self) -> int:
        steps, tile = self._steps("stem-weight", STEM), self.tile("stem-weight", STEM)
        if tile.boxes:  # one program has all taps, and fills a multiprocessor
            return max(1, min(MULTIPROCESSORS // self.clients, steps // 2))
        return splits_for(self.clients, stem_weight_tiles(STEM, tile), steps, least=12, most=24)

    def _steps(self, kind: str, conv: Conv) -> int:
        """Return the steps of a weight gradient's reduction over one client's pixels."""
        return -(-self.batch * conv.side_out**2 // self.tile(kind, conv).inner)

    def tile(self, kind: str, conv: Conv) -> Tile:
        return self.tiles[key_of(kind, conv)]

    def units(self) -> list[Unit]:
        """Return all units, in the order of the flat vector."""
        inner = [u for b in self.blocks for u in (b.first, b.second, b.down) if u is not None]
        return [self.stem, *inner]

    def _map(self, side: int, channels: int, dtype: torch.dtype | None = None) -> Tensor:
        shape = (self.clients, self.batch, side, side, channels)
        return torch.empty(shape, dtype=dtype or self.dtype, device=self.device)

    def _unit(self, conv: Conv, norm: str, rows: int, keep: bool) -> Unit:
        tiles = -(-self.batch * conv.side_out**2 // rows)
        begin, self.part_size = self.part_size, self.part_size + 2 * tiles * conv.outside
        out, xhat, dy = (self._map(conv.side_out, conv.outside) for _ in range(3))
        offsets = self.layout.offsets
        return Unit(
            conv, norm, offsets[f"{conv.name}.weight"], offsets[f"{norm}.weight"] - fine_offset(self.layout),
            begin, tiles, out, xhat, torch.empty(self.clients, self.batch, GROUPS, device=self.device), dy,
            self._map(conv.side_out, conv.outside) if keep else None,
        )  # fmt: skip

    def _table(self) -> list[list[int]]:
        rows = []
        for unit in self.units():
            width = unit.conv.outside
            for half, name in enumerate(("weight", "bias")):
                for first in range(0, width, COLUMNS):
                    source = unit.part_off + half * width + first
                    target = self.layout.offsets[f"{unit.norm}.{name}"] - fine_offset(self.layout) + first
                    rows.append([source, unit.part_tiles, 2 * width, target])
        return rows
