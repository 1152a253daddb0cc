"""Bring gradients of single parameters to their places in the flat gradient: parts summed, in a model's own order."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from fedsmoo.kernels.runtime import launch


@triton.jit(do_not_specialize=["parts"])
def rows_kernel(source, out, out_row, parts, N, BLOCK: tl.constexpr):
    """``[C, parts, N] -> [C, N]``, rows of ``out`` being ``out_row`` apart."""
    client = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for part in range(parts):
        total += tl.load(source + (client * parts + part) * N + at, mask=at < N, other=0.0).to(tl.float32)
    tl.store(out + client * out_row + at, total, mask=at < N)


@triton.jit(do_not_specialize=["parts"])
def taps_kernel(
    source,  # [parts, C, TAPS, I, O]; strides of a part and of a client below
    out, out_row,  # [C, O, I, TAPS]; stride of a client
    parts, part_row, client_row, I, O, TAPS: tl.constexpr, BR: tl.constexpr, BO: tl.constexpr,
):  # fmt: skip
    """Rows of a tile are inputs and taps, as they follow in ``out``; columns are outputs, as in ``source``."""
    client = tl.program_id(1).to(tl.int64)
    down = tl.cdiv(I * TAPS, BR)
    row = tl.program_id(0) % down * BR + tl.arange(0, BR)
    col = tl.program_id(0) // down * BO + tl.arange(0, BO)
    live = (row < I * TAPS)[:, None] & (col < O)[None, :]
    at = source + client * client_row + (row % TAPS * I + row // TAPS)[:, None] * O + col[None, :]
    total = tl.zeros((BR, BO), tl.float32)
    for _ in range(parts):
        total += tl.load(at, mask=live, other=0.0).to(tl.float32)
        at += part_row
    tl.store(out + client * out_row + col[None, :] * (I * TAPS) + row[:, None], total, mask=live)


def place(source: Tensor, out: Tensor) -> None:
    """Write a gradient ``[C, parts, N]``, or ``[parts, C, taps, I, O]``, to its place ``out [C, N]``."""
    source = source if source.dim() == 5 and source[0, 0].is_contiguous() else source.contiguous()
    if source.dim() == 3:
        clients, parts, n = source.shape
        block = 1024  # for few numbers as well: one compiled kernel
        launch(
            rows_kernel, (triton.cdiv(n, block), clients),
            source=source, out=out, out_row=out.stride(0), parts=parts, N=n, BLOCK=block, num_warps=4,
        )  # fmt: skip
        return
    parts, clients, taps, inside, outside = source.shape
    rows = min(64, triton.next_power_of_2(taps * inside))
    cols = min(256 // source.itemsize, triton.next_power_of_2(outside))
    launch(
        taps_kernel, (triton.cdiv(taps * inside, rows) * triton.cdiv(outside, cols), clients),
        source=source, out=out, out_row=out.stride(0), parts=parts, part_row=source.stride(0),
        client_row=source.stride(1), I=inside, O=outside,
        TAPS=taps, BR=rows, BO=cols, num_warps=8 if rows * cols > 4096 else 4,
    )  # fmt: skip
