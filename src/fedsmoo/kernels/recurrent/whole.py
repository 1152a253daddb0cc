"""All time steps of an LSTM in one launch: programs keep their weights, and wait for each other between steps.

A program has some hidden units of some samples of one client, as in ``steps.py``, and the same sums. Programs of
the same samples meet at a counter after every step. None waits for one that cannot begin: each takes the next number
when it starts, so those that it waits for have started before it, or start as soon as others end.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedsmoo.kernels.recurrent.cells import read, sigmoid, tanh
from fedsmoo.kernels.runtime import interpreted, launch

ON = False  # not yet timed on a GPU: ``python -m benchmarks.kernels.moves`` does
MULTIPROCESSORS = 132  # of an H100 or H200
APART = 32  # numbers between counters, so that each has a line of the cache to itself
LONGEST = 256  # hidden units: a program's weights, of all gates, are kept in shared memory


@triton.jit
def arrive(counter):
    """Say that this program has written its part of a step."""
    tl.debug_barrier()  # all threads of it have
    tl.atomic_add(counter, 1, sem="release")


@triton.jit
def wait(counter, count, PATIENCE: tl.constexpr = 2**24):
    """Wait until so many programs have arrived; what they wrote before can be read then.

    A wait of many seconds is an error of the device: it must not hang, nor go on with wrong numbers.
    """
    looks = 0
    while (tl.atomic_add(counter, 0, sem="acquire") < count) & (looks < PATIENCE):
        looks += 1
    if looks == PATIENCE:
        tl.inline_asm_elementwise("trap; mov.b32 $0, $1;", "=r,r", [looks], tl.int32, is_pure=False, pack=1)
    tl.debug_barrier()


@triton.jit
def ahead(at, ok):
    """Load what is needed behind a wait: it comes meanwhile, and is used, and so waited for, later."""
    return tl.load(at, mask=ok, other=0.0)


@triton.jit
def write(at, i, f, g, o, ok, H: tl.constexpr):
    """Write what belongs to the four gates."""
    tl.store(at, i, mask=ok)
    tl.store(at + H, f, mask=ok)
    tl.store(at + 2 * H, g, mask=ok)
    tl.store(at + 3 * H, o, mask=ok)


@triton.jit
def through(down, e, i, f, g, o, c, c_before):
    """Return gradients by the sums of the gates, and by the c before: from those by h and, ``e``, by c."""
    i, f, g, o = i.to(tl.float32), f.to(tl.float32), g.to(tl.float32), o.to(tl.float32)
    th = tanh(c.to(tl.float32))
    e += down * o * (1.0 - th * th)
    di, df = e * g * i * (1.0 - i), e * c_before.to(tl.float32) * f * (1.0 - f)
    return di, df, e * i * (1.0 - g * g), down * th * o * (1.0 - o), e * f


@triton.jit
def add(at, i, f, g, o, j, H: tl.constexpr):
    """Add the sums over samples of what belongs to the four gates; rows beyond all samples are zeros."""
    there = j < H
    tl.store(at, tl.load(at, mask=there, other=0.0) + tl.sum(i, 0), mask=there)
    tl.store(at + H, tl.load(at + H, mask=there, other=0.0) + tl.sum(f, 0), mask=there)
    tl.store(at + 2 * H, tl.load(at + 2 * H, mask=there, other=0.0) + tl.sum(g, 0), mask=there)
    tl.store(at + 3 * H, tl.load(at + 3 * H, mask=there, other=0.0) + tl.sum(o, 0), mask=there)


@triton.jit
def place_of(counters, B, BLOCKS: tl.constexpr, BM: tl.constexpr, APART: tl.constexpr):
    """Return a program's block of hidden units, block of samples, client, and the counter of those it works with."""
    number = tl.atomic_add(counters, 1) % tl.num_programs(0)
    group = number // BLOCKS
    return number % BLOCKS, group % tl.cdiv(B, BM), group // tl.cdiv(B, BM), counters + (group + 1) * APART


