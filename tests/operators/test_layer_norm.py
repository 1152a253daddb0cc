"""LayerNorm whose backward is one operator: gradients of whole modules, and what of the graph becomes part of it."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn import functional as F

from fedsmoo.engines.oracles.products import WHOLE
from fedsmoo.operators import norm, trace
from fedsmoo.operators.graph.views import value
from fedsmoo.operators.layers import Instead
from fedsmoo.operators.trace import called, traced

CLIENTS, BATCH, TOKENS, WIDTH = 3, 4, 5, 6


@pytest.fixture
def ours(monkeypatch):
    """Take the operator, whatever was timed."""

    def known(x, shape, *weights):
        return len(shape) == 1 and None not in weights

    monkeypatch.setattr(norm, "is_ours", known)


class Block(nn.Module):
    """Two residual branches, each behind a norm or before one; the first wants tokens before samples in memory."""

    def __init__(self, first):
        super().__init__()
        self.first = first
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.tokens, self.numbers = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def mix(self, x):
        return self.tokens(x.transpose(0, 1)).tanh().cumsum(0).transpose(0, 1)

    def forward(self, x):
        if self.first:
            x = x + self.mix(self.norms[0](x))
            return x + self.numbers(self.norms[1](x)).tanh()
        x = self.norms[0](x + self.mix(x))
        return self.norms[1](x + self.numbers(x).tanh())


class Network(nn.Module):
    def __init__(self, first, last):
        super().__init__()
        self.begin, self.blocks = nn.Linear(WIDTH, WIDTH), nn.Sequential(Block(first), Block(first))
        self.norm, self.head = last, nn.Linear(WIDTH, 5)

    def forward(self, x):
        return self.head(self.norm(self.blocks(self.begin(x))).mean(1))


NETWORKS = {
    "norms before branches": (lambda: Network(True, nn.LayerNorm(WIDTH)), 5),
    "norms behind branches": (lambda: Network(False, nn.Identity()), 4),
    "norms that are not ours": (lambda: Network(True, nn.LayerNorm((TOKENS, WIDTH), bias=False)), 4),
}


def gradient(module, cast=False):
    """Return a flat gradient of C clients, and arguments."""
    parts = {n: p.detach() for n, p in module.named_parameters()}
    sizes = [p.numel() for p in parts.values()]

    def loss(given, x, y):
        return F.cross_entropy(functional_call(module, given, (x,)), y)

    def flat(w, x, y):
        given = {n: v.view(CLIENTS, *p.shape) for (n, p), v in zip(parts.items(), w.split(sizes, 1), strict=True)}
        with torch.autocast("cpu", torch.bfloat16, enabled=cast), Instead(WHOLE if cast else {}):
            grads, losses = vmap(grad_and_value(loss))(given, x, y)
        return torch.cat([g.reshape(CLIENTS, -1) for g in grads.values()], -1), losses

    draw = torch.Generator().manual_seed(0)
    kind = next(iter(parts.values())).dtype
    w = torch.cat([p.flatten() for p in parts.values()])
    w = w + 0.1 * torch.randn(CLIENTS, len(w), generator=draw, dtype=kind)
    x = torch.randn(CLIENTS, BATCH, TOKENS, WIDTH, generator=draw, dtype=kind)
    return flat, loss, (w, x, torch.randint(5, (CLIENTS, BATCH), generator=draw))


@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_of_a_module(name, ours):
    torch.manual_seed(0)
    make, norms = NETWORKS[name]
    module = make().double()
    flat, loss, (w, x, y) = gradient(module)
    graph = traced(flat, w, x, y)
    assert called(graph).count("fedsmoo.layer_norm_backward.default") == norms
    assert ("aten.native_layer_norm_backward.default" in called(graph)) == ("not ours" in name)
    got, losses = graph(w, x, y)
    for c in range(CLIENTS):  # by PyTorch, one client after the other
        mine = {}
        at = 0
        for n, p in module.named_parameters():
            mine[n] = w[c, at : at + p.numel()].view(p.shape).clone().requires_grad_()
            at += p.numel()
        one = loss(mine, x[c], y[c])
        want = torch.autograd.grad(one, list(mine.values()))
        torch.testing.assert_close(losses[c], one.detach(), rtol=0, atol=1e-13)
        torch.testing.assert_close(got[c], torch.cat([v.flatten() for v in want]), rtol=0, atol=1e-13)


def test_casts_and_sums_around_it_are_part_of_it(ours, monkeypatch):
    """Products make what all but the last read; three meet a residual's gradient, and four are asked for bfloat16."""
    torch.manual_seed(0)
    flat, _, given = gradient(NETWORKS["norms before branches"][0](), cast=True)
    graph = traced(flat, *given)
    calls = [n for n in graph.graph.nodes if "layer_norm_backward" in str(n.target)]
    last, *others = ([value(n.args[0]).dtype, n.args[5] is not None, n.args[6]] for n in calls)
    assert last == [torch.float32, False, True]  # its gradient is a mean's
    assert [v[0] for v in others] == [torch.bfloat16] * 4
    assert [v[1:] for v in others] == [[True, False], [True, True], [True, True], [False, True]]
    monkeypatch.setattr(trace, "fuse_layer_norms", lambda graph: None)
    plain = traced(flat, *given)
    assert called(graph).count("aten.add.Tensor") == called(plain).count("aten.add.Tensor") - 3
    for a, b in zip(graph(*given), plain(*given), strict=True):
        assert torch.equal(a, b)


def test_only_widths_that_were_timed_take_it(monkeypatch):
    kernels = pytest.importorskip("fedsmoo.kernels.norms.layer")
    flat, _, given = gradient(NETWORKS["norms before branches"][0]())
    monkeypatch.setattr(norm, "by_kernels", lambda x: x.dtype == torch.float32)
    for tiles, count in (({}, 0), ({16: kernels.Tile(8, 4, 4)}, 0), ({8: kernels.Tile(8, 4, 4)}, 5)):
        monkeypatch.setattr(kernels, "TILES", tiles)
        assert called(traced(flat, *given)).count("fedsmoo.layer_norm_backward.default") == count
