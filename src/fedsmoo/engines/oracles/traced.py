"""Gradients of C clients as a graph of operators with a client axis, which a compiled step takes in whole."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedsmoo.engines.oracles.layers import needs_layers
from fedsmoo.engines.oracles.oracle import InStep, Oracle
from fedsmoo.engines.steps.capture import warn_slower
from fedsmoo.engines.task import Batch
from fedsmoo.operators.trace import traced


def can_trace(oracle: Oracle) -> bool:
    """Whether a gradient by ``vmap`` is a function of its tensors alone: nothing is drawn, no state is kept."""
    model = oracle.task.model
    return oracle.task.device.type == "cuda" and not needs_layers(model) and model.padding == "free"


class TracedOracle(Oracle):
    """An oracle of C clients by ``vmap``, whose gradient in a compiled step is a graph, traced for the step's shapes.

    Convolutions and norms in it are operators with a client axis (:mod:`fedsmoo.operators`) whoever wrote the module.
    """

    def __init__(self, oracle: Oracle) -> None:
        super().__init__(oracle.task, oracle.function, oracle._own, oracle._look)

    def ready(self, w: Tensor, batch: Batch) -> InStep:
        def gradient(w: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
            return self.gradient(w, Batch(x, y, weight))

        try:
            graph = traced(gradient, w, batch.x, batch.y, batch.weight)
        except Exception as e:  # the user's own code
            warn_slower("the model's gradient cannot be traced", e, self.slower)
            return self.in_step

        def in_step(w: Tensor, batch: Batch, working: Any = None) -> tuple[Tensor, Tensor]:
            # What is computed in bfloat16 is part of the graph.
            with torch.autocast(w.device.type, enabled=False):
                return graph(w, batch.x, batch.y, batch.weight)

        return in_step
