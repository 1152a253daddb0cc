"""Views in a traced graph: which node made the memory that a node shows, and how to show memory in another order."""

from __future__ import annotations

import operator
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node
from torch.fx.node import map_arg

aten = torch.ops.aten
VIEWS = {
    aten.view.default, aten._unsafe_view.default, aten.permute.default, aten.transpose.int, aten.unsqueeze.default,
    aten.squeeze.dim, aten.squeeze.dims, aten.select.int, aten.expand.default, aten.alias.default, aten.detach.default,
}  # fmt: skip


def value(node: Node) -> Tensor:
    """Return the fake tensor of a node."""
    found: Tensor = node.meta["val"]
    return found


def is_view(node: Node) -> bool:
    """Whether a node shows the memory of its first argument."""
    if node.target is operator.getitem:
        return is_view(node.args[0])  # type: ignore[arg-type]
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return False
    shows = any(r.alias_info is not None and not r.alias_info.is_write for r in node.target._schema.returns)
    return shows or node.target is aten._unsafe_view.default


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


def same_memory(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors that show all of one memory have one shape and order."""
    return a.shape == b.shape and all(n == 1 or i == j for n, i, j in zip(a.shape, a.stride(), b.stride(), strict=True))


def shortened(graph: Graph, of: Node, node: Node) -> Node:
    """Insert a view of a dense node as another one shows its memory: by at most a permutation, a view, a permutation.

    Returns the node itself where its own chain is as short.
    """
    u, v = value(of), value(node)
    first, axes = order(u), order(v)
    sizes, back = [v.shape[i] for i in axes], sorted(range(len(axes)), key=axes.__getitem__)
    steps: list[tuple[Any, list[int]]] = [(aten.permute.default, first)] if first != sorted(first) else []
    steps += [(aten.view.default, sizes)] if sizes != [u.shape[i] for i in first] else []
    steps += [(aten.permute.default, back)] if back != sorted(back) else []
    length, here = 0, node
    while here is not of:
        length, here = length + 1, here.all_input_nodes[0]
    if length <= len(steps):
        return node
    with graph.inserting_before(node):
        for target, given in steps:
            of = graph.call_function(target, (of, given))
            of.meta["val"] = target(value(of.all_input_nodes[0]), given)
    return of


def shorten_views(graph: Graph) -> None:
    """Make chains of views as short as they can be, and equal views one: most nodes of a trace by ``vmap`` are views.

    Every stage of a compiler takes time for each node.
    """
    made: dict[tuple[Any, ...], Node] = {}
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target not in VIEWS or (of := base(node)) is node:
            continue
        v = value(node)
        key = (of, tuple(v.shape), tuple(s for n, s in zip(v.shape, v.stride(), strict=True) if n > 1))
        if same_memory(value(of), v):
            made[key] = of
        elif key not in made:
            made[key] = shortened(graph, of, node)
        if made[key] is not node:
            node.replace_all_uses_with(made[key])
    graph.eliminate_dead_code()


def with_values(graph: Graph) -> None:
    """Note the fake tensors of calls that have none yet."""
    for node in graph.nodes:
        if node.op == "call_function" and "val" not in node.meta:
            node.meta["val"] = node.target(*map_arg(node.args, value), **map_arg(node.kwargs, value))


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
