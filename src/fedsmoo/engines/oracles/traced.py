"""Gradients of C clients as a graph of operators with a client axis, which a compiled step takes in whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from fedsmoo.engines.oracles.layers import needs_layers
from fedsmoo.engines.oracles.oracle import InStep, Oracle
from fedsmoo.engines.oracles.sealed import SealedOracle, tensors
from fedsmoo.engines.statistics.passes import end
from fedsmoo.engines.steps.capture import uncollected, warn_slower
from fedsmoo.engines.task import Batch
from fedsmoo.kernels.gradients import GradientBuffers
from fedsmoo.operators.graph.ahead import compile_ahead, register_operators
from fedsmoo.operators.graph.light import is_light, placed, writing
from fedsmoo.operators.trace import traced

if TYPE_CHECKING:
    from fedsmoo.compiler.step import GradientKernels


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

    def __init__(self, oracle: Oracle) -> None:
        super().__init__(oracle)
        self.graphs: dict[tuple[Any, ...], GraphModule | None] = {}

    def graph(self, like: list[Tensor | None]) -> GraphModule | None:
        """Return the gradient of tensors shaped as those given, traced once; ``None`` where that fails."""
        key = tuple(None if t is None else (t.shape, t.dtype) for t in like)
        if key not in self.graphs:
            self.graphs[key] = self._traced(like)
        return self.graphs[key]

    def _traced(self, like: list[Tensor | None]) -> GraphModule | None:
        def gradient(*given: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
            left = iter(given)
            return self.taken(*(None if t is None else next(left) for t in like))  # type: ignore[arg-type]

        try:
            with uncollected():  # tracing imports much of PyTorch's compiler: many objects, which stay
                graph = traced(gradient, *(t for t in like if t is not None))
            compile_ahead(graph)
        except Exception as e:  # the user's own code, or a kernel that this device's compiler refuses
            warn_slower("the model's gradient cannot be traced", e, self.slower)
            return None
        return graph

    def kernels_for(self, w: Tensor, batch: Batch) -> GradientKernels | None:
        if self.task.model.random or self.task.model.statistics is not None:
            return None
        graph = self.graph(self.shaped(w, batch))
        if graph is None or placed(graph) is None or not is_light(graph):
            return None
        return GraphKernels(writing(graph), w.dtype, w.shape[1])

    def ready(self, w: Tensor, batch: Batch) -> InStep:
        like = self.shaped(w, batch)
        graph, there = self.graph(like), [t is not None for t in like]
        if graph is None:
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


@dataclass
class GraphKernels:
    """A traced gradient that generated passes call as it is: a graph that writes gradients, and returns losses."""

    graph: GraphModule
    dtype: torch.dtype
    begin: int
    whole: bool = True

    def fine(self, w: Tensor) -> Tensor:
        """Return no weights: the graph reads all of them where they lie."""
        return w[:, self.begin :].contiguous()

    def buffers(self, w: Tensor) -> GradientBuffers:
        """Make zero-filled buffers for gradients at ``w``."""
        return GradientBuffers(torch.zeros_like(w), self.fine(w), w.new_zeros(len(w)))

    def launch(self, working: Tensor, fine: Tensor, batch: Batch, into: GradientBuffers) -> None:
        """Write gradients and losses at weights."""
        with torch.no_grad(), torch.autocast(working.device.type, enabled=False):
            into.loss.copy_(self.graph(working, batch.x, batch.y, batch.weight, into.coarse))
