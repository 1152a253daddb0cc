"""Tile sizes of general convolutions, by a rule from their shapes."""

from __future__ import annotations

from dataclasses import dataclass

MULTIPROCESSORS = 132  # of an H100 or H200


@dataclass(frozen=True)
class Tile:
    """Rows and columns of a program's output tile, the step of its reduction, its warps and its pipeline's depth."""

    rows: int
    cols: int
    inner: int
    warps: int = 4
    stages: int = 3


def power(n: int, least: int = 16, most: int = 128) -> int:
    """Return the power of two at or above ``n``, within bounds: what a tile's side may be."""
    return max(least, min(most, 1 << (n - 1).bit_length()))


def is_flat(channels: int) -> bool:
    """Whether so few channels are reduced together with the taps: a step of the reduction has 16 numbers at least."""
    return channels < 16


def pixel_tile(pixels: int, channels: int, reduced: int, exact: bool) -> Tile:
    """Return the tile of a product whose rows are pixels: forward, and the data gradient.

    ``exact``: float32 products of three, which live in registers, so that tiles are small.
    """
    if exact:
        return Tile(power(pixels, most=64), power(channels, most=64), power(reduced, most=16), 4, 2)
    cols = power(channels)
    return Tile(power(pixels), cols, power(reduced, most=64), 8 if cols > 64 else 4, 3)


def weight_tile(rows: int, channels: int, exact: bool) -> Tile:
    """Return the tile of a weight gradient, whose reduction runs over pixels."""
    if exact:
        return Tile(power(rows, most=64), power(channels, most=32), 16, 4, 2)
    tile = power(rows), power(channels)
    return Tile(*tile, 64, 8 if min(tile) > 64 else 4, 3)


def parts_for(clients: int, programs: int, steps: int, most: int = 32) -> int:
    """Return into how many parts to cut a reduction: about three programs a multiprocessor, two steps each at least."""
    wanted = -(-3 * MULTIPROCESSORS // (clients * programs))
    return max(1, min(wanted, most, steps // 2))
