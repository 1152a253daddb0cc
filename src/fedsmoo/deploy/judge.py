"""Which replies enter the mean. A bad one changes nothing but the counters."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from fedsmoo.core import Vectors, norm
from fedsmoo.deploy.client import Answer
from fedsmoo.deploy.wire import Refusal, from_arrays
from fedsmoo.runs.config import Config

MAX_SAMPLES = 10**9


@dataclass(frozen=True)
class Reply:
    """A reply as it came from the network: plain values that anybody may have written."""

    facts: Mapping[str, Any]  # session, number, client, version, or why the client refused
    numbers: Mapping[str, Any]  # loss, drift, steps, samples
    arrays: Mapping[str, bytes]


@dataclass(frozen=True)
class Expectation:
    """What a good reply of one client in one round looks like."""

    session: str
    number: int
    client: int
    samples: int
    steps: int
    names: tuple[str, ...]
    size: int
    dtype: torch.dtype
    wire: str
    scalars: tuple[str, ...] = ()


def steps_of(config: Config, samples: int) -> int:
    """Return how many local steps a client with so many samples makes."""
    per_epoch = -(-samples // config.batch_size)
    return config.local_steps if config.local_steps is not None else (config.epochs or 0) * per_epoch


def judge(reply: Reply, want: Expectation) -> Answer:
    """Return the answer in a reply; raises a :class:`Refusal` that says what is wrong with it."""
    facts = reply.facts
    if facts.get("refused"):
        raise Refusal(str(facts["refused"])[:40], str(facts.get("detail", ""))[:300])
    for name in ("session", "number", "client", "version"):
        if name not in facts:
            raise Refusal("incomplete", f"no {name}")
    if facts["session"] != want.session:
        raise Refusal("another federation", repr(facts["session"])[:100])
    if facts["number"] != want.number or facts["version"] != want.number + 1:
        raise Refusal("stale round", f"of round {facts['number']!r}, not {want.number}")
    if facts["client"] != want.client:
        raise Refusal("wrong client", f"says it is {facts['client']!r}, is {want.client}")
    loss, drift = (finite_number(reply.numbers, n) for n in ("loss", "drift"))
    samples, steps = (finite_number(reply.numbers, n) for n in ("samples", "steps"))
    if samples != want.samples or steps != want.steps:
        raise Refusal("wrong counts", f"{samples:g} samples and {steps:g} steps, not {want.samples} and {want.steps}")
    up = from_arrays(reply.arrays, want.names, want.size, want.dtype, want.wire, want.scalars)
    return Answer(up, loss, drift, want.steps, want.samples, want.number + 1)


def finite_number(numbers: Mapping[str, Any], name: str) -> float:
    """Return a number of a reply; a ``Refusal`` if it is not finite."""
    value = numbers.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise Refusal("wrong metrics", f"{name} is {value!r}")
    return float(value)


@dataclass(frozen=True)
class Proportion:
    """Refuses vectors whose norm is out of any proportion to the others'.

    The measure is the median over this round's replies if there are three or more, else the last such median: one
    client cannot move it.
    """

    bound: float
    usual: dict[str, float] = field(default_factory=dict)

    def sizes(self, answers: Mapping[int, Answer], down: Vectors, wire: str) -> dict[int, dict[str, float]]:
        """Return the norm of every vector that was sent; of a model, the norm of its change."""

        def size(up: Vectors, n: str) -> float:
            v = getattr(up, n)
            moved = v - getattr(down, n) if wire == "exact" and n in down.names() else v
            return norm(moved.double()).item()

        return {c: {n: size(a.up, n) for n in a.up.names()} for c, a in answers.items()}

    def outliers(self, sizes: Mapping[int, Mapping[str, float]]) -> dict[int, Refusal]:
        """Return the clients that are out of proportion."""
        usual = self.learn(sizes).usual
        out: dict[int, Refusal] = {}
        for client, mine in sizes.items():
            for n, size in mine.items():
                limit = self.bound * usual.get(n, 0.0)
                if limit > 0 and size > limit:
                    out[client] = Refusal("out of proportion", f"||{n}|| is {size:.3g}, more than {limit:.3g}")
        return out

    def learn(self, sizes: Mapping[int, Mapping[str, float]]) -> Proportion:
        """Return this with the medians of a round, if it has enough replies to be trusted."""
        if len(sizes) < 3:
            return self
        names = next(iter(sizes.values()))
        return Proportion(self.bound, {n: statistics.median(s[n] for s in sizes.values()) for n in names})
