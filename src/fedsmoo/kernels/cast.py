"""Bring all weights of C clients from their rows into the type and order that products read, by one launch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedsmoo.kernels.place import Tile
from fedsmoo.kernels.runtime import launch

TODAY = Tile(32, 64, 4)  # ``python -m benchmarks.kernels.moves`` times others


@triton.jit(do_not_specialize=["w_row"], do_not_specialize_on_alignment=["w"])
def cast_kernel(
    w, w_row,  # [C, P]; stride of a client
    out, out_row,  # [C, T]; stride of a client
    owner, table,  # of each tile, which weight it is of; of each weight, its first tile and the fields of Weight
    EVEN: tl.constexpr,  # whether rows of all weights that are turned are pieces of 16 bytes
    BR: tl.constexpr, BO: tl.constexpr,
):  # fmt: skip
    """Write ``[taps, I, O]`` for a weight ``[O, I, taps]``, and zeros in rows behind; one of no taps as it is."""
    client = tl.program_id(1).to(tl.int64)
    mine = table + tl.load(owner + tl.program_id(0)) * 7
    tile = tl.program_id(0) - tl.load(mine)
    w += client * w_row + tl.load(mine + 1)
    out += client * out_row + tl.multiple_of(tl.load(mine + 2), 8)
    taps = tl.load(mine + 3)
    I = tl.load(mine + 4)
    O = tl.load(mine + 5)
    if taps == 0:
        at = tile * (BR * BO) + tl.arange(0, BR)[:, None] * BO + tl.arange(0, BO)[None, :]
        tl.store(out + at, tl.load(w + at, mask=at < O, other=0.0), mask=at < O)
    else:
        rows = tl.load(mine + 6)
        if EVEN:
            O = tl.multiple_of(O, 8)
        row = tile % tl.cdiv(rows, BR) * BR + tl.arange(0, BR)
        col = tile // tl.cdiv(rows, BR) * BO + tl.arange(0, BO)
        real = row < I * taps
        v = tl.load(w + col[None, :] * (I * taps) + row[:, None], mask=real[:, None] & (col < O)[None, :], other=0.0)
        there = tl.where(real, row % taps * I + row // taps, row)
        tl.store(out + there[:, None] * O + col[None, :], v, mask=(row < rows)[:, None] & (col < O)[None, :])


class Weight(NamedTuple):
    """A weight: where a client's begins in its row and in the result, and ``[O, I, taps]``; no taps: ``O`` numbers.

    ``rows`` are those of the result, ``taps * I`` at least.
    """

    start: int
    there: int
    taps: int
    inside: int
    outside: int
    rows: int

    @property
    def size(self) -> int:
        """How many numbers the result has."""
        return self.outside if self.taps == 0 else self.rows * self.outside

    def tiles(self, rows: int, cols: int) -> int:
        """Return of how many tiles of a size the result is."""
        if self.taps == 0:
            return triton.cdiv(self.outside, rows * cols)
        return triton.cdiv(self.rows, rows) * triton.cdiv(self.outside, cols)


@cache  # of any number: captured graphs read tables by their addresses, and nobody else keeps them
def tables(
    weights: tuple[Weight, ...], device: torch.device, size: tuple[int, int] = TODAY[:2]
) -> tuple[Tensor, Tensor]:
    """Return which weight each tile is of, and the first tile and the fields of each; made once, before a capture."""
    tiles = [v.tiles(*size) for v in weights]
    owner = [i for i, n in enumerate(tiles) for _ in range(n)]
    rows = [[first, *v] for first, v in zip(accumulate(tiles, initial=0), weights, strict=False)]
    return torch.tensor(owner, dtype=torch.int32, device=device), torch.tensor(rows, dtype=torch.int32, device=device)


def cast(w: Tensor, weights: Sequence[Weight], out: Tensor, tile: Tile = TODAY) -> None:
    """Write the weights of rows ``w [C, P]`` to ``out [C, T]``."""
    w = w if w.stride(1) == 1 else w.contiguous()
    owner, table = tables(tuple(weights), w.device, (tile.rows, tile.cols))
    launch(
        cast_kernel, (len(owner), len(w)),
        w=w, w_row=w.stride(0), out=out, out_row=out.stride(0), owner=owner, table=table,
        EVEN=all(v.outside % 8 == 0 for v in weights if v.taps), BR=tile.rows, BO=tile.cols, num_warps=tile.warps,
    )  # fmt: skip
