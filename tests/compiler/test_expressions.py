"""Every operation that passes know, as text: evaluated number by number, it is what PyTorch computes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from fedsmoo.compiler import NotCompiled
from fedsmoo.compiler.expressions import TRITON, triton_expression

# Triton's functions by PyTorch's, as far as the texts use them.
TL = SimpleNamespace(
    sqrt=torch.sqrt, exp=torch.exp, log=torch.log, abs=torch.abs, PropagateNan=SimpleNamespace(ALL="all"),
    where=lambda c, a, b: torch.where(c, torch.as_tensor(a, dtype=torch.float64), torch.as_tensor(b).double()),
    maximum=lambda a, b, propagate_nan: torch.maximum(a, torch.as_tensor(b, dtype=torch.float64)),
    minimum=lambda a, b, propagate_nan: torch.minimum(a, torch.as_tensor(b, dtype=torch.float64)),
)  # fmt: skip
X = torch.tensor([-2.0, -0.5, 0.0, 0.5, 1.0, 3.0, 0.5, float("nan")], dtype=torch.float64)
Y = torch.tensor([1.0, -0.5, 0.0, 2.0, -1.0, 3.0, float("nan"), 1.0], dtype=torch.float64)
FUNCTIONS = {
    "add": lambda x, y: x + y,
    "add scaled": lambda x, y: torch.add(x, y, alpha=3),
    "subtract": lambda x, y: x - y,
    "subtract scaled": lambda x, y: torch.sub(x, y, alpha=0.25),
    "subtract from": lambda x, y: 1.5 - x,
    "multiply": lambda x, y: x * y,
    "divide": lambda x, y: x / y,
    "negative": lambda x, y: -x,
    "reciprocal": lambda x, y: torch.reciprocal(x),
    "square": lambda x, y: torch.square(x),
    "power": lambda x, y: x**2,
    "root": lambda x, y: torch.sqrt(x),
    "reciprocal root": lambda x, y: torch.rsqrt(x),
    "exponential": lambda x, y: torch.exp(x),
    "logarithm": lambda x, y: torch.log(x),
    "absolute": lambda x, y: torch.abs(x),
    "sigmoid": lambda x, y: torch.sigmoid(x),
    "maximum": lambda x, y: torch.maximum(x, y),
    "minimum": lambda x, y: torch.minimum(x, y),
    "clamp": lambda x, y: x.clamp(-0.25, 0.75),
    "clamp below": lambda x, y: x.clamp(min=0.25),
    "clamp above": lambda x, y: x.clamp(max=0.25),
    "where": lambda x, y: torch.where(x > y, x, 2 * y),
    "where not": lambda x, y: torch.where(x > y, 0 * x, y),
    "greater": lambda x, y: (x > y) * 1.0,
    "greater than": lambda x, y: (x > 0.5) * 1.0,
    "greater or equal": lambda x, y: (x >= y) * 1.0,
    "at least": lambda x, y: (x >= 0.5) * 1.0,
    "less": lambda x, y: (x < y) * 1.0,
    "less than": lambda x, y: (x < 0.5) * 1.0,
    "less or equal": lambda x, y: (x <= y) * 1.0,
    "at most": lambda x, y: (x <= 0.5) * 1.0,
    "zeros": lambda x, y: torch.zeros_like(x) + y,
    "ones": lambda x, y: torch.ones_like(x) * y,
    "shapes": lambda x, y: x.unsqueeze(-1).squeeze(-1).view(-1).expand(8).clone().detach() * y,
    "truth and number": lambda x, y: (x > 0) * y + (y > 0),
}
BEYOND = {
    "floor of a quotient": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "sum of truths": lambda x, y: ((x > 0) + (y > 0)) * 1.0,
    "cube": lambda x, y: x**3,
    "sine": lambda x, y: torch.sin(x),
}


def computed(function) -> tuple[torch.Tensor, set]:
    """What the texts of a traced function come to, one after the other, and the operations it is made of."""
    graph = make_fx(function, tracing_mode="fake")(X, Y).graph
    values, given, used = {}, iter((X, Y)), set()
    for node in graph.nodes:
        if node.op == "placeholder":
            values[node] = next(given)
        elif node.op == "call_function":
            used.add(node.target)
            names = {n: f"v{k}" for k, n in enumerate(values)}
            text = triton_expression(node, lambda a, names=names: names.get(a, repr(a)) if a in names else repr(a))
            values[node] = eval(text, {"tl": TL, **{names[n]: v for n, v in values.items()}})
        elif node.op == "output":
            return torch.as_tensor(values[node.args[0]]).double().expand(8), used
    raise AssertionError


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_operation_is_its_text(name):
    found, _ = computed(FUNCTIONS[name])
    torch.testing.assert_close(found, FUNCTIONS[name](X, Y).double(), rtol=1e-14, atol=0, equal_nan=True)


def test_no_operation_is_left_out():
    squares = torch.ops.aten.square.default  # which traces show as powers
    assert set(TRITON) - {squares} <= set().union(*(computed(f)[1] for f in FUNCTIONS.values()))


@pytest.mark.parametrize("name", BEYOND)
def test_what_is_not_known_is_refused(name):
    with pytest.raises(NotCompiled):
        computed(BEYOND[name])
