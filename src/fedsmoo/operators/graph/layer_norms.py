"""What stands around the backward of a LayerNorm in a traced graph, as part of it: casts, and a sum behind it.

Its gradient mostly comes from a product, in bfloat16, meets that of a residual connection, and goes to a product again.
"""

from __future__ import annotations

import operator

import torch
from torch.fx import Graph, Node

from fedsmoo.operators.graph.norms import is_sum, nodes_of
from fedsmoo.operators.graph.views import VIEWS, base, in_memory_order, laid_out_as, shown_by, tidy, value

aten, ours = torch.ops.aten, torch.ops.fedsmoo


def casts(node: Node, given: torch.dtype, made: torch.dtype) -> bool:
    """Whether a node is what another one holds in another type, in the same order in memory."""
    if node.target is not aten._to_copy.default or "memory_format" in node.kwargs:
        return False
    (of,) = node.all_input_nodes
    u, v = value(of), value(node)
    return (u.dtype, v.dtype) == (given, made) and u.device == v.device and u.stride() == v.stride()


def before_cast(graph: Graph, node: Node) -> Node | None:
    """Insert views of a bfloat16 tensor that show what a node shows of its copy in float32; ``None``: there is none."""
    views = []
    while node.target in VIEWS:
        views.append(node)
        (node,) = node.all_input_nodes
    if not casts(node, torch.bfloat16, torch.float32):
        return None
    (made,) = node.all_input_nodes
    for view in reversed(views):
        of, made = made, graph.call_function(view.target, (made, *view.args[1:]), view.kwargs)  # type: ignore[arg-type]
        made.meta["val"] = view.target(value(of), *view.args[1:], **view.kwargs)  # type: ignore[operator]
    return made


def needs(node: Node, other: Node) -> bool:
    """Whether a node is computed from another one."""
    left, seen = [node], set()
    while left:
        here = left.pop()
        if here is other:
            return True
        if here not in seen:
            seen.add(here)
            left += here.all_input_nodes
    return False


def met(call: Node, dx: Node) -> tuple[Node, Node] | None:
    """Return the sum in which a gradient by inputs ends, if it does, and what is added to it there."""
    users = shown_by(dx)
    if len(users) != 1 or value(dx).dtype != torch.float32:
        return None
    (total,) = users
    others = [n for n in nodes_of(total) if base(n) is not dx] if is_sum(total) else []
    return (total, others[0]) if len(others) == 1 and not needs(others[0], call) else None


def fuse_layer_norms(graph: Graph) -> None:
    """Let the backward of each LayerNorm take its gradient as products make it, add what it meets, and round it."""
    for call in [n for n in graph.nodes if n.target is ours.layer_norm_backward.default and len(n.args) == 5]:
        items = {n.args[1]: n for n in call.users}
        if 0 not in items:
            continue
        end, more = met(call, items[0]) or (items[0], None)
        coarse = [n for n in shown_by(end) if casts(n, torch.float32, torch.bfloat16)]
        with graph.inserting_before(call):
            more = None if more is None else in_memory_order(graph, more, tuple(value(items[0]).shape))
            dy = before_cast(graph, call.args[0]) or call.args[0]  # type: ignore[arg-type]
            new = graph.call_function(call.target, (dy, *call.args[1:], more, bool(coarse)))  # type: ignore[arg-type]
            new.meta["val"] = call.target(*(value(v) if isinstance(v, Node) else v for v in new.args))  # type: ignore[operator]
            found = [graph.call_function(operator.getitem, (new, i)) for i in range(4)]
            for i, node in enumerate(found):
                node.meta["val"] = new.meta["val"][i]
            for node in coarse:
                node.replace_all_uses_with(laid_out_as(graph, found[3], node))
            end.replace_all_uses_with(laid_out_as(graph, found[0], end))
        for i in {1, 2} & items.keys():
            items[i].replace_all_uses_with(found[i])  # type: ignore[index]
    tidy(graph)
