"""Calls of a traced graph that are made twice, once."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from fedsmoo.operators.graph.views import is_view

aten = torch.ops.aten
UNSAID = {aten.empty.memory_format, aten.empty_like.default, aten.new_empty.default, aten.empty_strided.default}


def frozen(given: Any) -> Any:
    """Return arguments as something that can be compared: numbers of different types differ, and so do 0.0 and -0.0."""
    if isinstance(given, list | tuple):
        return tuple(frozen(v) for v in given)
    if isinstance(given, dict):
        return tuple((name, frozen(v)) for name, v in sorted(given.items()))
    if isinstance(given, slice):
        return slice, frozen((given.start, given.stop, given.step))
    if isinstance(given, float):
        return float, given.hex()
    return given if isinstance(given, Node) else (type(given), given)


def writes(node: Node) -> bool:
    """Whether a call changes something that it is given."""
    return not isinstance(node.target, OpOverload) or node.target._schema.is_mutable


def repeats(node: Node) -> bool:
    """Whether a call has the same result every time."""
    return node.target not in UNSAID and torch.Tag.nondeterministic_seeded not in node.target.tags  # type: ignore[union-attr]


def memory(node: Node) -> Node:
    """Return the node that made the memory that a node shows, or writes into."""
    while node.op == "call_function" and (is_view(node) or (node.target is not operator.getitem and writes(node))):
        if not isinstance(node.args[0], Node):
            break
        node = node.args[0]
    return node


def written_into(graph: Graph) -> set[Node]:
    """Return the nodes whose memory any call writes into."""
    found: list[Node] = []
    for node in graph.nodes:
        if node.op != "call_function" or node.target is operator.getitem or not writes(node):
            continue
        if isinstance(node.target, OpOverload):
            arguments = node.target._schema.arguments
            given = dict(zip((a.name for a in arguments), node.args, strict=False)) | node.kwargs
            changed = [a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write]
            map_arg([given.get(name) for name in changed], found.append)
        else:
            found += node.all_input_nodes
    return {memory(node) for node in found}


def merge_equal(graph: Graph) -> None:
    """Let calls of one operator with the same arguments be one, if nothing is written between them.

    Results of the graph stay apart, and so do tensors that are written into later: two of zeros, say.
    """
    made: dict[Any, Node] = {}
    written, apart = 0, set(graph.output_node().all_input_nodes) | written_into(graph)
    for node in list(graph.nodes):
        if node.op != "call_function" or node in apart:
            continue
        item = node.target is operator.getitem
        if not item and writes(node):
            written += 1
        elif item or repeats(node):
            key = node.target, written, frozen(node.args), frozen(node.kwargs)
            if made.setdefault(key, node) is not node:
                node.replace_all_uses_with(made[key])
                graph.erase_node(node)
