"""Layers of C clients in one call: values and gradients are those of PyTorch's function, client by client."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.nn import functional as F

from fedsmoo.core import FedsmooError
from fedsmoo.operators import functional as many

PAGE = Path(__file__).parents[2] / "docs" / "operators.md"
Case = tuple[Callable[..., Any], Callable[..., Any], list[tuple[int, ...]]]


def same(name: str, *how: Any, **more: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Ours and PyTorch's function of one name, with the same options behind their tensors."""
    return tuple(lambda *t, f=f: f(*t, *how, **more) for f in (getattr(many, name), getattr(F, name)))  # type: ignore


def recurrent(kind: str, gates: int) -> Case:
    """A layer of ours beside PyTorch's; 3 samples, 5 steps of 2 numbers, 7 units."""
    torches = {"lstm": torch.lstm, "gru": torch.gru, "rnn": torch.rnn_tanh, "relu": torch.rnn_relu}

    def ours(x: Tensor, h: Tensor, c: Tensor, *w: Tensor) -> Any:
        if kind == "lstm":
            out, (last, end) = many.lstm(x, (h, c), *w)
            return out, last, end
        more = {"nonlinearity": "relu"} if kind == "relu" else {}
        return *(many.gru if kind == "gru" else many.rnn)(x, h, *w, **more), 0 * c

    def theirs(x: Tensor, h: Tensor, c: Tensor, *w: Tensor) -> Any:
        hx = (h[None], c[None]) if kind == "lstm" else h[None]
        out, *ends = torches[kind](x, hx, w, len(w) == 4, 1, 0.0, True, False, True)
        return out, *(e[0] for e in ends), *([] if kind == "lstm" else [0 * c])

    return ours, theirs, [(3, 5, 2), (3, 7), (3, 7), (gates * 7, 2), (gates * 7, 7), (gates * 7,), (gates * 7,)]


def cell(kind: str, gates: int) -> Case:
    torches = {"lstm": torch.lstm_cell, "gru": torch.gru_cell, "rnn": torch.rnn_tanh_cell}
    ours = getattr(many, f"{kind}_cell")

    def call(f: Callable[..., Any]) -> Callable[..., Any]:
        return lambda x, h, c, *w: f(x, (h, c) if kind == "lstm" else h + c, *w)

    shapes = [(3, 2), (3, 5), (3, 5), (gates * 5, 2), (gates * 5, 5), (gates * 5,), (gates * 5,)]
    return call(ours), call(torches[kind]), shapes


INDEX = torch.tensor([[0, 4, 4], [2, 6, 4]])


