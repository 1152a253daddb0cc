"""Find what of a traced local step is constant in a round, and where it must wait for a gradient or a norm."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from operator import getitem
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from fedsmoo.compiler import NotCompiled
from fedsmoo.compiler.trace import Trace, reduction, shape, takes_gradient


class Dataflow:
    """What of a traced step is constant in a round, what is a gradient or a sum, and what each value is computed from.

    ``hoisted`` are the constants that are computed once, at the beginning of a round.
    """

    def __init__(self, trace: Trace, size: int) -> None:
        self.trace, self.given, self.size = trace, trace.given, size
        by_name = {name: node for node, name in trace.given.items()}
        self.results = {n: v for n, v in trace.results.items() if v is not by_name[n]}
        if not all(self.vector(v) for v in self.results.values()):
            raise NotCompiled("a single number changes in a step")
        self.old = {n: by_name[n] for n in self.results}
        self.step = by_name.get("rnd_step")
        moving = {*self.old.values(), *(n for n, name in trace.given.items() if name in ("active", "rnd_step"))}
        self.gradients: list[Node] = []
        self.constant: dict[Node, bool] = {}
        for node in trace.module.graph.nodes:
            if takes_gradient(node):
                self.gradients.append(node)
                moving.add(node)
            if node.op in ("placeholder", "get_attr", "call_function"):
                self.constant[node] = node not in moving and all(self.constant[n] for n in node.all_input_nodes)
        self.hoisted = self._hoisted()
        self.sums = [n for n in self.constant if reduction(n) and not self.constant[n]]

    def vector(self, node: Node) -> bool:
        """Return whether a node is a vector of a client, or of all, rather than a number."""
        return bool(shape(node)) and shape(node)[-1] == self.size

    def gradient_number(self, node: Node) -> int | None:
        """Return which of the step's gradients a node is, if it is one."""
        of = node.args[0] if node.target is getitem else None
        return self.gradients.index(of) if isinstance(of, Node) and of in self.gradients else None

    def in_memory(self, node: Node) -> bool:
        """Return whether a node's value lies in memory and need not be computed in a pass."""
        return (
            node.op != "call_function"
            or node in self.hoisted
            or self.gradient_number(node) is not None
            or node in self.sums
        )

    def below(self, targets: Iterable[Node], stop: Collection[Node] = ()) -> set[Node]:
        """Collect what a pass computes and loads for some targets, down to what lies in memory; not past ``stop``."""
        return reach(targets, lambda node: self.in_memory(node) or node in stop)

    def _hoisted(self) -> list[Node]:
        """Choose the constants to compute once: those behind a norm, and those that replace two vectors or more."""
        used = {
            n for node, c in self.constant.items() if not c for n in node.all_input_nodes if self.constant[n]
        } | {v for v in self.results.values() if self.constant[v]}  # fmt: skip
        chosen = []
        for node in self.constant:
            if node in used and node.op == "call_function":
                above = reach([node])
                vectors = sum(n.op != "call_function" and self.vector(n) for n in above)
                if any(reduction(n) for n in above) or (self.vector(node) and vectors > 1):
                    chosen.append(node)
        return chosen

    def hoist(self, tensors: dict[Node, Tensor]) -> list[Tensor]:
        """Compute the hoisted constants from the inputs' values."""
        wanted = reach(self.hoisted)
        values: dict[Node, Any] = dict(tensors)

        def value(argument: Any) -> Any:
            return torch.fx.node.map_arg(argument, values.__getitem__)

        for node in self.trace.module.graph.nodes:
            if node in wanted and node.op == "get_attr":
                values[node] = getattr(self.trace.module, str(node.target))
            elif node in wanted and node.op == "call_function":
                values[node] = node.target(*value(node.args), **value(node.kwargs))
        return [values[n] for n in self.hoisted]


def reach(targets: Iterable[Node], ends: Callable[[Node], bool] = lambda node: False) -> set[Node]:
    """Return the nodes that targets are computed from, themselves among them; nothing behind a node that ``ends``."""
    seen: set[Node] = set()
    todo = list(targets)
    while todo:
        node = todo.pop()
        if node not in seen:
            seen.add(node)
            todo += [] if ends(node) else node.all_input_nodes
    return seen
