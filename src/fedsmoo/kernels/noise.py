"""Noise on a GPU: the words of ``fedsmoo.core.random.noise`` in one pass, for the clients of a batch at once.

Uniforms are the same numbers as on a CPU; normals are computed in float64 and rounded to float32, as there.
Importing this module makes it serve ``fedsmoo::noise`` on CUDA devices.
"""

from __future__ import annotations

import math
import zlib
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedsmoo.core.random.draw import drawn
from fedsmoo.kernels.runtime import launch

COUNTERS = 128  # of one program; each gives four numbers
TURN = tl.constexpr(2 * math.pi * 2.0**-32)  # of a circle, by one of a word's 2^32 values


@triton.jit
def pair(a, b):
    """Two standard normals from two words, by Box and Muller."""
    radius = tl.sqrt(-2.0 * tl.log((a.to(tl.float64) + 0.5) * 2.3283064365386963e-10))
    angle = b.to(tl.float64) * TURN
    return (radius * tl.cos(angle)).to(tl.float32), (radius * tl.sin(angle)).to(tl.float32)


@triton.jit
def middle(word):
    """The middle of one of 2^23 equal parts of (0, 1)."""
    return ((word >> 9) * 2 + 1).to(tl.float32) * 5.9604644775390625e-08


@triton.jit(do_not_specialize=["name"])
def noise_kernel(
    keys,  # [R, 2] int64, words of 32 bits
    steps,  # [R] int64
    starts,  # [R] int64, the first counter of each row; read if there are any
    out,  # [R, count]
    name, count, bound,
    KIND: tl.constexpr, STARTS: tl.constexpr, COUNTERS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1).to(tl.int64)
    index = tl.program_id(0) * COUNTERS + tl.arange(0, COUNTERS)
    first = index.to(tl.uint32)
    if STARTS:
        first = (index.to(tl.int64) + tl.load(starts + row)).to(tl.uint32)
    seed = (tl.load(keys + 2 * row + 1) << 32) | tl.load(keys + 2 * row)
    zero = index.to(tl.uint32) * 0
    place, step = zero + name.to(tl.uint32), zero + tl.load(steps + row).to(tl.uint32)
    w0, w1, w2, w3 = tl.philox(seed, first, zero, place, step, 10)
    if KIND == "normal":
        x0, x1 = pair(w0, w1)
        x2, x3 = pair(w2, w3)
    elif KIND == "uniform":
        x0, x1, x2, x3 = middle(w0), middle(w1), middle(w2), middle(w3)
    elif KIND == "below":
        x0, x1, x2, x3 = middle(w0) < bound, middle(w1) < bound, middle(w2) < bound, middle(w3) < bound
    else:
        x0, x1, x2, x3 = w0.to(tl.int64), w1.to(tl.int64), w2.to(tl.int64), w3.to(tl.int64)
    at = 4 * COUNTERS * tl.program_id(0).to(tl.int64) + tl.arange(0, 4 * COUNTERS)
    x = tl.interleave(tl.interleave(x0, x2), tl.interleave(x1, x3))  # as they follow each other: written in whole rows
    tl.store(out + row * count + at, x, at < count)


@drawn.register_kernel("cuda")
def by_kernel(
    keys: Tensor, steps: Tensor, name: str, kind: str, like: Tensor, starts: Tensor | None = None, bound: float = 0.0
) -> Tensor:
    """Return noise as :func:`fedsmoo.core.random.draw.drawn` does."""
    rows, count = len(keys), like.shape[-1]
    out = torch.empty(rows, count, dtype=like.dtype, device=like.device)
    grid = (triton.cdiv(count, 4 * COUNTERS), rows)
    meta: dict[str, Any] = {"KIND": kind, "STARTS": starts is not None, "COUNTERS": COUNTERS, "num_warps": 4}
    steps, starts = steps.contiguous(), steps if starts is None else starts.contiguous()
    launch(noise_kernel, grid, keys.contiguous(), steps, starts, out, zlib.crc32(name.encode()), count, bound, **meta)
    return out
