"""A local step of an oracle that a compiler cannot look into: its gradients, and generated passes between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.fx import Node

from fedsmoo.engines.cut import Cut, Inputs, numbers, reduction, shape, traced
from fedsmoo.engines.oracles import OpaqueOracle
from fedsmoo.engines.schedule import Finish, Move, Reduce, Take, point, schedule
from fedsmoo.engines.steps import Feed, Stage
from fedsmoo.engines.task import Batch
from fedsmoo.kernels.vectors import Leaf, Request, Store, VectorPass, fold

Tensors = dict[str, Tensor]


class Way(NamedTuple):
    """The buffers of an even or an odd step."""

    tensors: Tensors
    batch: Batch


Part = Callable[[Way], None]


class Passes:
    """Local steps of C clients on buffers that never move.

    A step reads the weights in one of two buffers and writes the other one, or stays in one (``spare is w``). ``enter``
    comes once before the first step of a round. Raises ``NotCut`` or ``NotTranslated`` for a method beyond it.

    Args:
        stage: the method and the rule.
        inputs: the buffers that are read; the client's vectors are changed in place.
        spare: another buffer for weights; without it, no client is done again, and norms come first.
        feeds: two buffers for a step's batch; an odd step reads the second one.
        total: where a step adds its losses.
    """

    def __init__(
        self,
        oracle: OpaqueOracle,
        stage: Stage,
        inputs: Inputs,
        spare: Tensor | None,
        feeds: tuple[Feed, Feed],
        total: Tensor,
    ) -> None:
        self.oracle, w = oracle, inputs.w
        self.clients, self.size = w.shape
        module, given, results = traced(stage, inputs)
        self.cut = Cut(module, given, results, self.size)
        actions = schedule(self.cut, speculate=spare is not None)
        self.rows = {n: i for i, n in enumerate(n for a in actions if isinstance(a, Reduce | Finish) for n in a.sums)}
        # Gradients are kept in the type of products; those of norms and of the last layer as they are.
        self.slopes = [oracle.slopes(w) for _ in self.cut.slopes]
        self.spare = w if spare is None or not actions[-1].sums else spare  # type: ignore[union-attr]
        self.tensors: Tensors = {
            **inputs.named(), "total": total, "loss": self.slopes[0].loss,
            "working": torch.zeros_like(w, dtype=oracle.dtype), "fine": oracle.fine(w).clone(),
            "sums": w.new_zeros(max(1, len(self.rows)), self.clients),
            "parts": w.new_zeros(max(1, len(self.rows)) * self.clients * VectorPass.blocks(self.size)),
        }  # fmt: skip
        self.tensors |= numbers(module)
        self.tensors |= {f"constant_{i}": w.new_zeros(shape(n)) for i, n in enumerate(self.cut.hoisted)}
        for i, s in enumerate(self.slopes):
            self.tensors |= {f"slope_{i}": s.coarse, f"slope_{i}_fine": s.fine}
        self.ways = [
            Way(
                self.tensors | {"w": old, "w_new": new} | ({} if feed.active is None else {"active": feed.active}),
                feed.batch,
            )
            for old, new, feed in ((w, self.spare, feeds[0]), (self.spare, w, feeds[1]))
        ]
        self.first = self._pass(Request(self._point(point(self.cut, 0))))
        # Vectors that no step reads are written by the last one only.
        unread = {name for name, node in self.cut.old.items() if not node.users}
        self.programs = [[part for a in actions for part in self._parts(a, skip)] for skip in (unread, set())]
        self.marked_end = bool(unread)

    def enter(self) -> None:
        """What is constant in a round, and the point of its first gradient."""
        for i, value in enumerate(self.cut.hoist({n: self.tensors[name] for n, name in self.cut.given.items()})):
            self.tensors[f"constant_{i}"].copy_(value)
        self.first(self.ways[0].tensors)

    def step(self, odd: bool, last: bool) -> None:
        """One step; ``odd``: from the spare buffer of weights to the other one; ``last``: of the round."""
        for part in self.programs[last]:
            part(self.ways[odd])

    def _parts(self, action: Take | Reduce | Move | Finish, skip: set[str]) -> list[Part]:
        if isinstance(action, Take):
            return [self._take(action.number)]
        if isinstance(action, Reduce):
            return [self._over(Request((), self._sums(action.sums))), self._fold(action.sums)]
        stores = [
            Store("w_new" if n == "w" else n, self.cut.results[n]) for n in action.results if n not in skip
        ]  # fmt: skip
        if isinstance(action, Move):
            return [self._over(Request((*stores, *self._point(action.point))))]
        new = {self.cut.old[n]: self.cut.results[n] for n in action.results}
        first = self._point(point(self.cut, 0), following=True)
        factors = frozenset(action.factors)
        parts: list[Part] = [
            self._over(Request((*stores, *first), self._sums(action.sums), factors, becomes=new)),
            self._fold(action.sums, close=True),
        ]
        if factors:
            again = [s for s in stores if s.name == "w_new"]
            new = {n: v for n, v in new.items() if self.cut.given[n] == "w"}
            parts.append(self._over(Request((*again, *first), unless=action.factors, becomes=new)))
        return parts

    def _take(self, number: int) -> Part:
        into = self.slopes[number]
        return lambda way: self.oracle.launch(way.tensors["working"], way.tensors["fine"], way.batch, into)

    def _over(self, request: Request) -> Part:
        made = self._pass(request)
        return lambda way: made(way.tensors)

    def _pass(self, request: Request) -> VectorPass:
        return VectorPass(request, self._leaf, self.clients, self.size, self.tensors["w"].dtype)

    def _fold(self, sums: Sequence[Node], close: bool = False) -> Part:
        first = self.rows[sums[0]] if sums else 0
        return lambda way: fold(way.tensors, self.clients, VectorPass.blocks(self.size), first, len(sums), close)

    def _sums(self, nodes: Sequence[Node]) -> list[tuple[Node, bool]]:
        return [(s.of, s.norm) for n in nodes if (s := reduction(n))]

    def _point(self, node: Node, following: bool = False) -> list[Store]:
        """Where a gradient is to be taken, in the two forms that the oracle reads."""
        return [Store("working", node, following), Store("fine", node, following, self.oracle.begin)]

    def _leaf(self, node: Node) -> Leaf | None:
        """What of a node lies in memory, and where."""
        cut, number = self.cut, self.cut.gradient(node)
        if number is not None:
            apart = self.slopes[number].coarse.dtype != self.tensors["w"].dtype
            rest = (f"slope_{number}_fine", self.oracle.begin) if apart else ("", 0)
            return Leaf(f"slope_{number}", True, False, *rest)
        if node in self.rows:
            found = reduction(node)
            return Leaf("sums", False, row=self.rows[node], root=found is not None and found.norm)
        if node in cut.hoisted:
            name = f"constant_{cut.hoisted.index(node)}"
        elif node.op in ("placeholder", "get_attr"):
            name = cut.given.get(node, str(node.target))
        else:
            return None
        return Leaf.of(name, shape(node), self.size)
