"""Which replies enter the mean, and what is said of a round. A bad one changes nothing but the counters."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from fedsmoo.core import Algorithm, Vectors, norm
from fedsmoo.deploy.client import Answer
from fedsmoo.deploy.wire import Refusal, brief_value, expected_arrays, from_arrays, plain_of
from fedsmoo.runs.config import Config

MAX_METRIC = 1e12  # of a loss or a drift: no float32 overflows by a sum of such
ENOUGH = 3  # replies whose median one client cannot move
HEADER, ROOM = 1000, 64 * 2**10  # bytes of a reply: of an array's header, and of all that is no array
MEMORY = 15  # sizes that are remembered for rounds with fewer
SAID = ("lost state", "client error")  # why a client of ours does not answer


@dataclass(frozen=True)
class Reply:
    """A reply as it came from the network: plain values that anybody may have written."""

    facts: Mapping[str, Any]  # session, number, client, version, or why the client refused
    numbers: Mapping[str, Any]  # loss, drift, steps, samples
    arrays: Mapping[str, bytes]


@dataclass(frozen=True)
class RoundReport:
    """What happened in a round."""

    round: int  # counted from 1
    cohort: list[int]
    accepted: list[int]
    refused: dict[int, str]  # client -> why its reply was left out
    lr: float
    train_loss: float | None
    drift: float | None
    test_accuracy: float | None
    test_loss: float | None
    skipped: str | None  # why the round changed nothing
    seconds: float
    capped: dict[int, float] = field(default_factory=dict)  # client -> what it would have counted for in the mean
    metrics: dict[str, float | None] = field(default_factory=dict)  # of the test part, the first of which leads

    @property
    def reasons(self) -> dict[str, int]:
        """How many replies were left out for which reason."""
        kinds = [text.partition(":")[0] for text in self.refused.values()]
        return {kind: kinds.count(kind) for kind in sorted(set(kinds))}


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
    plain: Mapping[str, int] = field(default_factory=dict)

    @property
    def most(self) -> int:
        """Bytes that a reply may have in all: its vectors, the headers of their files, and room for facts."""
        arrays = expected_arrays(self.names, self.size, self.dtype, self.wire, self.plain).values()
        return ROOM + sum(HEADER + length * dtype.itemsize for dtype, length in arrays)


def message_bytes(value: Any) -> int:
    """Return about how many bytes of a message a value takes: text, numbers, lists of them, or a mapping to these.

    >>> message_bytes({"a": b"1234", "b": [1, 2, "xyz"], "c": 0.5})
    34
    """
    if isinstance(value, Mapping):
        return sum(len(str(name)) + message_bytes(each) for name, each in value.items())
    if isinstance(value, list | tuple):
        return sum(len(each) if isinstance(each, str | bytes) else 8 for each in value)
    return len(value) if isinstance(value, str | bytes) else 8


def steps_of(config: Config, samples: int) -> int:
    """Return how many local steps a client with so many samples makes."""
    per_epoch = -(-samples // config.batch_size)
    return config.local_steps if config.local_steps is not None else (config.epochs or 0) * per_epoch


def judge(reply: Reply, want: Expectation) -> Answer:
    """Return the answer in a reply; raises a :class:`Refusal` that says what is wrong with it."""
    facts, size = reply.facts, sum(map(message_bytes, (reply.facts, reply.numbers, reply.arrays)))
    if size > want.most:
        raise Refusal("too large", f"{size:,} bytes, more than {want.most:,}")
    if facts.get("refused"):
        said = facts["refused"]
        detail = facts.get("detail", "")
        detail = detail if isinstance(detail, str) else brief_value(detail)
        raise Refusal(said if said in SAID else "client error", detail)
    for name in ("session", "number", "client", "version"):
        if name not in facts:
            raise Refusal("incomplete", f"no {name}")
    if facts["session"] != want.session:
        raise Refusal("another federation", brief_value(facts["session"]))
    if facts["number"] != want.number or facts["version"] != want.number + 1:
        raise Refusal("stale round", f"of round {brief_value(facts['number'])}, not {want.number}")
    if facts["client"] != want.client:
        raise Refusal("wrong client", f"says it is {brief_value(facts['client'])}, is {want.client}")
    loss, drift = (checked_number(reply.numbers, n) for n in ("loss", "drift"))
    samples, steps = (checked_number(reply.numbers, n) for n in ("samples", "steps"))
    if samples != want.samples or steps != want.steps:
        raise Refusal("wrong counts", f"{samples:g} samples and {steps:g} steps, not {want.samples} and {want.steps}")
    up = from_arrays(reply.arrays, want.names, want.size, want.dtype, want.wire, want.plain)
    return Answer(up, loss, drift, want.steps, want.samples, want.number + 1)


def checked_number(numbers: Mapping[str, Any], name: str) -> float:
    """Return a number of a reply; a ``Refusal`` if it is none, not finite, or beyond any that a client could mean."""
    value = numbers.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= MAX_METRIC:
        raise Refusal("wrong metrics", f"{name} is {brief_value(value)}")
    return float(value)


@dataclass(frozen=True)
class Scale:
    """How long vectors are that the server itself knows: its model, and what local steps make of one as long."""

    model: float  # norm of the model
    lr: float
    steps: float
    samples: float
    down: tuple[str, ...]  # vectors that are sent and come back: their change counts
    plain: tuple[str, ...] = ()
    most: float = 0.0  # declared: the longest change of a model; 0: none declared

    @classmethod
    def of_round(
        cls, algorithm: Algorithm, server: Vectors, lr: float, answers: Collection[Answer], most: float
    ) -> Scale:
        """Return the server's own measure of what it is sent in a round."""
        steps = sum(a.steps for a in answers) / max(len(answers), 1)
        samples = max((a.samples for a in answers), default=0)
        both = tuple(n for n in algorithm.up if n in algorithm.down)
        return cls(norm(server.w.double()).item(), lr, steps, samples, both, tuple(plain_of(algorithm)), most)

    def of(self, name: str) -> float:
        """Return a length that no honest vector of this name exceeds by far."""
        size = max(self.model, 1.0)
        if name in self.plain:
            return size * max(self.samples, self.steps, 1.0)
        if name in self.down:
            return size
        return size * max(
            1.0, 1 / max(self.lr * self.steps, 1e-12)
        )  # a model's change over its steps, as SCAFFOLD sends


