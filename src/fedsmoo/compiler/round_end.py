"""Run the end of a round as generated passes: what clients keep, what they send, and ``||w_i - w||^2``."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from fedsmoo.compiler import NotCompiled
from fedsmoo.compiler.trace import Trace, named_round, record, reduction, shape, traced_round
from fedsmoo.core import Algorithm, Round, Vectors
from fedsmoo.core.local import local_end

NUMBERS = ("number", "lr", "steps", "share")


class CompiledRoundEnd:
    """A method's ``finish`` and ``||w_i - w||^2``, for rounds of one shape: one pass, or two where it waits for a norm.

    Norms and sums are added up by the pass before the one that needs them, those of a norm of a norm by a pass earlier.
    Vectors that ``finish`` does not change are handed through; single numbers that it keeps or sends are made from the
    sums.

    Raises:
        NotCompiled: if ``finish`` is not plain arithmetic on vectors.
    """

    def __init__(self, algorithm: Algorithm, w: Tensor, down: Vectors, me: Vectors, rnd: Round) -> None:
        told, named = numbers_as_tensors(rnd, w), self._named(w, down, me, rnd)
        self.algorithm = algorithm

        def end(*tensors: Tensor) -> dict[str, Tensor]:
            given = dict(zip(named, tensors, strict=True))
            sent_down = Vectors(**{n: given[f"down_{n}"] for n in down.names()})
            mine = Vectors(**{n: given[f"me_{n}"] for n in me.names()})
            mine, up = local_end(algorithm, given["w"], sent_down, mine, traced_round(told, given, len(w)))
            kept, sent = {f"own_{n}": v for n, v in mine.items()}, {f"up_{n}": v for n, v in up.items()}
            return kept | sent | {"moved": given["w"] - sent_down.w}

        trace = record(end, named)
        self.given, self.held = trace.given, trace.held()
        self.results = {n: v for n, v in trace.results.items() if n != "moved"}
        self.clients, self.size = w.shape
        made = {name: v for name, v in self.results.items() if v not in self.given}
        self.numbers = {name: v for name, v in made.items() if shape(v)[-1:] != (self.size,)}
        self.made = {name: v for name, v in made.items() if name not in self.numbers}
        for node in self.numbers.values():
            refuse_vectors(node, self.size)
        self._passes(trace, w.dtype)

    def _passes(self, trace: Trace, dtype: torch.dtype) -> None:
        """Make the passes: sums that wait for nothing, then those that wait for these, ..., and what is written."""
        from fedsmoo.compiler.codegen import PassSpec, Store, VectorPass  # needs Triton

        after = passes_before(trace)
        needed = [n for n in trace.module.graph.nodes if reduction(n)]
        levels = [[n for n in needed if after[n] == k + 1] for k in range(max((after[n] for n in needed), default=0))]
        self.rows = {n: i + 1 for i, n in enumerate(n for level in levels for n in level)}  # the first is the drift's
        stores = [Store(name, node) for name, node in self.made.items()]
        specs: list[tuple[list[Node], list[Store]]] = [(level, []) for level in levels]
        specs += [([], stores)] if stores or not levels else []
        self.passes = []
        for k, (level, written) in enumerate(specs):
            drift = [(trace.results["moved"], True)] if k == 0 else []
            sums = [*drift, *((s.of, s.norm) for n in level if (s := reduction(n)))]
            made = VectorPass(PassSpec(written, sums), self._load_of, self.clients, self.size, dtype)
            first = 0 if k == 0 else self.rows[level[0]] if level else 0
            self.passes.append((made, first, len(sums)))

    def __call__(self, w: Tensor, down: Vectors, me: Vectors, rnd: Round) -> tuple[Vectors, Vectors, Tensor]:
        from fedsmoo.compiler.codegen import VectorPass, fold

        blocks, sums = VectorPass.blocks(self.size), w.new_empty(1 + len(self.rows), self.clients)
        tensors = self._named(w, down, me, rnd) | self.held
        tensors |= {name: torch.empty_like(w) for name in self.made}
        partials = w.new_empty(max(count for _, _, count in self.passes) * self.clients * blocks)
        tensors |= {"partials": partials, "sums": sums, "total": sums, "loss": sums}
        for run, first, count in self.passes:
            run(tensors)
            if count:
                fold(tensors, self.clients, blocks, first, count, close=False)
        tensors |= {name: self._number(node, tensors) for name, node in self.numbers.items()}
        found = {name: tensors[self.given.get(node, name)] for name, node in self.results.items()}
        own = {n: found[f"own_{n}"] for n in self.algorithm.own}
        return Vectors(**own), Vectors(**{n: found[f"up_{n}"] for n in self.algorithm.up}), sums[0]

    def _number(self, node: Any, tensors: Mapping[str, Tensor]) -> Any:
        """Return the value of a node that is a number for each client, by PyTorch's operations on what was added up."""
        if not isinstance(node, Node):
            return [self._number(n, tensors) for n in node] if isinstance(node, list | tuple) else node
        if node in self.rows:
            value, found = tensors["sums"][self.rows[node]], reduction(node)
            value = value[: math.prod(shape(node))]  # of what all clients share, every row has the same sum
            return (value.sqrt() if found is not None and found.norm else value).view(shape(node))
        if node.op in ("placeholder", "get_attr"):
            return tensors[self.given.get(node, str(node.target))]
        assert callable(node.target)
        named = {name: self._number(v, tensors) for name, v in node.kwargs.items()}
        return node.target(*(self._number(a, tensors) for a in node.args), **named)

    def _named(self, w: Tensor, down: Vectors, me: Vectors, rnd: Round) -> dict[str, Tensor]:
        named = {"w": w} | {f"me_{n}": v for n, v in me.items()} | {f"down_{n}": v for n, v in down.items()}
        named |= named_round(numbers_as_tensors(rnd, w))
        return {n: v.contiguous() for n, v in named.items()}  # passes go by rows of a fixed length

    def _load_of(self, node: Node) -> Any:
        from fedsmoo.compiler.codegen import Load

        if node in self.rows:
            found = reduction(node)
            return Load("sums", False, row=self.rows[node], root=found is not None and found.norm)
        if node.op not in ("placeholder", "get_attr"):
            return None
        return Load.of(self.given.get(node, str(node.target)), shape(node), self.size)


def passes_before(trace: Trace) -> dict[Node, int]:
    """Return how many passes over the vectors must end before a node is known: one for every norm on the way to it."""
    found: dict[Node, int] = {}
    for node in trace.module.graph.nodes:
        before = max((found[n] for n in node.all_input_nodes), default=0)
        found[node] = before + (reduction(node) is not None)
    return found


def refuse_vectors(node: Node, size: int) -> None:
    """Refuse a number that is made of a vector in another way than by a norm or a sum, as by picking one of its own.

    Raises:
        NotCompiled: for such a number.
    """
    for before in () if reduction(node) else node.all_input_nodes:
        if shape(before)[-1:] == (size,):
            raise NotCompiled(f"{node} makes a number of a vector")
        refuse_vectors(before, size)


def numbers_as_tensors(rnd: Round, like: Tensor) -> Round:
    """Return a round with its numbers as the tensors that kernels read."""
    plain = {n: getattr(rnd, n) for n in NUMBERS if not isinstance(getattr(rnd, n), Tensor)}
    new = {n: torch.full((), float(v), dtype=like.dtype, device=like.device) for n, v in plain.items()}
    return dataclasses.replace(rnd, **new)
