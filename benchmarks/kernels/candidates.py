"""Tile sizes of the kernels of ResNet-18-GN that ``gradient.py --tune`` tries, and what ``tiles.py`` does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product

from fedsmoo.kernels.resnet18.tiles import BOXES, MANY, TABLES, Tile

# Rows, columns, inner step, warps and stages worth trying beside the table's own entry.
CANDIDATES = {
    "forward:64": "64 64 64 4 4 | 64 32 64 4 4 | 128 64 64 8 3 | 128 32 64 4 4 | 256 64 64 8 3",
    "forward:128": "64 128 64 4 3 | 32 64 64 4 4 | 128 64 64 4 3 | 64 64 64 4 3 | 64 64 64 8 4",
    "forward:256": "64 128 64 8 4 | 32 128 64 4 4 | 128 128 64 8 3 | 64 128 64 4 3 | 64 128 128 8 3",
    "forward:512": "16 256 64 4 4 | 32 256 64 8 4 | 64 256 64 8 4 | 64 256 32 8 4 | 16 256 64 8 4",
    "backward:64": "64 64 64 4 4 | 64 32 64 4 4 | 128 64 64 4 3 | 128 32 64 4 4 | 64 64 64 8 4",
    "backward:128": "64 64 64 8 4 | 64 64 128 4 3 | 64 128 64 8 3 | 32 64 64 4 4 | 128 64 64 8 3",
    "backward:256": "32 128 64 4 4 | 64 128 64 4 4 | 64 128 128 8 3 | 128 128 64 8 3 | 64 128 64 8 3",
    "backward:512": "16 256 64 4 4 | 32 256 64 8 4 | 64 256 64 8 4 | 64 256 32 8 4 | 16 256 64 8 4",
    "backward/2:64": "128 64 64 4 3 | 64 32 64 4 4 | 64 64 128 4 3 | 64 64 64 8 4",
    "backward/2:128": "128 64 64 4 3 | 64 128 64 4 3 | 64 32 64 4 4 | 64 64 128 4 3",
    "backward/2:256": "64 32 64 4 4 | 64 128 64 4 3 | 64 64 128 4 3 | 32 64 64 4 4 | 64 128 64 8 4",
    "forward/2:128": "64 128 64 4 3 | 32 64 64 4 4 | 128 64 64 4 3 | 64 64 64 8 4",
    "forward/2:256": "64 128 64 8 4 | 32 128 64 4 4 | 32 128 128 4 3 | 64 128 128 8 3",
    "forward/2:512": "16 256 64 4 4 | 32 256 64 8 4 | 16 256 128 4 3 | 16 256 128 8 3 | 64 256 128 8 2",
    "weight:64": "64 64 128 4 3 | 64 64 64 4 4 | 64 64 64 8 3 | 64 64 32 4 4 | 64 64 128 8 3",
    "weight:128": "64 64 64 4 3 | 64 128 128 4 2 | 64 64 128 4 3 | 64 128 64 8 3 | 64 128 64 4 4",
    "weight:256": "64 128 64 4 3 | 128 128 64 4 3 | 64 64 64 4 4 | 128 64 64 4 3 | 128 256 64 8 3",
    "weight:512": "64 128 64 4 2 | 128 128 64 4 2 | 64 64 64 4 2 | 128 128 32 8 2 | 128 256 64 8 2",
    "weight/2:128": "64 64 64 4 3 | 64 64 64 4 4 | 64 128 64 8 3",
    "weight/2:256": "64 128 64 4 3 | 64 64 64 4 4 | 128 64 64 4 3",
    "weight/2:512": "64 128 64 4 2 | 128 128 64 4 2 | 64 64 64 4 2 | 128 128 64 8 1",
    "stem:64": "256 64 32 8 2 | 256 64 32 8 3 | 256 64 32 8 4 | 256 32 32 4 3 | 256 64 64 8 2",
    "stem-weight:64": "64 32 64 4 4 | 64 64 64 4 3 | 64 64 128 4 3 | 64 128 64 4 3 | 64 128 64 8 3 | 64 256 64 8 3",
}


def waited(table: Mapping[str, Tile]) -> dict[str, Tile]:
    """A table of tiles with no product turned: those of boxes are waited for."""
    return {key: replace(tile, turned=False) for key, tile in table.items()}


def options_of(key: str) -> list[Tile]:
    """The candidates of one entry of the table."""
    return [Tile(*map(int, option.split())) for option in CANDIDATES[key].split("|")]


# Arguments of launches that no table has, and other values for them; none: as it is.
CHANGES: dict[str, tuple[dict[str, int], ...]] = {
    "pool-backward": (
        {}, {"num_warps": 16}, {"num_warps": 4}, {"maxnreg": 64}, {"STEP": 32}, {"num_warps": 4, "STEP": 32},
        {"num_warps": 4, "STEP": 32, "maxnreg": 128}, {"num_warps": 4, "STEP": 16},
        {"num_warps": 4, "STEP": 16, "maxnreg": 64}, {"num_warps": 2, "STEP": 8},
    ),
    "head": ({}, {"num_warps": 4, "PARTS": 4}, {"num_warps": 16, "PARTS": 16}, {"maxnreg": 128}),
    "stem-pool": ({}, {"UNROLL": 1}, {"UNROLL": 2}),
}  # fmt: skip
SHARED = 220 * 1024  # bytes that a program may use
ROWS = {64: (64, 128, 256), 128: (32, 64, 128), 256: (32, 64, 128), 512: (16, 32, 64)}


def variants(key: str, turned: bool = False) -> list[Tile | dict[str, int]]:
    """Ways to compute one entry of the table: as it is, and tiles that the tensor memory unit brings.

    Of what is in no table: changes of its launch. ``turned``: products of boxes turned, and other tiles by pointers.
    """
    if key in CHANGES:
        return [*CHANGES[key]]
    kind, width = key.split(":")[0], int(key.split(":")[1])
    if kind == "stem-weight":
        found = [Tile(64, 224, k, w, n) for k, w, n in product((64, 128, 256), (4, 8), (2, 3, 5))]
    elif kind == "weight":
        found = weight_tiles(width)
    elif kind in ("forward", "backward"):
        found = pixel_tiles(width)
    else:
        found = options_of(key)
    never = kind in ("stem", "weight/2", "backward/2")
    boxed = [] if never else [replace(t, boxes=True) for t in found if fits(kind, t)]
    if turned and not kind.startswith("stem"):
        boxed = [replace(t, turned=True) for t in boxed]
    loaded = options_of(key) if "/" in kind or turned else []
    chosen = [table[key] for table in (TABLES["bf16"], BOXES, MANY) if key in table]
    return list(dict.fromkeys([*chosen, *loaded, *boxed]))


def fits(kind: str, t: Tile) -> bool:
    """Whether a program's registers and shared memory hold a tile."""
    if kind == "stem-weight":
        return t.inner * (64 + t.cols) * 2 * t.stages < SHARED
    outputs, inputs = t.rows * t.cols, (t.rows + t.cols) * t.inner * 2 * t.stages
    return outputs <= t.warps * 4096 and inputs < SHARED and (t.warps == 4 or outputs >= 4096)


def pixel_tiles(width: int) -> list[Tile]:
    inner = (64,) if width == 64 else (64, 128)
    cols = (width,) if width == 64 else (width // 2, width) if width < 512 else (width // 2,)
    steps = [(64, 4), (64, 6)] if width == 64 else [(k, n) for k, n in ((64, 4), (64, 6), (128, 3)) if k in inner]
    return [Tile(r, c, k, w, n) for r, c, (k, n), w in product(ROWS[width], cols, steps, (4, 8))]


def weight_tiles(width: int) -> list[Tile]:
    if width == 64:
        return [Tile(64, 64, k, w, n) for k, w, n in product((64, 128, 256), (4, 8), (2, 3, 5))]
    if width == 512:
        return [Tile(r, c, 64, w, n) for r, c, w, n in product((64, 128), (64, 128, 256), (4, 8), (1, 2))]
    return [
        Tile(r, c, k, w, n) for r, c, k, w, n in product((64, 128), (64, 128, 256), (64, 128), (4, 8), (2, 4))
        if width // 2 <= c <= width
    ]  # fmt: skip
