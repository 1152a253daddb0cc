"""A traced graph for a CPU with fewer and quicker calls: a small model's step is calls more than arithmetic."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from fedsmoo.operators.graph.equal import merge_equal, writes
from fedsmoo.operators.graph.views import is_view, value

aten = torch.ops.aten
# Columns, and how much each of them adds up: with fewer of much, a product takes two to ten times as long as the
# transposed one and a copy of it.
NARROW, MUCH = 16, 1000


def lean(module: GraphModule) -> GraphModule:
    """Return a graph with the same results, to the bit, for inputs whose first has no offset in its memory.

    Calls that are made twice are made once, nothing is multiplied by one, every view is one call, products whose
    transpose is asked for are made so where that changes no bit, and operators are called by PyTorch's Python
    functions, which take half of the time of ``torch.ops``.
    """
    graph = Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    if not any(n.op == "call_function" and n.target is not operator.getitem and writes(n) for n in graph.nodes):
        merge_equal(graph)
        leave_out_ones(graph)
    transpose_products(graph)
    stride_views(graph)
    for node in graph.nodes:
        node.target = direct(node.target)
    graph.eliminate_dead_code()
    return GraphModule(module, graph)


def direct(target: Any) -> Any:
    """Return PyTorch's Python function of an operator, where it has one; else what was given."""
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten":
        return target
    return getattr(torch, target._schema.name.removeprefix("aten::"), target)


def leave_out_ones(graph: Graph) -> None:
    """Replace products with the number 1, as of the first gradient of a backward pass, by what is multiplied.

    Results of the graph stay tensors of their own.
    """
    results = set(graph.output_node().all_input_nodes)
    for node in list(graph.nodes):
        if node.target is not aten.mul.Tensor or node in results:
            continue
        for kept, other in (node.args, node.args[::-1]):
            if isinstance(kept, Node) and is_one(other) and is_laid_out_as(kept, node):
                node.replace_all_uses_with(kept)
                break
    graph.eliminate_dead_code()


def is_one(given: Any) -> bool:
    """Whether an argument is the number 1, or a tensor that is filled with it."""
    while isinstance(given, Node) and is_view(given):
        given = given.args[0]
    return given.target is aten.ones_like.default if isinstance(given, Node) else given == 1


def is_laid_out_as(one: Node, other: Node) -> bool:
    """Whether two nodes are tensors of the same shape, order of memory and type."""
    a, b = one.meta.get("val"), other.meta.get("val")
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return False
    return (a.shape, a.stride(), a.dtype) == (b.shape, b.stride(), b.dtype)


def transpose_products(graph: Graph) -> None:
    """Replace copies of transposed products, as of weights' gradients, by products of the transposed factors.

    Those that have few columns stay.
    """
    for copy in list(graph.nodes):
        turned = copy.args[0] if copy.target is aten.clone.default else None
        if not isinstance(turned, Node) or turned.target is not aten.transpose.int or turned.args[1:] != (1, 2):
            continue
        product = turned.args[0]
        if not isinstance(product, Node) or product.target is not aten.bmm.default or len(product.users) > 1:
            continue
        factors = [f for f in product.args if isinstance(f, Node)]
        if len(turned.users) > 1 or not value(copy).is_contiguous() or is_narrow(value(copy), value(factors[0])):
            continue
        if not turns_to_the_bit(*map(value, factors)):
            continue
        with graph.inserting_before(copy):
            other, one = (graph.call_function(aten.transpose.int, (f, 1, 2)) for f in reversed(factors))
            for node in (other, one):
                node.meta["val"] = value(node.all_input_nodes[0]).transpose(1, 2)
            new = graph.call_function(aten.bmm.default, (other, one))
            new.meta["val"] = value(copy)
        copy.replace_all_uses_with(new)
    graph.eliminate_dead_code()


def is_narrow(product: Tensor, factor: Tensor) -> bool:
    """Whether a product ``[C, M, N]``, of which one factor is ``[C, N, K]``, is slower to make than its transpose."""
    return product.shape[2] < NARROW and product.shape[1] * factor.shape[2] >= MUCH


def turns_to_the_bit(a: Tensor, b: Tensor) -> bool:
    """Whether products of factors laid out as these have the same bits as the transposes of the transposed products.

    Libraries add up in an order that depends on the shape, so it is tried on random numbers.
    """
    draw = torch.Generator().manual_seed(0)

    def like(v: Tensor) -> Tensor:
        room = sum((n - 1) * s for n, s in zip(v.shape, v.stride(), strict=True)) + 1
        return torch.randn(room, generator=draw, dtype=v.dtype).as_strided(v.shape, v.stride())

    if not a.dtype.is_floating_point or 0 in (*a.shape, *b.shape):
        return False
    left, right = like(a), like(b)
    product = torch.bmm(left, right).transpose(1, 2)
    return torch.equal(product, torch.bmm(right.transpose(1, 2), left.transpose(1, 2)))


def stride_views(graph: Graph) -> None:
    """Make every view one call on the tensor whose memory it shows, and equal views one."""
    first = next(iter(graph.nodes))
    made: dict[tuple[Any, ...], Node] = {}
    for node in list(graph.nodes):
        if not is_view(node) or not isinstance(node.meta.get("val"), Tensor):
            continue
        of, v = shown(node), value(node)
        if of is None or (of.op == "placeholder" and of is not first) or of.op == "get_attr" or is_written(of):
            continue
        place = list(v.shape), list(v.stride()), v.storage_offset()
        key = of, tuple(v.shape), tuple(v.stride()), v.storage_offset()
        if key[1:] == (tuple(value(of).shape), tuple(value(of).stride()), value(of).storage_offset()):
            made[key] = of
        elif key not in made:
            with graph.inserting_before(node):
                made[key] = graph.call_function(aten.as_strided.default, (of, *place))
                made[key].meta["val"] = v
        node.replace_all_uses_with(made[key])
    graph.eliminate_dead_code()


def is_written(node: Node) -> bool:
    """Whether a node is the result of an operator that writes into what it was given."""
    if node.target is operator.getitem:
        return is_written(node.args[0])  # type: ignore[arg-type]
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def shown(node: Node) -> Node | None:
    """Return the node whose memory a view shows: the first of a chain of views; ``None`` if that is not a tensor."""
    while is_view(node):
        given = node.args[0]
        if not isinstance(given, Node):
            return None
        node = given
    return node if isinstance(node.meta.get("val"), Tensor) else None
