"""LayerNorm's backward pass with a client axis: a program for a run of rows of one client.

Every row is read once. Its gradient by the inputs is written, with another gradient added where two meet, and in
bfloat16 as well where a product is what reads it next; what gamma and beta want of the run's rows stays in registers
and is written once, as a part that is still to be summed. Sums have a fixed order.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedsmoo.kernels.norms.group import rows_of
from fedsmoo.kernels.runtime import launch

WIDEST = 8192  # numbers of a row that registers hold
MULTIPROCESSORS = 132  # of an H100 or H200
PARTS = 128  # at most: so many are summed where gradients are placed


class Tile(NamedTuple):
    """Rows that a program holds at once, its warps, and how many programs there are for each multiprocessor."""

    rows: int
    warps: int
    programs: int


# By width, rounded up to a power of two: the tile of layers that take this kernel in place of what PyTorch's compiler
# makes of theirs. Only a width that was timed and found faster belongs here (benchmarks/kernels/norms.py).
TILES: dict[int, Tile] = {}


def padded(width: int) -> int:
    """Return the columns of a block that holds rows of a width."""
    return int(triton.next_power_of_2(width))


def plain_tile(width: int) -> Tile:
    """Return a tile for a width that has none in the table: 8 numbers to a thread, or 16 of the widest rows."""
    cols = padded(width)
    rows = max(1, 1024 // cols)
    return Tile(rows, max(1, min(16, rows * cols // 256)), 6)


def tile_of(width: int) -> Tile:
    """Return the tile of rows of a width."""
    return TILES.get(padded(width)) or plain_tile(width)


def parts_of(clients: int, rows: int, tile: Tile) -> int:
    """Return into how many runs a client's rows are cut: as many as there may be programs, and none is empty."""
    wanted = max(1, tile.programs * MULTIPROCESSORS // clients)
    span = run_of(rows, min(wanted, PARTS), tile)
    return max(1, -(-rows // span))


def run_of(rows: int, parts: int, tile: Tile) -> int:
    """Return the rows of a run, in whole tiles."""
    return max(1, -(-rows // (parts * tile.rows))) * tile.rows


@triton.jit(do_not_specialize=["R", "SPAN", "INNER", "gamma_row"], do_not_specialize_on_alignment=["gamma"])
def layer_norm_backward_kernel(
    dy, more, x, gamma, mean, rstd,  # [C, R / INNER, INNER, D], [C, R, D] twice, [C, D], [C, R] float32 twice
    dx, rounded, dgamma, dbeta,  # [C, R, D] twice, [C, parts, D] float32 twice
    dy_client, dy_outer, dy_inner, gamma_row, R, SPAN, PARTS, INNER,
    D: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr, MORE: tl.constexpr, ROUNDED: tl.constexpr,
    TURNED: tl.constexpr,  # whether rows of ``dy`` lie in two strides; in one otherwise, ``dy_inner``
):  # fmt: skip
    client = (tl.program_id(0) // PARTS).to(tl.int64)
    part = tl.program_id(0) % PARTS
    col = tl.arange(0, BD)
    here = col < D
    scale = tl.load(gamma + client * gamma_row + col, mask=here, other=0.0).to(tl.float32)
    dy += client * dy_client
    hats = tl.zeros((BR, BD), tl.float32)
    ones = tl.zeros((BR, BD), tl.float32)
    for start in range(part * SPAN, tl.minimum((part + 1) * SPAN, R), BR):
        row = start + tl.arange(0, BR)
        live = row < R
        mask = live[:, None] & here[None, :]
        at = (client * R + row)[:, None] * D + col[None, :]
        if TURNED:
            there = (row // INNER).to(tl.int64) * dy_outer + (row % INNER).to(tl.int64) * dy_inner
        else:
            there = row.to(tl.int64) * dy_inner
        d = tl.load(dy + there[:, None] + col[None, :], mask=mask, other=0.0).to(tl.float32)
        v = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
        m = tl.load(mean + client * R + row, mask=live, other=0.0)
        r = tl.load(rstd + client * R + row, mask=live, other=0.0)
        if MORE:
            rest = tl.load(more + at, mask=mask, other=0.0).to(tl.float32)
        hat = (v - m[:, None]) * r[:, None]  # where no column is, ``d`` is zero
        g = d * scale[None, :]
        inner = tl.sum(g, 1) / D
        along = tl.sum(g * hat, 1) / D
        out = r[:, None] * (g - inner[:, None] - hat * along[:, None])
        if MORE:
            out += rest
        tl.store(dx + at, out, mask=mask)
        if ROUNDED:
            tl.store(rounded + at, out, mask=mask)
        hats += d * hat
        ones += d
    at = (client * PARTS + part) * D + col
    tl.store(dgamma + at, tl.sum(hats, 0), mask=here)
    tl.store(dbeta + at, tl.sum(ones, 0), mask=here)


def two_strides(dy: Tensor) -> tuple[Tensor, int, int, int]:
    """Return a gradient ``[C, .., D]``, how many rows follow each other by one stride, and both strides of rows.

    It is copied only where its rows lie in more than two strides, or its columns apart.
    """
    runs: list[list[int]] = []  # sizes and strides of axes of rows, neighbours that follow each other as one
    for size, stride in zip(dy.shape[1:-1], dy.stride()[1:-1], strict=True):
        if size > 1 and runs and runs[-1][1] == size * stride:
            runs[-1] = [runs[-1][0] * size, stride]
        elif size > 1:
            runs.append([size, stride])
    if len(runs) > 2 or dy.stride(-1) != 1:
        return two_strides(dy.contiguous())
    if len(runs) < 2:
        return dy, 1, 0, runs[0][1] if runs else 0
    return dy, runs[1][0], runs[0][1], runs[1][1]


def backward(
    dy: Tensor, x: Tensor, gamma: Tensor, mean: Tensor, rstd: Tensor, more: Tensor | None = None,
    rounded: bool = False, tile: Tile | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return ``fedsmoo::layer_norm_backward`` of rows ``[C, .., D]``, at most ``WIDEST`` wide."""
    clients, width = x.shape[0], x.shape[-1]
    count = x.shape[1:-1].numel()
    tile = tile or tile_of(width)
    x, parts = x.contiguous(), parts_of(clients, count, tile)
    dx, coarse = torch.empty_like(x), x.new_empty(x.shape if rounded else 0, dtype=torch.bfloat16)
    dgamma, dbeta = (x.new_empty(clients, parts, width, dtype=torch.float32) for _ in range(2))
    dy, inner, outer_row, inner_row = two_strides(dy)
    given: dict[str, Any] = rows_of("gamma", gamma)
    launch(
        layer_norm_backward_kernel, (clients * parts,),
        dy=dy, more=x if more is None else more.contiguous(), x=x, **given, mean=mean.contiguous(),
        rstd=rstd.contiguous(), dx=dx, rounded=coarse if rounded else dx, dgamma=dgamma, dbeta=dbeta,
        dy_client=dy.stride(0), dy_outer=outer_row, dy_inner=inner_row, R=count, SPAN=run_of(count, parts, tile),
        PARTS=parts, INNER=inner, D=width, BR=tile.rows, BD=padded(width), MORE=more is not None, ROUNDED=rounded,
        TURNED=inner > 1, num_warps=tile.warps,
    )  # fmt: skip
    return dx, dgamma, dbeta, coarse
