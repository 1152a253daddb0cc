"""Tile sizes of general convolutions, by rules from their shapes; ``benchmarks/kernels/convolutions.py`` timed them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

MULTIPROCESSORS = 132  # of an H100 or H200
FILLED = 0.7  # share of a box's pixels that are some, from which boxes are faster


@dataclass(frozen=True)
class Tile:
    """Rows and columns of a program's output tile, the step of its reduction, its warps and its pipeline's depth.

    ``across``: a weight gradient loads its left operand as the product reads it, ``[channels, pixels]``. With two warps
    or fewer than 64 rows, float32 numbers then come four at a time, not one.
    """

    rows: int
    cols: int
    inner: int
    warps: int = 4
    stages: int = 3
    across: bool = False


def power(n: int, least: int = 16, most: int = 128) -> int:
    """Return the power of two at or above ``n``, within bounds: what a tile's side may be."""
    return max(least, min(most, 1 << (n - 1).bit_length()))


def takes_two_warps(kind: torch.dtype, *channels: int) -> bool:
    """Whether float32 numbers should be multiplied by two warps, as Ampere does: others copy them one at a time.

    Where channels are no multiples of 16, kernels do not know that they lie in pieces, and copy them so in any case.
    """
    return kind == torch.float32 and all(c % 16 == 0 for c in channels)


def step_of(kind: torch.dtype) -> int:
    """Return how many numbers of a type a step of a reduction has: 128 bytes."""
    return 128 // kind.itemsize


def pixel_tile(
    clients: int, pixels: int, channels: int, reduced: int, kind: torch.dtype, exact: bool, back: bool = False
) -> Tile:
    """Return the tile of a product whose rows are pixels: forward, and the data gradient (``back``).

    ``exact``: float32 products of three, which live in registers, so that tiles are small.
    """
    if exact:
        return Tile(power(pixels, most=64), power(channels, most=64), power(reduced, most=16), 4, 2)
    cols, inner = power(channels), power(reduced, most=step_of(kind))
    if takes_two_warps(kind, channels, reduced) and (not back or cols <= 32):
        return Tile(power(pixels, most=64), power(channels, most=64), inner, 2, 3)
    if cols <= 64 and not back:
        return Tile(power(pixels, most=64), cols, inner, 4, 4)
    if back and (channels % cols or reduced % inner):  # masks take registers, of which larger tiles spill some
        return Tile(power(pixels, most=64), min(cols, 64), inner, 4, 3)
    programs = clients * -(-pixels // 128) * -(-channels // cols)
    rows = power(pixels, most=64 if programs < 3 * MULTIPROCESSORS else 128)
    return Tile(rows, cols, inner, 8 if rows * cols > 8192 else 4, 3)


def box_tile(pixels: int, channels: int, reduced: int, kind: torch.dtype, taps: int, back: bool = False) -> Tile:
    """Return the tile of such a product, by boxes: 16,384 outputs, wide where channels are many and pixels few.

    Where the reduction is at most two steps, tiles are small: several at once read and write beside each other.
    """
    inner = power(reduced, most=step_of(kind))
    if channels <= 64 and taps * reduced <= 2 * inner:
        return Tile(128, power(channels, most=64), inner, 4, 3)
    if channels <= 64 or (kind == torch.float32 and not back):
        return Tile(256, power(channels, most=64), inner, 8, 3)
    if channels >= 256 and pixels < 1024:
        return Tile(64, 256, inner, 8, 3)
    return Tile(128, 128, inner, 8, 3)


def weight_tile(rows: int, channels: int, kind: torch.dtype, exact: bool, boxes: bool = False) -> Tile:
    """Return the tile of a weight gradient, whose reduction runs over pixels."""
    if exact:
        return Tile(power(rows, most=64), power(channels, most=32), 16, 4, 2)
    cols, pixels = power(channels), step_of(kind)
    if takes_two_warps(kind, rows, channels):
        if boxes:
            return Tile(256, min(cols, 64), pixels, 8, 3)
        return Tile(power(rows, least=32, most=64), min(cols, 64), pixels, 2, 3, across=True)
    if boxes and cols <= 64 and 64 < rows <= 128:  # all rows in one tile: the other images are read once
        return Tile(128, cols, pixels, 4, 3)
    if boxes and cols <= 64:
        return Tile(power(rows, most=64), cols, 2 * pixels, 4, 4)
    return Tile(power(rows, most=64), cols, pixels, 4, 3)


def parts_for(clients: int, programs: int, steps: int, most: int = 32, each: int = 3) -> int:
    """Return into how many parts to cut a reduction: about ``each`` programs a multiprocessor, two steps in each."""
    wanted = -(-each * MULTIPROCESSORS // (clients * programs))
    return max(1, min(wanted, most, steps // 2))