@triton.jit(do_not_specialize=["first", "last", "T", "B"])
def whole_forward_kernel(
    gx, gx_t, gx_c, gx_b,  # [T, C, B, 4H]: what comes from the inputs, with its strides
    w, b, h0, carry,  # [C, 4H, H], [C, 4H], [C, B, H], c [C, B, H] float32
    hs, cs, gates,  # [C, T, B, H] twice, [C, T, B, 4H]: written
    counters,  # zeros: who comes next, and how many have arrived
    first, last, T, B, H: tl.constexpr,  # steps from ``first`` on, before ``last``
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, APART: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    BLOCKS: tl.constexpr = (H + BN - 1) // BN
    block, some, client, counter = place_of(counters, B, BLOCKS, BM, APART)
    client = client.to(tl.int64)
    m = some * BM + tl.arange(0, BM)
    j = block * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    ok = (m < B)[:, None] & (j < H)[None, :]
    unit = m[:, None] * H + j[None, :]
    w += client * (4 * H * H) + j[None, :] * H + k[:, None]
    there = (k < H)[:, None] & (j < H)[None, :]
    w0, w1 = tl.load(w, mask=there, other=0.0), tl.load(w + H * H, mask=there, other=0.0)
    w2, w3 = tl.load(w + 2 * H * H, mask=there, other=0.0), tl.load(w + 3 * H * H, mask=there, other=0.0)
    b += client * (4 * H) + j[None, :]
    there = (j < H)[None, :]
    b0, b1, b2, b3 = read(b, there), read(b + H, there), read(b + 2 * H, there), read(b + 3 * H, there)
    c = read(carry + client * B * H + unit, ok)
    gx += client * gx_c + first.to(tl.int64) * gx_t
    for t in tl.range(first, last, disable_licm=True):
        x = gx + m[:, None].to(tl.int64) * gx_b + j[None, :]
        x0, x1, x2, x3 = ahead(x, ok), ahead(x + H, ok), ahead(x + 2 * H, ok), ahead(x + 3 * H, ok)
        now = (client * T + t) * B
        before = h0 + client * B * H
        if t > 0:
            before = hs + (now - B) * H
        wait(counter, BLOCKS * (t - first))
        at = before + m[:, None] * H + k[None, :]
        a = tl.load(at, mask=(m < B)[:, None] & (k < H)[None, :], other=0.0, cache_modifier=".cg")
        zeros = tl.zeros((BM, BN), tl.float32)
        i = sigmoid(tl.dot(a, w0, zeros, input_precision=PRECISION) + b0 + x0.to(tl.float32))
        f = sigmoid(tl.dot(a, w1, zeros, input_precision=PRECISION) + b1 + x1.to(tl.float32))
        g = tanh(tl.dot(a, w2, zeros, input_precision=PRECISION) + b2 + x2.to(tl.float32))
        o = sigmoid(tl.dot(a, w3, zeros, input_precision=PRECISION) + b3 + x3.to(tl.float32))
        c = f * c + i * g
        tl.store(hs + now * H + unit, o * tanh(c), mask=ok)
        arrive(counter)
        tl.store(cs + now * H + unit, c, mask=ok)
        write(gates + now * (4 * H) + m[:, None] * (4 * H) + j[None, :], i, f, g, o, ok, H)
        gx += gx_t
    tl.store(carry + client * B * H + unit, c, mask=ok)


@triton.jit(do_not_specialize=["first", "last", "T", "B"])
def whole_backward_kernel(
    dh, dh_t, dh_c, dh_b,  # [T, C, B, H]: by the outputs, with its strides
    cs, gates, w, c0,  # as in the forward pass
    carry,  # [C, B, H] float32: by c
    dgx, db,  # [C, T, B, 4H]: by the gates' sums, written; [C, blocks of samples, 4H] float32: their sums are added
    counters, first, last, T, B, H: tl.constexpr,  # steps counted from the end: the last one is 0
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, APART: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    BLOCKS: tl.constexpr = (H + BN - 1) // BN
    block, some, client, counter = place_of(counters, B, BLOCKS, BM, APART)
    client = client.to(tl.int64)
    m = some * BM + tl.arange(0, BM)
    j = block * BN + tl.arange(0, BN)
    gate, k = tl.arange(0, 4 * BK) // BK, tl.arange(0, 4 * BK) % BK  # of all gates
    ok = (m < B)[:, None] & (j < H)[None, :]
    unit = m[:, None] * H + j[None, :]
    w += client * (4 * H * H) + (gate * H + k)[:, None] * H + j[None, :]
    rows = tl.load(w, mask=(k < H)[:, None] & (j < H)[None, :], other=0.0)
    e = read(carry + client * B * H + unit, ok)
    bi = tl.zeros((BM, BN), tl.float32)
    bf, bg, bo = bi, bi, bi
    dh += client * dh_c + (T - 1 - first).to(tl.int64) * dh_t
    for back in tl.range(first, last, disable_licm=True):
        t = T - 1 - back
        now = (client * T + t) * B
        wide = now * (4 * H) + m[:, None] * (4 * H) + j[None, :]
        before = c0 + client * B * H
        if t > 0:
            before = cs + (now - B) * H
        i, f = ahead(gates + wide, ok), ahead(gates + wide + H, ok)
        g, o = ahead(gates + wide + 2 * H, ok), ahead(gates + wide + 3 * H, ok)
        c, c_before = ahead(cs + now * H + unit, ok), ahead(before + unit, ok)
        y = ahead(dh + m[:, None].to(tl.int64) * dh_b + j[None, :], ok)
        wait(counter, BLOCKS * (back - first))
        later = dgx + (now + B) * (4 * H)
        there = (m < B)[:, None] & (k < H)[None, :] & (back > 0)  # the last step has none behind it
        at = later + m[:, None] * (4 * H) + (gate * H + k)[None, :]
        a = tl.load(at, mask=there, other=0.0, cache_modifier=".cg")
        down = tl.dot(a, rows, tl.zeros((BM, BN), tl.float32), input_precision=PRECISION)
        di, df, dg, do, e = through(down + y.to(tl.float32), e, i, f, g, o, c, c_before)
        write(dgx + wide, di, df, dg, do, ok, H)
        arrive(counter)
        bi, bf, bg, bo = bi + di, bf + df, bg + dg, bo + do
        dh -= dh_t
    tl.store(carry + client * B * H + unit, e, mask=ok)
    db += (client * tl.cdiv(B, BM) + some) * (4 * H) + j
    add(db, bi, bf, bg, bo, j, H)


def tile(samples: int, hidden: int) -> dict[str, int]:
    """Return the sizes of a program's block: the weights of 32 hidden units, and what these are multiplied by, fit."""
    rows, deep = (max(16, triton.next_power_of_2(n)) for n in (samples, hidden))
    return {"BM": min(64, rows), "BN": min(32, deep), "BK": deep, "num_warps": 8}


def has_room(device: torch.device) -> bool:
    """Whether a multiprocessor has as much shared memory as Hopper's: a program takes 200 KB."""
    return interpreted() or torch.cuda.get_device_capability(device)[0] >= 9


def serves(kind: str, like: Tensor, hidden: int) -> bool:
    """Whether all programs for steps ``[T, C, B, ...]`` run at once and their weights fit, and this is switched on."""
    if not ON or kind != "lstm" or like.dtype != torch.bfloat16 or hidden > LONGEST:
        return False
    return (
        has_room(like.device)
        and programs(like.shape[1], like.shape[2], hidden, tile(like.shape[2], hidden)) <= MULTIPROCESSORS
    )


def programs(clients: int, samples: int, hidden: int, sizes: dict[str, int]) -> int:
    """Return how many programs a layer has."""
    return clients * triton.cdiv(samples, sizes["BM"]) * triton.cdiv(hidden, sizes["BN"])


def sums(like: Tensor, hidden: int) -> Tensor:
    """Return zeros to which the backward pass of steps ``[T, C, B, ...]`` adds the gradient by the biases."""
    blocks = triton.cdiv(like.shape[2], tile(like.shape[2], hidden)["BM"])
    return like.new_zeros(like.shape[1], blocks, 4 * hidden, dtype=torch.float32)


def run(kernel: Any, given: dict[str, Any], shape: tuple[int, int, int, int], precision: str, **how: int) -> None:
    """Launch all steps at once; interpreted, where programs run one after the other, each step by itself.

    ``shape``: steps, clients, samples and hidden units; ``how`` changes the sizes of a program's block.
    """
    steps, clients, samples, hidden = shape
    sizes = {**tile(samples, hidden), **how}
    count, named = programs(clients, samples, hidden, sizes), set(kernel.arg_names)
    counters = given["carry"].new_zeros((count + 1) * APART, dtype=torch.int32)
    each = 1 if interpreted() else steps
    for first in range(0, steps, each):
        launch(
            kernel, (count,), **{n: v for n, v in given.items() if n in named}, counters=counters,
            first=first, last=first + each, T=steps, B=samples, H=hidden, APART=APART, PRECISION=precision,
            num_stages=1, **sizes,
        )  # fmt: skip
