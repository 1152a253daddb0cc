"""Recurrent layers with a client axis, a launch for each time step: the product with the state before, gates and all.

A program computes some hidden units of some samples of one client, all gates of them together; sums are in float32 and
have a fixed order. What there is for every step lies in memory as ``[C, T, B, ...]``, so that products over all steps,
before and after the recurrence, are one for each client.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedsmoo.kernels.recurrent import cells, whole
from fedsmoo.kernels.runtime import launch

GATES = {"lstm": 4, "gru": 3, "tanh": 1, "relu": 1}


@triton.jit
def product(a, w, acc, j, k, COLS: tl.constexpr, GATE: tl.constexpr, there, PRECISION: tl.constexpr):
    """Add ``a [samples, k]`` times the rows ``GATE * COLS + j`` of ``w [G, COLS]``, transposed."""
    rows = tl.load(w + (GATE * COLS + j)[None, :] * COLS + k[:, None], mask=there, other=0.0)
    return tl.dot(a, rows, acc, input_precision=PRECISION)


@triton.jit(do_not_specialize=["t", "T", "B"])
def forward_kernel(
    gx, gx_t, gx_c, gx_b,  # [T, C, B, G]: what comes from the inputs, with its strides
    w, b, h0, carry,  # [C, G, H], [C, G], [C, B, H], of an LSTM its c [C, B, H] float32
    hs, cs, gates,  # [C, T, B, H] twice, [C, T, B, G]: written
    t, T, B, H: tl.constexpr,
    KIND: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(2).to(tl.int64)
    m = tl.program_id(1) * BM + tl.arange(0, BM)
    j = tl.program_id(0) * BN + tl.arange(0, BN)
    G: tl.constexpr = 4 if KIND == "lstm" else 3 if KIND == "gru" else 1
    w += client * (G * H * H)
    gx += t.to(tl.int64) * gx_t + client * gx_c  # a stride of 1 is a constant, which has no type
    now = (client * T + t) * B
    before = h0 + client * B * H
    if t > 0:
        before = hs + (now - B) * H
    s0 = tl.zeros((BM, BN), tl.float32)
    s1 = tl.zeros((BM, BN), tl.float32)
    s2 = tl.zeros((BM, BN), tl.float32)
    s3 = tl.zeros((BM, BN), tl.float32)
    for start in range(0, H, BK):
        k = start + tl.arange(0, BK)
        a = tl.load(before + m[:, None] * H + k[None, :], mask=(m < B)[:, None] & (k < H)[None, :], other=0.0)
        there = (k < H)[:, None] & (j < H)[None, :]
        s0 = product(a, w, s0, j, k, H, 0, there, PRECISION)
        if G > 1:
            s1 = product(a, w, s1, j, k, H, 1, there, PRECISION)
            s2 = product(a, w, s2, j, k, H, 2, there, PRECISION)
        if G > 3:
            s3 = product(a, w, s3, j, k, H, 3, there, PRECISION)
    ok = (m < B)[:, None] & (j < H)[None, :]
    x = gx + m[:, None].to(tl.int64) * gx_b + j[None, :]  # samples may lie all of their time steps apart
    unit = m[:, None] * H + j[None, :]
    wide = now * (G * H) + m[:, None] * (G * H) + j[None, :]
    bias = b + client * (G * H) + j[None, :] + m[:, None] * 0
    if KIND == "lstm":
        at = carry + client * B * H + unit
        h = cells.lstm(s0, s1, s2, s3, x, bias, at, cs + now * H + unit, gates + wide, ok, H)
    elif KIND == "gru":
        h = cells.gru(s0, s1, s2, x, bias, before + unit, cs + now * H + unit, gates + wide, ok, H)
    else:
        s0 += cells.read(x, ok) + cells.read(bias, ok)
        h = cells.tanh(s0) if KIND == "tanh" else tl.maximum(s0, 0.0, propagate_nan=tl.PropagateNan.ALL)
    tl.store(hs + now * H + unit, h, mask=ok)


@triton.jit(do_not_specialize=["t", "T", "B"])
def backward_kernel(
    dh, dh_t, dh_c, dh_b,  # [T, C, B, H]: by the outputs, with its strides
    hs, cs, gates, w, h0, c0,  # as in the forward pass
    carry,  # [C, B, H] float32: of an LSTM by c, of a GRU by h past the gates
    dgx, dgh,  # [C, T, B, G] twice: by the gates' sums, as far as inputs and the state before made them
    t, T, B, H: tl.constexpr,
    KIND: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(2).to(tl.int64)
    m = tl.program_id(1) * BM + tl.arange(0, BM)
    j = tl.program_id(0) * BN + tl.arange(0, BN)
    G: tl.constexpr = 4 if KIND == "lstm" else 3 if KIND == "gru" else 1
    ok = (m < B)[:, None] & (j < H)[None, :]
    now = (client * T + t) * B
    unit = m[:, None] * H + j[None, :]
    wide = now * (G * H) + m[:, None] * (G * H) + j[None, :]
    down = tl.zeros((BM, BN), tl.float32)
    if t + 1 < T:
        later = dgh + (now + B) * (G * H)
        w += client * (G * H * H)
        for start in range(0, G * H, BK):
            k = start + tl.arange(0, BK)
            there = (k < G * H)[None, :]
            a = tl.load(later + m[:, None] * (G * H) + k[None, :], mask=(m < B)[:, None] & there, other=0.0)
            rows = tl.load(w + k[:, None] * H + j[None, :], mask=(k < G * H)[:, None] & (j < H)[None, :], other=0.0)
            down = tl.dot(a, rows, down, input_precision=PRECISION)
    dh += t.to(tl.int64) * dh_t + client * dh_c
    down += cells.read(dh + m[:, None].to(tl.int64) * dh_b + j[None, :], ok)
    at = carry + client * B * H + unit
    if KIND == "lstm":
        before = c0 + client * B * H
        if t > 0:
            before = cs + (now - B) * H
        cells.lstm_backward(down, gates + wide, cs + now * H + unit, before + unit, at, dgx + wide, ok, H)
    elif KIND == "gru":
        before = h0 + client * B * H
        if t > 0:
            before = hs + (now - B) * H
        here = cs + now * H + unit
        cells.gru_backward(down, gates + wide, here, before + unit, at, dgx + wide, dgh + wide, ok, H)
    else:
        h = cells.read(hs + now * H + unit, ok)
        slope = 1.0 - h * h if KIND == "tanh" else tl.where(h > 0.0, 1.0, 0.0)
        tl.store(dgx + wide, down * slope, mask=ok)


def tile(samples: int, hidden: int, inner: int, kind: torch.dtype) -> dict[str, int]:
    """Return the sizes of a program's block, by a rule: samples, hidden units, and summands at a time.

    A launch has few programs, which wait for memory: as much is on its way at once as any GPU has room for.
    """
    deep = 32 if kind != torch.bfloat16 else 64 if inner <= hidden else 128
    rows = max(16, min(64, triton.next_power_of_2(samples)))
    cols, depth = (max(16, min(n, triton.next_power_of_2(v))) for n, v in ((32, hidden), (deep, inner)))
    return {"BM": rows, "BN": cols, "BK": depth, "num_warps": 4, "num_stages": 4 if kind == torch.bfloat16 else 3}


def packed(v: Tensor) -> Tensor:
    """``[T, C, ...] -> [C, T, ...]``: no copy of what lies in memory so."""
    return v.transpose(0, 1).contiguous()


def rows(v: Tensor, name: str) -> dict[str, Any]:
    """Return a tensor ``[T, C, B, ...]`` and its strides as a kernel's arguments; rows must be whole."""
    v = v if v.stride(-1) == 1 else v.contiguous()
    return {name: v, **{f"{name}_{axis}": v.stride(i) for i, axis in enumerate("tcb")}}


