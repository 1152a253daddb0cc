"""Bring gradients of single parameters to their places in the flat gradient: parts summed, in a model's own order.

One launch does it for up to 16 gradients: a table says of each how it lies in memory and where it goes to. Sums have a
fixed order.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedsmoo.kernels.runtime import launch

NAMES = [f"source{i}" for i in range(16)]  # addresses of gradients, which are others in every call


@triton.jit
def numbers(address, at, live, WIDE: tl.constexpr, EVEN: tl.constexpr):
    """Return numbers of a gradient in float32; ``WIDE``: it is in float32 at its address, else in bfloat16."""
    here = address.to(tl.pointer_type(tl.float32 if WIDE else tl.bfloat16))
    if EVEN:
        here = tl.multiple_of(here, 16)
    return tl.load(here + at, mask=live, other=0.0).to(tl.float32)


@triton.jit
def summed(
    address, at, live, parts, part_row,
    WIDE: tl.constexpr, EVEN: tl.constexpr, ALONE: tl.constexpr, BR: tl.constexpr, BO: tl.constexpr,
):  # fmt: skip
    """Return the sum of parts, which are so many bytes apart; four are on their way at once. ``ALONE``: of one."""
    total = numbers(address, at, live, WIDE, EVEN)
    if not ALONE:
        for part in range(1, parts, 4):
            here = address + part * part_row
            a = numbers(here, at, live, WIDE, EVEN)
            b = numbers(here + part_row, at, live & (part + 1 < parts), WIDE, EVEN)
            c = numbers(here + 2 * part_row, at, live & (part + 2 < parts), WIDE, EVEN)
            d = numbers(here + 3 * part_row, at, live & (part + 3 < parts), WIDE, EVEN)
            total += (a + b) + (c + d)
    return total


@triton.jit
def straight(
    address, out, tile, parts, part_row, N,
    WIDE: tl.constexpr, EVEN: tl.constexpr, ALONE: tl.constexpr, BR: tl.constexpr, BO: tl.constexpr,
):  # fmt: skip
    """Sum numbers that stay in their order."""
    at = tile * (BR * BO) + tl.arange(0, BR)[:, None] * BO + tl.arange(0, BO)[None, :]
    tl.store(out + at, summed(address, at, at < N, parts, part_row, WIDE, EVEN, ALONE, BR, BO), mask=at < N)


@triton.jit
def turned(
    address, out, tile, parts, part_row, taps, I, O,
    WIDE: tl.constexpr, EVEN: tl.constexpr, ALONE: tl.constexpr, BR: tl.constexpr, BO: tl.constexpr,
):  # fmt: skip
    """Sum ``[taps, I, O]`` and write ``[O, I, taps]``.

    Rows of a tile are inputs and taps, as they follow in ``out``; columns are outputs, as they follow in the gradient.
    """
    down = tl.cdiv(I * taps, BR)
    row = tile % down * BR + tl.arange(0, BR)
    col = tile // down * BO + tl.arange(0, BO)
    live = (row < I * taps)[:, None] & (col < O)[None, :]
    at = (row % taps * I + row // taps)[:, None] * O + col[None, :]
    total = summed(address, at, live, parts, part_row, WIDE, EVEN, ALONE, BR, BO)
    tl.store(out + col[None, :] * (I * taps) + row[:, None], total, mask=live)


@triton.jit(do_not_specialize=[*NAMES, "out_row"], do_not_specialize_on_alignment=["out"])
def place_kernel(
    source0, source1, source2, source3, source4, source5, source6, source7,
    source8, source9, source10, source11, source12, source13, source14, source15,
    owner, table,  # of each tile, which gradient it is of; of each gradient, the fields of an Entry
    out, out_row,  # [C, P]; stride of a client
    EVEN: tl.constexpr,  # whether rows of all gradients are pieces of 16 bytes
    SPREAD: tl.constexpr,  # whether the table has a row for each tile
    ALONE: tl.constexpr,  # whether all gradients are of one part
    BR: tl.constexpr, BO: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(1).to(tl.int64)
    if SPREAD:
        mine = table + tl.program_id(0) * 10
        which = tl.load(mine + 9)
    else:
        which = tl.load(owner + tl.program_id(0))
        mine = table + which * 10
    tile = tl.program_id(0) - tl.load(mine)
    out += client * out_row + tl.load(mine + 1)
    parts = tl.load(mine + 2)
    taps = tl.load(mine + 3)
    inside = tl.load(mine + 4)
    outside = tl.load(mine + 5)
    width = tl.load(mine + 8)
    part_row = tl.load(mine + 6).to(tl.int64) * width
    client_row = tl.load(mine + 7).to(tl.int64) * width
    sources = (
        source0, source1, source2, source3, source4, source5, source6, source7,
        source8, source9, source10, source11, source12, source13, source14, source15,
    )  # fmt: skip
    address = source0
    for i in tl.static_range(1, 16):
        address = tl.where(which == i, sources[i], address)
    address += client * client_row
    if EVEN:
        outside = tl.multiple_of(outside, 8)
    if taps == 0:
        if width == 4:
            straight(address, out, tile, parts, part_row, outside, True, EVEN, ALONE, BR, BO)
        else:
            straight(address, out, tile, parts, part_row, outside, False, EVEN, ALONE, BR, BO)
    else:
        if width == 4:
            turned(address, out, tile, parts, part_row, taps, inside, outside, True, EVEN, ALONE, BR, BO)
        else:
            turned(address, out, tile, parts, part_row, taps, inside, outside, False, EVEN, ALONE, BR, BO)


class Tile(NamedTuple):
    """The sides of a program's tile, and its warps.

    Of gradients, ``spread``: a program finds what it is about by one load, not by two that wait for each other;
    ``apart``: those of one part have launches of their own, whose programs need fewer registers, so that more fit.
    """

    rows: int
    cols: int
    warps: int
    spread: bool = False
    apart: bool = False


TODAY = Tile(32, 64, 8)  # ``python -m benchmarks.kernels.moves`` times others


class Entry(NamedTuple):
    """A gradient ``[parts, C, taps, I, O]``; without taps, ``O`` numbers that stay in their order."""

    start: int  # its place in the flat gradient
    parts: int
    taps: int
    inside: int
    outside: int
    part_row: int  # strides of a part and of a client
    client_row: int
    width: int  # bytes of a number: 4, or 2 of bfloat16

    def tiles(self, rows: int, cols: int) -> int:
        """Return of how many tiles of a size it is."""
        if self.taps == 0:
            return triton.cdiv(self.outside, rows * cols)
        return triton.cdiv(self.taps * self.inside, rows) * triton.cdiv(self.outside, cols)


def entry(source: Tensor, start: int) -> Entry:
    """Describe a gradient ``[C, parts, N]`` or ``[parts, C, taps, I, O]``."""
    if source.dim() == 3:
        numbers = source.shape[2]
        return Entry(start, source.shape[1], 0, 1, numbers, source.stride(1), source.stride(0), source.itemsize)
    parts, _, taps, inside, outside = source.shape
    if taps * inside == 1:
        taps = 0
    return Entry(start, parts, taps, inside, outside, source.stride(0), source.stride(1), source.itemsize)


@cache  # of any number: captured graphs read tables by their addresses, and nobody else keeps them
def tables(
    entries: tuple[Entry, ...], device: torch.device, size: tuple[int, int], spread: bool = False
) -> tuple[Tensor, Tensor]:
    """Return which gradient each tile is of, and the first tile and the fields of each; made once, before a capture.

    ``spread``: the latter are there for each tile.
    """
    tiles = [e.tiles(*size) for e in entries]
    owner = [i for i, n in enumerate(tiles) for _ in range(n)]
    rows = [[first, *e, i] for i, (first, e) in enumerate(zip(accumulate(tiles, initial=0), entries, strict=False))]
    rows = [rows[i] for i in owner] if spread else rows
    return torch.tensor(owner, dtype=torch.int32, device=device), torch.tensor(rows, dtype=torch.int32, device=device)


def is_even(source: Tensor, e: Entry) -> bool:
    """Whether loads of a gradient are pieces of 16 bytes."""
    rows = (e.outside, e.part_row, e.client_row)
    return source.data_ptr() % 16 == 0 and all(n % 8 == 0 for n in rows)


def dense(source: Tensor) -> Tensor:
    """Return a gradient whose parts of each client are contiguous."""
    each = source[0, 0]
    return source if each.is_contiguous() else source.contiguous()


def place(sources: Sequence[Tensor], out: Tensor, tile: Tile = TODAY) -> None:
    """Write gradients ``[C, parts, N]`` or ``[parts, C, taps, I, O]`` beside each other, to ``out [C, P]``."""
    groups: dict[tuple[bool, bool], list[tuple[Tensor, Entry]]] = {}
    start = 0
    for source in map(dense, sources):
        e = entry(source, start)
        start += source.shape[2:].numel()
        groups.setdefault((is_even(source, e), tile.apart and e.parts == 1), []).append((source, e))
    for (even, alone), group in groups.items():
        for at in range(0, len(group), len(NAMES)):
            part = group[at : at + len(NAMES)]
            owner, table = tables(tuple(e for _, e in part), out.device, tile[:2], tile.spread)
            addresses = [s.data_ptr() for s, _ in part]
            addresses += addresses[:1] * (len(NAMES) - len(addresses))
            launch(
                place_kernel, (len(owner), len(out)),
                **dict(zip(NAMES, addresses, strict=True)), owner=owner, table=table, out=out, out_row=out.stride(0),
                EVEN=even, SPREAD=tile.spread, ALONE=alone, BR=tile.rows, BO=tile.cols, num_warps=tile.warps,
            )  # fmt: skip
