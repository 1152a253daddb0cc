"""Attention and recurrent layers of C clients, with samples before time steps: ``[C, B, T, ...]``."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from fedsmoo.core import FedsmooError
from fedsmoo.operators.attention import fold_attention
from fedsmoo.operators.functional.rows import linear
from fedsmoo.operators.functional.shapes import check, fit
from fedsmoo.operators.recurrence import Recurrences

Pair = tuple[Tensor, Tensor]
GATES = {"lstm": 4, "gru": 3}  # of other layers one
fold_attention()  # for vmap over the functions here


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Attend, ``[C, B, heads, T, D]``: one call of PyTorch's kernels, whose batch holds the samples of all clients.

    A mask is ``[T, S]`` for all, or ``[C, B, heads, T, S]``, where B and heads may be 1.
    """
    axes = "C B heads T D"
    check("scaled_dot_product_attention", query, axes, key=(key, axes), value=(value, axes))
    mask = attn_mask
    if mask is not None and mask.dim() > 2:
        check("scaled_dot_product_attention", query, axes, attn_mask=(mask, "C B heads T S"))
        mask = mask.expand(-1, query.shape[1], -1, -1, -1).flatten(0, 1)
    q, k, v = (t.flatten(0, 1) for t in (query, key, value))
    y = F.scaled_dot_product_attention(q, k, v, mask, is_causal=is_causal, scale=scale)
    return y.unflatten(0, query.shape[:2])


def recurrent(
    kind: str, x: Tensor, state: Pair, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None, b_hh: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return h of every step ``[C, B, T, H]``, and the last c, of one layer in one direction."""
    check(kind, x, "C B T I", w_ih=(w_ih, "C G I"), w_hh=(w_hh, "C G H"), b_ih=(b_ih, "C G"), b_hh=(b_hh, "C G"))
    check(kind, x, "C B T I", h=(state[0], "C B H"), c=(state[1], "C B H"))
    (clients, batch, _, inside), hidden = x.shape, w_hh.shape[2]
    wide, states = (clients, GATES.get(kind, 1) * hidden), (clients, batch, hidden)
    fit(kind, w_ih=(w_ih, (*wide, inside)), w_hh=(w_hh, (*wide, hidden)), b_ih=(b_ih, wide), b_hh=(b_hh, wide))
    fit(kind, h=(state[0], states), c=(state[1], states))
    apart = kind == "gru"  # whose third gate multiplies a sum that has the bias in it
    bias = b_ih if b_hh is None or apart else b_hh if b_ih is None else b_ih + b_hh
    gates = linear(x, w_ih, bias).permute(2, 0, 1, 3)
    b = b_hh if apart and b_hh is not None else gates.new_empty(len(x), 0)
    c0 = state[1].clone(memory_format=torch.contiguous_format)  # torch.compile wants h and c to be two tensors
    h, c, _, _ = Recurrences.apply(kind, gates.contiguous(), w_hh.contiguous(), b, state[0].contiguous(), c0)
    return h.permute(1, 2, 0, 3), c


def lstm(
    x: Tensor, hx: Pair, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> tuple[Tensor, Pair]:
    """Return the outputs ``[C, B, T, H]`` of one layer of an LSTM, and its last h and c, each ``[C, B, H]``.

    Weights are PyTorch's with a client axis: ``w_ih [C, 4 H, I]``, ``w_hh [C, 4 H, H]``, biases ``[C, 4 H]``. Another
    layer takes the outputs; the other direction takes ``x.flip(2)``. No second derivatives, here and below.
    """
    h, c = recurrent("lstm", x, hx, w_ih, w_hh, b_ih, b_hh)
    return h, (h[:, :, -1], c)


def gru(
    x: Tensor, h0: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the outputs of one layer of a GRU, and its last h; weights are ``[C, 3 H, ...]``."""
    h, _ = recurrent("gru", x, (h0, h0.detach()), w_ih, w_hh, b_ih, b_hh)
    return h, h[:, :, -1]


def rnn(
    x: Tensor,
    h0: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
    nonlinearity: str = "tanh",
) -> tuple[Tensor, Tensor]:
    """Return the outputs of one layer without gates, and its last h; weights are ``[C, H, ...]``."""
    if nonlinearity not in ("tanh", "relu"):
        raise FedsmooError(f"rnn: nonlinearity={nonlinearity!r}, choose 'tanh' or 'relu'")
    h, _ = recurrent(nonlinearity, x, (h0, h0.detach()), w_ih, w_hh, b_ih, b_hh)
    return h, h[:, :, -1]


def lstm_cell(
    x: Tensor, hx: Pair, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> Pair:
    """Return h and c after one step of an LSTM: inputs ``[C, B, I]``."""
    return lstm(x.unsqueeze(2), hx, w_ih, w_hh, b_ih, b_hh)[1]


def gru_cell(
    x: Tensor, h0: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> Tensor:
    """Return h after one step of a GRU: inputs ``[C, B, I]``."""
    return gru(x.unsqueeze(2), h0, w_ih, w_hh, b_ih, b_hh)[1]


def rnn_cell(
    x: Tensor,
    h0: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
    nonlinearity: str = "tanh",
) -> Tensor:
    """Return h after one step without gates: inputs ``[C, B, I]``."""
    return rnn(x.unsqueeze(2), h0, w_ih, w_hh, b_ih, b_hh, nonlinearity)[1]
