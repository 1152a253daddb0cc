"""A local step as gradients and passes over the clients' vectors.

A traced step is cut where it must wait: at gradients, and at norms. What lies between becomes one pass each. Four rules
save passes, for any method:

- what does not change within a round is computed at its beginning (FedLESAM's perturbation);
- the pass that makes the new weights also makes the point of the next step's first gradient, in the kernels' type;
- a factor clamped at one (the clip) is taken for one while its norm is summed in the same pass; clients whose factor
  turns out smaller are done again from the weights before, which are still there;
- a vector that steps write but none reads is written by the last step only.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from torch.fx import Node

from fedsmoo.engines.cut import Cut, NotCut, reduction
from fedsmoo.kernels.translate import CLAMPS, limits


class Take(NamedTuple):
    """Take gradient ``number`` at the weights that lie ready."""

    number: int


class Reduce(NamedTuple):
    """A pass that only sums."""

    sums: tuple[Node, ...]


class Move(NamedTuple):
    """A pass that writes the point of the next gradient, and the results that are ready and in nobody's way."""

    point: Node
    results: tuple[str, ...]


class Finish(NamedTuple):
    """The last pass: the remaining results and the next step's first point. With ``sums``, factors are taken for one
    and clients for whom they are not are done again."""

    results: tuple[str, ...]
    sums: tuple[Node, ...]
    factors: tuple[Node, ...]


Action = Take | Reduce | Move | Finish


def schedule(cut: Cut, speculate: bool = True) -> list[Action]:
    """The step as a list of gradients and passes; ``speculate``: the weights before a step are kept."""
    if not cut.slopes or "w" not in cut.results:
        raise NotCut("the step takes no gradient")
    if any(n in cut.sums or cut.gradient(n) is not None for n in cut.below([point(cut, 0)])):
        raise NotCut("the first gradient waits for a norm")
    actions: list[Action] = []
    summed: set[Node] = set()
    left = list(cut.results)
    for number in range(len(cut.slopes)):
        actions.append(Take(number))
        last = number + 1 == len(cut.slopes)
        targets = [cut.results[n] for n in left] if last else [point(cut, number + 1)]
        while waiting := pending(cut, targets, summed):
            ready = tuple(n for n in waiting if not pending(cut, [summand(n)], summed))
            factors = speculated(cut, left, waiting) if speculate and last and len(ready) == len(waiting) else ()
            if factors:
                return [*actions, Finish(tuple(left), ready, factors)]
            actions.append(Reduce(ready))
            summed.update(ready)
        if last:
            return [*actions, Finish(tuple(left), (), ())]
        written = early(cut, left, number, summed)
        actions.append(Move(point(cut, number + 1), written))
        left = [n for n in left if n not in written]
    raise AssertionError


def point(cut: Cut, number: int) -> Node:
    """Where a step takes one of its gradients."""
    return cut.slopes[number].args[0]  # type: ignore[return-value]


def summand(node: Node) -> Node:
    found = reduction(node)
    assert found is not None
    return found.of


def pending(cut: Cut, targets: Iterable[Node], summed: set[Node]) -> list[Node]:
    """The sums that targets wait for, and those that these wait for, in the step's order."""
    found: set[Node] = set()
    todo = list(targets)
    while todo:
        new = {n for n in cut.below(todo) if n in cut.sums} - summed - found
        found |= new
        todo = [summand(n) for n in new]
    return [n for n in cut.sums if n in found]


def speculated(cut: Cut, left: list[str], waiting: list[Node]) -> tuple[Node, ...]:
    """Factors clamped at one that alone stand between the weights and these sums; none if results would get lost.

    Only the weights may depend on them, since only the weights before the step are kept; and what the new weights are
    made of must not be overwritten by the same pass.
    """
    others = [cut.results[r] for r in left if r != "w"]
    new = cut.results["w"]
    found = [n for n in cut.constant if clamped_at_one(n) and not cut.vector(n)]
    reached = cut.below([new])
    factors = tuple(f for f in found if f in reached and any(n in waiting for n in cut.below([f])))
    if any(n in waiting for n in cut.below(others)) or any(n in waiting for n in cut.below([new], stop=factors)):
        return ()
    if cut.below([new, *(summand(n) for n in waiting)]) & {cut.old[r] for r in left if r != "w"}:
        return ()
    return factors


def clamped_at_one(node: Node) -> bool:
    return node.target in CLAMPS and limits(node) == (None, 1.0)


def early(cut: Cut, left: list[str], number: int, summed: set[Node]) -> tuple[str, ...]:
    """The results that are ready after gradient ``number`` and overwrite nothing that is needed later."""

    def ready(target: Node) -> bool:
        waits = any((g := cut.gradient(n)) is not None and g > number for n in cut.below([target]))
        return not waits and not pending(cut, [target], summed)

    chosen = [r for r in left if r != "w" and ready(cut.results[r])]
    later = [point(cut, n) for n in range(number + 2, len(cut.slopes))]
    later += [summand(n) for n in cut.sums if n not in summed]
    while True:
        needed = cut.below([*later, *(cut.results[r] for r in left if r not in chosen)])
        kept = [r for r in chosen if cut.old[r] not in needed]
        if kept == chosen:
            return tuple(chosen)
        chosen = kept