def forward(
    kind: str, gx: Tensor, w: Tensor, b: Tensor, h0: Tensor, c0: Tensor, precision: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``fedsmoo::recurrence``."""
    (steps, clients, samples, wide), hidden, simple = gx.shape, w.shape[-1], GATES[kind] == 1
    hs = gx.new_empty(clients, steps, samples, hidden)
    cs = gx.new_empty(clients, steps, samples, 0 if simple else hidden)
    gates = gx.new_empty(clients, steps, samples, 0 if simple else wide)
    b = b.contiguous() if b.shape[1] else b.new_zeros(w.shape[:2])
    carry = c0.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
    sizes = tile(samples, hidden, hidden, gx.dtype)
    grid = (triton.cdiv(hidden, sizes["BN"]), triton.cdiv(samples, sizes["BM"]), clients)
    given = {**rows(gx, "gx"), "w": w.contiguous(), "b": b, "h0": h0.contiguous(), "carry": carry}
    made = {"hs": hs, "cs": cs, "gates": gates}
    if whole.serves(kind, gx, hidden):
        whole.run(whole.whole_forward_kernel, given | made, (steps, clients, samples, hidden), precision)
        steps = 0  # none is left
    for t in range(steps):
        launch(
            forward_kernel, grid, **given, **made, t=t, T=steps, B=samples, H=hidden, KIND=kind, PRECISION=precision,
            **sizes,
        )  # fmt: skip
    return hs.transpose(0, 1), cs.transpose(0, 1), gates.transpose(0, 1)


def backward(
    kind: str, biased: bool, dh: Tensor, h: Tensor, c: Tensor, gates: Tensor, w: Tensor, h0: Tensor, c0: Tensor,
    dc: Tensor, precision: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return ``fedsmoo::recurrence_backward``: weights' gradients are one product over all steps."""
    (steps, clients, samples, hidden), wide = dh.shape, w.shape[1]
    hs, cs, gates, w, h0 = packed(h), packed(c), packed(gates), w.contiguous(), h0.contiguous()
    start = dc if kind == "lstm" else torch.zeros_like(dc)
    carry = start.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
    dgx = dh.new_empty(clients, steps, samples, wide)
    dgh = torch.empty_like(dgx) if kind == "gru" else dgx
    sizes = tile(samples, hidden, wide, dh.dtype)
    grid = (triton.cdiv(hidden, sizes["BN"]), triton.cdiv(samples, sizes["BM"]), clients)
    given = {**rows(dh, "dh"), "hs": hs, "cs": cs, "gates": gates, "w": w, "h0": h0, "c0": c0.contiguous()}
    made = {"carry": carry, "dgx": dgx, "dgh": dgh}
    at_once = whole.serves(kind, dh, hidden)
    if at_once:
        made["db"] = whole.sums(dh, hidden)
        whole.run(whole.whole_backward_kernel, given | made, (steps, clients, samples, hidden), precision)
    for t in range(steps - 1, -1, -1) if not at_once else ():
        launch(
            backward_kernel, grid, **given, **made, t=t, T=steps, B=samples, H=hidden, KIND=kind, PRECISION=precision,
            **sizes,
        )  # fmt: skip
    dh0, dw = torch.bmm(dgh[:, 0], w), torch.bmm(dgh[:, 0].transpose(1, 2), h0)
    if steps > 1:
        dw = torch.baddbmm(dw, dgh[:, 1:].flatten(1, 2).transpose(1, 2), hs[:, :-1].flatten(1, 2))
    if kind == "gru":
        dh0 = dh0 + carry.to(dh0.dtype)
    db = dw.new_empty(clients, 0)
    if biased:
        db = made["db"].sum(1).to(dgh.dtype) if at_once else dgh.sum((1, 2))
    return dgx.transpose(0, 1), dw, db, dh0, (carry.to(dc.dtype) if kind == "lstm" else dc.clone())
