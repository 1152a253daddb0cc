"""Do what a traced graph needs before it is compiled and called: its kernels, in parallel, and its operators known."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from fedsmoo.kernels.runtime import compiling, interpreted
from fedsmoo.operators.convolution import by_kernels
from fedsmoo.operators.graph.views import value

ours = torch.ops.fedsmoo
# Operators that launch kernels whatever numbers they are given.
LAUNCHING = (
    "patches", "conv", "conv_data", "conv_weight", "conv_weight_parts", "grouped", "grouped_data", "grouped_weight",
    "grouped_weight_parts", "norm", "norm_backward", "layer_norm_backward", "pool", "pool_backward", "place", "cast",
)  # fmt: skip


def stand_in(node: Node) -> Tensor:
    """Return memory of the shape, order and type of a node's tensor, on its device; what is in it is not said."""
    v = value(node)
    return torch.empty_strided(v.shape, v.stride(), dtype=v.dtype, device=v.device)


def compile_ahead(graph: GraphModule, threads: int | None = None) -> None:
    """Compile every kernel of a graph of operators; else each compiles when it is first called, one after the other."""
    if interpreted():
        return
    calls = {getattr(ours, name).default for name in LAUNCHING}
    nodes = [n for n in graph.graph.nodes if n.target in calls and by_kernels(value(n.all_input_nodes[0]))]
    if not nodes:
        return
    seen = set()
    with torch.no_grad(), compiling(threads or min(16, len(os.sched_getaffinity(0)))):
        for node in nodes:
            shapes: Any = map_arg(node.args, lambda n: (tuple(value(n).shape), value(n).stride(), value(n).dtype))  # type: ignore[arg-type, return-value]
            if (key := (node.target, str(shapes))) not in seen:
                seen.add(key)
                node.target(*map_arg(node.args, stand_in), **node.kwargs)  # type: ignore[arg-type, operator]


def register_operators(graph: GraphModule) -> None:
    """Tell ``torch.compile`` of each custom operator of a graph, in the form it would settle on itself.

    It takes an operator it has not met as a call, which it leaves alone, but before PyTorch 2.13 it writes a message of
    all that the operator's arguments were computed from, even where nobody logs it. In a network with residual
    connections that text is several times as long with every block, and compiling ResNet-18 does not end.
    """
    from torch._inductor.lowering import lowerings, make_fallback, tag_to_layout_constraint  # slow to import
    from torch._library.utils import get_layout_constraint_tag

    for operator in dict.fromkeys(n.target for n in graph.graph.nodes if isinstance(n.target, OpOverload)):
        if operator.namespace not in ("aten", "prims") and operator not in lowerings:
            layout = tag_to_layout_constraint(get_layout_constraint_tag(operator, with_default=True))
            make_fallback(operator, layout_constraint=layout)
