"""Gradients of embeddings with a client axis, without a sort: the gradients that a row gets are summed where it lies.

Launches list, for each block of rows of a client's weights, the places in the batch that read them, in their order; of
many rows first for whole buckets of blocks. The last launch sums the gradients of these places, as a product with ones,
and writes each number of the result once. Where rows are few, places are cut into parts. Sums have a fixed order.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedsmoo.kernels.runtime import launch

ON = False  # not yet timed on a GPU: ``python -m benchmarks.kernels.moves`` does
MULTIPROCESSORS = 132  # of an H100 or H200
PLACES, FOUND = 1024, 16  # that are looked through at once, and summed at once
EACH, PARTS = 256, 32  # places in a part at least, and parts at most
BUCKET = 32  # blocks


@triton.jit(do_not_specialize=["N", "each"])
def find_kernel(
    index, index_row,  # [C, N]; stride of a client
    given, buckets,  # lists of buckets and their spans, as this kernel writes them, if LISTED
    found, spans,  # [C, N], and where each block's list begins in a part and how long it is [C, parts, blocks, 2]
    N, each, BR: tl.constexpr, BN: tl.constexpr, LISTED: tl.constexpr, BUCKET: tl.constexpr,
):  # fmt: skip
    """List the places of each block of rows, behind those of all blocks before it."""
    client, part, block = tl.program_id(2).to(tl.int64), tl.program_id(1), tl.program_id(0)
    parts, blocks = tl.num_programs(1), tl.num_programs(0)
    index += client * index_row
    begin = part * each
    end = tl.minimum(begin + each, N)
    found += client * N
    given += client * N
    if LISTED:
        mine = buckets + ((client * parts + part) * tl.cdiv(blocks, BUCKET) + block // BUCKET) * 2
        begin += tl.load(mine)
        end = begin + tl.load(mine + 1)
    first = block * BR
    before = tl.zeros((BN,), tl.int32)
    for at in range(begin, end, BN):
        n = at + tl.arange(0, BN)
        there = n < end
        if LISTED:
            n = tl.load(given + n, mask=there, other=0)
        before += (tl.load(index + n, mask=there, other=first) < first).to(tl.int32)
    start = begin + tl.sum(before, 0)
    count = 0
    for at in range(begin, end, BN):
        n = at + tl.arange(0, BN)
        there = n < end
        if LISTED:
            n = tl.load(given + n, mask=there, other=0)
        row = tl.load(index + n, mask=there, other=-1) - first
        there &= (row >= 0) & (row < BR)
        rank = tl.cumsum(there.to(tl.int32), 0)
        tl.store(found + start + count + rank - 1, n, mask=there)
        count += tl.sum(there.to(tl.int32), 0)
    mine = spans + ((client * parts + part) * blocks + block) * 2
    tl.store(mine, start - part * each)
    tl.store(mine + 1, count)


@triton.jit(do_not_specialize=["N", "each", "out_row", "out_part"], do_not_specialize_on_alignment=["out"])
def add_kernel(
    dy, dy_row, dy_place,  # [C, N, D]; strides of a client and of a place
    index, index_row, found, spans,  # as in the other kernel
    out, out_row, out_part,  # [C, parts, rows, D]; strides of a client and of a part
    rows, N, D, each, BR: tl.constexpr, BD: tl.constexpr, BH: tl.constexpr,
):  # fmt: skip
    """Sum a block of rows: ones where a place has read a row, times the gradients of these places."""
    blocks = tl.cdiv(rows, BR)
    client, part = tl.program_id(2).to(tl.int64), tl.program_id(1)
    block, d = tl.program_id(0) % blocks, tl.program_id(0) // blocks * BD + tl.arange(0, BD)
    mine = spans + ((client * tl.num_programs(1) + part) * blocks + block) * 2
    found += client * N + part * each + tl.load(mine)
    count = tl.load(mine + 1)
    dy += client * dy_row
    index += client * index_row
    row = block * BR + tl.arange(0, BR)
    total = tl.zeros((BR, BD), tl.float32)
    for start in range(0, count, BH):
        some = start + tl.arange(0, BH)
        n = tl.load(found + some, mask=some < count, other=0)
        read = tl.load(index + n, mask=some < count, other=-1)
        there = (some < count)[:, None] & (d < D)[None, :]
        v = tl.load(dy + n[:, None].to(tl.int64) * dy_place + d[None, :], mask=there, other=0.0).to(tl.float32)
        total = tl.dot((row[:, None] == read[None, :]).to(tl.float32), v, total, input_precision="ieee")
    out += client * out_row + part * out_part
    there = (row < rows)[:, None] & (d < D)[None, :]
    tl.store(out + row[:, None].to(tl.int64) * D + d[None, :], total, mask=there)


def tile(rows: int, width: int) -> dict[str, int]:
    """Return the sizes of a program's block: rows, and numbers of each."""
    wide = max(16, min(128, triton.next_power_of_2(width)))
    return {"BH": FOUND, "BR": max(16, min(32, triton.next_power_of_2(rows))), "BD": wide, "num_warps": 4}


