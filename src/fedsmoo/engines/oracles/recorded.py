"""Gradients of C clients on a CPU as recorded operations: small models spend most of a step outside of arithmetic.

``vmap`` and autograd decide anew in every step which operations to call. After some gradients of one shape these are
recorded as a graph and called directly, in the same order on the same numbers, so that no bit changes and it does not
matter when that begins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fedsmoo.core.errors import first_line
from fedsmoo.engines.oracles.layers import needs_layers
from fedsmoo.engines.oracles.oracle import Oracle
from fedsmoo.engines.oracles.sealed import SealedOracle, tensors
from fedsmoo.engines.statistics.passes import end
from fedsmoo.engines.task import Batch
from fedsmoo.operators.graph.lean import lean
from fedsmoo.operators.trace import graph_of

AFTER = 64  # gradients: recording takes about as long as that many save
Given = tuple[Any, ...]  # w, x, y, weights of samples, keys and steps of noise, real samples, statistics
Graph = Callable[..., tuple[Tensor, Tensor, Tensor | None]]


class RecordedOracle(SealedOracle):
    """An oracle of C clients by ``vmap`` whose gradients of the run's loss are recorded once they repeat."""

    def __init__(self, oracle: Oracle) -> None:
        super().__init__(oracle)
        self.seen: Counter[Any] = Counter()
        self.graphs: dict[Any, Graph | None] = {}  # None: what cannot be recorded

    def gradient(self, w: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        if self.task.model.statistics is not None and batch.running is None:
            return super().gradient(w, batch)  # its statistics are the model's own, which change
        w = w.contiguous()  # the first model of a round is one for all clients
        given = tensors(w.clone() if w.storage_offset() else w, batch)
        key = self.task.model.module.training, *(None if t is None else (t.shape, t.stride(), t.dtype) for t in given)
        self.seen[key] += 1
        if key not in self.graphs and self.seen[key] > AFTER:
            self.graphs[key] = self.recorded(given)
        graph = self.graphs.get(key)
        if graph is None:
            return super().gradient(w, batch)
        with torch.no_grad():
            gradients, losses, after = graph(*given)
        end(batch, () if after is None else (after,))
        return gradients, losses

    def in_step(self, w: Tensor, batch: Batch, working: Tensor | None = None) -> tuple[Tensor, Tensor]:
        is_sealed = needs_layers(self.task.model) or self.task.model.padding == "masked"
        return super().in_step(w, batch, working) if is_sealed else super().gradient(w, batch)

    def recorded(self, given: Given) -> Graph | None:
        """Return a graph that gives the same bits; ``None`` if there is none, as of a model that counts its passes."""
        before = kept(self.task.model.module)
        expected = self.taken(*given)
        if kept(self.task.model.module) != before:
            self.slower.append("the model changes with every pass, so that its operations are not recorded")
            return None
        try:
            graph = graph_of(self.taken, *given)
            return next((g.forward for g in (lean(graph), graph) if gives(g.forward, given, expected)), None)
        except Exception as e:  # the user's own code
            self.slower.append(f"the model's operations cannot be recorded: {first_line(e)}")
            return None


def gives(graph: Graph, given: Given, expected: Given) -> bool:
    """Whether a graph gives the expected bits."""
    with torch.no_grad():
        found = graph(*given)
    return all(a is b if a is None or b is None else torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def kept(module: torch.nn.Module) -> list[Any]:
    """Return the numbers and words that parts of a module keep, which may change with every pass."""
    return [v for part in module.modules() for v in vars(part).values() if isinstance(v, int | float | str)]
