"""Tile sizes of the kernels: a small table by kind of product and shape, chosen by timing on an H200."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedsmoo.core.errors import FedsmooError
from fedsmoo.kernels.resnet18.shapes import Conv

MULTIPROCESSORS = 132  # of an H100 or H200


@dataclass(frozen=True)
class Tile:
    """Rows and columns of a program's output tile, the step of its reduction, its warps and its pipeline's depth.

    ``boxes``: the tensor memory unit brings what it reads; otherwise every thread loads its numbers. ``turned``: of
    boxes, the product's transpose is computed, so that both operands stay in shared memory. ``across``: without boxes,
    a weight gradient loads its left operand as the product reads it, ``[channels, pixels]``. With two warps or fewer
    than 64 rows, float32 numbers then come four at a time, not one.
    """

    rows: int
    cols: int
    inner: int
    warps: int
    stages: int
    boxes: bool = False
    turned: bool = False
    across: bool = False

    def fits(self, what: str, cols: int, inner: int, rows: int | None = None, group: int = 1, pixels: int = 1) -> None:
        """Refuse a tile that does not divide ``cols``, ``inner`` and ``rows`` or cuts groups or samples (FedsmooError).

        A kernel would not notice: it would leave out part of a sum.
        """
        whole = cols % self.cols == 0 and inner % self.inner == 0 and (rows is None or rows % self.rows == 0)
        if not (whole and self.cols % group == 0 and self.rows % pixels == 0):
            raise FedsmooError(f"the tile {self} does not fit the {what}: correct its entry in the table of tiles")


# Keys are "kind:channels", or "kind/2:channels" of stride 2, with the channels on the side whose GroupNorm shares the
# tile (outputs for "forward", inputs for "backward") and of the output for "weight". Forward tiles, and backward tiles
# of stride 1, hold whole samples (rows a multiple of the map's pixels) and whole groups (columns a multiple of half the
# channels).
BF16: dict[str, Tile] = {
    "forward:64": Tile(128, 64, 64, 4, 3),
    "forward:128": Tile(64, 64, 64, 4, 4),
    "forward:256": Tile(64, 128, 64, 4, 4),
    "forward:512": Tile(64, 256, 64, 8, 3),
    "forward/2:128": Tile(64, 64, 64, 4, 4),
    "forward/2:256": Tile(64, 128, 64, 4, 4),
    "forward/2:512": Tile(64, 256, 64, 8, 3),
    "backward:64": Tile(128, 64, 64, 8, 3),
    "backward:128": Tile(64, 64, 64, 4, 4),
    "backward:256": Tile(64, 128, 64, 8, 4),
    "backward:512": Tile(16, 256, 64, 4, 4),
    "backward/2:64": Tile(64, 64, 64, 4, 4),
    "backward/2:128": Tile(64, 64, 64, 4, 4),
    "backward/2:256": Tile(64, 64, 64, 4, 4),
    "weight:64": Tile(64, 64, 128, 4, 3),
    "weight:128": Tile(64, 128, 64, 4, 3),
    "weight:256": Tile(128, 128, 64, 8, 3),
    "weight:512": Tile(128, 128, 64, 8, 2),
    "weight/2:128": Tile(64, 128, 64, 4, 3),
    "weight/2:256": Tile(64, 128, 64, 4, 3),
    "weight/2:512": Tile(64, 128, 64, 4, 2),
    "stem:64": Tile(256, 64, 32, 8, 3),
    "stem-weight:64": Tile(64, 64, 64, 4, 3),
}

# Where there is a tensor memory unit and products are bf16, for few clients: what it brings (``boxes``), or loads of
# threads, whichever is faster (benchmarks/kernels/tiles.py). The stem's weight gradient has all taps at once.
BOXES: dict[str, Tile] = {
    "forward:128": Tile(64, 128, 64, 4, 3),
    "forward:256": Tile(64, 128, 128, 4, 3, boxes=True, turned=True),
    "forward:512": Tile(16, 256, 64, 4, 4, boxes=True, turned=True),
    "forward/2:256": Tile(64, 128, 128, 4, 3, boxes=True, turned=True),
    "forward/2:512": Tile(16, 256, 64, 4, 4, boxes=True, turned=True),
    "backward:64": Tile(128, 64, 64, 4, 4, boxes=True, turned=True),
    "backward:128": Tile(64, 128, 64, 4, 4, boxes=True, turned=True),
    "backward:256": Tile(64, 128, 128, 4, 3, boxes=True, turned=True),
    "backward:512": Tile(16, 256, 128, 4, 3, boxes=True, turned=True),
    "weight:64": Tile(64, 64, 64, 4, 3, boxes=True, turned=True),
    "weight:128": Tile(64, 128, 64, 4, 4, boxes=True, turned=True),
    "weight:256": Tile(128, 128, 64, 4, 2, boxes=True, turned=True),
    "weight:512": Tile(64, 64, 64, 4, 2, boxes=True, turned=True),
    "stem-weight:64": Tile(64, 224, 128, 4, 2, boxes=True),
}

# The same for many clients, whose programs fill the device several times: larger tiles, of which more than one fits a
# multiprocessor.
MANY_CLIENTS = 16
MANY: dict[str, Tile] = BOXES | {
    "forward:256": Tile(64, 128, 64, 4, 4, boxes=True, turned=True),
    "forward:512": Tile(64, 256, 64, 8, 4),
    "backward:256": Tile(64, 128, 64, 4, 4, boxes=True, turned=True),
    "backward:512": Tile(64, 256, 64, 8, 4),
    "weight:64": Tile(64, 64, 64, 4, 2, boxes=True, turned=True),
    "weight:128": Tile(128, 128, 64, 4, 2, boxes=True, turned=True),
    "weight:512": Tile(128, 128, 64, 4, 2, boxes=True, turned=True),
}

# Hopper's tensor cores read tf32 only by the axis that is reduced. What lies by the other (weights on the way forward,
# both images of a weight gradient) is copied four bytes at a time, unless few warps or rows multiply as Ampere does.
TF32: dict[str, Tile] = {
    "forward:64": Tile(64, 64, 32, 2, 3),
    "forward:128": Tile(16, 128, 32, 2, 4),
    "forward:256": Tile(16, 128, 32, 4, 4),
    "forward:512": Tile(32, 256, 32, 4, 4),
    "forward/2:128": Tile(16, 128, 32, 2, 4),
    "forward/2:256": Tile(16, 128, 32, 2, 4),
    "forward/2:512": Tile(32, 256, 32, 4, 3),
    "backward:64": Tile(128, 64, 32, 4, 4),
    "backward:128": Tile(64, 64, 32, 4, 4),
    "backward:256": Tile(16, 128, 32, 2, 4),
    "backward:512": Tile(16, 256, 32, 4, 3),
    "backward/2:64": Tile(64, 64, 32, 4, 3),
    "backward/2:128": Tile(64, 64, 32, 4, 3),
    "backward/2:256": Tile(64, 64, 32, 4, 3),
    "weight:64": Tile(64, 64, 32, 2, 3, across=True),
    "weight:128": Tile(64, 128, 32, 2, 3, across=True),
    "weight:256": Tile(64, 64, 32, 2, 2, across=True),
    "weight:512": Tile(64, 64, 32, 2, 2, across=True),
    "weight/2:128": Tile(32, 128, 32, 2, 3, across=True),
    "weight/2:256": Tile(64, 64, 32, 2, 2, across=True),
    "weight/2:512": Tile(64, 128, 32, 2, 2, across=True),
    "stem:64": Tile(256, 64, 32, 8, 2),
    "stem-weight:64": Tile(64, 64, 32, 2, 3, across=True),
}

# Three products of split operands live in registers: small tiles, short steps.
FP32: dict[str, Tile] = {
    "forward:64": Tile(64, 32, 16, 4, 2),
    "forward:128": Tile(32, 64, 16, 4, 2),
    "forward:256": Tile(16, 128, 16, 4, 2),
    "forward:512": Tile(16, 256, 16, 8, 2),
    "forward/2:128": Tile(32, 64, 16, 4, 2),
    "forward/2:256": Tile(16, 128, 16, 4, 2),
    "forward/2:512": Tile(16, 256, 16, 8, 2),
    "backward:64": Tile(64, 32, 16, 4, 2),
    "backward:128": Tile(32, 64, 16, 4, 2),
    "backward:256": Tile(16, 128, 16, 4, 2),
    "backward:512": Tile(16, 256, 16, 8, 2),
    "backward/2:64": Tile(32, 32, 16, 4, 2),
    "backward/2:128": Tile(32, 32, 16, 4, 2),
    "backward/2:256": Tile(32, 32, 16, 4, 2),
    "weight:64": Tile(64, 32, 16, 4, 2),
    "weight:128": Tile(64, 32, 16, 4, 2),
    "weight:256": Tile(64, 64, 16, 4, 2),
    "weight:512": Tile(64, 64, 16, 4, 2),
    "weight/2:128": Tile(64, 32, 16, 4, 2),
    "weight/2:256": Tile(64, 64, 16, 4, 2),
    "weight/2:512": Tile(64, 64, 16, 4, 2),
    "stem:64": Tile(256, 32, 16, 8, 2),
    "stem-weight:64": Tile(64, 32, 16, 4, 2),
}

TABLES: dict[str, Mapping[str, Tile]] = {"bf16": BF16, "tf32": TF32, "fp32": FP32}


def tiles_for(precision: str, clients: int, boxes: bool) -> dict[str, Tile]:
    """Return the table of tiles: by sizes alone, so that a run repeats its bits."""
    boxed = MANY if clients >= MANY_CLIENTS else BOXES
    return {**TABLES[precision], **(boxed if boxes else {})}


def key_of(kind: str, conv: Conv) -> str:
    """Return the table's key for a kind of product of one convolution."""
    if conv.stride > 1 and not kind.startswith("stem"):
        kind += f"/{conv.stride}"
    return f"{kind}:{conv.inside if kind.startswith('backward') else conv.outside}"


def splits_for(clients: int, programs: int, steps: int, least: int = 1, most: int = 8) -> int:
    """Return into how many parts to cut a reduction of ``steps`` steps: about three programs a multiprocessor.

    A part has at least two steps.
    """
    wanted = max(least, -(-3 * MULTIPROCESSORS // (clients * programs)))
    return max(1, min(wanted, most, steps // 2))


def stem_weight_tiles(conv: Conv, tile: Tile) -> int:
    """Return how many programs share the reduction's indices: all taps, eight pixels of four channels a row."""
    return -(-conv.taps * (conv.taps + 1) * 4 // tile.cols)
