"""The part of recurrent layers that goes step by step, forward and backward, of C clients at once.

What there is for every time step is ``[T, C, B, ...]``. On a GPU it lies in memory as ``[C, T, B, ...]``, so that
products over all steps need no copies; on a CPU only the inputs' gradient does, and a step's part of all else is one
block. Weights are ``[C, G, H]``, states ``[C, B, H]``. Each pass is one operator: no compiler unrolls its steps.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedsmoo.operators.convolution import by_kernels, precision_of

sigmoid_backward = torch.ops.aten.sigmoid_backward.grad_input
tanh_backward = torch.ops.aten.tanh_backward.grad_input


def room(like: Tensor, size: int) -> Tensor:
    """Return an empty tensor of as many steps, clients and samples as another has, in the device's order of memory."""
    steps, clients, samples = like.shape[:3]
    if like.device.type == "cuda":
        return by_client(like, size)
    return like.new_empty(steps, clients, samples, size)


def by_client(like: Tensor, size: int) -> Tensor:
    """Return such a tensor whose memory has all steps of a client side by side, as products over steps want them."""
    steps, clients, samples = like.shape[:3]
    return like.new_empty(clients, steps, samples, size).transpose(0, 1)


@torch.library.custom_op("fedsmoo::recurrence", mutates_args=())
def forward(kind: str, gx: Tensor, w: Tensor, b: Tensor, h0: Tensor, c0: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return all h, and what the backward pass needs: c (of a GRU ``h W_n + b_n``), and gates after their functions.

    ``gx`` are the gates' sums as far as they come from the inputs; ``b [C, G]`` is added to them, of a GRU to its
    products. It may be ``[C, 0]``: none.
    """
    if by_kernels(gx):
        from fedsmoo.kernels.recurrent.steps import forward as by_steps

        return by_steps(kind, gx, w, b, h0, c0, precision_of(gx))
    h, c, wt, size = h0, c0, w.transpose(1, 2), w.shape[-1]
    gates = room(gx, gx.shape[-1])
    torch.add(gx, b[:, None], out=gates) if kind != "gru" and b.shape[1] else gates.copy_(gx)
    b = b if b.shape[1] else b.new_zeros(w.shape[:2])
    hs = gates if kind in ("tanh", "relu") else room(gx, size)
    cs = room(gx, size if hs is not gates else 0)
    each = [part.unbind(0) for part in gates.split(size, -1)]  # by gate and step: no step makes views of its own
    both = gates[..., : 2 * size].unbind(0)  # two gates that are neighbours and have one function
    for t, (now, after) in enumerate(zip(gates.unbind(0), cs.unbind(0), strict=True)):
        if kind == "lstm":
            now.baddbmm_(h, wt)
            both[t].sigmoid_(), each[2][t].tanh_(), each[3][t].sigmoid_()
            c = torch.addcmul(each[0][t] * each[2][t], each[1][t], c, out=after)
            torch.mul(each[3][t], c.tanh(), out=hs[t])
        elif kind == "gru":
            found = torch.baddbmm(b[:, None], h, wt)
            both[t].add_(found[..., : 2 * size]).sigmoid_()
            n = each[2][t].addcmul_(each[0][t], after.copy_(found[..., 2 * size :])).tanh_()
            torch.lerp(n, h, each[1][t], out=hs[t])
        else:
            now.baddbmm_(h, wt)
            now.tanh_() if kind == "tanh" else now.relu_()
        h = hs[t]
    return hs, cs, gates if hs is not gates else room(gx, 0)


@forward.register_fake
def _(kind: str, gx: Tensor, w: Tensor, b: Tensor, h0: Tensor, c0: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    size, plain = w.shape[-1], kind in ("tanh", "relu")
    sizes = size, 0 if plain else size, 0 if plain else gx.shape[-1]
    return tuple(room(gx, n) for n in sizes)  # type: ignore[return-value]


@torch.library.custom_op("fedsmoo::recurrence_backward", mutates_args=())
def backward(
    kind: str, biased: bool, dh: Tensor, h: Tensor, c: Tensor, gates: Tensor, w: Tensor, h0: Tensor, c0: Tensor,
    dc: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients by ``gx``, ``w``, ``b`` (if there is one), ``h0`` and ``c0``; ``dc`` is by the last c."""
    if by_kernels(dh):
        from fedsmoo.kernels.recurrent.steps import backward as by_steps

        return by_steps(kind, biased, dh, h, c, gates, w, h0, c0, dc, precision_of(dh))
    dgx, dgh = by_client(dh, w.shape[1]), room(dh, w.shape[1])
    if kind == "lstm":
        a, e = lstm_backward(dh, c, gates, w, c0, dc, dgh)
    else:
        a = gru_backward(dh, h, c, gates, w, h0, dgx, dgh) if kind == "gru" else plain_backward(kind, dh, h, w, dgh)
        e = dc.clone()
    sums = dgh.transpose(0, 1).flatten(1, 2) if kind == "gru" else dgx.copy_(dgh).transpose(0, 1).flatten(1, 2)
    dw = torch.bmm(sums.transpose(1, 2), torch.cat((h0[None], h[:-1])).transpose(0, 1).flatten(1, 2))
    return dgx, dw, sums.sum(1) if biased else dw.new_empty(len(w), 0), a, e


def lstm_backward(
    dh: Tensor, c: Tensor, gates: Tensor, w: Tensor, c0: Tensor, dc: Tensor, dgh: Tensor
) -> tuple[Tensor, Tensor]:
    """Fill ``dgh`` with the gradient by the gates' sums; return those by the first states.

    What gates are multiplied by is computed for all steps at once: little is left that waits for the step behind.
    """
    (i, f, g, o), (di, df, dg, do), th = gates.chunk(4, -1), dgh.chunk(4, -1), c.tanh()
    sigmoid_backward(g, i, grad_input=di), sigmoid_backward(torch.cat((c0[None], c[:-1])), f, grad_input=df)
    tanh_backward(i, g, grad_input=dg), sigmoid_backward(th, o, grad_input=do)
    through, four = torch.ops.aten.tanh_backward(o, th), dgh.unflatten(-1, (4, -1))
    three, last, fs, throughs = (v.unbind(0) for v in (four[..., :3, :], do, f, through))
    a, e, steps = torch.zeros_like(c0), dc, zip(dh.unbind(0), dgh.unbind(0), strict=True)
    for t, (ahead, now) in reversed(list(enumerate(steps))):
        down = ahead + a
        e = torch.addcmul(e, down, throughs[t])
        three[t].mul_(e.unsqueeze(-2)), last[t].mul_(down)
        a, e = torch.bmm(now, w), e * fs[t]
    return a, e


def gru_backward(
    dh: Tensor, h: Tensor, c: Tensor, gates: Tensor, w: Tensor, h0: Tensor, dgx: Tensor, dgh: Tensor
) -> Tensor:
    """Fill ``dgx`` and ``dgh``, the gradients by what inputs and states add to the gates' sums; return that by h0."""
    (r, z, n), a = gates.chunk(3, -1), torch.zeros_like(h0)
    fr, fz, fn = dgx.chunk(3, -1)
    tanh_backward(1 - z, n, grad_input=fn), sigmoid_backward(torch.cat((h0[None], h[:-1])) - n, z, grad_input=fz)
    sigmoid_backward(c * fn, r, grad_input=fr)
    dgh.copy_(dgx)[..., 2 * z.shape[-1] :].mul_(r)
    three, zs, downs = dgh.unflatten(-1, (3, -1)).unbind(0), z.unbind(0), room(dh, dh.shape[-1])
    for t, (ahead, now) in reversed(list(enumerate(zip(dh.unbind(0), dgh.unbind(0), strict=True)))):
        down = torch.add(ahead, a, out=downs[t])
        three[t].mul_(down.unsqueeze(-2))
        a = torch.baddbmm(down * zs[t], now, w)
    dgx.unflatten(-1, (3, -1)).mul_(downs.unsqueeze(-2))
    return a


def plain_backward(kind: str, dh: Tensor, h: Tensor, w: Tensor, dgh: Tensor) -> Tensor:
    """Fill ``dgh``, of an RNN without gates; return the gradient by the first state."""
    dgh.copy_(1 - h.square() if kind == "tanh" else h > 0)
    a = torch.zeros_like(dh[0])
    for ahead, now in reversed(list(zip(dh.unbind(0), dgh.unbind(0), strict=True))):
        a = torch.bmm(now.mul_(ahead + a), w)
    return a


@backward.register_fake
def _(
    kind: str, biased: bool, dh: Tensor, h: Tensor, c: Tensor, gates: Tensor, w: Tensor, h0: Tensor, c0: Tensor,
    dc: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    new = dh.new_empty
    db = new(len(w), w.shape[1] if biased else 0)
    return by_client(dh, w.shape[1]), new(w.shape), db, new(h0.shape), new(c0.shape)


class Recurrence(torch.autograd.Function):
    """One layer of one client, and under ``vmap`` of all: h of every step, the last c, and two for the backward pass.

    It cannot be differentiated twice.
    """

    @staticmethod
    def forward(kind: str, *given: Tensor) -> tuple[Tensor, ...]:
        return tuple(v.squeeze(v.dim() - 3) for v in with_last(kind, *alone(given, 1)))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        (ctx.kind, _, w, b, h0, c0), (h, _, c, gates) = inputs, output
        ctx.biased = b.shape[-1] > 0
        ctx.save_for_backward(h, c, gates, w, h0, c0)
        ctx.mark_non_differentiable(c, gates)

    @staticmethod
    def backward(ctx: Any, dh: Tensor, dc: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        return None, *RecurrenceBackward.apply(ctx.kind, ctx.biased, dh, *ctx.saved_tensors, dc)

    @staticmethod
    def vmap(info: Any, dims: Any, kind: str, *given: Tensor) -> tuple[Any, Any]:
        return Recurrences.apply(kind, *of_clients(info, dims, given, 1)), (1, 0, 1, 1)


class RecurrenceBackward(torch.autograd.Function):
    """The backward pass of :class:`Recurrence`."""

    @staticmethod
    def forward(kind: str, biased: bool, *given: Tensor) -> tuple[Tensor, ...]:
        found = backward(kind, biased, *alone(given, 4))
        return found[0].squeeze(1), *(v.squeeze(0) for v in found[1:])

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        return

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        raise NotImplementedError("second derivatives of recurrent layers in a batch of clients")

    @staticmethod
    def vmap(info: Any, dims: Any, kind: str, biased: bool, *given: Tensor) -> tuple[Any, Any]:
        return backward(kind, biased, *of_clients(info, dims, given, 4)), (1, 0, 0, 0, 0)


class Recurrences(torch.autograd.Function):
    """One layer of C clients, as :class:`Recurrence` is one of one; ``vmap`` folds a further axis into theirs."""

    setup_context = staticmethod(Recurrence.setup_context)

    @staticmethod
    def forward(kind: str, gx: Tensor, w: Tensor, b: Tensor, h0: Tensor, c0: Tensor) -> tuple[Tensor, ...]:
        return with_last(kind, gx, w, b, h0, c0)

    @staticmethod
    def backward(ctx: Any, dh: Tensor, dc: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        dh = dh if dh.stride(-1) == 1 else dh.contiguous()
        return None, *RecurrencesBackward.apply(ctx.kind, ctx.biased, dh, *ctx.saved_tensors, dc.contiguous())

    @staticmethod
    def vmap(info: Any, dims: Any, kind: str, *given: Tensor) -> tuple[Any, Any]:
        return folded(info, Recurrences.apply(kind, *more_clients(info, dims, given, 1)), (1, 0, 1, 1))


class RecurrencesBackward(torch.autograd.Function):
    """The backward pass of :class:`Recurrences`."""

    setup_context = staticmethod(RecurrenceBackward.setup_context)

    @staticmethod
    def forward(
        kind: str, biased: bool, dh: Tensor, h: Tensor, c: Tensor, gates: Tensor, w: Tensor, h0: Tensor, c0: Tensor,
        dc: Tensor,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        return backward(kind, biased, dh, h, c, gates, w, h0, c0, dc)

    backward = staticmethod(RecurrenceBackward.backward)

    @staticmethod
    def vmap(info: Any, dims: Any, kind: str, biased: bool, *given: Tensor) -> tuple[Any, Any]:
        found = RecurrencesBackward.apply(kind, biased, *more_clients(info, dims, given, 4))
        return folded(info, found, (1, 0, 0, 0, 0))


def more_clients(info: Any, dims: Any, given: tuple[Tensor, ...], timed: int) -> list[Tensor]:
    """Return tensors of C clients each with the axis of ``vmap`` as part of their axis of clients."""
    found = of_clients(info, dims, given, timed)
    return [v.flatten(1, 2) if i < timed else v.flatten(0, 1) for i, v in enumerate(found)]


def folded(info: Any, found: tuple[Tensor, ...], axes: tuple[int, ...]) -> tuple[Any, Any]:
    """Return results whose axis of clients is two, that of ``vmap`` first, and where it is."""
    return tuple(v.unflatten(a, (info.batch_size, -1)) for v, a in zip(found, axes, strict=True)), axes


def with_last(kind: str, *given: Tensor) -> tuple[Tensor, ...]:
    """Return all h, the last c (of a GRU and an RNN its c0, which is none), and what the backward pass needs."""
    h, c, gates = forward(kind, *given)
    return h, (c[-1] if kind == "lstm" else given[-1]).clone(), c, gates


def alone(given: tuple[Tensor, ...], timed: int) -> list[Tensor]:
    """Return the tensors of one client with a client axis; the first ``timed`` ones are of all time steps."""
    return [v.unsqueeze(1 if i < timed else 0) for i, v in enumerate(given)]


def of_clients(info: Any, dims: Any, given: tuple[Tensor, ...], timed: int) -> list[Tensor]:
    """Return tensors with their client axis as :func:`alone` puts it; what all clients share is repeated."""

    def placed(v: Tensor, dim: int | None, axis: int) -> Tensor:
        if dim is not None:
            v = v.movedim(dim, axis)
            takes_strides = axis or v.device.type == "cpu"  # kernels take weights and states as one block
            return v if takes_strides and v.stride(-1) == 1 else v.contiguous()
        sizes = *v.shape[:axis], info.batch_size, *v.shape[axis:]
        return v.unsqueeze(axis).expand(sizes).contiguous()

    pairs = zip(given, dims[-len(given) :], strict=True)
    return [placed(v, d, 1 if i < timed else 0) for i, (v, d) in enumerate(pairs)]
