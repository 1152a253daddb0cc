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


# Of tf32: rows, columns, and steps with stages, by channels.
TF32_ROWS = {64: (64, 128), 128: (16, 32, 64), 256: (16, 32, 64), 512: (16, 32, 64)}
TF32_COLS = {64: (64,), 128: (64, 128), 256: (128,), 512: (256,)}
TF32_STEPS = ((32, 3), (32, 4), (64, 2))


def tf32_tiles(key: str) -> list[Tile]:
    """Tiles of tf32: of four and eight warps, and of two, which load four float32 numbers at a time.

    Hopper's products of tf32 read both operands by the axis that is reduced. Numbers that lie by the other axis
    (weights on the way forward, both images of a weight gradient) are copied into that order one at a time. Two warps,
    and fewer than 64 rows, use the tensor cores as Ampere does, which takes any order. A weight gradient's left operand
    then has to be loaded ``across``.
    """
    kind, width = key.partition(":")[0], int(key.partition(":")[2])
    if kind == "stem":  # a program holds a sample of 256 pixels
        found = [Tile(256, c, k, w, n) for c, k, w, n in product((32, 64), (16, 32), (4, 8), (2, 3))]
    elif kind == "stem-weight":
        found = [Tile(64, c, k, w, n) for c, k, w, n in product((32, 64), (32, 64), (2, 4), (2, 3))]
    elif kind.startswith("weight"):
        sides = product((32, 64), TF32_COLS[min(width, 128)], ((32, 2), (32, 3), (64, 2)), (2, 4))
        found = [Tile(r, c, k, w, n) for r, c, (k, n), w in sides]
        found += [Tile(128, 128, 32, 8, n) for n in (2, 3) if width > 128]
    else:
        cols = (64,) if kind == "backward/2" else TF32_COLS[width]
        sides = product(TF32_ROWS[width], cols, TF32_STEPS, (2, 4, 8))
        found = [Tile(r, c, k, w, n) for r, c, (k, n), w in sides if w < 8 or r * c >= 8192]
    found = [t for t in found if fits(kind, t, 4)]
    if "weight" in kind:
        found = [replace(t, across=t.warps == 2 or (kind != "stem-weight" and t.rows < 64)) for t in found]
    return list(dict.fromkeys([TABLES["tf32"][key], *found]))


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


def fits(kind: str, t: Tile, size: int = 2) -> bool:
    """Whether a program's registers and shared memory hold a tile of numbers of so many bytes."""
    if kind == "stem-weight":
        return t.inner * (64 + t.cols) * size * t.stages < SHARED
    outputs, inputs = t.rows * t.cols, (t.rows + t.cols) * t.inner * size * t.stages
    return outputs <= t.warps * 4096 and inputs < SHARED and (t.warps <= 4 or outputs >= 4096)


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
