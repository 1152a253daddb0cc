"""Compile the kernels that a traced graph will launch, in parallel, before it is called for the first time."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from fedsmoo.kernels.runtime import compiling, interpreted
from fedsmoo.operators.convolution import by_kernels
from fedsmoo.operators.views import value

ours = torch.ops.fedsmoo
# Operators that launch kernels whatever numbers they are given.
LAUNCHING = ("patches", "conv", "conv_data", "conv_weight", "conv_weight_parts", "norm", "norm_backward", "place")


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
