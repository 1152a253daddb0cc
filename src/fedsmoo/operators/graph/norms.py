"""What stands behind a norm in a traced graph, as part of the norm: a sum and a ReLU, forward and backward.

``relu(norm(x) + shortcut)`` is one kernel in place of two or three that read and write whole maps; so is its backward,
where gradients of several branches meet, pass the ReLU, and go on to the norm and to the shortcut.
"""

from __future__ import annotations

import operator

import torch
from torch.fx import Graph, Node

from fedsmoo.operators.graph.views import alike, base, in_memory_order, laid_out_as, shown_by, tidy, value

aten, ours = torch.ops.aten, torch.ops.fedsmoo


def nodes_of(node: Node) -> list[Node]:
    """Return the nodes among a call's arguments."""
    return [v for v in node.args if isinstance(v, Node)]


def result_of(node: Node, target: object) -> Node | None:
    """Return the call of an operator whose first result a node is."""
    if node.target is operator.getitem and node.args[1] == 0:
        call = node.args[0]
        if isinstance(call, Node) and call.target is target:
            return call
    return None


def is_sum(node: Node) -> bool:
    """Whether a node is the sum of two maps that lie alike."""
    if node.target is not aten.add.Tensor or node.kwargs or len(nodes_of(node)) != 2:
        return False
    return all(alike(v, node) for v in nodes_of(node))


def alone(relu: Node) -> tuple[Node, Node | None] | None:
    """Return the norm whose outputs only this ReLU sees, and what is added to them in between."""
    made = base(nodes_of(relu)[0])
    norm = result_of(made, ours.norm.default)
    if norm is not None:
        return (norm, None) if shown_by(made) == {relu} else None
    if not is_sum(made) or shown_by(made) != {relu}:
        return None
    for mine, other in (nodes_of(made), nodes_of(made)[::-1]):
        norm = result_of(base(mine), ours.norm.default)
        if norm is not None and shown_by(base(mine)) == {made}:
            return norm, other
    return None


def take_over(graph: Graph, old: Node, new: Node, leave: int | None = None) -> None:
    """Let all users of a call's results use those of another call, but for one result."""
    for item in list(old.users):
        place = item.args[1]
        if place != leave:
            mine = graph.call_function(operator.getitem, (new, place))
            mine.meta["val"] = value(item)
            item.replace_all_uses_with(mine)


def is_fresh(node: Node) -> bool:
    """Whether a node's memory is its own: that of no input, and no part of another node's."""
    made = node.args[0] if node.target is operator.getitem else node
    target = made.target if isinstance(made, Node) else None
    if not isinstance(target, torch._ops.OpOverload):
        return False
    return all(r.alias_info is None for r in target._schema.returns)


def without_writing(graph: Graph) -> None:
    """Make ReLUs and sums that write over what they are given ones that do not, where nobody else looks at it."""
    for node in graph.nodes:
        if node.target not in (aten.relu_.default, aten.add_.Tensor):
            continue
        made, kinds = base(nodes_of(node)[0]), {value(v).dtype for v in nodes_of(node)}
        if is_fresh(made) and shown_by(made) == {node} and len(kinds) == 1:
            node.target = aten.relu.default if node.target is aten.relu_.default else aten.add.Tensor


def fuse_forward(graph: Graph) -> None:
    """Make each ReLU that only follows a norm, or a norm and a sum, part of it."""
    for relu in [n for n in graph.nodes if n.target is aten.relu.default]:
        found = alone(relu)
        if found is None or not alike(relu, nodes_of(relu)[0]):
            continue
        norm, other = found
        item = next(n for n in norm.users if n.args[1] == 0)
        with graph.inserting_before(relu):
            add = None if other is None else in_memory_order(graph, other, tuple(value(item).shape))
            new = graph.call_function(ours.norm.default, (*norm.args[:5], add, True))
            y = graph.call_function(operator.getitem, (new, 0))
            y.meta["val"] = value(item)
            relu.replace_all_uses_with(laid_out_as(graph, y, relu))
            take_over(graph, norm, new, leave=0)


def shift_of(y: Node, backward: Node) -> Node | None:
    """Return the beta of a norm whose outputs ``y`` are, past a ReLU and with nothing added, by its backward call."""
    norm = result_of(base(y), ours.norm.default)
    if norm is None or len(norm.args) < 7 or norm.args[5] is not None or not norm.args[6]:
        return None
    beta = norm.args[2]
    same = norm.args[0] is backward.args[1] and norm.args[1] is backward.args[2]
    return beta if same and isinstance(beta, Node) else None


def fuse_backward(graph: Graph) -> None:
    """Make the gradient of a ReLU, and the sum before it, part of the first norm's backward that it goes to."""
    for relu in [n for n in graph.nodes if n.target is aten.threshold_backward.default]:
        dy, y = nodes_of(relu)
        seen_by = shown_by(relu)
        users = [n for n in graph.nodes if n in seen_by]
        norms = [n for n in users if n.target is ours.norm_backward.default and len(n.args) == 6]
        norms = [n for n in norms if [base(v) is relu for v in nodes_of(n)] == [True] + 4 * [False]]
        if not norms or relu.args[2] != 0 or not alike(relu, dy) or not alike(relu, y):
            continue
        norm = norms[0]
        shape = tuple(value(nodes_of(norm)[0]).shape)
        terms = nodes_of(base(dy)) if is_sum(base(dy)) and shown_by(base(dy)) == {relu} else [dy]
        with graph.inserting_before(norm):
            first, *more = (in_memory_order(graph, v, shape) for v in terms)
            beta, keep = shift_of(y, norm), len(users) > 1
            seen = in_memory_order(graph, y, shape) if beta is None else None
            given = (first, *norm.args[1:], seen, more[0] if more else None, keep, beta)
            new = graph.call_function(ours.norm_backward.default, given)
            take_over(graph, norm, new)
            if keep:
                kept = graph.call_function(operator.getitem, (new, 3))
                kept.meta["val"] = value(first)
                relu.replace_all_uses_with(laid_out_as(graph, kept, relu))


def fuse_norms(graph: Graph) -> None:
    """Make sums and ReLUs behind norms part of these."""
    for fuse in (fuse_forward, fuse_backward):
        fuse(graph)
        tidy(graph)
