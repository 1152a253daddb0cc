"""How far rounds are, in lines: for a log file or a pipe, where nobody sees a progress bar."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fedsmoo.runs.record import Record

EVERY = 10.0  # seconds between two lines, at least


def test_in_words(record: Record) -> str | None:
    """Return in words how well the model of a round does on the test part; ``None`` if it was not evaluated."""
    if not record.evaluated:
        return None
    return f"{record.lead.label} {'no number' if record.score is None else record.lead.text(record.score)}"


def round_in_words(record: Record, before: str | None = None) -> list[str]:
    """Return a round's score and loss in words; without an evaluation of its own, the score is that ``before`` it."""
    loss = None if record.train_loss is None else f"loss {record.train_loss:.4f}"
    return [words for words in (test_in_words(record) or before, loss) if words is not None]


def duration(seconds: float) -> str:
    """Return a time in words.

    >>> duration(7.2), duration(200), duration(5000)
    ('7 s', '3 min 20 s', '1 h 23 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"


@dataclass
class ProgressLines:
    """Say how far rounds are, a line at most every ten seconds, and one at the last round.

    ``round 20 of 100: accuracy 81.20%, loss 0.5127, 0.351 s a round, 28 s left``
    """

    total: int
    done: int = 0  # rounds done before this process began
    say: Callable[[str], Any] = print
    last: bool = True  # whether the last round has a line in any case
    clock: Callable[[], float] = time.monotonic
    worked: int = field(default=0, init=False)  # rounds since

    def __post_init__(self) -> None:
        self.began = self.said = self.clock()

    def skip(self, rounds: int) -> None:
        """Count rounds that are found done: they say nothing of the pace."""
        self.done += rounds

    def moved(self, words: list[str]) -> None:
        """Count a round, and say so if it is time."""
        self.worked += 1
        now, at = self.clock(), self.done + self.worked
        if now - self.said >= EVERY or (self.last and at >= self.total):
            self.said = now
            pace = (now - self.began) / self.worked
            rest = duration(pace * (self.total - at))
            self.say(f"round {at} of {self.total}: {', '.join([*words, f'{pace:.3f} s a round', f'{rest} left'])}")
