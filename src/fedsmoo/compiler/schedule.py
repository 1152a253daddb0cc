"""Order a local step as gradients and passes over the clients' vectors.

A traced step is cut where it must wait: at gradients, and at norms. What lies between becomes one pass each. Four rules
save passes, for any method:

- what does not change within a round is computed at its beginning (FedLESAM's perturbation);
- the pass that makes the new weights also makes the point of the next step's first gradient, in the kernels' type;
- a factor clamped at one (the clip) is speculated to be one while its norm is summed in the same pass; a client whose
  factor turns out smaller is recomputed from its previous weights, which are kept until then;
- a vector that steps write but none reads is written by the last step only.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from torch.fx import Node

from fedsmoo.compiler import NotCompiled
from fedsmoo.compiler.dataflow import Dataflow
from fedsmoo.compiler.expressions import CLAMPS, clamp_limits
from fedsmoo.compiler.trace import reduction


class TakeGradient(NamedTuple):
    """Take gradient ``number`` at the weights that lie ready."""

    number: int


class SumPass(NamedTuple):
    """A pass that only sums."""

    sums: tuple[Node, ...]


class PointPass(NamedTuple):
    """A pass that writes the point of the next gradient, and ready results whose old values are not read any more."""

    point: Node
    results: tuple[str, ...]


class LastPass(NamedTuple):
    """The last pass: the remaining results and the next step's first point.

    ``factors`` are speculated to be one while ``sums``, on which they depend, are taken in the same pass; clients for
    which the speculation fails are recomputed.
    """

    results: tuple[str, ...]
    sums: tuple[Node, ...]
    factors: tuple[Node, ...]


Action = TakeGradient | SumPass | PointPass | LastPass


def schedule(flow: Dataflow, speculate: bool = True) -> list[Action]:
    """Return the step as a list of gradients and passes; ``speculate`` needs the weights before a step to be kept.

    Raises:
        NotCompiled: if the step takes no gradient, or its first one waits for a norm.
    """
    if not flow.gradients or "w" not in flow.results:
        raise NotCompiled("the step takes no gradient")
    if any(n in flow.sums or flow.gradient_number(n) is not None for n in flow.below([gradient_point(flow, 0)])):
        raise NotCompiled("the first gradient waits for a norm")
    actions: list[Action] = []
    summed: set[Node] = set()
    left = list(flow.results)
    for number in range(len(flow.gradients)):
        actions.append(TakeGradient(number))
        last = number + 1 == len(flow.gradients)
        targets = [flow.results[n] for n in left] if last else [gradient_point(flow, number + 1)]
        while waiting := pending_sums(flow, targets, summed):
            ready = tuple(n for n in waiting if not pending_sums(flow, [summand(n)], summed))
            may = speculate and last and len(ready) == len(waiting)
            factors = speculative_factors(flow, left, waiting) if may else ()
            if factors:
                return [*actions, LastPass(tuple(left), ready, factors)]
            actions.append(SumPass(ready))
            summed.update(ready)
        if last:
            return [*actions, LastPass(tuple(left), (), ())]
        written = ready_early(flow, left, number, summed)
        actions.append(PointPass(gradient_point(flow, number + 1), written))
        left = [n for n in left if n not in written]
    raise AssertionError


def gradient_point(flow: Dataflow, number: int) -> Node:
    """Return the point at which a step takes one of its gradients."""
    (at,) = flow.gradients[number].args
    assert isinstance(at, Node)
    return at


def summand(node: Node) -> Node:
    """Return the vector that a sum or a norm reduces."""
    found = reduction(node)
    assert found is not None
    return found.of


def pending_sums(flow: Dataflow, targets: Iterable[Node], summed: set[Node]) -> list[Node]:
    """Return the sums that targets depend on, directly or through other sums, in the step's order."""
    found: set[Node] = set()
    todo = list(targets)
    while todo:
        new = {n for n in flow.below(todo) if n in flow.sums} - summed - found
        found |= new
        todo = [summand(n) for n in new]
    return [n for n in flow.sums if n in found]


def speculative_factors(flow: Dataflow, left: list[str], waiting: list[Node]) -> tuple[Node, ...]:
    """Return the factors clamped at one through which alone the new weights depend on the waiting sums.

    None if speculation would lose results: only the weights may depend on the factors, since only the weights before
    the step are kept, and the inputs of the new weights must not be overwritten by the same pass.
    """
    others = [flow.results[r] for r in left if r != "w"]
    new = flow.results["w"]
    found = [n for n in flow.constant if clamped_at_one(n) and not flow.vector(n)]
    reached = flow.below([new])
    factors = tuple(f for f in found if f in reached and any(n in waiting for n in flow.below([f])))
    if any(n in waiting for n in flow.below(others)) or any(n in waiting for n in flow.below([new], stop=factors)):
        return ()
    if flow.below([new, *(summand(n) for n in waiting)]) & {flow.old[r] for r in left if r != "w"}:
        return ()
    return factors


def clamped_at_one(node: Node) -> bool:
    """Return whether a node is a clamp with the upper limit one, such as a clip's factor."""
    return node.target in CLAMPS and clamp_limits(node) == (None, 1.0)


def ready_early(flow: Dataflow, left: list[str], number: int, summed: set[Node]) -> tuple[str, ...]:
    """Return the results that are ready after gradient ``number`` and overwrite nothing that is needed later."""

    def ready(target: Node) -> bool:
        waits = any((g := flow.gradient_number(n)) is not None and g > number for n in flow.below([target]))
        return not waits and not pending_sums(flow, [target], summed)

    chosen = [r for r in left if r != "w" and ready(flow.results[r])]
    later = [gradient_point(flow, n) for n in range(number + 2, len(flow.gradients))]
    later += [summand(n) for n in flow.sums if n not in summed]
    while True:
        needed = flow.below([*later, *(flow.results[r] for r in left if r not in chosen)])
        kept = [r for r in chosen if flow.old[r] not in needed]
        if kept == chosen:
            return tuple(chosen)
        chosen = kept
