"""A function of C clients as a graph of operators with a client axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from fedsmoo.operators.cast import cast_once
from fedsmoo.operators.graph.equal import merge_equal
from fedsmoo.operators.graph.images import fuse_convolutions, fuse_pools
from fedsmoo.operators.graph.layer_norms import fuse_layer_norms
from fedsmoo.operators.graph.norms import fuse_norms, without_writing
from fedsmoo.operators.graph.views import shorten_views, with_values
from fedsmoo.operators.layers import LAYERS, Instead
from fedsmoo.operators.place import place_gradients
from fedsmoo.operators.rules import client_rules


def traced(function: Callable[..., Any], *like: Tensor) -> GraphModule:
    """Return the graph of a function that calls ``vmap`` over clients, for tensors shaped as those given.

    What the function does with Python, the mode its model is in and the precision in force are baked in; derivatives
    are part of the graph.
    """
    with client_rules(), Instead(LAYERS):
        graph = recorded(function, *like)
    nodes = graph.graph
    without_writing(nodes)
    merge_equal(nodes)  # what both passes need, such as weights in the operators' order
    fuse_pools(nodes)
    fuse_convolutions(nodes)
    fuse_norms(nodes)
    fuse_layer_norms(nodes)
    place_gradients(nodes)
    with_values(nodes)
    shorten_views(nodes)
    cast_once(nodes)
    return GraphModule(graph, nodes)


def graph_of(function: Callable[..., Any], *like: Tensor | None) -> GraphModule:
    """Return the operations of a function of tensors shaped as those given, by the rules in force."""
    graph = recorded(function, *like)
    graph.recompile()
    return graph


def recorded(function: Callable[..., Any], *like: Tensor | None) -> GraphModule:
    """Return :func:`graph_of` before Python's code is made of it again, which takes long for a large graph."""
    from torch.fx.experimental.proxy_tensor import make_fx  # with SymPy: no start of a program waits for it

    graph = make_fx(function, tracing_mode="fake", _allow_non_fake_inputs=True)(*like)
    graph.graph.eliminate_dead_code()
    return graph


def called(graph: GraphModule) -> list[str]:
    """Return the names of the operators that a graph calls, in order."""
    return [
        str(n.target)
        for n in graph.graph.nodes
        if n.op == "call_function" and isinstance(n.target, torch._ops.OpOverload)
    ]
