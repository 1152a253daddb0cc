"""What a drill yields, and how cases are drawn from many."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any, TypedDict, TypeVar

T = TypeVar("T")


class Outcome(TypedDict):
    """How many cases of a drill were tried, how many held, and a line for each that did not."""

    drill: str
    tried: int
    held: int
    failures: list[str]


def judged(name: str, cases: Iterable[str]) -> Outcome:
    """Return the outcome of some cases, of which each is empty if it held, or the line that says what went wrong."""
    lines = list(cases)
    failures = [line for line in lines if line]
    return {"drill": name, "tried": len(lines), "held": len(lines) - len(failures), "failures": failures}


def sample(cases: Sequence[T], share: float, seed: int) -> list[T]:
    """Return some of the cases in their order: one, drawn from the seed, of every so many that follow each other."""
    every, draws = max(round(1 / share), 1), random.Random(seed)
    return [cases[min(k + draws.randrange(every), len(cases) - 1)] for k in range(0, len(cases), every)]


def wrong(outcome: Any) -> str:
    """Say why something is no outcome; empty if it is one."""
    if not isinstance(outcome, dict) or {*outcome} != set(Outcome.__annotations__):
        return f"{outcome!r} is no outcome of a drill"
    if outcome["tried"] < 1:
        return f"{outcome['drill']}: nothing was tried"
    if outcome["held"] + len(outcome["failures"]) < outcome["tried"]:
        return f"{outcome['drill']}: {outcome['held']} of {outcome['tried']} held, and not every other is named"
    return ""
