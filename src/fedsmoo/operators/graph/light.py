"""Graphs that need no compiler: nearly all of their work is in operators with a client axis and in matrix products."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import Graph, GraphModule, Node

from fedsmoo.operators.graph.views import VIEWS

aten, ours = torch.ops.aten, torch.ops.fedsmoo
SECONDS = 3e-6  # of an operation on a GPU beside its bytes: its launch, and the next one waits
BANDWIDTH = 4e12  # bytes a second
SHARE = 0.1  # of the work, that other operations may be
SHOWN = {*VIEWS, aten.slice.Tensor, aten.as_strided.default, operator.getitem}
PRODUCTS = {aten.bmm.default, aten.mm.default}
# Operations besides pointwise ones that give the same bits in every call.
KNOWN = {
    aten.clone.default, aten._to_copy.default, aten.sum.dim_IntList, aten.sum.default, aten.mean.dim,
    aten._log_softmax.default, aten._log_softmax_backward_data.default, aten._softmax.default,
    aten._softmax_backward_data.default, aten.gather.default, aten.scatter.value, aten.constant_pad_nd.default,
    aten.ones_like.default, aten.zeros_like.default, aten.full_like.default, aten.scalar_tensor.default,
    aten.full.default, aten.cat.default,
}  # fmt: skip


def size(found: Any) -> int:
    """Return the bytes of a node's tensors."""
    if isinstance(found, tuple | list):
        return sum(size(v) for v in found)
    return found.numel() * found.itemsize if isinstance(found, Tensor) else 0


def is_light(graph: GraphModule) -> bool:
    """Whether a graph may run as it is: by its shapes, what a compiler would fuse takes a small share of the time."""
    work = rest = 0.0
    for node in graph.graph.nodes:
        if node.op != "call_function" or node.target in SHOWN:
            continue
        moved = (size(node.meta.get("val")) + sum(size(n.meta.get("val")) for n in node.all_input_nodes)) / BANDWIDTH
        known = isinstance(node.target, OpOverload) and (
            node.target in KNOWN or torch.Tag.pointwise in node.target.tags
        )
        if node.target in PRODUCTS or getattr(node.target, "namespace", "") == "fedsmoo":
            work += moved
        elif known:
            rest += SECONDS + moved
        else:
            return False
    return rest <= SHARE * work


def placed(graph: GraphModule) -> Node | None:
    """Return the call that makes a graph's first result, if that brings gradients to their places."""
    first = graph.graph.output_node().args[0][0]  # type: ignore[index]
    found = isinstance(first, Node) and first.target is ours.place.default and len(first.users) == 1
    return first if found else None  # type: ignore[return-value]


def writing(graph: GraphModule) -> GraphModule:
    """Return a graph of gradients, losses and more as one that writes the gradients into a last input, and the losses.

    Its first result must be :func:`placed`.
    """
    nodes = Graph()
    found: dict[Node, Node] = {}
    _, losses, *_ = nodes.graph_copy(graph.graph, found)  # type: ignore[misc]
    inputs, call = [n for n in nodes.nodes if n.op == "placeholder"], found[placed(graph)]  # type: ignore[index]
    with nodes.inserting_after(inputs[-1]):
        out = nodes.placeholder("out")
    with nodes.inserting_before(call):
        nodes.call_function(ours.place_into.default, (call.args[0], out))
    nodes.erase_node(call)
    nodes.output(losses)
    return GraphModule(graph, nodes)
