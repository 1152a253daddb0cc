"""Gradients of C clients as a graph of operators with a client axis, which a compiled step takes in whole."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedsmoo.core.random.layers import ClientsNoise
from fedsmoo.engines.oracles.layers import needs_layers
from fedsmoo.engines.oracles.oracle import InStep, Oracle
from fedsmoo.engines.oracles.sealed import SealedOracle
from fedsmoo.engines.steps.capture import warn_slower
from fedsmoo.engines.task import Batch
from fedsmoo.operators.ahead import compile_ahead, register_operators
from fedsmoo.operators.trace import traced


def can_trace(oracle: Oracle) -> bool:
    """Whether a gradient by ``vmap`` is a function of tensors: of what it is given, and of where its clients draw."""
    return oracle.task.device.type == "cuda" and oracle.task.model.padding == "free"


class TracedOracle(SealedOracle):
    """An oracle of C clients by ``vmap``, whose gradient in a compiled step is a graph, traced for the step's shapes.

    Convolutions, norms and recurrences in it are operators with a client axis (:mod:`fedsmoo.operators`) whoever wrote
    the module; random layers are the operator of noise, and arithmetic that the step's compiler sees. A model that
    cannot be traced is sealed where it has to be.
    """

    def ready(self, w: Tensor, batch: Batch) -> InStep:
        def gradient(w: Tensor, x: Tensor, y: Tensor, weight: Tensor, *where: Tensor) -> tuple[Tensor, Tensor]:
            if not where:
                return self.gradient(w, Batch(x, y, weight))
            keys, steps, real = where
            noise = ClientsNoise(keys, steps, real, weight.shape[1], self.axes)
            return self.gradient(w, Batch(x, y, weight, noise, real))

        places = torch.zeros(len(w), 2, dtype=torch.int64, device=w.device)
        where = (places, places[:, 0].clone(), batch.real) if self.task.model.random and batch.real is not None else ()
        try:
            graph = traced(gradient, w, batch.x, batch.y, batch.weight, *where)
        except Exception as e:  # the user's own code
            warn_slower("the model's gradient cannot be traced", e, self.slower)
            return self.in_step if needs_layers(self.task.model) else self.open
        compile_ahead(graph)
        register_operators(graph)

        def in_step(w: Tensor, batch: Batch, working: Any = None) -> tuple[Tensor, Tensor]:
            n = batch.noise
            draws = (n.keys, n.steps, n.real) if isinstance(n, ClientsNoise) else ()
            # What is computed in bfloat16 is part of the graph.
            with torch.autocast(w.device.type, enabled=False):
                return graph(w, batch.x, batch.y, batch.weight, *draws)

        return in_step

    def open(self, w: Tensor, batch: Batch, working: Any = None) -> tuple[Tensor, Tensor]:
        """Return the gradient as PyTorch's operations, which a compiler can follow by itself."""
        return self.gradient(w, batch)
