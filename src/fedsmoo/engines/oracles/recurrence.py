"""The part of recurrent layers that goes step by step, forward and backward, of C clients at once.

Tensors have a client axis first: gates from the inputs ``[C, T, B, G]``, weights ``[C, G, H]``, states ``[C, B, H]``.
Each pass is one operator, so that no compiler unrolls its steps.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


@torch.library.custom_op("fedsmoo::recurrence", mutates_args=())
def forward(kind: str, gx: Tensor, w: Tensor, b: Tensor, h0: Tensor, c0: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return all h and c ``[C, T, B, H]``, and what the backward pass needs: gates after their functions.

    Those of a GRU end in ``h W_n + b_n``. Of a GRU and an RNN c is h.
    """
    h, c, wt = h0, c0, w.transpose(1, 2).contiguous()
    hs, cs, kept = [], [], []
    for t in range(gx.shape[1]):
        if kind == "gru":
            inner = torch.baddbmm(b[:, None], h, wt)
            xr, xz, xn = gx[:, t].chunk(3, -1)
            hr, hz, hn = inner.chunk(3, -1)
            r, z = (xr + hr).sigmoid_(), (xz + hz).sigmoid_()
            n = torch.addcmul(xn, r, hn).tanh_()
            h = c = torch.lerp(n, h, z)
            kept.append(torch.cat((r, z, n, hn), -1))
        elif kind == "lstm":
            gates = torch.baddbmm(gx[:, t], h, wt)
            i, f, g, o = gates.chunk(4, -1)
            i.sigmoid_(), f.sigmoid_(), g.tanh_(), o.sigmoid_()
            c = f * c + i * g
            h = o * c.tanh()
            kept.append(gates)
        else:
            h = c = torch.baddbmm(gx[:, t], h, wt)
            h = c = h.tanh_() if kind == "tanh" else h.relu_()
            kept.append(h[..., :0])
        hs.append(h)
        cs.append(c)
    out = torch.stack(hs, 1)
    return out, torch.stack(cs, 1) if kind == "lstm" else out.clone(), torch.stack(kept, 1)


@forward.register_fake
def _(kind: str, gx: Tensor, w: Tensor, b: Tensor, h0: Tensor, c0: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    clients, steps, samples, _ = gx.shape
    size, kept = w.shape[-1], 4 * w.shape[-1] if kind in ("lstm", "gru") else 0
    return tuple(gx.new_empty(clients, steps, samples, n) for n in (size, size, kept))  # type: ignore[return-value]


@torch.library.custom_op("fedsmoo::recurrence_backward", mutates_args=())
def backward(
    kind: str, dh: Tensor, dc: Tensor, w: Tensor, h0: Tensor, c0: Tensor, h: Tensor, c: Tensor, kept: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients by ``gx``, ``w``, ``b``, ``h0`` and ``c0``."""
    steps, outer, inner = dh.shape[1], [], []
    a, e = torch.zeros_like(h0), torch.zeros_like(c0)  # by the state after a step
    for t in range(steps - 1, -1, -1):
        down = dh[:, t] + a
        if kind == "gru":
            r, z, n, hn = kept[:, t].chunk(4, -1)
            before = h[:, t - 1] if t else h0
            dn = down * (1 - z) * (1 - n * n)
            dr, dz = dn * hn * r * (1 - r), down * (before - n) * z * (1 - z)
            outer.append(torch.cat((dr, dz, dn), -1))
            inner.append(torch.cat((dr, dz, dn * r), -1))
            a = torch.baddbmm(down * z, inner[-1], w)
        elif kind == "lstm":
            i, f, g, o = kept[:, t].chunk(4, -1)
            th, before = c[:, t].tanh(), c[:, t - 1] if t else c0
            e = e + dc[:, t] + down * o * (1 - th * th)
            parts = e * g * i * (1 - i), e * before * f * (1 - f), e * i * (1 - g * g), down * th * o * (1 - o)
            outer.append(torch.cat(parts, -1))
            a, e = torch.bmm(outer[-1], w), e * f
        else:
            slope = 1 - h[:, t].square() if kind == "tanh" else (h[:, t] > 0).to(dh.dtype)
            outer.append(down * slope)
            a = torch.bmm(outer[-1], w)
    dgx = torch.stack(outer[::-1], 1)
    dgh = torch.stack(inner[::-1], 1) if inner else dgx
    before = torch.cat((h0[:, None], h[:, :-1]), 1).flatten(1, 2)
    dw = torch.bmm(dgh.flatten(1, 2).transpose(1, 2), before)
    return dgx, dw, dgh.sum((1, 2)), a, e


@backward.register_fake
def _(
    kind: str, dh: Tensor, dc: Tensor, w: Tensor, h0: Tensor, c0: Tensor, h: Tensor, c: Tensor, kept: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    clients, steps, samples, _ = dh.shape
    gates, like = w.shape[1], dh.new_empty
    return like(clients, steps, samples, gates), like(w.shape), like(clients, gates), like(h0.shape), like(c0.shape)


class Recurrence(torch.autograd.Function):
    """One layer of one client, and under ``vmap`` of all; it cannot be differentiated twice."""

    @staticmethod
    def forward(kind: str, *given: Tensor) -> tuple[Tensor, ...]:
        return tuple(v[0] for v in forward(kind, *(v[None] for v in given)))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.kind = inputs[0]
        ctx.save_for_backward(inputs[2], *inputs[4:], *output)
        ctx.mark_non_differentiable(output[2])

    @staticmethod
    def backward(ctx: Any, dh: Tensor, dc: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        return None, *RecurrenceBackward.apply(ctx.kind, dh, dc, *ctx.saved_tensors)

    @staticmethod
    def vmap(info: Any, dims: Any, kind: str, *given: Tensor) -> tuple[Any, Any]:
        return forward(kind, *of_clients(info, dims, given)), (0, 0, 0)


class RecurrenceBackward(torch.autograd.Function):
    """The backward pass of :class:`Recurrence`."""

    @staticmethod
    def forward(kind: str, *given: Tensor) -> tuple[Tensor, ...]:
        return tuple(v[0] for v in backward(kind, *(v[None] for v in given)))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        return

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        raise NotImplementedError("second derivatives of recurrent layers in a batch of clients")

    @staticmethod
    def vmap(info: Any, dims: Any, kind: str, *given: Tensor) -> tuple[Any, Any]:
        return backward(kind, *of_clients(info, dims, given)), (0,) * 5


def of_clients(info: Any, dims: Any, given: tuple[Tensor, ...]) -> list[Tensor]:
    """Return tensors with their client axis first; what all clients share is repeated."""
    pairs = zip(given, dims[1:], strict=True)
    return [(v.expand(info.batch_size, *v.shape) if d is None else v.movedim(d, 0)).contiguous() for v, d in pairs]
