"""The end of a round: what clients keep and what they send, and how far they went."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from fedsmoo.core import Round, Vectors
from fedsmoo.engines.cut import NotCut, numbers, record, reduction, shape
from fedsmoo.engines.steps import Stage

NUMBERS = ("number", "lr", "steps", "share")


def ended(stage: Stage, w: Tensor, me: Vectors, rnd: Round) -> tuple[Vectors, Vectors, Tensor]:
    """The clients' own vectors, what they send, and ``||w_i - w||^2``."""
    me, up = stage.algorithm.finish(w, stage.down, me, rnd)
    return me, up, (w - stage.down.w).square().sum(-1)


class Ending:
    """The same as one generated pass, for rounds of one shape; vectors that do not change are handed through.

    Raises if the method's ``finish`` is not plain arithmetic on vectors.
    """

    def __init__(self, stage: Stage, w: Tensor, me: Vectors, rnd: Round) -> None:
        from fedsmoo.kernels.vectors import Request, Store, VectorPass  # needs Triton

        algorithm, named = stage.algorithm, self._named(stage, w, me, rnd)

        def end(*tensors: Tensor) -> list[Tensor]:
            given = dict(zip(named, tensors, strict=True))
            down = Vectors(**{n: given[f"down_{n}"] for n in stage.down.names()})
            mine = Vectors(**{n: given[f"me_{n}"] for n in me.names()})
            mine, up = algorithm.finish(given["w"], down, mine, Round(*(given[n] for n in NUMBERS)))
            kept, sent = mine.pick(algorithm.own), up.pick(algorithm.up)
            return [*(v for _, v in kept.items()), *(v for _, v in sent.items()), given["w"] - down.w]

        module, self.given, results = record(end, named)
        self.numbers = numbers(module)
        if any(reduction(n) for n in module.graph.nodes):
            raise NotCut("the end of a round waits for a norm")
        *vectors, gone = results
        names = [*(f"own_{n}" for n in algorithm.own), *(f"up_{n}" for n in algorithm.up)]
        self.results = dict(zip(names, vectors, strict=True))
        self.made = {name: v for name, v in self.results.items() if v not in self.given}
        self.clients, self.size = w.shape
        stores = [Store(name, node) for name, node in self.made.items()]
        self.end = VectorPass(Request(stores, [(gone, True)]), self._leaf, self.clients, self.size, w.dtype)

    def __call__(self, stage: Stage, w: Tensor, me: Vectors, rnd: Round) -> tuple[Vectors, Vectors, Tensor]:
        from fedsmoo.kernels.vectors import fold

        blocks, drift = self.end.blocks(self.size), w.new_empty(1, self.clients)
        tensors = self._named(stage, w, me, rnd) | self.numbers
        tensors |= {name: torch.empty_like(w) for name in self.made}
        tensors |= {"parts": w.new_empty(self.clients * blocks), "sums": drift, "total": drift, "loss": drift}
        self.end(tensors)
        fold(tensors, self.clients, blocks, 0, 1, close=False)
        found = {name: tensors[self.given.get(node, name)] for name, node in self.results.items()}
        own = {n: found[f"own_{n}"] for n in stage.algorithm.own}
        return Vectors(**own), Vectors(**{n: found[f"up_{n}"] for n in stage.algorithm.up}), drift[0]

    def _named(self, stage: Stage, w: Tensor, me: Vectors, rnd: Round) -> dict[str, Tensor]:
        named = {"w": w} | {f"me_{n}": v for n, v in me.items()} | {f"down_{n}": v for n, v in stage.down.items()}
        named |= {n: number(getattr(rnd, n), w) for n in NUMBERS}
        return {n: v.contiguous() for n, v in named.items()}  # passes go by rows of a fixed length

    def _leaf(self, node: Node) -> Any:
        from fedsmoo.kernels.vectors import Leaf

        if node.op not in ("placeholder", "get_attr"):
            return None
        return Leaf.of(self.given.get(node, str(node.target)), shape(node), self.size)


def number(value: Any, like: Tensor) -> Tensor:
    """A number of a round as kernels read it."""
    return value if isinstance(value, Tensor) else torch.full((), float(value), dtype=like.dtype, device=like.device)
