"""When to save a run: often enough to lose little, seldom enough to cost little."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

SHARE = 0.04  # of the time may go into saving


@dataclass
class Pace:
    """Decide when to save: so seldom that saving takes less than ``share`` of the time, or every so many rounds."""

    every: int | None = None  # rounds; 0: never
    share: float = SHARE
    cost: float = 0.05  # seconds of a save, before one was timed
    rate: float = 5e-9  # seconds a byte
    since: float = field(default_factory=time.perf_counter)

    def due(self, rounds: int, size: int) -> bool:
        """Whether to save ``size`` bytes after so many rounds."""
        if self.every is not None:
            return self.every > 0 and rounds % self.every == 0
        return (time.perf_counter() - self.since) * self.share > max(self.cost, self.rate * size)

    def learn(self, began: float, size: int) -> None:
        """Learn what saving costs from a save of ``size`` bytes that began at a time and has just ended."""
        self.since = time.perf_counter()
        self.cost = self.since - began
        self.rate = self.cost / max(size, 1)
