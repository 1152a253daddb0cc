"""Views in a traced graph: which node made the memory that a node shows, and how to show memory in another order."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor
from torch.fx import Graph, Node

aten = torch.ops.aten
VIEWS = {
    aten.view.default, aten._unsafe_view.default, aten.permute.default, aten.transpose.int, aten.unsqueeze.default,
    aten.squeeze.dim, aten.squeeze.dims, aten.select.int, aten.expand.default, aten.alias.default, aten.detach.default,
}  # fmt: skip


def value(node: Node) -> Tensor:
    """Return the fake tensor of a node."""
    found: Tensor = node.meta["val"]
    return found


def order(v: Tensor) -> list[int]:
    """Return the axes of a tensor as they lie in memory, the slowest first; of those of one element, as they come."""
    strides = v.stride()
    return sorted(range(v.dim()), key=lambda i: (-strides[i] if v.shape[i] > 1 else -(2**62), i))


def dense(v: Tensor) -> bool:
    """Whether a tensor's elements fill its memory, in whichever order of axes."""
    filled = 1
    for size, stride in sorted(((n, s) for n, s in zip(v.shape, v.stride(), strict=True) if n > 1), key=lambda p: p[1]):
        if stride != filled:
            return False
        filled *= size
    return True


def alike(a: Node, b: Node) -> bool:
    """Whether two maps have one shape and order in memory, and one type."""
    u, v = value(a), value(b)
    if u.shape != v.shape or u.dtype != v.dtype or not dense(u):
        return False
    return all(n == 1 or i == j for n, i, j in zip(u.shape, u.stride(), v.stride(), strict=True))


def base(node: Node) -> Node:
    """Return the node whose elements, all of them, a chain of views shows: in the same places of the same memory."""
    while node.op == "call_function" and node.target in VIEWS:
        of = node.args[0]
        assert isinstance(of, Node)
        if prod(value(of).shape) != prod(value(node).shape) or not dense(value(of)) or not dense(value(node)):
            return node
        node = of
    return node


def shown_by(node: Node) -> set[Node]:
    """Return what uses a node's memory other than as another view of all of it."""
    found = set()
    for user in node.users:
        if user.op == "call_function" and user.target in VIEWS and base(user) is base(node):
            found |= shown_by(user)
        else:
            found.add(user)
    return found


def in_memory_order(graph: Graph, node: Node, shape: tuple[int, ...]) -> Node:
    """Insert a view of a dense node's memory as a contiguous tensor of a shape."""
    flat = graph.call_function(aten.permute.default, (node, order(value(node))))
    out = graph.call_function(aten.view.default, (flat, list(shape)))
    out.meta["val"] = value(node).permute(order(value(node))).view(shape)
    return out


def laid_out_as(graph: Graph, node: Node, like: Node) -> Node:
    """Insert a view of a contiguous node's memory in the shape and order of axes of another, dense one."""
    axes = order(value(like))
    sizes = [value(like).shape[i] for i in axes]
    there = graph.call_function(aten.view.default, (node, sizes))
    back = sorted(range(len(axes)), key=axes.__getitem__)
    out = graph.call_function(aten.permute.default, (there, back))
    out.meta["val"] = value(node).view(sizes).permute(back)
    there.meta["val"] = value(node).view(sizes)
    return out


def tidy(graph: Graph) -> None:
    """Bring nodes behind those they use, in the order they have otherwise, and leave out those that nothing uses."""
    done: dict[Node, None] = {}

    def visit(node: Node) -> None:
        for given in node.all_input_nodes:
            if given not in done:
                visit(given)
        done[node] = None

    *nodes, end = graph.nodes
    for node in nodes:
        if node not in done:
            visit(node)
    for node in done:
        end.prepend(node)
    graph.eliminate_dead_code()