def rows(**more: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Embeddings, at indices that differ by client."""

    def ours(w: Tensor, which: Tensor) -> Tensor:
        return many.embedding((INDEX + torch.arange(len(w))[:, None, None]) % 7, w, **more) * which[:, :1, None, None]

    def theirs(w: Tensor, which: Tensor) -> Tensor:
        client = int(which.detach()[1])
        return F.embedding((INDEX + client) % 7, w, **more) * which[:1, None, None]

    return ours, theirs


def normed(name: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Norms, whose weights stand behind other arguments."""
    options: dict[str, tuple[Any, ...]] = {"group_norm": (3,), "layer_norm": ((5, 2),), "batch_norm": (None, None)}
    calls = []
    for f in (getattr(many, name), getattr(F, name)):
        more = {"training": True} if name == "batch_norm" else {}
        calls.append(lambda x, *w, f=f, more=more: f(x, *options[name], *w, **more))
    return calls[0], calls[1]


# of one client: ours, PyTorch's, and the shapes of the tensors
CASES: dict[str, Case] = {
    "conv2d": (*same("conv2d", 1, 1), [(2, 3, 8, 8), (4, 3, 3, 3), (4,)]),
    "conv2d: one sample, one pixel": (*same("conv2d"), [(1, 3, 1, 1), (5, 3, 1, 1)]),
    "conv2d: primes, uneven strides": (*same("conv2d", (2, 3), (1, 2)), [(3, 11, 7, 13), (5, 11, 3, 5), (5,)]),
    "conv2d: dilated": (*same("conv2d", 2, 2, (3, 2)), [(1, 9, 11, 9), (2, 9, 3, 2), (2,)]),
    "conv2d: groups": (*same("conv2d", 2, 1, 1, 3), [(2, 6, 7, 5), (9, 2, 3, 3), (9,)]),
    "conv2d: of each channel": (*same("conv2d", 1, "same", 1, 5), [(2, 5, 4, 5), (5, 1, 2, 3), (5,)]),
    "conv2d: wide groups": (*same("conv2d", 1, "valid", 1, 2), [(2, 18, 4, 5), (22, 9, 2, 3), (22,)]),
    "conv1d": (*same("conv1d", 2, 3, 2, 2), [(2, 4, 13), (6, 2, 3), (6,)]),
    "conv1d: same": (*same("conv1d", 1, "same"), [(1, 3, 7), (2, 3, 4), (2,)]),
    "conv_transpose2d": (*same("conv_transpose2d", 2, 1, 1, 2, 1), [(2, 4, 5, 3), (4, 3, 3, 3), (6,)]),
    "max_pool2d": (*same("max_pool2d", 3, 2, 1, 1, True), [(2, 3, 7, 8)]),
    "avg_pool2d": (*same("avg_pool2d", (2, 3), 2, (1, 1), False, False), [(2, 3, 7, 5)]),
    "adaptive_avg_pool2d": (*same("adaptive_avg_pool2d", (2, 3)), [(2, 3, 7, 5)]),
    "linear": (*same("linear"), [(2, 3, 7), (5, 7), (5,)]),
    "linear of rows": (*same("linear"), [(1, 7), (5, 7)]),
    "group_norm": (*normed("group_norm"), [(2, 6, 3, 5), (6,), (6,)]),
    "group_norm of rows": (*normed("group_norm"), [(5, 6), (6,), (6,)]),
    "group_norm without weights": (*normed("group_norm"), [(1, 3, 5)]),
    "layer_norm": (*normed("layer_norm"), [(3, 2, 5, 2), (5, 2), (5, 2)]),
    "batch_norm": (*normed("batch_norm"), [(3, 4, 5, 3), (4,), (4,)]),
    "attention": (*same("scaled_dot_product_attention"), [(2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 4), (1, 3, 5, 7)]),
    "attention, causal": (*same("scaled_dot_product_attention", is_causal=True, scale=0.3), [(1, 2, 5, 4)] * 3),
    "lstm": recurrent("lstm", 4),
    "gru": recurrent("gru", 3),
    "rnn": recurrent("rnn", 1),
    "rnn of ReLUs": recurrent("relu", 1),
    "lstm without biases": (*recurrent("lstm", 4)[:2], recurrent("lstm", 4)[2][:5]),
    "gru without biases": (*recurrent("gru", 3)[:2], recurrent("gru", 3)[2][:5]),
    "lstm_cell": cell("lstm", 4),
    "gru_cell": cell("gru", 3),
    "rnn_cell": cell("rnn", 1),
    "embedding": (*rows(), [(7, 3), (2,)]),
    "embedding with padding": (*rows(padding_idx=-3), [(7, 3), (2,)]),
    "embedding by counts": (*rows(scale_grad_by_freq=True), [(7, 3), (2,)]),
}  # fmt: skip


def tensors(shapes: list[tuple[int, ...]], clients: int, name: str) -> list[Tensor]:
    torch.manual_seed(len(name))
    found = [0.5 * torch.randn(clients, *s, dtype=torch.float64) for s in shapes]
    if "embedding" in name:
        found[1][:, 1] = torch.arange(clients)  # who a client is, for PyTorch's side
    return found


def total(out: Any, dim: int) -> Tensor:
    """A number of each client, or of one, that every output moves."""
    outs = out if isinstance(out, tuple) else (out,)
    return sum((0.3 + i + o).sin().flatten(dim).sum(dim) for i, o in enumerate(outs))  # type: ignore[return-value]


@pytest.mark.parametrize("clients", [1, 3])
@pytest.mark.parametrize("name", CASES)
def test_a_function_is_pytorch_s_client_by_client(name: str, clients: int) -> None:
    ours, theirs, shapes = CASES[name]
    given = [t.requires_grad_() for t in tensors(shapes, clients, name)]
    losses = total(ours(*given), 1)
    found = torch.autograd.grad(losses.sum(), given)
    for c in range(clients):
        alone = [t[c].detach().requires_grad_() for t in given]
        loss = total(theirs(*alone), 0)
        torch.testing.assert_close(losses[c], loss, rtol=1e-12, atol=1e-12)
        for got, want in zip(found, torch.autograd.grad(loss, alone), strict=True):
            torch.testing.assert_close(got[c], want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_a_further_axis_is_further_clients(name: str) -> None:
    """``vmap`` over models of three clients each, and gradients inside of it, all as before, apart."""
    ours, _, shapes = CASES[name]
    given = [torch.stack([t, t if "embedding" in name else t.flip(0)]) for t in tensors(shapes, 3, name)]
    gradients = grad(lambda *t: total(ours(*t), 1).sum(), tuple(range(len(given))))
    found = vmap(gradients)(*given)
    for i in range(2):
        for got, want in zip(found, gradients(*(t[i] for t in given)), strict=True):
            torch.testing.assert_close(got[i], want, rtol=1e-12, atol=1e-12)


def test_running_statistics_change_in_place() -> None:
    x, mean, var = torch.randn(2, 5, 3, 4), torch.zeros(2, 3), torch.ones(2, 3)
    apart = [(torch.zeros(3), torch.ones(3)) for _ in range(2)]
    many.batch_norm(x, mean, var, training=True, momentum=0.3)
    for c, (m, v) in enumerate(apart):
        F.batch_norm(x[c], m, v, training=True, momentum=0.3)
        torch.testing.assert_close((mean[c], var[c]), (m, v))
    still = many.batch_norm(x, mean, var)
    torch.testing.assert_close(still[1], F.batch_norm(x[1], mean[1], var[1]))


def test_second_derivatives_of_convolutions() -> None:
    how, shapes = {"stride": 2, "padding": 1, "groups": 2}, ((2, 1, 2, 5, 4), (2, 4, 1, 3, 2), (2, 2, 1, 3, 2))
    x, w, turned = (torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes)
    assert torch.autograd.gradgradcheck(lambda x, w: many.conv2d(x, w, **how), (x, w), fast_mode=True)
    assert torch.autograd.gradgradcheck(lambda x, w: many.conv_transpose2d(x, w, **how), (x, turned), fast_mode=True)


def test_layers_under_torch_compile() -> None:
    """A network of most of them is one graph, whose values and gradients are those without a compiler."""
    torch.manual_seed(0)
    shapes = [(2, 3, 4, 6, 5), (2, 6, 2, 3, 3), (2, 6), (2, 8, 6), (2, 20, 8), (2, 20, 5), (2, 7, 5)]
    x, w, gamma, to, w_ih, w_hh, words = (torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes)
    index, h = torch.randint(7, (2, 3, 4)), torch.zeros(2, 3, 5, dtype=torch.float64)

    def network(*t: Tensor) -> Tensor:
        x, w, gamma, to, w_ih, w_hh, words = t
        maps = many.max_pool2d(many.group_norm(many.conv2d(x, w, None, 1, 1, 1, 2), 3, gamma), 2)
        rows = many.layer_norm(many.linear(maps.flatten(3).transpose(2, 3), to), (8,))
        out, (_, c) = many.lstm(rows, (h, h), w_ih, w_hh)
        words = many.embedding(index, words)[:, :, None]
        return many.scaled_dot_product_attention(out[:, :, None], words, words).sin().sum() + c.sum()

    given = [x, w, gamma, to, w_ih, w_hh, words]
    compiled = torch.compile(network, backend="aot_eager", fullgraph=True)
    value, want = compiled(*given), network(*given)
    torch.testing.assert_close(value, want, rtol=0, atol=1e-12)
    for got, known in zip(torch.autograd.grad(value, given), torch.autograd.grad(want, given), strict=True):
        torch.testing.assert_close(got, known, rtol=0, atol=1e-12)


def an_lstm(gates: int = 8, samples: int = 4) -> tuple[Any, ...]:
    """Return inputs of an LSTM of two clients, and its states and weights."""
    x, h = torch.ones(2, 4, 5, 3), torch.ones(2, samples, 2)
    return x, (h, h), torch.ones(2, gates, 3), torch.ones(2, gates, 2)


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "clients": (lambda: many.linear(torch.ones(2, 3, 4), torch.ones(3, 5, 4)), "inputs are of 2 clients, weight of 3"),
    "axes": (lambda: many.conv2d(torch.ones(2, 3, 4, 4), torch.ones(2, 3, 4, 1, 1)), r"inputs must be \[C B I H W\]"),
    "groups": (lambda: many.conv2d(torch.ones(1, 1, 4, 2, 2), torch.ones(1, 4, 4, 1, 1), groups=2), "4 channels in 2"),
    "turned": (lambda: many.conv_transpose2d(torch.ones(1, 1, 4, 2, 2), torch.ones(1, 3, 4, 1, 1)), "do not fit"),
    "no outputs": (lambda: many.conv_transpose2d(*[torch.ones(1, 1, 1, 2, 2)] * 2, None, 1, 2), "outputs of -1x-1"),
    "more": (lambda: many.conv_transpose2d(*[torch.ones(1, 1, 1, 2, 2)] * 2, None, 2, 0, 2), "smaller than the stride"),
    "padding": (lambda: many.conv1d(torch.ones(1, 1, 4, 2), torch.ones(1, 4, 4, 1), None, 2, "same"), "padding='same'"),
    "one weight": (lambda: many.group_norm(torch.ones(2, 3, 4), 2, torch.ones(2, 1)), r"weight must be \[2, 4\]"),
    "uneven groups": (lambda: many.group_norm(torch.ones(2, 3, 8), 3), "8 channels are not 3 groups"),
    "gates": (lambda: many.lstm(*an_lstm(gates=7)), r"w_ih must be \[2, 8, 3\] for these inputs, not \[2, 7, 3\]"),
    "state": (lambda: many.lstm(*an_lstm(samples=3)), r"lstm: h must be \[2, 4, 2\]"),
    "function": (lambda: many.rnn_cell(*[torch.ones(1, 1, 1)] * 4, nonlinearity="gelu"), "'tanh' or 'relu'"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_shapes_are_said(name: str) -> None:
    call, words = WRONG[name]
    with pytest.raises(FedsmooError, match=words):
        call()


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU ends the process")
@pytest.mark.parametrize("index", [-1, 5, 7])
def test_an_index_of_no_row_is_none_of_another_client_s(index: int) -> None:
    with pytest.raises(IndexError):
        many.embedding(torch.tensor([[0], [index], [0]]), torch.ones(3, 5, 2))


def test_the_page_shows_steps_of_every_client_and_names_every_function() -> None:
    """What docs/operators.md shows is run, and its first client trained by PyTorch alone."""
    text = PAGE.read_text(encoding="utf-8")
    (block,) = re.findall(r"^```python\n(.*?)^```", text, re.S | re.M)
    torch.manual_seed(0)
    scope: dict[str, Any] = {}
    exec(compile(block, str(PAGE), "exec"), scope)
    mine = [w.clone().requires_grad_() for w in scope["start"]]
    for _ in range(3):
        w, bias, gamma, beta, head = mine
        maps = F.group_norm(F.conv2d(scope["images"][0], w, bias, padding=1), 2, gamma, beta).relu()
        loss = F.cross_entropy(F.linear(F.max_pool2d(maps, 2).flatten(1), head), scope["labels"][0])
        steps = zip(mine, torch.autograd.grad(loss, mine), strict=True)
        mine = [(w - 0.1 * g).detach().requires_grad_() for w, g in steps]
    for got, want in zip(scope["weights"], mine, strict=True):
        torch.testing.assert_close(got[0], want, rtol=0, atol=1e-5)
    assert set(re.findall(r"`(\w+)`", text.partition("|---|")[2].partition("- **")[0])) >= {*many.__all__}
