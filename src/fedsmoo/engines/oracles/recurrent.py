"""Recurrent layers of C clients at once, where PyTorch's kernels know one: LSTM, GRU, RNN, and their cells.

The inputs of all time steps go through one product; what is left for the steps one after the other is the recurrence
(:mod:`fedsmoo.operators.recurrence`). Dropout between layers draws what PyTorch's does, in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fedsmoo.core import FedsmooError
from fedsmoo.operators.graph.lean import NARROW
from fedsmoo.operators.recurrence import Recurrence

State = tuple[Tensor, ...]  # h, and of an LSTM c: [B, H]


def layers(
    kind: str,
    x: Tensor,
    hx: Any,
    weights: Any,
    biases: Any,
    count: Any,
    dropout: Any,
    train: Any,
    both: Any,
    first: Any,
) -> tuple[Tensor, ...]:
    """Return what ``torch.lstm``, ``gru``, ``rnn_tanh`` and ``rnn_relu`` do: outputs, and last states ``[L, B, H]``.

    The arguments are theirs; those of packed sequences, whose second one is a tensor of sizes, are refused.
    """
    if isinstance(biases, list | tuple):
        raise FedsmooError("packed sequences cannot be trained in a batch of clients: use engine=serial")
    states = tuple(hx) if kind == "lstm" else (hx,)
    x = x.transpose(0, 1) if first else x
    directions, last = 2 if both else 1, list[State]()
    each = len(weights) // (count * directions)
    for layer in range(count):
        outs = []
        for d in range(directions):
            i = layer * directions + d
            given = weights[each * i : each * (i + 1)]
            out, state = direction(kind, x.flip(0) if d else x, tuple(s[i] for s in states), given, biases)
            outs.append(out.flip(0) if d else out)
            last.append(state)
        x = torch.cat(outs, -1) if both else outs[0]
        if dropout and train and layer + 1 < count:
            x = F.dropout(x, dropout, True)
    ends = tuple(torch.stack(s) for s in zip(*last, strict=True))
    return (x.transpose(0, 1) if first else x, *ends)


def direction(kind: str, x: Tensor, state: State, weights: Sequence[Tensor], biases: bool) -> tuple[Tensor, State]:
    """Return the outputs ``[T, B, H]`` of one layer in one direction, and its last state."""
    w_ih, w_hh, *rest = weights
    b_ih, b_hh = rest[:2] if biases else (None, None)
    inside = kind == "gru" and b_hh is not None  # a gate of a GRU multiplies a sum that has the bias in it
    bias = b_ih if b_ih is None or b_hh is None or inside else b_ih + b_hh
    if kind == "lstm" and len(rest) in (1, 3):  # projections: rare, and so one cell after the other
        return projected(x, state, w_ih, w_hh, bias, rest[-1])
    if torch.is_autocast_enabled(x.device.type):
        x = x.contiguous()  # or a bias is added by itself, in float32, and all that follows is
    if not inside and adds_bias(x):
        gates, b = F.linear(x, w_ih), bias
    else:
        gates, b = of_inputs(x, w_ih, bias), b_hh if inside else None
    b = gates.new_empty(0) if b is None else b
    h, c, *_ = Recurrence.apply(kind, gates, *(v.to(gates.dtype) for v in (w_hh, b, state[0], state[-1])))
    return h, (h[-1], c) if kind == "lstm" else (h[-1],)


def of_inputs(x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
    """Return ``F.linear`` of all time steps.

    With few inputs, as of characters, it is a plain product: of that, the gradient by the weights is a product with few
    rows, which on a CPU takes a third of the time of one with few columns.
    """
    if x.device.type != "cpu" or x.shape[-1] >= NARROW:
        return F.linear(x, w, bias)
    sums = (x.flatten(0, 1) @ w.t().contiguous()).unflatten(0, x.shape[:2])
    return sums if bias is None else sums + bias


def adds_bias(x: Tensor) -> bool:
    """Whether the recurrence adds a bias on its way: kernels do; on a CPU it is part of the inputs' product."""
    return x.device.type == "cuda"


def projected(
    x: Tensor, state: State, w_ih: Tensor, w_hh: Tensor, bias: Tensor | None, w_hr: Tensor
) -> tuple[Tensor, State]:
    """Return the outputs and the last state of a layer of an LSTM with ``proj_size``."""
    (h, c), out = state, []
    for gates in F.linear(x, w_ih, bias).unbind(0):
        h, c = lstm_gates(gates + F.linear(h, w_hh), c)
        h = F.linear(h, w_hr)
        out.append(h)
    return torch.stack(out), (h, c)


def lstm_gates(gates: Tensor, c: Tensor) -> State:
    """Return h and c after a step of an LSTM, from its gates ``[B, 4 H]``."""
    i, f, g, o = gates.chunk(4, -1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def lstm_cell(x: Tensor, hx: Any, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None, b_hh: Tensor | None) -> State:
    """``torch.lstm_cell``."""
    return lstm_gates(F.linear(x, w_ih, b_ih) + F.linear(hx[0], w_hh, b_hh), hx[1])


def gru_cell(x: Tensor, h: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None, b_hh: Tensor | None) -> Tensor:
    """``torch.gru_cell``."""
    xr, xz, xn = F.linear(x, w_ih, b_ih).chunk(3, -1)
    hr, hz, hn = F.linear(h, w_hh, b_hh).chunk(3, -1)
    n = (xn + (xr + hr).sigmoid() * hn).tanh()
    return n + (xz + hz).sigmoid() * (h - n)


def rnn_cell(
    act: Callable[[Tensor], Tensor], x: Tensor, h: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Any, b_hh: Any
) -> Tensor:
    """``torch.rnn_tanh_cell`` and ``torch.rnn_relu_cell``."""
    return act(F.linear(x, w_ih, b_ih) + F.linear(h, w_hh, b_hh))


RECURRENT: dict[Any, Callable[..., Any]] = {
    torch.lstm: partial(layers, "lstm"),
    torch.gru: partial(layers, "gru"),
    torch.rnn_tanh: partial(layers, "tanh"),
    torch.rnn_relu: partial(layers, "relu"),
    torch.lstm_cell: lstm_cell,
    torch.gru_cell: gru_cell,
    torch.rnn_tanh_cell: partial(rnn_cell, torch.tanh),
    torch.rnn_relu_cell: partial(rnn_cell, torch.relu),
}
