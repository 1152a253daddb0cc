"""Cohort rules as objects: they draw from a generator of the round, and may look at clients' samples and losses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedsmoo.core.errors import FedsmooError


@dataclass
class Ask:
    """What a rule may ask of clients: ``ask(clients)`` returns their mean losses at the present global model.

    Whoever is asked receives the model and sends a number, which the ledger counts. ``samples`` says how many samples
    each of all clients holds, which a server knows beforehand.
    """

    samples: Sequence[int]
    losses: Callable[[list[int]], Sequence[float]]
    answers: dict[int, float] = field(default_factory=dict)  # a client is asked once in a round

    @property
    def asked(self) -> set[int]:
        return set(self.answers)

    def __call__(self, clients: Sequence[int]) -> np.ndarray:
        ids = [int(i) for i in clients]
        if new := [i for i in dict.fromkeys(ids) if i not in self.answers]:
            self.answers.update(zip(new, self.losses(new), strict=True))
        return np.asarray([self.answers[i] for i in ids], float)


@dataclass(frozen=True)
class Weighted:
    """n clients without replacement, each draw in proportion to the samples that clients hold"""

    asks = False  # whether it asks for losses, so that a round cannot be drawn before the one before it has ended
    fixed = True  # whether there are always n clients

    def draw(self, rng: np.random.Generator, number: int, m: int, n: int, ask: Ask) -> Any:
        sizes = np.asarray(ask.samples, float)
        return rng.choice(m, n, replace=False, p=sizes / sizes.sum())


@dataclass(frozen=True)
class RoundRobin:
    """n clients after the other, in their order, so that all take part equally often"""

    asks = False
    fixed = True
    alone = True  # it asks nothing at all, so that a federation's server can draw so

    def draw(self, rng: np.random.Generator, number: int, m: int, n: int, ask: Ask | None) -> Any:
        return (number * n + np.arange(n)) % m


@dataclass(frozen=True)
class PowerOfChoice:
    """of some candidates, drawn in proportion to their samples, the n whose loss is largest (Cho et al., 2022)"""

    candidates: int = 0  # 0: twice as many as take part
    asks = True
    fixed = True

    def draw(self, rng: np.random.Generator, number: int, m: int, n: int, ask: Ask) -> Any:
        if self.candidates and self.candidates < n:
            raise FedsmooError(f"power_of_choice: {self.candidates} candidates for a cohort of {n}: name more of them")
        sizes = np.asarray(ask.samples, float)
        found = np.sort(rng.choice(m, min(self.candidates or 2 * n, m), replace=False, p=sizes / sizes.sum()))
        return found[np.argsort(-ask(found.tolist()), kind="stable")[:n]]