@dataclass(frozen=True)
class Proportion:
    """Refuses vectors whose norm is out of any proportion to the others' and to the server's own; 0: of any.

    The measure is the median over this round's replies if there are three or more, else over the last ones: one client
    cannot move it. Before there are three it is the server's own scale. A change of what the server sent may never be
    ``bound`` times as long as that, and always a ``bound``-th of it.
    """

    bound: float
    recent: dict[str, list[float]] = field(default_factory=dict)

    def sizes(self, answers: Mapping[int, Answer], down: Vectors, wire: str) -> dict[int, dict[str, float]]:
        """Return the norm of every vector that was sent; of a model, the norm of its change."""

        def size(up: Vectors, n: str) -> float:
            v = getattr(up, n)
            moved = v - getattr(down, n) if wire == "exact" and n in down.names() else v
            return norm(moved.double()).item()

        return {c: {n: size(a.up, n) for n in a.up.names()} for c, a in answers.items()}

    def limit(self, name: str, sizes: Mapping[int, Mapping[str, float]], scale: Scale) -> float:
        """Return how long a vector may be in this round."""
        own = scale.of(name)
        if not self.bound:
            return scale.most if name == "w" else 0.0
        values = [s[name] for s in sizes.values()] if len(sizes) >= ENOUGH else self.recent.get(name, [])
        usual = statistics.median(values) if len(values) >= ENOUGH else None
        limit = self.bound * (own if usual is None else usual)
        if usual == 0 and name not in scale.down:  # no measure of whoever sends something else
            limit = self.bound * own
        if name in scale.down:
            limit = min(max(limit, own / self.bound), own * self.bound)
        if scale.most and name == "w":
            limit = min(limit, scale.most)
        return limit

    def outliers(self, sizes: Mapping[int, Mapping[str, float]], scale: Scale) -> dict[int, Refusal]:
        """Return the clients that are out of proportion."""
        names = next(iter(sizes.values()), {})
        limits = {n: self.limit(n, sizes, scale) for n in names}
        out: dict[int, Refusal] = {}
        for client, mine in sizes.items():
            for n, size in mine.items():
                if 0 < limits[n] < size or not math.isfinite(size):
                    out[client] = Refusal("out of proportion", f"||{n}|| is {size:.3g}, more than {limits[n]:.3g}")
        return out

    def learn(self, sizes: Mapping[int, Mapping[str, float]]) -> Proportion:
        """Return the rule with the sizes of a round's good replies remembered: all of few, the median of many."""
        recent = {n: list(v) for n, v in self.recent.items()}
        for n in next(iter(sizes.values()), {}):
            values = [s[n] for s in sizes.values()]
            new = [statistics.median(values)] * ENOUGH if len(values) >= ENOUGH else values
            recent[n] = [*recent.get(n, []), *new][-MEMORY:]
        return Proportion(self.bound, recent)
