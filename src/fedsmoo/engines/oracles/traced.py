"""Gradients of C clients as a graph of operators with a client axis, which a compiled step takes in whole."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedsmoo.engines.oracles.layers import needs_layers
from fedsmoo.engines.oracles.oracle import InStep, Oracle
from fedsmoo.engines.oracles.sealed import SealedOracle, tensors
from fedsmoo.engines.statistics.passes import end
from fedsmoo.engines.steps.capture import uncollected, warn_slower
from fedsmoo.engines.task import Batch
from fedsmoo.operators.ahead import compile_ahead, register_operators
from fedsmoo.operators.trace import traced


def can_trace(oracle: Oracle) -> bool:
    """Whether a gradient by ``vmap`` is a function of tensors: of what it is given, and of where its clients draw."""
    return oracle.task.device.type == "cuda" and oracle.task.model.padding in ("free", "masked")


def is_masked(oracle: Oracle) -> bool:
    """Whether samples of a batch see each other, so that padding is hidden from them: BatchNorm."""
    return oracle.task.model.padding == "masked"


class TracedOracle(SealedOracle):
    """An oracle of C clients by ``vmap``, whose gradient in a compiled step is a graph, traced for the step's shapes.

    Convolutions, norms and recurrences in it are operators with a client axis (:mod:`fedsmoo.operators`) whoever wrote
    the module; random layers are the operator of noise, and arithmetic that the step's compiler sees. A model that
    cannot be traced is sealed where it has to be.
    """

    def ready(self, w: Tensor, batch: Batch) -> InStep:
        like = self.shaped(w, batch)
        there = [t is not None for t in like]

        def gradient(*given: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
            left = iter(given)
            return self.taken(*(next(left) if t else None for t in there))  # type: ignore[arg-type]

        try:
            with uncollected():  # tracing imports much of PyTorch's compiler: many objects, which stay
                graph = traced(gradient, *(t for t in like if t is not None))
            compile_ahead(graph)
        except Exception as e:  # the user's own code, or a kernel that this device's compiler refuses
            warn_slower("the model's gradient cannot be traced", e, self.slower)
            return self.in_step if needs_layers(self.task.model) or is_masked(self) else self.open
        register_operators(graph)

        def in_step(w: Tensor, batch: Batch, working: Any = None) -> tuple[Tensor, Tensor]:
            given = [t for t, is_used in zip(tensors(w, batch), there, strict=True) if is_used]
            if any(t is None for t in given):  # statistics that nobody carries on
                return self.in_step(w, batch, working)
            # What is computed in bfloat16 is part of the graph.
            with torch.autocast(w.device.type, enabled=False):
                gradients, losses, after = graph(*given)
            end(batch, () if after is None else (after,))
            return gradients, losses

        return in_step

    def shaped(self, w: Tensor, batch: Batch) -> list[Tensor | None]:
        """Return tensors shaped as those that gradients in a step will depend on."""
        model, clients = self.task.model, len(w)
        _, x, y, weight, _, _, real, _ = tensors(w, batch)
        places = torch.zeros(clients, 2, dtype=torch.int64, device=w.device)
        draws = [places, places[:, 0].clone()] if model.random and real is not None else [None, None]
        real = real if is_masked(self) or draws[0] is not None else None
        before = None if model.statistics is None else w.new_zeros(clients, model.statistics.size)
        return [w, x, y, weight, *draws, real, before]

    def open(self, w: Tensor, batch: Batch, working: Any = None) -> tuple[Tensor, Tensor]:
        """Return the gradient as PyTorch's operations, which a compiler can follow by itself."""
        return self.gradient(w, batch)
