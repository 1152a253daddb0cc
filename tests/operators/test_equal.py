"""Calls that a graph makes twice."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from fedsmoo.operators.graph.equal import merge_equal

X = torch.arange(6.0).view(2, 3)


def merged(function):
    """Return how often each operator is called once equal calls are one, and whether the results are the same."""
    graph = make_fx(function)(X.clone())
    want = function(X.clone())
    merge_equal(graph.graph)
    graph.recompile()
    assert all(torch.equal(a, b) for a, b in zip(graph(X.clone()), want, strict=True))
    names = [str(n.target).split(".")[1] for n in graph.graph.nodes if "aten." in str(n.target)]
    return {n: names.count(n) for n in names}


def test_equal_calls_are_one_with_all_that_follows():
    assert merged(lambda x: [x.t().exp() + x.t().exp()]) == {"t": 1, "exp": 1, "add": 1}


def test_arguments_of_another_type_differ():
    assert merged(lambda x: [(x * 1).sum() + (x * 1.0).sum() + (x * True).sum()])["mul"] == 3


def test_the_signs_of_zeros_differ():
    def function(x):
        return [torch.full_like(x, 0.0).reciprocal() - torch.full_like(x, -0.0).reciprocal()]  # infinite, not 0

    assert merged(function)["full_like"] == 2


def test_what_is_read_after_a_write_is_read_again():
    def function(x):
        a = x.exp()
        x.mul_(2)
        return [a + x.exp()]

    assert merged(function) == {"exp": 2, "mul_": 1, "add": 1}


@pytest.mark.parametrize("write", ["add_", "copy_", "view", "part", "list"])
def test_what_is_written_into_stays_apart(write):
    """Two tensors that begin alike, of which one changes."""

    def function(x):
        one, two = torch.zeros_like(x), torch.zeros_like(x)
        if write == "add_":
            two.add_(x).mul_(2)
        elif write == "copy_":
            torch.exp(x, out=two)
        elif write == "view":
            two.view(-1)[1:].unsqueeze(0).add_(1)
        elif write == "part":
            two.split([1, 2], 1)[0].fill_(3)
        else:
            torch._foreach_add_([two], [x])
        return [one * 3 - two]

    assert merged(function)["zeros_like"] == 2


def test_results_and_random_numbers_stay_apart():
    assert merged(lambda x: [x.exp(), x.exp()])["exp"] == 2
    graph = make_fx(lambda x: [torch.rand_like(x) + torch.rand_like(x)])(X)
    merge_equal(graph.graph)
    assert sum("rand" in str(n.target) for n in graph.graph.nodes) == 2
