"""Convolutions with groups and a client axis as operators: PyTorch's own numbers, client by client, in float64."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call, grad_and_value, vmap
from torch.nn import functional as F

from fedsmoo.operators.groups import choose
from fedsmoo.operators.groups.grouped import (
    by_channel,
    grouped,
    grouped_data,
    grouped_weight,
    grouped_weight_parts,
)
from fedsmoo.operators.rules import client_rules
from fedsmoo.operators.trace import called, graph_of, traced

# clients, batch, (height, width), inputs, outputs, groups, kernel, stride, padding, dilation
SHAPES: dict[str, tuple] = {
    "of each channel": (2, 3, (6, 6), 5, 5, 5, [3, 3], [1, 1], [1, 1], [1, 1]),
    "one client, one sample, one pixel": (1, 1, (1, 1), 3, 3, 3, [1, 1], [1, 1], [0, 0], [1, 1]),
    "one sample, one pixel, a kernel that is larger": (2, 1, (1, 1), 4, 6, 2, [3, 3], [1, 1], [1, 1], [1, 1]),
    "strides that do not divide": (3, 2, (7, 5), 7, 7, 7, [3, 3], [2, 3], [1, 0], [1, 1]),
    "dilated, with much padding": (2, 1, (5, 7), 4, 4, 4, [3, 2], [2, 1], [4, 3], [2, 3]),
    "two outputs of each channel": (2, 2, (5, 7), 3, 6, 3, [3, 3], [1, 2], [1, 1], [1, 1]),
    "groups of few": (2, 2, (7, 5), 6, 9, 3, [3, 3], [2, 1], [1, 1], [1, 1]),
    "groups of many": (2, 2, (5, 7), 18, 20, 2, [3, 3], [2, 1], [1, 0], [1, 2]),
    "many inputs": (1, 2, (4, 3), 66, 4, 2, [2, 2], [1, 1], [0, 0], [1, 1]),
    "many outputs": (2, 1, (4, 3), 4, 66, 2, [2, 2], [1, 1], [1, 1], [1, 1]),
}
MANY = ("groups of many", "many inputs", "many outputs")  # groups in the place of clients


def drawn(shape: tuple) -> list[Tensor]:
    """Images, weights and a gradient by the outputs, in the operators' order of axes."""
    clients, batch, size, inside, outside, groups, kernel, *how = shape
    torch.manual_seed(0)
    x = torch.randn(clients, batch, *size, inside, dtype=torch.float64)
    w = torch.randn(clients, *kernel, inside // groups, outside, dtype=torch.float64)
    high, wide = F.conv2d(torch.zeros(1, 1, *size), torch.zeros(1, 1, *kernel), None, *how).shape[-2:]
    return [x, w, torch.randn(clients, batch, high, wide, outside, dtype=torch.float64)]


def truth(x: Tensor, w: Tensor, dy: Tensor, how: list, groups: int) -> list[Tensor]:
    """Outputs and gradients of one client by PyTorch's convolution."""
    parts = [x.permute(0, 3, 1, 2).requires_grad_(), w.permute(3, 2, 0, 1).requires_grad_()]
    out = F.conv2d(*parts, None, *how, groups)
    dx, dw = torch.autograd.grad(out, parts, dy.permute(0, 3, 1, 2))
    return [out.detach().permute(0, 2, 3, 1), dx.permute(0, 2, 3, 1), dw.permute(2, 3, 1, 0)]


@pytest.mark.parametrize("name", SHAPES)
def test_products_are_pytorch_s_client_by_client(name: str) -> None:
    shape = SHAPES[name]
    (_, _, size, _, _, groups, kernel, *how), (x, w, dy) = shape, drawn(shape)
    ways = [
        (choose.convolved(x, w, *how, groups), choose.data_gradient(dy, w, list(size), *how, groups),
         choose.weight_gradient(x, dy, kernel, *how, groups)),
        (grouped(x, w, *how, groups), grouped_data(dy, w, list(size), *how, groups),
         grouped_weight_parts(x, dy, kernel, *how, groups, 1).sum(0).unflatten(1, kernel)),
    ]  # fmt: skip
    for found in ways:
        for c in range(len(x)):
            for got, want in zip(found, truth(x[c], w[c], dy[c], how, groups), strict=True):
                torch.testing.assert_close(got[c], want, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", SHAPES)
def test_under_vmap_no_convolution_has_the_groups_of_all_clients(name: str) -> None:
    """Whatever its shape, with a bias, from images and labels to gradients."""
    _, batch, size, inside, outside, groups, kernel, *how = SHAPES[name]
    layer = nn.Conv2d(inside, outside, kernel, *how, groups=groups).double()
    x = torch.randn(3, batch, inside, *size, dtype=torch.float64)
    w = [torch.randn(3, *p.shape, dtype=torch.float64) for p in layer.parameters()]

    def loss(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.conv2d(x, weight, bias, *how, groups).sin().sum()

    with client_rules():
        graph = graph_of(vmap(torch.func.grad(loss, (0, 1, 2))), x, *w)
    names = called(graph)
    assert not [n for n in names if "aten.convolution" in n]
    assert any("fedsmoo.grouped" in n for n in names) is (name not in MANY)
    found = graph(x, *w)
    for c in range(3):
        alone = [v[c].clone().requires_grad_() for v in (x, *w)]
        for got, want in zip(found, torch.autograd.grad(loss(*alone), alone), strict=True):
            torch.testing.assert_close(got[c], want, rtol=0, atol=1e-12)


def test_which_groups_are_few_channels(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU each channel alone, four and four, one and many; not eight and eight, unless there are too many of them.

    On a GPU up to sixteen and sixteen, too, and of all these only each channel alone is for kernels of our own.
    """
    shapes = [(96, 96, 96), (128, 128, 32), (4, 128, 4), (128, 128, 16), (4, 128, 2), (128, 128, 8), (128, 128, 4)]
    x = torch.empty(10, 0)
    assert [choose.has_few(x, *shape) for shape in shapes] == [True, True, True, False, False, False, False]
    assert [choose.has_few(torch.empty(n, 0), 128, 128, 16) for n in (4095, 4096)] == [False, True]
    with FakeTensorMode():
        x = torch.empty(10, 0, device="cuda")
        assert [choose.has_few(x, *shape) for shape in shapes] == [True, True, True, True, True, True, False]
    monkeypatch.setattr("fedsmoo.operators.groups.grouped.by_kernels", lambda x: True)
    assert by_channel(x, 1)
    assert not by_channel(x, 2)


@pytest.mark.parametrize("relu", [False, True])
def test_a_bias_and_a_relu_behind_it(relu: bool) -> None:
    shape = SHAPES["two outputs of each channel"]
    (*_, groups, _, s, p, d), (x, w, _) = shape, drawn(shape)
    bias = torch.randn(2, 6, dtype=torch.float64)
    found = grouped(x, w, s, p, d, groups, bias, relu)
    for c in range(2):
        want = F.conv2d(x[c].permute(0, 3, 1, 2), w[c].permute(3, 2, 0, 1), bias[c], s, p, d, groups)
        torch.testing.assert_close(found[c], (want.relu() if relu else want).permute(0, 2, 3, 1), rtol=0, atol=1e-12)


def network() -> nn.Sequential:
    """Groups of one channel, of few, and of so many that they take the place of clients."""
    first = nn.Conv2d(3, 16, 3), nn.Conv2d(16, 16, 3, 1, 1, groups=16), nn.ReLU()
    more = nn.Conv2d(16, 16, 3, groups=2), nn.Conv2d(16, 8, 3, 1, 1, groups=4)
    return nn.Sequential(*first, *more, nn.Flatten(), nn.Linear(72, 5)).double()


def flat_gradient(module: nn.Module, kind: torch.dtype | None) -> Callable[..., tuple[Tensor, Tensor]]:
    """A function of rows of weights, images and labels: gradients and losses of C clients, in a type of products."""
    shapes = {n: p.shape for n, p in module.named_parameters()}

    def loss(parts: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cpu", kind, enabled=kind is not None):
            return F.cross_entropy(functional_call(module, parts, (x,)), y)

    def flat(w: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        parts, start = {}, 0
        for name, shape in shapes.items():
            parts[name] = w[:, start : start + shape.numel()].view(len(w), *shape)
            start += shape.numel()
        gradients, losses = vmap(grad_and_value(loss))(parts, x, y)
        return torch.cat([g.reshape(len(w), -1) for g in gradients.values()], -1), losses

    return flat


@pytest.mark.parametrize("kind", [None, torch.bfloat16], ids=["float64", "bfloat16"])
def test_a_graph_of_rows_of_weights(kind: torch.dtype | None) -> None:
    """Where weights are brought into the type of products, a bias and a ReLU are part of their convolution."""
    torch.manual_seed(0)
    module, wide = network(), torch.float64 if kind is None else torch.float32
    size = sum(p.numel() for p in module.parameters())
    w, x = 0.2 * torch.randn(3, size, dtype=wide), torch.randn(3, 4, 3, 7, 7, dtype=wide)
    y = torch.randint(5, (3, 4))
    graph = traced(flat_gradient(module.to(wide), kind), w, x, y)
    names = Counter(called(graph))
    assert names["fedsmoo.grouped.default"] == names["fedsmoo.grouped_data.default"] == 2
    assert names["fedsmoo.conv.default"] == 2
    assert names["fedsmoo.cast.default"] == 1
    assert names["aten.relu.default"] == (0 if kind else 1)
    assert not [n for n in names if "aten.convolution" in n]
    found = graph(w, x, y)
    exact = flat_gradient(module.double(), None)(w.double(), x.double(), y)
    for got, want in zip(found, exact, strict=True):
        assert float((got - want).norm() / want.norm()) < (1e-13 if kind is None else 0.05)


@pytest.mark.parametrize("name", ["two outputs of each channel", "groups of few"])
def test_what_operators_say_of_themselves_is_true(name: str) -> None:
    (_, _, size, _, _, groups, kernel, *how), (x, w, dy) = SHAPES[name], drawn(SHAPES[name])
    calls = {
        grouped: (x, w, *how, groups),
        grouped_data: (dy, w, list(size), *how, groups),
        grouped_weight: (x, dy, kernel, *how, groups),
        grouped_weight_parts: (x, dy, kernel, *how, groups, 1),
    }
    for operator, given in calls.items():
        torch.library.opcheck(operator._opoverload, given, test_utils=("test_schema", "test_faketensor"))
