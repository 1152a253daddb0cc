"""Cheap measurements during training, every so many rounds: ``hessian:50,sharpness:10``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedsmoo.analysis.measurement import Measurement, Moment, measurements
from fedsmoo.core.errors import FedsmooError, unknown

if TYPE_CHECKING:
    from fedsmoo.engines.client_state.table import ClientTable


def probes() -> list[str]:
    """Return the names of the measurements that have a probe."""
    return [n for n, cls in measurements().items() if cls.probe.__func__ is not Measurement.probe.__func__]  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Schedule:
    """Which probes are due in which rounds."""

    every: dict[str, int]

    @classmethod
    def parse(cls, text: str) -> Schedule:
        """``hessian:50,sharpness:10``.

        >>> Schedule.parse("sharpness:10").due(20, 100), Schedule.parse("sharpness:10").due(21, 100)
        (['sharpness'], [])
        """
        every: dict[str, int] = {}
        for word in text.split(","):
            name, _, rounds = word.strip().partition(":")
            if name not in probes():
                raise unknown("probe", name, probes())
            if not rounds.isdecimal() or int(rounds) < 1:
                raise FedsmooError(f"probe {word.strip()!r} must be NAME:ROUNDS, such as {name}:10")
            if name in every:
                raise FedsmooError(f"probe {text!r} names {name} twice: choose one number of rounds")
            every[name] = int(rounds)
        return cls(every)

    def suits(self, table: ClientTable) -> Schedule:
        """Return the schedule itself, if its probes can see what they need."""
        for name in self.every:
            if measurements()[name].all_clients and table.sharded:
                raise FedsmooError(f"the {name} probe reads all clients' vectors in one process: leave it out here")
        return self

    def due(self, number: int, rounds: int) -> list[str]:
        """Return the probes of round ``number`` (counted from 1): every so many rounds, and in the last."""
        return [n for n, k in self.every.items() if number % k == 0 or number == rounds]

    def measure(self, now: Moment, rounds: int) -> dict[str, float]:
        """Measure what is due after a round."""
        out: dict[str, float] = {}
        for name in self.due(now.work.number + 1, rounds):
            out |= measurements()[name].probe(now)
        return out
