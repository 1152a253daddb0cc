"""Run local steps as hand-written gradients with generated passes between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.fx import Node

from fedsmoo.compiler.codegen import Load, PassSpec, Store, VectorPass, fold
from fedsmoo.compiler.dataflow import Dataflow
from fedsmoo.compiler.schedule import Action, LastPass, PointPass, SumPass, TakeGradient, gradient_point, schedule
from fedsmoo.compiler.trace import StepInputs, reduction, shape, trace_step
from fedsmoo.core import Algorithm, LocalRule
from fedsmoo.kernels.gradients import GradientBuffers

Tensors = dict[str, Tensor]


class GradientKernels(Protocol):
    """What passes require of a gradient that is computed by hand-written kernels.

    The kernels read weights in ``dtype``, the type of their products, except those from ``begin`` on, which they read
    in full precision. Where they read all of them in the type that weights have, a gradient at these needs no copy.
    """

    dtype: torch.dtype
    begin: int
    whole: bool  # whether nothing else of the step is worth compiling

    def fine(self, w: Tensor) -> Tensor:
        """Copy the weights from ``begin`` on, which are read in full precision."""

    def buffers(self, w: Tensor) -> GradientBuffers:
        """Make zero-filled buffers for gradients at ``w``."""

    def launch(self, working: Tensor, fine: Tensor, batch: Any, into: GradientBuffers) -> None:
        """Write gradients and losses at weights given in these two forms."""


class StepBuffers(NamedTuple):
    """The tensors and the batch that an even, or an odd, step works on."""

    tensors: Tensors
    batch: Any


Launcher = Callable[[StepBuffers], None]


def changing_numbers(active: Tensor | None, step: Tensor) -> Tensors:
    """Return the numbers that change from step to step, by their names in a trace."""
    return {"rnd_step": step} | ({} if active is None else {"active": active})


class CompiledStep:
    """Local steps of C clients on buffers that never move.

    A step reads the weights in one of two buffers and writes the other one, or stays in one (``spare is w``). ``enter``
    comes once before the first step of a round.

    Args:
        kernels: the gradient.
        algorithm: the method; its numbers may be ``[C, 1]``.
        rule: how a direction becomes a step.
        inputs: the buffers that are read; the client's vectors are changed in place.
        spare: a second buffer for weights; without it no factor is speculated, and norms are summed first.
        feeds: buffers twice, a step's batch, its active clients and its number; an odd step reads the second ones.
        total: where a step adds its losses.

    Raises:
        NotCompiled: for a method that passes cannot express.
    """

    def __init__(
        self,
        kernels: GradientKernels,
        algorithm: Algorithm,
        rule: LocalRule,
        inputs: StepInputs,
        spare: Tensor | None,
        feeds: Sequence[tuple[Any, Tensor | None, Tensor]],
        total: Tensor,
    ) -> None:
        self.kernels, w = kernels, inputs.w
        self.clients, self.size = w.shape
        trace = trace_step(algorithm, rule, inputs)
        self.flow = Dataflow(trace, self.size)
        actions = schedule(self.flow, speculate=spare is not None)
        sums = [n for a in actions if not isinstance(a, TakeGradient | PointPass) for n in a.sums]
        self.rows = {n: i for i, n in enumerate(sums)}
        # Gradients are kept in the type of products; those of norms and of the last layer as they are.
        self.gradients = [kernels.buffers(w) for _ in self.flow.gradients]
        self.in_place = kernels.dtype == w.dtype and kernels.begin >= self.size
        last = actions[-1]
        self.spare = spare if spare is not None and isinstance(last, LastPass) and last.sums else w
        self.tensors = self._buffers(inputs, total) | trace.held()
        self.alternating = [
            StepBuffers(self.tensors | {"w": old, "w_new": new} | changing_numbers(active, step), batch)
            for old, new, (batch, active, step) in ((w, self.spare, feeds[0]), (self.spare, w, feeds[1]))
        ]
        before = self._point(gradient_point(self.flow, 0))
        self.first = self._pass(PassSpec(before)) if before else None
        # Vectors that no step reads are written by the last one only.
        unread = {name for name, node in self.flow.old.items() if not node.users}
        self.programs = [[launch for a in actions for launch in self._launchers(a, skip)] for skip in (unread, set())]
        self.marked_end = bool(unread)
        self.read = frozenset(n for n in inputs.rnd.tensors() if self._is_read(f"rnd_{n}"))

    def _is_read(self, name: str) -> bool:
        return any(node.users for node, n in self.flow.given.items() if n == name)

    def _buffers(self, inputs: StepInputs, total: Tensor) -> Tensors:
        """Allocate what passes read and write besides the clients' own rows."""
        w, sums = inputs.w, max(1, len(self.rows))
        tensors: Tensors = {
            **inputs.named(), "total": total, "loss": self.gradients[0].loss, "fine": self.kernels.fine(w).clone(),
            "working": torch.zeros_like(w, dtype=self.kernels.dtype) if self._copied() else w,
            "sums": w.new_zeros(sums, self.clients),
            "partials": w.new_zeros(sums * self.clients * VectorPass.blocks(self.size)),
        }  # fmt: skip
        tensors |= {f"constant_{i}": w.new_zeros(shape(n)) for i, n in enumerate(self.flow.hoisted)}
        for i, g in enumerate(self.gradients):
            tensors |= {f"gradient_{i}": g.coarse, f"gradient_{i}_fine": g.fine}
        return tensors

    def enter(self) -> None:
        """Compute what is constant in a round, and the point of its first gradient."""
        inputs = {node: self.tensors[name] for node, name in self.flow.given.items()}
        for i, value in enumerate(self.flow.hoist(inputs)):
            self.tensors[f"constant_{i}"].copy_(value)
        if self.first is not None:
            self.first(self.alternating[0].tensors)

    def step(self, odd: bool, last: bool) -> None:
        """Run one step; ``odd``: from the spare buffer of weights to the other one; ``last``: of the round."""
        for launch in self.programs[last]:
            launch(self.alternating[odd])

    def _launchers(self, action: Action, skip: set[str]) -> list[Launcher]:
        if isinstance(action, TakeGradient):
            return [self._take(action.number)]
        if isinstance(action, SumPass):
            return [self._over(PassSpec((), self._sums(action.sums))), self._fold(action.sums)]
        stores = [
            Store("w_new" if n == "w" else n, self.flow.results[n]) for n in action.results if n not in skip
        ]  # fmt: skip
        if isinstance(action, PointPass):
            return [self._over(PassSpec((*stores, *self._point(action.point))))]
        new = {self.flow.old[n]: self.flow.results[n] for n in action.results}
        first = self._point(gradient_point(self.flow, 0), following=True)
        factors = frozenset(action.factors)
        last = PassSpec((*stores, *first), self._sums(action.sums), factors, (), new, self.flow.step)
        if not factors:
            return [self._over(last), self._fold(action.sums, close=True)]
        again = [s for s in stores if s.name == "w_new"]
        new = {n: v for n, v in new.items() if self.flow.given[n] == "w"}
        begin = self.rows[action.sums[0]]
        ends = range(begin, begin + len(action.sums))  # the factors wait for these
        redone = PassSpec((*again, *first), (), frozenset(), action.factors, new, self.flow.step, ends)
        return [self._over(last), self._over(redone)]

    def _take(self, number: int) -> Launcher:
        into, at_weights = self.gradients[number], self.in_place and self._is_weights(gradient_point(self.flow, number))
        form = "w" if at_weights else "working"
        return lambda at: self.kernels.launch(at.tensors[form], at.tensors["fine"], at.batch, into)

    def _is_weights(self, node: Node) -> bool:
        return self.flow.given.get(node) == "w"

    def _copied(self) -> bool:
        """Return whether a gradient is taken where no weights lie."""
        points = [gradient_point(self.flow, i) for i in range(len(self.gradients))]
        return not self.in_place or not all(map(self._is_weights, points))

    def _over(self, spec: PassSpec) -> Launcher:
        made = self._pass(spec)
        return lambda at: made(at.tensors)

    def _pass(self, spec: PassSpec) -> VectorPass:
        return VectorPass(spec, self._load_of, self.clients, self.size, self.tensors["w"].dtype)

    def _fold(self, sums: Sequence[Node], close: bool = False) -> Launcher:
        first = self.rows[sums[0]] if sums else 0
        return lambda at: fold(at.tensors, self.clients, VectorPass.blocks(self.size), first, len(sums), close)

    def _sums(self, nodes: Sequence[Node]) -> list[tuple[Node, bool]]:
        return [(s.of, s.norm) for n in nodes if (s := reduction(n))]

    def _point(self, node: Node, following: bool = False) -> list[Store]:
        """Return the stores of the point at which a gradient is taken, in the two forms that the kernels read."""
        if self.in_place:
            return [] if self._is_weights(node) else [Store("working", node, following)]
        return [Store("working", node, following), Store("fine", node, following, self.kernels.begin)]

    def _load_of(self, node: Node) -> Load | None:
        """Return where a node's value lies in memory; ``None``: nowhere, a pass computes it."""
        flow, number = self.flow, self.flow.gradient_number(node)
        if number is not None:
            apart = self.gradients[number].coarse.dtype != self.tensors["w"].dtype
            rest = (f"gradient_{number}_fine", self.kernels.begin) if apart else ("", 0)
            return Load(f"gradient_{number}", True, False, *rest)
        if node in self.rows:
            found = reduction(node)
            return Load("sums", False, row=self.rows[node], root=found is not None and found.norm)
        if node in flow.hoisted:
            name = f"constant_{flow.hoisted.index(node)}"
        elif node.op in ("placeholder", "get_attr"):
            name = flow.given.get(node, str(node.target))
        else:
            return None
        return Load.of(name, shape(node), self.size)
