"""Run the end of a round as one generated pass: what clients keep, what they send, and ``||w_i - w||^2``."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from fedsmoo.compiler import NotCompiled
from fedsmoo.compiler.trace import named_round, record, reduction, shape, traced_round
from fedsmoo.core import Algorithm, Round, Vectors

NUMBERS = ("number", "lr", "steps", "share")


class CompiledRoundEnd:
    """A method's ``finish`` and ``||w_i - w||^2`` in one pass, for rounds of one shape.

    Vectors that ``finish`` does not change are handed through.

    Raises:
        NotCompiled: if ``finish`` is not plain arithmetic on vectors.
    """

    def __init__(self, algorithm: Algorithm, w: Tensor, down: Vectors, me: Vectors, rnd: Round) -> None:
        from fedsmoo.compiler.codegen import PassSpec, Store, VectorPass  # needs Triton

        if {*algorithm.scalars} & {*algorithm.own, *algorithm.up}:
            raise NotCompiled("a single number is kept or sent")
        told, named = in_tensors(rnd, w), self._named(w, down, me, rnd)
        self.algorithm = algorithm

        def end(*tensors: Tensor) -> dict[str, Tensor]:
            given = dict(zip(named, tensors, strict=True))
            sent_down = Vectors(**{n: given[f"down_{n}"] for n in down.names()})
            mine = Vectors(**{n: given[f"me_{n}"] for n in me.names()})
            mine, up = algorithm.finish(given["w"], sent_down, mine, traced_round(told, given, len(w)))
            kept = {f"own_{n}": v for n, v in mine.pick(algorithm.own).items()}
            sent = {f"up_{n}": v for n, v in up.pick(algorithm.up).items()}
            return kept | sent | {"moved": given["w"] - sent_down.w}

        trace = record(end, named)
        if any(reduction(n) for n in trace.module.graph.nodes):
            raise NotCompiled("the end of a round waits for a norm")
        self.given, self.held = trace.given, trace.held()
        self.results = {n: v for n, v in trace.results.items() if n != "moved"}
        moved = trace.results["moved"]
        self.made = {name: v for name, v in self.results.items() if v not in self.given}
        self.clients, self.size = w.shape
        stores = [Store(name, node) for name, node in self.made.items()]
        self.end = VectorPass(PassSpec(stores, [(moved, True)]), self._load_of, self.clients, self.size, w.dtype)

    def __call__(self, w: Tensor, down: Vectors, me: Vectors, rnd: Round) -> tuple[Vectors, Vectors, Tensor]:
        from fedsmoo.compiler.codegen import fold

        blocks, drift = self.end.blocks(self.size), w.new_empty(1, self.clients)
        tensors = self._named(w, down, me, rnd) | self.held
        tensors |= {name: torch.empty_like(w) for name in self.made}
        tensors |= {"partials": w.new_empty(self.clients * blocks), "sums": drift, "total": drift, "loss": drift}
        self.end(tensors)
        fold(tensors, self.clients, blocks, 0, 1, close=False)
        found = {name: tensors[self.given.get(node, name)] for name, node in self.results.items()}
        own = {n: found[f"own_{n}"] for n in self.algorithm.own}
        return Vectors(**own), Vectors(**{n: found[f"up_{n}"] for n in self.algorithm.up}), drift[0]

    def _named(self, w: Tensor, down: Vectors, me: Vectors, rnd: Round) -> dict[str, Tensor]:
        named = {"w": w} | {f"me_{n}": v for n, v in me.items()} | {f"down_{n}": v for n, v in down.items()}
        named |= named_round(in_tensors(rnd, w))
        return {n: v.contiguous() for n, v in named.items()}  # passes go by rows of a fixed length

    def _load_of(self, node: Node) -> Any:
        from fedsmoo.compiler.codegen import Load

        if node.op not in ("placeholder", "get_attr"):
            return None
        return Load.of(self.given.get(node, str(node.target)), shape(node), self.size)


def in_tensors(rnd: Round, like: Tensor) -> Round:
    """Return a round with its numbers as the tensors that kernels read."""
    plain = {n: getattr(rnd, n) for n in NUMBERS if not isinstance(getattr(rnd, n), Tensor)}
    new = {n: torch.full((), float(v), dtype=like.dtype, device=like.device) for n, v in plain.items()}
    return dataclasses.replace(rnd, **new)