def parts_of(clients: int, places: int, rows: int, width: int, sizes: dict[str, int]) -> int:
    """Return into how many parts the places are cut: enough for two programs a multiprocessor, few rows allowing."""
    programs = clients * triton.cdiv(rows, sizes["BR"]) * triton.cdiv(width, sizes["BD"])
    return max(1, min(triton.cdiv(2 * MULTIPROCESSORS, programs), places // EACH, PARTS))


def embedding_weight(dy: Tensor, index: Tensor, rows: int, flat: Tensor | None = None, **how: int) -> Tensor:
    """Return the gradient by weights, in parts to be summed, ``[C, parts, rows, D]``: of ``dy [C, N, D]`` and indices.

    Several parts are in float32. One alone is written into ``flat [C, rows * D]``, if there is one: clients may lie
    apart. ``how`` changes the sizes of a program's block.
    """
    (clients, places, width), sizes = dy.shape, {**tile(rows, dy.shape[2]), **how}
    dy, index = dy if dy.stride(2) == 1 else dy.contiguous(), index if index.stride(1) == 1 else index.contiguous()
    parts, blocks = parts_of(clients, places, rows, width, sizes), triton.cdiv(rows, sizes["BR"])
    each = triton.cdiv(places, parts)
    if flat is not None and parts == 1:
        out = flat.view(clients, 1, rows, width)
    else:
        out = dy.new_empty(clients, parts, rows, width, dtype=dy.dtype if parts == 1 else torch.float32)
    near = {"index": index, "index_row": index.stride(0)}
    lists: dict[str, Tensor] = {}  # the first launch reads the indices themselves
    for span in (sizes["BR"] * BUCKET, sizes["BR"]) if blocks > BUCKET else (sizes["BR"],):
        found = index.new_empty(clients, places, dtype=torch.int32)
        spans = index.new_empty(clients, parts, triton.cdiv(rows, span), 2, dtype=torch.int32)
        launch(
            find_kernel, (spans.shape[2], parts, clients), **near, found=found, spans=spans, N=places, each=each,
            given=lists.get("found", found), buckets=lists.get("spans", spans), LISTED="found" in lists,
            BR=span, BN=min(PLACES, triton.next_power_of_2(each)), BUCKET=BUCKET, num_warps=4,
        )  # fmt: skip
        lists = {"found": found, "spans": spans}
    launch(
        add_kernel, (blocks * triton.cdiv(width, sizes["BD"]), parts, clients), **near, **lists,
        dy=dy, dy_row=dy.stride(0), dy_place=dy.stride(1), out=out, out_row=out.stride(0), out_part=out.stride(1),
        rows=rows, N=places, D=width, each=each, num_stages=1, **sizes,
    )  # fmt: skip
    return out
