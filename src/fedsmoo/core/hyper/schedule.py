"""Numbers that move with the round: any numeric hyper-parameter of a method may be a schedule. Knows no tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from fedsmoo.core.errors import FedsmooError, as_typed, unknown

SHAPES = ("linear", "cosine", "exponential")
KEYS = {"from": "first", "to": "last", "rounds": "rounds", "shape": "shape", "warmup": "warmup", "steps": "steps"}
FORMS = "linear:FROM:TO:ROUNDS (or cosine, exponential), steps:VALUE:ROUND:VALUE:..., warmup:ROUNDS:VALUE or a schedule"


@dataclass(frozen=True)
class Schedule:
    """A number for each round: from ``first`` in the first one to ``last`` after so many ``rounds``, and from then on.

    ``steps`` instead are values by the number of rounds done before them. With ``warmup`` the number first rises to
    ``first``, a part of it every round, and has all of it in the last round of the warm-up; only then does it move.

    >>> r = Schedule(0.0, 0.1, 200, "cosine")
    >>> [round(r(number), 3) for number in (0, 100, 200, 300)], str(r)
    ([0.0, 0.05, 0.1, 0.1], 'cosine:0:0.1:200')
    >>> [Schedule(1.0, steps={2: 0.5})(number) for number in range(4)]
    [1.0, 1.0, 0.5, 0.5]
    """

    first: float
    last: float | None = None
    rounds: int | None = None
    shape: str = "linear"
    warmup: int = 0
    steps: Any = ()  # a mapping, or pairs: rounds done before -> value

    def __post_init__(self) -> None:
        pairs = self.steps.items() if isinstance(self.steps, Mapping) else self.steps
        try:
            steps = tuple((whole(k, "a round of steps"), finite(v, "a value of steps")) for k, v in pairs)
        except (TypeError, ValueError):
            raise FedsmooError(
                f"steps is {self.steps!r}, but must be values by rounds, such as {{100: 0.05}}"
            ) from None
        object.__setattr__(self, "steps", steps)
        object.__setattr__(self, "first", finite(self.first, "from"))
        object.__setattr__(self, "warmup", whole(self.warmup, "warmup"))
        if self.last is not None:
            object.__setattr__(self, "last", finite(self.last, "to"))
            object.__setattr__(self, "rounds", whole(self.rounds, "rounds"))
        self._refuse_nonsense()

    def _refuse_nonsense(self) -> None:
        """Refuse parts that do not make a schedule together."""
        if self.shape not in SHAPES:
            raise unknown("shape of a schedule", str(self.shape), SHAPES)
        if self.last is None and (self.rounds is not None or self.shape != "linear"):
            raise FedsmooError("a schedule with rounds or a shape needs the value that it goes to")
        if self.last is not None and self.steps:
            raise FedsmooError("a schedule goes to a value or has steps, not both: leave one out")
        if self.last is None and not self.steps and not self.warmup:
            raise FedsmooError("a schedule needs the value that it goes to and in how many rounds, or steps, or warmup")
        if self.rounds is not None and self.rounds <= self.warmup:
            raise FedsmooError(f"rounds is {self.rounds}, but must be above {self.warmup}, the rounds of the warm-up")
        rounds = [max(self.warmup, 1) - 1, *(k for k, _ in self.steps)]
        if any(a >= b for a, b in pairwise(rounds)):
            raise FedsmooError(
                f"steps: rounds must rise, and begin after round {rounds[0]}: {[k for k, _ in self.steps]}"
            )
        if self.shape == "exponential" and self.last is not None and not self.first * self.last > 0:
            raise FedsmooError("an exponential schedule goes between two numbers above 0, or two below 0")

    def __call__(self, number: int) -> float:
        """Return the value in a round, counted from 0."""
        if number + 1 < self.warmup:
            return self.first * ((number + 1) / self.warmup)
        if self.last is None or self.rounds is None:
            return next((v for k, v in reversed(self.steps) if number >= k), self.first)
        t = (number - self.warmup) / (self.rounds - self.warmup)
        if t <= 0 or t >= 1:
            return self.first if t <= 0 else self.last
        if self.shape == "exponential":
            value: float = self.first * (self.last / self.first) ** t
        else:
            part = t if self.shape == "linear" else (1 - math.cos(math.pi * t)) / 2
            value = self.first + (self.last - self.first) * part
        return min(max(value, min(self.first, self.last)), max(self.first, self.last))  # whatever rounding does

    @property
    def extremes(self) -> tuple[float, float]:
        """The least and the greatest value of any round."""
        values = [self.first, *(v for _, v in self.steps), *([] if self.last is None else [self.last])]
        values.append(self.first / max(self.warmup, 1))
        return min(values), max(values)

    @property
    def is_whole(self) -> bool:
        """Whether the value is a whole number in every round."""
        if self.last is not None or self.warmup > 1:
            return False
        return all(v == int(v) for v in (self.first, *(v for _, v in self.steps)))

    __repr__ = as_typed

    def __str__(self) -> str:
        """Return the schedule as text, which :meth:`read` takes."""
        words: list[Any] = ["warmup", self.warmup] if self.warmup else []
        if self.last is not None:
            words += [self.shape, self.first, self.last, self.rounds]
        elif self.steps:
            words += ["steps", self.first, *(word for step in self.steps for word in step)]
        else:
            words.append(self.first)
        return ":".join(repr(w).removesuffix(".0") if isinstance(w, float) else str(w) for w in words)

    @classmethod
    def read(cls, value: Any) -> Schedule:
        """Return the schedule that text or a table of a TOML file spells.

        >>> Schedule.read("linear:1:0:10") == Schedule.read({"from": 1, "to": 0, "rounds": 10})
        True
        """
        if isinstance(value, Schedule):
            return value
        if isinstance(value, Mapping):
            for key in value:
                if key not in KEYS:
                    raise unknown("part of a schedule", str(key), KEYS)
            if "from" not in value:
                raise FedsmooError("a schedule says where it starts: from = 0.1")
            return cls(**{KEYS[k]: v for k, v in value.items()})
        return _parsed(str(value).split(":"), str(value))


def is_schedule(value: Any) -> bool:
    """Return whether a value is a schedule, a table, or text that could be one, and no number."""
    return isinstance(value, Schedule | Mapping) or (isinstance(value, str) and ":" in value)


def _parsed(words: Sequence[str], text: str, warmup: int = 0) -> Schedule:
    match words:
        case ["warmup", rounds, *rest] if rest and not warmup:
            return _parsed(rest, text, whole(rounds, "warmup"))
        case [value] if warmup:
            return Schedule(finite(value, text), warmup=warmup)
        case ["steps", value, *rest] if rest and len(rest) % 2 == 0:
            return Schedule(finite(value, text), warmup=warmup, steps=zip(rest[::2], rest[1::2], strict=True))
        case [shape, first, last, rounds] if shape in SHAPES:
            return Schedule(finite(first, text), finite(last, text), whole(rounds, text), shape, warmup)
    raise FedsmooError(f"{text!r} is no schedule: write {FORMS}")


def finite(value: Any, what: str) -> float:
    """Return a finite number, also one that is spelt."""
    try:
        found = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        found = math.nan
    if not math.isfinite(found):
        raise FedsmooError(f"{what}: {value!r} is not a finite number")
    return found


def whole(value: Any, what: str) -> int:
    """Return a count of rounds, also one that is spelt."""
    found = finite(value, what)
    if found != int(found) or found < 0:
        raise FedsmooError(f"{what}: {value!r} is not a number of rounds")
    return int(found)
