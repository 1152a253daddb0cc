"""A method's arithmetic, traced: what of a local step is constant in a round, and where it must wait."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from operator import getitem
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from fedsmoo.core import Vectors
from fedsmoo.engines.steps import Stage, one_step

aten = torch.ops.aten


@torch.library.custom_op("fedsmoo::slope", mutates_args=())
def _slope(v: Tensor) -> tuple[Tensor, Tensor]:
    raise AssertionError("only traced, never run")


@_slope.register_fake
def _(v: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(v), v.new_empty(len(v))


class NotCut(Exception):
    """Why a step cannot be cut into passes."""


@dataclass(frozen=True)
class Inputs:
    """The tensors a step reads, by name; ``me.`` and ``down.`` before those of a client and of the server."""

    w: Tensor
    me: Vectors
    down: Vectors
    lr: Tensor
    active: Tensor | None

    def named(self) -> dict[str, Tensor]:
        named = {"w": self.w, "lr": self.lr} | ({} if self.active is None else {"active": self.active})
        named |= {f"me_{n}": v for n, v in self.me.items()}
        return named | {f"down_{n}": v for n, v in self.down.items()}


def record(
    function: Callable[..., list[Tensor]], named: dict[str, Tensor]
) -> tuple[GraphModule, dict[Node, str], list[Node]]:
    """The operations of a function of named tensors, which input is which, and its results."""
    from torch.fx.experimental.proxy_tensor import make_fx  # late: it imports a second's worth of algebra

    with torch.autocast("cuda", enabled=False):
        module = make_fx(function, tracing_mode="fake", _allow_non_fake_inputs=True)(*named.values())
    module.graph.eliminate_dead_code()
    nodes = list(module.graph.nodes)
    given = dict(zip([n for n in nodes if n.op == "placeholder"], named, strict=True))
    refuse_strangers(nodes[:-1], named["w"])
    return module, given, list(nodes[-1].args[0])


def numbers(module: GraphModule) -> dict[str, Tensor]:
    """The tensors that a method holds itself, by the names they have in the trace: numbers of each client."""
    names = [str(n.target) for n in module.graph.nodes if n.op == "get_attr"]
    return {name: getattr(module, name) for name in names}


def refuse_strangers(nodes: Iterable[Node], w: Tensor) -> None:
    """Passes know vectors and numbers, of each client or of all, of one type; and the same inputs give the same."""
    clients, size = w.shape
    known = {(clients, size), (1, size), (size,), (clients, 1), (clients,), (1, 1), (1,), ()}
    for node in nodes:
        value = node.meta.get("val")
        if isinstance(value, Tensor) and (tuple(value.shape) not in known or value.dtype not in (w.dtype, torch.bool)):
            raise NotCut(f"{node} is {tuple(value.shape)} of {value.dtype}")
        if node.op == "get_attr" and value is not None and value.device != w.device:
            raise NotCut(f"{node} is on {value.device}")
        if value is None or getattr(getattr(node.target, "_schema", None), "is_mutable", False):
            raise NotCut(f"{node} changes something in place")
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            raise NotCut(f"{node} draws numbers")
        found = reduction(node)
        if found is not None and shape(found.of)[-1] != size:
            raise NotCut(f"{node} adds up numbers")


def traced(stage: Stage, inputs: Inputs) -> tuple[GraphModule, dict[Node, str], dict[str, Node]]:
    """A step's operations, the name of each input, and what becomes of the weights and of the client's vectors."""
    named, names = inputs.named(), inputs.me.names()
    taken: list[Tensor] = []

    def slope(v: Tensor, _: object) -> tuple[Tensor, Tensor]:
        taken.append(v)
        return torch.ops.fedsmoo.slope(v)

    def step(*tensors: Tensor) -> list[Tensor]:
        given = dict(zip(named, tensors, strict=True))
        me = Vectors(**{n: given[f"me_{n}"] for n in names})
        down = Vectors(**{n: given[f"down_{n}"] for n in inputs.down.names()})
        here = Stage(stage.algorithm, stage.rule, down, given["lr"], stage.tag)
        w, me, _ = one_step(here, slope, given["w"], me, None, given.get("active"))
        return [w, *(getattr(me, n) for n in names)]

    module, given, results = record(step, named)
    if len(taken) != sum(n.target is torch.ops.fedsmoo.slope.default for n in module.graph.nodes):
        raise NotCut("the step takes a gradient and does not use it")  # but its loss counts
    return module, given, dict(zip(["w", *(f"me_{n}" for n in names)], results, strict=True))


class Sum(NamedTuple):
    """A reduction of a vector to a number per client: a norm (the root of squares) or a plain sum."""

    of: Node
    norm: bool


def reduction(node: Node) -> Sum | None:
    """A norm or a sum over the last axis; nothing for other operations."""
    args = (*node.args, *(None,) * 4)
    if node.target is aten.linalg_vector_norm.default and args[1] in (2, None) and args[2] == [-1]:
        return Sum(args[0], True)  # type: ignore[arg-type]
    if node.target is aten.sum.dim_IntList and args[1] == [-1]:
        return Sum(args[0], False)  # type: ignore[arg-type]
    return None


def shape(node: Node) -> torch.Size:
    return node.meta["val"].shape


class Cut:
    """What of a traced step is constant, a gradient or a sum, and what each thing needs.

    ``hoisted`` are the constants that are computed at the beginning of a round.
    """

    def __init__(self, module: GraphModule, given: dict[Node, str], results: dict[str, Node], size: int) -> None:
        self.module, self.given, self.size = module, given, size
        by_name = {name: node for node, name in given.items()}
        self.results = {n: v for n, v in results.items() if v is not by_name[n]}
        self.old = {n: by_name[n] for n in self.results}
        moving = {*self.old.values(), *(n for n, name in given.items() if name == "active")}
        self.slopes: list[Node] = []
        self.constant: dict[Node, bool] = {}
        for node in module.graph.nodes:
            if node.op == "call_function" and node.target is torch.ops.fedsmoo.slope.default:
                self.slopes.append(node)
                moving.add(node)
            if node.op in ("placeholder", "get_attr", "call_function"):
                self.constant[node] = node not in moving and all(self.constant[n] for n in node.all_input_nodes)
        self.hoisted = self._hoisted()
        self.sums = [n for n in self.constant if reduction(n) and not self.constant[n]]

    def vector(self, node: Node) -> bool:
        return bool(shape(node)) and shape(node)[-1] == self.size

    def gradient(self, node: Node) -> int | None:
        """Which of the step's gradients a node is."""
        if node.target is getitem and node.args[0] in self.slopes:
            return self.slopes.index(node.args[0])  # type: ignore[arg-type]
        return None

    def leaf(self, node: Node) -> bool:
        """Whether a node's numbers lie in memory and need not be computed in a pass."""
        return (
            node.op != "call_function" or node in self.hoisted or self.gradient(node) is not None or node in self.sums
        )

    def below(self, targets: Iterable[Node], stop: Collection[Node] = ()) -> set[Node]:
        """All that passes visit on the way from targets down to leaves, both included, and not past ``stop``."""
        seen: set[Node] = set()
        todo = list(targets)
        while todo:
            node = todo.pop()
            if node not in seen:
                seen.add(node)
                todo += [] if self.leaf(node) or node in stop else node.all_input_nodes
        return seen

    def _hoisted(self) -> list[Node]:
        """Constants that steps use, if they hold a norm or if they replace two vectors or more."""
        used = {
            n for node, c in self.constant.items() if not c for n in node.all_input_nodes if self.constant[n]
        } | {v for v in self.results.values() if self.constant[v]}  # fmt: skip
        chosen = []
        for node in self.constant:
            if node in used and node.op == "call_function":
                above = self._ancestors(node)
                vectors = sum(n.op != "call_function" and self.vector(n) for n in above)
                if any(reduction(n) for n in above) or (self.vector(node) and vectors > 1):
                    chosen.append(node)
        return chosen

    def _ancestors(self, node: Node) -> set[Node]:
        seen, todo = set(), [node]
        while todo:
            n = todo.pop()
            if n not in seen:
                seen.add(n)
                todo += n.all_input_nodes
        return seen

    def hoist(self, tensors: dict[Node, Tensor]) -> list[Tensor]:
        """The hoisted constants' values, given those of the inputs."""
        wanted = set().union(*(self._ancestors(n) for n in self.hoisted))
        values: dict[Node, Any] = dict(tensors)

        def value(argument: Any) -> Any:
            return torch.fx.node.map_arg(argument, values.__getitem__)

        for node in self.module.graph.nodes:
            if node in wanted and node.op == "get_attr":
                values[node] = getattr(self.module, str(node.target))
            elif node in wanted and node.op == "call_function":
                values[node] = node.target(*value(node.args), **value(node.kwargs))  # type: ignore[operator]
        return [values[n] for n in self.hoisted]
